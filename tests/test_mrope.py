"""M-RoPE against transformers' Qwen2-VL and Qwen3-VL, against RoPE on a text, and its errors."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.encodings import build
from lib.positions import of_images

few = settings(max_examples=20, deadline=None)


def make(d=128, name="mrope", **options):
    return build(name, d_model=d, n_heads=1, max_length=4096, **options)


def some(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    "model, name, options",
    [
        ("qwen2_vl", "Qwen2VL", {"sections": (16, 24, 24)}),
        ("qwen3_vl", "Qwen3VLText", {"sections": (24, 20, 20), "interleaved": True}),
    ],
)
def test_transformers_turns_the_same_pairs_with_the_same_axes(model, name, options):
    pytest.importorskip("transformers")
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    config = importlib.import_module(f"transformers.models.{model}.configuration_{model}")
    kind = getattr(config, f"{name}Config" if model == "qwen3_vl" else "Qwen2VLTextConfig")
    c = kind(
        hidden_size=128, num_attention_heads=1, num_key_value_heads=1, head_dim=128,
        rope_parameters={
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": list(options["sections"])
        },
    )  # fmt: skip
    theirs = getattr(module, f"{name}RotaryEmbedding")(c)
    place = of_images([7, (1, 3, 5), 4, (6, 2, 2), 900])  # (1, T, 3)
    q, k = (some(1, 1, place.shape[1], 128, seed=s).float() for s in (0, 1))
    right = module.apply_rotary_pos_emb(q, k, *theirs(q, place.movedim(-1, 0)))
    ours = make(base=1e6, layout="half_split", **options)
    assert make(interleaved=options.get("interleaved", False)).sections == options["sections"]
    for found, expected in zip(ours.rotate(q, k, place, place), right, strict=True):
        allowed = 4 * (place.max() + 1) * 2.0**-24 * expected.norm(dim=-1).max()
        assert (found - expected).abs().max() <= allowed


@few
@given(
    pairs=st.integers(1, 9),
    interleaved=st.booleans(),
    layout=st.sampled_from(["interleaved", "half_split"]),
    rows=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_on_a_text_it_is_rope(pairs, interleaved, layout, rows, dtype):
    d, at = 2 * pairs, torch.tensor([0, 1, 2, 9, 4000])
    at = torch.stack([at, at.flip(0)]) if rows else at
    q, k = some(2, 1, 5, d).to(dtype), some(2, 1, 5, d, seed=1).to(dtype)
    right = make(d, "rope", layout=layout).rotate(q, k, at, at)
    mrope = make(d, layout=layout, interleaved=interleaved)
    axes = (at if rows else at[None])[..., None].expand(-1, -1, 3)
    for place in (at, axes):
        for found, expected in zip(mrope.rotate(q, k, place, place), right, strict=True):
            assert torch.equal(found, expected)


@few
@given(
    offset=st.tuples(*3 * [st.integers(0, 500)]),
    interleaved=st.booleans(),
    scaled=st.booleans(),
)
def test_scores_depend_on_differences_on_every_axis(offset, interleaved, scaled):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    mrope = make(32, interleaved=interleaved, scaling=scaling if scaled else None)
    q, k = some(1, 1, 4, 32), some(1, 1, 4, 32, seed=1)
    place = torch.tensor([[[0, 0, 0], [3, 1, 4], [1, 5, 9], [2, 6, 5]]])
    scores = []
    for p in (place, place + torch.tensor(offset)):
        a, b = mrope.rotate(q, k, p, p)
        scores.append(a @ b.mT)
    torch.testing.assert_close(*scores, rtol=0, atol=1e-10)


def test_a_length_is_the_largest_position_on_any_axis():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}
    mrope, x = make(16, scaling=scaling), some(2, 1, 2, 16)
    place = torch.tensor([[[0, 0, 0], [1, 2, 40]], [[0, 0, 0], [1, 2, 3]]])
    alone = [mrope.rotate(x[i : i + 1], x[i : i + 1], *2 * [place[i : i + 1]])[0] for i in (0, 1)]
    assert torch.equal(mrope.rotate(x, x, place, place)[0], torch.cat(alone))
    fixed = mrope.rotate(x[:1], x[:1], place[:1], place[:1], length=41)[0]
    assert torch.equal(alone[0], fixed)


@pytest.mark.parametrize(
    "sentence, options",
    [
        ("add up to 63, and 64 pairs turn", {"sections": (16, 23, 24)}),
        ("three numbers of pairs", {"sections": (32, 32)}),
        ("cannot take turns among 64 pairs", {"sections": (16, 24, 24), "interleaved": True}),
        (r"sections\[0\] must be a whole number", {"sections": (-8, 36, 36)}),
        ("add up to 64, and 32 pairs turn", {"sections": (16, 24, 24), "rotated": 64}),
    ],
)
def test_sections_that_make_no_sense_are_refused(sentence, options):
    with pytest.raises(ValueError, match=sentence):
        make(**options)


def test_three_axes_without_a_batch_axis_are_refused():
    x = some(1, 1, 5, 8)
    with pytest.raises(ValueError, match=r"give \(T,\) or"):
        make(8).rotate(x, x, torch.zeros(5, 3), torch.zeros(5, 3))
