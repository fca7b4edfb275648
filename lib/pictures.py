"""Drawings for derivations: how a formula looks, from arrays that a notebook has just computed.

What training shows is drawn by the studies, not here. Every function takes arrays and returns a
matplotlib figure; labels are English, so that no special font is needed.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import ConnectionPatch, Rectangle

from lib import figures  # importing it sets the house style

# Two states side by side (seen and new, exact and coarse). Neither is another encoding's colour.
FIRST, SECOND = figures.COLOURS["sinusoidal"], "#c2185b"
QUIET = "#8a8a8a"
_WORDS = (FIRST, SECOND, "#3a7d34")
_WIDTH = 7.6  # inches, of a whole picture
_ARROW = {"arrowstyle": "-|>", "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
_SHADES = LinearSegmentedColormap.from_list("shades", ["white", SECOND, "#3d0a22"])


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


# ---- RoPE ----------------------------------------------------------------------------------------


def turned_pairs(q, k, theta, places):
    """A query and a key of one pair, turned by their positions: the angle between them stays.

    Args:
        q, k: complex numbers. theta: radians a position. places: (m, n) of each panel.
    """
    figure, axes = _figure(len(places), _WIDTH / len(places) + 0.5)
    farthest = 1.3 * max(abs(q), abs(k))  # room for the letters
    around = np.exp(1j * np.linspace(0, 2 * math.pi, 200))
    for axis, (m, n) in zip(axes, places, strict=True):
        axis.plot([-farthest, farthest], [0, 0], color="#dddddd", linewidth=0.8)
        axis.plot([0, 0], [-farthest, farthest], color="#dddddd", linewidth=0.8)
        for z, turned, colour, name in (
            (q, q * np.exp(1j * m * theta), FIRST, "q"),
            (k, k * np.exp(1j * n * theta), SECOND, "k"),
        ):
            axis.plot(abs(z) * around.real, abs(z) * around.imag, color="#dddddd", linewidth=0.8)
            axis.annotate(
                "", (turned.real, turned.imag), (0, 0), arrowprops={"color": colour} | _ARROW
            )
            place = turned / abs(turned) * (abs(turned) + 0.17)
            axis.text(place.real, place.imag, name, color=colour, ha="center", va="center")
        start = np.angle(k * np.exp(1j * n * theta))
        gap = np.angle(q * np.exp(1j * m * theta) * np.conj(k * np.exp(1j * n * theta)))
        arc = 0.45 * np.exp(1j * np.linspace(start, start + gap, 50))
        axis.plot(arc.real, arc.imag, color=QUIET, linewidth=3)
        axis.set(xlim=(-farthest, farthest), ylim=(-farthest, farthest), aspect="equal")
        axis.set_title(f"m = {m}, n = {n}", loc="center")
        axis.set_axis_off()
    return figure


def unseen_angles(angle, wavelengths, length: int):
    """How far the angle at each distance is from the nearest one that training showed.

    Args:
        angle: (distances, pairs) in degrees. wavelengths: (pairs,) in positions. length: L.
    """
    figure, (axis,) = _figure(1, 3.6)
    image = axis.imshow(
        angle, origin="lower", aspect="auto", cmap=_SHADES, interpolation="nearest",
        extent=(-0.5, len(wavelengths) - 0.5, 0, len(angle) / length),
    )  # fmt: skip
    axis.axhline(1, color=FIRST, linewidth=1.2)
    axis.text(len(wavelengths) - 0.6, 0.97, "training ends", color=FIRST, ha="right", va="top")
    _under_pairs(axis, wavelengths, length)
    axis.set_ylabel("distance δ / L")
    figure.colorbar(image, ax=axis, label="degrees from the nearest\nangle of training")
    return figure


def _under_pairs(axis, wavelengths, length):
    """Columns are pairs, labelled by wavelength, with a line where the wavelength passes L."""
    axis.set_xticks(range(len(wavelengths)), [f"{w:.0f}" for w in wavelengths])
    axis.tick_params(axis="x", labelrotation=45, labelsize=9)
    axis.set_xlabel("wavelength λ of the pair, in positions")
    complete = sum(w <= length for w in wavelengths)
    axis.axvline(complete - 0.5, color=FIRST, linewidth=1.2, linestyle=":")
    _bare(axis)


def decay_with_distance(delta, bound, ones, spread):
    """The bound of the RoPE paper, beside what products of queries and keys do.

    Args:
        delta: (n,) distances. bound: (n,) the mean of |S_j|. ones: (n,) the score of q = k = 1.
        spread: (n,) root mean square of the scores of random q and k. The last two in units of
            their values at distance 0.
    """
    figure, (left, right) = _figure(2, 3.0)
    left.plot(delta, bound, color=FIRST)
    left.set(title="the paper's bound", xlabel="distance δ", ylabel="mean of |S| over the pairs")
    left.set_ylim(0)
    right.plot(delta, ones, color=FIRST)
    right.plot(delta, spread, color=SECOND)
    right.set(title="scores, in units of those at 0", xlabel="distance δ", ylim=(0, 1.35))
    right.text(delta[-1], 1.06, "random q and k (rms)", color=SECOND, ha="right", va="bottom")
    right.text(delta[-1], 0.52, "q and k all ones", color=FIRST, ha="right", va="bottom")
    return figure


def shares_of_pairs(shares, reach, wavelengths, length: int):
    """The share of each pair in what each head does, a row a head, sorted by how far it looks.

    Args:
        shares: (heads, pairs). reach: (heads,) mean distances. wavelengths: (pairs,). length: L.
    """
    figure, (axis,) = _figure(1, 0.17 * len(shares) + 1.6)
    order = np.argsort(reach)
    image = axis.imshow(
        100 * shares[order], aspect="auto", cmap=_SHADES, vmin=0, interpolation="nearest"
    )
    rows = np.unique(np.linspace(0, len(order) - 1, min(len(order), 9)).round().astype(int))
    axis.set_yticks(rows, [f"{reach[order[row]]:.0f}" for row in rows])
    axis.set_ylabel("heads, by the mean distance\nthat they look back")
    _under_pairs(axis, wavelengths, length)
    figure.colorbar(image, ax=axis, label="share of the variance (%)")
    return figure


def error_by_position(positions, errors):
    """How far a score is off, at most, up to each position: a line for each precision.

    Args:
        positions: (n,) from 1 on. errors: name → (n,).
    """
    figure, (axis,) = _figure(1, 2.9)
    for (name, error), colour in zip(errors.items(), (FIRST, *_WORDS[2:], SECOND), strict=True):
        axis.loglog(positions, np.maximum.accumulate(error), color=colour, label=name)
    axis.set(xlabel="position p", ylabel="largest error of a score\nup to p")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    figures.direct_labels(axis)
    return figure


# ---- ALiBi ---------------------------------------------------------------------------------------


def slopes_of_heads(rows):
    """Slopes on a logarithmic line, a row a rule.

    Args:
        rows: name → (n,) slopes; they are drawn from the top down.
    """
    figure, (axis,) = _figure(1, 0.42 * len(rows) + 0.9)
    for place, slopes in enumerate(rows.values()):
        axis.plot(slopes, np.full(len(slopes), place), "o", color=FIRST, markersize=7, alpha=0.75)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xscale("log", base=2)
    axis.set_xticks([2.0**-n for n in range(9)], ["1", *(f"1/{2**n}" for n in range(1, 9))])
    axis.minorticks_off()
    axis.tick_params(length=0)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("slope m")
    return figure


def misplaced_weight(lengths, relative, by_key):
    """The share of attention that half precision moves to other keys, for two forms of a bias.

    Args:
        lengths: (n,). relative, by_key: name of a dtype → (n,) shares, one line each.
    """
    figure, (axis,) = _figure(1, 3.2)
    for errors, form, colour in ((by_key, "+m·j", SECOND), (relative, "−m·(i−j)", FIRST)):
        for (name, error), line in zip(errors.items(), ("-", "--"), strict=True):
            axis.loglog(lengths, error, line, color=colour, label=f"{form} in {name}")
    axis.set(xlabel="length T", ylabel="share of the weight\nthat goes elsewhere")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    figures.direct_labels(axis)
    return figure


def weight_within(distance, formula, measured):
    """How much of the attention lies within a distance: lines by formula, dots of trained heads.

    Args:
        distance: (n,) of the lines. formula: name → (n,).
        measured: name → (distances, (heads, their number)) of the same names.
    """
    figure, (axis,) = _figure(1, 3.2)
    for (name, within), colour in zip(formula.items(), _WORDS, strict=True):
        axis.plot(distance + 1, within, color=colour)
        most = distance[np.searchsorted(within, 0.93)] + 1
        axis.text(0.85 * most, 0.95, name, color=colour, ha="right", va="center")
        for x, heads in [measured[name]] if name in measured else []:
            for head in heads:
                axis.plot(x + 1, head, "o", color=colour, markersize=4, alpha=0.35)
    axis.set(
        xlabel="keys counted from the query back", ylabel="share of the weight", ylim=(0, 1.03)
    )
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    return figure


def reach_at_two_lengths(reach, lengths):
    """The mean distance that each head looks back, in short windows and in long ones.

    Args:
        reach: encoding → (short, long), (heads,) each. lengths: of the two kinds of windows.
    """
    figure, (axis,) = _figure(1, 3.9)
    looks = figures.looks(reach)
    near = np.array([0.8, lengths[0]])
    axis.loglog(near, near, color=QUIET, linewidth=1)
    axis.axhline(lengths[1] / 2, color=QUIET, linewidth=1, linestyle=":")
    axis.text(0.82, 1.1, "as far as before", color=QUIET, rotation=24, va="bottom")
    axis.text(0.82, lengths[1] / 2 * 1.05, "the whole window alike", color=QUIET, va="bottom")
    for name, (short, long) in reach.items():
        look = looks[name]
        axis.plot(short, long, look.marker, color=look.colour, alpha=0.75, label=look.label)
    for way in (axis.xaxis, axis.yaxis):
        way.set_major_formatter("{x:g}")
    axis.set_xlabel(f"mean distance in windows of {lengths[0]}")
    axis.set_ylabel(f"in windows of {lengths[1]}")
    axis.legend(loc="lower right")
    return figure


def loss_of_more_context(panels):
    """Mean perplexity of windows, and that of the tokens which longer windows add.

    Args:
        panels: title → (L, lengths, mean, added, sliding): `mean` (seeds, n) at each of the n
            lengths; `added` (seeds, n − 1) between two of them; sliding (lengths, perplexities) or
            None.
    """
    figure, axes = _figure(len(panels), 3.3)
    for axis, (title, (L, lengths, mean, added, sliding)) in zip(axes, panels.items(), strict=True):
        x = lengths / L
        axis.plot(x, mean.mean(0), "o", color=FIRST, markersize=5)
        axis.hlines(added.mean(0), x[:-1], x[1:], color=SECOND, linewidth=2.5)
        if sliding is not None:
            axis.plot(sliding[0] / L, sliding[1], "D", mfc="none", color=_WORDS[2], markersize=8)
        axis.set(title=title, xlabel="length / L")
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("perplexity")
    words = (("windows", FIRST), ("tokens added", SECOND), ("sliding", _WORDS[2]))
    for n, (word, colour) in enumerate(words):
        place = {"transform": axes[0].transAxes, "ha": "right", "va": "top"}
        axes[0].text(0.98, 0.98 - 0.09 * n, word, color=colour, **place)
    return figure


def even_attention(weights, readings: dict):
    """Even causal attention, its first column framed; and the position that each reading gives.

    Args:
        weights: (T, T) of a few tokens. readings: up to 3 names → (n,) positions read at 0 … n − 1.
    """
    figure, (left, right) = _figure(2, 3.4)
    left.imshow(weights, cmap="Greys", vmin=0, vmax=2)
    for (i, j), weight in np.ndenumerate(np.asarray(weights)):
        if j <= i:
            left.text(j, i, f"1/{round(1 / weight)}", ha="center", va="center")
    T = len(weights)
    left.add_patch(Rectangle((-0.47, -0.47), 0.94, T - 0.06, fill=False, ec=SECOND, lw=2))
    names = ["start", *range(1, T)]
    left.set_xticks(range(T), names)
    left.set_yticks(range(T), names)
    left.set(xlabel="key j", ylabel="query i")
    _bare(left)
    for (name, values), line in zip(readings.items(), (":", "--", "-"), strict=True):
        right.plot(values, line, color=SECOND if line == "-" else QUIET, label=name)
    right.set(xlabel="position i", ylabel="position read")
    figures.direct_labels(right)
    return figure


def weights_by_distance(ours, theirs, slopes):
    """Attention weights by distance: a line for each head, and dots of another model's.

    Args:
        ours, theirs: (H, n) at the distances 0 … n − 1; ours are the dots. slopes: H names.
    """
    figure, (axis,) = _figure(1, 3.0)
    for head, name in enumerate(slopes):
        shade = plt.get_cmap("cividis")(0.8 * head / max(1, len(slopes) - 1))
        axis.semilogy(theirs[head], color=shade, label=f"m = {name}")
        axis.semilogy(ours[head], "o", color=shade, markersize=3.5, label="_ours")
    axis.set_ylim(1e-7, 2)
    axis.set(xlabel="distance i − j", ylabel="weight")
    figures.direct_labels(axis)
    return figure


def read_off_sizes(count, low, middle, high):
    """How many tokens an average seems to be of, by its size, against how many: median and band.

    Args:
        count, low, middle, high: (n,) each.
    """
    figure, (axis,) = _figure(1, 3.2)
    axis.loglog(count, count, ":", color=QUIET, label="true")
    axis.fill_between(count, low, high, color=SECOND, alpha=0.18, linewidth=0)
    axis.loglog(count, middle, color=SECOND, label="read")
    axis.set(xlabel="tokens averaged, i + 1", ylabel="number read off the size")
    figures.direct_labels(axis)
    return figure


# ---- learned tables ------------------------------------------------------------------------------


def rows_read(positions, read, weights, length: int):
    """Which rows of a learned table the positions read, and how two rows share those between them.

    Args:
        positions: (n,). read: name → (n,) the row, a fraction where it lies between two.
        weights: (m, k) of the first k rows at the first m positions. length: rows of the table.
    """
    figure, (left, right) = _figure(2, 3.2)
    for (name, rows), colour in zip(read.items(), (QUIET, _WORDS[2], SECOND), strict=True):
        jumps = np.where(np.diff(rows, prepend=rows[0]) < 0, np.nan, rows)  # no line down
        left.plot(positions, jumps, color=colour, label=name)
    left.axhspan(length, positions[-1], color="#eeeeee", zorder=0)
    left.text(0.03, 0.97, "rows that no training saw", transform=left.transAxes, va="top")
    left.set(xlabel="position p", ylabel="row of the table")
    left.set(xlim=(0, positions[-1]), ylim=(0, positions[-1]))
    figures.direct_labels(left)
    for row, weight in enumerate(weights.T):
        colour = _WORDS[row % len(_WORDS)]
        right.plot(weight, color=colour, marker="o", markersize=2.5, linewidth=1.2)
        top = weight.argmax()
        right.text(top, 1.03, f"row {row}", color=colour, ha="left" if not row else "center")
    right.set(xlabel="position p", ylabel="share of the row", ylim=(0, 1.15))
    return figure


def table_cosines(cosines, curves):
    """How alike the rows of a table are: all pairs of some rows, and means by distance.

    Args:
        cosines: (n, n) of the first rows of one table, or None without it.
        curves: name → (distances as shares of the table's length, (tables, n) mean cosines).
    """
    figure, (left, right) = _figure(2, 3.3)
    if cosines is None:
        left.set_axis_off()
    else:
        image = left.imshow(cosines, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        figure.colorbar(image, ax=left, fraction=0.046, ticks=[-1, 0, 1], label="cosine")
        left.set(xlabel="position", ylabel="position")
        _bare(left)
    for (name, (x, tables)), colour in zip(curves.items(), (SECOND, FIRST, QUIET), strict=False):
        for number, means in enumerate(tables):
            right.plot(x, means, color=colour, linewidth=1.2, label="_" if number else name)
    right.axhline(0, color=QUIET, linewidth=0.8)
    right.set(xlabel="distance δ / L", ylabel="mean cosine", ylim=(-1, 1))
    right.legend(loc="upper right")
    return figure


def estimates(panels):
    """Dots with their intervals, one row a name, one panel a quantity, on one horizontal axis.

    Args:
        panels: title → (names, values, lows, highs); the panels have the same names.
    """
    rows = max(len(names) for names, *_ in panels.values())
    figure, axes = _figure(len(panels), 0.33 * rows + 1.1)
    for axis, (title, (names, value, low, high)) in zip(axes, panels.items(), strict=True):
        place = np.arange(len(names))
        if axis is not axes[0]:
            axis.sharex(axes[0])
        axis.hlines(place, low, high, color=FIRST, linewidth=1.6)
        axis.plot(value, place, "o", color=SECOND)
        axis.set_yticks(place, names if axis is axes[0] else [""] * len(names))
        axis.set(ylim=(len(names) - 0.5, -0.5), title=title)
        axis.tick_params(length=0)
        axis.grid(axis="y", visible=False)
        axis.spines["left"].set_visible(False)
    return figure


# ---- relative bias -------------------------------------------------------------------------------


def buckets(causal, both, length: int, max_distance: int):
    """T5's bucket of each distance, for a decoder and for an encoder.

    Args:
        causal: (distances, buckets) from 1 on. both: (distances, buckets), ahead and behind.
        length: L, where training ends. max_distance: from which on one bucket serves all.
    """
    figure, (left, right) = _figure(2, 3.1)
    left.plot(*causal, ".", color=FIRST, markersize=3)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter("{x:g}")
    for x, name, colour in ((length - 1, "training ends", SECOND), (max_distance, "", QUIET)):
        left.axvline(x, color=colour, linewidth=1)
        left.text(x * 0.92, 0.3, name, color=colour, rotation=90, ha="right", va="bottom")
    left.set(title="decoder", xlabel="distance δ = i − j, logarithmic", ylabel="bucket")
    behind = both[0] >= 0
    right.plot(both[0][behind], both[1][behind], ".", color=FIRST, markersize=3)
    right.plot(both[0][~behind], both[1][~behind], ".", color=_WORDS[2], markersize=3)
    right.set(title="encoder", xlabel="distance δ = i − j")
    right.text(0.97, 0.06, "keys behind", color=FIRST, transform=right.transAxes, ha="right")
    right.text(0.03, 0.06, "keys ahead", color=_WORDS[2], transform=right.transAxes)
    return figure


def bias_of_heads(distance, bias, length: int):
    """The learned bias of many heads by distance, and where training ended.

    Args:
        distance: (n,) from 0 on. bias: (heads, n). length: L.
    """
    figure, (axis,) = _figure(1, 3.4)
    for head in bias:
        axis.plot(distance, head, drawstyle="steps-mid", color=FIRST, linewidth=0.9, alpha=0.6)
    axis.axvspan(length, distance[-1], color=SECOND, alpha=0.12, linewidth=0)
    axis.text(length + 1, bias.max(), "past training", color=SECOND, va="top")
    axis.axhline(0, color=QUIET, linewidth=0.8)
    axis.set(xlabel="distance δ", ylabel="bias b(δ)", xlim=(-0.5, distance[-1]))
    return figure


def filled(lengths, as_trained, filled):
    """Perplexity by length with the untrained buckets as they are, and filled.

    Args:
        lengths: (n,). as_trained, filled: (models, n).
    """
    figure, (axis,) = _figure(1, 3.0)
    for models, colour, name in (
        (as_trained, SECOND, "as trained"), (filled, FIRST, "untrained buckets filled")
    ):  # fmt: skip
        for number, values in enumerate(models):
            axis.plot(lengths, values, "o-", color=colour, label="_" if number else name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{n}" for n in lengths])
    axis.minorticks_off()
    axis.set(xlabel="evaluation length (tokens)", ylabel="perplexity")
    axis.legend()
    return figure


def terms_by_relation(relation, layers):
    """What each relation earns a key, head by head: a panel a layer.

    Args:
        relation: (n,) r = j − i. layers: (layers, heads, n).
    """
    figure, axes = _figure(len(layers), 3.0)
    for number, (axis, heads) in enumerate(zip(axes, layers, strict=True)):
        if number:
            axis.sharey(axes[0])
        axis.plot(relation, np.asarray(heads).T, color=FIRST, linewidth=0.9, alpha=0.6)
        axis.axhline(0, color=QUIET, linewidth=0.8)
        axis.set(title=f"layer {number + 1}", xlabel="relation j − i")
    axes[0].set_ylabel("mean key term, beside a far key")
    return figure
