"""A drawing for the notebook on a real model: what a scaling does to each of its pairs."""

import numpy as np

from lib import figures
from lib.pictures import QUIET, _figure


def slowed_pairs(turns, slowed: dict, stretch: float):
    """How much each method slows each pair, and which pairs a longer text takes past their angles.

    Args:
        turns: (d/2,) turns of each pair within the old length, unscaled.
        slowed: method → (d/2,) new frequencies over the old ones.
        stretch: the new length over the old one.
    """
    figure, (ax,) = _figure(1, 3.5)
    order = np.argsort(turns)  # so that a line ends at the right
    for method, look in figures.looks(slowed).items():
        style = {"color": look.colour, "marker": look.marker, "markersize": 4}
        ax.plot(turns[order], slowed[method][order], look.line, label=look.label, **style)
    low, high = np.min(turns) / 1.6, np.max(turns) * 1.6
    ax.fill_between([low, 1.0], 1 / stretch, 1.06, color=QUIET, alpha=0.22, linewidth=0)
    ax.text(low * 1.15, 1.035, "new angles", va="center", color="#444444")
    ax.axvline(1.0, color=QUIET, linewidth=0.8, linestyle="--")
    ax.set(xscale="log", xlim=(low, high), ylim=(None, 1.06))
    ax.set(xlabel="turns of a pair within the old length", ylabel="new frequency / old frequency")
    figures.direct_labels(ax)
    return figure
