"""The main figure in the paper's own setting, scaled down to an hour of one GPU (`make gpu`).

Question: do the curves of the main figure keep their order on the text, the tokens and the training
length of Press et al. 2022, read up to 32 times that length?

WikiText-103, models trained on windows of 512, judged on the validation set as the paper's tables
are. Twice: on words, as there, and on byte-level BPE. What the paper has and this has not: 247M
parameters, 205 epochs, the adaptive softmax; and one rate serves all encodings, unswept. So
perplexities are far from the paper's, and ratios to the one at 512 are what compares.

It belongs to the profile gpu alone.
"""

import numpy as np
import pandas as pd

from lib import evaluation, figures, parallel, runs, texts, wikitext
from lib.training import TrainingConfig

ALONE = True  # one GPU, one run after another
L = 512
LENGTHS = (L, 768, 1024, 1536, 2048, 4096, 8192, 16_384)
BLOCK = max(LENGTHS)  # targets are scored in blocks of the longest length, the same for all
ENCODINGS = ("sinusoidal", "t5", "rope", "alibi", "nope")
LABELS = {"wikitext_words": "words", "wikitext_bpe": "BPE of 16,384"}

PROFILES = {
    "gpu": {
        "seeds": (0,),
        "training": {"d_model": 512, "n_heads": 8, "n_layers": 8, "d_ff": 1376},
        "tokens": {"wikitext_words": 24_576_000, "wikitext_bpe": 65_536_000},
        "batch_tokens": 16_384,
        "learning_rate": 1e-3,
        "encoding_rate": 10.0,  # of T5's bias, as most sweeps of the main figure chose
        "measuring": {"tokens": 13 * BLOCK, "sliding_tokens": 8 * 2048, "sliding_block": 2048},
    }
}
# Seconds of one H100-class GPU. A reckoning, not a measurement: at 40 % of the bfloat16 peak and
# three passes over the logits a step, about 110,000 words or 300,000 tokens of BPE a second.
COST = {"gpu": 3000}


def jobs(profile: str) -> list[runs.Job]:
    """Every encoding on words and on BPE."""
    p = PROFILES[profile]
    measuring = p["measuring"] | {"lengths": list(LENGTHS), "block": BLOCK}
    return [
        runs.Job(
            TrainingConfig(
                encoding=encoding,
                seed=seed,
                learning_rate=p["learning_rate"],
                encoding_rate=p["encoding_rate"],
                tokens=p["tokens"][text],
                train_length=L,
                batch_tokens=p["batch_tokens"],
                text=text,
                **p["training"],
            ),
            __name__,
            measuring,
            measure_tokens=p["measuring"]["tokens"] * len(LENGTHS),
            gpus=1,
        )
        for text in wikitext.KINDS
        for seed in p["seeds"]
        for encoding in ENCODINGS
    ]


# ---- measuring -----------------------------------------------------------------------------------


def measure(decoder, training: TrainingConfig, settings: dict) -> list[dict]:
    """One row for each evaluation and length: nll, nats a token of the validation set."""
    block, documents = settings["block"], texts.load(training.text).documents("valid")
    decoder = decoder.to(parallel.device())
    segments = {
        "nonoverlapping": evaluation.blocks(documents, block, settings["tokens"]),
        "sliding": evaluation.blocks(
            documents, settings["sliding_block"], settings["sliding_tokens"], context=block
        ),
    }
    rows = []
    for length in settings["lengths"]:
        for kind, scored in segments.items():
            stride = length // 8 if kind == "sliding" else None
            result = evaluation.evaluate(decoder, documents, length, stride, scored)
            nll = result.nll_sum / result.tokens
            row = {"evaluation": kind, "length": length, "nll": nll, "tokens": result.tokens}
            rows.append({"text": training.text, **row})
    return rows


MEASURING = (measure,)


# ---- results -------------------------------------------------------------------------------------


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`wikitext.csv`: one row a measurement; perplexity = exp(nll), of a word or a BPE token."""
    columns = ["text", "encoding", "seed", "train_length", "evaluation", "length", "nll", "tokens"]
    frame = runs.table(outcomes, columns)
    frame["perplexity"] = np.exp(frame["nll"])
    return frame


def curves(results: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Perplexity over that at L, one line an encoding, a panel a kind of token."""
    rows = results[results["evaluation"] == kind]
    key = ["text", "encoding", "seed"]
    at_L = rows[rows["length"] == L].set_index(key)["nll"]
    rows = rows.join(at_L.rename("at_L"), on=key)
    rows["relative"] = np.exp(rows["nll"] - rows["at_L"])
    frame = figures.summarise(rows, ["text", "encoding", "length"], "relative")
    frame["panel"] = frame["text"].map(LABELS)
    return frame.rename(columns={"length": "x"})[figures.COLUMNS]


def draw(frame: pd.DataFrame):
    """The panels side by side, on logarithmic axes."""
    panels = list(dict.fromkeys(frame["panel"]))
    figure, axes = figures.canvas(len(panels))
    for ax, panel in zip(axes, panels, strict=True):
        figures.curves(ax, frame[frame["panel"] == panel])
        ax.set(title=f"WikiText-103, {panel}", xlabel="evaluation length (tokens)", yscale="log")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        figures.direct_labels(ax)
    axes[0].set_ylabel(f"perplexity / perplexity at {L}")
    return figure


FIGURES = {
    "wikitext": (lambda results: curves(results, "nonoverlapping"), draw),
    "wikitext_sliding": (lambda results: curves(results, "sliding"), draw),
}
TABLES = {}
