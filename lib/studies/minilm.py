"""A published model past its table: long passages of speeches, read by all-MiniLM-L6-v2.

Question: a BERT has learned 512 positions. What may stand in for the missing rows when it reads
1024 tokens and more; and is a passage read whole easier to find again than by its first 512 tokens?

Nothing is trained. Two things are measured, speech by speech:

    found               Excerpts of 60 tokens from a speech's tokens 516 … 1011, past the table and
                        inside of every passage, each look for the nearest passage (by the cosine of
                        mean vectors) among a pool of speeches that follow each other in time: the
                        share of them that find that of their own speech.
    agreement_before,   How alike the vectors of single tokens are, by cosine, in a passage read
    agreement_past      whole and in a window of 512 that the table serves: of the tokens in its
                        first 512 places, and of those past it.

The model was tuned for vectors of sentences, on texts of 128 tokens (its authors' own account);
rows 128 … 511 are as its pretraining left them.
"""

import logging

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from lib import corpus, figures, runs
from lib.encodings import build
from lib.probes import minilm

log = logging.getLogger(__name__)

WINDOW = minilm.ROWS - 2  # tokens between [CLS] and [SEP]
SHORT = 2 * minilm.ROWS  # the length at which token vectors are compared
LONG = 8192  # what the survey asks a table of 512 to serve
EXCERPTS = range(516, 1012, 62)  # where they begin
EXCERPT = 60
LONGEST_SPEECHES = 16_384  # tokens of our corpus; each of these has more than LONG of the model's

PROFILES = {
    "quick": {"pools": 1, "speeches": 3, "lengths": [SHORT]},
    "default": {"pools": 2, "speeches": 7, "lengths": [SHORT]},
    "full": {"pools": 2, "speeches": 12, "lengths": [SHORT, 4096, LONG]},
}
# Core-seconds, measured; "full" is reckoned from the operations of longer passages, not run yet.
COST = {"quick": 15, "default": 60, "full": 2400}
MEASURING = (__name__, "lib.probes.minilm", "lib.corpus")


# ---- past the table ------------------------------------------------------------------------------


def grown(P, n: int):
    """New rows, drawn as BERT's are before training (its initializer_range is 0.02)."""
    generator = torch.Generator().manual_seed(0)
    return torch.cat([P, 0.02 * torch.randn(n - len(P), P.shape[1], generator=generator)])


def repeated(P, n: int):
    """The rows once more, from the first, as Longformer begins (Beltagy et al. 2020, section 5)."""
    return P[torch.arange(n) % len(P)]


def interpolated(P, n: int, length: int | None = None):
    """The rows of `lib`'s interpolated table for a sequence of `length` (None: n)."""
    learned = build(
        "learned", d_model=P.shape[1], n_heads=1, max_length=len(P), beyond="interpolate"
    )
    with torch.no_grad():
        learned.table.copy_(P)
        return learned.embed(torch.zeros(1, n, P.shape[1]), torch.arange(n), length)[0]


def interpolated_for_long(P, n: int):
    """The first n rows of a table interpolated for LONG: sixteen steps from one row to the next."""
    return interpolated(P, n, LONG)


def one_row(P, n: int):
    """No order at all: the mean row everywhere. A control."""
    return P.mean(0, keepdim=True).expand(n, -1)


TABLES_PAST = {
    f.__name__: f for f in (grown, repeated, interpolated, interpolated_for_long, one_row)
}


# ---- measuring -----------------------------------------------------------------------------------


def jobs(profile: str) -> list[runs.Job]:
    """One for each pool of speeches."""
    p = PROFILES[profile]
    return [runs.Job(None, __name__, {"pool": pool, **p}) for pool in range(p["pools"])]


