"""Families 2, 3 and 4: what one call does to another, to fewer queries than keys, and to the rows
of a batch."""

import contextlib
import copy
from functools import partial

import torch
from hypothesis import strategies as st

from lib.attention import toeplitz
from lib.conformance.checking import NotApplicable, catches, worst
from lib.conformance.parts import (
    FEW_HEADS,
    OFFSET,
    SMALL,
    WIDTH,
    Content,
    agree,
    decoder_of,
    doors,
    some_tokens,
)
from lib.transformer import Cache

CALLS = []
hidden_state = partial(catches, 2, CALLS)
decoding = partial(catches, 3, CALLS)
padding = partial(catches, 4, CALLS)

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
FLOATS = st.sampled_from(DTYPES)
MODES = ["plain", "inference", "autocast", "meta"] + ["cuda"] * torch.cuda.is_available()


def call(subject, encoding, T: int, offset: int, dtype, mode: str = "plain") -> dict:
    """One call of every door: all that came out, gradients too where the mode is "plain".

    On "meta" nothing is computed, and to refuse it is no fault: it may only leave no trace.
    """
    device = mode if mode in ("meta", "cuda") else "cpu"
    around = {
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
        "meta": contextlib.suppress(RuntimeError, NotImplementedError),
    }.get(mode, contextlib.nullcontext())
    content = Content.of(encoding, T, dtype=dtype).to(device)
    positions = subject.place(T, offset).to(device)
    found = {}
    if mode == "cuda":
        encoding.to(device)
    with around:
        for t in content:
            t.requires_grad_(mode == "plain")
        found = doors(encoding, content, positions, positions)
        if mode == "plain":
            total = sum(t.float().sum() for t in found.values())
            used = [t for t in (*content, *encoding.parameters()) if t.requires_grad]
            gradients = torch.autograd.grad(total, used, allow_unused=True)
            found |= {f"gradient {i}": g for i, g in enumerate(gradients) if g is not None}
    encoding.to("cpu")
    return {name: t.detach() for name, t in found.items()}


@hidden_state(
    examples=40,
    width=st.integers(1, 2),
    n_heads=FEW_HEADS,
    before=st.lists(
        st.tuples(SMALL, OFFSET, FLOATS, st.sampled_from(MODES)), min_size=1, max_size=3
    ),
    T=SMALL,
    offset=OFFSET,
    dtype=FLOATS,
)
def nothing_is_remembered(subject, width, n_heads, before, T, offset, dtype):
    """After calls of any length, offset, dtype, mode and device: bit for bit what a new one does.

    `before` holds a call each: length, offset, dtype, mode.
    """
    used = subject.prepare(width, n_heads)
    new = copy.deepcopy(used)
    for earlier in before:
        call(subject, used, *earlier)
    found, expected = (call(subject, e, T, offset, dtype) for e in (used, new))
    return worst([agree(found, expected, 0.0), agree(used.state_dict(), new.state_dict(), 0.0)])


@hidden_state(examples=10, order=st.permutations(DTYPES), T=st.integers(258, 300))
def a_long_text_leaves_no_trace(subject, order, T):
    """A text read in one dtype after the other: the last time is bit for bit what a new one does.

    It is longer than bfloat16 can count, which ends at 256: what an encoding keeps of such a call
    is wrong for the next.
    """
    used = subject.prepare(1, 1)
    new = copy.deepcopy(used)
    content, positions = Content.of(used, T), subject.place(T)
    calls = [(used, dtype) for dtype in order] + [(new, order[-1])]
    with torch.no_grad():
        *_, found, expected = (doors(e, content.to(t), positions, positions) for e, t in calls)
    return agree(found, expected, 0.0)


@hidden_state(n_heads=FEW_HEADS, height=SMALL, width=SMALL)
def a_grid_is_its_height_and_width(subject, n_heads, height, width):
    """After a grid of h × w, one of w × h, with as many tokens, gives what it gives alone; and
    something else than the first, unless it is the same grid or both are a line."""
    if subject.domain == "text":
        raise NotApplicable("positions on a line")
    used = subject.prepare(1, n_heads).double()
    new = copy.deepcopy(used)
    content = Content.of(used, height * width)

    def on(encoding, h, w):
        positions = torch.cartesian_prod(torch.arange(h), torch.arange(w))
        return doors(encoding, content, positions, positions)

    first, found, expected = (
        on(used, height, width),
        on(used, width, height),
        on(new, width, height),
    )
    if height != width and min(height, width) > 1:
        if not agree(found, first).failed:
            raise AssertionError(f"{height} × {width} and {width} × {height} are the same to it")
    return agree(found, expected, 0.0)


