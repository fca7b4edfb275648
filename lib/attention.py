"""How queries, keys, values and an encoding become one call of a fused attention kernel.

    softmax(q kᵀ / √d + bias) v,   over the keys that each query may see

`attend` is the only entrance. It takes the fused kernel wherever the encoding leaves the weights
unseen, and writes the formula out where an encoding adds values (Shaw) or where half precision
would round the bias. Autocast changes nothing here: the dtype of q decides.
"""

import torch
import torch.nn.functional as F

from lib.encodings.base import without_autocast


def causal_mask(n_queries: int, n_keys: int, device=None):
    """True where a query may look: the last query sees the last key. Shape (Tq, Tk).

    Built from the end, so that it is right when queries are fewer than keys (cached decoding).
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def toeplitz(encoding, n_queries: int, n_keys: int, device=None, dtype=None):
    """The bias of contiguous positions, from one vector of distances a head: (1, H, Tq, Tk).

    Entry (i, j) is bias_by_distance(Tk − Tq + i − j): the last query stands at the last key.
    `dtype` None leaves the numbers as the encoding gives them.
    """
    # f runs over δ = Tk−1 … −(Tq−1); row i is the window of f that starts at δ = Tk−Tq+i.
    delta = torch.arange(n_keys - 1, -n_queries, -1, device=device)
    f = encoding.bias_by_distance(delta).to(dtype)  # (H, Tq + Tk − 1)
    return f.unfold(-1, n_keys, 1).flip(-2).unsqueeze(0)


def attend(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
    """The output of attention, (B, H, Tq, d), in the dtype of q.

    Args:
        q: (B, H, Tq, d) and k, v (B, H_kv, Tk, d), already turned by `encoding.rotate`.
        mask: True where a query may look, (Tq, Tk) or (B, 1, Tq, Tk); None means causal, with the
            last query at the last key. Every query must see at least one key.
        bias: what is added to the logits, (1 or B, H, Tq, Tk), when the caller has made it already
            (one bias serves all layers); None asks the encoding.
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
    if bias is None:
        bias = encoding.bias(q, k, q_pos, k_pos, mask)
    low = q.dtype in (torch.bfloat16, torch.float16)
    if encoding.adds_values() or (bias is not None and low):
        return plain(q, k, v, encoding, q_pos, k_pos, mask, bias)
    gqa = q.shape[1] > k.shape[1]
    with without_autocast(q):
        if bias is None and mask is None and n_queries == n_keys:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
        if mask is None:
            mask = causal_mask(n_queries, n_keys, q.device)
        if bias is not None:
            mask = bias.to(q.dtype).masked_fill(~mask, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)


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
