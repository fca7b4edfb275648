"""From a model's `config.json` to a longer context: which scaling, which factor, which flags.

    python -m lib context config.json --to 131072

The method is the rule of thumb of notebook 14, with the numbers that it was measured with: up to
some 1.2 times the trained length nothing; past that YaRN with the smallest factor, for its reach is
the factor itself; where most texts are short, dynamic NTK. A model that is scaled by YaRN or as
Llama 3 already gets a larger factor of the same; no server can put a second scaling on any other.

How a setting is spelled was read in the projects' own code:

    Transformers  5.24.0 and 4.51.3, modeling_rope_utils.py: `rope_parameters`, and `rope_scaling`
                  before. 4.51.3 takes YaRN's factor from max_position_embeddings over the original
                  length, whatever the file's factor says: both are set here, and agree.
    vLLM          0.20.2, engine/arg_utils.py, config/model.py and layers/rotary_embedding, and
                  docs.vllm.ai (stable), "Context Extension": --hf-overrides replaces all of
                  `rope_parameters`, so that the base stands in it too; --rope-scaling is gone; the
                  longest length is the original one times the factor.
    llama.cpp     as in llama-cpp-python 0.3.36, common/arg.cpp, src/llama-context.cpp and
                  ggml_rope_yarn_corr_dims: --rope-scale N is --rope-freq-scale 1/N.

Reading, advising and printing need neither torch nor pandas, which take seconds to load.
"""

import csv
import json
import math
import shlex
from dataclasses import dataclass
from typing import Any

from lib import paths, rope_config
from lib.rope_config import Kind, Model

WITHOUT_A_WORD = 1.0  # per cent of perplexity that a text may lose before anything is scaled
NAMES = {
    "yarn": "YaRN", "llama3": "Llama 3's scaling", "dynamic": "dynamic NTK", "none": "no scaling",
}  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """What to set so that a model reads `target` tokens.

    Args:
        model: as read.
        trained: L, the length that its angles are known to.
        target: T.
        method: "none", or the rope_type to set.
        factor: of that scaling, the smallest that reaches T.
        changes: the keys of the text model's part of config.json to set, in today's spelling.
    """

    model: Model
    trained: int
    target: int
    method: str
    factor: float
    changes: dict[str, Any]


def advise(model: Model, target: int, trained: int | None = None) -> Advice:
    """The setting for `target` tokens.

    trained: the length that the model was trained on, where `max_position_embeddings` is another.

    Raises:
        ValueError: nothing is turned; a trained length above the target, or one given for a model
            whose file names its own; a model whose scaling nothing can be added to.
    """
    turned = [kind for kind in model.kinds if kind.rotated]
    if not turned:
        raise ValueError("No layer of this model turns its queries and keys: nothing to scale.")
    far = [kind for kind in turned if kind.window is None] or turned
    types = {kind.rope_type for kind in far}
    if trained is not None and types != {"default"}:
        raise ValueError(
            f"This file is scaled already ({', '.join(sorted(types))}), and names its own lengths: "
            f"leave the trained length out."
        )
    length = model.length if trained is None else trained
    if trained is not None and trained > target:
        raise ValueError(f"The trained length {trained} is longer than the target {target}.")
    if target <= length:
        return Advice(model, length, target, "none", 1.0, {})
    if len(types) > 1:
        raise ValueError(f"Its layers are scaled in several ways: {', '.join(sorted(types))}.")
    name = types.pop()
    if name == "default":
        if target <= free() * length:
            return Advice(
                model, length, target, "none", 1.0, {"max_position_embeddings": target}
            )  # fmt: skip
        method, factor = "yarn", _ratio(target, length)
        new = {"rope_type": method, "factor": factor, "original_max_position_embeddings": length}
    elif name in ("yarn", "llama3"):
        method, new = name, dict(far[0].scaling)
        start = new["original_max_position_embeddings"] if name == "yarn" else length
        factor = _ratio(target, start) * (1.0 if name == "yarn" else new["factor"])
        new["factor"] = factor
    else:
        raise ValueError(WHY_NOT[name].format(target=target))
    changes = {
        "max_position_embeddings": target,
        "rope_parameters": _parameters(model, {kind: new for kind in far}),
    }
    return Advice(model, length, target, method, factor, changes)


