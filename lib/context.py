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
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from lib import paths, rope_config
from lib.rope_config import Kind, Model

WITHOUT_A_WORD = 1.0  # per cent of perplexity that a text may lose before anything is scaled
# Whose files are flat, and whose text model is `text_config` once Transformers has read them.
NESTED_WHEN_LOADED = ("qwen2_vl", "qwen2_5_vl")
NAMES = {"yarn": "YaRN", "llama3": "Llama 3's scaling"}


@dataclass(frozen=True)
class Advice:
    """What to set so that a model reads `target` tokens.

    Args:
        model: as read.
        trained: L, the length that its angles are known to.
        target: T.
        method: "none", or the rope_type to set.
        factor: of that scaling, the smallest that reaches T; 1 where nothing is scaled.
        kinds: the model's layers as they are then.
        changes: the keys of the text model's part of config.json to set, in today's spelling.
    """

    model: Model
    trained: int
    target: int
    method: str
    factor: float
    kinds: tuple[Kind, ...]
    changes: dict[str, Any]

    @property
    def far(self) -> Kind | None:
        """The layers whose pairs a longer text takes further, as they are in the file."""
        return next(_far(self.model), None)


def advise(model: Model, target: int, trained: int | None = None) -> Advice:
    """The setting for `target` tokens.

    trained: the length that the model was trained on, where `max_position_embeddings` is another.

    Raises:
        ValueError: nothing is turned; a trained length above the target, or one given for a model
            whose file names its own; a model whose scaling nothing can be added to.
    """
    if not any(kind.rotated for kind in model.kinds):
        raise ValueError("No layer of this model turns its queries and keys: nothing to scale.")
    far = list(_far(model))
    scaled = {kind.rope_type for kind in far if kind.scaling}
    if trained is not None and scaled:
        raise ValueError(
            f"This file is scaled already ({', '.join(sorted(scaled))}) and names its own lengths: "
            f"leave the trained length out."
        )
    L = model.length if trained is None else trained
    if trained is not None and trained > target:
        raise ValueError(f"The trained length {trained} is longer than the target {target}.")
    unscaled = Advice(model, L, target, "none", 1.0, model.kinds, {})
    if target <= L:
        return unscaled
    only_the_limit = replace(unscaled, changes={"max_position_embeddings": target})
    if not any(_in_danger(kind, L) for kind in far):
        return only_the_limit
    if len({(kind.rope_type, kind.original) for kind in far}) > 1:
        raise ValueError("Its far-reaching layers are scaled in several ways: set each by hand.")
    name = far[0].rope_type
    if name == "default":
        if target <= free() * L:
            return only_the_limit
        name, factor = "yarn", _ratio(target, L)
        scaling = {"rope_type": name, "factor": factor, "original_max_position_embeddings": L}
    elif name == "yarn":
        factor = _ratio(target, far[0].original)
        scaling = dict(far[0].scaling) | {"factor": factor}
    elif name == "llama3":
        scaling = dict(far[0].scaling)
        factor = scaling["factor"] * _ratio(target, L)
        scaling["factor"] = factor
    else:
        raise ValueError(WHY_NOT[name].format(target=target))
    new = {"scaling": tuple(scaling.items()),
           "original": scaling["original_max_position_embeddings"]}  # fmt: skip
    kinds = tuple(
        replace(kind, **new) if kind in far or (kind.rotated and not model.nested) else kind
        for kind in model.kinds
    )
    changes = only_the_limit.changes | {"rope_parameters": _parameters(kinds, model.nested)}
    return replace(only_the_limit, method=name, factor=factor, kinds=kinds, changes=changes)


def _far(model: Model):
    """The layers that turn and see further than what their pairs were trained on."""
    for kind in model.kinds:
        if kind.rotated and (kind.window is None or kind.window > kind.original):
            yield kind


WHY_NOT = {
    "linear": "Its far-reaching layers are interpolated already (rope_type linear), and no server "
    "adds a second scaling to that. A larger factor slows the fast pairs too, which without "
    "training is worse than doing nothing (notebook 14): fine-tune it, or take another model.",
    "proportional": "Its far-reaching layers turn a share of their pairs (rope_type proportional), "
    "and no server adds YaRN to that. The factor that it knows slows every pair, which without "
    "training is worse than doing nothing (notebook 14): fine-tune it, or take another model.",
    "longrope": "Its factors were searched pair by pair (rope_type longrope): they do not stretch "
    "to {target} tokens, a new search is needed (notebook 09).",
    "dynamic": "Dynamic NTK grows with the text and has no longest length (notebook 08): raise the "
    "server's limit to {target}, and see with your own texts whether its factor is enough.",
}


