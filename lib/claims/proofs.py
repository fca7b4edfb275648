"""Claims that are proof obligations, each computed on random inputs against its formula.

A test takes its tolerances by name and gives the parts of its claim. What it reports are
inequalities and counts, which every machine prints alike. All in float64; the generators have
seeds, the inputs no structure that a claim could lean on.

Letters: T length, D width, H heads, d = D/H, i a query's position, j a key's, L training length.
"""

import math

import numpy as np
import torch
from torch import nn

from lib import counting, evaluation
from lib.attention import attend, causal_mask, plain, toeplitz
from lib.claims.verdicts import HOLDS, REFUTED, Part, jointly
from lib.encodings import Encoding, build
from lib.encodings.alibi import slopes
from lib.encodings.rope import turn
from lib.encodings.t5 import bucket
from lib.probes.heads import heads

SIZES = {"d_model": 64, "n_heads": 4, "max_length": 64}


# ---- parts ---------------------------------------------------------------------------------------


def _is(what: str, holds) -> Part:
    return Part(what, HOLDS if holds else REFUTED, "yes" if holds else "no")


def _equal(what: str, a, b, deviation: float) -> Part:
    """The two tensors agree to `deviation`, as a share of the larger."""
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    scale = max(1.0, float(torch.maximum(a.abs(), b.abs()).max()))
    close = float((a - b).abs().max()) <= deviation * scale
    return Part(what, HOLDS if close else REFUTED, f"{'≤' if close else '>'} {deviation:g} apart")


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _built(name: str, **options) -> Encoding:
    """An encoding in float64, its parameters random: T5's start at 0 and would show nothing."""
    encoding = build(name, **{**SIZES, **options}).double().requires_grad_(False)
    for n, parameter in enumerate(encoding.parameters()):
        parameter.copy_(_random(*parameter.shape, seed=100 + n))
    return encoding


def _qkv(T: int, seed: int = 1) -> tuple[torch.Tensor, ...]:
    """Random q, k, v: (1, H, T, d) each."""
    H, d = SIZES["n_heads"], SIZES["d_model"] // SIZES["n_heads"]
    return tuple(_random(3, 1, H, T, d, seed=seed))


# ---- attention and perplexity --------------------------------------------------------------------


def permutation_equivariance(deviation: float) -> list[Part]:
    """Attention(PX) = P Attention(X) where each token sees all, and a sinusoid breaks it."""
    T, D = 12, SIZES["d_model"]
    X, W = _random(T, D), _random(3, D, D, seed=2) / D**0.5
    positions = torch.arange(T)

    def attention(X, encoding):
        X = encoding.embed(X[None], positions)[0]
        q, k, v = (X @ w for w in W)
        q, k, v = (y.unflatten(-1, (SIZES["n_heads"], -1)).movedim(1, 0)[None] for y in (q, k, v))
        everything = torch.ones(len(X), len(X), dtype=torch.bool)
        y = plain(q, k, v, encoding, positions, positions, everything)
        return y[0].movedim(0, 1).flatten(1)  # (T, D)

    nope, sinusoidal = _built("nope"), _built("sinusoidal")
    order = torch.randperm(T, generator=torch.Generator().manual_seed(3))
    shuffled, straight = attention(X[order], nope), attention(X, nope)[order]
    marked = (attention(X[order], sinusoidal) - attention(X, sinusoidal)[order]).abs().max()
    return [
        jointly(
            f"a random order of {T} tokens",
            _equal("Attention(PX) and P Attention(X)", shuffled, straight, deviation),
            _is("and with positions added no longer:", marked > 0.01),
        )
    ]


def perplexity_of_a_table(deviation: float) -> list[Part]:
    """2^(−mean log₂ p), summed by hand from a bigram table, is what `evaluation.perplexity` gives;
    it is 1 for a model that is sure and right, and never less."""
    V, N = 17, 200
    logits = _random(V, V)
    tokens = torch.randint(V, (N,), generator=torch.Generator().manual_seed(4))
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    log2 = np.log2(p[tokens[:-1], tokens[1:]])
    # The model computes losses in float32.
    value = evaluation.perplexity(nn.Embedding.from_pretrained(logits.float()), tokens, 16)
    circle = torch.arange(N) % V
    sure = nn.Embedding.from_pretrained(1e4 * torch.eye(V).roll(1, 1))  # after t comes t + 1
    best = evaluation.perplexity(sure, circle, 16)
    return [
        _equal("perplexity and 2^(−mean log₂ p)", value, 2 ** -log2.mean(), deviation),
        _is("1 for a model that is sure and right", best == 1),
        _is("no probability above 1, so never below 1", (log2 <= 0).all()),
    ]


