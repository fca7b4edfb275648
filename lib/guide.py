"""Which encoding should I use? Advice by branches, each on measured rows that are asked again here.

A branch is a sentence of advice and what it rests on: differences over seeds with a region each
must lie in. Where one does not in a build, the advice says so. Lengths are in training lengths L:
the models here are small and trained on windows of 64 tokens, so that factors carry over to longer
ones, if anything does, and not numbers of tokens.
"""

import math
from collections.abc import Callable
from html import escape
from typing import NamedTuple

import pandas as pd

from lib import figures, gallery
from lib.claims import Results, cost, extension, measured
from lib.claims.measured import paired
from lib.claims.verdicts import HOLDS, judge
from lib.ledger import Page
from lib.studies import generalization, vision
from lib.studies.extrapolation import L

INF = math.inf
GRID = (12, 12)


class Cite(NamedTuple):
    """A measured number: what it is, its interval, where it must lie, the cell that shows it, and
    how it is written."""

    what: str
    found: figures.Interval | float | None
    low: float
    high: float
    cell: str
    show: Callable[[float], str]

    @property
    def holds(self) -> bool:
        return judge(self.found, self.low, self.high) == HOLDS

    @property
    def words(self) -> str:
        show = self.show
        if self.found is None:
            return f"{self.what}: not in this build"
        if isinstance(self.found, float):
            return f"{self.what}: {show(self.found)}"
        if math.isnan(self.found.low):
            return f"{self.what}: {show(self.found.value)} [one seed]"
        low, high = show(self.found.low), show(self.found.high)
        return f"{self.what}: {show(self.found.value)} [{low}, {high}]"


class Branch(NamedTuple):
    when: str
    take: str
    cites: list[Cite]