WHY_NOT = {
    "linear": "Its far-reaching layers are interpolated already (rope_type linear), and no server "
    "adds a second scaling to that. A larger factor slows the fast pairs too, which without "
    "training is worse than doing nothing (notebook 14): fine-tune it, or take another model.",
    "proportional": "Its far-reaching layers turn a share of their pairs (rope_type proportional), "
    "and no server adds YaRN to that; the factor that it knows slows every pair, which without "
    "training is worse than doing nothing (notebook 14): fine-tune it, or take another model.",
    "longrope": "Its factors were searched pair by pair (rope_type longrope): they do not stretch "
    "to {target} tokens, a new search is needed (notebook 09).",
    "dynamic": "Dynamic NTK grows with the text and has no longest length (notebook 08): raise the "
    "server's limit to {target}, and see with your own texts whether its factor is enough.",
}


def _ratio(target: int, length: int) -> float:
    """target/length, or the next number up where rounding would fall short of the target: vLLM
    multiplies length and factor and compares."""
    factor = target / length
    return factor if factor * length >= target else math.nextafter(factor, math.inf)


def _parameters(model: Model, new: dict[Kind, dict]) -> dict:
    """All of `rope_parameters`, with the new scaling of some kinds of layer: by type of layer where
    they differ."""
    whole = {}
    for kind in model.kinds:
        if kind.rotated:
            scaling = new.get(kind, dict(kind.scaling)) if model.nested else next(iter(new.values()))
            whole[kind.name] = _beside(kind) | ({"rope_type": "default"} | scaling)
    return whole if model.nested else next(iter(whole.values()))


def _beside(kind: Kind) -> dict:
    """The keys of a rotation that stay: its base, its share of the head, its axes."""
    keys: dict[str, Any] = {"rope_theta": kind.base}
    if kind.rotated != kind.head and not kind.at_end and kind.rope_type != "proportional":
        keys["partial_rotary_factor"] = kind.rotated / kind.head
    if kind.sections is not None:
        keys["mrope_section"] = list(kind.sections)
        if kind.alternate:
            keys["mrope_interleaved"] = True
    return keys


# ---- what was measured ---------------------------------------------------------------------------


