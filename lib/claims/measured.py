"""Claims about numbers: from the runs made here, and from the papers' own tables.

A test takes the results and its tolerances by name, and gives (parts here, parts published). Both
sides answer the same questions: a `Source` is a table of losses by encoding, seed, training length,
evaluation and length. Here it is a study's results with seeds, and an estimate is an interval;
published it is a paper's table, and an estimate is a number.

Claims that the texts take from the ALiBi paper's curves are decided with nonoverlapping windows, as
those are; what the evaluation itself does to them is asked by ALI-6 and OPEN-1.
"""

import functools
import math

import numpy as np
import pandas as pd
import torch

from lib import figures, paths
from lib.claims import proofs, real_model
from lib.claims.verdicts import HOLDS, REFUTED, Part, jointly, judge, percent, times
from lib.encodings import build
from lib.studies import extrapolation

Parts = tuple[list[Part], list[Part]]
INF = math.inf
BLOCKS, SLIDING = "nonoverlapping", "sliding"


def tokens(n: float) -> str:
    return f"{n:.0f} tokens"


def _known(show, value: float) -> str:
    return show(value) if math.isfinite(value) else "not known"


class Source:
    """A table of losses, and what the claims ask of it.

    Args:
        table: columns encoding, seed, train_length, evaluation, length, nll; may be empty.
        lengths: the training lengths that claims are asked about, ascending.
        seeded: whether `seed` counts independent runs.
    """

    def __init__(self, table: pd.DataFrame, lengths: tuple[int, ...], seeded: bool):
        self.table, self.lengths, self.seeded = table, lengths, seeded
        self._curves = {}

    def curves(self, encoding: str, trained: int, evaluation: str = BLOCKS) -> dict:
        """seed → (lengths, losses in nats), ascending; {} where nothing was measured."""
        key = encoding, trained, evaluation
        if key not in self._curves:
            self._curves[key] = self._read(*key)
        return self._curves[key]

    def _read(self, encoding: str, trained: int, evaluation: str) -> dict:
        t = self.table
        if t.empty:
            return {}
        t = t[(t["encoding"] == encoding) & (t["train_length"] == trained)]
        t = t[t["evaluation"] == evaluation].sort_values("length")
        return {
            seed: (c["length"].to_numpy(float), c["nll"].to_numpy(float))
            for seed, c in t.groupby("seed")
        }

    def loss(self, encoding: str, trained: int, length: float, evaluation: str = BLOCKS):
        """ln perplexity at `length`, by seed; between two measured lengths a straight line in the
        logarithms of both. Empty outside what was measured."""
        found = {}
        for seed, (x, y) in self.curves(encoding, trained, evaluation).items():
            if x[0] <= length <= x[-1]:
                found[seed] = float(np.interp(math.log(length), np.log(x), y))
        return pd.Series(found, dtype=float)

    def change(self, encoding: str, trained: int, length: float, evaluation: str = BLOCKS, to=None):
        """ln of the perplexity at `length` over that at `to` (None: at the training length)."""
        to = trained if to is None else to
        return paired(
            self.loss(encoding, trained, length, evaluation),
            self.loss(encoding, trained, to, evaluation),
        )

    def reach(self, encoding: str, trained: int, within: float):
        """The longest length at which the perplexity has stayed within a share of that at the
        training length, by seed; infinite for a curve that never left as far as was measured."""
        found = {}
        for seed, (x, y) in self.curves(encoding, trained).items():
            x, y = x[x >= trained], y[x >= trained]
            if len(x) and x[0] == trained:
                length, censored = extrapolation.longest_within(x, np.exp(y - y[0]), within)
                found[seed] = math.inf if censored else length
        return pd.Series(found, dtype=float)

    def estimate(self, values: pd.Series) -> figures.Interval | float | None:
        """An interval over seeds, or the one number; None without any."""
        if values.empty:
            return None
        return figures.interval(values) if self.seeded else float(values.iloc[0])

    def part(self, what: str, values: pd.Series, low=-INF, high=INF, show=percent) -> Part:
        """Whether the values lie in low … high; `show` turns a value into words."""
        estimate = self.estimate(values)
        if estimate is None:
            words = "not there"
        elif isinstance(estimate, float):
            words = _known(show, estimate)
        elif math.isnan(estimate.low):
            words = f"{_known(show, estimate.value)} ({estimate.n} seed{'s' * (estimate.n > 1)})"
        else:
            words = f"{show(estimate.value)} [{show(estimate.low)}, {show(estimate.high)}]"
        return Part(what, judge(estimate, low, high), words)


def paired(a: pd.Series, b: pd.Series) -> pd.Series:
    """a − b over the seeds that both have. A run that diverged stays in, and is not a number."""
    seeds = a.index.intersection(b.index)
    return a[seeds] - b[seeds]


