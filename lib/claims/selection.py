"""Does one scheme win everywhere? SEL-2, asked of all studies together.

A setting is something to be good at: a length to read, a task, a kind of pictures, a cost. In each,
a scheme is beaten when another leads it by more than a margin, with the whole interval of their
difference over seeds (of costs over rounds).
"""

import itertools
import math
from typing import NamedTuple

import pandas as pd

from lib import figures
from lib.claims import cost, extension, measured
from lib.claims.measured import SLIDING, Parts, paired
from lib.claims.verdicts import HOLDS, MIN_SEEDS, REFUTED, UNDECIDED, Part, jointly, judge
from lib.claims.vision import FAMILIES, FINER
from lib.studies import generalization, vision
from lib.studies.extrapolation import L

TEXT = ("sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "nope")


class Setting(NamedTuple):
    """`losses`: scheme → what it loses there, by seed or round; less is better. A lead counts from
    `margin` on."""

    name: str
    losses: dict[str, pd.Series]
    margin: float
    counted: bool = False  # one number is enough: nothing varies

    def lead(self, scheme: str, other: str) -> float:
        """By how much `scheme` leads `other`, the mean over seeds."""
        return paired(self.losses[other], self.losses[scheme]).mean()

    def behind(self, scheme: str, other: str) -> Part:
        """Whether `other` leads `scheme` by more than the margin."""
        difference = paired(self.losses[scheme], self.losses[other])
        found = None
        if len(difference):
            one = self.counted and len(difference) == 1
            found = float(difference.iloc[0]) if one else figures.interval(difference)
        words = "not there"
        if isinstance(found, float):
            words = f"{found:+.2f}"
        elif found:
            words = f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        what = f"{figures.short(scheme)} behind {figures.short(other)}, {self.name}"
        return Part(what, judge(found, low=self.margin), words)


def settings(results, text: float, tasks: float, pictures: float, costs: float) -> list[Setting]:
    """Everything that was measured of several schemes, with the margin of its kind."""
    return [
        *_of_text(results, math.log1p(text)),
        *_of_tasks(results, tasks),
        *_of_pictures(results, pictures),
        *_of_costs(results, math.log1p(costs)),
    ]


def no_scheme_wins_everywhere(
    results, text: float, tasks: float, pictures: float, costs: float
) -> Parts:
    """Every scheme is beaten somewhere; and the order of two turns with something that S1 names,
    the length that is read, the length of training, or a fine-tune, so that none is chosen alone.
    """
    turns = [
        _turns("the length read", _by_length(results)),
        _turns("the training length", _by_training(results)),
        _turns("a fine-tune", _by_fine_tune(results)),
    ]
    words = [part.verdict for part in turns]
    sure = REFUTED if set(words) == {REFUTED} else UNDECIDED
    measured = "; ".join(f"{part.what} ({part.verdict}): {part.measured}" for part in turns)
    order = Part("the order of two schemes turns", HOLDS if HOLDS in words else sure, measured)
    return [_all_beaten(settings(results, text, tasks, pictures, costs)), order], []


def standings(found: list[Setting]) -> pd.DataFrame:
    """One row a setting and scheme: its place by the mean, from 1, and whether it has enough seeds
    to be beaten and is not."""
    rows = []
    for setting in found:
        means = pd.Series({e: v.mean() for e, v in setting.losses.items() if len(v)}, dtype=float)
        for scheme, place in means.rank(method="min").items():
            parts = [setting.behind(scheme, other) for other in means.index if other != scheme]
            enough = setting.counted or len(setting.losses[scheme]) >= MIN_SEEDS
            unbeaten = enough and all(part.verdict != HOLDS for part in parts)
            rows.append((setting.name, scheme, place, unbeaten))
    return pd.DataFrame(rows, columns=["setting", "scheme", "place", "unbeaten"])


# ---- every scheme is beaten ----------------------------------------------------------------------


def beaten(found: list[Setting], scheme: str) -> Part:
    """Whether some scheme leads it somewhere; refuted where none does anywhere."""
    parts = [
        setting.behind(scheme, other)
        for setting in found
        for other in setting.losses
        if scheme in setting.losses and other != scheme
    ]
    words = [part.verdict for part in parts]
    if HOLDS in words:
        first = parts[words.index(HOLDS)]
        return Part(figures.short(scheme), HOLDS, f"{first.what} {first.measured}")
    sure = bool(words) and set(words) == {REFUTED}
    verdict = REFUTED if sure else UNDECIDED
    return Part(figures.short(scheme), verdict, "by none" if parts else "not there")


def _all_beaten(found: list[Setting]) -> Part:
    parts = [beaten(found, scheme) for scheme in TEXT if any(scheme in s.losses for s in found)]
    what = "every scheme is beaten somewhere"
    if not parts:
        return Part(what, UNDECIDED, "not there")
    return jointly(what, *parts)._replace(measured="; ".join(p.measured for p in parts))


# ---- the order of two schemes turns --------------------------------------------------------------

Pair = tuple[Setting, Setting]


def _turns(what: str, pairs: list[Pair]) -> Part:
    """Whether two schemes change places between two settings, both leads beyond the margin."""
    parts, leads = [], []
    for one, other in pairs:
        both = [scheme for scheme in one.losses if scheme in other.losses]
        for a, b in itertools.permutations(both, 2):
            parts.append(jointly("", one.behind(a, b), other.behind(b, a)))
            leads.append(min(one.lead(b, a), other.lead(a, b)))
    what = f"with {what}"
    turned = [n for n, part in enumerate(parts) if part.verdict == HOLDS]
    if turned:  # the clearest of them in words
        return Part(what, HOLDS, parts[max(turned, key=leads.__getitem__)].measured)
    sure = bool(parts) and {part.verdict for part in parts} == {REFUTED}
    return Part(what, REFUTED if sure else UNDECIDED, "none seen" if parts else "not there")


def _losses(source, trained: int, length: int, evaluation=measured.BLOCKS) -> dict[str, pd.Series]:
    found = {e: source.loss(e, trained, length, evaluation) for e in TEXT}
    return {e: series for e, series in found.items() if len(series)}


def _by_length(results) -> list[Pair]:
    """Trained at L; read at L and at 16 L."""
    source = measured.here(results)
    near, far = (Setting(f"text at {n}", _losses(source, L, n), 0.0) for n in (L, 16 * L))
    return [(near, far)]


READ = tuple(round(s * L) for s in (2, 2.5, 3, 4, 16))


def _by_training(results) -> list[Pair]:
    """Read at one of the lengths READ, nonoverlapping or sliding; trained at L and at 2 L."""
    source, pairs = measured.here(results), []
    for evaluation, n in itertools.product((measured.BLOCKS, SLIDING), READ):
        short, long = (
            Setting(f"text at {n}, trained at {T}", _losses(source, T, n, evaluation), 0.0)
            for T in (L, 2 * L)
        )
        pairs.append((short, long))
    return pairs


def _by_fine_tune(results) -> list[Pair]:
    """Ways to extend RoPE to s·L, as they are and after the longest fine-tune."""
    frame = results["extension"]
    if frame.empty:
        return []
    tuned = frame[(frame["part"] == "fine_tune") & (frame["quantity"] == "nll")]
    pairs = []
    for factor, rows in tuned.groupby("factor"):
        before, after = (
            Setting(
                f"RoPE at {factor}L, {steps} steps",
                {m: extension.loss(results, m, factor, factor * L, "fine_tune", steps)
                 for m in rows["encoding"].unique()},
                0.0,
            )
            for steps in (0, rows["steps"].max())
        )  # fmt: skip
        pairs.append((before, after))
    return pairs


# ---- the settings --------------------------------------------------------------------------------


def _of_text(results, margin: float) -> list[Setting]:
    """Nats a token."""
    source = measured.here(results)
    return [Setting(f"text at {n}", _losses(source, L, n), margin) for n in (L, 2 * L, 16 * L)]


def _of_tasks(results, margin: float) -> list[Setting]:
    """The share not matched past the trained lengths, by those that solve the task there."""
    found = generalization.longer(results["generalization"])
    return [
        Setting(task, {e: 1 - v for (t, e), v in found.items() if t == task and e in TEXT}, margin)
        for task in dict.fromkeys(task for task, _ in found)
    ]


def _of_pictures(results, margin: float) -> list[Setting]:
    """The share of pictures named wrongly, each family by the best of its forms."""
    frame, made = results["vision"], []
    for question, grid in (("trained", vision.TRAINED), ("scaled", FINER)):
        losses = {}
        for on_a_line, on_a_grid in FAMILIES.values():
            forms = [vision.accuracies(frame, form, question, grid) for form in on_a_grid]
            forms = [1 - form for form in forms if len(form)]
            if forms:
                losses[on_a_line] = min(forms, key=pd.Series.mean)
        made.append(Setting(f"pictures {'×'.join(map(str, grid))}", losses, margin))
    return made


def _of_costs(results, margin: float) -> list[Setting]:
    """ln of time and memory over sinusoids', at the longest length of training and inference."""
    costs, made = cost.costs_here(results), []
    for kind in ("training", "inference", "training memory", "inference memory"):
        for length in costs.lengths(kind)[-1:]:
            losses = {e: costs.values(kind, e, length) for e in TEXT}
            losses = {e: series for e, series in losses.items() if len(series)}
            counted = kind.endswith("memory")
            made.append(Setting(f"{kind} at {length}", losses, margin, counted))
    return made
