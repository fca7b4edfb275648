"""RoPE: queries and keys turned by an angle that grows with the position.

Each pair of channels is a complex number, z_k = x_2k + i·x_2k+1, and the token at position p turns
it:

    z_k ← z_k · exp(i · p · θ_k),   θ_k = base^(−2k/d),  k = 0 … d/2 − 1           (eq. 15, 34)

so that the product of a query at m and a key at n depends on m − n alone:
Re(q e^{imθ} · conj(k e^{inθ})) = Re(q k* e^{i(m−n)θ}).

Source: Su et al. 2021 (arXiv 2104.09864), section 3. Two layouts of the pairs are in use:
"interleaved" (2k, 2k+1), as in the paper, GPT-J and Meta's LLaMA, and "half_split" (k, k + d/2), as
in GPT-NeoX and Hugging Face's LLaMA. They differ by a permutation of the rows of W_q and W_k.
"""

import torch

from lib.encodings.base import Encoding, check_positive, geometric_frequencies, register

LAYOUTS = ("interleaved", "half_split")


def turn(x, phase, layout: str):
    """Turn the pairs of x (B, H, T, d) by `phase` (T, d/2) or (B, T, d/2), given in float64.

    The phase is reduced to a cosine and a sine in float64, the product is made in float32 or wider,
    the cast to the dtype of x comes last.
    """
    phase = phase[:, None] if phase.dim() == 3 else phase  # (B, 1, T, d/2) or (T, d/2)
    wide = torch.promote_types(x.dtype, torch.float32)
    x_wide = x.to(wide)
    if layout == "interleaved" and not torch.compiler.is_compiling():
        # One product of complex numbers is one pass over memory; the compiler has none.
        z = _as_complex(x_wide)  # (B, H, T, d/2)
        z = z * torch.polar(torch.ones_like(phase), phase).to(z.dtype)
        turned = torch.view_as_real(z).flatten(-2)
    else:
        cos, sin = phase.cos().to(wide), phase.sin().to(wide)
        a, b = _pairs(x_wide, layout)
        turned = _join(a * cos - b * sin, b * cos + a * sin, layout)
    return turned.to(x.dtype)


def _as_complex(x):
    """The pairs (2k, 2k+1) of x (…, d) as complex numbers (…, d/2): a view where memory allows it,
    which is where every pair lies together and starts at an even place."""
    x = x.unflatten(-1, (-1, 2))
    even = all(n % 2 == 0 for n in (x.storage_offset(), *x.stride()[:-1]))
    if x.stride(-1) != 1 or not even:
        x = x.clone(memory_format=torch.contiguous_format)
    return torch.view_as_complex(x)


def _pairs(x, layout):
    """The first and the second member of every pair of x (…, d): two tensors (…, d/2)."""
    return x.chunk(2, dim=-1) if layout == "half_split" else (x[..., 0::2], x[..., 1::2])


def _join(a, b, layout):
    return torch.cat([a, b], -1) if layout == "half_split" else torch.stack([a, b], -1).flatten(-2)


@register("rope")
class RoPE(Encoding):
    """Turns q and k; adds nothing to the embeddings and has no parameters.

    Args:
        base: b; the wavelengths run from 2π to about 2π·b positions (10000 in the paper).
        layout: which channels make a pair: "interleaved" (2k, 2k+1) or "half_split" (k, k + d/2).

    Raises:
        ValueError: an odd head width, whose last channel would have no partner.
    """

    def __init__(
        self,
        d_model,
        n_heads,
        max_length,
        base: float = 10000.0,
        layout: str = "interleaved",
        heads=None,
    ):
        super().__init__(d_model, n_heads, max_length, heads)
        if self.d % 2:
            raise ValueError(
                f"RoPE turns pairs of channels: choose an even head width d_model/n_heads, "
                f"not {self.d}."
            )
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}.")
        check_positive(base=base)
        self.base, self.layout = float(base), layout

    def frequencies(self, device=None):
        """θ_k in radians a position: float64 (d/2,)."""
        return geometric_frequencies(self.d // 2, self.base, device)

    def rotate(self, q, k, q_pos, k_pos, length=None):
        return self._turn(q, q_pos), self._turn(k, k_pos)

    def _turn(self, x, positions):
        theta = self.frequencies(positions.device)
        phase = positions.to(torch.float64)[..., None] * theta  # p · θ_k: (T, d/2) or (B, T, d/2)
        return turn(x, phase, self.layout)
