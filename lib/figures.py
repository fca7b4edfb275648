"""How every figure looks, and how it is published: a picture, its numbers, where they came from.

Importing this module sets the house style. A colour, a marker and a line mean the same encoding in
every figure; the colours stay apart for colour-blind readers (the tests simulate it).
"""

import io
import platform
import subprocess
from contextlib import ExitStack
from importlib.metadata import version
from itertools import cycle
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform
from PIL import Image
from scipy.optimize import isotonic_regression
from scipy.stats import t as student

from lib import files, paths

# ---- how things look -----------------------------------------------------------------------------


class Look(NamedTuple):
    label: str
    colour: str
    marker: str
    line: str = "-"


# The forms on a grid have the colour of the same idea on a line; they differ by line and marker.
LOOKS = {
    "sinusoidal": Look("sinusoidal", "#333333", "o"),
    "learned": Look("learned (untrained rows)", "#f0901e", "s"),
    "learned_interpolated": Look("learned, interpolated", "#c8a66a", "s", "--"),
    "shaw": Look("Shaw", "#9fb0f2", "^"),
    "t5": Look("T5 bias", "#2fbfa8", "v"),
    "rope": Look("RoPE", "#0055b2", "D"),
    "alibi": Look("ALiBi", "#b23a08", "P"),
    "nope": Look("NoPE", "#8a4480", "X"),
    "mrope": Look("M-RoPE", "#0055b2", "D", "-."),
    "rope_random": Look("RoPE, drawn positions", "#58b4e8", "d", "--"),
    "sinusoidal2d": Look("sinusoidal, 2D", "#333333", "o", "--"),
    "learned2d": Look("learned, 2D", "#f0901e", "s", "-."),
    "rope2d_axial": Look("RoPE, axial", "#0055b2", "D", "--"),
    "rope2d_mixed": Look("RoPE, mixed", "#58b4e8", "d", "--"),
    "alibi2d": Look("ALiBi, 2D", "#b23a08", "P", "--"),
    "rope_raster": Look("RoPE, raster", "#0055b2", "D", ":"),
    "alibi2d_directional": Look("ALiBi, directional", "#b23a08", "P", "-."),
    # Scalings of RoPE; unscaled, it is RoPE.
    "none": Look("unscaled", "#0055b2", "D"),
    "linear": Look("PI", "#7d7078", "o"),
    "ntk": Look("NTK-aware", "#9bb05a", "^"),
    "dynamic": Look("dynamic NTK", "#dcb000", "^", "--"),
    "ntk_by_parts": Look("NTK by parts", "#55c5a0", "v"),
    "yarn": Look("YaRN", "#f078d0", "s"),
    "llama3": Look("Llama 3", "#65206a", "X"),
    "ntk_by_parts_scaled": Look("NTK by parts, β for L", "#55c5a0", "v", ":"),
    "yarn_scaled": Look("YaRN, β for L", "#f078d0", "s", ":"),
    "longrope": Look("LongRoPE", "#333333", "P"),
    "longrope_two_steps": Look("LongRoPE, two steps", "#333333", "P", "--"),
    "longrope_tuned": Look("LongRoPE, first step, tuned", "#333333", "X", ":"),
    "longrope_step": Look("LongRoPE, first step", "#333333", "X", "-."),
    "random": Look("random search", "#6e6e6e", "o", ":"),
    "raised_base": Look("raised base", "#6a8f00", "h", "-."),
    "log_n": Look("log n", "#58b4e8", "*", ":"),
    "ntk_log_n": Look("NTK-aware and log n", "#9bb05a", "*", ":"),
    # Beyond the survey (lib.examples).
    "kerple": Look("KERPLE", "#c48962", ">", "-."),
    "fire": Look("FIRE", "#8900ff", "<", "-."),
    "xpos": Look("xPos", "#b189ff", "p", "-."),
    "prope": Look("p-RoPE", "#62624e", "H", "-."),
    "cope": Look("CoPE", "#d8c462", "*", "-."),
}
LABELS = {name: look.label for name, look in LOOKS.items()}
COLOURS = {name: look.colour for name, look in LOOKS.items()}

