"""config.json read: against Transformers' own classes and functions, and what is refused."""

import copy
import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lib import paths, rope_config
from lib.encodings import build, scaling
from lib.rope_config import DEFAULTS, SCALINGS, describe, read

CONFIGS = {path.stem: path for path in sorted((paths.DATA / "configs").glob("*.json"))}
SIZES = ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim",
         "max_position_embeddings")  # fmt: skip


def config(name: str) -> dict:
    return json.loads(CONFIGS[name].read_text(encoding="utf-8"))


def tiny(**changes) -> dict:
    """A file with 4 heads of 16 in 6 layers, and `changes`; None takes a key away."""
    file = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    file |= {"num_hidden_layers": 6, "max_position_embeddings": 1024, "rope_theta": 1e4}
    return {key: value for key, value in (file | changes).items() if value is not None}


def built(kind):
    return build(kind.encoding, **kind.sizes, **kind.options)


def theirs(file: dict):
    """Transformers' configuration of the text model in a file, complete."""
    file = copy.deepcopy(file)
    return CONFIG_MAPPING[file["model_type"]](**file).get_text_config()


def their_frequencies(hf, name: str, head: int):
    """θ' of a type of layer and what cos and sin are multiplied by, as Transformers has them."""
    nested = any(isinstance(x, dict) for x in hf.rope_parameters.values())
    rope = hf.rope_parameters[name] if nested else hf.rope_parameters
    if rope["rope_type"] != "default":
        compute = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
        length = {"longrope": hf.max_position_embeddings}.get(rope["rope_type"])
        return compute(hf, seq_len=length, layer_type=name if nested else None)
    d = int(getattr(hf, "qk_rope_head_dim", head) * rope.get("partial_rotary_factor", 1.0))
    return torch.from_numpy(rope["rope_theta"] ** (-np.arange(0, d, 2) / d)), 1.0  # RoFormer, 3.2.2


# ---- public models -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_frequencies_and_factors_are_those_of_transformers(name):
    model, hf = read(CONFIGS[name]), theirs(config(name))
    assert model.length == hf.max_position_embeddings or name == "qwen2.5_7b_yarn"
    assert sum(len(kind.layers) for kind in model.kinds) == hf.num_hidden_layers
    for kind in model.kinds:
        if kind.rotated:
            rope = built(kind)
            theta, factor = their_frequencies(hf, kind.name, kind.head)
            ours = rope.frequencies(length=model.length)
            np.testing.assert_allclose(ours, theta.double(), rtol=1e-6)
            assert rope.attention_factor == pytest.approx(factor, rel=1e-12)


def test_what_the_published_formula_says_of_llama_3():
    kind = read(CONFIGS["llama_3.1_8b"]).kinds[0]
    theta = 5e5 ** (-np.arange(64) / 64)
    wave = 2 * np.pi / theta
    smooth = (8192 / wave - 1) / (4 - 1)
    between = (1 - smooth) * theta / 8 + smooth * theta
    expected = np.where(wave < 8192 / 4, theta, np.where(wave > 8192, theta / 8, between))
    np.testing.assert_allclose(built(kind).frequencies(), expected, rtol=1e-12)


def test_deepseek_turns_the_end_of_its_heads_and_scales_its_logits():
    (kind,) = read(CONFIGS["deepseek_v3"]).kinds
    assert (kind.head, kind.rotated, kind.at_end, kind.interleaved) == (192, 64, True, True)
    assert kind.options["scale_logits"]
    assert built(kind).softmax_factor == pytest.approx((0.1 * math.log(40) + 1) ** 2)


def test_gemma_3_has_two_bases_and_scales_one_of_them():
    near, far = read(CONFIGS["gemma_3_12b"]).kinds
    assert (near.base, near.window, near.scaling, len(near.layers)) == (1e4, 1024, (), 40)
    assert (far.base, far.window, len(far.layers)) == (1e6, None, 8)
    assert dict(far.scaling) == {"rope_type": "linear", "factor": 8.0}
    assert far.layers == (5, 11, 17, 23, 29, 35, 41, 47)


def test_gemma_4_turns_a_share_of_wider_heads():
    near, far = read(CONFIGS["gemma_4_e4b"]).kinds
    assert (near.head, near.rotated, far.head, far.rotated) == (256, 256, 512, 128)
    theta = built(far).frequencies().numpy()
    np.testing.assert_allclose(theta[:64], 1e6 ** (-2 * np.arange(64) / 512), rtol=1e-12)
    assert not theta[64:].any()


def test_a_one_in_no_rope_layers_means_turned():
    turned, still = read(CONFIGS["smollm3_3b"]).kinds
    assert len(turned.layers) == 27 and still.layers == tuple(range(3, 36, 4))
    assert still.encoding == "nope" and still.options == {}


