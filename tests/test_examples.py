"""The five examples: each conforms, and is what its paper's formula says, or another's code."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import examples, own
from lib.attention import causal_mask
from lib.conformance import check, registered
from lib.conformance.subjects import randomised, seeded
from lib.encodings import build
from lib.encodings.alibi import slopes

few = settings(max_examples=10)


@pytest.fixture(autouse=True)
def registered_for_these_tests(encodings_as_they_were):
    """The examples are known here; elsewhere ENCODINGS is what it was."""
    for name in examples.NAMES:
        own.load(examples.file(name))


def some(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def make(name, d=8, n_heads=3, max_length=64, **options):
    encoding = build(name, d_model=d * n_heads, n_heads=n_heads, max_length=max_length, **options)
    return randomised(encoding.double())


def bias(encoding, T, offset=0, q=None, k=None, mask=None):
    H, d = encoding.n_heads, encoding.d
    q, k = some(1, H, T, d) if q is None else q, some(1, H, T, d) if k is None else k
    positions = torch.arange(T) + offset
    mask = causal_mask(T, T) if mask is None else mask
    return encoding.bias(q, k, positions, positions, mask).detach().numpy()


# ---- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", examples.NAMES)
def test_every_example_conforms(name):
    results = check(registered(name))
    assert not [str(r) for r in results if r.verdict == "failed"]
    # A trait excuses from what the mathematics forbids, and from nothing else.
    passed = {r.property for r in results if r.verdict == "passed"}
    excused = {"scores_depend_on_differences_alone"} - passed
    assert excused == ({"scores_depend_on_differences_alone"} if name == "fire" else set())
    turns = name in ("xpos", "prope")
    assert ("turning_keeps_lengths" in passed) == (name == "prope")
    assert ("channels_turn_in_the_declared_pairs" in passed) == turns


def test_what_the_traits_excuse_is_so():
    """FIRE's scores do change with the offset, and what xPos turns does change its length."""
    fire = make("fire")
    assert not np.allclose(bias(fire, 5, 0), bias(fire, 5, 60))
    x, at = some(1, 3, 1, 8), torch.tensor([60])
    q, k = make("xpos").rotate(x, x, at, at)
    assert (q.norm() < 0.999 * x.norm()) and (k.norm() > 1.001 * x.norm())


def test_importing_the_package_registers_nothing():
    with pytest.raises(ValueError, match="choose one of kerple, fire, xpos, prope, cope"):
        examples.file("rotary")
    assert all(examples.file(name).exists() for name in examples.NAMES)


@pytest.mark.parametrize(
    "name, options",
    [("kerple", {"kernel": "exp"}), ("prope", {"p": 1.5}), ("cope", {"p_max": 0}),
     ("fire", {"c": -1.0}), ("xpos", {"gamma": 0.0})],
)  # fmt: skip
def test_a_value_that_has_no_meaning_is_refused(name, options):
    (option,) = options
    with pytest.raises(ValueError, match=option):
        make(name, **options)


# ---- KERPLE --------------------------------------------------------------------------------------


@few
@given(st.integers(1, 6), st.integers(0, 5000))
def test_kerple_is_its_formula(T, offset):
    for kernel in ("log", "power"):
        kerple = make("kerple", kernel=kernel)
        rho = [p.detach().numpy() for p in (kerple.rho_1, kerple.rho_2)]
        found = bias(kerple, T, offset)
        for h in range(3):
            r_1 = np.log(1 + np.exp(rho[0][h]))
            for i in range(T):
                for j in range(i + 1):
                    if kernel == "log":
                        right = -r_1 * np.log(1 + np.log(1 + np.exp(rho[1][h])) * (i - j))
                    else:
                        right = -r_1 * (i - j) ** (2 / (1 + np.exp(-rho[1][h])))
                    np.testing.assert_allclose(found[0, h, i, j], right, atol=1e-12)


