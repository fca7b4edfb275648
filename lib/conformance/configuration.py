"""Families 5, 8 and 9: how an encoding is built. Counts and slices of heads, their widths, and
options, each of which acts or is refused."""

import contextlib
import copy
import math
from functools import partial

import torch
from hypothesis import strategies as st

from lib.conformance.checking import Measure, NotApplicable, catches
from lib.conformance.parts import (
    HEADS,
    SMALL,
    WIDTH,
    Content,
    agree,
    bias_of,
    copy_parameters,
    doors,
    is_fixed,
    well_formed,
)
from lib.conformance.subjects import WRONG_CHOICE, randomised, seeded

CONFIGURATION = []
heads_and_slices = partial(catches, 5, CONFIGURATION)
head_sizes = partial(catches, 8, CONFIGURATION)
ignored = partial(catches, 9, CONFIGURATION)


# --- 5. head counts and slices of heads ---------------------------------------------------------


@heads_and_slices(width=st.integers(1, 2), n_heads=HEADS)
def any_number_of_heads(subject, width, n_heads):
    """1, 3, 6, 12 and 40 heads are served: finite numbers, with an entry for every head."""
    encoding, positions = subject.prepare(width, n_heads).double(), subject.place(3)
    content = Content.of(encoding, 3)
    return well_formed(doors(encoding, content, positions, positions), content)


@heads_and_slices(examples=40, width=WIDTH, n_heads=HEADS, first=st.integers(0, 39), size=SMALL)
def a_slice_of_heads_is_that_slice(subject, width, n_heads, first, size):
    """Built for a few heads, with their parameters: what these heads get in the whole."""
    heads = range(n_heads)[first % n_heads :][:size]
    whole = subject.prepare(width, n_heads).double()
    try:
        part = subject.prepare(width, n_heads, heads=heads).double()
    except TypeError as error:
        raise NotApplicable("it is not built for slices") from error
    copy_parameters(whole, part, heads)
    content, positions = Content.of(whole, 4), subject.place(4)
    expected = doors(whole, content, positions, positions)
    mine = slice(heads.start, heads.stop)
    found = doors(
        part, Content(content.x, *(t[:, mine] for t in content[1:])), positions, positions
    )
    return agree(found, {n: t if n == "embed" else t[:, mine] for n, t in expected.items()})


@heads_and_slices(n_heads=st.integers(1, 40))
def slopes_follow_the_published_rule(subject, n_heads):
    """A bias that is linear in distance, without parameters, has the slopes of ALiBi's authors."""
    encoding, positions = subject.prepare(1, n_heads).double(), subject.place(9)
    on_a_line = is_fixed(encoding) and subject.domain == "text"
    bias = bias_of(encoding, positions) if on_a_line else None
    if bias is None:
        raise NotApplicable("no bias without parameters on a line")
    by_distance = bias[0, :, 8].flip(-1)  # (H, 9): distances 0 … 8
    steps = by_distance.diff(dim=-1)  # (H, 8)
    if not torch.allclose(steps, steps[:, :1]):
        raise NotApplicable("the bias is not linear in distance")
    m = torch.tensor(published_slopes(n_heads), dtype=torch.float64)
    return agree({"slopes": steps[:, 0].abs()}, {"slopes": m}, relative=1e-6)


def published_slopes(n: int) -> list[float]:
    """As in the code that Press et al. 2022 published: powers of a first slope where n is a power
    of two, else those of p = 2^⌊log₂ n⌋ heads and every second of 2p heads."""
    p = 2 ** math.floor(math.log2(n))
    if p == n:
        first = 2 ** -(2 ** -(math.log2(n) - 3))
        return [first * first**i for i in range(n)]
    return published_slopes(p) + published_slopes(2 * p)[0::2][: n - p]


# --- 8. odd or tiny head sizes ------------------------------------------------------------------


@head_sizes(n_heads=st.sampled_from([1, 2, 3]))
def any_head_width_works_or_is_refused(subject, n_heads):
    """Widths 1 … 12: finite numbers of the right shape, or a ValueError that is a sentence.

    What is refused must follow from divisibility: the multiples of 1, 2, 4 or 8 work.
    """
    served, not_finite = [], 0.0
    for d in range(1, 13):
        try:
            encoding = subject.build(d_model=d * n_heads, n_heads=n_heads, max_length=16)
        except ValueError as refusal:
            if len(str(refusal).split()) < 4:
                raise AssertionError(f"refused without a sentence: {refusal}") from refusal
            continue
        served.append(d)
        content, positions = Content.of(encoding, 3, dtype=torch.float32), subject.place(3)
        not_finite += well_formed(doors(encoding, content, positions, positions), content).error
    if served not in [list(range(m, 13, m)) for m in (1, 2, 4, 8)]:
        raise AssertionError(f"of the head widths 1 … 12 it serves {served}")
    return Measure(not_finite, 0.0)


