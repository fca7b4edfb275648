"""Family 11: how a perplexity averages. The subject is a function
perplexity(model, tokens, length, stride=None)."""

from functools import partial

import torch
from hypothesis import strategies as st
from torch import nn

from lib.conformance.checking import Measure, catches

AVERAGING = []
averaging = partial(catches, 11, AVERAGING)


class Reader(nn.Module):
    """A model whose loss depends on how many tokens it has read, and on nothing in them.

    After t tokens, −ln p(0) = 0.1 + gain/t; the other token of the two has the rest.
    """

    def __init__(self, gain: float):
        super().__init__()
        self.gain = gain

    def loss(self, t):
        """−ln p of token 0 and of token 1 after t tokens: (…, 2)."""
        zero = 0.1 + self.gain / t
        return torch.stack([zero, -torch.log(-torch.expm1(-zero))], dim=-1)

    def forward(self, tokens):
        t = torch.arange(1, tokens.shape[1] + 1, dtype=torch.float64)
        return -self.loss(t).expand(len(tokens), -1, -1)


def relative_error(found: float, expected) -> Measure:
    return Measure(abs(found / expected.item() - 1), 1e-6)


@averaging(n=st.integers(6, 40), length=st.integers(2, 5), stride=st.integers(0, 5))
def windows_change_nothing_without_context(perplexity, n, length, stride):
    """A model that ignores what it reads has one perplexity, however the windows lie.

    exp of the mean over every token but the first. The text is zeros, then the ones that the model
    expects less, so no window is like the whole. A stride of 0 stands for None, nonoverlapping.
    """
    model, text = Reader(gain=0.0), (torch.arange(n) > 0.7 * n).long()
    loss = model.loss(torch.ones(n - 1, dtype=torch.float64)).gather(-1, text[1:, None])
    found = perplexity(model, text, length, min(stride, length) or None)
    return relative_error(found, loss.mean().exp())


@averaging(n=st.integers(8, 40), length=st.integers(2, 6))
def sliding_gives_context(perplexity, n, length):
    """Windows that slide by one give each token all the context there is, up to `length`."""
    model, text = Reader(gain=2.0), torch.zeros(n, dtype=torch.long)
    t = torch.arange(1, n, dtype=torch.float64).clamp(max=length)
    return relative_error(perplexity(model, text, length, 1), model.loss(t)[:, 0].mean().exp())
