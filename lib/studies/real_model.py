"""A real language model past its context: SmolLM2-135M (L = 8192) under each scaling of RoPE.

Question: what does each way of extending RoPE cost inside the old context, what does it gain past
it, and at which factor?

Nothing is trained. Four things are measured, as losses of tokens:

    layout    512 tokens with W_q and W_k read in the layout of the file, and in the other: a check
              that the model is read right.
    long      one text from its beginning to past L, by blocks of targets: none, PI, NTK, YaRN.
    short     the beginnings of several messages, far inside L, at several factors: what a factor
              costs whoever does not need it.
    passkey   (full) five digits hidden at some depth of a text and asked for at its end, inside L
              and past it: found where the model, reading greedily, writes all five.

The long text is the message of 2026, which is younger than the model: it cannot know it by heart.
Methods are compared block by block on the same targets of one text, or message by message. The
intervals of the long text are over its blocks: they say how far the finding depends on the passage,
not what another text would give.

Dynamic NTK needs no run of its own where its base for the text's length is that of an NTK that was
run: with s = 2 and a text of 1.5·L, s·1.5 − (s − 1) = 2. A text that ends inside L is not scaled.
"""

import logging

import numpy as np
import pandas as pd
import torch

from lib import corpus, figures, runs, smollm2
from lib.encodings import build
from lib.encodings.rope import LAYOUTS

log = logging.getLogger(__name__)

L, D, H, BASE = 8192, 576, 9, 100_000.0  # the model's context, width, heads and base
BLOCK = 128  # targets of a row
YOUNG = "2026-Trump-1"
RATIOS = (1.05, 1.1, 1.2, 1.3, 1.4, 1.5)  # of the windows that are read unscaled
NONE = "none", 1.0


def _at(factors, *methods) -> list[list]:
    """[method, factor] of each, after the unscaled model."""
    return [["none", 1.0], *([method, float(s)] for method in methods for s in factors)]


LAYOUT = {"message": "1919-Wilson-1", "length": 511, "methods": [[x, 1.0] for x in LAYOUTS]}

# What each part reads, how many tokens of it, and with which methods; a part left out is not run.
PROFILES = {
    "quick": {
        "layout": LAYOUT,
        "long": {"messages": [YOUNG], "length": 512, "methods": _at([2], "linear", "yarn")},
    },
    "default": {
        "layout": LAYOUT,
        "long": {
            "messages": [YOUNG],
            "length": 12_288,
            "methods": _at([2], "linear", "ntk", "yarn"),
        },
        "short": {
            "messages": 6,
            "length": 768,
            "methods": [
                *_at([2], "linear"),
                *_at([2, 4, 8], "ntk", "yarn")[1:],
                ["ntk_by_parts", 4.0],
            ],
        },
    },
    "full": {
        "layout": LAYOUT,
        "long": {
            "messages": ["1835-Jackson-1", "1885-Cleveland-1", "1910-Taft-1"],
            "length": 16_384,
            "methods": _at([2], "linear", "ntk", "dynamic", "ntk_by_parts", "yarn"),
        },
        "short": {
            "messages": 12,
            "length": 768,
            "methods": _at([1.5, 2, 4, 8], "linear", "ntk", "ntk_by_parts", "yarn"),
        },
        "passkey": {
            "lengths": [2048, 4096, 6144, 8192, 10_240, 12_288, 14_336],
            "depths": [0.1, 0.3, 0.5, 0.7, 0.9],
            "methods": _at([2], "linear", "ntk", "yarn"),
        },
    },
}
# Core-seconds, measured; "full" is reckoned from its operations, not run yet.
COST = {"quick": 30, "default": 770, "full": 16_000}


