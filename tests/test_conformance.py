"""Every registered encoding against every property that applies to it, and the suite against
encodings with planted faults: each must be caught by a property of its own family."""

import contextlib
import dataclasses
import functools
import importlib
import inspect

import mutants
import pytest
import torch
from hypothesis import strategies as st

from lib.conformance import (
    AVERAGING,
    FAMILIES,
    PROPERTIES,
    NotApplicable,
    Property,
    check,
    check_perplexity,
    of_class,
    of_rotation,
    registered,
)
from lib.conformance.checking import Measure, run
from lib.conformance.configuration import SCALINGS
from lib.encodings import ENCODINGS, build
from lib.evaluation import perplexity


def by_name(thing):
    return thing.name


def named(name):
    return next(p for p in [*PROPERTIES, *AVERAGING] if p.name == name)


# --- encodings ----------------------------------------------------------------------------------


def subjects():
    """Every registered encoding in its domains, as it is by default and with each other choice of
    an option that is a word or a yes."""
    for name, domain in [
        (name, domain) for name, cls in ENCODINGS.items() for domain in cls.domain
    ]:
        usual = registered(name, domain)
        yield usual
        for option, values in usual.options.items():
            for value in values:
                if isinstance(value, bool | str):
                    with contextlib.suppress(ValueError):
                        usual.build(d_model=16, n_heads=1, max_length=16, **{option: value})
                        yield registered(name, domain, **{option: value})


@pytest.mark.parametrize("property", PROPERTIES, ids=by_name)
@pytest.mark.parametrize("subject", list(subjects()), ids=by_name)
def test_registered_encodings_conform(subject, property):
    (result,) = check(subject, [property])
    assert result.verdict != "failed", str(result)


HALF = {"partial_rotary_factor": 0.5}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0}
GROWN = {"log_length": 4, "temperature": {"attn_scale": 0.5, "floor_scale": 3}}
# Half of 9 channels is 4, by transformers' rule: more widths are served than multiples.
ANY_WIDTH = "any_head_width_works_or_is_refused"
SCALED = "wavelengths_are_geometric"
CHOSEN = [  # name, options, traits, properties that are not claimed
    ("mrope", {"scaling": HALF, "layout": "half_split"}, {}, [ANY_WIDTH]),
    ("rope", {"scaling": {"rope_type": "proportional", **HALF}, "layout": "half_split"}, {},
     [SCALED]),
    ("rope", {"scaling": YARN | HALF, "scale_logits": True, "rotated_at": "last"},
     {"keeps_lengths": False}, [ANY_WIDTH, SCALED]),
    ("nope", GROWN, {"relative": False, "keeps_lengths": False}, []),
]  # fmt: skip


@pytest.mark.parametrize("name, options, traits, unclaimed", CHOSEN)
def test_parts_of_heads_and_temperatures_conform(name, options, traits, unclaimed):
    subject = dataclasses.replace(registered(name, **options), **traits)
    for result in check(subject, [p for p in PROPERTIES if p.name not in unclaimed]):
        assert result.verdict != "failed", str(result)


def test_our_perplexity_conforms():
    assert [r.verdict for r in check_perplexity(perplexity)] == ["passed"] * len(AVERAGING)


@pytest.mark.parametrize("kind", list(SCALINGS))
def test_scalings_that_the_suite_turns_are_taken(kind):
    """A property passes where a type of scaling is refused: here all of them must be served."""
    if "scaling" not in inspect.signature(ENCODINGS["rope"].__init__).parameters:
        pytest.skip("rope takes no scaling yet")
    build(
        "rope",
        d_model=64,
        n_heads=1,
        max_length=8192,
        scaling={"rope_type": kind, **SCALINGS[kind]},
    )


# --- mutants ------------------------------------------------------------------------------------


@functools.cache
def results(kind, thing, family):
    """Of an encoding, an attention (run with ALiBi) or a perplexity: the properties of a family."""
    if kind == "perplexity":
        return check_perplexity(thing)
    subject = of_class(mutants.Alibi if kind == "attention" else thing)
    if kind == "attention":
        subject = dataclasses.replace(subject, name=thing.__name__, attend=thing)
    return check(subject, [p for p in PROPERTIES if p.family == family])


def caught_by(mutant):
    failed = [r for r in results(mutant.kind, mutant.subject, mutant.family) if _failed(r)]
    return {r.property for r in failed}


def _failed(result):
    return result.verdict == "failed"


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=by_name)
def test_a_mutant_is_caught_and_its_original_is_not(mutant):
    assert caught_by(mutant)
    original = results(mutant.kind, mutant.original, mutant.family)
    assert not any(map(_failed, original)), "\n".join(map(str, original))


