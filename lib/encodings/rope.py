"""RoPE: queries and keys turned by an angle that grows with the position.

Each pair of channels is a complex number, z_k = x_2k + i·x_2k+1, and the token at position p turns
it:

    z_k ← z_k · exp(i · p · θ_k),   θ_k = base^(−2k/d),  k = 0 … d/2 − 1           (eq. 15, 34)

so that the product of a query at m and a key at n depends on m − n alone:
Re(q e^{imθ} · conj(k e^{inθ})) = Re(q k* e^{i(m−n)θ}).

Source: Su et al. 2021 (arXiv 2104.09864), section 3. Two layouts of the pairs are in use:
"interleaved" (2k, 2k+1), as in the paper, GPT-J and Meta's LLaMA, and "half_split" (k, k + d/2), as
in GPT-NeoX and Hugging Face's LLaMA. They differ by a permutation of the rows of W_q and W_k.
What reads past the trained length by other frequencies is in `lib.encodings.scaling`.
"""

import math

import torch

from lib.encodings import scaling as scalings
from lib.encodings.base import (
    Encoding,
    check_positive,
    check_whole,
    geometric_frequencies,
    register,
)

LAYOUTS = ("interleaved", "half_split")
LONG = 256  # positions from which the sines are worth saving


def turn(x, phase, layout: str, amplitude=1.0):
    """Turn the pairs of x (B, H, T, d) by `phase` (T, d/2) or (B, T, d/2), given in float64.

    amplitude: what to multiply by as well, a number or a tensor that broadcasts with `phase`. The
    phase is reduced to a cosine and a sine in float64, the product is made in float32 or wider, the
    cast to the dtype of x comes last.
    """
    return turn_by(x, table(phase, amplitude, x.dtype, layout), layout)


def table(phase, amplitude, dtype, layout: str):
    """What turns x of `dtype` by a phase in float64, for `turn_by`; made once for q and k.

    It is e^{i·phase} times the amplitude, of the phase's shape: a complex tensor where pairs lie
    together, else cosine and sine.
    """
    cos, sin = phase.cos(), phase.sin()
    if not isinstance(amplitude, float) or amplitude != 1.0:
        cos, sin = amplitude * cos, amplitude * sin
    wide = torch.promote_types(dtype, torch.float32)
    cos, sin = cos.to(wide), sin.to(wide)
    return torch.complex(cos, sin) if _by_complex_numbers(layout) else (cos, sin)


def table_of_a_run(first, n: int, theta, amplitude: float, dtype, layout: str, step: int = 64):
    """As `table` of the phases p·θ, for the n positions p = first, first + 1, …

    e^{i(a+b)θ} = e^{iaθ} · e^{ibθ}, with a in steps and b within one: sines are asked for n/step +
    step positions, and the rest is a product in float64.
    """
    a = torch.arange(0, n, step, dtype=torch.float64, device=theta.device)
    a = (first + a)[:, None] * theta
    b = torch.arange(step, dtype=torch.float64, device=theta.device)[:, None] * theta
    coarse = torch.polar(torch.full_like(a, amplitude), a)  # (n/step, d/2)
    fine = torch.polar(torch.ones_like(b), b)  # (step, d/2)
    wide = torch.promote_types(dtype, torch.float32)
    z = (coarse[:, None] * fine).flatten(0, 1)[:n].to(wide.to_complex())
    return z if _by_complex_numbers(layout) else (z.real, z.imag)


def turn_by(x, by, layout: str):
    """Turn the pairs of x (B, H, T, d) by what `table` made."""
    if isinstance(by, torch.Tensor):
        by = by[:, None] if by.dim() == 3 else by  # (B, 1, T, d/2)
        z = _as_complex(x.to(by.dtype.to_real()))  # (B, H, T, d/2)
        return torch.view_as_real(z * by).flatten(-2).to(x.dtype)
    cos, sin = (y[:, None] if y.dim() == 3 else y for y in by)
    a, b = _pairs(x.to(cos.dtype), layout)
    return _join(a * cos - b * sin, b * cos + a * sin, layout).to(x.dtype)


