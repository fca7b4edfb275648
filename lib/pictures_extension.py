"""Drawings for the extension of RoPE's context: angles entered, scales of pairs, and their ramps.

Every function takes arrays that a notebook has just computed and returns a matplotlib figure.
"""

import numpy as np
from matplotlib.ticker import MaxNLocator

from lib import figures
from lib.pictures import FIRST, QUIET, SECOND, _figure

_DEGREES = (0, 90, 180, 270, 360)
_PAIRS = "pair k, from fast to slow"


def entered_angles(panels):
    """Each pair's circle unrolled: what of it training showed, and what a longer text adds.

    Args:
        panels: title → (shown, read), each (pairs,): the largest angle within the old length and
            within the new one, in radians; a full turn shows everything.
    """
    figure, axes = _figure(len(panels), 3.3)
    for axis, (title, angles) in zip(axes, panels.items(), strict=True):
        shown, read = (np.minimum(np.degrees(angle), 360) for angle in angles)
        k = np.arange(len(shown))
        axis.bar(k, shown, width=0.8, color=FIRST)
        axis.bar(k, np.maximum(read - shown, 0), width=0.8, bottom=shown, color=SECOND)
        axis.set(title=title, xlabel=_PAIRS, ylim=(0, 372))
        _whole_ticks(axis)
        axis.set_yticks(_DEGREES)
        axis.grid(axis="x", visible=False)
        axis.set_xlim(-0.7, len(shown) - 0.3)
    axes[0].set_ylabel("angles met (degrees)")
    place = {"transform": axes[0].transAxes, "ha": "right"}
    axes[0].text(0.99, 0.92, "shown in training", color=FIRST, **place)
    axes[0].text(0.99, 0.83, "new in the longer text", color=SECOND, **place)
    return figure


def scales_of_pairs(panels):
    """By what every method lengthens the wave of each pair.

    Args:
        panels: title → (s, complete, {method: (pairs,) of λ_k}). complete: how many pairs complete
            a turn within the old length; s: the factor that the methods are set for.
    """
    figure, axes = _figure(len(panels), 3.7)
    for axis, (title, (s, complete, scales)) in zip(axes, panels.items(), strict=True):
        for name, look in figures.looks(scales).items():
            axis.plot(scales[name], look.line, color=look.colour, label=look.label, linewidth=1.6)
        axis.axvline(complete - 0.5, color=QUIET, linewidth=1, linestyle=":")
        axis.set_yscale("log", base=2)
        ticks = 2.0 ** np.arange(np.ceil(np.log2(max(map(np.max, scales.values())))) + 1)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set(title=f"{title}, s = {s:g}", xlabel=_PAIRS)
        _whole_ticks(axis)
        figures.direct_labels(axis)
    axes[0].set_ylabel("its wavelength grows by λ")
    return figure


def ramps(panels):
    """The share of each pair that stays as it was.

    Args:
        panels: title → {label: (pairs,) of γ_k}, at most four labels.
    """
    figure, axes = _figure(len(panels), 3.0)
    styles = ((FIRST, "-", "o"), (SECOND, "--", "s"), ("#3a7d34", "-.", "^"), (QUIET, ":", "v"))
    for axis, (title, shares) in zip(axes, panels.items(), strict=True):
        for (label, gamma), (colour, line, marker) in zip(shares.items(), styles, strict=False):
            axis.plot(gamma, line, color=colour, marker=marker, markersize=3.5, label=label)
        axis.set(title=title, xlabel=_PAIRS, ylim=(-0.04, 1.04))
        _whole_ticks(axis)
        axis.legend(loc="upper right", fontsize=9)
    axes[0].set_ylabel("share γ that stays as it was")
    return figure


def _whole_ticks(axis):
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
