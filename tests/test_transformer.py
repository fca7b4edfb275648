"""The decoder under every encoding: decoding with a cache is the full pass, padding is nothing, the
future is unseen, and two decoders of one seed differ in their encodings alone."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from lib.encodings import ENCODINGS
from lib.transformer import Cache, Config, Decoder

TEXT = [name for name, cls in ENCODINGS.items() if "text" in cls.domain]
# Each encoding, and those whose options change what the decoder has to do.
KINDS = {name: (name, {}) for name in TEXT}
KINDS["learned, interpolated"] = ("learned", {"beyond": "interpolate"})
V, L = 17, 32


def make(kind, n_kv_heads=2, dtype=torch.float64, **sizes):
    """A small decoder whose encoding's parameters are drawn, since T5's start at zero."""
    name, options = KINDS[kind]
    sizes = {"d_model": 24, "n_heads": 4, "n_layers": 2, "max_length": L, "d_ff": 16, **sizes}
    torch.manual_seed(0)
    model = Decoder(Config(name, V, n_kv_heads=n_kv_heads, options=options, **sizes))
    for parameter in model.encodings.parameters():
        torch.nn.init.normal_(parameter)
    return model.to(dtype).eval()


MODELS = {kind: make(kind) for kind in KINDS}  # the tests below only run them


def draw_tokens(batch, n, seed=0):
    return torch.randint(V, (batch, n), generator=torch.Generator().manual_seed(seed))


def close(x, y):
    torch.testing.assert_close(x, y, rtol=0, atol=1e-10)


# --- cached decoding ----------------------------------------------------------------------------


@st.composite
def generations(draw):
    """A batch with padding on the left and positions of its own or none, cut into chunks."""
    batch, n = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=5))) if n > 1 else []
    chunks = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    padding = positions = None
    if draw(st.booleans()):
        first = torch.tensor([draw(st.integers(0, n - 1)) for _ in range(batch)])
        padding = torch.arange(n) >= first[:, None]
    kind = draw(st.sampled_from(["none", "shared", "rows", "fractions"]))
    if kind != "none":
        positions = torch.arange(n) + draw(st.integers(0, L - n))
        if kind == "rows":
            positions = torch.stack([positions - min(b, positions[0]) for b in range(batch)])
        if kind == "fractions":
            positions = positions * 0.5
    return draw_tokens(batch, n, draw(st.integers(0, 99))), chunks, padding, positions


def decode(model, cache, tokens, chunks, padding=None, positions=None):
    """The logits of each chunk, from a cache, side by side."""
    pieces = []
    for chunk in chunks:
        at = None if positions is None else positions[..., chunk]
        mask = None if padding is None else padding[:, chunk]
        pieces.append(model(tokens[:, chunk], at, mask, cache))
    return torch.cat(pieces, dim=1)


@pytest.mark.parametrize("kind", KINDS)
@given(generation=generations())
@settings(max_examples=25)
@torch.no_grad()
def test_cached_decoding_is_the_full_pass(kind, generation):
    tokens, chunks, padding, positions = generation
    full = MODELS[kind](tokens, positions, padding)
    cached = decode(MODELS[kind], Cache(), tokens, chunks, padding, positions)
    real = torch.ones_like(tokens).bool() if padding is None else padding
    close(cached[real], full[real])
    assert cached.isfinite().all() and full.isfinite().all()


@given(
    chunks=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    more=st.integers(0, 20),
    masked=st.booleans(),
)
@settings(max_examples=15)
@torch.no_grad()
def test_an_interpolated_generation_is_the_full_pass_at_its_length(chunks, more, masked):
    model, n = MODELS["learned, interpolated"], sum(chunks)
    tokens, length = draw_tokens(2, n), n + more
    padding = torch.ones_like(tokens).bool() if masked else None
    ends = torch.tensor(chunks).cumsum(0).tolist()
    slices = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
    full = model(tokens, None, padding, Cache(length))
    close(decode(model, Cache(length), tokens, slices, padding), full)
    if more == 0:  # without a cache, the length is that of the sequence
        close(full, model(tokens, None, padding))
    elif length > L:
        assert (full - model(tokens, None, padding)).abs().max() > 1e-6 or n == 1


@torch.no_grad()
def test_a_cache_that_would_cross_its_length_refuses():
    model = MODELS["learned, interpolated"]
    tokens = draw_tokens(1, L + 8)
    for cache, length in ((Cache(), L), (Cache(L + 6), L + 6), (Cache(5), 5)):
        model(tokens[:, :5], cache=cache)
        model(tokens[:, 5:length], cache=cache) if length > 5 else None
        refuses(
            lambda cache=cache, length=length: model(tokens[:, length : length + 1], cache=cache),
            f"{length} positions",
            "Cache(length=…)",
        )
    refuses(lambda: model(tokens[:, :2], torch.tensor([0, 50]), cache=Cache(50)), "50 positions")


@pytest.mark.parametrize("kind", ["learned", "learned, interpolated", "rope", "t5"])
@torch.no_grad()
def test_a_refused_call_leaves_the_cache_as_it_was(kind):
    model, tokens, cache = MODELS[kind], draw_tokens(2, 10), Cache()
    full = model(tokens)
    close(model(tokens[:, :4], cache=cache), full[:, :4])
    calls = [
        lambda: model(tokens[:, 4:6] + V, cache=cache),
        lambda: model(tokens[:, 4:6], torch.arange(3), cache=cache),
        lambda: model(tokens[:, 4:6], padding_mask=torch.ones(2, 3), cache=cache),
        lambda: model(tokens[:, 4:4], cache=cache),
        lambda: model(draw_tokens(3, 2), cache=cache),
    ]
    if "learned" in kind:
        calls += [lambda: model(tokens[:, 4:6], torch.tensor([L - 1, L]), cache=cache)]
    for call in calls:
        refuses(call)
    assert len(cache) == 4
    close(model(tokens[:, 4:], cache=cache), full[:, 4:])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_positions_go_on_from_the_last_in_the_cache(kind):
    model, tokens = MODELS[kind], draw_tokens(2, 9)
    gaps = torch.tensor([2, 3, 7, 11, 12, 13, 14, 15, 16])
    for positions in (gaps, torch.stack([gaps, gaps + 3]), gaps.double()):
        full, cache = model(tokens, positions), Cache()
        for chunk, given_positions in (
            (slice(0, 4), positions[..., :4]),
            (slice(4, 7), None),
            (slice(7, 9), None),
        ):
            close(model(tokens[:, chunk], given_positions, cache=cache), full[:, chunk])
        assert torch.equal(cache.positions, positions)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_row_may_begin_in_a_later_chunk_and_rest_in_another(kind):
    # Row 0 has real tokens in every chunk; row 1 none in the first, and one padded in between.
    padding = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 1, 1]])
    model, tokens, cache = MODELS[kind], draw_tokens(2, 7), Cache()
    chunks = [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 7)]
    logits = decode(model, cache, tokens, chunks, padding)
    close(logits[0], model(tokens[:1])[0])
    close(logits[1, padding[1].bool()], model(tokens[1:, padding[1].bool()])[0])
    # Padding may also come first in a later chunk, after chunks that had none.
    cache, whole = Cache(), torch.cat([torch.ones(2, 2), padding[:, 4:]], 1).bool()
    joined = torch.cat([tokens[:, :2], tokens[:, 4:]], 1)
    logits = decode(model, cache, joined[:, :2], [slice(0, 2)])
    logits = torch.cat([logits, model(joined[:, 2:], padding_mask=whole[:, 2:], cache=cache)], 1)
    for b in range(2):
        close(logits[b, whole[b]], model(joined[b : b + 1, whole[b]])[0])


def test_the_length_of_a_cache_is_a_whole_number():
    for bad in (0, -1, 2.5, True, "64"):
        refuses(lambda bad=bad: Cache(bad), "length", repr(bad))


# --- padding, order, state ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_padded_row_gives_what_it_gives_alone(kind):
    model, lengths, n = MODELS[kind], (1, 6, 9, 40), 40
    if kind == "learned":
        lengths, n = (1, 6, 9, L), L
    padding = torch.arange(n) >= n - torch.tensor(lengths)[:, None]
    tokens = draw_tokens(len(lengths), n)
    logits = model(tokens, padding_mask=padding)
    other = torch.where(padding, tokens, (tokens + 1) % V)  # what stands there does not matter
    same = model(other, padding_mask=padding.int())  # nor that the mask is one of 0 and 1
    assert torch.equal(logits[padding], same[padding])
    for b, length in enumerate(lengths):
        close(logits[b, n - length :], model(tokens[b : b + 1, n - length :])[0])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_later_token_changes_no_earlier_logit(kind, padded):
    model, tokens = MODELS[kind], draw_tokens(2, 10)
    padding = torch.arange(10) >= torch.tensor([[0], [2]]) if padded else None
    logits = model(tokens, padding_mask=padding)
    for t in (3, 6, 9):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 5) % V
        after = model(changed, padding_mask=padding)
        assert torch.equal(after[:, :t], logits[:, :t])
        assert ((after[:, t:] - logits[:, t:]).abs().amax((0, 2)) > 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_order_of_earlier_tokens_counts(kind):
    # Even without an encoding, by the causal mask, from the second layer on.
    model, tokens = MODELS[kind], torch.tensor([[1, 2, 3, 4, 5]])
    swapped = tokens[:, [1, 0, 2, 3, 4]]
    assert (model(tokens)[:, -1] - model(swapped)[:, -1]).abs().max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_given_positions_take_the_same_path_as_counted_ones(kind):
    model, tokens = MODELS[kind], draw_tokens(2, 12)
    logits = model(tokens)
    for positions in (torch.arange(12), torch.arange(12.0), torch.arange(12).expand(2, 12)):
        close(model(tokens, positions), logits)
    # And those that only the caller knows, the same path whether a mask says that all are real.
    for positions in (torch.arange(12) * 0.5, torch.arange(12) + torch.arange(12) // 4):
        masked = model(tokens, positions, torch.ones_like(tokens))
        close(model(tokens, positions), masked)
        assert (masked - logits).abs().max() > 1e-3 or kind == "nope"
    relative = kind not in ("sinusoidal", "learned", "learned, interpolated")
    shifted = (model(tokens, torch.arange(12) + 9) - logits).abs().max()
    assert shifted < 1e-9 if relative else shifted > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_what_comes_out_does_not_depend_on_earlier_calls(kind):
    used, fresh = make(kind), make(kind)
    for n, dtype in ((L, torch.float64), (9, torch.bfloat16)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float64):
            used(draw_tokens(1, n), cache=Cache(), padding_mask=torch.ones(1, n))
    assert used.state_dict().keys() == {key for key, _ in used.named_parameters()}
    assert torch.equal(used(draw_tokens(2, 7)), fresh(draw_tokens(2, 7)))


# --- weights ------------------------------------------------------------------------------------


def test_two_decoders_of_one_seed_differ_in_their_encodings_alone():
    states = []
    for name, options in KINDS.values():
        torch.manual_seed(3)
        state = Decoder(Config(name, V, 24, 4, 3, L, 16, options=options)).state_dict()
        states.append({k: w for k, w in state.items() if not k.startswith("encodings.")})
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(w, states[0][key]) for key, w in state.items())


def test_one_encoding_serves_all_layers_or_each_has_its_own():
    for kind, model in MODELS.items():
        shared = ENCODINGS[KINDS[kind][0]].shared_across_layers
        assert len(model.encodings) == (1 if shared else 2)
        assert (model.encoding(0) is model.encoding(1)) == shared
    first, second = (MODELS["shaw"].encoding(layer) for layer in (0, 1))
    assert not torch.equal(first.a_k, second.a_k)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind):
    model = make(kind, n_kv_heads=1)
    tokens = draw_tokens(2, L)
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.count_nonzero() > 0, key


def test_weights_start_with_the_variances_that_are_said():
    torch.manual_seed(0)
    model = Decoder(Config("nope", 500, 128, 4, 3, L, 256))
    assert model.embedding.weight.std().item() == pytest.approx(128**-0.5, rel=0.03)
    for block in model.blocks:
        for linear in (block.w_qkv, block.w_gate_up):
            assert linear.weight.std().item() == pytest.approx(linear.in_features**-0.5, rel=0.03)
        for linear in (block.w_o, block.w_down):
            expected = (2 * 3 * linear.in_features) ** -0.5
            assert linear.weight.std().item() == pytest.approx(expected, rel=0.03)
    logits = model(torch.randint(500, (4, 16)))
    assert 0.5 < logits.std() < 2  # the first guess is neither flat nor sure


def test_groups_of_queries_share_a_head_of_keys():
    # With the rows of W_k and W_v repeated for each group, a plain decoder does the same.
    grouped, plain = make("rope", n_kv_heads=2), make("rope", n_kv_heads=None)
    state = grouped.state_dict()
    for key, w in state.items():
        if key.endswith("w_qkv.weight"):
            q, k, v = w.split([24, 12, 12])
            k, v = (x.unflatten(0, (2, 6)).repeat_interleave(2, 0).flatten(0, 1) for x in (k, v))
            state[key] = torch.cat([q, k, v])
    plain.load_state_dict(state)
    tokens = draw_tokens(2, 9)
    close(grouped(tokens), plain(tokens))


# --- half precision -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_half_precision_stays_near(kind):
    tokens = draw_tokens(2, 12)
    model = make(kind, dtype=torch.float32)
    expected = model(tokens)
    padding = torch.ones_like(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = [model(tokens), model(tokens, padding_mask=padding)]
    model.bfloat16()
    results += [model(tokens), model(tokens, padding_mask=padding)]
    results += [decode(model, Cache(), tokens, [slice(0, 5), slice(5, 12)])]
    for logits in results:
        assert logits.dtype == torch.bfloat16
        assert (logits.float() - expected).abs().max() < 0.05 * expected.abs().max()


# --- the bias that all layers share -------------------------------------------------------------


@pytest.mark.parametrize("name", ["t5", "alibi"])
@torch.no_grad()
def test_the_layers_share_one_bias_wherever_positions_come_from(name, monkeypatch):
    model, tokens = MODELS[name], draw_tokens(2, 9)
    asked = []
    ask = type(model.encodings[0]).bias_by_distance
    monkeypatch.setattr(
        type(model.encodings[0]), "bias_by_distance", lambda *a: asked.append(1) or ask(*a)
    )
    padding = torch.arange(9) >= torch.tensor([[0], [4]])
    for more in ({}, {"positions": torch.arange(9) * 0.5}, {"padding_mask": padding}):
        asked.clear()
        model(tokens, **more)
        assert len(model.blocks) > len(asked) == 1


@pytest.mark.parametrize("kind", KINDS)
@given(generation=generations(), block=st.integers(2, 5))
@settings(max_examples=10)
def test_a_long_sequence_in_blocks_is_the_whole_with_its_gradients(kind, generation, block):
    tokens, _, padding, positions = generation
    model = MODELS[kind]
    real = torch.ones_like(tokens).bool() if padding is None else padding

    def outcome():
        logits = model(tokens, positions, padding)[real]
        return [logits, *torch.autograd.grad(logits.square().sum(), model.parameters())]

    expected = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.attention.WHOLE", 1)
        patch.setattr("lib.attention.LEAST", block)
        patch.setattr("lib.attention.BLOCK", block)
        for x, y in zip(outcome(), expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


# --- what is refused ----------------------------------------------------------------------------


def test_tokens_have_two_axes_and_lie_in_the_vocabulary():
    model = MODELS["nope"]
    for bad in (torch.tensor([1, 2]), torch.ones(1, 2, 3).long(), torch.ones(2, 0).long()):
        refuses(lambda bad=bad: model(bad), "(B, T)", str(tuple(bad.shape)))
    for bad in (torch.tensor([[0, V]]), torch.tensor([[-1, 3]])):
        refuses(lambda bad=bad: model(bad), f"0 … {V - 1}", f"{bad.min()} to {bad.max()}")
    for bad in (torch.ones(1, 2), torch.ones(1, 2).bool(), torch.ones(1, 2).to(torch.uint16)):
        refuses(lambda bad=bad: model(bad), ".long()", str(bad.dtype))
    close(model(torch.tensor([[0, V - 1]]).int()), model(torch.tensor([[0, V - 1]])))


def test_shapes_agree():
    model, tokens = MODELS["nope"], draw_tokens(2, 3)
    for shape in ((2,), (3, 2), (1, 3), (3, 2, 3), (2, 3, 2)):
        refuses(lambda shape=shape: model(tokens, torch.zeros(shape)), "(3,) or (2, 3)", str(shape))
    for shape in ((3,), (2, 4), (1, 3)):
        refuses(lambda shape=shape: model(tokens, padding_mask=torch.ones(shape)), "(2, 3)")
    cache = Cache()
    model(tokens, cache=cache)
    refuses(lambda: model(draw_tokens(1, 3), cache=cache), "2 rows", "1")


def test_a_learned_table_refuses_what_lies_past_it():
    refuses(lambda: MODELS["learned"](draw_tokens(1, L + 1)), f"{L} rows")


GOOD = {
    "encoding": "rope",
    "vocabulary": V,
    "d_model": 24,
    "n_heads": 4,
    "n_layers": 2,
    "max_length": L,
    "d_ff": 16,
}


@pytest.mark.parametrize("size", [*list(GOOD)[1:], "n_kv_heads"])
@pytest.mark.parametrize("bad", [0, -1, True, 4.0, "4"])
def test_sizes_are_whole_numbers(size, bad):
    refuses(lambda: Config(**{**GOOD, size: bad}), size, repr(bad))


def test_heads_divide():
    refuses(lambda: Config(**{**GOOD, "n_heads": 5}), "n_heads = 5", "d_model = 24")
    refuses(lambda: Config(**GOOD, n_kv_heads=3), "n_kv_heads = 3", "n_heads = 4")


def test_an_encoding_and_its_options_are_known():
    refuses(lambda: Decoder(Config(**{**GOOD, "encoding": "rotary"})), "rotary", "rope")
    refuses(lambda: Decoder(Config(**GOOD, options={"theta": 1.0})), "theta", "base")


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config(**GOOD).d_model = 48
