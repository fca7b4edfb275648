"""The scalings of RoPE: what is done to its frequencies so that a model reads past its training.

Every scaling turns θ_k = b^(−2k/d), k = 0 … d/2 − 1, into other frequencies θ'_k, and may multiply
queries and keys by an attention factor:

    linear         θ/s: every position is interpolated           Chen et al. 2023, equation 4
    ntk            θ of the base b·s^(d/(d−2))                    Peng et al. 2023, definition 1
    dynamic        the same, with s growing with the length       Peng et al. 2023, section 3.3
    ntk_by_parts   θ for fast pairs, θ/s for slow ones            Peng et al. 2023, definition 2
    yarn           by parts, and logits divided by a temperature  Peng et al. 2023, definition 3
    llama3         by parts, the ramp in turns                    Llama 3.1's published code
    longrope       θ/λ_k, a factor for each pair                  Ding et al. 2024, equation 3
    proportional   θ for fast pairs, 0 for slow ones              Barbero et al. 2024, section 6

Letters: d the width that turns, all of a head or a part of it (`lib.encodings.rope`), s the factor,
L the original length, r_k = L·θ_k/2π the turns that pair k makes within L, γ_k the share of pair k
that stays as it was. A scaling's fields are the keys of Hugging Face's `rope_parameters`, in whose
terms the public configuration files are written; `read` takes such a dictionary, in the new
spelling or the old one. Keys of our own are `ntk`, `ntk_by_parts`, `ramp` and `start_tokens`.
"""

import math
from dataclasses import MISSING, dataclass, fields
from numbers import Real

import torch

from lib.encodings.base import check_positive, check_whole, geometric_frequencies

BASE = 10000.0  # of the paper

SCALINGS: dict[str, type["Scaling"]] = {}


def named(rope_type: str):
    """Class decorator: the scaling that a dictionary calls `rope_type`."""

    def add(cls):
        cls.rope_type = rope_type
        SCALINGS[rope_type] = cls
        return cls

    return add


@dataclass(frozen=True)
class Scaling:
    """What all scalings share; the subclasses add the keys that they know.

    Raises ValueError for a factor below 1 and for whatever the subclass cannot serve.
    """

    factor: float

    def __post_init__(self):
        check_positive(factor=self.factor)
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1 (it lengthens), not {self.factor!r}.")

    def check(self, d: int, base: float):
        """ValueError where a head of width d with this base cannot be scaled so."""

    def frequencies(self, d: int, base: float, length):
        """θ'_k in radians a position, float64: (d/2,), or (…, d/2) for `length` (…).

        length: that of the sequence, a float64 tensor; only what depends on it looks at it.
        """
        raise NotImplementedError

    def phase(self, positions, d: int, base: float, length):
        """p·θ'_k, float64: positions (T,) → (T, d/2), or (B, T) → (B, T, d/2)."""
        theta = self.frequencies(d, base, length)
        return positions.to(torch.float64)[..., None] * theta

    @property
    def linear_in_positions(self) -> bool:
        """Whether the phase of a pair is p times one frequency, for all p of a sequence."""
        return True

    @property
    def amplitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0

    @property
    def softmax_factor(self) -> float:
        """What an attention that knows of it multiplies its logits by, besides."""
        return 1.0

    @property
    def unscaled_length(self) -> int | None:
        """The length up to which the frequencies stay the same; None where length is no matter."""
        return None


