"""The probe of position: it finds what was put there, and nothing where there is nothing."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import counting
from lib.probes import position
from lib.probes.heads import held_out
from lib.transformer import Config, Decoder

V, D, H, LAYERS = 1024, 24, 3, 2  # the vocabulary is the corpus's


def decoder(encoding):
    torch.manual_seed(0)
    config = Config(encoding, V, D, H, LAYERS, 64, 32)
    return Decoder(config).eval().requires_grad_(False)


def stream(B, T, channels, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, channels, generator=generator, dtype=torch.float64)


def read(x, target):
    return position.read(x, target[:, None])[..., 0]


def table(encoding, windows=2):
    frame = pd.DataFrame(position.position(decoder(encoding), {"windows": windows}))
    assert list(frame.columns) == ["layer", "head", "quantity", "x", "value"]
    assert not frame.duplicated(["layer", "head", "quantity", "x"]).any()
    assert np.isfinite(frame["value"]).all()
    return frame


# ---- reading -------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    T=st.integers(5, 40),
    slope=st.floats(0.1, 10),
    shift=st.floats(-5, 5),
    noise=st.floats(0, 0.5),
)
def test_a_position_that_stands_in_a_channel_is_read_up_to_its_noise(T, slope, shift, noise):
    p = position.positions(T)
    x = stream(60, T, 4)
    spread = p.std(correction=0)
    x[..., 2] = (p + noise * spread * x[..., 2]) * slope + shift
    found = position.r2(read(x, p), p)
    # The best line gives 1/(1 + noise²); λ and the few windows take a little.
    assert abs(found - 1 / (1 + noise**2)) < 0.05


def test_noise_tells_no_position():
    p = position.positions(64)
    for x in (stream(200, 64, 10), position.squares(stream(200, 64, 10))):
        assert abs(position.r2(read(x, p), p)) < 0.01


def test_size_is_seen_by_the_squares_alone():
    p = position.positions(64)
    x = stream(100, 64, 10) / (p + 1).sqrt()[:, None]  # averages of p + 1 draws
    found = position.scores(x)
    assert abs(found["line_log_r2"]) < 0.02
    assert found["squares_log_r2"] > 0.3


def test_the_windows_that_are_read_were_not_fitted():
    x, p = stream(8, 6, 3), position.positions(6)
    before = read(x, p)
    x[3] = 7.0
    after = read(x, p)
    assert torch.equal(before[[0, 2, 3]], after[[0, 2, 3]])  # windows 1, 5 and 7
    assert not torch.equal(before[1], after[1])
    x[2] = 7.0
    assert not torch.allclose(read(x, p)[0], before[0])


def test_ridge_is_that_of_the_definition():
    x, p = stream(6, 9, 3), position.positions(9)
    seen, target = x[::2].reshape(-1, 3).numpy(), np.tile(p.numpy(), 3)
    mean, scale = seen.mean(0), seen.std(0, ddof=1)
    # λ N |w|² as rows of their own in a least-squares problem
    root = np.sqrt(position.RIDGE * len(seen)) * np.eye(3)
    rows = np.vstack([(seen - mean) / scale, root])
    w = np.linalg.lstsq(rows, np.append(target - target.mean(), np.zeros(3)))[0]
    expected = (x[1::2].numpy() - mean) / scale @ w + target.mean()
    assert np.allclose(read(x, p).numpy(), expected)


def test_one_window_is_not_enough():
    with pytest.raises(ValueError, match="two or more"):
        read(stream(1, 5, 3), position.positions(5))


# ---- streams and rows ----------------------------------------------------------------------------


def test_streams_are_those_of_the_decoder_and_no_hook_stays():
    model, tokens = decoder("sinusoidal"), held_out(64, 2)
    found = position.streams(model, tokens)
    assert len(found) == LAYERS + 1
    p = torch.arange(64)
    assert torch.equal(found[0], model.encoding(0).embed(model._embed(tokens) * D**0.5, p, None))
    logits = model.norm(found[-1]) @ model.embedding.weight.T
    torch.testing.assert_close(logits, model(tokens))
    assert not any(b._forward_hooks or b._forward_pre_hooks for b in model.blocks)


def test_a_decoder_that_counts_is_read_after_its_first_layer():
    model = counting.decoder(64)
    tokens = torch.cat([counting.sentence(64, seed) for seed in range(40)])
    before, after, _ = (position.scores(model.norm(x)) for x in position.streams(model, tokens))
    # The start token is known before; the norm after layer 1 turns 1/(i+1) into i + 1.
    assert before["line_r2"] < 0.2
    assert after["line_r2"] > 0.99 and after["line_mae"] < 1


def test_the_rows_and_what_is_there_before_any_layer():
    absolute, none = table("sinusoidal"), table("nope")
    assert len(none) <= 500
    for frame in (absolute, none):
        assert set(frame.loc[frame["quantity"] == "line_r2", "layer"]) == {0, 1, 2}
        assert set(frame.loc[frame["quantity"] == "line_mae", "x"]) == {64, 256}
        read = frame[frame["quantity"] == "squares_read"]
        assert (read.groupby("layer")["x"].nunique() == 64).all()
    at_0 = {"layer": 0, "quantity": "line_r2", "x": 64}
    here, there = (f.loc[(f[list(at_0)] == at_0).all(axis=1), "value"] for f in (absolute, none))
    assert here.item() > 0.3 > 0.1 > there.item()


def test_a_learned_table_is_not_read_past_its_end():
    assert set(table("learned").query("quantity == 'line_r2'")["x"]) == {64}


def test_untrained_weights_do_not_disturb_the_global_generator():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = position.fresh(decoder_without_seed())
    second = position.fresh(decoder_without_seed())
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first.embedding.weight, second.embedding.weight)


def decoder_without_seed():
    with torch.random.fork_rng(devices=[]):
        return decoder("nope")
