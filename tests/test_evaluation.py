"""Perplexity: each token once, with equal weight, and with the context that the method promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lib.evaluation import (
    Evaluation,
    Segment,
    blocks,
    evaluate,
    loss_by_position,
    negative_log_likelihoods,
    perplexity,
    whole,
    windows,
)
from lib.transformer import Config, Decoder

# --- models whose losses are known ----------------------------------------------------------------


class Uniform(nn.Module):
    def __init__(self, V):
        super().__init__()
        self.V = V

    def forward(self, tokens, positions=None, padding_mask=None, cache=None):
        return torch.zeros(*tokens.shape, self.V)


class Bigram(nn.Module):
    """The next token depends on the last one: no window makes a difference."""

    def __init__(self, V, seed=0):
        super().__init__()
        self.table = torch.randn(V, V, generator=torch.Generator().manual_seed(seed)) * 3

    def forward(self, tokens, positions=None, padding_mask=None, cache=None):
        return self.table[tokens]

    def losses(self, document):
        """−ln p of each target, by numpy."""
        table = self.table.double().numpy()
        log_p = table - np.log(np.exp(table).sum(1, keepdims=True))
        return -log_p[document[:-1], document[1:]]


class ByContext(nn.Module):
    """Token 0 has −ln p = cost(number of tokens read); what was read in each call is kept."""

    def __init__(self, cost):
        super().__init__()
        self.cost, self.shapes = cost, []

    def forward(self, tokens, positions=None, padding_mask=None, cache=None):
        self.shapes.append(tuple(tokens.shape))
        p = torch.tensor([math.exp(-self.cost(n + 1)) for n in range(tokens.shape[1])])
        logits = torch.stack([p, 1 - p], dim=-1).log()  # (T, V) with V = 2
        return logits.expand(len(tokens), -1, -1)


class Successor(nn.Module):
    """Sure that n is followed by n + 1."""

    def __init__(self, V):
        super().__init__()
        self.V = V

    def forward(self, tokens, positions=None, padding_mask=None, cache=None):
        return 50 * nn.functional.one_hot((tokens + 1) % self.V, self.V).float()


def inverse(n):  # a cost that tells the context: half a nat for one token read, less for more
    return 1 / (n + 1)


def context_of(model, tokens, length, stride=None, segments=None):
    """The number of tokens from which each target was predicted, in the order of the targets."""
    plan = windows(segments or whole(tokens), length, stride)
    losses = np.concatenate(negative_log_likelihoods(model, tokens, plan))
    return np.rint(1 / losses - 1).astype(int)


texts = st.lists(st.lists(st.integers(0, 4), max_size=40).map(np.array), min_size=1, max_size=4)


@st.composite
def tasks(draw):
    """Documents over 5 tokens, a length that fits into them, and a stride or None."""
    documents = draw(texts.filter(lambda ds: max(map(len, ds)) > 1))
    documents = [document.astype(np.uint16) for document in documents]
    length = draw(st.integers(1, max(map(len, documents)) - 1))
    return documents, length, draw(st.none() | st.integers(1, length))


# --- each target once -----------------------------------------------------------------------------


@given(tasks())
def test_every_target_is_scored_once_and_no_window_is_longer_than_length(task):
    documents, length, stride = task
    scored = []
    for document, start, stop, first in windows(whole(documents), length, stride):
        assert 0 <= start < first <= stop < len(documents[document])
        assert stop - start <= length
        scored += [(document, target) for target in range(first, stop + 1)]
    assert scored == [(i, t) for i, d in enumerate(documents) for t in range(1, len(d))]


@given(tasks(), st.integers(1, 50))
def test_where_only_the_last_token_matters_every_window_and_batch_gives_the_same(task, batch):
    documents, length, stride = task
    model = Bigram(5)
    expected = np.concatenate([model.losses(d) for d in documents if len(d) > 1])
    result = evaluate(model, documents, length, stride, tokens_per_batch=batch)
    assert result.tokens == expected.size
    assert result.nll_sum == pytest.approx(expected.sum(), rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(expected.mean()), rel=1e-5)


def test_the_losses_are_those_of_the_targets_in_their_order():
    document = np.random.default_rng(0).integers(0, 30, size=200)
    model = Bigram(30)
    plan = windows(whole(document), 16, 5)
    losses = np.concatenate(negative_log_likelihoods(model, document, plan))
    np.testing.assert_allclose(losses, model.losses(document), rtol=1e-5)


def test_what_is_scored_is_the_next_token_and_not_the_one_just_read():
    document = np.arange(300) % 60
    for stride in (None, 1, 7, 32):
        assert perplexity(Successor(60), document, 32, stride) == pytest.approx(1, abs=1e-6)
        assert perplexity(Successor(60), document[::-1], 32, stride) > 1e20


# --- the mean -------------------------------------------------------------------------------------


@pytest.mark.parametrize("V", [2, 1024])
@pytest.mark.parametrize("stride", [None, 3])
def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity(V, stride):
    document = np.arange(101) % V
    assert perplexity(Uniform(V), document, 8, stride) == pytest.approx(V, rel=1e-6)


@given(tasks(), st.integers(0, 2**32), st.floats(0, 1e4))
def test_perplexity_is_never_below_one(task, seed, scale):
    model = Bigram(5, seed)
    model.table *= scale
    assert perplexity(model, *task) >= 1


def test_a_loss_beyond_exp_is_an_infinite_perplexity():
    model = Bigram(5)
    model.table[:] = torch.tensor([-1e5, 0, 0, 0, 0])
    assert perplexity(model, np.zeros(9, int), 4) == math.inf


def test_bits_and_nats_give_one_perplexity():
    document = np.random.default_rng(1).integers(0, 9, size=77)
    model = Bigram(9)
    bits = model.losses(document) / math.log(2)
    assert perplexity(model, document, 20) == pytest.approx(2 ** bits.mean(), rel=1e-5)


def test_a_short_last_window_counts_by_its_tokens():
    """The mean of the windows' means would be far from the token-weighted one."""
    model = ByContext(lambda n: 4.0 if n <= 2 else 2.0)
    document = np.zeros(1 + 2 * 8 + 2, int)  # two windows of 8 targets, one of 2
    means = [(2 * 4 + 6 * 2) / 8, (2 * 4 + 6 * 2) / 8, 4.0]
    weighted = (8 * means[0] + 8 * means[1] + 2 * means[2]) / 18
    result = evaluate(model, document, 8)
    assert (result.tokens, result.windows) == (18, 3)
    assert result.perplexity == pytest.approx(math.exp(weighted), rel=1e-5)
    assert abs(result.perplexity - math.exp(np.mean(means))) > 4
    assert abs(result.perplexity - np.mean(np.exp(means))) > 4


