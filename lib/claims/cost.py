"""Claims about time and memory: from the study of costs, and from the table of Press et al. 2022.

Here a cost is a ratio to sinusoids, taken within a round in which all take turns: its interval is
over rounds. Memory is counted, the same each time, and compared as it is; so are the paper's
numbers, one V100 in 2021. Timings belong to a machine, so the tolerances are wide: what is decided
is whether something costs much, not how much.
"""

import functools
import math

import numpy as np
import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib import bench, figures
from lib.attention import plain
from lib.claims import proofs
from lib.claims.verdicts import HOLDS, REFUTED, UNDECIDED, Part, judge
from lib.encodings import build
from lib.training import TrainingConfig, optimizer_of

Parts = tuple[list[Part], list[Part]]
OTHERS = ("rope", "t5", "alibi")
COLUMNS = ["kind", "encoding", "seed", "length", "ratio"]


class Costs:
    """Costs over those with sinusoids, by kind ("training", "inference", "growth", "memory …")."""

    def __init__(self, table: pd.DataFrame, timed: bool):
        """table: COLUMNS, a row a round. timed: whether times are of rounds, and not a paper's."""
        self.table, self.timed = table, timed
        self._values = {
            key: np.log(rows.set_index("seed")["ratio"].astype(float))
            for key, rows in table.groupby(["kind", "encoding", "length"])
        }

    def lengths(self, kind: str) -> list[int]:
        return sorted(self.table.loc[self.table["kind"] == kind, "length"].unique())

    def ratio(self, kind: str, encoding: str, length: int, to: str | None = None):
        """ln of the ratio: an interval over rounds, or a number where it is counted or published;
        None where it was not measured. `to`: over this encoding instead of sinusoids, by round."""
        values = self.values(kind, encoding, length)
        if to is not None:
            values = (values - self.values(kind, to, length)).dropna()
        if values.empty:
            return None
        counted = kind.endswith("memory") or not self.timed
        return float(values.iloc[0]) if counted else figures.interval(values)

    def values(self, kind: str, encoding: str, length: int) -> pd.Series:
        """ln of the ratios by round."""
        return self._values.get((kind, encoding, length), pd.Series(dtype=float))

    def part(
        self, kind: str, encoding: str, length: int, low=-math.inf, high=math.inf, to=None
    ) -> Part:
        """Whether the ratio lies in low … high (both as ratios)."""
        found = self.ratio(kind, encoding, length, to)
        low, high = (math.log(x) if x > 0 else x for x in (low, high))
        words = "not measured"
        if isinstance(found, float):
            words = f"×{math.exp(found):.3g}"
        elif found is not None:
            words = f"×{math.exp(found.value):.3g}"
            if found.n > 1:
                words += f" [{math.exp(found.low):.3g}, {math.exp(found.high):.3g}]"
        what = f"{kind} at {length}, {encoding}" + (f" over {to}" if to else "")
        return Part(what, judge(found, low, high), words)


@functools.cache
def costs_published() -> Costs:
    table = bench.published().rename(columns={"subject": "encoding", "case": "length"})
    table = table.rename(columns={"memory": "training memory"})
    kinds = ["training", "inference", "training memory"]
    return Costs(
        table.melt(["encoding", "length"], kinds, "kind", "ratio").assign(seed=0), timed=False
    )


def costs_here(results) -> Costs:
    table = results["cost"]
    if table.empty:
        return Costs(pd.DataFrame(columns=COLUMNS), timed=True)
    memory = table["quantity"] == "bytes"
    kind = table["part"].where(~memory, table["part"] + " memory")
    return Costs(table.assign(kind=kind)[COLUMNS], timed=True)


def _both(results, ask) -> Parts:
    return ask(costs_here(results)), ask(costs_published())


def _at_every_length(costs, kinds, encodings, low=-math.inf, high=math.inf) -> list[Part]:
    parts = [
        costs.part(kind, encoding, length, low, high)
        for kind in kinds
        for length in costs.lengths(kind)
        for encoding in encodings
    ]
    return parts or [Part(kinds[0], UNDECIDED, "not measured")]


def _at_the_longest(costs, kind, encodings, low=-math.inf, high=math.inf) -> list[Part]:
    """As `_at_every_length`, of the longest one."""
    longest = costs.lengths(kind)[-1:]
    return [costs.part(kind, e, length, low, high) for length in longest for e in encodings]


# ---- the claims ----------------------------------------------------------------------------------


def sinusoids_are_cheapest(results, less: float) -> Parts:
    """No other of the four takes less time or memory, by more than `less`."""
    kinds = ["training", "inference", "training memory", "inference memory"]
    here, published = _both(results, lambda c: _at_every_length(c, kinds, OTHERS, 1 - less))
    return [*here, *_at_the_longest(costs_here(results), "growth", OTHERS, 1 - less)], published


def t5_halves_the_speed(results, least: float, most: float) -> Parts:
    """T5's bias: tokens a second in training over those with sinusoids, in least … most."""

    def ask(costs):
        return _at_every_length(costs, ["training"], ["t5"], 1 / most, 1 / least)

    here, published = _both(results, ask)
    written = ["training, written out"]
    here += _at_every_length(costs_here(results), written, ["t5"], 1 / most, 1 / least)
    return here, published


