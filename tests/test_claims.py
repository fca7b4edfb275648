"""The ledger is whole, verdicts follow from numbers, and each test of a claim decides as it should
on results made to hold, to be refuted and to straddle."""

import importlib
import inspect
import math
import pkgutil
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import claims, files, paths, studies
from lib.claims import entries, measured, proofs, verdicts
from lib.claims.verdicts import (
    HOLDS,
    IN_PART,
    NOT_TESTABLE,
    REFUTED,
    UNDECIDED,
    WORDS,
    Part,
    combine,
    jointly,
    judge,
    overall,
)
from lib.figures import interval
from lib.studies import extrapolation

IDS = """
EQV-1 PPL-1 SIN-1 SIN-2 SIN-3 SIN-4 SIN-5 LRN-1 LRN-2
REL-1 REL-2 REL-3 REL-4 REL-6 REL-7 REL-5 ROT-1 ROT-2 ROT-3 ROT-4 ROT-5 ROT-6 ROT-7
ALI-1 ALI-2 ALI-3 ALI-4 ALI-5 ALI-6 ALI-7 ALI-8 ALI-11 ALI-9 ALI-10
PI-1 PI-2 PI-3 NTK-1 NTK-2 YRN-1 YRN-2 LRP-1 LRP-2 LRP-3 NOP-1 NOP-2 NOP-3
SEL-1 SEL-2 TAB-1 TAB-2 TAB-3 OPEN-1 OPEN-2 OPEN-3
""".split()
L = extrapolation.L
LEDGER = {entry.id: entry for entry in entries.load()}


def decided(id, results):
    nothing_else = dict.fromkeys(studies.STUDIES, pd.DataFrame())
    frames = {**nothing_else, "extrapolation": results}
    return claims.judged(LEDGER[id], claims.Results("quick", frames))


# ---- from numbers to words -----------------------------------------------------------------------

bounds = st.floats(-5, 5)


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=8), bounds, bounds)
def test_an_interval_holds_inside_is_refuted_outside_and_straddles_between(values, a, b):
    low, high = sorted((a, b))
    found = interval(values)
    inside = low <= found.low and found.high <= high
    outside = found.high < low or found.low > high
    assert judge(found, low, high) == (HOLDS if inside else REFUTED if outside else UNDECIDED)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=2), bounds)
def test_fewer_than_three_seeds_decide_nothing(values, border):
    assert judge(interval(values), low=border) == UNDECIDED
    assert judge(interval(values), high=border) == UNDECIDED


@given(st.floats(-10, 10), bounds)
def test_a_published_number_is_compared_as_it_is(value, border):
    assert judge(value, high=border) == (HOLDS if value <= border else REFUTED)
    assert judge(value, low=border) == (HOLDS if value >= border else REFUTED)


@pytest.mark.parametrize("missing", [None, math.nan, interval([1.0, math.nan, 2.0])])
def test_what_is_missing_or_diverged_is_undecided(missing):
    assert judge(missing, low=0) == UNDECIDED


WORD = st.sampled_from(WORDS)


@given(st.lists(WORD, min_size=1, max_size=6), st.randoms())
def test_parts_combine_in_any_order_and_by_groups(words, random):
    shuffled = random.sample(words, len(words))
    assert combine(shuffled) == combine(words) == combine([*words, *words])


@given(st.lists(WORD, min_size=1, max_size=6))
def test_a_decided_verdict_is_what_every_reading_of_the_undecided_parts_allows(words):
    """An undecided part may turn out either way; what is decided must not depend on it."""
    verdict = combine(words)
    either = {
        combine([side if word == UNDECIDED else word for word in words])
        for side in (HOLDS, REFUTED)
    }
    if verdict in (HOLDS, REFUTED, IN_PART, NOT_TESTABLE):
        assert either == {verdict}
    else:
        assert len(either) == 2 or HOLDS not in words and REFUTED not in words


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([REFUTED, REFUTED], REFUTED),
        ([HOLDS, REFUTED], IN_PART),
        ([HOLDS, REFUTED, UNDECIDED], IN_PART),
        ([HOLDS, UNDECIDED], UNDECIDED),
        ([HOLDS, NOT_TESTABLE], HOLDS),
        ([NOT_TESTABLE], NOT_TESTABLE),
        ([IN_PART, HOLDS], IN_PART),
        ([], UNDECIDED),
    ],
)
def test_parts_make_a_verdict(words, verdict):
    assert combine(words) == verdict


