"""Figures: colours that stay apart, labels that do not touch, numbers that can be trusted."""

import io
import itertools
import json
import subprocess

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from PIL import Image
from scipy.optimize import LinearConstraint, minimize
from scipy.stats import ttest_1samp

from lib import figures, paths

TEXT = ["sinusoidal", "learned", "learned_interpolated", "shaw", "t5", "rope", "alibi", "nope"]
IMAGE = ["sinusoidal2d", "learned2d", "rope2d_axial", "rope2d_mixed", "alibi2d", "nope"]
SCALING = [
    "none", "linear", "ntk", "dynamic", "ntk_by_parts", "yarn", "llama3", "longrope", "alibi",
]  # fmt: skip

# With the survey's that their figure shows.
EXAMPLES = ["kerple", "fire", "xpos", "prope", "cope", "t5", "rope", "alibi", "nope"]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def frame(encodings, xs=(64, 128, 256), panel="sliding", n=3):
    rows = [
        (panel, name, x, 20 + place + x / 100, 1.0, 19 + place + x / 100, 21 + place + x / 100, n)
        for place, name in enumerate(encodings)
        for x in xs
    ]
    return pd.DataFrame(rows, columns=figures.COLUMNS)


# ---- colours -------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color
# vision deficiency", table of severity 1.0; they act on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# sRGB to XYZ for a D65 white (IEC 61966-2-1)
XYZ = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)  # fmt: skip


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    ratio = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(1)
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one, other, vision):
    matrix = VISION[vision]
    return np.linalg.norm(lab(matrix @ linear(one)) - lab(matrix @ linear(other)))


def test_the_simulation_knows_what_red_and_green_look_like():
    red, green, grey = "#b00000", "#5a6000", "#777777"
    assert lab(linear("#ffffff")) == pytest.approx([100, 0, 0], abs=0.1)
    assert lab(linear("#0055b2"))[2] < -50  # blue
    assert distance(red, green, "normal") > 60
    assert distance(red, green, "deuteranopia") < 20
    for matrix in VISION.values():  # greys stay grey
        np.testing.assert_allclose(matrix @ linear(grey), linear(grey), rtol=1e-4)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(
    "group", [TEXT, IMAGE, SCALING, EXAMPLES], ids=["text", "image", "scaling", "examples"]
)
def test_colours_that_share_a_figure_stay_apart(group, vision):
    # The eight colours of Okabe and Ito, a common choice, come as near as 17 to each other.
    pairs = {
        pair: distance(*(figures.COLOURS[name] for name in pair), vision)
        for pair in itertools.combinations(group, 2)
    }
    closest = min(pairs, key=pairs.get)
    assert pairs[closest] > 20, closest


def test_no_two_encodings_look_the_same():
    for group in (TEXT + IMAGE[:-1] + EXAMPLES[:5], SCALING):
        dressed = [figures.LOOKS[name][1:] for name in group]
        assert len(set(dressed)) == len(dressed)
        assert len({figures.LABELS[name] for name in group}) == len(group)


def test_every_registered_encoding_has_a_look():
    from lib.encodings import ENCODINGS

    assert set(ENCODINGS) <= set(figures.LOOKS)


def test_an_encoding_of_the_readers_own_gets_a_look_of_its_own():
    mine = figures.looks(["rope", "mine", "mine too", "mine", "third"])
    assert list(mine) == ["rope", "mine", "mine too", "third"]
    assert mine["rope"] == figures.LOOKS["rope"]
    assert mine["mine"].label == "mine"
    assert len({look[1:] for look in mine.values()}) == 4


@pytest.mark.parametrize("name", figures.LOOKS)
def test_a_label_can_be_read_on_white(name):
    text = linear(figures._legible(figures.COLOURS[name])) @ XYZ[1]
    assert 1.05 / (text + 0.05) >= 4.49
    if 1.05 / (linear(figures.COLOURS[name]) @ XYZ[1] + 0.05) > 4.51:  # it is not darkened in vain
        np.testing.assert_allclose(figures._legible(figures.COLOURS[name]),
                                   to_rgb(figures.COLOURS[name]), atol=1e-6)  # fmt: skip


# ---- labels --------------------------------------------------------------------------------------

places = st.lists(st.floats(-50, 550), min_size=1, max_size=8)
height = st.floats(1, 40)


