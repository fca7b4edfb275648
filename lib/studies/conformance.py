"""The conformance suite asked of our encodings and of other people's.

Question: which properties do the encodings of public libraries have, how far off are they where
they fail, and what is the smallest input that shows it? Nothing is trained.

A failure says that a property does not hold under the conditions that the property names (half
precision, a cast module, a compiled one …), and nothing about a library's quality elsewhere.
"""

import importlib.metadata
import logging

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib import adapters, conformance, figures, runs
from lib.encodings import ENCODINGS

OURS = "this repository"
# Core-seconds, measured on two cores.
COST = {"quick": 40, "default": 100, "full": 100}
QUICK = "rotary-embedding-torch"  # the library of the quick profile
QUICK_ENCODINGS = ("rope", "alibi")

WORDS = {"passed": "passes", "failed": "fails", "not_applicable": "not applicable"}


def jobs(profile: str) -> list[runs.Job]:
    """One for each subject; two encodings and one library in the quick profile."""
    chosen = [
        (library, name)
        for library, name in subjects()
        if profile != "quick" or library == QUICK or (library == OURS and name in QUICK_ENCODINGS)
    ]
    return [
        runs.Job(None, __name__, {"library": library, "subject": name}, measure_tokens=1)
        for library, name in chosen
    ]


def subjects() -> dict:
    """(library, name) → the subject: ours, then those of the libraries that are installed."""
    ours = {(OURS, name): conformance.registered(name) for name in ENCODINGS}
    return ours | {(subject.library, subject.name): subject for subject in adapters.subjects()}


def measure(decoder, training, settings: dict) -> list[dict]:
    """The rows of one subject, one a property: how far off it was, as measured.

    library, version, subject, encoding (the name of ours that it corresponds to), seed (always 0:
    the cases are the same in every run), property, family, verdict, error, tolerance (of the case
    that was worst in units of it, among those met; the search stops soon after the first failure),
    smallest (the arguments of the smallest failing case) and detail.
    """
    # The compiler warns of every graph break; the property counts them instead.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    subject = subjects()[settings["library"], settings["subject"]]
    return [
        {
            "library": settings["library"],
            "version": getattr(subject, "version", None) or importlib.metadata.version("torch"),
            "subject": subject.name,
            "encoding": getattr(subject, "encoding", subject.name),
            "seed": 0,
            "property": result.property,
            "family": result.family,
            "verdict": result.verdict,
            "error": f"{result.error:.3g}",  # text, since JSON has no infinity
            "tolerance": f"{result.tolerance:.3g}",
            "smallest": _written(result.smallest),
            "detail": result.detail,
        }
        for result in (_asked(subject, p) for p in conformance.PROPERTIES)
    ]


MEASURING = (__name__, "lib.adapters", "lib.conformance.*")


COLUMNS = [
    "library", "version", "subject", "encoding", "seed", "property", "family", "verdict", "error",
    "tolerance", "smallest", "detail",
]  # fmt: skip


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`conformance.csv`: the rows of `measure`, errors and tolerances as numbers."""
    frame = pd.DataFrame([row for o in outcomes for row in o.rows], columns=COLUMNS)
    return frame.astype({"error": float, "tolerance": float})


def _asked(subject, property) -> conformance.Result:
    reason = getattr(subject, "excused", {}).get(property.name)
    if reason is None:
        (result,) = conformance.check(subject, [property])
        return result
    about = subject.name, property.name, property.family
    return conformance.Result(*about, "not_applicable", detail=reason)


def _written(case: dict | None) -> str:
    """The arguments of a case as a call would have them."""
    return ", ".join(f"{name}={value!r}" for name, value in (case or {}).items())


# ---- the figure ----------------------------------------------------------------------------------


def cells(results: pd.DataFrame) -> pd.DataFrame:
    """Tidy: a panel a subject, x the property; value is log₁₀ of the error over its tolerance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.log10(results["error"].clip(lower=0) / results["tolerance"])
    return pd.DataFrame(
        {
            "panel": results["library"].replace(OURS, "ours") + ": " + results["subject"],
            "encoding": results["encoding"],
            "x": results["property"],
            "value": excess,
            "sd": np.nan,
            "low": np.nan,
            "high": np.nan,
            "n": 1,
            "verdict": results["verdict"],
            "error": results["error"],
            "tolerance": results["tolerance"],
            "family": results["family"],
        }
    )


# Apart in lightness too: a colour-blind reader, and one who prints, sees the same.
SHADES = {"passed": "#cfe3f5", "failed": "#b23a08", "not_applicable": "#f7f7f7"}


def draw_cells(frame: pd.DataFrame):
    """Rows are encodings, columns properties by family; the text is the error, as a power of 10.

    A cell without text was off by nothing.
    """
    rows, columns = list(dict.fromkeys(frame["panel"])), _by_family(frame)
    size = 0.3 * len(columns) + 3.0, 0.25 * len(rows) + 2.7
    figure, ax = plt.subplots(figsize=size, FigureClass=figures.HouseFigure)
    for panel, x, verdict, error in frame[["panel", "x", "verdict", "error"]].itertuples(False):
        i, j = rows.index(panel), columns.index(x)
        ax.add_patch(plt.Rectangle((j, i), 1, 1, facecolor=SHADES[verdict], edgecolor="white"))
        if verdict != "not_applicable" and error > 0:
            ink = "white" if verdict == "failed" else "#223344"
            words = _power(error)
            ax.text(j + 0.5, i + 0.52, words, ha="center", va="center", fontsize=7, color=ink)
    family = frame.drop_duplicates("x").set_index("x")["family"]
    names = [f"{family[c]}  {c.replace('_', ' ')}" for c in columns]
    ax.set_xticks(np.arange(len(columns)) + 0.5, names, rotation=90, fontsize=8)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=8.5)
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for j in range(1, len(columns)):
        if family[columns[j]] != family[columns[j - 1]]:
            ax.axvline(j, color="#666666", lw=0.8)
    keys = [plt.Rectangle((0, 0), 1, 1, facecolor=SHADES[v], edgecolor="#999999") for v in WORDS]
    figure.legend(keys, list(WORDS.values()), loc="outside upper center", ncols=3, fontsize=8.5)
    return figure


def _by_family(frame) -> list[str]:
    return list(frame.drop_duplicates("x").sort_values("family", kind="stable")["x"])


def _power(error: float) -> str:
    """An error in a cell: ∞ (an exception, or a promise with no measure), or its power of 10."""
    if not np.isfinite(error):
        return "∞"
    return f"e{np.floor(np.log10(error)):+.0f}" if error < 1 else f"{error:.0f}"


FIGURES = {"conformance": (cells, draw_cells)}
TABLES = {}
