"""The two layouts of RoPE's pairs, and how the weights of a model go from one to the other.

Interleaved pairs are (0, 1), (2, 3), …; half-split pairs are (0, r/2), (1, r/2 + 1), … of the r
channels of a head that turn, which are all d or a part of them. The rotation is the same but for a
permutation P of these channels. Since q = W_q x, and (P q)·(P k) = q·k, a model goes over exactly
when the rows of W_q and W_k (and the biases) are permuted with it: W ← P W. So are the gains of a
normalisation of q or k, which stands between W and the rotation. A model that is turned in the
wrong layout still runs, and has lost its sense of position.
"""

import torch

LAYOUTS = ("interleaved", "half_split")


def to_half_split(
    weight: torch.Tensor, n_heads: int, rotated: int | None = None, rotated_at: str = "first"
) -> torch.Tensor:
    """Rows of W_q or W_k, or of its bias, from interleaved to half-split pairs.

    weight: (n_heads · d, …). n_heads: of the queries for W_q, of the keys for W_k, which are fewer
    under grouped-query attention; 1 for gains (d,) that all heads share. rotated, rotated_at: how
    many channels of a head turn and where they lie, as in `build("rope", …)`; None is all.
    Returns a new tensor of the same shape.
    Raises ValueError unless the rows divide into heads of an even width that has such a part.
    """
    return _permuted(weight, n_heads, rotated, rotated_at, lambda x: x.unflatten(1, (-1, 2)))


def to_interleaved(
    weight: torch.Tensor, n_heads: int, rotated: int | None = None, rotated_at: str = "first"
) -> torch.Tensor:
    """The inverse of `to_half_split`: rows from half-split to interleaved pairs."""
    return _permuted(weight, n_heads, rotated, rotated_at, lambda x: x.unflatten(1, (2, -1)))


def convert(
    tensors: dict[str, torch.Tensor],
    to: str,
    n_heads: int,
    n_kv_heads: int | None = None,
    rotated: int | None = None,
    rotated_at: str = "first",
) -> dict[str, torch.Tensor]:
    """The tensors of a layer, or of a whole model, from the other layout of the pairs to this one.

    Converted is whatever is called, after Hugging Face's habit, q_proj, k_proj (weights and biases)
    or q_norm, k_norm (gains, of one head or of all); the rest comes back as it is.

    Args:
        tensors: by name, as in a state dict; it is not changed.
        to: "half_split" or "interleaved".
        n_heads, n_kv_heads: of queries, and of keys where these are fewer.
        rotated, rotated_at: as in `to_half_split`.

    Raises:
        ValueError: an unknown layout, names that hold no q_proj or k_proj at all, rows that do not
            divide into these heads.
    """
    if to not in LAYOUTS:
        raise ValueError(f"to must be one of {', '.join(LAYOUTS)}, not {to!r}.")
    permute = to_half_split if to == "half_split" else to_interleaved
    heads = {"q": n_heads, "k": n_kv_heads or n_heads}
    width, found = {}, dict(tensors)
    for name, tensor in tensors.items():
        part = _part(name)
        if part in ("q_proj", "k_proj"):
            n = heads[part[0]]
            found[name] = permute(tensor, n, rotated, rotated_at)
            width[part[0]] = len(tensor) // n
    if not width:
        raise ValueError(
            "None of the tensors is called q_proj or k_proj: give the state dict of a model or a "
            "layer with separate weights for q and k."
        )
    for name, tensor in tensors.items():
        part = _part(name)
        if part in ("q_norm", "k_norm") and part[0] in width:
            n = 1 if len(tensor) == width[part[0]] else heads[part[0]]
            found[name] = permute(tensor, n, rotated, rotated_at)
    return found


def _part(name: str) -> str:
    """model.layers.3.self_attn.q_proj.weight → q_proj."""
    return name.split(".")[-2] if "." in name else ""


def _permuted(weight, n_heads: int, rotated, rotated_at: str, pairs):
    """`pairs` splits the second axis into two, which change places."""
    heads = _heads(weight, n_heads)  # (H, d, …)
    d = heads.shape[1]
    r = d if rotated is None else rotated
    if r % 2 or not 0 < r <= d or rotated_at not in ("first", "last"):
        raise ValueError(
            f"rotated = {rotated} at {rotated_at!r}: a head of {d} channels turns an even number "
            f"of them, 2 to {d}, 'first' or 'last'."
        )
    start = 0 if rotated_at == "first" else d - r
    new = heads.clone()
    new[:, start : start + r] = pairs(heads[:, start : start + r]).transpose(1, 2).flatten(1, 2)
    return new.reshape(weight.shape)


def _heads(weight, n_heads: int):
    """(n_heads · d, …) → (n_heads, d, …)."""
    if weight.dim() == 0 or n_heads < 1 or len(weight) == 0 or len(weight) % (2 * n_heads):
        raise ValueError(
            f"{tuple(weight.shape)} does not hold {n_heads} heads of an even width: "
            f"give the weight (n_heads · d, …) and the number of heads that it has."
        )
    return weight.unflatten(0, (n_heads, -1))
