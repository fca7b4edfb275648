"""How a property is written, and how it is run: cases are drawn, and the smallest failure found."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

import hypothesis
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

FAMILIES = {
    0: "use: gradients, compilation, saving, export",
    1: "phase computed in half precision",
    2: "hidden state",
    3: "decoding is not the full forward",
    4: "padding",
    5: "head counts and slices of heads",
    6: "sign and scale",
    7: "layouts of the pairs mixed up",
    8: "odd or tiny head sizes",
    9: "configuration ignored",
    10: "precedence in the frequency's exponent",
    11: "averaging",
}


class Measure(NamedTuple):
    """How far off a case was, and how far is allowed; more is a failure, and so is NaN."""

    error: float
    tolerance: float

    @property
    def failed(self) -> bool:
        return not self.error <= self.tolerance

    @property
    def excess(self) -> float:
        """The error in units of the tolerance."""
        return math.inf if math.isnan(self.error) else self.error / max(self.tolerance, 1e-300)


def worst(measures) -> Measure:
    return max(measures, key=lambda measure: measure.excess)


class NotApplicable(Exception):
    """Raised by a property, or by a subject, for a case of which nothing is claimed; it says why.

    A property does not apply where no case does.
    """


@dataclass(frozen=True)
class Property:
    """A function of a subject and of drawn arguments that returns a `Measure`.

    It may raise AssertionError, with a sentence, for what has no measure.
    """

    name: str
    family: int
    function: Callable[..., Measure]
    draws: dict[str, st.SearchStrategy]
    examples: int


@dataclass(frozen=True)
class Result:
    """What became of one property of one subject.

    Args:
        verdict: "passed", "failed" or "not_applicable".
        error: the largest of all cases, in units of its tolerance; infinite for an exception.
        smallest: the drawn arguments of the smallest case that fails; None unless one does.
        detail: the exception of that case, or why the property does not apply.
    """

    subject: str
    property: str
    family: int
    verdict: str
    error: float = 0.0
    tolerance: float = 0.0
    smallest: dict | None = None
    detail: str = ""

    def __str__(self):
        line = f"{self.subject}: {self.property}: {self.verdict.replace('_', ' ')}"
        if self.verdict != "not_applicable":
            line += f", off by {self.error:.2g} where {self.tolerance:.2g} is allowed"
        if self.smallest:
            line += f", at {', '.join(f'{k}={v!r}' for k, v in self.smallest.items())}"
        return f"{line} ({self.detail})" if self.detail else line


def catches(family: int, into: list[Property], examples: int = 20, **draws):
    """Decorator: a property that catches this family, with a strategy for each argument."""

    def add(function):
        into.append(Property(function.__name__, family, function, draws, examples))
        return function

    return add


def run(property: Property, subject, name: str) -> Result:
    """The result of this property for `subject`, called `name` in it."""
    measured, reasons, details = [], [], [""]

    def fails(case: dict) -> bool:
        try:
            measure, detail = property.function(subject, **case), ""
        except NotApplicable as reason:
            reasons.append(str(reason))
            return False
        except Exception as error:  # a foreign module may raise anything: it is what we report
            measure = Measure(math.inf, 0.0)
            detail = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        measured.append(measure)
        if measure.failed:
            details[0] = detail  # hypothesis runs the smallest failure last
        return measure.failed

    settings = hypothesis.settings(
        max_examples=property.examples,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        derandomize=True,
        database=None,
        deadline=None,
    )
    try:
        with _without_constants_of_other_code():
            cases = st.fixed_dictionaries(property.draws)
            smallest = hypothesis.find(cases, fails, settings=settings)
        verdict = "failed"
    except hypothesis.errors.NoSuchExample:
        smallest, verdict = None, "passed"
    about = name, property.name, property.family
    if not measured:
        return Result(*about, "not_applicable", detail=reasons[0])
    return Result(*about, verdict, *worst(measured), smallest, details[0])


@contextlib.contextmanager
def _without_constants_of_other_code():
    """hypothesis also draws the numbers that stand in whatever modules are loaded from outside
    site-packages: the cases would change with code that has nothing to do with them, the user's
    included. It has no setting for that."""
    if not hasattr(providers, "_get_local_constants"):  # before hypothesis 6.131
        yield
        return
    none = {"_get_local_constants": providers.Constants, "CONSTANTS_CACHE": {}}
    with mock.patch.multiple(providers, **none):
        yield
