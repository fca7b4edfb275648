"""Other people's encodings behind our four doors, so that the conformance suite can ask of them
what it asks of ours.

Each is used as its library documents, and an adapter adds no mathematics: it hands positions over
in the form that is wanted and puts a head or a batch axis where ours has one. Where a library has
no way to say something (it counts positions itself, it serves no slice of heads), the property is
not applicable. Attention is ours everywhere; what is judged is the encoding.

The libraries are those of requirements-peers.lock, and are imported when a subject is asked for.
"""

import importlib.metadata
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from lib.conformance import NotApplicable, Subject
from lib.encodings import Encoding


@dataclass(frozen=True)
class Foreign(Subject):
    """A subject from a library.

    Args:
        library: as the package index calls it.
        encoding: the name of ours that it corresponds to.
        excused: property → why it is not asked of this one.
        multiple: of which the head widths are that are asked for; given, since most libraries
            refuse no width.
    """

    phases: torch.dtype = torch.float32
    library: str = ""
    encoding: str = ""
    excused: Mapping[str, str] = field(default_factory=dict)
    multiple: int = 2

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.library)


class Adapter(Encoding):
    """`theirs`, a module of a library, behind our doors.

    A parameter that the library has frozen is a constant, and is held as a buffer: the suite draws
    parameters at random and asks for their gradients.
    """

    def __init__(self, d_model, n_heads, max_length, theirs=None):
        super().__init__(d_model, n_heads, max_length)
        self.theirs = theirs
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if not parameter.requires_grad:
                    delattr(module, name)
                    module.register_buffer(name, parameter.detach())


# ---- rotations -----------------------------------------------------------------------------------


class LlamaRotation(Adapter):
    """transformers: `LlamaRotaryEmbedding` gives cos and sin, `apply_rotary_pos_emb` turns."""

    layout, base = "half_split", 10000.0

    def rotate(self, q, k, q_pos, k_pos, length=None):
        return self._turn(q, q_pos), self._turn(k, k_pos)

    def _turn(self, x, positions):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        ids = positions if positions.dim() == 2 else positions[None]  # (1 or B, T)
        return apply_rotary_pos_emb(x, x, *self.theirs(x, ids))[0]


