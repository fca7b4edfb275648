"""RoPE's scalings: the papers' and libraries' values, Hugging Face's dictionaries, decoding."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from lib.encodings import build
from lib.encodings.scaling import SCALINGS
from lib.transformer import Cache, Config, Decoder

SMALL = {
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic": {"factor": 4.0, "original_max_position_embeddings": 16},
    "ntk_by_parts": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
    },
    "proportional": {"partial_rotary_factor": 0.5, "factor": 4.0},
}


def rope(d=128, max_length=4096, base=10000.0, **scaling):
    return build(
        "rope", d_model=d, n_heads=1, max_length=max_length, base=base, scaling=scaling or None
    )


def test_each_scaling_is_tried_here():
    assert SMALL.keys() == SCALINGS.keys()


# ---- values from the papers and from published models --------------------------------------------


@given(st.integers(2, 64), st.floats(1, 64), st.floats(100, 1e6))
def test_ntk_keeps_the_first_frequency_and_divides_the_last_by_s(pairs, s, base):
    scaled = rope(2 * pairs, base=base, rope_type="ntk", factor=s)
    ratio = rope(2 * pairs, base=base).frequencies() / scaled.frequencies()
    assert ratio[0] == 1
    assert ratio[-1].item() == pytest.approx(s, rel=1e-9)
    assert (ratio.diff() > -1e-9).all()


def test_position_interpolation_is_a_division_of_the_positions():
    q = torch.randn(1, 1, 50, 128, dtype=torch.float64)
    p = torch.arange(50)
    scaled, _ = rope(rope_type="linear", factor=4.0).rotate(q, q, p, p)
    divided, _ = rope().rotate(q, q, p / 4, p / 4)
    assert torch.allclose(scaled, divided, atol=1e-12)


@pytest.mark.parametrize(
    "length, base", [(1, 1e4), (2048, 1e4), (4096, 30527.74), (8192, 72195.86)]
)
def test_dynamic_base_of_published_code(length, base):
    scaled = rope(max_length=2048, rope_type="dynamic", factor=2.0)
    assert scaled.frequencies(length=length)[1].item() ** -64 == pytest.approx(base, rel=1e-6)


@pytest.mark.parametrize("L, low, high", [(4096, 20, 46), (2048, 16, 41)])
def test_the_ramp_of_yarn(L, low, high):
    scaled = rope(rope_type="yarn", factor=16.0, original_max_position_embeddings=L)
    ratio = rope().frequencies() / scaled.frequencies()
    assert (ratio[: low + 1] == 1).all() and ratio[low + 1] > 1
    assert torch.allclose(ratio[high:], torch.tensor(16.0, dtype=torch.float64))
    assert ratio[high - 1] < 16


def test_the_two_ramps_of_the_paper_and_of_its_code_differ_threefold():
    by = {
        ramp: rope(
            rope_type="ntk_by_parts", factor=16.0, original_max_position_embeddings=4096, ramp=ramp
        ).frequencies()
        for ramp in ("dimension", "turns")
    }
    differ = (by["dimension"] / by["turns"]).log().abs().max().exp()
    assert 2.5 < differ < 3.5


def test_the_ramp_in_turns_is_the_formula_of_the_paper():
    L, s, alpha, beta = 4096, 16.0, 1.0, 32.0
    scaled = rope(
        rope_type="ntk_by_parts", factor=s, original_max_position_embeddings=L, ramp="turns"
    )
    pairs = zip(rope().frequencies().tolist(), scaled.frequencies().tolist(), strict=True)
    for theta, found in pairs:
        r = L * theta / (2 * math.pi)
        gamma = 0 if r < alpha else 1 if r > beta else (r - alpha) / (beta - alpha)
        assert found == pytest.approx((1 - gamma) * theta / s + gamma * theta, rel=1e-12)


def test_a_ramp_without_width_is_a_step():
    # Llama 4 Scout's: every pair keeps its frequency, or has all of it divided.
    keys = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    keys |= {"factor": 8.0, "original_max_position_embeddings": 8192}
    plain = rope(rope_type="default", rope_theta=5e5).frequencies()
    scaled = rope(**keys, rope_theta=5e5).frequencies()
    whole_turns = 8192 * plain >= 2 * math.pi
    assert 0 < whole_turns.sum() < len(plain)
    assert torch.equal(scaled, torch.where(whole_turns, plain, plain / 8))


def test_llama_3():
    keys = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    keys["original_max_position_embeddings"] = 8192
    ratio = rope(base=5e5).frequencies() / rope(base=5e5, factor=8.0, **keys).frequencies()
    assert (ratio == 1).sum() == 29
    assert torch.isclose(ratio, torch.tensor(8.0, dtype=torch.float64)).sum() == 29
    blended = ratio[29:35]
    assert blended[0].item() == pytest.approx(1.2075, abs=5e-5)
    assert blended[-1].item() == pytest.approx(5.2573, abs=5e-5)
    of_3_2 = rope(base=5e5, factor=32.0, **keys).frequencies()
    published = {28: 3.2114460e-3, 29: 2.1184070e-3, 32: 4.2955680e-4, 34: 9.7082878e-5}
    published[35] = 2.3890531e-5
    for k, theta in published.items():
        assert of_3_2[k].item() == pytest.approx(theta, rel=1e-6)


def test_deepseek_v3():
    scaled = rope(
        d=64, rope_type="yarn", factor=40, original_max_position_embeddings=4096, mscale=1.0,
        mscale_all_dim=1.0,
    )  # fmt: skip
    theta, plain = scaled.frequencies(), rope(d=64).frequencies()
    assert theta[10] == plain[10] and theta[11] < plain[11]
    assert theta[16].item() == pytest.approx(5.5e-3, rel=1e-6)
    assert theta[23].item() == pytest.approx(3.3338036e-5, rel=1e-6)
    assert theta[23].item() == pytest.approx(plain[23].item() / 40, rel=1e-9)
    assert scaled.attention_factor == 1


def test_what_multiplies_q_and_k():
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}
    formula = 0.1 * math.log(16) + 1
    assert rope(**yarn).attention_factor == pytest.approx(formula)
    two = {"mscale": 2.0, "mscale_all_dim": 1.0}
    ratio = (0.2 * math.log(16) + 1) / formula
    assert rope(**yarn, **two).attention_factor == pytest.approx(ratio)
    assert rope(**yarn, **two, attention_factor=3.0).attention_factor == 3  # goes before the ratio
    q = torch.randn(1, 1, 9, 128, dtype=torch.float64)
    for keys in (yarn, {**yarn, "attention_factor": 3.0}):
        for turned in rope(**keys).rotate(q, q, torch.arange(9), torch.arange(9)):
            grown = turned.norm(dim=-1) / q.norm(dim=-1)
            assert torch.allclose(grown, torch.full_like(grown, rope(**keys).attention_factor))
    long = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64, "factor": 32.0}
    long = rope(rope_type="longrope", original_max_position_embeddings=4096, **long)
    assert long.attention_factor == pytest.approx(1.19024, abs=5e-6)


def test_longrope_takes_its_long_factors_past_the_original_length_alone():
    scaled = rope(d=8, max_length=16, rope_type="longrope", **SMALL["longrope"])
    theta = rope(d=8).frequencies()
    for length, key in ((15, "short_factor"), (16, "short_factor"), (17, "long_factor")):
        factors = theta.new_tensor(SMALL["longrope"][key])
        assert torch.allclose(scaled.frequencies(length=length), theta / factors, rtol=1e-12)


@given(st.integers(0, 40), st.integers(17, 60))
def test_the_first_tokens_of_longrope_turn_as_in_training(start, length):
    keys = {**SMALL["longrope"], "attention_factor": 1.0}
    scaled = rope(d=8, rope_type="longrope", start_tokens=start, **keys)
    without = rope(d=8, rope_type="longrope", **keys)
    q = torch.randn(1, 1, length, 8, dtype=torch.float64)
    p = torch.arange(length)
    found, _ = scaled.rotate(q, q, p, p)
    n = min(start, length)
    assert torch.equal(found[:, :, :n], rope(d=8).rotate(q, q, p, p)[0][:, :, :n])
    assert torch.equal(found[:, :, n:], without.rotate(q, q, p, p)[0][:, :, n:])


def test_logits_grow_with_the_logarithm_of_the_context():
    grown = build("rope", d_model=8, n_heads=1, max_length=64, log_length=16)
    q, p = torch.randn(1, 1, 100, 8, dtype=torch.float64), torch.arange(100)
    turned, k = grown.rotate(q, q, p, p)
    plain, _ = rope(d=8).rotate(q, q, p, p)
    size = (turned.norm(dim=-1) / plain.norm(dim=-1))[0, 0]
    assert torch.equal(k, plain)
    assert torch.allclose(size[:16], torch.ones(16, dtype=torch.float64))
    assert size[99].item() == pytest.approx(math.log(100) / math.log(16))


# ---- equality with the library that most models are published for --------------------------------


def theirs(d, base, max_length, parameters, length=None):
    """(frequencies, attention factor) as transformers computes them."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=d, num_attention_heads=1, head_dim=d, max_position_embeddings=max_length,
        rope_parameters={"rope_theta": base, **parameters},
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=length)


