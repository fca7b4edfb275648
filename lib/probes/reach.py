"""How far back the heads look: the weight that a query gives to keys by their distance.

Measured at the training length and at 16 times it, over the last queries of each window, so that
every distance up to about T is there to be chosen.
"""

import numpy as np
import torch

from lib.probes.heads import heads, held_out

LENGTHS = (64, 1024)  # the training length of the models that are probed, and 16 times it
QUERIES = 32  # the last of each window
MOST = 0.9  # of the weight


def reach(decoder, settings: dict) -> list[dict]:
    """Rows of every layer and head, at each length T:

    `mean_distance` and `distance_90` (the distance within which 90 % of the weight lies), x = T;
    `weight_within_T`, x a distance 0, 1, 2, 4 … T: the weight up to it. Over held-out text,
    `settings["windows"]` windows of 64 tokens and a quarter as many of 1024.
    """
    rows = []
    for T in LENGTHS:
        windows = settings["windows"] if T == LENGTHS[0] else max(1, settings["windows"] // 4)
        distances = [0, *(2**n for n in range(T.bit_length()))]
        for layer, seen in enumerate(profiles(decoder, held_out(T, windows))):
            for head, profile in enumerate(seen):
                within = np.cumsum(profile)
                found = [("mean_distance", T, profile @ np.arange(T))]
                found += [("distance_90", T, np.searchsorted(within, MOST))]
                found += [(f"weight_within_{T}", x, within[min(x, T - 1)]) for x in distances]
                for quantity, x, value in found:
                    row = {"layer": layer, "head": head, "quantity": quantity, "x": x}
                    rows.append(row | {"value": float(f"{value:.6g}")})
    return rows


def profiles(decoder, tokens) -> np.ndarray:
    """The mean weight at each distance, (layers, H, T), that the last queries of each window give.

    tokens: (B, T). Each profile sums to 1.
    """
    total = sum(
        np.stack([by_distance(layer.weights(QUERIES)).numpy() for layer in heads(decoder, window)])
        for window in tokens.split(1)
    )
    return total / len(tokens)


def by_distance(weights) -> torch.Tensor:
    """Weights (B, H, n, T) of the last n queries → their mean at each distance: (H, T)."""
    n, T = weights.shape[-2:]
    delta = (torch.arange(T - n, T)[:, None] - torch.arange(T)).clamp(min=0)  # (n, T)
    mean = weights.double().mean(0).flatten(1) / n  # (H, n·T); the future weighs 0
    return mean.new_zeros(len(mean), T).index_add_(1, delta.flatten(), mean)
