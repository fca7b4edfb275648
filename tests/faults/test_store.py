"""Faults of the store and of single files, in processes forked from this one: kills at any moment,
full disks, damage."""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from types import SimpleNamespace

import pytest

from lib import __main__ as cli
from lib import corpus, figures, files, paths, reproduce, runs, studies
from lib.studies import extrapolation
from tests.faults import trees

STEPS = 1000  # of each of two trainings: some ten seconds on one core, five checkpoints each


@pytest.fixture(autouse=True)
def small(store, tmp_path, monkeypatch):
    """A build of the test's own, and the main figure with two little models."""
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setattr(studies, "STUDIES", ("extrapolation",))
    monkeypatch.setitem(extrapolation.LENGTHS, extrapolation.L, (64, 128))
    monkeypatch.setitem(
        extrapolation.PROFILES,
        "quick",
        {
            "encodings": ("rope", "alibi"),
            "at_2L": (),
            "seeds": (0,),
            "training": trees.TRAINING,
            "measuring": {"tokens": 1024, "sliding_tokens": 128},
        },
    )
    return tmp_path


def with_steps(monkeypatch, steps: int):
    """Trainings of so many steps, one checkpoint for each 200."""
    profile = extrapolation.PROFILES["quick"]
    training = profile["training"] | {"tokens": profile["training"]["batch_tokens"] * steps}
    monkeypatch.setitem(extrapolation.PROFILES, "quick", profile | {"training": training})


def study(place=None):
    """The study from beginning to end, one job after another, in this process."""
    outcomes = [runs.do(job) for job in extrapolation.jobs("quick")]
    reproduce.write("extrapolation", "quick", outcomes, place or paths.results("quick"))