@named("linear")
@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: θ' = θ/s."""

    def frequencies(self, d, base, length):
        return geometric_frequencies(d // 2, base, length.device) / self.factor


@named("ntk")
@dataclass(frozen=True)
class NTK(Scaling):
    """NTK-aware: b' = b·s^(d/(d−2)), so that θ'_0 = θ_0 and the last θ' is θ/s exactly."""

    def check(self, d, base):
        _check_more_than_one_pair(d, self.rope_type)
        if math.log(base) + d / (d - 2) * math.log(self.factor) > 700:
            raise ValueError(f"factor = {self.factor} makes a base that no float holds: lower it.")

    def frequencies(self, d, base, length):
        return geometric_frequencies(d // 2, base * self.factor ** (d / (d - 2)), length.device)


@named("dynamic")
@dataclass(frozen=True)
class Dynamic(Scaling):
    """NTK-aware for the length T at hand: b' = b·(s·T/L − (s − 1))^(d/(d−2)) for T > L, else b.

    At T = s·L it is NTK's of factor s² − s + 1. Transformers takes L from the model's own length
    and passes over the one in its dictionary.
    """

    original_max_position_embeddings: int

    def __post_init__(self):
        super().__post_init__()
        check_whole(original_max_position_embeddings=self.original_max_position_embeddings)

    def check(self, d, base):
        _check_more_than_one_pair(d, self.rope_type)

    def frequencies(self, d, base, length):
        s, L = self.factor, self.original_max_position_embeddings
        T = length.clamp(min=L)[..., None]  # (…, 1)
        k = torch.arange(d // 2, dtype=torch.float64, device=length.device)
        return (base * (s * T / L - (s - 1)) ** (d / (d - 2))) ** (-2 * k / d)

    @property
    def unscaled_length(self):
        return self.original_max_position_embeddings


@named("ntk_by_parts")
@dataclass(frozen=True)
class NTKByParts(Scaling):
    """θ' = (1 − γ)·θ/s + γ·θ: γ is 1 for pairs that turn more than β_fast times within L, 0 for
    those that turn less than β_slow times, and a ramp between.

    Args:
        ramp: linear in the index of the pair, "dimension", as in the authors' and everybody's code,
            or in the number of turns, "turns", as in the paper. At d = 128, s = 16 the frequencies
            on the ramp differ up to threefold.
        truncate: the ramp begins and ends at whole pairs (ramp "dimension" alone; None: it does).
    """

    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool | None = None
    ramp: str = "dimension"

    def __post_init__(self):
        super().__post_init__()
        check_whole(original_max_position_embeddings=self.original_max_position_embeddings)
        check_positive(beta_fast=self.beta_fast, beta_slow=self.beta_slow)
        step = self.ramp != "turns"  # as wide as the pairs that round its ends
        if self.beta_fast < self.beta_slow or (self.beta_fast == self.beta_slow and not step):
            raise ValueError(
                f"beta_fast = {self.beta_fast} must be above beta_slow = {self.beta_slow}: "
                f"fast pairs turn more often."
            )
        if self.ramp not in ("dimension", "turns"):
            raise ValueError(f"ramp must be one of dimension, turns, not {self.ramp!r}.")
        if not (self.truncate is None or isinstance(self.truncate, bool)):
            raise ValueError(f"truncate must be true or false, not {self.truncate!r}.")
        if self.ramp == "turns" and self.truncate is not None:
            raise ValueError("truncate has no effect on ramp 'turns': leave it out.")

    def check(self, d, base):
        if base <= 1:
            raise ValueError(f"{self.rope_type} needs a base above 1, not {base}.")

    def kept(self, d: int, base: float, theta):
        """γ_k, the share of each pair that stays as it was: (d/2,)."""
        L = self.original_max_position_embeddings
        if self.ramp == "turns":
            return _ramp_in_turns(L, theta, self.beta_slow, self.beta_fast)

        def dim(r):  # the pair that turns r times within L
            return d * math.log(L / (2 * math.pi * r)) / (2 * math.log(base))

        low, high = dim(self.beta_fast), dim(self.beta_slow)
        if high < 0:  # no pair turns even β_slow times
            return torch.zeros_like(theta)
        if self.truncate is not False:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        if low >= high:
            high = low + 0.001  # a step
        k = torch.arange(d // 2, dtype=torch.float64, device=theta.device)
        return 1 - ((k - low) / (high - low)).clamp(0, 1)

    def frequencies(self, d, base, length):
        theta = geometric_frequencies(d // 2, base, length.device)
        return _by_parts(self.kept(d, base, theta), theta, self.factor)


@named("yarn")
@dataclass(frozen=True)
class YaRN(NTKByParts):
    """By parts, with q and k multiplied by √(1/t) = 0.1·ln s + 1: the logits are divided by t.

    Args:
        attention_factor: what q and k are multiplied by, instead of √(1/t).
        mscale, mscale_all_dim: m and m' in (0.1·m·ln s + 1)/(0.1·m'·ln s + 1), which takes the
            place of √(1/t) in DeepSeek's models; both or none. An attention factor goes first.
            Those models multiply their logits by (0.1·m'·ln s + 1)² besides, which is here the
            `softmax_factor`: the rotation does it where it is built with scale_logits.
    """

    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self):
        super().__post_init__()
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError("mscale and mscale_all_dim act together: give both or none.")
        if self.mscale is not None:
            check_positive(mscale=self.mscale, mscale_all_dim=self.mscale_all_dim)
        if self.attention_factor is not None:
            check_positive(attention_factor=self.attention_factor)

    @property
    def amplitude(self):
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None:
            return self._grown(self.mscale) / self._grown(self.mscale_all_dim)
        return self._grown(1.0)

    @property
    def softmax_factor(self):
        return 1.0 if self.mscale_all_dim is None else self._grown(self.mscale_all_dim) ** 2

    def _grown(self, m: float) -> float:
        return 0.1 * m * math.log(self.factor) + 1


@named("llama3")
@dataclass(frozen=True)
class Llama3(Scaling):
    """By parts: γ rises from 0 at `low_freq_factor` turns within L to 1 at `high_freq_factor`."""

    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self):
        super().__post_init__()
        check_whole(original_max_position_embeddings=self.original_max_position_embeddings)
        low, high = self.low_freq_factor, self.high_freq_factor
        check_positive(low_freq_factor=low, high_freq_factor=high)
        if high < low:
            raise ValueError(
                f"high_freq_factor = {high} must not be below low_freq_factor = {low}."
            )

    def frequencies(self, d, base, length):
        theta = geometric_frequencies(d // 2, base, length.device)
        L, low, high = (
            self.original_max_position_embeddings, self.low_freq_factor, self.high_freq_factor
        )  # fmt: skip
        return _by_parts(_ramp_in_turns(L, theta, low, high), theta, self.factor)


@named("longrope")
@dataclass(frozen=True)
class LongRoPE(Scaling):
    """θ'_k = θ_k/λ_k, with a factor for each pair; q and k are multiplied by √(1 + ln s / ln L).

    Args:
        short_factor, long_factor: λ_k for sequences of at most L tokens, and for longer ones.
        start_tokens: n̂, the first positions of a sequence, which turn as they did in training.
        attention_factor: what q and k are multiplied by, instead of the formula.
    """

    original_max_position_embeddings: int
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    start_tokens: int = 0
    attention_factor: float | None = None

    def __post_init__(self):
        super().__post_init__()
        check_whole(2, original_max_position_embeddings=self.original_max_position_embeddings)
        check_whole(0, start_tokens=self.start_tokens)
        if self.attention_factor is not None:
            check_positive(attention_factor=self.attention_factor)
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if not isinstance(factors, list | tuple):
                raise ValueError(f"{name} must be a list of numbers, not {factors!r}.")
            for i, value in enumerate(factors):
                check_positive(**{f"{name}[{i}]": value})
            object.__setattr__(self, name, tuple(factors))

    def check(self, d, base):
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != d // 2:
                raise ValueError(
                    f"{name} must have a factor for each of the {d // 2} pairs of a head, "
                    f"not {len(getattr(self, name))}."
                )

    def frequencies(self, d, base, length):
        theta = geometric_frequencies(d // 2, base, length.device)
        short, long = (theta.new_tensor(f) for f in (self.short_factor, self.long_factor))
        past = length[..., None] > self.original_max_position_embeddings
        return theta / torch.where(past, long, short)

    def phase(self, positions, d, base, length):
        scaled = super().phase(positions, d, base, length)
        p = positions.to(torch.float64)[..., None]
        theta = geometric_frequencies(d // 2, base, length.device)
        return torch.where(p < self.start_tokens, p * theta, scaled)

    @property
    def linear_in_positions(self):
        return self.start_tokens == 0

    @property
    def amplitude(self):
        if self.attention_factor is not None:
            return self.attention_factor
        L = self.original_max_position_embeddings
        return math.sqrt(1 + math.log(self.factor) / math.log(L))

    @property
    def unscaled_length(self):
        return self.original_max_position_embeddings


@named("proportional")
@dataclass(frozen=True, kw_only=True)
class Proportional(Scaling):
    """θ'_k = θ_k/s for k < n = ⌊p·d/2⌋, and 0 for the others: Gemma 4's, and p-RoPE of s = 1.

    The exponents are those of the whole head. The slowest pairs stand still, and carry content
    without position.

    Args:
        partial_rotary_factor: p, the share of the pairs that turn.
    """

    partial_rotary_factor: float
    factor: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_part(self.partial_rotary_factor)

    def frequencies(self, d, base, length):
        theta = geometric_frequencies(d // 2, base, length.device) / self.factor
        n = int(self.partial_rotary_factor * d // 2)
        return torch.cat([theta[:n], torch.zeros_like(theta[n:])])


def check_part(part):
    """ValueError unless `partial_rotary_factor` is a share."""
    number = isinstance(part, Real) and not isinstance(part, bool)
    if not number or not 0 <= part <= 1:
        raise ValueError(f"partial_rotary_factor must be a share, 0 to 1, not {part!r}.")


def split_part(parameters):
    """A dictionary of Hugging Face's without "partial_rotary_factor", and its value or None.

    It says how many channels of a head a scaling is for, and so belongs to all types but
    "proportional", which has an own use for it.
    """
    name = "partial_rotary_factor"
    if not isinstance(parameters, dict) or parameters.get(name) is None:
        return parameters, None
    if "proportional" in (parameters.get("rope_type"), parameters.get("type")):
        return parameters, None
    check_part(parameters[name])
    rest = {key: value for key, value in parameters.items() if key != name}
    return rest or None, parameters[name]


def _ramp_in_turns(L: int, theta, low: float, high: float):
    """γ_k: 0 for pairs that turn less than `low` times within L, 1 from `high` times on."""
    turns = L * theta / (2 * math.pi)  # r_k
    if low == high:  # a step, as in Llama 4 Scout
        return (turns >= high).to(theta)
    return ((turns - low) / (high - low)).clamp(0, 1)


def _by_parts(gamma, theta, s: float):
    """θ' = (1 − γ)·θ/s + γ·θ."""
    return (1 - gamma) * theta / s + gamma * theta


def _check_more_than_one_pair(d: int, rope_type: str):
    if d == 2:
        raise ValueError(
            f"{rope_type} keeps the first pair and slows the last one: choose a head width of 4 or "
            f"more, not 2."
        )


OLD_NAMES = {"su": "longrope"}  # what Phi-3's first configuration files called it
INSTEAD_OF_FACTOR = ("yarn", "longrope")  # whose factor follows from the two lengths when missing


def read(parameters: dict | None, base: float, max_length: int) -> tuple[Scaling | None, float]:
    """The scaling and the base that a dictionary of Hugging Face's describes.

    Args:
        parameters: `rope_parameters` as it is written today ("rope_type", with "rope_theta" inside)
            or `rope_scaling` as it was ("type"). A key whose value is None counts as missing. None,
            and the type "default", scale nothing.
        base: b, where the dictionary has no "rope_theta".
        max_length: of the model (`max_position_embeddings` in its file). It is the original length
            where the dictionary has none (LongRoPE must have one); where it has one and no factor,
            s is their ratio.

    Raises:
        ValueError: an unknown type, a key that the type does not know, a key missing, two names or
            two bases that contradict each other, or a value that makes no sense.
    """
    if parameters is None:
        return None, base
    if not isinstance(parameters, dict):
        raise ValueError(f"scaling must be a dictionary, not {parameters!r}.")
    keys = {key: value for key, value in parameters.items() if value is not None}
    if keys and all(isinstance(value, dict) for value in keys.values()):
        raise ValueError(
            f"scaling holds a dictionary for each of {', '.join(map(str, keys))}: give the one of "
            f"the layer at hand."
        )
    names = {str(keys[k]) for k in ("rope_type", "type") if k in keys}
    names = {OLD_NAMES.get(name, name) for name in names}
    keys = {key: value for key, value in keys.items() if key not in ("rope_type", "type")}
    if len(names) != 1:
        said = " and ".join(sorted(names)) or "nothing"
        raise ValueError(f"scaling must name one rope_type; it names {said}.")
    name = names.pop()
    theta = keys.pop("rope_theta", base)
    check_positive(rope_theta=theta)
    if base not in (BASE, theta):
        raise ValueError(f"rope_theta = {theta} and base = {base} are two bases: give one of them.")
    base = float(theta)
    if name == "default":
        known = set()
    elif name in SCALINGS:
        known = {field.name for field in fields(SCALINGS[name])}
    else:
        raise ValueError(
            f"There is no rope_type {name!r}: choose one of default, {', '.join(SCALINGS)}."
        )
    for key in keys:
        if key not in known:
            knows = f"it knows {', '.join(sorted(known))}" if known else "it takes no key"
            raise ValueError(f"rope_type {name} does not know the key {key!r}: {knows}.")
    if name == "default":
        return None, base
    if "original_max_position_embeddings" in known:
        original = keys.get("original_max_position_embeddings")
        if original is not None:
            check_whole(original_max_position_embeddings=original)
        if original is not None and name in INSTEAD_OF_FACTOR and "factor" not in keys:
            if original > max_length:
                raise ValueError(
                    f"original_max_position_embeddings = {original} is longer than max_length = "
                    f"{max_length}, and no factor is given: a scaling lengthens."
                )
            keys["factor"] = max_length / original
        if name != "longrope":  # two lists of factors need a length to change at
            keys.setdefault("original_max_position_embeddings", max_length)
    for field in fields(SCALINGS[name]):
        if field.default is MISSING and field.name not in keys:
            raise ValueError(f"rope_type {name} needs the key {field.name!r}.")
    return SCALINGS[name](**keys), base
