"""Encodings of a grid, against their formulas written out in numpy and against other libraries."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from lib.encodings import ENCODINGS, build

GRIDS = [name for name, cls in ENCODINGS.items() if "image" in cls.domain]
SIZES = {"d_model": 32, "n_heads": 4, "max_length": 16}  # d = 8
SIDE = st.integers(1, 7)
STEP = st.floats(-40, 40, allow_nan=False)


def grid(height, width):
    return torch.cartesian_prod(torch.arange(height), torch.arange(width)).reshape(-1, 2)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def make(name, **options):
    torch.manual_seed(3)
    return build(name, **{**SIZES, **options}).double()


def scores(encoding, q_pos, k_pos):
    """Of the same random queries and keys at these positions: (H, Tq, Tk)."""
    q, k = draw(1, 4, len(q_pos), 8), draw(1, 4, len(k_pos), 8, seed=1)
    q, k = encoding.rotate(q, k, q_pos, k_pos)
    bias = encoding.bias(q, k, q_pos, k_pos)
    return (q @ k.mT / math.sqrt(8) + (0 if bias is None else bias))[0].detach()


def test_five_encodings_are_of_the_grid():
    named = ["sinusoidal2d", "learned2d", "rope2d_axial", "rope2d_mixed", "alibi2d"]
    assert sorted(GRIDS) == sorted(named)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("shape", [(5,), (1, 5), (5, 3), (2, 5, 1)])
def test_positions_on_a_line_are_refused(name, shape):
    encoding, x, q = make(name), draw(1, 5, 32), draw(1, 4, 5, 8)
    positions = torch.zeros(shape, dtype=torch.long)

    def every_door():
        encoding.embed(x, positions)
        encoding.rotate(q, q, positions, positions)
        encoding.bias(q, q, positions, positions)

    refuses(every_door, "(row, column)", "(T, 2)")


@pytest.mark.parametrize("name", ["rope2d_axial", "rope2d_mixed", "sinusoidal2d"])
def test_widths_without_a_pair_for_each_axis_are_refused(name):
    refuses(lambda: build(name, d_model=6, n_heads=1, max_length=4), "multiple of 4", "6")
    refuses(lambda: build(name, **SIZES, base=-1.0), "base")


# ---- added to the embeddings ---------------------------------------------------------------------


@given(height=SIDE, width=SIDE, base=st.sampled_from([100.0, 10000.0]))
@settings(max_examples=30)
def test_sinusoids_of_two_axes_are_the_formula(height, width, base):
    positions = grid(height, width)
    found = make("sinusoidal2d", base=base).embed(torch.zeros(1, len(positions), 32), positions)[0]
    omega = 1 / base ** (np.arange(8) / 8)  # as MAE's get_1d_sincos_pos_embed_from_grid
    for (row, column), vector in zip(positions.tolist(), found.numpy(), strict=True):
        for p, half in ((row, vector[:16]), (column, vector[16:])):
            np.testing.assert_allclose(half[0::2], np.sin(p * omega), atol=1e-6)
            np.testing.assert_allclose(half[1::2], np.cos(p * omega), atol=1e-6)


@given(table=st.tuples(SIDE, SIDE), larger=st.tuples(SIDE, SIDE))
@settings(max_examples=20)
def test_an_interpolated_table_is_torchs(table, larger):
    # The reference squeezes and stretches; ours leaves a grid that fits where it is.
    larger = tuple(a + b for a, b in zip(table, larger, strict=True))
    encoding = make("learned2d", max_length=table[0] * table[1], grid=table, beyond="interpolate")
    positions = grid(*larger)
    found = encoding.embed(torch.zeros(1, len(positions), 32, dtype=torch.float64), positions)[0]
    P = encoding.table.detach().permute(2, 0, 1)[None]  # (1, D, height, width)
    expected = F.interpolate(P, size=larger, mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(found.detach(), expected.flatten(1).T)
    # A part of the grid, where the size of the whole is said.
    part = encoding.embed(
        torch.zeros(1, 1, 32, dtype=torch.float64), positions[-1:] * 0, length=larger
    )
    torch.testing.assert_close(part[0, 0].detach(), expected[:, 0, 0])


def test_a_table_within_its_grid_is_its_rows():
    for beyond in ("refuse", "interpolate"):
        encoding = make("learned2d", max_length=6, grid=(2, 3), beyond=beyond)
        zeros = torch.zeros(1, 6, 32, dtype=torch.float64)
        assert torch.equal(encoding.embed(zeros, grid(2, 3))[0], encoding.table.flatten(0, 1))
    quarter = torch.tensor([[0.25, 1.5]])
    between = encoding.embed(zeros[:, :1], quarter)[0, 0]
    P = encoding.table
    expected = 0.75 * (P[0, 1] + P[0, 2]) / 2 + 0.25 * (P[1, 1] + P[1, 2]) / 2
    torch.testing.assert_close(between, expected)
    at_the_edge = encoding.embed(zeros[:, :1], torch.tensor([[-0.25, 2.4]]))[0, 0]
    torch.testing.assert_close(at_the_edge, P[0, 2])


def test_a_grid_is_not_its_number_of_places():
    encoding, zeros = make("learned2d", max_length=16, grid=(2, 8)), draw(1, 16, 32) * 0
    assert encoding.embed(zeros, grid(2, 8)).shape == (1, 16, 32)
    refuses(lambda: encoding.embed(zeros, grid(4, 4)), "2 × 8", "grow")
    refuses(lambda: encoding.embed(zeros, grid(2, 8) - 1), "2 × 8")
    refuses(lambda: make("learned2d", max_length=12), "3 × 3", "12", "grid")
    refuses(lambda: make("learned2d", max_length=12, grid=(3, 5)), "3 × 5", "12")
    refuses(lambda: make("learned2d", max_length=12, grid=(-3, -4)), "height")
    refuses(lambda: make("learned2d", beyond="stretch"), "interpolate")


def test_an_interpolated_table_refuses_what_is_nowhere():
    encoding, zeros = make("learned2d", beyond="interpolate"), draw(1, 16, 32) * 0
    refuses(lambda: encoding.embed(zeros, grid(4, 4) - 1), "from 0")
    for length in ((3, 9), 4, (8, 8, 8)):
        refuses(lambda length=length: encoding.embed(zeros, grid(4, 4), length), "(height, width)")


def test_a_table_grows_around_its_places():
    encoding = make("learned2d").float()
    grown = encoding.grow((5, 7), torch.Generator().manual_seed(0))
    assert torch.equal(grown.table[:4, :4], encoding.table) and grown.max_length == 35
    fresh = torch.cat([grown.table[4].flatten(), grown.table[:4, 4:].flatten()])
    assert 0.8 < fresh.std() < 1.2
    again = encoding.grow((5, 7), torch.Generator().manual_seed(0))
    assert torch.equal(grown.table, again.table)
    assert encoding.table.shape == (4, 4, 32)
    refuses(lambda: encoding.grow((3, 9), torch.Generator()), "4 × 4", "shrink")


# ---- turned --------------------------------------------------------------------------------------


def as_complex(x):
    return x[..., 0::2] + 1j * x[..., 1::2]


@given(height=SIDE, width=SIDE, base=st.sampled_from([10.0, 100.0]))
def test_axial_rotation_is_the_formula(height, width, base):
    positions = grid(height, width)
    q = draw(2, 4, len(positions), 8)
    found, _ = make("rope2d_axial", base=base).rotate(q, q, positions, positions)
    theta = base ** (-4 * np.arange(2) / 8)  # d/4 = 2 frequencies an axis
    phase = np.concatenate([np.outer(positions[:, axis], theta) for axis in (0, 1)], axis=1)
    expected = as_complex(q.numpy()) * np.exp(1j * phase)
    np.testing.assert_allclose(as_complex(found.numpy()), expected, atol=1e-12)


def test_axial_rotation_is_the_librarys():
    library = pytest.importorskip("rotary_embedding_torch")
    q = draw(1, 4, 5 * 7, 8).float()
    found, _ = make("rope2d_axial").rotate(q, q, grid(5, 7), grid(5, 7))
    theirs = library.RotaryEmbedding(dim=4, freqs_for="lang", theta=100)
    expected = library.apply_rotary_emb(theirs.get_axial_freqs(5, 7), q.unflatten(2, (5, 7)))
    # Their phases are float32.
    torch.testing.assert_close(found, expected.flatten(2, 3), rtol=0, atol=4 * 8 * 2.0**-24 * 4)


def test_mixed_rotation_is_the_formula():
    encoding, positions = make("rope2d_mixed"), draw(2, 6, 2) * 9
    q, k = draw(2, 4, 6, 8), draw(2, 2, 6, 8, seed=1)
    found_q, found_k = (x.detach().numpy() for x in encoding.rotate(q, k, positions, positions))
    theta = encoding.theta.detach().numpy()
    for b in range(2):
        for h in range(4):
            # Two keys for four queries: a group has the frequencies of its first head.
            phase = positions[b].numpy() @ theta[h // 2 * 2].T  # (T, d/2)
            expected = as_complex(q[b, h].numpy()) * np.exp(1j * phase)
            np.testing.assert_allclose(as_complex(found_q[b, h]), expected, atol=1e-12)
            expected = as_complex(k[b, h // 2].numpy()) * np.exp(1j * phase)
            np.testing.assert_allclose(as_complex(found_k[b, h // 2]), expected, atol=1e-12)


def test_mixed_frequencies_begin_as_the_papers():
    encoding = build("rope2d_mixed", **SIZES)
    theta = encoding.theta.detach().double().numpy()  # (4, 4, 2)
    lengths = np.linalg.norm(theta, axis=-1)
    np.testing.assert_allclose(lengths, np.tile(10 ** (-4 * np.arange(2) / 8), (4, 2)), rtol=1e-6)
    # One direction a head, and the one at a right angle to it; each head has another.
    unit = theta / lengths[..., None]
    np.testing.assert_allclose(unit[:, 0], unit[:, 1], atol=1e-6)
    np.testing.assert_allclose((unit[:, 0] * unit[:, 2]).sum(-1), 0, atol=1e-6)
    assert len(np.unique(unit[:, 0].round(3), axis=0)) == 4


def test_axial_is_mixed_with_frequencies_on_the_axes():
    axial, mixed = make("rope2d_axial"), make("rope2d_mixed")
    theta = axial.frequencies()
    with torch.no_grad():
        mixed.theta.zero_()
        mixed.theta[:, :2, 0] = mixed.theta[:, 2:, 1] = theta
    q, k = draw(1, 4, 12, 8), draw(1, 4, 12, 8, seed=1)
    for a, b in zip(*(e.rotate(q, k, grid(3, 4), grid(3, 4)) for e in (axial, mixed)), strict=True):
        torch.testing.assert_close(a, b.detach())


def test_no_token_is_turned_at_the_origin():
    # What "the class token is not rotated" comes to.
    q, origin = draw(1, 4, 1, 8), torch.zeros(1, 2)
    for name in ("rope2d_axial", "rope2d_mixed"):
        assert torch.equal(make(name).rotate(q, q, origin, origin)[0], q)


@given(down=STEP, across=STEP)
@settings(max_examples=20)
def test_an_axial_score_is_a_sum_over_the_axes_and_a_mixed_one_is_not(down, across):
    at = torch.zeros(1, 2)
    both, row, column = (torch.tensor([v]) for v in ((down, across), (down, 0.0), (0.0, across)))

    def excess(name):
        s = [scores(make(name), at, k_pos) for k_pos in (both, at, row, column)]
        return (s[0] + s[1] - s[2] - s[3]).abs().max().item()

    assert excess("rope2d_axial") < 1e-12
    if abs(down) > 0.5 and abs(across) > 0.5:
        assert excess("rope2d_mixed") > 1e-3


@pytest.mark.parametrize(
    "name, options",
    [(n, {}) for n in ("rope2d_axial", "rope2d_mixed", "alibi2d")]
    + [("alibi2d", {"directional": True})],
)
@given(down=STEP, across=STEP)
@settings(max_examples=20)
def test_scores_stay_when_both_axes_shift(name, options, down, across):
    encoding, here = make(name, **options), grid(3, 4)
    there = here + torch.tensor([down, across], dtype=torch.float64)
    torch.testing.assert_close(
        scores(encoding, there, there), scores(encoding, here, here), rtol=0, atol=1e-12
    )
    moved = here + torch.tensor([down + 1.0, across], dtype=torch.float64)
    assert not torch.allclose(scores(encoding, there, moved), scores(encoding, here, here))


# ---- a bias --------------------------------------------------------------------------------------


@pytest.mark.parametrize("directional", [False, True])
def test_the_penalty_is_the_formula(directional):
    encoding = make("alibi2d", d_model=48, n_heads=6, directional=directional)
    q = draw(1, 6, 12, 8)
    found = encoding.bias(q, q, grid(3, 4), grid(3, 4))
    slopes = [2.0 ** -(2 * h + 2) for h in range(4)] + [0.5, 0.125]
    ways = [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, 0), (1, 0)]
    for h in range(6):
        for i, (r, c) in enumerate(grid(3, 4).tolist()):
            for j, (R, C) in enumerate(grid(3, 4).tolist()):
                cost = slopes[h] * math.hypot(R - r, C - c)
                if directional:
                    ahead = (R - r) * ways[h][0] + (C - c) * ways[h][1]
                    cost = (1.0 if h < 4 else 0.5) * (math.hypot(R - r, C - c) - ahead)
                assert found[0, h, i, j].item() == pytest.approx(-cost, abs=1e-12)


def test_a_grid_of_one_row_has_the_penalty_of_a_line():
    q, line = draw(1, 4, 9, 8), torch.arange(9)
    on_a_line = build("alibi", **SIZES).bias(q, q, line, line)
    on_a_grid = build("alibi2d", **SIZES).bias(q, q, grid(1, 9), grid(1, 9))
    torch.testing.assert_close(on_a_grid, on_a_line)


def test_the_distance_alone_tells_no_directions():
    encoding = make("alibi2d")
    at, around = torch.zeros(1, 2), torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    q, k = draw(1, 4, 1, 8), draw(1, 4, 4, 8)
    assert (encoding.bias(q, k, at, around).diff(dim=-1) == 0).all()
    ways = make("alibi2d", directional=True).bias(q, k, at, around)[0, :, 0]  # (4, 4)
    assert ways.argmax(-1).tolist() == [3, 2, 1, 0]  # up, down, left, right
    refuses(lambda: make("alibi2d", directional="yes"), "directional")
