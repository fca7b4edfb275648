"""Families 6, 7 and 10: the sign and the scale of what is added, the pairs that turn together, and
the frequencies they turn with."""

import contextlib
import math
from functools import partial

import torch
from hypothesis import strategies as st
from torch import nn

from lib.attention import causal_mask
from lib.conformance.checking import Measure, NotApplicable, catches
from lib.conformance.parts import (
    FEW_HEADS,
    OFFSET,
    SMALL,
    WIDTH,
    Content,
    added,
    agree,
    bias_of,
    copy_parameters,
    doors,
    is_fixed,
    scores,
    turned,
    turns,
)

SCORES = []
sign_and_scale = partial(catches, 6, SCORES)
layout_of_pairs = partial(catches, 7, SCORES)
precedence = partial(catches, 10, SCORES)


@sign_and_scale(
    width=WIDTH,
    n_heads=st.sampled_from([1, 2, 4]),
    T=SMALL,
    grouped=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def attention_is_the_formula(subject, width, n_heads, T, grouped, dtype):
    """softmax(q kᵀ/√d + bias) v + values, written out entry by entry, is what attention gives."""
    encoding = subject.prepare(width, n_heads).to(dtype)
    groups = 2 if grouped and n_heads > 1 else 1
    content, positions = Content.of(encoding, T, 2, dtype, groups), subject.place(T)
    q, k = encoding.rotate(content.q, content.k, positions, positions)
    mask = causal_mask(T, T)
    found = subject.attend(q, k, content.v, encoding, positions, positions, mask=mask)
    bias = encoding.bias(q, k, positions, positions, mask)
    α, right = q.new_zeros(2, n_heads, T, T), torch.empty_like(q)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (2, n_heads, T))).tolist():
        keys, values = k[b, h // groups, : i + 1], content.v[b, h // groups, : i + 1]
        a = (keys * q[b, h, i]).sum(-1) / math.sqrt(encoding.d)  # (i + 1,)
        if bias is not None:
            a = a + bias[b % len(bias), h, i, : i + 1]
        e = (a - a.max()).exp()
        α[b, h, i, : i + 1] = e / e.sum()
        right[b, h, i] = (α[b, h, i, : i + 1, None] * values).sum(0)
    if encoding.adds_values():
        right = right + encoding.values(α, positions, positions)
    return agree({"output": found}, {"output": right}, 1e-11 if dtype == torch.float64 else 1e-5)


@sign_and_scale(width=WIDTH, n_heads=FEW_HEADS, T=st.integers(2, 30), offset=OFFSET)
def near_keys_are_favoured(subject, width, n_heads, T, offset):
    """A bias without parameters never grows with distance, along a straight line from the query.

    In a text the last token asks, on a grid every one: there it has keys on all sides.
    """
    encoding, positions = subject.prepare(width, n_heads).double(), subject.place(T, offset)
    bias = bias_of(encoding, positions) if is_fixed(encoding) else None
    if bias is None:
        raise NotApplicable("no bias without parameters")
    growth = []
    for i in [T - 1] if subject.domain == "text" else range(T):
        delta = (positions - positions[i]).double().reshape(T, -1)  # (T, 1 or 2)
        distance = delta.norm(dim=-1)
        on_one_line = (delta @ delta.T - distance.outer(distance)).abs() < 1e-9  # (T, T)
        near, far = (on_one_line & (distance[:, None] < distance)).nonzero().unbind(-1)
        growth.append((bias[0, :, i, far] - bias[0, :, i, near]).max().item())
    return Measure(max(growth), 1e-12)


@sign_and_scale(width=WIDTH, n_heads=FEW_HEADS, T=SMALL)
def bias_joins_after_the_scale(subject, width, n_heads, T):
    """A bias knows nothing of d, unless it is made from q: then it has the 1/√d of q kᵀ/√d.

    A head of width 2d with zeros in half of its channels, and of its parameters, shows which.
    """
    narrow = subject.prepare(width, n_heads).double()
    wide = subject.prepare(2 * width, n_heads).double()
    copy_parameters(narrow, wide)
    content, positions = Content.of(narrow, T), subject.place(T)

    def bias(encoding, q):
        q, k = (nn.functional.pad(t, (0, encoding.d - narrow.d)) for t in (q, content.k))
        return encoding.bias(q, k, positions, positions, causal_mask(T, T))

    here = bias(narrow, content.q)
    if here is None:
        raise NotApplicable("no bias")
    there, doubled = bias(wide, content.q), bias(narrow, 2 * content.q)
    if torch.allclose(doubled, here):
        return agree({"bias": there}, {"bias": here})
    if torch.allclose(doubled, 2 * here):
        return agree({"bias": there * math.sqrt(2)}, {"bias": here})
    raise NotApplicable("the bias is neither free of q nor linear in it")


@layout_of_pairs(examples=40, width=WIDTH, n_heads=FEW_HEADS, T=st.integers(2, 6), offset=OFFSET)
def scores_depend_on_differences_alone(subject, width, n_heads, T, offset):
    """All positions moved by one offset: the same scores, and the same added values."""
    encoding = subject.prepare(width, n_heads).double()
    relative = subject.relative
    if relative is None:
        relative = not added(encoding, subject.place(4)).any()
    if not relative:
        raise NotApplicable("absolute: it adds to the embeddings, or says that it is not relative")
    content = Content.of(encoding, T)

    def seen(positions):
        found = doors(encoding, content, positions, positions, length=encoding.max_length)
        a = scores(found["q"], found["k"], found.get("bias")).tril()
        return {"scores": a} | ({"values": found["values"]} if "values" in found else {})

    here, there = seen(subject.place(T)), seen(subject.place(T, offset))
    return agree(there, here, relative=subject.rounding(offset + T))


@layout_of_pairs(width=WIDTH, n_heads=FEW_HEADS, position=OFFSET)
def turning_keeps_lengths(subject, width, n_heads, position):
    """A turned vector is as long as the same vector turned at position 0."""
    encoding = subject.prepare(width, n_heads).double()
    if not turns(encoding, subject):
        raise NotApplicable("nothing is turned")
    if not subject.keeps_lengths:
        raise NotApplicable("it says that it scales what it turns")
    x = Content.of(encoding, 3).q[0, 0]
    here, there = (
        turned(encoding, x, subject.place(1, p)[0], encoding.max_length) for p in (0, position)
    )
    lengths = [{"q": q.norm(dim=-1), "k": k.norm(dim=-1)} for q, k in (there, here)]
    return agree(*lengths, relative=1e-6)


@layout_of_pairs(
    width=WIDTH, n_heads=FEW_HEADS, layout=st.sampled_from([None, "half_split", "interleaved"])
)
def channels_turn_in_the_declared_pairs(subject, width, n_heads, layout):
    """Each channel has one partner, the same in q and k, and the one that `layout` says.

    Permuted from one layout to the other, the result is the same. Measured is the count of wrong
    entries of the rotation's matrix.
    """
    encoding = _in_layout(subject, width, n_heads, layout)
    if encoding is None or not turns(encoding, subject):
        raise NotApplicable("nothing is turned" if encoding else "no choice of layout")
    d = encoding.d
    q, k = _turned_channels(subject, encoding)
    mixed = (q.abs() > 1e-14) & ~torch.eye(d, dtype=torch.bool)  # (H, d, d)
    wrong = (mixed.sum(-1) > 1).sum() + (mixed != mixed.mT).sum() + ((q - k).abs() > 1e-14).sum()
    declared = getattr(encoding, "layout", None)
    if declared in ("interleaved", "half_split") and subject.domain == "text":
        c = torch.arange(d)
        place = _places(encoding, declared)  # (r/2, 2): the channels of each pair
        partner = c.scatter(0, place.flatten(), place.flip(-1).flatten())
        wrong = wrong + (mixed & (partner[:, None] != c)).sum()
        other = _in_layout(
            subject, width, n_heads, "half_split" if declared == "interleaved" else "interleaved"
        )
        if other is not None:
            o, _ = _turned_channels(subject, other)
            theirs = _places(encoding, other.layout)
            there = c.scatter(0, place.flatten(), theirs.flatten())  # channel → where it lies there
            wrong = wrong + ((o[:, there][..., there] - q).abs() > 1e-12).sum()
    return Measure(float(wrong), 0.0)


def _places(encoding, layout: str):
    """The channels of each pair in this layout: (r/2, 2), r of d channels that turn.

    A subject whose head turns in part says so in the attributes `rotated` and `rotated_at`.
    """
    r = getattr(encoding, "rotated", encoding.d)
    first = encoding.d - r if getattr(encoding, "rotated_at", "first") == "last" else 0
    channels = first + torch.arange(r)
    return channels.view(-1, 2) if layout == "interleaved" else channels.view(2, -1).mT


def _turned_channels(subject, encoding):
    """(H, d, d) of queries and of keys: row c is channel c, turned, at position 1."""
    x = torch.eye(encoding.d, dtype=torch.float64)
    both = turned(encoding, x, subject.place(1, 1)[0])
    if subject.keeps_lengths:
        return both
    # Queries and keys may be scaled, each pair by one number: that is taken out.
    return tuple(t / t.norm(dim=-1, keepdim=True) for t in both)


def _in_layout(subject, width, n_heads, layout: str | None):
    """The encoding with this option; None where it does not take it."""
    if layout is None:
        return subject.prepare(width, n_heads).double()
    with contextlib.suppress(TypeError, ValueError):
        return subject.prepare(width, n_heads, layout=layout).double()
    return None


@layout_of_pairs(width=WIDTH, n_heads=FEW_HEADS, offset=OFFSET)
def axes_are_told_apart(subject, width, n_heads, offset):
    """On a grid a step down and a step to the right each change something, and not the same.

    A penalty on distance alone is excused from the second. Measured is the count of what is alike.
    """
    if subject.domain == "text":
        raise NotApplicable("positions on a line")
    encoding = subject.prepare(width, n_heads).double()
    content, square = Content.of(encoding, 2), subject.place(4, offset)  # corners of 2 × 2

    def alike(*pairs):
        first, *others = (doors(encoding, content, square[p], square[p]) for p in pairs)
        return all(first[name].equal(found[name]) for found in others for name in first)

    still, right, left, down, up = [0, 0], [0, 1], [1, 0], [0, 2], [2, 0]
    wrong = alike(still, right) + alike(still, down)
    wrong += alike(right, down) and not alike(right, left, down, up)
    return Measure(float(wrong), 0.0)


@layout_of_pairs(width=st.integers(1, 8), n_heads=FEW_HEADS)
def each_of_three_axes_turns_its_own_pairs(subject, width, n_heads):
    """On the axes t, h and w the declared pairs turn, in the declared order; a text is on all.

    For a subject that declares `sections`, how many pairs each axis has; `interleaved` says whether
    the axes take turns as long as h and w have pairs left, or lie one after the other. Measured is
    the count of channels that turn and should not, or the other way round.
    """
    encoding = subject.prepare(width, n_heads).double()
    if not hasattr(encoding, "sections"):
        raise NotApplicable("no sections for three axes")
    x = torch.eye(encoding.d, dtype=torch.float64).expand(1, n_heads, -1, -1)
    t, h, w = encoding.sections
    axes = [0] * t + [1] * h + [2] * w
    if encoding.interleaved:
        left, axes = [t, h, w], []
        while sum(left):
            axis = len(axes) % 3
            axis = axis if left[axis] else 0
            axes.append(axis)
            left[axis] -= 1
    place = _places(encoding, encoding.layout)  # (r/2, 2)
    wrong = 0
    for axis in range(3):
        positions = torch.eye(3)[axis].expand(1, encoding.d, 3)
        q, k = encoding.rotate(x, x, positions, positions)
        moved = (q[0] - x[0]).abs().amax((0, -1)) > 1e-14  # (d,)
        should = torch.zeros(encoding.d, dtype=torch.bool)
        should[place[torch.tensor(axes) == axis].flatten()] = True
        wrong += (moved != should).sum().item() + (q != k).sum().item()
    line = torch.arange(encoding.d)
    on_a_line, _ = encoding.rotate(x, x, line, line)
    on_all, _ = encoding.rotate(x, x, *2 * [line[None, :, None].expand(1, -1, 3)])
    return Measure(wrong + ((on_a_line - on_all).abs() > 1e-12).sum().item(), 0.0)


def frequencies(encoding, subject, step) -> torch.Tensor:
    """θ > 0 in falling order, measured at position `step`, 0 or 1 on each axis: float64 (n,).

    A turned unit vector has the cosine in its channel and the sine in its partner's. What is added
    to the embeddings has a sine where it is 0 at position 0.
    """
    if turns(encoding, subject):
        eye = torch.eye(encoding.d, dtype=torch.float64)
        here, there = (turned(encoding, eye, p)[0][0] for p in (0 * step, step))
        cos = (there * eye).sum(-1) / (here * eye).sum(-1)
        sin = (there * (1 - eye)).norm(dim=-1) / (here * eye).sum(-1)
        theta = torch.atan2(sin, cos).sort(descending=True).values[0::2]  # each pair shows it twice
    else:
        here, there = (added(encoding, p[None])[0] for p in (0 * step, step))
        theta = there[here == 0].asin().sort(descending=True).values
        cosines = there[here != 0].sort().values
        if not torch.allclose(cosines, theta.cos(), rtol=0, atol=1e-6):
            raise AssertionError("the cosines have other frequencies than the sines")
    return theta[theta > 1e-15]


@precedence(width=st.sampled_from([1, 2, 3, 4, 8, 32]))
def wavelengths_are_geometric(subject, width):
    """θ_k = b^(−k/n) for k = 0 … n − 1: wavelengths from 2π to 2π·b^((n−1)/n), in equal ratios."""
    encoding = subject.prepare(width, 1).double()
    steps = torch.ones(1, dtype=torch.long) if subject.domain == "text" else torch.eye(2).long()
    waves = turns(encoding, subject) or added(encoding, subject.place(2)).any()
    if not (waves and is_fixed(encoding)):
        raise NotApplicable("no fixed frequencies")
    errors = []
    for step in steps:
        theta = frequencies(encoding, subject, step)
        n = len(theta)
        k = torch.arange(n, dtype=torch.float64)
        b = subject.base or getattr(encoding, "base", None) or theta[-1] ** (-n / max(n - 1, 1))
        errors.append((theta / b ** (-k / n) - 1).abs().max().item())
    return Measure(max(errors), 1e-6)