@pytest.mark.parametrize(
    ("here", "published", "verdict"),
    [
        (HOLDS, HOLDS, HOLDS),
        (UNDECIDED, REFUTED, REFUTED),
        (HOLDS, UNDECIDED, HOLDS),
        (HOLDS, REFUTED, IN_PART),
        (IN_PART, REFUTED, IN_PART),
        (NOT_TESTABLE, HOLDS, HOLDS),
        (NOT_TESTABLE, UNDECIDED, NOT_TESTABLE),
        (UNDECIDED, UNDECIDED, UNDECIDED),
    ],
)
def test_here_and_published_make_one_word(here, published, verdict):
    assert overall(here, published) == overall(published, here) == verdict


@given(st.lists(st.sampled_from([HOLDS, REFUTED, UNDECIDED]), min_size=1))
def test_joint_conditions_fail_with_the_first_of_them(words):
    word = jointly("all", *(Part(str(n), word, "") for n, word in enumerate(words))).verdict
    assert (word == HOLDS) == all(w == HOLDS for w in words)
    assert (word == REFUTED) == (REFUTED in words)


# ---- the ledger ----------------------------------------------------------------------------------


def test_the_ledger_holds_every_claim_of_the_survey():
    assert list(claims.ledger()["id"]) == IDS


def test_every_test_decides_a_claim():
    used = {entry.test for entry in LEDGER.values()}
    names = [m.name for m in pkgutil.iter_modules(claims.__path__)]
    modules = [importlib.import_module(f"lib.claims.{name}") for name in names]
    modules = [m for m in modules if m.__name__ not in (entries.__name__, verdicts.__name__)]
    for module in modules:
        for name, thing in vars(module).items():
            own = getattr(thing, "__module__", None) == module.__name__ and callable(thing)
            helper = name[0] == "_" or name[0].isupper() or name in HELPERS
            if own and not helper:
                test = f"{module.__name__.rpartition('.')[2]}.{name}"
                # or it is half of a test there that also measures
                assert test in used or any(f"{test}(" in inspect.getsource(m) for m in modules)


HELPERS = {
    "here", "paper", "both", "paired", "tokens", "costs_here", "costs_published", "loss",
    "cells", "sight", "settings", "standings", "beaten",
    "on_another_base", "on_yarn", "on_interpolation", "on_reach",
}  # fmt: skip

