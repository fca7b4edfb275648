"""Every path through `attend` against the formula, written out here once more."""

import contextlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lib.attention import Distances, attend, causal_mask, path, plain, shared_bias, toeplitz
from lib.encodings import ENCODINGS, Encoding, build

TEXT = [name for name, cls in ENCODINGS.items() if "text" in cls.domain]
BY_DISTANCE = [name for name in TEXT if ENCODINGS[name].bias_by_distance]
H, d = 4, 6
HALF = [torch.bfloat16, torch.float16]


def make(name, **options):
    """An encoding whose parameters are drawn, since T5's start at zero."""
    encoding = build(name, d_model=H * d, n_heads=H, max_length=64, **options)
    generator = torch.Generator().manual_seed(0)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return encoding.double()


def draw_qkv(batch=2, n_queries=5, n_keys=5, h_kv=H, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    shapes = (batch, H, n_queries, d), (batch, h_kv, n_keys, d), (batch, h_kv, n_keys, d)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


@contextlib.contextmanager
def in_blocks_of(n, whole=0):
    """Blocks of n queries, and from whole + 1 queries on, so that small cases take every way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.attention.LEAST", n)
        patch.setattr("lib.attention.BLOCK", n)
        patch.setattr("lib.attention.WHOLE", whole)
        yield


def formula(q, k, v, encoding, q_pos, k_pos, visible):
    """softmax(q kᵀ/√d + bias) v + what the encoding adds, with one key head for every query head.

    `visible` (B or 1, 1, Tq, Tk) is always given.
    """
    serving = torch.arange(H) // (H // k.shape[1])  # the key head of each query head
    k_all, v_all = k[:, serving], v[:, serving]
    logits = torch.einsum("bhic,bhjc->bhij", q, k_all) / math.sqrt(d)
    bias = encoding.bias(q, k, q_pos, k_pos)
    logits = logits if bias is None else logits + bias
    scores = logits.exp() * visible
    weights = scores / scores.sum(-1, keepdim=True)
    output = torch.einsum("bhij,bhjc->bhic", weights, v_all)
    added = encoding.values(weights, q_pos, k_pos)
    return output if added is None else output + added


@st.composite
def cases(draw):
    """(number of queries, of keys, of key heads, positions of the keys, mask or None, visible)."""
    n_keys = draw(st.integers(1, 9))
    n_queries = draw(st.integers(1, n_keys))
    k_pos = torch.arange(n_keys) + draw(st.integers(0, 40))
    if draw(st.booleans()):
        k_pos = k_pos * 0.75
    if draw(st.booleans()):
        k_pos = torch.stack([k_pos, k_pos + 3])  # another offset in each row
    causal = torch.ones(n_queries, n_keys).tril(n_keys - n_queries).bool()
    kind = draw(st.sampled_from(["none", "causal", "all", "padding"]))
    mask, visible = None, causal
    if kind == "causal":
        mask = visible = causal
    elif kind == "all":
        mask = visible = torch.ones_like(causal)
    elif kind == "padding":  # on the left, by another number in each row; the last key is real
        first = torch.tensor([draw(st.integers(0, n_keys - 1)) for _ in range(2)])
        real = torch.arange(n_keys) >= first[:, None]
        itself = torch.eye(n_keys).bool()[n_keys - n_queries :]
        mask = visible = (causal & real[:, None, None, :]) | itself
    h_kv = draw(st.sampled_from([1, 2, 4]))
    return n_queries, n_keys, h_kv, k_pos, mask, visible


@pytest.mark.parametrize("name", TEXT)
@given(case=cases(), block=st.sampled_from([None, 2, 3]))
@settings(max_examples=40)
def test_attention_and_its_gradients_are_the_formulas(name, case, block):
    n_queries, n_keys, h_kv, k_pos, mask, visible = case
    encoding = make(name)
    q, k, v = draw_qkv(2, n_queries, n_keys, h_kv)
    q_pos = k_pos[..., n_keys - n_queries :]
    along = torch.randn(q.shape, generator=torch.Generator().manual_seed(2)).double()
    inputs = [x.requires_grad_() for x in (q, k, v, *encoding.parameters())]
    results = []
    for attention, given_mask in ((attend, mask), (plain, mask), (formula, visible)):
        with in_blocks_of(block) if block else contextlib.nullcontext():
            y = attention(q, k, v, encoding, q_pos, k_pos, given_mask)
        gradients = torch.autograd.grad((y * along).sum(), inputs, allow_unused=True)
        results.append([y, *gradients])
    for result in results[:2]:
        for x, expected in zip(result, results[2], strict=True):
            assert (x is None) == (expected is None)
            if x is not None:
                torch.testing.assert_close(x, expected, rtol=0, atol=1e-10)


# --- which way, and what it holds -----------------------------------------------------------------

POSITIONS = {"contiguous": torch.arange(40) + 7, "spread": 0.75 * torch.arange(40)}
WAYS = {  # encoding, positions, dtype, with gradients → the way of 40 queries in blocks of 8
    ("nope", "spread", torch.float64, True): "causal",
    ("rope", "contiguous", torch.bfloat16, False): "causal",
    ("alibi", "contiguous", torch.float64, True): "distances",
    ("alibi", "contiguous", torch.bfloat16, True): "distances",
    ("alibi", "spread", torch.float64, True): "masked in blocks",
    ("alibi", "spread", torch.bfloat16, True): "formula in blocks",
    ("t5", "contiguous", torch.float64, True): "distances, learned",
    ("t5", "contiguous", torch.bfloat16, True): "formula in blocks",
    ("t5", "contiguous", torch.bfloat16, False): "distances",
    ("t5", "contiguous", torch.float64, False): "distances",
    ("shaw", "contiguous", torch.float64, True): "formula in blocks",
}


class Largest(TorchDispatchMode):
    """The most numbers of a tensor that any operation inside gives, unfused kernels included."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().nbytes():
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("name, kind, dtype, gradients", WAYS)
def test_every_way_can_be_asked_for_and_its_memory_grows_with_the_block(
    name, kind, dtype, gradients
):
    T, block = 40, 8
    encoding, positions = make(name), POSITIONS[kind][:T]
    q, k, v = (x.requires_grad_(gradients) for x in draw_qkv(1, T, T, dtype=dtype))
    with torch.set_grad_enabled(gradients), in_blocks_of(block), Largest() as largest:
        found = path(q, k, encoding, positions, positions)
        y = attend(q, k, v, encoding, positions, positions)
        if gradients:
            y.float().sum().backward()
    assert found == WAYS[name, kind, dtype, gradients]
    # Whole, it would be H·T². Shaw gathers from 2c + 1 relations, here almost as many as keys.
    assert largest.numbers <= H * block * (T + block) < H * T * T


def test_up_to_a_number_of_queries_the_bias_is_written_out():
    positions, encoding = torch.arange(40), make("t5")
    q, k, _ = draw_qkv(1, 40, 40)
    with in_blocks_of(8, whole=40):
        assert path(q, k, encoding, positions, positions) == "masked"
        assert isinstance(shared_bias(encoding, positions, positions, True, q.dtype), torch.Tensor)
    with in_blocks_of(8, whole=39):
        assert isinstance(shared_bias(encoding, positions, positions, True, q.dtype), Distances)


class Steep(Encoding):
    """A penalty that puts distant keys out of sight, at another distance in each head, with a way
    back into sight at the distance 37 in one head."""

    def bias_by_distance(self, delta):
        per_step = torch.tensor([900.0, 300.0, 60.0, 0.5], dtype=torch.float64)[:, None]
        f = -per_step * delta.abs()
        return f.masked_fill((delta == 37) & (per_step == 900), 0.0)


@pytest.mark.parametrize("h_kv", [1, 2, 4])
@pytest.mark.parametrize("gradients", [True, False])
def test_keys_out_of_sight_are_left_out_and_not_missed(monkeypatch, gradients, h_kv):
    T, encoding, positions = 40, Steep(H * d, H, 64), torch.arange(40)
    q, k, v = (x.requires_grad_(gradients) for x in draw_qkv(2, T, T, h_kv))
    expected = plain(q, k, v, encoding, positions, positions)
    pairs = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "lib.attention.F.scaled_dot_product_attention",
        lambda q, k, *a, **b: (
            pairs.append(q.shape[1] * q.shape[2] * k.shape[2]) or kernel(q, k, *a, **b)
        ),
    )
    with in_blocks_of(4):
        y = attend(q, k, v, encoding, positions, positions)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    every = H * sum(4 * b for b in range(4, T + 1, 4))
    assert sum(pairs) < every or h_kv < 4  # heads that share keys are served together
    if gradients:
        along = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).double()
        found, right = (torch.autograd.grad((x * along).sum(), [q, k, v]) for x in (y, expected))
        for x, z in zip(found, right, strict=True):
            torch.testing.assert_close(x, z, rtol=0, atol=1e-12)