def llama(d_model, n_heads, max_length, scaling=None, **options):
    """`scaling` is what a configuration file holds, without the base."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    _theirs(options)
    if scaling:
        if scaling["rope_type"] not in ROPE_INIT_FUNCTIONS:
            raise ValueError(f"transformers has no rope_type {scaling['rope_type']!r}.")
        options["rope_parameters"] = {"rope_theta": 10000.0, **scaling}
    sizes = {"hidden_size": d_model, "num_attention_heads": n_heads}
    options = {"max_position_embeddings": max_length, **options}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, **options))
    return LlamaRotation(d_model, n_heads, max_length, theirs)


class XRotation(Adapter):
    """x-transformers: `RotaryEmbedding` gives phases, `apply_rotary_pos_emb` turns."""

    layout, base = "interleaved", 10000.0

    def rotate(self, q, k, q_pos, k_pos, length=None):
        from x_transformers.x_transformers import apply_rotary_pos_emb

        (a, q_scale), (b, k_scale) = self.theirs(q_pos), self.theirs(k_pos)
        return apply_rotary_pos_emb(q, a, q_scale), apply_rotary_pos_emb(k, b, k_scale**-1)


def x_rotary(d_model, n_heads, max_length, **options):
    from x_transformers.x_transformers import RotaryEmbedding

    theirs = RotaryEmbedding(d_model // n_heads, **_theirs(options))
    return XRotation(d_model, n_heads, max_length, theirs)


class RotaryTorch(Adapter):
    """rotary-embedding-torch: `rotate_queries_or_keys`, with an offset for each run of positions
    that follow each other; `apply_rotary_emb` where rows differ or positions are fractions."""

    layout, base = "interleaved", 10000.0

    def rotate(self, q, k, q_pos, k_pos, length=None):
        return self._turn(q, q_pos), self._turn(k, k_pos)

    def _turn(self, x, positions):
        from rotary_embedding_torch import apply_rotary_emb

        if positions.dim() == 1 and not positions.is_floating_point():
            starts = [0, *((positions.diff() != 1).nonzero().flatten() + 1).tolist()]
            turned = [
                self.theirs.rotate_queries_or_keys(run, offset=int(positions[start]))
                for start, run in zip(starts, x.tensor_split(starts[1:], dim=-2), strict=True)
            ]
            return torch.cat(turned, dim=-2)
        phases = self.theirs(positions)  # (T, d) or (B, T, d)
        return apply_rotary_emb(phases[:, None] if phases.dim() == 3 else phases, x)


def rotary_torch(d_model, n_heads, max_length, **options):
    from rotary_embedding_torch import RotaryEmbedding

    theirs = RotaryEmbedding(d_model // n_heads, **_theirs(options))
    return RotaryTorch(d_model, n_heads, max_length, theirs)


# ---- biases --------------------------------------------------------------------------------------


class Counted(Adapter):
    """A bias that its library makes from lengths: it counts positions itself, from 0.

    `made(Tq, Tk, real, dtype)` gives (1 or B, H, Tq, Tk): the last query stands at the last key;
    `real` (B, Tk) is False where a key is padding, or None.
    """

    def bias(self, q, k, q_pos, k_pos, mask=None):
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        real = None
        if k_pos.dim() == 2:  # rows that differ can be told to it by their padding alone
            if mask is None or mask.dim() < 4:
                raise NotApplicable("it counts positions itself")
            real = mask[:, 0, -1].expand(len(q), -1)
        elif k_pos.is_floating_point():
            raise NotApplicable("it counts positions itself")
        elif not (_follow(k_pos) and torch.equal(q_pos, k_pos[n_keys - n_queries :])):
            # Entries of the bias of the whole length.
            rows = [self.made(1, int(i) + 1, None, q.dtype) for i in q_pos]  # (1, H, 1, i + 1)
            longest = int(k_pos.max()) + 1
            rows = [torch.nn.functional.pad(row, (0, longest - row.shape[-1])) for row in rows]
            return torch.cat(rows, dim=-2)[..., k_pos]
        return self.made(n_queries, n_keys, real, q.dtype)


class T5(Counted):
    """transformers: `T5Attention.compute_bias`, of a decoder."""

    def made(self, n_queries, n_keys, real, dtype):
        return self.theirs.compute_bias(n_queries, n_keys, past_seen_tokens=n_keys - n_queries)


def t5(d_model, n_heads, max_length, **options):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    options = {"is_decoder": True, **_theirs(options)}
    config = T5Config(d_model=d_model, num_heads=n_heads, d_kv=d_model // n_heads, **options)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    for projection in (theirs.q, theirs.k, theirs.v, theirs.o):
        projection.requires_grad_(False)  # no part of the encoding
    return T5(d_model, n_heads, max_length, theirs)


class XT5(Counted):
    """x-transformers: `RelativePositionBias`, causal, scaled by √d as the library does."""

    def made(self, n_queries, n_keys, real, dtype):
        return self.theirs(n_queries, n_keys)[None]


def x_t5(d_model, n_heads, max_length, **options):
    from x_transformers.x_transformers import RelativePositionBias

    options = {"scale": math.sqrt(d_model // n_heads), "causal": True, **_theirs(options)}
    theirs = RelativePositionBias(heads=n_heads, **options)
    return XT5(d_model, n_heads, max_length, theirs)


class BloomAlibi(Counted):
    """transformers: `build_alibi_tensor`, in the dtype of the activations, as Bloom calls it.

    It holds + m·j for each key. The value at the query's own place is taken off each row, a
    constant that the softmax does not see, so that rows compare with those of other forms.
    """

    def made(self, n_queries, n_keys, real, dtype):
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor

        real = torch.ones(1, n_keys) if real is None else real.long()
        by_key = build_alibi_tensor(real, self.n_heads, dtype).unflatten(0, (-1, self.n_heads))
        return _from_own(by_key, n_queries)


def bloom_alibi(d_model, n_heads, max_length):
    return BloomAlibi(d_model, n_heads, max_length)


class FalconAlibi(Counted):
    """transformers: `build_alibi_tensor` of Falcon, + m·j as Bloom's, but in bfloat16, and added
    before the division by √d: the bias after it is the √d-th part."""

    def made(self, n_queries, n_keys, real, dtype):
        from transformers.models.falcon.modeling_falcon import build_alibi_tensor

        real = torch.ones(1, n_keys) if real is None else real.long()
        by_key = build_alibi_tensor(real, self.n_heads, dtype).unflatten(0, (-1, self.n_heads))
        return _from_own(by_key / math.sqrt(self.d), n_queries)


def falcon_alibi(d_model, n_heads, max_length):
    return FalconAlibi(d_model, n_heads, max_length)


class MptAlibi(Counted):
    """transformers: `build_mpt_alibi_tensor`, of MPT."""

    def __init__(self, d_model, n_heads, max_length, alibi_bias_max=8):
        super().__init__(d_model, n_heads, max_length)
        self.most = alibi_bias_max

    def made(self, n_queries, n_keys, real, dtype):
        from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

        by_key = build_mpt_alibi_tensor(self.n_heads, n_keys, self.most)[None]  # (1, H, 1, Tk)
        return _from_own(by_key, n_queries)


def _from_own(by_key, n_queries: int):
    """by_key (1 or B, H, 1, Tk) − its value at each of the last n_queries keys, in float32 or
    wider: (1 or B, H, Tq, Tk)."""
    wide = by_key.to(torch.promote_types(by_key.dtype, torch.float32))
    return wide - wide[..., -n_queries:].mT


class XAlibi(Adapter):
    """x-transformers: `AlibiPositionalBias`, from lengths, or from positions where these do not
    follow each other."""

    def bias(self, q, k, q_pos, k_pos, mask=None):
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        if _follow(k_pos) and torch.equal(q_pos, k_pos[n_keys - n_queries :]):
            return self.theirs(n_queries, n_keys)[None]
        bias = self.theirs.forward_custom_pos(q_pos, k_pos)
        return bias[None] if bias.dim() == 3 else bias


def x_alibi(d_model, n_heads, max_length, **options):
    from x_transformers.x_transformers import AlibiPositionalBias

    theirs = AlibiPositionalBias(n_heads, **_theirs(options))
    return XAlibi(d_model, n_heads, max_length, theirs)


# ---- helpers -------------------------------------------------------------------------------------


def _follow(positions) -> bool:
    """Whole positions (T,) that count upward one by one."""
    if positions.dim() != 1 or positions.is_floating_point():
        return False
    return bool((positions.diff() == 1).all())


def _theirs(options: dict) -> dict:
    """The options; TypeError for those that ours have and no library has under this name."""
    for ours in ("heads", "layout", "scaling"):
        if ours in options:
            raise TypeError(f"{ours}: not an option of this library.")
    return options


# ---- subjects ------------------------------------------------------------------------------------

BY_LENGTH = "its frequencies follow the length, and it takes no length"
COUNTS = {"positions_of_any_dtype": "it counts positions itself"}


def _dynamic(d_model, n_heads, max_length, **options):
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    options = {"max_position_embeddings": 16, "scaling": dynamic, **options}
    return llama(d_model, n_heads, max_length, **options)


def subjects() -> list[Foreign]:
    """Every encoding of a library that we know how to ask."""
    default = {"rope_type": "default"}

    def of(library: str, encoding: str, name: str, build: Callable, **traits):
        return Foreign(name=name, build=build, library=library, encoding=encoding, **traits)

    theirs = "transformers"
    x = "x-transformers"
    return [
        of(theirs, "rope", "LLaMA RoPE", llama,
           options={"rope_parameters": [{**default, "rope_theta": 5e5}]}),
        of(theirs, "rope", "LLaMA RoPE, dynamic NTK", _dynamic,
           options={"max_position_embeddings": [8, 32]}, multiple=4,
           excused=dict.fromkeys(
               ("scores_depend_on_differences_alone", "phases_add_up",
                "compiles_once_for_all_lengths", "scaling_keys_act_or_are_refused"), BY_LENGTH)),
        of(theirs, "t5", "T5 bias", t5, multiple=1, excused=COUNTS,
           options={"relative_attention_num_buckets": [16, 64],
                    "relative_attention_max_distance": [64, 256],
                    "is_decoder": [False]}),
        of(theirs, "alibi", "Bloom ALiBi", bloom_alibi, multiple=1, excused=COUNTS),
        of(theirs, "alibi", "Falcon ALiBi", falcon_alibi, multiple=1, excused=COUNTS),
        of(theirs, "alibi", "MPT ALiBi", MptAlibi, multiple=1, excused=COUNTS,
           options={"alibi_bias_max": [4, 16]}),
        of(x, "rope", "RotaryEmbedding", x_rotary, multiple=4,
           options={"base": [5000, 20000], "interpolation_factor": [2.0],
                    "base_rescale_factor": [2.0], "use_xpos": [True]}),
        of(x, "t5", "RelativePositionBias", x_t5, multiple=1, excused=COUNTS,
           options={"num_buckets": [16, 64], "max_distance": [64, 256], "causal": [False],
                    "scale": [1.0]}),
        of(x, "alibi", "AlibiPositionalBias", x_alibi, multiple=1,
           options={"slopes": [[0.5, 0.25, 0.125]]}),
        of("rotary-embedding-torch", "rope", "RotaryEmbedding", rotary_torch, multiple=4,
           options={"theta": [5000, 20000], "interpolate_factor": [2.0],
                    "theta_rescale_factor": [2.0]}),
    ]  # fmt: skip
