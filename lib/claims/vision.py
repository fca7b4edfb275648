"""Claims about positions in two dimensions, and about one notion of position for text and pictures.

Pictures are those of the study `vision`: differences of accuracy, paired by seed. Text is that of
the study `extrapolation`: differences of loss, nonoverlapping windows, paired by seed.
"""

import math

import pandas as pd

from lib.claims.measured import BLOCKS, Parts, Source, here, paired
from lib.claims.verdicts import HOLDS, REFUTED, UNDECIDED, Part, jointly
from lib.figures import LABELS
from lib.studies import vision

TWO_DIMENSIONAL = ("rope2d_axial", "rope2d_mixed")
FINER = (12, 12)
# A family on a line and on a grid.
FAMILIES = {
    "sinusoids": ("sinusoidal", ("sinusoidal2d",)),
    "learned tables": ("learned", ("learned2d",)),
    "RoPE": ("rope", TWO_DIMENSIONAL),
    "ALiBi": ("alibi", ("alibi2d", "alibi2d_directional")),
    "none": ("nope", ("nope",)),
}
_NOTHING = Source(pd.DataFrame(), (), seeded=True)


def _points(difference: float) -> str:
    """A difference of accuracies, in percentage points."""
    return f"{100 * difference:+.1f}"


def _gap(results, a: str, b: str, question: str = "trained", grid=vision.TRAINED, **region) -> Part:
    """Accuracy of `a` less that of `b`, in a region of shares."""
    what = f"{LABELS[a]} less {LABELS[b]}, {'×'.join(map(str, grid))}"
    what += "" if question == "trained" else f" {question}"
    values = vision.paired(results["vision"], a, b, question, grid)
    return _NOTHING.part(what, values, show=_points, **region)


def rope_fits_pictures_better(results, ahead: float) -> Parts:
    """Axial and mixed RoPE against the penalty on distance, on the grid of training and on one
    twice as fine with positions scaled; and against the penalty that also knows directions."""
    parts = [
        _gap(results, rope, "alibi2d", question, grid, low=ahead)
        for question, grid in (("trained", vision.TRAINED), ("scaled", FINER))
        for rope in TWO_DIMENSIONAL
    ]
    parts += [_gap(results, rope, "alibi2d_directional", low=ahead) for rope in TWO_DIMENSIONAL]
    return parts, []


def penalty_suits_text_alone(results, behind: float) -> Parts:
    """On text past L ahead of RoPE; on pictures behind both forms of RoPE, by distance and, which
    asks whether it is the penalty or its blindness to directions, with directions."""
    text = here(results)
    L = text.lengths[0]
    lead = [
        text.part(
            f"{s * L}", paired(text.loss("alibi", L, s * L), text.loss("rope", L, s * L)), high=0.0
        )
        for s in (2, 4)
    ]
    parts = [jointly("text past L, ALiBi against RoPE", *lead)]
    for penalty in ("alibi2d", "alibi2d_directional"):
        gaps = [_gap(results, rope, penalty, low=behind) for rope in TWO_DIMENSIONAL]
        parts.append(jointly(f"pictures, {LABELS[penalty]} behind", *gaps))
    return parts, []


def one_notion_of_position(results, text_within: float, pictures_within: float) -> Parts:
    """Is there a family close to the best in both? On text at L and at 2L, on pictures at the grid
    of training and at one twice as fine, scaled. The best is, of those measured, the one with the
    best mean; and of a family's forms on a grid the best counts, at each grid alike."""
    families = [
        _family(results, name, *forms, text_within, pictures_within)
        for name, forms in FAMILIES.items()
    ]
    words = [part.verdict for part in families]
    verdict = UNDECIDED
    if HOLDS in words:
        verdict = HOLDS
    elif set(words) == {REFUTED}:
        verdict = REFUTED
    close = [part.what for part in families if part.verdict == HOLDS]
    measured = "; ".join(f"{part.what}: {part.measured}" for part in families)
    what = f"close to the best in both: {', '.join(close) or 'no family'}"
    return [Part(what, verdict, measured)], []


def _family(results, name, on_a_line, on_a_grid, text_within, pictures_within) -> Part:
    text, pictures = here(results), results["vision"]
    L = text.lengths[0]
    parts = []
    for length in (L, 2 * L):
        losses = {e: text.loss(e, L, length, BLOCKS) for e, _ in FAMILIES.values()}
        best = min(losses, key=lambda e: _mean(losses[e], math.inf))
        behind = paired(losses[on_a_line], losses[best])
        parts.append(text.part(f"text at {length}", behind, high=math.log1p(text_within)))
    for question, grid in (("trained", vision.TRAINED), ("scaled", FINER)):
        found = {v: vision.accuracies(pictures, v, question, grid) for v in vision.VARIANTS}
        best = max(found, key=lambda v: _mean(found[v], -math.inf))
        mine = max(on_a_grid, key=lambda v: _mean(found[v], -math.inf))
        behind = _gap(results, mine, best, question, grid, low=-pictures_within)
        parts.append(behind._replace(what=f"pictures {'×'.join(map(str, grid))}"))
    return jointly(name, *parts)


def _mean(values: pd.Series, missing: float) -> float:
    return values.mean() if len(values) else missing
