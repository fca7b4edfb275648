"""The drift report names the row that moved, and by how much."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import paths, studies
from lib.claims import entries
from lib.drift import drift, report

ENCODINGS = ["rope", "alibi", "nope"]
PANELS = ["nonoverlapping", "sliding"]
LENGTHS = [64, 128, 256.5]
VERDICTS = {"ROT-1": "holds", "ALI-4": "undecided"}


def one_figure(value=None, sd=2.0):
    rows = [(p, e, x) for p in PANELS for e in ENCODINGS for x in LENGTHS]
    frame = pd.DataFrame(rows, columns=["panel", "encoding", "x"])
    frame["value"] = np.arange(18.0) if value is None else value
    return frame.assign(sd=sd, low=np.nan, high=np.nan, n=3)


@st.composite
def figures(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return one_figure(random.uniform(-1e3, 1e3, 18), 10 ** random.uniform(-3, 1, 18))


def lines(built, reference):
    return report({"a": built}, {"a": reference}, VERDICTS, VERDICTS)


@given(figures(), st.integers(0, 17), st.floats(0.1, 1e3), st.sampled_from([-1, 1]))
def test_a_reference_value_altered_by_k_pooled_sd_is_reported_as_k_at_its_row(frame, row, k, sign):
    panel, encoding, x = frame.loc[row, ["panel", "encoding", "x"]]
    peers = [
        sd for p, y, sd in zip(frame["panel"], frame["x"], frame["sd"], strict=True)
        if p == panel and y == x
    ]  # fmt: skip
    pooled = (sum(sd * sd for sd in peers) / len(peers)) ** 0.5
    altered = frame.copy()
    altered.loc[row, "value"] += sign * k * pooled
    rows = drift(frame, altered)
    assert rows["drift"].idxmax() == (panel, encoding, f"{x:g}")
    assert rows["drift"].max() == pytest.approx(k, rel=1e-6)
    assert (rows["drift"] > 0).sum() == 1
    first, *_, summary = lines(frame, altered)
    assert f" {rows['drift'].max():.3g} sd at panel {panel}, {encoding}, x = {x:g}:" in first
    assert f"largest drift {rows['drift'].max():.3g} sd in a;" in summary


@given(figures())
def test_a_build_does_not_drift_from_itself_in_any_order(frame):
    shuffled = frame.sample(frac=1, random_state=0)
    assert drift(shuffled, frame)["drift"].eq(0).all()
    first, summary = lines(shuffled, frame)
    assert first == "a: no drift in 18 rows."
    assert summary.startswith("1 figure compared; no drift; ")


@given(figures(), st.floats(0.5, 2))
def test_drift_does_not_depend_on_the_unit(frame, factor):
    built = frame.assign(value=frame["value"] * 1.01 + 0.5)
    scaled = [f.assign(value=f["value"] * factor, sd=f["sd"] * factor) for f in (built, frame)]
    ours, theirs = drift(built, frame)["drift"], drift(*scaled)["drift"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


def test_without_a_spread_at_one_x_the_panel_gives_it():
    reference = one_figure()
    at = (reference["panel"] == "sliding") & (reference["x"] == 128)
    reference.loc[at, "sd"] = [np.nan, 0.0, 0.0]
    reference.loc[(reference["panel"] == "sliding") & (reference["x"] == 64), "sd"] = 4.0
    built = reference.copy()
    built.loc[at & (built["encoding"] == "alibi"), "value"] += 10
    # eight rows of the panel have an sd: three of 4, three of 2 and the two zeros
    pooled = np.sqrt((3 * 16 + 3 * 4) / 8)
    assert drift(built, reference)["drift"].max() == pytest.approx(10 / pooled)
    assert "panel sliding, alibi, x = 128" in lines(built, reference)[0]


@pytest.mark.parametrize("nothing", [0.0, np.nan])
def test_without_any_spread_the_report_says_so(nothing):
    reference = one_figure(sd=nothing)
    built = reference.copy()
    built.loc[3, "value"] += 0.25
    built.loc[7, "value"] -= 1.25
    first, summary = lines(built, reference)
    assert "no spread known for 2 changed rows, the most changed" in first
    assert "alibi" not in first.split("most changed")[0]
    assert "panel nonoverlapping, nope, x = 128: 5.75, in the reference 7" in first
    assert "no drift" in summary


def test_a_value_that_became_nan_is_named():
    reference = one_figure()
    built = reference.copy()
    built.loc[4, "value"] = np.nan
    assert "nonoverlapping, alibi, x = 128: nan, in the reference 4" in lines(built, reference)[0]


def test_rows_and_figures_on_one_side_are_named():
    reference = one_figure()
    built = reference.drop(index=[0]).copy()
    built.loc[17, "encoding"] = "mine"
    found = report({"a": built, "c": built}, {"a": reference, "b": reference}, VERDICTS, VERDICTS)
    assert "a: row panel nonoverlapping, rope, x = 64 is not in this build." in found
    assert "a: row panel sliding, nope, x = 256.5 is not in this build." in found
    assert "a: row panel sliding, mine, x = 256.5 is not in the reference." in found
    assert "b: not drawn in this build." in found
    assert "c: not in the reference." in found
    assert "on one side only 2 figures and 3 rows" in found[-1]


def test_figures_without_a_common_row_say_so():
    reference = one_figure()
    built = reference.assign(encoding=reference["encoding"] + "2")
    assert lines(built, reference)[0] == "a: no row in common."


def test_verdicts_that_changed_are_listed():
    now = {"NEW-1": "refuted", "ALI-4": "holds"}
    assert report({}, {}, now, VERDICTS) == [
        "ROT-1: holds → none",
        "ALI-4: undecided → holds",
        "NEW-1: none → refuted",
        "0 figures compared; no drift; on one side only 0 figures and 0 rows; "
        "3 of 3 verdicts changed.",
    ]


def test_figures_of_times_are_named_and_not_compared():
    frame = one_figure()
    *_, line, summary = report({"a": frame}, {"a": frame}, VERDICTS, VERDICTS, ["cost"])
    assert line == "cost: not compared, it shows times of one machine."
    assert summary.startswith("1 figure compared, 1 of times not; no drift; ")


def test_every_committed_figure_and_every_claim_is_in_the_report():
    frames = studies.frames("reference")
    times = [f for n in studies.of("default") if studies.alone(n) for f in studies.study(n).FIGURES]
    verdicts = pd.read_csv(paths.REFERENCE / "claims.csv").set_index("id")["verdict"].to_dict()
    found = report(frames, frames, verdicts, verdicts, times)
    named = {line.partition(":")[0] for line in found[:-1]}
    rest = {name for study in studies.STUDIES for name in studies.study(study).FIGURES}
    rest -= {f for n in studies.of("default") for f in studies.study(n).FIGURES}
    committed = {path.stem for path in paths.FIGURES.glob("*.png")}
    assert committed - rest <= named  # the rest is drawn by longer profiles alone
    assert found[-1].endswith(f"0 of {len(entries.load())} verdicts changed.")


def test_frames_that_went_through_a_csv_still_match(tmp_path):
    frame = one_figure().assign(x=[1 / 3, 2 / 3, 64] * 6, panel=np.nan)
    frame = frame.iloc[:9]
    frame.to_csv(tmp_path / "a.csv", index=False, float_format="%.8g")
    assert drift(frame, pd.read_csv(tmp_path / "a.csv"))["drift"].eq(0).all()


def test_an_unnamed_row_or_a_missing_column_is_an_error():
    frame = one_figure()
    with pytest.raises(ValueError, match="two rows at panel nonoverlapping, rope, x = 64"):
        drift(pd.concat([frame, frame.head(1)]), frame)
    with pytest.raises(ValueError, match="reference figure has no column sd"):
        drift(frame, frame.drop(columns="sd"))
