"""The study of pictures: what it asks, its rows and figures, and the claims that read them."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from lib import figures, images, vit
from lib.claims import Results
from lib.claims import vision as claims
from lib.studies import extrapolation, vision

SHIFT_BLIND = ("rope_raster", "rope2d_axial", "rope2d_mixed", "alibi2d", "alibi2d_directional")


def test_every_variant_is_asked_with_its_recorded_rates():
    record = pd.read_csv(vision.RECORD)
    assert set(record["encoding"]) == set(vision.VARIANTS)
    assert (record.groupby("encoding")["learning_rate"].nunique() >= 3).all()
    best = record.loc[record.groupby("encoding")["accuracy"].idxmax()]
    assert best["chosen"].all() and record["chosen"].sum() == len(best)
    for profile, seeds in (("default", 3), ("full", 5)):
        asked = [j.settings for j in vision.jobs(profile) if j.settings["pictures"] == "digits"]
        assert {(s["variant"], s["seed"]) for s in asked} == {
            (v, n) for v in vision.VARIANTS for n in range(seeds)
        }
        for s in asked:
            rates = {key: s[key] for key in ("learning_rate", "encoding_rate")}
            assert rates == vision.chosen(s["variant"])
            assert s["seed"] != vision.SWEEP_SEED and s["part"] == "test"
    with pytest.raises(ValueError, match="python -m lib sweep"):
        vision.chosen("mine")


def test_the_sweep_sees_no_test_picture():
    p = images.digits()
    train, labels, judged, judged_labels, _ = vision._data("digits", "sweep")
    assert torch.equal(torch.cat([train, judged]), p.train)
    assert torch.equal(torch.cat([labels, judged_labels]), p.train_labels)
    assert len(judged) > 200


def test_positions_of_a_grid_and_of_its_raster():
    assert torch.equal(vision.positions("nope", (2, 3)), images.places((2, 3)))
    assert vision.positions("rope_raster", (2, 3)).tolist() == [0, 1, 2, 3, 4, 5]
    h, w = vision.TRAINED
    for variant in ("rope2d_axial", "rope_raster"):
        as_trained = vision.positions(variant, (h, w))
        torch.testing.assert_close(
            vision.positions(variant, (h, w), scaled=True), as_trained, check_dtype=False
        )
        finer = vision.positions(variant, (2 * h, 2 * w), scaled=True)
        assert finer.max() <= as_trained.max() + 1 and len(finer) == 4 * h * w
        moved = vision.positions(variant, (h, w), moved=(1, 2)) - as_trained
        assert (moved == moved[0]).all() and moved[0].sum() > 0


@pytest.fixture(scope="module")
def measured():
    """variant → the rows of an untrained model, of few pictures on few grids."""
    found, p = {}, images.digits()
    few = images.Pictures(p.train[:64], p.train_labels[:64], p.test[:64], p.test_labels[:64])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(images.SETS, "digits", lambda: few)
        for variant in vision.VARIANTS:
            job = vision._job(variant, 0, "digits", 0, [(6, 12)], 1e-3, 1.0)
            found[variant] = pd.DataFrame(vision.measure(None, None, job.settings))
    return found


@pytest.mark.parametrize("variant", vision.VARIANTS)
def test_a_model_is_asked_every_question_once(measured, variant):
    rows = measured[variant]
    asked = rows.set_index(["question", "height", "width"])
    assert asked.index.is_unique and (rows["n"] == 64).all()
    questions = {"trained", "moved", "as they come", "scaled"}
    assert set(rows["question"]) == questions | {"canvas, first corner", "canvas, last corner"}
    trained, moved = (asked.loc[(q, 6, 6), "accuracy"] for q in ("trained", "moved"))
    if variant in SHIFT_BLIND:
        assert moved == trained


def test_untrained_places_surround_the_trained_table():
    model = vision.model_of("learned2d", 0).eval()
    larger = vision.grown(model, 0)
    assert larger.encodings[0].table.shape[:2] == (12, 12)
    x = torch.randn(2, 36, 4)
    same = [net(x, images.places((6, 6))) for net in (model, larger)]
    torch.testing.assert_close(*same)
    assert model.encodings[0].table.shape[:2] == (6, 6)
    axial = vision.model_of("rope2d_axial", 0)
    assert vision.grown(axial, 0) is axial


# ---- results made up -----------------------------------------------------------------------------


def made(level, seeds=(0, 1, 2), variants=tuple(vision.VARIANTS)):
    """Results with accuracies level(variant, question, height, width), a little apart by seed."""
    asked = [("trained", 6, 6), ("moved", 6, 6)]
    asked += [("canvas, first corner", 9, 9), ("canvas, last corner", 9, 9)]
    asked += [(q, *grid) for grid in vision.GRIDS for q in ("as they come", "scaled")]
    return pd.DataFrame(
        [
            (v, s, "digits", q, h, w, level(v, q, h, w) - 0.001 * s, 450)
            for v in variants for s in seeds for q, h, w in asked
        ],
        columns=vision.COLUMNS,
    )  # fmt: skip


def text(levels, seeds=(0, 1, 2)):
    """Results of the study of text: level of the loss by encoding, at every length the same."""
    rows = [
        (e, s, extrapolation.L, "nonoverlapping", length, levels.get(e, 3.5) + 0.001 * s)
        for e in extrapolation.ENCODINGS
        for s in seeds
        for length in extrapolation.LENGTHS[extrapolation.L]
    ]
    columns = ["encoding", "seed", "train_length", "evaluation", "length", "nll"]
    return pd.DataFrame(rows, columns=columns)


def good_rope(variant, question, height, width):
    return {"rope2d_axial": 0.95, "rope2d_mixed": 0.96}.get(variant, 0.8)


@pytest.mark.parametrize("figure", vision.FIGURES)
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("variants", [vision.QUICK, tuple(vision.VARIANTS)])
def test_every_figure_is_drawn_from_rows_that_drift_can_match(figure, seeds, variants):
    frame, draw = vision.FIGURES[figure]
    numbers = frame(made(good_rope, seeds, variants))
    assert list(numbers.columns[: len(figures.COLUMNS)]) == figures.COLUMNS
    assert not numbers.duplicated(["panel", "encoding", "x"]).any()
    drawn = draw(numbers)
    drawn.canvas.draw()
    figures.plt.close(drawn)


def test_differences_are_paired_by_seed():
    results = made(good_rope)
    gap = vision.paired(results, "rope2d_mixed", "alibi2d", "scaled", (12, 12))
    assert len(gap) == 3 and np.allclose(gap, 0.16)
    assert vision.paired(results, "rope2d_mixed", "mine", "trained").empty
    assert vision.paired(pd.DataFrame(), "rope2d_mixed", "alibi2d", "trained").empty


def verdicts(test, pictures, of_text, **tolerance):
    found = Results("quick", {"vision": pictures, "extrapolation": of_text})
    here, published = test(found, **tolerance)
    assert published == []
    return [part.verdict for part in here]


ALIBI_AHEAD = text({"alibi": 3.0, "rope": 3.2})


def test_rope_fits_better_only_where_it_does():
    def ask(pictures):
        return verdicts(claims.rope_fits_pictures_better, pictures, pd.DataFrame(), ahead=0.01)

    assert set(ask(made(good_rope))) == {"holds"}
    assert set(ask(made(lambda *_: 0.9))) == {"refuted"}
    assert set(ask(made(good_rope, seeds=(0,)))) == {"undecided"}
    assert set(ask(pd.DataFrame())) == {"undecided"}
    with_directions = made(lambda v, *q: 0.97 if v == "alibi2d_directional" else good_rope(v, *q))
    assert ask(with_directions) == ["holds"] * 4 + ["refuted"] * 2


def test_a_penalty_suits_text_alone_only_if_it_fails_on_pictures_with_directions_too():
    def ask(pictures, of_text):
        return verdicts(claims.penalty_suits_text_alone, pictures, of_text, behind=0.01)

    assert ask(made(good_rope), ALIBI_AHEAD) == ["holds"] * 3
    assert ask(made(good_rope), text({"alibi": 3.4, "rope": 3.2}))[0] == "refuted"
    with_directions = made(lambda v, *q: 0.97 if v == "alibi2d_directional" else good_rope(v, *q))
    assert ask(with_directions, ALIBI_AHEAD) == ["holds", "holds", "refuted"]
    assert ask(pd.DataFrame(), pd.DataFrame()) == ["undecided"] * 3


def test_one_notion_of_position_needs_a_family_that_is_close_in_both():
    def ask(pictures, of_text):
        return verdicts(
            claims.one_notion_of_position, pictures, of_text,
            text_within=0.05, pictures_within=0.02,
        )  # fmt: skip

    assert ask(made(good_rope), text({"rope": 3.0, "alibi": 3.0})) == ["holds"]
    assert ask(made(good_rope), text({"alibi": 3.0})) == ["refuted"]
    assert ask(made(good_rope), pd.DataFrame()) == ["undecided"]
    # A diverged run leaves its family open.
    broken = made(lambda v, *q: math.nan if v.startswith("rope2d") else good_rope(v, *q))
    assert ask(broken, text({"rope": 3.0})) == ["undecided"]


def test_the_model_is_small_and_reads_windows():
    model = vision.model_of("rope2d_mixed", 0)
    assert isinstance(model, vit.ViT) and model.into.in_features == vision.WINDOWS["digits"] ** 2
    assert sum(p.numel() for p in model.parameters()) < 100_000
