"""A learned vector for every position, added to the embeddings.

    x_p ← x_p + P[p],   P a table of L_max × D parameters

The table has no row past L_max. Three answers are known, and `beyond` chooses among them:
refuse (the honest default), or read the table at positions scaled back into it,

    p ↦ p · (L_max − 1) / (length − 1),   between two rows linearly,

or grow the table by new rows that no training has seen (`grow`).

Sources: Gehring et al. 2017 (arXiv 1705.03122) and Devlin et al. 2018 (BERT, 1810.04805) for the
table; Dosovitskiy et al. 2020 (ViT, 2010.11929), section 3.2, for interpolating it.
"""

import copy

import torch
from torch import nn

from lib.encodings.base import Encoding, check_whole, register


@register("learned")
class Learned(Encoding):
    """Adds row p of a table (L_max, D) to the embedding at position p; L_max is `max_length`.

    Args:
        beyond: what happens when a sequence is longer than the table: "refuse" raises ValueError,
            "interpolate" squeezes the positions of the whole sequence into the table, in a batch
            those of each row by the row's own length.
    """

    def __init__(self, d_model, n_heads, max_length, beyond: str = "refuse", heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        if beyond not in ("refuse", "interpolate"):
            raise ValueError(f"beyond must be 'refuse' or 'interpolate', not {beyond!r}.")
        self.beyond = beyond
        self.unscaled_length = max_length if beyond == "interpolate" else None
        self.table = nn.Parameter(torch.randn(max_length, d_model))  # P (L_max, D)

    def embed(self, x, positions, length=None):
        # Between rows and in the sum float32 or wider; the cast to the dtype of x comes last.
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) + self._rows(positions, length, wide)).to(x.dtype)

    def _rows(self, positions, length, dtype):
        """P at these positions (…): (…, D), linear between rows where a position is a fraction."""
        if positions.numel() == 0:
            return self.table.new_zeros(*positions.shape, self.d_model, dtype=dtype)
        if not positions.min() >= 0:
            raise ValueError("A learned table has no row before 0: count positions from 0.")
        last = self.max_length - 1  # the last row
        furthest = positions.amax(-1, keepdim=True)  # in the sequence, or in each row of the batch
        if self.beyond == "interpolate":
            if length is not None:
                if furthest.max() > length - 1:
                    raise ValueError(
                        f"Position {furthest.max():g} is past the length {length} that the table "
                        f"is interpolated for: give the length of the whole sequence."
                    )
                furthest = torch.full_like(furthest, length - 1)
            if furthest.max() > last:
                scale = last / furthest.to(torch.float64).clamp(min=max(last, 1))  # 1 if it fits
                positions = positions.to(torch.float64) * scale
        elif furthest.max() > last:
            raise ValueError(
                f"Position {furthest.max():g} is past the learned table of {self.max_length} rows: "
                f"shorten the input, build with beyond='interpolate', or call grow()."
            )
        if not positions.is_floating_point():
            return self.table[positions].to(dtype)
        below = positions.floor().long()
        above = (below + 1).clamp(max=last)
        part = (positions - below)[..., None].to(dtype)
        return (1 - part) * self.table[below].to(dtype) + part * self.table[above].to(dtype)

    def grow(self, max_length: int, generator: torch.Generator) -> "Learned":
        """A copy with `max_length` rows: the old ones, then rows as fresh as at initialisation."""
        check_whole(max_length=max_length)
        if max_length < self.max_length:
            raise ValueError(f"The table has {self.max_length} rows already: it cannot shrink.")
        fresh = torch.randn(max_length - self.max_length, self.d_model, generator=generator)
        grown = copy.deepcopy(self)
        grown.max_length = max_length
        grown.unscaled_length = max_length if self.beyond == "interpolate" else None
        grown.table = nn.Parameter(torch.cat([self.table.detach(), fresh.to(self.table)]))
        return grown