def t5_holds_most(results, equal: float) -> Parts:
    """T5's memory is above each of the other three's, by more than `equal`."""

    def ask(costs):
        parts = []
        for kind in ("training memory", "inference memory"):
            for length in costs.lengths(kind):
                held = {e: costs.ratio(kind, e, length) for e in ("sinusoidal", *OTHERS)}
                if None in held.values():
                    continue
                t5 = held.pop("t5")
                most = max(held, key=held.get)
                words = f"×{math.exp(t5):.3g} of sinusoids', {most} ×{math.exp(held[most]):.3g}"
                lead = judge(t5 - held[most], low=math.log1p(equal))
                parts.append(Part(f"{kind} at {length}", lead, words))
        return parts or [Part("memory", UNDECIDED, "not measured")]

    return _both(results, ask)


def bias_burdens_memory(results, deviation: float, much: float) -> Parts:
    """Prepared once after training, exactly (a proof); and memory above that of sinusoids by more
    than `much`, in training and with a trained model."""
    costs = costs_here(results)
    here = _at_every_length(costs, ["training memory", "inference memory"], ["t5"], 1 + much)
    here += _at_the_longest(costs, "growth memory", ["t5"], 1 + much)
    return [*proofs.learned_bias_prepared_once(deviation), *here], []


def rotation_is_felt(results, noticeable: float) -> Parts:
    """S0's half: more time than with sinusoids, by `noticeable`. Where that is refuted, S1's word
    is right, negligible."""

    def ask(costs):
        return _at_every_length(costs, ["training", "inference"], ["rope"], 1 + noticeable)

    return _both(results, ask)


def alibi_costs_as_sinusoids(results, few: float, little: float) -> Parts:
    """Time within `few` and memory within `little` of sinusoids' at the paper's lengths."""

    def ask(costs):
        times = _at_every_length(
            costs, ["training", "inference"], ["alibi"], 1 / (1 + few), 1 + few
        )
        held = _at_every_length(
            costs, ["training memory", "inference memory"], ["alibi"], 1 - little, 1 + little
        )
        return times + held

    return _both(results, ask)


class _Additions(TorchDispatchMode):
    """Counts the numbers that additions of a tensor with H·T² entries give."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.numbers = shape, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor):
            self.numbers += out.numel() if out.shape[1:] == self.shape else 0
        return out


def alibi_adds_and_has_no_parameters(results, share: float) -> Parts:
    """No parameters; H·T² additions in the formula, counted; and of the time of attention less than
    `share`."""
    H, T, d = 3, 40, 8
    alibi = build("alibi", d_model=H * d, n_heads=H, max_length=T)
    q, k, v = (torch.zeros(1, H, T, d) for _ in range(3))
    at = torch.arange(T)
    with _Additions((H, T, T)) as additions:
        plain(q, k, v, alibi, at, at)
    parameters = sum(p.numel() for p in alibi.parameters())
    words = {True: HOLDS, False: REFUTED}
    parts = [
        Part("parameters", words[parameters == 0], f"{parameters}"),
        Part(
            f"additions of the formula, H = {H}, T = {T}",
            words[additions.numbers == H * T * T],
            f"{additions.numbers}, H·T² = {H * T * T}",
        ),
    ]
    costs = costs_here(results)
    for kind in ("attention, forward", "attention, forward and backward"):
        parts += _at_every_length(costs, [kind], ["alibi"], high=1 + share)
    return parts, []


def fixed_slopes_spare(results) -> Parts:
    """Fewer numbers in the optimiser than with a learned bias; and a smaller gap between training
    and test loss after several passes over little text, against T5's bias, paired by seed."""
    states = {}
    for encoding in ("alibi", "t5"):
        config = TrainingConfig(encoding, seed=0, learning_rate=1e-3, tokens=2048)
        model = config.decoder(64)
        optimizer = optimizer_of(model, config.learning_rate)
        model(torch.zeros(1, 8, dtype=torch.long)).square().sum().backward()
        optimizer.step()
        own = list(model.encodings.parameters())
        states[encoding] = sum(
            x.numel() for p in own for x in optimizer.state[p].values() if x.dim() > 0
        )
    fewer = Part(
        "numbers that the optimiser keeps for the encoding",
        HOLDS if states["alibi"] < states["t5"] else REFUTED,
        f"{states['alibi']}, for a learned bias {states['t5']}",
    )
    table, what = results["cost"], "gap between test and training loss, ALiBi − T5 (nats)"
    rows = table[table["part"] == "overfit"] if len(table) else table
    if rows.empty:
        return [fewer, Part(what, UNDECIDED, "not measured")], []
    gaps = rows.pivot_table(index=["encoding", "seed"], columns="quantity", values="value")
    gap = gaps["test"] - gaps["train"]
    found = figures.interval((gap["alibi"] - gap["t5"]).dropna())
    words = f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}], {found.n} seeds"
    return [fewer, Part(what, judge(found, high=0.0), words)], []
