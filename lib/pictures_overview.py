"""Pictures over all encodings: who stands where, and the field in one figure."""

import matplotlib.pyplot as plt

from lib import figures

# ---- who wins where ------------------------------------------------------------------------------


def standings(frame):
    """A grid of settings and schemes: in each field the place, ringed where no other is ahead for
    sure.

    frame: columns setting, scheme, place, unbeaten. A field is empty where nothing was measured.
    """
    settings = list(dict.fromkeys(frame["setting"]))
    schemes = list(dict.fromkeys(frame["scheme"]))
    figure, (ax,) = figures.canvas()
    figure.set_size_inches(1.25 * figures.WIDTH, 0.8 + 0.32 * len(settings))
    for row in frame.itertuples():
        x, y = schemes.index(row.scheme), settings.index(row.setting)
        ax.text(x, y, f"{row.place:.0f}", ha="center", va="center", zorder=3,
                color="black" if row.place <= 3 else "white")  # fmt: skip
        shade = plt.get_cmap("cividis")(1.0 - 0.14 * (row.place - 1))
        ax.scatter(x, y, s=300, color=shade, linewidths=0, marker="s")
        if row.unbeaten:
            ax.scatter(x, y, s=420, facecolors="none", edgecolors="#b23a08", linewidths=1.8)
    ax.set_xticks(range(len(schemes)), [figures.short(name) for name in schemes])
    ax.set_yticks(range(len(settings)), settings)
    ax.set(xlim=(-0.6, len(schemes) - 0.4), ylim=(len(settings) - 0.4, -0.6))
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return figure


# ---- the field in one figure ---------------------------------------------------------------------

# A column for the door that a position enters by, a row for what is known of it there.
DOORS = {
    "added to the embeddings": r"$x_i + p_i$",
    "turns q and k": r"$R_i\,q_i,\ R_j\,k_j$",
    "added to the logits": r"$q_i \cdot k_j/\sqrt{d} + b_{ij}$",
    "no door": "the causal mask alone",
}
KNOWS = ("its place", "the distance", "distance\nand content", "nothing")
PLACES = {  # (door, what is known): the encodings there, and others without a curve
    (0, 0): (("sinusoidal", "learned"), ""),
    (1, 1): (("rope", "yarn"), "xPos, p-RoPE; 2D: axial, mixed"),
    (2, 1): (("t5", "alibi"), "KERPLE, FIRE; 2D: ALiBi"),
    (2, 2): (("shaw",), "CoPE; Shaw: to the output too"),
    (3, 3): (("nope",), ""),
}
LOW, HIGH = 0.85, 3.0  # perplexity over that at L
LEFT, TOP, COLUMN, ROW = 0.108, 0.86, 0.223, 0.204  # of the figure


def field(frame):
    """Where each encoding lets a position in, what is known of it there, and how the perplexity
    fares from L to 16 L: a small curve each, all on one scale.

    frame: columns encoding, x (lengths in L), value, low, high (perplexities over that at L).
    """
    size = 1.6 * figures.WIDTH, 1.7 * figures.HEIGHT
    figure = plt.figure(figsize=size, layout="none", FigureClass=figures.HouseFigure)
    for n, (door, formula) in enumerate(DOORS.items()):
        x = LEFT + (n + 0.5) * COLUMN
        figure.text(x, 0.95, door, ha="center", weight="bold")
        figure.text(x, 0.895, formula, ha="center", color="#444444")
    for n, known in enumerate(KNOWS):
        figure.text(0.0, TOP - (n + 0.5) * ROW, known, va="center", weight="bold")
        for door in range(len(DOORS)):
            corner = LEFT + door * COLUMN + 0.004, TOP - (n + 1) * ROW + 0.005
            colour = "#eef2f6" if (door, n) in PLACES else "#fafafa"
            box = plt.Rectangle(corner, COLUMN - 0.008, ROW - 0.01, color=colour, zorder=-1)
            figure.add_artist(box)
    for (door, known), (names, others) in PLACES.items():
        x, y = LEFT + door * COLUMN + 0.012, TOP - (known + 1) * ROW
        for n, name in enumerate(names):
            wide = 0.5 * COLUMN - 0.012
            at = x + n * wide, y + 0.22 * ROW, wide - 0.012, 0.55 * ROW
            _small_curve(figure.add_axes(at), frame, name)
        if others:
            figure.text(x, y + 0.07 * ROW, f"also {others}", fontsize=8, color="#555555")
    figure.text(LEFT, 0.0, "small curves: perplexity over that at L, from L to 16 L, all on one "
                "scale; grey line: as at L", fontsize=9, color="#555555")  # fmt: skip
    return figure


def _small_curve(ax, frame, name):
    rows = frame[frame["encoding"] == name].sort_values("x")
    look = figures.looks([name])[name]
    ax.set(xscale="log", yscale="log", xlim=(0.9, 18), ylim=(LOW, HIGH), xticks=[], yticks=[])
    ax.minorticks_off()
    ax.grid(False)
    ax.axhline(1, color="#bbbbbb", linewidth=0.8)
    ax.set_facecolor("white")
    for spine in ax.spines.values():
        spine.set_visible(False)
    colour = figures._legible(look.colour)
    ax.set_title(figures.short(name), color=colour, loc="left", fontsize=10.5)
    if rows.empty:
        ax.text(4, 1.3, "not in\nthis build", ha="center", va="center", fontsize=8)
        return
    ax.fill_between(rows["x"], rows["low"], rows["high"], color=look.colour, alpha=0.2, lw=0)
    ax.plot(rows["x"], rows["value"], color=look.colour, linewidth=2.2)
    last = rows.iloc[-1]
    ax.text(0.97, 0.95, f"{100 * (last['value'] - 1):+.0f} % at {last['x']:.0f} L", fontsize=8.5,
            transform=ax.transAxes, ha="right", va="top", color="#333333")  # fmt: skip
