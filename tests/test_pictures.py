"""Pictures for derivations show the arrays that they are given."""

import warnings

import numpy as np
import pytest
from matplotlib.colors import to_hex

from lib import figures, pictures

WORDS = ["red", "old", "cats"]
DISTANCES = np.arange(101)
WAVES = np.geomspace(5, 5000, 20)


def test_the_second_attention_matrix_is_labelled_in_the_new_order():
    weights = np.arange(9).reshape(3, 3) / 9
    order = [2, 0, 1]  # not its own inverse
    figure = pictures.attention_pair(weights, weights[order][:, order], WORDS, order)
    left, right = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == WORDS
    assert [t.get_text() for t in right.get_yticklabels()] == ["cats", "red", "old"]
    framed = []
    for axis in (left, right):
        column, row = np.round(np.array(axis.patches[0].get_center())).astype(int)
        framed.append(axis.images[0].get_array()[row, column])
    assert framed == [weights[0, 2], weights[0, 2]]  # the same weight in both


def test_only_changed_words_are_filled():
    changed = np.array([[True, False, False], [True, True, False]])
    figure = pictures.changed_tokens(changed, ["one", "two"], WORDS, moved=[0])
    filled = [to_hex(patch.get_facecolor()) == pictures.SECOND for patch in figure.axes[0].patches]
    assert filled == changed.ravel().tolist()


def test_an_arc_is_as_long_as_its_positions():
    figure = pictures.arcs([64.0, 256.0], length=64)
    trained = figure.axes[1].lines[1].get_xydata()
    angle = np.unwrap(np.arctan2(trained[:, 1], trained[:, 0]))
    assert angle[-1] - angle[0] == pytest.approx(2 * np.pi * 63 / 256)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: pictures.attention_pair(np.eye(3), np.eye(3), WORDS, [0, 1, 2]),
        lambda: pictures.changed_tokens(np.eye(3), ["a", "b", "c"], WORDS, [1]),
        lambda: pictures.position_matrix(np.sin(np.outer(np.arange(9), np.arange(6)))),
        lambda: pictures.product_by_distance(DISTANCES, 1 / (1 + DISTANCES), 0.1 * DISTANCES),
        lambda: pictures.arcs(WAVES[:5], 64),
        lambda: pictures.novelty_by_wavelength(WAVES, 1 / WAVES, 1 / WAVES, 64),
        lambda: pictures.coarse_wave(DISTANCES, np.sin(DISTANCES), np.cos(DISTANCES)),
    ],
)
def test_every_picture_is_drawn_without_a_warning_and_stays_small(draw):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks, a layout that does not fit
        picture = figures.png(draw(), figures.INLINE_DPI)
    assert len(picture) < 60_000
