"""The ledger: every claim of the survey, the test that decides it, and the verdict.

`data/claims.toml` holds the claims with their thresholds; the tests are in `proofs` (computed here
and now, on random inputs) and `measured` (from the results of the studies and from the papers' own
tables), with the modules beside it for costs, extension, tasks, pictures, a real model, the
survey's `tables` and the `selection` among all; `verdicts` says how numbers become words.
"""

import dataclasses

import pandas as pd

from lib import paths, studies
from lib.claims import entries
from lib.claims.entries import Entry
from lib.claims.verdicts import NOT_TESTABLE, UNDECIDED, Part, combine, overall

COLUMNS = (
    "id", "kind", "verdict", "verdict_here", "verdict_published", "measured", "expected", "detail"
)  # fmt: skip

MANY = 10  # parts; with as many the detail counts them


class Results(dict):
    """study → its results in a profile, read at first use; empty where it has not been run."""

    def __init__(self, profile: str, frames: dict[str, pd.DataFrame] | None = None):
        super().__init__(frames or {})
        self.profile = profile
        self.place = paths.results(profile)  # an unknown profile is an error at once

    def __missing__(self, study: str) -> pd.DataFrame:
        there = (self.place / f"{study}.csv").exists()
        self[study] = studies.read(study, self.profile) if there else pd.DataFrame()
        return self[study]


def ledger() -> pd.DataFrame:
    """The claims of data/claims.toml, one row each, in its order; the columns are Entry's fields.

    Raises ValueError when the file is not in order (see `entries.load`).
    """
    return pd.DataFrame([dataclasses.asdict(entry) for entry in entries.load()])


def decide(profile: str) -> pd.DataFrame:
    """The verdict on every claim from a profile's results, in the ledger's order; COLUMNS.

    verdict_here comes from this repository's proofs and runs, verdict_published from the papers,
    verdict from both (see `verdicts.overall`). What has not been run is undecided.
    """
    results = Results(profile)
    return pd.DataFrame([judged(entry, results) for entry in entries.load()], columns=COLUMNS)


def judged(entry: Entry, results: Results) -> dict[str, str]:
    """The row of one claim."""
    here, published = _parts(entry, results)
    word_here, word_published = (combine(p.verdict for p in side) for side in (here, published))
    if entry.verdict and not here:
        word_here = NOT_TESTABLE  # a fact about a model or a paper
    measured = {"here": here, "published": published}
    return {
        "id": entry.id,
        "kind": ", ".join(entry.kind),
        "verdict": overall(word_here, word_published),
        "verdict_here": word_here,
        "verdict_published": word_published,
        "measured": " | ".join(f"{k}: {_numbers(side)}" for k, side in measured.items() if side),
        "expected": entry.expected.format(**entry.tolerance),
        "detail": _detail(entry, here, published),
    }


def line(id: str, profile: str) -> None:
    """Print the verdict on one claim and what it rests on, for the end of a notebook.

    Raises ValueError for an id that the ledger lacks, and for an unknown profile.
    """
    entry = next((entry for entry in entries.load() if entry.id == id), None)
    if entry is None:
        raise ValueError(f"The ledger has no claim {id!r}: see data/claims.toml.")
    row = judged(entry, Results(profile))
    words = row["verdict"]
    if "published" in entry.kind:
        words += f" (here {row['verdict_here']}, published {row['verdict_published']})"
    print(f"{id} {words}\n  expected: {row['expected']}")
    for found in filter(None, row["measured"].split(" | ")):
        print(f"  {found}")


def _parts(entry: Entry, results: Results) -> tuple[list[Part], list[Part]]:
    """(the parts decided here, those decided by papers)."""
    here, published = [], []
    if entry.measures:
        here, published = entry.function(results, **entry.tolerance)
    elif entry.test:
        here = entry.function(**entry.tolerance)
    if entry.verdict:
        published = [Part("", entry.verdict, entry.found)]
    return here, published


def _numbers(parts: list[Part]) -> str:
    return "; ".join(f"{p.what}: {p.measured}" if p.what else p.measured for p in parts)


def _detail(entry: Entry, here: list[Part], published: list[Part]) -> str:
    """The regime, which parts hold and which do not, and what is missing, in short sentences."""
    sentences = [f"about {entry.regime}"]
    if entry.needs:
        why = "not testable here, it would take" if entry.verdict else "not measured yet:"
        sentences.append(f"{why} {entry.needs}")
    for where, parts in (("here", here), ("published", published)):
        words = list(dict.fromkeys(p.verdict for p in parts))
        if words == [UNDECIDED]:
            sentences.append(f"{where} no part is decided: not run, too few seeds, or too close")
        elif len(words) > 1:
            for word in words:
                which = [p.what for p in parts if p.verdict == word]
                of = f" ({len(which)} of {len(parts)})" if len(parts) >= MANY else ""
                sentences.append(f"{where} {word}{of}: {'; '.join(which)}")
    sentences += [entry.note] if entry.note else []
    return ". ".join(s.rstrip(".") for s in sentences) + "."