@pytest.mark.parametrize("property", [*PROPERTIES, *AVERAGING], ids=by_name)
def test_a_property_can_fail_and_can_pass(property):
    family = [m for m in mutants.MUTANTS if m.family == property.family]
    assert any(property.name in caught_by(m) for m in family)
    passed = [r for m in family for r in results(m.kind, m.original, m.family)]
    assert any(r.property == property.name and r.verdict == "passed" for r in passed)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_mutants_and_properties(family):
    assert sum(m.family == family for m in mutants.MUTANTS) >= 2
    assert any(p.family == family for p in [*PROPERTIES, *AVERAGING])


# --- what a result says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cls, name, smallest",
    [
        (
            mutants.RopeCountsFromZero,
            "last_queries_are_those_of_the_whole",
            {"width": 1, "n_heads": 1, "Tq": 1, "more": 1, "offset": 0},
        ),
        (mutants.RopeForgetsTheMinus, "turning_keeps_lengths", {"width": 1, "n_heads": 1}),
        (mutants.AlibiOneFormula, "slopes_follow_the_published_rule", {"n_heads": 3}),
        (mutants.SinusoidPositionsOfTheFirstRow, "left_padding_changes_no_logits", {"width": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_smallest_failing_case_is_reported(cls, name, smallest):
    (result,) = check(of_class(cls), [named(name)])
    assert smallest.items() <= result.smallest.items()
    assert result.error > result.tolerance
    again = named(name).function(of_class(cls), **result.smallest)
    assert again.failed
    assert f"{cls.__name__}: {name}: failed, off by" in str(result)


def test_results_are_the_same_each_time():
    for cls in (mutants.RopePositionsInInputDtype, mutants.Rope):
        precise = [p for p in PROPERTIES if p.family == 1]
        assert check(of_class(cls), precise) == check(of_class(cls), precise)


def judged(function, **draws):
    return run(Property("p", 1, function, draws, 50), None, "it")


def test_cases_do_not_depend_on_the_code_that_is_loaded(tmp_path, monkeypatch):
    cases = []

    def note(subject, n):
        cases[-1].append(n)
        return Measure(0, 0)

    property = Property("note", 0, note, {"n": st.integers(1, 10**6)}, 300)

    def drawn():
        cases.append([])
        run(property, None, "")
        return cases[-1]

    before = drawn()
    numbers = ", ".join(map(str, range(1000, 10**6, 1000)))
    (tmp_path / "of_another.py").write_text(f"NUMBERS = [{numbers}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("of_another")
    assert drawn() == before and len(set(before)) > 100


def test_nan_fails_and_so_does_an_exception():
    assert judged(lambda _: Measure(float("nan"), 1.0)).verdict == "failed"

    def breaks(_, n):
        if n > 6:
            raise RuntimeError("shapes\nand more")
        return Measure(0.0, 1.0)

    result = judged(breaks, n=st.integers(0, 100))
    assert (result.verdict, result.error, result.smallest) == ("failed", float("inf"), {"n": 7})
    assert result.detail == "RuntimeError: shapes"


def test_the_worst_case_is_the_one_reported():
    result = judged(lambda _, n: Measure(n / 8, 2.0), n=st.integers(0, 3))
    assert (result.verdict, result.error, result.tolerance) == ("passed", 0.375, 2.0)


def test_what_does_not_apply_says_why():
    def no(_):
        raise NotApplicable("no such door")

    result = judged(no)
    assert (result.verdict, result.detail) == ("not_applicable", "no such door")
    assert str(result) == "it: p: not applicable (no such door)"


def test_a_case_that_does_not_apply_hides_no_other():
    def odd_ones_alone(limit):
        def function(_, n):
            if n % 2 == 0:
                raise NotApplicable("even")
            return Measure(n, limit)

        return function

    result = judged(odd_ones_alone(4), n=st.integers(0, 20))
    assert (result.verdict, result.smallest) == ("failed", {"n": 5})
    assert judged(odd_ones_alone(40), n=st.integers(0, 20)).verdict == "passed"


def test_checking_leaves_the_random_generator_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    check(of_class(mutants.Buckets), [p for p in PROPERTIES if p.family != 0])
    assert torch.equal(torch.get_rng_state(), before)


# --- a plain function ---------------------------------------------------------------------------


def turn_in_float32(x, positions):
    """What many a tutorial has: float32 phases, the product in the dtype of the input."""
    theta = 10000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    phase = positions.float()[..., None] * theta
    phase = phase[:, None] if phase.dim() == 3 else phase
    cos, sin = phase.cos().to(x.dtype), phase.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def test_a_plain_function_is_judged_by_the_precision_that_it_claims():
    shift = [named("scores_depend_on_differences_alone"), named("wavelengths_are_geometric")]
    claims = of_rotation("plain", turn_in_float32, phases=torch.float32, base=10000.0)
    assert [r.verdict for r in check(claims, shift)] == ["passed", "passed"]
    assert _failed(check(of_rotation("plain", turn_in_float32), shift)[0])
    assert _failed(check(claims, [named("half_precision_is_float64_rounded")])[0])
