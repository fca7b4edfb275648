"""The decoder that every encoding is tried in, and cached decoding.

Pre-norm, RMSNorm, SwiGLU, no biases, tied embeddings: the LLaMA family's block, small. Positions
are explicit, so that left padding and a cache of keys and values need no special case.

Letters: B batch, T length, V vocabulary, D width, H heads, H_kv heads of keys, d = D/H.
"""

from dataclasses import dataclass, field, fields

import torch
import torch.nn.functional as F
from torch import nn

from lib.attention import Distances, attend, causal_mask, shared_bias
from lib.encodings import Encoding, build
from lib.encodings.base import check_whole


@dataclass(frozen=True)
class Config:
    """The sizes of a decoder and the encoding in it.

    Args:
        encoding: a name in `lib.encodings.ENCODINGS`, built with `options`.
        max_length: L, what the encoding is prepared for; only a learned table refuses to go past.
        d_ff: the hidden width of SwiGLU; 8·D/3 has the parameters of a plain MLP of width 4·D.
        n_kv_heads: H_kv, which divides n_heads (grouped-query attention).
        exceptions: layer → (name, options) of the layers that have another encoding than the rest,
            {3: ("nope", {})}. None: there are none. What is added to the embeddings is added once,
            by the encoding of layer 0: others cannot.
    """

    encoding: str
    vocabulary: int
    d_model: int
    n_heads: int
    n_layers: int
    max_length: int
    d_ff: int
    n_kv_heads: int | None = None
    options: dict = field(default_factory=dict)
    exceptions: dict[int, tuple[str, dict]] | None = None

    def __post_init__(self):
        sizes = {x.name: getattr(self, x.name) for x in fields(self)}
        del sizes["encoding"], sizes["options"], sizes["exceptions"]
        if self.n_kv_heads is None:
            del sizes["n_kv_heads"]
        check_whole(**sizes)
        for part, whole in [("n_heads", "d_model"), ("n_kv_heads", "n_heads")]:
            if sizes[whole] % sizes.get(part, 1):
                raise ValueError(
                    f"{part} = {sizes[part]} must divide {whole} = {sizes[whole]}: choose another."
                )
        for layer in self.exceptions or {}:
            if layer not in range(self.n_layers):
                raise ValueError(
                    f"exceptions names the layer {layer!r}: the layers are 0 … {self.n_layers - 1}."
                )


class Cache:
    """The keys and values of the tokens seen so far, for decoding a few tokens at a time.

    Args:
        length: for an encoding whose result depends on the sequence's length, the length that the
            whole generation is computed for; decoding past it raises ValueError. Other encodings
            ignore it.
    """

    def __init__(self, length: int | None = None):
        if length is not None:
            check_whole(length=length)
        self.length = length
        self.keys, self.values = {}, {}  # layer → (B, H_kv, T, d)
        self.positions = None  # (T,) or (B, T)
        self.real = None  # (B, T), False on padding; None while there is none
        self.contiguous = True  # whether every position is the one before + 1

    def __len__(self):
        return 0 if self.positions is None else self.positions.shape[-1]

    def extend(self, layer: int, k, v):
        """Append k, v (B, H_kv, T, d) of one layer; all that is stored comes back."""
        if layer in self.keys:
            k = torch.cat([self.keys[layer], k], dim=-2)
            v = torch.cat([self.values[layer], v], dim=-2)
        self.keys[layer], self.values[layer] = k, v
        return k, v


@dataclass
class View:
    """What the queries of one call see, the same in every layer."""

    q_pos: torch.Tensor  # (Tq,) or (B, Tq)
    k_pos: torch.Tensor  # (Tk,) or (B, Tk)
    mask: torch.Tensor | None  # as in `attend`
    bias: dict[Encoding, torch.Tensor | Distances | None]  # of each encoding, as in `attend`
    length: int | None  # as in `Encoding.rotate`
    real: torch.Tensor | None  # (B, Tk), as in `Cache`
    contiguous: bool  # as in `Cache`
    cache: Cache | None


