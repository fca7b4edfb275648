"""What each encoding costs in time and memory, beside the paper's figures of 2021.

Question: which of the survey's statements on cost hold on kernels of today, and which were a
property of the kernels that they were measured on?

Nothing is learned: untrained models of the default size, random tokens, one thread, nothing beside
them (see ALONE). Everything that is compared takes turns in one process, and costs are ratios
within a round of such turns; see `lib.bench`, which also says how memory is counted. Measured are

    training, inference     3072 tokens in sequences of 512, 1024 and 3072, the paper's lengths
    …, written out          the same with attention by the formula: H·T² weights in memory
    growth                  one sequence through the model, longer and longer
    attention, …            one layer's attention alone at 4096 tokens, and with a mask tensor
    rotation                q and k turned, from positions and from a table made before, against a
                            copy and two libraries
    decoding                tokens generated one by one, against the tokens in the cache
    overfit                 losses after several passes over little text, for ALI-11

Timings are one machine's, so the drift of these figures means nothing and is not reported; the
claims decided from them ask for coarse inequalities.
"""

import pandas as pd
import torch

from lib import bench, corpus, evaluation, figures, runs
from lib.studies import learning_rates
from lib.training import Training, TrainingConfig

ALONE = True  # one job at a time, and nothing beside it
CPU = torch.device("cpu")
FOUR = list(bench.OF_THE_PAPER)
LITTLE = 16_384  # tokens of text that the overfitting models see again and again
REST = [name for name in ("learned", "nope") if name in bench.TEXT]

PROFILES = {
    "quick": {
        "lengths": (512,),
        "names": FOUR,
        "rounds": 6,
        "training_rounds": 6,
        "written_out": (512,),
        "growth": (256, 512, 1024),
        "attention": 1024,
        "rotation_rounds": 16,
        "contexts": (256, 4096),
        "overfit_seeds": (),
        "overfit_tokens": 0,
    },
    "default": {
        "lengths": bench.PAPER,
        "names": FOUR + REST,
        "rounds": 6,
        "training_rounds": 10,
        "written_out": (512, 1024),
        "growth": bench.LONG,
        "attention": bench.ATTENTION["T"],
        "rotation_rounds": 16,
        "contexts": bench.CONTEXTS,
        "overfit_seeds": (0, 1, 2),
        "overfit_tokens": 10 * LITTLE,
    },
    "full": {
        "lengths": bench.PAPER,
        "names": FOUR + REST,
        "rounds": 20,
        "training_rounds": 20,
        "written_out": bench.PAPER,
        "growth": bench.LONG,
        "attention": bench.ATTENTION["T"],
        "rotation_rounds": 40,
        "contexts": bench.CONTEXTS,
        "overfit_seeds": (0, 1, 2, 3, 4),
        "overfit_tokens": 30 * LITTLE,
    },
}
COST = {"quick": 40, "default": 400, "full": 1200}  # core-seconds, measured


def jobs(profile: str) -> list[runs.Job]:
    """One for each part and length; Shaw's vectors, the slowest, are timed with fewer rounds."""
    p = PROFILES[profile]
    settings = []
    for length in p["lengths"]:
        rounds = p["training_rounds"]
        names = p["names"]
        settings.append({"what": "encodings", "length": length, "names": names, "rounds": rounds})
        if "learned" in p["names"]:
            names = ["sinusoidal", "shaw"]
            settings.append({"what": "encodings", "length": length, "names": names, "rounds": 1})
    for length in p["written_out"]:
        settings.append({"what": "written out", "length": length, "names": FOUR})
    for length in p["growth"]:
        settings.append({"what": "growth", "length": length, "names": FOUR})
    for kind in ("forward", "forward and backward"):
        settings.append({"what": kind, "length": p["attention"]})
    settings.append({"what": "rotation", "rounds": p["rotation_rounds"]})
    for context in p["contexts"]:
        settings.append({"what": "decoding", "length": context, "names": FOUR})
    settings = [{"rounds": p["rounds"], **s} for s in settings]
    for seed in p["overfit_seeds"]:
        for name in ("alibi", "t5"):
            tokens = p["overfit_tokens"]
            settings.append({"what": "overfit", "name": name, "seed": seed, "tokens": tokens})
    return [runs.Job(None, __name__, s) for s in settings]


