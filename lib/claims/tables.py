"""The survey's own tables, cell by cell: what a text says of an encoding, and what was found.

`data/published/survey_tables.csv` holds the words of the three texts. A rule says what a word needs
to be right, in numbers from the runs made here and from the papers' tables; the tolerances are
those of the claims, in data/claims.toml. A cell agrees when every part of it holds, here and
published together (`verdicts.overall`); a table holds as far as its cells do.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from lib import paths
from lib.claims import cost, extension, measured
from lib.claims.measured import INF, Source, paired
from lib.claims.verdicts import (
    HOLDS,
    NOT_TESTABLE,
    REFUTED,
    UNDECIDED,
    Part,
    combine,
    jointly,
    overall,
)
from lib.encodings import build
from lib.figures import short
from lib.studies.extrapolation import L

Parts = tuple[list[Part], list[Part]]

# The size that S1's own example has: 512 positions, 12 heads, as in BERT.
SIZE = {"d_model": 768, "n_heads": 12, "max_length": 512}


class Cell(NamedTuple):
    """One cell: what the text says, what was found in words, and the parts that decide."""

    table: str
    encoding: str
    column: str
    said: str
    found: str
    here: list[Part]
    published: list[Part]

    @property
    def verdict(self) -> str:
        return overall(*(combine(p.verdict for p in side) for side in (self.here, self.published)))


class Evidence(NamedTuple):
    """What the rules ask, read once: losses and costs, each here and published, and all results."""

    results: dict
    texts: tuple[Source, Source]
    costs: tuple[cost.Costs, cost.Costs]


Found = tuple[str, list[Part], list[Part]]  # in words, here, published


def cells(table: str, results, **tolerance: float) -> list[Cell]:
    """Every cell of a table ("TAB-1" …), in its order.

    Raises ValueError for a word that no rule knows.
    """
    texts = measured.here(results), measured.paper()
    evidence = Evidence(results, texts, (cost.costs_here(results), cost.costs_published()))
    made = []
    for row in _said(table).itertuples():
        rule = RULES[row.column]
        found, here, published = rule(evidence, row.encoding, row.said, tolerance)
        made.append(Cell(table, row.encoding, row.column, row.said, found, here, published))
    return made


def _said(table: str) -> pd.DataFrame:
    frame = pd.read_csv(paths.PUBLISHED / "survey_tables.csv", comment="#")
    return frame[frame["table"] == table]


def _unknown(column: str, said: str) -> ValueError:
    return ValueError(f"No rule of lib/claims/tables.py knows {said!r} as a word for {column}.")


def _is(what: str, holds, words: str) -> Part:
    return Part(what, HOLDS if holds else REFUTED, words)


# ---- the claims ----------------------------------------------------------------------------------


def _whole(table: str, results, **tolerance: float) -> Parts:
    """A part for each cell and side."""
    sides = [], []
    for cell in cells(table, results, **tolerance):
        for parts, side in zip((cell.here, cell.published), sides, strict=True):
            if parts:
                what = f"{short(cell.encoding)}, {cell.column} ({cell.said})"
                side.append(Part(what, combine(p.verdict for p in parts), cell.found))
    return sides


def four_ways(
    results, worse: float, within: float, less: float, noticeable: float, few: float,
    little: float, equal: float,
) -> Parts:  # fmt: skip
    """S0's table: parameters, extrapolation, speed, memory, models."""
    return _whole(
        "TAB-1", results, worse=worse, within=within, less=less, noticeable=noticeable, few=few,
        little=little, equal=equal,
    )  # fmt: skip


def five_ways(results, about: float, deviation: float) -> Parts:
    """S1's table: extra parameters, whether relative, long contexts."""
    return _whole("TAB-2", results, about=about, deviation=deviation)


def six_ways(
    results, within: float, factor: float, few: float, less: float, deviation: float
) -> Parts:
    """S4's table: type, extrapolation, cost, parameters."""
    return _whole(
        "TAB-3", results, within=within, factor=factor, few=few, less=less, deviation=deviation
    )


# ---- parameters, and what a position does --------------------------------------------------------


def _parameters(evidence, encoding: str, said: str, t: dict) -> Found:
    """Counted in the module that is built; one serves all layers, or it has none."""
    n = sum(p.numel() for p in build(encoding, **SIZE).parameters())
    D, H, positions = SIZE["d_model"], SIZE["n_heads"], SIZE["max_length"]
    what = f"D = {D}, H = {H}, {positions} positions"
    if said == "none":
        right, words = n == 0, f"{n:,}"
    elif said == "some":
        right, words = n > 0, f"{n:,}"
    elif said == "L_max · D":
        right, words = n == positions * D, f"{n:,}, L_max · D = {positions * D:,}"
    elif said == "about (2L − 1) · H":
        full = (2 * positions - 1) * H
        right, words = abs(n / full - 1) <= t["about"], f"{n:,}, (2L − 1) · H = {full:,}"
    else:
        raise _unknown("parameters", said)
    return words if n else "none", [_is(what, right, words)], []


