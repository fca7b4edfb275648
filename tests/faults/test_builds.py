"""Faults of a whole build (`make quick`, cut down): each ends in the right result or in one clear
sentence, and nothing that is committed changes."""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.faults import trees


def is_right(built) -> None:
    """Another `make quick` ends well, with the results of an undisturbed build."""
    done = trees.make(built.place, "quick")
    assert done.returncode == 0, done.stdout
    assert trees.results(built.place) == built.results
    assert trees.git(built.place, "status", "--porcelain") == ""


def test_locale_c_a_strange_path_and_no_network_are_no_faults(built):
    assert {"build/quick/extrapolation.csv", "build/quick/figures/extrapolation.png"} <= set(
        built.results
    )
    assert trees.git(built.place, "status", "--porcelain") == ""
    assert "\N{REPLACEMENT CHARACTER}" not in built.said
    if not built.offline:
        pytest.skip("the network could not be taken away here; the rest was tried")


@pytest.mark.parametrize("target", ["setup", "reproduce", "full", "accept", "test", "lab", "gpu"])
def test_make_finds_its_way_in_a_strange_path(built, target):
    # The first line that would be done is the command itself: the environment is not made anew.
    said = subprocess.run(
        ["make", "-n", target], cwd=built.place, env=trees.environment(built.place, LC_ALL="C"),
        capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0 and "venv" not in said.stdout.replace(".venv/bin/python", "")


def test_where_even_names_must_be_ascii_it_is_one_sentence(built):
    """In locale C Python takes names for UTF-8, unless it is told not to: then they are none."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = trees.make(built.place, "quick", **plain)
    assert done.returncode != 0 and "PYTHONUTF8=1" in trees.one_sentence(done.stdout)
    assert trees.results(built.place) == built.results


def test_quick_killed_three_times_ends_as_if_it_had_not_been(built):
    trees.emptied(built.place)
    moments = random.Random(0)
    for _ in range(3):
        with trees.started(built.place, "quick") as build:
            trees.waited_for((built.place / "build" / "quick" / ".lock").exists)
            trees.waited_for(lambda: build.poll() is not None, moments.uniform(0.5, built.seconds))
            os.killpg(build.pid, signal.SIGKILL)
            build.wait()
        assert trees.half_written(built.place / "data" / "cache") == []
        assert trees.waited_for(lambda: not trees.processes(built.place))  # no kernel, no worker
    is_right(built)


def test_a_second_build_is_refused_and_the_first_is_right(built):
    with trees.started(built.place, "quick") as first:
        assert trees.waited_for(lambda: _is_locked(built.place))
        second = trees.make(built.place, "quick")
        assert second.returncode != 0
        assert "build/quick is under way" in trees.one_sentence(second.stdout)
        assert first.wait() == 0, first.said()
    assert trees.results(built.place) == built.results


def _is_locked(place) -> bool:
    """Whether a build holds its lock: looked up, since to try it would be to hold it."""
    lock = place / "build" / "quick" / ".lock"
    held = Path("/proc/locks").read_text(encoding="ascii")
    return lock.exists() and f":{lock.stat().st_ino} " in held


def test_a_worker_that_is_killed_is_one_sentence(built):
    trees.emptied(built.place)
    with trees.started(built.place, "quick") as build:

        def workers():
            found = trees.processes(built.place)
            return [pid for pid, line in found.items() if "spawn_main" in line]

        assert trees.waited_for(workers)
        os.kill(workers()[0], signal.SIGKILL)
        assert build.wait() != 0
        assert "A worker process died" in trees.one_sentence(build.said())
    assert trees.waited_for(lambda: not trees.processes(built.place))
    is_right(built)


SLEEPS = "import os, time\nopen(f'../build/kernel-{os.getpid()}', 'w').close()\ntime.sleep(600)"


def test_ctrl_c_while_a_notebook_runs_leaves_no_notebook_and_no_kernel(built):
    trees.put_notebook(built.place, SLEEPS)
    shutil.rmtree(built.place / "build" / "quick" / "notebooks", ignore_errors=True)
    try:
        with trees.started(built.place, "quick") as build:
            assert trees.waited_for(lambda: [*(built.place / "build").glob("kernel-*")])
            os.killpg(build.pid, signal.SIGINT)  # as a terminal does
            assert build.wait() != 0
            said = build.said()
        assert "Interrupted: the same command goes on from here." in said
        assert "Traceback" not in said
        assert trees.waited_for(lambda: not trees.processes(built.place))
        made = [*(built.place / "build" / "quick" / "notebooks").glob("*")]
        assert [path for path in made if not path.name.startswith(".")] == []
    finally:
        trees.git(built.place, "checkout", "-q", "notebooks")
        for left in (built.place / "build").glob("kernel-*"):
            left.unlink()
    is_right(built)


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && cd "$1" && shift && "$@"'


@pytest.mark.parametrize("target", ["quick", "reproduce"])
def test_a_tree_that_may_only_be_read_is_one_sentence(built, target):
    before = trees.results(built.place)
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(built.place)]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("a test may not mount here")
    done = trees.make(built.place, target, command)
    assert done.returncode != 0
    assert "Read-only file system" in trees.one_sentence(done.stdout)
    assert trees.results(built.place) == before
    assert trees.git(built.place, "status", "--porcelain") == ""
