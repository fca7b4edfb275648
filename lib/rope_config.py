"""How a model turns its queries and keys, read from its `config.json`.

Hugging Face writes RoPE in two spellings: `rope_theta` beside `rope_scaling` (Transformers 4), and
`rope_parameters` with the base inside, for all layers or for each type of layer (Transformers 5).
What differs between layers stands in yet other keys: Gemma 3's two bases, the layers of Llama 4 and
SmolLM3 that turn nothing (in `no_rope_layers` a 1 means turned), DeepSeek's rotary part beside the
head. `read` makes one description of all of it, in the terms of `lib.encodings.build`:

    model = rope_config.read("config.json")
    for kind in model.kinds:                                # layers that treat positions alike
        rope = build(kind.encoding, **kind.sizes, **kind.options)

Keys that have nothing to do with positions are passed over. A key that looks as if it had (its name
holds rope, rotary, theta, position and the like, or is nearly a known one) and is not understood is
an error that names it; so is a value that makes no sense, and two keys that disagree.
A key whose value is null or false counts as missing. A model's `vision_config` and the like are
other models and are not read.

Nothing here imports torch: a command that asks for a setting answers at once. What is checked here
`build` checks as well, and a test builds whatever is read. The rules follow Transformers
5.24.0 (`modeling_rope_utils` and the configuration classes), from which DEFAULTS is taken too.
"""

import difflib
import json
import math
import re
from collections import ChainMap
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

# What a model type leaves out of its file when it is as usual: Transformers' own defaults.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 1e4},
    "mistral": {"rope_theta": 1e4},
    "mixtral": {"rope_theta": 1e6},
    "qwen2": {"rope_theta": 1e4},
    "qwen2_moe": {"rope_theta": 1e4},
    "qwen3": {"rope_theta": 1e4, "head_dim": 128},
    "qwen3_moe": {"rope_theta": 1e4},
    "qwen2_vl": {"rope_theta": 1e6},
    "qwen2_vl_text": {"rope_theta": 1e6},
    "qwen2_5_vl": {"rope_theta": 1e6},
    "qwen2_5_vl_text": {"rope_theta": 1e6},
    "olmo": {"rope_theta": 1e4},
    "olmo2": {"rope_theta": 1e4},
    "olmoe": {"rope_theta": 1e4},
    "granite": {"rope_theta": 1e4},
    "granitemoe": {"rope_theta": 1e4},
    "starcoder2": {"rope_theta": 1e4},
    "seed_oss": {"rope_theta": 1e4},
    "phi": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "nemotron": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "glm4": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "stablelm": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
    "gpt_neox": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
    "cohere": {"rope_theta": 5e5},
    "ernie4_5": {"rope_theta": 5e5},
    "deepseek_v2": {"rope_theta": 1e4, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
    "gemma": {"rope_theta": 1e4, "head_dim": 256},
    "gemma2": {
        "rope_theta": 1e4, "head_dim": 256, "sliding_window_pattern": 2, "sliding_window": 4096,
    },
    "phi3": {"rope_theta": 1e4, "original_max_position_embeddings": 4096},
    "deepseek_v3": {
        "rope_theta": 1e4, "rope_interleave": True,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    },
    "gemma3_text": {
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
        "head_dim": 256, "num_attention_heads": 8, "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "gemma4_text": {
        "sliding_window_pattern": 6, "head_dim": 256, "global_head_dim": 512,
        "num_attention_heads": 8, "max_position_embeddings": 131072, "sliding_window": 512,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6,
            },
        },
    },
    "gpt_oss": {
        "rope_theta": 150000.0, "head_dim": 64, "sliding_window_pattern": 2, "sliding_window": 128,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        },
    },
    "smollm3": {"rope_theta": 2e6, "no_rope_layer_interval": 4},
    "llama4_text": {
        "rope_theta": 5e5, "head_dim": 128, "num_attention_heads": 40,
        "no_rope_layer_interval": 4, "attention_chunk_size": 8192,
        "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1,
    },
    "cohere2": {"rope_theta": 1e4, "sliding_window_pattern": 4, "sliding_window": 4096},
    "exaone4": {"rope_theta": 1e4, "sliding_window_pattern": 4, "sliding_window": 4096},
}  # fmt: skip
# Whose code, and no key, says that pairs of channels lie together …
INTERLEAVED = ("llama4_text", "cohere", "cohere2", "deepseek_v2", "ernie4_5", "glm4")
# … and that only layers with a window are turned, where there is a window at all.
TURNS_WINDOWS = ("cohere2", "exaone4")