def here(results) -> Source:
    """The runs of the study of extrapolation, at L and 2L."""
    L = extrapolation.L
    return Source(results["extrapolation"], (L, 2 * L), seeded=True)


@functools.cache
def paper() -> Source:
    """Press et al. 2022: tables 2–4 (nonoverlapping) and 13–15 (sliding), trained at 512 … 3072."""
    blocks = extrapolation.published().assign(evaluation=BLOCKS)
    more = pd.read_csv(paths.PUBLISHED / "alibi_wikitext103.csv", comment="#").rename(
        columns={"method": "encoding", "eval_length": "length"}
    )
    more["encoding"] = more["encoding"].replace({"rotary": "rope"})
    columns = ["encoding", "train_length", "evaluation", "length", "perplexity"]
    table = pd.concat([blocks, more])[columns].drop_duplicates(columns[:-1])
    table = table.assign(seed=0, nll=np.log(table["perplexity"]))
    return Source(table, (512, 1024, 3072), seeded=False)


def both(results, ask) -> Parts:
    """The same question to both sources."""
    return ask(here(results)), ask(paper())


# ---- absolute positions --------------------------------------------------------------------------


def sinusoid_breaks_down(results, worse: float) -> Parts:
    def ask(source):
        return [
            source.part(f"{T} → {2 * T}", source.change("sinusoidal", T, 2 * T), math.log1p(worse))
            for T in source.lengths
        ]

    return both(results, ask)


def sinusoid_tolerance(
    results, within: float, fewest: float, most: float, twice: float, slopes: float, constant: float
) -> Parts:
    """About 50 tokens at 512, then a straight line to twice the perplexity at 1012.

    The number belongs to L = 512 and is read there. Its form is asked here: does the tolerance stay
    the same number of tokens when L doubles (×1), or the same share of L (×2)?
    """
    theirs, ours = paper(), here(results)
    past = theirs.reach("sinusoidal", 512, within) - 512
    published = [
        theirs.part("512, tolerance", past, fewest, most, tokens),
        theirs.part("512 → 1012", theirs.change("sinusoidal", 512, 1012), math.log(twice)),
        _straight(theirs, 512, within, slopes),
    ]
    past = [ours.reach("sinusoidal", T, within) - T for T in ours.lengths]
    grows = paired(*(np.log(p) for p in reversed(past)))
    return [
        ours.part("tolerance in tokens when L doubles", grows, -INF, math.log(constant), times),
        _straight(ours, ours.lengths[0], within, slopes),
    ], published


def _straight(source: Source, T: int, within: float, slopes: float) -> Part:
    """Past its tolerance and up to 2T, the rise per token of the second half over the first's."""
    found = {}
    for seed, a in source.reach("sinusoidal", T, within).items():
        b = 2 * T
        if a < b:
            at = [source.loss("sinusoidal", T, x).get(seed) for x in (a, (a + b) / 2, b)]
            first, second = np.diff(np.exp(at))
            rises = first > 0 and second > 0
            found[seed] = math.log(second / first) if rises else math.nan
    limit = math.log(slopes)
    what = f"{T}, slope from the middle to {2 * T} over slope to the middle"
    return source.part(what, pd.Series(found, dtype=float), -limit, limit, times)


def sinusoid_is_fair(results, worse: float) -> Parts:
    """S1's word, between a learned table (poor) and T5 (medium): no breakdown at 2L, and less lost
    than a learned table loses with rows that no training has seen."""

    def ask(source):
        parts = [
            source.part(
                f"{T} → {2 * T}", source.change("sinusoidal", T, 2 * T), high=math.log1p(worse)
            )
            for T in source.lengths
        ]
        T = source.lengths[0]
        if source.seeded:
            lead = paired(source.change("sinusoidal", T, 2 * T), source.change("learned", T, 2 * T))
            parts.append(source.part(f"{T} → {2 * T} against untrained rows", lead, high=0.0))
        return parts

    return both(results, ask)


def learned_past_its_end(results, worse: float) -> Parts:
    """Past the table: refused; interpolated: usable at 2L and at 16L (as 512 → 8192), and there
    better than untrained rows? Without any fine-tuning."""
    ours = here(results)
    L = ours.lengths[0]
    learned = build("learned", d_model=8, n_heads=1, max_length=L)
    try:
        learned.embed(torch.zeros(1, 1, 8), torch.tensor([16 * L - 1]))
        refused = False
    except ValueError:
        refused = True
    squeezed, fresh = (
        {s: ours.loss(name, L, s * L) for s in (1, 2, 16)}
        for name in ("learned_interpolated", "learned")
    )
    usable, far = (
        ours.part(f"{s * L} against {L}", paired(squeezed[s], squeezed[1]), high=math.log1p(worse))
        for s in (2, 16)
    )
    fresh = ours.part("against untrained rows", paired(squeezed[16], fresh[16]), high=0.0)
    return [
        Part(f"no row {16 * L - 1}", HOLDS if refused else REFUTED, "yes" if refused else "no"),
        usable._replace(what=f"interpolated, {usable.what}"),
        jointly("interpolated", far, fresh),
    ], []


