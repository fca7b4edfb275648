"""What properties are made of: random content, everything that an encoding does with it, and how
two such results compare."""

import copy
import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import nn

from lib.attention import causal_mask
from lib.conformance.checking import Measure, NotApplicable, worst
from lib.conformance.subjects import seeded
from lib.transformer import Config, Decoder

# --- what is drawn ------------------------------------------------------------------------------

WIDTH = st.integers(1, 4)  # d in units of the subject's `multiple`
FEW_HEADS = st.sampled_from([1, 2, 3, 6])
HEADS = st.sampled_from([1, 3, 6, 12, 40])
SMALL = st.integers(1, 6)
OFFSET = st.integers(0, 4095)  # `Subject.place` keeps all positions within `farthest`
HALF = st.sampled_from([torch.bfloat16, torch.float16])


class Content(NamedTuple):
    """Random x (B, T, D), q (B, H, T, d), and k and v (B, H_kv, T, d)."""

    x: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def of(cls, encoding, T: int, B: int = 2, dtype=torch.float64, groups: int = 1):
        H, d = len(encoding.heads), encoding.d
        shapes = (B, T, encoding.d_model), (B, H, T, d), *2 * [(B, H // groups, T, d)]
        generator = torch.Generator().manual_seed(1)
        return cls(*(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)).to(
            dtype
        )

    def to(self, *args):
        return Content(*(t.to(*args) for t in self))

    def last(self, n: int):
        return Content(*(t[..., -n:, :] for t in self))


# --- what an encoding does ----------------------------------------------------------------------


def doors(encoding, content: Content, q_pos, k_pos, length=None, queries: Content | None = None):
    """All that an encoding does with this content, by door; `queries` may be other than the keys.

    `length` reaches only an encoding that depends on it.
    """
    queries = queries or content
    fixed = {} if length is None or encoding.unscaled_length is None else {"length": length}
    found = {"embed": encoding.embed(queries.x, q_pos, **fixed)}
    q, k = encoding.rotate(queries.q, content.k, q_pos, k_pos, **fixed)
    found |= {"q": q, "k": k}
    mask = causal_mask(q.shape[-2], k.shape[-2], q.device)
    bias = encoding.bias(q, k, q_pos, k_pos, mask)
    if bias is not None:
        found["bias"] = bias
    if encoding.adds_values():
        found["values"] = encoding.values(weights(q, k, bias, mask), q_pos, k_pos)
    return found


def scores(q, k, bias=None):
    """q kᵀ/√d + bias, in float32 or wider whatever autocast says: (B, H, Tq, Tk)."""
    with torch.autocast(q.device.type, enabled=False):
        wide = torch.promote_types(q.dtype, torch.float32)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        logits = q.to(wide) @ k.to(wide).mT / math.sqrt(q.shape[-1])
        return logits if bias is None else logits + bias


def weights(q, k, bias, mask):
    """The softmax of the scores over the keys that `mask` shows: (B, H, Tq, Tk)."""
    return scores(q, k, bias).masked_fill(~mask, -math.inf).softmax(-1)


class Doors(nn.Module):
    """`doors` as a module, for what wants one: compilation, and gradients of parameters."""

    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, x, q, k, positions):
        return doors(self.encoding, Content(x, q, k, k), positions, positions)


def bias_of(encoding, positions):
    """The bias of random content at positions (T,) for both queries and keys, or None."""
    content = Content.of(encoding, len(positions))
    mask = causal_mask(len(positions), len(positions))
    return encoding.bias(content.q, content.k, positions, positions, mask)


def added(encoding, positions):
    """What `embed` adds at positions (T,): float64 (T, D)."""
    zeros = torch.zeros(1, len(positions), encoding.d_model, dtype=torch.float64)
    return encoding.embed(zeros, positions)[0]


def turned(encoding, x, position, length=None):
    """x (n, d), every vector at this one position: turned as queries and as keys, (H, n, d) twice.

    `length` is as in `doors`: one that is fixed makes different positions comparable.
    """
    flat = x.expand(1, len(encoding.heads), -1, -1)
    positions = position.expand(len(x), *position.shape)
    fixed = {} if length is None or encoding.unscaled_length is None else {"length": length}
    q, k = encoding.rotate(flat, flat, positions, positions, **fixed)
    return q[0], k[0]


def turns(encoding, subject) -> bool:
    x = torch.ones(1, encoding.d, dtype=torch.float64)
    return not torch.equal(turned(encoding, x, subject.place(1, 1)[0])[0][0], x)


def is_fixed(encoding) -> bool:
    """Without parameters."""
    return next(encoding.parameters(), None) is None


def copy_parameters(source, target, heads: range | None = None):
    """Parameters of one encoding into one of a slice of heads, or a wider one (new channels 0)."""
    theirs = dict(target.named_parameters())
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            mine = theirs[name]
            if heads is not None and mine.shape != parameter.shape:
                axis = next(i for i, n in enumerate(parameter.shape) if n != mine.shape[i])
                parameter = parameter.index_select(axis, torch.tensor(list(heads)))
            mine.zero_()
            mine[tuple(slice(n) for n in parameter.shape)].copy_(parameter)


# --- how two results compare --------------------------------------------------------------------


def agree(found: dict, expected: dict, relative: float = 1e-11) -> Measure:
    """The largest difference between two results by name, with a tolerance relative to the size."""
    if found.keys() != expected.keys():
        raise AssertionError(f"{sorted(found)} came out, not {sorted(expected)}")
    measures = [Measure(0.0, relative)]
    for name, right in expected.items():
        if found[name].shape != right.shape:
            raise AssertionError(f"{name} is {tuple(found[name].shape)}, not {tuple(right.shape)}")
        if right.numel():
            error = (found[name] - right).abs().masked_fill(found[name] == right, 0.0)
            size = right.abs().masked_fill(right.isinf(), 0.0)
            measures.append(Measure(error.max().item(), relative * (1 + size.max().item())))
    return worst(measures)


def well_formed(found: dict, content: Content) -> Measure:
    """Shapes as the doors promise them; measured is the count of numbers that are not finite."""
    B, H, T, _ = content.q.shape
    promised = {"embed": content.x, "q": content.q, "k": content.k, "values": content.q}
    for name, t in found.items():
        shapes = [(1, H, T, T), (B, H, T, T)] if name == "bias" else [promised[name].shape]
        if t.shape not in shapes:
            raise AssertionError(f"{name} is {tuple(t.shape)}, not {tuple(shapes[-1])}")
    return Measure(float(sum((~t.isfinite()).sum().item() for t in found.values())), 0.0)


# --- a decoder around an encoding ---------------------------------------------------------------

VOCABULARY = 13


def decoder_of(subject, width: int, n_heads: int, groups: int = 1):
    """A decoder of two layers with this encoding in it, in float64."""
    if subject.domain != "text":
        raise NotApplicable("a decoder reads text")
    encoding = subject.prepare(width, n_heads, max_length=64)
    config = Config(
        encoding="nope",
        vocabulary=VOCABULARY,
        d_model=encoding.d_model,
        n_heads=n_heads,
        n_layers=2,
        max_length=64,
        d_ff=8,
        n_kv_heads=n_heads // groups,
    )
    with seeded(2):
        decoder = Decoder(config)
    layers = 1 if encoding.shared_across_layers else config.n_layers
    decoder.encodings = nn.ModuleList(copy.deepcopy(encoding) for _ in range(layers))
    return decoder.double()


def some_tokens(B: int, T: int):
    return torch.randint(VOCABULARY, (B, T), generator=torch.Generator().manual_seed(3))
