"""How queries, keys, values and an encoding become calls of a fused attention kernel.

    softmax(q kᵀ / √d + bias) v,   over the keys that each query may see

`attend` is the only entrance, and `path` names the way that it takes:

    causal              the fused kernel, which knows the causal mask by itself: no bias
    masked              the fused kernel with bias and mask written out, H × Tq × Tk numbers: for
                        few queries (WHOLE, or BLOCK where all layers share it), or a bias given
    distances           the fused kernel in blocks of queries; a bias that depends on i − j alone is
                        one vector a head, and the mask of a block is a view of it
    distances, learned  the same, and each block is computed again where gradients are asked for:
                        the fused kernel has none for a bias
    masked in blocks    the fused kernel in blocks of queries, each with a bias of its own
    formula             written out, in float32 or wider: where the encoding adds values (Shaw), or
                        half precision would round the bias
    formula in blocks   the same in blocks of queries

The three ways in blocks hold H × BLOCK × Tk numbers at once, which grows as T, where the formula
holds H × Tq × Tk. That is so with gradients too: the first saves nothing but its inputs and
outputs, the others compute a block again when its gradient is asked for. A mask that the caller
gives has its own size, without H. Autocast changes nothing here: the dtype of q decides.
"""

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lib.encodings.base import Encoding, without_autocast

WHOLE = 128  # up to so many queries a bias is written out: nothing would be gained by blocks
# Queries in a block, least and most: enough to keep the kernel busy (from 768 on torch's has larger
# tiles), few enough to skip the future. Fewer where a block of weights is held for a gradient.
LEAST, BLOCK, LEARNED_BLOCK = 128, 768, 256
LOW = (torch.bfloat16, torch.float16)


