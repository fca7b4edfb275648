"""What a config.json does to the pairs of a head: their wavelengths, and how scaling slows them."""

from dataclasses import dataclass
from itertools import cycle

import numpy as np
import pandas as pd

from lib import figures, files
from lib.context import Advice
from lib.encodings import build
from lib.pictures import FIRST, QUIET, SECOND, _figure
from lib.rope_config import Kind, Model


@dataclass(frozen=True)
class Pairs:
    """The pairs of a kind of layer, as numbers.

    Args:
        theta: (n,) θ_k in radians a token, unscaled.
        scaled: (n,) θ'_k, for a text of the length asked for.
        turns: (n,) of each pair within the original length, unscaled.
        attention_factor: what cos and sin are multiplied by.
        softmax_factor: what the logits are multiplied by besides.
    """

    theta: np.ndarray
    scaled: np.ndarray
    turns: np.ndarray
    attention_factor: float
    softmax_factor: float


def pairs_of(kind: Kind, length: int) -> Pairs:
    """The pairs of layers that turn, as `build` has them for a text of `length` tokens."""
    rope = build(kind.encoding, **kind.sizes, **kind.options)
    scaled = rope.frequencies(length=length).numpy()
    turns = np.array(kind.turns(kind.original))
    theta = 2 * np.pi * turns / kind.original
    return Pairs(
        theta, scaled[: len(theta)], turns, rope.attention_factor, rope.softmax_factor
    )  # fmt: skip


def table(model: Model) -> pd.DataFrame:
    """A row a kind of layer: what turns, how, and what is multiplied by."""
    rows = []
    for kind in model.kinds:
        row = {"layers": f"{len(kind.layers)} {kind.name}", "window": kind.window or ""}
        row |= {"turned": f"{kind.rotated} of {kind.head}"}
        if kind.rotated:
            found = pairs_of(kind, model.length)
            row |= {
                "base": f"{kind.base:g}",
                "scaling": kind.rope_type,
                "slowest pair, tokens": f"{2 * np.pi / found.scaled.min():,.0f}",
                "under one turn": f"{(found.turns < 1).sum()} of {len(found.turns)}",
                "cos, sin": f"× {found.attention_factor:.3f}",
                "logits": f"× {found.softmax_factor:.3f}",
            }
        rows.append(row)
    return pd.DataFrame(rows).fillna("").set_index("layers")


def wavelengths(model: Model):
    """The wavelength of each pair of each kind of layer that turns, unscaled and as scaled."""
    figure, (axis,) = _figure(1, 3.5)
    lines = []
    for kind, colour in zip(_turning(model.kinds), cycle((FIRST, SECOND)), strict=False):
        found = pairs_of(kind, model.length)
        k = np.arange(len(found.theta))
        if kind.scaling:
            axis.plot(k, 2 * np.pi / found.theta, color=colour, linewidth=1, linestyle=":")
        label = f"{kind.name.removesuffix('_attention')}, {kind.rope_type}"
        lines += axis.plot(k, 2 * np.pi / found.scaled, color=colour, label=label)
    _lengths(axis, {model.kinds[0].original, model.length})
    axis.set(yscale="log", xlabel="pair", ylabel="wavelength (tokens)", xlim=(0, None))
    figures.direct_labels(axis, lines)
    return figure


def save(advice: Advice, path: str) -> None:
    """Draw an advice into a PNG: its pairs before and after, or as they are where nothing is
    scaled. Raises OSError where it cannot be written."""
    drawn = wavelengths(advice.model) if advice.method == "none" else pairs(advice)
    with files.atomic(path) as temporary:
        temporary.write_bytes(figures.png(drawn, figures.PUBLISHED_DPI))


def _turning(kinds):
    """One of each rotation among the kinds."""
    found = {(kind.base, kind.scaling, kind.rotated): kind for kind in kinds if kind.rotated}
    return list(found.values())


def _lengths(axis, lengths):
    """A dashed line at each length, with its name at the left."""
    for length in sorted(lengths):
        axis.axhline(length, color=QUIET, linewidth=0.8, linestyle="--", zorder=0)
        axis.annotate(
            f"{length:,} tokens", (0, length), xytext=(4, 3), textcoords="offset points",
            xycoords=("axes fraction", "data"), fontsize=8.5, color="#444444",
        )  # fmt: skip


def pairs(advice: Advice):
    """An advice drawn: the wavelengths before and after, and how much each pair is slowed.

    On the right the grey field holds new angles: pairs that have not made a turn in training, and
    that the longer text takes past what they have.
    """
    figure, (left, right) = _figure(2, 3.6)
    before, after = (
        next(kind for kind in kinds if kind.name == advice.far.name and kind.rotated)
        for kinds in (advice.model.kinds, advice.kinds)
    )
    stretch = advice.target / advice.trained
    old, new = pairs_of(before, advice.trained), pairs_of(after, advice.target)
    k, turns = np.arange(len(old.theta)), advice.trained * old.scaled / (2 * np.pi)
    for axis in (left, right):
        axis.set(xlim=(0, k[-1]), xlabel="pair")
    left.plot(k, 2 * np.pi / old.scaled, color=FIRST, label="as it is")
    left.plot(k, 2 * np.pi / new.scaled, color=SECOND, label="as advised", linestyle="--")
    left.set(yscale="log", ylabel="wavelength (tokens)")
    _lengths(left, {advice.trained, advice.target})
    slow = k[turns < 1]
    if len(slow):
        right.fill_between(
            [slow[0], k[-1]], 1 / stretch, 1.05, color=QUIET, alpha=0.22, linewidth=0
        )
        right.text(k[-1], 1.0, "new angles ", ha="right", va="center", color="#444444")
    right.plot(k, new.scaled / old.scaled, color=SECOND)
    right.set(ylabel="frequency advised / as it is", ylim=(0, 1.05))
    left.legend(loc="upper left")
    right.set_title(
        f"{after.rope_type}: cos, sin × {new.attention_factor:.3f}, "
        f"logits × {new.softmax_factor:.3f}", fontsize=9.5,
    )  # fmt: skip
    return figure