# For encodings that a reader adds: apart from each other by marker, from the rest by the dots.
_SPARE = [
    Look("", "#111111", "*", ":"),
    Look("", "#6e6e6e", "h", ":"),
    Look("", "#a01030", "p", ":"),
]

WIDTH, HEIGHT = 6.4, 3.6  # inches, of a figure with one panel
INLINE_DPI, PUBLISHED_DPI = 96, 144  # a picture in a notebook then has about 60 kB at most
MANY = 12  # with more points than this along a line, intervals are a band instead of bars

STYLE = {
    "figure.figsize": (WIDTH, HEIGHT),
    "figure.dpi": INLINE_DPI,
    "figure.constrained_layout.use": True,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.08,
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "image.cmap": "cividis",
}
plt.style.use(STYLE)


def looks(names):
    """{name: Look} for names of encodings or scalings; an unknown name gets a spare look."""
    spare = cycle(_SPARE)
    names = dict.fromkeys(names)
    return {n: LOOKS[n] if n in LOOKS else next(spare)._replace(label=str(n)) for n in names}


def short(name):
    """The label of an encoding or a scaling, without what it says in brackets."""
    return looks([name])[name].label.split(" (")[0]


# ---- numbers -------------------------------------------------------------------------------------

COLUMNS = ["panel", "encoding", "x", "value", "sd", "low", "high", "n"]


class Interval(NamedTuple):
    value: float
    sd: float
    low: float
    high: float
    n: int


def interval(values):
    """Mean, standard deviation and 95 % interval of the mean (Student's t) over n values.

    One value has no spread: sd, low and high are NaN. A value that is not finite (a run that
    diverged) is not left out: it makes the interval NaN. Raises ValueError without any value.
    """
    values = np.asarray(values, dtype=float).ravel()  # (n,)
    n = len(values)
    if n == 0:
        raise ValueError("An interval needs at least one value: no run reached this figure.")
    mean = values.mean()
    if n == 1 or not np.isfinite(values).all():
        return Interval(float(mean), np.nan, np.nan, np.nan, n)
    sd = values.std(ddof=1)
    half = student.ppf(0.975, n - 1) * sd / np.sqrt(n)
    return Interval(float(mean), float(sd), float(mean - half), float(mean + half), n)


def summarise(frame, by, value):
    """One row for each group of `by`, in order of appearance, with value, sd, low, high and n.

    frame: one row a run. by: a column name or a list of them. value: the column to average.
    """
    by = [by] if isinstance(by, str) else list(by)
    groups = frame.groupby(by, sort=False, dropna=False)[value]
    rows = [(*key, *interval(values)) for key, values in groups]
    return pd.DataFrame(rows, columns=[*by, *Interval._fields])


# ---- drawing -------------------------------------------------------------------------------------


def canvas(columns=1, rows=1):
    """An empty figure of the house size and its axes, (rows · columns,), row by row."""
    # Two panels side by side are narrower each: together they still fit the page.
    width = WIDTH if columns == 1 else 0.75 * WIDTH * columns
    height = HEIGHT if rows == 1 else 0.9 * HEIGHT * rows
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, height), squeeze=False, FigureClass=HouseFigure
    )
    return figure, axes.ravel()


class HouseFigure(Figure):
    """A figure that a notebook shows as the small picture of `png`."""

    def _ipython_display_(self):
        from IPython.display import display

        data = {"image/png": png(self, INLINE_DPI), "text/plain": repr(self)}
        display(data, raw=True)


def png(figure, dpi):
    """The figure as the bytes of a PNG with 256 colours, a third of the size of one with all.

    Flat colours stay exact; only the shades along smooth edges are rounded. The bytes depend on
    what is drawn alone.
    """
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=dpi)
    picture = Image.open(full).convert("RGB")
    picture = picture.quantize(256, Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)
    picture.save(small, format="png", optimize=True)
    return small.getvalue()


