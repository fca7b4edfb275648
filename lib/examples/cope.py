"""CoPE: a position that counts tokens, and the context decides which of them count.

"Three sentences ago" is no distance in tokens. Let each query decide which keys to count, by a gate
on their product, and give a key the count of those from it to the query:

    g_ij = σ(q_i · k_j / √d)                                                          (eq. 3)
    p_ij = Σ_{l=j}^{i} g_il,   at most p_max                                          (eq. 4)
    e[p] = (p − ⌊p⌋) e[⌈p⌉] + (1 − p + ⌊p⌋) e[⌊p⌋]                                    (eq. 5)
    a_ij = q_i · (k_j + e[p_ij]) / √d                                                 (eq. 6)

With all gates open it is a learned vector for each distance i − j + 1, Shaw's key term. Since
q_i · e[p] is linear in e, it is computed once for each whole p, and then interpolated (eq. 7, 8).
Positions enter nowhere: order comes from the mask alone, which says what can be counted.
Source: Golovneva, Wang, Weston, Sukhbaatar 2024 (arXiv 2405.18719), section 4, and the authors'
code: e is shared by the heads of a layer and begins at 0; q and k are as in the attention, so the
1/√d that the paper leaves out is in the gate as well.
"""

import math

import torch
from torch import nn

from lib.encodings.base import Encoding, check_whole, register, without_autocast


@register("cope")
class CoPE(Encoding):
    """Adds q_i · e[p_ij] / √d to the logits, with p_ij counted from q, k and the mask.

    Args:
        p_max: the largest count that is told apart (64 in the paper's language models).
    """

    shared_across_layers = False

    def __init__(self, d_model, n_heads, max_length, p_max: int = 64, heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        check_whole(p_max=p_max)
        self.e = nn.Parameter(torch.zeros(p_max + 1, self.d))  # e[0] … e[p_max]

    def bias(self, q, k, q_pos, k_pos, mask=None):
        wide = torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            q, k = q.to(wide) / math.sqrt(self.d), k.to(wide)
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            if mask is None:  # causal, the last query at the last key
                mask = q.new_ones(q.shape[-2], k.shape[-2]).tril(k.shape[-2] - q.shape[-2]).bool()
            g = (q @ k.mT).sigmoid().masked_fill(~mask, 0.0)  # (B, H, Tq, Tk)
            p = g.flip(-1).cumsum(-1).flip(-1).clamp(max=len(self.e) - 1)
            z = q @ self.e.to(wide).T  # z_i[p] at whole p: (B, H, Tq, p_max + 1)
            below = p.detach().floor().long()
            above = (below + 1).clamp(max=len(self.e) - 1)
            part = p - below
            return part * z.gather(-1, above) + (1 - part) * z.gather(-1, below)
