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


def test_the_arc_between_a_query_and_a_key_is_the_same_wherever_they_stand():
    figure = pictures.turned_pairs(1j, 0.5, 0.3, [(0, 3), (40, 43)])
    arcs = [axis.lines[-1].get_xydata() @ [1, 1j] for axis in figure.axes]
    swept = [np.angle(arc[-1] / arc[0]) for arc in arcs]
    assert swept == pytest.approx([np.pi / 2 - 0.9] * 2)


def test_heads_are_sorted_by_their_reach_and_the_line_follows_the_last_complete_turn():
    shares = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    axis = pictures.shares_of_pairs(shares, np.array([30.0, 4.0]), np.array([6, 60, 600]), 64).axes[
        0
    ]
    assert axis.images[0].get_array().tolist() == [[20, 30, 50], [90, 10, 0]]
    assert axis.lines[0].get_xdata()[0] == 1.5


def test_the_error_up_to_a_position_never_falls():
    errors = {"a": np.array([1, 3, 2.0]), "b": np.array([2, 1, 5.0]), "c": np.array([1, 1, 1.0])}
    lines = pictures.error_by_position(np.array([1, 2, 3]), errors).axes[0].lines
    assert [line.get_ydata().tolist() for line in lines[:2]] == [[1, 3, 3], [2, 2, 5]]


def test_added_tokens_lie_between_the_lengths_that_they_tell_apart():
    panel = (4, np.array([4, 8, 16]), np.array([[9, 8, 7.0]]), np.array([[7, 6.0]]), None)
    axis = pictures.loss_of_more_context({"": panel}).axes[0]
    bars = axis.collections[0].get_segments()
    assert [bar.tolist() for bar in bars] == [[[1, 7], [2, 7]], [[2, 6], [4, 6]]]


def test_rows_that_are_read_again_are_not_joined_by_a_line_down():
    rows = np.array([0, 1, 2, 0, 1, 2.0])
    read = {"repeated": rows, "interpolated": rows / 4, "grown": np.arange(6.0)}
    lines = pictures.rows_read(np.arange(6), read, np.eye(6, 2), 3).axes[0].lines
    assert np.isnan(lines[0].get_ydata()).tolist() == [False] * 3 + [True] + [False] * 2


def test_a_dot_stands_beside_its_name_and_within_its_interval():
    panel = (["a", "b"], np.array([1, 2.0]), np.array([0, 1.5]), np.array([3, 2.5]))
    axis = pictures.estimates({"x": panel}).axes[0]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["a", "b"]
    assert axis.lines[0].get_xydata().tolist() == [[1, 0], [2, 1]]
    bars = axis.collections[0].get_segments()
    assert [bar.tolist() for bar in bars] == [[[0, 0], [3, 0]], [[1.5, 1], [2.5, 1]]]


def test_panels_on_one_axis_show_all_of_every_panel():
    heads = np.ones((1, 17))
    low, high = pictures.terms_by_relation(np.arange(-16, 1), [heads, 9 * heads]).axes[1].get_ylim()
    assert low < 1 < 9 < high
    panels = {n: (["a"], *([np.array([n])] * 3)) for n in (1, 9)}
    low, high = pictures.estimates(panels).axes[0].get_xlim()
    assert low < 1 < 9 < high


HALVES = 0.5 ** np.arange(4)
SHARES = {"bfloat16": HALVES, "float16": HALVES / 8}


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
        lambda: pictures.turned_pairs(1, 0.5j, 0.35, [(0, 3), (10, 13), (57, 60)]),
        lambda: pictures.unseen_angles(np.outer(DISTANCES, WAVES) % 180, WAVES, 64),
        lambda: pictures.decay_with_distance(
            DISTANCES, 99.0 - DISTANCES, HALVES[:1].repeat(101), np.ones(101)
        ),
        lambda: pictures.shares_of_pairs(np.eye(27, 16), np.arange(27), WAVES[:16], 64),
        lambda: pictures.error_by_position(WAVES, {name: WAVES for name in "abc"}),
        lambda: pictures.slopes_of_heads({"8 heads": HALVES, "6 heads": HALVES}),
        lambda: pictures.misplaced_weight(2 ** np.arange(4), SHARES, SHARES),
        lambda: pictures.weight_within(
            DISTANCES, {n: DISTANCES / 100 for n in "abc"}, {"a": (DISTANCES[:3], np.eye(3))}
        ),
        lambda: pictures.reach_at_two_lengths(
            {"rope": (WAVES, WAVES), "t5": (WAVES, WAVES)}, (64, 99)
        ),
        lambda: pictures.loss_of_more_context(
            {"": (1, 2 ** np.arange(4), HALVES[None], HALVES[None, 1:], (WAVES, WAVES))}
        ),
        lambda: pictures.rows_read(
            DISTANCES, {name: DISTANCES % 40 for name in "abc"}, np.eye(9, 3), 40
        ),
        lambda: pictures.table_cosines(np.eye(9), {"a": (HALVES, HALVES[None])}),
        lambda: pictures.table_cosines(None, {n: (HALVES, HALVES[None]) for n in "abc"}),
        lambda: pictures.estimates({n: (list("abcd"), HALVES, HALVES, HALVES) for n in "xyz"}),
        lambda: pictures.buckets((DISTANCES, DISTANCES + 1), (DISTANCES - 50, DISTANCES), 9, 64),
        lambda: pictures.bias_of_heads(DISTANCES, np.ones((9, 101)), 64),
        lambda: pictures.filled(2 ** np.arange(4), np.eye(3, 4), np.eye(3, 4)),
        lambda: pictures.terms_by_relation(np.arange(-16, 1), np.ones((3, 9, 17))),
        lambda: pictures.even_attention(
            np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None], {n: DISTANCES for n in "abc"}
        ),
        lambda: pictures.weights_by_distance(HALVES[None], HALVES[None], ["1/4"]),
        lambda: pictures.read_off_sizes(WAVES, WAVES / 2, WAVES, WAVES * 2),
    ],
)
def test_every_picture_is_drawn_without_a_warning_and_stays_small(draw):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks, a layout that does not fit
        picture = figures.png(draw(), figures.INLINE_DPI)
    assert len(picture) < 60_000