def test_a_number_that_is_none_is_not_out_of_sight():
    encoding, positions = Steep(H * d, H, 64), torch.arange(8)
    q, k, v = draw_qkv(1, 8, 8)
    k[0, :, 0] = torch.nan
    with in_blocks_of(4):
        assert attend(q, k, v, encoding, positions, positions)[0, :, 7].isnan().all()


@pytest.mark.parametrize("n_queries, n_keys", [(1, 1), (1, 5), (3, 5), (5, 5)])
def test_the_last_query_sees_the_last_key(n_queries, n_keys):
    mask = causal_mask(n_queries, n_keys)
    for i in range(n_queries):
        sees = n_keys - n_queries + i + 1
        assert mask[i].tolist() == [True] * sees + [False] * (n_keys - sees)


class Ramp(Encoding):
    """A bias that tells every distance and every head apart, on both sides."""

    def bias_by_distance(self, delta):
        return (torch.arange(len(self.heads)) + 1)[:, None] * 1000.0 + delta


@pytest.mark.parametrize("name", [*BY_DISTANCE, "ramp", "bidirectional t5"])
@given(n_keys=st.integers(1, 40), data=st.data())
@settings(max_examples=10)
def test_contiguous_positions_have_the_bias_in_one_vector(name, n_keys, data):
    n_queries = data.draw(st.integers(1, n_keys))
    positions = torch.arange(n_keys) + data.draw(st.integers(0, 10**6))
    if name == "ramp":
        encoding = Ramp(H * d, H, 64)
    else:
        encoding = make(name.split()[-1], **({"bidirectional": True} if " " in name else {}))
    q, k, _ = draw_qkv(1, n_queries, n_keys)
    expected = encoding.bias(q, k, positions[n_keys - n_queries :], positions)
    bias = toeplitz(encoding, n_queries, n_keys)
    assert bias.shape == (1, H, n_queries, n_keys)
    assert torch.equal(bias.double(), expected)
    low = toeplitz(encoding, n_queries, n_keys, dtype=torch.float32)
    assert torch.equal(low, bias.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
@pytest.mark.parametrize("name", BY_DISTANCE)
def test_a_bias_made_beforehand_is_the_one_asked_for(name, dtype):
    encoding, positions = make(name), torch.arange(5) + 30
    for n_queries in (1, 3, 5):
        q, k, v = draw_qkv(2, n_queries, 5, 2, dtype=dtype)
        at = encoding, positions[5 - n_queries :], positions
        asked = attend(q, k, v, *at)
        made = attend(q, k, v, *at, bias=toeplitz(encoding, n_queries, 5))
        assert asked.dtype == made.dtype == dtype and torch.equal(asked, made)


@pytest.mark.parametrize("block", [None, 64])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", TEXT)
def test_half_precision_loses_the_rounding_of_its_inputs_and_no_more(name, dtype, block):
    # Far from the beginning, where a rounded bias or a rounded phase would be off by whole units.
    encoding = make(name)
    positions = torch.arange(300) + 4000
    for n_queries, h_kv in ((1, 4), (2, 2), (130, 4)):
        q, k, v = draw_qkv(1, n_queries, 300, h_kv, dtype=dtype)
        q_pos = positions[300 - n_queries :]
        with in_blocks_of(block) if block else contextlib.nullcontext(), torch.no_grad():
            y = attend(q, k, v, encoding.float(), q_pos, positions)
        wide = (x.double() for x in (q, k, v))
        visible = causal_mask(n_queries, 300)
        expected = formula(*wide, encoding.double(), q_pos, positions, visible)
        assert y.dtype == dtype
        error = (y.double() - expected).abs().max()
        assert error <= torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_does_not_round_a_penalty(dtype):
    # Two keys at distances 2001 and 2002: in bfloat16 the penalty of both is the same number, and
    # with it the weight. The values are their weights.
    encoding = build("alibi", d_model=H * d, n_heads=H, max_length=64)
    q, k = torch.zeros(1, H, 1, d, dtype=dtype), torch.zeros(1, H, 2, d, dtype=dtype)
    v = torch.tensor([1.0, 0.0], dtype=dtype)[:, None].expand(1, H, 2, d)
    mask = torch.ones(1, 2).bool()
    y = attend(q, k, v, encoding, torch.tensor([2002]), torch.tensor([0, 1]), mask)
    m = torch.tensor([2.0 ** (-8 * (h + 1) / H) for h in range(H)])
    expected = torch.sigmoid(-m)  # the farther key's weight, one step more of penalty
    error = (y[0, :, 0, 0].float() - expected).abs()
    assert error.max() <= torch.finfo(dtype).eps


@pytest.mark.parametrize("mask", [None, torch.ones(3, 5).bool()])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("name", TEXT)
def test_autocast_changes_nothing(name, dtype, mask):
    encoding, k_pos = make(name).float(), torch.arange(5) + 40
    q, k, v = draw_qkv(2, 3, 5, 2, dtype=dtype)
    for attention in (attend, plain):
        expected = attention(q, k, v, encoding, k_pos[2:], k_pos, mask)
        for low in HALF:
            with torch.autocast("cpu", dtype=low):
                y = attention(q, k, v, encoding, k_pos[2:], k_pos, mask)
            assert y.dtype == dtype and torch.equal(y, expected)


def test_the_fused_kernel_serves_whoever_leaves_the_weights_unseen(monkeypatch):
    served = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "lib.attention.F.scaled_dot_product_attention",
        lambda *args, **options: served.append(name) or kernel(*args, **options),
    )
    positions = torch.arange(5)
    for name in TEXT:
        attend(*draw_qkv(), make(name), positions, positions)
    assert served == [name for name in TEXT if not make(name).adds_values()]


