"""Small tasks of which every instance has one right answer, and can be made at any length.

An instance is a row of tokens, and the model is asked for the tokens after SEP:

    BOS  x_1 … x_m  SEP  y_1 … y_k  EOS  (PAD …)

EOS is part of the answer: a model that does not know where to stop has not solved the instance.
Padding stands on the right, where under a causal mask nothing sees it.

What is trained on and what is tested on never meet, by construction: a hash of the input says to
which side an instance belongs (`held_out`), and each side keeps only its own.
"""

from typing import NamedTuple

import numpy as np

from lib.encodings.base import check_whole
from lib.tasks.generators import (
    BOS,
    EOS,
    FIRST,
    PAD,
    SEP,
    TASKS,
    Task,
)

__all__ = [
    "BOS",
    "EOS",
    "FIRST",
    "PAD",
    "SEP",
    "TASKS",
    "Batch",
    "Task",
    "drawn_positions",
    "held_out",
    "task",
    "test_set",
    "training_batch",
]

HELD_OUT = 8  # one input of so many is kept for testing
TRIES = 100  # rounds of drawing before a length is said to have no instance
TEST_SEED = 2**31 - 1  # draws every test set; training seeds are small


class Batch(NamedTuple):
    """Instances: `tokens` (B, T) int64; `scored` (B, T), True on the answer and its EOS."""

    tokens: np.ndarray
    scored: np.ndarray


def task(name: str) -> Task:
    """The task of this name; raises ValueError for one that is not there."""
    if name not in TASKS:
        raise ValueError(f"No task is named {name!r}: choose one of {', '.join(TASKS)}.")
    return TASKS[name]


def held_out(inputs) -> np.ndarray:
    """Which inputs (B, m) of whole numbers belong to the test: bools (B,), about one in HELD_OUT.

    A hash of the row alone decides (FNV-1a over its entries, then the finish of splitmix64, whose
    every output bit depends on every input bit), so that no two draws can disagree.
    """
    h = np.full(len(inputs), 0xCBF29CE484222325, dtype=np.uint64)
    for column in np.asarray(inputs).T.astype(np.uint64):
        h = (h ^ column) * np.uint64(0x100000001B3)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return (h ^ (h >> np.uint64(31))) % np.uint64(HELD_OUT) == 0


def training_batch(task: Task, seed: int, step: int, size: int, longest: int) -> Batch:
    """`size` instances of the lengths n = 1 … longest, none of them held out; n comes with a
    probability proportional to n, since long instances are harder and there are more of them.

    A function of the arguments alone.
    """
    check_whole(size=size, longest=longest)
    rng = np.random.default_rng([seed, step])
    weights = np.arange(1, longest + 1)
    counts = rng.multinomial(size, weights / weights.sum())
    drawn = [_draw(task, rng, n + 1, count, False) for n, count in enumerate(counts) if count]
    return _batch(drawn)


def test_set(task: Task, length: int, size: int) -> Batch:
    """At most `size` distinct held-out instances of one length, the same whoever asks.

    Fewer where that length has fewer; which ones is a function of the arguments alone.
    """
    check_whole(size=size)
    rng = np.random.default_rng([TEST_SEED, length])
    inputs, answers = _draw(task, rng, length, 4 * size, True)
    first = np.sort(np.unique(inputs, axis=0, return_index=True)[1])[:size]
    return _batch([(inputs[first], answers[first])])


def drawn_positions(seed: int, step: int, size: int, length: int, room: int) -> np.ndarray:
    """For each of `size` rows, `length` of the positions 0 … room − 1, ascending, without
    replacement: (size, length). Ruoss et al. 2023 (arXiv 2305.16843), section 3.

    Raises ValueError when the room has fewer positions than that.
    """
    if length > room:
        raise ValueError(f"{length} tokens need as many positions, and the room has {room}.")
    order = np.random.default_rng([seed, step, 1]).random((size, room)).argsort(axis=1)
    return np.sort(order[:, :length], axis=1)


def _draw(task: Task, rng, length: int, size: int, test: bool):
    """(inputs (size, m), answers (size, k)) of one length and one side of the split."""
    check_whole(length=length)
    if task.longest is not None and length > task.longest:
        raise ValueError(f"{task.name} goes to length {task.longest}, not {length}.")
    parts, missing = [], size
    for _ in range(TRIES):
        inputs, answers = task.draw(rng, length, HELD_OUT * missing if test else 2 * missing)
        ours = np.flatnonzero(held_out(inputs) == test)[:missing]
        parts.append((inputs[ours], answers[ours]))
        missing -= len(ours)
        if not missing:
            return tuple(np.concatenate(side) for side in zip(*parts, strict=True))
    side = "test" if test else "training"
    raise ValueError(
        f"{task.name} at length {length} has no instance for {side}: choose a longer length."
    )


def _batch(drawn) -> Batch:
    """Inputs and answers of several lengths as rows of one length."""
    size = sum(len(inputs) for inputs, _ in drawn)
    T = max(inputs.shape[1] + answers.shape[1] for inputs, answers in drawn) + 3
    tokens = np.full((size, T), PAD)
    scored = np.zeros((size, T), dtype=bool)
    row = 0
    for inputs, answers in drawn:
        rows, row = slice(row, row + len(inputs)), row + len(inputs)
        m, k = inputs.shape[1], answers.shape[1]
        there = answers >= 0  # (B, k); an answer shorter than others ends in −1
        tokens[rows, 0], tokens[rows, m + 1] = BOS, SEP
        tokens[rows, 1 : m + 1] = FIRST + inputs
        tokens[rows, m + 2 : m + 2 + k] = np.where(there, FIRST + answers, PAD)
        ends = m + 2 + there.sum(1)  # (B,)
        tokens[np.arange(rows.start, rows.stop), ends] = EOS
        scored[rows] = (np.arange(T) >= m + 2) & (np.arange(T) <= ends[:, None])
    return Batch(tokens, scored)
