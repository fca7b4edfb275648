"""RoPE of a part of a head, p-RoPE, DeepSeek's two scales and the temperatures: against
transformers' models, published values and the formulas written out."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.encodings import build
from lib.encodings.scaling import SCALINGS

few = settings(max_examples=20, deadline=None)
DEEPSEEK = {  # V3's configuration file
    "rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
    "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip


def rope(d, name="rope", **options):
    sizes = {"d_model": d, "n_heads": 1, "max_length": 4096}
    return build(name, **sizes, **options)


def some(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def rounding(positions):
    """What float32 phases of a library may cost, in units of the length of a pair."""
    return 4 * (positions.max().item() + 1) * 2.0**-24


# ---- a part of the head --------------------------------------------------------------------------


@few
@given(
    r=st.integers(1, 6).map(lambda n: 2 * n),
    rest=st.integers(0, 7),
    layout=st.sampled_from(["interleaved", "half_split"]),
    last=st.booleans(),
)
def test_a_part_turns_as_a_head_of_its_width_and_the_rest_passes(r, rest, layout, last):
    d = r + rest
    where = "last" if last and rest else "first"
    part = rope(d, rotated=r, rotated_at=where, layout=layout)
    q, k, at = some(2, 1, 5, d), some(2, 1, 5, d, seed=1), torch.tensor([0, 1, 7, 90, 4000])
    inside = slice(rest, d) if where == "last" else slice(0, r)
    alone = rope(r, layout=layout).rotate(q[..., inside], k[..., inside], at, at)
    for x, found, right in zip((q, k), part.rotate(q, k, at, at), alone, strict=True):
        expected = x.clone()
        expected[..., inside] = right
        assert torch.equal(found, expected)
    assert torch.equal(part.frequencies(), rope(r).frequencies())


def rotary_of(model, d, factor, base):
    """(rotary module, apply) of a family of transformers, for heads of d."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    config = importlib.import_module(f"transformers.models.{model}.configuration_{model}")
    name = {"gpt_neox": "GPTNeoX", "glm": "Glm"}[model]
    parameters = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": factor}
    c = getattr(config, f"{name}Config")(
        hidden_size=d, num_attention_heads=1, num_key_value_heads=1, head_dim=d,
        rope_parameters=parameters,
    )  # fmt: skip
    return getattr(module, f"{name}RotaryEmbedding")(c), module.apply_rotary_pos_emb


