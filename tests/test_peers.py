"""Other people's code as independent references: ours is theirs wherever the conventions meet.

Their phases are float32, so a pair of channels at position p may differ by 4 (p + 1) 2⁻²⁴ of its
length; frequencies agree to 10⁻⁶.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.encodings import build
from lib.encodings.alibi import slopes
from lib.encodings.base import distances
from lib.encodings.t5 import bucket

pytest.importorskip("transformers", reason="the peers are in requirements-peers.lock")
pytest.importorskip("x_transformers")
pytest.importorskip("rotary_embedding_torch")

few = settings(max_examples=12)
HEADS = st.sampled_from([1, 2, 3, 6, 8, 12, 40])
OFFSET = st.integers(0, 20000)


def some(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


# ---- RoPE ----------------------------------------------------------------------------------------


def llama(x, positions, base):
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as m

    H, d = x.shape[1], x.shape[-1]
    config = LlamaConfig(
        hidden_size=H * d,
        num_attention_heads=H,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    module = m.LlamaRotaryEmbedding(config)
    return m.apply_rotary_pos_emb(x, x, *module(x, positions[None]))[0], module.inv_freq


def gptj(x, positions, base):
    from transformers.models.gptj import modeling_gptj as m

    assert base == 10000  # it knows no other
    table = m.create_sinusoidal_positions(int(positions.max()) + 1, x.shape[-1])
    sin, cos = table[positions][None].chunk(2, dim=-1)  # (1, T, d/2)
    return m.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2), None


def x_rotary(x, positions, base):
    from x_transformers import x_transformers as m

    module = m.RotaryEmbedding(x.shape[-1], base=base)
    return m.apply_rotary_pos_emb(x, *module(positions)), module.inv_freq


def rotary_torch(x, positions, base):
    from rotary_embedding_torch import RotaryEmbedding

    module = RotaryEmbedding(x.shape[-1], theta=base)
    return module.rotate_queries_or_keys(x, offset=int(positions[0])), module.freqs


@pytest.mark.parametrize(
    "theirs, layout, bases",
    [
        (llama, "half_split", [1e4, 5e5]),
        (gptj, "interleaved", [1e4]),
        (x_rotary, "interleaved", [1e4, 5e5]),
        (rotary_torch, "interleaved", [1e4, 5e5]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@given(pairs=st.integers(2, 64), H=st.integers(1, 3), offset=OFFSET, which=st.integers(0, 1))
@few
def test_rope(theirs, layout, bases, pairs, H, offset, which):
    base, d = bases[which % len(bases)], 2 * pairs
    x, positions = some(2, H, 5, d), torch.arange(5) + offset
    rope = build("rope", d_model=H * d, n_heads=H, max_length=64, layout=layout, base=base)
    ours, _ = rope.rotate(x, x, positions, positions)
    found, frequencies = theirs(x, positions, base)
    if frequencies is not None:
        θ = rope.frequencies()
        assert ((frequencies.double() - θ).abs() / θ).max() <= 1e-6
    axis = -2 if layout == "half_split" else -1
    ours, found, x = (
        t.unflatten(-1, (2, pairs) if layout == "half_split" else (pairs, 2)).double()
        for t in (ours, found, x)
    )
    norm = x.norm(dim=axis, keepdim=True)
    allowed = 4 * (positions.double() + 1).view(-1, 1, 1) * 2.0**-24 * norm
    assert ((found - ours).abs() <= allowed).all()


def test_the_two_layouts_are_not_each_other():
    x, positions = some(1, 1, 5, 8), torch.arange(5)
    interleaved = build("rope", d_model=8, n_heads=1, max_length=64)
    assert (
        interleaved.rotate(x, x, positions, positions)[0] - llama(x, positions, 1e4)[0]
    ).abs().max() > 0.1


# ---- T5 ------------------------------------------------------------------------------------------


def their_buckets():
    from transformers.models.t5.modeling_t5 import T5Attention
    from x_transformers.x_transformers import RelativePositionBias

    return {
        "transformers": lambda delta, both, n, far: T5Attention._relative_position_bucket(
            -delta, bidirectional=both, num_buckets=n, max_distance=far
        ),
        "x-transformers": lambda delta, both, n, far: (
            RelativePositionBias._relative_position_bucket(
                -delta, causal=not both, num_buckets=n, max_distance=far
            )
        ),
    }


# On the boundary of two buckets the float32 logarithm decides, and not the same way on every
# machine: the published code puts these into the bucket above, or one below.
BOUNDARIES = (16, 32, 64)


@pytest.mark.parametrize("library", ["transformers", "x-transformers"])
@pytest.mark.parametrize("both", [False, True], ids=["causal", "bidirectional"])
def test_t5_buckets(library, both):
    δ = torch.arange(-600, 601)
    theirs = their_buckets()[library](δ, both, 32, 128)
    ours = bucket(δ, 32, 128, both)
    differ = δ[theirs != ours].abs().unique().tolist()
    assert set(differ) <= (set(BOUNDARIES) if both else set())
    off = (theirs - ours)[theirs != ours].unique().tolist()
    assert off in ([], [-1])


@given(sixteenth=st.integers(1, 6), times=st.integers(2, 40), both=st.booleans())
@settings(max_examples=25)
def test_t5_buckets_of_any_size(sixteenth, times, both):
    """Wherever the exact logarithm is not a hair from a boundary."""
    n, e = 16 * sixteenth, 16 * sixteenth // (4 if both else 2)
    far = times * e
    δ = torch.arange(-2 * far, 2 * far + 1)
    exact = torch.log(δ.abs().clamp(min=e).double() / e) / math.log(far / e) * e
    clear = (exact - exact.round()).abs() > 1e-4
    clear |= δ.abs() < e
    theirs = their_buckets()["transformers"](δ, both, n, far)
    assert torch.equal(
        theirs[clear | (δ.abs() < e)], bucket(δ, n, far, both)[clear | (δ.abs() < e)]
    )


@given(H=HEADS, Tq=st.integers(1, 5), more=st.integers(0, 200), decoder=st.booleans())
@few
def test_t5_bias(H, Tq, more, decoder):
    """The whole bias, with the table of theirs."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=H * 4, num_heads=H, d_kv=4, is_decoder=decoder)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    torch.nn.init.normal_(theirs.relative_attention_bias.weight)
    ours = build("t5", d_model=H * 4, n_heads=H, max_length=512, bidirectional=not decoder).double()
    with torch.no_grad():
        ours.b.copy_(theirs.relative_attention_bias.weight.T)
        found = theirs.compute_bias(Tq, Tq + more, past_seen_tokens=more)
        j = torch.arange(Tq + more)
        right = ours.bias(some(1, H, Tq, 4), some(1, H, Tq + more, 4), j[-Tq:], j)
    clear = torch.ones_like(distances(j[-Tq:], j), dtype=torch.bool)
    for boundary in () if decoder else BOUNDARIES:
        clear &= distances(j[-Tq:], j).abs() != boundary
    assert torch.equal(found[..., clear], right[..., clear])