FACTORS = st.floats(1, 64)
LENGTHS = st.sampled_from([512, 2048, 4096, 8192])


@st.composite
def configurations(draw):
    """(d, base, max_length, dictionary) of the types that the library has."""
    d = 2 * draw(st.sampled_from([4, 16, 32, 48, 64]))
    base = draw(st.sampled_from([1e4, 1e5, 5e5, 1e6]))
    L, s = draw(LENGTHS), draw(FACTORS)
    kind = draw(st.sampled_from(["linear", "dynamic", "yarn", "llama3", "longrope"]))
    keys = {"rope_type": kind, "factor": s}
    if kind == "yarn":
        keys["beta_fast"] = draw(st.floats(8, 64))
        keys["beta_slow"] = draw(st.floats(0.5, 4))
        keys["truncate"] = draw(st.booleans())
        if draw(st.booleans()):
            keys["attention_factor"] = draw(st.floats(0.5, 2))
        elif draw(st.booleans()):
            keys |= {key: draw(st.floats(0.5, 2)) for key in ("mscale", "mscale_all_dim")}
    if kind == "llama3":
        keys["low_freq_factor"] = draw(st.floats(0.5, 3))
        keys["high_freq_factor"] = draw(st.floats(3.5, 8))
    if kind == "longrope":
        factors = st.lists(st.floats(1, 64), min_size=d // 2, max_size=d // 2)
        keys["short_factor"], keys["long_factor"] = draw(factors), draw(factors)
        if draw(st.booleans()):
            keys["attention_factor"] = draw(st.floats(0.5, 2))
    if kind in ("yarn", "llama3", "longrope"):
        keys["original_max_position_embeddings"] = L
    return d, base, L, keys


@settings(max_examples=150, deadline=None)
@given(configurations(), st.integers(1, 40_000))
def test_the_same_frequencies_as_transformers(configuration, length):
    d, base, L, keys = configuration
    expected, factor = theirs(d, base, L, keys, length)
    scaled = rope(d, max_length=L, base=base, **keys)
    found = scaled.frequencies(length=length)
    # Their ramp is float32: its steep ones round off 2^-20 of γ, and what 1 − γ has lost weighs s
    # times where θ/s is what remains.
    rounding = keys["factor"] * 2.0**-20 if keys["rope_type"] in ("yarn", "llama3") else 0.0
    assert torch.allclose(found, expected.double(), rtol=1e-6 + rounding, atol=0)
    assert scaled.attention_factor == pytest.approx(factor, rel=1e-6)


# ---- the dictionaries of configuration files -----------------------------------------------------


@pytest.mark.parametrize("kind", list(SMALL))
def test_the_old_spelling_and_the_new_are_one(kind):
    new = rope(d=8, max_length=64, rope_type=kind, rope_theta=5e5, **SMALL[kind])
    old = rope(d=8, max_length=64, base=5e5, type=kind, **SMALL[kind])
    both = rope(d=8, max_length=64, type=kind, rope_type=kind, rope_theta=5e5, **SMALL[kind])
    assert new.scaling == old.scaling == both.scaling and new.base == old.base == both.base == 5e5


def test_what_scales_nothing():
    for scaling in (None, {"rope_type": "default"}, {"rope_type": "default", "rope_theta": 1e4}):
        same = build("rope", d_model=8, n_heads=1, max_length=64, scaling=scaling)
        assert torch.equal(same.frequencies(), rope(d=8).frequencies())
        assert same.unscaled_length is None and same.attention_factor == 1


def test_a_missing_factor_and_a_missing_original_length_follow_from_the_model():
    given = rope(max_length=8192, rope_type="yarn", original_max_position_embeddings=2048)
    assert given.scaling.factor == 4
    given = rope(max_length=8192, rope_type="yarn", factor=4.0, mscale=None)  # null in the file
    assert given.scaling.original_max_position_embeddings == 8192
    phi = {"type": "su", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    phi = rope(max_length=131072, original_max_position_embeddings=4096, **phi)
    assert phi.attention_factor == pytest.approx(1.19024, abs=5e-6)


WRONG = {
    "must name one rope_type": {"factor": 2.0},
    "rope_type 'lineer'": {"rope_type": "lineer", "factor": 2.0},
    "names linear and yarn": {"rope_type": "linear", "type": "yarn", "factor": 2.0},
    "'factr'": {"rope_type": "linear", "factr": 2.0},
    "'beta_fast'": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32},
    "'factor'": {"rope_type": "linear"},
    "'long_factor'": {
        "rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 64,
        "original_max_position_embeddings": 4096,
    },
    "factor must be at least 1": {"rope_type": "ntk", "factor": 0.5},
    "factor must be a positive number": {"rope_type": "ntk", "factor": "2"},
    "is longer than max_length = 4096": {
        "rope_type": "yarn",
        "original_max_position_embeddings": 8192,
    },
    "needs the key 'original_max_position_embeddings'": {
        "rope_type": "longrope", "factor": 32.0, "short_factor": [1.0] * 64,
        "long_factor": [2.0] * 64,  # Phi-3's file has the original length outside
    },
    "embeddings must be a whole number": {
        "rope_type": "yarn", "original_max_position_embeddings": "4096",
    },
    "There is no rope_type": {"rope_type": ["yarn"], "factor": 2.0},
    "a dictionary for each of full_attention": {"full_attention": {"rope_type": "default"}},
    "no float holds": {"rope_type": "ntk", "factor": 1e300},
    "truncate must be": {"rope_type": "yarn", "factor": 2.0, "truncate": 0},
    "partial_rotary_factor must be a share": {
        "rope_type": "default", "partial_rotary_factor": 1.5,
    },
    "needs the key 'partial_rotary_factor'": {"rope_type": "proportional"},
    "a factor for each of the 64 pairs": {
        "rope_type": "longrope",
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0] * 64,
        "long_factor": [1.0] * 32,
    },
    "must be above beta_slow": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.5},
    "1.0 must be above beta_slow": {
        "rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0, "ramp": "turns",
    },
    "must not be below low_freq": {
        "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 1,
    },
    "give both or none": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0},
    "no effect": {"rope_type": "yarn", "factor": 2.0, "ramp": "turns", "truncate": True},
    "ramp must be": {"rope_type": "yarn", "factor": 2.0, "ramp": "linear"},
    "rope_theta must be": {"rope_type": "default", "rope_theta": -1.0},
    "takes no key": {"rope_type": "default", "factor": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG)
