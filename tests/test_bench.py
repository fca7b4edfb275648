"""The measurements themselves: what is counted, what is compared, and how a power is fitted."""

import functools
import time

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusing import refuses

from lib import bench, paths, timing
from lib.training import Training, TrainingConfig

CPU = torch.device("cpu")


def test_memory_is_the_most_that_was_lent_at_once():
    def f():
        a = torch.empty(1000, dtype=torch.float64)  # 8000 bytes
        b = torch.empty(500)  # 2000 more
        del a
        return b, torch.empty(250)  # 1000: less than was given back

    assert bench.peak_bytes(f, CPU) == pytest.approx(10_000, abs=500)  # rounded up to lines
    assert bench.peak_bytes(lambda: None, CPU) == 0


def test_candidates_take_turns_and_none_always_follows_the_same():
    order = []
    found = timing.in_turns({n: lambda n=n: order.append(n) for n in "abc"}, 6, CPU)
    rounds = ["abc", "cba", "bca", "acb", "cab", "bac"]
    assert "".join(order) == "abc" + "".join(rounds)  # the first three are not counted
    assert all(len(times) == 6 for times in found.values())


def test_seconds_are_those_of_the_call():
    assert 0.02 <= timing.seconds(lambda: time.sleep(0.02), CPU) < 1


def test_a_ratio_is_taken_within_its_round():
    times = {"sinusoidal": [1.0, 10.0, 2.0], "rope": [2.0, 20.0, 4.0]}
    table = bench.summary(pd.DataFrame(bench.rows("training", 64, times, "seconds")))
    rope = table.set_index("subject").loc["rope"]
    assert (rope["ratio"], rope["ratio_low"], rope["ratio_high"]) == (2, 2, 2)
    assert (rope["value"], rope["rounds"]) == (4, 3)


@given(st.floats(0.5, 2.5), st.floats(1e-6, 1e3))
def test_the_exponent_of_a_power_is_found(p, factor):
    frames = [
        bench.rows("growth", n, {"rope": [factor * float(n) ** p]}, "bytes") for n in bench.LONG
    ]
    found = bench.exponents(pd.DataFrame(sum(frames, []))).iloc[0]
    assert np.isclose(found[["exponent", "exponent_at_the_end"]].astype(float), p).all()


def test_the_step_that_is_timed_is_the_step_of_the_trainings():
    rng = np.random.default_rng(0)
    config = TrainingConfig("rope", seed=0, learning_rate=1e-3, tokens=5120, batch_tokens=128)
    training = Training(config, [rng.integers(0, 50, 300)], 50)
    window = training.windows.batch(0, 0, 2)
    model = config.decoder(50).train()
    step = bench.step_of(model, model, bench.optimizer_of(model, config.learning_rate), window)
    training.step()
    assert step() == training.losses[0]


def test_the_papers_table_is_read_as_ratios_to_sinusoids():
    table = bench.published().set_index(["subject", "case"])
    assert table.loc[("rope", 512), "training"] == 28500 / 20000
    assert table.loc[("t5", 3072), "inference"] == 42400 / 4900
    assert table.loc[("alibi", 1024), "memory"] == 19.3 / 19.2
    assert (table.loc["sinusoidal"] == 1).all().all()


def test_every_encoding_is_measured_in_training_and_inference():
    length = 150
    found = pd.DataFrame(bench.encodings(CPU, 1, lengths=(length,), n_tokens=length))
    assert set(found["subject"]) == set(bench.TEXT)
    table = bench.summary(found)
    assert (table["value"] > 0).all() and (table["part"].isin(["training", "inference"])).all()
    repeated = bench.peak_bytes(bench.inference_of("alibi", length, CPU, length), CPU)
    first = found[(found["subject"] == "alibi") & (found["part"] == "inference")]
    assert repeated in set(first["value"])  # memory is counted, the same each time


def test_decoding_starts_from_a_full_cache():
    found = pd.DataFrame(bench.decoding(CPU, 1, contexts=(16,), names=["alibi", "learned"]))
    assert len(found) == 2 and (found["value"] > 0).all()


