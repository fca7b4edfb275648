"""Encodings with a fault planted in each, to prove that the conformance suite would see it.

Eleven families of fault that public libraries have had, and one more (0) for what an encoding must
survive in use. First come sound encodings, written as a textbook would; a mutant is one of them
with one method changed. Nothing here uses the encodings of `lib`, so that the suite is tried on
code it was not written around. Each mutant says what went wrong; real libraries shipped most of it.

`MUTANTS` holds them all. `subject` is what the suite is given: a class to build, an attention, or a
perplexity, by `kind`.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from lib.encodings import Encoding

# --- sound originals ----------------------------------------------------------------------------


class Rope(Encoding):
    """Rotation of pairs of channels, by p · base^(−2k/d)."""

    def __init__(
        self, d_model, n_heads, max_length, heads=None, base=10000.0, layout="interleaved"
    ):
        super().__init__(d_model, n_heads, max_length, heads)
        self.check()
        if layout not in ("interleaved", "half_split"):
            raise ValueError(f"layout is interleaved or half_split, not {layout!r}.")
        self.base, self.layout = base, layout

    def check(self):
        if self.d % 2:
            raise ValueError(f"The head width {self.d} must be even, since channels turn in pairs.")

    def theta(self):
        k = torch.arange(self.d // 2, dtype=torch.float64)
        return self.base ** (-2 * k / self.d)

    def phase(self, x, positions):
        return positions.double()[..., None] * self.theta().to(positions.device)

    def split(self, x):
        if self.layout == "half_split":
            return x.chunk(2, dim=-1)
        return x[..., 0::2], x[..., 1::2]

    def join(self, a, b):
        if self.layout == "half_split":
            return torch.cat([a, b], dim=-1)
        return torch.stack([a, b], dim=-1).flatten(-2)

    def turn(self, x, positions):
        return self.turn_by(x, self.phase(x, positions))

    def turn_by(self, x, phase):
        phase = phase[:, None] if phase.dim() == 3 else phase
        wide = torch.promote_types(x.dtype, torch.float32)
        a, b = self.split(x.to(wide))
        cos, sin = phase.cos().to(wide), phase.sin().to(wide)
        return self.join(a * cos - b * sin, a * sin + b * cos).to(x.dtype)

    def rotate(self, q, k, q_pos, k_pos, length=None):
        return self.turn(q, q_pos), self.turn(k, k_pos)


class ScaledRope(Rope):
    """Rope with a scaling dictionary of two types, linear and dynamic, in Hugging Face's keys."""

    KEYS = {
        "linear": {"rope_type", "factor"},
        "dynamic": {"rope_type", "factor", "original_max_position_embeddings"},
    }

    def __init__(self, d_model, n_heads, max_length, heads=None, scaling=None):
        super().__init__(d_model, n_heads, max_length, heads)
        self.scaling = dict(scaling or {})
        self.accept(self.scaling)

    def accept(self, scaling):
        if not scaling:
            return
        if scaling.get("rope_type") not in self.KEYS:
            raise ValueError(f"rope_type is one of {list(self.KEYS)}: give one of these.")
        if set(scaling) != self.KEYS[scaling["rope_type"]]:
            raise ValueError(f"Give exactly the keys {self.KEYS[scaling['rope_type']]}.")

    def rotate(self, q, k, q_pos, k_pos, length=None):
        if length is None:
            length = k_pos.max().item() + 1
        return self.scaled(q, q_pos, length), self.scaled(k, k_pos, length)

    def scaled(self, x, positions, length):
        kind, base = self.scaling.get("rope_type"), self.base
        if kind == "linear":
            positions = positions.double() / self.scaling["factor"]
        if kind == "dynamic":
            s, L0 = self.scaling["factor"], self.scaling["original_max_position_embeddings"]
            base *= max(1.0, s * length / L0 - (s - 1)) ** (self.d / (self.d - 2))
        other = Rope(self.d_model, self.n_heads, self.max_length, self.heads, base)
        return other.turn(x, positions)