def measure(decoder, training, settings: dict) -> list[dict]:
    """Rows as in `lib.bench`. Decoder and training are None."""
    what, rounds, length = (settings.get(name) for name in ("what", "rounds", "length"))
    names = settings.get("names")
    torch.manual_seed(0)
    if what == "overfit":
        return overfit(settings["name"], settings["seed"], settings["tokens"])
    if what == "encodings":
        return bench.encodings(CPU, rounds, [length], names)
    if what == "written out":
        return bench.encodings(CPU, rounds, [length], names, written_out=True)
    if what == "growth":
        return bench.growth(CPU, rounds, [length], names)
    if what == "rotation":
        return bench.rotation(CPU, rounds)
    if what == "decoding":
        return bench.decoding(CPU, rounds, [length], names)
    return bench.attention(CPU, rounds, [what], length)


def overfit(encoding: str, seed: int, tokens: int) -> list[dict]:
    """The losses (nats a token) on the text that was trained on, several times over, and on as much
    that was not."""
    text = corpus.load()
    seen, unseen = (text.stream(split)[:LITTLE] for split in ("train", "test"))
    rates = learning_rates.chosen(encoding)
    config = TrainingConfig(encoding, seed=seed, tokens=tokens, **rates)
    training = Training(config, [seen], text.vocabulary_size)
    for _ in range(config.steps):
        training.step()
    rows = []
    for quantity, part in (("train", seen), ("test", unseen)):
        found = evaluation.evaluate(training.decoder, part, config.train_length)
        values = (
            "overfit",
            encoding,
            tokens // LITTLE,
            quantity,
            seed,
            found.nll_sum / found.tokens,
        )
        rows.append(dict(zip(bench.COLUMNS, values, strict=True)))
    return rows


MEASURING = (measure, overfit, (LITTLE,), "lib.bench", "lib.timing", "lib.training")

# ---- results -------------------------------------------------------------------------------------

COLUMNS = ["part", "encoding", "seed", "length", "quantity", "value", "ratio"]


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`cost.csv`: COLUMNS, one row a measurement. `seed` counts pairs of rounds, for such a pair is
    here what a seed is elsewhere; of the two times the shorter counts, since what disturbs only
    adds. `ratio` is to sinusoids, or what else a part is measured against (`bench.BASE`)."""
    frame = pd.concat([_by_pairs(o.rows) for o in outcomes], ignore_index=True)
    names = {"subject": "encoding", "case": "length", "round": "seed"}
    frame = frame.rename(columns=names)[COLUMNS]
    # Sinusoids are measured beside Shaw once more: the longer series counts.
    return frame.drop_duplicates(["part", "encoding", "seed", "length", "quantity"])


def _by_pairs(rows: list[dict]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=bench.COLUMNS)
    timed = frame["quantity"] == "seconds"
    frame["round"] = frame["round"].where(~timed, frame["round"] // 2)
    by = [c for c in bench.COLUMNS if c != "value"]
    return bench.relative(frame.groupby(by, sort=False, as_index=False)["value"].min())


def ratios(results: pd.DataFrame, part: str, quantity: str) -> pd.DataFrame:
    """Rows encoding, length, seed and ratio of one part, against sinusoids or what it is for."""
    if results.empty:
        return pd.DataFrame(columns=COLUMNS)
    return results[(results["part"] == part) & (results["quantity"] == quantity)]


def medians(results: pd.DataFrame, part: str, quantity: str = "seconds") -> pd.DataFrame:
    """The median ratio over rounds: a row a length, a column an encoding."""
    rows = ratios(results, part, quantity)
    return rows.pivot_table(index="length", columns="encoding", values="ratio", aggfunc="median")


def _panel(rows: pd.DataFrame, panel: str, value: str = "ratio") -> pd.DataFrame:
    frame = figures.summarise(rows.rename(columns={"length": "x"}), ["encoding", "x"], value=value)
    return frame.assign(panel=panel)


THEN, WRITTEN, NOW = "one V100, 2021", "here, written out", "here"


def _times(results: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Time a token over that with sinusoids: the paper's, and ours in both ways."""
    paper = bench.published().rename(columns={"subject": "encoding", "case": "length"})
    panels = [
        _panel(paper, THEN, kind),
        _panel(ratios(results, f"{kind}, written out", "seconds"), WRITTEN),
        _panel(ratios(results, kind, "seconds"), NOW),
    ]
    frame = pd.concat(panels, ignore_index=True)
    return frame[frame["encoding"] != "sinusoidal"][figures.COLUMNS]


def training_times(results: pd.DataFrame) -> pd.DataFrame:
    return _times(results, "training")


def inference_times(results: pd.DataFrame) -> pd.DataFrame:
    return _times(results, "inference")