def _by_complex_numbers(layout: str) -> bool:
    """One product of complex numbers is one pass over memory; the compiler has none."""
    return layout == "interleaved" and not torch.compiler.is_compiling()


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
        scaling: a dictionary with Hugging Face's keys, {"rope_type": "yarn", "factor": 4.0, …}, see
            `lib.encodings.scaling`; None scales nothing.
        log_length: n, past which the logits of a query at i grow by ln(i + 1)/ln(n), so that more
            keys do not flatten the softmax (Chiang & Cholak 2022; Su's "log n"); None: they do not.

    Raises:
        ValueError: an odd head width, whose last channel would have no partner; a scaling that is
            not understood in full.
    """

    def __init__(
        self,
        d_model,
        n_heads,
        max_length,
        base: float = scalings.BASE,
        layout: str = "interleaved",
        scaling: dict | None = None,
        log_length: int | None = None,
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
        if log_length is not None:
            check_whole(2, log_length=log_length)
        self.layout, self.log_length = layout, log_length
        self.scaling, base = scalings.read(scaling, base, max_length)
        self.base = float(base)
        if self.scaling is not None:
            self.scaling.check(self.d, self.base)
            self.unscaled_length = self.scaling.unscaled_length

    def frequencies(self, device=None, length: float | None = None):
        """θ_k in radians a position, as scaled for a sequence of `length`: float64 (d/2,).

        `length` None means a short one, of no more than the original length.
        """
        if self.scaling is None:
            return geometric_frequencies(self.d // 2, self.base, device)
        length = torch.tensor(length or 1, dtype=torch.float64, device=device)
        return self.scaling.frequencies(self.d, self.base, length)

    @property
    def attention_factor(self) -> float:
        """What q and k are each multiplied by."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def rotate(self, q, k, q_pos, k_pos, length=None):
        if self.unscaled_length is not None and length is None:
            length = torch.maximum(_length(q_pos), _length(k_pos))  # () or (B, 1)
        m = self.attention_factor
        of_k = self._table(k_pos, length, m, k.dtype)
        if self.log_length is not None:
            m = m * _log_growth(q_pos, self.log_length)
            of_q = table(self.phase(q_pos, length), m, q.dtype, self.layout)
        elif q_pos is k_pos and q.dtype == k.dtype:
            of_q = of_k
        else:
            of_q = self._table(q_pos, length, m, q.dtype)
        return turn_by(q, of_q, self.layout), turn_by(k, of_k, self.layout)

    def _table(self, positions, length, m: float, dtype):
        linear = self.scaling is None or self.scaling.linear_in_positions
        one_length = not isinstance(length, torch.Tensor) or length.dim() == 0  # for all rows
        if linear and one_length and _is_a_long_run(positions):
            theta = self.phase(positions.new_ones(1), length)[0]
            return table_of_a_run(positions[0], len(positions), theta, m, dtype, self.layout)
        return table(self.phase(positions, length), m, dtype, self.layout)

    def phase(self, positions, length=None):
        """p·θ_k, as scaled for a sequence of `length`, in float64: positions (T,) → (T, d/2), or
        (B, T) → (B, T, d/2)."""
        if self.scaling is None:
            return positions.to(torch.float64)[..., None] * self.frequencies(positions.device)
        length = torch.as_tensor(
            1 if length is None else length, dtype=torch.float64, device=positions.device
        )
        return self.scaling.phase(positions, self.d, self.base, length)


def _is_a_long_run(positions) -> bool:
    """Whether it pays on this device to make the table in steps: p, p + 1, … and many of them."""
    if positions.dim() > 1 or len(positions) < LONG or positions.device.type != "cpu":
        return False  # a GPU would have to be waited for
    return not torch.compiler.is_compiling() and bool((positions.double().diff() == 1).all())


def _length(positions):
    """The largest position + 1 of positions (T,) or (B, T): float64, () or (B, 1); 1 for none."""
    if positions.shape[-1] == 0:
        return positions.new_ones((), dtype=torch.float64)
    return positions.amax(-1, keepdim=positions.dim() == 2).to(torch.float64) + 1


def _log_growth(positions, n: int):
    """max(1, ln(i + 1)/ln n) for each position: float64 (T, 1) or (B, T, 1)."""
    i = positions.to(torch.float64)[..., None]
    return (torch.log(i.clamp(min=0) + 1) / math.log(n)).clamp(min=1)
