"""The files that say what to install agree with each other and with what is installed."""

import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lib.paths import ROOT

INPUTS = ("requirements.in", "requirements-peers.in")
LOCKS = ("requirements.lock", "requirements-peers.lock")
# Those of the pages and of Ray, which only the targets that need them install.
ALL_INPUTS = (*INPUTS, "requirements-book.in", "requirements-ray.in")
ALL_LOCKS = (*LOCKS, "requirements-book.lock", "requirements-ray.lock")


def pins(lines):
    """{canonical name: (version, requirement)}; every requirement must be pinned, and only once."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==" and "*" not in specifier.version, line
        name = canonicalize_name(requirement.name)
        assert name not in found, f"{name} is pinned twice"
        found[name] = (specifier.version, requirement)
    return found


def versions(lines):
    return {name: version for name, (version, _) in pins(lines).items()}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def requirements(name):
    """The requirements of an input or a lock: no comments, continuation lines joined."""
    text = re.sub(r"\\\n", " ", read(name))
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def locked(name):
    """The requirements of a lock without their hashes."""
    return [line.split("--hash")[0].strip() for line in requirements(name)]


TORCH = versions(requirements("requirements-torch.txt"))


@pytest.mark.parametrize(("source", "lock"), list(zip(ALL_INPUTS, ALL_LOCKS, strict=True)))
def test_a_lock_holds_what_its_input_names(source, lock):
    asked, got = versions(requirements(source)), versions(locked(lock))
    assert asked
    assert asked == {name: got.get(name) for name in asked}


@pytest.mark.parametrize("lock", ALL_LOCKS)
def test_every_locked_package_has_a_hash_and_nothing_else(lock):
    for line in requirements(lock):
        package, *hashes = line.split("--hash=")
        assert hashes, f"{package} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", one) for one in hashes), package


@pytest.mark.parametrize(
    "name", [*ALL_INPUTS, *ALL_LOCKS, "requirements-torch.txt", "environment.yml"]
)
def test_no_file_names_a_host_or_a_folder(name):
    assert not re.search(r"://|--(extra-)?index-url |--find-links |/home/|file:", read(name))


@pytest.mark.parametrize("name", [*ALL_INPUTS, *ALL_LOCKS])
def test_torch_and_what_only_some_of_its_builds_need_stay_out(name):
    for package in versions(locked(name)):
        assert package not in ("torch", "triton", "torchvision"), package
        assert not package.startswith(("nvidia", "cuda", "pytorch-triton")), package


def test_the_locks_agree_where_they_overlap():
    locks = [versions(locked(lock)) for lock in ALL_LOCKS]
    for one, other in itertools.combinations(locks, 2):
        shared = one.keys() & other.keys()
        assert shared
        assert {name: one[name] for name in shared} == {name: other[name] for name in shared}


def test_what_torch_itself_needs_is_locked():
    """Else pip's newest release would come with torch and differ from day to day."""
    lock = versions(locked("requirements.lock"))
    needed = [Requirement(line) for line in importlib.metadata.requires("torch")]
    for requirement in needed:
        name = canonicalize_name(requirement.name)
        if name.startswith(("nvidia", "cuda", "triton")):
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            assert lock[name] in requirement.specifier, requirement


def test_conda_users_get_the_same_versions():
    environment = yaml.safe_load(read("environment.yml"))
    python, pip, section = environment["dependencies"]
    assert pip == "pip"
    minimum = re.search(r'requires-python = ">=([\d.]+)"', read("pyproject.toml")).group(1)
    assert python == f"python={minimum}"
    *packages, repository = section["pip"]
    assert repository == "--editable ."
    asked = TORCH | versions(requirements(INPUTS[0])) | versions(requirements(INPUTS[1]))
    assert versions(packages) == asked


@pytest.mark.skipif(
    not os.path.samefile(sys.prefix, ROOT / ".venv") if (ROOT / ".venv").exists() else True,
    reason="these tests run in an environment that `make setup` did not make",
)
def test_what_is_installed_is_what_is_locked():
    expected = {}
    for lock in LOCKS:
        for name, (version, requirement) in pins(locked(lock)).items():
            if requirement.marker is None or requirement.marker.evaluate():
                expected[name] = version
    installed = {name: importlib.metadata.version(name) for name in expected}
    assert installed == expected
    # A build says what it is after a plus sign (2.13.0+cpu); the release is what counts.
    assert Version(importlib.metadata.version("torch")).public == TORCH["torch"]


@pytest.fixture
def checkout(tmp_path):
    """A copy of the set-up files in a folder with a space and a letter beyond ASCII."""
    folder = tmp_path / "positions et longueurs é"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements-torch.txt", *ALL_LOCKS):
        shutil.copy(ROOT / name, folder)
    return folder


def make(folder, *arguments):
    # The variables of a make that runs these tests must not reach this one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def fake_python(folder, script):
    path = folder / "fake python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"PYTHON={path}"


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@needs_make
def test_help_is_what_a_bare_make_shows_and_names_every_target(checkout):
    shown = make(checkout)
    assert shown.returncode == 0
    targets = re.search(r"^\.PHONY: (.*)$", read("Makefile"), re.MULTILINE).group(1).split()
    for target in targets:
        assert re.search(rf"^  make {target} +\S", shown.stdout, re.MULTILINE), target
    assert not (checkout / ".venv").exists()


@needs_make
def test_a_missing_python_is_one_sentence(checkout):
    done = make(checkout, "setup", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert done.stdout == (
        "There is no 'no-such-python' here: install Python 3.11 or newer, "
        "or name it with PYTHON=/path/to/python3.\n"
    )


@needs_make
def test_an_old_python_is_one_sentence(checkout):
    old = 'case "$1" in --version) echo Python 3.10.4;; *) exit 1;; esac'
    done = make(checkout, "test", fake_python(checkout, old))
    assert done.returncode != 0
    assert "is Python 3.10.4: Python 3.11 or newer is needed" in done.stdout
    assert done.stdout.count("\n") == 1


@needs_make
def test_a_failed_step_is_named_and_the_next_try_starts_over(checkout):
    broken = fake_python(checkout, 'case "$1" in -c) exit 0;; *) echo broken >&2; exit 1;; esac')
    for _ in range(2):
        done = make(checkout, "setup", broken)
        assert done.returncode != 0
        assert "Set-up failed at: a virtual environment in .venv." in done.stdout
        assert (checkout / ".venv" / "setup.log").read_text() == "broken\n"
        assert not (checkout / ".venv" / ".stamp").exists()
