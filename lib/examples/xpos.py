"""xPos: RoPE in which each pair of channels also shrinks with distance, the slow ones least.

RoPE's score of a query at m and a key at n is a sum over pairs of cos((m − n) θ_k), and far from
m = n it oscillates. Give the turn an amplitude, ζ^m for queries and ζ^−n for keys: their product is
ζ^(m − n), a decay that depends on the distance alone,

    q_k ← q_k e^{i m θ_k} ζ_k^(m/s),   k_k ← k_k e^{i n θ_k} ζ_k^(−n/s)
    ζ_k = (k/(d/2) + γ) / (1 + γ),   k = 0 … d/2 − 1

with γ = 0.4 and s = 512: fast pairs decay first, the slowest hardly. Only the past is meant to be
seen, for towards the future the score grows.
Source: Sun, Dong, Patra, Ma, Huang, Benhaim, Chaudhary, Song, Wei 2022 (arXiv 2212.10554), section
3.1 and Algorithm 1; s is from the authors' code, which also counts positions from the middle of the
sequence, so that neither power grows large. Here the middle is that of max_length, whatever the
sequence: keys that are cached keep their amplitude. Float32 holds to about ± 35,000 from there,
half precision to about ± 4,000 (ζ_0^(−4000/512) is 18,000).
"""

import torch

from lib.encodings.base import check_positive, check_whole, register
from lib.encodings.rope import RoPE, turn


@register("xpos")
class XPos(RoPE):
    """Turns q and k as RoPE does, and scales each pair of channels by a power of ζ_k.

    Args:
        base, layout: as in RoPE.
        gamma: γ, how slowly the fast pairs decay (0.4 in the paper).
        scale_base: s, the distance at which a score has decayed by ζ_k (512 in the authors' code).
    """

    keeps_lengths = False

    def __init__(
        self,
        d_model,
        n_heads,
        max_length,
        base: float = 10000.0,
        layout: str = "interleaved",
        gamma: float = 0.4,
        scale_base: int = 512,
        heads=None,
    ):
        super().__init__(d_model, n_heads, max_length, base=base, layout=layout, heads=heads)
        check_positive(gamma=gamma)
        check_whole(scale_base=scale_base)
        self.gamma, self.scale_base = float(gamma), scale_base

    def amplitude(self, positions):
        """ζ_k^((p − max_length/2)/s) for positions (T,) or (B, T): float64 (…, T, d/2)."""
        k = torch.arange(self.d // 2, dtype=torch.float64, device=positions.device)
        zeta = (k / (self.d / 2) + self.gamma) / (1 + self.gamma)
        return zeta ** ((positions.double()[..., None] - self.max_length / 2) / self.scale_base)

    def rotate(self, q, k, q_pos, k_pos, length=None):
        of_q, of_k = self.amplitude(q_pos), 1 / self.amplitude(k_pos)
        return (
            turn(q, self.phase(q_pos), self.layout, of_q),
            turn(k, self.phase(k_pos), self.layout, of_k),
        )