GOOD = """
[[claim]]
id = "A-1"
texts = ["S0"]
claim = "It is so."
kind = ["measured"]
regime = "here"
cell = "11_extrapolation#ext-order"
test = "measured.alibi_runs_on"
expected = "within {within:.0%}"
tolerance = { within = 0.02 }
because = "so"
"""
TWICE = GOOD + GOOD


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD + 'colour = "red"', "A-1: unknown colour"),
        (GOOD.replace('regime = "here"', ""), "A-1: missing regime"),
        (GOOD.replace("#ext-order", ""), "A-1: cell must be a notebook and a cell"),
        (TWICE, "A-1 stands twice"),
        (GOOD.replace("alibi_runs_on", "alibi_flies"), "no test 'measured.alibi_flies'"),
        (GOOD.replace("measured.alibi_runs_on", "measured.paired"), "tolerance does not fit"),
        (GOOD.replace("measured.alibi_runs_on", "proofs._equal"), "no test 'proofs._equal'"),
        (GOOD.replace("measured.alibi_runs_on", "os.remove"), "no test 'os.remove'"),
        (GOOD.replace('kind = ["measured"]', 'kind = ["guessed"]'), "A-1: kind must be of exact"),
        (GOOD.replace('texts = ["S0"]', 'texts = ["S2"]'), "A-1: texts must be of S0"),
        (GOOD.replace("{ within", "{ without"), "tolerance does not fit measured.alibi_runs_on"),
        (GOOD.replace("{within", "{without"), "A-1: expected names no tolerance"),
        (GOOD.replace('because = "so"', ""), "A-1: say `because`"),
        (GOOD + 'verdict = "true"\nfound = "x"\nsources = ["y"]', "A-1: verdict must be one of"),
        (GOOD + 'verdict = "holds"\nfound = "x"', "a verdict from sources names them"),
        (GOOD + 'verdict = "holds"\nsources = ["y"]', "A-1: a verdict needs `found`"),
        (re.sub("(test|tolerance|because).*", "", GOOD).replace("{within:.0%}", ""), "`needs`"),
        ("[claims]\n", "must hold .* tables alone, not claims"),
    ],
)
def test_a_ledger_out_of_order_is_refused(tmp_path, text, sentence):
    path = tmp_path / "claims.toml"
    path.write_text(GOOD, encoding="utf-8")
    assert [entry.id for entry in entries.load(path)] == ["A-1"]
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        entries.load(path)


# ---- results made up -----------------------------------------------------------------------------


