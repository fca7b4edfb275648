"""T5's relative bias: one learned scalar for every head and bucket of distances.

    a_ij = q_i · k_j + b[h, bucket(i − j)]

Half of the buckets hold one distance each; the other half grow logarithmically up to
`max_distance`, and the last takes all that is farther.
Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1, and the authors' published code.
T5 itself leaves out 1/√d; here the bias is added after the division, as in every later model.
"""

import math

import torch
from torch import nn

from lib.encodings.base import Encoding, check_whole, register


def bucket(delta, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool = False):
    """The bucket of each distance δ = i − j (any shape, integer or float): long, same shape.

    Causal: keys ahead of the query (δ < 0) fall into bucket 0. Bidirectional: half of the buckets
    serve the past, half the future (+ n_buckets/2). With n buckets a side, e = n/2 of them exact:

        bucket(δ) = δ                                                   for δ < e
                    e + ⌊ln(δ/e) / ln(max_distance/e) · (n − e)⌋        else, at most n − 1
    """
    n = n_buckets // 2 if bidirectional else n_buckets
    future = (delta < 0).long() * n if bidirectional else torch.zeros_like(delta, dtype=torch.long)
    delta = delta.abs() if bidirectional else delta.clamp(min=0)
    e = n // 2  # exact buckets
    far = torch.log(delta.clamp(min=e).double() / e) / math.log(max_distance / e) * (n - e)
    # Some distances lie on a boundary (16, 32, 64 in both directions) and belong to the bucket
    # above it: 1e-9 keeps them there, however this machine rounds the logarithm.
    far = (e + (far + 1e-9).long()).clamp(max=n - 1)
    return future + torch.where(delta < e, delta.long(), far)


@register("t5")
class T5Bias(Encoding):
    """A table of `n_buckets` scalars a head, shared by all layers.

    Args:
        n_buckets: 32 in T5.
        max_distance: from this distance on all share the last bucket (128 in T5).
        bidirectional: True for an encoder, whose queries see keys on both sides.
    """

    def __init__(
        self,
        d_model,
        n_heads,
        max_length,
        n_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = False,
        heads=None,
    ):
        super().__init__(d_model, n_heads, max_length, heads)
        check_whole(n_buckets=n_buckets, max_distance=max_distance)
        least = 4 if bidirectional else 2
        if n_buckets % least:
            raise ValueError(f"n_buckets must be a multiple of {least}, not {n_buckets!r}.")
        exact = n_buckets // least
        if max_distance <= exact:
            raise ValueError(
                f"max_distance must be past the {exact} exact buckets, not {max_distance!r}."
            )
        self.n_buckets, self.max_distance = n_buckets, max_distance
        self.bidirectional = bidirectional
        self.b = nn.Parameter(torch.zeros(len(self.heads), n_buckets))  # b (H, n_buckets)

    def bias_by_distance(self, delta):
        """b[h, bucket(δ)] for distances δ = i − j (n,): (H, n)."""
        return self.b[:, bucket(delta, self.n_buckets, self.max_distance, self.bidirectional)]
