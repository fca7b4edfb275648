"""M-RoPE: one rotation for text, pictures and video, with three axes of position.

Each pair of channels turns with one of three positions, in time (t), height (h) and width (w):

    z_k ← z_k · exp(i · p_a(k) · θ_k),   a(k) the axis of pair k, θ_k = base^(−2k/r) as in RoPE

A token of text stands at p on all three, and is turned as RoPE turns it; a patch of a picture at
(t, row, column). Which pair goes with which axis is a choice:

    chunked       t for the first pairs, then h, then w: the fast pairs all tell time, the slow ones
                  the column
    interleaved   t h w t h w … as far as h and w reach, t for the rest: every axis has fast and
                  slow pairs

Sources: Wang et al. 2024 (Qwen2-VL, arXiv 2409.12191), section 2.1, chunked; Qwen3-VL's published
code, interleaved. Where the tokens of a picture stand is in `lib.positions.of_images`.
"""

import torch

from lib.encodings import scaling as scalings
from lib.encodings.base import check_whole, register
from lib.encodings.rope import RoPE


@register("mrope")
class MRoPE(RoPE):
    """Turns q and k by positions on three axes; no parameters.

    Positions are (T,) or (B, T) for a text, on three axes always (B, T, 3), or (1, T, 3) for all
    rows: (T, 3) could be a batch of texts of three tokens.

    Args:
        base, layout, scaling, rotated, rotated_at: as in RoPE.
        sections: how many pairs turn with t, h and w, r/2 in all. None: in the proportions of
            Qwen2-VL, (16, 24, 24) for heads of 128; interleaved, of Qwen3-VL, (24, 20, 20).
        interleaved: the axes take turns, as in Qwen3-VL.

    Raises:
        ValueError: sections that are not three, or do not add up to r/2, or cannot take turns.
    """

    axes = 3

    def __init__(
        self,
        d_model,
        n_heads,
        max_length,
        base: float = scalings.BASE,
        layout: str = "interleaved",
        scaling: dict | None = None,
        sections: tuple[int, int, int] | None = None,
        interleaved: bool = False,
        rotated: int | None = None,
        rotated_at: str = "first",
        heads=None,
    ):
        super().__init__(
            d_model, n_heads, max_length, base, layout, scaling,
            rotated=rotated, rotated_at=rotated_at, heads=heads,
        )  # fmt: skip
        n = self.rotated // 2
        self.sections = _sections(sections, n, interleaved)
        self.interleaved = interleaved
        t, h, w = self.sections
        if interleaved:
            k = torch.arange(n)
            axis = torch.where((k % 3 == 1) & (k < 3 * h), 1, 0)
            axis = torch.where((k % 3 == 2) & (k < 3 * w), 2, axis)
            if axis.bincount(minlength=3).tolist() != [t, h, w]:
                raise ValueError(
                    f"sections {self.sections} cannot take turns among {n} pairs: h and w have "
                    f"every third pair each, a third of them at most."
                )
        else:
            axis = torch.arange(3).repeat_interleave(torch.tensor(self.sections))
        self._axis = tuple(axis.tolist())  # no tensor: what is no parameter does not move

    def axis_of_pair(self, device=None):
        """The axis that each pair turns with, 0 for t, 1 for h, 2 for w: (r/2,)."""
        return torch.tensor(self._axis, device=device)

    def rotate(self, q, k, q_pos, k_pos, length=None):
        for x, positions in ((q, q_pos), (k, k_pos)):
            T = x.shape[-2]
            if positions.shape[-1:] != (T,) and positions.shape[1:] != (T, 3):
                raise ValueError(
                    f"positions {tuple(positions.shape)} do not fit {T} tokens: give (T,) or "
                    f"(B, T), on three axes (B, T, 3) or (1, T, 3)."
                )
        return super().rotate(q, k, q_pos, k_pos, length)

    def phase(self, positions, length=None):
        """As RoPE's; positions on three axes (B, T, 3) → (B, T, r/2)."""
        if positions.dim() < 3:
            return super().phase(positions, length)
        of_axis = torch.stack([super(MRoPE, self).phase(p, length) for p in positions.unbind(-1)])
        axis = self.axis_of_pair(positions.device).expand(of_axis.shape[1:])[None]
        return of_axis.gather(0, axis)[0]


def _sections(sections, n: int, interleaved: bool) -> tuple[int, int, int]:
    """(t, h, w), the pairs of each axis, n in all."""
    if sections is None:
        h = (5 if interleaved else 6) * n // 16
        return n - 2 * h, h, h
    if not isinstance(sections, list | tuple) or len(sections) != 3:
        raise ValueError(f"sections must be three numbers of pairs, not {sections!r}.")
    check_whole(
        0, **dict(zip(("sections[0]", "sections[1]", "sections[2]"), sections, strict=True))
    )
    if sum(sections) != n:
        raise ValueError(
            f"sections {tuple(sections)} add up to {sum(sections)}, and {n} pairs turn: choose "
            f"others."
        )
    return tuple(sections)
