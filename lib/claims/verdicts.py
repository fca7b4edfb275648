"""The words of a verdict, and how they follow from numbers.

A claim is one or several parts; a part says that a number lies in a region. Measured here, the
number is an interval over seeds; published, it stands alone and is compared as it is.

    part      holds        the whole interval lies in the region
              refuted      none of it does
              undecided    it straddles the border, rests on fewer than MIN_SEEDS, or is missing
    claim     all parts hold → holds; all refuted → refuted; some of either → holds_in_part, which
              no undecided part can change; else undecided
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from lib.figures import Interval

HOLDS, IN_PART, REFUTED = "holds", "holds_in_part", "refuted"
UNDECIDED, NOT_TESTABLE = "undecided", "not_testable_here"
WORDS = (HOLDS, IN_PART, REFUTED, UNDECIDED, NOT_TESTABLE)

MIN_SEEDS = 3

# What a word says about the parts behind it: is there one that holds (True), one refuted (False)?
_SIDES = {HOLDS: {True}, REFUTED: {False}, IN_PART: {True, False}}


class Part(NamedTuple):
    """One part of a claim: what was compared, the verdict on it, and the number in words."""

    what: str
    verdict: str
    measured: str


def judge(estimate: Interval | float | None, low: float = -math.inf, high: float = math.inf) -> str:
    """Whether `estimate` lies in the closed region low … high: holds, refuted or undecided.

    An Interval counts as a whole and needs MIN_SEEDS; a plain number is compared as it is.
    """
    if estimate is None:
        return UNDECIDED
    if isinstance(estimate, Interval):
        if estimate.n < MIN_SEEDS:
            return UNDECIDED
        a, b = estimate.low, estimate.high
    else:
        a = b = float(estimate)
    if math.isnan(a) or math.isnan(b):
        return UNDECIDED
    if low <= a and b <= high:
        return HOLDS
    return REFUTED if b < low or a > high else UNDECIDED


def jointly(what: str, *parts: Part) -> Part:
    """One part of several conditions that only together are what the claim says: refuted when one
    of them is, and never half right."""
    words = {part.verdict for part in parts}
    verdict = REFUTED if REFUTED in words else HOLDS if words == {HOLDS} else UNDECIDED
    return Part(what, verdict, ", ".join(f"{part.what} {part.measured}" for part in parts))


def combine(words: Iterable[str]) -> str:
    """The verdict on a claim whose parts have these; a part that cannot be tested is left out."""
    words = list(words)
    tested = [word for word in words if word != NOT_TESTABLE]
    if words and not tested:
        return NOT_TESTABLE
    sides = set().union(*(_SIDES.get(word, set()) for word in tested))
    if len(sides) == 2:
        return IN_PART
    if not sides or UNDECIDED in tested:
        return UNDECIDED
    return HOLDS if True in sides else REFUTED


def overall(here: str, published: str) -> str:
    """One word for what was found here and what papers report.

    Equal: that word. One of them undecided or not testable: the other. Contradicting:
    holds_in_part, since the claim then holds in one regime and not in the other.
    """
    known = [word for word in (here, published) if word in _SIDES]
    return combine(known) if known else combine({here, published} - {UNDECIDED} or {UNDECIDED})


def percent(log_ratio: float) -> str:
    """A ratio of perplexities in words, from its logarithm."""
    return f"{100 * math.expm1(log_ratio):+.1f} %" if log_ratio < 5 else times(log_ratio)


def times(log_ratio: float) -> str:
    return f"×{math.exp(min(log_ratio, 99)):.3g}"