# ---- relative positions --------------------------------------------------------------------------


def t5_reaches_about_twice(results, within: float, most: float) -> Parts:
    """It works at 2L; and that is about where it ends."""

    def ask(source):
        parts = []
        for T in source.lengths:
            loss = source.change("t5", T, 2 * T)
            if source.seeded and loss.empty and T != source.lengths[0]:
                continue  # T5 is trained at L alone here
            works = source.part(f"{T} → {2 * T}", loss, high=math.log1p(within))
            far = source.change("t5", T, most * T)
            ends = source.part(f"no longer {T} → {most * T:g}", far, low=math.log1p(within))
            # Where it breaks down at 2L already, that it does so at 3L speaks for nothing.
            both_hold = jointly(ends.what, works, ends)
            parts += [works, both_hold._replace(measured=ends.measured)]
        return parts

    return both(results, ask)


def rope_reach(results, within: float, least: float, most: float) -> Parts:
    def ask(source):
        parts = []
        for T in source.lengths:
            lead = paired(source.change("rope", T, 2 * T), source.change("sinusoidal", T, 2 * T))
            # Everything is measured to 4T: a curve that has not left by then is far from 1.2.
            reach = np.log(source.reach("rope", T, within).clip(upper=4 * T) / T)
            parts.append(source.part(f"{T} → {2 * T} against sinusoids", lead, high=0.0))
            parts.append(
                source.part(f"{T}, reach up to ×4", reach, math.log(least), math.log(most), times)
            )
        return parts

    here, published = both(results, ask)
    return here + real_model.on_reach(results, within, least, most), published


# ---- ALiBi ---------------------------------------------------------------------------------------


def alibi_runs_on(results, within: float) -> Parts:
    def ask(source):
        return [
            source.part(f"{T} → {s * T}", source.change("alibi", T, s * T), high=math.log1p(within))
            for T in source.lengths
            for s in (2, 4)
        ]

    return both(results, ask)


def alibi_against_sinusoids_at_2L(results, equal: float) -> Parts:
    def ask(source):
        T = source.lengths[0]
        lead = paired(source.loss("alibi", T, 2 * T), source.loss("sinusoidal", 2 * T, 2 * T))
        what = f"ALiBi {T} → {2 * T} against sinusoids trained at {2 * T}"
        return [source.part(what, lead, high=math.log1p(equal))]

    return both(results, ask)


def alibi_best_at_twice(results, slowly: float) -> Parts:
    """Better at 2L than at L, and worse again at 4L, but slowly; in both evaluations."""

    def ask(source):
        T = source.lengths[0]

        def best(evaluation):
            gain = source.change("alibi", T, 2 * T, evaluation)
            loss = source.change("alibi", T, 4 * T, evaluation, to=2 * T)
            return jointly(
                evaluation,
                source.part(f"{T} → {2 * T}", gain, high=0.0),
                source.part(f"{2 * T} → {4 * T}", loss, 0.0, math.log1p(slowly)),
            )

        return [best(BLOCKS), best(SLIDING)]

    return both(results, ask)


def alibi_gain_is_the_evaluations(results, none: float) -> Parts:
    """Nonoverlapping windows gain past L, since fewer tokens stand at the start of a window;
    sliding windows, where no token does, gain nothing."""

    def ask(source):
        parts = []
        for T in source.lengths:
            blocks, sliding = (source.change("alibi", T, 2 * T, e) for e in (BLOCKS, SLIDING))
            if T != source.lengths[0] and sliding.empty:
                continue  # the paper slides its models of 512 and 1024 alone
            gain = source.part(BLOCKS, blocks, high=math.log1p(-none))
            no_gain = source.part(SLIDING, sliding, low=math.log1p(-none))
            parts.append(jointly(f"{T} → {2 * T}", gain, no_gain))
        return parts

    return both(results, ask)


# ---- no encoding ---------------------------------------------------------------------------------


def mask_carries_position(results, deviation: float, chance: float) -> Parts:
    """The construction; and the stream after the last block of models trained without encoding,
    read by its channels and their squares: R² of the position above that of a constant."""
    what, rows, found = "trained models, R² after the last block", results["probes"], None
    if len(rows):
        rows = rows[(rows["encoding"] == "nope") & (rows["quantity"] == "squares_r2")]
        rows = rows[(rows["x"] == extrapolation.L) & (rows["layer"] == rows["layer"].max())]
        found = figures.interval(rows["value"]) if len(rows) else None
    words = "not measured"
    if found:
        words = f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f}, {found.n} seeds)"
    trained = Part(what, judge(found, low=chance), words)
    return [*proofs.position_from_the_mask(deviation), trained], []
