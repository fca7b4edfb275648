"""What the studies would cost with larger models: reckoned from what they take here.

Operations of a training step, forward and backward, for each token (Kaplan et al. 2020, arXiv
2001.08361, section 2.1; the second term halved, since attention is causal):

    F = 6 N + 6 n_layers D T

N counts every parameter once: the tied embedding is the output's matrix, and looking a row up is
free. A study's growth is that of its training, tokens · F over the same here; what it measures is
taken to grow as much. How fast a core is comes from the committed timings of the main figure. How
fast a GPU would be is an assumption, stated and never measured: PEAK and SHARE.
"""


import pandas as pd

from lib import parallel, paths, studies
from lib.studies import cost, extrapolation
from lib.training import TrainingConfig

SIZES = ("125m", "1b")  # files of data/large/
STUDIES = ("extrapolation", "probes", "extension", "longrope")  # those of one language model
# An H100 (SXM) of bfloat16 without sparsity, by its data sheet; and what of that a training gets.
PEAK, SHARE = 989e12, 0.4
VOCABULARY = {"messages": 1024, "wikitext_bpe": 16_384}
YEAR, HOUR = 365 * 86_400, 3600


def parameters(c: TrainingConfig) -> int:
    """N of a decoder, the encoding's own apart."""
    layer = 4 * c.d_model**2 + 3 * c.d_model * c.d_ff + 2 * c.d_model
    return c.n_layers * layer + c.d_model * (VOCABULARY[c.text] + 1)


def operations(c: TrainingConfig) -> int:
    """F, floating-point operations for each token trained on."""
    return 6 * parameters(c) + 6 * c.n_layers * c.d_model * c.train_length


def here() -> tuple[list[TrainingConfig], float]:
    """The trainings of the main figure, and how many operations a core made a second in those of
    the reference."""
    trainings = {job.name: job.training for job in extrapolation.jobs("default")}
    timings = studies.read("extrapolation_timings")
    done = sum(trainings[run].tokens * operations(trainings[run]) for run in timings["run"])
    return list(trainings.values()), done / timings["training_seconds"].sum()


def by_length() -> dict[int, float]:
    """Operations a second of one core in RoPE's trainings, by length, from the study of costs: how
    the rate itself changes as sequences grow."""
    found = cost.ratios(studies.read("cost"), "training", "seconds")
    found = found[found["encoding"] == "rope"].groupby("length")["value"].median()
    rates = {}
    for length, seconds in found.items():
        length = int(length)
        c = TrainingConfig("rope", 0, 1e-3, length, train_length=length, batch_tokens=length)
        rates[length] = cost.bench.TOKENS * operations(c) / seconds
    return rates


def table(peak: float = PEAK, share: float = SHARE) -> pd.DataFrame:
    """A row for each study and size: core-seconds here, operations there, and what they take on one
    such core and on one GPU (seconds)."""
    trainings, rate = here()
    typical = trainings[0].tokens * operations(trainings[0])
    rows = []
    for size in SIZES:
        config, _ = parallel.read(paths.DATA / "large" / f"{size}.toml")
        growth = config.tokens * operations(config) / typical
        for name in STUDIES:
            seconds = studies.provenance(name)["seconds"]
            work = seconds * rate * growth
            rows.append(
                {
                    "study": name,
                    "size": size,
                    "here": seconds,
                    "operations": work,
                    "core": work / rate,
                    "gpu": work / (peak * share),
                }
            )
    return pd.DataFrame(rows)


def markdown() -> str:
    """The part of README.md: what is measured, what is assumed, and the table."""
    trainings, rate = here()
    rates = ", ".join(f"{x / 1e9:.0f} at {n:,} tokens" for n, x in by_length().items())
    small = trainings[0]
    lines = [
        f"Measured here, on one core: {rate / 1e9:.0f} GFLOP/s in the main figure's trainings "
        f"({parameters(small) / 1e6:.1f}M parameters, {small.tokens / 1e6:.1f}M tokens, windows of "
        f"{small.train_length}); with longer windows {rates}.",
        "",
    ]
    for size in SIZES:
        c, _ = parallel.read(paths.DATA / "large" / f"{size}.toml")
        growth = c.tokens * operations(c) / (small.tokens * operations(small))
        lines.append(
            f"- [`data/large/{size}.toml`](data/large/{size}.toml): {parameters(c) / 1e6:,.0f}M "
            f"parameters, {c.tokens / 1e9:g}B tokens, windows of {c.train_length}: one training is "
            f"{c.tokens * operations(c):.1e} operations, {growth:,.0f} times that of here."
        )
    lines += [
        "",
        "| study | here, measured: core-hours | "
        + " | ".join(f"{s}: core-years | {s}: GPU-hours, reckoned" for s in SIZES)
        + " |",
        "|---|---|" + "---|---|" * len(SIZES),
    ]
    for name, rows in table().groupby("study", sort=False):
        cells = [f"{r.core / YEAR:,.0f} | {r.gpu / HOUR:,.0f}" for r in rows.itertuples()]
        lines.append(f"| {name} | {rows['here'].iloc[0] / HOUR:.2f} | {' | '.join(cells)} |")
    lines += [
        "",
        f"The GPU-hours are no measurement: they assume {100 * SHARE:.0f} % of "
        f"{PEAK / 1e12:,.0f} TFLOP/s (bfloat16, one H100). The core-years assume that a core does "
        "as many operations a second on a large model as on a small one.",
    ]
    return "\n".join(lines)
