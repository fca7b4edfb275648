"""The decoder that every encoding is tried in, and cached decoding.

Pre-norm, RMSNorm, SwiGLU, no biases, tied embeddings: the LLaMA family's block, small. Positions are
explicit, so that left padding and a cache of keys and values need no special case.

Letters: B batch, T length, V vocabulary, D width, H heads, H_kv heads of keys, d = D/H.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from lib.attention import attend, causal_mask, toeplitz
from lib.encodings import build


@dataclass(frozen=True)
class Config:
    """The sizes of a decoder and the encoding in it.

    Args:
        encoding: a name in `lib.encodings.ENCODINGS`, built with `options`.
        max_length: L, what the encoding is prepared for; only a learned table refuses to go past.
        d_ff: the hidden width of SwiGLU; 8·D/3 has the parameters of a plain MLP of width 4·D.
        n_kv_heads: H_kv, which divides n_heads (grouped-query attention).
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

    def __post_init__(self):
        kv = self.n_kv_heads
        if kv is not None and (kv < 1 or self.n_heads % kv):
            raise ValueError(f"n_kv_heads = {kv} must divide n_heads = {self.n_heads}.")
        for what in ("vocabulary", "n_layers", "d_ff"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} must be at least 1, not {getattr(self, what)!r}.")


class Cache:
    """The keys and values of the tokens seen so far, for decoding a few tokens at a time.

    Args:
        length: for an encoding whose result depends on the sequence's length, the length that the
            whole generation is computed for; decoding past it raises ValueError. Other encodings
            ignore it.
    """

    def __init__(self, length: int | None = None):
        self.length = length
        self.keys, self.values = {}, {}  # layer → (B, H_kv, T, d)
        self.positions = None  # (T,) or (B, T)
        self.real = None  # (B, T), False on padding; None while there is none
        self.contiguous = True

    def __len__(self):
        return 0 if self.positions is None else self.positions.shape[-1]

    def append_positions(self, positions, batch: int):
        """Append the positions (T,) or (B, T) of new tokens; all that are stored come back."""
        old = self.positions
        if old is not None and old.dim() != positions.dim():
            old, positions = (p.expand(batch, -1) for p in (old, positions))
        self.positions = positions if old is None else torch.cat([old, positions], dim=-1)
        return self.positions

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
    bias: torch.Tensor | None  # as in `attend`
    length: int | None  # as in `Encoding.rotate`
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
        y = attend(q, k, v, encoding, view.q_pos, view.k_pos, view.mask, view.bias)
        return self.w_o(y.transpose(1, 2).flatten(-2))  # (B, T, D)


class Decoder(nn.Module):
    """A causal language model: tokens (B, T) → logits of the next token (B, T, V).

    Weights are drawn from torch's global generator, the encoding's own parameters last: two
    decoders of one seed and one size differ in their encodings alone.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        D, n = config.d_model, config.n_layers
        self.embedding = nn.Embedding(config.vocabulary, D)
        self.blocks = nn.ModuleList(Block(config) for _ in range(n))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        self._initialise()
        first = self._build_encoding()
        rest = [] if first.shared_across_layers else [self._build_encoding() for _ in range(n - 1)]
        self.encodings = nn.ModuleList([first, *rest])

    def _build_encoding(self):
        c = self.config
        return build(
            c.encoding,
            d_model=c.d_model,
            n_heads=c.n_heads,
            max_length=c.max_length,
            **c.options,
        )

    def _initialise(self):
        """Normal weights of variance 1/fan-in; what is added to the residual stream 1/(2n) of it."""
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
            positions: (T,) or (B, T); None counts the real tokens of each row from 0, on from what
                the cache holds.
            padding_mask: (B, T), True where a token is real. Padding stands on the left; what comes
                out at a padded place means nothing.
            cache: takes in the new keys and values, and lends the old ones.

        Raises:
            ValueError: no token, shapes that do not agree, or a length-dependent encoding decoded
                past the length that its cache is fixed for.
        """
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens must be (B, T) with T ≥ 1, not {tuple(tokens.shape)}.")
        view = self._view(tokens, positions, padding_mask, cache)
        x = self.embedding(tokens) * self.config.d_model**0.5  # (B, T, D), as large as a sinusoid
        x = self.encoding(0).embed(x, view.q_pos, view.length)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, self.encoding(layer), view)
        return F.linear(self.norm(x), self.embedding.weight)

    def _view(self, tokens, positions, padding_mask, cache):
        B, T = tokens.shape
        device = tokens.device
        past = 0 if cache is None else len(cache)
        if padding_mask is not None and padding_mask.shape != tokens.shape:
            raise ValueError(
                f"padding_mask {tuple(padding_mask.shape)} must have the shape of the tokens, "
                f"{tuple(tokens.shape)}."
            )
        real = padding_mask  # (B, past + T), or None while every token is real
        if cache is not None and (cache.real is not None or padding_mask is not None):
            old = tokens.new_ones(B, past, dtype=torch.bool) if cache.real is None else cache.real
            new = torch.ones_like(tokens, dtype=torch.bool) if real is None else real.bool()
            real = torch.cat([old, new], dim=1)
        contiguous = positions is None and real is None
        if positions is None and real is None:
            positions = torch.arange(past, past + T, device=device)
        elif positions is None:
            positions = (real.long().cumsum(1) - 1).clamp(min=0)[:, past:]  # (B, T)
        elif positions.shape[:2] not in (torch.Size([T]), torch.Size([B, T])):
            raise ValueError(
                f"positions {tuple(positions.shape)} must be ({T},) or ({B}, {T}), as the tokens."
            )
        k_pos = positions
        if cache is not None:
            k_pos = cache.append_positions(positions, B)
            cache.real = real
            contiguous = cache.contiguous = contiguous and cache.contiguous
        mask = None
        if real is not None:
            causal = causal_mask(T, past + T, device)
            # A padded query sees itself, so that its softmax has something to sum.
            itself = torch.eye(past + T, dtype=torch.bool, device=device)[past:]
            mask = (causal & real.bool()[:, None, None, :]) | itself  # (B, 1, T, past + T)
        bias = None
        encoding = self.encoding(0)
        if contiguous and encoding.shared_across_layers and encoding.bias_by_distance is not None:
            bias = toeplitz(encoding, T, past + T, device)
        return View(positions, k_pos, mask, bias, self._length(positions, cache), cache)

    def _length(self, positions, cache):
        """The length that a length-dependent encoding is computed for (see `Cache`)."""
        unscaled = self.encoding(0).unscaled_length
        if cache is None or unscaled is None:
            return None
        length = cache.length or unscaled
        if positions.max().item() >= length:
            raise ValueError(
                f"{self.config.encoding} depends on the length of the sequence, and this cache is "
                f"fixed for {length} positions: start again with Cache(length=…) of the whole "
                f"generation."
            )
        return length
