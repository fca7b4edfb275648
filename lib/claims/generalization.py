"""Claims about tasks: exact match past the trained lengths, from the study `generalization`.

An encoding enters a comparison on a task only where it solves it at the trained lengths; a task
that no encoding solves enters none. Differences are paired by seed. That something is so "on some
tasks" holds when it does on one; it is refuted when it is refuted on every task, and that speaks
for the tasks tried alone.
"""

import math

import pandas as pd

from lib import figures
from lib.claims.measured import paired
from lib.claims.verdicts import HOLDS, REFUTED, UNDECIDED, Part, judge
from lib.studies import extrapolation
from lib.studies import generalization as study

Parts = tuple[list[Part], list[Part]]
MISSING = "not there"


def nope_generalises_best(results, gap: float) -> Parts:
    """A task where no encoding's exact match past the trained lengths is above every one's."""
    found = study.longer(results["generalization"])
    parts = []
    for task in _tasks(found):
        best = _best({e: found.get((task, e)) for e in study.EXPLICIT})
        parts.append(_difference(found, task, "nope", best, gap))
    return [_some("a task where NoPE leads every encoding", parts)], _published()


def an_encoding_hinders(results, gap: float) -> Parts:
    """A task and an encoding whose exact match past the trained lengths is below NoPE's."""
    found = study.longer(results["generalization"])
    parts = []
    for task in _tasks(found):
        parts += [_difference(found, task, "nope", e, gap) for e in study.EXPLICIT]
    return [_some("an encoding and a task where it is behind NoPE", parts)], []


# The two sides of SEL-1 as S4 draws them.
STRICT, LOCAL = (
    ("learned", "sinusoidal", "shaw", "t5", "rope"),
    ("alibi", "nope"),
)  # no Shaw on tasks
BY_POSITION = ("copy", "reverse")


def tasks_choose_encodings(results, gap: float) -> Parts:
    """On retrieval by position the best of STRICT leads the best of LOCAL; on text at twice the
    training length the best of LOCAL leads the best of STRICT, in nats a token."""
    found, parts = study.longer(results["generalization"]), []
    for task in BY_POSITION:
        if task in _tasks(found):
            a, b = (_best({e: found.get((task, e)) for e in side}) for side in (STRICT, LOCAL))
            parts.append(_difference(found, task, a, b, gap))
    if not parts:
        parts.append(Part("retrieval by position", UNDECIDED, MISSING))
    text, T = results["extrapolation"], extrapolation.L
    losses = {e: _loss(text, e, 2 * T) for e in (*STRICT, *LOCAL)}
    a, b = (_best({e: -losses[e] for e in side}) for side in (LOCAL, STRICT))
    what = f"text, {T} → {2 * T}"
    if not a or not b:
        return [*parts, Part(what, UNDECIDED, MISSING)], []
    lead = _interval(paired(losses[b], losses[a]))
    words = f"loss of {_name(b)} − {_name(a)}"
    return [*parts, _part(f"{what}, {words}", lead, 0.0, "nats")], []


def encodings_have_an_order(results, gap: float) -> Parts:
    """On every solved task, the best of the encodings that solve it leads the worst of them."""
    found, parts = study.longer(results["generalization"]), []
    for task in _tasks(found):
        means = _means({e: found.get((task, e)) for e in study.SURVEY})
        if len(means) > 1:
            parts.append(_difference(found, task, means.idxmax(), means.idxmin(), gap))
    return parts or [Part("the tasks", UNDECIDED, MISSING)], []


# ---- helpers -------------------------------------------------------------------------------------


Found = dict[tuple[str, str], pd.Series]  # as `study.longer` gives it


def _tasks(found: Found) -> list[str]:
    return list(dict.fromkeys(task for task, _ in found))


def _means(values: dict[str, pd.Series | None]) -> pd.Series:
    """The mean over seeds of each encoding that has any value."""
    there = {e: v.mean() for e, v in values.items() if v is not None and len(v)}
    return pd.Series(there, dtype=float).dropna()


def _best(values: dict[str, pd.Series | None]) -> str | None:
    means = _means(values)
    return means.idxmax() if len(means) else None


def _loss(text: pd.DataFrame, encoding: str, length: int) -> pd.Series:
    """Nats a token at `length` by seed, trained at L, nonoverlapping; empty if not measured."""
    if text.empty:
        return pd.Series(dtype=float)
    rows = text[(text["encoding"] == encoding) & (text["train_length"] == extrapolation.L)]
    rows = rows[(rows["evaluation"] == "nonoverlapping") & (rows["length"] == length)]
    return rows.set_index("seed")["nll"]


def _interval(values: pd.Series) -> figures.Interval | None:
    return figures.interval(values) if len(values) else None


def _name(encoding: str) -> str:
    return figures.looks([encoding])[encoding].label


def _difference(found: Found, task: str, a: str | None, b: str | None, gap: float) -> Part:
    """Whether a leads b by more than `gap` of the instances past the trained lengths."""
    if (task, a) not in found or (task, b) not in found:
        return Part(task, UNDECIDED, MISSING)
    values = paired(found[task, a], found[task, b])
    return _part(f"{task}, {_name(a)} − {_name(b)}", _interval(values), gap)


def _part(what: str, found: figures.Interval | None, least: float, unit: str = "") -> Part:
    if found is None:
        return Part(what, UNDECIDED, MISSING)
    words = f"{found.value:+.2f}"
    if math.isnan(found.low):
        words += f" ({found.n} seed{'s' * (found.n > 1)})"
    else:
        words += f" [{found.low:+.2f}, {found.high:+.2f}]"
    return Part(what, judge(found, low=least), f"{words} {unit}".strip())


def _some(what: str, parts: list[Part]) -> Part:
    """Whether one of the parts holds; it and the others' numbers, those that hold first."""
    words = [part.verdict for part in parts]
    if HOLDS in words:
        verdict = HOLDS
    else:
        verdict = REFUTED if words and set(words) == {REFUTED} else UNDECIDED
    compared = [part for part in parts if part.measured != MISSING]
    shown = [part for part in compared if part.verdict == HOLDS] or compared
    numbers = [f"{part.what} {part.measured}" for part in shown[:SHOWN]]
    if not numbers:
        return Part(what, verdict, MISSING)
    counts = f"{words.count(HOLDS)} of {len(compared)} compared"
    return Part(what, verdict, f"{counts}: {', '.join(numbers)}{' …' * (len(shown) > SHOWN)}")


SHOWN = 3  # of the numbers behind one part


def _published() -> list[Part]:
    """Whether NoPE has the best mean reciprocal rank in the paper's table."""
    table = study.published().set_index("encoding")["mrr"]
    lead = table["nope"] - table.drop("nope").max()
    words = f"{table['nope']:.2f} against {table.drop('nope').max():.2f} at most"
    return [Part("mean reciprocal rank over ten tasks", judge(float(lead), low=0.0), words)]
