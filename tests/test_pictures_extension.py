"""Pictures of the extension of RoPE's context show the arrays that they are given."""

import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from lib import figures, pictures
from lib import pictures_extension as drawn
from lib.studies import extension, longrope

SCALES = {"none": np.ones(16), "linear": np.full(16, 4.0), "ntk": 4 ** (np.arange(16) / 15)}


def test_a_bar_ends_at_a_full_turn_and_what_is_new_stands_on_what_was_shown():
    angles = np.array([20.0, 3.0, 0.1]), np.array([80.0, 12.0, 0.4])
    axis = drawn.entered_angles({"a": angles}).axes[0]
    shown, new = axis.patches[:3], axis.patches[3:]
    assert [bar.get_height() for bar in shown] == pytest.approx([360, *np.degrees([3, 0.1])])
    tops = [bar.get_y() + bar.get_height() for bar in new]
    assert tops == pytest.approx([360, 360, np.degrees(0.4)])
    assert {to_hex(bar.get_facecolor()) for bar in new} == {pictures.SECOND}


def test_scales_have_the_colours_of_their_methods_and_the_line_follows_the_last_complete_turn():
    axis = drawn.scales_of_pairs({"ours": (4, 5, SCALES)}).axes[0]
    lines = {line.get_label(): line for line in axis.lines}
    for name, scale in SCALES.items():
        line = lines[figures.LABELS[name]]
        assert line.get_ydata().tolist() == scale.tolist()
        assert line.get_color() == figures.COLOURS[name]
    assert axis.lines[-1].get_xdata()[0] == 4.5


def frame(panel, name, x, value, half):
    value = np.array(value, dtype=float)
    columns = {"panel": panel, "encoding": name, "x": x, "value": value, "sd": half}
    columns |= {"low": value - half, "high": value + half, "n": 3}
    return pd.DataFrame(columns)[figures.COLUMNS]


def test_what_leaves_the_axes_of_the_main_figure_is_written_where_it_leaves():
    rows = [
        frame(panel, name, [2, 4, 8], value, 1.0)
        for panel in (extension.GAIN_PANEL, extension.COST_PANEL)
        for name, value in (("none", [29, 32, 37]), ("linear", [31, 40, 52]))
    ]
    axis = extension.draw_reached(pd.concat(rows)).axes[0]
    assert [t.get_text() for t in axis.texts] == ["40 ↑", "52 ↑"]
    assert 38 < axis.get_ylim()[1] < 40


def test_both_panels_within_show_all_that_either_draws():
    rows = [
        frame(panel, "linear", [8, 16, 32, 64], np.array([0.1, 0.2, 0.3, 0.3]) * times, 0.1)
        for panel, times in zip(extension.PANELS_WITHIN, (1, 3), strict=True)
    ]
    axes = extension.draw_changed_within(pd.concat(rows)).axes
    assert axes[0].get_ylim() == axes[1].get_ylim()
    low, high = axes[0].get_ylim()
    assert low < 0 and high > 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda: drawn.entered_angles({n: (np.arange(9), np.arange(9)) for n in "ab"}),
        lambda: drawn.scales_of_pairs({n: (4, 5, SCALES) for n in "ab"}),
        lambda: drawn.ramps({n: {m: np.linspace(1, 0, 9) for m in "uvw"} for n in "ab"}),
        lambda: longrope.draw_search(frame("search", "random", [1, 2, 4], [40, 35, 30], 1.0)),
        lambda: longrope.draw_factors(frame("factor", "longrope", range(16), SCALES["ntk"], 0.1)),
    ],
)
def test_every_picture_is_drawn_without_a_warning_and_stays_small(draw):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = figures.png(draw(), figures.INLINE_DPI)
    assert len(picture) < 60_000
