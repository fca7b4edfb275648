"""ALiBi on a grid: a penalty that grows linearly with the distance between two places.

    a_ij = q_i · k_j / √d − m_h · |δ|,   δ = p_j − p_i, from the query to the key

|δ| is the length of a straight line, in steps of the grid. A head that only knows |δ| cannot tell
the left neighbour from the right one, or a row from a column; in a text the causal mask leaves one
side, and on a grid there is no such mask. With directions each head looks one way, u_h:

    a_ij = q_i · k_j / √d − m_h · (|δ| − u_h · δ)

which costs nothing straight ahead, m_h · |δ| across and twice that behind. The penalty is still
fixed, and still never falls along a straight line away from the query. So that no direction is left
with gentle slopes alone, heads go round the four directions, and the slopes halve with each round:

    u_h = up, down, left, right for h mod 4 = 0 … 3,   m_h = 2^(−⌊h/4⌋)

Source: Fuller et al. 2023 (CROMA, arXiv 2311.00566), section 3, for |δ|, with the slopes of Press
et al. 2022; the directions and their slopes are ours.
"""

import torch

from lib.encodings.alibi import slopes
from lib.encodings.base import Encoding, register
from lib.encodings.grid import IMAGE, on_grid

WAYS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right: (row, column)


@register("alibi2d")
class ALiBi2D(Encoding):
    """Subtracts m_h · |δ| from the logits. No parameters, no largest grid.

    Args:
        directional: True lets each head look one way, with slopes of their own (see above).
    """

    domain = IMAGE

    def __init__(self, d_model, n_heads, max_length, directional: bool = False, heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        if not isinstance(directional, bool):
            raise ValueError(f"directional must be True or False, not {directional!r}.")
        self.directional = directional

    def bias(self, q, k, q_pos, k_pos, mask=None):
        q_pos, k_pos = (on_grid(p).to(torch.float64) for p in (q_pos, k_pos))
        delta = k_pos[..., None, :, :] - q_pos[..., :, None, :]  # (Tq, Tk, 2) or (B, Tq, Tk, 2)
        bias = self.bias_by_offset(delta).to(torch.promote_types(q.dtype, torch.float32))
        return bias if bias.dim() == 4 else bias[None]  # (1 or B, H, Tq, Tk)

    def bias_by_offset(self, delta):
        """The penalty at offsets δ (…, n, m, 2), float64: (…, H, n, m)."""
        cost = delta.square().sum(-1).sqrt()[..., None, :, :]  # |δ| (…, 1, n, m)
        if self.directional:
            u = torch.tensor([WAYS[h % 4] for h in self.heads], dtype=torch.float64)  # (H, 2)
            u = u.to(delta.device)[:, None, None]
            cost = cost - (delta[..., None, :, :, :] * u).sum(-1)  # |δ| − u_h · δ (…, H, n, m)
        return -self.slopes().to(delta.device)[:, None, None] * cost

    def slopes(self):
        """m_h of the heads served: float64 (H,)."""
        if self.directional:
            return 2.0 ** -(torch.tensor(list(self.heads), dtype=torch.float64) / 4).floor()
        return slopes(self.n_heads)[list(self.heads)]
