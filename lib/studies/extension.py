"""A RoPE model past its training length, by other frequencies: zero-shot and after a fine-tune.

Question: of the ways to change RoPE's frequencies, which one extends a trained model best, what
does it cost inside the old length, and what does a short fine-tune change?

The models are the RoPE models of the study `extrapolation`, trained at L; its ALiBi models stand
beside them, read as they are. Measured are

    zero_shot   perplexity at L and at s·L with every method set for the factor s
    fine_tune   the same at factor FACTOR after some more training steps on windows of FACTOR·L
    local       what a method does to the loss within L, by how much text there is before a target
                and by how far back the target last stood: do near relations suffer?
    entropy     the entropy of the attention weights as the text grows: what YaRN's temperature and
                the logarithm of the length answer to
    repeat      a segment that comes twice, at growing distance: how much the first one helps

All methods score the same targets. Fine-tunes of one seed see the same batches.
"""

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from lib import corpus, evaluation, figures, runs
from lib.extending import beta_for, fine_tuned, rescaled
from lib.probes.heads import heads, held_out
from lib.studies import extrapolation
from lib.studies.extrapolation import L

FACTOR = 4  # of the fine-tunes, of what is measured within L, and of the entropy
BATCH_TOKENS = 2048  # of a fine-tune's step
RATE = 0.25  # its peak learning rate, as a share of the training's
BINS = (1, 4, 8, 16, 32, 64)  # tokens before a target, or back to its last occurrence
DISTANCES = (20, 32, 48, 64, 128, 256, 496)  # from a token to its copy in `repeat`
SEGMENT = 16  # tokens of the segment that is repeated

PROFILES = {
    "quick": {
        "factors": (4,),
        "methods": ("none", "linear", "ntk", "ntk_by_parts", "yarn"),
        "tuned": ("linear", "yarn"),
        "steps": (0, 10),
        "tune_factor": 4,
        "tokens": 4_096,
        "windows": 32,
        "trials": 32,
    },
    "default": {
        "factors": (2, 4, 8),
        "methods": None,
        "tuned": ("none", "raised_base", "linear", "yarn"),
        "steps": (0, 10, 30, 100),
        "tune_factor": 4,
        "tokens": 16_384,
        "windows": 128,
        "trials": 128,
    },
    "full": {
        "factors": (2, 4, 8, 16),
        "methods": None,
        "tuned": None,
        "steps": (0, 10, 30, 100, 300),
        "tune_factor": 16,
        "tokens": 65_536,
        "windows": 256,
        "trials": 256,
    },
}
# Core-seconds, measured on two cores, beyond the training of the models.
COST = {"quick": 20, "default": 480, "full": 12_000}
BLOCK = 1024  # targets are scored in blocks, the same ones at every length


# ---- the methods ---------------------------------------------------------------------------------


def _scaling(rope_type: str, **keys):
    return lambda s: {"scaling": {"rope_type": rope_type, "factor": float(s), **keys}}