def forked(function, limit: int | None = None) -> SimpleNamespace:
    """The function in a process of its own, as a command of `python -m lib`; no file that it writes
    may grow past `limit` bytes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return SimpleNamespace(pid=pid, pipe=reading)
    status = 99
    try:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.stdout = open(1, "w", encoding="utf-8")
        sys.stderr = open(2, "w", encoding="utf-8")
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        cli._readme = lambda options: function()
        status = cli.main(["readme"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(child) -> tuple[int, str]:
    """(exit status, what was said) of a forked process; the status is negative where a signal
    ended it."""
    with open(child.pipe, encoding="utf-8") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]), said


def done(function, limit: int | None = None) -> tuple[int, str]:
    return ended(forked(function, limit))


def measurements(place=None) -> bytes:
    return ((place or paths.results("quick")) / "extrapolation.csv").read_bytes()


def emptied():
    for folder in (paths.CACHE / "runs", paths.BUILD):
        shutil.rmtree(folder, ignore_errors=True)


def temporary(folder) -> list:
    """What is left of files that were being written."""
    return [path for path in folder.rglob(".*-*") if path.is_file()]


# ---- kill -9 -------------------------------------------------------------------------------------


def test_a_study_killed_at_twenty_moments_measures_the_same_bytes(monkeypatch):
    with_steps(monkeypatch, STEPS)
    began = time.monotonic()
    assert done(study) == (0, "")
    seconds, expected = time.monotonic() - began, measurements()
    emptied()
    moments, killed = random.Random(20), 0
    while killed < 20:
        child = forked(study)
        time.sleep(moments.uniform(0, 0.9 * seconds))
        os.kill(child.pid, signal.SIGKILL)
        killed += ended(child)[0] == -signal.SIGKILL  # else it had come to its end before
        assert trees.half_written(paths.CACHE / "runs") == []
        if (paths.results("quick") / files.SUMS).exists():
            assert done(study) == (0, "") and measurements() == expected
            emptied()  # and from the beginning
    assert done(study) == (0, "") and measurements() == expected
    assert temporary(paths.CACHE / "runs") == []  # what the killed ones left is swept away


def test_two_builds_over_one_store_are_both_right(monkeypatch, small):
    with_steps(monkeypatch, 250)
    places = [small / "one", small / "two"]
    children = [forked(lambda place=place: study(place)) for place in places]
    assert [ended(child) for child in children] == [(0, ""), (0, "")]
    assert measurements(places[0]) == measurements(places[1])
    emptied()
    assert done(study) == (0, "") and measurements() == measurements(places[0])


# ---- no space ------------------------------------------------------------------------------------


def job():
    return extrapolation.jobs("quick")[0]


def training_folder():
    return runs.folder(job().training)


# What is written → (its name, the folder, steps of the training, bytes that there is room for, what
# goes before, what fails).
WRITING = {
    "a checkpoint": (
        "checkpoint.safetensors", training_folder, 250, 16_384,
        lambda: None, lambda: runs.do(job()),
    ),
    "a model": (
        "model.safetensors", training_folder, 100, 16_384,
        lambda: None, lambda: runs.do(job()),
    ),
    "a result": (
        "extrapolation.csv", lambda: paths.results("quick"), 100, 0,
        study, study,
    ),
    "a figure": (
        ".png", lambda: figures.folder("quick"), 100, 8_192,
        study, lambda: reproduce.draw_study("extrapolation", "quick"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["a full disk", "a limit on files"])
@pytest.mark.parametrize("what", WRITING)
def test_no_space_for(what, kind, monkeypatch):
    name, folder, steps, room, before, writes = WRITING[what]
    with_steps(monkeypatch, steps)
    assert done(before) == (0, "")
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    held = contents(place)
    with filled(place, room) if kind == "a full disk" else contextlib.nullcontext():
        status, said = done(writes, limit=room if kind == "a limit on files" else None)
        assert temporary(place) == []
    line = trees.one_sentence(said)
    assert status == 2 and "Nothing is half-written" in line and f"{name}. Nothing" in line
    assert ("No space left on device" if kind == "a full disk" else "File too large") in line
    assert trees.half_written(paths.CACHE / "runs") == []
    now = contents(place)
    assert {path: now[path] for path in held} == held  # what was there before is as it was
    # And with room again, all is right.
    assert done(study) == (0, "")
    found = measurements()
    assert done(lambda: reproduce.draw_study("extrapolation", "quick")) == (0, "")
    emptied()
    assert done(study) == (0, "") and measurements() == found


def contents(folder) -> dict:
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@contextlib.contextmanager
def filled(folder, room: int):
    """A little file system over the folder, with so many bytes left in it."""
    size = max(room, resource.getpagesize())
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a test may not mount here; the limit on files stands in for it")
    try:
        if not room:
            (folder / "filler").write_bytes(b"x" * size)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# ---- damage --------------------------------------------------------------------------------------

DAMAGE = {
    "cut": lambda raw: raw[: len(raw) // 2],
    "empty": lambda raw: b"",
    "one bit": lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1])
    + raw[len(raw) // 2 + 1 :],
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_of_the_store_is_made_anew_when_it_is_damaged(damage, monkeypatch, small):
    with_steps(monkeypatch, 60)
    assert done(study) == (0, "")
    expected = measurements()
    for path in sorted(training_folder().iterdir()):
        raw = path.read_bytes()
        path.write_bytes(DAMAGE[damage](raw))
        again = runs.do(job())
        why = again.trained + again.measured
        assert "damaged" in why or path.name == "started.json", (path.name, why)
        assert done(study) == (0, "") and measurements() == expected
    assert runs.do(job()).measured.startswith("used again")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_corpus_in_the_store_is_made_anew(damage, small, caplog):
    known, copied = corpus.load().hash, small / "copied"
    shutil.copytree(paths.CACHE / "corpus", copied)  # with those of other versions, it may be
    whole = contents(copied)
    for path, raw in whole.items():
        path.write_bytes(DAMAGE[damage](raw))
    assert corpus.cached(corpus.source(), copied).hash == known
    assert "is damaged" in caplog.text
    assert sum(contents(copied)[path] == raw for path, raw in whole.items()) == 1


RESULTS = ("extrapolation.csv", "extrapolation_provenance.json", files.SUMS)


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("damage", [*DAMAGE, "gone"])
def test_a_damaged_result_is_one_sentence_and_the_next_build_is_right(name, damage, monkeypatch):
    with_steps(monkeypatch, 60)
    assert done(study) == (0, "")
    expected, path = measurements(), paths.results("quick") / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    status, said = done(lambda: reproduce.redraw("quick"))
    assert status == 2 and trees.one_sentence(said)
    assert done(study) == (0, "") and measurements() == expected
    assert done(lambda: reproduce.redraw("quick")) == (0, "")


def test_no_damaged_result_is_promoted(monkeypatch, small):
    monkeypatch.setattr(paths, "REFERENCE", small / "reference")
    monkeypatch.setattr(paths, "ROOT", small)
    built = paths.results("default")
    files.write_text("id,verdict\nA-1,holds\n", built / "claims.csv")
    files.write_text("a,b\n1,2\n", built / "extrapolation.csv")
    files.enlist(built / "claims.csv", built / "extrapolation.csv")
    (built / "extrapolation.csv").write_text("a,b\n1,3\n", encoding="utf-8")
    status, said = done(reproduce.accept)
    assert status == 2 and "extrapolation.csv is not what" in trees.one_sentence(said)
    assert not (small / "reference" / "claims.csv").exists()
