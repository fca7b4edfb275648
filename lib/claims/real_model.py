"""What a real language model says to the claims about extending RoPE: parts for their tests.

Each function takes the results and gives parts on SmolLM2-135M, read zero-shot to 1.5 times its
context; none where that study has no rows, so that the small models then decide alone. One model is
one seed, and its intervals are over passages of one text (see the study): so these parts say what
was found and decide nothing.
"""

import math

from lib import figures
from lib.claims.verdicts import NOT_TESTABLE, Part, judge, percent
from lib.studies import real_model

NAME = "SmolLM2-135M"


def _part(what: str, found: figures.Interval, low=-math.inf, high=math.inf) -> Part:
    """The ln of a ratio of perplexities in words, and whether it lies in low … high."""
    words = "not measured"
    if found.n:
        words = f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}]"
    words += f" ({judge(found if found.n else None, low, high)})"
    return Part(f"{NAME}, {what}", NOT_TESTABLE, words)


def _change(results, method: str, where: str, factor: float = 2.0) -> figures.Interval:
    return real_model.change(results["real_model"], method, factor, where)


def _between(results, a: str, b: str, where: str, factor: float = 2.0) -> figures.Interval:
    """ln of the perplexity under a over that under b, paired by block."""
    return real_model.between(results["real_model"], (a, factor), (b, factor), where)


def on_another_base(results, worse: float) -> list[Part]:
    """NTK with s = 2 at the end of 1.5·L: better than unscaled, and inside L not much worse."""
    if results["real_model"].empty:
        return []
    end = _part("NTK(2) against unscaled at 1.5·L", _change(results, "ntk", "end"), high=0.0)
    inside = _part(
        "NTK(2) against unscaled inside L",
        _change(results, "ntk", "inside"),
        high=math.log1p(worse),
    )
    return [end, inside]


def on_yarn(results) -> list[Part]:
    """YaRN against the others at the end of 1.5·L, all with s = 2 and no fine-tuning."""
    if results["real_model"].empty:
        return []
    return [
        _part(
            f"YaRN against {figures.LABELS[other]} at 1.5·L",
            _between(results, "yarn", other, "end"),
            high=0.0,
        )
        for other in ("linear", "ntk", "ntk_by_parts")
        if other != "ntk_by_parts" or _between(results, "yarn", other, "end").n
    ]


def on_interpolation(results) -> list[Part]:
    """PI with s = 2 inside L, where the whole of it was in reach before: on the long text, and on
    the first tokens of short ones, which look back a few hundred tokens at most."""
    if results["real_model"].empty:
        return []
    return [
        _part(f"PI(2) against unscaled, {words}", _change(results, "linear", where), low=0.0)
        for where, words in (("inside", "inside L"), ("short", "texts of 768 tokens"))
    ]


def on_reach(results, within: float, least: float, most: float) -> list[Part]:
    """Unscaled: windows of least·L are within a share of L's perplexity, those of most·L not."""
    frame = results["real_model"]
    if frame.empty:
        return []

    def window(ratio):
        return real_model.unscaled_window(frame, ratio)

    limit = math.log1p(within)
    near = _part(f"unscaled, {least:g}·L", window(least), high=limit)
    far = _part(f"unscaled, {most:g}·L", window(most), low=limit)
    return [near, far]
