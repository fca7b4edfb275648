"""p-RoPE: RoPE whose slowest pairs of channels stand still.

The slowest of RoPE's pairs turn by less than a radian over the whole context: they can carry what a
token means, and over a long enough context their turning spoils it. Leave them unturned, and there
is a channel without position for content; keep the fast ones, with which attention points at a
position:

    θ_k = base^(−2k/d)   for k < n = ⌊p d/2⌋,   0 for the other d/2 − n pairs

p = 1 is RoPE and p = 0 is NoPE. (A "partial" RoPE that turns the first p·d channels with
frequencies of their own, θ_k = base^(−2k/(p d)), is another thing: it keeps the slow turns.)
Source: Barbero, Vitvitskyi, Perivolaropoulos, Pascanu, Veličković 2024 (arXiv 2410.06205), section
6, where p = 0.75 does best.
"""

import torch

from lib.encodings.base import geometric_frequencies, register
from lib.encodings.rope import RoPE


@register("prope")
class PRoPE(RoPE):
    """Turns the fastest part of the pairs of q and k, as RoPE does.

    Args:
        p: the part of the pairs that turn, 0 to 1.
        base, layout: as in RoPE.

    Raises:
        ValueError: p outside 0 … 1.
    """

    def __init__(
        self,
        d_model,
        n_heads,
        max_length,
        p: float = 0.75,
        base: float = 10000.0,
        layout: str = "interleaved",
        heads=None,
    ):
        super().__init__(d_model, n_heads, max_length, base=base, layout=layout, heads=heads)
        if not 0 <= p <= 1:
            raise ValueError(f"p is the part of the pairs that turn, 0 to 1, not {p!r}.")
        self.n = int(p * (self.d // 2))
        # base^(−2k/d) = b^(−k/n): what turns, turns with wavelengths from 2π to about 2π·b.
        self.base = self.base ** (self.n / (self.d // 2))

    def frequencies(self, device=None, length=None):
        theta = geometric_frequencies(self.n, self.base, device)
        return torch.cat([theta, theta.new_zeros(self.d // 2 - self.n)])  # (d/2,)
