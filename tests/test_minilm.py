"""The study of a published table: what stands in for missing rows, and how finding is counted."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import corpus
from lib.probes import minilm
from lib.studies import minilm as study

SMALL = torch.arange(8.0)[:, None] * torch.tensor([[1.0, -2.0, 0.5]])  # row p is p times a vector


# ---- the published file --------------------------------------------------------------------------


def test_the_table_is_the_published_one():
    P = minilm.table()
    assert P.shape == (minilm.ROWS, minilm.D) and P.dtype == torch.float32
    assert P.norm(dim=1).argmax() == 0  # that of [CLS]


def test_a_file_that_is_not_the_published_one_is_refused(monkeypatch):
    monkeypatch.setitem(minilm.SHA256, "config.json", "0" * 64)
    with pytest.raises(ValueError, match="reinstall it with `pip install"):
        minilm.file("config.json")


def test_without_the_package_one_sentence_says_what_to_do_and_the_study_is_left_out(
    monkeypatch, caplog
):
    monkeypatch.setattr(minilm, "PACKAGE", "minilm-of-no-such-name")
    with pytest.raises(ValueError, match="run `make setup`"):
        minilm.table()
    with caplog.at_level(logging.WARNING):
        assert study.measure(None, None, study.jobs("quick")[0].settings) == []
    assert len(caplog.records) == 1
    assert list(study.collect([])) == study.COLUMNS and study.summary(study.collect([])).empty


# ---- past the table ------------------------------------------------------------------------------


@pytest.mark.parametrize("past", study.TABLES_PAST.values())
def test_each_answer_gives_a_row_for_every_position(past):
    assert past(SMALL, 20).shape == (20, 3)
    torch.testing.assert_close(past(SMALL, 20), past(SMALL, 20), atol=0, rtol=0)


def test_the_answers_are_what_they_say():
    assert torch.equal(study.grown(SMALL, 20)[:8], SMALL)
    assert study.grown(SMALL, 20)[8:].std() == pytest.approx(0.02, rel=0.4)
    assert torch.equal(study.repeated(SMALL, 20), torch.cat([SMALL, SMALL, SMALL[:4]]))
    line = torch.arange(20.0)[:, None] * 7 / 19 * SMALL[1]  # a straight line stays one
    torch.testing.assert_close(study.interpolated(SMALL, 20), line)
    line = torch.arange(20.0)[:, None] * 7 / (study.LONG - 1) * SMALL[1]
    torch.testing.assert_close(study.interpolated_for_long(SMALL, 20), line)
    assert (study.one_row(SMALL, 20) == SMALL.mean(0)).all()


# ---- measuring -----------------------------------------------------------------------------------


def test_pools_are_long_speeches_in_order_of_time_and_apart():
    pools = [study.pool(job.settings) for job in study.jobs("default")]
    names = [list(pool) for pool in pools]
    assert [len(pool) for pool in names] == [7, 7]
    assert sum(names, []) == sorted(set(sum(names, [])))
    everything = list(corpus.load().tokens)
    for pool in pools:
        assert all(len(ids) >= study.LONGEST_SPEECHES for ids in pool.values())
        years = [everything.index(name) for name in pool]
        assert years == sorted(years)


def test_excerpts_lie_past_the_table_and_inside_the_shortest_passage():
    assert study.EXCERPTS[0] >= study.WINDOW
    assert study.EXCERPTS[-1] + study.EXCERPT <= study.SHORT - 2
    assert study.EXCERPTS.step >= study.EXCERPT  # none shares a token with another


def test_what_is_found_is_the_nearest_by_angle():
    passages = torch.eye(3)
    excerpts = torch.stack([
        torch.tensor([[5.0, 1, 0], [0.1, 0, 0]]),  # both their own, whatever their length
        torch.tensor([[0.0, 2, 1], [3.0, 2, 1]]),  # one of two
        torch.tensor([[1.0, 0, 0], [0.0, 1, 0]]),  # none
    ])  # fmt: skip
    assert study.share_found(passages, excerpts).tolist() == [1, 0.5, 0]


def test_the_model_reads_as_the_library_does_and_its_table_matters():
    reader = study.Reader()
    tokens = reader.encode("The state of the union is strong.")
    ids = torch.tensor([reader.ends[0] + tokens + reader.ends[1]])
    plain = reader.vectors(tokens)
    with torch.inference_mode():
        torch.testing.assert_close(plain, reader.model(ids).last_hidden_state[0])
    other = reader.vectors(tokens, study.one_row)
    assert (plain - other).abs().max() > 0.1
    torch.testing.assert_close(reader.vectors(tokens), plain)  # nothing is left behind


# ---- results -------------------------------------------------------------------------------------


def results(values):
    """values: (method, length) → one value a speech."""
    return pd.DataFrame(
        [
            {"method": m, "length": n, "speech": f"s{i}", "quantity": "found", "value": v, "n": 4}
            for (m, n), found in values.items()
            for i, v in enumerate(found)
        ]
    )


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_an_interval_holds_its_mean_and_stays_among_the_values(values):
    found = study.interval(values)
    assert found.low <= found.value + 1e-9 and found.value <= found.high + 1e-9
    assert min(values) - 1e-9 <= found.low and found.high <= max(values) + 1e-9
    assert found.n == len(values)


def test_the_interval_is_about_as_wide_as_students():
    values = np.random.default_rng(1).normal(size=200)
    found = study.interval(values)
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 200**0.5, rel=0.1)


def test_differences_are_paired_by_speech():
    frame = results({("a", 1024): [0.9, 0.5, 0.1], ("b", 512): [0.8, 0.4, 0.0]})
    found = study.difference(frame.sample(frac=1, random_state=0), ("a", 1024), ("b", 512), "found")
    assert found.value == pytest.approx(0.1) and found.high - found.low < 1e-9
    assert study.difference(frame, ("a", 1024), ("c", 512), "found") is None
    assert study.difference(frame, ("a", 1024), ("b", 1024), "found") is None


def test_the_summary_has_a_row_for_each_method_length_and_quantity():
    frame = study.summary(results({("a", 1024): [1, 0.5], ("b", 512): [0.2, 0.2]}))
    assert frame[["method", "length"]].values.tolist() == [["a", 1024], ["b", 512]]
    assert frame["value"].tolist() == [0.75, 0.2] and (frame["n"] == 2).all()
