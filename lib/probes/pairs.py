"""Which pairs of RoPE the heads use.

A logit of RoPE is a sum over pairs of channels, s(i, j) = Σ_k s_k(i, j). The softmax sees only how
logits differ along a row of keys, so what a pair does for a head is its part of their variance:

    share_k = Σ_i Cov_j(s_k(i, j), s(i, j)) / Σ_i Var_j(s(i, j)),   over keys j ≤ i

The shares sum to 1; that of a pair that works against the rest is negative. How far a pair could
move a logit, wherever the two tokens stand, is |q_k|·|k_k|/√d: its size.
"""

import torch

from lib.attention import causal_mask
from lib.probes.heads import heads, held_out

LENGTH = 64  # the training length of the models that are probed


def pairs(decoder, settings: dict) -> list[dict]:
    """Rows `pair_share` and `pair_size` of every layer, head and pair x = 0 … d/2 − 1.

    For an interleaved RoPE, over `settings["windows"]` windows of held-out text.
    """
    rows = []
    for layer, (q, k, _) in enumerate(heads(decoder, held_out(LENGTH, settings["windows"]))):
        for quantity, found in (("pair_share", shares(q, k)), ("pair_size", sizes(q, k))):
            for head, values in enumerate(found.tolist()):
                for pair, value in enumerate(values):
                    row = {"layer": layer, "head": head, "quantity": quantity}
                    rows.append(row | {"x": pair, "value": float(f"{value:.6g}")})
    return rows


def shares(q, k) -> torch.Tensor:
    """The share of each pair (2k, 2k+1) in the variance of the logits along a row: (H, d/2).

    q, k: (B, H, T, d), turned.
    """
    T, d = q.shape[-2:]
    seen = causal_mask(T, T)
    n = seen.sum(-1, keepdim=True)  # keys of each query, (T, 1)
    logits = (q @ k.mT / d**0.5).masked_fill(~seen, 0)  # (B, H, T, T)
    apart = (logits - logits.sum(-1, keepdim=True) / n).masked_fill(~seen, 0) / n
    # Cov_j(s_k, s) = Σ_j s_k(i, j)·apart(i, j), and s_k is linear in the key: sum the keys first.
    covariance = (q * (apart @ k)).unflatten(-1, (-1, 2)).sum((0, 2, -1)) / d**0.5  # (H, d/2)
    return covariance / covariance.sum(-1, keepdim=True)


def sizes(q, k) -> torch.Tensor:
    """|q_k|·|k_k|/√d of each pair, from the mean radii over all tokens: (H, d/2)."""
    q_radius, k_radius = (x.unflatten(-1, (-1, 2)).norm(dim=-1).mean((0, 2)) for x in (q, k))
    return q_radius * k_radius / q.shape[-1] ** 0.5
