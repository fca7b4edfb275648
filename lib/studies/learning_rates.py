"""The learning rate of each encoding, from one recorded sweep on separate data.

Question: which peak rate suits each encoding at this model and budget, so that a comparison does
not reward the encoding that one common rate happens to suit?

Three rates for every encoding; for those with parameters of their own, three rates of these as
well, at the best of the first three. Models are trained on the training text with a seed of their
own, and judged at the training length on the sweep's text, which serves nothing else. The record
is `data/learning_rates.csv`; `python -m lib sweep` makes it anew.
"""

from pathlib import Path

import pandas as pd

from lib import corpus, files, paths, runs
from lib.evaluation import perplexity
from lib.training import TrainingConfig

RECORD = paths.DATA / "learning_rates.csv"
SEED = 1000  # no study trains with it
TOKENS = 512_000  # half of the default profile's budget
TRAIN_LENGTH = 64
EVALUATION_TOKENS = 65_536
RATES = (4e-3, 8e-3, 1.6e-2)
ENCODING_RATES = (10.0, 3.0, 30.0)  # of encodings with parameters; the first serves the first sweep
ENCODINGS = ("sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "nope")
WITH_PARAMETERS = ("learned", "shaw", "t5")


def measure(decoder, training, settings) -> list[dict]:
    """One row: perplexity at the training length on the sweep's text, nonoverlapping."""
    tokens = corpus.load().stream("sweep")[: settings["tokens"]]
    return [{"perplexity": perplexity(decoder, tokens, training.train_length)}]


MEASURING = (measure,)


def sweep() -> pd.DataFrame:
    """Run the sweep and write the record; the row with `chosen` is the one that studies use."""
    own = {e: ENCODING_RATES[0] if e in WITH_PARAMETERS else 1.0 for e in ENCODINGS}
    first = [_job(e, rate, own[e]) for e in ENCODINGS for rate in RATES]
    rows = _rows(runs.run(first, "learning rates"))
    best = rows.loc[rows.groupby("encoding")["perplexity"].idxmin()].set_index("encoding")
    second = [
        _job(e, float(best.loc[e, "learning_rate"]), rate)
        for e in WITH_PARAMETERS
        for rate in ENCODING_RATES[1:]
    ]
    rows = pd.concat([rows, _rows(runs.run(second, "rates of the encodings' own"))])
    rows = rows.reset_index(drop=True)
    rows["chosen"] = False
    rows.loc[rows.groupby("encoding")["perplexity"].idxmin(), "chosen"] = True
    rows = rows.sort_values(["encoding", "learning_rate", "encoding_rate"])
    files.write_csv(rows, RECORD)
    return rows


def chosen(encoding: str, record: Path = RECORD) -> dict[str, float]:
    """`learning_rate` and `encoding_rate` of an encoding, from the record of a sweep.

    Raises ValueError when the record has no row for it.
    """
    rows = pd.read_csv(record)
    row = rows[(rows["encoding"] == encoding) & rows["chosen"]]
    if len(row) != 1:
        raise ValueError(
            f"data/{record.name} has no chosen rate for {encoding!r}: run `python -m lib sweep`."
        )
    return row[["learning_rate", "encoding_rate"]].iloc[0].to_dict()


def usual() -> dict[str, float]:
    """The rates for an encoding that has not been swept: `learning_rate` is what most encodings
    chose, `encoding_rate` what most of those with parameters did (the lower, where they tie)."""
    record = pd.read_csv(RECORD)
    record = record[record["chosen"]]
    own = record[record["encoding"].isin(WITH_PARAMETERS)]
    return {
        "learning_rate": float(record["learning_rate"].mode().min()),
        "encoding_rate": float(own["encoding_rate"].mode().min()),
    }


def _job(encoding: str, rate: float, own_rate: float) -> runs.Job:
    training = TrainingConfig(
        encoding=encoding,
        seed=SEED,
        learning_rate=rate,
        encoding_rate=own_rate,
        tokens=TOKENS,
        train_length=TRAIN_LENGTH,
    )
    return runs.Job(training, __name__, {"tokens": EVALUATION_TOKENS}, EVALUATION_TOKENS // 3)


def _rows(outcomes) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "encoding": o.job.training.encoding,
            "learning_rate": o.job.training.learning_rate,
            "encoding_rate": o.job.training.encoding_rate,
            "perplexity": round(row["perplexity"], 4),
            "tokens": o.job.training.tokens,
            "seed": o.job.training.seed,
        }
        for o in outcomes
        for row in o.rows
    )
