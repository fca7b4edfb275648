"""An encoding of your own beside the survey's, at equal budget: `python -m lib compare FILE`.

The file registers one class (see `lib.own`). It gets what the others got: the conformance suite,
the main figure's trainings (the same windows, seeds and tokens), a task with one right answer, and
its costs, measured here in turns with the others'. The numbers of the others are the committed
reference; they are read and not made again. Runs are cached: after an interruption, or with another
`--out`, what is finished is used again, until the file changes.

What is not equal: the others' learning rates come from a sweep, and this one has the rates that
most of them chose (`learning_rates.usual`); and the reference may come from another machine.
"""

import logging
import math
import platform
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

from lib import bench, conformance, corpus, figures, files, own, paths, runs, studies
from lib.encodings import ENCODINGS
from lib.studies import cost, extrapolation, generalization

TASK = "copy"
TIMED = ("training", "inference", "decoding")
L = extrapolation.L


def run(path: str | Path, out: str | Path | None = None) -> Path:
    """Compare the encoding of a file; the report's path comes back.

    Args:
        out: the folder of the report; build/compare/<name> by default.

    Raises:
        ValueError: a file that `own.load` refuses, a name that a figure uses for something else, or
            an encoding that fails at a size that is compared. A property that fails does not stop
            the comparison: it is in the report.
    """
    began = time.monotonic()
    cls = own.load(path)
    name = cls.name
    if name in figures.LOOKS and not _of_examples(cls):
        raise ValueError(f"The figures call something else {name!r}: choose another name.")
    place = Path(out).expanduser() if out else paths.BUILD / "compare" / name
    place.mkdir(parents=True, exist_ok=True)
    trained, tasks, timed = jobs(name, path)
    try_sizes(name, trained[0].training, tasks[0].settings)
    print(f"{name}: conformance", flush=True)
    # The compiler warns of every graph break; the property counts them instead.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    conforms = conformance.check(conformance.registered(name))
    outcomes = runs.run([*trained, *tasks], f"{name}: trainings")
    of_cost = runs.run(timed, f"{name}: costs", alone=True)
    parts = {
        "conformance": conformance_frame(conforms),
        "perplexity": with_reference(extrapolation, outcomes[: len(trained)]),
        "task": with_reference(generalization, outcomes[len(trained) :]),
        "cost": cost.collect(of_cost),
    }
    for part, frame in parts.items():
        files.write_csv(frame, place / f"{part}.csv")
    for part, study in (("perplexity", extrapolation), ("task", generalization)):
        figure = study.draw_curves(study.curves(parts[part]))
        with files.atomic(place / f"{part}.png") as temporary:
            temporary.write_bytes(figures.png(figure, figures.PUBLISHED_DPI))
        plt.close(figure)
    files.write_text(report(name, Path(path), trained[0].training, parts), place / "report.md")
    minutes = (time.monotonic() - began) / 60
    print(f"{name}: {place / 'report.md'} ({minutes:.1f} min)")
    return place / "report.md"


def _of_examples(cls) -> bool:
    return cls.__module__.startswith("lib.examples.")


# ---- what is run ---------------------------------------------------------------------------------


def jobs(name: str, path: str | Path) -> tuple[list, list, list]:
    """The jobs of the main figure, of the task and of the costs: the default profile's, with this
    encoding in the place of another."""
    of_tasks = [
        runs.Job(None, j.measure, {**j.settings, "encoding": name}, j.measure_tokens)
        for j in generalization.jobs("default")
        if j.settings["task"] == TASK and j.settings["encoding"] == "rope"
    ]
    rounds = cost.PROFILES["default"]["rounds"]
    of_costs = [
        runs.Job(None, cost.__name__, {"what": what, "length": n, "rounds": rounds, "names": names})
        for names in [[*bench.OF_THE_PAPER, name]]
        for what, n in (("encodings", bench.PAPER[0]), ("decoding", bench.CONTEXTS[1]))
    ]
    return (
        extrapolation.jobs_of_a_file(name, path),
        *([own.job(job, path) for job in some] for some in (of_tasks, of_costs)),
    )


