"""Drawings for positions on a grid: from arrays that a notebook has just computed."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from lib import figures
from lib.pictures import SECOND, _bare, _figure


def rasters(grids):
    """Grids of places, each with its number on the line that is read row by row, and the steps on
    that line from the first place to its neighbours.

    Args:
        grids: up to 3 (height, width).
    """
    figure, axes = _figure(len(grids), 2.5)
    for axis, (h, w) in zip(axes, grids, strict=True):
        for n in range(h * w):
            row, column = divmod(n, w)
            near = n in (1, w)
            style = {"color": SECOND, "weight": "bold"} if near else {"color": "#444444"}
            axis.text(column, row, str(n), ha="center", va="center", fontsize=9, **style)
            axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec="#cccccc"))
        axis.set(xlim=(-0.6, w - 0.4), ylim=(h - 0.4, -0.6), aspect="equal", xticks=[], yticks=[])
        axis.set_title(f"{h} × {w}: one down is {w}", fontsize=9.5)
        _bare(axis)
    return figure


def score_maps(panels, target):
    """How the score of one query changes with where the key stands, a map for each panel.

    Args:
        panels: name → scores (2R + 1, 2R + 1) over the offsets −R … R, rows first; each panel has
            its own scale.
        target: the offset (row, column) that the head is made to look for; None: none.
    """
    names = list(panels)
    rows = -(-len(names) // 3)
    figure, axes = figures.canvas(min(3, len(names)), rows)
    figure.set_size_inches(7.6, 2.65 * rows)
    plt.close(figure)
    for axis, name in zip(axes, names, strict=False):
        scores = np.asarray(panels[name], dtype=float)
        R = len(scores) // 2
        extent = (-R - 0.5, R + 0.5, R + 0.5, -R - 0.5)
        axis.imshow(scores, extent=extent, cmap="cividis")
        axis.plot(0, 0, "o", ms=5, mfc="none", mec="white", mew=1.4)
        if target is not None:
            axis.plot(target[1], target[0], "+", ms=9, color="white", mew=1.8)
        axis.set_title(name, fontsize=9.5)
        axis.set_xticks([-R, 0, R])
        axis.set_yticks([-R, 0, R])
        _bare(axis)
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    axes[0].set(ylabel="rows from the query")
    axes[-(-len(names) // 3) * 3 - 3].set(xlabel="columns from the query")
    return figure


def shown(figure):
    """A study's figure, shown once where a cell returns it."""
    plt.close(figure)
    return figure


def two_grids(panels):
    """Accuracy on the grid of training and on a larger one, a line for each encoding.

    Args:
        panels: name → (names of the two grids, {encoding: (left, right)}), where each end is
            (value, low, high) in percent; low and high may be NaN.
    """
    figure, axes = _figure(len(panels), 3.2)
    for axis, (title, (grids, lines)) in zip(axes, panels.items(), strict=True):
        for name, look in figures.looks(lines).items():
            value, low, high = np.array(lines[name], dtype=float).T
            axis.plot([0, 1], value, look.line, color=look.colour, marker=look.marker,
                      label=look.label)  # fmt: skip
            axis.vlines([0, 1], low, high, color=look.colour, lw=1.1, alpha=0.7)
        axis.set_xticks([0, 1], grids)
        axis.set(title=title, xlim=(-0.15, 1.15))
        figures.direct_labels(axis)
    axes[0].set_ylabel("accuracy in %")
    return figure
