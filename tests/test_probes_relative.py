"""Probes of learned positions: known answers on tables and biases that are made by hand."""

import math

import pandas as pd
import pytest
import torch

from lib.encodings.t5 import bucket
from lib.probes import relative, tables
from lib.transformer import Config, Decoder

V, D, H, LAYERS, L = 1024, 24, 3, 2, 64  # the vocabulary is the corpus's
FEW = {"windows": 3}


def decoder(encoding, **options):
    torch.manual_seed(0)
    return Decoder(Config(encoding, V, D, H, LAYERS, L, 32, options=options)).eval()


def frame(rows):
    found = pd.DataFrame(rows)
    assert list(found.columns) == ["layer", "head", "quantity", "x", "value"]
    assert not found.duplicated(["layer", "head", "quantity", "x"]).any()
    assert found["value"].notna().all()
    return found.set_index(["quantity", "layer", "head", "x"])["value"].sort_index()


# ---- tables --------------------------------------------------------------------------------------


def test_rows_on_a_circle_are_alike_as_their_angle_says():
    angle = torch.arange(L, dtype=torch.float64) * 0.1
    P = 3 * torch.stack([angle.cos(), angle.sin()], dim=1)
    torch.testing.assert_close(tables.cosine_by_distance(P), angle.cos())
    # The midpoint of two neighbours lies inside the circle, by the sagitta.
    assert float(tables.midpoint_error(P)) == pytest.approx(1 - math.cos(0.1))


def test_midpoints_of_a_line_and_of_independent_rows():
    line = torch.arange(1.0, 9.0)[:, None] * torch.tensor([[1.0, -2.0]])
    assert float(tables.midpoint_error(line)) == pytest.approx(0, abs=1e-6)
    noise = torch.randn(2000, 100, generator=torch.Generator().manual_seed(0))
    assert float(tables.midpoint_error(noise)) == pytest.approx(1.5**0.5, rel=0.01)


def test_the_rows_of_a_table():
    model = decoder("learned")
    with torch.no_grad():
        model.encodings[0].table[5] *= 100
    found = frame(tables.table(model, {}))
    assert found["row_norm", -1, -1].idxmax() == 5
    assert list(found["row_cosine", -1, -1].index) == list(range(1, L))
    assert len(found) == 2 * L


# ---- T5 ------------------------------------------------------------------------------------------


def biased(b):
    model = decoder("t5")
    with torch.no_grad():
        model.encodings[0].b.copy_(b)
    return model


def test_filling_reaches_every_distance_past_training_and_none_within():
    b = torch.randn(H, 32, generator=torch.Generator().manual_seed(0))
    model = biased(b)
    other = relative.filled(model, L)
    delta = torch.arange(300)
    before, after = (m.encodings[0].bias_by_distance(delta) for m in (model, other))
    assert torch.equal(after[:, :L], before[:, :L])
    assert torch.equal(after[:, L:], before[:, L - 1 :][:, :1].expand(H, 300 - L))
    assert torch.equal(model.encodings[0].b, b)  # a copy was filled


def test_a_bias_that_hides_the_far_makes_the_length_matter_less_when_filled():
    b = torch.full((H, 32), -30.0)
    b[:, 0] = 0  # every head looks at its own token; what training never saw is at 0 as well
    b[:, bucket(torch.tensor(L - 1)).item() + 1 :] = 0
    losses = frame(relative.t5(biased(b), FEW))
    filled = losses["nll_filled", -1, -1]
    assert filled.max() - filled.min() < 5e-5
    trained = losses["nll_as_trained", -1, -1]
    assert trained[L] == filled[L] and abs(trained[1024] - filled[1024]) > 3e-4


def test_the_rows_of_a_bias():
    b = torch.arange(H * 32.0).view(H, 32)
    found = frame(relative.t5(biased(b), FEW))
    assert found["bias", -1, 2, 7] == b[2, 7]
    assert len(found) == H * 32 + 2 * len(relative.LENGTHS)


# ---- Shaw ----------------------------------------------------------------------------------------


def test_the_key_term_is_what_the_bias_adds_beside_a_far_key():
    model = decoder("shaw", clip=4)
    encoding = model.encodings[0].double()
    q = torch.randn(2, H, 20, D // H, generator=torch.Generator().manual_seed(1)).double()
    p = torch.arange(20)
    bias = encoding.bias(q, q, p, p)
    term = relative.key_term(encoding, q)
    for r in range(-4, 1):  # the last query and the key r places from it, beside the first key
        expected = bias[:, :, -1, 19 + r] - bias[:, :, -1, 0]
        torch.testing.assert_close(term[:, :, -1, r + 4], expected)


def test_the_rows_of_relations():
    model = decoder("shaw")
    with torch.no_grad():
        model.encodings[1].a_k[3] = 0.0
    found = frame(relative.shaw(model, FEW))
    assert found["norm_k", 1, -1, 3 - 16] == 0 and found["norm_v", 1, -1].min() > 0
    assert list(found["key_term", 0, 1].index) == list(range(-16, 1))
    assert (found["key_term", :, :, -16] == 0).all() and (found["key_term_sd"] >= 0).all()
    assert len(found) == LAYERS * (2 * 33 + H * 2 * 17)


def test_vectors_that_no_query_meets_earn_nothing():
    model = decoder("shaw")
    with torch.no_grad():
        for encoding in model.encodings:
            encoding.a_k[:] = encoding.a_k[:1].clone()  # every relation alike
    found = frame(relative.shaw(model, FEW))
    assert found["key_term"].abs().max() < 1e-6
