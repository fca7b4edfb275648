"""Exact match on tasks by length: decoders trained on short instances, tested to three times that.

Question: perplexity hides whether a model can count, copy and find. On tasks with one right answer,
which encodings let a decoder that has learned short instances solve longer ones, and is it the same
encoding for every task?

An instance counts when every token of its answer is right, EOS among them. The right answer is read
in (teacher forcing); an instance is matched so if and only if greedy decoding gives its answer,
since both ask for the same argmax at the same places as long as nothing was wrong.

Positions at test time: `exact` counts from 0 as in training; `shifted` begins at a number drawn for
each instance; `drawn` (for models trained so) draws them as in training. A learned table has rows
for every position asked for, and those past its training are as they were drawn: untrained.

A task counts for a comparison when at least one encoding solves it at the trained lengths, and an
encoding's failure past them when it does. What nothing has solved is reported as unsolved.
"""

import hashlib
import json

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.colors import Normalize

from lib import figures, paths, runs, tasks
from lib.training import Training, descend, learning_rate_factor, optimizer_of, set_rates
from lib.transformer import Config, Decoder

L = 8  # the longest instances trained on
LENGTHS = (6, 8, 9, 10, 12, 16, 24)
SOLVED = 0.95  # exact match at the trained lengths, mean over lengths and seeds
RANDOM = "rope_random"  # RoPE with positions drawn in training: a way of training, for reference
SURVEY = ("learned", "sinusoidal", "t5", "rope", "alibi", "nope")
ENCODINGS = (*SURVEY, RANDOM)
EXPLICIT = ("learned", "sinusoidal", "t5", "rope", "alibi")

SIZES = {
    "d_model": 48,
    "n_heads": 4,
    "n_layers": 4,
    "d_ff": 128,
    "batch": 32,
    "learning_rate": 4e-3,
    "encoding_rate": 10.0,
}
# steps: of training, by task; drawn: the tasks on which RANDOM is trained too.
PROFILES = {
    "quick": {
        "steps": {"copy": 500},
        "encodings": ("rope", "nope"),
        "drawn": (),
        "seeds": (0,),
        "sizes": {**SIZES, "longest": L, "instances": 100},
    },
    "default": {
        "steps": {"copy": 600, "sorting": 650, "brackets": 350},
        "encodings": SURVEY,
        "drawn": ("copy",),
        "seeds": (0, 1, 2),
        "sizes": {**SIZES, "longest": L, "instances": 128},
    },
    "full": {
        "steps": {
            "copy": 1500,
            "reverse": 1500,
            "addition": 6000,
            "sorting": 1500,
            "parity": 2000,
            "selective_copy": 1500,
            "associative_recall": 4000,
            "brackets": 1500,
        },
        "encodings": SURVEY,
        "drawn": tuple(tasks.TASKS),
        "seeds": (0, 1, 2),
        "sizes": {**SIZES, "longest": L, "instances": 500},
    },
}
# Core-seconds, measured on two cores; "full" is reckoned from the steps of the others.
COST = {"quick": 30, "default": 600, "full": 9_000}


def jobs(profile: str) -> list[runs.Job]:
    """One for each task, encoding and seed."""
    p = PROFILES[profile]
    sizes = {**p["sizes"], "lengths": list(LENGTHS)}
    return [
        runs.Job(
            None,
            __name__,
            {"task": task, "encoding": encoding, "seed": seed, "sizes": {**sizes, "steps": steps}},
            measure_tokens=steps * sizes["batch"] * tasks.task(task).tokens(L),
        )
        for task, steps in p["steps"].items()
        for seed in p["seeds"]
        for encoding in (*p["encodings"], *((RANDOM,) if task in p["drawn"] else ()))
    ]


# ---- training and measuring ----------------------------------------------------------------------