def test_llama_4_cools_the_queries_of_layers_that_turn_nothing():
    turned, still = read(CONFIGS["llama_4_scout"]).kinds
    assert turned.temperature is None and turned.window == 8192 and turned.interleaved
    assert still.options == {"temperature": {"attn_scale": 0.1, "floor_scale": 8192}}


def test_gpt_oss_does_not_round_its_ramp():
    (near, far) = read(CONFIGS["gpt_oss_120b"]).kinds
    assert dict(far.scaling)["truncate"] is False and near.scaling == far.scaling
    rounded = tuple((key, x) for key, x in far.scaling if key != "truncate")
    rounded = built(rope_config.replace(far, scaling=rounded))
    assert not torch.allclose(built(far).frequencies(), rounded.frequencies(), rtol=1e-3)


def test_qwen2_vl_has_three_axes():
    (kind,) = read(CONFIGS["qwen2_vl_7b"]).kinds
    assert kind.encoding == "mrope" and kind.sections == (16, 24, 24)


def test_yarn_reaches_the_factor_times_the_original_length():
    assert read(CONFIGS["qwen2.5_7b_yarn"]).length == 131072


# ---- defaults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_what_a_file_leaves_out_is_transformers_default(model_type):
    whole = json.loads(json.dumps(CONFIG_MAPPING[model_type]().get_text_config().to_dict()))
    short = {k: whole[k] for k in SIZES if k in whole and k not in DEFAULTS[model_type]}
    assert describe(short).kinds == describe(whole).kinds


def test_the_keys_of_a_scaling_are_those_that_the_encoding_knows():
    for name, (needed, more) in SCALINGS.items():
        if name != "default":
            known = set(scaling.SCALINGS[name].__dataclass_fields__)
            assert set(needed + more) == known - {"ramp", "start_tokens"}


# ---- two spellings -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_the_new_spelling_reads_as_the_old_one(name):
    old, file = read(CONFIGS[name]), config(name)
    saved = json.loads(json.dumps(theirs(file).to_dict()))  # as Transformers 5 writes it
    new = describe(saved)
    assert new.kinds == old.kinds and new.length == old.length


def test_a_nested_text_model_is_read_where_it_stands():
    inner = tiny(model_type="qwen2")
    model = describe({"model_type": "some_vlm", "text_config": inner, "vision_config": {"rope": 1}})
    assert model.where == ("text_config",) and model.kinds == describe(inner).kinds


def test_a_type_whose_rules_were_not_held_against_transformers_says_so():
    assert describe(tiny()).checked and not describe(tiny(model_type="new")).checked


# ---- refused -------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}