# ---- absolute positions --------------------------------------------------------------------------


def sinusoid_table(deviation: float) -> list[Part]:
    """sin and cos of p / 10000^(2k/D), written out; wavelengths in a geometric series; any p."""
    D, sinusoidal = SIZES["d_model"], _built("sinusoidal")
    positions = torch.tensor([0, 1, 2, 63, 64, 511, 100_000])
    table = sinusoidal.embed(torch.zeros(1, len(positions), D, dtype=torch.float64), positions)[0]
    formula = [
        [f(p / 10000 ** (2 * k / D)) for k in range(D // 2) for f in (math.sin, math.cos)]
        for p in positions.tolist()
    ]
    # The phase at p = 1 is 2π over the wavelength, while it is below a half turn.
    wavelengths = 2 * math.pi / torch.atan2(table[1, 0::2], table[1, 1::2])
    ratios = wavelengths[1:] / wavelengths[:-1]
    return [
        _equal("table and formula", table, formula, deviation),
        _equal("ratio of wavelengths and 10000^(2/D)", ratios, [10000 ** (2 / D)], deviation),
        _is("no parameters", sum(1 for _ in sinusoidal.parameters()) == 0),
        _is("a vector for position 100000", table.isfinite().all()),
    ]


def learned_table() -> list[Part]:
    """L_max · D parameters, a vector at L_max − 1, and none at L_max."""
    parts = []
    for L_max, D in ((64, 64), (512, 768)):
        learned = build("learned", d_model=D, n_heads=4, max_length=L_max)
        n = sum(p.numel() for p in learned.parameters())
        parts.append(_is(f"{n} parameters for {L_max} rows of {D}", n == L_max * D))
    x = torch.zeros(1, 1, 64)
    learned = build("learned", **SIZES)
    learned.embed(x, torch.tensor([63]))
    return [*parts, _is("row 63 of 64 is there and row 64 is refused", _refuses(learned, x, 64))]


def _refuses(learned, x, position: int) -> bool:
    try:
        learned.embed(x, torch.tensor([position]))
    except ValueError:
        return True
    return False


# ---- relative bias -------------------------------------------------------------------------------


def relative_terms(deviation: float) -> list[Part]:
    """What T5 and Shaw add to the logits: is it a function of i − j alone, and clamped?"""
    T = 300
    positions = torch.arange(T)
    (q, k, _), (q_other, *_) = _qkv(T), _qkv(T, seed=5)
    same_q = q[:, :, :1].expand_as(q)  # one query at every position: only distance can matter
    parts = []
    for name in ("t5", "shaw"):
        encoding = _built(name)
        term, shifted = (encoding.bias(same_q, k, p, p) for p in (positions, positions + 1000))
        parts.append(_equal(f"{name}: term and term 1000 tokens later", term, shifted, deviation))
        far = term[..., -1, : T - 128]  # keys at distances 128 and more
        parts.append(_equal(f"{name}: all distances past 127", far, far[..., :1], deviation))
    t5, shaw = _built("t5"), _built("shaw")
    one, other = (t5.bias(x, k, positions, positions) for x in (q, q_other))
    parts.append(_equal("t5: term for one query and for another", one, other, deviation))
    one, other = (shaw.bias(x, k, positions, positions) for x in (q, q_other))
    parts.append(_equal("shaw: term for one query and for another", one, other, deviation))
    return parts


def full_relative_table(within: float) -> list[Part]:
    """One number for every distance between 512 positions and every head, counted."""
    L, H = 512, 12
    distances = (torch.arange(L)[:, None] - torch.arange(L)).unique().numel()
    n = distances * H
    about = abs(n / 12_000 - 1) <= within
    return [
        _is(f"{distances} distances = 2L − 1", distances == 2 * L - 1),
        Part("numbers in the table", HOLDS if about else REFUTED, f"{n}, about 12K"),
    ]


def t5_buckets() -> list[Part]:
    """How many values T5's bias takes over the distances of 512 tokens."""
    n = bucket(torch.arange(512)).unique().numel()
    verdict = HOLDS if n == 512 else REFUTED
    return [Part("values for the distances 0 … 511", verdict, f"{n}")]


def learned_bias_prepared_once(deviation: float) -> list[Part]:
    """T5's bias, once trained, is a constant: made before any input, from 2T − 1 numbers a head, it
    gives what it gives when made at each call. What it takes in memory is for `cost`."""
    T, t5 = 200, _built("t5")
    positions = torch.arange(T)
    prepared = toeplitz(t5, T, T)
    outputs = [
        [attend(*qkv, t5, positions, positions, bias=bias) for qkv in (_qkv(T), _qkv(T, seed=5))]
        for bias in (None, prepared)
    ]
    at_each_call, once = (torch.stack(both) for both in outputs)
    same = _equal("outputs, prepared once and made at each call", once, at_each_call, deviation)
    cannot = REFUTED if same.verdict == HOLDS else HOLDS
    return [same._replace(verdict=cannot)]


# ---- RoPE ----------------------------------------------------------------------------------------


def rope_is_relative(deviation: float) -> list[Part]:
    """q_m · k_n depends on m − n alone; the pairs and frequencies are those of the texts."""
    d = 64
    rope = build("rope", d_model=d, n_heads=1, max_length=64)
    q, k = _random(2, 1, 1, 1, d, seed=6)

    def score(m, n):
        q_m, k_n = rope.rotate(q, k, torch.tensor([m]), torch.tensor([n]))
        return (q_m * k_n).sum()

    starts = torch.randint(100_000, (20,), generator=torch.Generator().manual_seed(7)).tolist()
    threes = torch.stack([score(p, p + 3) for p in starts])
    far = (score(10, 14) - score(10, 13)).abs()
    theta = [10000 ** (-2 * i / d) for i in range(d // 2)]  # counted from 0
    theta_from_1 = [10000 ** (-2 * i / d) for i in range(1, d // 2 + 1)]  # S4: θ_1 … θ_d/2
    # The paper: θ_i = 10000^(−2(i−1)/d), i = 1 … d/2 (section 3.2.2).
    papers = [10000 ** (-2 * (i - 1) / d) for i in range(1, d // 2 + 1)]
    m, unit = 5, torch.eye(d, dtype=torch.float64)[None, None]
    turned, _ = rope.rotate(unit, unit, torch.full((d,), m), torch.full((d,), m))
    matrix = torch.zeros(d, d, dtype=torch.float64)  # row c: where the unit vector c goes
    for i in range(d // 2):
        c, s = math.cos(m * theta[i]), math.sin(m * theta[i])
        pair = slice(2 * i, 2 * i + 2)
        matrix[pair, pair] = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    return [
        jointly(
            "scores",
            _equal("of (10, 13) and 20 random pairs 3 apart", threes, score(10, 13), deviation),
            _is("and another distance, another score:", far > 0.01),
        ),
        _equal("rotation and the matrix of pairs (2k, 2k+1)", turned[0, 0], matrix, deviation),
        _equal("θ counted from 0 (S1) and the paper's", theta, papers, deviation),
        _equal("θ counted from 1 (S4) and the paper's", theta_from_1, papers, deviation),
    ]


def rope_adds_nothing() -> list[Part]:
    """No parameter, no change of the embeddings; 4096 over 32 heads is 128, and the base 10000."""
    rope = build("rope", d_model=4096, n_heads=32, max_length=2048)
    x = torch.randn(1, 3, 4096, generator=torch.Generator().manual_seed(8))
    return [
        _is("embeddings unchanged", rope.embed(x, torch.arange(3)) is x),
        _is("no parameters or stored tables", not rope.state_dict()),
        _is("d = 4096/32 = 128", rope.d == 128),
        _is("base 10000", rope.base == 10000),
    ]


# ---- ALiBi ---------------------------------------------------------------------------------------


def alibi_formula(deviation: float) -> list[Part]:
    """softmax(QKᵀ/√d − m|i−j|)V as written by S0 and S1, and S4's without √d."""
    T, alibi = 50, _built("alibi")
    q, k, v = _qkv(T)
    p = torch.arange(T)
    ours = attend(q, k, v, alibi, p, p)
    m = torch.tensor([2.0 ** (-8 * (h + 1) / 4) for h in range(4)]).double()[:, None, None]
    penalty = m * (p[:, None] - p).abs()
    hidden = ~causal_mask(T, T)

    def attention(logits):
        return logits.masked_fill(hidden, -torch.inf).softmax(-1) @ v

    x = torch.randn(1, T, SIZES["d_model"], generator=torch.Generator().manual_seed(9))
    written, bare = attention(q @ k.mT / alibi.d**0.5 - penalty), attention(q @ k.mT - penalty)
    nothing = not alibi.state_dict() and alibi.embed(x, p) is x
    return [
        _equal("attention and the formula of S0 and S1", ours, written, deviation),
        _is("no parameters, embeddings unchanged", nothing),
        _equal("attention and S4's formula, without √d", ours, bare, deviation),
    ]


def alibi_slopes_of_8(deviation: float) -> list[Part]:
    """The two lists for 8 heads, as sets, against 2^(−8(h+1)/8)."""
    ours = slopes(8).sort().values
    s0 = sorted(2 ** (-i / 8) for i in range(8, 0, -1))
    s4 = sorted(1 / 2**i for i in range(1, 9))
    return [
        _equal("S4's 1/2 … 1/2⁸ and the slopes", s4, ours, deviation),
        _equal("S0's 2^(−8/8) … 2^(−1/8) and the slopes, in any order", s0, ours, deviation),
    ]


def alibi_slopes_of_12(deviation: float) -> list[Part]:
    """S1's 2^(−8(i+1)/n), against the paper's sentence and the authors' code, for 12 heads."""
    n = 12
    s1 = torch.tensor([2 ** (-8 / n * (i + 1)) for i in range(n)], dtype=torch.float64)
    start = 2 ** (-8 / n)  # the paper: starts at 2^(−8/n), with that same value as its ratio
    sentence = [start * start**i for i in range(n)]
    return [
        _equal("S1's slopes and the paper's sentence", s1, sentence, deviation),
        _equal("S1's slopes and the authors' code", s1.sort().values, slopes(n).sort().values,
               deviation),
        _equal("for 16 heads: S1's and the authors' code",
               [2 ** (-8 / 16 * (i + 1)) for i in range(16)], slopes(16), deviation),
    ]  # fmt: skip


def alibi_under_a_causal_mask(deviation: float) -> list[Part]:
    """The future changes nothing, the weights sum to 1, and among equal keys the near one wins."""
    T, t, alibi = 40, 25, _built("alibi")
    p = torch.arange(T)
    (q, k, v), (_, k_other, v_other) = _qkv(T), _qkv(T, seed=10)
    ours = attend(q, k, v, alibi, p, p)
    k[:, :, t:], v[:, :, t:] = k_other[:, :, t:], v_other[:, :, t:]
    changed = attend(q, k, v, alibi, p, p)
    equal = torch.zeros_like(q)
    weights = attend(equal, equal, torch.eye(T).double().expand(1, 4, T, T), alibi, p, p)
    last = weights[0, :, -1]  # (H, T)
    return [
        _equal("outputs before and after other future tokens", ours[:, :, :t], changed[:, :, :t],
               deviation),
        _equal("sums of the weights and 1", weights.sum(-1), [1.0], deviation),
        _is("no weight on the future", weights.triu(1).abs().max() == 0),
        _is("equal keys weigh less the farther they are", (last.diff(dim=-1) > 0).all()),
    ]  # fmt: skip


# ---- longer contexts -----------------------------------------------------------------------------


def interpolated_positions() -> list[Part]:
    """m' · L/L' for every m' of [0, L'): does it lie in [0, L)?"""
    inside = True
    for L in (512, 2048, 4096):
        for s in (2, 4, 16, 32):
            m = np.arange(s * L) * (L / (s * L))
            inside &= bool((m >= 0).all() and (m < L).all())
    return [_is("every position lies in [0, L)", inside)]


def interpolation_slows_every_pair(deviation: float) -> list[Part]:
    """PI divides each frequency by s, the fastest one too; by parts the fastest stays."""
    sizes = {"d_model": 128, "n_heads": 1, "max_length": 2048}
    theta = build("rope", **sizes).frequencies()
    linear, by_parts = (
        build("rope", **sizes, scaling={"rope_type": kind, "factor": 4.0}).frequencies()
        for kind in ("linear", "ntk_by_parts")
    )
    return [
        _equal("every frequency times s, and unscaled", 4 * linear, theta, deviation),
        _is("by parts the fastest pair keeps its frequency", by_parts[0] == theta[0]),
    ]


def ntk_base(deviation: float) -> list[Part]:
    """b' = b · s^(d/(d−2)): θ_0 stays, θ_(d/2−1) is divided by s, those between by less."""
    divided, first, between, same = [], [], True, True
    for d in (4, 32, 64, 128):
        for s in (2.0, 4.0, 16.0):
            scaled = 10000.0 * s ** (d / (d - 2))
            theta, theta_ = (
                build("rope", d_model=d, n_heads=1, max_length=64, base=b).frequencies()
                for b in (10000.0, scaled)
            )
            ntk = {"rope_type": "ntk", "factor": s}
            ntk = build("rope", d_model=d, n_heads=1, max_length=64, scaling=ntk).frequencies()
            same &= torch.equal(ntk, theta_)
            first.append(theta_[0] / theta[0])
            divided.append(theta[-1] / theta_[-1] / s)
            between &= bool(((theta / theta_).diff() > 0).all())
    return [
        _equal("highest frequency, new and old", torch.stack(first), [1.0], deviation),
        _equal("lowest frequency divided by s", torch.stack(divided), [1.0], deviation),
        _is("the lower a frequency, the more it is divided", between),
        _is("lib's scaling ntk is this base", same),
    ]


def yarn(deviation: float) -> list[Part]:
    """NTK by parts, then a temperature: cos and sin times 0.1 ln s + 1 divide the logits by t.

    Peng et al. 2023, section 3.2: with r the turns of a pair in L tokens, γ(r) runs from 0 at r = α
    to 1 at r = β, and θ' = (1 − γ) θ/s + γ θ; α = 1 and β = 32 for LLaMA.
    """
    d, b, L, s, alpha, beta = 128, 10000.0, 2048, 16.0, 1.0, 32.0
    theta = b ** (-2 * np.arange(d // 2) / d)
    r = L * theta / (2 * math.pi)
    gamma = np.clip((r - alpha) / (beta - alpha), 0, 1)
    scaled = (1 - gamma) * theta / s + gamma * theta
    factor = 0.1 * math.log(s) + 1
    lib = build("rope", d_model=d, n_heads=1, max_length=L,
                scaling={"rope_type": "yarn", "factor": s, "ramp": "turns"})  # fmt: skip
    q, k = _random(2, 1, 1, 5, d, seed=11)
    phase = torch.arange(5, dtype=torch.float64)[:, None] * torch.from_numpy(scaled)
    q_turned, k_turned = (turn(x, phase, "interleaved") for x in (q, k))
    logits = (factor * q_turned) @ (factor * k_turned).mT
    t = 1 / factor**2
    return [
        _equal("pairs of more than β turns and θ", scaled[r > beta], theta[r > beta], deviation),
        _equal("pairs of less than α turns and θ/s",
               scaled[r < alpha], theta[r < alpha] / s, deviation),
        _is("between them, between the two",
            ((scaled >= theta / s) & (scaled <= theta)).all()),
        _equal("cos and sin times √(1/t), and logits over t",
               logits, q_turned @ k_turned.mT / t, deviation),
        _is("at s = 1 nothing is scaled", 0.1 * math.log(1.0) + 1 == 1),
        _equal("lib's yarn and this", lib.frequencies(), scaled, deviation),
        _is("lib's attention factor is √(1/t)", lib.attention_factor == factor),
    ]  # fmt: skip


# ---- no encoding ---------------------------------------------------------------------------------


def position_from_the_mask(deviation: float) -> list[Part]:
    """Even attention finds the start token with weight 1/(i+1); a decoder whose weights are set by
    hand names every position, and its second layer attends as ALiBi does."""
    T, nope = 4096, _built("nope")
    p, start = torch.arange(T), torch.zeros(1, 1, T, 1, dtype=torch.float64)
    start[:, :, 0] = 1
    y = attend(torch.zeros_like(start), torch.zeros_like(start), start, nope, p, p).flatten()
    T = 512
    model, tokens = counting.decoder(T), counting.sentence(T)
    named = model(tokens)[0].argmax(-1)
    ours = heads(model, tokens)[1].weights(T)
    equal = torch.zeros(1, counting.H, T, T, dtype=torch.float64)
    alibi = build("alibi", d_model=counting.D, n_heads=counting.H, max_length=T)
    theirs = attend(equal, equal, torch.eye(T).double().expand_as(equal), alibi, p[:T], p[:T])
    return [
        _is("position 0 … 4095 from rounded 1/y", ((1 / y).round() - 1 == p).all()),
        _is(f"a decoder that names each of {T} positions", (named == p[:T]).all()),
        _equal("its second layer's weights and ALiBi's", ours, theirs, deviation),
    ]