@pytest.mark.parametrize(
    "model, layout, factor",
    [("gpt_neox", "half_split", 0.25), ("glm", "interleaved", 0.5)],
)
def test_transformers_turns_the_same_part(model, layout, factor):
    pytest.importorskip("transformers")
    d, at = 32, torch.arange(0, 1000, 97)
    theirs, apply = rotary_of(model, d, factor, 5e5)
    q, k = some(1, 1, len(at), d).float(), some(1, 1, len(at), d, seed=1).float()
    right = apply(q, k, *theirs(q, at[None]))
    scaling = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": factor}
    ours = rope(d, layout=layout, scaling=scaling)
    assert ours.rotated == d * factor
    for found, expected in zip(ours.rotate(q, k, at, at), right, strict=True):
        assert (found - expected).abs().max() <= rounding(at) * expected.norm(dim=-1).max()
    torch.testing.assert_close(ours.frequencies(), theirs.inv_freq.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", sorted(set(SCALINGS) - {"proportional", "longrope"}))
def test_a_scaling_is_that_of_a_head_as_wide_as_the_part(kind):
    """So ranges, bases and turns are those of r channels; transformers does the same."""
    keys = {
        "llama3": {
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "dynamic": {"original_max_position_embeddings": 64},
    }.get(kind, {})  # fmt: skip
    scaling = {"rope_type": kind, "factor": 4.0, **keys}
    part = rope(96, scaling=scaling | {"partial_rotary_factor": 1 / 3})
    assert part.rotated == 32  # 96 · (1/3) is 31.999… or 32, and transformers truncates
    alone = rope(32, scaling=scaling)
    for length in (None, 1000):
        assert torch.equal(part.frequencies(length=length), alone.frequencies(length=length))


@pytest.mark.parametrize("r, d", [(64, 192), (2, 98), (6, 22), (32, 80), (46, 50)])
def test_a_share_of_channels_survives_division(r, d):
    assert rope(d, scaling={"partial_rotary_factor": r / d}).rotated == r


WRONG = {
    "wider than the head, which has 8": {"rotated": 10},
    "let an even number of the 8": {"rotated": 3},
    "2 or more, not 0": {"rotated": 0},
    "must be a share, 0 to 1, not 1.25": {"scaling": {"partial_rotary_factor": 1.25}},
    "give one of them": {"rotated": 2, "scaling": {"partial_rotary_factor": 0.5}},
    "rotated_at has no effect": {"rotated_at": "last"},
    "rotated_at must be one of": {"rotated": 4, "rotated_at": "middle"},
    "scale_logits has no effect": {"scale_logits": True},
    "without a scaling of rope_type yarn": {
        "scale_logits": True, "scaling": {"rope_type": "yarn", "factor": 4.0},
    },
    "dictionary of attn_scale and floor_scale": {"temperature": {"attn_scale": 0.1}},
    "floor_scale must be a positive number": {
        "temperature": {"attn_scale": 0.1, "floor_scale": 0}
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG)
def test_what_makes_no_sense_is_one_clear_error(sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        rope(8, **WRONG[sentence])
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


# ---- p-RoPE --------------------------------------------------------------------------------------


@few
@given(st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.75, 1.0]), st.sampled_from([8, 12, 64, 256]))
def test_proportional_is_that_of_transformers_and_of_the_example(p, d):
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    if "proportional" not in utils.ROPE_INIT_FUNCTIONS:
        pytest.skip("this release has no proportional RoPE")
    from transformers import LlamaConfig

    from lib.examples.prope import PRoPE

    keys = {"rope_type": "proportional", "partial_rotary_factor": p, "factor": 2.0}
    ours = rope(d, base=1e6, scaling=keys).frequencies()
    config = LlamaConfig(
        hidden_size=d, num_attention_heads=1, head_dim=d, rope_parameters=keys | {"rope_theta": 1e6}
    )
    theirs, _ = utils.ROPE_INIT_FUNCTIONS["proportional"](config)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-6, atol=0)
    example = PRoPE(d, 1, 64, p=p, base=1e6).frequencies()
    torch.testing.assert_close(ours, example / 2, rtol=1e-12, atol=0)
    n = int(p * d // 2)
    assert torch.equal(ours[:n], rope(d, base=1e6).frequencies()[:n] / 2) and not ours[n:].any()


# ---- DeepSeek's attention ------------------------------------------------------------------------


def latent(scale_logits=True):
    return rope(192, rotated=64, rotated_at="last", scaling=DEEPSEEK, scale_logits=scale_logits)


def test_deepseek_has_the_published_values():
    theta = latent().frequencies()
    assert len(theta) == 32
    unscaled, slow = rope(64).frequencies(), rope(64).frequencies() / 40
    assert (theta[:11] == unscaled[:11]).all() and (theta[23:] == slow[23:]).all()
    assert ((theta[11:23] < unscaled[11:23]) & (theta[11:23] > slow[11:23])).all()
    assert theta[16].item() == pytest.approx(5.5e-3, rel=1e-6)
    assert theta[23].item() == pytest.approx(3.3338036e-5, rel=1e-6)
    assert latent().attention_factor == 1.0
    assert latent().softmax_factor == pytest.approx(1.8738542, rel=1e-7)
    assert latent().softmax_factor / 192**0.5 == pytest.approx(0.13523378, rel=1e-7)


def test_deepseek_attends_as_in_transformers():
    """The logits of its attention: unrotated channels, rotated ones, and their softmax scale."""
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(
        qk_rope_head_dim=64, qk_nope_head_dim=128, head_dim=64, max_position_embeddings=163840,
        rope_parameters=DEEPSEEK | {"rope_theta": 1e4},
    )  # fmt: skip
    theirs = deepseek.DeepseekV3RotaryEmbedding(config)
    at = torch.tensor([0, 1, 5, 300, 900])
    q, k = some(1, 1, 5, 192).float(), some(1, 1, 5, 192, seed=1).float()
    turned = deepseek.apply_rotary_pos_emb_interleave(
        q[..., 128:], k[..., 128:], *theirs(q, at[None])
    )
    a, b = (torch.cat([x[..., :128], y], -1) for x, y in zip((q, k), turned, strict=True))
    right = a @ b.mT * deepseek.yarn_apply_mscale(config.rope_parameters, 192**-0.5)
    ours_q, ours_k = latent().rotate(q, k, at, at)
    found = ours_q @ ours_k.mT / 192**0.5
    assert (found - right).abs().max() <= 4 * rounding(at) * right.abs().max()
    plain_q, plain_k = latent(scale_logits=False).rotate(q, k, at, at)
    torch.testing.assert_close(
        found, latent().softmax_factor * (plain_q @ plain_k.mT) / 192**0.5, rtol=1e-4, atol=1e-4
    )


# ---- temperatures --------------------------------------------------------------------------------

LLAMA4 = {"attn_scale": 0.1, "floor_scale": 8}


@pytest.mark.parametrize(
    "name, options", [("nope", {}), ("rope", {}), ("rope", {"rotated": 2, "rotated_at": "last"})]
)
@pytest.mark.parametrize("log_length", [None, 16])
@pytest.mark.parametrize("temperature", [None, LLAMA4])
def test_the_logits_of_a_query_grow_with_its_position(name, options, log_length, temperature):
    grown = rope(6, name, log_length=log_length, temperature=temperature, **options)
    plain = rope(6, name, **options)
    q, k = some(2, 1, 4, 6), some(2, 1, 9, 6, seed=1)
    q_pos, k_pos = torch.tensor([[0, 6, 7, 300], [5, 15, 16, 1000]]), torch.arange(9)
    before, after = ((a @ b.mT) for a, b in (e.rotate(q, k, q_pos, k_pos) for e in (plain, grown)))
    for row in range(2):
        for i, p in enumerate(q_pos[row].tolist()):
            factor = max(1.0, math.log(p + 1) / math.log(16)) if log_length else 1.0
            if temperature:
                factor *= math.log(math.floor((p + 1) / 8) + 1) * 0.1 + 1.0
            torch.testing.assert_close(
                after[row, 0, i], factor * before[row, 0, i], rtol=1e-12, atol=1e-12
            )


def test_llama4_begins_to_scale_with_the_last_token_of_the_first_stretch():
    grown = rope(2, "nope", temperature={"attn_scale": 0.1, "floor_scale": 8192})
    ones = torch.ones(1, 1, 3, 2)
    at = torch.tensor([8190, 8191, 3 * 8192 - 1])
    q, k = grown.rotate(ones, ones, at, at)
    expected = torch.tensor([1.0, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(4)])
    torch.testing.assert_close(q[0, 0, :, 0], expected)
    assert torch.equal(k, ones)
