"""Executing notebooks, and what every committed notebook must satisfy."""

import base64
import copy
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib import notebooks, paths

COMMITTED = sorted(paths.NOTEBOOKS.glob("[!.]*.ipynb"))
DERIVATIONS = ("03", "04", "05", "06", "07", "08", "09")  # each of at most 30 cells


# ---- the committed ones --------------------------------------------------------------------------


@pytest.mark.skipif(not paths.NOTEBOOKS.exists(), reason="there are no notebooks yet")
def test_there_are_notebooks_to_check():
    assert COMMITTED


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_links_between_notebooks_and_to_files_lead_somewhere(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", prose)
    assert [link for link in links if not (paths.NOTEBOOKS / link).exists()] == []


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_notebook_is_clean(path):
    assert notebooks.problems(path, cells=30 if path.stem[:2] in DERIVATIONS else None) == []


# ---- the checks ----------------------------------------------------------------------------------

PICTURE = base64.b64encode(b"a picture").decode()


def clean():
    """A small notebook without a fault, as if executed."""
    figure = new_output("display_data", {"image/png": PICTURE, "text/plain": "<Figure>"})
    cells = [
        new_markdown_cell("# A title\n\nThe question.", id="title"),
        new_code_cell('PROFILE = "reference"\nSEED = -1', id="parameters", execution_count=1),
        new_markdown_cell("## Picture\nWatch the slope of $F:\\mathbb{R}\\to\\mathbb{R}$.", id="w"),
        new_code_cell("draw()", id="draw", execution_count=2, outputs=[figure]),
        new_code_cell(
            "print('see https://example.org/home/tmp/x')",
            id="say",
            execution_count=3,
            outputs=[
                new_output("stream", name="stdout", text="see https://example.org/home/tmp/x")
            ],
        ),
    ]
    cells[1].metadata["tags"] = ["parameters"]
    notebook = new_notebook(cells=cells, metadata=copy.deepcopy(notebooks.METADATA))
    notebook.nbformat_minor = 5
    return notebook


def written(notebook, path):
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    return path


def test_a_clean_notebook_has_no_problems(tmp_path):
    assert notebooks.problems(written(clean(), tmp_path / "a.ipynb"), cells=5) == []


def set_(attribute, value, cell=3):
    def change(notebook):
        notebook.cells[cell][attribute] = value

    return change


def output(*arguments, **named):
    return set_("outputs", [new_output(*arguments, **named)], cell=4)


def no_prose_before_the_figure(notebook):
    notebook.cells[0].source = "# A title"
    notebook.cells[2].source = "## Picture"


def a_second_figure_at_once(notebook):
    notebook.cells[4].outputs = notebook.cells[3].outputs


def two_parameter_cells(notebook):
    notebook.cells[3].metadata["tags"] = ["parameters"]


def the_python_release(notebook):
    notebook.metadata["language_info"]["version"] = "3.11.7"


def without_ids(notebook):
    notebook.nbformat_minor = 4
    for cell in notebook.cells:
        del cell["id"]


LARGE = notebooks.LARGEST_PICTURE + 1_000
BIG = base64.b64encode(os.urandom(LARGE)).decode()
FAULTS = {
    "run twice": (set_("execution_count", 4), "in order: 1, 4, 3"),
    "not run": (set_("execution_count", None), "in order: 1, never, 3"),
    "an error": (
        output("error", ename="KeyError", evalue="'a'"),
        "cell 4: it failed with KeyError",
    ),
    "stderr": (output("stream", name="stderr", text="careful\n"), "wrote to stderr: careful"),
    "a long cell": (set_("source", "a\n" * 16), "cell 3: it has 16 lines, more than 15"),
    "a semicolon": (set_("source", "draw();\n"), "cell 3: it ends in `;`"),
    "an empty cell": (set_("source", " \n"), "cell 3: it is empty"),
    "a home": (output("stream", name="stdout", text="in /home/me/x.py"), "machine: /home/me/x.py"),
    "a path in HTML": (
        output("display_data", {"text/html": "<a href='/Users/me/x'>"}),
        "folder of one machine: /Users/me/x",
    ),
    "a path in prose": (set_("source", "See `/tmp/x`.", cell=2), "machine: /tmp/x"),
    "a path in code": (set_("source", 'open("/root/x")'), "machine: /root/x"),
    "a Windows path": (set_("source", r'open(r"C:\Users\me")'), r"machine: C:\Users\me"),
    "an id twice": (set_("id", "draw", cell=4), "2 cells have the id draw"),
    "no ids": (without_ids, "5 cells have the id None"),
    "no title": (set_("source", "Text first", cell=0), "first cell is not a title"),
    "no parameters": (set_("metadata", {}, cell=1), "one cell tagged `parameters`, and has 0"),
    "two parameters": (two_parameter_cells, "one cell tagged `parameters`, and has 2"),
    "another profile": (
        set_("source", 'PROFILE = "quick"', cell=1),
        'must set PROFILE = "reference"',
    ),
    "a derived value": (
        set_("source", 'PROFILE = "reference"\nplace = results(PROFILE)', cell=1),
        "may only assign constants",
    ),
    "a heading alone": (no_prose_before_the_figure, "cell 3: no words before its figure"),
    "two figures": (a_second_figure_at_once, "cell 4: no words before its figure"),
    "a large figure": (output("display_data", {"image/png": BIG}), f"its figure has {LARGE} bytes"),
    "a large file": (output("stream", name="stdout", text="a" * 300_000), "more than 300000"),
    "timings": (set_("metadata", {"execution": {}}), "cell 3: its metadata is not normalised"),
    "a release": (the_python_release, "its metadata is not normalised: execute it"),
    "no notebook": (set_("cell_type", "poem"), "no valid notebook"),
}


@pytest.mark.filterwarnings("ignore::nbformat.warnings.DuplicateCellId")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_named(fault, tmp_path):
    change, sentence = FAULTS[fault]
    notebook = clean()
    change(notebook)
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    found = notebooks.problems(path)
    assert any(sentence in problem for problem in found), found


def test_too_many_cells_are_a_problem_where_a_number_is_given(tmp_path):
    path = written(clean(), tmp_path / "a.ipynb")
    assert notebooks.problems(path, cells=4) == ["it has 5 cells, more than 4"]


def test_a_broken_file_is_a_problem(tmp_path):
    (tmp_path / "a.ipynb").write_text('{"cells": [')
    assert "no valid notebook" in notebooks.problems(tmp_path / "a.ipynb")[0]


# ---- executing -----------------------------------------------------------------------------------


def notebook(*sources, parameters='PROFILE = "reference"'):
    cells = [new_code_cell(parameters, id="parameters"), *map(new_code_cell, sources)]
    cells[0].metadata["tags"] = ["parameters"]
    for at, cell in enumerate(cells):
        cell.id = f"cell-{at}"
    return new_notebook(cells=cells, metadata=copy.deepcopy(notebooks.METADATA))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    paths.NOTEBOOKS.mkdir()
    return tmp_path


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def printed(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(o.get("text", "") for cell in cells for o in cell.get("outputs", []))


DRAW = """
from lib import figures
figure, (ax,) = figures.canvas()
line = ax.plot([1, 2])
"""


BAD = {
    "2_bad": ("x = 1", "int('seven')", "print('never')"),
    "3_exit": ("import sys; sys.exit()", "print('never')"),
    "4_dead": ("import os; os._exit(3)",),
}


def test_a_profile_is_executed_and_failures_are_named(folders, capsys, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")  # as on many servers; figures are shown all the same
    good = notebook("import os; print(PROFILE, os.path.basename(os.getcwd()))", DRAW)
    written(good, paths.NOTEBOOKS / "1_good.ipynb")
    for name, cells in BAD.items():
        written(notebook(*cells), paths.NOTEBOOKS / f"{name}.ipynb")
    before = {path: path.read_bytes() for path in paths.NOTEBOOKS.iterdir()}
    place = paths.BUILD / "quick" / "notebooks"
    place.mkdir(parents=True)
    for name in ("1_good.failed.ipynb", "2_bad.ipynb", "9_other.ipynb"):
        (place / name).write_text("of an earlier run")
    with pytest.raises(RuntimeError) as failure:
        notebooks.execute("quick", ["1_good", *BAD])
    message = str(failure.value)
    assert message.startswith("2_bad.ipynb failed in cell [4] (`int('seven')`): ValueError: inv")
    assert message.endswith("2_bad.failed.ipynb (2 more failed).") and "\n" not in message
    failed = [f"{name}.failed.ipynb" for name in BAD]
    assert files(place) == ["1_good.ipynb", *failed, "9_other.ipynb"]
    assert printed(place / "1_good.ipynb") == "quick notebooks\n"
    (shown,) = nbformat.read(place / "1_good.ipynb", as_version=4).cells[-1].outputs
    picture = base64.b64decode(shown.data["image/png"])
    assert picture.startswith(b"\x89PNG") and picture[25] == 3  # a palette: our own small picture
    lines = sorted(capsys.readouterr().out.splitlines())
    assert re.fullmatch(r"1_good: \d+ s", lines[0])
    assert re.fullmatch(r"2_bad: failed in cell \[4\] .*ValueError: .*, \d+ s", lines[1])
    assert re.fullmatch(r"3_exit: failed: .*it ended early: .* 3, never, \d+ s", lines[2])
    assert re.fullmatch(r"4_dead: failed: DeadKernelError: Kernel died, \d+ s", lines[3])
    assert {path: path.read_bytes() for path in paths.NOTEBOOKS.iterdir()} == before


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("profile = 'reference'", 'must set PROFILE = "reference"'),
        ("PROFILE = 'reference'\nL = max(1, 2)", "may only assign constants"),
    ],
)
def test_bad_parameters_are_refused_before_anything_runs(folders, parameters, sentence):
    written(notebook("1"), paths.NOTEBOOKS / "1_good.ipynb")
    written(notebook("1", parameters=parameters), paths.NOTEBOOKS / "2_bad.ipynb")
    with pytest.raises(ValueError, match=f"2_bad.ipynb: .*{sentence}"):
        notebooks.execute("quick")
    assert not paths.BUILD.exists()


def test_what_is_not_there_is_named(folders):
    with pytest.raises(ValueError, match="no notebook in"):
        notebooks.execute("quick")
    written(notebook("1"), paths.NOTEBOOKS / "1_good.ipynb")
    with pytest.raises(ValueError, match="no notebook 3_mine in .*: 1_good"):
        notebooks.refresh(["3_mine"])
    for profile in ("fast", "reference"):
        with pytest.raises(ValueError, match=f"quick, default, full, not '{profile}'"):
            notebooks.execute(profile)


RUNNER = """
import sys
from pathlib import Path
from lib import notebooks, paths
paths.NOTEBOOKS, paths.BUILD = Path(sys.argv[1]) / "notebooks", Path(sys.argv[1]) / "build"
try:
    notebooks.execute("quick")
except KeyboardInterrupt:
    sys.exit(130)
"""
SLEEP = """
import os, time
open(f"pid{os.getpid()}", "w").close()
time.sleep(600)
"""


def waited_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:  # a zombie has ended, too
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:  # no /proc on this system
        return True
    except ProcessLookupError:
        return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_killed_run_leaves_no_notebook_and_no_kernel(folders, how):
    for name in ("1", "2", "3"):
        written(notebook("print('half')", SLEEP), paths.NOTEBOOKS / f"{name}.ipynb")
    runner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RUNNER), str(folders)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # Ctrl-C reaches this one alone, even where this test itself ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        start_new_session=True,
    )  # fmt: skip
    started = lambda: [int(p.name[3:]) for p in paths.NOTEBOOKS.glob("pid*")]  # noqa: E731
    try:
        assert waited_for(lambda: len(started()) == notebooks.TOGETHER)
        runner.send_signal(how)
        said = runner.communicate(timeout=300)[0]
    finally:
        runner.kill()
    assert runner.returncode == (130 if how == signal.SIGINT else -9), said
    assert "Traceback" not in said
    assert waited_for(lambda: not any(map(alive, started())))
    assert waited_for(lambda: not files(paths.BUILD)), files(paths.BUILD)
    assert len(started()) == notebooks.TOGETHER  # the third never began


