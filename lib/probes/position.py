"""Where a decoder keeps its position: read off the residual stream, after each layer.

Two readers. A line takes the D channels of the stream x and a constant; the squares are a line that
takes the channels and their squares. Each is a ridge regression of the position p, or of
log₂(p + 1), fitted on every other window of held-out text and scored on the windows between:

    w = argmin Σ (p − x·w)² + λ N |w|²,   R² = 1 − Σ (p − x·w)² / Σ (p − mean p)²

R² is 1 where every position is found and 0 where a constant does as well; a constant is T/4 off on
average. Windows begin anywhere in a text, so words alone tell no position.

What a reader finds is a bound on what is there from below, and what is there need not be used. A
rule to measure by are untrained weights: attention that is nearly uniform averages i + 1 tokens,
and the size of an average says how many they were (Chi et al. 2023, arXiv 2305.13571).

Letters: B windows, T tokens, D width, N fitted tokens, p = 0 … T−1, x = T in the rows.
"""

import torch

from lib.probes.heads import held_out
from lib.transformer import Decoder

WINDOWS = {64: 4, 256: 1}  # T (trained, and past it) → windows, times settings["windows"]
RIDGE = 1e-2  # λ, of features scaled to variance 1
SEED = 0  # of the untrained weights


def position(decoder, settings: dict) -> list[dict]:
    """Rows by layer: 0 is the stream before the first block, n the stream after block n.

    R² of p and of log₂(p + 1): `line_r2`, `line_log_r2`, `squares_r2`, `squares_log_r2`, with the
    mean absolute errors in positions `line_mae` and `squares_mae`. The same four R², with
    `_untrained` behind, of the decoder with fresh weights at the first T. After the last block,
    `squares_read`, x = p: the mean reading at p in windows of the first T. A learned table has no
    row past its end, and gives no rows there.
    """
    first, *_ = WINDOWS
    rows = []
    for T, times in WINDOWS.items():
        if decoder.config.encoding == "learned" and T > decoder.config.max_length:
            continue
        tokens = held_out(T, times * settings["windows"])
        for layer, x in enumerate(streams(decoder, tokens)):
            rows += [_row(layer, quantity, T, value) for quantity, value in scores(x).items()]
        if T == first:  # x is the stream after the last block
            for p, y in enumerate(read(squares(x), positions(T)[:, None]).mean((0, 2)).tolist()):
                rows.append(_row(layer, "squares_read", p, y))
            for layer, x in enumerate(streams(fresh(decoder), tokens)):
                found = {q: value for q, value in scores(x).items() if q.endswith("r2")}
                rows += [_row(layer, f"{q}_untrained", T, value) for q, value in found.items()]
    return rows


def fresh(decoder) -> Decoder:
    """The decoder with untrained weights, drawn from SEED; the global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return Decoder(decoder.config).eval().requires_grad_(False)


@torch.inference_mode()
def streams(decoder, tokens) -> list[torch.Tensor]:
    """The residual stream before the first block and after each block: (B, T, D) each."""
    found = []
    before = decoder.blocks[0].register_forward_pre_hook(lambda block, x: found.append(x[0]))
    after = [b.register_forward_hook(lambda block, _, x: found.append(x)) for b in decoder.blocks]
    try:
        decoder(tokens)
    finally:
        for hook in (before, *after):
            hook.remove()
    return found


def scores(x) -> dict[str, float]:
    """R² and mean absolute error of both readers on a stream x (B, T, D), by quantity."""
    p, found = positions(x.shape[1]), {}
    log = (p + 1).log2()
    for reader, features in (("line", x), ("squares", squares(x))):
        readings, logs = read(features, torch.stack([p, log], dim=-1)).unbind(-1)
        found[f"{reader}_r2"] = r2(readings, p)
        found[f"{reader}_log_r2"] = r2(logs, log)
        found[f"{reader}_mae"] = (readings - p).abs().mean().item()
    return found


def positions(T: int) -> torch.Tensor:
    return torch.arange(T, dtype=torch.float64)


def squares(x) -> torch.Tensor:
    """The channels of x and their squares: (B, T, 2 D)."""
    return torch.cat([x, x.square()], dim=-1)


def read(x, targets) -> torch.Tensor:
    """What ridge regression of each of `targets` (T, n) reads from x: (B // 2, T, n) float64.

    x: (B, T, features), B ≥ 2. Fitted on the windows 0, 2 …, read on 1, 3 ….
    """
    if len(x) < 2:
        raise ValueError("Position is fitted on one window and read on another: give two or more.")
    x = x.double()
    x = (x - x[::2].mean((0, 1))) / x[::2].std((0, 1)).clamp(min=1e-12)
    fitted = x[::2].flatten(0, 1)  # (N, features)
    y = (targets - targets.mean(0)).repeat(len(x[::2]), 1)  # (N, n)
    ridge = RIDGE * len(y) * torch.eye(x.shape[-1], dtype=x.dtype)
    w = torch.linalg.solve(fitted.mT @ fitted + ridge, fitted.mT @ y)  # (features, n)
    return x[1::2] @ w + targets.mean(0)


def r2(readings, target) -> float:
    """1 − Σ (target − readings)² / Σ (target − mean)², of readings (B, T)."""
    off, spread = readings - target, target - target.mean()
    return (1 - off.square().mean() / spread.square().mean()).item()


def _row(layer: int, quantity: str, x: int, value: float) -> dict:
    row = {"layer": layer, "head": -1, "quantity": quantity, "x": x}
    return row | {"value": float(f"{value:.6g}")}