# name → the options of RoPE that extend by a factor s. `original_max_position_embeddings` is the
# model's own max_length.
METHODS = {
    "none": lambda s: {},
    "linear": _scaling("linear"),
    "ntk": _scaling("ntk"),
    "dynamic": _scaling("dynamic"),
    "ntk_by_parts": _scaling("ntk_by_parts"),
    "ntk_by_parts_scaled": _scaling("ntk_by_parts", beta_fast=beta_for(L)),
    "yarn": _scaling("yarn"),
    "yarn_scaled": _scaling("yarn", beta_fast=beta_for(L)),
    "llama3": _scaling("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
    "raised_base": lambda s: {"base": 500_000.0},  # Llama 3's, for every length
    "log_n": lambda s: {"log_length": L},
    "ntk_log_n": lambda s: _scaling("ntk")(s) | {"log_length": L},
}
WITHIN = ("none", "linear", "ntk", "ntk_by_parts", "yarn")  # measured within L
OF_ENTROPY = ("none", "linear", "ntk", "ntk_by_parts", "yarn", "log_n")


# ---- jobs ----------------------------------------------------------------------------------------


def jobs(profile: str) -> list[runs.Job]:
    """For each seed: a job a factor, a fine-tuned method, and one for what is measured inside."""
    p = PROFILES[profile]
    common = {"tokens": p["tokens"]}
    methods = list(p["methods"] or METHODS)
    made = []
    for training in (j.training for j in extrapolation.jobs(profile)):
        if training.train_length != L or training.encoding not in ("rope", "alibi"):
            continue
        asked = [{"part": "zero_shot", "factor": s, "methods": methods} for s in p["factors"]]
        if training.encoding == "alibi":
            asked = [{"part": "reference", "factors": list(p["factors"])}]
        else:
            tuning = {"steps": list(p["steps"]), "factor": p["tune_factor"]}
            asked += [
                {"part": "fine_tune", "method": m, **tuning} for m in p["tuned"] or METHODS
            ]
            sizes = {"windows": p["windows"], "trials": p["trials"]}
            asked.append({"part": "inside", "factor": FACTOR, **sizes})
        made += [
            runs.Job(training, __name__, {**a, **common}, measure_tokens=_work(a, p)) for a in asked
        ]
    return made


def _work(asked: dict, p: dict) -> int:
    """About how many trained tokens a job costs; three scored tokens are one."""
    if asked["part"] == "fine_tune":
        return sum(asked["steps"]) * BATCH_TOKENS + len(asked["steps"]) * p["tokens"]
    return 2 * len(asked.get("methods", "1234")) * p["tokens"] // 3


# ---- measuring -----------------------------------------------------------------------------------


def measure(decoder, training, settings: dict) -> list[dict]:
    """The rows of one part: {part, method, factor, steps, quantity, length, value, tokens}."""
    return {
        "zero_shot": zero_shot,
        "reference": reference,
        "fine_tune": fine_tune,
        "inside": inside,
    }[settings["part"]](decoder, training, settings)


def _row(part, method, factor, quantity, length, value, tokens, steps=0) -> dict:
    return {
        "part": part, "method": method, "factor": factor, "steps": steps, "quantity": quantity,
        "length": length, "value": float(f"{value:.8g}"), "tokens": tokens,
    }  # fmt: skip


def mean_loss(model, length: int, settings: dict):
    """The mean loss (nats) over the study's targets, read in windows of `length`; their number."""
    documents = corpus.load().documents("test")
    scored = evaluation.blocks(documents, BLOCK, settings["tokens"])
    found = evaluation.evaluate(model, documents, length, None, scored)
    return found.nll_sum / found.tokens, found.tokens


def zero_shot(decoder, training, settings: dict) -> list[dict]:
    """nll at L and s·L of each method set for s."""
    s, rows = settings["factor"], []
    for method in settings["methods"]:
        model = rescaled(decoder, METHODS[method](s))
        for length in (L, s * L):
            found = mean_loss(model, length, settings)
            rows.append(_row("zero_shot", method, s, "nll", length, *found))
    return rows


def reference(decoder, training, settings: dict) -> list[dict]:
    """nll of ALiBi, as it is, at L and each s·L."""
    rows = []
    for s in settings["factors"]:
        for length in (L, s * L):
            found = mean_loss(decoder, length, settings)
            rows.append(_row("zero_shot", training.encoding, s, "nll", length, *found))
    return rows


def fine_tune(decoder, training, settings: dict) -> list[dict]:
    """nll at L and s·L of one method after each number of steps; every number is a run of its own,
    with its own decay of the rate."""
    method, s, rows = settings["method"], settings["factor"], []
    options = METHODS[method](s)
    for steps in settings["steps"]:
        model = fine_tuned(decoder, training, options, s * L, steps, BATCH_TOKENS, RATE)
        for length in (L, s * L):
            found = mean_loss(model, length, settings)
            rows.append(_row("fine_tune", method, s, "nll", length, *found, steps=steps))
    return rows


def inside(decoder, training, settings: dict) -> list[dict]:
    """The parts local, entropy and repeat."""
    s = settings["factor"]
    models = {m: rescaled(decoder, METHODS[m](s)) for m in dict.fromkeys((*WITHIN, *OF_ENTROPY))}
    rows = []
    for method in WITHIN:
        rows += local(models[method], method, settings) + repeat(models[method], method, settings)
    for method in OF_ENTROPY:
        rows += entropy(models[method], method, settings)
    return rows


def local(model, method: str, settings: dict) -> list[dict]:
    """nll within windows of L, in bins: by tokens before the target, and by the distance from the
    target to where the same token last stood in the window (0: it did not)."""
    documents = corpus.load().documents("test")
    plan = evaluation.windows(evaluation.blocks(documents, BLOCK, settings["tokens"]), L)
    losses = evaluation.negative_log_likelihoods(model, documents, plan)
    nll = np.concatenate(losses)
    before = np.concatenate([np.arange(1, len(loss) + 1) for loss in losses])
    back = np.concatenate([last_seen(documents[w.document][w.start : w.stop + 1]) for w in plan])
    rows = []
    for quantity, x in (("nll_by_tokens_before", before), ("nll_by_last_occurrence", back)):
        for low, high in zip((-1, 0, *BINS[:-1]), (0, *BINS), strict=True):
            chosen = (x > low) & (x <= high)
            if chosen.any():
                mean, n = nll[chosen].mean(), int(chosen.sum())
                rows.append(_row("local", method, settings["factor"], quantity, high, mean, n))
    return rows


def last_seen(tokens) -> np.ndarray:
    """For each target x_1 … x_N of tokens (N + 1,): the distance back to the same token; 0 if none.
    """
    place, back = {}, []
    for i, token in enumerate(np.asarray(tokens).tolist()):
        back.append(i - place.get(token, i))
        place[token] = i
    return np.array(back[1:])


def entropy(model, method: str, settings: dict) -> list[dict]:
    """The entropy (nats) of the last query's attention, mean over heads, layers and windows, by the
    length of the window."""
    rows = []
    for n in (L // 4, L // 2, L, 2 * L, 4 * L, 8 * L):
        windows, total = settings["windows"] // 2, []
        for tokens in held_out(n, windows).split(16):
            weights = torch.stack([layer.weights(1) for layer in heads(model, tokens)]).double()
            total.append(torch.special.entr(weights).sum(-1).mean((0, 2, 3)))  # (windows,)
        mean = torch.cat(total).mean().item()
        rows.append(_row("entropy", method, settings["factor"], "entropy", n, mean, windows))
    return rows


@torch.inference_mode()
def repeat(model, method: str, settings: dict) -> list[dict]:
    """By how much (nats a token) the loss on a segment falls when it stood in the text before.

    The text is segment, filler, segment; in the control the first segment is another one. The first
    token of the copy is not scored.
    """
    rng, rows = np.random.default_rng(0), []
    documents = [d for d in corpus.load().documents("test") if len(d) > 4 * max(DISTANCES)]

    def piece(n):
        document = documents[rng.integers(len(documents))]
        start = rng.integers(len(document) - n)
        return document[start : start + n].astype(np.int64)

    for distance in DISTANCES:
        losses = np.zeros((2, settings["trials"]))
        for i in range(settings["trials"]):
            again, other, filler = piece(SEGMENT), piece(SEGMENT), piece(distance - SEGMENT)
            for j, first in enumerate((other, again)):
                x = torch.from_numpy(np.concatenate([first, filler, again]))[None]
                logits = model(x[:, :-1])[0, 1 - SEGMENT :]  # (SEGMENT − 1, V)
                losses[j, i] = F.cross_entropy(logits, x[0, 1 - SEGMENT :]).item()
        gain = (losses[0] - losses[1]).mean()
        n = settings["trials"] * (SEGMENT - 1)
        rows.append(_row("repeat", method, settings["factor"], "gain", distance, gain, n))
    return rows


MEASURING = (
    measure, zero_shot, reference, fine_tune, inside, local, last_seen, entropy, repeat, mean_loss,
    _row, "lib.extending", "lib.probes.heads", "lib.training",
    (BLOCK, BATCH_TOKENS, RATE, BINS, DISTANCES, SEGMENT, WITHIN, OF_ENTROPY),
    tuple((name, repr(options(4))) for name, options in METHODS.items()),
)  # fmt: skip


# ---- results -------------------------------------------------------------------------------------

COLUMNS = ["encoding", "seed", "part", "factor", "steps", "quantity", "length", "value", "tokens"]


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`extension.csv`: COLUMNS, one row a measurement; `encoding` is the method, values in nats."""
    return runs.table(outcomes, COLUMNS)


GAIN_PANEL, COST_PANEL = "read at s · L", "read at L"


def _gain_and_cost(results: pd.DataFrame, part: str, x: str) -> pd.DataFrame:
    """Perplexity of a part at s·L, and what it is at L, against its column x."""
    rows = results[results["part"] == part]
    panel = np.where(rows["length"] == L, COST_PANEL, GAIN_PANEL)
    rows = rows.assign(panel=panel, x=rows[x], value=np.exp(rows["value"]))
    rows = rows.sort_values("panel", key=lambda p: p != GAIN_PANEL, kind="stable")
    return figures.summarise(rows, ["panel", "encoding", "x"], "value")[figures.COLUMNS]


def reached(results: pd.DataFrame) -> pd.DataFrame:
    """Perplexity at s·L, and what it is at L with the method set for s, against s."""
    return _gain_and_cost(results, "zero_shot", "factor")


def tuned(results: pd.DataFrame) -> pd.DataFrame:
    """Perplexity at s·L and at L against the steps of a fine-tune."""
    return _gain_and_cost(results, "fine_tune", "steps")


def changed_within(results: pd.DataFrame) -> pd.DataFrame:
    """Loss within L minus that of the unscaled model, seeds paired: by tokens before the target,
    and by the distance to where it last stood."""
    rows = results[results["part"] == "local"]
    key = ["seed", "quantity", "length"]
    unscaled = rows[rows["encoding"] == "none"].set_index(key)["value"]
    rows = rows[rows["encoding"] != "none"].join(unscaled.rename("unscaled"), on=key)
    rows = rows.assign(change=rows["value"] - rows["unscaled"], x=rows["length"])
    rows["panel"] = rows["quantity"]
    return figures.summarise(rows, ["panel", "encoding", "x"], "change")[figures.COLUMNS]


def entropies(results: pd.DataFrame) -> pd.DataFrame:
    """The entropy of attention against the length."""
    rows = results[results["part"] == "entropy"]
    rows = rows.assign(panel="entropy", x=rows["length"])
    return figures.summarise(rows, ["panel", "encoding", "x"], "value")[figures.COLUMNS]


def methods_table(results: pd.DataFrame) -> pd.DataFrame:
    """Every method and factor: perplexity at s·L and at L, with intervals over seeds."""
    frame = reached(results)
    return frame.rename(columns={"x": "factor", "encoding": "method"})


# ---- drawing -------------------------------------------------------------------------------------

DRAWN = (
    "none", "linear", "ntk", "dynamic", "ntk_by_parts", "yarn", "llama3", "raised_base", "alibi"
)  # fmt: skip


def draw_reached(frame: pd.DataFrame):
    """PI leaves the axes, which would hide the others; its values stand where it leaves."""
    figure, axes = figures.canvas(2)
    frame = frame[frame["encoding"].isin(DRAWN)]
    for ax, panel in zip(axes, (GAIN_PANEL, COST_PANEL), strict=True):
        rows = frame[frame["panel"] == panel]
        figures.curves(ax, rows)
        figures.doubling(ax, frame["x"].unique())
        others = rows[rows["encoding"] != "linear"]
        if not others.empty:
            _cut(ax, rows, others[["value", "high"]].max(axis=None), others["value"].min())
        ax.set(title=panel, xlabel="factor s that the method is set for")
        figures.direct_labels(ax)
    axes[0].set_ylabel("perplexity on held-out speeches")
    axes[1].set_ylabel("(a finer scale)")
    return figure


def _cut(ax, rows: pd.DataFrame, highest: float, lowest: float):
    """End the axis a little above `highest`, and write at its top what lies beyond."""
    room = 0.06 * (highest - lowest)
    ax.set_ylim(lowest - 2 * room, highest + 3 * room)
    for _, row in rows[rows["value"] > highest + 3 * room].iterrows():
        ends = {rows["x"].min(): "left", rows["x"].max(): "right"}
        place = {"xytext": (0, -12), "textcoords": "offset points", "va": "top"}
        place |= {"color": figures.COLOURS[row["encoding"]], "ha": ends.get(row["x"], "center")}
        ax.annotate(f"{row['value']:.0f} ↑", (row["x"], highest + 3 * room), **place)


def draw_tuned(frame: pd.DataFrame):
    figure, axes = figures.canvas(2)
    for ax, panel in zip(axes, (GAIN_PANEL, COST_PANEL), strict=True):
        figures.curves(ax, frame[frame["panel"] == panel])
        ax.set_xscale("symlog", linthresh=10)
        steps = sorted(frame["x"].unique())
        ax.set_xticks(steps, labels=[f"{n:g}" for n in steps])
        ax.minorticks_off()
        ax.set(title=panel, xlabel=f"steps of {BATCH_TOKENS} tokens on windows of s · L")
        figures.direct_labels(ax)
    _one_scale(axes)
    axes[0].set_ylabel("perplexity on held-out speeches")
    return figure


def _one_scale(axes):
    """One range of values for all panels, so that none cuts what another one lacks."""
    limits = [ax.get_ylim() for ax in axes]
    for ax in axes:
        ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


PANELS_WITHIN = {  # panel → (label, the first bin drawn: nearer ones hold too few targets)
    "nll_by_tokens_before": ("tokens before the target, up to", 1),
    "nll_by_last_occurrence": ("tokens back to its last occurrence, up to", 8),
}


def draw_changed_within(frame: pd.DataFrame):
    figure, axes = figures.canvas(2)
    for ax, (panel, (label, least)) in zip(axes, PANELS_WITHIN.items(), strict=True):
        rows = frame[(frame["panel"] == panel) & (frame["x"] >= least)]
        figures.curves(ax, rows)
        figures.doubling(ax, rows["x"].unique())
        ax.axhline(0, color="#999999", lw=0.8, ls="--", zorder=0)
        ax.set(xlabel=label)
        figures.direct_labels(ax)
    _one_scale(axes)
    axes[0].set_ylabel("loss within L, over the\nunscaled model's (nats)")
    return figure


def draw_entropies(frame: pd.DataFrame):
    figure, axes = figures.canvas(1)
    ax = axes[0]
    figures.curves(ax, frame)
    n = np.array(sorted(frame["x"].unique()), dtype=float)
    ax.plot(n, np.log(n), color="#999999", lw=0.8, ls="--", label="uniform: ln n")
    figures.doubling(ax, n)
    ax.axvline(L, color="#999999", lw=0.8, ls=":", zorder=0)
    ax.set(xlabel="tokens before the query, n", ylabel="entropy of its attention (nats)")
    figures.direct_labels(ax)
    return figure


FIGURES = {
    "extension": (reached, draw_reached),
    "extension_fine_tune": (tuned, draw_tuned),
    "extension_within": (changed_within, draw_changed_within),
    "extension_entropy": (entropies, draw_entropies),
}
TABLES = {"extension_methods": methods_table}
