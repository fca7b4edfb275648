"""Positions in two dimensions: small vision transformers read off the grid that they know.

Question: which encoding lets a model of pictures trained on one grid read others? Three questions
hide in it, and each is asked:

    as they come   The same picture sampled at more points, counted 0, 1, 2 …: its strokes are now
                   more steps long than any were in training.
    scaled         The same points at the places of the picture that they come from, between those
                   of training: position interpolation in two dimensions.
    canvas         The picture as in training, on a larger canvas that is empty elsewhere.

    and moved      Every position shifted by the same step down and right; no token changes. What a
                   relative encoding answers does not change at all.

Every token is a window of 2 × 2 pixels whatever the grid (`lib.images`), so that nothing but its
position tells how fine the grid is. Beside the encodings of the grid stand RoPE on the line that
one reads row by row, and no encoding at all. Fashion-MNIST joins the full profile where its files
are.
"""

import hashlib
import json
import logging

import numpy as np
import pandas as pd
import torch

from lib import figures, files, images, paths, runs, vit
from lib.transformer import Config

log = logging.getLogger(__name__)

# Variant → encoding, options; the raster counts places on a line instead of a grid.
VARIANTS = {
    "sinusoidal2d": ("sinusoidal2d", {}),
    "learned2d": ("learned2d", {"beyond": "interpolate"}),
    "rope_raster": ("rope", {}),
    "rope2d_axial": ("rope2d_axial", {}),
    "rope2d_mixed": ("rope2d_mixed", {}),
    "alibi2d": ("alibi2d", {}),
    "alibi2d_directional": ("alibi2d", {"directional": True}),
    "nope": ("nope", {}),
}
TRAINED = (6, 6)  # the grid of training
GRIDS = ((9, 9), (12, 12), (6, 12), (12, 6))
MOVED = (3, 3)
SIZES = {"d_model": 48, "n_heads": 4, "n_layers": 2, "d_ff": 96}
WINDOWS = {"digits": 2, "fashion_mnist": 5}  # pixels a side
EPOCHS = {"digits": 12, "fashion_mnist": 4}
MOST = 6000  # pictures of a set that are trained with; a third as many judge
TOKENS_A_PICTURE = TRAINED[0] * TRAINED[1]

QUICK = ("rope2d_axial", "alibi2d", "alibi2d_directional")
PROFILES = {
    "quick": {"variants": QUICK, "seeds": 1, "epochs": 4, "grids": GRIDS[1:2]},
    "default": {
        "variants": tuple(VARIANTS),
        "seeds": 3,
        "epochs": EPOCHS["digits"],
        "grids": GRIDS,
    },
    "full": {"variants": tuple(VARIANTS), "seeds": 5, "epochs": EPOCHS["digits"], "grids": GRIDS},
}
# Core-seconds, measured; Fashion-MNIST adds about 800 to the full profile where it is.
COST = {"quick": 15, "default": 280, "full": 470}

RECORD = paths.DATA / "vision_learning_rates.csv"
SWEEP_SEED = 1000  # no study trains with it
RATES = (2e-3, 4e-3, 8e-3)
ENCODING_RATES = (1.0, 4.0, 16.0)  # of encodings with parameters; the first serves the first sweep
WITH_PARAMETERS = ("learned2d", "rope2d_mixed")


def jobs(profile: str) -> list[runs.Job]:
    """One for each variant, seed and set of pictures; each trains its own model."""
    p = PROFILES[profile]
    asked = [("digits", p["epochs"])]
    if profile == "full" and images.FASHION.exists():
        asked.append(("fashion_mnist", EPOCHS["fashion_mnist"]))
    elif profile == "full":
        log.warning("Fashion-MNIST is not in %s, and is left out.", images.FASHION)
    return [
        _job(variant, seed, pictures, epochs, p["grids"], **chosen(variant))
        for pictures, epochs in asked
        for variant in p["variants"]
        for seed in range(p["seeds"])
    ]


