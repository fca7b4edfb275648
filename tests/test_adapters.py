"""The adapters add nothing: through the doors comes what the library gives, wherever asked."""

import pytest
import torch

pytest.importorskip("transformers", reason="the peers are in requirements-peers.lock")
pytest.importorskip("x_transformers")
pytest.importorskip("rotary_embedding_torch")

from lib import adapters, conformance
from lib.encodings import build
from lib.studies import conformance as study

SUBJECTS = adapters.subjects()
SIZES = {"d_model": 24, "n_heads": 3, "max_length": 128}


def by_name(subject):
    return f"{subject.library} {subject.name}"


def content(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("subject", SUBJECTS, ids=by_name)
def test_it_does_what_ours_does(subject):
    """Near enough for float32 phases; Falcon's slopes are bfloat16, over √d."""
    foreign = subject.build(**SIZES).double()
    options = {"layout": foreign.layout} if subject.encoding == "rope" else {}
    ours = build(subject.encoding, **SIZES, **options).double()
    q, k, positions = content(2, 3, 12, 8), content(2, 3, 12, 8), torch.arange(12)
    with torch.no_grad():
        if subject.encoding == "rope":
            found, right = (e.rotate(q, k, positions, positions)[0] for e in (foreign, ours))
        else:
            if subject.encoding == "t5":
                scale = getattr(foreign.theirs, "scale", 1.0)
                ours.b.copy_(foreign.theirs.relative_attention_bias.weight.T * scale)
            found, right = (e.bias(q, k, positions, positions) for e in (foreign, ours))
            found = found * (8**0.5 if "Falcon" in subject.name else 1.0)
            found, right = found.tril(), right.tril()
    allowed = 0.05 if "Falcon" in subject.name else 1e-5
    assert (found - right).abs().max() <= allowed


@pytest.mark.parametrize(
    "subject", [s for s in SUBJECTS if "dynamic" not in s.name], ids=by_name
)  # whose frequencies follow the length
def test_positions_with_gaps_are_entries_of_the_whole(subject):
    """What it gives for some positions is what the whole sequence has there."""
    foreign = subject.build(**SIZES).double()
    q, k, whole = content(1, 3, 20, 8), content(1, 3, 20, 8), torch.arange(20)
    some = torch.tensor([0, 1, 5, 6, 7, 19])
    with torch.no_grad():
        if subject.encoding == "rope":
            all_of_it, _ = foreign.rotate(q, k, whole, whole)
            found, _ = foreign.rotate(q[:, :, some], k[:, :, some], some, some)
            assert (found - all_of_it[:, :, some]).abs().max() <= 1e-5
        else:
            all_of_it = foreign.bias(q, k, whole, whole)[:, :, some][..., some]
            found = foreign.bias(q[:, :, some], k[:, :, some], some, some)
            assert (found - all_of_it).tril().abs().max() <= 1e-5


@pytest.mark.parametrize("subject", SUBJECTS, ids=by_name)
def test_it_says_what_it_is(subject):
    assert subject.version[0].isdigit()
    assert set(subject.excused) <= {p.name for p in conformance.PROPERTIES}
    assert all(p.requires_grad for p in subject.build(**SIZES).parameters())


def test_the_study_reports_a_failure_with_its_smallest_case():
    """Configurations of transformers take any name; the row says so."""
    rows = study.measure(None, None, {"library": "transformers", "subject": "Bloom ALiBi"})
    row = {row["property"]: row for row in rows}
    assert row["slopes_follow_the_published_rule"]["verdict"] == "passed"
    half = row["half_precision_is_float64_rounded"]
    assert half["verdict"] == "failed" and float(half["error"]) > float(half["tolerance"])
    assert "dtype=torch.bfloat16" in half["smallest"]
    assert row["positions_of_any_dtype"]["detail"] == "it counts positions itself"
    assert {row["version"] for row in rows} == {SUBJECTS[3].version}