def curves(ax, frame):
    """Draw one panel of a tidy frame: a line for each encoding, with its interval over seeds.

    Intervals that are NaN (one seed) are not drawn. Raises ValueError when the frame
    holds more than one panel.
    """
    if frame["panel"].nunique(dropna=False) > 1:
        raise ValueError("curves() draws one panel: give it frame[frame.panel == …].")
    for name, look in looks(frame["encoding"]).items():
        rows = frame[frame["encoding"] == name].sort_values("x")
        x, value, low, high = (rows[column].to_numpy() for column in ("x", "value", "low", "high"))
        many = len(rows) > MANY
        marker = "" if many else look.marker
        ax.plot(x, value, look.line, label=look.label, color=look.colour, marker=marker)
        known = np.isfinite(low) & np.isfinite(high)
        if many:
            ax.fill_between(x, low, high, where=known, color=look.colour, alpha=0.18, linewidth=0)
        else:
            x, low, high = x[known], low[known], high[known]
            ax.vlines(x, low, high, color=look.colour, linewidth=1.1, alpha=0.7)


def doubling(ax, ticks):
    """A horizontal axis on which every doubling is as long, with these ticks alone."""
    ticks = sorted(ticks)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    ax.minorticks_off()


def direct_labels(ax, lines=None):
    """Write each line's label at its end, right of the axes, instead of a legend.

    lines: those to label; None means every labelled line of `ax`. The labels are placed when the
    figure is drawn, as near to the ends of their lines as they can be without touching; a dotted
    leader joins a label to an end that lies elsewhere.
    """
    if lines is None:
        lines = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
    ax.add_artist(_EndLabels(ax, lines))


def spread(wanted, heights, low, high):
    """Where labels go: the centres nearest to `wanted` (least squares) that do not overlap.

    wanted, heights: (n,), any order; low, high: the room for all of them. Labels that need more
    room than there is lie evenly about its middle. Returns the centres, in the order given.
    """
    wanted, heights = np.asarray(wanted, dtype=float), np.asarray(heights, dtype=float)
    order = np.argsort(wanted, kind="stable")
    h = heights[order]
    # Centre i must lie half of h_i and half of h_{i-1} above centre i-1; with those sums taken off,
    # what remains must only not decrease.
    offset = np.concatenate([[0.0], np.cumsum((h[1:] + h[:-1]) / 2)])
    free = isotonic_regression(wanted[order] - offset).x
    lowest, highest = low + h[0] / 2, high - h[-1] / 2 - offset[-1]
    if lowest > highest:
        lowest = highest = (lowest + highest) / 2
    centres = np.empty_like(wanted)
    centres[order] = np.clip(free, lowest, highest) + offset
    return centres


class _EndLabels(Artist):
    """Labels at the ends of lines, placed at each drawing: the layout moves the axes till then."""

    GAP = 6  # points from the axes to a label
    FAR = 5  # gaps from the end of a line to its label; beyond that a leader joins them

    def __init__(self, ax, lines):
        super().__init__()
        self.set_figure(ax.figure)
        self.set_clip_on(False)
        self.set_zorder(4)
        self.lines = [line for line in lines if np.isfinite(line.get_xydata()).all(axis=1).any()]
        self.texts = [
            Text(0, 0, line.get_label(), va="center", transform=IdentityTransform(),
                 color=_legible(line.get_color()), fontsize=plt.rcParams["axes.labelsize"])
            for line in self.lines
        ]  # fmt: skip
        for text in self.texts:
            text.set_figure(ax.figure)
        self.host = ax

    def _place(self, renderer):
        """Move the texts to their places; returns the ends of the lines, (n, 2) in pixels."""
        box = self.host.get_window_extent(renderer)
        ends = np.array([self._end(line) for line in self.lines]).reshape(-1, 2)
        if len(ends) == 0:
            return ends
        ends = np.clip(ends, (box.x0, box.y0), (box.x1, box.y1))
        heights = [text.get_window_extent(renderer).height * 1.05 for text in self.texts]
        x = box.x1 + renderer.points_to_pixels(self.GAP)
        for text, y in zip(self.texts, spread(ends[:, 1], heights, box.y0, box.y1), strict=True):
            text.set_position((x, y))
        return ends

    def _end(self, line):
        points = line.get_xydata()
        return line.get_transform().transform(points[np.isfinite(points).all(axis=1)][-1])

    def get_window_extent(self, renderer=None):
        renderer = renderer or self.get_figure(root=True)._get_renderer()
        self._place(renderer)
        return Bbox.union([text.get_window_extent(renderer) for text in self.texts])

    def get_tightbbox(self, renderer=None):
        return self.get_window_extent(renderer) if self.texts else None

    def draw(self, renderer):
        if not self.get_visible():
            return
        ends, gap = self._place(renderer), renderer.points_to_pixels(self.GAP)
        for text, (x, y) in zip(self.texts, ends, strict=True):
            to_x, to_y = text.get_position()
            if to_x - x > self.FAR * gap or abs(to_y - y) > gap / 2:
                leader = Line2D([x, to_x - gap / 4], [y, to_y], transform=IdentityTransform(),
                                color=text.get_color(), linewidth=0.8, linestyle=":")  # fmt: skip
                leader.set_figure(self.host.figure)
                leader.draw(renderer)
            text.draw(renderer)


