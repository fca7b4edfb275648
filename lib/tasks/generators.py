"""Eight tasks, each a function (rng, n, size) → (inputs (size, m), answers (size, k)).

n is the length of an instance: what is n items long is said at each task. Symbols are whole numbers
from 0; an answer that is shorter than others of its batch ends in −1.

Copying, reversing, addition, sorting and parity are among the ten tasks of Kazemnejad et al. 2023
(arXiv 2305.19466, section 4); selective copying is that of Gu and Dao 2023 (2312.00752, section
4.1.1), associative recall the one of Ba et al. 2016 (1610.06258), and brackets stand for code.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

PAD, BOS, SEP, EOS = range(4)
FIRST = 4  # the token of symbol 0


@dataclass(frozen=True)
class Task:
    """A task and its sizes.

    Args:
        draw: (rng, n, size) → (inputs, answers), as above.
        symbols: how many there are; the vocabulary has FIRST more.
        question: what is asked, in a few words.
        tokens: n → the most tokens of an instance, with BOS, SEP and EOS.
        longest: the largest n, where there is one.
    """

    name: str
    draw: Callable
    symbols: int
    question: str
    tokens: Callable[[int], int]
    longest: int | None = None

    @property
    def vocabulary(self) -> int:
        return FIRST + self.symbols


TASKS: dict[str, Task] = {}


def _register(symbols: int, question: str, tokens: Callable[[int], int], longest=None):
    def add(draw):
        name = draw.__name__
        TASKS[name] = Task(name, draw, symbols, question, tokens, longest)
        return draw

    return add


SYMBOLS = 8


@_register(SYMBOLS, "n symbols → the same", lambda n: 2 * n + 3)
def copy(rng, n: int, size: int):
    x = rng.integers(SYMBOLS, size=(size, n))
    return x, x


@_register(SYMBOLS, "n symbols → the same from the last to the first", lambda n: 2 * n + 3)
def reverse(rng, n: int, size: int):
    x = rng.integers(SYMBOLS, size=(size, n))
    return x, x[:, ::-1]


PLUS = 10


@_register(11, "two numbers of n digits, the last digit first → their sum", lambda n: 3 * n + 5)
def addition(rng, n: int, size: int):
    """Digits stand as one adds by hand, units first; the sum has n + 1 of them."""
    a, b = rng.integers(10, size=(2, size, n))
    digits, carry = np.empty((size, n + 1), dtype=np.int64), np.zeros(size, dtype=np.int64)
    for i in range(n):
        total = a[:, i] + b[:, i] + carry
        digits[:, i], carry = total % 10, total // 10
    digits[:, n] = carry
    return np.concatenate([a, np.full((size, 1), PLUS), b], axis=1), digits


@_register(SYMBOLS, "n symbols → the same in ascending order", lambda n: 2 * n + 3)
def sorting(rng, n: int, size: int):
    x = rng.integers(SYMBOLS, size=(size, n))
    return x, np.sort(x, axis=1)


@_register(2, "n bits → whether the ones are odd in number", lambda n: n + 4)
def parity(rng, n: int, size: int):
    x = rng.integers(2, size=(size, n))
    return x, x.sum(1, keepdims=True) % 2


BLANK = SYMBOLS


@_register(SYMBOLS + 1, "n places, half of them blank → the others", lambda n: 2 * n + 3)
def selective_copy(rng, n: int, size: int):
    """Each place is blank with probability ½."""
    x = rng.integers(SYMBOLS, size=(size, n))
    x[rng.random((size, n)) < 0.5] = BLANK
    order = np.argsort(x == BLANK, axis=1, kind="stable")  # the symbols first, in their order
    y = np.take_along_axis(x, order, axis=1)
    return x, np.where(y == BLANK, -1, y)


KEYS, VALUES = 40, 8


@_register(KEYS + VALUES, "n pairs of key and value, a key → its value", lambda n: 2 * n + 5, KEYS)
def associative_recall(rng, n: int, size: int):
    """The keys are symbols 0 … KEYS − 1, all different in an instance, the values come after."""
    keys = rng.random((size, KEYS)).argsort(axis=1)[:, :n]
    values = KEYS + rng.integers(VALUES, size=(size, n))
    pairs = np.stack([keys, values], axis=2).reshape(size, 2 * n)
    asked = rng.integers(n, size=(size, 1))
    query = np.take_along_axis(keys, asked, axis=1)
    return np.concatenate([pairs, query], axis=1), np.take_along_axis(values, asked, axis=1)


KINDS = 3


@_register(2 * KINDS, "the first n brackets of a code → those that close it", lambda n: 2 * n + 3)
def brackets(rng, n: int, size: int):
    """Symbols 0 … KINDS − 1 open, KINDS … 2·KINDS − 1 close. Where a bracket is open, the next
    opens or closes with probability ½."""
    x, stack = np.zeros((2, size, n), dtype=np.int64)
    depth, rows = np.zeros(size, dtype=np.int64), np.arange(size)
    for i in range(n):
        opens = (depth == 0) | (rng.random(size) < 0.5)
        kind = np.where(opens, rng.integers(KINDS, size=size), stack[rows, depth - 1])
        stack[rows[opens], depth[opens]] = kind[opens]
        x[:, i] = np.where(opens, kind, KINDS + kind)
        depth += np.where(opens, 1, -1)
    place = depth[:, None] - 1 - np.arange(n)  # from the top of the stack down
    y = KINDS + np.take_along_axis(stack, np.maximum(place, 0), axis=1)
    return x, np.where(place >= 0, y, -1)