def jobs(profile: str) -> list[runs.Job]:
    """A long pass is a job of its own; of short ones a job holds a message with all methods."""
    found, parts = [], PROFILES[profile]

    def add(part, message, length, methods, passes=1, **more):
        settings = {"part": part, "message": message, "length": length, "methods": methods}
        settings |= {"block": BLOCK, **more}
        tokens = length * len(methods) * passes
        found.append(runs.Job(None, __name__, settings, measure_tokens=tokens))

    if p := parts.get("layout"):
        add("layout", p["message"], p["length"], p["methods"])
    if p := parts.get("long"):
        methods = p["methods"]
        for group in [[m] for m in methods] if p["length"] > L else [methods]:
            for message in p["messages"]:
                add("long", message, p["length"], group)
    if p := parts.get("short"):
        for message in beginnings(p["messages"]):
            add("short", message, p["length"], p["methods"])
    if p := parts.get("passkey"):
        for method in p["methods"]:
            for length in p["lengths"]:
                depths = p["depths"]
                add("passkey", YOUNG, length, [method], passes=len(depths), depths=depths)
    return found


def beginnings(n: int) -> list[str]:
    """n messages of the corpus, long enough ones, evenly over the years; without YOUNG."""
    names = [n for n, tokens in corpus.load().tokens.items() if len(tokens) >= L and n != YOUNG]
    return [names[(2 * i + 1) * len(names) // (2 * n)] for i in range(n)]


# ---- measuring -----------------------------------------------------------------------------------


def measure(decoder, training, settings: dict) -> list[dict]:
    """Rows of one job, as COLUMNS; none, and a warning, where the model is not installed. Decoder
    and training are None."""
    try:
        smollm2.file()
    except ValueError as error:
        log.warning("%s The study of a real language model is left out.", error)
        return []
    # As published: paragraphs apart by an empty line, as the model has mostly seen them.
    text = corpus.read_texts(corpus.source())[settings["message"]]
    tokens = smollm2.encode(text)
    rows = []
    for method, factor in settings["methods"]:
        if settings["part"] == "layout":
            model = smollm2.load(layout=method)
        else:
            model = smollm2.load(scaling(method, factor))
        about = {"method": method, "factor": factor, "message": settings["message"]}
        about |= {"part": settings["part"], "length": settings["length"]}
        if settings["part"] == "passkey":
            length, depths = settings["length"], settings["depths"]
            rows += [about | row for row in _passkeys(model, tokens, length, depths)]
        else:
            length, block = settings["length"], settings["block"]
            rows += [about | row for row in _blocks(model, tokens, length, block)]
    return rows


def scaling(method: str, factor: float) -> dict | None:
    """What `build("rope", scaling=…)` takes; the original length is the model's own."""
    return None if method == "none" else {"rope_type": method, "factor": factor}


def _blocks(model, tokens, length: int, block: int) -> list[dict]:
    """The mean loss of each `block` of targets, of the first `length` of them."""
    if len(tokens) <= length:
        raise ValueError(f"The text has {len(tokens)} tokens, and {length + 1} are asked for.")
    losses = smollm2.losses(model, tokens[: length + 1])
    parts = {start: losses[start : start + block] for start in range(0, length, block)}
    return [
        {"start": start, "nll": _rounded(part.mean()), "tokens": len(part)}
        for start, part in parts.items()
    ]


def _passkeys(model, tokens, length: int, depths: list[float]) -> list[dict]:
    """One row a depth: the loss of the key's digits, and whether all of them are the likeliest."""
    rows = []
    for number, depth in enumerate(depths):
        generator = np.random.default_rng([length, number])
        key = "".join(map(str, generator.integers(10, size=5)))
        prompt, start = passkey_prompt(tokens, length, depth, key)
        digits = smollm2.encode(key)
        found = smollm2.last_logits(model, np.concatenate([prompt, digits[:-1]]), len(digits))
        nll = torch.nn.functional.cross_entropy(found, torch.from_numpy(digits))
        right = bool((found.argmax(-1).numpy() == digits).all())
        rows.append(
            {"start": start, "nll": _rounded(nll), "tokens": len(digits), "found": float(right)}
        )
    return rows


def passkey_prompt(tokens, length: int, depth: float, key: str) -> tuple[np.ndarray, int]:
    """`length` tokens that end where the key is to be written, and the place of the key in them.

    The text is cut so that it fits; at `depth` (0 beginning … 1 end) it is broken by a line with
    the key. After Mohtashami & Jaggi 2023, appendix: there the text is one sentence over and over,
    here it is a real one.
    """
    line = smollm2.encode(f"\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n")
    question = smollm2.encode("\n\nWhat is the pass key? The pass key is ")
    room = length - len(line) - len(question)
    if not 0 < room <= len(tokens):
        raise ValueError(f"A prompt of {length} tokens does not fit the text: choose another.")
    before = round(depth * room)
    parts = [tokens[:before], line, tokens[before:room], question]
    return np.concatenate(parts), before


def _rounded(x) -> float:
    return float(f"{float(x):.7g}")


# The code that the rows depend on, besides the model's own.
MEASURING = (
    measure, scaling, _blocks, _passkeys, passkey_prompt, _rounded, "lib.smollm2", "lib.corpus"
)  # fmt: skip


# ---- results -------------------------------------------------------------------------------------

COLUMNS = ["part", "message", "length", "method", "factor", "start", "nll", "tokens", "found"]


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`real_model.csv`: COLUMNS; nll is the mean over `tokens` targets from `start` on, in nats."""
    return pd.DataFrame([row for o in outcomes for row in o.rows], columns=COLUMNS)


def _table(results: pd.DataFrame, part: str) -> pd.DataFrame:
    rows = results[results["part"] == part]
    return rows.pivot(index=["message", "start"], columns=["method", "factor"], values="nll")


def _length(results: pd.DataFrame) -> int:
    """Tokens of a long text; 0 where none was read."""
    long = results[results["part"] == "long"] if len(results) else results
    return int(long["length"].max()) if len(long) else 0


def _long(results: pd.DataFrame) -> pd.DataFrame:
    """The blocks of the long texts, one a row (message, start), and a column a (method, factor):
    mean losses in nats. Dynamic NTK is added where its base was run as NTK's (see above)."""
    table, length = _table(results, "long"), _length(results)
    if len(table) and not any(method == "dynamic" for method, _ in table):
        for method, s in list(table):
            same = s * length / L - (s - 1)  # the factor of the base for this length
            if method == "ntk" and length > L and ("ntk", same) in table:
                table[("dynamic", s)] = table[("ntk", same)]
    return table


def change(results: pd.DataFrame, method: str, factor: float, where: str) -> figures.Interval:
    """As `between`, against the unscaled model. Inside L, dynamic NTK does nothing."""
    if method == "dynamic" and where == "inside":
        return between(results, NONE, NONE, where)
    return between(results, (method, factor), NONE, where)


def between(results: pd.DataFrame, a: tuple, b: tuple, where: str) -> figures.Interval:
    """ln of the perplexity under `a` over that under `b` on the same targets, with its interval;
    each is (method, factor).

    where: "inside", "past" or "end", of the long texts before L, after it, and their last eighth;
    "short", the short texts. The interval is over messages where there are three or more, else over
    blocks of the one. UNKNOWN where the profile has not measured both.
    """
    if where == "short":
        table = _table(results, "short")
    else:
        table = _long(results)
        start, length = table.index.get_level_values("start"), _length(results)
        # The end of a text that does not reach past L says nothing about it.
        low = {"inside": 0, "past": L, "end": max(L, length * 7 / 8)}[where]
        table = table[(start >= low) & (start < (L if where == "inside" else length))]
    if table.empty or a not in table or b not in table:
        return UNKNOWN
    difference = table[a] - table[b]
    by_message = difference.groupby(level="message").mean()
    return figures.interval(by_message if len(by_message) > 2 else difference)


UNKNOWN = figures.Interval(np.nan, np.nan, np.nan, np.nan, 0)


def unscaled_window(results: pd.DataFrame, ratio: float) -> figures.Interval:
    """ln of the unscaled model's perplexity over a window of ratio·L tokens, over that of L tokens.

    A text gets harder and easier as it goes on. That is taken out by NTK(2), which reads all of it
    alike: e, the loss unscaled minus that of NTK, past L less inside L; a window of ratio·L dilutes
    it by the share (ratio − 1)/ratio that lies past L. The interval is over blocks or messages past
    L. UNKNOWN where the text is shorter or NTK was not run.
    """
    table, length = _long(results), _length(results)
    if ("ntk", 2.0) not in table or NONE not in table or ratio * L > length:
        return UNKNOWN
    excess = table[NONE] - table[("ntk", 2.0)]
    start = excess.index.get_level_values("start")
    inside = excess[start < L].groupby(level="message").mean()
    past = excess[(start >= L) & (start < ratio * L)]
    past = (past - inside.reindex(past.index, level="message")) * (ratio - 1) / ratio
    if past.empty:
        return UNKNOWN
    by_message = past.groupby(level="message").mean()
    return figures.interval(by_message if len(by_message) > 2 else past)


def percent(estimate: figures.Interval) -> figures.Interval:
    """A difference of logarithms, as a change in per cent."""
    sd = 100 * estimate.sd * np.exp(estimate.value)
    value, low, high = (100 * np.expm1(estimate[i]) for i in (0, 2, 3))
    return figures.Interval(value, sd, low, high, estimate.n)


def perplexity(results: pd.DataFrame, method: str, factor: float, start: float, stop: float):
    """Of the targets start … stop − 1 of the long texts, as shares of their length; NaN without."""
    table = _long(results)
    if (method, factor) not in table:
        return np.nan
    length = _length(results)
    at = table.index.get_level_values("start")
    rows = table[(method, factor)][(at >= start * length) & (at < stop * length)]
    return float(np.exp(rows.mean()))


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """A row a method and factor: perplexity in the first half of the long text and in its last
    sixteenth; the change in per cent against unscaled inside L, past it, and on short texts."""
    pairs = results.loc[
        results["part"].isin(["long", "short"]), ["method", "factor"]
    ].drop_duplicates()
    pairs = [tuple(pair) for pair in pairs.to_numpy()]
    pairs += [pair for pair in _long(results) if pair not in pairs]
    rows = []
    for method, factor in pairs:
        row = {"method": method, "factor": factor}
        row["first_half"] = perplexity(results, method, factor, 0, 1 / 2)
        row["last_sixteenth"] = perplexity(results, method, factor, 15 / 16, 1)
        for where in ("inside", "past", "end", "short"):
            found = percent(change(results, method, factor, where))
            row |= {where: found.value, f"{where}_low": found.low, f"{where}_high": found.high}
            row[f"{where}_n"] = found.n
        rows.append(row)
    return pd.DataFrame(rows)


def windows(results: pd.DataFrame) -> pd.DataFrame:
    """What an unscaled window of ratio·L tokens loses against one of L, in per cent."""
    rows = []
    for ratio in RATIOS:
        found = percent(unscaled_window(results, ratio))
        rows.append({"ratio": ratio, **found._asdict()})
    return pd.DataFrame(rows)


def by_position(results: pd.DataFrame) -> pd.DataFrame:
    """Perplexity in sixteenths of the long text at factor 2, by the position at their middle; of
    dynamic NTK what a text shows that ends there: unscaled up to L, and the whole text's end."""
    table, rows = _long(results), []
    if table.empty:
        return pd.DataFrame(columns=figures.COLUMNS)
    length = _length(results)
    bin = max(BLOCK, length // 16)
    for method, factor in table:
        if factor not in (1.0, 2.0):
            continue
        for start, losses in table.groupby(table.index.get_level_values("start") // bin * bin):
            source = (method, factor)
            if method == "dynamic" and start + bin <= L:
                source = NONE
            elif method == "dynamic" and start + bin < length:
                continue
            nll = losses[source]
            row = {"panel": "position", "encoding": method, "x": start + bin / 2}
            row["value"] = np.exp(nll.mean())
            row["sd"] = row["value"] * nll.std() if len(nll) > 1 else np.nan
            rows.append(row | {"low": np.nan, "high": np.nan, "n": len(nll)})
    return pd.DataFrame(rows, columns=figures.COLUMNS)


def trade(results: pd.DataFrame) -> pd.DataFrame:
    """Per cent of perplexity against unscaled, inside L and in the last eighth of the long text."""
    rows = []
    for where in ("inside", "end"):
        for method, factor in _long(results):
            found = percent(change(results, method, factor, where))
            if found.n:
                rows.append({"panel": where, "encoding": method, "x": factor, **found._asdict()})
    return pd.DataFrame(rows, columns=figures.COLUMNS)


def reach(method: str, factor: float) -> float:
    """How many times L a text may be before a slow pair meets angles that no training has shown.

    Pairs that complete a turn within L have shown all of theirs; a slower one has shown 0 … L·θ,
    and θ'·T stays in it while T/L ≤ θ/θ'. For PI and YaRN that is s; for NTK s^(2k/(d − 2)) of the
    first such pair k.
    """
    sizes = {"d_model": D, "n_heads": H, "max_length": L, "base": BASE}
    plain = build("rope", **sizes).frequencies()
    scaled = build("rope", **sizes, scaling=scaling(method, factor)).frequencies()
    slow = plain * L < 2 * np.pi
    return float((plain / scaled)[slow].min())


def factors(results: pd.DataFrame) -> pd.DataFrame:
    """Per cent of perplexity against unscaled on short texts, by how far a factor reaches."""
    pairs = results.loc[results["part"] == "short", ["method", "factor"]].drop_duplicates()
    rows = []
    for method, factor in pairs.to_numpy():
        if method != "none":
            found = percent(change(results, method, factor, "short"))
            row = {"panel": "short", "encoding": method, "x": round(reach(method, factor), 4)}
            rows.append({**row, **found._asdict(), "factor": factor})
    return pd.DataFrame(rows, columns=[*figures.COLUMNS, "factor"])


def passkeys(results: pd.DataFrame) -> pd.DataFrame:
    """The share of keys found, by length of the prompt, over depths; at most factor 2."""
    rows = results[results["part"] == "passkey"]
    frame = figures.summarise(rows, ["method", "length"], "found") if len(rows) else rows
    frame = frame.rename(columns={"method": "encoding", "length": "x"}).assign(panel="passkey")
    return frame.reindex(columns=figures.COLUMNS)


# ---- drawing -------------------------------------------------------------------------------------


def _empty(ax, frame) -> bool:
    """Whether the profile has measured nothing to draw here, and says so."""
    if frame.empty:
        ax.text(0.5, 0.5, "not in this build", ha="center", va="center", transform=ax.transAxes)
    return frame.empty


def draw_by_position(frame: pd.DataFrame):
    figure, (ax,) = figures.canvas()
    ax.set(xlabel="position (tokens)", ylabel="perplexity", yscale="log")
    if not _empty(ax, frame):
        looks = figures.looks(frame["encoding"])
        for method, rows in frame.groupby("encoding", sort=False):
            look = looks[method]
            dotted = method == "dynamic"  # its two regimes: inside it lies on unscaled
            rows = rows[rows["x"] > L] if dotted else rows
            marker = look.marker if dotted else ""
            ax.plot(
                rows["x"], rows["value"], look.line, label=look.label, color=look.colour,
                marker=marker, zorder=3 if dotted else 2,
            )  # fmt: skip
        ax.axvline(L, color="#999999", lw=0.8, ls="--", zorder=0)
        ax.set_yticks([10, 15, 20, 30, 40, 60], labels=["10", "15", "20", "30", "40", "60"])
        ax.minorticks_off()
        ax.set_ylim(0.9 * frame["value"].min(), 1.1 * frame["value"].max())
        figures.direct_labels(ax)
    return figure


def draw_trade(frame: pd.DataFrame):
    """One point a method: to the left is gained past L, upwards is paid inside it."""
    figure, (ax,) = figures.canvas()
    ax.set(xlabel=f"perplexity at the end, past {L} (% against unscaled)")
    ax.set(ylabel=f"perplexity inside {L}\n(% against unscaled)")
    both = frame.pivot(index=["encoding", "x"], columns="panel", values=["value", "low", "high"])
    if "end" not in frame["panel"].to_numpy():
        both = both.iloc[:0]
    if not _empty(ax, both):
        looks = figures.looks(frame["encoding"])
        for (method, _), row in both.iterrows():
            look, (x, y) = looks[method], (row["value", "end"], row["value", "inside"])
            ax.plot(x, y, look.marker, color=look.colour, ms=8, zorder=3)
            ax.hlines(y, row["low", "end"], row["high", "end"], color=look.colour, lw=1.4)
            ax.vlines(x, row["low", "inside"], row["high", "inside"], color=look.colour, lw=1.4)
            below = method == "yarn"  # beside NTK, as often as not
            ax.annotate(
                look.label, (x, y), xytext=(9, -14 if below else 6), textcoords="offset points",
                color=figures._legible(look.colour),
            )  # fmt: skip
        ax.set_yscale("symlog", linthresh=1, linscale=0.6)
        ax.set_yticks([0, 1, 2, 5, 10, 100], labels=["0", "+1", "+2", "+5", "+10", "+100"])
        ax.minorticks_off()
        ax.margins(0.15)
    return figure


def draw_factors(frame: pd.DataFrame):
    """PI leaves the axes, which would hide the others; its value stands where it leaves."""
    figure, (ax,) = figures.canvas()
    ax.set(xlabel="longest text without new angles (times L)")
    ax.set(ylabel="perplexity of short texts\n(% against unscaled)")
    if not _empty(ax, frame):
        others = frame[frame["encoding"] != "linear"]
        figures.curves(ax, others)
        for row in others.itertuples():
            ax.annotate(
                f"s = {row.factor:g}", (row.x, row.value), xytext=(6, -11), fontsize=8.5,
                textcoords="offset points", color=figures._legible(figures.COLOURS[row.encoding]),
            )  # fmt: skip
        top = ax.get_ylim()[1]
        for row in frame[frame["encoding"] == "linear"].itertuples():
            label, colour = figures.LABELS["linear"], figures.COLOURS["linear"]
            ax.annotate(
                f"{label}, s = {row.factor:g}: {row.value:+.0f} % ↑", (row.x, top),
                xytext=(0, -4), textcoords="offset points", va="top", ha="center", color=colour,
            )  # fmt: skip
        ax.axhline(0, color="#999999", lw=0.8, ls="--", zorder=0)
        ax.set(xscale="log", ylim=(None, top))
        ax.set_xticks([1.5, 2, 3, 4, 6, 8], labels=["1.5", "2", "3", "4", "6", "8"])
        ax.minorticks_off()
        figures.direct_labels(ax)
    return figure


def draw_passkeys(frame: pd.DataFrame):
    figure, (ax,) = figures.canvas()
    ax.set(xlabel="tokens of the prompt", ylabel="keys found", ylim=(-0.05, 1.05))
    if not _empty(ax, frame):
        figures.curves(ax, frame)
        ax.axvline(L, color="#999999", lw=0.8, ls="--", zorder=0)
        figures.direct_labels(ax)
    return figure


FIGURES = {
    "real_model_by_position": (by_position, draw_by_position),
    "real_model_trade": (trade, draw_trade),
    "real_model_factors": (factors, draw_factors),
}
TABLES = {"real_model_summary": summary, "real_model_windows": windows}
