"""What is checked: something that builds encodings, and what it claims of them."""

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from lib.attention import attend
from lib.encodings import ENCODINGS, Encoding, build

CLAIMS = ("relative", "keeps_lengths")  # traits that a class may state
SIZES = ("self", "d_model", "n_heads", "max_length", "heads")


@dataclass(frozen=True)
class Subject:
    """Something to be checked.

    Args:
        build: (d_model, n_heads, max_length, **options) → an `Encoding`, called with names. It
            raises ValueError for sizes that it cannot serve and for a wrong value of an option, and
            ValueError or TypeError for an option that it does not know (`heads` is one).
        domain: "text" gets positions (T,), "image" those of a grid, (T, 2), where `max_length` is
            the count of its places.
        options: for each option, values unlike its default, which must act or be refused.
        relative: whether scores depend on differences of positions alone; None means that they do
            unless something is added to the embeddings.
        keeps_lengths: whether what is turned keeps its length, as a rotation does.
        base: b of fixed frequencies, for an encoding without an attribute `base`; None: unknown.
        phases: the dtype of its phases. float32 is allowed its own rounding, 2⁻²⁴ of the position,
            wherever phases of two positions are compared.
        attend: the attention that it runs in, with the arguments of `lib.attention.attend`. (The
            properties that decode use `lib.transformer.Decoder` with its own.)
        farthest: the last position that it is asked for.
    """

    name: str
    build: Callable[..., Encoding]
    domain: str = "text"
    options: Mapping[str, Sequence] = field(default_factory=dict)
    relative: bool | None = None
    keeps_lengths: bool = True
    base: float | None = None
    phases: torch.dtype = torch.float64
    attend: Callable = attend
    farthest: int = 4095

    @cached_property
    def multiple(self) -> int:
        """The least m of 1, 2, 4, 8 for which head widths m, 2m … are served at any head count."""
        for m in (1, 2, 4, 8):
            with contextlib.suppress(ValueError):
                self.build(d_model=m, n_heads=1, max_length=16)
                return m
        raise ValueError(f"{self.name} serves no head of width 1, 2, 4 or 8.")

    def prepare(self, width: int, n_heads: int, max_length: int | None = None, **options):
        """An encoding with d = m · width whose parameters are all random, the same each time."""
        if max_length is None:
            max_length = (self.farthest + 1) ** (1 if self.domain == "text" else 2)
        d_model = self.multiple * width * n_heads
        with seeded(0):
            encoding = self.build(
                d_model=d_model, n_heads=n_heads, max_length=max_length, **options
            )
        return randomised(encoding)

    def place(self, n: int, offset: int = 0):
        """n positions on from `offset`: (n,), or (n, 2) on a square grid with that corner."""
        offset = min(offset, max(0, self.farthest + 1 - n))
        if self.domain == "text":
            return torch.arange(n) + offset
        side = math.ceil(math.sqrt(n))
        return torch.stack([torch.arange(n) // side, torch.arange(n) % side], dim=-1) + offset

    def rounding(self, position: int) -> float:
        """What may be lost between two phases that should be the same, up to this position."""
        return 16 * (position + 1) * {torch.float64: 2.0**-53, torch.float32: 2.0**-24}[self.phases]


def of_class(cls: type[Encoding], build=None, domain: str | None = None, **traits) -> Subject:
    """A subject of an `Encoding` subclass; its options are found in its signature.

    `domain` is one of the class's, the first by default. What by its mathematics it cannot promise,
    a class says in attributes of the names of the traits: `relative = False` (FIRE),
    `keeps_lengths = False` (xPos).
    """
    build, domain = build or cls, domain or cls.domain[0]
    taken = inspect.signature(cls.__init__).parameters.values()
    found = {o.name: _alternatives(build, o) for o in taken if o.name not in SIZES}
    traits = {
        "name": cls.__name__,
        "options": {name: values for name, values in found.items() if values},
        "farthest": {"text": 4095, "image": 63}[domain],
        **{name: getattr(cls, name) for name in CLAIMS if hasattr(cls, name)},
        **traits,
    }
    return Subject(build=build, domain=domain, **traits)


def registered(name: str, domain: str | None = None, **chosen) -> Subject:
    """The subject of a registered encoding, with these options instead of its defaults."""

    def build_it(d_model, n_heads, max_length, **options):
        sizes = {"d_model": d_model, "n_heads": n_heads, "max_length": max_length}
        return build(name, **sizes, **{**chosen, **options})

    called = ", ".join([name, *(f"{option}={value!r}" for option, value in chosen.items())])
    subject = of_class(ENCODINGS[name], build_it, domain, name=called)
    free = {option: values for option, values in subject.options.items() if option not in chosen}
    return replace(subject, options=free)


def of_rotation(name: str, turn: Callable, **traits) -> Subject:
    """The subject of a plain function: turn(x (B, H, T, d), positions (T,) or (B, T)) → x, turned.

    It is called for even d alone.
    """

    class Rotation(Encoding):
        def __init__(self, d_model, n_heads, max_length, heads=None):
            super().__init__(d_model, n_heads, max_length, heads)
            if self.d % 2:
                raise ValueError(f"Channels turn in pairs: choose an even width, not {self.d}.")

        def rotate(self, q, k, q_pos, k_pos, length=None):
            return turn(q, q_pos), turn(k, k_pos)

    return Subject(name, Rotation, **traits)


def _alternatives(build, option: inspect.Parameter) -> list:
    """Values unlike the default: double and half, the opposite, the choices that an error names."""
    default = option.default
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int | float):
        return [default * 2, type(default)(default / 2)]
    if isinstance(default, str):
        try:
            build(d_model=16, n_heads=1, max_length=16, **{option.name: WRONG_CHOICE})
        except ValueError as error:
            return [word for word in re.findall(r"\w+", str(error)) if word != default]
        return [WRONG_CHOICE]  # taken without a word, which is for a property to say
    return []


WRONG_CHOICE = "no such choice"


def randomised(encoding):
    """Every parameter drawn from a normal distribution: some begin at 0, where nothing is seen."""
    with seeded(0):
        for parameter in encoding.parameters():
            nn.init.normal_(parameter)
    return encoding


@contextlib.contextmanager
def seeded(seed: int):
    """torch's generator at `seed` inside, and as it was afterwards."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