def try_sizes(name: str, training, task_settings: dict) -> None:
    """Refuse in seconds what would fail after minutes: the encoding is built for each size, and
    reads the longest sequence, untrained."""
    at = f"d_model = {training.d_model}, {training.n_heads} heads and max_length = {L}"
    longest = extrapolation.BLOCK
    try:
        decoder = training.decoder(corpus.load().vocabulary_size).eval()
        with torch.inference_mode():
            finite = decoder(torch.ones(1, longest, dtype=torch.long)).isfinite().all()
        at = "the sizes of the task"
        generalization.Learning(task_settings)
    except KeyboardInterrupt:
        raise
    except Exception as error:  # the encoding is somebody's own: anything may come
        why = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{name} fails at {at}, reading {longest} tokens: {type(error).__name__}: {why}."
        ) from None
    if not finite:
        raise ValueError(f"{name} gives numbers that are not finite at {at}, within {longest}.")


# ---- results -------------------------------------------------------------------------------------


def with_reference(study, outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """The reference rows of a study, and those of these outcomes; the latter alone where this
    checkout has no reference of it."""
    mine = study.collect(outcomes)
    study_name = study.__name__.rpartition(".")[2]
    if not (paths.REFERENCE / f"{study_name}.csv").exists():
        return mine
    others = studies.read(study_name)
    if "task" in others:
        others = others[others["task"].isin(mine["task"])]
    return pd.concat([others, mine], ignore_index=True)


def conformance_frame(results: list[conformance.Result]) -> pd.DataFrame:
    """One row a property."""
    columns = ["property", "family", "verdict", "error", "tolerance", "smallest", "detail"]
    return pd.DataFrame([{c: getattr(r, c) for c in columns} for r in results], columns=columns)


def gaps(results: pd.DataFrame, name: str, length: int) -> pd.DataFrame:
    """ln perplexity of `name` minus that of each other encoding at a length (nonoverlapping,
    trained at L), paired by seed, with its interval, and in a word."""
    rows = []
    for other in dict.fromkeys(results["encoding"]):
        if other == name:
            continue
        pair = [(e, L, "nonoverlapping", length) for e in (name, other)]
        gap = extrapolation.paired(results, *pair)
        if gap.n:
            rows.append({"encoding": other, **gap._asdict(), "word": word(gap)})
    return pd.DataFrame(rows, columns=["encoding", *figures.Interval._fields, "word"])


def word(gap: figures.Interval) -> str:
    """Whether an interval lies below 0, above it, or says nothing."""
    if gap.high < 0:
        return "lower"
    return "higher" if gap.low > 0 else "undecided"


# ---- the report ----------------------------------------------------------------------------------


def report(name: str, path: Path, training, parts: dict[str, pd.DataFrame]) -> str:
    """The report as Markdown; `parts` as in `run`."""
    summary = (ENCODINGS[name].__doc__ or "").strip().partition("\n")[0]
    seeds = sorted(parts["perplexity"].query("encoding == @name")["seed"].unique())
    lines = [
        f"# `{name}` beside the survey's encodings",
        "",
        f"{summary} (`{path.name}`, source hash `{training.source}`)" if summary else path.name,
        "",
        f"Trained at L = {L} on {training.tokens:,} tokens, seeds {', '.join(map(str, seeds))}, "
        f"learning rate {training.learning_rate:g} ({training.encoding_rate:g} times that for "
        "parameters of the encoding), which is what most of the survey's encodings chose in a "
        "sweep that this one has not had. The others' numbers are the committed reference; "
        "costs were measured on this machine, all of them in turns "
        f"({platform.machine()}, torch {torch.__version__}, one thread).",
        *_conformance(parts["conformance"]),
        *_perplexity(name, parts["perplexity"]),
        *_task(name, parts["task"]),
        *_cost(name, parts["cost"]),
    ]
    return "\n".join(lines) + "\n"


def _conformance(frame: pd.DataFrame) -> list[str]:
    counts = frame["verdict"].value_counts()
    said = [f"{counts.get(v, 0)} {w}" for v, w in _WORDS.items()]
    lines = ["", "## Conformance", "", f"Of {len(frame)} properties: {', '.join(said)}.", ""]
    for row in frame[frame["verdict"] == "failed"].itertuples():
        case = ", ".join(f"{k}={v!r}" for k, v in (row.smallest or {}).items())
        detail = f" ({row.detail})" if row.detail else ""
        lines.append(
            f"- **{row.property}** fails: off by {row.error:.2g} where {row.tolerance:.2g} is "
            f"allowed, at {case or 'every case'}{detail}"
        )
    for row in frame[frame["verdict"] == "not_applicable"].itertuples():
        lines.append(f"- {row.property} does not apply: {row.detail}")
    return lines


_WORDS = {"passed": "hold", "failed": "fail", "not_applicable": "do not apply"}


def _perplexity(name: str, results: pd.DataFrame) -> list[str]:
    shown = (L, 2 * L, extrapolation.BLOCK)
    rows = results[
        (results["train_length"] == L)
        & (results["evaluation"] == "nonoverlapping")
        & results["length"].isin(shown)
    ]
    means = figures.summarise(rows, ["encoding", "length"], "perplexity")
    means = means.set_index(["encoding", "length"])
    compared = {n: gaps(results, name, n).set_index("encoding")["word"] for n in shown}
    lines = [
        "",
        "## Perplexity by length",
        "",
        "![perplexity by evaluation length](perplexity.png)",
        "",
        f"Nonoverlapping windows, mean ± half of the 95 % interval over seeds. In brackets where "
        f"`{name}` lies, by the interval of the differences in ln perplexity, paired by seed.",
        "",
        _row("encoding", *(f"{n} tokens" for n in shown)),
        _row(*["---"] * (1 + len(shown))),
    ]
    for encoding in dict.fromkeys([name, *rows["encoding"]]):
        cells = []
        for n in shown:
            if (encoding, n) not in means.index:
                cells.append("–")
                continue
            row = means.loc[(encoding, n)]
            half = row["high"] - row["value"]
            cell = f"{row['value']:.1f}" + ("" if math.isnan(half) else f" ± {half:.1f}")
            cells.append(cell + (f" ({compared[n][encoding]})" if encoding in compared[n] else ""))
        lines.append(_row(f"`{encoding}`", *cells))
    return lines


def _task(name: str, results: pd.DataFrame) -> list[str]:
    scores = generalization.scores(results)
    able = generalization.solved(results)
    longest = generalization.L
    lines = [
        "",
        "## A task with one right answer",
        "",
        "![exact match by length](task.png)",
        "",
        f"Exact match, mean over lengths and seeds: up to the trained length ({longest} symbols) "
        f"and past it, to {max(generalization.LENGTHS)}. Where the trained lengths are not solved "
        f"({generalization.SOLVED:.0%}), the longer ones say nothing.",
        "",
        _row("task", "encoding", "trained lengths", "longer", "solved"),
        _row(*["---"] * 5),
    ]
    for (task, encoding), rows in scores.groupby(["task", "encoding"], sort=False):
        mine = "**" if encoding == name else ""
        lines.append(
            _row(
                task,
                f"{mine}`{encoding}`{mine}",
                *(f"{rows[part].mean():.2f}" for part in ("trained", "longer")),
                "yes" if able.loc[task, encoding] else "no",
            )
        )
    return lines


def _cost(name: str, results: pd.DataFrame) -> list[str]:
    lines = [
        "",
        "## Cost",
        "",
        "Over that with sinusoids; of two rounds the shorter time counts, and this is the median "
        f"over {results['seed'].nunique()} such pairs, with quartiles. "
        "A ratio below about 1.1 is noise.",
        "",
        _row("what", "tokens", "quantity", "encoding", "ratio"),
        _row(*["---"] * 5),
    ]
    results = results[results["part"].isin(TIMED) & (results["encoding"] != "sinusoidal")]
    key = ["part", "length", "quantity", "encoding"]
    for group, rows in results.groupby(key, sort=False):
        part, length, quantity, encoding = group
        low, mid, high = rows["ratio"].quantile([0.25, 0.5, 0.75])
        mine = "**" if encoding == name else ""
        quantity = {"seconds": "time", "bytes": "memory"}[quantity]
        ratio = f"{mid:.2f} ({low:.2f} to {high:.2f})"
        lines.append(_row(part, f"{length:g}", quantity, f"{mine}`{encoding}`{mine}", ratio))
    return lines


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(str, cells))} |"
