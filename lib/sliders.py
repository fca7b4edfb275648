"""Pictures that follow a slider, in JupyterLab and in the pages: RoPE, ALiBi and T5's buckets.

Each of `rope`, `alibi` and `t5` returns what a notebook cell shows: a table of what its sliders say
where they begin, computed by `lib.encodings`, and a script (sliders.js) that adds the picture and
the sliders and keeps the table up to date. JupyterLab leaves scripts out where it does not trust a
notebook; there the table stands, with a sentence that says how to wake the sliders. The script has
formulas of its own; a test moves the sliders in a browser and compares with the functions below.
"""

import json
import math
from html import escape
from pathlib import Path

import torch
from IPython.display import HTML

from lib import figures
from lib.encodings import alibi as alibi_encoding
from lib.encodings import build
from lib.encodings import t5 as t5_encoding

HERE = Path(__file__).parent
ASLEEP = "A notebook that is not trusted does not show the sliders: run this cell to see them."
METHODS = {"none": "none", "linear": "PI", "ntk": "NTK-aware", "ntk_by_parts": "NTK by parts"}
FARTHEST = 1024  # the last distance in the picture of buckets
UNSEEN = "#c2185b"  # what training has not shown


def rope() -> HTML:
    """The wavelengths of a head's pairs against L and s·L."""
    controls = [
        _slider("base", "base b", 1, 6, 0.25, start=4, power=10),
        _slider("L", "training length L", 5, 13, 1, start=6, power=2),
        _slider("s", "factor s", 0, 5, 1, start=2, power=2),
        {"name": "method", "label": "method", "choices": METHODS, "start": "none"},
    ]
    return _output("rope", controls, {"seen": figures.LOOKS["rope"].colour, "unseen": UNSEEN})


def alibi() -> HTML:
    """What the heads of ALiBi leave of a key's weight, against its distance."""
    controls = [
        _slider("H", "heads H", 1, 16, 1, start=8),
        _slider("delta", "distance δ", 0, 12, 1, start=6, power=2),
    ]
    return _output("alibi", controls, {"line": figures.LOOKS["alibi"].colour})


def t5() -> HTML:
    """T5's bucket against the distance, and the buckets that training never reaches."""
    controls = [
        _slider("n", "buckets n", 4, 32, 2, start=32),
        _slider("M", "longest distance M", 5, 10, 1, start=7, power=2),
        _slider("L", "training length L", 4, 10, 1, start=6, power=2),
    ]
    return _output("t5", controls, {"seen": figures.LOOKS["t5"].colour, "unseen": UNSEEN})


# ---- what the sliders say, by lib.encodings ------------------------------------------------------

WIDTH = 64  # of RoPE's head


def rope_values(base, L, s, method):
    """θ as read, which pairs never complete a turn within L, which meet new angles in s·L: (d/2,).

    A pair that completes a turn within L has shown every angle. Another one meets new ones where it
    goes farther in s·L tokens than it went in L.
    """
    sizes = dict(d_model=WIDTH, n_heads=1, max_length=L, base=base)
    plain = theta = build("rope", **sizes).frequencies()
    if method != "none":
        scaling = {"rope_type": method, "factor": s}
        if method == "ntk_by_parts":
            scaling["original_max_position_embeddings"] = L
        theta = build("rope", **sizes, scaling=scaling).frequencies()
    incomplete = 2 * math.pi / plain > L
    unseen = incomplete & (s * theta > plain * (1 + 1e-9))
    return {"theta": theta, "incomplete": incomplete, "unseen": unseen}


def rope_said(base, L, s, method):
    values = rope_values(base, L, s, method)
    theta = values["theta"]

    def count(pairs):
        return f"{int(pairs.sum())} of {len(pairs)}"

    return [
        (f"pairs that never complete a turn within L = {L:,}", count(values["incomplete"])),
        (f"pairs that meet new angles in s·L = {s * L:,} tokens", count(values["unseen"])),
        ("one token turns the fastest pair by", f"{theta[0]:.2f} rad"),
        ("longest wavelength", f"{2 * math.pi / theta[-1]:,.0f} tokens"),
    ]


def alibi_values(H, delta):
    """The slopes, and what is left of a key's weight at distance δ: (H,)."""
    m = alibi_encoding.slopes(H)
    return {"slopes": m, "left": torch.exp(-m * delta)}


def alibi_said(H, delta):
    values = alibi_values(H, delta)
    m = values["slopes"]

    def head(slope):
        return f"m = {slope:.4f}, half-life {math.log(2) / slope:.1f} tokens"

    return [
        ("steepest head", head(m.max())),
        ("flattest head", head(m.min())),
        (
            f"heads that keep a tenth of the weight at distance {delta:,}",
            f"{int((values['left'] >= 0.1).sum())} of {H}",
        ),
    ]


def t5_values(n, M, L):
    """The bucket of each distance from 0, and whether a window of L reaches it: (FARTHEST + 1,)."""
    buckets = t5_encoding.bucket(torch.arange(FARTHEST + 1), n, M)
    return {"buckets": buckets, "reached": torch.isin(buckets, buckets[:L])}


def t5_said(n, M, L):
    values = t5_values(n, M, L)
    buckets, never = values["buckets"], ~values["reached"]
    first = f"{int(never.int().argmax()):,}" if never.any() else "none does"
    return [
        ("distances with a bucket of their own", f"0 … {n // 2 - 1}"),
        (f"different biases within L = {L:,}", f"{len(buckets[:L].unique())} of {n}"),
        ("the last bucket begins at distance", f"{int((buckets == n - 1).int().argmax()):,}"),
        ("the first distance in a bucket that training never reaches", first),
    ]


# ---- the output of a cell ------------------------------------------------------------------------


def _slider(name, label, low, high, step, start, power=None):
    """A slider as sliders.js reads it; with `power` its setting is power to what it shows."""
    return dict(name=name, label=label, low=low, high=high, step=step, start=start, power=power)


def _output(kind, controls, colours) -> HTML:
    settings = {
        c["name"]: c["power"] ** c["start"] if c.get("power") else c["start"] for c in controls
    }
    rows = "".join(
        f"<tr><td>{escape(words)}</td><td>{escape(value)}</td></tr>\n"
        for words, value in SAID[kind](**settings)
    )
    data = {"kind": kind, "controls": controls, "colours": colours}
    script = (HERE / "sliders.js").read_text(encoding="utf-8")
    script = script.replace("CONFIGURATION", json.dumps(data, ensure_ascii=False))
    return HTML(
        f'<div class="sliders {kind}">\n<p>{ASLEEP}</p>\n<table>\n{rows}</table>\n</div>\n'
        f"<style>\n{(HERE / 'sliders.css').read_text(encoding='utf-8')}</style>\n"
        f"<script>\n{script}</script>"
    )


SAID = {"rope": rope_said, "alibi": alibi_said, "t5": t5_said}