def test_kerple_of_power_one_is_alibi():
    kerple, alibi = make("kerple", n_heads=6, kernel="power"), make("alibi", n_heads=6)
    with torch.no_grad():
        kerple.rho_1.copy_(torch.log(torch.expm1(slopes(6))))
        kerple.rho_2.zero_()
    np.testing.assert_allclose(bias(kerple, 40), bias(alibi, 40), atol=1e-12)


def test_kerple_begins_within_the_authors_range():
    with seeded(0):
        kerple = build("kerple", d_model=400, n_heads=400, max_length=8)
    r_1, r_2 = (torch.nn.functional.softplus(p) for p in (kerple.rho_1, kerple.rho_2))
    assert 0 < r_1.min() < 0.2 and 1.8 < r_1.max() < 2
    assert 0 < r_2.min() < 0.1 and 0.9 < r_2.max() < 1


# ---- FIRE ----------------------------------------------------------------------------------------


@few
@given(st.integers(1, 6), st.integers(0, 200))
def test_fire_is_its_formula(T, offset):
    fire = make("fire")
    c, scale = fire.c.item(), fire.scale.item()
    w_1, b_1, w_2, b_2 = (p.detach().numpy() for p in fire.perceptron())
    found = bias(fire, T, offset)
    for i in range(T):
        for j in range(i + 1):
            furthest = max(abs(scale) * 16, i + offset)
            x = math.log(abs(c * (i - j)) + 1) / (math.log(abs(c * furthest) + 1) + 1e-6)
            assert 0 <= x <= 1
            right = w_2 @ np.maximum(w_1 * x + b_1, 0) + b_2
            np.testing.assert_allclose(found[0, :, i, j], right, atol=1e-10)


def test_fire_is_relative_before_its_threshold():
    fire = make("fire", max_length=1024)
    assert fire.scale.abs() * fire.L_0 > 60
    np.testing.assert_allclose(bias(fire, 5, 0), bias(fire, 5, 50), atol=1e-12)


# ---- xPos ----------------------------------------------------------------------------------------


@few
@given(st.integers(0, 3000), st.integers(0, 500))
def test_xpos_is_its_formula(n, delta):
    m = n + delta
    x, y = some(2, 8)
    q, k = (t.reshape(1, 1, 1, 8) for t in (x, y))
    q, k = make("xpos", n_heads=1).rotate(q, k, torch.tensor([m]), torch.tensor([n]))
    x, y = (t.numpy()[0::2] + 1j * t.numpy()[1::2] for t in (x, y))
    pair = np.arange(4)
    zeta = (pair / 4 + 0.4) / 1.4
    theta = 10000.0 ** (-pair / 4)
    right = (x * y.conj() * np.exp(1j * delta * theta) * zeta ** (delta / 512)).sum().real
    assert (q * k).sum().item() == pytest.approx(right, abs=1e-9)


def test_xpos_agrees_with_x_transformers():
    m = pytest.importorskip("x_transformers.x_transformers")
    positions = torch.arange(40)
    q, k = some(2, 3, 40, 8)
    found_q, found_k = make("xpos").rotate(q[None], k[None], positions, positions)
    angles, scale = m.RotaryEmbedding(8, use_xpos=True)(positions)
    theirs_q = m.apply_rotary_pos_emb(q[None].float(), angles, scale)
    theirs_k = m.apply_rotary_pos_emb(k[None].float(), angles, scale**-1)
    # They count from another middle, which the scores do not see.
    found, right = found_q @ found_k.mT, theirs_q @ theirs_k.mT
    np.testing.assert_allclose(found.tril(), right.tril(), atol=1e-4)


# ---- p-RoPE --------------------------------------------------------------------------------------