@given(H=HEADS, T=st.integers(1, 200), d=st.sampled_from([4, 64]))
@few
def test_t5_bias_of_x_transformers_is_scaled(H, T, d):
    """It multiplies its table by `scale`, which the library sets to √d: ours is √d · theirs."""
    from x_transformers.x_transformers import RelativePositionBias

    theirs = RelativePositionBias(scale=math.sqrt(d), causal=True, heads=H).double()
    ours = build("t5", d_model=H * d, n_heads=H, max_length=512).double()
    with torch.no_grad():
        ours.b.copy_(math.sqrt(d) * theirs.relative_attention_bias.weight.T)
        j = torch.arange(T)
        right = ours.bias(some(1, H, T, d), some(1, H, T, d), j, j)[0]
        assert (theirs(T, T) - right).abs().max() <= 1e-14 * (1 + right.abs().max())


# ---- ALiBi ---------------------------------------------------------------------------------------


@given(n=st.integers(1, 130))
@settings(max_examples=40)
def test_alibi_slopes(n):
    from transformers.models.bloom import modeling_bloom
    from transformers.models.falcon import modeling_falcon
    from transformers.models.mpt import modeling_mpt
    from x_transformers.x_transformers import AlibiPositionalBias

    two = torch.ones(1, 2)
    theirs = {
        "bloom": modeling_bloom.build_alibi_tensor(two, n, torch.float32)[:, 0, 1],
        "mpt": -modeling_mpt.build_mpt_alibi_tensor(n, 2)[:, 0, 0],
        "x-transformers": AlibiPositionalBias(n).slopes.flatten(),
    }
    for name, found in theirs.items():
        assert ((found.double() - slopes(n)).abs() <= 1e-6 * slopes(n)).all(), name
    # Falcon makes its slopes and its bias in bfloat16, which has 8 bits.
    falcon = modeling_falcon.build_alibi_tensor(two, n, torch.float32)[:, 0, 1]
    assert ((falcon.double() - slopes(n)).abs() <= 2.0**-7 * slopes(n)).all()