def test_what_has_no_answer_is_refused():
    encoding, positions = make("nope"), torch.arange(5)
    q, k, v = draw_qkv(h_kv=3)
    with pytest.raises(ValueError, match="3 heads of keys do not divide 4 heads of queries"):
        attend(q, k, v, encoding, positions, positions)
    q, k, v = draw_qkv(n_queries=5, n_keys=3)
    with pytest.raises(ValueError, match="5 queries over 3 keys"):
        attend(q, k, v, encoding, positions, positions[:3])
    everything = torch.ones(5, 3).bool()  # but cross-attention has one
    y = attend(q, k, v, encoding, positions, positions[:3], everything)
    expected = formula(q, k, v, encoding, positions, positions[:3], everything)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


# --- Shaw's equations, whole --------------------------------------------------------------------


def test_shaws_attention_is_equations_3_and_4_in_loops():
    n, c = 6, 2
    encoding = make("shaw", clip=c)
    a_k, a_v = encoding.a_k.detach().numpy(), encoding.a_v.detach().numpy()
    q, k, v = draw_qkv(1, n, n)
    y = attend(q, k, v, encoding, torch.arange(n), torch.arange(n), torch.ones(n, n).bool())
    q, k, v = (x[0].numpy() for x in (q, k, v))
    for h in range(H):
        for i in range(n):
            relation = [max(-c, min(c, j - i)) + c for j in range(n)]
            e = [q[h, i] @ (k[h, j] + a_k[relation[j]]) / math.sqrt(d) for j in range(n)]
            total = sum(math.exp(x) for x in e)
            z = sum(math.exp(e[j]) / total * (v[h, j] + a_v[relation[j]]) for j in range(n))
            assert y[0, h, i].tolist() == pytest.approx(z.tolist(), abs=1e-12)