# ---- in place ------------------------------------------------------------------------------------


def test_refreshing_is_all_or_nothing_and_leaves_nothing_that_changes(folders):
    one, two = paths.NOTEBOOKS / "1.ipynb", paths.NOTEBOOKS / "2.ipynb"
    first = notebook("print(PROFILE)")
    first.cells[1].metadata["collapsed"] = True
    first.metadata["language_info"]["version"] = "3.9.1"
    written(first, one)
    written(notebook("1 / 0"), two)
    before = one.read_bytes(), two.read_bytes()
    with pytest.raises(RuntimeError, match=r"2.ipynb failed in cell \[2\] .*ZeroDivisionError"):
        notebooks.refresh()
    assert (one.read_bytes(), two.read_bytes()) == before

    written(notebook("print(1 / 2)"), two)
    notebooks.refresh()
    assert (printed(one), printed(two)) == ("reference\n", "0.5\n")
    assert files(folders) == ["notebooks/1.ipynb", "notebooks/2.ipynb"]
    done = nbformat.read(one, as_version=4)
    assert [cell.id for cell in done.cells] == ["cell-0", "cell-1"]
    assert [dict(cell.metadata) for cell in done.cells] == [{"tags": ["parameters"]}, {}]
    assert done.metadata == notebooks.METADATA
    assert notebooks.problems(one) == ["its first cell is not a title (`# …`)"]
    after = one.read_bytes()
    notebooks.refresh(["1"])
    assert one.read_bytes() == after