# --- the context ----------------------------------------------------------------------------------


@given(st.integers(2, 120), st.data())
def test_nonoverlapping_targets_are_read_from_the_start_of_their_window(n, data):
    length = data.draw(st.integers(1, n - 1))
    context = context_of(ByContext(inverse), np.zeros(n, int), length)
    np.testing.assert_array_equal(context, np.arange(n - 1) % length + 1)


@given(st.integers(2, 120), st.data())
def test_sliding_targets_have_all_the_context_but_a_stride(n, data):
    length = data.draw(st.integers(1, n - 1))
    stride = data.draw(st.integers(1, length))
    context = context_of(ByContext(inverse), np.zeros(n, int), length, stride)
    target = np.arange(1, n)
    assert (context <= np.minimum(target, length)).all()
    assert (context >= np.minimum(target, length - stride + 1)).all()


def test_a_sliding_window_slides():
    """With stride 1 each target past the first window has the full context; without, few have."""
    model, document = ByContext(inverse), np.zeros(200, int)
    assert (context_of(model, document, 16, 1)[15:] == 16).all()
    model.shapes.clear()
    sliding = evaluate(model, document, 16, 1)
    assert sliding.windows == 200 - 16 == sum(B for B, _ in model.shapes)
    assert sliding.tokens == 199 == evaluate(model, document, 16).tokens
    assert sliding.perplexity < 0.95 * perplexity(model, document, 16)


@given(tasks())
def test_sliding_by_a_whole_window_is_nonoverlapping(task):
    documents, length, _ = task
    assert windows(whole(documents), length, length) == windows(whole(documents), length)


def test_windows_do_not_cross_documents():
    documents = [np.zeros(10, int), np.zeros(7, int)]
    context = context_of(ByContext(inverse), documents, 9, 4)
    np.testing.assert_array_equal(context, [*range(1, 10), *range(1, 7)])


# --- by position ----------------------------------------------------------------------------------


def test_loss_by_position_is_the_mean_over_windows_with_its_counts():
    document = np.random.default_rng(2).integers(0, 5, size=1 + 3 * 16 + 4)
    model = Bigram(5)
    mean, counts = loss_by_position(model, document, 16)
    table = np.full((4, 16), np.nan)
    table.ravel()[:52] = model.losses(document)
    np.testing.assert_array_equal(counts, [4] * 4 + [3] * 12)
    np.testing.assert_allclose(mean, np.nanmean(table, axis=0), rtol=1e-5)
    total = evaluate(model, document, 16)
    assert (mean * counts).sum() == pytest.approx(total.nll_sum, rel=1e-6)


def test_loss_by_position_puts_the_context_where_it_belongs():
    mean, counts = loss_by_position(ByContext(inverse), np.zeros(100, int), 33)
    np.testing.assert_allclose(mean, [inverse(n) for n in range(1, 34)], rtol=1e-5)
    assert counts.tolist() == [3] * 33


