"""Where tokens stand, when that is not 0, 1, 2 … of one text: padding, packing, pictures.

    padding    rows of different lengths in one batch: real tokens are counted, padding is not
    packing    several documents in one row: each is counted from 0, and a mask keeps them apart
    pictures   three axes for M-RoPE (`lib.encodings.mrope`): time, height, width

Positions alone do not keep packed documents apart. RoPE knows only differences, so a token at 3 of
the second document finds the one at 2 of the first as near as its own neighbour, and NoPE sees
everything: the mask has to hide it.
"""

import torch

from lib.encodings.base import check_whole


def from_padding(mask: torch.Tensor) -> torch.Tensor:
    """Positions (B, T) of rows with padding on the left, on the right or both.

    mask: (B, T), True (or 1) where a token is real. Real tokens count from 0; padding before the
    first stands at 0, padding after one where that one stands. Neither has a meaning: a mask hides
    it. (These are the positions that `lib.transformer.Decoder` gives by itself.)
    """
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def packed(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions (T,) and mask (T, T) of documents of these lengths, one after the other in a row.

    Positions begin anew in each document. The mask, for `lib.attention.attend`, is True where a
    query may look: at keys of its own document, up to itself.
    Raises ValueError for a length below 1, or no document.
    """
    if not lengths:
        raise ValueError("lengths must name the length of at least one document.")
    for i, n in enumerate(lengths):
        check_whole(**{f"lengths[{i}]": n})
    positions = torch.cat([torch.arange(n) for n in lengths])
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))  # (T,)
    same = document[:, None] == document
    return positions, same.tril()


def of_images(parts: list) -> torch.Tensor:
    """Positions (1, T, 3) in time, height and width of a text with pictures, for M-RoPE.

    Each part is a whole number, a text of so many tokens, or a grid (t, h, w) of so many frames,
    rows and columns of tokens: a picture is (1, h, w). (Qwen2-VL merges 2 × 2 patches to a token,
    so its `image_grid_thw` is (t, 2h, 2w).) A text stands at p, p + 1, … on all three axes, a token
    of a grid at p + (frame, row, column); what follows begins one past the largest position so far.

    Source: Wang et al. 2024 (Qwen2-VL, arXiv 2409.12191), section 2.1. (transformers 5.24 looks at
    rows and columns alone there: after a video of more frames than both, its text begins earlier.)
    Raises ValueError for a part that is neither, and for no parts.
    """
    if not parts:
        raise ValueError("parts must hold a text or a grid, at least.")
    start, found = 0, []
    for i, part in enumerate(parts):
        if isinstance(part, int):
            check_whole(**{f"parts[{i}]": part})
            place = torch.arange(part)[:, None].expand(-1, 3)  # (n, 3)
        else:
            if not isinstance(part, list | tuple) or len(part) != 3:
                raise ValueError(f"parts[{i}] must be a count or a grid (t, h, w), not {part!r}.")
            check_whole(**dict(zip((f"{axis} of parts[{i}]" for axis in "thw"), part, strict=True)))
            place = torch.cartesian_prod(*map(torch.arange, part))  # (t·h·w, 3), columns fastest
        found.append(start + place)
        start = found[-1].max().item() + 1
    return torch.cat(found)[None]
