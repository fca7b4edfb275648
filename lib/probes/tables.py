"""How alike the rows of a learned table of positions are, by their distance.

To interpolate a table is to read it between its rows, so it asks that neighbours be alike:

    cos(δ) = mean over p of P_p · P_(p+δ) / (|P_p| |P_(p+δ)|)

Letters: P the table (L, D), p a position, δ a distance.
"""

import torch
import torch.nn.functional as F


def table(decoder, settings: dict) -> list[dict]:
    """Rows of a decoder with a learned table: `row_cosine`, x = δ = 1 … L−1; `row_norm`, x = p; and
    `row_midpoint`, x = 1. The settings do not matter."""
    P = decoder.encodings[0].table.detach().double()
    found = [("row_cosine", x, value) for x, value in enumerate(cosine_by_distance(P)) if x]
    found += [("row_norm", x, value) for x, value in enumerate(P.norm(dim=1))]
    found += [("row_midpoint", 1, midpoint_error(P))]
    return [
        {"layer": -1, "head": -1, "quantity": quantity, "x": x, "value": float(f"{value:.6g}")}
        for quantity, x, value in found
    ]


def cosine_by_distance(P) -> torch.Tensor:
    """cos(δ) for δ = 0 … L−1: (L,)."""
    unit = F.normalize(P, dim=1)
    cosines = unit @ unit.T  # (L, L)
    return torch.stack([cosines.diagonal(delta).mean() for delta in range(len(P))])


def midpoint_error(P) -> torch.Tensor:
    """How far a row is from the midpoint of its two neighbours, as a share of its norm (root mean
    squares): 0 on a straight line, √1.5 for rows that know nothing of each other."""
    off = P[1:-1] - (P[:-2] + P[2:]) / 2
    return (off.square().sum() / P[1:-1].square().sum()).sqrt()