def test_a_wrong_dictionary_is_one_clear_error(sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        rope(**WRONG[sentence])
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_dictionaries_of_published_models_are_read():
    kimi = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    kimi |= {"beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    ratio = rope(d=64).frequencies() / rope(d=64, **kimi).frequencies()
    assert set(ratio.round(decimals=6).tolist()) <= {1.0, 32.0} | set(ratio[19:21].tolist())
    whole = rope(rope_type="default", partial_rotary_factor=1.0)
    assert torch.equal(whole.frequencies(), rope().frequencies())


@pytest.mark.parametrize("L", [4, 6])
def test_where_no_pair_turns_once_all_are_interpolated(L):
    for ramp in ("dimension", "turns"):
        keys = {"rope_type": "ntk_by_parts", "factor": 8.0, "ramp": ramp}
        scaled = rope(d=32, original_max_position_embeddings=L, **keys)
        assert torch.allclose(scaled.frequencies(), rope(d=32).frequencies() / 8)


@pytest.mark.parametrize("T", [200, 300])
def test_rows_of_different_lengths_turn_a_shared_run_of_keys_each_in_its_way(T):
    scaled = rope(d=8, max_length=64, rope_type="dynamic", factor=2.0)
    q, k = torch.randn(2, 1, 1, 8).double(), torch.randn(2, 1, T, 8).double()
    q_pos, k_pos = torch.tensor([[350], [900]]), torch.arange(T)
    together = scaled.rotate(q, k, q_pos, k_pos)
    for i in range(2):
        alone = scaled.rotate(q[[i]], k[[i]], q_pos[i], k_pos)
        for x, y in zip(together, alone, strict=True):
            assert torch.equal(x[[i]], y) or torch.allclose(x[[i]], y, atol=1e-12)


def test_no_positions_and_positions_that_wrap_are_served():
    scaled = rope(d=8, max_length=64, rope_type="dynamic", factor=2.0)
    none = torch.randn(1, 1, 0, 8)
    assert scaled.rotate(none, none, torch.arange(0), torch.arange(0))[0].shape == none.shape
    wrapped = (torch.arange(600) % 256).to(torch.uint8)
    q = torch.randn(1, 1, 600, 8, dtype=torch.float64)
    expected, _ = rope(d=8).rotate(q, q, wrapped.long(), wrapped.long())
    assert torch.allclose(rope(d=8).rotate(q, q, wrapped, wrapped)[0], expected, atol=1e-12)


def test_two_bases_are_an_error():
    refuses(lambda: rope(base=5e5, rope_type="default", rope_theta=1e6), "two bases")


@pytest.mark.parametrize("kind", ["ntk", "dynamic"])
def test_one_pair_cannot_be_both_kept_and_slowed(kind):
    refuses(lambda: rope(d=2, rope_type=kind, factor=2.0), "head width of 4")


# ---- a scaling that depends on the length, in a decoder ------------------------------------------


def decoder(kind):
    torch.manual_seed(0)
    config = Config(
        "rope", vocabulary=50, d_model=24, n_heads=3, n_layers=3, max_length=16, d_ff=32,
        options={"scaling": {"rope_type": kind, **SMALL[kind]}},
    )  # fmt: skip
    return Decoder(config).double().eval()


@pytest.mark.parametrize("kind", list(SMALL))
@torch.inference_mode()
def test_cached_decoding_equals_the_full_pass_at_the_length_it_is_fixed_for(kind):
    model, tokens = decoder(kind), torch.randint(50, (2, 40))
    whole = model(tokens, cache=Cache(length=40))
    cache, parts = Cache(length=40), []
    for part in tokens.split([10, 1, 1, 20, 8], dim=1):
        parts.append(model(part, cache=cache))
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-10)
    assert torch.allclose(model(tokens), whole, atol=1e-10)  # 40 tokens, computed for 40


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@torch.inference_mode()
def test_a_cache_refuses_to_cross_and_stays_as_it_was(kind):
    model, tokens = decoder(kind), torch.randint(50, (1, 20))
    cache = Cache()
    model(tokens[:, :16], cache=cache)
    refuses(lambda: model(tokens[:, 16:], cache=cache), "fixed for 16 positions")
    assert len(cache) == 16
    short = model(tokens[:, :16])
    assert not torch.allclose(model(tokens)[:, :16], short, atol=1e-3)  # why it must refuse


@torch.inference_mode()
def test_each_row_of_a_padded_batch_is_scaled_for_its_own_length():
    model = decoder("dynamic")
    long, short = torch.randint(50, (1, 30)), torch.randint(50, (1, 12))
    padded = torch.cat([torch.zeros(1, 18, dtype=torch.long), short], dim=1)
    real = torch.ones(2, 30, dtype=torch.bool)
    real[1, :18] = False
    both = model(torch.cat([long, padded]), padding_mask=real)
    assert torch.allclose(both[0], model(long)[0], atol=1e-10)
    assert torch.allclose(both[1, 18:], model(short)[0], atol=1e-10)
