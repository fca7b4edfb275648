"""Perplexity against evaluation length, one line an encoding: the survey's main figure.

Question: a model is trained on windows of L tokens. What happens to its perplexity when it reads
more than L at once, and how much of that depends on how perplexity is measured?

Eight rows from seven encodings (a learned table is tried past its end twice: grown by untrained
rows, and interpolated). Sinusoids, RoPE and ALiBi are trained at 2L as well: "about 50 tokens more"
and "about 1.1 times" tell apart only when L changes; ALiBi at L is held against sinusoids at 2L.

Every length scores the same targets, so the curves are paired; differences between encodings are
paired by seed, since models of one seed share their other weights and their batches.
"""

import dataclasses
import functools

import numpy as np
import pandas as pd
import torch

from lib import corpus, evaluation, figures, own, paths, runs
from lib.studies import learning_rates
from lib.training import TrainingConfig
from lib.transformer import Decoder

L = 64
LENGTHS = {
    L: (32, 64, 70, 80, 96, 114, 128, 192, 256, 512, 1024),
    2 * L: (64, 128, 141, 160, 178, 192, 256, 384, 512, 1024),
}
ENCODINGS = ("sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "nope")
ROWS = ("sinusoidal", "learned", "learned_interpolated", "shaw", "t5", "rope", "alibi", "nope")
AT_2L = ("sinusoidal", "rope", "alibi")

# What a profile trains and measures; sizes not named are the defaults of TrainingConfig.
PROFILES = {
    "quick": {
        "encodings": ("sinusoidal", "t5", "rope", "alibi"),
        "at_2L": ("sinusoidal",),
        "seeds": (0,),
        "training": {"tokens": 204_800},
        "measuring": {"tokens": 8_192, "sliding_tokens": 512},
    },
    "default": {
        "encodings": ENCODINGS,
        "at_2L": AT_2L,
        "seeds": (0, 1, 2),
        "training": {"tokens": 1_024_000},
        "measuring": {"tokens": 32_768, "sliding_tokens": 4_096},
    },
    "full": {
        "encodings": ENCODINGS,
        "at_2L": AT_2L,
        "seeds": (0, 1, 2, 3, 4),
        "training": {"tokens": 4_096_000, "d_model": 128, "n_heads": 4, "n_layers": 4, "d_ff": 344},
        "measuring": {"tokens": 65_536, "sliding_tokens": 8_192},
    },
}
BLOCK = max(LENGTHS[L])  # targets are scored in blocks of the longest length
# A sliding window moves on by an eighth of its length, and by 16 tokens at least: a target is
# predicted from more than length − stride tokens, and from length at most.
STRIDE = {length: min(length, max(16, length // 8)) for n in LENGTHS.values() for length in n}
SLIDING_BLOCK = 128
BIN = 32  # positions averaged in the loss by position

# Core-seconds, measured on two cores (training and measuring, one thread a run).
COST = {"quick": 100, "default": 2400, "full": 40_000}


def jobs(profile: str) -> list[runs.Job]:
    """The runs of a profile: every encoding and seed at L, some at 2L."""
    p = PROFILES[profile]
    pairs = [(e, L) for e in p["encodings"]] + [(e, 2 * L) for e in p["at_2L"]]
    return [
        _job(p, encoding, L_train, seed, learning_rates.chosen(encoding))
        for seed in p["seeds"]
        for encoding, L_train in pairs
    ]


def jobs_of_a_file(name: str, path, profile: str = "default") -> list[runs.Job]:
    """The runs at L of the encoding that a file registers as `name`, at a profile's budget."""
    p = PROFILES[profile]
    made = [_job(p, name, L, seed, learning_rates.usual()) for seed in p["seeds"]]
    return [own.job(job, path) for job in made]


def _job(p: dict, encoding: str, train_length: int, seed: int, rates: dict) -> runs.Job:
    training = TrainingConfig(
        encoding=encoding, seed=seed, train_length=train_length, **rates, **p["training"]
    )
    settings = {
        **p["measuring"],
        "lengths": list(LENGTHS[train_length]),
        "block": BLOCK,
        "strides": [STRIDE[n] for n in LENGTHS[train_length]],
        "sliding_block": SLIDING_BLOCK,
        "bin": BIN,
    }
    read = p["measuring"]["tokens"] * len(settings["lengths"])
    read += sum(p["measuring"]["sliding_tokens"] * n // STRIDE[n] for n in settings["lengths"])
    return runs.Job(training, __name__, settings, measure_tokens=read // 3)


# ---- measuring (in the worker that trained the model) --------------------------------------------


def measure(decoder, training: TrainingConfig, settings: dict) -> list[dict]:
    """One row for each row of the figure, evaluation and length; and the loss by position."""
    block, bin = settings["block"], settings["bin"]
    documents = corpus.load().documents("test")
    scored = evaluation.blocks(documents, block, settings["tokens"])
    sliding = evaluation.blocks(
        documents, settings["sliding_block"], settings["sliding_tokens"], context=block
    )
    rows = []

    def add(name, kind, length, nll, tokens):
        row = {"encoding": name, "evaluation": kind, "length": length}
        rows.append({**row, "nll": float(nll), "tokens": int(tokens)})

    for name, model in variants(decoder, training, block):
        for length, stride in zip(settings["lengths"], settings["strides"], strict=True):
            for kind, step, segments in (
                ("nonoverlapping", None, scored),
                ("sliding", stride, sliding),
            ):
                result = evaluation.evaluate(model, documents, length, step, segments)
                add(name, kind, length, result.nll_sum / result.tokens, result.tokens)
        loss, counts = evaluation.loss_by_position(model, documents, block, scored)
        for start in range(0, block, bin):
            part = slice(start, start + bin)
            nll = np.average(loss[part], weights=counts[part])
            add(name, "position", start + bin // 2, nll, counts[part].sum())
    return rows


def variants(decoder, training: TrainingConfig, longest: int):
    """(name, model) for each row that one trained model gives: two for a learned table."""
    if training.encoding != "learned":
        yield training.encoding, decoder
        return
    table = decoder.encodings[0]
    decoder.encodings[0] = table.grow(longest, torch.Generator().manual_seed(training.seed))
    yield "learned", decoder
    decoder.encodings[0] = table
    interpolated = Decoder(dataclasses.replace(decoder.config, options={"beyond": "interpolate"}))
    interpolated.load_state_dict(decoder.state_dict())
    yield "learned_interpolated", interpolated


MEASURING = (measure, variants)  # the code that the rows depend on, besides the model's own


# ---- results -------------------------------------------------------------------------------------


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`extrapolation.csv`: one row a measurement; nll in nats a token, perplexity = exp(nll)."""
    columns = ["encoding", "seed", "train_length", "evaluation", "length", "nll", "tokens"]
    frame = runs.table(outcomes, columns)
    frame["perplexity"] = np.exp(frame["nll"])
    return frame


def curves(results: pd.DataFrame) -> pd.DataFrame:
    """The main figure's frame: perplexity against evaluation length, models trained at L."""
    rows = results[(results["train_length"] == L) & (results["evaluation"] != "position")]
    frame = figures.summarise(rows, ["evaluation", "encoding", "length"], "perplexity")
    frame = frame.rename(columns={"evaluation": "panel", "length": "x"})
    return frame[figures.COLUMNS]


def by_position(results: pd.DataFrame) -> pd.DataFrame:
    """The loss behind each position of a window of 16 L, in bins, models trained at L."""
    rows = results[(results["train_length"] == L) & (results["evaluation"] == "position")]
    frame = figures.summarise(rows, ["evaluation", "encoding", "length"], "nll")
    return frame.rename(columns={"evaluation": "panel", "length": "x"})[figures.COLUMNS]


def relative(results: pd.DataFrame) -> pd.DataFrame:
    """Perplexity over that at the training length, against length over it: one row a seed.

    Columns encoding, seed, train_length, evaluation, length, ratio (of lengths), value (of
    perplexities), seeds paired with themselves.
    """
    rows = results[results["evaluation"] != "position"]
    key = ["encoding", "seed", "train_length", "evaluation"]
    at_L = rows[rows["length"] == rows["train_length"]].set_index(key)["nll"]
    frame = rows.join(at_L.rename("nll_at_L"), on=key)
    frame["ratio"] = frame["length"] / frame["train_length"]
    frame["value"] = np.exp(frame["nll"] - frame["nll_at_L"])
    return frame.drop(columns=["nll", "nll_at_L", "perplexity", "tokens"])


@functools.cache
def published() -> pd.DataFrame:
    """Table 2 and 3 of Press et al. 2022 (WikiText-103, 247M parameters, nonoverlapping), with the
    columns of `relative`: encoding, train_length, length, ratio, value."""
    table = pd.read_csv(paths.PUBLISHED / "alibi_extrapolation.csv", comment="#")
    table = table.dropna(subset="perplexity").rename(
        columns={"method": "encoding", "eval_length": "length"}
    )
    table["encoding"] = table["encoding"].replace({"rotary": "rope"})
    key = ["encoding", "train_length"]
    at_L = table[table["length"] == table["train_length"]].set_index(key)["perplexity"]
    table = table.join(at_L.rename("at_L"), on=key)
    table["ratio"] = table["length"] / table["train_length"]
    table["value"] = table["perplexity"] / table["at_L"]
    return table[["encoding", "train_length", "length", "ratio", "perplexity", "value"]]


HERE, PAPER = "here", "Press et al. 2022"


def beside_the_paper(results: pd.DataFrame) -> pd.DataFrame:
    """Relative curves, nonoverlapping: ours at L and the paper's at 512."""
    rows = relative(results)
    rows = rows[(rows["train_length"] == L) & (rows["evaluation"] == "nonoverlapping")]
    rows = rows[rows["ratio"] >= 1]
    ours = figures.summarise(rows, ["encoding", "ratio"], "value").assign(panel=HERE)
    theirs = published().query("train_length == 512").assign(panel=PAPER, n=1)
    theirs = theirs.reindex(columns=["panel", "encoding", "ratio", "value", "n"])
    frame = pd.concat([ours, theirs[theirs["ratio"] <= 16.5]]).rename(columns={"ratio": "x"})
    return frame.reindex(columns=figures.COLUMNS).reset_index(drop=True)


def two_lengths(results: pd.DataFrame) -> pd.DataFrame:
    """Relative curves of the encodings trained at L and at 2L; a panel an encoding and length."""
    rows = relative(results)
    both = set(rows.loc[rows["train_length"] == 2 * L, "encoding"])
    rows = rows[rows["encoding"].isin(both) & (rows["evaluation"] == "nonoverlapping")]
    rows = rows[rows["length"] >= rows["train_length"]]
    frame = figures.summarise(rows, ["encoding", "train_length", "length"], "value")
    frame["panel"] = "trained at " + frame["train_length"].astype(str)
    return frame.rename(columns={"length": "x"})[[*figures.COLUMNS, "train_length"]]


def longest_within(lengths, values, threshold: float) -> tuple[float, bool]:
    """The longest length at which a relative perplexity has stayed ≤ 1 + threshold since L.

    Between two lengths the crossing is read off a straight line in the logarithms. The second value
    is True when it is not crossed up to the last length measured.
    """
    x, y = np.log(np.asarray(lengths, float)), np.log(np.asarray(values, float))
    limit = np.log1p(threshold)
    over = np.flatnonzero(y > limit)
    if len(over) == 0:
        return float(np.exp(x[-1])), True
    i = over[0]
    if i == 0:
        return float(np.exp(x[0])), False
    part = (limit - y[i - 1]) / (y[i] - y[i - 1])
    return float(np.exp(x[i - 1] + part * (x[i] - x[i - 1]))), False


def tolerance(results: pd.DataFrame) -> pd.DataFrame:
    """The longest length within 2 % and 10 % of the perplexity at the training length.

    One row for each source (here, paper), encoding, training length and threshold: `ratio` to the
    training length with its interval over seeds, `tokens` past it, and `censored` when a curve
    never left the band up to the longest length measured. Nonoverlapping evaluation.
    """
    ours = relative(results)
    ours = ours[ours["evaluation"] == "nonoverlapping"].assign(source=HERE)
    theirs = published().assign(source=PAPER, seed=0)
    rows = []
    everything = pd.concat([ours, theirs])
    everything = everything[everything["length"] >= everything["train_length"]]
    for key, curve in everything.groupby(["source", "encoding", "train_length"], sort=False):
        for threshold in (0.02, 0.10):
            found = [
                longest_within(c["length"], c["value"], threshold)
                for _, c in curve.sort_values("length").groupby("seed")
            ]
            reach = figures.interval([length / key[2] for length, _ in found])
            rows.append(
                {
                    **dict(zip(("source", "encoding", "train_length"), key, strict=True)),
                    "within": threshold,
                    "ratio": reach.value,
                    "low": reach.low,
                    "high": reach.high,
                    "n": reach.n,
                    "tokens_past": reach.value * key[2] - key[2],
                    "censored": any(censored for _, censored in found),
                }
            )
    return pd.DataFrame(rows)


UNKNOWN = figures.Interval(np.nan, np.nan, np.nan, np.nan, 0)


def relative_at(results, encoding, ratio, evaluation="nonoverlapping", train_length=L):
    """Perplexity at `ratio` times the training length over that at it, with its interval over
    seeds; UNKNOWN where the profile has not measured it."""
    rows = relative(results)
    rows = rows[(rows["encoding"] == encoding) & (rows["evaluation"] == evaluation)]
    rows = rows[(rows["train_length"] == train_length) & (rows["ratio"] == ratio)]
    return figures.interval(rows["value"]) if len(rows) else UNKNOWN


def paired(results: pd.DataFrame, a: tuple, b: tuple) -> figures.Interval:
    """log perplexity of `a` minus that of `b`, paired by seed; each is (encoding, train_length,
    evaluation, length). UNKNOWN where the profile has not measured both."""
    key = ["encoding", "train_length", "evaluation", "length"]

    def of(who):
        return results[(results[key] == list(who)).all(axis=1)].set_index("seed")["nll"]

    first, second = of(a).align(of(b), join="inner")
    return figures.interval(first - second) if len(first) else UNKNOWN


# ---- drawing -------------------------------------------------------------------------------------


def draw_curves(frame: pd.DataFrame):
    """Two panels: nonoverlapping and sliding."""
    figure, axes = _panels(frame, list(dict.fromkeys(frame["panel"])))
    for ax, title in zip(axes, dict.fromkeys(frame["panel"]), strict=True):
        ax.set(title=f"{title} windows", xlabel="evaluation length (tokens)")
    axes[0].set_ylabel("perplexity on held-out speeches")
    return figure


def draw_by_position(frame: pd.DataFrame):
    figure, axes = _panels(frame, ["position"])
    axes[0].set(xlabel=f"position in a window of {BLOCK} tokens", ylabel="loss (nats a token)")
    return figure


def draw_beside_the_paper(frame: pd.DataFrame):
    """The same axes for ours and the paper's, so that the curves can be laid on each other."""
    figure, axes = _panels(frame, [HERE, PAPER], mark=1)
    titles = f"here: 0.4M parameters, L = {L}", "Press et al. 2022: 247M, L = 512"
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, xlabel="evaluation length / L", yscale="log")
        ax.set_xlim(0.93, 17)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_yticks([1, 2, 5, 10, 20], labels=["1", "2", "5", "10", "20"])
        ax.minorticks_off()
    axes[0].set_ylabel("perplexity / perplexity at L")
    return figure


def draw_two_lengths(frame: pd.DataFrame):
    """Left against tokens past the training length, right against the ratio to it."""
    figure, axes = figures.canvas(2)
    axes[1].sharey(axes[0])
    looks = figures.looks(frame["encoding"])
    for (encoding, train_length), rows in frame.groupby(["encoding", "train_length"], sort=False):
        look = looks[encoding]
        style = {"color": look.colour, "marker": look.marker}
        style |= {"ls": "-" if train_length == L else ":", "label": f"{look.label}, {train_length}"}
        for ax, x in zip(axes, (rows["x"] - train_length, rows["x"] / train_length), strict=True):
            near = (x <= 128) if ax is axes[0] else (x <= 3)
            ax.plot(x[near], rows["value"][near], **style)
            ax.vlines(x[near], rows["low"][near], rows["high"][near], color=look.colour, lw=1)
    axes[0].set(xlabel="tokens past the training length", ylabel="perplexity / perplexity at L")
    axes[1].set(xlabel="evaluation length / training length")
    for ax in axes:
        ax.axhline(1.02, color="#999999", lw=0.8, ls="--")
    figures.direct_labels(axes[1])
    return figure


def _panels(frame: pd.DataFrame, panels: list[str], mark: float = L):
    """One panel beside the other, on one vertical axis, labelled at the right; a line at `mark`."""
    n = len(panels)
    figure, axes = figures.canvas(n)
    for ax, panel in zip(axes, panels, strict=True):
        figures.curves(ax, frame[frame["panel"] == panel])
        ax.axvline(mark, color="#999999", lw=0.8, ls="--", zorder=0)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        figures.direct_labels(ax)
        ax.sharey(axes[0])
    return figure, axes


# name → (frame of the results, drawing of the frame)
FIGURES = {
    "extrapolation": (curves, draw_curves),
    "extrapolation_beside_the_paper": (beside_the_paper, draw_beside_the_paper),
    "extrapolation_by_position": (by_position, draw_by_position),
    "extrapolation_two_lengths": (two_lengths, draw_two_lengths),
}
TABLES = {"extrapolation_tolerance": tolerance}
