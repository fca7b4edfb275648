"""The studies: each module asks one question, and says what it trains, measures and draws.

A study has `PROFILES` and `COST` (core-seconds a profile, measured), `jobs(profile)`,
`measure(decoder, training, settings)` with the code it needs in MEASURING, `collect(outcomes)`,
and FIGURES and TABLES made from its results: name → (frame, drawing) and name → frame. A study that
measures time says ALONE = True; one that a profile leaves out has no jobs there.
"""

import importlib
import json

import pandas as pd

from lib import files, paths

# A study may use models of those before it.
STUDIES = (
    "extrapolation",
    "examples",
    "probes",
    "minilm",
    "real_model",
    "extension",
    "longrope",
    "conformance",
    "generalization",
    "vision",
    "cost",
)
# The studies of the profile gpu, which has no others.
GPU = ("wikitext",)


def study(name: str):
    """The module of a study."""
    return importlib.import_module(f"lib.studies.{name}")


def of(profile: str) -> list[str]:
    """The studies that a profile runs; one that costs nothing there has no jobs, and is left out.

    Raises ValueError for a profile that does not exist.
    """
    paths.results(profile)
    if profile == paths.GPU:
        return list(GPU)
    profile = {"reference": "default", "reference of full": "full"}.get(profile, profile)
    return [name for name in STUDIES if study(name).COST[profile]]


def alone(name: str) -> bool:
    """Whether a study measures time: its jobs then run one by one, with nothing beside them."""
    return getattr(study(name), "ALONE", False)


def read(name: str, profile: str = "reference") -> pd.DataFrame:
    """The results of a study, one row a measurement; or another table of a profile, by its name.

    Raises ValueError when the profile has not been run here, or its results are damaged.
    """
    path = paths.results(profile) / f"{name}.csv"
    if not path.exists():
        command = {"default": "reproduce"}.get(profile, profile)
        raise ValueError(f"The profile {profile!r} has no {path.name} yet: run `make {command}`.")
    return pd.read_csv(files.verified(path))


def provenance(name: str, profile: str = "reference") -> dict:
    """Where the results of a study come from, as `figures.provenance` says it.

    Raises OSError when the profile has not been run here, ValueError when the file is damaged.
    """
    path = files.verified(paths.results(profile) / f"{name}_provenance.json")
    return json.loads(path.read_text(encoding="utf-8"))


def frames(profile: str) -> dict[str, pd.DataFrame]:
    """The tidy frame behind every figure, by name; those of timings are one machine's, and left
    out."""
    made = {}
    for name in of(profile):
        if alone(name):
            continue
        results = read(name, profile)
        made |= {figure: frame(results) for figure, (frame, _) in study(name).FIGURES.items()}
    return made