@hidden_state(width=WIDTH, n_heads=FEW_HEADS, offset=OFFSET, dtype=FLOATS)
def arguments_are_left_alone(subject, width, n_heads, offset, dtype):
    """No tensor that is passed in is changed."""
    encoding = subject.prepare(width, n_heads)
    content, positions = Content.of(encoding, 3, dtype=dtype), subject.place(3, offset)
    given = {**content._asdict(), "positions": positions}
    before = {name: t.clone() for name, t in given.items()}
    doors(encoding, content, positions, positions)
    return agree(given, before, 0.0)


@decoding(
    width=st.integers(1, 2),
    n_heads=st.sampled_from([1, 2, 4]),
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    grouped=st.booleans(),
)
def cached_decoding_is_the_full_forward(subject, width, n_heads, steps, grouped):
    """A decoder that reads a text in steps, with a cache, gives the logits of reading it whole."""
    decoder = decoder_of(subject, width, n_heads, groups=2 if grouped and n_heads > 1 else 1)
    T = sum(steps)
    text, cache = some_tokens(2, T), Cache(length=T)
    with torch.no_grad():
        expected = decoder(text)
        found = torch.cat([decoder(part, cache=cache) for part in text.split(steps, dim=1)], dim=1)
    return agree({"logits": found}, {"logits": expected})


@decoding(width=WIDTH, n_heads=FEW_HEADS, Tq=SMALL, more=SMALL, offset=OFFSET)
def last_queries_are_those_of_the_whole(subject, width, n_heads, Tq, more, offset):
    """Fewer queries than keys: each door, and attention, give the last rows of the square case."""
    encoding = subject.prepare(width, n_heads).double()
    keys, k_pos = Content.of(encoding, Tq + more), subject.place(Tq + more, offset)

    def output(n_queries):
        queries, q_pos = keys.last(n_queries), k_pos[-n_queries:]
        found = doors(encoding, keys, q_pos, k_pos, queries=queries)
        k = found.pop("k")
        # Attention makes the causal mask itself on a line; an image has none.
        every = torch.ones(n_queries, len(k_pos), dtype=torch.bool)
        mask = None if subject.domain == "text" else every
        found["output"] = subject.attend(found["q"], k, keys.v, encoding, q_pos, k_pos, mask=mask)
        return {name: t[..., -Tq:, :] for name, t in found.items()} | {"k": k}

    return agree(output(Tq), output(Tq + more))


@decoding(width=WIDTH, n_heads=FEW_HEADS, Tq=SMALL, more=st.integers(0, 40))
def bias_by_distance_is_the_bias(subject, width, n_heads, Tq, more):
    """What the fused paths make from distances is what `bias` makes from positions."""
    encoding = subject.prepare(width, n_heads).double()
    if encoding.bias_by_distance is None:
        raise NotApplicable("no bias by distance")
    keys, k_pos = Content.of(encoding, Tq + more), subject.place(Tq + more)
    plain = encoding.bias(keys.last(Tq).q, keys.k, k_pos[-Tq:], k_pos)
    return agree({"bias": toeplitz(encoding, Tq, Tq + more)}, {"bias": plain})


@padding(
    width=st.integers(1, 2),
    n_heads=st.sampled_from([1, 2, 3]),
    pads=st.lists(st.integers(0, 5), min_size=2, max_size=3),
)
def left_padding_changes_no_logits(subject, width, n_heads, pads):
    """A left-padded row gives the logits that it gives alone."""
    decoder = decoder_of(subject, width, n_heads)
    text = some_tokens(len(pads), 6)
    real = torch.arange(6) >= torch.tensor(pads)[:, None]
    with torch.no_grad():
        together = decoder(text, padding_mask=real)
        alone = {f"row {i}": decoder(text[i : i + 1, n:])[0] for i, n in enumerate(pads)}
    return agree({f"row {i}": together[i, n:] for i, n in enumerate(pads)}, alone)


@padding(width=WIDTH, n_heads=FEW_HEADS, T=SMALL, offsets=st.tuples(OFFSET, OFFSET))
def each_row_has_its_own_positions(subject, width, n_heads, T, offsets):
    """Positions (B, T): each row is what it is alone at its positions (T,)."""
    encoding = subject.prepare(width, n_heads).double()
    content = Content.of(encoding, T)
    # The second row counts backwards, so that distances differ between the rows too.
    rows = [subject.place(T, offsets[0]), subject.place(T, offsets[1]).flip(0)]
    together = doors(encoding, content, torch.stack(rows), torch.stack(rows))
    alone = [
        doors(encoding, Content(*(t[i : i + 1] for t in content)), row, row)
        for i, row in enumerate(rows)
    ]
    return agree(together, {name: torch.cat([a[name] for a in alone]) for name in alone[0]})
