"""Positions of padded rows, packed documents and pictures: against the decoder, against the same
documents alone, against transformers and a reference written out here."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.attention import attend
from lib.encodings import build
from lib.positions import from_padding, of_images, packed
from lib.transformer import Cache, Config, Decoder

few = settings(max_examples=20, deadline=None)


# ---- padding -------------------------------------------------------------------------------------


def test_padding_on_either_side_is_not_counted():
    left, right = [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]
    both, none = [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]
    found = from_padding(torch.tensor([left, right, both, none]))
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 0, 1, 2, 2], [0, 1, 2, 3, 4]]
    assert found.tolist() == expected
    assert from_padding(torch.tensor([left]).bool()).tolist() == expected[:1]


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_the_decoder_gives_the_same_positions(pads):
    real = torch.arange(6) >= torch.tensor(pads)[:, None]
    decoder, cache = Decoder(Config("rope", 5, 8, 1, 1, 8, 4)), Cache()
    decoder(torch.zeros(len(pads), 6, dtype=torch.long), padding_mask=real, cache=cache)
    assert torch.equal(cache.positions, from_padding(real))


# ---- packing -------------------------------------------------------------------------------------


def attended(name, x, positions, mask):
    encoding = build(name, d_model=8, n_heads=2, max_length=64)
    q, k = encoding.rotate(x[0], x[1], positions, positions)
    return attend(q, k, x[2], encoding, positions, positions, mask)


@few
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.sampled_from(["rope", "alibi", "nope", "mrope", "t5"]),
)
def test_packed_documents_are_what_they_are_alone(lengths, name):
    x = torch.randn(3, 1, 2, sum(lengths), 4, dtype=torch.float64)
    positions, mask = packed(lengths)
    together = attended(name, x, positions, mask).split(lengths, dim=-2)
    alone = x.split(lengths, dim=-2)
    for n, found, part in zip(lengths, together, alone, strict=True):
        right = attended(name, part, torch.arange(n), None)
        torch.testing.assert_close(found, right, rtol=0, atol=1e-10)


def test_positions_alone_let_one_document_see_another():
    """What leaks: under a plain causal mask the second document depends on the first."""
    positions, mask = packed([4, 4])
    x = torch.randn(3, 1, 2, 8, 4, dtype=torch.float64)
    other = x.clone()
    other[..., :4, :] += 1  # another first document
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    for m, leaks in ((causal, True), (mask, False)):
        a, b = (attended("rope", y, positions, m)[..., 4:, :] for y in (x, other))
        assert (not torch.equal(a, b)) == leaks
    assert mask.tolist() == [[i // 4 == j // 4 and j <= i for j in range(8)] for i in range(8)]


@pytest.mark.parametrize("lengths", [[], [3, 0], [2, -1], [2.5]])
def test_lengths_that_make_no_sense_are_refused(lengths):
    with pytest.raises(ValueError, match="lengths"):
        packed(lengths)


# ---- pictures ------------------------------------------------------------------------------------

parts = st.lists(
    st.integers(1, 5) | st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    min_size=1,
    max_size=6,
)


@few
@given(parts)
def test_pictures_stand_where_the_paper_says(parts):
    """One token after the other, as section 2.1 of Qwen2-VL tells it."""
    expected, start = [], 0
    for part in parts:
        begun = len(expected)
        if isinstance(part, int):
            expected += [(start + i,) * 3 for i in range(part)]
        else:
            t, h, w = part
            for frame in range(t):
                for row in range(h):
                    for column in range(w):
                        expected.append((start + frame, start + row, start + column))
        start = max(max(token) for token in expected[begun:]) + 1
    assert of_images(parts)[0].tolist() == [list(token) for token in expected]


def rope_index(parts):
    """transformers' positions of the same text, (T, 3), without a model's weights."""
    qwen = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    from types import SimpleNamespace

    kinds, images = [], []
    for part in parts:
        if isinstance(part, int):
            kinds += [0] * part
        else:
            images.append([part[0], 2 * part[1], 2 * part[2]])  # in patches
            kinds += [1] * (part[0] * part[1] * part[2])
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    model = SimpleNamespace(config=config)
    model.get_vision_position_ids = lambda *a, **k: qwen.Qwen2VLModel.get_vision_position_ids(
        model, *a, **k
    )
    ids = torch.zeros(1, len(kinds), dtype=torch.long)
    try:
        found, _ = qwen.Qwen2VLModel.get_rope_index(
            model, ids, torch.tensor([kinds]), image_grid_thw=torch.tensor(images)
        )
    except (AttributeError, TypeError):
        pytest.skip("this release asks for positions in another way")
    return found[:, 0].T


def test_transformers_puts_pictures_there_too():
    written = [3, (1, 2, 4), 5, (1, 3, 3), 1, (2, 2, 2), 2]
    assert torch.equal(rope_index(written), of_images(written)[0])


@pytest.mark.parametrize(
    "parts, word", [([], "at least"), ([(1, 2)], "grid"), ([0], "parts"), ([(1, 0, 2)], "h of")]
)
def test_parts_that_make_no_sense_are_refused(parts, word):
    with pytest.raises(ValueError, match=word):
        of_images(parts)