@few
@given(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.sampled_from([8, 12, 64]))
def test_prope_has_the_frequencies_of_transformers(p, d):
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    if "proportional" not in rope_utils.ROPE_INIT_FUNCTIONS:
        pytest.skip("this release has no proportional RoPE")
    from transformers import LlamaConfig

    rope = {"rope_type": "proportional", "rope_theta": 5e5, "partial_rotary_factor": p}
    config = LlamaConfig(hidden_size=d, num_attention_heads=1, head_dim=d, rope_parameters=rope)
    theirs, _ = rope_utils.ROPE_INIT_FUNCTIONS["proportional"](config)
    ours = make("prope", d=d, n_heads=1, p=p, base=5e5).frequencies()
    np.testing.assert_allclose(ours, theirs.double(), rtol=2e-6)


def test_prope_lies_between_nope_and_rope():
    x, at = some(1, 3, 20, 8), torch.arange(20)
    all_of_it, _ = make("prope", p=1.0).rotate(x, x, at, at)
    none_of_it, _ = make("prope", p=0.0).rotate(x, x, at, at)
    rope, _ = make("rope").rotate(x, x, at, at)
    assert torch.equal(all_of_it, rope) and torch.equal(none_of_it, x)
    some_of_it, _ = make("prope", p=0.5).rotate(x, x, at, at)
    assert torch.allclose(some_of_it[..., :4], rope[..., :4], atol=1e-12, rtol=0)
    assert torch.equal(some_of_it[..., 4:], x[..., 4:])


# ---- CoPE ----------------------------------------------------------------------------------------


def test_cope_is_its_formula():
    cope, T = make("cope", p_max=4), 9
    q, k = some(2, 1, 3, T, 8)
    e, found = cope.e.detach().numpy(), bias(cope, T, q=q, k=k)
    q, k = q[0].numpy(), k[0].numpy()
    for h in range(3):
        for i in range(T):
            g = 1 / (1 + np.exp(-(k[h, : i + 1] @ q[h, i]) / math.sqrt(8)))
            for j in range(i + 1):
                p = min(g[j:].sum(), 4.0)
                low, high = math.floor(p), math.ceil(p)
                e_p = (p - low) * e[high] + (1 - p + low) * e[low]
                right = q[h, i] @ e_p / math.sqrt(8)
                np.testing.assert_allclose(found[0, h, i, j], right, atol=1e-12)


def test_cope_agrees_with_x_transformers():
    m = pytest.importorskip("x_transformers.x_transformers")
    cope, (q, k) = make("cope", p_max=5), some(2, 1, 3, 12, 8)
    theirs = m.CoPE(8, 3, max_pos=6).double()
    with torch.no_grad():
        theirs.pos_emb.copy_(cope.e)
        logits = q @ k.mT / math.sqrt(8)
        logits = logits.masked_fill(~causal_mask(12, 12), -1e9)
        right = theirs(q / math.sqrt(8), logits)  # theirs leaves the 1/√d to the caller
    np.testing.assert_allclose(bias(cope, 12, q=q, k=k), right, atol=1e-12)


def test_cope_with_all_gates_open_is_a_vector_for_each_distance():
    cope, T = make("cope", p_max=4), 7
    q = some(1, 1, 1, 8).expand(1, 3, T, 8)
    k = 1e4 * q  # every product is large
    found, z = bias(cope, T, q=q, k=k), (cope.e.detach() @ q[0, 0, 0] / math.sqrt(8)).numpy()
    for i in range(T):
        for j in range(i + 1):
            assert found[0, 0, i, j] == pytest.approx(z[min(i - j + 1, 4)], abs=1e-9)


def test_cope_counts_no_key_behind_the_mask():
    """Padding before a text changes no count, whatever lies there."""
    cope, (q, k) = make("cope"), some(2, 1, 3, 8, 8)
    mask = causal_mask(8, 8) & (torch.arange(8) >= 3)
    padded = bias(cope, 8, q=q, k=k, mask=mask)[..., 3:, 3:]
    alone = bias(cope, 5, q=q[:, :, 3:], k=k[:, :, 3:])
    seen = np.tri(5, dtype=bool)
    np.testing.assert_allclose(padded[..., seen], alone[..., seen])
