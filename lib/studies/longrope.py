"""LongRoPE on our model: a search over one factor for each pair of RoPE, and where it starts.

Question: do the pairs of RoPE matter unequally, so that factors found for each of them extend a
trained model further than one factor for all, or than the formulas of NTK and YaRN?

Ding et al. 2024 (arXiv 2402.13753), section 3: rescale θ_k by λ_k, with 1 ≤ λ_0 ≤ … ≤ 1.25·s, but
for the first n̂ tokens, and look for the λ and n̂ of least perplexity by evolution, from a
population that holds PI, NTK and YaRN. Here the search is SciPy's differential evolution; a vector
is sorted before it is tried, which makes every vector monotone, so no constraint is left to keep.
The temperature stays out of it (attention factor 1): what is compared is frequencies.

The search reads the text that learning rates were chosen on; what is reported is measured on the
test text. Random search has the same number of evaluations. Extended in two steps: search at
STEP·L, a fine-tune there with what was found, a second search at FACTOR·L on that model.
"""

import numpy as np
import pandas as pd
from scipy.optimize import differential_evolution

from lib import corpus, evaluation, figures, runs
from lib.encodings import build
from lib.extending import fine_tuned, rescaled
from lib.studies import extension, extrapolation
from lib.studies.extrapolation import L

FACTOR, STEP = 8, 4
BEYOND = 1.25  # the largest factor tried, as a share of s
STARTS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32)  # n̂
SEEDS = ("linear", "ntk", "ntk_by_parts")  # whose factors begin the population
LENGTHS = (L, 2 * L, STEP * L, FACTOR * L)
BLOCK = 1024

PROFILES = {
    "quick": {
        "population": 6, "generations": 1, "search_tokens": 1_024, "tokens": 4_096, "steps": 5
    },
    "default": {
        "population": 16, "generations": 17, "search_tokens": 2_048, "tokens": 16_384, "steps": 100
    },
    "full": {
        "population": 64, "generations": 39, "search_tokens": 8_192, "tokens": 65_536, "steps": 300
    },
}  # fmt: skip
# Core-seconds, measured on two cores, beyond the training of the models.
COST = {"quick": 15, "default": 290, "full": 12_000}


# ---- jobs ----------------------------------------------------------------------------------------


def jobs(profile: str) -> list[runs.Job]:
    """For each seed of the RoPE model: search by evolution, at random, and in two steps."""
    p = PROFILES[profile]
    evaluations = p["population"] * (p["generations"] + 1)
    cost = evaluations * p["search_tokens"] // 3
    return [
        runs.Job(j.training, __name__, {"part": part, **p}, measure_tokens=n * cost)
        for j in extrapolation.jobs(profile)
        if j.training.encoding == "rope" and j.training.train_length == L
        for part, n in (("evolution", 1), ("random", 1), ("two_steps", 3))
    ]


# ---- the search ----------------------------------------------------------------------------------


def options(factors, start: int, s: float) -> dict:
    """The options of RoPE with these λ (d/2,) at every length, and the first tokens unscaled."""
    factors = [float(x) for x in factors]
    keys = {"factor": float(s), "attention_factor": 1.0, "start_tokens": int(start)}
    keys["original_max_position_embeddings"] = L
    keys |= {"short_factor": factors, "long_factor": factors}
    return {"scaling": {"rope_type": "longrope", **keys}}


def read(vector, s: float):
    """A vector of the search in [0, 1]^(d/2 + 1) → (λ ascending in 1 … BEYOND·s, n̂)."""
    factors = np.exp(np.sort(vector[:-1]) * np.log(BEYOND * s))
    return factors, STARTS[min(int(vector[-1] * len(STARTS)), len(STARTS) - 1)]


def written(factors, s: float) -> np.ndarray:
    """The vector that `read` turns into these factors and n̂ = 0."""
    return np.append(np.log(factors) / np.log(BEYOND * s), 0.0)


def formulas(config, s: float) -> dict[str, np.ndarray]:
    """method → λ_k = θ_k/θ'_k of each of SEEDS, (d/2,)."""
    sizes = {"d_model": config.d_model, "n_heads": config.n_heads, "max_length": config.max_length}
    theta = build("rope", **sizes).frequencies()
    return {
        m: (theta / build("rope", **sizes, **extension.METHODS[m](s)).frequencies()).numpy()
        for m in SEEDS
    }


