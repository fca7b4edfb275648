"""A learned vector for every position, added to the embeddings.

    x_p ← x_p + P[p],   P a table of L_max × D parameters

The table has no row past L_max. Three answers are known, and `beyond` chooses among them:
refuse (the honest default), or read the table at positions scaled back into it,

    p ↦ p · (L_max − 1) / (length − 1),   between two rows linearly,

or grow the table by new rows that no training has seen (`grow`).

Sources: Gehring et al. 2017 (arXiv 1705.03122); Devlin et al. 2018 (BERT, 1810.04805) for the table;
Dosovitskiy et al. 2020 (ViT, 2010.11929), section 3.2, for interpolating it.
"""

import torch
from torch import nn

from lib.encodings.base import Encoding, register


@register("learned")
class Learned(Encoding):
    """Adds row p of a table (L_max, D) to the embedding at position p; L_max is `max_length`.

    Args:
        beyond: what happens when a sequence is longer than the table: "refuse" raises ValueError,
            "interpolate" squeezes the positions of the whole sequence into the table.
    """

    def __init__(self, d_model, n_heads, max_length, beyond: str = "refuse", heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        if beyond not in ("refuse", "interpolate"):
            raise ValueError(f"beyond must be 'refuse' or 'interpolate', not {beyond!r}.")
        self.beyond = beyond
        self.unscaled_length = max_length if beyond == "interpolate" else None
        self.table = nn.Parameter(torch.randn(max_length, d_model))  # P (L_max, D)

    def embed(self, x, positions, length=None):
        rows = self._rows(positions, length)
        return x + rows.to(x.dtype)

    def _rows(self, positions, length):
        """P at these positions (…): (…, D), linear between rows where a position is a fraction."""
        L_max = self.max_length
        last = positions.max().item() if positions.numel() else 0
        if positions.numel() and positions.min().item() < 0:
            raise ValueError("A learned table has no row before position 0.")
        if length is None:
            length = last + 1
        if length > L_max and self.beyond == "interpolate":
            positions = positions.to(torch.float64) * ((L_max - 1) / (length - 1))
            last = last * (L_max - 1) / (length - 1)
        if last > L_max - 1:
            raise ValueError(
                f"Position {last:g} is past the learned table of {L_max} rows: shorten the input, "
                f"build with beyond='interpolate', or call grow()."
            )
        if not positions.is_floating_point():
            return self.table[positions]
        below = positions.floor().long()
        above = (below + 1).clamp(max=L_max - 1)
        part = (positions - below)[..., None].to(self.table.dtype)
        return (1 - part) * self.table[below] + part * self.table[above]

    def grow(self, max_length: int, generator: torch.Generator) -> "Learned":
        """A copy with `max_length` rows: the old ones, then rows as fresh as at initialisation."""
        if max_length < self.max_length:
            raise ValueError(f"The table has {self.max_length} rows already: it cannot shrink.")
        grown = type(self)(self.d_model, self.n_heads, max_length, self.beyond, self.heads)
        fresh = torch.randn(max_length - self.max_length, self.d_model, generator=generator)
        with torch.no_grad():
            grown.table.copy_(torch.cat([self.table, fresh.to(self.table)]))
        return grown.to(self.table)
