"""The studies: what they cost, and that their summaries say what the rows say."""

import dataclasses
import importlib
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import corpus, figures, paths, studies, texts
from lib.examples import NAMES
from lib.studies import examples, extrapolation, learning_rates
from lib.training import TrainingConfig

DEFAULT_BUDGET = 6_600  # core-seconds of the default profile
L = extrapolation.L


# ---- every study ---------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", paths.PROFILES)
def test_every_study_declares_its_cost(profile):
    run = studies.of(profile)
    assert all((studies.study(name).COST[profile] > 0) == (name in run) for name in studies.STUDIES)


def test_the_default_profile_fits_its_budget():
    assert sum(studies.study(name).COST["default"] for name in studies.STUDIES) <= DEFAULT_BUDGET


def test_the_quick_profile_fits_eight_minutes_of_two_cores():
    assert sum(studies.study(name).COST["quick"] for name in studies.STUDIES) <= 8 * 60 * 2


@pytest.mark.parametrize("profile", paths.PROFILES)
@pytest.mark.parametrize("name", studies.STUDIES)
def test_every_study_says_what_it_runs(name, profile):
    study = studies.study(name)
    jobs = study.jobs(profile)
    keys = [(j.training.key if j.training else None, str(j.settings)) for j in jobs]
    assert len(set(keys)) == len(keys) and bool(jobs) == (name in studies.of(profile))
    assert all(importlib.import_module(job.measure).MEASURING for job in jobs)
    # The other text may be downloaded: the gpu profile's alone.
    assert {job.training.text for job in jobs if job.training} <= {texts.MESSAGES}


def test_only_what_stands_beside_the_reference_is_left_out_of_a_profile():
    assert studies.of("quick") == studies.of("full") == list(studies.STUDIES)
    assert set(studies.STUDIES) - set(studies.of("default")) == {"examples"}
    assert studies.of("reference") == studies.of("default")
    with pytest.raises(ValueError, match="no profile 'weekly'"):
        studies.of("weekly")


def test_no_two_figures_have_one_name():
    names = [f for name in studies.STUDIES for f in studies.study(name).FIGURES]
    assert len(names) == len(set(names))


