"""How well a model predicts text: perplexity, nonoverlapping or sliding, and the loss by position.

A window is what the model reads at once. A document x_0 … x_{N−1} has N−1 targets, every token but
the first. A window with inputs x_a … x_{b−1}, b − a ≤ L, predicts the targets x_{a+1} … x_b:

    nonoverlapping    windows follow each other and share the border token, input of the one and
                      target of the other; a target at the start of a window has little context
    sliding           windows start `stride` tokens apart, and each scores only what none before it
                      has: past the first window every target has more than L − stride tokens before

Either way each target is scored once, and windows never cross from one document to the next. What
is left at the end of a document is a shorter window, and it counts by its tokens. Many short
windows would favour models that need little context, so where lengths are compared, the targets
should be the same for all: see `blocks`.

Letters: B batch, T inputs of a window, L `length`, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F


class Segment(NamedTuple):
    """Targets to be scored: the tokens start … stop − 1 of a document, start ≥ 1."""

    document: int
    start: int
    stop: int


class Window(NamedTuple):
    """Inputs start … stop − 1 of a document; it scores the targets first … stop."""

    document: int
    start: int
    stop: int
    first: int


@dataclass(frozen=True)
class Evaluation:
    """A perplexity and what it rests on; `nll_sum` in nats."""

    nll_sum: float
    tokens: int
    windows: int

    @property
    def perplexity(self) -> float:
        with np.errstate(over="ignore"):  # a model that is sure and wrong: infinite
            return float(np.exp(self.nll_sum / self.tokens))


def perplexity(model, tokens, length: int, stride: int | None = None) -> float:
    """exp of the mean negative log-likelihood of every target, each with equal weight.

    In nats; the same number as 2^(mean −log₂ p) of the definition in bits. At best 1; a model that
    knows nothing but the vocabulary has V.

    Args:
        model: an nn.Module, tokens (B, T) → logits (B, T, V).
        tokens: one document (N,) or a list of them, arrays or tensors of integers.
        length: L, the most inputs in a window.
        stride: None for nonoverlapping windows, else 1 … L for sliding ones.

    Raises:
        ValueError: no target, no window of `length`, a stride outside 1 … L, or a token outside
            the vocabulary.
    """
    return evaluate(model, tokens, length, stride).perplexity


def evaluate(
    model,
    tokens,
    length: int,
    stride: int | None = None,
    segments: list[Segment] | None = None,
    tokens_per_batch: int = 4096,
) -> Evaluation:
    """As `perplexity`, with the count of tokens and windows; `segments` are scored, else all."""
    plan = windows(whole(tokens) if segments is None else segments, length, stride)
    losses = np.concatenate(negative_log_likelihoods(model, tokens, plan, tokens_per_batch))
    return Evaluation(nll_sum=float(losses.sum()), tokens=losses.size, windows=len(plan))


def loss_by_position(
    model,
    tokens,
    length: int,
    segments: list[Segment] | None = None,
    tokens_per_batch: int = 4096,
) -> tuple[np.ndarray, np.ndarray]:
    """The mean loss (nats) behind each input of nonoverlapping windows, and how many it rests on.

    Both (length,): entry t belongs to targets that are predicted from t + 1 tokens.
    """
    plan = windows(whole(tokens) if segments is None else segments, length)
    losses = negative_log_likelihoods(model, tokens, plan, tokens_per_batch)
    position = np.concatenate([np.arange(loss.size) for loss in losses])
    counts = np.bincount(position, minlength=length)
    return np.bincount(position, np.concatenate(losses), minlength=length) / counts, counts


def whole(tokens) -> list[Segment]:
    """Every target of every document."""
    return [Segment(i, 1, len(d)) for i, d in enumerate(_documents(tokens)) if len(d) > 1]


def blocks(tokens, block: int, budget: int, context: int = 1) -> list[Segment]:
    """Segments of exactly `block` targets, at most `budget` targets in all, spread over the text.

    For curves over the length: each length is scored on the same targets. The documents are cut
    into blocks from their beginning; those with at least `context` tokens before them are
    candidates, and every k-th candidate is taken, so that long documents give more. A sliding
    evaluation up to L wants context=L, so that no target has less context for lack of text.

    Raises ValueError when `budget` does not hold one block, or no document has one.
    """
    if not 1 <= block <= budget:
        raise ValueError(f"A block of {block} targets must be at least 1, and fit into {budget}.")
    candidates = [
        Segment(i, start, start + block)
        for i, document in enumerate(_documents(tokens))
        for start in range(1, len(document) - block + 1, block)
        if start >= context
    ]
    if not candidates:
        raise ValueError(f"No document has {block} targets after {context} tokens: shorten either.")
    n = min(budget // block, len(candidates))
    return [candidates[(2 * i + 1) * len(candidates) // (2 * n)] for i in range(n)]


def windows(segments: list[Segment], length: int, stride: int | None = None) -> list[Window]:
    """The windows that score each target of `segments` once.

    A sliding window may begin before its segment, a nonoverlapping one does not: nonoverlapping is
    sliding by a whole window.

    Raises ValueError for a length below 1 or so large that no window has it, for a stride outside
    1 … length, and when there is nothing to score.
    """
    stride = length if stride is None else stride
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}.")
    if not 1 <= stride <= length:
        raise ValueError(f"stride must lie in 1..{length} (the length), not {stride}.")
    if not segments:
        raise ValueError("There is nothing to predict: give a document of at least two tokens.")
    plan = list(_slide(segments, length, stride))
    longest = max(window.stop - window.start for window in plan)
    if longest < length:
        raise ValueError(
            f"length {length} is longer than the text: the longest window here has {longest} "
            f"inputs; choose a shorter length or give longer documents."
        )
    return plan


def _slide(segments, length, stride) -> Iterator[Window]:
    for document, start, stop in segments:
        scored = start
        # The first window scores `stride` targets with all the context that there is before them;
        # at the beginning of a document there is none, and it scores `length` of them.
        a = max(0, start - 1 + stride - length)
        while scored < stop:
            b = min(a + length, stop - 1)
            yield Window(document, a, b, scored)
            scored, a = b + 1, a + stride


def negative_log_likelihoods(
    model, tokens, plan: list[Window], tokens_per_batch: int = 4096
) -> list[np.ndarray]:
    """−ln p of what each window scores, in nats: one float64 array (stop + 1 − first,) a window.

    Windows of one shape run together, at most `tokens_per_batch` inputs at once (or one window),
    which bounds the logits by B·T·V and the scores by B·H·T² ≤ tokens_per_batch·H·T.
    """
    documents = _documents(tokens)
    if any(w.document >= len(documents) or w.stop >= len(documents[w.document]) for w in plan):
        raise ValueError("The windows reach past the text: plan them for these documents.")
    shapes = defaultdict(list)
    for i, window in enumerate(plan):
        shapes[window.stop - window.start, window.stop + 1 - window.first].append(i)
    losses = [np.empty(0)] * len(plan)
    with _evaluating(model) as device:
        for (T, scored), members in shapes.items():
            B = max(1, tokens_per_batch // T)
            for n in range(0, len(members), B):
                chosen = [plan[i] for i in members[n : n + B]]
                rows = [documents[w.document][w.start : w.stop + 1] for w in chosen]
                x = torch.from_numpy(np.stack(rows)).to(device)  # (B, T + 1)
                for i, loss in zip(members[n : n + B], _losses(model, x, scored), strict=True):
                    losses[i] = loss
    return losses


def _losses(model, x, scored: int) -> np.ndarray:
    """x (B, T + 1) → −ln p of the last `scored` tokens of each row, (B, scored) float64."""
    try:
        logits = model(x[:, :-1])[:, -scored:]  # (B, scored, V)
    except IndexError as error:  # how an embedding on the CPU refuses a token
        raise ValueError(
            f"The model cannot look up the tokens, which go up to {x.max().item()}: {error}."
        ) from error
    V = logits.shape[-1]
    if x.max() >= V:
        raise ValueError(f"Token {x.max().item()} is outside the vocabulary of {V}.")
    # −ln p(x_{t+1} | x_≤t)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), x[:, -scored:].flatten(), reduction="none")
    return loss.double().view(len(x), scored).cpu().numpy()


@contextmanager
def _evaluating(model) -> Iterator[torch.device]:
    """Without gradients and in evaluation mode; each module's own mode comes back at the end."""
    modes = {module: module.training for module in model.modules()}
    weight = next(chain(model.parameters(), model.buffers()), torch.empty(0))
    model.eval()
    try:
        with torch.inference_mode():
            yield weight.device
    finally:
        for module, mode in modes.items():
            module.training = mode


def _documents(tokens) -> list[np.ndarray]:
    """One document or a list of them → a list of int64 arrays."""
    several = isinstance(tokens, list | tuple) and len(tokens) > 0 and np.ndim(tokens[0]) > 0
    documents = []
    for document in tokens if several else [tokens]:
        if isinstance(document, torch.Tensor):
            document = document.cpu()
        document = np.asarray(document)
        if document.ndim != 1 or not (document.size == 0 or document.dtype.kind in "iu"):
            raise ValueError(
                f"A document must be a row of integers, not {document.dtype} {document.shape}."
            )
        if document.size and document.min() < 0:
            raise ValueError(f"Token {document.min()} is negative: tokens count from 0.")
        documents.append(document.astype(np.int64))
    return documents
