"""Claims about extending RoPE's context: from the studies `extension` and `longrope`, and from the
papers' tables.

Differences are paired by seed: the methods of a seed change one and the same trained model.
"""

import math

import pandas as pd

from lib import paths
from lib.claims import proofs, real_model
from lib.claims.measured import INF, Parts, Source, paired
from lib.claims.verdicts import Part, jointly, judge, percent
from lib.studies.extrapolation import L

_SEEDED = Source(pd.DataFrame(), (), seeded=True)
_OTHERS = {
    "linear": "PI", "ntk": "NTK", "dynamic": "dynamic NTK", "ntk_by_parts": "NTK by parts",
    "llama3": "Llama 3",
}  # fmt: skip


def loss(results, method: str, factor: int, length: int, part="zero_shot", steps=0) -> pd.Series:
    """nll (nats) by seed, from the study `extension`; empty where it was not measured."""
    t = results["extension"]
    if t.empty:
        return pd.Series(dtype=float)
    t = t[(t["part"] == part) & (t["encoding"] == method) & (t["quantity"] == "nll")]
    t = t[(t["factor"] == factor) & (t["length"] == length) & (t["steps"] == steps)]
    return t.set_index("seed")["value"]


def _factors(results, part: str) -> list[int]:
    """The factors that a part was measured with; 4, where nothing was, for parts that say so."""
    t = results["extension"]
    return [4] if t.empty else sorted(t.loc[t["part"] == part, "factor"].unique())


def _published(source: str) -> pd.Series:
    """ln perplexity of a paper's table, by (method, train_context, eval_length)."""
    table = pd.read_csv(paths.PUBLISHED / "rope_extension.csv", comment="#")
    table = table[table["source"] == source]
    keys = ["method", "train_context", "eval_length"]
    return table.set_index(keys)["perplexity"].map(math.log)


def _number(what: str, log_ratio: float, low=-INF, high=INF) -> Part:
    return Part(what, judge(log_ratio, low, high), percent(log_ratio))


# ---- position interpolation ----------------------------------------------------------------------


def a_short_fine_tune_is_enough(results, equal: float) -> Parts:
    """After the longest fine-tune, PI at s·L against the model as it was at L."""
    limit, here = math.log1p(equal), []
    for s in _factors(results, "fine_tune"):
        t = results["extension"]
        steps = 0 if t.empty else t.loc[t["part"] == "fine_tune", "steps"].max()
        before = loss(results, "none", s, L, "zero_shot")
        after = loss(results, "linear", s, s * L, "fine_tune", steps)
        here.append(
            _SEEDED.part(f"PI at {s}L after {steps} steps, over unscaled at L",
                         paired(after, before), high=limit)
        )  # fmt: skip
    ppl = _published("pi_pg19")
    published = [
        _number(
            "PI trained at 32768 and read there, over PI trained at 8192 and read at 2048",
            ppl["PI", 32768, 32768] - ppl["PI", 8192, 2048],
            high=limit,
        )
    ]
    return here, published


def uniform_scaling_hurts_near_relations(results, worse: float, deviation: float) -> Parts:
    """The first pair slows down by s; within L the loss grows; and the pairs that keep their speed
    (by parts) save it, also where only a few tokens stand before the target."""
    here = proofs.interpolation_slows_every_pair(deviation)
    for s in _factors(results, "zero_shot"):
        linear = loss(results, "linear", s, L)
        here.append(
            _SEEDED.part(f"PI for {s}L read at L, over unscaled",
                         paired(linear, loss(results, "none", s, L)), math.log1p(worse))
        )  # fmt: skip
        kept = paired(linear, loss(results, "ntk_by_parts", s, L))
        here.append(_SEEDED.part(f"PI over NTK by parts, both for {s}L read at L", kept, 0.0))
    near = paired(*(_near_the_start(results, m) for m in ("linear", "none")))
    what = "PI over unscaled where 5 … 8 tokens stand before the target"
    here.append(_SEEDED.part(what, near, math.log1p(worse)))
    return here + real_model.on_interpolation(results), []


def _near_the_start(results, method: str) -> pd.Series:
    """The loss by seed on targets with 5 … 8 tokens before them in a window."""
    t = results["extension"]
    if t.empty:
        return pd.Series(dtype=float)
    t = t[(t["quantity"] == "nll_by_tokens_before") & (t["length"] == 8)]
    return t[t["encoding"] == method].set_index("seed")["value"]


# ---- NTK and YaRN --------------------------------------------------------------------------------


def another_base_extends(results, usable: float, worse: float) -> Parts:
    """Zero-shot at 2L: NTK below the unscaled model, and near what that has at L."""
    unscaled, ntk = (loss(results, m, 2, 2 * L) for m in ("none", "ntk"))
    at_L = loss(results, "none", 2, L)
    here = [
        _SEEDED.part("NTK at 2L, over unscaled at 2L", paired(ntk, unscaled), high=0.0),
        _SEEDED.part("NTK at 2L, over unscaled at L", paired(ntk, at_L), high=math.log1p(usable)),
    ]
    here += real_model.on_another_base(results, worse)
    ppl = _published("yarn_t1")
    published = [
        _number("NTK (fine-tuned, 8192) at 8192 over itself at 2048",
                ppl["NTK", 8192, 8192] - ppl["NTK", 8192, 2048], high=0.0)
    ]  # fmt: skip
    return here, published


def yarn_is_best(results) -> Parts:
    """YaRN below each of the others at every extended length."""
    here = []
    for s in _factors(results, "zero_shot"):
        yarn = loss(results, "yarn", s, s * L)
        parts = [
            _SEEDED.part(f"over {label}", paired(yarn, loss(results, m, s, s * L)), high=0.0)
            for m, label in _OTHERS.items()
        ]
        here.append(jointly(f"YaRN at {s}L", *parts))
    here += real_model.on_yarn(results)
    ppl = _published("yarn_t1")
    published = [
        jointly(
            f"YaRN at {n}",
            *(
                _number(f"over {m}", ppl["YaRN", 8192, n] - ppl[m, 8192, n], high=0.0)
                for m in ("PI", "NTK")
            ),
        )
        for n in (8192, 10240)
    ]
    return here, published


# ---- LongRoPE ------------------------------------------------------------------------------------


def _longrope(results, method: str, quantity: str, x: int) -> pd.Series:
    t = results["longrope"]
    if t.empty:
        return pd.Series(dtype=float)
    t = t[(t["encoding"] == method) & (t["quantity"] == quantity) & (t["x"] == x)]
    return t.set_index("seed")["value"]


def a_search_beats_one_factor(results) -> Parts:
    """On text that the search has not seen, at 8L: below PI, whose factor is the same for all."""
    found = _longrope(results, "longrope", "nll", 8 * L)
    against = paired(found, _longrope(results, "linear", "nll", 8 * L))
    return [_SEEDED.part("factors found, over PI", against, high=0.0)], []


def frequencies_change_at_inference(results) -> Parts:
    """YaRN's and LongRoPE's frequencies around weights that were not trained with them: at 4L and
    8L below the unscaled model."""
    yarn = paired(loss(results, "yarn", 4, 4 * L), loss(results, "none", 4, 4 * L))
    longrope = paired(*(_longrope(results, m, "nll", 8 * L) for m in ("longrope", "none")))
    return [
        _SEEDED.part("YaRN at 4L without a fine-tune, over unscaled", yarn, high=0.0),
        _SEEDED.part("LongRoPE at 8L without a fine-tune, over unscaled", longrope, high=0.0),
    ], []
