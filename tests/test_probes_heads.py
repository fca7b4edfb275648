"""Probes of attention: the weights are the model's own; shares and reaches of known cases."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.encodings import ENCODINGS, build
from lib.probes import pairs, reach
from lib.probes.heads import heads, held_out
from lib.transformer import Config, Decoder

V, D, H, LAYERS = 1024, 24, 3, 2  # the vocabulary is the corpus's
SIZES = {"d_model": D, "n_heads": H, "max_length": 64}
TEXT = [name for name, encoding in ENCODINGS.items() if "text" in encoding.domain]
SEES_WEIGHTS = [name for name in TEXT if not build(name, **SIZES).adds_values()]


def decoder(encoding):
    torch.manual_seed(0)
    model = Decoder(Config(encoding, V, D, H, LAYERS, 64, 32)).eval().requires_grad_(False)
    for parameter in model.parameters():  # larger than at the start, so that heads differ
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def blind(encoding):
    """A decoder whose queries and keys are 0: its encoding alone decides."""
    model = decoder(encoding)
    for block in model.blocks:
        block.w_qkv.weight.zero_()
    return model


def table(rows):
    frame = pd.DataFrame(rows)
    assert list(frame.columns) == ["layer", "head", "quantity", "x", "value"]
    assert not frame.duplicated(["layer", "head", "quantity", "x"]).any()
    assert np.isfinite(frame["value"]).all()
    return frame


def of(frame, quantity):
    """(layers, H, x) of one quantity."""
    rows = frame[frame["quantity"] == quantity].sort_values(["layer", "head", "x"])
    return rows["value"].to_numpy().reshape(LAYERS, H, -1)


# ---- the weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", SEES_WEIGHTS)
def test_the_weights_mix_the_values_as_the_model_does(encoding):
    model = decoder(encoding)
    tokens = torch.randint(V, (2, 40), generator=torch.Generator().manual_seed(1))
    values, mixed = [], []
    for block in model.blocks:
        block.w_qkv.register_forward_hook(lambda b, _, y: values.append(y[..., -D:]))
        block.w_o.register_forward_pre_hook(lambda b, x: mixed.append(x[0]))
    with torch.inference_mode():
        model(tokens)
    model_values, model_mixed = values.copy(), mixed.copy()
    for layer, seen in enumerate(heads(model, tokens)):
        v = model_values[layer].unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, T, d)
        y = (seen.weights(40) @ v).transpose(1, 2).flatten(-2)
        torch.testing.assert_close(y, model_mixed[layer], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(seen.weights(7), seen.weights(40)[..., -7:, :])


def test_looking_leaves_no_hook_behind():
    model = decoder("rope")
    heads(model, torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError):
        heads(model, torch.zeros(3, dtype=torch.int64))
    assert not any(block._forward_pre_hooks for block in model.blocks)


def test_windows_of_held_out_text_have_their_length_and_are_the_same_each_time():
    tokens = held_out(64, 5)
    assert tokens.shape == (5, 64) and len(tokens.unique(dim=0)) == 5
    assert torch.equal(tokens, held_out(64, 5))


# ---- pairs of RoPE -------------------------------------------------------------------------------

random_qk = st.integers(0, 2**31).map(
    lambda seed: torch.randn(
        2, 2, H, 9, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
)


@settings(max_examples=20)
@given(qk=random_qk)
def test_shares_are_those_of_the_definition(qk):
    q, k = qk
    parts = torch.stack([q[..., c : c + 2] @ k[..., c : c + 2].mT for c in (0, 2, 4)], -1) / 6**0.5
    covariance = torch.zeros(H, 3, dtype=torch.float64)
    for i in range(9):
        row = parts[:, :, i, : i + 1]  # (B, H, keys, pairs)
        apart = row - row.mean(2, keepdim=True)
        covariance += (apart * apart.sum(-1, keepdim=True)).mean(2).sum(0)
    expected = covariance / covariance.sum(-1, keepdim=True)
    torch.testing.assert_close(pairs.shares(q, k), expected)


@settings(max_examples=20)
@given(qk=random_qk, pair=st.integers(0, 2))
def test_a_pair_whose_keys_are_all_alike_has_no_share(qk, pair):
    q, k = qk
    k[..., 2 * pair : 2 * pair + 2] = 100.0  # it moves every logit of a row by the same
    shares = pairs.shares(q, k)
    assert shares[:, pair].abs().max() < 1e-9
    torch.testing.assert_close(shares.sum(-1), torch.ones(H, dtype=torch.float64))


def test_the_size_of_a_pair_is_the_product_of_its_radii():
    q, k = torch.zeros(2, 1, H, 5, 6)
    q[..., 2], k[..., 3] = -3.0, 4.0
    torch.testing.assert_close(pairs.sizes(q, k), torch.tensor([[0.0, 12 / 6**0.5, 0.0]] * H))


def test_the_rows_of_pairs():
    frame = table(pairs.pairs(decoder("rope"), {"windows": 3}))
    assert of(frame, "pair_share").shape == of(frame, "pair_size").shape == (LAYERS, H, D // H // 2)
    assert np.allclose(of(frame, "pair_share").sum(-1), 1, atol=1e-4)
    assert of(frame, "pair_size").min() > 0


# ---- reach ---------------------------------------------------------------------------------------


def test_weights_are_summed_by_their_distance():
    weights = torch.zeros(1, 1, 2, 5)
    weights[0, 0, 0, 3] = weights[0, 0, 1, 0] = 1.0  # query 3 looks at itself, query 4 at token 0
    assert reach.by_distance(weights).tolist() == [[0.5, 0, 0, 0, 0.5]]


def test_without_positions_and_content_the_reach_is_half_of_what_is_there():
    frame = table(reach.reach(blind("nope"), {"windows": 4}))
    last = {T: np.arange(T - reach.QUERIES, T) for T in reach.LENGTHS}
    expected = [np.mean(last[T] / 2) for T in reach.LENGTHS]
    assert np.allclose(of(frame, "mean_distance"), expected, rtol=1e-4)


def test_without_content_alibi_reaches_as_its_slopes_say():
    frame = table(reach.reach(blind("alibi"), {"windows": 4}))
    for head, m in enumerate((1 / 16, 1 / 256, 1 / 4)):
        weights = np.exp(-m * np.arange(1024))
        rows = [weights[: i + 1] / weights[: i + 1].sum() for i in range(1024 - 32, 1024)]
        profile = np.mean([np.pad(row, (0, 1024 - len(row))) for row in rows], axis=0)
        mean = of(frame, "mean_distance")[:, head, 1]
        assert np.allclose(mean, profile @ np.arange(1024), rtol=1e-4)
        within = of(frame, "weight_within_1024")[:, head]
        assert np.allclose(within[:, 5], profile[:17].sum(), rtol=1e-4)  # up to distance 16
        distance = of(frame, "distance_90")[0, head, 1]
        assert profile[: int(distance) + 1].sum() >= 0.9 > profile[: int(distance)].sum()
        assert m == 1 / 256 or distance == math.ceil(math.log(10) / m) - 1


def test_all_weight_lies_within_the_window():
    frame = table(reach.reach(decoder("t5"), {"windows": 4}))
    assert len(frame) <= 1500 // 3
    for T in reach.LENGTHS:
        within = of(frame, f"weight_within_{T}")
        assert np.allclose(within[..., -1], 1, atol=1e-5)
        assert (np.diff(within) >= 0).all() and within.min() >= 0