class Block(nn.Module):
    """x + Attention(RMSNorm(x)), then x + SwiGLU(RMSNorm(x))."""

    def __init__(self, config: Config):
        super().__init__()
        D, H = config.d_model, config.n_heads
        self.d = D // H
        h_kv = config.n_kv_heads or H
        self.sizes = [H * self.d, h_kv * self.d, h_kv * self.d]
        self.norm_attention = nn.RMSNorm(D, eps=1e-5)
        self.w_qkv = nn.Linear(D, sum(self.sizes), bias=False)
        self.w_o = nn.Linear(D, D, bias=False)
        self.norm_mlp = nn.RMSNorm(D, eps=1e-5)
        self.w_gate_up = nn.Linear(D, 2 * config.d_ff, bias=False)
        self.w_down = nn.Linear(config.d_ff, D, bias=False)

    def forward(self, x, layer: int, encoding, view: View):
        x = x + self.attention(self.norm_attention(x), layer, encoding, view)
        gate, up = self.w_gate_up(self.norm_mlp(x)).chunk(2, dim=-1)
        return x + self.w_down(F.silu(gate) * up)

    def attention(self, x, layer: int, encoding, view: View):
        q, k, v = self.w_qkv(x).split(self.sizes, dim=-1)  # (B, T, H·d), (B, T, H_kv·d) twice
        q, k, v = (y.unflatten(-1, (-1, self.d)).transpose(1, 2) for y in (q, k, v))
        q, k = encoding.rotate(q, k, view.q_pos, view.q_pos, view.length)
        if view.cache is not None:
            k, v = view.cache.extend(layer, k, v)
        bias = view.bias.get(encoding)
        y = attend(q, k, v, encoding, view.q_pos, view.k_pos, view.mask, bias)
        return self.w_o(y.transpose(1, 2).flatten(-2))  # (B, T, D)


def encodings_of(c: Config) -> nn.ModuleList:
    """The encodings of a model: one that serves all layers, or one for each.

    With exceptions there is an entry for each layer, and layers of one kind share one encoding
    where its class says so. Raises ValueError as `build` does, and for an encoding that adds to the
    embeddings and is not that of layer 0.
    """
    sizes = {"d_model": c.d_model, "n_heads": c.n_heads, "max_length": c.max_length}
    if not c.exceptions:
        first = build(c.encoding, **sizes, **c.options)
        rest = () if first.shared_across_layers else range(c.n_layers - 1)
        return nn.ModuleList([first, *(build(c.encoding, **sizes, **c.options) for _ in rest)])
    layers, kinds = [], []
    for layer in range(c.n_layers):
        kind = tuple(c.exceptions.get(layer, (c.encoding, c.options)))
        alike = [e for e, other in zip(layers, kinds, strict=True) if other == kind]
        shared = alike and alike[0].shared_across_layers
        encoding = alike[0] if shared else build(kind[0], **sizes, **kind[1])
        if type(encoding).embed is not Encoding.embed and layers and encoding is not layers[0]:
            raise ValueError(
                f"{kind[0]} adds to the embeddings, which is done before layer 0, and is the "
                f"encoding of layer {layer} alone: give it to layer 0 too, or choose another."
            )
        layers.append(encoding)
        kinds.append(kind)
    return nn.ModuleList(layers)