def causal_mask(n_queries: int, n_keys: int, device=None):
    """True where a query may look: the last query sees the last key. Shape (Tq, Tk).

    Built from the end, so that it is right when queries are fewer than keys (cached decoding).
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


@dataclass(frozen=True)
class Distances:
    """The bias of contiguous positions, the last query at the last key: one vector a head.

    Args:
        f: (H, Tq + Tk − 1), the bias at the distances δ = Tk − 1, Tk − 2, … −(Tq − 1).
    """

    f: torch.Tensor
    n_queries: int
    n_keys: int

    @classmethod
    def of(cls, encoding, n_queries: int, n_keys: int, device=None, dtype=None) -> "Distances":
        """From `bias_by_distance`; `dtype` None leaves the numbers as the encoding gives them."""
        delta = torch.arange(n_keys - 1, -n_queries, -1, device=device)
        return cls(encoding.bias_by_distance(delta).to(dtype), n_queries, n_keys)

    def whole(self):
        """Written out: (1, H, Tq, Tk). Row i is the window of f that starts at δ = Tk − Tq + i."""
        return self.f.unfold(-1, self.n_keys, 1).flip(-2).unsqueeze(0)


def toeplitz(encoding, n_queries: int, n_keys: int, device=None, dtype=None):
    """The bias of contiguous positions, written out: (1, H, Tq, Tk).

    Entry (i, j) is bias_by_distance(Tk − Tq + i − j): the last query stands at the last key.
    """
    return Distances.of(encoding, n_queries, n_keys, device, dtype).whole()


def shared_bias(encoding, q_pos, k_pos, contiguous: bool, dtype):
    """The bias that serves every layer, as `attend` takes it; None where there is none to share.

    q_pos (Tq,) or (B, Tq) and k_pos are `contiguous` where every position is the one before + 1 and
    the last query stands at the last key.
    """
    if not encoding.shared_across_layers or not _by_distance(encoding):
        return None
    n_queries, n_keys = q_pos.shape[-1], k_pos.shape[-1]
    wide = torch.promote_types(dtype, torch.float32)
    if contiguous:
        distances = Distances.of(encoding, n_queries, n_keys, q_pos.device, wide)
        return distances if n_queries > WHOLE else distances.whole()
    if n_queries > BLOCK:
        return None  # too large to keep: block by block, in each layer
    return Encoding.bias(encoding, torch.empty(0, dtype=wide), None, q_pos, k_pos)


def attend(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
    """The output of attention, (B, H, Tq, d), in the dtype of q.

    Args:
        q: (B, H, Tq, d) and k, v (B, H_kv, Tk, d), already turned by `encoding.rotate`.
        mask: True where a query may look, (Tq, Tk) or (B, 1, Tq, Tk); None means causal, with the
            last query at the last key. Every query must see at least one key.
        bias: what is added to the logits, (1 or B, H, Tq, Tk) or `Distances`, when the caller has
            made it already (see `shared_bias`); None asks the encoding.
    """
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{k.shape[1]} heads of keys do not divide {q.shape[1]} heads of queries: "
            f"choose n_kv_heads so that n_heads % n_kv_heads == 0."
        )
    if mask is None and n_queries > n_keys:
        raise ValueError(
            f"{n_queries} queries over {n_keys} keys cannot be causal, for the first would see "
            f"nothing: give a mask."
        )
    bias = _ready(q, k, encoding, q_pos, k_pos, mask, bias)
    way = _path(q, encoding, mask, bias, n_keys)
    if way.startswith("distances"):
        return _by_blocks_of_distances(q, k, v, bias.f, way == "distances, learned")
    if way.endswith("in blocks"):
        one = plain if way.startswith("formula") else _masked_block
        return _in_blocks(one, q, k, v, encoding, q_pos, k_pos, mask)
    bias = bias.whole() if isinstance(bias, Distances) else bias
    if way == "formula":
        return plain(q, k, v, encoding, q_pos, k_pos, mask, bias)
    if way == "masked":
        return _masked(q, k, v, mask, bias)
    with without_autocast(q):
        return _kernel(q, k, v, is_causal=n_queries > 1)


def path(q, k, encoding, q_pos, k_pos, mask=None, bias=None) -> str:
    """The name of the way that `attend` takes with these arguments (see the top of the file)."""
    bias = _ready(q, k, encoding, q_pos, k_pos, mask, bias)
    return _path(q, encoding, mask, bias, k.shape[-2])


def plain(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
    """The formula as it is written, in float32 or wider: the reference of every other path."""
    if bias is None:
        bias = encoding.bias(q, k, q_pos, k_pos, mask)
    if mask is None:
        mask = causal_mask(q.shape[-2], k.shape[-2], q.device)
    groups = q.shape[1] // k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q):
        q_wide, k_wide, v_wide = (x.to(wide) for x in (q, k, v))
        k_wide, v_wide = (x.repeat_interleave(groups, dim=1) for x in (k_wide, v_wide))
        logits = q_wide @ k_wide.mT / q.shape[-1] ** 0.5  # (B, H, Tq, Tk)
        if bias is not None:
            logits = logits + bias.to(wide)
        weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
        output = weights @ v_wide
        added = encoding.values(weights, q_pos, k_pos)
        return (output if added is None else output + added).to(q.dtype)


# --- which way ----------------------------------------------------------------------------------


def _by_distance(encoding) -> bool:
    """Whether its bias is a function of i − j alone."""
    return encoding.bias_by_distance is not None and type(encoding).bias is Encoding.bias


def _ready(q, k, encoding, q_pos, k_pos, mask, bias):
    """The bias where it is small or a vector, None where there is none or a block asks for it."""
    if bias is not None or not _has_bias(encoding):
        return bias
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    if n_queries <= WHOLE:
        return encoding.bias(q, k, q_pos, k_pos, mask)
    if mask is None and _by_distance(encoding) and _contiguous(q_pos, k_pos):
        wide = torch.promote_types(q.dtype, torch.float32)
        return Distances.of(encoding, n_queries, n_keys, q.device, wide)
    return None


def _path(q, encoding, mask, bias, n_keys: int) -> str:
    n_queries = q.shape[-2]
    if isinstance(bias, Distances) and mask is None and not encoding.adds_values():
        learned = bias.f.requires_grad and torch.is_grad_enabled()
        # Elsewhere than on a CPU the kernel wants a bias in the dtype of q.
        if not (q.dtype in LOW and (learned or q.device.type != "cpu")):
            return "distances, learned" if learned else "distances"
    kept = bias is not None and not isinstance(bias, Distances)
    if n_queries > WHOLE and not kept and (_has_bias(encoding) or encoding.adds_values()):
        formula = encoding.adds_values() or q.dtype in LOW
        return "formula in blocks" if formula else "masked in blocks"
    if encoding.adds_values() or (bias is not None and q.dtype in LOW):
        return "formula"
    if bias is None and mask is None and n_queries in (1, n_keys):
        return "causal"
    return "masked"


def _has_bias(encoding) -> bool:
    return encoding.bias_by_distance is not None or type(encoding).bias is not Encoding.bias


def _contiguous(q_pos, k_pos) -> bool:
    """Whether every position is the one before + 1, the last query standing at the last key."""
    if q_pos.dim() > 1 or k_pos.dim() > 1 or len(q_pos) > len(k_pos):
        return False
    # On a GPU this waits for the numbers; `Decoder` knows the answer, and does not ask.
    return bool((k_pos.diff() == 1).all()) and torch.equal(q_pos, k_pos[len(k_pos) - len(q_pos) :])


# --- the ways -----------------------------------------------------------------------------------


def _kernel(q, k, v, **options):
    gqa = q.shape[1] > k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa, **options)


def _masked(q, k, v, mask, bias):
    """The fused kernel, bias and mask written out; either may be None."""
    with without_autocast(q):
        if mask is None:
            mask = causal_mask(q.shape[-2], k.shape[-2], q.device)
        if bias is not None:
            mask = bias.to(q.dtype).masked_fill(~mask, -torch.inf)
        return _kernel(q, k, v, attn_mask=mask)


def _masked_block(q, k, v, encoding, q_pos, k_pos, mask):
    return _masked(q, k, v, mask, encoding.bias(q, k, q_pos, k_pos, mask))


def _blocks(n_queries: int, most: int | None = None) -> list[tuple[int, int]]:
    """Where blocks begin and end: about five of them, so that little of the future is computed in
    vain at short lengths too, with LEAST … BLOCK (or `most`) queries in each."""
    fifth = n_queries // 5 // LEAST * LEAST
    n = max(LEAST, min(most or BLOCK, fifth))
    return [(a, min(a + n, n_queries)) for a in range(0, n_queries, n)]


def _in_blocks(attention, q, k, v, encoding, q_pos, k_pos, mask):
    """`attention` for a block of queries at a time, over the keys that the block may see. With
    gradients each block is computed again for them, and only its inputs are kept."""
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    spans = _blocks(n_queries)
    if torch.is_grad_enabled() and len(spans) > 1:
        attention = functools.partial(checkpoint, attention, use_reentrant=False)
    pieces = []
    for a, b in spans:
        seen = n_keys if mask is not None else n_keys - n_queries + b
        at = _span(q_pos, n_queries, a, b), _span(k_pos, n_keys, 0, seen)
        rows = None if mask is None else mask[..., a:b, :]
        pieces.append(attention(q[:, :, a:b], k[:, :, :seen], v[:, :, :seen], encoding, *at, rows))
    return torch.cat(pieces, dim=-2)


def _span(positions, n: int, a: int, b: int):
    """The positions of tokens a … b − 1 of n: (…, T), or (…, T, 2) on a grid."""
    return positions.narrow(-1 if positions.shape[-1] == n else -2, a, b - a)


def _by_blocks_of_distances(q, k, v, f, learned: bool):
    """Causal attention with the bias f (H, Tq + Tk − 1), as in `Distances`."""
    n_keys, groups = k.shape[-2], q.shape[1] // k.shape[1]
    # What a query may not see: δ < 0, which is behind entry Tk − 1.
    ahead = torch.arange(f.shape[-1], device=f.device) >= n_keys
    f = f.to(q.dtype if q.dtype not in LOW else f.dtype).masked_fill(ahead, -torch.inf)
    with without_autocast(q):
        if learned:
            k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
            return _LearnedDistances.apply(q, k, v, f)
        parts = _heads_by_reach(q, k, f)
        sizes = [n for n, _ in parts]
        heads = zip(
            *(x.split([n // g for n in sizes], 1) for x, g in ((q, 1), (k, groups), (v, groups))),
            f.split(sizes),
            (reach for _, reach in parts),
            strict=True,
        )
        return torch.cat([_distances(*some) for some in heads], dim=1)


def _heads_by_reach(q, k, f) -> list[tuple[int, int]]:
    """[(how many heads, how far back they see), …]: what is farther has weight 0, exactly.

    A query sees itself, δ = 0, and |q·k|/√d ≤ |q||k|/√d = c. So the weight of a key at δ is at most
    exp(f(δ) − f(0) + 2c) of the largest, and is 0 in this dtype once that is below half of the
    smallest number. ALiBi's steep heads end after some hundred tokens.
    """
    n_keys, H, groups = k.shape[-2], len(f), q.shape[1] // k.shape[1]
    if q.device.type != "cpu" or torch.compiler.is_compiling():
        return [(H, n_keys)]  # to read the numbers would wait for them
    with torch.no_grad():
        largest = [x.to(f.dtype).norm(dim=-1).amax((0, 2)) for x in (q, k)]  # (H,), (H_kv,)
        c = largest[0] * largest[1].repeat_interleave(groups) / q.shape[-1] ** 0.5
        info = torch.finfo(f.dtype)
        zero = math.log(info.smallest_normal) + math.log(info.eps) - math.log(2)
        past = f[:, :n_keys]  # δ = Tk − 1 … 0
        # Not "above": a NaN must count as seen. The 1 is for the rounding of c.
        seen = ~(past < past[:, -1:] - 2 * c[:, None] + zero - 1)
        reach = (n_keys - 1 - seen.int().argmax(-1)).tolist()  # of each head
    # The kernel's backward shares out heads among threads: as many at once as keep them busy.
    n = -(-torch.get_num_threads() // len(q)) if torch.is_grad_enabled() else 1
    n = min(H, -(-n // groups) * groups)
    parts = [(len(reach[h : h + n]), max(reach[h : h + n])) for h in range(0, H, n)]
    # Neighbours that see everything go together: fewer calls.
    merged = parts[:1]
    for heads, far in parts[1:]:
        if far == merged[-1][1] == n_keys - 1:
            merged[-1] = (merged[-1][0] + heads, far)
        else:
            merged.append((heads, far))
    return merged


def _window(f, n_queries: int, a: int, b: int, first: int, n_keys: int):
    """The bias of the queries b − 1, b − 2, … a to the keys first … n_keys − 1, as a view of f:
    (1, H, b − a, n_keys − first).

    Query b − 1 − r and key j are Tk − 1 − (Tq − b + r + j) apart, which is entry Tq − b + r + j of
    f: with the queries in reverse, a step to the next query and one to the next key are the same.
    """
    shape = 1, len(f), b - a, n_keys - first
    return f.as_strided(shape, (0, f.stride(0), 1, 1), f.storage_offset() + n_queries - b + first)


def _distances(q, k, v, f, reach=None):
    """The fused kernel over blocks of queries in reverse, the mask a view of f; keys more than
    `reach` back are left out."""
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    q = q.flip(2)
    pieces = []
    for a, b in reversed(_blocks(n_queries)):
        last = n_keys - n_queries + b
        first = 0 if reach is None else max(0, last - (b - a) - reach)
        window = _window(f, n_queries, a, b, first, last)
        if q.device.type != "cpu":
            window = window.contiguous()  # other kernels want rows that start at even places
        rows, seen = slice(n_queries - b, n_queries - a), slice(first, last)
        pieces.append(_kernel(q[:, :, rows], k[:, :, seen], v[:, :, seen], attn_mask=window))
    return torch.cat(pieces, dim=2).flip(2)


class _LearnedDistances(torch.autograd.Function):
    """`_distances` with the gradient of f as well; heads of keys as many as of queries."""

    @staticmethod
    def forward(ctx, q, k, v, f):
        ctx.save_for_backward(q, k, v, f)
        return _distances(q, k, v, f)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        q, k, v, f = ctx.saved_tensors
        n_queries, n_keys, scale = q.shape[-2], k.shape[-2], q.shape[-1] ** -0.5
        dq, dk, dv, df = torch.empty_like(q), *map(torch.zeros_like, (k, v, f))
        for a, b in _blocks(n_queries, LEARNED_BLOCK):
            seen = n_keys - n_queries + b
            rows, x, y = q[:, :, a:b].flip(2), k[:, :, :seen], v[:, :, :seen]
            along = g[:, :, a:b].flip(2)
            # P = softmax(S), S = q kᵀ/√d + bias;  dS = P ∘ (dP − Σ_j P ∘ dP),  dP = g vᵀ
            S = (rows @ x.mT).mul_(scale).add_(_window(f, n_queries, a, b, 0, seen))
            P = S.softmax(-1)
            dv[:, :, :seen] += P.mT @ along
            dS = along @ y.mT
            dS.sub_((dS * P).sum(-1, keepdim=True)).mul_(P)
            dq[:, :, a:b] = (dS @ x).mul_(scale).flip(2)
            dk[:, :, :seen] += (dS.mT @ rows).mul_(scale)
            df[:, n_queries - b :][:, : b - a + seen - 1] += _sum_over_windows(dS.sum(0))
        return dq, dk, dv, df


def _sum_over_windows(x):
    """x (H, n, m) → (H, n + m − 1): entry r + j gathers the entries (r, j)."""
    H, n, m = x.shape
    width = n + m - 1
    shifted = x.new_zeros(H, n, width)  # row r moved r places to the right
    shifted.as_strided((H, n, m), (n * width, width + 1, 1)).copy_(x)
    return shifted.sum(1)