def test_reading_what_has_not_been_run_says_how(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    with pytest.raises(ValueError, match="make reproduce"):
        studies.read("extrapolation", "default")
    with pytest.raises(ValueError, match="no profile 'weekly'"):
        studies.read("extrapolation", "weekly")


# ---- extrapolation -------------------------------------------------------------------------------


def made(nll, seeds=(0, 1, 2), lengths=extrapolation.LENGTHS, encodings=("rope", "alibi")):
    """Results as `collect` gives them, with nll(encoding, seed, train_length, kind, length)."""
    rows = [
        {
            "encoding": e, "seed": s, "train_length": n, "evaluation": kind, "length": length,
            "nll": nll(e, s, n, kind, length), "tokens": 10,
        }
        for e in encodings for s in seeds for n in lengths
        for kind in ("nonoverlapping", "sliding") for length in lengths[n]
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    frame["perplexity"] = np.exp(frame["nll"])
    return frame


def test_the_lengths_are_those_asked_for():
    ratios = (0.5, 1, 1.1, 1.25, 1.5, 2, 3, 4, 8, 16)
    assert {round(r * L) for r in ratios} | {L + 50} == set(extrapolation.LENGTHS[L])
    twice = {round(r * 2 * L) for r in ratios[:-1]} | {2 * L + 50}
    assert twice == set(extrapolation.LENGTHS[2 * L])


@pytest.mark.parametrize("profile", ["default", "full"])
def test_sinusoids_rope_and_alibi_are_trained_at_both_lengths(profile):
    trained = {(j.training.encoding, j.training.train_length) for j in extrapolation.jobs(profile)}
    assert {(e, 2 * L) for e in ("sinusoidal", "rope", "alibi")} < trained
    assert {(e, L) for e in extrapolation.ENCODINGS} < trained
    seeds = {j.training.seed for j in extrapolation.jobs(profile)}
    assert len(seeds) >= 3 and learning_rates.SEED not in seeds


def test_relative_values_are_one_at_the_training_length():
    rows = extrapolation.relative(made(lambda e, s, n, kind, length: s + length / n))
    assert (rows.loc[rows["ratio"] == 1, "value"] == 1).all()
    assert np.allclose(rows["value"], np.exp(rows["ratio"] - 1))


def test_differences_are_paired_by_seed():
    results = made(lambda e, s, n, kind, length: 10 * s + (e == "rope"))
    one = ("rope", L, "sliding", L)
    gap = extrapolation.paired(results, one, ("alibi", L, "sliding", L))
    assert (gap.value, gap.sd, gap.n) == (1.0, 0.0, 3)
    assert extrapolation.paired(results, one, ("nope", L, "sliding", L)).n == 0


def test_a_diverged_run_is_not_dropped_from_a_pair():
    results = made(lambda e, s, n, kind, length: math.nan if (e, s) == ("rope", 1) else 1.0)
    gap = extrapolation.paired(results, ("rope", L, "sliding", L), ("alibi", L, "sliding", L))
    assert math.isnan(gap.value) and gap.n == 3


@given(
    st.lists(st.floats(-0.3, 0.5), min_size=1, max_size=6),
    st.sampled_from([0.02, 0.1]),
)
def test_the_longest_length_within_a_threshold_is_where_the_curve_crosses(steps, threshold):
    lengths = [2.0**k for k in range(len(steps) + 1)]
    values = np.exp(np.concatenate([[0.0], np.cumsum(steps)]))
    length, censored = extrapolation.longest_within(lengths, values, threshold)
    at = np.exp(np.interp(np.log(length), np.log(lengths), np.log(values)))
    before = values[np.array(lengths) < length]
    assert (before <= (1 + threshold) * (1 + 1e-9)).all()
    if censored:
        assert length == pytest.approx(lengths[-1]) and at <= (1 + threshold) * (1 + 1e-9)
    else:
        assert at == pytest.approx(1 + threshold)


def test_tolerance_of_a_known_curve():
    # ln(perplexity / perplexity at L) = 0.1·log2(length / L): 2 % at 2^(10·ln 1.02) L.
    results = made(lambda e, s, n, kind, length: 0.1 * math.log2(length / n))
    table = extrapolation.tolerance(results)
    row = table[(table["source"] == extrapolation.HERE) & (table["within"] == 0.02)].iloc[0]
    assert row["ratio"] == pytest.approx(2 ** (10 * math.log(1.02)), rel=0.01)
    assert not row["censored"] and row["n"] == 3
    assert row["tokens_past"] == pytest.approx((row["ratio"] - 1) * row["train_length"])


def test_the_papers_curves_are_read_as_they_are_printed():
    table = extrapolation.published().set_index(["encoding", "train_length", "length"])
    assert table.loc[("sinusoidal", 512, 1012), "perplexity"] == 43.54
    assert table.loc[("rope", 512, 512), "value"] == 1
    assert table.loc[("alibi", 512, 15512), "value"] == pytest.approx(18.31 / 19.73)


@pytest.mark.parametrize("figure", extrapolation.FIGURES)
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_every_figure_is_drawn_from_rows_that_drift_can_match(figure, seeds):
    results = made(
        lambda e, s, n, kind, length: 3 + 0.01 * s + 0.1 * math.log(length),
        seeds,
        encodings=("rope", "alibi", "kerple"),
    )
    position = results[results["evaluation"] == "sliding"].assign(evaluation="position")
    frame, draw = extrapolation.FIGURES[figure]
    numbers = frame(pd.concat([results, position]))
    assert list(numbers.columns[: len(figures.COLUMNS)]) == figures.COLUMNS
    assert not numbers.duplicated(["panel", "encoding", "x"]).any()
    drawn = draw(numbers)
    drawn.canvas.draw()
    figures.plt.close(drawn)


def test_the_examples_get_the_budget_of_the_main_figure():
    at_L = [j for j in extrapolation.jobs("default") if j.training.train_length == L]
    of_figure = {(j.training.encoding, j.training.seed): j for j in at_L}
    jobs = examples.jobs("full")
    names = {j.training.encoding for j in jobs}
    assert names == {*NAMES, *examples.BESIDE}
    for job in jobs:
        like = of_figure["rope", job.training.seed]
        assert (job.training.tokens, job.training.d_model, job.settings) == (
            like.training.tokens, like.training.d_model, like.settings
        )  # fmt: skip


def test_the_gap_of_an_example_is_paired_with_alibi():
    two = ("alibi", "fire")
    results = made(lambda e, s, n, kind, length: 3.0 + s + (e == "fire"), encodings=two)
    rows = examples.differences(results)
    assert list(rows["length"]) == [L, 16 * L] and set(rows["encoding"]) == {"fire"}
    assert (rows["value"] == 1).all() and (rows["sd"] == 0).all()


def test_measuring_scores_the_same_targets_at_every_length():
    training = TrainingConfig(
        encoding="learned", seed=0, learning_rate=1e-3, tokens=1024, d_model=16, n_heads=2,
        n_layers=1, d_ff=16,
    )  # fmt: skip
    decoder = training.decoder(corpus.load().vocabulary_size).eval()
    settings = dict(extrapolation.jobs("quick")[0].settings)
    settings |= {"lengths": [64, 70, 128], "strides": [16, 16, 16]}
    settings |= {"tokens": 2048, "sliding_tokens": 256}
    rows = pd.DataFrame(extrapolation.measure(decoder, training, settings))
    assert set(rows["encoding"]) == {"learned", "learned_interpolated"}
    assert rows.groupby("evaluation")["tokens"].nunique().eq(1).all()
    whole = rows[rows["evaluation"] == "nonoverlapping"]
    assert (whole["tokens"] == 2048).all()
    at_L = rows[rows["length"] == L].groupby("evaluation")["nll"].nunique()
    assert at_L["nonoverlapping"] == 1  # inside the table both rows are one model
    assert decoder.encodings[0].max_length == L  # and the decoder is as it was


# ---- learning rates ------------------------------------------------------------------------------


def test_the_record_holds_three_rates_for_every_encoding():
    record = pd.read_csv(learning_rates.RECORD)
    rates = record.groupby("encoding")["learning_rate"].nunique()
    assert (rates.loc[list(learning_rates.ENCODINGS)] == 3).all()
    best = record.loc[record.groupby("encoding")["perplexity"].idxmin()]
    assert best["chosen"].all() and record["chosen"].sum() == len(best)


def test_an_encoding_without_a_record_is_an_error_that_says_how():
    with pytest.raises(ValueError, match="python -m lib sweep"):
        learning_rates.chosen("mine")


def test_the_sweep_uses_no_text_of_the_test_part():
    rows = dataclasses.asdict(learning_rates._job("rope", 1e-3, 1.0))
    assert rows["training"]["seed"] == learning_rates.SEED
    text = corpus.load()
    sweep, test = text.stream("sweep"), text.documents("test")
    assert not any(np.array_equal(sweep[: len(d)], d) for d in test)