class _Sight(NamedTuple):
    """What the logits of an encoding see of the positions."""

    any: bool  # other positions give other logits
    absolute: bool  # all positions moved by one number give other logits
    product: bool  # but p_i · p_j, of the vectors added alone, stays the same

    @property
    def type(self) -> str:
        return "absolute" if self.absolute else "relative" if self.any else "implicit"

    @property
    def relative(self) -> str:
        return "yes" if self.any and not self.absolute else "weak" if self.product else "no"


@functools.cache
def sight(encoding: str, deviation: float) -> _Sight:
    """Found by moving and by stretching the positions, with random content and parameters."""
    T, shift = 8, 100
    D, H = SIZE["d_model"], SIZE["n_heads"]
    random = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    built = build(encoding, **SIZE).double().requires_grad_(False)
    for parameter in built.parameters():
        parameter.copy_(draw(*parameter.shape))
    x, W = draw(1, T, D), draw(2, D, D) / math.sqrt(D)
    near, nothing = torch.arange(T), torch.zeros(1, T, D, dtype=torch.float64)

    def logits(positions):
        y = built.embed(x, positions)
        q, k = ((y @ w).unflatten(-1, (H, -1)).transpose(1, 2) for w in W)  # (1, H, T, d)
        q, k = built.rotate(q, k, positions, positions, SIZE["max_length"])
        bias = built.bias(q, k, positions, positions)
        a = q @ k.mT / math.sqrt(D // H)  # (1, H, T, T)
        return a if bias is None else a + bias

    def same(positions):
        return _alike(logits(positions), logits(near), deviation)

    p, moved = (built.embed(nothing, at)[0] for at in (near, near + shift))  # (T, D)
    return _Sight(
        any=not same(5 * near),
        absolute=not same(near + shift),
        product=bool(p.any()) and _alike(p @ p.T, moved @ moved.T, deviation),
    )


def _alike(a, b, deviation: float) -> bool:
    return bool((a - b).abs().max() <= deviation * b.abs().max())


def _type(evidence, encoding: str, said: str, t: dict) -> Found:
    found = sight(encoding, t["deviation"]).type
    if said not in ("absolute", "relative", "implicit"):
        raise _unknown("type", said)
    return found, [_is("all positions moved, and stretched", found == said, found)], []


def _relative(evidence, encoding: str, said: str, t: dict) -> Found:
    found = sight(encoding, t["deviation"]).relative
    if said not in ("yes", "weak", "no"):
        raise _unknown("relative", said)
    words = {
        "yes": "yes",
        "weak": "weak: the product of two position vectors alone is a function of i − j",
        "no": "no",
    }[found]
    return words, [_is("all positions moved by 100", found == said, found)], []


# ---- past the training length --------------------------------------------------------------------


def _extrapolation(evidence, encoding: str, said: str, t: dict) -> Found:
    """S0's and S4's words, each with the bar that the claims have for it."""
    sides = []
    for source in evidence.texts:
        parts = []
        for T in source.lengths:
            if source.loss(encoding, T, T).empty and (not source.seeded or T != L):
                continue  # not everything is trained at every length, and the paper lacks two
            parts += _past(source, encoding, said, T, t)
        sides.append(parts)
    lengths = {"none: collapses": "at 2 L: ", "has it": "at 2 L: ", "excellent": "at 2 and 4 L: "}
    where = next((at for word, at in lengths.items() if said.startswith(word)), "")
    return where + _in_words(*sides), *sides


def _in_words(here: list[Part], published: list[Part]) -> str:
    """What was found on either side, without the intervals and each number once."""
    words = []
    for where, parts in (("here", here), ("published", published)):
        shown = dict.fromkeys(part.measured.split(" [")[0] for part in parts)
        words += [f"{where} {', '.join(shown)}"] if shown else []
    return "; ".join(words)


def _past(source: Source, encoding: str, said: str, T: int, t: dict) -> list[Part]:
    """The parts of one word for models trained at T."""

    def change(s, **region):
        return source.part(f"{T} → {s * T}", source.change(encoding, T, s * T), **region)

    def reach(least, most):
        # Everything is measured to 4 T.
        ratio = np.log(source.reach(encoding, T, t["within"]).clip(upper=4 * T) / T)
        return source.part(f"reach from {T}", ratio, math.log(least), math.log(most), _lengths)

    def about(ratio):
        """What is past L, to a factor."""
        return 1 + (ratio - 1) / t["factor"], 1 + (ratio - 1) * t["factor"]

    if said.startswith("none: collapses"):
        return [change(2, low=math.log1p(t["worse"]))]
    if said == "has it":
        return [change(2, high=math.log1p(t["worse"]))]
    if said.startswith("excellent"):
        return [change(s, high=math.log1p(t["within"])) for s in (2, 4)]
    if said.startswith("strong: more than 2 L"):
        return [reach(2, INF)]
    if said == "medium: about 2 L":
        return [reach(*about(2))]
    if said == "medium: about 1.1 L":
        return [reach(*about(1.1))]
    if said == "medium":  # what S4 calls so elsewhere: from about 1.1 L to about 2 L
        return [reach(about(1.1)[0], about(2)[1])]
    if said == "none":
        return [_no_row(encoding, T)] if T == L else []
    if said.startswith("weak: about 50 tokens"):
        return _fifty(source, encoding, T, t)
    raise _unknown("extrapolation", said)


def _lengths(log_ratio: float) -> str:
    ratio = math.exp(log_ratio)
    return f"{ratio:.1f} L" if ratio < 3.95 else "4 L or more"


def _no_row(encoding: str, T: int) -> Part:
    """A position past the end is refused."""
    table = build(encoding, d_model=8, n_heads=1, max_length=T)
    try:
        table.embed(torch.zeros(1, 1, 8), torch.tensor([T]))
    except ValueError:
        return _is(f"position {T} of {T} rows", True, "refused")
    return _is(f"position {T} of {T} rows", False, "there")


def _fifty(source: Source, encoding: str, T: int, t: dict) -> list[Part]:
    """50 tokens past 512, to a factor: a number of that length alone, so it is read in the paper's
    table, and what other lengths say is shown and decides nothing."""
    past = source.reach(encoding, T, t["within"]) - T
    region = (50 / t["factor"], 50 * t["factor"]) if T == 512 else (-INF, INF)
    part = source.part(f"past {T}", past, *region, measured.tokens)
    return [part if T == 512 else part._replace(verdict=NOT_TESTABLE)]


FAR = 8  # times L: as far as scalings of RoPE are measured too
S1_ORDER = ("poor", "fair", "medium", "rather good")


def _far(evidence, encoding: str, said: str, t: dict) -> Found:
    """S1's words are an order: against each encoding with a lower word, less lost at 8 L, and more
    against each with a higher one; RoPE by YaRN, since its word is for that."""
    words = {row.encoding: _degree(row.said) for row in _said("TAB-2").itertuples()
             if row.column == "long contexts"}  # fmt: skip
    sides = []
    for source in evidence.texts:
        changes = {e: _change_far(source, evidence, e) for e in words}
        parts = []
        for other, degree in words.items():
            against = paired(changes[encoding], changes[other])
            if degree == words[encoding] or not source.seeded and against.empty:
                continue
            better = degree < words[encoding]
            region = {"high": 0.0} if better else {"low": 0.0}
            what = f"{'ahead of' if better else 'behind'} {short(other)}"
            parts.append(source.part(what, against, **region))
        sides.append(parts)
    here = evidence.texts[0]
    found = here.part("", _change_far(here, evidence, encoding)).measured
    scaled = ", with YaRN" if encoding == "rope" else ""
    return f"{found} at {FAR} L{scaled}", *sides


def _degree(said: str) -> int:
    word = said.split(",")[0]
    if word not in S1_ORDER:
        raise _unknown("long contexts", said)
    return S1_ORDER.index(word)


def _change_far(source: Source, evidence, encoding: str) -> pd.Series:
    """ln of the perplexity at 8 L over that at L, by seed."""
    T = source.lengths[0]
    if encoding != "rope":
        return source.change(encoding, T, FAR * T)
    if not source.seeded:
        return pd.Series(dtype=float)  # the paper of ALiBi reads RoPE as it is
    far, near = (
        extension.loss(evidence.results, "yarn", FAR, FAR * L),
        extension.loss(evidence.results, "none", FAR, L),
    )
    return paired(far, near)


# ---- time, memory and models ---------------------------------------------------------------------


def _costs(evidence, encoding: str, kinds, ask) -> tuple[list[Part], list[Part]]:
    """What `ask(costs, kind, length)` gives for each kind and length; the paper where it has it."""
    sides = []
    for costs in evidence.costs:
        parts = [
            ask(costs, kind, length)
            for kind in kinds
            for length in costs.lengths(kind)
            if costs.timed or costs.ratio(kind, encoding, length) is not None
        ]
        unknown = [Part(kinds[0], UNDECIDED, "not measured")] if costs.timed else []
        sides.append(parts or unknown)
    return sides[0], sides[1]


def _over_sinusoids(evidence, encoding: str, kinds, low=-INF, high=INF) -> Found:
    sides = _costs(evidence, encoding, kinds, lambda c, k, n: c.part(k, encoding, n, low, high))
    return f"over sinusoids' {_ratios(evidence, encoding, kinds)}", *sides


def _none_below(evidence, encoding: str, kinds, others, least: float) -> Found:
    """No other costs less than a share of it."""

    def ask(costs, kind, length):
        there = [e for e in others if costs.ratio(kind, e, length, encoding) is not None]
        parts = [costs.part(kind, e, length, least, to=encoding) for e in there]
        return jointly(f"{kind} at {length}", *parts)

    found = f"the others' over it {_ratios(evidence, others, kinds, encoding)}"
    return found, *_costs(evidence, encoding, kinds, ask)


def _ratios(evidence, encodings, kinds, to=None) -> str:
    """The lowest and the highest ratio on either side, over all kinds and lengths."""
    words = []
    encodings = [encodings] if isinstance(encodings, str) else encodings
    for where, costs in zip(("here", "published"), evidence.costs, strict=True):
        ratios = [
            getattr(found, "value", found)
            for kind in kinds
            for length in costs.lengths(kind)
            for e in encodings
            if (found := costs.ratio(kind, e, length, to)) is not None
        ]
        if ratios:
            ends = dict.fromkeys(f"×{math.exp(x):.2f}" for x in (min(ratios), max(ratios)))
            words.append(f"{where} {' … '.join(ends)}")
    return "; ".join(words) or "not measured"


MEMORY = ("training memory", "inference memory")


def _speed(evidence, encoding: str, said: str, t: dict) -> Found:
    """S0's column is the speed of inference."""
    if said == "fastest":
        return _none_below(evidence, encoding, ("inference",), cost.OTHERS, 1 - t["less"])
    if said in ("rather slow", "slow"):
        return _over_sinusoids(evidence, encoding, ("inference",), low=1 + t["noticeable"])
    if said == "very fast":
        return _over_sinusoids(evidence, encoding, ("inference",), high=1 + t["few"])
    raise _unknown("speed", said)


def _memory(evidence, encoding: str, said: str, t: dict) -> Found:
    if said == "very low" and encoding == "sinusoidal":
        return _none_below(evidence, encoding, MEMORY, cost.OTHERS, 1 - t["little"])
    if said == "very low":
        return _over_sinusoids(evidence, encoding, MEMORY, high=1 + t["little"])
    if said == "medium":

        def between(costs, kind, length):
            above = costs.part(kind, encoding, length, low=1 + t["equal"])
            below = costs.part(kind, encoding, length, high=1 - t["equal"], to="t5")
            return jointly(f"{kind} at {length}", above, below)

        over = _ratios(evidence, encoding, MEMORY), _ratios(evidence, encoding, MEMORY, "t5")
        found = f"over sinusoids' {over[0]}; over T5's {over[1]}"
        return found, *_costs(evidence, encoding, MEMORY, between)
    if said == "highest":
        here, published = cost.t5_holds_most(evidence.results, t["equal"])
        others = ("sinusoidal", "rope", "alibi")
        return f"the others' over it {_ratios(evidence, others, MEMORY, 't5')}", here, published
    raise _unknown("memory", said)


def _cost(evidence, encoding: str, said: str, t: dict) -> Found:
    """S4's column is computation: time in training and inference."""
    kinds = ("training", "inference")
    if said == "low":
        return _over_sinusoids(evidence, encoding, kinds, high=1 + t["few"])
    if said == "high":
        return _over_sinusoids(evidence, encoding, kinds, low=1 + t["few"])
    if said == "lowest":
        others = [e for e in dict.fromkeys(_said("TAB-3")["encoding"]) if e != encoding]
        return _none_below(evidence, encoding, kinds, others, 1 - t["less"])
    raise _unknown("cost", said)


def _models(evidence, encoding: str, said: str, t: dict) -> Found:
    """Each model named, and the encoding that its paper gives."""
    records = pd.read_csv(paths.PUBLISHED / "models.csv", comment="#").set_index("model")
    parts, found = [], []
    for model in said.split(", "):
        if model not in records.index:
            raise _unknown("models", model)
        uses, source = records.loc[model, ["encoding", "source"]]
        parts.append(_is(model, uses == encoding, f"{short(uses)} ({source})"))
        found.append(model if uses == encoding else f"{model} has {short(uses)}")
    return ", ".join(found), [], parts


RULES: dict[str, Callable[..., Found]] = {
    "parameters": _parameters,
    "type": _type,
    "relative": _relative,
    "extrapolation": _extrapolation,
    "long contexts": _far,
    "speed": _speed,
    "memory": _memory,
    "cost": _cost,
    "models": _models,
}
