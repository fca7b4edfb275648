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

Not every channel need turn. With r of the d channels (GPT-NeoX's "partial" rotation, Phi, GLM; the
decoupled part of DeepSeek's latent attention, which lies last in the head) a rotation of width r is
done to these, θ_k = base^(−2k/r), and the others pass by. (p-RoPE, "proportional" among the
scalings, keeps the exponents −2k/d and stops the slow pairs.)
"""

import functools

import torch

from lib.encodings import scaling as scalings
from lib.encodings.base import (
    Encoding,
    check_positive,
    check_whole,
    geometric_frequencies,
    register,
)
from lib.encodings.temperature import Temperature, multiplied

LAYOUTS = ("interleaved", "half_split")
PLACES = ("first", "last")
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


def table_of_a_run(positions, phase, amplitude: float, dtype, layout: str, step: int = 64):
    """As `table` of phase(positions), for positions (T,) p₀, p₀ + 1, … and a phase linear in them.

    e^{i(a+b)θ} = e^{iaθ} · e^{ibθ}, with a in steps and b within one: sines are asked for T/step +
    step positions, and the rest is a product in float64. Both kinds of sines are made together:
    here an operation costs more than its numbers.
    """
    a, b = positions[::step], positions[:step] - positions[0]
    marks = phase(torch.cat([a, b]))  # (T/step + step, d/2)
    coarse, fine = torch.complex(marks.cos(), marks.sin()).split([len(a), len(b)])
    if amplitude != 1.0:
        coarse = amplitude * coarse
    wide = torch.promote_types(dtype, torch.float32)
    z = (coarse[:, None] * fine).flatten(0, 1)[: len(positions)].to(wide.to_complex())
    # Views with gaps between the numbers would more than double the time of the turn.
    return z if _by_complex_numbers(layout) else (z.real.contiguous(), z.imag.contiguous())


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
        layout: which channels make a pair: "interleaved" (2k, 2k+1) or "half_split" (k, k + r/2).
        scaling: a dictionary with Hugging Face's keys, {"rope_type": "yarn", "factor": 4.0, …}, see
            `lib.encodings.scaling`; None scales nothing.
        log_length: n, past which the logits of a query at i grow by ln(i + 1)/ln(n), see
            `lib.encodings.temperature`; None: they do not.
        temperature: Llama 4's {"attn_scale": …, "floor_scale": …}, see there; None: none.
        rotated: r, how many channels of a head turn; the others pass by. None: int(d·f) where the
            scaling's dictionary says "partial_rotary_factor": f, else all d.
        rotated_at: where they lie in the head, "first" or "last".
        scale_logits: multiply the logits by `softmax_factor`, as DeepSeek's attention does.

    Raises:
        ValueError: an odd number of channels to turn, the last of which would have no partner, or
            more of them than a head has; a scaling that is not understood in full; an option that
            would do nothing beside the others.
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
        temperature: dict | None = None,
        rotated: int | None = None,
        rotated_at: str = "first",
        scale_logits: bool = False,
        heads=None,
    ):
        super().__init__(d_model, n_heads, max_length, heads)
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}.")
        check_positive(base=base)
        scaling, part = scalings.split_part(scaling)
        self.rotated = _rotated(self.d, rotated, part)  # r
        if rotated_at not in PLACES:
            raise ValueError(f"rotated_at must be one of {', '.join(PLACES)}, not {rotated_at!r}.")
        if rotated_at == "last" and self.rotated == self.d:
            raise ValueError("rotated_at has no effect where all channels turn: leave it out.")
        self.layout, self.rotated_at = layout, rotated_at
        self.temperature = Temperature(log_length, temperature)
        self.scaling, base = scalings.read(scaling, base, max_length)
        self.base = float(base)
        if self.scaling is not None:
            self.scaling.check(self.rotated, self.base)
            self.unscaled_length = self.scaling.unscaled_length
        if scale_logits and getattr(self.scaling, "mscale_all_dim", None) is None:
            raise ValueError(
                "scale_logits has no effect without a scaling of rope_type yarn that has "
                "mscale_all_dim: leave it out."
            )
        self.scale_logits = scale_logits

    def frequencies(self, device=None, length: float | None = None):
        """θ_k in radians a position, as scaled for a sequence of `length`: float64 (r/2,).

        `length` None means a short one, of no more than the original length.
        """
        if self.scaling is None:
            return geometric_frequencies(self.rotated // 2, self.base, device)
        length = torch.tensor(length or 1, dtype=torch.float64, device=device)
        return self.scaling.frequencies(self.rotated, self.base, length)

    @property
    def attention_factor(self) -> float:
        """What the turned channels of q and k are each multiplied by (with cos and sin)."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    @property
    def softmax_factor(self) -> float:
        """What the logits are multiplied by besides, where `scale_logits` asks for it: the softmax
        then has the scale softmax_factor/√d."""
        return 1.0 if self.scaling is None else self.scaling.softmax_factor

    def rotate(self, q, k, q_pos, k_pos, length=None):
        if self.unscaled_length is not None and length is None:
            length = torch.maximum(_length(q_pos), _length(k_pos))  # () or (B, 1)
        m = self.attention_factor
        of_k = self._table(k_pos, length, m, k.dtype)
        grown = self._growth(q_pos)
        if isinstance(grown, torch.Tensor):
            of_q = table(self.phase(q_pos, length), m * grown, q.dtype, self.layout)
        elif grown is None and q_pos is k_pos and q.dtype == k.dtype:
            of_q = of_k
        else:
            of_q = self._table(q_pos, length, m * (grown or 1.0), q.dtype)
        return self._turn(q, of_q, grown), self._turn(k, of_k)

    def _growth(self, q_pos):
        """What the logits of a query at each position are multiplied by: float64 (…, T, 1), a
        number where it is the same for all, None where it is 1."""
        grown = self.temperature(q_pos)
        if not self.scale_logits:
            return grown
        return self.softmax_factor if grown is None else self.softmax_factor * grown

    def _turn(self, x, by, grown=None):
        """x (B, H, T, d) with its channels turned by `table`, the others multiplied by `grown`."""
        if self.rotated == self.d:
            return turn_by(x, by, self.layout)
        sizes = [self.rotated, self.d - self.rotated]
        first = self.rotated_at == "first"
        parts = x.split(sizes if first else sizes[::-1], dim=-1)
        turned, still = parts if first else parts[::-1]
        turned = turn_by(turned, by, self.layout)
        if grown is not None:
            still = multiplied(still, grown)
        return torch.cat([turned, still] if first else [still, turned], dim=-1)

    def _table(self, positions, length, m: float, dtype):
        linear = self.scaling is None or self.scaling.linear_in_positions
        one_length = not isinstance(length, torch.Tensor) or length.dim() == 0  # for all rows
        if linear and one_length and _is_a_long_run(positions):
            phase = functools.partial(self.phase, length=length)
            return table_of_a_run(positions, phase, m, dtype, self.layout)
        return table(self.phase(positions, length), m, dtype, self.layout)

    def phase(self, positions, length=None):
        """p·θ_k, as scaled for a sequence of `length`, in float64: positions (T,) → (T, r/2), or
        (B, T) → (B, T, r/2)."""
        if self.scaling is None:
            return positions.to(torch.float64)[..., None] * self.frequencies(positions.device)
        length = torch.as_tensor(
            1 if length is None else length, dtype=torch.float64, device=positions.device
        )
        return self.scaling.phase(positions, self.rotated, self.base, length)


def _rotated(d: int, rotated: int | None, part: float | None) -> int:
    """r: how many of d channels turn, as the option and the dictionary say."""
    if part is not None:
        # As transformers rounds it; the 1e-9 takes back what the product of floats loses.
        read = int(d * part + 1e-9)
        if rotated not in (None, read):
            raise ValueError(
                f"partial_rotary_factor = {part} turns {read} channels and rotated = {rotated}: "
                f"give one of them."
            )
        rotated = read
    rotated = d if rotated is None else rotated
    check_whole(0, rotated=rotated)
    if rotated > d:
        raise ValueError(
            f"rotated = {rotated} is wider than the head, which has {d} channels: lower it."
        )
    if rotated == d and d % 2:
        raise ValueError(
            f"RoPE turns pairs of channels: choose an even head width d_model/n_heads, not {d}."
        )
    if rotated % 2 or rotated == 0:
        raise ValueError(
            f"RoPE turns pairs of channels: let an even number of the {d} channels of a head turn, "
            f"2 or more, not {rotated}."
        )
    return rotated


def _is_a_long_run(positions) -> bool:
    """Whether it pays on this device to make the table in steps: p, p + 1, … and many of them."""
    if positions.dim() > 1 or len(positions) < LONG or positions.device.type != "cpu":
        return False  # a GPU would have to be waited for
    if torch.compiler.is_compiling():
        return False
    exact = torch.float64 if positions.is_floating_point() else torch.int64
    p = positions.to(exact)
    return torch.equal(p, p[0] + torch.arange(len(p), dtype=exact))


def _length(positions):
    """The largest position + 1 of positions (T,) or (B, T): float64, () or (B, 1); 1 for none.

    On several axes, (B, T, axes), the largest of all.
    """
    positions = positions.flatten(1) if positions.dim() == 3 else positions
    if positions.shape[-1] == 0:
        return positions.new_ones((), dtype=torch.float64)
    return positions.amax(-1, keepdim=positions.dim() == 2).to(torch.float64) + 1
