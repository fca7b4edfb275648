"""Logits that grow with the position of the query, so that more keys do not flatten the softmax.

A query at i chooses among i + 1 keys. If its logits stay as they were, the weight of the right key
falls as keys are added; a factor on the query, which is one on its logits, holds against it:

    log n      max(1, ln(i + 1)/ln n)          Chiang & Cholak 2022 (arXiv 2202.12172); Su
    Llama 4    1 + a·ln(⌊(i + 1)/n⌋ + 1)       Nakanishi 2025 (arXiv 2501.19399), Llama 4's code

Llama 4 has its factor on layers without rotation. Both are 1 up to about n tokens. They depend on
where the query stands, so scores no longer depend on differences of positions alone.
"""

import math
from dataclasses import dataclass

import torch

from lib.encodings.base import check_positive, check_whole


@dataclass(frozen=True)
class Temperature:
    """What the logits of a query are multiplied by.

    Args:
        log_length: n of "log n"; None: no such factor.
        tuning: {"attn_scale": a, "floor_scale": n} of Llama 4 (0.1 and 8192 there); None: none.
            With both, both multiply.
    """

    log_length: int | None = None
    tuning: dict | None = None

    def __post_init__(self):
        if self.log_length is not None:
            check_whole(2, log_length=self.log_length)
        if self.tuning is None:
            return
        keys = {"attn_scale", "floor_scale"}
        if not isinstance(self.tuning, dict) or set(self.tuning) != keys:
            raise ValueError(
                f"temperature must be a dictionary of attn_scale and floor_scale, not "
                f"{self.tuning!r}."
            )
        check_positive(**self.tuning)

    def __call__(self, positions):
        """The factor at positions (T,) or (B, T): float64 (T, 1) or (B, T, 1); None where it is 1
        everywhere."""
        if self.log_length is None and self.tuning is None:
            return None
        keys = positions.to(torch.float64)[..., None].clamp(min=0) + 1  # i + 1
        factor = torch.ones_like(keys)
        if self.log_length is not None:
            factor = (torch.log(keys) / math.log(self.log_length)).clamp(min=1)
        if self.tuning is not None:
            a, n = self.tuning["attn_scale"], self.tuning["floor_scale"]
            factor = factor * (1 + a * torch.log1p(torch.floor(keys / n)))
        return factor


def multiplied(x, factor):
    """x (B, H, T, d) times a number, or a factor (T, 1) or (B, T, 1) in float64, in the dtype of x.

    The product is made in float32 or wider.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    if isinstance(factor, torch.Tensor):
        factor = (factor[:, None] if factor.dim() == 3 else factor).to(wide)
    return (x.to(wide) * factor).to(x.dtype)
