"""The two layouts of RoPE's pairs, and how the weights of a model go from one to the other.

Interleaved pairs are (0, 1), (2, 3), …; half-split pairs are (0, d/2), (1, d/2 + 1), … The rotation
is the same but for a permutation P of a head's channels. Since q = W_q x, and (P q)·(P k) = q·k, a
model goes over exactly when the rows of W_q and W_k (and the biases) are permuted with it: W ← P W.
A model that is turned in the wrong layout still runs, and has lost its sense of position.
"""

import torch


def to_half_split(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Rows of W_q or W_k, or of its bias, from interleaved to half-split pairs.

    weight: (n_heads · d, …). n_heads: of the queries for W_q, of the keys for W_k, which are fewer
    under grouped-query attention. Returns a new tensor of the same shape.
    Raises ValueError unless the rows divide into heads of an even width.
    """
    pairs = _heads(weight, n_heads).unflatten(1, (-1, 2))  # (H, d/2, 2, …)
    return pairs.transpose(1, 2).clone().reshape(weight.shape)


def to_interleaved(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """The inverse of `to_half_split`: rows from half-split to interleaved pairs."""
    halves = _heads(weight, n_heads).unflatten(1, (2, -1))  # (H, 2, d/2, …)
    return halves.transpose(1, 2).clone().reshape(weight.shape)


def _heads(weight, n_heads: int):
    """(n_heads · d, …) → (n_heads, d, …)."""
    if weight.dim() == 0 or n_heads < 1 or len(weight) == 0 or len(weight) % (2 * n_heads):
        raise ValueError(
            f"{tuple(weight.shape)} does not hold {n_heads} heads of an even width: "
            f"give the weight (n_heads · d, …) and the number of heads that it has."
        )
    return weight.unflatten(0, (n_heads, -1))
