"""What the trained models of the main figure have made of their encodings.

Questions: which bias did T5 learn for each distance; how alike are a learned table's rows; which
pairs of RoPE do the heads use; how far back do ALiBi's heads look; and where in the layers of each
model can its position be read off, with no encoding above all?

The models are those of the study `extrapolation`, at L; nothing new is trained.
"""

import pandas as pd

from lib import runs
from lib.probes import pairs, position, reach, relative, tables
from lib.studies import extrapolation

# Core-seconds, measured on two cores, beyond the training of the models.
COST = {"quick": 10, "default": 70, "full": 150}

SETTINGS = {
    "quick": {"windows": 8},
    "default": {"windows": 64},
    "full": {"windows": 64},
}


def probes() -> dict:
    """Encoding → the probes that apply to it; "*" applies to all. They give rows (lib.probes)."""
    return {
        "*": (position.position,),
        "rope": (pairs.pairs, reach.reach),
        "alibi": (reach.reach,),
        "t5": (reach.reach, relative.t5),
        "shaw": (relative.shaw,),
        "learned": (tables.table,),
        "nope": (reach.reach,),
    }


def jobs(profile: str) -> list[runs.Job]:
    """One for each model that the main figure trains at L."""
    at_L = [j.training for j in extrapolation.jobs(profile)]
    at_L = [t for t in at_L if t.train_length == extrapolation.L]
    return [runs.Job(t, __name__, SETTINGS[profile]) for t in at_L]


def measure(decoder, training, settings: dict) -> list[dict]:
    """The rows of every probe that applies to the encoding of this model."""
    chosen = (*probes().get("*", ()), *probes().get(training.encoding, ()))
    return [row for probe in chosen for row in probe(decoder, settings)]


MEASURING = (measure, "lib.probes.*")


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`probes.csv`: COLUMNS, one row a measurement."""
    return runs.table(outcomes, COLUMNS)


COLUMNS = ["encoding", "seed", "layer", "head", "quantity", "x", "value"]


FIGURES: dict = {}
TABLES: dict = {}
