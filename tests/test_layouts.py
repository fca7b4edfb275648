"""The converters undo each other, keep every score, and carry a model of transformers over."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import smollm2
from lib.encodings import build
from lib.layouts import convert, to_half_split, to_interleaved

sizes = {
    "n_heads": st.integers(1, 5),
    "pairs": st.integers(1, 8),
    "rest": st.sampled_from([(), (1,), (7,), (3, 2)]),
}


def some(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@given(**sizes)
@settings(max_examples=40)
def test_each_undoes_the_other(n_heads, pairs, rest):
    weight = some(n_heads * 2 * pairs, *rest)
    there, back = to_half_split(weight, n_heads), to_interleaved(weight, n_heads)
    assert torch.equal(to_interleaved(there, n_heads), weight)
    assert torch.equal(to_half_split(back, n_heads), weight)
    assert there.data_ptr() != weight.data_ptr()


@given(n_heads=sizes["n_heads"], pairs=sizes["pairs"])
@settings(max_examples=20)
def test_rows_go_where_the_pairs_are(n_heads, pairs):
    d = 2 * pairs
    rows = torch.arange(n_heads * d)
    half_split = to_half_split(rows, n_heads).view(n_heads, 2, pairs)
    for h in range(n_heads):
        for k in range(pairs):  # the pair (2k, 2k+1) now lies at (k, k + d/2)
            assert half_split[h, :, k].tolist() == [h * d + 2 * k, h * d + 2 * k + 1]


def scores(layout, x, w_q, w_k, b_q, b_k, H, H_kv, d, g_q=None, g_k=None, **part):
    """q·k of every query and key, (B, H, T, T), with rotation in this layout.

    g_q, g_k: gains (d,) or (H·d,) of an RMSNorm over a head, or over all heads of a token.
    """
    rope = build("rope", d_model=H * d, n_heads=H, max_length=64, layout=layout, **part)

    def heads(weight, bias, gain, n):
        y = x @ weight.mT + bias
        if gain is not None and len(gain) == n * d:
            y = torch.nn.functional.rms_norm(y, (n * d,), gain)
        y = y.unflatten(-1, (n, d))
        if gain is not None and len(gain) == d:
            y = torch.nn.functional.rms_norm(y, (d,), gain)
        return y.transpose(1, 2)

    q, k = heads(w_q, b_q, g_q, H), heads(w_k, b_k, g_k, H_kv)
    positions = torch.arange(x.shape[1])
    q, k = rope.rotate(q, k, positions, positions)
    return q @ k.repeat_interleave(H // H_kv, dim=1).mT


@given(H_kv=st.integers(1, 3), group=st.integers(1, 3), pairs=st.integers(2, 5))
@settings(max_examples=20)
def test_scores_stay_the_same_with_grouped_keys_too(H_kv, group, pairs):
    H, d, width = H_kv * group, 2 * pairs, 12
    x = some(2, 6, width, seed=1)
    w_q, w_k, b_q, b_k = some(H * d, width), some(H_kv * d, width), some(H * d), some(H_kv * d)
    sizes = H, H_kv, d
    inter = scores("interleaved", x, w_q, w_k, b_q, b_k, *sizes)
    moved = [to_half_split(w, n) for w, n in ((w_q, H), (w_k, H_kv), (b_q, H), (b_k, H_kv))]
    halves = scores("half_split", x, *moved, *sizes)
    assert (inter - halves).abs().max() <= 1e-11 * (1 + inter.abs().max())
    # Without the conversion it is another model.
    assert (scores("half_split", x, w_q, w_k, b_q, b_k, *sizes) - inter).abs().max() > 1e-3


@given(
    H_kv=st.integers(1, 2),
    group=st.integers(1, 3),
    pairs=st.integers(2, 4),
    rest=st.sampled_from([0, 2, 6]),
    last=st.booleans(),
    to=st.sampled_from(["half_split", "interleaved"]),
    gains=st.sampled_from([None, "a head", "all heads"]),
)
@settings(max_examples=40, deadline=None)
def test_whole_layers_keep_their_scores(H_kv, group, pairs, rest, last, to, gains):
    """Weights, biases and gains by their names; a part of a head, first or last; fewer keys."""
    H, r, d, width = H_kv * group, 2 * pairs, 2 * pairs + rest, 12
    part = {"rotated": r, "rotated_at": "last" if last and rest else "first"}
    x, n = some(2, 6, width, seed=1), {"q": H, "k": H_kv}
    layer = {f"layers.0.attn.{c}_proj.weight": some(n[c] * d, width, seed=2) for c in "qk"}
    layer |= {f"layers.0.attn.{c}_proj.bias": some(n[c] * d, seed=3) for c in "qk"}
    layer |= {"layers.0.attn.v_proj.weight": some(H_kv * d, width), "norm.weight": some(d)}
    if gains:
        wide = {c: d if gains == "a head" else n[c] * d for c in "qk"}
        layer |= {f"layers.0.attn.{c}_norm.weight": 1 + some(wide[c], seed=4) ** 2 for c in "qk"}
    before = {name: t.clone() for name, t in layer.items()}
    moved = convert(layer, to, H, H_kv, **part)
    assert all(torch.equal(layer[name], before[name]) for name in before)
    same = [name for name in layer if torch.equal(moved[name], layer[name])]
    assert {"layers.0.attn.v_proj.weight", "norm.weight"} <= set(same)
    assert moved.keys() == layer.keys()

    def found(tensors, layout):
        names = [f"{c}_proj.{what}" for what in ("weight", "bias") for c in "qk"]
        g = [tensors.get(f"layers.0.attn.{c}_norm.weight") for c in "qk"]
        weights = (tensors[f"layers.0.attn.{name}"] for name in names)
        return scores(layout, x, *weights, H, H_kv, d, *g, **part)

    before, after = ("interleaved", "half_split")[:: 1 if to == "half_split" else -1]
    right = found(layer, before)
    assert (found(moved, after) - right).abs().max() <= 1e-11 * (1 + right.abs().max())
    back = convert(moved, before, H, H_kv, **part)
    assert all(torch.equal(back[name], layer[name]) for name in layer)


@pytest.mark.parametrize(
    "sentence, options",
    [
        ("to must be one of", {"to": "half"}),
        ("None of the tensors", {"tensors": {"qkv_proj.weight": torch.zeros(8, 2)}}),
        ("rotated = 6 at 'first': a head of 4", {"rotated": 6}),
        ("rotated = 2 at 'middle'", {"rotated": 2, "rotated_at": "middle"}),
        ("even width", {"n_heads": 3}),
    ],
)
def test_a_conversion_that_makes_no_sense_is_refused(sentence, options):
    tensors = {"q_proj.weight": torch.zeros(8, 2)}
    with pytest.raises(ValueError, match=sentence):
        convert(**{"tensors": tensors, "to": "half_split", "n_heads": 2, **options})


def test_a_llama_of_transformers_is_ours_in_interleaved_pairs():
    """Its logits, with grouped keys, from its own weights, and attention written out here."""
    transformers = pytest.importorskip("transformers")
    H, H_kv, d, T = 4, 2, 8, 20
    config = transformers.LlamaConfig(
        hidden_size=H * d, intermediate_size=16, num_hidden_layers=1, vocab_size=11,
        num_attention_heads=H, num_key_value_heads=H_kv, attention_bias=True,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.randint(11, (2, T))
    seen = {}
    attention = model.model.layers[0].self_attn
    attention.register_forward_hook(
        lambda _, args, kwargs, out: seen.update(x=kwargs["hidden_states"], output=out[0]),
        with_kwargs=True,
    )
    with torch.no_grad():
        model(tokens)
        w_q, w_k = attention.q_proj, attention.k_proj
        moved = [
            to_interleaved(w, n)
            for w, n in ((w_q.weight, H), (w_k.weight, H_kv), (w_q.bias, H), (w_k.bias, H_kv))
        ]
        a = scores("interleaved", seen["x"], *moved, H, H_kv, d) / d**0.5
        ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = a.masked_fill(ahead, -torch.inf).softmax(-1)
        v = attention.v_proj(seen["x"]).unflatten(-1, (H_kv, d)).transpose(1, 2)
        output = weights @ v.repeat_interleave(H // H_kv, dim=1)
        output = attention.o_proj(output.transpose(1, 2).flatten(-2))
    # Their phases and softmax are float32.
    size = seen["output"].abs().max()
    assert (output - seen["output"]).abs().max() <= 64 * T * 2.0**-24 * size


@pytest.mark.parametrize("shape, n_heads", [((6, 3), 2), ((8, 3), 0), ((0, 3), 2), ((5,), 1)])
def test_what_does_not_divide_is_refused(shape, n_heads):
    for permute in (to_half_split, to_interleaved):
        with pytest.raises(ValueError, match="even width"):
            permute(torch.zeros(shape), n_heads)


def test_a_real_layer_means_the_same_after_conversion():
    """SmolLM2-135M's first layer, 9 heads of queries over 3 of keys, on its own embeddings."""
    try:
        file = smollm2.file()
    except ValueError as error:
        pytest.skip(str(error))
    import gguf

    tensors = {t.name: t for t in gguf.GGUFReader(file).tensors}

    def read(name):
        t = tensors[name]
        return torch.tensor(gguf.dequantize(t.data, t.tensor_type))

    W_q, W_k = read("blk.0.attn_q.weight"), read("blk.0.attn_k.weight")  # (576, 576), (192, 576)
    x = torch.nn.functional.rms_norm(read("token_embd.weight")[1000:1040], (576,))  # (T, D)
    x = (x * read("blk.0.attn_norm.weight"))[None]
    T = torch.arange(x.shape[1])

    def scores(W_q, W_k, layout):
        rope = build("rope", d_model=576, n_heads=9, max_length=8192, base=100_000.0, layout=layout)
        q, k = ((x @ W.T).unflatten(-1, (-1, 64)).transpose(1, 2) for W in (W_q, W_k))
        q, k = rope.rotate(q, k, T, T)
        return q @ k.repeat_interleave(3, dim=1).mT  # (1, 9, T, T)

    as_stored = scores(W_q, W_k, "interleaved")
    layer = {"q_proj.weight": W_q, "k_proj.weight": W_k}
    converted = scores(*convert(layer, "half_split", 9, 3).values(), "half_split")
    mixed_up = scores(W_q, W_k, "half_split")
    scale = as_stored.abs().max()
    assert (as_stored - converted).abs().max() < 1e-5 * scale
    assert (as_stored - mixed_up).abs().max() > 0.05 * scale
    assert torch.equal(to_interleaved(to_half_split(W_q, 9), 9), W_q)
