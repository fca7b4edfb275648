"""Sinusoids added to the embeddings.

    PE(p, 2k)   = sin(p · θ_k)          θ_k = base^(−2k/D),  k = 0 … D/2 − 1
    PE(p, 2k+1) = cos(p · θ_k)

Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.5, where base = 10000.
"""

import torch

from lib.encodings.base import Encoding, check_positive, geometric_frequencies, register


@register("sinusoidal")
class Sinusoidal(Encoding):
    """Adds PE(p) to the embedding of the token at position p. No parameters, no longest position.

    Args:
        base: the wavelengths run from 2π to about 2π·base positions.

    Raises:
        ValueError: an odd width D, whose last sine would have no cosine.
    """

    def __init__(self, d_model, n_heads, max_length, base: float = 10000.0, heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        if d_model % 2:
            raise ValueError(f"Sinusoids come in pairs: choose an even d_model, not {d_model}.")
        check_positive(base=base)
        self.base = float(base)

    def table(self, positions) -> torch.Tensor:
        """PE for positions of any shape (…): float64 (…, D)."""
        theta = geometric_frequencies(self.d_model // 2, self.base, positions.device)  # (D/2,)
        phase = positions.to(torch.float64)[..., None] * theta  # (…, D/2)
        return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(-2)  # sin, cos, sin, cos …

    def embed(self, x, positions, length=None):
        # The sum is made in float32 or wider, the cast to the dtype of x comes last.
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) + self.table(positions).to(wide)).to(x.dtype)
