"""Positions on a grid, added to the embeddings: a learned table, and sinusoids of two axes.

A position is (row, column), the last axis of `positions`: (T, 2) or (B, T, 2). A grid is known by
its height and its width; their product, the number of tokens, does not tell 2 × 8 from 4 × 4.

    x_p ← x_p + P[row, column],   P a table of height × width × D parameters          (learned2d)
    x_p ← x_p + [PE(row), PE(column)],   PE of D/2 channels each                   (sinusoidal2d)

A learned table has no place past its edge. On a grid of H rows instead of h (columns alike) it can
be read where the same part of the picture was in training, linearly between its neighbours and held
at the edge:

    row ↦ (row + ½) · h/H − ½

Sources: Dosovitskiy et al. 2020 (ViT, arXiv 2010.11929), section 3.2, for the table and for
interpolating it; He et al. 2021 (MAE, arXiv 2111.06377) for sinusoids of two axes, in their code.
"""

import copy
import math

import torch
from torch import nn

from lib.encodings.base import (
    Encoding,
    check_positive,
    check_whole,
    geometric_frequencies,
    register,
)

IMAGE = ("image",)


def on_grid(positions) -> torch.Tensor:
    """The positions (T, 2) or (B, T, 2) themselves. Raises ValueError for those on a line."""
    if positions.dim() < 2 or positions.shape[-1] != 2:
        raise ValueError(
            f"A position on a grid is (row, column): give positions (T, 2) or (B, T, 2), not "
            f"{tuple(positions.shape)}."
        )
    return positions


@register("learned2d")
class Learned2D(Encoding):
    """Adds P[row, column] of a table (height, width, D) to the embedding.

    Args:
        grid: (height, width) of the table, whose product is `max_length`; None means a square.
        beyond: what happens on a grid that is larger than the table: "refuse" raises ValueError,
            "interpolate" squeezes each axis that is longer into the table, in a batch each row by
            its own size. It also holds positions up to half a step outside at the edge.
    """

    domain = IMAGE

    def __init__(self, d_model, n_heads, max_length, grid=None, beyond="refuse", heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        side = math.isqrt(max_length)
        height, width = (side, side) if grid is None else grid
        check_whole(height=height, width=width)
        if height * width != max_length:
            raise ValueError(
                f"A grid of {height} × {width} does not have max_length = {max_length} places: "
                f"give grid=(height, width)."
            )
        if beyond not in ("refuse", "interpolate"):
            raise ValueError(f"beyond must be 'refuse' or 'interpolate', not {beyond!r}.")
        self.beyond = beyond
        self.unscaled_length = max_length if beyond == "interpolate" else None
        self.table = nn.Parameter(torch.randn(height, width, d_model))  # P (height, width, D)

    def embed(self, x, positions, length=None):
        """`length` is the (height, width) of the whole grid; None: the largest positions + 1."""
        # Between places and in the sum float32 or wider; the cast to the dtype of x comes last.
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) + self._places(positions, length, wide)).to(x.dtype)

    def _places(self, positions, length, dtype):
        """P at positions (…, 2): (…, D), linear between places where a position is a fraction."""
        positions = on_grid(positions)
        if positions.numel() == 0:
            return self.table.new_zeros(*positions.shape[:-1], self.d_model, dtype=dtype)
        last = torch.tensor(self.table.shape[:2], device=positions.device) - 1  # (2,)
        if self.beyond == "interpolate":
            positions = self._squeezed(positions, length, last)
        elif not ((positions >= 0) & (positions <= last)).all():
            height, width = self.table.shape[:2]
            raise ValueError(
                f"A position is outside the learned table of {height} × {width}: use a smaller "
                f"grid, build with beyond='interpolate', or call grow()."
            )
        if not positions.is_floating_point():
            return self.table[positions[..., 0], positions[..., 1]].to(dtype)
        below = positions.floor().long()
        (r, c), (below_next, right) = below.unbind(-1), torch.minimum(below + 1, last).unbind(-1)
        down, across = (positions - below).to(dtype)[..., None].unbind(-2)  # (…, 1) each
        P = self.table.to(dtype)
        upper = (1 - across) * P[r, c] + across * P[r, right]
        lower = (1 - across) * P[below_next, c] + across * P[below_next, right]
        return (1 - down) * upper + down * lower

    def _squeezed(self, positions, length, last):
        """Positions in the table, of the same part of the picture."""
        furthest = positions.amax(-2, keepdim=True)  # (1, 2), or (B, 1, 2)
        if length is not None:
            furthest_of_all = torch.as_tensor(length, device=positions.device) - 1
            if furthest_of_all.shape != (2,) or (furthest > furthest_of_all).any():
                raise ValueError(
                    f"length must be the (height, width) of a grid that holds all positions, not "
                    f"{length!r}."
                )
            furthest = furthest_of_all.expand_as(furthest)
        if not positions.min() >= -0.5:
            raise ValueError("A learned table has no place before 0: count positions from 0.")
        if not positions.is_floating_point() and (furthest <= last).all():
            return positions
        exact = positions.to(torch.float64)
        scale = (last + 1) / (furthest + 1).to(torch.float64)
        scale = torch.where(furthest <= last + 0.5, 1.0, scale)
        return ((exact + 0.5) * scale - 0.5).clamp(min=0).minimum(last)

    def grow(self, grid: tuple[int, int], generator: torch.Generator) -> "Learned2D":
        """A copy with a table of this (height, width): the old one in its corner, at (0, 0), and
        around it places as fresh as at initialisation."""
        height, width = self.table.shape[:2]
        if grid[0] < height or grid[1] < width:
            raise ValueError(f"The table has {height} × {width} places: it cannot shrink.")
        table = torch.randn(*grid, self.d_model, generator=generator).to(self.table)
        table[:height, :width] = self.table.detach()
        grown = copy.deepcopy(self)
        grown.max_length = grid[0] * grid[1]
        grown.unscaled_length = grown.max_length if self.beyond == "interpolate" else None
        grown.table = nn.Parameter(table)
        return grown


@register("sinusoidal2d")
class Sinusoidal2D(Encoding):
    """Adds sinusoids of the row in the first D/2 channels, of the column in the rest.

        θ_k = base^(−4k/D),  k = 0 … D/4 − 1;   sin(row · θ_k), cos(row · θ_k), …; columns alike

    No parameters, no largest grid.

    Args:
        base: the wavelengths run from 2π to about 2π·base steps of the grid.

    Raises:
        ValueError: a width D that is no multiple of 4: a sine and a cosine for each axis.
    """

    domain = IMAGE

    def __init__(self, d_model, n_heads, max_length, base: float = 10000.0, heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        if d_model % 4:
            raise ValueError(
                f"Sinusoids come in pairs for each of two axes: choose d_model a multiple of 4, "
                f"not {d_model}."
            )
        check_positive(base=base)
        self.base = float(base)

    def table(self, positions) -> torch.Tensor:
        """What is added at positions (…, 2): float64 (…, D)."""
        theta = geometric_frequencies(self.d_model // 4, self.base, positions.device)  # (D/4,)
        phase = on_grid(positions).to(torch.float64)[..., None] * theta  # (…, 2, D/4)
        return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(-3)

    def embed(self, x, positions, length=None):
        # The sum is made in float32 or wider, the cast to the dtype of x comes last.
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) + self.table(positions).to(wide)).to(x.dtype)