def _job(variant, seed, pictures, epochs, grids, learning_rate, encoding_rate, part="test"):
    settings = {
        "variant": variant,
        "pictures": pictures,
        "seed": seed,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "encoding_rate": encoding_rate,
        "grids": [list(grid) for grid in grids],
        "part": part,
    }
    # Rows are measured anew when one of the constants above changes.
    built = [VARIANTS[variant], TRAINED, MOVED, SIZES, WINDOWS[pictures], MOST]
    settings["built"] = hashlib.sha256(json.dumps(built).encode()).hexdigest()[:8]
    return runs.Job(None, __name__, settings, measure_tokens=epochs * 1347 * TOKENS_A_PICTURE)


# ---- training and measuring ----------------------------------------------------------------------


def measure(decoder, training, settings: dict) -> list[dict]:
    """Train one model, and give its accuracies: rows {question, height, width, accuracy, n}.

    Decoder and training are None. The part "sweep" is the last fifth of the training pictures,
    which is then not trained with; it is asked for the trained grid alone.
    """
    pictures, labels, test, test_labels, blank = _data(settings["pictures"], settings["part"])
    window, variant = WINDOWS[settings["pictures"]], settings["variant"]
    model = model_of(variant, settings["seed"], window)
    vit.train(
        model,
        images.tokens(pictures, TRAINED, window),
        labels,
        positions(variant, TRAINED),
        seed=settings["seed"],
        epochs=settings["epochs"],
        learning_rate=settings["learning_rate"],
        encoding_rate=settings["encoding_rate"],
    )
    model.eval()
    rows = []

    def ask(question, grid, tokens, at, of=model):
        value = vit.accuracy(of, tokens, test_labels, at)
        h, w = grid
        rows.append({"question": question, "height": h, "width": w, "accuracy": round(value, 6)})

    trained_on = images.tokens(test, TRAINED, window)
    ask("trained", TRAINED, trained_on, positions(variant, TRAINED))
    if settings["part"] == "test":
        larger = grown(model, settings["seed"])
        ask("moved", TRAINED, trained_on, positions(variant, TRAINED, moved=MOVED), larger)
        for grid in map(tuple, settings["grids"]):
            tokens = images.tokens(test, grid, window)
            ask("as they come", grid, tokens, positions(variant, grid), larger)
            ask("scaled", grid, tokens, positions(variant, grid, scaled=True))
        canvas = tuple(n + by for n, by in zip(TRAINED, MOVED, strict=True))
        for question, corner in (("canvas, first corner", (0, 0)), ("canvas, last corner", MOVED)):
            tokens = images.on_canvas(trained_on, TRAINED, canvas, corner, blank)
            ask(question, canvas, tokens, positions(variant, canvas), larger)
    return [row | {"n": len(test)} for row in rows]


