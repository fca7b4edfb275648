"""How do five encodings from beyond the survey do in the main figure, at equal budget?

KERPLE, FIRE, xPos, p-RoPE and CoPE, each a file of `lib.examples`, are trained and measured as the
main figure's encodings are at L = 64: the same windows, seeds, tokens and targets. The rates are
those that most of the survey's encodings chose (`learning_rates.usual`): no sweep was made for
them. Four of the survey's stand beside them, and their runs are the main figure's own.

The full profile has the runs, at the default profile's budget, so that they can stand beside the
reference; quick tries one of them, and the default profile leaves them out.
"""

import pandas as pd

from lib import examples, figures, runs
from lib.studies import extrapolation
from lib.studies.extrapolation import L, collect, draw_curves

BESIDE = ("t5", "rope", "alibi", "nope")  # the survey's encodings that are drawn with them
# profile → the examples that it trains, and the profile of the main figure whose budget they get
PROFILES = {
    "quick": (("kerple",), "quick"),
    "default": ((), "default"),
    "full": (examples.NAMES, "default"),
}
# Core-seconds, measured; in full a quarter of it is for runs that the default profile has made.
COST = {"quick": 15, "default": 0, "full": 2400}


def jobs(profile: str) -> list[runs.Job]:
    """Those of the main figure at L: of the survey's encodings that are shown, and of the files."""
    names, budget = PROFILES[profile]
    beside = [
        job
        for job in extrapolation.jobs(budget)
        if names and job.training.encoding in BESIDE and job.training.train_length == L
    ]
    return beside + [
        job
        for name in names
        for job in extrapolation.jobs_of_a_file(name, examples.file(name), budget)
    ]


def differences(results: pd.DataFrame) -> pd.DataFrame:
    """ln perplexity of each example minus ALiBi's, at L and 16 L (nonoverlapping), paired by seed:
    the columns of `figures.Interval` for each `encoding` and `length`."""
    rows = [
        {"encoding": name, "length": length, **gap._asdict()}
        for name in examples.NAMES
        for length in (L, 16 * L)
        if (gap := _gap(results, name, length)).n
    ]
    return pd.DataFrame(rows, columns=["encoding", "length", *figures.Interval._fields])


def _gap(results, name, length):
    pair = [(e, L, "nonoverlapping", length) for e in (name, "alibi")]
    return extrapolation.paired(results, *pair)


FIGURES = {"extrapolation_examples": (extrapolation.curves, draw_curves)}
TABLES = {"examples_differences": differences}

__all__ = ["COST", "FIGURES", "PROFILES", "TABLES", "collect", "jobs"]