def test_growth_is_measured_at_every_length():
    found = pd.DataFrame(bench.growth(CPU, 1, lengths=(16, 32, 64), names=["sinusoidal", "t5"]))
    assert len(found) == 3 * 2 * 2
    assert set(bench.exponents(found)["quantity"]) == {"seconds", "bytes"}


def test_attention_is_measured_both_ways():
    found = pd.DataFrame(bench.attention(CPU, 1, length=160))
    times = found[found["quantity"] == "seconds"]
    assert set(times["subject"]) == {"nope", "alibi", "t5", "mask tensor"}
    assert times["part"].nunique() == 2 and (found["value"] > 0).all()


def test_rotation_is_timed_from_positions_and_from_a_table(monkeypatch):
    monkeypatch.setattr(bench, "ROTATION", {"B": 1, "H": 2, "T": 300, "d": 8})
    found = pd.DataFrame(bench.rotation(CPU, 1))
    assert {"copy", "ours", "ours, from a table"} < set(found["subject"])
    assert (found["value"] > 0).all()


def test_a_step_is_timed_beside_what_it_is_made_of():
    model, tokens = bench.decoder("rope", 8, CPU), bench.draw_tokens(2, 9, CPU)
    parts = bench._parts_of_a_step(model, tokens)
    ahead, back = parts["ours, its products alone"]()
    weights = [p for p in model.parameters() if p.dim() == 2]
    assert len(weights) == 4 * len(model.blocks) + 1
    for w, y, (dx, dw) in zip(weights, ahead, back, strict=True):
        assert (y.shape, dx.shape, dw.shape) == ((16, w.shape[0]), (16, w.shape[1]), w.shape)
    parts["ours, its attention alone"]()
    assert parts["ours, its launches alone"]() > 0  # a loss


def test_an_unknown_part_is_refused_before_anything_runs():
    refuses(lambda: bench.run(["rotations"]), "rotations", "rotation, attention")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Every part on short texts, in three rounds at most."""
    encodings, turns = bench.encodings, bench.in_turns

    def of_eight_tokens(device, rounds, lengths=None, names=bench.TEXT, *kinds, **more):
        return encodings(device, rounds, (8,), names, *kinds[:1], n_tokens=16, **more)

    monkeypatch.setattr(bench, "encodings", of_eight_tokens)
    for name, more in {
        "attention": {"length": 16},
        "decoding": {"contexts": (8, 16)},
        "growth": {"lengths": (8, 16, 32)},
    }.items():
        monkeypatch.setattr(bench, name, functools.partial(getattr(bench, name), **more))

    def few(candidates, rounds, *how, **more):
        return turns(candidates, min(rounds, 3), *how, **more)

    monkeypatch.setattr(bench, "in_turns", few)
    monkeypatch.setattr(paths, "BUILD", tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
@pytest.mark.parametrize("part", bench.PARTS)
def test_every_part_of_make_bench_ends_in_a_table(part, small, capsys):
    bench._run([part])
    said = capsys.readouterr().out
    (path,) = paths.BUILD.glob(f"bench/{part}_*.csv")
    table = pd.read_csv(path)
    assert np.isfinite(table[["value", "ratio"]]).all(axis=None)
    assert all(name in said for name in table["subject"])
    assert not table.duplicated(["part", "case", "quantity", "subject"]).any()


def test_a_series_after_another_is_held_against_its_own_rounds():
    rows = bench._in_a_row(
        bench.rows("training", 8, {"sinusoidal": [1.0, 1.0], "rope": [2.0, 2.0]}, "seconds"),
        bench.rows("training", 8, {"sinusoidal": [10.0], "shaw": [30.0]}, "seconds"),
    )
    table = bench.summary(pd.DataFrame(rows)).set_index("subject")
    assert table["ratio"].to_dict() == {"sinusoidal": 1, "rope": 2, "shaw": 3}
    assert table["rounds"].to_dict() == {"sinusoidal": 3, "rope": 2, "shaw": 1}