@torch.inference_mode()
def measure(decoder, training, settings: dict) -> list[dict]:
    """Rows {method, length, speech, quantity, value, n} of one pool; none, and a warning, where the
    package is not installed. Decoder and training are None."""
    try:
        reader = Reader()
    except ValueError as error:
        log.warning("%s The study of a published table is left out.", error)
        return []
    speeches = pool(settings)
    tokens = {name: reader.encode(corpus.load().decode(ids)) for name, ids in speeches.items()}
    excerpts, passages, rows = [], {}, []
    for name, t in tokens.items():
        excerpts.append([reader.vectors(t[a : a + EXCERPT]).mean(0) for a in EXCERPTS])
        windows = [
            reader.vectors(t[a : a + WINDOW])
            for a in range(0, max(settings["lengths"]) - minilm.ROWS, WINDOW)
        ]
        passages.setdefault(("truncated", minilm.ROWS), []).append(windows[0].mean(0))
        for length in settings["lengths"]:
            parts = [w.mean(0) for w in windows[: length // minilm.ROWS]]
            mean = F.normalize(torch.stack(parts), dim=-1).mean(0)
            passages.setdefault(("windows", length), []).append(mean)
            for method, past in TABLES_PAST.items():
                whole = reader.vectors(t[: length - 2], past)  # (length, D)
                passages.setdefault((method, length), []).append(whole.mean(0))
                if length == SHORT:
                    rows += _agreement(method, name, whole, windows)
    for (method, length), vectors in passages.items():
        found = share_found(torch.stack(vectors), torch.stack([torch.stack(e) for e in excerpts]))
        rows += [
            _row(method, length, name, "found", value, len(EXCERPTS))
            for name, value in zip(tokens, found.tolist(), strict=True)
        ]
    return rows


def pool(settings: dict) -> dict[str, np.ndarray]:
    """name → tokens of speeches that follow each other in time, long ones; the pools lie evenly
    over the years."""
    long = {n: t for n, t in corpus.load().tokens.items() if len(t) >= LONGEST_SPEECHES}
    stretch = len(long) // settings["pools"]
    start = settings["pool"] * stretch + (stretch - settings["speeches"]) // 2
    return {name: long[name] for name in list(long)[start : start + settings["speeches"]]}


class Reader:
    """The published model and its tokenizer. Raises ValueError without its package."""

    def __init__(self):
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        config = BertConfig.from_json_file(minilm.file("config.json"))
        self.model = BertModel.from_pretrained(
            minilm.file("model.safetensors").parent,
            config=config,
            add_pooling_layer=False,
            local_files_only=True,
        ).eval()
        self.P = self.model.embeddings.position_embeddings.weight.detach().clone()  # (512, D)
        self.tokenizer = Tokenizer.from_file(str(minilm.file("tokenizer.json")))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.ends = [[self.tokenizer.token_to_id(end)] for end in ("[CLS]", "[SEP]")]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @torch.inference_mode()
    def vectors(self, tokens: list[int], past=lambda P, n: P) -> torch.Tensor:
        """The last layer's vectors of [CLS], the tokens and [SEP]: (n, D) float32; `past` makes the
        table of the n positions."""
        ids = torch.tensor([self.ends[0] + tokens + self.ends[1]])
        n = ids.shape[1]
        table = past(self.P, n).clone()
        self.model.embeddings.position_embeddings = torch.nn.Embedding.from_pretrained(table)
        return self.model(
            ids, token_type_ids=torch.zeros_like(ids), position_ids=torch.arange(n)[None]
        ).last_hidden_state[0]


def share_found(passages, excerpts) -> torch.Tensor:
    """The share of each speech's excerpts (K, E, D) that are nearest to its own of the passages
    (K, D), by cosine: (K,)."""
    similarity = F.normalize(excerpts, dim=-1) @ F.normalize(passages, dim=-1).T  # (K, E, K)
    own = torch.arange(len(passages))[:, None]
    return (similarity.argmax(-1) == own).double().mean(1)


def _agreement(method: str, name: str, whole, windows) -> list[dict]:
    """Whole (SHORT, D): tokens 0 … 509 stand at 1 … 510, and 510 … 1019 at 511 … 1020."""
    rows = []
    for quantity, start, window in (("before", 1, windows[0]), ("past", 1 + WINDOW, windows[1])):
        pairs = whole[start : start + WINDOW], window[1:-1]
        value = F.cosine_similarity(*pairs, dim=-1).mean().item()
        rows.append(_row(method, SHORT, name, f"agreement_{quantity}", value, WINDOW))
    return rows


def _row(method, length, speech, quantity, value, n) -> dict:
    row = {"method": method, "length": length, "speech": speech, "quantity": quantity}
    return row | {"value": float(f"{value:.6g}"), "n": n}


# ---- results -------------------------------------------------------------------------------------

COLUMNS = ["method", "length", "speech", "quantity", "value", "n"]


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`minilm.csv`: COLUMNS; n counts the excerpts or tokens behind a value."""
    return pd.DataFrame([row for o in outcomes for row in o.rows], columns=COLUMNS)


def interval(values) -> figures.Interval:
    """The mean over speeches, with the 95 % interval of 10,000 bootstrap samples of them."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return figures.interval(values)
    drawn = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975))
    return figures.Interval(
        float(values.mean()), float(values.std(ddof=1)), float(low), float(high), len(values)
    )


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """One row a method, length and quantity: value, sd, low, high over n speeches."""
    key = ["method", "length", "quantity"]
    groups = results.groupby(key, sort=False)["value"]
    rows = [(*group, *interval(values)) for group, values in groups]
    return pd.DataFrame(rows, columns=[*key, *figures.Interval._fields])


def difference(results: pd.DataFrame, a: tuple, b: tuple, quantity: str) -> figures.Interval | None:
    """`a` minus `b`, each (method, length), paired by speech; None where either is missing."""
    table = results[results["quantity"] == quantity].set_index(["method", "length", "speech"])
    of = table["value"].sort_index()
    if a not in of.index.droplevel(2) or b not in of.index.droplevel(2):
        return None
    return interval((of[a] - of[b]).dropna())


FIGURES: dict = {}
TABLES = {"minilm_summary": summary}