def _plain(number: float):
    """A whole number as one, so that it is written without a point."""
    return int(number) if float(number).is_integer() else number


def _ratio(target: int, length: int) -> float:
    """target/length, or the next number up where rounding would fall short of the target: vLLM
    multiplies length and factor and compares."""
    factor = target / length
    return factor if factor * length >= target else math.nextafter(factor, math.inf)


def _parameters(kinds: tuple[Kind, ...], nested: bool) -> dict:
    """All of `rope_parameters`: by type of layer where the model has it so."""
    whole = {
        kind.name: _beside(kind) | ({"rope_type": "default"} | dict(kind.scaling))
        for kind in kinds
        if kind.rotated
    }
    return whole if nested else next(iter(whole.values()))


def _beside(kind: Kind) -> dict:
    """The keys of a rotation that stay: its base, its share of the head, its axes."""
    keys: dict[str, Any] = {"rope_theta": _plain(kind.base)}
    if kind.rotated != kind.head and not kind.at_end and kind.rope_type != "proportional":
        keys["partial_rotary_factor"] = kind.rotated / kind.head
    if kind.sections is not None:
        keys["mrope_section"] = list(kind.sections)
        if kind.alternate:
            keys["mrope_interleaved"] = True
    return keys


def _in_danger(kind: Kind, L: int) -> bool:
    """Whether a pair makes less than a turn in L tokens: more of them show it new angles."""
    slowed = dict(kind.scaling).get("factor", 1.0)
    return any(turns / slowed < 1 for turns in kind.turns(L))


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
    """The server's command. Its override changes what Transformers has loaded, and not the file."""
    where = ("text_config",) if advice.model.type in NESTED_WHEN_LOADED else advice.model.where
    overrides = json.dumps(_nested_in(advice.changes, where))
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
        command += ["--rope-scaling", "yarn", "--rope-scale", str(_plain(advice.factor))]
        command += ["--yarn-orig-ctx", str(scaling["original_max_position_embeddings"])]
        for key, flag in (("beta_fast", "--yarn-beta-fast"), ("beta_slow", "--yarn-beta-slow")):
            if key in scaling:
                command += [flag, f"{scaling[key]:g}"]
    return shlex.join(command)


# ---- in words ------------------------------------------------------------------------------------


def report(name: str, advice: Advice) -> str:
    """All of it as text: what the file says, what to set, why, at what price, and how."""
    return "\n".join([*_described(name, advice.model), "", *_advised(advice)])


def _wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent)


def _described(name: str, model: Model) -> list[str]:
    lines = [f"{name}: {model.type}, {model.layers} layers, set for {model.length:,} tokens"]
    lines += [_wrapped(in_a_line(kind)) for kind in model.kinds]
    if not model.checked:
        lines.append(
            _wrapped(
                f"The type {model.type} is none of those whose rules were held against "
                f"Transformers: check that the lines above are all that its code does."
            )
        )
    return lines


def in_a_line(kind: Kind) -> str:
    """What these layers do with positions, in words."""
    line = f"{len(kind.layers)} × {kind.name}"
    if kind.window is not None:
        line += f" (window {kind.window:,})"
    if not kind.rotated:
        return line + ": nothing turns"
    slow = sum(turns < 1 for turns in kind.turns(kind.original))
    line += f": {kind.rotated} of {kind.head} channels turn, base {_plain(kind.base):,}"
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
    spelled = for_transformers(advice)
    both = spelled["4"] == spelled["5"]
    version = "" if both else " 5"
    lines = [*_why(advice), ""]
    lines += [f"Transformers{version}, in config.json:", _indented(spelled["5"])]
    if spelled["4"] is None:
        lines.append("Transformers 4: has no key for a rule of its own for each type of layer.")
    elif not both:
        lines += ["Transformers 4, in config.json:", _indented(spelled["4"])]
    lines += ["vLLM:", f"  {for_vllm(advice)}", "llama.cpp:"]
    flags = for_llama_cpp(advice)
    if flags is None:
        lines.append(
            "  no flag: the factors are a tensor of the GGUF file. Convert it anew from the "
            "changed config.json."
        )
    else:
        lines.append(f"  {flags}")
        if advice.factor > 1:
            lines.append(
                f"  (--rope-scale {advice.factor:g} says the same as --rope-freq-scale "
                f"{1 / advice.factor:g}: give one of them)"
            )
    return lines + _for_short_texts(advice) + _notes(advice)