def _change(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def _times(log_ratio: float) -> str:
    return f"×{math.exp(log_ratio):.2f}"


def _points(share: float) -> str:
    return f"{100 * share:+.0f} points"


class Rows:
    """What the branches ask of the results."""

    def __init__(self, results: Results):
        self.results = results
        self.text = measured.here(results)
        self.costs = cost.costs_here(results)

    def change(self, encoding: str, s: int, low=-INF, high=INF) -> Cite:
        values = self.text.change(encoding, L, s * L)
        what = f"{figures.short(encoding)} at {s} L, against itself at L"
        return Cite(what, _interval(values), low, high, "11_extrapolation#ext-order", _change)

    def against(self, a: str, b: str, s: int, low=-INF, high=INF) -> Cite:
        values = paired(self.text.loss(a, L, s * L), self.text.loss(b, L, s * L))
        what = f"{figures.short(a)} against {figures.short(b)} at {s} L"
        return Cite(what, _interval(values), low, high, "11_extrapolation#ext-pairs-code", _change)

    def scaled(self, a: str, b: str, s: int, low=-INF, high=INF, at=None, tuned=0) -> Cite:
        """Two ways to read a RoPE model at s·L; b at `at`·L, where given."""
        part = ("fine_tune", tuned) if tuned else ("zero_shot", 0)
        one = extension.loss(self.results, a, s, s * L, *part)
        other = extension.loss(self.results, b, s, (at or s) * L)
        steps = f" after {tuned} steps" if tuned else ""
        length = f" at {at} L".replace(" 1 L", " L") if at else ""
        what = f"{figures.short(a)} at {s} L{steps}, against {figures.short(b)}{length}"
        cell = "ext8-tune" if tuned else "ext8-zero-shot"
        found = _interval(paired(one, other))
        return Cite(what, found, low, high, f"08_context_extension#{cell}", _change)

    def time(self, encoding: str, low=-INF, high=INF) -> Cite:
        words = "time of training"
        return self._cost("training", encoding, words, low, high, "13_cost#cost-training")

    def memory(self, encoding: str, low=-INF, high=INF) -> Cite:
        words = "memory of inference"
        return self._cost("inference memory", encoding, words, low, high, "13_cost#cost-memory")

    def _cost(self, kind: str, encoding: str, words: str, low, high, cell: str) -> Cite:
        """A cost over that with sinusoids, at the longest length measured."""
        lengths = self.costs.lengths(kind)
        found = self.costs.ratio(kind, encoding, lengths[-1]) if lengths else None
        at = f" at {lengths[-1]} tokens" if lengths else ""
        what = f"{figures.short(encoding)}, {words} over sinusoids'{at}"
        return Cite(what, found, low, high, cell, _times)

    def pictures(self, a: str, b: str, low=-INF, high=INF, grid=GRID) -> Cite:
        question = "trained" if grid == vision.TRAINED else "scaled"
        values = vision.paired(self.results["vision"], a, b, question, grid)
        what = f"{figures.short(a)} less {figures.short(b)}, {grid[0]}×{grid[1]}"
        return Cite(
            what, _interval(values), low, high, "10_two_dimensional_rope#grid-table", _points
        )

    def task(self, task: str, a: str, b: str, low=-INF, high=INF) -> Cite:
        found = generalization.longer(self.results["generalization"])
        nothing = pd.Series(dtype=float)
        values = paired(found.get((task, a), nothing), found.get((task, b), nothing))
        what = f"{task}, {figures.short(a)} less {figures.short(b)} past the trained lengths"
        cell = "12_length_generalization#gen-pairs-code"
        return Cite(what, _interval(values), low, high, cell, _points)


def _interval(values: pd.Series) -> figures.Interval | None:
    return figures.interval(values) if len(values) else None


FEW, SOME = math.log1p(0.02), math.log1p(0.10)  # no loss, and a breakdown, as the claims have them


def field(results: Results) -> pd.DataFrame:
    """Perplexity over that at L against the length in L, for the figure of the field: columns
    encoding, x, value, low, high. YaRN is a RoPE model's, set for each length."""
    frame, r = results["extrapolation"], Rows(results)
    rows = []
    for name in dict.fromkeys(frame["encoding"]) if len(frame) else ():
        for s in (1, 2, 4, 8, 16):
            rows.append((name, s, r.text.change(name, L, s * L)))
    for s in (2, 4, 8):
        rows.append(("yarn", s, r.scaled("yarn", "none", s, at=1).found))
    made = []
    for name, s, found in rows:
        found = _interval(found) if isinstance(found, pd.Series) else found
        if found is not None:
            numbers = (math.exp(x) for x in (found.value, found.low, found.high))
            made.append((name, s, *numbers))
    return pd.DataFrame(made, columns=["encoding", "x", "value", "low", "high"])


def branches(results: Results) -> list[Branch]:
    """The advice, from the first question down."""
    r = Rows(results)
    return [
        Branch(
            "text, a model from scratch, read no longer than trained",
            "T5's bias, if your kernel takes a bias and the time is yours; RoPE if not. Both beat "
            "ALiBi here at L.",
            [r.against("t5", "rope", 1, high=0.0), r.against("rope", "alibi", 1, high=0.0),
             r.time("t5", low=0.0), r.time("rope", high=SOME)],
        ),
        Branch(
            "text, from scratch, read at 2 to 16 L",
            "ALiBi: nothing to set, nothing lost. T5's bias is lower to 8 L and slower to train.",
            [r.change("alibi", 8, high=FEW), r.change("alibi", 16, high=FEW),
             r.against("t5", "alibi", 8, high=0.0), r.change("t5", 16, low=FEW),
             r.time("alibi", high=FEW)],
        ),
        Branch(
            "text, from scratch, and time and memory are no object",
            "Shaw's vectors: ahead of ALiBi at every length, and no fused kernel takes them.",
            [r.against("shaw", "alibi", 1, high=0.0), r.against("shaw", "alibi", 16, high=0.0),
             r.memory("shaw", low=SOME)],
        ),
        Branch(
            "text, from scratch, and your kernel takes no bias",
            "RoPE, with YaRN when you read past L.",
            [r.time("rope", high=SOME), r.change("rope", 8, low=SOME),
             r.scaled("yarn", "none", 8, high=0.0)],
        ),
        Branch(
            "a trained RoPE model, read at 2 L, no fine-tune",
            "NTK-aware; PI only if you can fine-tune.",
            [r.scaled("ntk", "none", 2, high=0.0), r.scaled("ntk", "none", 2, high=FEW, at=1),
             r.scaled("linear", "none", 2, low=0.0)],
        ),
        Branch(
            "a trained RoPE model, read at 4 or 8 L, no fine-tune",
            "YaRN, or NTK by parts, which is as good.",
            [r.scaled("yarn", "none", 8, high=0.0), r.scaled("yarn", "ntk", 8, high=0.0),
             r.scaled("yarn", "none", 8, low=0.0, at=1)],
        ),
        Branch(
            "a trained RoPE model, read at 4 L, with a short fine-tune",
            "A raised base or YaRN; PI catches up only with it.",
            [r.scaled("yarn", "none", 4, high=FEW, at=1, tuned=100),
             r.scaled("raised_base", "none", 4, high=FEW, at=1, tuned=100),
             r.scaled("linear", "linear", 4, high=0.0, tuned=100)],
        ),
        Branch(
            "a trained model with a learned table",
            "Interpolate the table; it holds at 2 L and no longer at 16 L.",
            [r.change("learned_interpolated", 2, high=SOME),
             r.change("learned_interpolated", 16, low=SOME),
             r.against("learned_interpolated", "learned", 16, high=0.0)],
        ),
        Branch(
            "tasks with an exact answer, longer than trained",
            "Try no encoding beside yours: on some tasks it goes further.",
            [r.task("sorting", "nope", "rope", low=0.02), r.task("copy", "nope", "rope", low=0.02)],
        ),
        Branch(
            "pictures",
            "RoPE over two axes; ALiBi only if its heads know directions.",
            [r.pictures("rope2d_axial", "alibi2d", low=0.01, grid=vision.TRAINED),
             r.pictures("rope2d_mixed", "sinusoidal2d", low=0.01),
             r.pictures("alibi2d_directional", "alibi2d", low=0.01, grid=vision.TRAINED)],
        ),
    ]  # fmt: skip


def page(found: list[Branch]) -> Page:
    """The branches as a table, and as text."""
    rows, lines = "", []
    style = 'style="text-align:left;vertical-align:top;padding:6px 10px"'
    for branch in found:
        cites = "".join(
            f'<li><a href="{gallery.link(cite.cell)}">{escape(cite.words)}</a>'
            f"{'' if cite.holds else ' <b>(not sure in this build)</b>'}</li>"
            for cite in branch.cites
        )
        rows += (
            f"<tr><td {style}>{escape(branch.when)}</td><td {style}><b>{escape(branch.take)}</b>"
            f"</td><td {style}><ul>{cites}</ul></td></tr>"
        )
        sure = sum(cite.holds for cite in branch.cites)
        lines.append(f"{branch.when}: {branch.take} [{sure} of {len(branch.cites)} hold]")
    head = "".join(f"<th {style}>{name}</th>" for name in ("you have", "take", "measured here"))
    html = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return Page(html, "\n".join(lines))


# Training at 2k and running at 16k, or any other two lengths that far apart.
EIGHT = 8


def answer(results: Results) -> list[str]:
    """Which encoding for reading 8 times the training length: two sentences, each from rows that
    are asked again; a row that does not say so in this build is marked."""
    r = Rows(results)
    new = [
        r.change("alibi", EIGHT, high=FEW),
        r.against("t5", "alibi", EIGHT, high=0.0),
        r.time("t5", low=0.0),
    ]
    had = [
        r.change("rope", EIGHT, low=SOME),
        r.scaled("yarn", "none", EIGHT, high=0.0),
        r.scaled("yarn", "none", EIGHT, low=0.0, at=1),
    ]
    return [
        f"A new model, text: ALiBi, which loses nothing ({_said(new[0])}). T5's bias is lower "
        f"still at that length ({_said(new[1])}), if you can pay for it ({_said(new[2])}).",
        f"A RoPE model that you have: YaRN set for a factor of {EIGHT} ({_said(had[1])}; "
        f"{_said(had[2])}), since unscaled it breaks down ({_said(had[0])}).",
    ]


def _said(cite: Cite) -> str:
    return cite.words + ("" if cite.holds else ", not sure in this build")
