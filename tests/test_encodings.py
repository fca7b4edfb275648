"""Each encoding against its paper's formula, written out again here in plain Python, and what all
of them must keep: shapes, dtypes, positions of every kind, slices of heads, no state."""

import cmath
import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusing import refuses

from lib.encodings import ENCODINGS, Encoding, build, register
from lib.encodings.alibi import slopes
from lib.encodings.base import distances
from lib.encodings.rope import LAYOUTS
from lib.encodings.t5 import bucket

TEXT = [name for name, cls in ENCODINGS.items() if "text" in cls.domain]
B, H, H_KV, D, T = 2, 4, 2, 24, 7
d = D // H
HALF = [torch.bfloat16, torch.float16]


def make(name, seed=0, **sizes_and_options):
    """An encoding whose parameters are drawn, since T5's start at zero."""
    encoding = build(name, **{"d_model": D, "n_heads": H, "max_length": 64, **sizes_and_options})
    generator = torch.Generator().manual_seed(seed)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return encoding.double()


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(numbers):
    """A tensor of Python's floats as they are, in float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def every_door(encoding, x, q, k, weights, positions, length=None):
    """What comes out of the four doors, by name, without what is None."""
    q_turned, k_turned = encoding.rotate(q, k, positions, positions, length)
    out = {
        "embed": encoding.embed(x, positions, length),
        "q": q_turned,
        "k": k_turned,
        "bias": encoding.bias(q_turned, k_turned, positions, positions),
        "values": encoding.values(weights, positions, positions),
    }
    return {door: y for door, y in out.items() if y is not None}


def inputs(dtype=torch.float64, heads=H, n=T):
    x, q = draw(B, n, D, dtype=dtype), draw(B, heads, n, d, seed=1, dtype=dtype)
    k = draw(B, H_KV, n, d, seed=2, dtype=dtype)
    return x, q, k, draw(B, heads, n, n, seed=3).softmax(-1).to(torch.promote_types(dtype, q.dtype))


# --- the register -------------------------------------------------------------------------------


def test_encodings_stand_in_the_order_of_the_story():
    story = ["sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "nope"]
    assert list(ENCODINGS)[: len(story)] == story
    assert all(ENCODINGS[name].name == name for name in ENCODINGS)


def test_a_name_is_taken_once():
    class Rope(Encoding):
        pass

    before = dict(ENCODINGS)
    refuses(lambda: register("rope")(Rope), "'rope'", "another")
    assert ENCODINGS == before
    register("rope")(ENCODINGS["rope"])  # a cell that runs again
    assert ENCODINGS == before


SIZES = {"d_model": 24, "n_heads": 4, "max_length": 64}


@pytest.mark.parametrize(
    "name, changes, word",
    [
        ("rotary", {}, "sinusoidal, learned, shaw, t5, rope, alibi, nope"),
        ("rope", {"theta": 1e4}, "base"),
        ("nope", {"base": 1e4}, "heads"),
        ("sinusoidal", {"d_model": 15, "n_heads": 3}, "even"),
        ("rope", {"d_model": 15, "n_heads": 3}, "even"),
        ("rope", {"layout": "half"}, "half_split"),
        ("learned", {"beyond": "stretch"}, "interpolate"),
        ("t5", {"n_buckets": 31}, "multiple of 2"),
        ("t5", {"n_buckets": 30, "bidirectional": True}, "multiple of 4"),
        ("t5", {"max_distance": 16}, "16"),
        ("t5", {"max_distance": 8, "bidirectional": True}, "8"),
        *[("shaw", {"clip": bad}, "clip") for bad in (0, -1, True, 2.5, "16", None)],
        *[("t5", {"n_buckets": bad}, "n_buckets") for bad in (0, -2, True, 32.0, "32", None)],
        *[("t5", {"max_distance": bad}, "max_distance") for bad in (0, True, 128.0, math.nan)],
        *[
            (name, {"base": bad}, "base")
            for name in ("rope", "sinusoidal")
            for bad in (0, -1.0, math.nan, math.inf, True, "10000", None)
        ],
    ],
)
def test_what_cannot_be_built_is_refused(name, changes, word):
    refuses(lambda: build(name, **{**SIZES, **changes}), word)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bad", [0, -4, True, 8.0, "8", None])
def test_a_size_is_a_whole_number(name, size, bad):
    refuses(lambda: build(name, **{**SIZES, size: bad}), size, repr(bad))


@pytest.mark.parametrize("name", ENCODINGS)
def test_heads_divide_the_width_and_are_a_slice(name):
    refuses(lambda: build(name, d_model=24, n_heads=5, max_length=8), "n_heads", "5", "24")
    for bad in (range(0), range(2, 5), range(-1, 2), [0, 1], 2):
        refuses(lambda bad=bad: build(name, **SIZES, heads=bad), "heads", "range(4)")


@pytest.mark.parametrize("name", TEXT)
def test_a_size_may_come_from_numpy(name):
    sizes = {size: np.int64(value) for size, value in SIZES.items()}
    assert build(name, **sizes).d == SIZES["d_model"] // SIZES["n_heads"]


@pytest.mark.parametrize("name, n", [("shaw", 2 * 33 * 6), ("t5", 32 * 4), ("learned", 64 * 24)])
def test_the_number_of_parameters_is_the_papers(name, n):
    assert sum(p.numel() for p in build(name, **SIZES).parameters()) == n


@pytest.mark.parametrize("name", TEXT)
def test_only_parameters_enter_the_state_dict(name):
    encoding = build(name, **SIZES)
    assert set(encoding.state_dict()) == {key for key, _ in encoding.named_parameters()}
    if name in ("sinusoidal", "rope", "alibi", "nope"):
        assert not encoding.state_dict()


# --- every encoding -----------------------------------------------------------------------------

KINDS = {
    "integers": lambda: torch.arange(T) + 3,
    "fractions": lambda: torch.arange(T) * 0.75 + 3,
    "rows of integers": lambda: torch.stack([torch.arange(T), torch.arange(T) + 20]),
    "rows of fractions": lambda: torch.stack([torch.arange(T) * 1.5, torch.arange(T) + 20.25]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEXT)
def test_doors_keep_shapes_and_dtypes(name, kind, dtype):
    encoding, positions = make(name).float(), KINDS[kind]()
    x, q, k, weights = inputs(dtype)
    doors = every_door(encoding, x, q, k, weights, positions)
    for door, y in (("embed", x), ("q", q), ("k", k)):
        assert doors[door].shape == y.shape and doors[door].dtype == dtype
    if "bias" in doors:
        rows = doors["bias"].shape[0]
        assert doors["bias"].shape == (rows, H, T, T) and rows in (1, B)
        assert rows == B or positions.dim() == 1
        assert doors["bias"].dtype == torch.promote_types(dtype, torch.float32)
    if "values" in doors:
        assert doors["values"].shape == (B, H, T, d)
    assert all(y.isfinite().all() for y in doors.values())


@pytest.mark.parametrize("name", TEXT)
def test_a_position_counts_whatever_its_kind(name):
    # Integers, the same as floats, and the same in every row of a batch: bit for bit.
    encoding, positions = make(name), KINDS["integers"]()
    expected = every_door(encoding, *inputs(), positions)
    for same in (positions.int(), positions.float(), positions.double(), positions.expand(B, T)):
        for door, y in every_door(encoding, *inputs(), same).items():
            assert torch.equal(y, expected[door].expand(y.shape)), door


@pytest.mark.parametrize("name", TEXT)
def test_rows_are_independent(name):
    # What a row of a batch gets is what it gets alone, with the positions of its own.
    positions = KINDS["rows of fractions"]()
    encoding, arguments = make(name), inputs()
    together = every_door(encoding, *arguments, positions)
    for b in range(B):
        alone = every_door(encoding, *(y[b : b + 1] for y in arguments), positions[b])
        for door, y in alone.items():
            torch.testing.assert_close(together[door][b : b + 1], y, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", TEXT)
def test_fewer_queries_than_keys_are_the_last_rows(name):
    encoding, positions = make(name), KINDS["rows of integers"]()
    _, q, k, weights = inputs()
    whole = every_door(encoding, *inputs(), positions)
    for n in (1, 3):
        q_pos, q_last = positions[:, -n:], q[:, :, -n:]
        q_turned, k_turned = encoding.rotate(q_last, k, q_pos, positions)
        torch.testing.assert_close(q_turned, whole["q"][:, :, -n:], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(k_turned, whole["k"], rtol=1e-13, atol=1e-13)
        if "bias" in whole:
            bias = encoding.bias(q_turned, k_turned, q_pos, positions)
            torch.testing.assert_close(bias, whole["bias"][:, :, -n:], rtol=1e-13, atol=1e-13)
        if "values" in whole:
            values = encoding.values(weights[:, :, -n:], q_pos, positions)
            torch.testing.assert_close(values, whole["values"][:, :, -n:], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("heads", [range(6, 11), range(0, 6), range(11, 12), range(1, 12, 4)])
@pytest.mark.parametrize("name", TEXT)
def test_a_slice_of_the_heads_is_that_part_of_the_whole(name, heads):
    whole = make(name, d_model=48, n_heads=12)
    part = make(name, d_model=48, n_heads=12, heads=heads)
    picked = list(heads)
    with torch.no_grad():
        for key, parameter in part.named_parameters():
            full = whole.get_parameter(key)
            parameter.copy_(full if full.shape == parameter.shape else full[picked])
    positions = torch.arange(T)
    x, q = draw(B, T, whole.d_model), draw(B, 12, T, whole.d, seed=1)
    k, weights = draw(B, 12, T, whole.d, seed=2), draw(B, 12, T, T, seed=3).softmax(-1)
    full = every_door(whole, x, q, k, weights, positions)
    some = every_door(part, x, q[:, picked], k[:, picked], weights[:, picked], positions)
    assert some.keys() == full.keys()
    assert torch.equal(some.pop("embed"), full.pop("embed"))
    for door, y in some.items():
        torch.testing.assert_close(y, full[door][:, picked], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", TEXT)
def test_what_comes_out_does_not_depend_on_earlier_calls(name):
    used, fresh = make(name).float(), make(name).float()
    before = copy.deepcopy(vars(used))
    arguments = inputs(torch.float32)
    # Longer, in another dtype, at other offsets, under autocast, and with a gradient.
    for dtype in (torch.bfloat16, torch.float64, torch.float32):
        for positions in (torch.arange(64), torch.arange(64).float() / 2, torch.arange(64) + 0.0):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                for y in every_door(used, *inputs(dtype, n=64), positions).values():
                    if y.requires_grad:
                        y.sum().backward(retain_graph=True)
    used.zero_grad(set_to_none=True)
    after = vars(used)
    assert after.keys() == before.keys()
    assert all(after[key] == before[key] for key in after if key not in ("_parameters", "_buffers"))
    for positions in (torch.arange(T), torch.arange(T) + 5):
        expected = every_door(fresh, *arguments, positions)
        for door, y in every_door(used, *arguments, positions).items():
            assert torch.equal(y, expected[door]), door


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("name", TEXT)
def test_autocast_changes_nothing(name, dtype):
    encoding, positions = make(name).float(), torch.arange(T) + 50
    expected = every_door(encoding, *inputs(dtype), positions)
    for low in HALF:
        with torch.autocast("cpu", dtype=low):
            doors = every_door(encoding, *inputs(dtype), positions)
        for door, y in doors.items():
            assert y.dtype == expected[door].dtype and torch.equal(y, expected[door]), door


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", TEXT)
def test_half_precision_is_rounded_once_and_last(name, dtype):
    # At position 4095, where a phase in half precision or a table summed in it is off by far more.
    encoding = make(name, max_length=4096)
    positions = torch.arange(4096 - T, 4096)
    x, q, k, weights = inputs(dtype)
    expected = every_door(encoding, x.double(), q.double(), k.double(), weights, positions)
    doors = every_door(encoding.float(), x, q, k, weights.float(), positions)
    for door in ("embed", "q", "k"):
        # One unit in the last place of `dtype`, at the size of the exact value.
        ulp = 2.0 ** expected[door].abs().log2().floor() * torch.finfo(dtype).eps
        assert ((doors[door].double() - expected[door]).abs() <= ulp).all(), door
    if name == "shaw":  # its bias follows q after the doors above, in float32
        bias = encoding.bias(q, k, positions, positions)
        expected = encoding.double().bias(q.double(), k.double(), positions, positions)
        torch.testing.assert_close(bias.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in TEXT if ENCODINGS[name].bias_by_distance])
def test_a_bias_by_distance_is_the_bias(name):
    encoding = make(name)
    for positions in (kind() for kind in KINDS.values()):
        _, q, k, _ = inputs()
        bias = encoding.bias(q, k, positions, positions)
        for b, row in enumerate(positions.expand(bias.shape[0], T)):
            for i in range(T):
                for j in range(T):
                    f = encoding.bias_by_distance((row[i] - row[j])[None])
                    assert f.shape == (H, 1)
                    assert torch.equal(f[:, 0].double(), bias[b, :, i, j])


@pytest.mark.parametrize("name", TEXT)
def test_the_smallest_heads_work_where_the_mathematics_allows_it(name):
    even = name in ("sinusoidal", "rope", "mrope")
    for width in (2,) if even else (1, 2, 5):
        encoding = make(name, d_model=3 * width if not even else 6, n_heads=3)
        x, q = draw(1, 4, encoding.d_model), draw(1, 3, 4, encoding.d)
        doors = every_door(encoding, x, q, q, draw(1, 3, 4, 4).softmax(-1), torch.arange(4))
        assert all(y.isfinite().all() for y in doors.values())


def test_distances_are_those_from_key_to_query():
    q_pos, k_pos = torch.tensor([5, 9]), torch.tensor([[1, 2, 9], [0, 0, 5]])
    assert distances(q_pos, k_pos).tolist() == [[[4, 3, -4], [8, 7, 0]], [[5, 5, 0], [9, 9, 4]]]
    assert distances(q_pos, k_pos[0]).tolist() == [[4, 3, -4], [8, 7, 0]]


# --- sinusoidal ---------------------------------------------------------------------------------


def sinusoid(p, D, base):
    """PE(p) as Vaswani et al. write it."""
    table = []
    for k in range(D // 2):
        theta = 1 / base ** (2 * k / D)
        table += [math.sin(p * theta), math.cos(p * theta)]
    return table


@given(
    p=st.integers(-100, 10**6) | st.floats(0, 10**6),
    half=st.integers(1, 40),
    base=st.sampled_from([10000.0, 100.0, 500000]),
)
@settings(max_examples=60)
def test_a_sinusoid_is_the_formula(p, half, base):
    encoding = build("sinusoidal", d_model=2 * half, n_heads=1, max_length=4, base=base)
    positions = torch.tensor([p]) if isinstance(p, int) else exact([p])
    embedded = encoding.embed(torch.zeros(1, 1, 2 * half).double(), positions)
    expected = exact([[sinusoid(p, 2 * half, base)]])
    torch.testing.assert_close(embedded, expected, rtol=0, atol=1e-8)


def test_sinusoids_are_added_and_have_no_longest_position():
    encoding, positions = make("sinusoidal", max_length=8), torch.tensor([0, 10**6])
    x = draw(B, 2, D)
    added = encoding.embed(x, positions) - x
    assert added[0, 0, :4].tolist() == pytest.approx([0, 1, 0, 1])
    table = exact([sinusoid(p, D, 10000.0) for p in (0, 10**6)])
    torch.testing.assert_close(added, table.expand(B, 2, D), rtol=0, atol=1e-9)


# --- learned ------------------------------------------------------------------------------------


def rows(encoding, positions, length=None):
    """What is added to zeros: (T, D) or (B, T, D)."""
    if not torch.is_tensor(positions):
        positions = torch.tensor(positions)
    x = torch.zeros(*positions.shape, encoding.d_model).double().reshape(-1, positions.shape[-1], D)
    y = encoding.embed(x, positions, length)
    return y[0] if positions.dim() == 1 else y


def test_a_learned_position_is_its_row():
    encoding = make("learned")
    for positions in ([0, 5, 63], [[1, 2], [63, 0]]):
        assert torch.equal(rows(encoding, positions), encoding.table[torch.tensor(positions)])


def test_between_two_rows_a_learned_table_is_linear():
    encoding = make("learned")
    P = encoding.table
    added = rows(encoding, torch.tensor([0.25, 62.5, 63.0]))
    torch.testing.assert_close(added[0], 0.75 * P[0] + 0.25 * P[1])
    torch.testing.assert_close(added[1], 0.5 * P[62] + 0.5 * P[63])
    assert torch.equal(added[2], P[63])


@pytest.mark.parametrize("beyond", ["refuse", "interpolate"])
@pytest.mark.parametrize("positions", [[-1, 0], [0.0, -0.5], [[0, 1], [2, -3]], [math.nan]])
def test_no_row_lies_before_the_first(beyond, positions):
    refuses(lambda: rows(make("learned", beyond=beyond), positions), "before 0")


@pytest.mark.parametrize("positions", [[0, 64], [63.5], [[0, 1], [2, 1000]]])
def test_past_its_table_a_learned_encoding_refuses(positions):
    refuses(lambda: rows(make("learned"), positions), "64 rows", "interpolate", "grow()")


def interpolated(P, p, length):
    """Row p of the table squeezed from `length` to its own size, in exact fractions."""
    where = Fraction(p) * (len(P) - 1) / (length - 1)
    below, part = int(where), where - int(where)
    above = min(below + 1, len(P) - 1)
    return float(1 - part) * P[below] + float(part) * P[above]


@given(L=st.integers(1, 12), length=st.integers(2, 60), given_length=st.booleans())
@settings(max_examples=30)
def test_an_interpolated_table_is_read_between_its_rows(L, length, given_length):
    encoding = make("learned", max_length=L, beyond="interpolate")
    if length <= L:
        length += L
    positions = list(range(0, length, 3)) + [length - 1]
    if given_length:
        positions = positions[:-1]
    added = rows(encoding, positions, length if given_length else None)
    expected = torch.stack([interpolated(encoding.table, p, length) for p in positions])
    torch.testing.assert_close(added, expected, rtol=0, atol=1e-12)


@given(st.floats(64, 1e9, allow_nan=False))
@settings(max_examples=60)
def test_the_last_position_reads_the_last_row(p):
    encoding = make("learned", beyond="interpolate")
    added = rows(encoding, torch.tensor([0.0, p], dtype=torch.float64))
    torch.testing.assert_close(added, encoding.table[[0, 63]], rtol=0, atol=1e-12)


def test_within_the_table_nothing_is_interpolated():
    plain, scaled = make("learned"), make("learned", beyond="interpolate")
    for positions in ([0, 7, 63], [0.5, 62.5]):
        for length in (None, 64, 80):
            same = torch.equal(rows(plain, positions), rows(scaled, positions, length))
            assert same == (length != 80)
    assert plain.unscaled_length is None and scaled.unscaled_length == 64


def test_each_row_of_a_batch_is_scaled_by_its_own_length():
    encoding = make("learned", beyond="interpolate")
    positions = torch.stack([torch.arange(60), torch.arange(60) * 3, torch.arange(60) + 40])
    together = rows(encoding, positions)
    for b in range(3):
        torch.testing.assert_close(together[b], rows(encoding, positions[b]), rtol=0, atol=0)


def test_a_position_past_the_given_length_is_refused():
    encoding = make("learned", beyond="interpolate")
    refuses(lambda: rows(encoding, [0, 100], 100), "Position 100", "length 100")
    refuses(lambda: rows(encoding, [0, 20], 20), "Position 20", "length 20")


def test_a_grown_table_keeps_its_rows_and_draws_the_rest():
    small = make("learned", beyond="interpolate").float()
    old = small.table.detach().clone()
    state = torch.random.get_rng_state()
    large = small.grow(3000, torch.Generator().manual_seed(7))
    again = small.grow(3000, torch.Generator().manual_seed(7))
    other = small.grow(3000, torch.Generator().manual_seed(8))
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is not touched
    assert torch.equal(large.table[:64], old) and torch.equal(large.table, again.table)
    assert not torch.equal(large.table[64:], other.table[64:])
    fresh = large.table[64:]
    assert abs(fresh.mean()) < 0.02 and abs(fresh.std() - 1) < 0.02  # N(0, 1), as at first
    assert large.table.requires_grad and large.table.dtype == torch.float32
    assert (large.max_length, large.unscaled_length) == (3000, 3000)
    assert torch.equal(large.embed(torch.zeros(1, 1, D), torch.tensor([2999]))[0, 0], fresh[-1])
    assert small.max_length == 64 and torch.equal(small.table, old)
    refuses(lambda: small.grow(63, torch.Generator()), "64 rows")
    refuses(lambda: small.grow(64.5, torch.Generator()), "max_length")
    assert torch.equal(small.grow(64, torch.Generator()).table, old)


# --- Shaw ---------------------------------------------------------------------------------------


@given(
    clip=st.integers(1, 5),
    positions=st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True),
    data=st.data(),
)
@settings(max_examples=15)
def test_relation_vectors_are_the_papers_sums(clip, positions, data):
    n = len(positions)
    queries = data.draw(st.integers(1, n))
    encoding = make("shaw", clip=clip, d_model=6, n_heads=2)
    a_k, a_v = encoding.a_k.tolist(), encoding.a_v.tolist()
    q, weights = draw(1, 2, queries, 3), draw(1, 2, queries, n).softmax(-1)
    k_pos = torch.tensor(positions)
    q_pos = k_pos[n - queries :]
    bias = encoding.bias(q, draw(1, 2, n, 3), q_pos, k_pos)
    values = encoding.values(weights, q_pos, k_pos)
    for h in range(2):
        for i in range(queries):
            z = [0.0] * 3
            for j in range(n):
                r = max(-clip, min(clip, positions[j] - positions[n - queries + i])) + clip
                # q_i · a^K_ij / √d, the second term of equation 4 in equation 5
                e = sum(q[0, h, i, c].item() * a_k[r][c] for c in range(3)) / math.sqrt(3)
                assert bias[0, h, i, j].item() == pytest.approx(e, abs=1e-12)
                for c in range(3):  # Σ_j α_ij a^V_ij, the second term of equation 3
                    z[c] += weights[0, h, i, j].item() * a_v[r][c]
            assert values[0, h, i].tolist() == pytest.approx(z, abs=1e-12)


# --- T5 -----------------------------------------------------------------------------------------

CAUSAL = {**{p: p for p in range(16)}, 16: 16, 20: 17, 32: 21, 64: 26, 112: 30, 113: 31, 9999: 31}
BOTH = {**{p: p for p in range(8)}, 8: 8, 12: 9, 16: 10, 23: 11, 32: 12, 46: 13, 64: 14, 91: 15}


def test_buckets_are_t5s():
    assert bucket(torch.tensor(list(CAUSAL))).tolist() == list(CAUSAL.values())
    past = bucket(torch.tensor(list(BOTH)), bidirectional=True)
    assert past.tolist() == list(BOTH.values())
    future = bucket(-torch.tensor(list(BOTH)), bidirectional=True)
    assert future.tolist() == [b + 16 * (p > 0) for p, b in BOTH.items()]
    assert bucket(-torch.arange(1, 300)).unique().tolist() == [0]  # what a causal mask hides
    # These distances begin a bucket: the distance before lies in the bucket before.
    for edge in (12, 16, 23, 32, 46, 64, 91):
        assert bucket(torch.tensor([edge - 1]), bidirectional=True).item() == BOTH[edge] - 1


def exact_bucket(delta, n, max_distance, bidirectional):
    """The published rule in whole numbers: ⌊ln(δ/e) / ln(M/e) · (n−e)⌋ is the largest m with
    (δ/e)^(n−e) ≥ (M/e)^m."""
    future = 0
    if bidirectional:
        n //= 2
        future = n if delta < 0 else 0
        delta = abs(delta)
    delta = max(delta, 0)
    e = n // 2
    if delta < e:
        return future + delta
    m = 0
    while m < n - 1 - e and delta ** (n - e) * e ** (m + 1) >= max_distance ** (m + 1) * e ** (
        n - e
    ):
        m += 1
    return future + e + m


@given(quarter=st.integers(1, 16), further=st.integers(1, 9999), bidirectional=st.booleans())
@example(quarter=5, further=310, bidirectional=False)  # 20, 40, 160: logarithms come out too small
@settings(max_examples=40)
def test_buckets_are_the_rule_in_exact_arithmetic(quarter, further, bidirectional):
    n = 4 * quarter
    side = n // 2 if bidirectional else n
    e = side // 2
    max_distance = e + further
    # The whole numbers on both sides of where each bucket begins.
    begins = [e * (max_distance / e) ** (m / (side - e)) for m in range(side - e + 1)]
    deltas = [s * (round(x) + y) for s in (-1, 1) for x in begins for y in (-1, 0, 1)]
    found = bucket(torch.tensor(deltas), n, max_distance, bidirectional)
    assert found.tolist() == [exact_bucket(x, n, max_distance, bidirectional) for x in deltas]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_bucket_of_t5s_own_size_is_exact(bidirectional):
    deltas = torch.arange(-600, 601)
    found = bucket(deltas, bidirectional=bidirectional)
    assert found.tolist() == [exact_bucket(x, 32, 128, bidirectional) for x in deltas.tolist()]
    assert torch.equal(bucket(deltas.double(), bidirectional=bidirectional), found)
    assert found.unique().tolist() == [
        b
        for b in range(32)
        if not (bidirectional and b == 16)  # no distance is future and 0
    ]


def test_t5_adds_the_number_of_the_head_and_bucket():
    encoding = make("t5", n_buckets=8, max_distance=20)
    b, positions = encoding.b, torch.arange(40)
    bias = encoding.bias(draw(1, H, 40, d), draw(1, H, 40, d), positions, positions)
    for h in range(H):
        for i in range(40):
            for j in range(i + 1):
                assert bias[0, h, i, j] == b[h, exact_bucket(i - j, 8, 20, False)]
    assert build("t5", **SIZES).b.count_nonzero() == 0  # starts as no encoding at all


# --- RoPE ---------------------------------------------------------------------------------------


def rotated(x, p, base, layout):
    """The vector x (d numbers) turned to position p, pair by pair, as complex numbers."""
    n = len(x) // 2
    y = [0.0] * len(x)
    for k in range(n):
        one, two = (2 * k, 2 * k + 1) if layout == "interleaved" else (k, k + n)
        z = complex(x[one], x[two]) * cmath.exp(1j * p * base ** (-2 * k / len(x)))
        y[one], y[two] = z.real, z.imag
    return y


@given(
    p=st.integers(-1000, 10**6) | st.floats(0, 10**6),
    n=st.integers(1, 33),
    base=st.sampled_from([10000.0, 100, 500000.0]),
    layout=st.sampled_from(LAYOUTS),
)
@settings(max_examples=60)
def test_rope_is_the_formula(p, n, base, layout):
    rope = build("rope", d_model=2 * n, n_heads=1, max_length=4, base=base, layout=layout)
    q, k = draw(1, 1, 1, 2 * n), draw(1, 1, 1, 2 * n, seed=1)
    q_pos, k_pos = exact([p]), torch.tensor([3])
    q_turned, k_turned = rope.rotate(q, k, q_pos, k_pos)
    expected = rotated(q.flatten().tolist(), p, base, layout)
    assert q_turned.flatten().tolist() == pytest.approx(expected, abs=1e-8)
    expected = rotated(k.flatten().tolist(), 3, base, layout)
    assert k_turned.flatten().tolist() == pytest.approx(expected, abs=1e-13)


def test_frequencies_count_from_zero_with_the_exponent_2k_over_d():
    theta = build("rope", d_model=4096, n_heads=32, max_length=2048).frequencies()  # LLaMA-7B
    assert theta.dtype == torch.float64 and theta.shape == (64,)
    assert theta.tolist() == pytest.approx([10000 ** (-2 * k / 128) for k in range(64)], rel=1e-14)
    assert theta[0] == 1 and theta[32] == pytest.approx(0.01, rel=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_10_and_13_score_as_any_two_3_apart(layout):
    rope = build("rope", d_model=64, n_heads=1, max_length=64, layout=layout)
    q, k = draw(1, 1, 1, 64), draw(1, 1, 1, 64, seed=1)

    def score(m, n):
        q_turned, k_turned = rope.rotate(q, k, torch.tensor([m]), torch.tensor([n]))
        return (q_turned * k_turned).sum().item()

    for n in (0, 1, 50, 4096, 100000):
        assert score(n + 3, n) == pytest.approx(score(13, 10), abs=1e-9)
        assert score(n, n + 3) == pytest.approx(score(10, 13), abs=1e-9)
    assert abs(score(13, 10) - score(10, 13)) > 0.1  # the direction counts, and so does
    assert abs(score(13, 10) - score(14, 10)) > 0.1  # the distance


@given(
    m=st.floats(0, 1e4),
    n=st.floats(0, 1e4),
    shift=st.floats(-1e4, 1e5),
    layout=st.sampled_from(LAYOUTS),
)
@settings(max_examples=40)
def test_a_shift_of_both_changes_no_score_and_no_norm(m, n, shift, layout):
    rope = make("rope", layout=layout)
    q, k = draw(1, 1, 1, d), draw(1, 1, 1, d, seed=1)
    first = rope.rotate(q, k, exact([m]), exact([n]))
    second = rope.rotate(q, k, exact([m + shift]), exact([n + shift]))
    scores = [(q_turned * k_turned).sum().item() for q_turned, k_turned in (first, second)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-8)
    for before, after in zip((q, k), second, strict=True):
        assert after.norm().item() == pytest.approx(before.norm().item(), rel=1e-12)


def test_layouts_differ_by_a_permutation_of_the_rows():
    # A model's W_q and W_k change layout by view(h, d/2, 2, ·).transpose(1, 2).
    interleaved, half_split = make("rope"), make("rope", layout="half_split")
    w_q, w_k = draw(H * d, D), draw(H * d, D, seed=1)
    x, positions = draw(B, T, D, seed=2), torch.arange(T) + 9

    def heads(w):
        return (x @ w.T).unflatten(-1, (H, d)).transpose(1, 2)

    def permuted(w):
        return w.view(H, d // 2, 2, D).transpose(1, 2).reshape(H * d, D)

    q, k = interleaved.rotate(heads(w_q), heads(w_k), positions, positions)
    q2, k2 = half_split.rotate(heads(permuted(w_q)), heads(permuted(w_k)), positions, positions)
    torch.testing.assert_close(q @ k.mT, q2 @ k2.mT, rtol=0, atol=1e-12)
    torch.testing.assert_close(q2, q.unflatten(-1, (-1, 2)).mT.flatten(-2), rtol=0, atol=1e-12)
    wrong, _ = half_split.rotate(heads(w_q), heads(w_k), positions, positions)
    assert (wrong - q).abs().max() > 0.1


def test_half_split_is_the_rotate_half_of_public_libraries():
    rope, positions = make("rope", layout="half_split"), torch.arange(T) + 9
    _, q, k, _ = inputs()
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, d, 2).double() / d)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    for x, y in zip((q, k), rope.rotate(q, k, positions, positions), strict=True):
        half = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
        torch.testing.assert_close(y, x * cos + half * sin, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rope_takes_any_strides(dtype):
    rope, positions = make("rope"), torch.arange(T)
    views = [
        draw(B, H, T, d + 2, dtype=dtype)[..., 1 : d + 1],  # starts at an odd place
        draw(B, H, T, d + 1, dtype=dtype)[..., :d],  # has odd strides
        draw(B, H, T, 2 * d, dtype=dtype)[..., ::2],  # the channels are not neighbours
        draw(B, H, d, T, dtype=dtype).mT,
        draw(1, 1, T, d, dtype=dtype).expand(B, H, T, d),
    ]
    for x in views:
        expected, _ = rope.rotate(x.contiguous(), x.contiguous(), positions, positions)
        turned, _ = rope.rotate(x, x, positions, positions)
        assert torch.equal(turned, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_compilers_path_is_the_same_rotation(layout, monkeypatch):
    rope, positions = make("rope", layout=layout), KINDS["rows of fractions"]()
    _, q, k, _ = inputs()
    expected = rope.rotate(q, k, positions, positions)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for y, z in zip(rope.rotate(q, k, positions, positions), expected, strict=True):
        torch.testing.assert_close(y, z, rtol=0, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_a_rotation_is_the_rotation_back(layout):
    rope, positions = make("rope", layout=layout), torch.arange(T) + 9
    _, q, k, _ = inputs()
    q.requires_grad_()
    along = draw(*q.shape, seed=5)
    (gradient,) = torch.autograd.grad(rope.rotate(q, k, positions, positions)[0], q, along)
    back, _ = rope.rotate(along, k, -positions, positions)
    torch.testing.assert_close(gradient, back, rtol=0, atol=1e-12)


# --- ALiBi --------------------------------------------------------------------------------------


def published_slopes(n):
    """The authors' `get_slopes`, as it stands in their repository."""

    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + published_slopes(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("n", [1, 2, 3, 6, 8, 12, 40, 64, 71])
def test_slopes_are_the_authors(n):
    assert slopes(n).tolist() == pytest.approx(published_slopes(n), rel=1e-12)


def test_slopes_by_hand():
    assert slopes(1).tolist() == [2**-8]
    assert slopes(3).tolist() == [2**-4, 2**-8, 2**-2]
    assert slopes(6).tolist() == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    twelve = [2.0 ** -(h + 1) for h in range(8)] + [2.0 ** -(h + 0.5) for h in range(4)]
    assert slopes(12).tolist() == pytest.approx(twelve, rel=1e-15)
    forty = [2.0 ** (-(h + 1) / 4) for h in range(32)] + [
        2.0 ** (-(2 * h + 1) / 8) for h in range(8)
    ]
    assert slopes(40).tolist() == pytest.approx(forty, rel=1e-15)


def test_which_text_lists_the_slopes_of_8_heads():
    one_text = [2.0 ** (-(8 - h) / 8) for h in range(8)]  # 2^(−8/8) … 2^(−1/8)
    the_other = [1 / 2 ** (h + 1) for h in range(8)]  # 1/2 … 1/2^8
    assert slopes(8).tolist() == the_other
    assert set(slopes(8).tolist()) & set(one_text) == {0.5}  # not the same slopes turned round


def test_12_heads_do_not_have_the_slopes_of_the_plain_formula():
    plain = [2 ** (-8 / 12 * (i + 1)) for i in range(12)]  # right for powers of two alone
    assert slopes(12).tolist() != pytest.approx(plain, rel=0.1)
    assert slopes(16).tolist() == pytest.approx([2 ** (-8 / 16 * (i + 1)) for i in range(16)])


@given(st.lists(st.integers(0, 10**5), min_size=1, max_size=5), st.integers(1, 20))
@settings(max_examples=30)
def test_alibi_is_minus_slope_times_distance(positions, n_heads):
    encoding = build("alibi", d_model=2 * n_heads, n_heads=n_heads, max_length=4)
    q, m = draw(1, n_heads, len(positions), 2), published_slopes(n_heads)
    bias = encoding.bias(q, q, torch.tensor(positions), torch.tensor(positions))
    for h in range(n_heads):
        for i, p in enumerate(positions):
            penalty = [-m[h] * abs(p - r) for r in positions]
            assert bias[0, h, i].tolist() == pytest.approx(penalty, rel=1e-12)


def test_alibi_is_the_softmax_of_the_keyed_form():
    # Slope · j for each key differs by a constant a row, which the softmax does not see.
    n, encoding = 50, make("alibi")
    positions, q = torch.arange(n), draw(1, H, n, d)
    hidden = torch.ones(n, n).triu(1).bool()
    logits = q @ q.mT / math.sqrt(d)
    relative = (logits + encoding.bias(q, q, positions, positions)).masked_fill(hidden, -math.inf)
    keyed = (logits + slopes(H)[:, None, None] * positions).masked_fill(hidden, -math.inf)
    torch.testing.assert_close(relative.softmax(-1), keyed.softmax(-1), rtol=0, atol=1e-13)


def test_slopes_survive_a_cast_of_the_module():
    q, positions = draw(1, 6, 3, 4), torch.tensor([0, 1000, 4095])
    encoding = build("alibi", d_model=24, n_heads=6, max_length=8)
    expected = encoding.bias(q, q, positions, positions)
    low = encoding.to(torch.bfloat16).bias(q.bfloat16(), q.bfloat16(), positions, positions)
    assert torch.equal(low.double(), expected)  # slopes of 6 heads are powers of two


# --- NoPE ---------------------------------------------------------------------------------------


def test_nope_opens_no_door():
    encoding, (x, q, k, weights) = make("nope"), inputs()
    doors = every_door(encoding, x, q, k, weights, torch.arange(T))
    assert doors.keys() == {"embed", "q", "k"}
    assert doors["embed"] is x and doors["q"] is q and doors["k"] is k
    assert not encoding.adds_values() and make("shaw").adds_values()