# --- 9. configuration ignored -------------------------------------------------------------------


@ignored(option=st.sampled_from(["no_such_option", "bass", "max_positions"]))
def unknown_options_are_errors(subject, option):
    """An option that is not known is refused by its name."""
    try:
        subject.build(d_model=16, n_heads=1, max_length=16, **{option: 2})
    except (ValueError, TypeError) as refusal:
        if option not in str(refusal):
            raise AssertionError(f"refused without its name: {refusal}") from refusal
        return Measure(0.0, 0.0)
    raise AssertionError(f"{option} was taken without a word")


@ignored()
def options_act_or_are_refused(subject):
    """Each option with a value unlike its default changes something, or is an error.

    Where the values are words, one that is no choice is an error. Measured is the count of those
    that are ignored.
    """
    if not subject.options:
        raise NotApplicable("it has no options")
    usual, idle = outcome(subject), []
    for option, values in subject.options.items():
        if any(isinstance(value, str) for value in values):
            with contextlib.suppress(ValueError):
                outcome(subject, **{option: WRONG_CHOICE})
                idle.append(f"{option}={WRONG_CHOICE!r}")
        for value in values:
            with contextlib.suppress(ValueError, TypeError):
                if same(outcome(subject, **{option: value}), usual):
                    idle.append(f"{option}={value!r}")
    return _none_of(idle)


def _none_of(idle: list[str]) -> Measure:
    if idle:
        raise AssertionError(f"ignored: {', '.join(dict.fromkeys(idle))}")
    return Measure(0.0, 0.0)


def outcome(subject, **options) -> list:
    """All that can be seen of an encoding with these options, to compare with `same`.

    Raises what building it raises.
    """
    with seeded(0):
        begun = subject.build(d_model=48, n_heads=3, max_length=256, **options)
    seen = []
    for encoding in (begun, randomised(copy.deepcopy(begun))):
        encoding = encoding.double()
        seen.append({name: p.detach() for name, p in encoding.named_parameters()})
        for offsets in ([0, 1, 2, 5, 11, 17, 40, 90, 200, 255], [0, 150, 400, 700]):  # 256 is past
            positions = torch.cat([subject.place(1, offset) for offset in offsets])
            content = Content.of(encoding, len(offsets), 1)
            try:
                seen.append(doors(encoding, content, positions, positions))
            except ValueError as refusal:
                seen.append(type(refusal))
        if hasattr(encoding, "sections"):  # three axes: an option may show on them alone
            positions = torch.tensor([[0, 0, 0], [3, 0, 0], [3, 1, 0], [3, 5, 7]])[None]
            content = Content.of(encoding, 4, 1)
            seen.append(
                dict(enumerate(encoding.rotate(content.q, content.k, positions, positions)))
            )
    return seen


def same(a, b) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


# Hugging Face's keys of each type of scaling, with values at which every one of them acts.
BY_PARTS = {
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
}
SCALINGS = {
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic": {"factor": 4.0, "original_max_position_embeddings": 64},
    "ntk_by_parts": BY_PARTS,
    "yarn": {**BY_PARTS, "mscale": 1.5, "mscale_all_dim": 0.7},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0 + k / 64 for k in range(32)],
        "long_factor": [1.0 + k / 8 for k in range(32)],
    },
    "proportional": {"factor": 4.0, "partial_rotary_factor": 0.25},
}


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [1.25 * entry for entry in value]
    return 2 * value


@ignored(examples=12, kind=st.sampled_from(list(SCALINGS)))
def scaling_keys_act_or_are_refused(subject, kind):
    """Every key of a scaling dictionary changes the rotation, or is an error; so is a wrong key.

    A type that is refused altogether passes.
    """
    sizes = {"d_model": 64, "n_heads": 1, "max_length": 8192}
    try:
        subject.build(**sizes, scaling=None)
    except (TypeError, ValueError) as error:
        raise NotApplicable("it takes no scaling") from error

    def rotation(**keys):
        encoding = subject.build(**sizes, scaling={"rope_type": kind, **keys})
        found = {}
        for last in (50, 5000):  # shorter, and longer, than each original length
            positions = torch.tensor([1, 7, 33, last])
            content = Content.of(encoding, 4, 1)
            found[f"to {last}"], _ = encoding.rotate(content.q, content.k, positions, positions)
        return found

    keys, idle = SCALINGS[kind], []
    try:
        usual = rotation(**keys)
    except ValueError:
        return Measure(0.0, 0.0)
    for key in [*keys, "factr", "attention_factor", "original_max_position_embeddings"]:
        value = changed(keys[key]) if key in keys else 3
        with contextlib.suppress(ValueError):
            if same(rotation(**{**keys, key: value}), usual):
                idle.append(f"{key}={value!r}")
    return _none_of(idle)