def _table(name: str) -> list[dict[str, Any]]:
    """The rows of a table of the committed reference; what is a number is one, "" is None."""
    with open(paths.results("reference") / f"{name}.csv", encoding="utf-8", newline="") as file:
        return [{key: _parsed(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def _parsed(cell: str):
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell


def free() -> float:
    """The longest text, in trained lengths, that was measured to need no scaling."""
    fine = [
        row["ratio"]
        for row in _table("real_model_windows")
        if row["high"] is not None and row["high"] < WITHOUT_A_WORD
    ]
    return max(fine, default=1.0)


def lost_unscaled(ratio: float) -> dict[str, Any]:
    """The row of windows of `ratio` trained lengths, read unscaled."""
    return next(row for row in _table("real_model_windows") if row["ratio"] == ratio)


def paid(method: str, where: str) -> dict[float, str]:
    """factor → the change of perplexity in words, measured under `method`.

    where: "short" (texts far inside the trained length), "inside" it, or "end" (past it).
    """
    found = {}
    for row in _table("real_model_summary"):
        if row["method"] == method and row[where] is not None:
            found[row["factor"]] = _in_words(row[where], row[f"{where}_low"], row[f"{where}_high"])
    return found


def _in_words(value, low, high) -> str:
    return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


def price(method: str, factor: float) -> str:
    """What texts that need no scaling pay: the measured factors on both sides of this one."""
    rows = paid(method, "short")
    below = max((f for f in rows if f <= factor), default=None)
    above = min((f for f in rows if f >= factor), default=None)
    parts = [f"{rows[f]} at factor {f:g}" for f in dict.fromkeys((below, above)) if f is not None]
    if above is None:
        return f"more than {parts[0]}, the largest factor measured"
    return " and ".join(parts)


# ---- how it is spelled ---------------------------------------------------------------------------


def for_transformers(advice: Advice) -> dict[str, dict | None]:
    """The keys of config.json, in the spelling of Transformers 5 and, where there is one, of 4."""
    changes = advice.changes
    old = None
    rope = changes.get("rope_parameters")
    if rope is None:
        old = changes
    elif not advice.model.nested:
        old = _in_the_old_spelling(changes, rope)
    elif advice.model.type.startswith("gemma3"):  # its rope_scaling is that of the global layers
        old = _in_the_old_spelling(changes, rope["full_attention"])
    return {"5": _nested_in(changes, advice.model.where),
            "4": None if old is None else _nested_in(old, advice.model.where)}  # fmt: skip


def _in_the_old_spelling(changes: dict, rope: dict) -> dict:
    outside = ("rope_theta", "partial_rotary_factor")
    old = {key: value for key, value in changes.items() if key != "rope_parameters"}
    old |= {key: rope[key] for key in outside if key in rope}
    return old | {"rope_scaling": {key: x for key, x in rope.items() if key not in outside}}


def _nested_in(changes: dict, where: tuple[str, ...]) -> dict:
    for key in reversed(where):
        changes = {key: changes}
    return changes


def for_vllm(advice: Advice) -> str:
    overrides = json.dumps(_nested_in(advice.changes, advice.model.where))
    return shlex.join(
        ["vllm", "serve", "MODEL", "--hf-overrides", overrides, "--max-model-len"]
        + [str(advice.target)]
    )


def for_llama_cpp(advice: Advice) -> str | None:
    """The server's flags; None where the factors are a tensor of the GGUF file (Llama 3)."""
    if advice.method == "llama3":
        return None
    command = ["llama-server", "-m", "MODEL.gguf", "-c", str(advice.target)]
    if advice.method == "yarn":
        rope = advice.changes["rope_parameters"]
        scaling = rope["full_attention"] if advice.model.nested else rope
        command += ["--rope-scaling", "yarn", "--rope-scale", f"{advice.factor:g}"]
        command += ["--yarn-orig-ctx", str(scaling["original_max_position_embeddings"])]
        for key, flag in (("beta_fast", "--yarn-beta-fast"), ("beta_slow", "--yarn-beta-slow")):
            if key in scaling:
                command += [flag, f"{scaling[key]:g}"]
    return shlex.join(command)


# ---- in words ------------------------------------------------------------------------------------


def report(name: str, advice: Advice) -> str:
    """All of it as text: what the file says, what to set, why, at what price, and how."""
    return "\n".join([*_described(name, advice.model), "", *_advised(advice)])


def _described(name: str, model: Model) -> list[str]:
    lines = [f"{name}: {model.type}, {model.layers} layers, set for {model.length:,} tokens"]
    if not model.checked:
        lines.append(
            f"  The type {model.type} is none of those whose rules were held against Transformers: "
            f"check that the lines below are all that its code does."
        )
    for kind in model.kinds:
        lines.append(f"  {_in_a_line(kind)}")
    return lines


def _in_a_line(kind: Kind) -> str:
    line = f"{len(kind.layers)} × {kind.name}"
    if kind.window is not None:
        line += f" (window {kind.window:,})"
    if not kind.rotated:
        return line + ": nothing turns"
    slow = sum(turns < 1 for turns in kind.turns(kind.original))
    line += f": {kind.rotated} of {kind.head} channels turn, base {kind.base:,g}"
    line += f", {slow} of {kind.rotated // 2} pairs less than once in {kind.original:,} tokens"
    scaling = dict(kind.scaling)
    if scaling:
        line += f"; {kind.rope_type}"
        line += f" with factor {scaling['factor']:g}" if "factor" in scaling else ""
    if kind.sections is not None:
        line += f"; pairs for time, height, width: {', '.join(map(str, kind.sections))}"
    return line


def _advised(advice: Advice) -> list[str]:
    if not advice.changes:
        return [
            f"No scaling needed: {advice.target:,} tokens are within the {advice.trained:,} that "
            f"this file is set for."
        ]
    lines = _why(advice) + [""]
    spelled = for_transformers(advice)
    lines += ["Transformers 5, in config.json:", _indented(spelled["5"])]
    if spelled["4"] is None:
        lines.append("Transformers 4: has no key for a rule of its own for each type of layer.")
    elif spelled["4"] != spelled["5"]:
        lines += ["Transformers 4, in config.json:", _indented(spelled["4"])]
    lines += ["vLLM:", f"  {for_vllm(advice)}"]
    flags = for_llama_cpp(advice)
    if flags is None:
        lines.append("llama.cpp: no flag, its factors are a tensor of the GGUF file: convert it")
        lines.append("  anew from the changed config.json.")
    else:
        lines += ["llama.cpp:", f"  {flags}"]
        if advice.factor > 1:
            lines.append(
                f"  (--rope-scale {advice.factor:g} is --rope-freq-scale {1 / advice.factor:g}: "
                f"give one of them)"
            )
    return lines + _notes(advice)


def _why(advice: Advice) -> list[str]:
    L, T, limit = advice.trained, advice.target, free()
    if advice.method == "none":
        lost = lost_unscaled(limit)
        lost = _in_words(lost["value"], lost["low"], lost["high"])
        return [
            f"To read {T:,} tokens: change nothing but the limit.",
            f"  It is {T / L:.2f} times the trained length; a window of {limit:g} times loses "
            f"{lost} of perplexity unscaled.*",
            _WHERE,
        ]
    lines = [f"To read {T:,} tokens: {NAMES[advice.method]} with factor {advice.factor:g}."]
    if advice.model.length == L and advice.method == "llama3":
        lines.append(
            f"  The model's own scaling, with its factor times {T / L:g}: slow pairs meet no angle "
            f"that they do not meet within {L:,} tokens. The price of that is not measured."
        )
        return lines
    gained, inside = paid("yarn", "end"), paid("linear", "inside")
    lines += [
        f"  Why: past {limit:g} times the trained length the unscaled model gives out. Set for "
        f"twice, YaRN changes perplexity past it by {gained[2.0]}; interpolating every pair "
        f"changes it within by {inside[2.0]}.*",
        f"  Price: texts that need no scaling pay {price('yarn', advice.factor)}.* Set no larger "
        f"factor than you need.",
        _WHERE,
    ]
    return lines


_WHERE = "  * SmolLM2-135M past its 8,192 tokens, 95 % intervals: notebooks/14_real_language_model."


def _indented(keys: dict) -> str:
    text = json.dumps(keys, indent=2)
    return "\n".join("  " + line for line in text.splitlines())


def _notes(advice: Advice) -> list[str]:
    scaling = dict(next(k for k in advice.model.kinds if k.rotated).scaling)
    notes = []
    if advice.method == "yarn" and scaling.get("truncate") is False:
        notes.append(
            "Note: llama.cpp begins and ends YaRN's ramp at whole pairs; this model's file says "
            "truncate: false."
        )
    if advice.method == "yarn" and "attention_factor" in scaling:
        notes.append("Note: vLLM and llama.cpp pass over attention_factor and use 0.1·ln s + 1.")
    return notes


def run(path: str, target: int, trained: int | None = None, picture: str | None = None) -> None:
    """Print what to set so that the model of a config.json reads `target` tokens.

    Raises ValueError as `rope_config.read` and `advise`, and for lengths below 1; OSError for a
    file that is not there.
    """
    for what, length in (("--to", target), ("--from", trained)):
        if length is not None and length < 1:
            raise ValueError(f"{what} must be at least 1 token, not {length}.")
    model = rope_config.read(path)
    advice = advise(model, target, trained)
    print(report(path, advice))
