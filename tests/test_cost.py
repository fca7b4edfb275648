"""The study of costs and its claims: that the summaries and verdicts say what the rows say."""

import numpy as np
import pandas as pd
import pytest

from lib import bench, figures, paths, studies
from lib.claims import cost as claims
from lib.claims.verdicts import HOLDS, REFUTED, UNDECIDED
from lib.studies import cost


def made(factors, parts=("training", "inference"), lengths=(512, 1024), rounds=3, noise=0.01):
    """Results as `collect` gives them: `factors` are costs over sinusoids', {encoding: number} or
    {encoding: {quantity: number}}."""
    rng = np.random.default_rng(0)
    rows = []
    for part in parts:
        for length in lengths:
            for encoding, factor in {"sinusoidal": 1.0, **factors}.items():
                of = factor if isinstance(factor, dict) else {"seconds": factor, "bytes": factor}
                for r in range(rounds):
                    ratio = of["seconds"] * (1 + noise * rng.standard_normal())
                    rows.append((part, encoding, r, length, "seconds", length * ratio, ratio))
                rows.append((part, encoding, 0, length, "bytes", length * of["bytes"], of["bytes"]))
    return pd.DataFrame(rows, columns=cost.COLUMNS)


def words(parts):
    return {p.verdict for p in parts}


def test_of_two_rounds_the_faster_counts():
    times = {"sinusoidal": [1.0, 5.0, 2.0, 2.0], "rope": [9.0, 2.0, 3.0, 8.0]}
    held = {"sinusoidal": [10], "rope": [11]}
    rows = bench.rows("training", 8, times, "seconds") + bench.rows("training", 8, held, "bytes")
    frame = cost._by_pairs(rows)
    seconds = frame[frame["quantity"] == "seconds"].set_index(["subject", "round"])
    assert seconds["value"].to_dict() == {
        ("sinusoidal", 0): 1, ("sinusoidal", 1): 2, ("rope", 0): 2, ("rope", 1): 3,
    }  # fmt: skip
    assert seconds.loc[("rope", 1), "ratio"] == 1.5
    assert frame[frame["quantity"] == "bytes"]["ratio"].tolist() == [1, 1.1]


def test_a_study_of_time_runs_alone_and_its_figures_do_not_drift(monkeypatch, tmp_path):
    assert studies.alone("cost") and not studies.alone("extrapolation")
    monkeypatch.setattr(studies, "STUDIES", ("cost",))
    assert studies.frames("quick") == {}


@pytest.mark.parametrize("profile", paths.PROFILES)
def test_every_time_has_as_many_pairs_of_rounds_as_an_interval_needs(profile):
    for job in cost.jobs(profile):
        rounds = job.settings.get("rounds", 6)
        assert rounds >= 6 or "shaw" in job.settings["names"]


@pytest.mark.parametrize("figure", cost.FIGURES)
def test_every_figure_is_drawn_from_rows_that_can_be_matched(figure):
    parts = [f"{kind}{end}" for kind in ("training", "inference") for end in ("", ", written out")]
    results = made({"rope": 1.1, "t5": 1.3, "alibi": 0.9}, [*parts, "growth", "decoding"])
    frame, draw = cost.FIGURES[figure]
    numbers = frame(results)
    assert list(numbers.columns[: len(figures.COLUMNS)]) == figures.COLUMNS
    assert not numbers.duplicated(["panel", "encoding", "x"]).any()
    drawn = draw(numbers)
    drawn.canvas.draw()
    figures.plt.close(drawn)


def test_sinusoids_are_cheapest_until_another_is_cheaper():
    others = {"rope": 1.1, "t5": 1.3, "alibi": 1.0}
    here, published = claims.sinusoids_are_cheapest({"cost": made(others)}, 0.1)
    assert words(here) == words(published) == {HOLDS}
    grown = made({**others, "alibi": 0.6}, ["growth"], (512, 4096))
    here, _ = claims.sinusoids_are_cheapest({"cost": grown}, 0.1)
    assert {p.what: p.verdict for p in here}["growth at 4096, alibi"] == REFUTED


def test_half_the_speed_is_neither_more_nor_less():
    for factor, expected in ((2.0, HOLDS), (1.2, REFUTED), (4.0, REFUTED)):
        results = {"cost": made({"t5": factor}, ["training", "training, written out"])}
        here, published = claims.t5_halves_the_speed(results, 0.45, 0.55)
        assert words(here) == {expected}
    assert [p.verdict for p in published] == [HOLDS, HOLDS, REFUTED]


def test_most_memory_is_above_each_of_the_others():
    for t5, expected in ((1.3, HOLDS), (1.15, REFUTED), (1.0, REFUTED)):
        results = {"cost": made({"rope": 1.2, "t5": t5, "alibi": 1.0})}
        here, published = claims.t5_holds_most(results, 0.02)
        assert words(here) == {expected}
    assert words(published) == {REFUTED}  # the paper's own table


def test_memory_is_no_burden_where_it_is_that_of_sinusoids():
    for factor, expected in ((1.2, HOLDS), (1.001, REFUTED)):
        here, _ = claims.bias_burdens_memory({"cost": made({"t5": factor})}, 1e-12, 0.02)
        assert {p.verdict for p in here if "memory at" in p.what} == {expected}


def test_rotation_is_felt_or_not():
    for factor, expected in ((1.4, HOLDS), (1.05, REFUTED)):
        here, published = claims.rotation_is_felt({"cost": made({"rope": factor})}, 0.15)
        assert words(here) == {expected}
    assert words(published) == {HOLDS}


def test_alibi_costs_as_sinusoids_or_not():
    for factor, expected in ((1.05, HOLDS), (1.5, REFUTED)):
        here, published = claims.alibi_costs_as_sinusoids(
            {"cost": made({"alibi": factor})}, 0.2, 0.1
        )
        assert words(here) == {expected}
    assert words(published) == {HOLDS}


def test_alibis_additions_are_counted():
    here, _ = claims.alibi_adds_and_has_no_parameters({"cost": pd.DataFrame()}, 0.3)
    assert [p.verdict for p in here] == [HOLDS, HOLDS, UNDECIDED, UNDECIDED]


def test_the_gap_is_paired_by_seed():
    rows = [
        ("overfit", encoding, seed, 10, quantity, seed + value, np.nan)
        for encoding, train in (("alibi", 2.0), ("t5", 1.5))
        for seed in range(3)
        for quantity, value in (("train", train + 0.01 * seed), ("test", 4.0))
    ]
    results = {"cost": pd.DataFrame(rows, columns=cost.COLUMNS)}
    assert words(claims.fixed_slopes_spare(results)[0]) == {HOLDS}
    assert words(claims.fixed_slopes_spare({"cost": pd.DataFrame()})[0]) == {HOLDS, UNDECIDED}


def test_what_was_not_measured_is_undecided():
    nothing = {"cost": pd.DataFrame()}
    for test, tolerance in (
        (claims.sinusoids_are_cheapest, [0.1]),
        (claims.t5_halves_the_speed, [0.45, 0.55]),
        (claims.t5_holds_most, [0.02]),
        (claims.rotation_is_felt, [0.15]),
        (claims.alibi_costs_as_sinusoids, [0.2, 0.1]),
    ):
        here, published = test(nothing, *tolerance)
        assert words(here) == {UNDECIDED} and published
