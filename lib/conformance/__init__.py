"""The conformance suite: properties that every positional encoding should have, whoever wrote it.

    from lib.conformance import check, registered

    for result in check(registered("rope")):
        print(result)

A subject is an encoding behind the four doors of `lib.encodings.base`: `of_class` makes one of an
`Encoding` subclass, `of_rotation` one of a plain function; for anything else, give a `Subject` a
function that builds an `Encoding` around it. A property is a function, and names the family of
fault that it catches (`FAMILIES`: faults that public libraries have had). It returns how far it was
off and how far is allowed, both measured. hypothesis draws its cases, the same in every run, and
when one fails, looks for the smallest that still does.

What a property compares with lies in the encoding itself or in the mathematics: the call made
alone, the same in float64, the same positions elsewhere. So it needs no second implementation
that is right.

Letters as in `lib.encodings.base`; θ are frequencies in radians a position, b their base.
"""

from lib.conformance.averaging import AVERAGING
from lib.conformance.calls import CALLS
from lib.conformance.checking import FAMILIES, NotApplicable, Property, Result, run
from lib.conformance.configuration import CONFIGURATION
from lib.conformance.precision import PRECISION
from lib.conformance.scores import SCORES
from lib.conformance.subjects import Subject, of_class, of_rotation, registered
from lib.conformance.use import USE

PROPERTIES = [*PRECISION, *CALLS, *SCORES, *CONFIGURATION, *USE]

__all__ = [
    "AVERAGING",
    "FAMILIES",
    "NotApplicable",
    "PROPERTIES",
    "Property",
    "Result",
    "Subject",
    "check",
    "check_perplexity",
    "of_class",
    "of_rotation",
    "registered",
]


def check(subject: Subject, properties: list[Property] = PROPERTIES) -> list[Result]:
    """Every property of an encoding, a result each; what an encoding raises is in its result."""
    return [run(property, subject, subject.name) for property in properties]


def check_perplexity(perplexity, properties: list[Property] = AVERAGING) -> list[Result]:
    """The same of a function perplexity(model, tokens, length, stride=None) → float.

    `model` is an nn.Module, tokens (B, T) → logits (B, T, V); `tokens` a row of int64.
    """
    return [run(property, perplexity, perplexity.__name__) for property in properties]
