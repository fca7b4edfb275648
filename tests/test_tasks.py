"""The tasks: every answer is right, every draw repeatable, and no test instance is trained on."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from lib import tasks
from lib.tasks import BOS, EOS, FIRST, HELD_OUT, PAD, SEP, generators

NAMES = tuple(tasks.TASKS)
name = st.sampled_from(NAMES)
seed = st.integers(0, 2**20)
length = st.integers(1, 24)

# ---- the answers in plain Python, each written from what the task asks ---------------------------


def number(digits):
    return int("".join(map(str, reversed(digits))))


def added(x):
    plus = x.index(generators.PLUS)
    total = str(number(x[:plus]) + number(x[plus + 1 :])).zfill(plus + 1)
    return [int(digit) for digit in reversed(total)]


def recalled(x):
    *pairs, query = x
    return [dict(zip(pairs[::2], pairs[1::2], strict=True))[query]]


def closed(x):
    text = "".join("([{)]}"[symbol] for symbol in x)
    while any(pair in text for pair in ("()", "[]", "{}")):
        text = text.replace("()", "").replace("[]", "").replace("{}", "")
    assert not set(text) & set(")]}")  # nothing closes what is not open
    return ["([{".index(c) + 3 for c in reversed(text)]


ANSWERS = {
    "copy": list,
    "reverse": lambda x: x[::-1],
    "addition": added,
    "sorting": sorted,
    "parity": lambda x: [x.count(1) % 2],
    "selective_copy": lambda x: [s for s in x if s != generators.BLANK],
    "associative_recall": recalled,
    "brackets": closed,
}


def read(batch):
    """(input, answer) of every row, in symbols; the frame around them is checked."""
    for row, scored in zip(batch.tokens.tolist(), batch.scored.tolist(), strict=True):
        sep, end = row.index(SEP), row.index(EOS)
        assert row[0] == BOS and set(row[end + 1 :]) <= {PAD}
        assert [i for i, s in enumerate(scored) if s] == list(range(sep + 1, end + 1))
        inner = row[1:sep] + row[sep + 1 : end]
        assert all(token >= FIRST for token in inner)
        yield [t - FIRST for t in row[1:sep]], [t - FIRST for t in row[sep + 1 : end]]


def items(task, x):
    """How long an input is, by what the task counts."""
    n = {"addition": (len(x) - 1) // 2, "associative_recall": len(x) // 2}
    return n.get(task.name, len(x))


def test_the_eight_tasks_are_there():
    assert set(NAMES) == set(ANSWERS)


@given(name, seed, st.integers(0, 999), length)
@settings(max_examples=60)
def test_every_answer_is_the_one_of_plain_python(name, seed, step, longest):
    task = tasks.task(name)
    batch = tasks.training_batch(task, seed, step, 8, longest)
    assert batch.tokens.max() < task.vocabulary
    assert batch.tokens.shape[1] <= task.tokens(longest)
    for x, y in read(batch):
        assert y == ANSWERS[name](x)
        assert 1 <= items(task, x) <= longest


@given(name, st.integers(5, 24))
@settings(max_examples=30)
def test_a_test_set_is_distinct_right_and_of_one_length(name, length):
    task = tasks.task(name)
    rows = list(read(tasks.test_set(task, length, 12)))
    assert 0 < len(rows) <= 12 and len({tuple(x) for x, _ in rows}) == len(rows)
    assert all(y == ANSWERS[name](x) and items(task, x) == length for x, y in rows)
    long = task.tokens(length)
    assert max(len(x) + len(y) + 3 for x, y in rows) <= long


def test_the_longest_instance_has_as_many_tokens_as_its_task_says():
    for task in tasks.TASKS.values():
        drawn = tasks.training_batch(task, 0, 0, 400, 3)
        assert drawn.tokens.shape[1] == task.tokens(3)


# ---- the split -----------------------------------------------------------------------------------


@given(name, seed, length, st.data())
@settings(max_examples=40)
def test_no_test_instance_is_ever_drawn_for_training(name, seed, longest, data):
    """Whatever the seeds: the side is a property of the instance."""
    task = tasks.task(name)
    for x, _ in read(tasks.training_batch(task, seed, 0, 16, longest)):
        assert not tasks.held_out([x])[0]
    n = data.draw(st.integers(5, 24))
    assert all(tasks.held_out([x])[0] for x, _ in read(tasks.test_set(task, n, 16)))


def test_short_instances_are_split_too():
    """Every input of six bits, where training sees nearly all there are."""
    task = tasks.task("parity")
    tested = {tuple(x) for x, _ in read(tasks.test_set(task, 6, 999))}
    trained = {
        tuple(x)
        for step in range(60)
        for x, _ in read(tasks.training_batch(task, 0, step, 64, 6))
        if len(x) == 6
    }
    assert tested and not tested & trained and len(tested | trained) == 2**6


@given(st.integers(1, 30), st.integers(2, 50), seed)
@settings(max_examples=20)
def test_about_one_in_so_many_is_held_out(length, symbols, seed):
    rows = np.random.default_rng(seed).integers(symbols, size=(4000, length))
    rows = np.unique(rows, axis=0)
    share, n = tasks.held_out(rows).mean(), len(rows)
    assert abs(share - 1 / HELD_OUT) < 6 * (1 / HELD_OUT / n) ** 0.5


def test_the_split_stays_as_it_is():
    """A stored result rests on it, on any machine."""
    rows = np.arange(60).reshape(20, 3)
    assert np.flatnonzero(tasks.held_out(rows)).tolist() == PINNED


PINNED = [9, 12, 14, 15]


# ---- repeatable ----------------------------------------------------------------------------------


@given(name, seed, st.integers(0, 99), length)
@settings(max_examples=20)
def test_a_batch_is_a_function_of_its_arguments(name, seed, step, longest):
    task = tasks.task(name)
    first, again, other = (
        tasks.training_batch(task, s, step, 32, longest) for s in (seed, seed, seed + 1)
    )
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.scored, again.scored)
    if longest > 4:
        assert not np.array_equal(first.tokens, other.tokens)
        steps = tasks.training_batch(task, seed, step + 1, 32, longest)
        assert not np.array_equal(first.tokens, steps.tokens)


def test_a_test_set_is_the_same_whoever_asks():
    sets = [tasks.test_set(tasks.task("copy"), 12, 20).tokens for _ in range(2)]
    np.testing.assert_array_equal(*sets)


def test_lengths_come_in_proportion_to_themselves():
    batch = tasks.training_batch(tasks.task("copy"), 0, 0, 5500, 10)
    lengths = np.bincount([len(x) for x, _ in read(batch)], minlength=11)
    assert np.abs(lengths - 100 * np.arange(11)).max() < 150 and lengths[0] == 0 < lengths[1]


# ---- positions -----------------------------------------------------------------------------------


@given(seed, st.integers(1, 20), st.integers(0, 30))
@settings(max_examples=30)
def test_drawn_positions_ascend_within_the_room(seed, length, more):
    p = tasks.drawn_positions(seed, 0, 5, length, length + more)
    assert p.shape == (5, length) and p.min() >= 0 and p.max() < length + more
    assert (np.diff(p, axis=1) > 0).all()


def test_every_position_of_the_room_is_drawn_equally_often():
    p = tasks.drawn_positions(0, 0, 4000, 3, 8)
    share = np.bincount(p.ravel(), minlength=8) / p.size
    assert np.abs(share - 1 / 8).max() < 0.02


# ---- what is refused -----------------------------------------------------------------------------


def test_what_cannot_be_drawn_is_refused_in_one_sentence():
    copy, recall = tasks.task("copy"), tasks.task("associative_recall")
    refuses(lambda: tasks.task("chess"), "choose one of copy, reverse")
    refuses(lambda: tasks.test_set(recall, 41, 2), "goes to length 40, not 41")
    refuses(lambda: tasks.training_batch(copy, 0, 0, 4, 0), "longest must be a whole number")
    refuses(lambda: tasks.drawn_positions(0, 0, 1, 4, 3), "the room has 3")


def test_a_length_whose_instances_are_all_on_one_side_is_refused():
    def one(rng, n, size):
        return np.ones((2, size, 1), dtype=int)

    task = generators.Task("one", one, 2, "always the same", lambda n: 5)
    assert not tasks.held_out([[1]])[0]
    refuses(lambda: tasks.test_set(task, 1, 2), "one at length 1 has no instance for test")