# The keys that a scaling needs, and those that it may have besides.
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": (
        ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
        (),
    ),
    "longrope": (
        ("factor", "original_max_position_embeddings", "short_factor", "long_factor"),
        ("attention_factor",),
    ),
    "proportional": (("partial_rotary_factor",), ("factor",)),
}
OLD_NAMES = {"su": "longrope", "mrope": "default"}
# In a scaling's dictionary, and not the scaling's: read by themselves, or without any effect.
BESIDE = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved", "finetuned")

KNOWN = (
    "rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "rope_local_base_freq",
    "max_position_embeddings", "original_max_position_embeddings", "initial_context_length",
    "partial_rotary_factor", "rotary_pct", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim",
    "rope_interleave", "rope_interleaved", "no_rope_layers", "no_rope_layer_interval",
    "layer_types", "sliding_window_pattern", "attn_temperature_tuning", "floor_scale", "attn_scale",
    "per_layer_config", "global_head_dim",
)  # fmt: skip
LIKE_POSITIONS = re.compile(r"rope|rotary|theta|position|yarn|alibi|ntk|logn|xpos")
# Other spellings of a key; the first one counts.
SAME = {
    "rope_theta": ("rotary_emb_base",),
    "partial_rotary_factor": ("rotary_pct",),
    "rope_interleave": ("rope_interleaved",),
    "original_max_position_embeddings": ("initial_context_length",),
    "sliding_window_pattern": ("_sliding_window_pattern",),
}
INNER = ("text_config", "llm_config", "language_config", "thinker_config")
UNTURNED = ("linear_attention", "mamba", "conv")  # layer types without queries and keys
WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}


