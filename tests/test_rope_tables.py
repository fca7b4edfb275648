"""The table of sines and cosines that turns queries and keys, however it is made."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.encodings import build, rope

LAYOUT = st.sampled_from(rope.LAYOUTS)


def numbers(by):
    return torch.complex(*by) if isinstance(by, tuple) else by


@given(st.integers(0, 10**6), st.integers(1, 700), st.sampled_from([2, 32, 64]), LAYOUT)
def test_a_run_of_positions_gives_the_table_of_the_positions(first, n, d, layout):
    phase = build("rope", d_model=d, n_heads=1, max_length=64).phase
    positions = torch.arange(first, first + n)
    expected = numbers(rope.table(phase(positions), 1.5, torch.float64, layout))
    found = numbers(rope.table_of_a_run(positions, phase, 1.5, torch.float64, layout))
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 8 * (first + n) * 2.0**-53


@pytest.mark.parametrize("scaling", [None, {"rope_type": "yarn", "factor": 4.0}, {
    "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16,
    "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0], "start_tokens": 5,
}], ids=["none", "yarn", "longrope"])  # fmt: skip
@pytest.mark.parametrize("layout", rope.LAYOUTS)
def test_long_runs_and_single_positions_are_turned_alike(scaling, layout):
    turned = build("rope", d_model=8, n_heads=1, max_length=64, layout=layout, scaling=scaling)
    n = 2 * rope.LONG
    q, p = torch.randn(1, 1, n, 8, dtype=torch.float64), torch.arange(n)
    together, _ = turned.rotate(q, q, p, p, length=n)
    some = [0, 3, 4, 5, 6, 255, n - 1]
    apart = [
        turned.rotate(q[:, :, [i]], q[:, :, :1], p[i : i + 1], p[:1], length=n)[0] for i in some
    ]
    assert torch.allclose(torch.cat(apart, 2), together[:, :, some], atol=1e-12)


def test_the_parts_of_a_runs_table_lie_without_gaps():
    phase = build("rope", d_model=8, n_heads=1, max_length=64).phase
    by = rope.table_of_a_run(torch.arange(300), phase, 1.0, torch.float32, "half_split")
    assert all(part.is_contiguous() for part in by)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.float64])
def test_a_run_is_known_in_every_dtype(dtype):
    run = torch.arange(5, 700, dtype=dtype)
    assert rope._is_a_long_run(run)
    assert not rope._is_a_long_run(2 * run) and not rope._is_a_long_run(run[: rope.LONG - 1])


def test_a_step_that_float32_rounds_away_makes_no_run():
    positions = 2.0**24 + torch.arange(300, dtype=torch.float32)  # … + 1 is … + 0 there
    assert not rope._is_a_long_run(positions)


def test_positions_with_a_gap_are_no_run():
    positions = torch.cat([torch.arange(300), torch.arange(301, 700)])
    assert not rope._is_a_long_run(positions) and rope._is_a_long_run(torch.arange(5, 700))
    turned = build("rope", d_model=8, n_heads=1, max_length=64)
    q = torch.randn(1, 1, len(positions), 8, dtype=torch.float64)
    found, _ = turned.rotate(q, q, positions, positions)
    expected = rope.turn(q, turned.phase(positions), "interleaved")
    assert torch.equal(found, expected)