class Objective:
    """What a search minimises: the mean loss (nats) of a model with λ and n̂ on the search text,
    read in windows of s·L; it keeps every value, in order."""

    def __init__(self, decoder, s: float, tokens: int):
        self.decoder, self.s = decoder, s
        self.documents = corpus.load().documents("sweep")
        self.segments = evaluation.blocks(self.documents, BLOCK, tokens)
        self.values: list[float] = []

    def __call__(self, vector) -> float:
        model = rescaled(self.decoder, options(*read(vector, self.s), self.s))
        length = int(self.s * L)
        found = evaluation.evaluate(model, self.documents, length, None, self.segments)
        self.values.append(found.nll_sum / found.tokens)
        return self.values[-1]


def start_population(config, s: float, n: int, rng) -> np.ndarray:
    """n vectors: the formulas, and the rest drawn at random: (n, d/2 + 1)."""
    known = [np.clip(written(f, s), 0, 1) for f in formulas(config, s).values()]
    return np.stack([*known, *rng.random((n - len(known), len(known[0])))])


def evolution(decoder, s: float, settings: dict, seed: int):
    """(the best vector, the objective) after population · (generations + 1) evaluations."""
    rng = np.random.default_rng([seed, 0])
    objective = Objective(decoder, s, settings["search_tokens"])
    begun = start_population(decoder.config, s, settings["population"], rng)
    found = differential_evolution(
        objective,
        [(0, 1)] * begun.shape[1],
        init=begun,
        maxiter=settings["generations"],
        rng=rng,
        polish=False,
        tol=0,
        atol=0,
    )
    return found.x, objective


def at_random(decoder, s: float, settings: dict, seed: int):
    """As `evolution`, from the same first population on, with every further vector drawn anew."""
    rng = np.random.default_rng([seed, 0])
    objective = Objective(decoder, s, settings["search_tokens"])
    n = settings["population"]
    vectors = start_population(decoder.config, s, n, rng)
    more = rng.random((n * settings["generations"], vectors.shape[1]))
    vectors = np.concatenate([vectors, more])
    return vectors[np.argmin([objective(v) for v in vectors])], objective


# ---- measuring -----------------------------------------------------------------------------------


def measure(decoder, training, settings: dict) -> list[dict]:
    """Rows {method, quantity, x, value}: `search` (the best loss so far after x evaluations),
    `factor` (λ_x), `start` (n̂), `nll` (on the test text in windows of x)."""
    found = {"evolution": _evolution, "random": _random, "two_steps": _two_steps}
    rows = found[settings["part"]](decoder, training, settings)
    return [{**row, "value": float(f"{row['value']:.8g}")} for row in rows]


def _evolution(decoder, training, settings: dict) -> list[dict]:
    """Evolution at FACTOR·L, and beside it the formulas for the same factor."""
    vector, objective = evolution(decoder, FACTOR, settings, training.seed)
    rows = _search("longrope", vector, objective)
    rows += _tested("longrope", decoder, options(*read(vector, FACTOR), FACTOR), settings)
    for method in ("none", *SEEDS, "yarn"):
        rows += _tested(method, decoder, extension.METHODS[method](FACTOR), settings)
    for method, factors in formulas(decoder.config, FACTOR).items():
        rows += _factors(method, factors)
    return rows


def _random(decoder, training, settings: dict) -> list[dict]:
    vector, objective = at_random(decoder, FACTOR, settings, training.seed)
    chosen = options(*read(vector, FACTOR), FACTOR)
    return _search("random", vector, objective) + _tested("random", decoder, chosen, settings)


def _two_steps(decoder, training, settings: dict) -> list[dict]:
    """Search at STEP·L, fine-tune there, search at FACTOR·L."""
    vector, _ = evolution(decoder, STEP, settings, training.seed)
    first = options(*read(vector, STEP), STEP)
    rows = _tested("longrope_step", decoder, first, settings)
    steps, tokens, rate = settings["steps"], extension.BATCH_TOKENS, extension.RATE
    model = fine_tuned(decoder, training, first, STEP * L, steps, tokens, rate)
    rows += _tested("longrope_tuned", model, first, settings)
    vector, objective = evolution(model, FACTOR, settings, training.seed)
    second = options(*read(vector, FACTOR), FACTOR)
    rows += _search("longrope_two_steps", vector, objective)
    return rows + _tested("longrope_two_steps", model, second, settings)


def _search(method: str, vector, objective: Objective) -> list[dict]:
    factors, start = read(vector, objective.s)
    best = np.minimum.accumulate(objective.values)
    rows = [_row(method, "search", i + 1, value) for i, value in enumerate(best)]
    return rows + _factors(method, factors) + [_row(method, "start", 0, start)]


def _factors(method: str, factors) -> list[dict]:
    return [_row(method, "factor", k, value) for k, value in enumerate(factors)]


