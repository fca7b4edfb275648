"""Drawings for derivations: how a formula looks, from arrays that a notebook has just computed.

What training shows is drawn by the studies, not here. Every function takes arrays and returns a
matplotlib figure; labels are English, so that no special font is needed.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import ConnectionPatch, Rectangle

from lib import figures  # importing it sets the house style

# Two states side by side (seen and new, exact and coarse). Neither is another encoding's colour.
FIRST, SECOND = figures.COLOURS["sinusoidal"], "#c2185b"
QUIET = "#8a8a8a"
_WORDS = (FIRST, SECOND, "#3a7d34")
_WIDTH = 7.6  # inches, of a whole picture


def _figure(panels: int, height: float):
    """A row of panels as wide as the page; a notebook shows it where a cell returns it."""
    figure, axes = figures.canvas(panels)
    figure.set_size_inches(_WIDTH, height)
    plt.close(figure)  # or it would be shown twice
    return figure, axes


def _bare(axis):
    """No frame, no grid, no tick marks: for matrices."""
    axis.grid(False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def attention_pair(weights, shuffled, words, order):
    """Two attention matrices side by side, each word's row followed from one to the other.

    Args:
        weights: (T, T) of the words as they stand; rows are queries.
        shuffled: (T, T) of the words in the new order.
        words: up to 3 names. order: the list of places; new place r holds the old word order[r].
    """
    figure, (left, right) = _figure(2, 3.3)
    figure.get_layout_engine().set(wspace=0.3)  # room for the arrows
    last = len(words) - 1
    for axis, matrix, places in ((left, weights, range(len(words))), (right, shuffled, order)):
        names = [words[place] for place in places]
        axis.imshow(matrix, cmap="Greys", vmin=0, vmax=2)  # light enough for black numbers
        for (i, j), weight in np.ndenumerate(np.asarray(matrix)):
            axis.text(j, i, f"{weight:.2f}", ha="center", va="center")
        axis.set_xticks(range(len(words)), names)
        axis.set_yticks(range(len(words)), names)
        for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
            for label, place in zip(labels, places, strict=True):
                label.set_color(_WORDS[place])
        axis.set_title(" ".join(names))
        axis.set_xlabel("key")
        _bare(axis)
        # One weight to find again: the first word's look at the last word.
        row, column = list(places).index(0), list(places).index(last)
        frame = (column - 0.47, row - 0.47), 0.94, 0.94
        axis.add_patch(Rectangle(*frame, fill=False, color="black", linewidth=2))
    left.set_ylabel("query")
    for new, old in enumerate(order):
        arrow = ConnectionPatch(
            (last + 0.6, old), (-1.2, new), "data", axesA=left, axesB=right, color=_WORDS[old]
        )
        arrow.set(arrowstyle="->", mutation_scale=12, linewidth=1.6)
        arrow.set_annotation_clip(False)  # its ends lie beside the matrices
        figure.add_artist(arrow)
    return figure


def changed_tokens(changed, settings, words, moved):
    """A grid of settings × words, filled where a word's output changed when words were moved.

    Args:
        changed: (n, T) of truth values.
        settings: n names. words: T names in the first order. moved: the places that were moved.
    """
    figure, (axis,) = _figure(1, 0.9 + 0.4 * len(settings))
    for (row, column), is_changed in np.ndenumerate(np.asarray(changed, dtype=bool)):
        fill, ink, word = (SECOND, "white", "changed") if is_changed else ("white", FIRST, "same")
        place = (column - 0.46, row - 0.42), 0.92, 0.84
        axis.add_patch(Rectangle(*place, edgecolor=QUIET, facecolor=fill, linewidth=0.8))
        axis.text(column, row, word, ha="center", va="center", fontsize=9, color=ink)
    axis.set_xlim(-0.5, len(words) - 0.5)
    axis.set_ylim(len(settings) - 0.5, -0.5)
    axis.xaxis.tick_top()
    axis.set_xticks(range(len(words)), words)
    axis.set_yticks(range(len(settings)), settings)
    for place in moved:
        axis.get_xticklabels()[place].set(color=SECOND, fontweight="bold")
    _bare(axis)
    return figure


def position_matrix(table):
    """The matrix PE; rows are positions; its sines on the left, its cosines on the right.

    Args:
        table: (T, D) with the sine and the cosine of a pair side by side.
    """
    figure, axes = _figure(2, 3.5)
    axes[1].sharey(axes[0])
    for axis, columns, name in zip(
        axes, (table[:, 0::2], table[:, 1::2]), ("sin", "cos"), strict=True
    ):
        image = axis.imshow(
            columns, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest"
        )
        axis.set_title(rf"$\{name}(p\,\theta_k)$")
        axis.set_xlabel("pair k, from fast to slow")
        _bare(axis)
    axes[0].set_ylabel("position p")
    figure.colorbar(image, ax=axes, ticks=[-1, 0, 1], fraction=0.03)
    return figure


def product_by_distance(delta, product, law, near: int = 40):
    """PE(p)·PE(p+δ) near δ = 0 on both sides, and far out on a logarithmic axis with its law.

    Args:
        delta: (n,) distances 0, 1, 2 …. product: (n,) of them, in units of its value at δ = 0.
        law: (n,) of them, NaN where it is not meant to hold.
    """
    figure, (left, right) = _figure(2, 3.2)
    right.sharey(left)
    close = slice(1, near + 1)
    both = np.concatenate([-delta[close][::-1], delta[: near + 1]])
    left.plot(both, np.concatenate([product[close][::-1], product[: near + 1]]), color=FIRST)
    left.set_title("near")
    left.set_xlabel("distance δ, before and after")
    left.set_ylabel("PE(p)·PE(p+δ) / (D/2)")
    right.semilogx(delta[1:], product[1:], color=FIRST, linewidth=1)
    right.semilogx(delta[1:], law[1:], color=SECOND)
    right.set_title("far")
    right.set_xlabel("distance δ, logarithmic")
    place = {"transform": right.transAxes, "ha": "right", "va": "top"}
    right.text(0.98, 0.98, "the product", color=FIRST, **place)
    right.text(0.98, 0.88, "its logarithmic law", color=SECOND, **place)
    return figure


def arcs(wavelengths, length: int):
    """For a few pairs, the angles of positions 0 … L−1 and of L … 2L−1 on the circle.

    Args:
        wavelengths: of the pairs to draw, in positions. length: L.
    """
    figure, axes = _figure(len(wavelengths), _WIDTH / len(wavelengths) + 0.75)
    for axis, wavelength in zip(axes, wavelengths, strict=True):
        around = np.linspace(0, 2 * math.pi, 200)
        axis.plot(np.cos(around), np.sin(around), color="#dddddd", linewidth=0.8)
        for radius, start, colour in ((1.0, 0, FIRST), (0.78, length, SECOND)):
            angle = 2 * math.pi / wavelength * np.linspace(start, start + length - 1, 400)
            axis.plot(radius * np.cos(angle), radius * np.sin(angle), color=colour, linewidth=3)
        axis.plot([0, 1.12], [0, 0], color=QUIET, linewidth=0.8)  # the angle of position 0
        axis.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
        axis.set_axis_off()
        axis.set_title(f"λ = {wavelength / length:.2g} L", loc="center")
    figure.supxlabel(
        f"outer, dark: positions 0 … {length - 1} (trained)        "
        f"inner, red: positions {length} … {2 * length - 1} (new)",
        fontsize=10,
    )
    return figure


def novelty_by_wavelength(wavelengths, novelty, law, length: int):
    """How far outside its trained arc each pair is taken by the new positions, in degrees.

    Args:
        wavelengths, novelty: (n,) in positions and in radians, one a pair.
        law: (n,) the novelty by formula, in radians. length: L.
    """
    figure, (axis,) = _figure(1, 3.1)
    axis.semilogx(wavelengths, np.degrees(law), color=QUIET)
    axis.semilogx(wavelengths, np.degrees(novelty), "o", color=SECOND, markersize=4)
    for multiple, name in ((1, "L"), (3, "3L")):
        axis.axvline(multiple * length, color=FIRST, linewidth=0.8, linestyle=":")
        axis.text(multiple * length * 1.05, 126, name, color=FIRST)
    axis.set_yticks([0, 30, 60, 90, 120])
    axis.set_ylim(-4, 138)
    axis.set_xlabel("wavelength λ of the pair, in positions")
    axis.set_ylabel("farthest new angle\noutside the arc (degrees)")
    return figure


def coarse_wave(positions, exact, coarse):
    """One wave over a range of positions, and the same from phases in half precision.

    Args:
        positions, exact, coarse: (n,) each.
    """
    figure, (axis,) = _figure(1, 2.6)
    axis.plot(positions, exact, color=FIRST, linewidth=1.5)
    axis.step(positions, coarse, color=SECOND, where="mid")
    axis.set_ylim(-1.15, 1.7)
    axis.set_yticks([-1, 0, 1])
    axis.set_xlabel("position p")
    axis.text(0.02, 0.98, "phase in float64", color=FIRST, transform=axis.transAxes, va="top")
    axis.text(0.35, 0.98, "phase in bfloat16", color=SECOND, transform=axis.transAxes, va="top")
    return figure
