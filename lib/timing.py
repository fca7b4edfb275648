"""How long a call takes, and candidates side by side; torch is all that it needs."""

import time
from collections.abc import Callable

import torch


def seconds(f: Callable, device) -> float:
    """How long one call of f takes."""
    if device.type == "cuda":
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        f()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1000
    began = time.perf_counter()
    f()
    return time.perf_counter() - began


def in_turns(
    candidates: dict[str, Callable], rounds: int, device, warm: bool = False
) -> dict[str, list[float]]:
    """The seconds of each candidate in each round; unless they are `warm`, after a call of each."""
    names = list(candidates)
    for f in () if warm else candidates.values():
        f()
    found = {name: [] for name in names}
    for r in range(rounds):
        first = r // 2 % len(names)
        for name in (names[first:] + names[:first])[:: -1 if r % 2 else 1]:
            found[name].append(seconds(candidates[name], device))
    return found