class Learning(Training):
    """A decoder that learns a task, step by step; it is saved and loaded as any training is.

    settings: as in `jobs`.
    """

    def __init__(self, settings: dict):
        self.settings, self.sizes = settings, settings["sizes"]
        self.task = tasks.task(settings["task"])
        self.drawn = settings["encoding"] == RANDOM
        # Room for the longest instance tested, and as much again for a shift; positions that are
        # drawn come from the first half.
        self.room = 2 * self.task.tokens(max(self.sizes["lengths"]))
        config = Config(
            encoding="rope" if self.drawn else settings["encoding"],
            vocabulary=self.task.vocabulary,
            max_length=self.room,
            **{k: self.sizes[k] for k in ("d_model", "n_heads", "n_layers", "d_ff")},
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings["seed"])
            self.decoder = Decoder(config)
        rates = self.sizes["learning_rate"], self.sizes["encoding_rate"]
        self.optimizer = optimizer_of(self.decoder, *rates)
        self.losses: list[float] = []

    def step(self) -> None:
        """One batch: the loss of the answers' tokens alone."""
        t, seed, sizes = len(self.losses), self.settings["seed"], self.sizes
        set_rates(self.optimizer, t, sizes["steps"])
        batch = tasks.training_batch(self.task, seed, t, sizes["batch"], sizes["longest"])
        tokens, scored = as_tensors(batch)
        B, T = tokens[:, :-1].shape
        positions = None
        if self.drawn:
            positions = torch.from_numpy(tasks.drawn_positions(seed, t, B, T, self.room // 2))
        logits = self.decoder(tokens[:, :-1], positions)  # (B, T, V)
        loss = F.cross_entropy(logits[scored], tokens[:, 1:][scored])
        descend(self.decoder, self.optimizer, loss)
        self.losses.append(loss.item())


def as_tensors(batch: tasks.Batch):
    """tokens (B, T + 1), and which of the T targets are scored (B, T)."""
    return torch.from_numpy(batch.tokens), torch.from_numpy(batch.scored[:, 1:])


CHECKPOINT_STEPS = 1000


def learn(settings: dict) -> Learning:
    """Train to the end, from this run's last checkpoint on where there is one.

    Raises FloatingPointError for a loss that is not finite.
    """
    key = json.dumps([settings, runs.code_hash((*runs.MODEL, *MEASURING))], sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    checkpoint = paths.CACHE / "tasks" / f"{name}.safetensors"
    learning = Learning(settings)
    learning.decoder.train()
    if checkpoint.exists():
        try:
            learning.load(checkpoint)
        except ValueError:  # damaged: from the beginning
            learning = Learning(settings)
    steps = settings["sizes"]["steps"]
    while len(learning.losses) < steps:
        learning.step()
        done = len(learning.losses)
        if not np.isfinite(learning.losses[-1]):
            raise FloatingPointError(
                f"The loss of {settings['task']}, {settings['encoding']}, seed {settings['seed']} "
                f"is not finite at step {done}: choose a lower learning rate."
            )
        if done % CHECKPOINT_STEPS == 0 and done < steps:
            learning.save(checkpoint)
    checkpoint.unlink(missing_ok=True)
    return learning


def measure(decoder, training, settings: dict) -> list[dict]:
    """Rows {positions, length, exact_match, n}; decoder and training are None."""
    learning, sizes = learn(settings), settings["sizes"]
    kinds = ("exact", "shifted", "drawn") if learning.drawn else ("exact", "shifted")
    rows = []
    for length in sizes["lengths"]:
        batch = tasks.test_set(learning.task, length, sizes["instances"])
        for kind in kinds:
            positions = test_positions(kind, batch, length, learning.room)
            matched = exact_match(learning.decoder, batch, positions)
            row = {"positions": kind, "length": length, "n": len(matched)}
            rows.append({**row, "exact_match": float(matched.double().mean())})
    return rows


def test_positions(kind: str, batch: tasks.Batch, length: int, room: int):
    """The positions of a test set's inputs, (B, T), the same for every model; None for `exact`."""
    B, T = len(batch.tokens), batch.tokens.shape[1] - 1
    if kind == "exact":
        return None
    if kind == "drawn":
        return torch.from_numpy(tasks.drawn_positions(tasks.TEST_SEED, length, B, T, room // 2))
    rng = np.random.default_rng([tasks.TEST_SEED, length, 2])
    first = rng.integers(1, room // 2 + 1, size=(B, 1))
    return torch.from_numpy(first + np.arange(T))


@torch.inference_mode()
def exact_match(decoder, batch: tasks.Batch, positions=None):
    """Whether the argmax is right at every scored place, for each instance: bools (B,)."""
    tokens, scored = as_tensors(batch)
    right = decoder.eval()(tokens[:, :-1], positions).argmax(-1) == tokens[:, 1:]  # (B, T)
    return (right | ~scored).all(1)


# The code that the rows depend on, besides the model's own.
MEASURING = (
    Learning, as_tensors, learn, measure, test_positions, exact_match, optimizer_of,
    set_rates, descend, learning_rate_factor, "lib.tasks.*",
)  # fmt: skip


# ---- results -------------------------------------------------------------------------------------

COLUMNS = ["task", "encoding", "seed", "positions", "length", "exact_match", "n"]


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`generalization.csv`: one row a measurement; n counts the instances behind exact_match."""
    rows = [
        {**{k: o.job.settings[k] for k in ("task", "encoding", "seed")}, **row}
        for o in outcomes
        for row in o.rows
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def main(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of the main question: positions as each model was trained on them."""
    own = np.where(results["encoding"] == RANDOM, "drawn", "exact")
    return results[results["positions"] == own]


def scores(results: pd.DataFrame) -> pd.DataFrame:
    """One row a task, encoding and seed: exact match at the trained lengths (`trained`) and past
    them (`longer`), each the mean over the lengths measured."""
    rows = main(results)
    part = np.where(rows["length"] <= L, "trained", "longer")
    key = ["task", "encoding", "seed"]
    table = rows.assign(part=part).pivot_table(
        index=key, columns="part", values="exact_match", sort=False
    )
    return table.reindex(columns=["trained", "longer"]).reset_index()


def solved(results: pd.DataFrame) -> pd.DataFrame:
    """Task × encoding: whether it is solved at the trained lengths, by the mean over seeds."""
    table = scores(results).groupby(["task", "encoding"], sort=False)["trained"].mean() >= SOLVED
    return table.unstack(fill_value=False)


def solved_tasks(results: pd.DataFrame, table: pd.DataFrame | None = None) -> list[str]:
    """The tasks that at least one encoding of the survey solves at the trained lengths; `table` is
    that of `solved` where it is at hand."""
    table = solved(results) if table is None else table
    table = table[[e for e in SURVEY if e in table]]
    return list(table.index[table.any(axis=1)])


def longer(results: pd.DataFrame) -> dict[tuple[str, str], pd.Series]:
    """(task, encoding) → exact match past the trained lengths by seed, for the solved tasks and the
    encodings that solve them at the trained lengths: of the others it says nothing. {} for no
    results."""
    if results.empty:
        return {}
    table, able = scores(results), solved(results)
    return {
        (task, encoding): rows.set_index("seed")["longer"].dropna()
        for (task, encoding), rows in table.groupby(["task", "encoding"], sort=False)
        if task in solved_tasks(results, able) and able.loc[task, encoding]
    }


def curves(results: pd.DataFrame) -> pd.DataFrame:
    """Exact match against length; a panel a task."""
    frame = figures.summarise(main(results), ["task", "encoding", "length"], "exact_match")
    return frame.rename(columns={"task": "panel", "length": "x"})[figures.COLUMNS]


def offsets(results: pd.DataFrame) -> pd.DataFrame:
    """Exact match at the trained lengths, by where the positions begin; a panel a task.

    x is the kind of positions.
    """
    rows = results[results["length"] <= L]
    rows = rows.groupby(["task", "encoding", "seed", "positions"], sort=False, as_index=False)[
        "exact_match"
    ].mean()
    frame = figures.summarise(rows, ["task", "encoding", "positions"], "exact_match")
    return frame.rename(columns={"task": "panel", "positions": "x"})[figures.COLUMNS]


def notice(results: pd.DataFrame) -> pd.DataFrame:
    """Exact match at the trained lengths, shifted minus exact, paired by seed: one row a task and
    encoding, with its interval."""
    rows = results[(results["length"] <= L) & (results["positions"] != "drawn")]
    key = ["task", "encoding", "seed"]
    table = rows.pivot_table(index=key, columns="positions", values="exact_match", sort=False)
    change = (table["shifted"] - table["exact"]).rename("change").reset_index()
    return figures.summarise(change, ["task", "encoding"], "change")


# ---- mean reciprocal rank ------------------------------------------------------------------------

PAPER = "Kazemnejad et al. 2023"
NAMES_THERE = {
    "NoPE": "nope",
    "T5": "t5",
    "ALiBi": "alibi",
    "Rotary (25% of the head)": "rope",
    "Absolute": "sinusoidal",
}


def published() -> pd.DataFrame:
    """Encoding and mrr of the paper: ten tasks, models of 107M parameters."""
    table = pd.read_csv(paths.PUBLISHED / "other.csv", comment="#")
    table = table[(table["source"] == PAPER) & (table["unit"] == "MRR")]
    table["encoding"] = table["method"].map(NAMES_THERE)
    return table.rename(columns={"value": "mrr"})[["encoding", "mrr"]].reset_index(drop=True)


def reciprocal_ranks(results: pd.DataFrame) -> pd.DataFrame:
    """1/rank among the paper's five encodings on each solved task and seed, by exact match past
    the trained lengths; those that tie share the mean of their ranks. Columns task, encoding, seed,
    value.
    """
    rows = scores(results)
    among = rows["encoding"].isin(NAMES_THERE.values())
    rows = rows[among & rows["task"].isin(solved_tasks(results))]
    rank = rows.groupby(["task", "seed"])["longer"].rank(ascending=False, method="average")
    return rows.assign(value=1 / rank)[["task", "encoding", "seed", "value"]]


def mean_reciprocal_rank(results: pd.DataFrame) -> pd.DataFrame:
    """The table: mean over tasks of 1/rank past the trained lengths, here with its interval over
    seeds, and in the paper. `tasks` counts the tasks ranked, `solved` those among them that the
    encoding itself solves at the trained lengths: on the others it is ranked for learning slowly.
    """
    ranks, table = reciprocal_ranks(results), solved(results)
    rows = []
    for encoding, mine in ranks.groupby("encoding", sort=False):
        found = figures.interval(mine.groupby("seed")["value"].mean())
        ranked = mine["task"].unique()
        own = int(table.loc[ranked, encoding].sum())
        rows.append(("here", encoding, *found, len(ranked), own))
    columns = ["source", "encoding", *figures.Interval._fields, "tasks", "solved"]
    theirs = published().assign(source=PAPER, n=3, tasks=10).rename(columns={"mrr": "value"})
    both = pd.concat([pd.DataFrame(rows, columns=columns), theirs.reindex(columns=columns)])
    both = both.astype({"tasks": "Int64", "solved": "Int64"})
    return both.rename(columns={"value": "mrr"}).reset_index(drop=True)


# ---- drawing -------------------------------------------------------------------------------------


def draw_curves(frame: pd.DataFrame):
    """A panel a task; the dashed line is the longest length trained on."""
    panels = list(dict.fromkeys(frame["panel"]))
    columns = min(len(panels), 3)
    figure, axes = figures.canvas(columns, -(-len(panels) // columns))
    for ax, panel in zip(axes, panels, strict=False):
        figures.curves(ax, frame[frame["panel"] == panel])
        ax.axvline(L, color="#999999", lw=0.8, ls="--", zorder=0)
        ax.set(title=title(frame, panel), xlabel="length of the instance", ylim=(-0.03, 1.03))
        ax.set_xticks(sorted(frame["x"].unique()), minor=True)
        ax.set_xticks([L, 2 * L, 3 * L])
        figures.direct_labels(ax)
    for ax in axes[::columns]:
        ax.set_ylabel("exact match")
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    return figure


def title(frame: pd.DataFrame, task: str) -> str:
    """The name of the task, and whether no encoding of the survey has solved it."""
    able = [e for e in _solving(frame, task) if e in SURVEY]
    return task.replace("_", " ") + ("" if able else ", unsolved")


def _solving(frame: pd.DataFrame, task: str) -> list[str]:
    """The encodings that solve a task at the trained lengths, from the frame of `curves`."""
    rows = frame[(frame["panel"] == task) & (frame["x"] <= L)]
    means = rows.groupby("encoding", sort=False)["value"].mean()
    return list(means.index[means >= SOLVED])


def draw_map(frame: pd.DataFrame):
    """The same as a heat map: a row an encoding, a column a length, a panel a task; in parentheses
    where the encoding has not solved the task at the trained lengths."""
    panels = list(dict.fromkeys(frame["panel"]))
    columns = min(len(panels), 4)
    figure, axes = figures.canvas(columns, -(-len(panels) // columns))
    names = figures.looks(frame["encoding"])
    for i, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
        table = frame[frame["panel"] == panel].pivot(index="encoding", columns="x", values="value")
        table = table.reindex(index=list(names))
        able = _solving(frame, panel)
        image = ax.imshow(table, norm=Normalize(0, 1), aspect="auto", cmap="cividis")
        for (row, column), value in np.ndenumerate(table.to_numpy()):
            if np.isnan(value):  # not trained on this task
                continue
            ink = "white" if value < 0.5 else "black"
            text = f"{100 * value:.0f}" if table.index[row] in able else f"({100 * value:.0f})"
            ax.text(column, row, text, ha="center", va="center", color=ink, size=8)
        ax.set_xticks(range(table.shape[1]), [f"{x:g}" for x in table.columns])
        labels = [look.label for look in names.values()] if i % columns == 0 else []
        ax.set_yticks(range(len(labels)), labels)
        ax.axvline((table.columns <= L).sum() - 0.5, color="white", lw=2)
        ax.set(title=title(frame, panel), xlabel="length of the instance")
        ax.grid(False)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    figure.colorbar(image, ax=list(axes), label="exact match (numbers: %)", shrink=0.8)
    return figure


def draw_offsets(frame: pd.DataFrame):
    """Pairs of points: filled with positions as trained on, open with shifted ones."""
    panels = list(dict.fromkeys(frame["panel"]))
    columns = min(len(panels), 4)
    figure, axes = figures.canvas(columns, -(-len(panels) // columns))
    names = figures.looks(frame["encoding"])
    for i, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
        rows = frame[frame["panel"] == panel].set_index(["encoding", "x"])
        for y, (name, look) in enumerate(names.items()):
            kind = "drawn" if name == RANDOM else "exact"
            if (name, kind) not in rows.index:
                continue
            a, b = rows.loc[(name, kind)], rows.loc[(name, "shifted")]
            ax.plot([a["value"], b["value"]], [y, y], color=look.colour, lw=1, zorder=1)
            for at, row, face in ((y - 0.08, a, look.colour), (y + 0.08, b, "white")):
                ax.hlines(at, max(row["low"], 0), min(row["high"], 1), color=look.colour, lw=1)
                ax.plot(row["value"], at, look.marker, color=look.colour, mfc=face, zorder=3)
        labels = [look.label for look in names.values()] if i % columns == 0 else []
        ax.set_yticks(range(len(labels)), labels)
        ax.set(title=panel.replace("_", " "), xlim=(-0.05, 1.05))
        ax.set_xlabel("exact match; filled: as trained, open: shifted")
        ax.set_ylim(len(names) - 0.5, -0.5)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    return figure


FIGURES = {
    "generalization": (curves, draw_curves),
    "generalization_map": (curves, draw_map),
    "generalization_offset": (offsets, draw_offsets),
}
TABLES = {"generalization_ranks": mean_reciprocal_rank}
