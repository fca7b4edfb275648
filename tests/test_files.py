import errno
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from lib import files
from tests.refusing import refuses


def test_a_finished_block_leaves_one_whole_file(tmp_path):
    target = tmp_path / "a folder" / "größe.csv"
    with files.atomic(target) as temporary:
        assert temporary.parent == target.parent
        assert temporary.suffix == target.suffix
        temporary.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("failure", [ValueError, OSError, KeyboardInterrupt, SystemExit])
def test_a_failed_block_keeps_the_old_file_and_nothing_else(tmp_path, failure):
    target = tmp_path / "result.json"
    target.write_text("old")
    with pytest.raises(failure), files.atomic(target) as temporary:
        temporary.write_text("half")
        raise failure
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == [target.name]


def test_a_block_that_removes_its_file_fails_clearly(tmp_path):
    target = tmp_path / "result.csv"
    target.write_text("old")
    with pytest.raises(FileNotFoundError), files.atomic(target) as temporary:
        temporary.unlink()
    assert target.read_text() == "old"


def test_a_folder_in_the_way_raises_and_leaves_no_temporary(tmp_path):
    target = tmp_path / "result"
    target.mkdir()
    with pytest.raises(OSError):
        files.write_text("text", target)
    assert os.listdir(tmp_path) == [target.name]


def test_others_may_read_what_the_umask_lets_them(tmp_path):
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    plain.write_text("")
    files.write_text("", ours)
    assert ours.stat().st_mode == plain.stat().st_mode


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")))
def test_text_comes_back(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "text.txt"
    files.write_text(text, path)
    assert path.read_bytes() == text.encode("utf-8")


@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1),
    names=st.lists(st.text("ab ,\"'é", min_size=1), min_size=1),
)
def test_a_frame_comes_back_with_every_digit(tmp_path_factory, values, names):
    path = tmp_path_factory.getbasetemp() / "frame.csv"
    frame = pd.DataFrame([(name, value) for name in names for value in values])
    frame.columns = ["encoding", "value"]
    files.write_csv(frame, path)
    again = pd.read_csv(path, dtype={"encoding": str})
    pd.testing.assert_frame_equal(again, frame, check_exact=True)


@given(value=st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans()))
def test_json_comes_back_and_does_not_depend_on_the_order_of_keys(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "value.json"
    files.write_json(value, path)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == value
    files.write_json(dict(reversed(value.items())), path)
    assert path.read_text(encoding="utf-8") == text


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError):
        files.write_json({"loss": float("nan")}, tmp_path / "value.json")
    assert os.listdir(tmp_path) == []


# ---- telling whole files from damaged ones -------------------------------------------------------


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(value=st.dictionaries(st.text(), NUMBERS) | st.dictionaries(st.integers(0, 20), NUMBERS))
def test_a_sealed_file_comes_back(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "sealed.json"
    files.write_sealed({"rows": [value]}, path)
    assert files.read_sealed(path) == json.loads(json.dumps({"rows": [value]}))


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "{}", '{"loss": 1.5}', '{"loss": 2.5, "sha256": "DIGEST"}']
)
def test_a_sealed_file_that_was_damaged_or_edited_is_refused(tmp_path, text):
    path = tmp_path / "sealed.json"
    files.write_sealed({"loss": 1.5}, path)
    path.write_text(text.replace("DIGEST", json.loads(path.read_text())["sha256"]))
    with pytest.raises(ValueError):
        files.read_sealed(path)


def test_listed_results_are_told_from_damaged_ones(tmp_path):
    whole, other = tmp_path / "größe a.csv", tmp_path / "other.csv"
    whole.write_text("x\n1\n2\n")
    other.write_text("y\n")
    files.enlist(whole)
    refuses(lambda: files.verified(other), "other.csv", "SHA256SUMS")  # not listed
    files.enlist(other)
    assert files.verified(whole) == whole and files.verified(other) == other
    for damage in ("x\n1\n", "x\n1\n3\n", ""):
        whole.write_text(damage)
        refuses(lambda: files.verified(whole), "größe a.csv", "SHA256SUMS")
    if shutil.which("sha256sum"):
        whole.write_text("x\n1\n2\n")
        subprocess.run(["sha256sum", "-c", "--quiet", files.SUMS], cwd=tmp_path, check=True)


def test_what_a_killed_process_left_is_swept_away_and_what_a_living_one_writes_is_not(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    target = tmp_path / "a[1].csv"
    left = [
        tmp_path / f".a[1]-{platform.node()}-{pid}-x.csv" for pid in (dead.pid, os.getpid(), "y")
    ]
    for path in left:
        path.write_text("half")
    files.write_text("whole", target)
    assert sorted(tmp_path.iterdir()) == sorted([target, *left[1:]])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_named_by_the_file_that_was_to_be(tmp_path):
    target = tmp_path / "result.csv"
    with pytest.raises(OSError) as error, files.atomic(target):
        with open("/dev/full", "w") as full:
            full.write("x")
    assert error.value.errno == errno.ENOSPC and error.value.filename == str(target)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_under_a_library_in_rust_is_an_error_of_the_system(tmp_path):
    target = tmp_path / "model.safetensors"
    with pytest.raises(OSError) as error, files.atomic(target):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    assert error.value.errno == errno.ENOSPC and error.value.filename == str(target)
    assert os.listdir(tmp_path) == []
    with pytest.raises(SafetensorError), files.atomic(target):  # another error stays what it is
        raise SafetensorError("invalid header")