REFUSED = {
    "rope_scalling": tiny(rope_scalling=YARN),
    "perhaps rope_scaling is meant": tiny(rpoe_scaling=YARN),
    "rope_ratio": tiny(rope_ratio=8),
    "perhaps beta_fast is meant": tiny(rope_scaling=YARN | {"beta_fsat": 32}),
    "does not know the key 'low_freq_factor'": tiny(rope_scaling=YARN | {"low_freq_factor": 1.0}),
    "no rope_type 'yarm'": tiny(rope_scaling=YARN | {"rope_type": "yarm"}),
    "factor must be at least 1": tiny(rope_scaling=YARN | {"factor": 0.25}),
    "factor must be a positive number": tiny(rope_scaling=YARN | {"factor": "4"}),
    "longer than max_position_embeddings": tiny(
        rope_scaling=YARN | {"original_max_position_embeddings": 2048}
    ),
    "has no effect": tiny(
        rope_scaling={"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 256}
    ),
    "needs the key 'factor'": tiny(rope_scaling={"type": "linear"}),
    "needs the key 'low_freq_factor'": tiny(rope_scaling=YARN | {"rope_type": "llama3"}),
    "two types": tiny(rope_scaling=YARN | {"type": "linear"}),
    "rope_theta = 500.0 and rope_theta = 10000.0 disagree": tiny(
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    ),
    "rope_parameters and rope_scaling disagree": tiny(
        rope_parameters=YARN, rope_scaling=YARN | {"factor": 2.0}
    ),
    "rotary_emb_base = 7.0 disagree": tiny(rotary_emb_base=7.0),
    "wider than the head": tiny(partial_rotary_factor=1.5),
    "wider than the head, 16": tiny(rotary_dim=18),
    "must be even": tiny(partial_rotary_factor=3 / 16),
    "rotary_dim = 8 and partial_rotary_factor": tiny(rotary_dim=8, partial_rotary_factor=0.25),
    "sum to 8": tiny(rope_scaling={"type": "mrope", "mrope_section": [2, 2, 2]}),
    "a list of 8 numbers": tiny(
        rope_scaling={"type": "su", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7,
                      "original_max_position_embeddings": 256}
    ),
    "act together": tiny(rope_scaling=YARN | {"mscale": 1.0}),
    "beta_fast": tiny(rope_scaling=YARN | {"beta_fast": 1.0, "beta_slow": 2.0}),
    "truncate must be true or false": tiny(rope_scaling=YARN | {"truncate": "no"}),
    "a 1 (turned) or a 0 (not)": tiny(no_rope_layers=[1, 0]),
    "each of the 6 layers": tiny(layer_types=["full_attention"]),
    "'ring_attention'": tiny(layer_types=["ring_attention"] * 6),
    "no layer is of that type": tiny(rope_parameters={"sliding_attention": YARN}),
    "says nothing of the layers 'full_attention'": tiny(
        layer_types=["sliding_attention"] * 3 + ["full_attention"] * 3,
        rope_parameters={"sliding_attention": {"rope_type": "default"}},
    ),
    "needs the key 'rope_theta'": tiny(model_type="new", rope_theta=None),
    "needs the key 'num_hidden_layers'": tiny(num_hidden_layers=None),
    "needs the key 'max_position_embeddings'": tiny(max_position_embeddings=None),
    "max_position_embeddings must be a whole number": tiny(max_position_embeddings=1024.5),
    "4 heads do not divide hidden_size = 66": tiny(hidden_size=66),
    "text_config.rope_theta": {"rope_theta": 5.0, "text_config": tiny()},
    "rope_theta must be above 1": tiny(rope_theta=1.0),
    "one object": ["rope_theta"],
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_file_that_is_not_understood_is_refused_by_name(sentence):
    refuses(lambda: describe(REFUSED[sentence]), sentence)


def test_no_json_a_key_twice_and_no_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny()), encoding="utf-8")
    assert read(path) == read(tmp_path) == describe(tiny())
    path.unlink()
    path.write_text("{rope}", encoding="utf-8")
    refuses(lambda: read(path), "is not JSON")
    path.write_text('{"rope_theta": 1e4, "rope_theta": 1e6}', encoding="utf-8")
    refuses(lambda: read(path), "stands twice")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing.json")


@given(st.sampled_from(sorted(CONFIGS)), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_a_letter_lost_in_a_key_about_rope_is_noticed(name, chance: random.Random):
    """Every key that holds rope, theta or position, at the top or in the scaling, with a letter
    gone: either an error, or nothing has changed (a default stood behind it)."""
    file = config(name)
    inner = file.get("text_config", file)
    places = [inner] + [x for x in inner.values() if isinstance(x, dict) and x is not None]
    keys = [(place, key) for place in places for key in place if "rope_" in key or "_pos" in key]
    place, key = chance.choice(keys)
    i = chance.randrange(len(key))
    before = describe(copy.deepcopy(file))
    place[key[:i] + key[i + 1 :]] = place.pop(key)
    try:
        after = describe(file)
    except ValueError:
        return
    assert after.kinds == before.kinds


positive = st.floats(0.01, 100) | st.integers(-1, 3) | st.sampled_from([None, "4", True, math.inf])
scalings = st.fixed_dictionaries(
    {"rope_type": st.sampled_from([*SCALINGS, "su"])},
    optional={
        "factor": positive,
        "original_max_position_embeddings": st.sampled_from([0, 1, 2, 256, 1024, 4096, 2.5]),
        "beta_fast": positive,
        "beta_slow": positive,
        "truncate": st.sampled_from([True, False, None, 1]),
        "attention_factor": positive,
        "mscale": positive,
        "mscale_all_dim": positive,
        "low_freq_factor": st.sampled_from([1.0, 4.0, 0]),
        "high_freq_factor": st.sampled_from([2.0, 4.0]),
        "short_factor": st.sampled_from([[1.0] * 8, [1.0] * 7, [0.0] * 8, 3]),
        "long_factor": st.sampled_from([[2.0] * 8]),
        "partial_rotary_factor": st.sampled_from([0.5, 1.0, 0.1, 2, "a"]),
    },
)


@given(scalings)
@settings(max_examples=200, deadline=None)
def test_what_is_read_can_be_built_and_what_is_refused_is_one_sentence(rope):
    try:
        model = describe(tiny(rope_scaling=rope))
    except ValueError as error:
        assert "\n" not in str(error) and str(error).endswith(".")
        return
    built(model.kinds[0]).frequencies(length=2048)


def test_a_description_cannot_be_changed():
    kind = read(CONFIGS["gpt_oss_120b"]).kinds[0]
    with pytest.raises(AttributeError):
        kind.base = 1.0
    hash(kind)