# --- the same targets at every length -------------------------------------------------------------


@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.data())
def test_blocks_are_disjoint_within_their_documents_and_the_budget(sizes, data):
    documents = [np.zeros(n, int) for n in sizes]
    block = data.draw(st.integers(1, 20))
    context = data.draw(st.integers(1, 30))
    budget = data.draw(st.integers(block, 120))
    available = sum((n - 1) // block - (context + block - 2) // block for n in sizes)
    if not any((n - 1) // block > (context + block - 2) // block for n in sizes):
        with pytest.raises(ValueError, match=f"No document has {block} targets"):
            blocks(documents, block, budget, context)
        return
    chosen = blocks(documents, block, budget, context)
    assert chosen == blocks(documents, block, budget, context) == sorted(chosen)
    targets = [(d, t) for d, start, stop in chosen for t in range(start, stop)]
    assert len(set(targets)) == len(targets) == block * len(chosen) <= budget
    assert all(context <= start and stop <= sizes[d] for d, start, stop in chosen)
    assert len(chosen) >= min(budget // block, available)


def test_blocks_are_spread_over_the_documents():
    documents = [np.zeros(1 + 10 * 64, int)] * 20
    of = [segment.document for segment in blocks(documents, 64, 20 * 64)]
    assert of == list(range(20))
    of = [segment.document for segment in blocks(documents, 64, 40 * 64)]
    assert of == sorted([*range(20)] * 2)


@settings(max_examples=50)
@given(st.integers(1, 64), st.none() | st.integers(1, 64))
def test_every_length_scores_the_same_targets(length, stride):
    documents = [np.random.default_rng(i).integers(0, 5, size=400) for i in range(3)]
    segments = blocks(documents, 64, 4 * 64, context=64)
    stride = stride and min(stride, length)
    model = Bigram(5)
    expected = sum(model.losses(documents[d])[a - 1 : b - 1].sum() for d, a, b in segments)
    result = evaluate(model, documents, length, stride, segments)
    assert result.tokens == 256
    assert result.nll_sum == pytest.approx(expected, rel=1e-5)


@given(st.integers(1, 64), st.data())
def test_targets_of_a_block_use_the_text_before_it_when_sliding_and_only_then(length, data):
    stride = data.draw(st.integers(1, min(length, 24)))
    document = np.zeros(400, int)
    segments = blocks(document, 24, 72, context=64)
    context = context_of(ByContext(inverse), document, length, stride, segments)
    assert (context >= length - stride + 1).all() and (context <= length).all()
    if length <= 24:
        context = context_of(ByContext(inverse), document, length, None, segments)
        np.testing.assert_array_equal(context, list(np.arange(24) % length + 1) * 3)


# --- how the model is run -------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [None, 8])
def test_batches_are_bounded(stride):
    model = ByContext(inverse)
    evaluate(model, np.zeros(1000, int), 32, stride, tokens_per_batch=100)
    assert max(B * T for B, T in model.shapes) == 96
    model.shapes.clear()
    evaluate(model, np.zeros(1000, int), 320, stride, tokens_per_batch=100)
    assert max(B for B, _ in model.shapes) == 1  # a window is never cut


class Moody(nn.Module):
    """Parts in different modes, and noise while training."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 5)
        self.loud, self.quiet = nn.Dropout(0.5), nn.Dropout(0.5).eval()
        self.gradients = []

    def forward(self, tokens, positions=None, padding_mask=None, cache=None):
        self.gradients.append(torch.is_grad_enabled())
        return self.quiet(self.loud(self.table(tokens)))


def modes(model):
    return [module.training for module in model.modules()]


def test_the_model_is_evaluated_without_noise_and_left_as_it_was():
    model, document = Moody(), np.arange(50) % 5
    before = modes(model)
    assert perplexity(model, document, 8) == perplexity(model, document, 8)
    assert modes(model) == before and True in before and False in before
    assert not any(model.gradients)
    model(torch.zeros(1, 3, dtype=torch.long)).sum().backward()  # it can be trained on


def test_the_model_is_left_as_it_was_when_it_fails():
    model = Moody()
    before = modes(model)
    with pytest.raises(ValueError, match="go up to 7"):
        perplexity(model, np.arange(50) % 8, 8)
    assert modes(model) == before


@pytest.mark.parametrize("stride", [None, 5])
def test_a_decoder_evaluated_in_batches_is_the_decoder_evaluated_target_by_target(stride):
    torch.manual_seed(0)
    sizes = dict(vocabulary=11, d_model=16, n_heads=2, n_layers=2, max_length=12, d_ff=32)
    model = Decoder(Config(encoding="rope", **sizes))
    documents = [np.random.default_rng(i).integers(0, 11, size=n) for i, n in enumerate((50, 31))]
    total, count = 0.0, 0
    for document in documents:
        for target in range(1, len(document)):
            # Which inputs the definition gives this target, said anew and independently.
            if stride is None:
                start = (target - 1) // 12 * 12
            else:
                start = max(0, -(-(target - 12) // stride)) * stride
            x = torch.from_numpy(document[start:target])[None]
            log_p = model(x)[0, -1].double().log_softmax(-1)
            total, count = total - log_p[document[target]].item(), count + 1
    result = evaluate(model, documents, 12, stride)
    assert (result.tokens, result.nll_sum) == (count, pytest.approx(total, rel=1e-5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tokens_follow_the_model_to_its_device():
    model, document = Moody(), np.arange(50) % 5
    expected = perplexity(model, document, 8)
    assert perplexity(model.cuda(), document, 8) == pytest.approx(expected, rel=1e-5)


# --- what is taken, and what is refused -----------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [
        np.array([1, 2, 3, 4, 0], dtype=np.uint16),
        torch.tensor([1, 2, 3, 4, 0]),
        [1, 2, 3, 4, 0],
        [np.array([1, 2, 3, 4, 0])],
        [torch.tensor([1, 2, 3, 4, 0], dtype=torch.int32)],
        ([1, 2, 3, 4, 0], [3], []),
    ],
)
def test_arrays_tensors_and_lists_are_taken(tokens):
    model = Bigram(5)
    expected = math.exp(model.losses(np.array([1, 2, 3, 4, 0])).mean())
    assert perplexity(model, tokens, 2) == pytest.approx(expected, rel=1e-5)


def test_a_read_only_document_is_taken_without_a_warning(recwarn):
    document = np.arange(9, dtype=np.uint16) % 5
    document.setflags(write=False)
    perplexity(Bigram(5), document, 2)
    assert not recwarn.list


@pytest.mark.parametrize("nothing", [[], np.zeros(0, int), [3], [np.array([3])], [[], [1]]])
def test_no_target_is_an_error(nothing):
    with pytest.raises(ValueError, match="nothing to predict"):
        perplexity(Bigram(5), nothing, 4)


@pytest.mark.parametrize("length", [0, -3])
def test_a_length_below_one_is_an_error(length):
    with pytest.raises(ValueError, match="at least 1"):
        perplexity(Bigram(5), np.zeros(9, int), length)


@pytest.mark.parametrize("stride", [0, -1, 5])
def test_a_stride_outside_the_length_is_an_error(stride):
    with pytest.raises(ValueError, match=r"stride must lie in 1\.\.4"):
        perplexity(Bigram(5), np.zeros(9, int), 4, stride)


def test_a_length_beyond_the_text_is_an_error():
    documents = [np.zeros(9, int), np.zeros(5, int)]
    assert perplexity(Uniform(3), documents, 8) == pytest.approx(3, rel=1e-6)
    with pytest.raises(ValueError, match="length 9 is longer than the text.* 8 inputs"):
        perplexity(Uniform(3), documents, 9)


@pytest.mark.parametrize("model", [Bigram(5), Uniform(5), Moody()])
@pytest.mark.parametrize("place", [0, 3, 8])
def test_a_token_outside_the_vocabulary_is_an_error(model, place):
    document = np.zeros(9, int)
    document[place] = 5
    with pytest.raises(ValueError, match="5"):
        perplexity(model, document, 4)
    document[place] = -1
    with pytest.raises(ValueError, match="-1 is negative"):
        perplexity(model, document, 4)


@pytest.mark.parametrize("tokens", [np.zeros((1, 9), int), np.zeros(9), torch.zeros(2, 9).long()])
def test_what_is_no_row_of_integers_is_an_error(tokens):
    with pytest.raises(ValueError, match="a row of integers"):
        perplexity(Bigram(5), tokens, 4)


def test_windows_of_another_text_are_an_error():
    for segment in (Segment(0, 1, 10), Segment(1, 1, 5)):
        with pytest.raises(ValueError, match="past the text"):
            evaluate(Bigram(5), np.zeros(9, int), 4, segments=[segment])
    with pytest.raises(ValueError, match="nothing to predict"):
        evaluate(Bigram(5), np.zeros(9, int), 4, segments=[])


@pytest.mark.parametrize(("block", "budget"), [(0, 9), (10, 9)])
def test_a_block_that_does_not_fit_the_budget_is_an_error(block, budget):
    with pytest.raises(ValueError, match=f"fit into {budget}"):
        blocks(np.zeros(99, int), block, budget)


def test_a_result_cannot_be_changed():
    result = Evaluation(nll_sum=2 * math.log(3), tokens=2, windows=1)
    assert result.perplexity == pytest.approx(3)
    with pytest.raises(AttributeError):
        result.tokens = 3