def _data(name: str, part: str):
    """Pictures and labels to train with, pictures and labels to judge by, and the empty grey."""
    p = images.SETS[name]()
    pictures, labels = p.train[:MOST], p.train_labels[:MOST]
    if part == "test":
        return pictures, labels, p.test[: MOST // 3], p.test_labels[: MOST // 3], p.blank
    cut = len(pictures) * 4 // 5
    return pictures[:cut], labels[:cut], pictures[cut:], labels[cut:], p.blank


def model_of(variant: str, seed: int, window: int = WINDOWS["digits"]) -> vit.ViT:
    """The untrained model of a variant."""
    encoding, options = VARIANTS[variant]
    places = TRAINED[0] * TRAINED[1]
    config = Config(encoding=encoding, options=options, vocabulary=10, max_length=places, **SIZES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return vit.ViT(config, window * window)


def positions(variant: str, grid, scaled: bool = False, moved=(0, 0)) -> torch.Tensor:
    """Where the tokens of a grid stand: (h·w, 2), and for the raster (h·w,).

    `scaled` puts them back into the range of training: on the grid each axis by its own factor, on
    the line, which has one number, by the ratio of the numbers of tokens.
    """
    if variant == "rope_raster":
        line = torch.arange(grid[0] * grid[1])
        if scaled:
            return line * (TRAINED[0] * TRAINED[1] / len(line))
        return line + moved[0] * grid[1] + moved[1]
    if scaled:
        return images.scaled_places(grid, TRAINED)
    return images.places(grid) + torch.tensor(moved)


def grown(model: vit.ViT, seed: int) -> vit.ViT:
    """The model with a table that has a place for every position asked for, untrained ones past the
    grid of training; a model without a table is itself."""
    if not hasattr(model.encodings[0], "grow"):
        return model
    largest = tuple(max(n) for n in zip(*GRIDS, strict=True))
    encodings = torch.nn.ModuleList(
        [e.grow(largest, torch.Generator().manual_seed(seed)) for e in model.encodings]
    )
    other = model_of("nope", seed, round(model.into.in_features**0.5))
    other.load_state_dict(model.state_dict(), strict=False)
    other.encodings = encodings
    return other.eval()


MEASURING = (measure, _data, model_of, positions, grown, "lib.images", "lib.vit")


# ---- learning rates ------------------------------------------------------------------------------


def chosen(variant: str) -> dict[str, float]:
    """`learning_rate` and `encoding_rate` of a variant, from the record.

    Raises ValueError when the record has no row for it.
    """
    record = pd.read_csv(RECORD)
    row = record[(record["encoding"] == variant) & record["chosen"]]
    if len(row) != 1:
        raise ValueError(
            f"data/{RECORD.name} has no chosen rate for {variant!r}: run `python -m lib sweep`."
        )
    return row[["learning_rate", "encoding_rate"]].iloc[0].to_dict()


def sweep() -> pd.DataFrame:
    """Run the sweep and write the record: three rates a variant; for those with parameters of their
    own three rates of these, at the best of the first three. Ties go to the lower rate."""
    first = [(v, rate, ENCODING_RATES[0]) for v in VARIANTS for rate in RATES]
    rows = _swept(first, "learning rates of pictures")
    best = rows.loc[rows.groupby("encoding")["accuracy"].idxmax()].set_index("encoding")
    second = [
        (v, float(best.loc[v, "learning_rate"]), own)
        for v in WITH_PARAMETERS
        for own in ENCODING_RATES[1:]
    ]
    rows = pd.concat([rows, _swept(second, "rates of the encodings' own")], ignore_index=True)
    rows["chosen"] = False
    rows.loc[rows.groupby("encoding")["accuracy"].idxmax(), "chosen"] = True
    rows = rows.sort_values(["encoding", "learning_rate", "encoding_rate"])
    files.write_csv(rows, RECORD)
    return rows


def _swept(asked: list[tuple], title: str) -> pd.DataFrame:
    sweeps = [
        _job(v, SWEEP_SEED, "digits", EPOCHS["digits"], (), rate, own, part="sweep")
        for v, rate, own in asked
    ]
    return pd.DataFrame(
        {
            "encoding": o.job.settings["variant"],
            "learning_rate": o.job.settings["learning_rate"],
            "encoding_rate": o.job.settings["encoding_rate"],
            "accuracy": row["accuracy"],
            "pictures": row["n"],
            "seed": SWEEP_SEED,
        }
        for o in runs.run(sweeps, title)
        for row in o.rows
    )


# ---- results -------------------------------------------------------------------------------------

COLUMNS = ["encoding", "seed", "pictures", "question", "height", "width", "accuracy", "n"]


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`vision.csv`: COLUMNS; accuracy is a share of n pictures."""
    rows = [
        {
            "encoding": o.job.settings["variant"],
            "seed": o.job.settings["seed"],
            "pictures": o.job.settings["pictures"],
            **row,
        }
        for o in outcomes
        for row in o.rows
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def accuracies(results: pd.DataFrame, encoding: str, question: str, grid=TRAINED) -> pd.Series:
    """Of the digits, by seed; empty where it was not measured."""
    r = results
    if r.empty:
        return pd.Series(dtype=float)
    r = r[(r["pictures"] == "digits") & (r["encoding"] == encoding) & (r["question"] == question)]
    r = r[(r["height"] == grid[0]) & (r["width"] == grid[1])]
    return r.set_index("seed")["accuracy"]


def paired(results: pd.DataFrame, a: str, b: str, question: str, grid=TRAINED) -> pd.Series:
    """The accuracy of `a` less that of `b`, over the seeds that both have."""
    x, y = (accuracies(results, name, question, grid) for name in (a, b))
    seeds = x.index.intersection(y.index)
    return x[seeds] - y[seeds]


# ---- figures -------------------------------------------------------------------------------------


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Tidy: a panel a question, x the grid."""
    key = ["question", "encoding", "height", "width"]
    rows = figures.summarise(results[results["pictures"] == "digits"], key, "accuracy")
    rows["x"] = rows["height"].astype(str) + "×" + rows["width"].astype(str)
    rows = rows.rename(columns={"question": "panel"})
    return rows[[*figures.COLUMNS, "height", "width"]]


def draw_summary(frame: pd.DataFrame):
    """Rows are encodings, columns the grids of each question; darker is less accurate."""
    order = ["trained", "moved", "canvas, first corner", "canvas, last corner"]
    order[1:1] = ["scaled", "as they come"]
    columns = sorted(
        frame[["panel", "x", "height", "width"]].drop_duplicates().itertuples(index=False),
        key=lambda c: (order.index(c.panel), c.height != c.width, c.height * c.width, c.height),
    )
    names = [v for v in VARIANTS if v in set(frame["encoding"])]
    value = frame.set_index(["encoding", "panel", "x"])
    size = 0.62 * len(columns) + 2.4, 0.42 * len(names) + 1.6
    figure, ax = figures.plt.subplots(figsize=size, FigureClass=figures.HouseFigure)
    shades = np.array(
        [[value.loc[(name, c.panel, c.x), "value"] for c in columns] for name in names]
    )
    ax.imshow(shades, vmin=0, vmax=1, aspect="auto")
    for i, name in enumerate(names):
        for j, c in enumerate(columns):
            cell = value.loc[(name, c.panel, c.x)]
            words = f"{100 * cell['value']:.0f}"
            if np.isfinite(cell["high"]):
                words += f"\n± {100 * (cell['high'] - cell['value']):.0f}"
            ink = "white" if cell["value"] < 0.5 else "black"
            ax.text(j, i, words, ha="center", va="center", fontsize=8, color=ink, linespacing=0.95)
    looks = figures.looks(names)
    ax.set_yticks(range(len(names)), [looks[name].label for name in names])
    ax.set_xticks(range(len(columns)), [c.x for c in columns], fontsize=8.5)
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    starts = [j for j, c in enumerate(columns) if j == 0 or c.panel != columns[j - 1].panel]
    for start, end in zip(starts, [*starts[1:], len(columns)], strict=True):
        if start:
            ax.axvline(start - 0.5, color="white", lw=4)
        words = columns[start].panel.replace(", ", ",\n").replace(" corner", "\ncorner")
        ax.text((start + end - 1) / 2, -0.62, words, ha="center", va="bottom", fontsize=9)
    ax.set_xlabel("grid; accuracy in %, with half of its 95 % interval over seeds")
    return figure


def squares(results: pd.DataFrame) -> pd.DataFrame:
    """Tidy: a panel a way to place the points, x the side of a square grid; that of training is in
    both."""
    rows = results[(results["pictures"] == "digits") & (results["height"] == results["width"])]
    ways = ("as they come", "scaled")
    both = [
        rows[rows["question"].isin(("trained", way))].assign(panel=f"positions {way}")
        for way in ways
    ]
    frame = figures.summarise(pd.concat(both), ["panel", "encoding", "height"], "accuracy")
    return frame.rename(columns={"height": "x"})[figures.COLUMNS]


def draw_squares(frame: pd.DataFrame):
    figure, axes = figures.canvas(2)
    for ax, (panel, rows) in zip(axes, frame.groupby("panel", sort=False), strict=True):
        figures.curves(ax, rows)
        ax.axvline(TRAINED[0], color="#999999", lw=0.8, ls=":")
        ax.set(title=panel, xlabel="points along a side of the picture", ylim=(0, 1))
        ax.set_xticks(sorted(set(rows["x"])))
    axes[0].set_ylabel("accuracy")
    figures.direct_labels(axes[1])
    return figure


FIGURES = {"vision": (summary, draw_summary), "vision_squares": (squares, draw_squares)}
TABLES: dict = {}