def _why(advice: Advice) -> list[str]:
    L, T, limit = advice.trained, advice.target, free()
    if advice.method == "none" and (advice.far is None or not _in_danger(advice.far, L)):
        if advice.far is None:
            why = "Every layer that turns sees its window and no further, however long the text"
        else:
            why = f"Every pair makes a whole turn within {L:,} tokens"
        why += (
            ": no angle is new past the trained length. What else a model has not learnt to do "
            "there is not measured here."
        )
        return [f"To read {T:,} tokens: change nothing but the limit.", _wrapped(why)]
    if advice.method == "none":
        lost = lost_unscaled(limit)
        why = (
            f"It is {T / L:.2f} times the trained length; a window of {limit:g} times changes "
            f"perplexity by {_in_words(lost['value'], lost['low'], lost['high'])} unscaled.*"
        )
        return [f"To read {T:,} tokens: change nothing but the limit.", _wrapped(why), _WHERE]
    first = (
        f"To read {T:,} tokens, {T / L:.3g} times what it is set for: {NAMES[advice.method]} "
        f"with factor {advice.factor:g}."
    )
    if advice.far.scaling:
        why = (
            f"It is the model's own scaling with a larger factor: no pair meets an angle past "
            f"{L:,} tokens that it does not meet within them. What that costs is not measured here."
        )
        return [first, _wrapped(why)]
    gained, inside = paid("yarn", "end"), paid("linear", "inside")
    why = (
        f"Why: past {limit:g} times the trained length the unscaled model gives out. YaRN set for "
        f"twice changes perplexity there by {gained[2.0]}; interpolating every pair, also set for "
        f"twice, changes it within the trained length by {inside[2.0]}.*"
    )
    cost = (
        f"Price: the perplexity of texts that need no scaling changes by "
        f"{price('yarn', advice.factor)}.* So set no larger factor than you need."
    )
    return [first, _wrapped(why), _wrapped(cost), _WHERE]


_WHERE = "  * SmolLM2-135M past its 8,192 tokens, 95 % intervals: notebooks/14_real_language_model."


def _indented(keys: dict) -> str:
    text = json.dumps(keys, indent=2)
    return "\n".join("  " + line for line in text.splitlines())


def _for_short_texts(advice: Advice) -> list[str]:
    """Rule 4 of notebook 14, where the scaling to set is the first one."""
    if advice.method != "yarn" or advice.far.scaling or advice.model.nested:
        return []
    factor = least_dynamic(advice.far, advice.trained, advice.target)
    if factor is None:
        return []
    setting = _beside(advice.far) | {"rope_type": "dynamic", "factor": round(factor + 5e-3, 2)}
    after = (
        f"Transformers alone has it; max_position_embeddings stays {advice.trained}. vLLM's "
        f"`dynamic` is fixed for the longest text, llama.cpp has none. And a cache may not cross "
        f"a change of base (notebooks/08_context_extension)."
    )
    return [
        "Mostly short texts, and lengths known before the first token? Dynamic NTK, which changes",
        f"nothing within {advice.trained:,} tokens:",
        f'  "rope_parameters": {json.dumps(setting)}',
        _wrapped(after),
    ]


def least_dynamic(kind: Kind, trained: int, target: int) -> float | None:
    """The smallest factor s with which dynamic NTK reaches the target; None where every pair makes
    a whole turn within the trained length.

    NTK reaches T with α = (T/L)^((d − 2)/2k_0), k_0 the first pair of less than a turn (equation 6
    of notebook 14), and dynamic NTK has α = s·T/L − (s − 1) there.
    """
    slow = [k for k, turns in enumerate(kind.turns(trained)) if turns < 1 and k > 0]
    if not slow:
        return None
    ratio = target / trained
    alpha = ratio ** ((kind.rotated - 2) / (2 * slow[0]))
    return (alpha - 1) / (ratio - 1)


def _notes(advice: Advice) -> list[str]:
    scaling = dict(advice.far.scaling) if advice.method == "yarn" else {}
    notes = []
    if scaling.get("truncate") is False:
        notes.append(
            "Note: llama.cpp begins and ends YaRN's ramp at whole pairs; this model's file says "
            "truncate: false."
        )
    if "attention_factor" in scaling:
        notes.append("Note: vLLM and llama.cpp pass over attention_factor and use 0.1·ln s + 1.")
    return notes


def run(path: str, target: int, trained: int | None = None) -> Advice:
    """Print what to set so that the model of a config.json reads `target` tokens.

    Raises ValueError as `rope_config.read` and `advise`, and for lengths below 1; OSError for a
    file that is not there.
    """
    for what, length in (("--to", target), ("--from", trained)):
        if length is not None and length < 1:
            raise ValueError(f"{what} must be at least 1 token, not {length}.")
    advice = advise(rope_config.read(path), target, trained)
    print(report(path, advice))
    return advice
