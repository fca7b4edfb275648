"""Relation vectors: a learned vector for every clipped distance, in keys and in values.

    e_ij = q_i · (k_j + a^K_r) / √d        r = clip(j − i, −c, c)          (eq. 4)
    z_i  = Σ_j α_ij (v_j + a^V_r)                                          (eq. 3)

The key term depends on the query as well as on the distance; the value term enters the output.
Source: Shaw, Uszkoreit, Vaswani 2018 (arXiv 1803.02155), section 3.
"""

import torch
from torch import nn

from lib.encodings.base import Encoding, check_whole, distances, register, without_autocast


@register("shaw")
class Shaw(Encoding):
    """Two tables a^K, a^V of 2c + 1 vectors of width d, shared by the heads of a layer.

    Args:
        clip: c, the distance from which all are alike (16 in the paper).
    """

    shared_across_layers = False

    def __init__(self, d_model, n_heads, max_length, clip: int = 16, heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        check_whole(clip=clip)
        self.clip = clip
        self.a_k = nn.Parameter(torch.randn(2 * clip + 1, self.d) * self.d**-0.5)
        self.a_v = nn.Parameter(torch.randn(2 * clip + 1, self.d) * self.d**-0.5)

    def relation(self, q_pos, k_pos):
        """r + c for every query and key, a row of the tables: (Tq, Tk) or (B, Tq, Tk).

        A fraction of a position is dropped, toward distance 0.
        """
        c = self.clip
        return (-distances(q_pos, k_pos)).clamp(-c, c).long() + c

    def bias(self, q, k, q_pos, k_pos, mask=None):
        # In float32 or wider, like the product q_i · k_j that this is added to.
        wide = torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            # q_i · a^K_r / √d: (B, H, Tq, 2c+1)
            q_a = q.to(wide) @ self.a_k.to(wide).T / self.d**0.5
        r = self.relation(q_pos, k_pos)
        r = r[:, None] if r.dim() == 3 else r  # (B, 1, Tq, Tk) or (Tq, Tk)
        return q_a.gather(-1, r.expand(*q_a.shape[:-1], r.shape[-1]))  # (B, H, Tq, Tk)

    def values(self, weights, q_pos, k_pos):
        # Σ_j α_ij a^V_r: first the weight that falls on each relation, then its vector.
        r = self.relation(q_pos, k_pos)
        r = r[:, None] if r.dim() == 3 else r
        on_relation = weights.new_zeros(*weights.shape[:-1], 2 * self.clip + 1)
        on_relation = on_relation.scatter_add(-1, r.expand(weights.shape), weights)
        with without_autocast(weights):
            return on_relation @ self.a_v.to(weights.dtype)  # (B, H, Tq, d)