def memory(results: pd.DataFrame) -> pd.DataFrame:
    """The most memory at once, over that with sinusoids."""
    paper = bench.published().rename(columns={"subject": "encoding", "case": "length"})
    panels = [_panel(paper, f"training, {THEN}", "memory")]
    for kind in ("training", "inference"):
        panels.append(_panel(ratios(results, kind, "bytes"), f"{kind}, {NOW}"))
    frame = pd.concat(panels, ignore_index=True)
    return frame[frame["encoding"] != "sinusoidal"][figures.COLUMNS]


def growth(results: pd.DataFrame) -> pd.DataFrame:
    """Seconds and MB of a pass, against the length; and what one layer's T² weights would take."""
    seconds = _panel(ratios(results, "growth", "seconds"), "seconds", "value")
    held = _panel(ratios(results, "growth", "bytes"), "MB", "value")
    H = bench.decoder("nope", 1, CPU).config.n_heads
    written = held.drop_duplicates("x").assign(encoding=TENSOR)
    written["value"] = 4.0 * H * written["x"] ** 2
    frame = pd.concat([seconds, held, written], ignore_index=True)
    numbers = ["value", "sd", "low", "high"]
    frame.loc[frame["panel"] == "MB", numbers] *= 1e-6
    return frame[figures.COLUMNS]


TENSOR = "weights or bias as a tensor"


def decoding(results: pd.DataFrame) -> pd.DataFrame:
    """Tokens a second, against the tokens in the cache."""
    rows = ratios(results, "decoding", "seconds")
    rows = rows.assign(value=bench.GENERATED / rows["value"].astype(float))
    return _panel(rows, "", "value")[figures.COLUMNS]


def exponents(results: pd.DataFrame) -> pd.DataFrame:
    """How time and memory grow with the length; see `bench.exponents`."""
    names = {"encoding": "subject", "length": "case"}
    return bench.exponents(results.rename(columns=names))


# ---- drawing -------------------------------------------------------------------------------------


def draw_times(frame: pd.DataFrame):
    panels = [p for p in (THEN, WRITTEN, NOW) if (frame["panel"] == p).any()]
    return _draw_ratios(frame, panels, "time a token, over that with sinusoids")


def draw_memory(frame: pd.DataFrame):
    panels = list(dict.fromkeys(frame["panel"]))
    return _draw_ratios(frame, panels, "memory, over that with sinusoids")


def _draw_ratios(frame: pd.DataFrame, panels: list[str], label: str):
    figure, axes = figures.canvas(len(panels))
    for ax, panel in zip(axes, panels, strict=True):
        figures.curves(ax, frame[frame["panel"] == panel])
        _lengths(ax, frame["x"])
        _ratios(ax, frame["value"].max())
        ax.set(title=panel)
        figures.direct_labels(ax)
    axes[0].set_ylabel(label)
    return figure


def draw_growth(frame: pd.DataFrame):
    figure, axes = figures.canvas(2)
    for ax, panel in zip(axes, ("seconds", "MB"), strict=True):
        figures.curves(ax, frame[frame["panel"] == panel])
        _lengths(ax, frame["x"])
        ax.set_yscale("log")
        ax.set_ylabel(f"{panel}, of one pass")
        figures.direct_labels(ax)
    return figure


def draw_decoding(frame: pd.DataFrame):
    figure, (ax,) = figures.canvas()
    figures.curves(ax, frame)
    _lengths(ax, frame["x"])
    ax.set(xlabel="tokens in the cache", ylabel="tokens generated a second", ylim=(0, None))
    figures.direct_labels(ax)
    return figure


def _ratios(ax, largest: float):
    """A scale on which half is as far from 1 as double, and a line at 1 for sinusoids."""
    ax.axhline(1, color=figures.COLOURS["sinusoidal"], lw=0.8, ls="--", zorder=0)
    ticks = [n for n in (1, 1.2, 1.5, 2, 3, 4, 6, 8) if n < 1.1 * largest]
    ax.set_yscale("log", base=2)
    ax.set_ylim(0.75, 1.15 * max(largest, 1.2))
    ax.set_yticks(ticks, labels=[f"{n:g}" for n in ticks])
    ax.minorticks_off()


def _lengths(ax, x):
    figures.doubling(ax, x.unique())
    ax.set_xlabel("tokens in a sequence")


FIGURES = {
    "cost_training": (training_times, draw_times),
    "cost_inference": (inference_times, draw_times),
    "cost_memory": (memory, draw_memory),
    "cost_growth": (growth, draw_growth),
    "cost_decoding": (decoding, draw_decoding),
}
TABLES = {"cost_exponents": exponents}
