"""Family 1: phases computed in half precision, or in a dtype that follows somebody else's."""

import copy
from functools import partial

import torch
from hypothesis import strategies as st

from lib.attention import causal_mask
from lib.conformance.checking import Measure, NotApplicable, catches
from lib.conformance.parts import (
    FEW_HEADS,
    HALF,
    HEADS,
    OFFSET,
    WIDTH,
    Content,
    added,
    agree,
    doors,
    is_fixed,
    turned,
    turns,
    weights,
)

PRECISION = []
half_precision = partial(catches, 1, PRECISION)


def ulps(found, expected, size, dtype) -> float:
    """The largest |found − expected| in units in the last place of `expected` in this dtype.

    Below 2^(mantissa − 21) of `size`, the norm of what was computed with, float32 itself would show
    its rounding, so the unit shrinks no further.
    """
    mantissa = {torch.bfloat16: 7, torch.float16: 10}[dtype]
    floor = (2.0 ** (mantissa - 21) * size).clamp(min=2.0**-14)
    exponent = torch.maximum(expected.abs(), floor).log2().floor()
    return ((found.double() - expected).abs() / 2.0 ** (exponent - mantissa)).max().item()


def rounded(encoding, dtype):
    """A copy whose parameters hold what this dtype can hold, in the dtype that they had."""
    encoding = copy.deepcopy(encoding)
    for p in encoding.parameters():
        p.data = p.data.to(dtype).to(p.dtype)
    return encoding


@half_precision(
    examples=40, dtype=HALF, cast=st.booleans(), width=WIDTH, n_heads=FEW_HEADS, position=OFFSET
)
def half_precision_is_float64_rounded(subject, dtype, cast, width, n_heads, position):
    """Half-precision input, at any position: within 1 ulp of the same in float64.

    So it is when the module is cast too, with parameters that are rounded. A bias is judged by the
    softmax that it makes, in units of the rounding of 1; it is given what was turned in half
    precision, since it sees no other.
    """
    encoding = subject.prepare(width, n_heads)
    exact = rounded(encoding, dtype) if cast else copy.deepcopy(encoding)
    exact = exact.double()
    encoding = encoding.to(dtype) if cast else encoding
    q_pos = subject.place(3, position)
    k_pos = torch.cat([subject.place(3), q_pos])
    keys = Content.of(encoding, 6, dtype=dtype)
    queries = keys.last(3)
    errors = []
    turned_low = encoding.rotate(queries.q, keys.k, q_pos, k_pos)
    turned_exact = exact.rotate(queries.q.double(), keys.k.double(), q_pos, k_pos)
    x, x_exact = encoding.embed(queries.x, q_pos), exact.embed(queries.x.double(), q_pos)
    for given, found, right in zip(
        (queries.x, queries.q, keys.k), (x, *turned_low), (x_exact, *turned_exact), strict=True
    ):
        if found.dtype != dtype:
            raise AssertionError(f"{found.dtype} came out for {dtype}")
        size = right.norm(dim=-1, keepdim=True) + given.double().norm(dim=-1, keepdim=True)
        errors.append(ulps(found, right, size, dtype))
    q, k = turned_low
    mask = causal_mask(3, 6)
    bias = encoding.bias(q, k, q_pos, k_pos, mask)
    if bias is not None:
        right = exact.bias(q.double(), k.double(), q_pos, k_pos, mask).softmax(-1)
        off = (bias.double().softmax(-1) - right).abs() / right.amax(-1, keepdim=True)
        errors.append(off.max().item() / torch.finfo(dtype).eps * 2)
    if encoding.adds_values():
        w = weights(q, k, bias, mask)
        right = exact.values(w.double(), q_pos, k_pos)
        size = right.norm(dim=-1, keepdim=True)
        errors.append(ulps(encoding.values(w, q_pos, k_pos), right, size, dtype))
    return Measure(max(errors), 1.0)


@half_precision(dtype=HALF, width=WIDTH, n_heads=HEADS, position=OFFSET)
def casting_rounds_parameters_alone(subject, dtype, width, n_heads, position):
    """A module cast down has rounded parameters, and computes with them as before.

    What is no parameter (slopes, frequencies) keeps its precision.
    """
    encoding = subject.prepare(width, n_heads)
    content, positions = Content.of(encoding, 3, dtype=torch.float32), subject.place(3, position)
    expected = doors(rounded(encoding, dtype), content, positions, positions)
    return agree(doors(encoding.to(dtype), content, positions, positions), expected, relative=1e-6)


@half_precision(width=WIDTH, n_heads=FEW_HEADS, position=OFFSET, dtype=HALF)
def autocast_changes_nothing(subject, width, n_heads, position, dtype):
    """float32 in, under autocast: the same as without it."""
    encoding = subject.prepare(width, n_heads)
    content, positions = Content.of(encoding, 3, dtype=torch.float32), subject.place(3, position)
    expected = doors(encoding, content, positions, positions)
    with torch.autocast("cpu", dtype=dtype):
        found = doors(encoding, content, positions, positions)
    return agree(found, expected, relative=1e-6)


@half_precision(width=WIDTH, a=st.integers(0, 2047), b=st.integers(0, 2048))
def phases_add_up(subject, width, a, b):
    """Turning by a, then by b, is turning by a + b, to the rounding of float64.

    Of sinusoids that are added, PE(a + b) · PE(b) = PE(a) · PE(0): it depends on a alone.
    """
    encoding = subject.prepare(width, 2).double()
    at = {n: subject.place(1, n) for n in (a, b, 0)}
    at[a + b] = at[a] + at[b]
    if turns(encoding, subject):
        turn = partial(turned, encoding, length=encoding.max_length)
        x = Content.of(encoding, 2).q[0, 0]  # (2, d)
        first, _ = turn(x, at[a][0])
        both, _ = turn(first[0], at[b][0])
        still, _ = turn(x, at[0][0])  # a constant factor, where there is one
        once, _ = turn(still[0], at[a + b][0])
        error = (both[0] - once[0]).abs().max().item() / once[0].norm(dim=-1).max().item()
    elif is_fixed(encoding) and added(encoding, at[0]).any():
        pe = {n: added(encoding, position)[0] for n, position in at.items()}
        error = (pe[a + b] @ pe[b] - pe[a] @ pe[0]).abs().item() / len(pe[0])
    else:
        raise NotApplicable("no phases of fixed frequency")
    return Measure(error, subject.rounding(a + b))


@half_precision(
    width=WIDTH,
    position=OFFSET,
    dtype=st.sampled_from([torch.int32, torch.float32, torch.float64]),
)
def positions_of_any_dtype(subject, width, position, dtype):
    """A whole number is the same position in int64, int32, float32 and float64."""
    encoding = subject.prepare(width, 2).double()
    content, positions = Content.of(encoding, 3), subject.place(3, position)
    expected = doors(encoding, content, positions, positions)
    return agree(doors(encoding, content, positions.to(dtype), positions.to(dtype)), expected)