def _legible(colour):
    """The colour, darkened till text in it has a contrast of 4.5 on white (WCAG 2.2, 1.4.3)."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    linear *= min(1.0, (1.05 / 4.5 - 0.05) / max(luminance, 1e-9))
    return tuple(np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055))


# ---- publishing ----------------------------------------------------------------------------------


def folder(profile):
    """Where a profile's figures go: under build/, or figures/ for what is committed."""
    committed = profile in ("default", "reference of full")
    return paths.FIGURES if committed else paths.results(profile) / "figures"


def publish(figure, name, frame, provenance, profile):
    """Write <name>.png, <name>.csv (the numbers drawn) and <name>.json (where they came from).

    frame: tidy, with COLUMNS and perhaps more. The picture's bytes depend on what is drawn alone.
    The three appear together or not at all. The profile "reference" publishes nothing: what it
    shows is published already. Raises ValueError when the frame lacks a column.
    """
    absent = [column for column in COLUMNS if column not in frame]
    if absent:
        raise ValueError(f"The figure {name} lacks the column {', '.join(absent)}.")
    if profile == "reference":
        return
    place = folder(profile)
    with ExitStack() as stack:
        picture, numbers, origin = (
            stack.enter_context(files.atomic(place / f"{name}.{suffix}"))
            for suffix in ("png", "csv", "json")
        )
        picture.write_bytes(png(figure, PUBLISHED_DPI))
        frame.to_csv(numbers, index=False, float_format="%.8g", lineterminator="\n")
        files.write_json(provenance, origin)


def provenance(study, config_hash, seeds, data_hash, seconds):
    """What a figure's numbers came from, ready for its JSON file.

    study: its name. config_hash, data_hash: hex digests. seeds: the seeds averaged over. seconds:
    the computing time of the runs. Adds the versions and the commit, with "-dirty" when code has
    changed since; the commit is None outside a git checkout.
    """
    return {
        "study": study,
        "config_hash": config_hash,
        "seeds": sorted(int(seed) for seed in seeds),
        "data_hash": data_hash,
        "seconds": round(float(seconds), 1),
        "commit": commit(),
        "versions": {
            "python": platform.python_version(),
            **{library: version(library) for library in ("torch", "numpy", "matplotlib")},
        },
    }


def commit():
    """The checked-out commit, with "-dirty" when tracked code differs from it; None without git."""
    try:
        top, head = _git("rev-parse", "--show-toplevel", "HEAD").split("\n")
        # What a build itself draws or promotes says nothing about the code it was made with.
        made = [paths.FIGURES.relative_to(paths.ROOT), paths.REFERENCE.relative_to(paths.ROOT)]
        code = [".", *(f":(exclude){place}" for place in made)]
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
    except (OSError, subprocess.CalledProcessError):
        return None
    if not paths.ROOT.samefile(top):  # unpacked inside someone else's repository
        return None
    return head + ("-dirty" if changed else "")


def _git(*arguments):
    command = ["git", "-C", str(paths.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
