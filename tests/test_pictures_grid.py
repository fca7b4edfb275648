"""Pictures of grids show the arrays that they are given."""

import numpy as np
import pytest

from lib import figures, pictures, pictures_grid


def test_the_neighbours_of_the_first_place_are_marked():
    figure = pictures_grid.rasters([(2, 8), (4, 4)])
    for axis, below in zip(figure.axes, (8, 4), strict=True):
        marked = [t.get_text() for t in axis.texts if t.get_color() == pictures.SECOND]
        assert marked == ["1", str(below)]
        assert len(axis.texts) == 16


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_map_has_its_rows_downwards_and_the_query_in_the_middle(count):
    scores = np.arange(49.0).reshape(7, 7)
    figure = pictures_grid.score_maps({str(n): scores for n in range(count)}, (1, -2))
    shown = [axis for axis in figure.axes if axis.images]
    assert len(shown) == count
    for axis in shown:
        left, right, bottom, top = axis.images[0].get_extent()
        assert (left, right, bottom, top) == (-3.5, 3.5, 3.5, -3.5)
        query, cross = (line.get_xydata()[0].tolist() for line in axis.lines)
        assert query == [0, 0] and cross == [-2, 1]  # column, row
    assert "columns" in "".join(axis.get_xlabel() for axis in shown)
    assert pictures_grid.score_maps({"a": scores}, None).axes[0].lines[0].get_xdata() == [0]


def test_each_encoding_goes_from_one_grid_to_the_other():
    ends = {"learned2d": [(90, 88, 92), (70, np.nan, np.nan)], "rope2d_axial": [(95, 94, 96)] * 2}
    figure = pictures_grid.two_grids({"here": (("6×6", "12×12"), ends)})
    axis = figure.axes[0]
    assert [line.get_ydata().tolist() for line in axis.lines] == [[90, 70], [95, 95]]
    assert [line.get_color() for line in axis.lines] == [figures.COLOURS[name] for name in ends]
    assert [t.get_text() for t in axis.get_xticklabels()] == ["6×6", "12×12"]
    figure.canvas.draw()
