"""What training made of relative terms: T5's bias by bucket, and Shaw's vectors by relation.

A softmax does not see what is added to all of its logits, so a bias means something only beside
another: b(δ) − b(farthest that training saw). And a bucket that no training window reaches keeps
the value that it was born with, whatever the others have become.

Letters: H heads, c Shaw's clip, r = clip(j − i, −c, c) a relation, L the training length.
"""

import copy

import torch

from lib import corpus, evaluation
from lib.encodings.t5 import bucket
from lib.probes.heads import heads, held_out

LENGTH = 64  # L, of the models that are probed
LENGTHS = (64, 128, 256, 1024)  # tried with the untrained buckets as they are, and filled


def t5(decoder, settings: dict) -> list[dict]:
    """Rows of a decoder with T5's bias: `bias`, x a bucket, of every head; and at each length x the
    loss in nats a token, nonoverlapping, as trained (`nll_as_trained`) and with the buckets that
    training never reached set to the last one that it did (`nll_filled`)."""
    encoding = decoder.encodings[0]
    found = [
        (head, "bias", x, value)
        for head, values in enumerate(encoding.b.tolist())
        for x, value in enumerate(values)
    ]
    for quantity, model in (("nll_as_trained", decoder), ("nll_filled", filled(decoder, LENGTH))):
        losses = loss_by_length(model, settings["windows"])
        found += [(-1, quantity, length, nll) for length, nll in losses.items()]
    return [_row(-1, *row) for row in found]


def filled(decoder, length: int):
    """A copy of a causal decoder, in which each bucket past those of `length` tokens holds, head by
    head, what the last of these holds."""
    other = copy.deepcopy(decoder)
    encoding = other.encodings[0]
    last = bucket(torch.tensor(length - 1), encoding.n_buckets, encoding.max_distance).item()
    with torch.no_grad():
        encoding.b[:, last + 1 :] = encoding.b[:, last : last + 1]
    return other


def loss_by_length(decoder, windows: int) -> dict[int, float]:
    """The mean loss at each of LENGTHS on the same targets: about 128 for each of `windows`."""
    documents = corpus.load().documents("test")
    block = max(LENGTHS)
    segments = evaluation.blocks(documents, block, max(block, 128 * windows))
    results = {n: evaluation.evaluate(decoder, documents, n, None, segments) for n in LENGTHS}
    return {n: result.nll_sum / result.tokens for n, result in results.items()}


def shaw(decoder, settings: dict) -> list[dict]:
    """Rows of a decoder with Shaw's relation vectors, x = r, layer by layer.

    `norm_k` and `norm_v`, r = −c … c: the lengths of a^K_r and a^V_r. Of every head, r = −c … 0:
    `key_term` and `key_term_sd`, the mean and the spread over queries of q · (a^K_r − a^K_−c) / √d,
    the logit that the distance earns beside a far key; over windows of held-out text.
    """
    rows = []
    layers = heads(decoder, held_out(LENGTH, settings["windows"]))
    for layer, (encoding, seen) in enumerate(zip(decoder.encodings, layers, strict=True)):
        c = encoding.clip
        for quantity, vectors in (("norm_k", encoding.a_k), ("norm_v", encoding.a_v)):
            norms = vectors.detach().norm(dim=1).tolist()
            rows += [_row(layer, -1, quantity, r - c, value) for r, value in enumerate(norms)]
        term = key_term(encoding, seen.q)  # (B, H, T, c + 1)
        mean, spread = term.mean((0, 2)), term.std((0, 2))  # (H, c + 1)
        for quantity, values in (("key_term", mean), ("key_term_sd", spread)):
            for head, by_relation in enumerate(values.tolist()):
                rows += [_row(layer, head, quantity, r - c, v) for r, v in enumerate(by_relation)]
    return rows


@torch.no_grad()
def key_term(encoding, q) -> torch.Tensor:
    """q · (a^K_r − a^K_−c) / √d of each query q (B, H, T, d), for r = −c … 0: (B, H, T, c + 1)."""
    a_k = encoding.a_k[: encoding.clip + 1]
    return q.double() @ (a_k - a_k[:1]).double().T / encoding.d**0.5


def _row(layer: int, head: int, quantity: str, x: int, value: float) -> dict:
    row = {"layer": layer, "head": head, "quantity": quantity, "x": x}
    return row | {"value": float(f"{value:.6g}")}
