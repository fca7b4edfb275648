"""What a positional encoding is: a module that overrides one or two of four doors.

A position can enter a transformer in four places, and in no other. Each is a method here, and each
does nothing until an encoding overrides it:

    embed    added to the token embeddings                     sinusoidal, learned
    rotate   turns queries and keys                            RoPE
    bias     added to the logits, after the division by √d     T5, ALiBi, Shaw's key term
    values   added to the output of attention                  Shaw's value term

Letters, here and in every file of this folder: B batch, T length, D width of the model, H heads,
d = D/H width of a head, i the position of a query, j the position of a key, δ = i − j.
"""

import inspect
import math
from contextlib import nullcontext
from numbers import Integral, Real

import torch
from torch import nn

ENCODINGS: dict[str, type["Encoding"]] = {}


class Encoding(nn.Module):
    """The base of every encoding; by itself it encodes nothing (it is NoPE).

    Positions are always passed in: shape (T,) or (B, T), integer or float, with a last axis of 2 on
    a grid, and (B, T, 3) on the three axes of M-RoPE. Nothing is kept between calls: what comes out
    depends on the arguments alone.

    Args:
        d_model: D, the width of the model.
        n_heads: H, the number of heads of the whole layer; it must divide D.
        max_length: L, the longest sequence that the encoding is prepared for.
        heads: the heads of the layer that this module serves (a tensor-parallel rank holds a slice
            of them); None means all. Tensors with a head axis then have ``len(heads)`` entries.

    Raises:
        ValueError: a size below 1, a head count that does not divide the width, heads out of range.
    """

    name: str
    domain = ("text",)
    # One instance serves all layers; False gives each layer one (and parameters) of its own.
    shared_across_layers = True
    # Where the result for one position depends on the length of the whole sequence (`length`
    # below): the length up to which nothing is scaled. None: the length does not matter.
    unscaled_length: int | None = None

    def __init__(self, d_model: int, n_heads: int, max_length: int, heads: range | None = None):
        super().__init__()
        check_whole(d_model=d_model, n_heads=n_heads, max_length=max_length)
        if d_model % n_heads:
            raise ValueError(
                f"{n_heads} heads do not divide the width {d_model}: "
                f"choose n_heads so that d_model % n_heads == 0."
            )
        heads = range(n_heads) if heads is None else heads
        if not isinstance(heads, range) or not heads or min(heads) < 0 or max(heads) >= n_heads:
            raise ValueError(f"heads must be a non-empty slice of range({n_heads}), not {heads!r}.")
        self.d_model, self.n_heads, self.max_length = d_model, n_heads, max_length
        self.d = d_model // n_heads
        self.heads = heads

    def embed(self, x, positions, length=None):
        """Add to the embeddings x (B, T, D); the same shape and dtype come back."""
        return x

    def rotate(self, q, k, q_pos, k_pos, length=None):
        """Turn q (B, H, Tq, d) and k (B, H_kv, Tk, d); the same shapes and dtypes come back.

        `length` is the sequence length that a length-dependent scaling is computed for; None means
        the largest position + 1, of each row where positions are (B, T).
        """
        return q, k

    def bias(self, q, k, q_pos, k_pos, mask=None):
        """What is added to the logits: (1 or B, H, Tq, Tk), or None.

        q (B, H, Tq, d) and k (B, H_kv, Tk, d) are seen after rotation; `mask` is True where a query
        may look at a key (an encoding that counts keys needs it). This is the plain reference: it
        holds every pair of a query and a key in memory.
        """
        if self.bias_by_distance is None:
            return None
        delta = distances(q_pos, k_pos)  # (Tq, Tk) or (B, Tq, Tk)
        bias = self.bias_by_distance(delta.flatten())  # (H, n)
        bias = bias.to(torch.promote_types(q.dtype, torch.float32)).unflatten(1, delta.shape)
        return bias.movedim(0, -3) if delta.dim() == 3 else bias.unsqueeze(0)

    def values(self, weights, q_pos, k_pos):
        """What is added to the output, from the attention weights (B, H, Tq, Tk): (B, H, Tq, d)
        or None."""
        return None

    # An encoding whose bias is a function of the distance δ = i − j alone defines
    # `bias_by_distance(delta (n,)) -> (H, n)`; `bias` follows from it, and so do the fused paths.
    bias_by_distance = None

    def adds_values(self) -> bool:
        """Whether `values` is overridden: attention must then show its weights."""
        return type(self).values is not Encoding.values


def distances(q_pos, k_pos):
    """δ = i − j for every query and key: (Tq, Tk), or (B, Tq, Tk) when either has a batch axis."""
    return q_pos[..., :, None] - k_pos[..., None, :]


def register(name: str):
    """Class decorator: makes the encoding known to `build` under `name`."""

    def add(cls):
        # The same class once more is a notebook cell run again.
        known = ENCODINGS.get(name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"An encoding named {name!r} is registered already: choose another.")
        cls.name = name
        ENCODINGS[name] = cls
        return cls

    return add


def build(name: str, *, d_model: int, n_heads: int, max_length: int, **options) -> Encoding:
    """The encoding registered as `name`, built for a model of these sizes.

    Raises:
        ValueError: an unknown name, an option that the encoding does not take, or sizes that it
            cannot serve. The sentence says what would be accepted.
    """
    if name not in ENCODINGS:
        raise ValueError(f"No encoding is named {name!r}: choose one of {', '.join(ENCODINGS)}.")
    cls = ENCODINGS[name]
    accepted = set(inspect.signature(cls.__init__).parameters) - {"self"}
    accepted -= {"d_model", "n_heads", "max_length"}
    unknown = sorted(set(options) - accepted)
    if unknown:
        raise ValueError(
            f"{name} does not know the option {unknown[0]!r}: "
            f"it takes {', '.join(sorted(accepted))}."
        )
    return cls(d_model, n_heads, max_length, **options)


def check_whole(least: int = 1, **values):
    """ValueError unless each of the named values is a whole number of at least `least`."""
    for what, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise ValueError(f"{what} must be a whole number of at least {least}, not {value!r}.")


def check_positive(**values):
    """ValueError unless each of the named values is a positive, finite number."""
    for what, value in values.items():
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise ValueError(f"{what} must be a positive number, not {value!r}.")


def without_autocast(x):
    """A context in which the operations on x keep their dtypes, whatever autocast is around it."""
    kind = x.device.type
    known = torch.amp.is_autocast_available(kind)
    return torch.autocast(kind, enabled=False) if known else nullcontext()


def geometric_frequencies(n: int, base: float, device=None) -> torch.Tensor:
    """θ_k = base^(−k/n) for k = 0 … n−1, in radians a position, float64 (n,).

    Vaswani et al. 2017, section 3.5, and Su et al. 2021, section 3.2.2, with n = D/2 and n = d/2.
    """
    k = torch.arange(n, dtype=torch.float64, device=device)
    return base ** (-k / n)
