"""The decoder whose weights are set by hand: it counts at any length, whatever the words are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import counting
from lib.attention import attend
from lib.encodings import build
from lib.probes.heads import heads
from lib.transformer import Cache


@settings(max_examples=15, deadline=None)
@given(T=st.integers(2, 200), seed=st.integers(0, 2**31), M=st.sampled_from([10.0, 1e4, 1e8]))
def test_it_names_every_position_whatever_the_words_and_the_size(T, seed, M):
    answers = counting.decoder(T, M)(counting.sentence(T, seed))[0].argmax(-1)
    assert torch.equal(answers, torch.arange(T))


@settings(max_examples=10, deadline=None)
@given(T=st.integers(2, 200), seed=st.integers(0, 2**31))
def test_its_second_layer_attends_as_alibi(T, seed):
    weights = heads(counting.decoder(T), counting.sentence(T, seed))[1].weights(T)
    alibi = build("alibi", d_model=counting.D, n_heads=counting.H, max_length=T)
    equal, p = torch.zeros(1, counting.H, T, T, dtype=torch.float64), torch.arange(T)
    theirs = attend(equal, equal, torch.eye(T).double().expand_as(equal), alibi, p, p)
    torch.testing.assert_close(weights, theirs, atol=1e-9, rtol=0)


def test_it_counts_token_by_token_from_a_cache():
    T = 30
    model, cache = counting.decoder(T), Cache()
    answers = [
        model(x, cache=cache)[0, -1].argmax().item() for x in counting.sentence(T).split(1, 1)
    ]
    assert answers == list(range(T))


@pytest.mark.parametrize("M, bent", [(1e3, True), (1e8, False)])
def test_a_small_M_bends_the_slopes(M, bent):
    T = 256
    model, tokens = counting.decoder(T, M), counting.sentence(T)
    k = heads(model, tokens)[1].k[0, 0, :, 0]  # j + 1, if the norm turns the fraction over
    off = (k - torch.arange(1, T + 1)).abs().max()
    assert (off > 1) == bent and (bent or off < 1e-6)


def test_without_the_start_token_it_is_lost():
    T = 20
    words = counting.sentence(T)[:, 1:]
    answers = counting.decoder(T)(words)[0].argmax(-1)
    assert not torch.equal(answers, torch.arange(T - 1))