@given(H=HEADS, T=st.integers(1, 40))
@few
def test_alibi_bias(H, T):
    """Bloom's + m·j has our softmax; that of x-transformers is ours itself."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from x_transformers.x_transformers import AlibiPositionalBias

    j = torch.arange(T)
    ours = build("alibi", d_model=H * 4, n_heads=H, max_length=64)
    right = ours.bias(some(1, H, T, 4), some(1, H, T, 4), j, j)[0]  # (H, T, T)
    allowed = 8 * T * 2.0**-24
    assert (AlibiPositionalBias(H)(T, T).double() - right).abs().max() <= allowed
    ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
    bloom = build_alibi_tensor(torch.ones(1, T), H, torch.float32).double().expand(H, T, T)
    weights = [b.masked_fill(ahead, -torch.inf).softmax(-1) for b in (bloom, right)]
    assert (weights[0] - weights[1]).abs().max() <= allowed


# ---- added to the embeddings ---------------------------------------------------------------------


@given(pairs=st.integers(1, 40), T=st.integers(1, 60))
@few
def test_sinusoids(pairs, T):
    """Marian and x-transformers: all sines, then all cosines, ours permuted."""
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

    D, positions = 2 * pairs, torch.arange(T)
    ours = build("sinusoidal", d_model=D, n_heads=1, max_length=64)
    table = ours.embed(torch.zeros(1, T, D, dtype=torch.float64), positions)[0]  # (T, D)
    halves = torch.cat([table[:, 0::2], table[:, 1::2]], dim=-1)
    marian = MarianSinusoidalPositionalEmbedding(T, D)
    marian.weight.data = marian.create_weight()
    assert (marian((1, T)).double() - halves).abs().max() <= 2.0**-23  # float64, rounded once
    scaled = ScaledSinusoidalEmbedding(D)
    found = scaled(torch.zeros(1, T, D)) / scaled.scale  # they shrink it by a learned D^(−1/2)
    assert ((found.double() - halves).abs() <= 4 * (positions[:, None] + 1) * 2.0**-24).all()


@given(D=st.integers(1, 20), T=st.integers(1, 30))
@few
def test_learned_table(D, T):
    """BERT's table of positions, with its rows in ours."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEmbeddings

    bert = BertEmbeddings(BertConfig(hidden_size=D, num_attention_heads=1, vocab_size=5)).double()
    ours = build("learned", d_model=D, n_heads=1, max_length=512).double()
    with torch.no_grad():
        (rows,) = ours.parameters()
        rows.copy_(bert.position_embeddings.weight)
        positions = torch.arange(T)
        x = some(1, T, D)
        found = x + bert.position_embeddings(positions)
        assert torch.equal(found, ours.embed(x, positions))
