"""What the heads of a trained decoder compare: its queries and keys, and the weights they give.

The fused kernels show no weights, so they are written out here from the modules of each block:

    A = softmax(q kᵀ / √d + bias),   over the keys up to the query

Letters: B windows, T tokens, H heads, d their width; the models of the studies have H_kv = H.
"""

from typing import NamedTuple

import numpy as np
import torch

from lib import corpus, evaluation
from lib.attention import causal_mask


class Heads(NamedTuple):
    """One layer: q and k (B, H, T, d) after rotation, and the encoding's bias or None."""

    q: torch.Tensor
    k: torch.Tensor
    bias: torch.Tensor | None

    def weights(self, last: int) -> torch.Tensor:
        """The attention weights of the last `last` queries: (B, H, last, T)."""
        q, T = self.q[..., -last:, :], self.k.shape[-2]
        logits = q @ self.k.mT / q.shape[-1] ** 0.5
        if self.bias is not None:
            logits = logits + self.bias[..., -last:, :]
        return logits.masked_fill(~causal_mask(last, T), -torch.inf).softmax(-1)


@torch.inference_mode()
def heads(decoder, tokens) -> list[Heads]:
    """What each layer of a decoder compares when it reads `tokens` (B, T), positions 0 … T − 1."""
    positions = torch.arange(tokens.shape[-1])
    layers = []

    def capture(block, arguments):
        x, _, encoding, _ = arguments
        qkv = block.w_qkv(block.norm_attention(x)).split(block.sizes, dim=-1)
        q, k, _ = (y.unflatten(-1, (-1, block.d)).transpose(1, 2) for y in qkv)
        q, k = encoding.rotate(q, k, positions, positions)
        layers.append(Heads(q, k, encoding.bias(q, k, positions, positions)))

    hooks = [block.register_forward_pre_hook(capture) for block in decoder.blocks]
    try:
        decoder(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return layers


def held_out(length: int, windows: int) -> torch.Tensor:
    """Windows of the test text, spread over its documents: (windows, length) of tokens."""
    documents = corpus.load().documents("test")
    segments = evaluation.blocks(documents, length, windows * length)
    rows = [documents[s.document][s.start - 1 : s.stop - 1] for s in segments]
    return torch.from_numpy(np.stack(rows).astype(np.int64))