class DynamicRope(Rope):
    """Rope whose base grows with the length, past 16 positions."""

    unscaled_length = 16

    def rotate(self, q, k, q_pos, k_pos, length=None):
        if length is None:
            length = self.length(k_pos)  # (1,) or (B, 1)
        grown = torch.as_tensor(length / 16, dtype=torch.float64).clamp(min=1.0)
        # grown² times the base
        pair = torch.arange(self.d // 2, dtype=torch.float64)
        slower = grown[..., None] ** (-4 * pair / self.d)  # (1, d/2) or (B, 1, d/2)
        return tuple(
            self.turn_by(x, self.phase(x, p) * slower) for x, p in [(q, q_pos), (k, k_pos)]
        )

    def length(self, k_pos):
        return k_pos.amax(-1, keepdim=True) + 1


class PartialRope(Rope):
    """Rope of the first half of a head's channels; the others pass by."""

    def check(self):
        if self.d % 4:
            raise ValueError(f"Half of the head width {self.d} must be even: pairs turn.")
        self.rotated = self.d // 2

    def theta(self):
        k = torch.arange(self.rotated // 2, dtype=torch.float64)
        return self.base ** (-2 * k / self.rotated)

    def turn(self, x, positions):
        first, rest = x.split(self.rotated, dim=-1)
        return torch.cat([super().turn(first, positions), rest], dim=-1)


class ThreeAxes(Rope):
    """M-RoPE in chunks: pairs of t first, then of h, then of w; positions (B, T, 3), or a text."""

    interleaved = False

    def check(self):
        super().check()
        n = self.d // 2
        self.sections = n - 2 * (n // 3), n // 3, n // 3
        self.order = 0, 1, 2

    def on_axes(self, positions):
        return (
            positions[..., None].expand(*positions.shape, 3) if positions.dim() < 3 else positions
        )

    def phase(self, x, positions):
        sizes = [self.sections[axis] for axis in self.order]
        axes = torch.tensor(self.order).repeat_interleave(torch.tensor(sizes))
        of_pairs = self.on_axes(positions).double()[..., axes.to(positions.device)]
        return of_pairs * self.theta().to(positions.device)


class AxialRope(Rope):
    """Rope on a grid: the first half of the pairs turn with y, the second with x."""

    domain = ("image",)

    def __init__(self, d_model, n_heads, max_length, heads=None, base=100.0):
        super().__init__(d_model, n_heads, max_length, heads, base)

    def check(self):
        if self.d % 4:
            raise ValueError(f"The head width {self.d} must be a multiple of 4: pairs on two axes.")

    def theta(self):
        n = self.d // 4
        return self.base ** (-torch.arange(n, dtype=torch.float64) / n)

    def phase(self, x, positions):
        y, x = positions.double()[..., None].unbind(-2)  # (…, 1) each
        theta = self.theta().to(positions.device)
        return torch.cat([y * theta, x * theta], dim=-1)


class Sinusoid(Encoding):
    """sin and cos of p · base^(−2k/D), interleaved, added to the embeddings."""

    def __init__(self, d_model, n_heads, max_length, heads=None, base=10000.0):
        super().__init__(d_model, n_heads, max_length, heads)
        self.check()
        self.base = base

    def check(self):
        if self.d_model % 2:
            raise ValueError(f"The width {self.d_model} must be even: a sine has a cosine.")

    def theta(self):
        k = torch.arange(self.d_model // 2, dtype=torch.float64)
        return self.base ** (-2 * k / self.d_model)

    def table(self, positions):
        phase = positions.double()[..., None] * self.theta().to(positions.device)
        return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(-2)

    def embed(self, x, positions, length=None):
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) + self.table(positions).to(wide)).to(x.dtype)


class Table(Encoding):
    """A learned vector for each position, added to the embeddings."""

    def __init__(self, d_model, n_heads, max_length, heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        self.rows = nn.Parameter(torch.randn(max_length, d_model))

    def row(self, positions):
        return self.rows[positions.long()]

    def embed(self, x, positions, length=None):
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) + self.row(positions).to(wide)).to(x.dtype)


class Alibi(Encoding):
    """−m_h · |i − j| added to the logits."""

    def __init__(self, d_model, n_heads, max_length, heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        self.check()

    def check(self):
        pass

    def slopes(self):
        """The slopes of the heads of this slice."""
        return torch.tensor(self.rule(self.n_heads), dtype=torch.float64)[list(self.heads)]

    def rule(self, n):
        if math.log2(n).is_integer():
            return [2 ** (-8 * (h + 1) / n) for h in range(n)]
        p = 2 ** math.floor(math.log2(n))
        return self.rule(p) + self.rule(2 * p)[0::2][: n - p]

    def distance(self, q_pos, k_pos):
        return (q_pos[..., :, None] - k_pos[..., None, :]).abs()

    def bias(self, q, k, q_pos, k_pos, mask=None):
        distance = self.distance(q_pos, k_pos).double()  # (Tq, Tk) or (B, Tq, Tk)
        distance = distance[None, None] if distance.dim() == 2 else distance[:, None]
        m = self.slopes().to(distance.device)[:, None, None]
        return (-m * distance).to(torch.promote_types(q.dtype, torch.float32))


class GridAlibi(Alibi):
    """−m_h times the straight distance on a grid, added to the logits."""

    domain = ("image",)

    def distance(self, q_pos, k_pos):
        return self.offset(q_pos, k_pos).norm(dim=-1)

    def offset(self, q_pos, k_pos):
        return q_pos[..., :, None, :].double() - k_pos[..., None, :, :].double()


class Buckets(Encoding):
    """A learned scalar for every head and clipped distance, added to the logits."""

    def __init__(self, d_model, n_heads, max_length, heads=None, clip=24):
        super().__init__(d_model, n_heads, max_length, heads)
        self.clip = clip
        self.start()

    def start(self):
        self.b = nn.Parameter(torch.zeros(len(self.heads), self.clip))

    def mine(self):
        """The scalars of the heads of this slice: (H, clip)."""
        return self.b

    def bias_by_distance(self, delta):
        return self.mine()[:, delta.long().clamp(0, self.clip - 1)]


class Relations(Encoding):
    """Shaw: a learned vector for every clipped distance, in keys and in values."""

    shared_across_layers = False

    def __init__(self, d_model, n_heads, max_length, heads=None, clip=5):
        super().__init__(d_model, n_heads, max_length, heads)
        self.clip = clip
        self.start()

    def start(self):
        self.in_keys = nn.Parameter(torch.randn(self.clip + 1, self.d))
        self.in_values = nn.Parameter(torch.randn(self.clip + 1, self.d))

    def relation(self, q_pos, k_pos):
        r = (q_pos[..., :, None] - k_pos[..., None, :]).long().clamp(0, self.clip)
        return r[None] if r.dim() == 2 else r  # (1 or B, Tq, Tk)

    def scale(self):
        return self.d**-0.5

    def bias(self, q, k, q_pos, k_pos, mask=None):
        wide = torch.promote_types(q.dtype, torch.float32)
        a = self.in_keys[self.relation(q_pos, k_pos)].to(wide)  # (B, Tq, Tk, d)
        return (q.to(wide)[:, :, :, None] * a[:, None]).sum(-1) * self.scale()

    def values(self, weights, q_pos, k_pos):
        a = self.in_values[self.relation(q_pos, k_pos)].to(weights.dtype)
        return (weights[..., None] * a[:, None]).sum(-2)


class Nothing(Encoding):
    """No encoding: what an attention is tried with, beside `Alibi`."""


def attention(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
    """softmax(q kᵀ/√d + bias) v, with the arguments of `lib.attention.attend`."""
    if bias is None:
        bias = encoding.bias(q, k, q_pos, k_pos, mask)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    if mask is None:
        n, m = q.shape[-2], k.shape[-2]
        mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    logits = logits if bias is None else logits + bias
    return logits.masked_fill(~mask, -math.inf).softmax(-1) @ v


def nll(model, inputs, targets):
    """−ln p of each target (n,), from inputs (n,)."""
    logits = model(inputs[None])[0]
    return F.cross_entropy(logits.double(), targets, reduction="none")


def perplexity(model, tokens, length, stride=None):
    """Every token but the first is scored once; windows follow each other, or slide by `stride`."""
    total, scored = 0.0, 1  # the tokens before `scored` are done
    for start in range(0, len(tokens) - 1, stride or length):
        stop = min(start + length, len(tokens) - 1)
        losses = nll(model, tokens[start:stop], tokens[start + 1 : stop + 1])
        total += losses[scored - start - 1 :].sum().item()
        scored = stop + 1
        if stop == len(tokens) - 1:
            break
    return math.exp(total / (len(tokens) - 1))


# --- the list -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A fault of one family, planted in `original`."""

    name: str
    family: int
    kind: str  # "encoding", "attention" or "perplexity"
    subject: object
    original: object


MUTANTS: list[Mutant] = []
KINDS = {attention: "attention", perplexity: "perplexity"}


def fault(family: int, original):
    """Decorator: what follows is `original` with a fault of this family."""

    def add(subject):
        kind = KINDS.get(original, "encoding")
        MUTANTS.append(Mutant(subject.__name__, family, kind, subject, original))
        return subject

    return add


# --- 1. phase computed in half precision --------------------------------------------------------


@fault(1, Rope)
class RopePositionsInInputDtype(Rope):
    """bf16 holds 8 bits: positions above 256 collapse."""

    def phase(self, x, positions):
        return positions.to(x.dtype)[..., None] * self.theta().to(x)


@fault(1, Rope)
class RopePhaseInFloat32(Rope):
    """p · θ at p = 4095 has an error of 1e-4 in float32."""

    def phase(self, x, positions):
        return positions.float()[..., None] * self.theta().float().to(positions.device)


@fault(1, Rope)
class RopePhaseInPositionsDtype(Rope):
    """Right for float64 positions; integers meet float32 frequencies in float32."""

    def phase(self, x, positions):
        return positions[..., None] * self.theta().float().to(positions.device)


@fault(1, Rope)
class RopePhaseByMatmul(Rope):
    """An outer product written as a matrix product, which autocast turns into bf16."""

    def phase(self, x, positions):
        return positions.float()[..., None] @ self.theta().float().to(positions.device)[None]


@fault(1, Rope)
class RopeFrequenciesInABuffer(Rope):
    """Frequencies in a buffer: model.to(bfloat16) rounds them."""

    def check(self):
        super().check()
        self.base = 10000.0
        self.register_buffer("inv_freq", Rope.theta(self).float(), persistent=False)

    def theta(self):
        return self.inv_freq


@fault(1, Sinusoid)
class SinusoidPositionsInInputDtype(Sinusoid):
    def embed(self, x, positions, length=None):
        return x + self.table(positions.to(x.dtype)).to(x.dtype)


@fault(1, Alibi)
class AlibiSlopesInABuffer(Alibi):
    """Slopes in a buffer: model.to(bfloat16) rounds those that are no power of two."""

    def check(self):
        self.register_buffer("m", Alibi.slopes(self).float(), persistent=False)

    def slopes(self):
        return self.m


@fault(1, Alibi)
class AlibiPerKeyInInputDtype(Alibi):
    """+ m · j for each key is the same under the softmax, and not in half precision."""

    def bias(self, q, k, q_pos, k_pos, mask=None):
        j = k_pos.to(q.dtype)
        j = j[None, None, None] if j.dim() == 1 else j[:, None, None]
        return (self.slopes().to(q)[:, None, None] * j).expand(-1, -1, q.shape[-2], -1)


# --- 2. hidden state ----------------------------------------------------------------------------


@fault(2, DynamicRope)
class DynamicRopeThatNeverShrinks(DynamicRope):
    """The longest input so far decides, so a long one spoils every short one after it."""

    longest = 0

    def length(self, k_pos):
        self.longest = max(self.longest, super().length(k_pos).max().item())
        return self.longest


@fault(2, Sinusoid)
class SinusoidKeepsTheFirstDtype(Sinusoid):
    """The table is cached in the dtype of whoever came first."""

    cached = None

    def embed(self, x, positions, length=None):
        if self.cached is None:
            self.cached = self.table(torch.arange(self.max_length)).to(x.dtype)
        return x + self.cached[positions.long()].to(x.dtype)


@fault(2, Alibi)
class AlibiCachedByShape(Alibi):
    """The distances are cached by shape alone: a call at other positions gets the old ones."""

    def check(self):
        self.cached = {}

    def distance(self, q_pos, k_pos):
        key = (q_pos.shape, k_pos.shape)
        if key not in self.cached:
            self.cached[key] = super().distance(q_pos, k_pos)
        return self.cached[key]


@fault(2, GridAlibi)
class GridAlibiCachedByCount(GridAlibi):
    """The distances are cached by the number of tokens: 2 × 8 gets those of 4 × 4."""

    def check(self):
        self.cached = {}

    def distance(self, q_pos, k_pos):
        key = q_pos.shape, k_pos.shape
        if key not in self.cached:
            self.cached[key] = super().distance(q_pos, k_pos)
        return self.cached[key]


@fault(2, Rope)
class RopeKeepsTheFirstOffset(Rope):
    """The table begins where the first call began."""

    first = None

    def phase(self, x, positions):
        if self.first is None:
            self.first = positions.min().item()
        return super().phase(x, (positions - self.first).clamp(min=0))


@fault(2, Rope)
class RopeKeepsTheFirstDevice(Rope):
    """Frequencies are cached on the device of the first call."""

    cached = None

    def phase(self, x, positions):
        if self.cached is None:
            self.cached = self.theta().to(positions.device)
        return positions.double()[..., None] * self.cached


@fault(2, Sinusoid)
class SinusoidInPlace(Sinusoid):
    """The caller's embeddings are changed under his hands."""

    def embed(self, x, positions, length=None):
        with torch.no_grad():
            x += self.table(positions).to(x.dtype)
        return x


@fault(2, Rope)
class RopeKeepsPositionsOfADtype(Rope):
    """A longer text replaces what is kept, in a dtype that may not count so far."""

    kept = torch.empty(0)

    def phase(self, x, positions):
        counted = positions.dim() == 1 and positions.equal(torch.arange(len(positions)))
        if not counted:
            return super().phase(x, positions)
        if len(positions) > len(self.kept):
            self.kept = super().phase(x, positions.to(x.dtype))
        return self.kept[: len(positions)]


# --- 3. decoding is not the full forward --------------------------------------------------------


@fault(3, Rope)
class RopeCountsFromZero(Rope):
    """Positions are counted inside, so a decoded token always stands at 0."""

    def phase(self, x, positions):
        return super().phase(x, torch.arange(x.shape[-2], device=x.device))


@fault(3, Sinusoid)
class SinusoidCountsFromZero(Sinusoid):
    def embed(self, x, positions, length=None):
        return super().embed(x, torch.arange(x.shape[-2], device=x.device))


@fault(3, Alibi)
class AlibiAlignedTopLeft(Alibi):
    """The first query is put at the first key; when decoding it is the last one."""

    def distance(self, q_pos, k_pos):
        i = torch.arange(q_pos.shape[-1], device=q_pos.device)
        j = torch.arange(k_pos.shape[-1], device=k_pos.device)
        return (i[:, None] - j).abs()


@fault(3, Buckets)
class BucketsFirstRows(Buckets):
    """The bias of all keys is made, then the first rows of it are taken instead of the last."""

    def bias(self, q, k, q_pos, k_pos, mask=None):
        return super().bias(q, k, k_pos, k_pos, mask)[..., : q.shape[-2], :]


@fault(3, Buckets)
class BucketsFusedPathOffByOne(Buckets):
    """The fast path and the plain one disagree about where distance 0 is."""

    def bias(self, q, k, q_pos, k_pos, mask=None):
        return super().bias(q, k, q_pos + 1, k_pos, mask)


@fault(3, attention)
def masks_top_left(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
    """is_causal for fewer queries than keys: the first query sees the first key only."""
    if mask is None:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return attention(q, k, v, encoding, q_pos, k_pos, mask, bias)


@fault(3, AxialRope)
class AxialRopeGridOfTheTokenCount(AxialRope):
    """The grid is made from the number of tokens, so it is another one for fewer queries."""

    def phase(self, x, positions):
        i = torch.arange(x.shape[-2], device=x.device)
        side = math.ceil(math.sqrt(len(i)))
        return super().phase(x, torch.stack([i // side, i % side], dim=-1))


# --- 4. padding ---------------------------------------------------------------------------------


@fault(4, Sinusoid)
class SinusoidPositionsOfTheFirstRow(Sinusoid):
    def embed(self, x, positions, length=None):
        return super().embed(x, positions[0] if positions.dim() == 2 else positions)


@fault(4, Alibi)
class AlibiPositionsOfTheFirstRow(Alibi):
    def distance(self, q_pos, k_pos):
        q_pos, k_pos = (p[0] if p.dim() == 2 else p for p in (q_pos, k_pos))
        return super().distance(q_pos, k_pos)


@fault(4, AxialRope)
class AxialRopePositionsOfTheFirstRow(AxialRope):
    def phase(self, x, positions):
        return super().phase(x, positions[0] if positions.dim() == 3 else positions)


@fault(4, Table)
class TableCountsPadding(Table):
    """The column in the batch is taken for the position, so padding counts."""

    def row(self, positions):
        if positions.dim() == 2:
            positions = torch.arange(positions.shape[-1]).expand_as(positions)
        return super().row(positions)


@fault(4, Relations)
class RelationsOfTheFirstRow(Relations):
    def relation(self, q_pos, k_pos):
        return super().relation(q_pos, k_pos)[:1]


# --- 5. head counts and slices of heads ---------------------------------------------------------


@fault(5, Alibi)
class AlibiOneFormula(Alibi):
    """2^(−8(h+1)/n) for every n."""

    def rule(self, n):
        return [2 ** (-8 * (h + 1) / n) for h in range(n)]


@fault(5, Alibi)
class AlibiSliceAsAModel(Alibi):
    """A rank with heads 6–11 of 12 takes the slopes of a model with 6 heads."""

    def slopes(self):
        return torch.tensor(self.rule(len(self.heads)), dtype=torch.float64)


@fault(5, Alibi)
class AlibiOtherHalf(Alibi):
    """Every second slope of 2p heads, from the second."""

    def rule(self, n):
        p = 2 ** math.floor(math.log2(n))
        return super().rule(p) + super().rule(2 * p)[1::2][: n - p]


@fault(5, Alibi)
class AlibiPowersOfTwoOnly(Alibi):
    def check(self):
        if not math.log2(self.n_heads).is_integer():
            raise ValueError(f"{self.n_heads} heads are no power of two: choose another count.")


@fault(5, Buckets)
class BucketsSliceFromTheFirst(Buckets):
    """The table of the whole layer is kept, and a slice reads it from head 0."""

    def start(self):
        self.b = nn.Parameter(torch.zeros(self.n_heads, self.clip))

    def mine(self):
        return self.b[: len(self.heads)]


# --- 6. sign and scale --------------------------------------------------------------------------


@fault(6, Alibi)
class AlibiRewardsDistance(Alibi):
    def slopes(self):
        return -super().slopes()


@fault(6, Alibi)
class AlibiPenaltyShrinks(Alibi):
    """|j − i| written the wrong way round: the nearest key is punished most."""

    def distance(self, q_pos, k_pos):
        distance = super().distance(q_pos, k_pos)
        return (distance.amax() - distance).abs()


@fault(6, GridAlibi)
class GridAlibiForgetsToSquare(GridAlibi):
    """Rows and columns are added with their signs, so that half of the picture is rewarded."""

    def distance(self, q_pos, k_pos):
        return self.offset(q_pos, k_pos).sum(-1)


@fault(6, Alibi)
class AlibiBeforeTheScale(Alibi):
    """Added before the division by √d."""

    def slopes(self):
        return super().slopes() / math.sqrt(self.d)


@fault(6, Relations)
class RelationsWithoutScale(Relations):
    def scale(self):
        return 1.0


@fault(6, attention)
def adds_bias_before_the_scale(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
    if bias is None:
        bias = encoding.bias(q, k, q_pos, k_pos, mask)
    bias = None if bias is None else bias / math.sqrt(q.shape[-1])
    return attention(q, k, v, encoding, q_pos, k_pos, mask, bias)


@fault(6, attention)
def forgets_the_scale(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
    return attention(q * math.sqrt(q.shape[-1]), k, v, encoding, q_pos, k_pos, mask, bias)


@fault(6, attention)
def scales_twice(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
    return attention(q / math.sqrt(q.shape[-1]), k, v, encoding, q_pos, k_pos, mask, bias)


# --- 7. layouts mixed up ------------------------------------------------------------------------


@fault(7, Rope)
class RopeAnglesOfTheOtherLayout(Rope):
    """Angles laid out for halves (θ_0 θ_1 … θ_0 θ_1 …), pairs taken side by side."""

    def turn(self, x, positions):
        phase = self.phase(x, positions)
        phase = torch.cat([phase, phase], dim=-1)
        phase = phase[:, None] if phase.dim() == 3 else phase
        quarter = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
        return (x * phase.cos() + quarter * phase.sin()).to(x.dtype)


@fault(7, AxialRope)
class AxialRopeReadsOneAxisTwice(AxialRope):
    """Both halves of the pairs turn with the row."""

    def phase(self, x, positions):
        return super().phase(x, positions[..., [0, 0]])


@fault(7, AxialRope)
class AxialRopeAddsTheAxes(AxialRope):
    """row + column in both halves: one step down is one step to the right."""

    def phase(self, x, positions):
        return super().phase(x, positions.sum(-1, keepdim=True).expand_as(positions))


@fault(7, Rope)
class RopeKeysInTheOtherLayout(Rope):
    def rotate(self, q, k, q_pos, k_pos, length=None):
        q = self.turn(q, q_pos)
        other = "half_split" if self.layout == "interleaved" else "interleaved"
        return q, Rope(self.d_model, self.n_heads, 1, base=self.base, layout=other).turn(k, k_pos)


@fault(7, Rope)
class RopeSaysOneDoesTheOther(Rope):
    """The option is taken, and the pairs are side by side whatever it says."""

    def split(self, x):
        return x[..., 0::2], x[..., 1::2]

    def join(self, a, b):
        return torch.stack([a, b], dim=-1).flatten(-2)


@fault(7, Rope)
class RopeForgetsTheMinus(Rope):
    """rotate_half without its minus: (b, a) instead of (−b, a), which is no rotation."""

    def turn(self, x, positions):
        phase = self.phase(x, positions)
        phase = phase[:, None] if phase.dim() == 3 else phase
        a, b = self.split(x)
        cos, sin = phase.cos().to(x.dtype), phase.sin().to(x.dtype)
        return self.join(a * cos + b * sin, b * cos + a * sin)


@fault(7, PartialRope)
class PartialRopePairsAcrossTheHead(PartialRope):
    """The partner is half a head away, as where all channels turn: it is one that should not."""

    def turn(self, x, positions):
        (a, b), phase = self.split(x), self.phase(x, positions)
        phase = phase[:, None] if phase.dim() == 3 else phase
        n = phase.shape[-1]
        cos, sin = phase.cos().to(x), phase.sin().to(x)
        turned = a[..., :n] * cos - b[..., :n] * sin, a[..., :n] * sin + b[..., :n] * cos
        pairs = (
            torch.cat([new, old[..., n:]], -1) for new, old in zip(turned, (a, b), strict=True)
        )
        return self.join(*pairs)


@fault(7, ThreeAxes)
class ThreeAxesSwapsHeightAndWidth(ThreeAxes):
    """Rows turn the pairs of columns: on a square picture only a swap of rows would show it."""

    def check(self):
        super().check()
        self.order = 0, 2, 1


@fault(7, ThreeAxes)
class ThreeAxesTextInTimeAlone(ThreeAxes):
    """A text has no height and no width, so these pairs stand still: the text model is lost."""

    def on_axes(self, positions):
        axes = super().on_axes(positions)
        return axes if positions.dim() == 3 else axes * torch.tensor([1, 0, 0])


# --- 8. odd and tiny head sizes -----------------------------------------------------------------


@fault(8, Rope)
class RopeCrashesOnOddWidths(Rope):
    """No check: the user meets a RuntimeError about shapes, deep inside."""

    def check(self):
        pass


@fault(8, Rope)
class RopeLosesTheLastChannel(Rope):
    def check(self):
        pass

    def split(self, x):
        return super().split(x[..., : x.shape[-1] // 2 * 2])


@fault(8, Rope)
class RopeDividesByZeroForOnePair(Rope):
    """Equal steps from the first exponent to the last: with one pair there is no step."""

    def theta(self):
        n = self.d // 2
        step = math.log(self.base) * (n - 1) / n / (n - 1)
        return torch.exp(-step * torch.arange(n, dtype=torch.float64))


@fault(8, Sinusoid)
class SinusoidCrashesOnOddWidths(Sinusoid):
    def check(self):
        pass


@fault(8, Alibi)
class AlibiRefusesNarrowHeads(Alibi):
    """A limit of somebody's kernel, where the mathematics has none."""

    def check(self):
        if self.d < 4:
            raise ValueError(f"Heads of width {self.d} are too narrow: choose at least 4.")


# --- 9. configuration ignored -------------------------------------------------------------------


@fault(9, Rope)
class RopeSwallowsUnknownOptions(Rope):
    def __init__(self, d_model, n_heads, max_length, heads=None, **options):
        super().__init__(
            d_model,
            n_heads,
            max_length,
            heads,
            options.get("base", 10000.0),
            options.get("layout", "interleaved"),
        )


@fault(9, Rope)
class RopeTakesAnyLayout(Rope):
    """What is not one layout is the other, however it is spelt."""

    def __init__(
        self, d_model, n_heads, max_length, heads=None, base=10000.0, layout="interleaved"
    ):
        layout = "interleaved" if layout == "interleaved" else "half_split"
        super().__init__(d_model, n_heads, max_length, heads, base, layout)


@fault(9, Rope)
class RopeIgnoresItsBase(Rope):
    def theta(self):
        k = torch.arange(self.d // 2, dtype=torch.float64)
        return 10000.0 ** (-2 * k / self.d)


@fault(9, Buckets)
class BucketsIgnoreTheirClip(Buckets):
    def start(self):
        self.clip = 24
        super().start()


@fault(9, ScaledRope)
class ScaledRopeSwallowsUnknownKeys(ScaledRope):
    def accept(self, scaling):
        super().accept({k: v for k, v in scaling.items() if k in self.KEYS["dynamic"]})


@fault(9, ScaledRope)
class ScaledRopeDropsTheFactor(ScaledRope):
    """The type is read and the factor is not."""

    def accept(self, scaling):
        super().accept(scaling)
        if scaling:
            scaling["factor"] = 2.0


@fault(9, ScaledRope)
class ScaledRopeTakesItsOwnLength(ScaledRope):
    """`original_max_position_embeddings` is read from the model instead of the dictionary."""

    def accept(self, scaling):
        super().accept(scaling)
        if "original_max_position_embeddings" in scaling:
            scaling["original_max_position_embeddings"] = self.max_length


# --- 10. precedence in the exponent of the frequency --------------------------------------------


@fault(10, Rope)
class RopeDividesThePower(Rope):
    """base ** −2k / d is (base ** −2k) / d."""

    def theta(self):
        k = torch.arange(self.d // 2, dtype=torch.float64)
        return self.base ** (-2 * k) / self.d


@fault(10, Rope)
class RopeDividesWhole(Rope):
    """2k // d is 0 for every k."""

    def theta(self):
        k = torch.arange(self.d // 2, dtype=torch.float64)
        return self.base ** -(2 * k // self.d)


@fault(10, Rope)
class RopeDoublesTheExponent(Rope):
    """The even channel is called k already, and doubled once more."""

    def theta(self):
        even = torch.arange(0, self.d, 2, dtype=torch.float64)
        return self.base ** (-2 * even / self.d)


@fault(10, Rope)
class RopeCountsPairsFromOne(Rope):
    """Counted from one with the exponent of counting from zero."""

    def theta(self):
        k = torch.arange(1, self.d // 2 + 1, dtype=torch.float64)
        return self.base ** (-2 * k / self.d)


@fault(10, PartialRope)
class PartialRopeExponentOfTheWholeHead(PartialRope):
    """−2k/d, where r channels turn: the slow half of the waves is missing."""

    def theta(self):
        k = torch.arange(self.rotated // 2, dtype=torch.float64)
        return self.base ** (-2 * k / self.d)


@fault(10, AxialRope)
class AxialRopeExponentOfTheWholeHead(AxialRope):
    """−2t/d, as on a line, where an axis has half of the pairs: the longest waves are missing."""

    def theta(self):
        return self.base ** (-2 * torch.arange(self.d // 4, dtype=torch.float64) / self.d)


@fault(10, Sinusoid)
class SinusoidBindsTheMinusWrongly(Sinusoid):
    """p / base ** 2k / D divides the phase by D too."""

    def theta(self):
        k = torch.arange(self.d_model // 2, dtype=torch.float64)
        return 1 / self.base ** (2 * k / self.d_model) / self.d_model


@fault(10, Sinusoid)
class SinusoidReachesTheBase(Sinusoid):
    """n − 1 steps instead of n: the longest wave is 2π·base itself."""

    def theta(self):
        n = self.d_model // 2
        k = torch.arange(n, dtype=torch.float64)
        return self.base ** (-k / max(n - 1, 1))


@fault(10, Sinusoid)
class SinusoidStepsPerChannel(Sinusoid):
    """Cosines get the exponent of their own channel, 2k+1, instead of their sine's."""

    def table(self, positions):
        channel = torch.arange(self.d_model, dtype=torch.float64, device=positions.device)
        phase = positions.double()[..., None] * self.base ** (-channel / self.d_model)
        return torch.stack([phase[..., 0::2].sin(), phase[..., 1::2].cos()], dim=-1).flatten(-2)


@fault(10, AxialRope)
class AxialRopeHalfTheSpectrum(AxialRope):
    """Each axis takes the first half of a line's frequencies, and has no slow ones."""

    def theta(self):
        k = torch.arange(self.d // 4, dtype=torch.float64)
        return self.base ** (-2 * k / self.d)


# --- 11. averaging ------------------------------------------------------------------------------


def _windows(tokens, length, stride):
    """(inputs, targets) of each window that begins at a multiple of `stride`."""
    for start in range(0, len(tokens) - 1, stride):
        stop = min(start + length, len(tokens) - 1)
        yield tokens[start:stop], tokens[start + 1 : stop + 1]
        if stop == len(tokens) - 1:
            break


@fault(11, perplexity)
def mean_of_window_means(model, tokens, length, stride=None):
    """A short window at the end counts as much as a full one."""
    losses = [nll(model, x, y) for x, y in _windows(tokens, length, stride or length)]
    return math.exp(torch.stack([loss.mean() for loss in losses]).mean().item())


@fault(11, perplexity)
def mean_of_window_perplexities(model, tokens, length, stride=None):
    """exp of each window first, the mean afterwards."""
    losses = [nll(model, x, y) for x, y in _windows(tokens, length, stride or length)]
    return torch.stack([loss.mean().exp() for loss in losses]).mean().item()


@fault(11, perplexity)
def never_slides(model, tokens, length, stride=None):
    return perplexity(model, tokens, length)


@fault(11, perplexity)
def scores_the_overlap_again(model, tokens, length, stride=None):
    losses = [nll(model, x, y) for x, y in _windows(tokens, length, stride or length)]
    return math.exp(torch.cat(losses).mean().item())


@fault(11, perplexity)
def drops_the_rest(model, tokens, length, stride=None):
    """What does not fill a window is never scored."""
    whole = (len(tokens) - 1) // length * length
    return perplexity(model, tokens[: whole + 1], length, stride)


@fault(11, perplexity)
def mixes_bits_and_nats(model, tokens, length, stride=None):
    return 2 ** math.log(perplexity(model, tokens, length, stride))


# --- 0. use: gradients, compilation, saving and export ------------------------------------------


@fault(0, Table)
class TableWithoutGradient(Table):
    def row(self, positions):
        return self.rows.data[positions.long()]


@fault(0, Buckets)
class BucketsNotSaved(Buckets):
    """A plain tensor: trained by hand, and in no state dict."""

    def start(self):
        self.b = torch.randn(len(self.heads), self.clip)


@fault(0, Relations)
class RelationsStoredTransposed(Relations):
    """Parameters that are transposed views: safetensors refuses what is not contiguous."""

    def start(self):
        self.in_keys = nn.Parameter(torch.randn(self.d, self.clip + 1).T)
        self.in_values = nn.Parameter(torch.randn(self.d, self.clip + 1).T)


@fault(0, Rope)
class RopeViewsAsComplex(Rope):
    """A view as complex numbers, which memory does not always allow."""

    def turn_by(self, x, phase):
        phase = phase[:, None] if phase.dim() == 3 else phase
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(z * torch.polar(torch.ones_like(phase), phase)).flatten(-2)


@fault(0, Rope)
class RopeCompilesForEachLength(Rope):
    """A number of Python made from the length: the compiler must guard on its value."""

    def phase(self, x, positions):
        return super().phase(x, positions[..., : int(f"{positions.shape[-1]}")])


@fault(0, Alibi)
class AlibiCompilesForEachLength(Alibi):
    """A table written out entry by entry, which the compiler unrolls for each length."""

    def distance(self, q_pos, k_pos):
        return torch.tensor([[abs(i - j) for j in k_pos.tolist()] for i in q_pos.tolist()])
