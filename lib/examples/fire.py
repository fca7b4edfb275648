"""FIRE: a learned function of how far back a key lies, as a part of how far back it could.

T5's table, ALiBi's line and KERPLE's curves are all f(i − j), and past the trained length f is
asked for what it has not seen. Divide by the query's own position and the argument stays in [0, 1],
whatever the length; take the logarithm first, and near keys keep their resolution:

    b(i, j) = f(ψ(i − j) / ψ(max(L, i))),   ψ(x) = log(c x + 1)

For queries before the threshold L nothing is squeezed. c > 0 and L = λ L₀ are learned, and f is a
perceptron, 1 → 32 → H with ReLU. A product of distance and 1/ψ(i) is no function of i − j: FIRE is
the one example here whose scores change when all positions are moved.
Source: Li, You, Guruganesh, Ainslie, Ontañón, Zaheer, Sanghai, Yang, Kumar, Bhojanapalli 2023
(arXiv 2310.04418), section 3, and the code in its appendix, which gives c = 0.1 and L₀ = 512 to
begin with, for training at 2048, and each layer an f of its own.
"""

import torch
import torch.nn.functional as F
from torch import nn

from lib.encodings.base import (
    Encoding,
    check_positive,
    check_whole,
    distances,
    register,
    without_autocast,
)


@register("fire")
class Fire(Encoding):
    """Adds f of the normalised distance to the logits.

    Args:
        width: hidden units of f.
        c: what c begins at.
        threshold: L₀ over max_length: 512 of 2048 in the paper.
    """

    shared_across_layers = False
    relative = False  # i enters by itself

    def __init__(
        self,
        d_model,
        n_heads,
        max_length,
        width: int = 32,
        c: float = 0.1,
        threshold: float = 0.25,
        heads=None,
    ):
        super().__init__(d_model, n_heads, max_length, heads)
        check_whole(width=width)
        check_positive(c=c, threshold=threshold)
        self.L_0 = threshold * max_length
        self.c, self.scale = nn.Parameter(torch.tensor(c)), nn.Parameter(torch.tensor(1.0))  # c, λ
        # f: as nn.Linear draws them, uniform within 1/√fan-in.
        self.w_1 = nn.Parameter(2 * torch.rand(width) - 1)
        self.b_1 = nn.Parameter(2 * torch.rand(width) - 1)
        self.w_2 = nn.Parameter((2 * torch.rand(len(self.heads), width) - 1) * width**-0.5)
        self.b_2 = nn.Parameter((2 * torch.rand(len(self.heads)) - 1) * width**-0.5)

    def bias(self, q, k, q_pos, k_pos, mask=None):
        # In float32 or wider, whatever q is: (1 or B, H, Tq, Tk).
        wide = torch.promote_types(q.dtype, torch.float32)
        c, L, w_1, b_1, w_2, b_2 = (
            p.to(wide) for p in (self.c, self.L_0 * self.scale.abs(), *self.perceptron())
        )
        with without_autocast(q):
            delta = distances(q_pos, k_pos).abs().to(wide)  # (Tq, Tk) or (B, Tq, Tk)
            furthest = torch.maximum(L, q_pos.to(wide))[..., None]  # max(L, i): (…, Tq, 1)
            x = self.psi(delta, c) / (self.psi(furthest, c) + 1e-6)  # the authors' ε
            hidden = F.relu(x[..., None] * w_1 + b_1)  # (…, Tq, Tk, width)
            bias = (hidden @ w_2.T + b_2).movedim(-1, -3)  # (…, H, Tq, Tk)
        return bias if bias.dim() == 4 else bias[None]

    def perceptron(self):
        return self.w_1, self.b_1, self.w_2, self.b_2

    @staticmethod
    def psi(x, c):
        """log(c x + 1), for c of either sign as the authors' code has it."""
        return torch.log1p((c * x).abs())
