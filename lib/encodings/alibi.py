"""ALiBi: a penalty that grows linearly with distance, with a fixed slope for each head.

    a_ij = q_i · k_j / √d − m_h · |i − j|

Source: Press, Smith, Lewis 2022 (arXiv 2108.12409), section 3; the slopes for a head count that is
no power of two are those of the authors' published code.
"""

import torch

from lib.encodings.base import Encoding, register


def slopes(n_heads: int) -> torch.Tensor:
    """m_h for h = 0 … H−1: float64 (H,).

    H a power of two: m_h = 2^(−8(h+1)/H). Otherwise, with p the largest power of two below H: the
    p slopes of p heads, then every second slope of 2p heads from the first, H − p of them.
    """
    p = 2 ** (n_heads.bit_length() - 1)
    exponents = [-8 * (h + 1) / p for h in range(p)]
    exponents += [-8 * (h + 1) / (2 * p) for h in range(0, 2 * (n_heads - p), 2)]
    return 2.0 ** torch.tensor(exponents, dtype=torch.float64)


@register("alibi")
class ALiBi(Encoding):
    """Subtracts m_h · |i − j| from the logits. No parameters, no longest distance.

    The penalty is made from the distance, in float64, and added in float32 or wider: the other
    form, + m_h · j for each key, is the same under the softmax in exact arithmetic and wrong in
    half precision at long lengths.
    """

    def bias_by_distance(self, delta):
        """−m_h · |δ| for distances δ = i − j (n,): float64 (H, n)."""
        m = slopes(self.n_heads)[list(self.heads)].to(delta.device)  # (H,)
        return -m[:, None] * delta.abs()