class Decoder(nn.Module):
    """A causal language model: tokens (B, T) → logits of the next token (B, T, V).

    Weights are drawn from torch's global generator, the encoding's own parameters last: two
    decoders of one seed and one size differ in their encodings alone.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        D = config.d_model
        self.embedding = nn.Embedding(config.vocabulary, D)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        self._initialise()
        self.encodings = encodings_of(config)

    def _initialise(self):
        """Normal weights of variance 1/fan-in, and 1/(2n) of it where they write to the stream."""
        nn.init.normal_(self.embedding.weight, std=self.config.d_model**-0.5)
        for block in self.blocks:
            for linear in (block.w_qkv, block.w_gate_up):
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            for linear in (block.w_o, block.w_down):
                std = (2 * self.config.n_layers * linear.in_features) ** -0.5
                nn.init.normal_(linear.weight, std=std)

    def encoding(self, layer: int):
        """The encoding that serves this layer."""
        return self.encodings[layer if len(self.encodings) > 1 else 0]

    def forward(self, tokens, positions=None, padding_mask=None, cache: Cache | None = None):
        """Logits (B, T, V) of the token after each of `tokens`.

        Args:
            tokens: (B, T) of token ids.
            positions: (T,) or (B, T); None counts the real tokens of each row, from 0 or on from
                the last position in the cache.
            padding_mask: (B, T), True where a token is real. Padding stands on the left; what comes
                out at a padded place means nothing.
            cache: takes in the new keys and values, and lends the old ones. A new Cache(length=n)
                and the whole sequence at once make a full pass computed for the length n.

        Raises:
            ValueError: no token, a token that the vocabulary lacks, shapes that do not agree, or a
                length-dependent encoding decoded past the length that its cache is fixed for. The
                cache is then as it was.
        """
        view = self._view(tokens, positions, padding_mask, cache)
        x = self._embed(tokens) * self.config.d_model**0.5  # (B, T, D), as large as a sinusoid
        x = self.encoding(0).embed(x, view.q_pos, view.length)
        if cache is not None:  # nothing is refused from here on
            cache.positions, cache.real, cache.contiguous = view.k_pos, view.real, view.contiguous
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, self.encoding(layer), view)
        return F.linear(self.norm(x), self.embedding.weight)

    def _embed(self, tokens):
        """The vector of each token, (B, T, D)."""
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens must be int64 or int32, not {tokens.dtype}: call .long().")
        try:
            return self.embedding(tokens)
        except IndexError:
            # The lookup on a CPU finds it at no cost. To check on a GPU would wait for it at every
            # step; there the kernel stops with an assertion of its own.
            raise ValueError(
                f"tokens must lie in 0 … {self.config.vocabulary - 1}, and run from "
                f"{tokens.min()} to {tokens.max()}: encode the text with this model's vocabulary."
            ) from None

    def _view(self, tokens, positions, padding_mask, cache):
        """Everything the layers share. The cache is read, and not yet written."""
        self._check_shapes(tokens, positions, padding_mask, cache)
        T, device = tokens.shape[1], tokens.device
        past = 0 if cache is None else len(cache)
        real = self._real(tokens, padding_mask, cache)
        contiguous = positions is None and real is None and (cache is None or cache.contiguous)
        if positions is None:
            positions = self._positions(tokens, real, cache)
        k_pos = positions
        if past:
            old = cache.positions
            if old.dim() != positions.dim():
                old, positions = (p.expand(len(tokens), -1) for p in (old, positions))
            k_pos = torch.cat([old, positions], dim=-1)
        mask = None
        if real is not None:
            causal = causal_mask(T, past + T, device)
            # A padded query sees itself, so that its softmax has something to sum.
            itself = torch.eye(past + T, dtype=torch.bool, device=device)[past:]
            mask = (causal & real[:, None, None, :]) | itself  # (B, 1, T, past + T)
        dtype = self.embedding.weight.dtype
        bias = {
            encoding: shared_bias(encoding, positions, k_pos, contiguous, dtype)
            for encoding in dict.fromkeys(self.encodings)
        }
        length = self._length(positions, cache)
        return View(positions, k_pos, mask, bias, length, real, contiguous, cache)

    def _check_shapes(self, tokens, positions, padding_mask, cache):
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens must be (B, T) with T ≥ 1, not {tuple(tokens.shape)}.")
        B, T = tokens.shape
        if positions is not None and positions.shape not in ((T,), (B, T)):
            raise ValueError(
                f"positions {tuple(positions.shape)} must be ({T},) or ({B}, {T}), as the tokens."
            )
        if padding_mask is not None and padding_mask.shape != tokens.shape:
            raise ValueError(
                f"padding_mask {tuple(padding_mask.shape)} must have the shape of the tokens, "
                f"{tuple(tokens.shape)}."
            )
        if cache is not None and cache.keys and len(cache.keys[0]) != B:
            raise ValueError(
                f"The cache holds {len(cache.keys[0])} rows and the tokens have {B}: start another "
                f"Cache() for another batch."
            )

    def _real(self, tokens, padding_mask, cache):
        """Which of the stored and the new tokens are real, (B, past + T); None if all are."""
        old = None if cache is None else cache.real
        if old is None and padding_mask is None:
            return None
        if old is None:
            past = 0 if cache is None else len(cache)
            old = tokens.new_ones(len(tokens), past, dtype=torch.bool)
        new = torch.ones_like(tokens) if padding_mask is None else padding_mask
        return torch.cat([old, new.bool()], dim=1)

    def _positions(self, tokens, real, cache):
        """The positions of tokens that come without: (T,), or (B, T) where rows differ."""
        T, device = tokens.shape[1], tokens.device
        past = 0 if cache is None else len(cache)
        last = cache.positions[..., -1:] if past else torch.tensor([-1], device=device)
        if real is None:
            return last + torch.arange(1, T + 1, device=device)
        # Padding before the first real token of a row stands at 0, which no real token minds.
        started = real[:, :past].any(1, keepdim=True)  # (B, 1)
        count = real[:, past:].long().cumsum(1)  # (B, T)
        positions = torch.where(started, last, -1) + count
        return positions.masked_fill(~started & (count == 0), 0)

    def _length(self, positions, cache):
        """The length that a length-dependent encoding is computed for (see `Cache`)."""
        unscaled = [e.unscaled_length for e in self.encodings if e.unscaled_length is not None]
        if cache is None or not unscaled:
            return None
        length = cache.length or min(unscaled)
        if positions.max().item() >= length:
            raise ValueError(
                f"{self.config.encoding} depends on the length of the sequence, and this cache is "
                f"fixed for {length} positions: start again with Cache(length=…) of the whole "
                f"generation."
            )
        return length
