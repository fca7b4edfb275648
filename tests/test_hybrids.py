"""Decoders whose layers have different encodings: decoding, padding, and what layers share."""

import dataclasses

import pytest
import torch

from lib.transformer import Cache, Config, Decoder

TEMPERATURE = {"attn_scale": 0.1, "floor_scale": 4}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}
HYBRIDS = {
    "Llama 4": ("rope", {3: ("nope", {"temperature": TEMPERATURE})}),
    "Gemma 3": ("rope", {2: ("rope", {"base": 1e6})}),
    "biases": ("alibi", {1: ("t5", {}), 2: ("rope", {"log_length": 4}), 3: ("t5", {})}),
    "own parameters": ("shaw", {1: ("rope", {"rotated": 2, "rotated_at": "last"})}),
    "embeddings": ("sinusoidal", {1: ("rope", {}), 2: ("mrope", {})}),
    "a length": ("nope", {1: ("rope", {"scaling": DYNAMIC})}),
}


def make(kind):
    name, exceptions = HYBRIDS[kind]
    torch.manual_seed(0)
    model = Decoder(Config(name, 11, 16, 4, 4, 32, 8, n_kv_heads=2, exceptions=exceptions))
    for parameter in model.encodings.parameters():
        torch.nn.init.normal_(parameter)
    return model.double().eval()


@pytest.mark.parametrize("kind", HYBRIDS)
def test_cached_decoding_is_the_full_pass_and_padding_is_nothing(kind):
    model, tokens = make(kind), torch.randint(11, (2, 14))
    real = torch.arange(14) >= torch.tensor([[0], [5]])
    cache = Cache(length=14)
    with torch.no_grad():
        whole = model(tokens, padding_mask=real, cache=Cache(length=14))
        parts = zip(tokens.split([6, 1, 7], 1), real.split([6, 1, 7], 1), strict=True)
        found = torch.cat([model(t, padding_mask=r, cache=cache) for t, r in parts], dim=1)
        alone = model(tokens[1:, 5:], cache=Cache(length=14))
    torch.testing.assert_close(found[real], whole[real], rtol=0, atol=1e-10)
    torch.testing.assert_close(whole[1:, 5:], alone, rtol=0, atol=1e-10)


def test_each_layer_has_its_own_encoding_and_equal_ones_are_shared():
    model = make("biases")
    assert [model.encoding(i).name for i in range(4)] == ["alibi", "t5", "rope", "t5"]
    assert model.encoding(1) is model.encoding(3)
    own = make("own parameters")
    assert [own.encoding(i).name for i in range(4)] == ["shaw", "rope", "shaw", "shaw"]
    assert len({id(own.encoding(i)) for i in range(4)}) == 4
    local, far = (make("Gemma 3").encoding(i).base for i in (1, 2))
    assert (local, far) == (1e4, 1e6)


def test_the_exceptions_are_what_a_layer_does():
    """All layers excepted is the other model, and one is neither."""
    tokens = torch.randint(11, (1, 9))
    whole = Config("nope", 11, 16, 4, 4, 32, 8)

    def logits(**changes):
        torch.manual_seed(0)
        with torch.no_grad():
            return Decoder(dataclasses.replace(whole, **changes))(tokens)

    every = logits(encoding="rope", exceptions={i: ("nope", {}) for i in range(4)})
    assert torch.equal(every, logits())
    assert torch.equal(logits(exceptions={}), logits())
    one = logits(exceptions={2: ("rope", {})})
    assert not torch.allclose(one, logits()) and not torch.allclose(one, logits(encoding="rope"))


def test_a_length_is_that_of_the_layer_which_needs_one():
    with pytest.raises(ValueError, match="depends on the length"):
        make("a length")(torch.zeros(1, 9, dtype=torch.long), cache=Cache())


@pytest.mark.parametrize(
    "sentence, name, exceptions",
    [
        ("names the layer 4", "rope", {4: ("nope", {})}),
        ("names the layer 'last'", "rope", {"last": ("nope", {})}),
        ("sinusoidal adds to the embeddings", "rope", {1: ("sinusoidal", {})}),
        ("learned adds to the embeddings", "sinusoidal", {2: ("learned", {})}),
        ("nope does not know the option", "rope", {1: ("nope", {"base": 1.0})}),
    ],
)
def test_exceptions_that_make_no_sense_are_refused(sentence, name, exceptions):
    with pytest.raises(ValueError, match=sentence):
        Decoder(Config(name, 11, 16, 4, 4, 32, 8, exceptions=exceptions))