def results(shapes=None, seeds=(0, 1, 2), noise=1e-3):
    """Results with the columns of the study.

    shapes: (encoding, evaluation) or encoding → a function of (length / T, T, seed) that gives ln
    of the perplexity over that at T; 0 where there is none.
    """
    shapes, random = shapes or {}, np.random.default_rng(0)
    names = (*extrapolation.ENCODINGS, "learned_interpolated")
    rows = []
    for name in names:
        for T in (L, 2 * L) if name in extrapolation.AT_2L else (L,):
            for seed in seeds:
                level = 3 + seed * (0.5 if T == L else 0.4)  # more than anything else
                for evaluation in ("nonoverlapping", "sliding"):
                    shape = shapes.get((name, evaluation), shapes.get(name, lambda *_: 0.0))
                    for length in extrapolation.LENGTHS[T]:
                        nll = level + shape(length / T, T, seed) + random.normal(0, noise)
                        rows.append((name, seed, T, evaluation, length, nll, 32_768))
    columns = ["encoding", "seed", "train_length", "evaluation", "length", "nll", "tokens"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(perplexity=np.exp(frame["nll"]))


def past(f):
    """A shape that is flat up to T."""
    return lambda r, T, seed: f(r) if r > 1 else 0.0


def steep(r, T, seed):
    return 0.4 * math.log2(r) if r > 1 else 0.0


def spread(f):
    """A shape whose seeds lie far apart: its interval straddles any border near its middle."""
    return lambda r, T, seed: f(r, T, seed) + (0.5 * (seed - 1) if r > 1 else 0.0)


def line(r, T, seed):
    """ln of a perplexity that rises by 2 % a token, whatever T: a tolerance in tokens."""
    return math.log1p(max(0.0, 0.02 * (r - 1) * T))


def uncertain(r, T, seed):
    """Seeds whose tolerance stays the same, grows by 1.4, or doubles when T does."""
    return math.log1p(max(0.0, 0.02 * (r - 1) * T / (1, 1.4, 2)[seed] ** (T > L)))


def share(r, T, seed):
    """A tolerance in shares of T, and then ever steeper."""
    return math.log1p(2 * max(0.0, r - 1.05) ** 4)


def reach(ratio):
    return past(lambda r: 0.0 if r <= ratio else 0.2)


def wave(r, T, seed):
    """Best at 2T, then slowly worse."""
    return -0.04 + 0.02 * abs(math.log2(r) - 1) if r > 1 else 0.0


def falls(r, T, seed):
    return -0.05 * math.log2(r) if r > 1 else 0.0


def level(value):
    """A level of its own at every length, for what is compared between encodings."""
    return lambda r, T, seed: value


CASES = [
    # id, what holds, what is refuted, what straddles
    ("SIN-2", {"sinusoidal": steep}, {}, {"sinusoidal": spread(steep)}),
    (
        "SIN-3",
        {"sinusoidal": line},
        {"sinusoidal": share},
        {"sinusoidal": uncertain},
    ),
    (
        "SIN-4",
        {"sinusoidal": past(lambda r: 0.05), "learned": steep},
        {"sinusoidal": steep},
        {"sinusoidal": spread(level(0.09)), "learned": steep},
    ),
    (
        "REL-3",
        {"t5": past(lambda r: max(0.0, r - 2) * 0.2)},
        {"t5": steep},
        {"t5": spread(level(0.02))},
    ),
    (
        "ROT-3",
        {"sinusoidal": steep, "rope": reach(1.15)},
        {"rope": steep, "sinusoidal": reach(4)},
        {"sinusoidal": spread(steep), "rope": spread(steep)},
    ),
    ("ALI-4", {"alibi": falls}, {"alibi": steep}, {"alibi": spread(level(0.02))}),
    ("ALI-6", {"alibi": wave}, {"alibi": falls}, {"alibi": spread(wave)}),
    (
        "OPEN-1",
        {("alibi", "nonoverlapping"): falls},
        {"alibi": falls},
        {("alibi", "nonoverlapping"): spread(falls)},
    ),
]


@pytest.mark.parametrize(("id", "holds", "refuted", "straddles"), CASES, ids=[c[0] for c in CASES])
def test_a_result_that_changes_changes_the_verdict(id, holds, refuted, straddles):
    found = [decided(id, results(shapes))["verdict_here"] for shapes in (holds, refuted, straddles)]
    assert found == [HOLDS, REFUTED, UNDECIDED]


@pytest.mark.parametrize(("id", "holds", "refuted", "_"), CASES, ids=[c[0] for c in CASES])
def test_one_or_two_seeds_decide_nothing_here(id, holds, refuted, _):
    for seeds in ((0,), (0, 1)):
        for shapes in (holds, refuted):
            assert decided(id, results(shapes, seeds))["verdict_here"] == UNDECIDED


def test_alibi_is_compared_with_sinusoids_trained_at_2L_by_seed():
    frame = results()

    def apart(by):
        """ALiBi at L on 2L, set against sinusoids trained at 2L, seed by seed."""
        f = frame.copy()
        a = (f["encoding"] == "alibi") & (f["train_length"] == L) & (f["length"] == 2 * L)
        b = (f["encoding"] == "sinusoidal") & (f["train_length"] == 2 * L)
        b &= f["length"] == 2 * L
        f.loc[a, "nll"] = f.loc[b, "nll"].to_numpy() + np.repeat(by, 2)
        return decided("ALI-5", f)["verdict_here"]

    assert apart([-0.05, -0.04, -0.05]) == apart([0.0, 0.001, -0.001]) == HOLDS
    assert apart([0.05, 0.06, 0.05]) == REFUTED
    assert apart([0.05, -0.05, 0.01]) == UNDECIDED


def test_interpolation_keeps_a_table_usable_or_does_not():
    near, far = past(lambda r: 0.01), past(lambda r: 0.5)
    usable = decided("LRN-2", results({"learned": far, "learned_interpolated": near}))
    assert usable["verdict"] == HOLDS
    # A table without rows past its end is refused whatever was measured: that part holds.
    broken = decided("LRN-2", results({"learned": near, "learned_interpolated": far}))
    assert broken["verdict"] == IN_PART
    assert decided("LRN-2", results(seeds=(0,)))["verdict"] == UNDECIDED
    # and usable at 2L alone is half of it
    later = past(lambda r: 0.01 if r <= 2 else 0.5)
    half = decided("LRN-2", results({"learned": far, "learned_interpolated": later}))
    assert half["verdict"] == IN_PART and "here refuted: interpolated." in half["detail"]


@given(st.integers(0, 2**32), st.sampled_from([0.01, 1.0, 100.0]))
@settings(max_examples=4)
def test_no_result_is_so_odd_that_a_claim_fails(seed, size):
    random, frame = np.random.default_rng(seed), ODD.copy()
    frame["nll"] += random.normal(0, size, len(frame))
    for id in (id for id, entry in LEDGER.items() if entry.measures):
        assert decided(id, frame)["verdict_here"] in WORDS


ODD = results()


def test_a_model_that_diverged_decides_nothing():
    frame = results({"alibi": falls})
    frame.loc[(frame["encoding"] == "alibi") & (frame["seed"] == 1), "nll"] = math.inf
    row = decided("ALI-4", frame)
    assert row["verdict_here"] == UNDECIDED and "not known" in row["measured"]


def test_t5_that_breaks_down_at_once_is_not_half_right():
    row = decided("REL-3", results({"t5": steep}))
    assert row["verdict_here"] == REFUTED
    further = decided("REL-3", results())  # flat: works at 2L, and does not end there
    assert further["verdict_here"] == IN_PART


def test_rope_ahead_of_sinusoids_with_another_reach_is_half_right():
    for ratio in (1.6, 100):
        row = decided("ROT-3", results({"sinusoidal": steep, "rope": reach(ratio)}))
        assert row["verdict_here"] == IN_PART


def test_sinusoids_that_never_leave_have_no_tolerance_to_compare():
    assert decided("SIN-3", results())["verdict_here"] == UNDECIDED


def test_differences_are_paired_by_seed():
    """Seeds lie 0.4 apart and more here, and a difference of 0.05 is seen all the same."""
    frame = results({"alibi": past(lambda r: 0.05)})
    assert decided("ALI-4", frame)["verdict_here"] == REFUTED
    some = frame[(frame["length"] == frame["train_length"]) | (frame["seed"] < 2)]
    assert decided("ALI-4", some)["verdict_here"] == UNDECIDED  # two seeds at 2L


def test_missing_rows_are_undecided_and_no_error():
    full = results()
    for frame in (
        pd.DataFrame(),
        full.head(0),
        full[full["encoding"] == "t5"],
        full[full["length"] <= L],
        full[full["evaluation"] == "sliding"],
        full[full["length"] != full["train_length"]],
    ):
        for id in (id for id, entry in LEDGER.items() if entry.measures):
            row = decided(id, frame)
            assert row["verdict_here"] in WORDS
            # A table has cells that are counted and proved, without any result.
            assert not frame.empty or row["verdict_here"] == UNDECIDED or id.startswith("TAB")


# ---- published -----------------------------------------------------------------------------------

PUBLISHED = {
    "SIN-2": HOLDS, "SIN-3": HOLDS, "SIN-4": REFUTED, "REL-3": IN_PART, "ROT-3": IN_PART,
    "ROT-6": REFUTED, "ROT-7": IN_PART, "ALI-2": IN_PART, "ALI-4": HOLDS, "ALI-5": HOLDS,
    "ALI-6": IN_PART, "NOP-2": HOLDS, "OPEN-1": HOLDS, "PI-2": HOLDS, "NTK-2": HOLDS,
    "YRN-2": IN_PART, "LRP-2": IN_PART, "LRP-3": IN_PART, "SIN-5": HOLDS, "REL-4": IN_PART,
    "REL-7": REFUTED, "ROT-4": HOLDS, "ALI-7": HOLDS, "TAB-1": IN_PART, "TAB-2": HOLDS,
    "TAB-3": IN_PART,
}  # fmt: skip


@pytest.mark.parametrize("id", IDS)
def test_what_papers_report_decides_without_any_run(id):
    row = decided(id, pd.DataFrame())
    assert row["verdict_published"] == PUBLISHED.get(id, UNDECIDED)
    assert (row["verdict_published"] == UNDECIDED) or "published" in row["measured"]
    if row["verdict_here"] == UNDECIDED:
        assert row["verdict"] == row["verdict_published"]


def test_the_paper_says_what_its_table_says():
    """Read off data/published by eye: 43.54 at 1012 over 20.05 at 512, and 18.81 against 19.34."""
    rows = {id: decided(id, pd.DataFrame())["measured"] for id in ("SIN-3", "ALI-5", "OPEN-1")}
    assert f"512 → 1012: {100 * (43.54 / 20.05 - 1):+.1f} %" in rows["SIN-3"]
    assert f"{100 * (18.81 / 19.34 - 1):+.1f} %" in rows["ALI-5"]
    assert f"sliding {100 * (17.92 / 17.98 - 1):+.1f} %" in rows["OPEN-1"]


def test_a_published_table_that_changes_changes_the_verdict(tmp_path, monkeypatch):
    for name in ("alibi_extrapolation.csv", "alibi_wikitext103.csv"):
        text = (paths.PUBLISHED / name).read_text()
        text = text.replace("512,1024,nonoverlapping,18.81", "512,1024,nonoverlapping,20.81")
        (tmp_path / name).write_text(re.sub(r",sinusoidal,[\d.]+,", ",sinusoidal,20.00,", text))
    monkeypatch.setattr(paths, "PUBLISHED", tmp_path)
    for cached in (extrapolation.published, measured.paper):
        cached.cache_clear()
    try:
        changed = [decided(id, pd.DataFrame())["verdict_published"] for id in ("SIN-2", "ALI-5")]
    finally:
        monkeypatch.undo()
        for cached in (extrapolation.published, measured.paper):
            cached.cache_clear()
    assert changed == [REFUTED, REFUTED]


# ---- proofs --------------------------------------------------------------------------------------

PROVED = {
    "EQV-1": HOLDS, "PPL-1": HOLDS, "SIN-1": HOLDS, "LRN-1": HOLDS, "REL-1": IN_PART,
    "REL-2": HOLDS, "REL-6": REFUTED, "ROT-1": IN_PART, "ROT-2": HOLDS, "ALI-1": IN_PART,
    "ALI-2": IN_PART, "ALI-3": IN_PART, "ALI-9": HOLDS, "PI-1": HOLDS, "NTK-1": HOLDS,
    "YRN-1": HOLDS,
}  # fmt: skip


@pytest.mark.parametrize("id", PROVED)
def test_a_proof_computed_here_gives_its_verdict(id):
    row = decided(id, pd.DataFrame())
    assert row["verdict_here"] == PROVED[id]
    # nothing that could differ between two machines: no float but the tolerance
    assert not re.search(r"\d\.\d{3}", row["measured"])


def test_a_trained_bias_can_be_prepared_and_a_wrong_one_is_noticed(monkeypatch):
    assert decided("REL-5", pd.DataFrame())["verdict_here"] == UNDECIDED  # memory is open
    assert proofs.learned_bias_prepared_once(1e-12)[0].verdict == REFUTED
    whole = proofs.toeplitz
    monkeypatch.setattr(proofs, "toeplitz", lambda *a: whole(*a).roll(1, -1))
    assert proofs.learned_bias_prepared_once(1e-12)[0].verdict == HOLDS


def test_a_proof_fails_where_its_encoding_is_wrong(monkeypatch):
    monkeypatch.setattr(proofs, "slopes", lambda n: verdicts_of_a_wrong_rule(n))
    words = [part.verdict for part in proofs.alibi_slopes_of_8(1e-12)]
    assert words == [REFUTED, HOLDS]
    whole = proofs.build
    monkeypatch.setattr(proofs, "build", lambda name, **o: whole(name, **_another_base(name, o)))
    assert REFUTED in [part.verdict for part in proofs.sinusoid_table(1e-9)]
    assert combine(part.verdict for part in proofs.rope_adds_nothing()) == IN_PART


def probed(values, layer=3):
    """NOP-1 where trained models have these R² after `layer`, and 0.5 before it."""
    key = {"encoding": "nope", "head": -1, "quantity": "squares_r2", "x": L}
    rows = [key | {"seed": n, "layer": layer, "value": value} for n, value in enumerate(values)]
    rows += [row | {"layer": layer - 1, "value": 0.5} for row in rows]
    results = claims.Results("quick", {"probes": pd.DataFrame(rows)})
    return claims.judged(LEDGER["NOP-1"], results)["verdict"]


def test_a_decoder_without_encoding_must_be_built_and_found():
    assert probed([0.05, 0.06, 0.07]) == HOLDS
    assert probed([-0.05, -0.06, -0.07]) == IN_PART  # the construction still holds
    assert probed([-0.05, 0.01, 0.07]) == probed([0.05]) == probed([]) == UNDECIDED


def test_a_construction_that_does_not_count_is_refuted(monkeypatch):
    whole = proofs.counting.decoder
    monkeypatch.setattr(proofs.counting, "decoder", lambda length: whole(length, M=1e3))
    words = [part.verdict for part in proofs.position_from_the_mask(1e-6)]
    assert words == [HOLDS, HOLDS, REFUTED]  # the slopes bend, and the names stay
    monkeypatch.setattr(proofs.counting, "sentence", lambda length: whole_words(length))
    assert [part.verdict for part in proofs.position_from_the_mask(1e-6)][1:] == [REFUTED, REFUTED]


def whole_words(length):
    """Words without a start token."""
    return proofs.torch.full((1, length), length + 1)


def verdicts_of_a_wrong_rule(n):
    """S0's list."""
    return proofs.torch.tensor([2 ** (-i / n) for i in range(n, 0, -1)], dtype=proofs.torch.float64)


def _another_base(name, options):
    return {**options, "base": 5000.0} if name in ("sinusoidal", "rope") else options


# ---- decide and line -----------------------------------------------------------------------------


@pytest.fixture
def built(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    (tmp_path / "quick").mkdir()
    return tmp_path / "quick" / "extrapolation.csv"


def test_decide_reads_a_profile_and_answers_every_claim(built):
    before = claims.decide("quick").set_index("id")
    results({"sinusoidal": steep, "alibi": falls}).to_csv(built, index=False)
    files.enlist(built)
    after = claims.decide("quick")
    assert list(after.columns) == list(claims.COLUMNS) and list(after["id"]) == IDS
    assert after[["verdict", "verdict_here", "verdict_published"]].isin(WORDS).all(axis=None)
    assert after.map(lambda cell: isinstance(cell, str)).all(axis=None)
    assert (after["detail"] != "").all() and (after["expected"] != "").all()
    after = after.set_index("id")
    assert before.loc["SIN-2", "verdict_here"] == UNDECIDED
    assert after.loc["SIN-2", "verdict_here"] == after.loc["ALI-4", "verdict_here"] == HOLDS
    open_rows = after[after["measured"] == ""]
    assert open_rows["verdict"].eq(UNDECIDED).all()
    assert open_rows["detail"].str.contains("not measured yet: ").all()


def test_decide_refuses_an_unknown_profile():
    with pytest.raises(ValueError, match="no profile 'quik'"):
        claims.decide("quik")


def test_a_line_prints_a_verdict_and_what_it_rests_on(built, capsys):
    claims.line("EQV-1", "quick")
    claims.line("SIN-2", "quick")
    first, expected, measured, *rest = capsys.readouterr().out.splitlines()
    assert first == "EQV-1 holds" and expected.startswith("  expected: Attention(PX) = ")
    assert measured.startswith("  here: ")
    assert rest[0] == "SIN-2 holds (here undecided, published holds)"
    assert rest[3].startswith("  published: 512 → 1024: +")
    with pytest.raises(ValueError, match="no claim 'SIN-99'"):
        claims.line("SIN-99", "quick")


def test_verdict_words_are_those_of_the_contract():
    assert set(verdicts.WORDS) == {
        "holds", "holds_in_part", "refuted", "undecided", "not_testable_here"
    }  # fmt: skip