@dataclass(frozen=True)
class Kind:
    """Layers of a model that treat positions alike.

    Args:
        name: Hugging Face's name of their type, "full_attention" where the file names none.
        layers: their numbers, from 0.
        window: how many tokens back a query sees; None: all.
        heads, head: how many heads, and the width of their queries and keys.
        rotated: how many channels of a head turn; 0: none do.
        at_end: whether they are the head's last channels (DeepSeek) and not its first.
        base: of the frequencies; None where nothing turns.
        interleaved: whether a pair is (2k, 2k + 1), and not (k, k + rotated/2).
        scaling: the scaling's keys and values, "rope_type" among them; () scales nothing.
        sections: pairs for time, height and width (M-RoPE); None: one position a token.
        alternate: whether the axes of M-RoPE take turns from pair to pair.
        temperature: Llama 4's (attn_scale, floor_scale), or None.
        original: L, the length that the scaling begins at, or what the model reads.
    """

    name: str
    layers: tuple[int, ...]
    window: int | None
    heads: int
    head: int
    rotated: int
    at_end: bool
    base: float | None
    interleaved: bool
    scaling: tuple[tuple[str, Any], ...]
    sections: tuple[int, ...] | None
    alternate: bool
    temperature: tuple[float, int] | None
    original: int

    @property
    def rope_type(self) -> str:
        return dict(self.scaling).get("rope_type", "default")

    @property
    def encoding(self) -> str:
        """The name that `build` knows."""
        if not self.rotated:
            return "nope"
        return "rope" if self.sections is None else "mrope"

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "d_model": self.heads * self.head, "n_heads": self.heads, "max_length": self.original
        }  # fmt: skip

    @property
    def options(self) -> dict[str, Any]:
        """What `build` takes besides the sizes."""
        found: dict[str, Any] = {}
        if self.temperature is not None:
            found["temperature"] = dict(
                zip(("attn_scale", "floor_scale"), self.temperature, strict=True)
            )
        if not self.rotated:
            return found
        found["base"] = self.base
        found["layout"] = "interleaved" if self.interleaved else "half_split"
        if self.scaling:
            found["scaling"] = dict(self.scaling)
        if self.rope_type != "proportional" and self.rotated != self.head:
            found |= {"rotated": self.rotated, "rotated_at": "last" if self.at_end else "first"}
        if self.sections is not None:
            found |= {"sections": self.sections, "interleaved": self.alternate}
        # DeepSeek's attention multiplies its logits as well.
        if self.at_end and dict(self.scaling).get("mscale_all_dim"):
            found["scale_logits"] = True
        return found

    def turns(self, length: int) -> list[float]:
        """r_k = L·θ_k/2π, the turns of each pair within `length` tokens, before any scaling."""
        d = self.head if self.rope_type == "proportional" else self.rotated
        return [
            length * self.base ** (-2 * k / d) / (2 * math.pi) for k in range(self.rotated // 2)
        ]


@dataclass(frozen=True)
class Model:
    """What a `config.json` says about positions.

    Args:
        type: the file's model_type.
        checked: whether this type's rules were held against Transformers; else the keys of the
            file are all that is known.
        length: how many tokens it is set for.
        layers: how many.
        kinds: its layers, those that treat positions alike together, in order of appearance.
        where: the keys that lead to the text model's part of the file.
        nested: whether RoPE differs between the types of its layers, or the file has it so.
    """

    type: str
    checked: bool
    length: int
    layers: int
    kinds: tuple[Kind, ...]
    where: tuple[str, ...]
    nested: bool


def read(path) -> Model:
    """The description in a `config.json`, or in the one of a model's folder.

    Raises:
        ValueError: no JSON, or as `describe`.
        OSError: no such file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}.") from None
    return describe(config)


def _object(pairs) -> dict:
    """One object of the file; ValueError where it has a key twice, with two values."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if found.setdefault(key, value) != value:
            raise ValueError(f"The key {key!r} stands twice in the file: keep one.")
    return found


def describe(config: dict) -> Model:
    """The description in the contents of a `config.json`.

    Raises:
        ValueError: a key that looks like positions and is not understood, a key missing, a value
            that makes no sense, or two keys that disagree. The sentence names the key.
    """
    if not isinstance(config, dict):
        raise ValueError(f"A config.json holds one object, {{…}}, not {type(config).__name__}.")
    c, where = _text_part(config)
    _refuse_unknown(c)
    c = _completed(c)
    n = _whole(c, "num_hidden_layers")
    length = _whole(c, "max_position_embeddings")
    types = _types_of_layers(c, n)
    rotations = _rotations(c, types, length)
    turned = _turned(c, types, n)
    heads = _heads(c, types, n)
    alike: dict[Kind, list[int]] = {}
    for i, name in enumerate(types):
        kind = _kind(c, name, heads[i], rotations[name] if turned[i] else None, length)
        alike.setdefault(kind, []).append(i)
    kinds = tuple(replace(kind, layers=tuple(layers)) for kind, layers in alike.items())
    scalings = [dict(kind.scaling) for kind in kinds if kind.rope_type == "yarn"]
    reach = [int(s["factor"] * s["original_max_position_embeddings"]) for s in scalings]
    rules = {(kind.base, kind.scaling, kind.rotated) for kind in kinds if kind.rotated}
    return Model(
        type=c["model_type"],
        checked=c["model_type"] in DEFAULTS,
        length=max([length, *reach]),
        layers=n,
        kinds=kinds,
        where=where,
        nested=len(rules) > 1 or _by_type(c.get("rope_parameters")),
    )


def _by_type(parameters) -> bool:
    """Whether `rope_parameters` holds a dictionary for each type of layer."""
    return isinstance(parameters, dict) and any(isinstance(x, dict) for x in parameters.values())


# ---- the file ------------------------------------------------------------------------------------


def _text_part(config: dict) -> tuple[dict, tuple[str, ...]]:
    """The keys of the text model that are set, and where in the file they stand."""
    outer = {key: value for key, value in config.items() if value is not None}
    for name in INNER:
        if isinstance(outer.get(name), dict):
            inner, where = _text_part(outer[name])
            for key, value in outer.items():
                if not _about_positions(key) or value is False:
                    continue
                if inner.setdefault(key, value) != value:
                    raise ValueError(
                        f"{key} = {value!r} and {name}.{key} = {inner[key]!r} disagree: keep one."
                    )
            inner.setdefault("model_type", outer.get("model_type", "unknown"))
            return inner, (name, *where)
    outer.setdefault("model_type", "unknown")
    return outer, ()


def _about_positions(key: str) -> bool:
    return key in KNOWN or bool(LIKE_POSITIONS.search(key))


def _refuse_unknown(c: dict):
    same = {other for others in SAME.values() for other in others}
    for key, value in c.items():
        if key in KNOWN or key in same or value is False:
            continue
        near = difflib.get_close_matches(key, KNOWN, 1, cutoff=0.88)
        if not near and not LIKE_POSITIONS.search(key):
            continue
        if key == "position_embedding_type" and value in ("rope", "rotary"):
            continue
        meant = f": perhaps {near[0]} is meant." if near else "."
        raise ValueError(f"The key {key!r} looks like one about positions, and is unknown{meant}")


def _completed(c: dict) -> ChainMap:
    """The keys under their first spelling, in front of the model type's defaults."""
    c = dict(c)
    for key, others in SAME.items():
        for other in others:
            if other in c:
                value = c.pop(other)
                if c.setdefault(key, value) != value:
                    raise ValueError(f"{key} = {c[key]!r} and {other} = {value!r} disagree.")
    if c.get("no_rope_layers") == []:  # as Llama 4 writes "as usual"
        del c["no_rope_layers"]
    usual = DEFAULTS.get(c["model_type"], {})
    if "rope_parameters" in c or "rope_scaling" in c:
        usual = {key: value for key, value in usual.items() if key != "rope_parameters"}
    return ChainMap(c, usual)


# ---- values --------------------------------------------------------------------------------------


def _present(c: dict, key: str, where: str = ""):
    if key not in c:
        raise ValueError(f"{where or 'The file'} needs the key {key!r}.")
    return c[key]


def _whole(c: dict, key: str, least: int = 1, where: str = "") -> int:
    value = _present(c, key, where)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{key} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def _number(c: dict, key: str, least: float = 0.0) -> float:
    value = c[key]
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{key} must be a positive number, not {value!r}.")
    if value < least:
        raise ValueError(f"{key} must be at least {least:g} (it lengthens), not {value!r}.")
    return float(value)


# ---- layers --------------------------------------------------------------------------------------


def _types_of_layers(c: dict, n: int) -> list[str]:
    if "layer_types" in c:
        types = c["layer_types"]
        if not isinstance(types, list) or len(types) != n:
            raise ValueError(f"layer_types must name the type of each of the {n} layers.")
        for name in types:
            if name not in ("full_attention", *WINDOWS, *UNTURNED):
                raise ValueError(f"layer_types has {name!r}, which is not understood.")
        return types
    if "sliding_window_pattern" in c and "sliding_window" in c:
        every = _whole(c, "sliding_window_pattern")
        types = [
            "full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(n)
        ]
        if c["model_type"] == "gemma4_text":
            types[-1] = "full_attention"
        return types
    if c["model_type"] == "llama4_text" and c.get("attention_chunk_size"):
        return ["chunked_attention" if x else "full_attention" for x in _turned(c, [""] * n, n)]
    return ["full_attention"] * n


def _turned(c: dict, types: list[str], n: int) -> list[bool]:
    """Whether each layer turns its queries and keys. In `no_rope_layers` a 1 means that it does."""
    if "no_rope_layers" in c:
        marks = c["no_rope_layers"]
        if not isinstance(marks, list) or len(marks) != n or set(marks) - {0, 1}:
            raise ValueError(
                f"no_rope_layers must hold a 1 (turned) or a 0 (not) for each of the {n} layers."
            )
        turned = [bool(mark) for mark in marks]
    elif "no_rope_layer_interval" in c:
        every = _whole(c, "no_rope_layer_interval")
        turned = [(i + 1) % every != 0 for i in range(n)]
    else:
        turned = [True] * n
    if c["model_type"] in TURNS_WINDOWS and "sliding_window" in c:
        turned = [name in WINDOWS for name in types]
    return [x and name not in UNTURNED for x, name in zip(turned, types, strict=True)]


def _heads(c: dict, types: list[str], n: int) -> list[int]:
    """The width of a head in each layer."""
    if "qk_rope_head_dim" in c:
        return [_whole(c, "qk_nope_head_dim", 0) + _whole(c, "qk_rope_head_dim")] * n
    heads = _whole(c, "num_attention_heads")
    if "head_dim" in c:
        width = _whole(c, "head_dim")
    else:
        width, rest = divmod(_whole(c, "hidden_size"), heads)
        if rest:
            raise ValueError(f"{heads} heads do not divide hidden_size = {c['hidden_size']}.")
    widths = [width] * n
    if "per_layer_config" in c:  # Transformers 5 writes Gemma 4's wide heads so
        per_layer = c["per_layer_config"]
        for i, changes in per_layer.items():
            if "head_dim" in changes:
                widths[int(i)] = _whole(changes, "head_dim")
    elif "global_head_dim" in c:
        wide = _whole(c, "global_head_dim")
        widths = [wide if name == "full_attention" else width for name in types]
    return widths


# ---- rotation ------------------------------------------------------------------------------------


def _rotations(c: ChainMap, types: list[str], length: int) -> dict[str, dict | None]:
    """The dictionary of each type of layer, in today's spelling: rope_type and rope_theta in it.
    None: layers of that type turn nothing."""
    found = c.get("rope_parameters")
    if "rope_scaling" in c:
        if found is not None and found != c["rope_scaling"]:
            raise ValueError("rope_parameters and rope_scaling disagree: keep one of them.")
        found = c["rope_scaling"]
    found = {} if found is None else found
    if not isinstance(found, dict):
        raise ValueError(f"rope_parameters must be an object, not {found!r}.")
    names = list(dict.fromkeys(types))
    nested = _by_type(found)
    local = "rope_local_base_freq" in c and any(name in WINDOWS for name in names)
    rotations = {}
    if nested:
        for name in found:
            if name not in names:
                raise ValueError(f"rope_parameters has {name!r}, and no layer is of that type.")
        for name in names:
            if name not in found and name not in UNTURNED:
                raise ValueError(f"rope_parameters says nothing of the layers {name!r}.")
    for name in names:
        if nested:
            own = found.get(name)
            if own is None:  # these layers turn nothing
                rotations[name] = None
                continue
            base = "rope_local_base_freq" if local and name in WINDOWS else "rope_theta"
        elif local and name in WINDOWS:  # Gemma 3: the scaling is that of the global layers
            own, base = {}, "rope_local_base_freq"
        else:
            own, base = found, "rope_theta"
        rotations[name] = _spelled_out(own, c, base, length)
    return rotations


def _spelled_out(own: dict, c: ChainMap, base: str, length: int) -> dict:
    """One dictionary with rope_type, rope_theta and whatever of it stands outside in the file."""
    own = {key: value for key, value in own.items() if value is not None}
    said = {str(own.pop(key)) for key in ("rope_type", "type") if key in own}
    said = {OLD_NAMES.get(name, name) for name in said} or {"default"}
    if len(said) != 1:
        raise ValueError(f"rope_type and type are two types: {' and '.join(sorted(said))}.")
    own["rope_type"] = said.pop()
    for key, outside in (
        ("rope_theta", base),
        ("partial_rotary_factor", "partial_rotary_factor"),
        ("original_max_position_embeddings", "original_max_position_embeddings"),
    ):
        if key in own and c.maps[0].get(outside, own[key]) != own[key]:
            raise ValueError(f"{key} = {own[key]!r} and {outside} = {c[outside]!r} disagree.")
        length_of = key == "original_max_position_embeddings"
        if outside in c and not (length_of and key not in _knows(own["rope_type"])):
            own.setdefault(key, c[outside])
    return _with_lengths(own, length)


def _knows(rope_type: str) -> tuple[str, ...]:
    if rope_type not in SCALINGS:
        raise ValueError(
            f"There is no rope_type {rope_type!r}: it must be one of {', '.join(SCALINGS)}."
        )
    return SCALINGS[rope_type][0] + SCALINGS[rope_type][1]


def _with_lengths(own: dict, length: int) -> dict:
    """The original length and the factor where they follow from the model's length."""
    name, key = own["rope_type"], "original_max_position_embeddings"
    if name == "dynamic" and own.setdefault(key, length) != length:
        raise ValueError(
            f"rope_type dynamic begins at max_position_embeddings = {length}, and {key} = "
            f"{own[key]} has no effect: leave it out."
        )
    if name in ("yarn", "llama3"):
        own.setdefault(key, length)
    if key in _knows(name) and key in own:
        original = _whole(own, key)
        if original > length:
            raise ValueError(
                f"{key} = {original} is longer than max_position_embeddings = {length}: "
                f"a scaling lengthens."
            )
        if name in ("yarn", "longrope"):
            own.setdefault("factor", length / original)
    return own


def _kind(c: dict, name: str, head: int, own: dict | None, length: int) -> Kind:
    """One layer's kind, without its number."""
    window = c.get(WINDOWS.get(name, ""))
    temperature = None
    if c.get("attn_temperature_tuning") and own is None and name not in UNTURNED:
        temperature = _number(c, "attn_scale"), _whole(c, "floor_scale")
    latent = "qk_rope_head_dim" in c
    heads = _whole(c, "num_attention_heads")
    still = Kind(
        name, (), window, heads, head, 0, False, None, False, (), None, False, temperature, length
    )
    if own is None:
        return still
    rotated = _whole(c, "qk_rope_head_dim") if latent else _rotated(c, own, head)
    if "rope_theta" not in own:
        raise ValueError(
            "The file needs the key 'rope_theta': the base of the frequencies is not the same in "
            "all models."
        )
    sections, alternate = _sections(own, rotated)
    scaling = _scaling(own, rotated)
    base = _number(own, "rope_theta")
    if base <= 1:
        raise ValueError(f"rope_theta must be above 1, not {base:g}.")
    return replace(
        still,
        rotated=rotated,
        at_end=latent and rotated < head,
        base=base,
        interleaved=bool(c.get("rope_interleave")) or c["model_type"] in INTERLEAVED,
        scaling=scaling,
        sections=sections,
        alternate=alternate,
        original=dict(scaling).get("original_max_position_embeddings", length),
    )


def _rotated(c: dict, own: dict, head: int) -> int:
    """How many channels of a head turn."""
    width = head
    if "partial_rotary_factor" in own:
        share = _number(own, "partial_rotary_factor")
        if share > 1:
            raise ValueError(
                f"partial_rotary_factor = {share:g} makes a rotary part wider than the head: it is "
                f"a share, at most 1."
            )
        if own["rope_type"] == "proportional":
            width = 2 * int(share * head // 2)
        else:
            width = int(share * head)
    if "rotary_dim" in c:
        given = _whole(c, "rotary_dim")
        if "partial_rotary_factor" in own and given != width:
            raise ValueError(f"rotary_dim = {given} and partial_rotary_factor disagree.")
        width = given
    if width > head:
        raise ValueError(f"rotary_dim = {width} is a rotary part wider than the head, {head}.")
    if width % 2 or not width:
        raise ValueError(f"A rotary part of {width} channels has no whole pairs: it must be even.")
    return width


def _sections(own: dict, rotated: int) -> tuple[tuple[int, ...] | None, bool]:
    alternate = own.get("mrope_interleaved", False)
    if not isinstance(alternate, bool):
        raise ValueError(f"mrope_interleaved must be true or false, not {alternate!r}.")
    sections = own.get("mrope_section")
    if sections is None:
        if alternate:
            raise ValueError("mrope_interleaved needs the key 'mrope_section'.")
        return None, False
    whole = isinstance(sections, list) and all(
        isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in sections
    )
    if not whole or len(sections) != 3 or sum(sections) != rotated // 2:
        raise ValueError(
            f"mrope_section must be three numbers of pairs that sum to {rotated // 2}, "
            f"not {sections!r}."
        )
    return tuple(sections), alternate


def _scaling(own: dict, rotated: int) -> tuple[tuple[str, Any], ...]:
    """The scaling's own keys and values, checked; () where nothing is scaled."""
    name = own["rope_type"]
    needed, more = SCALINGS[name]
    for key in own:
        if key not in ("rope_type", *needed, *more, *BESIDE):
            near = difflib.get_close_matches(key, needed + more + BESIDE, 1)
            meant = f": perhaps {near[0]} is meant." if near else "."
            raise ValueError(f"rope_type {name} does not know the key {key!r}{meant}")
    for key in needed:
        _present(own, key, f"rope_type {name}")
    found: dict[str, Any] = {"rope_type": name}
    for key in (*needed, *more):
        if key in own:
            found[key] = _value(own, key, rotated)
    if name == "dynamic" and rotated == 2:
        raise ValueError("rope_type dynamic needs two pairs that turn, and there is one.")
    _check_together(found)
    return () if name == "default" else tuple(found.items())


def _value(own: dict, key: str, rotated: int):
    if key == "factor":
        return _number(own, key, least=1)
    if key == "original_max_position_embeddings":
        return _whole(own, key, 2 if own["rope_type"] == "longrope" else 1)
    if key == "truncate":
        if not isinstance(own[key], bool):
            raise ValueError(f"truncate must be true or false, not {own[key]!r}.")
        return own[key]
    if key in ("short_factor", "long_factor"):
        factors = own[key]
        if not isinstance(factors, list) or len(factors) != rotated // 2:
            raise ValueError(f"{key} must be a list of {rotated // 2} numbers, one for each pair.")
        return tuple(_number({f"{key}[{i}]": x}, f"{key}[{i}]") for i, x in enumerate(factors))
    return _number(own, key)


def _check_together(s: dict):
    """ValueError where two values of a scaling contradict each other."""
    fast, slow = s.get("beta_fast", 32.0), s.get("beta_slow", 1.0)
    if fast < slow:
        raise ValueError(f"beta_fast = {fast:g} must not be below beta_slow = {slow:g}.")
    if ("mscale" in s) != ("mscale_all_dim" in s):
        raise ValueError("mscale and mscale_all_dim act together: give both or none.")
    low, high = s.get("low_freq_factor", 0), s.get("high_freq_factor", 1)
    if low > high:
        raise ValueError(
            f"high_freq_factor = {high:g} must not be below low_freq_factor = {low:g}."
        )
