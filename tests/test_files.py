import json
import os

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import files


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