def _tested(method: str, decoder, opts: dict, settings: dict) -> list[dict]:
    documents = corpus.load().documents("test")
    scored = evaluation.blocks(documents, BLOCK, settings["tokens"])
    model, rows = rescaled(decoder, opts), []
    for length in LENGTHS:
        found = evaluation.evaluate(model, documents, length, None, scored)
        rows.append(_row(method, "nll", length, found.nll_sum / found.tokens))
    return rows


def _row(method, quantity, x, value) -> dict:
    return {"method": method, "quantity": quantity, "x": int(x), "value": float(value)}


MEASURING = (
    measure, options, read, written, formulas, Objective, start_population, evolution, at_random,
    _evolution, _random, _two_steps, _search, _factors, _tested, _row, "lib.extending",
    "lib.training", (FACTOR, STEP, BEYOND, STARTS, SEEDS, LENGTHS, BLOCK),
    tuple((name, repr(options(4))) for name, options in extension.METHODS.items()),
    (extension.BATCH_TOKENS, extension.RATE),
)  # fmt: skip


# ---- results -------------------------------------------------------------------------------------

COLUMNS = ["encoding", "seed", "quantity", "x", "value"]


def collect(outcomes: list[runs.Outcome]) -> pd.DataFrame:
    """`longrope.csv`: COLUMNS, one row a measurement; `encoding` is the method, losses in nats."""
    return runs.table(outcomes, COLUMNS)


def perplexities(results: pd.DataFrame) -> pd.DataFrame:
    """Perplexity on the test text against length."""
    rows = results[results["quantity"] == "nll"]
    rows = rows.assign(panel="perplexity", value=np.exp(rows["value"]))
    return figures.summarise(rows, ["panel", "encoding", "x"], "value")[figures.COLUMNS]


def search_curves(results: pd.DataFrame) -> pd.DataFrame:
    """How far (%) the best perplexity so far lies below the best of the formulas, which the
    population begins with; seeds paired with themselves."""
    rows = results[results["quantity"] == "search"]
    key = ["encoding", "seed"]
    begun = rows[rows["x"] == len(SEEDS)].set_index(key)["value"]
    rows = rows[rows["x"] >= len(SEEDS)].join(begun.rename("begun"), on=key)
    rows = rows.assign(panel="search", value=100 * np.expm1(rows["value"] - rows["begun"]))
    return figures.summarise(rows, ["panel", "encoding", "x"], "value")[figures.COLUMNS]


def factors_found(results: pd.DataFrame) -> pd.DataFrame:
    """λ of each pair: the geometric mean over seeds, and the interval of the logarithms."""
    rows = results[results["quantity"] == "factor"]
    rows = rows.assign(panel="factor", value=np.log(rows["value"]))
    frame = figures.summarise(rows, ["panel", "encoding", "x"], "value")[figures.COLUMNS]
    return frame.assign(**{c: np.exp(frame[c]) for c in ("value", "low", "high")})


def draw_search(frame: pd.DataFrame):
    figure, (ax,) = figures.canvas()
    figures.curves(ax, frame)
    label = "best so far on the search text,\nover the best formula (%)"
    ax.set(xlabel="evaluations", ylabel=label)
    figures.direct_labels(ax)
    return figure


def draw_factors(frame: pd.DataFrame):
    figure, (ax,) = figures.canvas()
    chosen = (*SEEDS, "longrope", "random")
    figures.curves(ax, frame[frame["encoding"].isin(chosen)])
    ax.set_yscale("log", base=2)
    ax.set_yticks([1, 2, 4, 8], labels=["1", "2", "4", "8"])
    ax.set(xlabel="pair k, from the fastest to the slowest", ylabel="its wavelength grows by λ")
    figures.direct_labels(ax)
    return figure


def draw_perplexities(frame: pd.DataFrame):
    """PI lies far above the rest and is left to its table."""
    figure, (ax,) = figures.canvas()
    figures.curves(ax, frame[~frame["encoding"].isin(("linear", "random"))])
    ax.set_xscale("log", base=2)
    ax.set_xticks(LENGTHS, labels=[str(n) for n in LENGTHS])
    ax.minorticks_off()
    ax.set(xlabel="evaluation length (tokens)", ylabel="perplexity on held-out speeches")
    figures.direct_labels(ax)
    return figure


FIGURES = {
    "longrope": (perplexities, draw_perplexities),
    "longrope_search": (search_curves, draw_search),
    "longrope_factors": (factors_found, draw_factors),
}
TABLES: dict = {}
