"""The rows of data/claims.toml, checked as they are read."""

import dataclasses
import importlib
import inspect
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lib import paths
from lib.claims.verdicts import WORDS

PATH = paths.DATA / "claims.toml"
KINDS = ("exact", "measured", "cost", "published", "record", "all")
TEXTS = ("S0", "S1", "S4")
_CELL = re.compile(r"\d\d_\w+#[\w-]+")


@dataclass(frozen=True)
class Entry:
    """One claim of the survey, and how it is decided.

    Args:
        id: such as "SIN-2".
        texts: which of the three texts make the claim.
        claim: what it says, in our words.
        kind: proof obligation (exact), runs here (measured, cost), a paper's own table (published),
            a fact about a model or paper (record), or a table of several claims (all).
        regime: the setting that the claim is about.
        cell: the notebook cell that shows how it was decided, "NOTEBOOK#CELL".
        figure: the picture behind it: a name in figures/, or the "NOTEBOOK#CELL" that draws it.
            None where words or counts decide.
        test: the function that decides it, "proofs.NAME", or "MODULE.NAME" of another module here,
            which is given the results first; it takes the keys of `tolerance` by name. None:
            `needs` says what a decision takes, or `verdict` gives it.
        needs: what a decision here would take.
        expected: what the claim needs to hold; {key} stands for a tolerance.
        because: why these tolerances.
        verdict, found: the word that the sources alone give, and what they say.
        note: what a reader should know beside the verdict.
    """

    id: str
    texts: list[str]
    claim: str
    kind: list[str]
    regime: str
    cell: str
    expected: str
    figure: str | None = None
    test: str | None = None
    needs: str | None = None
    tolerance: dict[str, float] = field(default_factory=dict)
    because: str | None = None
    verdict: str | None = None
    found: str | None = None
    sources: list[str] = field(default_factory=list)
    note: str | None = None

    def __post_init__(self):
        self._check(set(self.kind) <= set(KINDS) and self.kind, "kind must be of", KINDS)
        self._check(set(self.texts) <= set(TEXTS) and self.texts, "texts must be of", TEXTS)
        self._check(self.verdict in (None, *WORDS), "verdict must be one of", WORDS)
        self._check((self.verdict is None) == (self.found is None), "a verdict needs `found`")
        self._check(self.verdict is None or self.sources, "a verdict from sources names them")
        self._check(_CELL.fullmatch(self.cell), "cell must be a notebook and a cell, as 05_rope#id")
        decided = self.test or self.verdict
        self._check(decided or self.needs, "say what a decision `needs`, or give a test")
        self._check(not self.tolerance or self.because, "say `because` of what the tolerance is so")
        if self.test:
            self._check_arguments()
        try:
            self.expected.format(**self.tolerance)
        except (KeyError, ValueError, IndexError) as error:
            raise ValueError(f"{self.id}: expected names no tolerance: {error}.") from None

    def _check(self, holds, sentence, choices=()):
        if not holds:
            raise ValueError(f"{self.id}: {sentence}{' ' if choices else ''}{', '.join(choices)}.")

    def _check_arguments(self):
        results = [None] if self.measures else []
        try:
            inspect.signature(self.function).bind(*results, **self.tolerance)
        except TypeError as error:
            raise ValueError(f"{self.id}: tolerance does not fit {self.test}: {error}.") from None

    @property
    def measures(self) -> bool:
        """Whether the test reads results."""
        return bool(self.test) and not self.test.startswith("proofs.")

    @property
    def function(self) -> Callable:
        """The test itself."""
        module, _, name = self.test.partition(".")
        try:
            function = getattr(importlib.import_module(f"lib.claims.{module}"), name, None)
        except ImportError:
            function = None
        own = inspect.isfunction(function) and function.__module__ == f"lib.claims.{module}"
        self._check(own and not name.startswith("_"), f"there is no test {self.test!r}")
        return function


def load(path: Path = PATH) -> list[Entry]:
    """Every claim, in the order of the file.

    Raises ValueError for a key that is unknown or missing, an id that comes twice, an unknown kind,
    text, test or verdict, and a tolerance that the test does not take.
    """
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    if set(rows) != {"claim"}:
        raise ValueError(f"{path.name} must hold [[claim]] tables alone, not {', '.join(rows)}.")
    entries = [_entry(row) for row in rows["claim"]]
    ids = [entry.id for entry in entries]
    for id in ids:
        if ids.count(id) > 1:
            raise ValueError(f"{id} stands twice in {path.name}: give each claim an id of its own.")
    return entries


def _entry(row: dict) -> Entry:
    fields = {f.name: f for f in dataclasses.fields(Entry)}
    must = {"id", "texts", "claim", "kind", "regime", "cell", "expected"}
    name = row.get("id", "a claim without id")
    for what, keys in (("unknown", set(row) - set(fields)), ("missing", must - set(row))):
        if keys:
            raise ValueError(f"{name}: {what} {', '.join(sorted(keys))}.")
    return Entry(**row)
