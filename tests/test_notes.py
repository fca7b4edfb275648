"""The one helper that backs a notebook's sentences."""

import numpy as np
import pytest

from lib.notes import seen


@pytest.mark.parametrize("true", [True, np.bool_(True), np.array(3.0) > 2])
def test_a_true_condition_prints_the_sentence(true, capsys):
    seen(true, "the curve rises.")
    assert capsys.readouterr().out == "seen: the curve rises.\n"


@pytest.mark.parametrize("false", [False, np.bool_(False), np.float64("nan") > 0])
def test_a_false_condition_says_so(false, capsys):
    seen(false, "the curve rises.")
    assert capsys.readouterr().out == "NOT SEEN in this build: the curve rises.\n"


def test_a_whole_array_is_refused():
    with pytest.raises(ValueError, match="one truth value, not 3"):
        seen(np.arange(3) > 1, "the curve rises.")