@given(places, height, st.data())
def test_labels_are_pushed_apart_and_kept_inside(wanted, tallest, data):
    heights = np.array([data.draw(st.floats(0.5, tallest)) for _ in wanted])
    centres = figures.spread(wanted, heights, 0, 500)
    order = np.argsort(wanted, kind="stable")
    c, h = centres[order], heights[order]
    assert (np.diff(c) >= (h[1:] + h[:-1]) / 2 - 1e-6).all()
    assert c[0] - h[0] / 2 >= -1e-6 and c[-1] + h[-1] / 2 <= 500 + 1e-6
    alone = (np.diff(np.sort(wanted)) >= tallest).all() and tallest / 2 <= min(wanted)
    if alone and max(wanted) <= 500 - tallest / 2:
        np.testing.assert_allclose(centres, wanted)


@settings(max_examples=25, deadline=None)
@given(places, height)
def test_labels_lie_as_near_to_their_lines_as_a_general_solver_finds(wanted, h):
    wanted = np.sort(np.array(wanted))
    ours = figures.spread(wanted, np.full(len(wanted), h), 0, 500)
    gaps = np.eye(len(wanted))[1:] - np.eye(len(wanted))[:-1]
    solved = minimize(
        lambda c: ((c - wanted) ** 2).sum(),
        np.linspace(h / 2, 500 - h / 2, len(wanted)),
        jac=lambda c: 2 * (c - wanted),
        bounds=[(h / 2, 500 - h / 2)] * len(wanted),
        constraints=[LinearConstraint(gaps, h, np.inf)] if len(wanted) > 1 else [],
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    assert ((ours - wanted) ** 2).sum() <= solved.fun + 1e-3


def test_labels_without_room_lie_evenly_about_the_middle():
    centres = figures.spread([1, 9, 9, 9], [10] * 4, 0, 20)
    np.testing.assert_allclose(centres, [-5, 5, 15, 25])


def texts(figure):
    return [text for ax in figure.axes for artist in ax.artists for text in artist.texts]


@settings(max_examples=4, deadline=None)
@given(st.lists(st.floats(1, 100), min_size=8, max_size=8), st.sampled_from(["linear", "log"]))
def test_drawn_labels_neither_touch_nor_leave_the_picture(ends, scale):
    figure, axes = figures.canvas(2)
    for ax in axes:
        for name, end in zip(TEXT, ends, strict=True):
            ax.plot([1, 2], [10, end], label=figures.LABELS[name], color=figures.COLOURS[name])
        figures.direct_labels(ax)
        ax.set_yscale(scale)
        ax.set_title("set after the labels,\nand moves the axes")
        ax.set_ylim(5, 60)  # some lines end outside
    for dpi in (figures.INLINE_DPI, figures.PUBLISHED_DPI):
        figure.set_dpi(dpi)
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        assert len(texts(figure)) == 16
        boxes = [text.get_window_extent(renderer) for text in texts(figure)]
        boxes += [ax.get_window_extent(renderer) for ax in axes]
        for one, other in itertools.combinations(boxes, 2):
            overlap = np.minimum(one.max, other.max) - np.maximum(one.min, other.min)
            assert (overlap < 0.5).any(), (one, other)
    picture = np.asarray(Image.open(io.BytesIO(figures.png(figure, 100))).convert("RGB"))
    border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
    assert (border == 255).all()
    plt.close(figure)


def test_a_line_that_ends_early_or_never_starts_is_handled():
    figure, (ax,) = figures.canvas()
    ax.plot([1, 2, 3], [1, 2, np.nan], label="ends early")
    ax.plot([1, 2, 3], [np.nan] * 3, label="nothing")
    ax.plot([1, 2, 3], [3, 2, 1])
    figures.direct_labels(ax)
    figure.canvas.draw()
    assert [text.get_text() for text in texts(figure)] == ["ends early"]
    y = texts(figure)[0].get_position()[1]
    assert y == pytest.approx(ax.transData.transform((2, 2))[1])


def test_an_empty_panel_can_be_labelled():
    figure, (ax,) = figures.canvas()
    figures.direct_labels(ax)
    figure.canvas.draw()


# ---- numbers -------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9).filter(lambda v: np.std(v) > 1e-3))
def test_the_interval_is_students(values):
    ours = figures.interval(values)
    theirs = ttest_1samp(values, 0).confidence_interval(0.95)
    np.testing.assert_allclose([ours.low, ours.high], theirs, rtol=1e-7, atol=1e-6)
    assert ours.value == pytest.approx(np.mean(values), abs=1e-6)
    assert ours.sd == pytest.approx(pd.Series(values).std())
    assert ours.n == len(values)


def test_one_seed_has_no_interval():
    mean, *spread, n = figures.interval([3.5])
    assert (mean, n) == (3.5, 1)
    assert np.isnan(spread).all()


@pytest.mark.parametrize("diverged", [np.nan, np.inf])
def test_a_run_that_diverged_is_not_left_out(diverged):
    result = figures.interval([1.0, 2.0, diverged])
    assert not np.isfinite(result.value)
    assert np.isnan([result.sd, result.low, result.high]).all() and result.n == 3


def test_no_run_is_an_error():
    with pytest.raises(ValueError, match="at least one value"):
        figures.interval([])


def test_summaries_keep_the_order_and_agree_with_the_interval():
    runs = pd.DataFrame(
        {"encoding": ["rope", "alibi"] * 3, "x": [64] * 6, "seed": [0, 0, 1, 1, 2, 2],
         "loss": [3.0, 1.0, 3.5, 1.5, 4.0, 1.25]}
    )  # fmt: skip
    summary = figures.summarise(runs, ["encoding", "x"], "loss")
    assert list(summary.columns) == ["encoding", "x", "value", "sd", "low", "high", "n"]
    assert list(summary["encoding"]) == ["rope", "alibi"]
    assert tuple(summary.loc[1, "value":]) == figures.interval([1.0, 1.5, 1.25])
    assert list(figures.summarise(runs, "encoding", "loss")["n"]) == [3, 3]


# ---- curves --------------------------------------------------------------------------------------


def test_curves_draw_each_encoding_in_its_look_in_order_of_x():
    figure, (ax,) = figures.canvas()
    data = frame(["alibi", "rope", "mine"]).sample(frac=1, random_state=1)
    figures.curves(ax, data)
    lines = ax.get_lines()
    assert {line.get_label() for line in lines} == {"ALiBi", "RoPE", "mine"}
    for line in lines:
        name = {"ALiBi": "alibi", "RoPE": "rope"}.get(line.get_label(), "mine")
        rows = data[data["encoding"] == name].sort_values("x")
        np.testing.assert_array_equal(line.get_xydata(), rows[["x", "value"]])
        if name in figures.COLOURS:
            assert line.get_color() == figures.COLOURS[name]
    bars = [segment for bar in ax.collections for segment in bar.get_segments()]
    assert len(bars) == 9 and all(np.ptp(bar[:, 1]) == pytest.approx(2) for bar in bars)


def test_one_seed_draws_no_bars():
    figure, (ax,) = figures.canvas()
    figures.curves(ax, frame(["rope"], n=1).assign(sd=np.nan, low=np.nan, high=np.nan))
    assert not any(len(bar.get_segments()) for bar in ax.collections)


def test_dense_curves_have_bands_and_no_markers():
    figure, (ax,) = figures.canvas()
    figures.curves(ax, frame(["rope"], xs=range(64)))
    (line,) = ax.get_lines()
    assert line.get_marker() in ("", "None")
    (band,) = ax.collections
    assert np.ptp(band.get_paths()[0].vertices[:, 1]) == pytest.approx(2.63)


def test_two_panels_at_once_are_refused():
    figure, (ax,) = figures.canvas()
    with pytest.raises(ValueError, match="one panel"):
        figures.curves(ax, pd.concat([frame(["rope"]), frame(["rope"], panel="other")]))


# ---- publishing ----------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    return tmp_path


def full_figure(panels=2):
    """As heavy as a figure gets: every encoding of text in each panel."""
    figure, axes = figures.canvas(min(panels, 2), (panels + 1) // 2)
    random = np.random.default_rng(0)
    for ax in axes:
        data = frame(TEXT, xs=2 ** np.arange(6, 13))
        shift = random.normal(size=len(data)) * 3
        figures.curves(ax, data.assign(**{c: data[c] + shift for c in ("value", "low", "high")}))
        figures.direct_labels(ax)
        ax.set_xscale("log", base=2)
    return figure


ORIGIN = {"study": "a", "seeds": [0, 1, 2]}


@pytest.mark.parametrize(
    ("profile", "place"), [("default", "figures"), ("quick", "build/quick/figures")]
)
def test_three_files_are_published(folders, profile, place):
    data = frame(["rope", "alibi"]).assign(value=1 / 3)
    figures.publish(full_figure(), "loss", data, ORIGIN, profile)
    files = sorted(folders.rglob("*.*"))
    assert files == [folders / place / f"loss.{suffix}" for suffix in ("csv", "json", "png")]
    pd.testing.assert_frame_equal(
        pd.read_csv(files[0]), data, check_dtype=False, check_exact=False, rtol=1e-7
    )
    assert json.loads(files[1].read_text()) == ORIGIN
    assert Image.open(files[2]).format == "PNG"


def test_the_reference_publishes_nothing_and_an_unknown_profile_is_an_error(folders):
    figures.publish(full_figure(1), "loss", frame(["rope"]), ORIGIN, "reference")
    assert not list(folders.iterdir())
    with pytest.raises(ValueError, match="no profile 'fast'"):
        figures.publish(full_figure(1), "loss", frame(["rope"]), ORIGIN, "fast")


def test_a_frame_without_the_contracts_columns_is_refused(folders):
    with pytest.raises(ValueError, match="loss lacks the column sd, n"):
        figures.publish(
            full_figure(1), "loss", frame(["rope"]).drop(columns=["sd", "n"]), ORIGIN, "default"
        )
    assert not list(folders.iterdir())


def test_a_failure_publishes_none_of_the_three(folders):
    with pytest.raises(ValueError):  # JSON has no NaN
        figures.publish(full_figure(1), "a", frame(["rope"]), {"seconds": np.nan}, "default")
    assert not list(folders.rglob("*.*"))


def test_the_same_figure_has_the_same_bytes(folders):
    once, again = figures.png(full_figure(), 96), figures.png(full_figure(), 96)
    assert once == again
    assert not {"Software", "date"} & set(Image.open(io.BytesIO(once)).info)


@pytest.mark.parametrize("panels", [1, 4])
def test_pictures_are_small_and_flat_colours_exact(panels):
    figure = full_figure(panels)
    assert len(figures.png(figure, figures.INLINE_DPI)) < 60_000
    published = figures.png(figure, figures.PUBLISHED_DPI)
    assert len(published) < 100_000
    picture = np.asarray(Image.open(io.BytesIO(published)).convert("RGB")).reshape(-1, 3)
    drawn = set(map(tuple, picture))
    for name in TEXT:
        assert tuple(round(255 * part) for part in to_rgb(figures.COLOURS[name])) in drawn


@pytest.mark.skipif(not any(paths.FIGURES.glob("*.png")), reason="no figure is published yet")
def test_every_published_figure_is_whole_and_small():
    stems = {suffix: {p.stem for p in paths.FIGURES.glob(f"*.{suffix}")} for suffix in
             ("png", "csv", "json")}  # fmt: skip
    assert stems["png"] == stems["csv"] == stems["json"]
    for png in paths.FIGURES.glob("*.png"):
        assert png.stat().st_size < 130_000, png.name
        assert set(figures.COLUMNS) <= set(pd.read_csv(png.with_suffix(".csv")).columns), png.name
        origin = json.loads(png.with_suffix(".json").read_text())
        assert {
            "study",
            "config_hash",
            "seeds",
            "data_hash",
            "versions",
            "commit",
            "seconds",
        } <= set(origin), png.name


# ---- provenance ----------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit, taken for the whole of this one."""
    root = tmp_path / "repository"
    for name in ("figures", "data/reference", "lib"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("1")
    monkeypatch.setattr(paths, "ROOT", root)
    monkeypatch.setattr(paths, "FIGURES", root / "figures")
    monkeypatch.setattr(paths, "REFERENCE", root / "data" / "reference")
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return root


def git(root, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(root), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def committed(root):
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    return git(root, "rev-parse", "HEAD")


def test_the_commit_is_dirty_when_code_differs_and_not_when_figures_do(repository):
    head = committed(repository)
    assert figures.commit() == head
    (repository / "figures" / "file").write_text("2")
    (repository / "data" / "reference" / "file").write_text("2")
    (repository / "untracked").write_text("2")
    assert figures.commit() == head
    (repository / "lib" / "file").write_text("2")
    assert figures.commit() == head + "-dirty"


def test_without_a_commit_of_its_own_it_is_none(repository, monkeypatch):
    assert figures.commit() is None
    committed(repository)
    inner = repository / "lib"  # unpacked inside another repository
    (inner / "figures").mkdir()
    monkeypatch.setattr(paths, "ROOT", inner)
    monkeypatch.setattr(paths, "FIGURES", inner / "figures")
    monkeypatch.setattr(paths, "REFERENCE", inner / "data" / "reference")
    assert figures.commit() is None


def test_without_git_it_is_none(repository, monkeypatch):
    committed(repository)
    monkeypatch.setenv("PATH", str(repository))
    assert figures.commit() is None


def test_provenance_names_what_the_numbers_came_from():
    origin = figures.provenance("main", "c0ffee", np.array([2, 0, 1]), "da7a", np.float32(12.34))
    assert origin["seeds"] == [0, 1, 2]
    assert origin["seconds"] == pytest.approx(12.3)
    assert set(origin["versions"]) == {"python", "torch", "numpy", "matplotlib"}
    assert origin["versions"]["numpy"] == np.__version__
    text = json.dumps(origin, allow_nan=False)
    assert str(paths.ROOT) not in text and "/" not in text
