"""What the sliders say without their script; tests/browser moves them."""

import re

import pytest

from lib import sliders


def table(html):
    return re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td></tr>", html)


@pytest.mark.parametrize(
    ("slider", "said"),
    [
        (sliders.rope, ("pairs that never complete a turn within L = 64", "23 of 32")),
        (sliders.alibi, ("flattest head", "m = 0.0039, half-life 177.4 tokens")),
        (sliders.t5, ("the first distance in a bucket that training never reaches", "67")),
    ],
)
def test_the_table_stands_where_scripts_do_not_run(slider, said):
    visible = re.sub(r"<(script|style)>.*?</\1>", "", slider().data, flags=re.DOTALL)
    assert said in table(visible) and sliders.ASLEEP in visible


@pytest.mark.parametrize(
    ("method", "unseen"),
    # PI leaves nothing new; NTK-aware only spares the last pair; by parts spares all slow ones.
    [("none", 23), ("linear", 0), ("ntk", 22), ("ntk_by_parts", 0)],
)
def test_pairs_that_meet_new_angles(method, unseen):
    assert sliders.rope_values(10000, 64, 4, method)["unseen"].sum() == unseen


def test_nothing_is_new_within_the_training_length():
    for method in sliders.METHODS:
        assert not sliders.rope_values(10000, 64, 1, method)["unseen"].any()


def test_a_longest_distance_of_the_training_length_reaches_every_bucket():
    assert sliders.t5_values(32, 64, 64)["reached"].all()
    assert not sliders.t5_values(32, 128, 64)["reached"].all()


def test_an_output_is_the_same_every_time():
    assert sliders.rope().data == sliders.rope().data
