"""Each floor of `lib` imports only from floors below it, and modules import in no circle.

A module that is named in no floor may be imported by any, if nothing that it imports (through
others too) stands as high; so a file that is added later is covered without a word here.
"""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = [
    {"encodings"},
    {"attention"},
    {"transformer"},
    {"corpus", "tasks", "images"},
    {"training", "evaluation"},
    {"runs"},
    {"studies"},
    {"claims"},
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}


def module_of(path):
    """lib/studies/cost.py → lib.studies.cost; lib/studies/__init__.py → lib.studies."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted((ROOT / "lib").rglob("*.py"))}


def imports(source, module, package, known):
    """The names that `source`, the text of `module`, imports, wherever it does so: modules of
    `known` in full, others as written."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".") if package else module.split(".")[:-1]
                above = here[: len(here) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in known else base)
    return found - {module}


GRAPH = {
    module: imports(path.read_text(), module, path.name == "__init__.py", MODULES)
    for module, path in MODULES.items()
}


def part(module):
    """lib.studies.cost → studies."""
    return module.split(".")[1] if module.count(".") else ""


def rises(graph):
    """(module, what it reaches) where the second stands on the first's floor or above."""
    parts = {}  # part → the parts that its modules import
    for module, targets in graph.items():
        ours = {part(target) for target in targets if target.split(".")[0] == "lib"}
        parts.setdefault(part(module), set()).update(ours - {"", part(module)})
    found = []
    for name, height in FLOOR.items():
        reached, ahead = set(), list(parts.get(name, ()))
        while ahead:
            target = ahead.pop()
            if target not in reached:
                reached.add(target)
                # What a floor below reaches is that floor's own affair.
                ahead += () if FLOOR.get(target, height) < height else parts.get(target, ())
        found += [(name, target) for target in reached if FLOOR.get(target, -1) >= height]
    return sorted(found)


def test_each_floor_imports_only_from_floors_below():
    assert rises(GRAPH) == []


def test_modules_import_in_no_circle():
    ours = {
        module: {target for target in targets if target in MODULES and target != "lib"}
        for module, targets in GRAPH.items()
    }
    # A package imports its files, and they what stands beside them: that is one unit.
    for module, targets in ours.items():
        if MODULES[module].name == "__init__.py":
            targets -= {target for target in targets if target.startswith(module + ".")}
    TopologicalSorter(ours).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) == "encodings"])
def test_an_encoding_imports_torch_and_nothing_else_of_ours(module):
    for target in GRAPH[module]:
        first = target.split(".")[0]
        beside = target == "lib.encodings" or target.startswith("lib.encodings.")
        assert beside or first == "torch" or first in sys.stdlib_module_names, target


def test_the_floors_are_there():
    assert {"encodings", "attention", "transformer"} <= {part(module) for module in MODULES}
    assert "lib.encodings.base" in GRAPH["lib.encodings.rope"]
    assert "lib.encodings.base" in GRAPH["lib.attention"]


KNOWN = {"lib", "lib.runs", "lib.studies", "lib.studies.cost", "lib.studies.common"}


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import lib.runs", {"lib.runs"}),
        ("from lib import runs", {"lib.runs"}),
        ("from lib.runs import store", {"lib.runs"}),
        ("from . import common", {"lib.studies.common"}),
        ("from .common import x", {"lib.studies.common"}),
        ("from .. import runs", {"lib.runs"}),
        ("from ..runs import store", {"lib.runs"}),
        ("def f():\n    import lib.runs", {"lib.runs"}),
        ("import torch.nn as nn\nfrom numpy import array", {"torch.nn", "numpy"}),
    ],
)
def test_an_import_is_seen_however_it_is_written(source, expected):
    assert imports(source, "lib.studies.cost", False, KNOWN) == expected


@pytest.mark.parametrize(
    "graph, expected",
    [
        ({"lib.attention": {"lib.encodings.base", "torch"}}, []),
        ({"lib.encodings.rope": {"lib.attention"}}, [("encodings", "attention")]),
        ({"lib.training": {"lib.evaluation"}}, [("training", "evaluation")]),
        ({"lib.runs": {"lib.new"}, "lib.new": {"lib.training"}}, []),
        ({"lib.training": {"lib.new"}, "lib.new": {"lib.runs"}}, [("training", "runs")]),
        ({"lib.studies.cost": {"lib.studies.common", "lib.runs"}}, []),
    ],
)
def test_a_rise_is_seen_through_modules_that_have_no_floor(graph, expected):
    assert rises(graph) == expected
