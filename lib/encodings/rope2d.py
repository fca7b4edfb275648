"""RoPE on a grid: the angle of each pair is a frequency vector times the position (row, column).

    z_k ← z_k · exp(i · (row · θ_k,row + column · θ_k,column)),   k = 0 … d/2 − 1

The score of a query and a key then depends on the difference of their positions alone, a vector.
Two choices of the frequency vectors:

    axial   each lies on an axis: the first half of the pairs turns with the row, the second with
            the column, with θ_t = base^(−4t/d), t = 0 … d/4 − 1 on both
    mixed   each is a parameter, of its own in every head and layer, and may point anywhere

An axial head sees a diagonal only as the sum of two separate answers, for no pair of it turns with
both; a mixed pair has waves in any direction.

A token with no place on the grid (a class token) stands at (0, 0), where nothing is turned: that is
what leaving it unrotated comes to, and it tells it from the corner as little as the paper does.

Source: Heo et al. 2024 (RoPE-ViT, arXiv 2403.13298), section 3.2 and, for where mixed frequencies
begin, their published code. Here the pairs of an axis lie together, as there.
"""

import math

import torch
from torch import nn

from lib.encodings.base import Encoding, check_positive, geometric_frequencies, register
from lib.encodings.grid import IMAGE, on_grid
from lib.encodings.rope import turn


class _OnGrid(Encoding):
    """What both have in common.

    Raises:
        ValueError: a head width d that is no multiple of 4: pairs of channels for each of two axes.
    """

    domain = IMAGE

    def __init__(self, d_model, n_heads, max_length, base, heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        if self.d % 4:
            raise ValueError(
                f"RoPE on a grid turns pairs of channels for each of two axes: choose a head width "
                f"d_model/n_heads that is a multiple of 4, not {self.d}."
            )
        check_positive(base=base)
        self.base = float(base)


@register("rope2d_axial")
class RoPE2DAxial(_OnGrid):
    """Turns q and k; no parameters.

    Args:
        base: wavelengths run from 2π to about 2π·base steps of the grid (100 in the paper: a grid
            is shorter than a text).
    """

    def __init__(self, d_model, n_heads, max_length, base: float = 100.0, heads=None):
        super().__init__(d_model, n_heads, max_length, base, heads)

    def frequencies(self, device=None):
        """θ_t in radians a step, of either axis: float64 (d/4,)."""
        return geometric_frequencies(self.d // 4, self.base, device)

    def rotate(self, q, k, q_pos, k_pos, length=None):
        return self._turn(q, q_pos), self._turn(k, k_pos)

    def _turn(self, x, positions):
        theta = self.frequencies(positions.device)
        phase = on_grid(positions).to(torch.float64)[..., None] * theta  # (…, T, 2, d/4)
        return turn(x, phase.flatten(-2), "interleaved")


@register("rope2d_mixed")
class RoPE2DMixed(_OnGrid):
    """Turns q and k by learned frequencies (H, d/2, 2), a vector (row, column) for every pair.

    They begin as the authors' do: d/4 lengths base^(−4t/d), each along a direction that is drawn
    for the head and once more at a right angle to it. Keys that serve a group of query heads turn,
    and so do those queries, with the frequencies of the first head of the group.

    Args:
        base: of the lengths at the start (10 in the paper).
    """

    shared_across_layers = False

    def __init__(self, d_model, n_heads, max_length, base: float = 10.0, heads=None):
        super().__init__(d_model, n_heads, max_length, base, heads)
        size = geometric_frequencies(self.d // 4, self.base)  # (d/4,)
        angle = 2 * math.pi * torch.rand(len(self.heads), 1, dtype=torch.float64)  # (H, 1)
        angle = torch.cat([angle, angle + math.pi / 2], dim=1)  # (H, 2)
        angle = angle.repeat_interleave(len(size), dim=1)  # (H, d/2)
        direction = torch.stack([angle.sin(), angle.cos()], dim=-1)  # (H, d/2, 2): row, column
        self.theta = nn.Parameter((size.repeat(2)[:, None] * direction).float())  # (H, d/2, 2)

    def rotate(self, q, k, q_pos, k_pos, length=None):
        group = q.shape[1] // k.shape[1]
        theta = self.theta[::group].to(torch.float64)  # (H_kv, d/2, 2)
        of_queries = theta.repeat_interleave(group, dim=0)
        return self._turn(q, q_pos, of_queries), self._turn(k, k_pos, theta)

    def _turn(self, x, positions, theta):
        row, column = on_grid(positions).to(torch.float64)[..., None, :, None, :].unbind(-1)
        phase = row * theta[:, None, :, 0] + column * theta[:, None, :, 1]  # (…, H, T, d/2)
        return turn(x, phase if phase.dim() == 4 else phase[None], "interleaved")
