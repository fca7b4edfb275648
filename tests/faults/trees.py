"""A checkout of its own to break: the tracked files copied, with the environment that runs the
tests, made small enough for a build of some seconds. The mechanism is that of every build: what is
cut down is the list of studies, the sizes, the claims, and the notebooks to one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from lib import corpus, files, notebooks, paths
from lib.training import read_tensors

# What a build of the copy trains: the studies that it has, and sizes of a tenth of quick's.
SMALL = """

# ---- made small for the tests of faults
STUDIES = ("extrapolation",)
"""
SMALLER = """

# ---- made small for the tests of faults
PROFILES["quick"] = {
    "encodings": ("rope", "alibi"),
    "at_2L": (),
    "seeds": (0,),
    "training": TRAINING,
    "measuring": {"tokens": 1024, "sliding_tokens": 128},
}
LENGTHS[L] = (64, 128)
"""
NO_CLAIMS = """

# ---- made small for the tests of faults
def decide(profile):
    import pandas as pd

    return pd.DataFrame({"id": ["A-1"], "verdict": ["holds"]})
"""
# Of a run: three checkpoints, one every 200 steps.
TRAINING = {"tokens": 256 * 650, "batch_tokens": 256}
TRAINING |= {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 24}


def copied(place: Path) -> Path:
    """A small copy of this checkout in `place`, under git, with one notebook."""
    listed = subprocess.run(
        ["git", "-C", str(paths.ROOT), "ls-files", "-z"], capture_output=True, check=True
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if not (paths.ROOT / name).exists() or name.endswith(".ipynb"):
            continue
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(paths.ROOT / name, place / name)
    for name, more in {
        "lib/studies/__init__.py": SMALL,
        "lib/studies/extrapolation.py": SMALLER.replace("TRAINING", repr(TRAINING)),
        "lib/claims/__init__.py": NO_CLAIMS,
    }.items():
        with open(place / name, "a", encoding="utf-8") as file:
            file.write(more)
    put_notebook(place, "print(PROFILE)")
    corpus.load()
    (place / "data" / "cache").mkdir(parents=True)
    shutil.copytree(paths.CACHE / "corpus", place / "data" / "cache" / "corpus")
    _environment(place / ".venv")
    subprocess.run(["git", "init", "-q", str(place)], check=True)
    git(place, "add", "-A")
    git(place, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "a copy")
    return place


def put_notebook(place: Path, source: str) -> None:
    cells = [new_code_cell('PROFILE = "reference"', id="a"), new_code_cell(source, id="b")]
    cells[0].metadata["tags"] = ["parameters"]
    notebook = new_notebook(cells=cells, metadata=dict(notebooks.METADATA))
    (place / "notebooks").mkdir(exist_ok=True)
    nbformat.write(notebook, place / "notebooks" / "01_small.ipynb")


def _environment(venv: Path) -> None:
    """This interpreter's environment under the name that make looks for."""
    (venv / "bin").mkdir(parents=True)
    here = Path(sys.prefix)
    (venv / "lib").symlink_to(here / "lib")
    if (here / "pyvenv.cfg").exists():
        shutil.copyfile(here / "pyvenv.cfg", venv / "pyvenv.cfg")
    (venv / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (venv / ".stamp").write_text(f"{venv.parent.resolve()}\n", encoding="utf-8")


def git(place: Path, *arguments: str) -> str:
    command = ["git", "-C", str(place), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def environment(place: Path, **more: str) -> dict[str, str]:
    """Of a command in a copy: its own store, two workers, and none of pytest's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COMPANION", "LC_"))}
    return {**kept, "PYTHONPATH": str(place), "WORKERS": "2", **more}


def make(place: Path, target: str, prefix=(), **more: str) -> subprocess.CompletedProcess:
    """`make TARGET` in a copy, to its end; output and errors together in `stdout`."""
    return subprocess.run(
        [*prefix, "make", "--no-print-directory", target],
        cwd=place, env=environment(place, **more), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
    )  # fmt: skip


@contextmanager
def started(place: Path, target: str, **more: str):
    """`make TARGET` under way, in a session of its own; at the end what is left of it is killed.

    Yields the process; its `said()` is what it and its children have written so far.
    """
    said = place.parent / "output.txt"
    with open(said, "w+b") as output:
        process = subprocess.Popen(
            ["make", "--no-print-directory", target],
            cwd=place, env=environment(place, **more), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            # Even where this test itself ignores it, as what runs in the background does.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        process.said = lambda: said.read_text(encoding="utf-8", errors="replace")
        try:
            yield process
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def waited_for(condition, seconds: float = 300) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


def results(place: Path) -> dict[str, bytes]:
    """What a build has measured and drawn, without timings and where it came from."""
    found = {}
    for path in sorted((place / "build" / "quick").rglob("*")):
        timed = path.name.endswith(("_timings.csv", ".json", ".ipynb", "SUMS", ".lock"))
        if path.is_file() and not timed:
            found[str(path.relative_to(place))] = path.read_bytes()
    return found


def one_sentence(said: str) -> str:
    """The error in what a command said: exactly one line of it, and no traceback."""
    assert "Traceback" not in said, said
    lines = [line for line in said.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, said
    return lines[0]


def emptied(place: Path) -> None:
    """Without what was built, trained and measured; the prepared corpus stays."""
    for folder in ("build", "data/cache/runs", "data/cache/measured"):
        shutil.rmtree(place / folder, ignore_errors=True)


def processes(place: Path) -> dict[int, str]:
    """pid → command line of the running processes that work in a copy."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            inside = Path(os.readlink(entry / "cwd")).is_relative_to(place)
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError):
            continue
        if inside and line:  # a zombie has no command line
            found[int(entry.name)] = line
    return found


def half_written(store: Path) -> list[str]:
    """The files of a store that are not whole, by their digests; temporary ones do not count."""
    wrong = []
    for path in store.rglob("*"):
        if not path.is_file() or path.name.startswith(".") or "corpus" in path.parts:
            continue
        try:
            if path.suffix == ".json":
                files.read_sealed(path)
            else:
                read_tensors(path, sealed=path.name.startswith("checkpoint"))
        except ValueError as damage:
            wrong.append(str(damage))
    return wrong
