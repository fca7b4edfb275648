"""Training: the same bits for a seed, the same batches for every encoding, resumed at any step."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.encodings import ENCODINGS
from lib.training import (
    Training,
    TrainingConfig,
    Windows,
    fingerprint,
    learning_rate_factor,
    optimizer_of,
    same_fingerprint,
    train,
)

V = 40
OF_TEXT = [name for name, cls in ENCODINGS.items() if "text" in cls.domain]
TEXT = [np.random.default_rng(n).integers(0, V, n).astype(np.uint16) for n in (200, 9, 90)]
SMALL = TrainingConfig(
    encoding="rope", seed=3, learning_rate=1e-2, tokens=640, train_length=8, batch_tokens=32,
    d_model=16, n_heads=2, n_layers=2, d_ff=24,
)  # fmt: skip


def weights(training):
    return {n: p.detach().clone() for n, p in training.decoder.named_parameters()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("encoding", OF_TEXT)
def test_a_seed_gives_the_same_bits_again(encoding):
    config = dataclasses.replace(SMALL, encoding=encoding, tokens=160)
    torch.manual_seed(1)
    a = train(config, TEXT, V)
    torch.manual_seed(2)  # what the caller's generator did does not matter
    b = train(config, TEXT, V)
    assert a.losses == b.losses and equal(weights(a), weights(b))


def test_another_seed_gives_another_model():
    a, b = train(SMALL, TEXT, V), train(dataclasses.replace(SMALL, seed=4), TEXT, V)
    assert a.losses[0] != b.losses[0]


def test_training_learns():
    losses = train(dataclasses.replace(SMALL, tokens=32 * 200), TEXT[:1], V).losses
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(SMALL, TEXT, V)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("encoding", OF_TEXT)
def test_models_of_one_seed_differ_in_their_encodings_alone(encoding):
    nope = dataclasses.replace(SMALL, encoding="nope").decoder(V)
    other = dataclasses.replace(SMALL, encoding=encoding).decoder(V)
    mine = dict(other.named_parameters())
    for name, parameter in nope.named_parameters():
        assert torch.equal(parameter, mine[name]), name
    assert all(name in dict(nope.named_parameters()) or "encodings" in name for name in mine)


@given(stop=st.integers(0, 20), encoding=st.sampled_from(["learned", "shaw", "t5", "alibi"]))
@settings(max_examples=6, deadline=None)
def test_a_run_resumed_at_any_step_gives_the_same_bits(tmp_path_factory, stop, encoding):
    config = dataclasses.replace(SMALL, encoding=encoding)
    whole = train(config, TEXT, V)
    part = Training(config, TEXT, V)
    for _ in range(stop):
        part.step()
    checkpoint = tmp_path_factory.mktemp("run") / "checkpoint.safetensors"
    part.save(checkpoint)
    resumed = train(config, TEXT, V, checkpoint)
    assert resumed.losses == whole.losses and equal(weights(resumed), weights(whole))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    Training(dataclasses.replace(SMALL, d_model=32), TEXT, V).save(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="does not belong"):
        Training(SMALL, TEXT, V).load(tmp_path / "other.safetensors")


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path, keep):
    path = tmp_path / "checkpoint.safetensors"
    Training(SMALL, TEXT, V).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="damaged"):
        Training(SMALL, TEXT, V).load(path)


@pytest.mark.parametrize("place", [0.5, 0.9])
def test_a_checkpoint_with_one_bit_changed_is_one_clear_error(tmp_path, place):
    path = tmp_path / "checkpoint.safetensors"
    training = Training(SMALL, TEXT, V)
    training.step()
    training.save(path)
    raw = bytearray(path.read_bytes())
    raw[int(place * len(raw))] ^= 1  # among the numbers: the file is as readable as before
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="damaged"):
        Training(SMALL, TEXT, V).load(path)


def test_windows_of_a_text_on_disk_are_those_of_the_text(tmp_path):
    np.save(tmp_path / "text.npy", TEXT[0])
    mapped = np.load(tmp_path / "text.npy", mmap_mode="r", allow_pickle=False)
    here, there = Windows(TEXT, 8), Windows([mapped, *TEXT[1:]], 8)
    assert isinstance(there.documents[0], np.memmap)
    assert torch.equal(here.batch(3, 1, 50), there.batch(3, 1, 50))


def test_the_name_of_the_text_is_in_the_key_of_another_text_alone():
    before = hashlib.sha256(
        json.dumps(
            {k: v for k, v in dataclasses.asdict(SMALL).items() if k != "text"}, sort_keys=True
        ).encode()
    )
    assert SMALL.key == before.hexdigest()[:16]
    assert dataclasses.replace(SMALL, text="another").key != SMALL.key


def test_windows_cross_no_border_and_reach_every_place():
    windows = Windows(TEXT, 8)
    places = {t.tobytes() for d in TEXT for t in np.lib.stride_tricks.sliding_window_view(d, 9)}
    assert windows.ends[-1] == sum(len(d) - 8 for d in TEXT)
    drawn = windows.batch(seed=0, step=0, size=5000).numpy().astype(np.uint16)
    assert {w.tobytes() for w in drawn} == places


def test_a_batch_depends_on_seed_and_step_alone():
    windows = Windows(TEXT, 8)
    first = windows.batch(1, 5, 4)
    windows.batch(1, 6, 4)
    assert torch.equal(first, windows.batch(1, 5, 4))
    assert not torch.equal(first, windows.batch(1, 6, 4))
    assert not torch.equal(first, windows.batch(2, 5, 4))


def test_text_too_short_for_a_window_is_an_error():
    with pytest.raises(ValueError, match="shorter train_length"):
        Windows([TEXT[1]], 9)


@given(st.integers(1, 3000))
def test_the_rate_warms_up_and_decays_to_nothing(steps):
    rates = [learning_rate_factor(t, steps) for t in range(steps)]
    peak = rates.index(max(rates))
    assert max(rates) == 1.0 and min(rates) >= 0
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert steps < 100 or rates[-1] < 1e-2


@pytest.mark.parametrize("encoding", OF_TEXT)
def test_the_encoding_learns_in_a_group_of_its_own_without_decay(encoding):
    config = dataclasses.replace(SMALL, encoding=encoding, encoding_rate=7.0)
    decoder = config.decoder(V)
    groups = optimizer_of(decoder, config.learning_rate, config.encoding_rate).param_groups
    own = [g for g in groups if g["peak"] == pytest.approx(7e-2)]
    mine = {id(p) for p in decoder.encodings.parameters()}
    assert {id(p) for g in own for p in g["params"]} == mine
    assert all(g["weight_decay"] == 0 for g in own)
    everything = [id(p) for g in groups for p in g["params"]]
    assert sorted(everything) == sorted(id(p) for p in decoder.parameters())


def test_a_fingerprint_tells_trainings_apart():
    today = fingerprint(SMALL, TEXT, V)
    assert len(today) == 20
    assert same_fingerprint(today, train(SMALL, TEXT, V).losses) is None
    other = fingerprint(dataclasses.replace(SMALL, learning_rate=2e-2), TEXT, V)
    assert same_fingerprint(today, other) == 1  # the first loss is that of the same weights
    assert same_fingerprint([1.0, float("nan")], [1.0, 2.0]) == 1


def test_a_loss_that_is_not_finite_names_the_run():
    with pytest.raises(FloatingPointError, match="rope, seed 3"):
        train(dataclasses.replace(SMALL, learning_rate=1e30), TEXT, V)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"train_length": 7}, "must divide"),
        ({"tokens": 3}, "at least one batch"),
        ({"learning_rate": 0.0}, "positive"),
        ({"encoding_rate": -1.0}, "positive"),
    ],
)
def test_a_configuration_that_cannot_be_trained_says_why(wrong, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(SMALL, **wrong)


def test_an_unknown_encoding_is_refused_when_built():
    with pytest.raises(ValueError, match="No encoding is named 'rop'"):
        dataclasses.replace(SMALL, encoding="rop").decoder(V)
