"""Extending a context: the models that are made for it, what is measured, the verdicts."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from refusing import refuses

from lib import claims, corpus, extending, figures, studies
from lib.claims import entries
from lib.claims.verdicts import HOLDS, IN_PART, REFUTED, UNDECIDED
from lib.encodings import build
from lib.studies import extension, longrope
from lib.studies.extrapolation import L
from lib.training import Training, TrainingConfig

TINY = TrainingConfig(
    "rope", seed=0, learning_rate=1e-3, tokens=2048, d_model=16, n_heads=2, n_layers=1, d_ff=24
)


@pytest.fixture(scope="module")
def decoder():
    return TINY.decoder(corpus.load().vocabulary_size).eval()


# ---- models with other frequencies ---------------------------------------------------------------


@torch.inference_mode()
def test_a_rescaled_model_is_another_encoding_around_the_same_weights(decoder):
    tokens = torch.randint(1000, (1, 100))
    before = decoder(tokens)
    other = extending.rescaled(decoder, extension.METHODS["linear"](4))
    assert not torch.allclose(other(tokens), before)
    assert torch.equal(decoder(tokens), before)  # the first one is as it was
    assert torch.equal(extending.rescaled(other, {})(tokens), before)
    assert torch.equal(other(tokens), decoder(tokens, positions=torch.arange(100) / 4))


def test_only_rope_has_scalings():
    alibi = TrainingConfig("alibi", seed=0, learning_rate=1e-3, tokens=2048).decoder(50)
    refuses(lambda: extending.rescaled(alibi, {}), "Scalings are RoPE's")


def test_a_fine_tune_goes_on_from_the_weights_with_the_new_frequencies(decoder):
    options = extension.METHODS["yarn"](4)
    none = extending.fine_tuned(decoder, TINY, options, 4 * L, 0, 1024, 0.5)
    some = extending.fine_tuned(decoder, TINY, options, 4 * L, 3, 1024, 0.5)
    assert torch.equal(none.embedding.weight, decoder.embedding.weight)
    assert not torch.equal(some.embedding.weight, decoder.embedding.weight)
    assert some.config.options == none.config.options == options
    assert (some.embedding.weight - none.embedding.weight).abs().max() < 4 * 0.5 * 1e-3


@given(st.floats(7, 1e6))
def test_beta_for_a_length_lies_between_one_turn_and_the_fastest_pair(length):
    assert 1 < extending.beta_for(length) < max(1.001, length / (2 * math.pi))
    assert extending.beta_for(4096) == pytest.approx(32)


@pytest.mark.parametrize("method", extension.METHODS)
@pytest.mark.parametrize("s", [2, 8, 16])
def test_every_method_can_be_built_for_the_models_of_the_study(method, s):
    sizes = {"d_model": 96, "n_heads": 3, "max_length": L}
    scaled, plain = build("rope", **sizes, **extension.METHODS[method](s)), build("rope", **sizes)
    slower = scaled.frequencies(length=s * L) <= plain.frequencies() * (1 + 1e-12)
    assert slower.all()
    if method not in ("none", "log_n"):
        assert (scaled.frequencies(length=s * L) < plain.frequencies() * 0.999).any()


# ---- what is measured ----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40))
def test_the_last_occurrence_is_the_nearest_earlier_one(tokens):
    for i, back in enumerate(extension.last_seen(tokens), start=1):
        earlier = [i - j for j in range(i) if tokens[j] == tokens[i]]
        assert back == (min(earlier) if earlier else 0)


PART = {"factor": 4, "tokens": 1024, "windows": 4, "trials": 2}


def test_the_parts_of_the_loss_within_L_add_up_to_the_loss(decoder):
    rows = pd.DataFrame(extension.local(decoder, "none", PART))
    whole, n = extension._loss(decoder, L, PART)
    for _, part in rows.groupby("quantity"):
        assert part["tokens"].sum() == n
        assert np.average(part["value"], weights=part["tokens"]) == pytest.approx(whole, rel=1e-6)


def test_entropy_lies_between_none_and_that_of_equal_weights(decoder):
    for row in extension.entropy(decoder, "none", PART):
        assert 0 <= row["value"] <= math.log(row["length"])
    cold = extending.rescaled(decoder, {"scaling": {"rope_type": "yarn", "factor": 1.0,
                                                    "attention_factor": 1e-4}})  # fmt: skip
    for row in extension.entropy(cold, "none", PART):
        assert row["value"] == pytest.approx(math.log(row["length"]), abs=1e-3)


class Copier(torch.nn.Module):
    """Expects the token that followed the last occurrence of the present one."""

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, corpus.load().vocabulary_size)
        for row, out in zip(tokens.tolist(), logits, strict=True):
            follows = {}
            for i, token in enumerate(row):
                if token in follows:
                    out[i, follows[token]] = 20.0
                if i + 1 < len(row):
                    follows[token] = row[i + 1]
        return logits


def test_a_model_that_copies_gains_from_a_repeated_segment():
    class Blind(torch.nn.Module):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, corpus.load().vocabulary_size)

    assert all(row["value"] == 0 for row in extension.repeat(Blind(), "none", PART))
    assert all(row["value"] > 1 for row in extension.repeat(Copier(), "none", PART))


# ---- the search ----------------------------------------------------------------------------------

VECTORS = arrays.arrays(float, 17, elements=st.floats(0, 1))


@given(VECTORS, st.sampled_from([2, 4, 8]))
def test_every_vector_is_a_monotone_scaling_within_the_bounds(vector, s):
    factors, start = longrope.read(vector, s)
    assert (np.diff(factors) >= 0).all()
    assert factors[0] >= 1 - 1e-12 and factors[-1] <= longrope.BEYOND * s * (1 + 1e-12)
    assert start in longrope.STARTS
    build("rope", d_model=32, n_heads=1, max_length=L, **longrope.options(factors, start, s))


@given(VECTORS)
def test_factors_can_be_written_as_a_vector_and_read_again(vector):
    factors, _ = longrope.read(vector, 8)
    again, start = longrope.read(longrope.written(factors, 8), 8)
    assert np.allclose(again, factors, rtol=1e-9) and start == 0


SEARCH = {"population": 5, "generations": 2, "search_tokens": 1024, "tokens": 1024, "steps": 1}


def test_a_search_is_no_worse_than_the_formulas_and_counts_its_evaluations(decoder):
    config = TrainingConfig(**{**vars(TINY), "n_heads": 1, "d_model": 32})
    decoder = config.decoder(corpus.load().vocabulary_size).eval()
    for search in (longrope.evolution, longrope.at_random):
        vector, objective = search(decoder, 4, SEARCH, seed=0)
        assert len(objective.values) == 5 * 3
        best = min(objective.values)
        assert objective(vector) == best <= min(objective.values[: len(longrope.SEEDS)])
        assert np.array_equal(search(decoder, 4, SEARCH, seed=0)[0], vector)  # repeatable


def test_the_search_text_is_not_the_test_text(decoder):
    objective = longrope.Objective(decoder, 4, 1024)
    assert objective.documents is not None
    searched = {d.tobytes() for d in objective.documents}
    assert searched.isdisjoint(d.tobytes() for d in corpus.load().documents("test"))
    assert searched.isdisjoint(d.tobytes() for d in corpus.load().documents("train"))


# ---- results and verdicts ------------------------------------------------------------------------


def made(loss, seeds=(0, 1, 2), tuned=lambda m, s: 3.3):
    """Results of `extension` with the loss that loss(method, factor, length) says."""
    rows = []
    for seed in seeds:
        noise = 0.001 * seed
        for m in extension.METHODS:
            for s in (2, 4, 8):
                for n in (L, s * L):
                    rows.append((m, seed, "zero_shot", s, 0, "nll", n, loss(m, s, n) + noise, 100))
            rows.append((m, seed, "local", 4, 0, "nll_by_tokens_before", 8, loss(m, 4, L), 100))
        rows.append(("linear", seed, "fine_tune", 4, 100, "nll", 4 * L, tuned("linear", 4), 100))
    return pd.DataFrame(rows, columns=extension.COLUMNS)


def verdict(id, **frames):
    entry = next(e for e in entries.load() if e.id == id)
    frames = {**dict.fromkeys(studies.STUDIES, pd.DataFrame()), **frames}
    return claims.judged(entry, claims.Results("quick", frames))["verdict_here"]


def as_said(m, s, n):
    """PI is worse within L, NTK no worse than unscaled at L, YaRN best."""
    at_L = {"none": 3.30, "linear": 3.5, "yarn": 3.31, "ntk_by_parts": 3.32}.get(m, 3.305)
    past = {"none": 3.5, "linear": 3.6, "yarn": 3.29, "ntk": 3.305}.get(m, 3.4)
    return at_L if n == L else past


def test_the_verdicts_follow_the_results():
    said = made(as_said)
    ids = ("PI-2", "PI-3", "NTK-2", "YRN-2")
    assert [verdict(id, extension=said) for id in ids] == [HOLDS] * 4
    few = made(as_said, seeds=(0, 1))
    assert [verdict(id, extension=few) for id in ("PI-2", "NTK-2", "YRN-2")] == [UNDECIDED] * 3
    for id in (*ids, "LRP-1", "LRP-3"):
        assert verdict(id) == UNDECIDED
    tuned_too_little = made(as_said, tuned=lambda m, s: 3.4)
    assert verdict("PI-2", extension=tuned_too_little) == REFUTED
    ntk_best = made(lambda m, s, n: 3.0 if m == "ntk" and s == 2 and n > L else as_said(m, s, n))
    assert verdict("YRN-2", extension=ntk_best) == IN_PART
    harmless = made(lambda m, s, n: 3.3 if n == L else as_said(m, s, n))
    assert verdict("PI-3", extension=harmless) == IN_PART  # what is exact still holds


def searched(found, linear=3.9, seeds=(0, 1, 2)):
    rows = []
    for seed in seeds:
        for m, nll in (("longrope", found), ("linear", linear), ("none", 3.6)):
            rows.append((m, seed, "nll", 8 * L, nll + 0.001 * seed))
    return pd.DataFrame(rows, columns=longrope.COLUMNS)


def test_the_verdict_on_the_search_follows_what_it_found():
    assert verdict("LRP-1", longrope=searched(3.4)) == HOLDS
    assert verdict("LRP-1", longrope=searched(4.0)) == REFUTED
    assert verdict("LRP-1", longrope=searched(3.4, seeds=(0,))) == UNDECIDED


def test_the_frames_say_what_the_rows_say():
    results = made(as_said)
    frame = extension.reached(results)
    row = frame.query("panel == @extension.GAIN_PANEL and encoding == 'yarn' and x == 4").iloc[0]
    assert list(frame.columns) == figures.COLUMNS and row["n"] == 3
    assert row["low"] < row["value"] < row["high"]
    assert row["value"] == pytest.approx(math.exp(3.291), rel=1e-5)
    within = extension.changed_within(results)
    assert within.loc[within["encoding"] == "linear", "value"].iloc[0] == pytest.approx(0.2)


@settings(max_examples=20)
@given(st.lists(st.floats(3, 4), min_size=4, max_size=4))
def test_the_search_curve_begins_at_the_best_formula(values):
    best = np.minimum.accumulate(values)
    rows = [("longrope", 0, "search", i + 1, v) for i, v in enumerate(best)]
    frame = longrope.search_curves(pd.DataFrame(rows, columns=longrope.COLUMNS))
    assert frame["x"].min() == len(longrope.SEEDS) and frame["value"].iloc[0] == 0
    assert frame["value"].iloc[-1] == pytest.approx(100 * math.expm1(best[3] - best[2]), abs=1e-9)


def test_a_training_can_start_from_any_weights(decoder):
    """What `fine_tuned` relies on: RoPE has no parameters, so the names are the same."""
    run = Training(TINY, corpus.load().documents("train"), corpus.load().vocabulary_size)
    names = extending.rescaled(decoder, extension.METHODS["yarn"](4)).state_dict().keys()
    assert run.decoder.state_dict().keys() == names
