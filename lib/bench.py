"""What things cost, measured side by side in one run: `make bench`, and the study of costs.

Whatever is compared runs in turns: each round times every candidate once, in an order that moves
on from round to round and turns about, so that a machine that slows down slows all of them and none
always follows the same. Costs are then ratios within a round; their median and spread (the
quartiles) over rounds are what is reported.

Time is the wall clock's, around a warmed-up call; on a GPU that of CUDA events. Memory is counted,
not sampled: the most bytes that torch's allocator had lent at once beyond those lent at the start,
the same on every run. On a CPU nothing else is used, on a GPU float32 gives way to bfloat16.

A measurement is a row {part, subject, case, quantity, round, value}: `part` is one of PARTS,
`case` a length in tokens (0 where there is none), `quantity` "seconds" a call or "bytes".
"""

import contextlib
import dataclasses
import datetime
import functools
import math
import multiprocessing
import os
import platform
import re
import statistics
import time
from collections.abc import Callable

import pandas as pd
import torch
import torch.nn.functional as F

from lib import files, paths, runs, transformer
from lib.attention import Distances, attend, plain
from lib.encodings import ENCODINGS, build
from lib.encodings.rope import table, turn_by
from lib.timing import in_turns
from lib.training import TrainingConfig, descend, optimizer_of
from lib.transformer import Cache

COLUMNS = ["part", "subject", "case", "quantity", "round", "value"]
# On a text M-RoPE is RoPE, and costs as much.
TEXT = [name for name, cls in ENCODINGS.items() if "text" in cls.domain and name != "mrope"]
VOCABULARY = 1024
OF_THE_PAPER = ("sinusoidal", "rope", "t5", "alibi")
PAPER = (512, 1024, 3072)  # the lengths of Press et al. 2022, table 1
TOKENS = 3072  # of a step of training, or of a pass of inference, at each of them
LONG = (1024, 2048, 4096, 8192, 16384)  # for how costs grow
CONTEXTS = (256, 1024, 4096, 16384)  # tokens in the cache
GENERATED = 4  # tokens decoded in one measurement
ROTATION = {"B": 4, "H": 8, "T": 2048, "d": 64}
ATTENTION = {"B": 1, "H": 4, "T": 4096, "d": 64}


# ---- measuring -----------------------------------------------------------------------------------


def peak_bytes(f: Callable, device) -> int:
    """The most memory that a call of f had lent at once, beyond what was lent before."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        f()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        f()
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    lent = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        lent += event.nbytes()
        most = max(most, lent)
    return most


def rows(part: str, case: int, found: dict[str, list[float]], quantity: str) -> list[dict]:
    return [
        dict(zip(COLUMNS, (part, subject, case, quantity, r, value), strict=True))
        for subject, values in found.items()
        for r, value in enumerate(values)
    ]


def precision(device):
    """The context that a model runs in: bfloat16 on a GPU."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def threads(n: int):
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- models --------------------------------------------------------------------------------------


def decoder(encoding: str, length: int, device):
    """The default model of the trainings, untrained, for sequences up to `length`."""
    return _config(encoding, length).decoder(VOCABULARY).to(device)


def _config(encoding: str, length: int) -> TrainingConfig:
    return TrainingConfig(
        encoding, seed=0, learning_rate=1e-3, tokens=10**6, train_length=length, batch_tokens=length
    )


def draw_tokens(batch: int, length: int, device):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(VOCABULARY, (batch, length), generator=generator).to(device)


def step_of(model, logits_of, optimizer, tokens) -> Callable:
    """One step of training, as `lib.training` takes it; tokens (B, T + 1)."""
    x, y = tokens[:, :-1], tokens[:, 1:].flatten()

    def step():
        with precision(tokens.device):
            logits = logits_of(x)  # (B, T, V)
            loss = F.cross_entropy(logits.flatten(0, 1), y)
        descend(model, optimizer, loss)
        return loss.item()

    return step


def training_of(encoding: str, length: int, device, n_tokens: int = TOKENS) -> Callable:
    """A step of training on n_tokens in sequences of `length`."""
    model = decoder(encoding, length, device).train()
    optimizer = optimizer_of(model, _config(encoding, length).learning_rate)
    return step_of(model, model, optimizer, draw_tokens(n_tokens // length, length + 1, device))


def inference_of(encoding: str, length: int, device, n_tokens: int = TOKENS) -> Callable:
    """A pass over n_tokens in sequences of `length`, or over one sequence if that is longer."""
    model = decoder(encoding, length, device).eval()
    tokens = draw_tokens(max(1, n_tokens // length), length, device)

    def infer():
        with torch.inference_mode(), precision(device):
            return model(tokens)

    return infer


# ---- the parts -----------------------------------------------------------------------------------


def encodings(
    device,
    rounds: int,
    lengths=PAPER,
    names=TEXT,
    kinds=("training", "inference"),
    n_tokens: int = TOKENS,
    written_out: bool = False,
):
    """(a) Training and inference with each encoding: the paper's lengths, as many tokens each.

    `written_out` has the models compute attention by the formula, H·T² weights in memory, as
    kernels did that were not fused.
    """
    if written_out:
        with _formula():
            found = encodings(device, rounds, lengths, names, kinds, n_tokens)
        return [{**row, "part": f"{row['part']}, written out"} for row in found]
    found = []
    for kind in kinds:
        make = {"training": training_of, "inference": inference_of}[kind]
        for length in lengths:
            candidates = {name: make(name, length, device, n_tokens) for name in names}
            memory = {name: [peak_bytes(f, device)] for name, f in candidates.items()}
            times = in_turns(candidates, rounds, device, warm=True)
            found += rows(kind, length, times, "seconds")
            found += rows(kind, length, memory, "bytes")
    return found


@contextlib.contextmanager
def _formula():
    """Every decoder inside attends by `plain`."""

    def written(q, k, v, encoding, q_pos, k_pos, mask=None, bias=None):
        bias = bias.whole() if isinstance(bias, Distances) else bias
        return plain(q, k, v, encoding, q_pos, k_pos, mask, bias)

    transformer.attend = written
    try:
        yield
    finally:
        transformer.attend = attend


def growth(device, rounds: int, lengths=LONG, names=TEXT):
    """(e) One sequence, longer and longer, through the model."""
    found = []
    for length in lengths:
        candidates = {name: inference_of(name, length, device, length) for name in names}
        memory = {name: [peak_bytes(f, device)] for name, f in candidates.items()}
        times = in_turns(candidates, rounds, device, warm=True)
        found += rows("growth", length, times, "seconds")
        found += rows("growth", length, memory, "bytes")
    return found


def rotation(device, rounds: int):
    """(b) q and k turned, against a copy of the same bytes.

    "ours" starts from positions, as every call of `Encoding.rotate` does: nothing is kept between
    calls. The two libraries have their tables of cosines and sines beforehand; like for like with
    them is "ours, from a table", the product alone.
    """
    B, H, T, d = ROTATION.values()
    q, k = _normal(device, (B, H, T, d), (B, H, T, d))
    positions = torch.arange(T, device=device)
    ours = build("rope", d_model=H * d, n_heads=H, max_length=T)
    by = table(ours.phase(positions), ours.attention_factor, q.dtype, ours.layout)
    candidates = {
        "copy": lambda: (q.clone(), k.clone()),
        "ours": lambda: ours.rotate(q, k, positions, positions),
        "ours, from a table": lambda: [turn_by(x, by, ours.layout) for x in (q, k)],
        **_rotations_of_libraries(q, k, positions),
    }
    with torch.inference_mode():
        return rows("rotation", T, in_turns(candidates, rounds, device), "seconds")


def _rotations_of_libraries(q, k, positions) -> dict[str, Callable]:
    from rotary_embedding_torch import RotaryEmbedding
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    H, T, d = q.shape[1:]
    config = LlamaConfig(
        hidden_size=H * d, num_attention_heads=H, head_dim=d, max_position_embeddings=T
    )
    # As its model does it: the tables once, for all layers.
    tables = LlamaRotaryEmbedding(config).to(q.device)(q, positions[None])
    rotary = RotaryEmbedding(dim=d).to(q.device)
    return {
        "transformers": lambda: apply_rotary_pos_emb(q, k, *tables),
        "rotary-embedding-torch": lambda: [rotary.rotate_queries_or_keys(x) for x in (q, k)],
    }


def attention(device, rounds: int, kinds=("forward", "forward and backward"), length=None):
    """(c) Attention alone, causal: no encoding, ALiBi and T5 through `attend`, and a mask of H·T²
    numbers (which is made beforehand)."""
    return [row for kind in kinds for row in _attention(device, rounds, kind, length)]


def _attention(device, rounds: int, kind: str, length: int | None):
    B, H, T, d = ATTENTION.values()
    T = length or T
    part, backward = f"attention, {kind}", kind != "forward"
    positions = torch.arange(T, device=device)
    *inputs, along = _normal(device, *4 * [(B, H, T, d)])
    inputs = [x.requires_grad_(backward) for x in inputs]  # q, k, v
    biases = {
        name: build(name, d_model=H * d, n_heads=H, max_length=T).to(device)
        for name in ("nope", "alibi", "t5")
    }
    with torch.no_grad():
        biases["t5"].b.copy_(_normal(device, biases["t5"].b.shape)[0])
        mask = biases["alibi"].bias(*inputs[:2], positions, positions)  # (1, H, T, T)
        mask = mask.masked_fill_(positions[:, None] < positions, -math.inf).to(inputs[0].dtype)

    def run(attention, parameters=()):
        with torch.set_grad_enabled(backward):
            y = attention(*inputs)
            if backward:
                torch.autograd.grad(y, [*inputs, *parameters], along)

    def through(encoding):
        return lambda q, k, v: attend(q, k, v, encoding, positions, positions)

    def masked(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    candidates = {
        name: functools.partial(run, through(encoding), tuple(encoding.parameters()))
        for name, encoding in biases.items()
    }
    memory = {name: [peak_bytes(f, device)] for name, f in candidates.items()}
    candidates["mask tensor"] = functools.partial(run, masked)
    times = in_turns(candidates, rounds, device)
    return rows(part, T, times, "seconds") + rows(part, T, memory, "bytes")


def step(device, rounds: int, length: int = 64, n_tokens: int = 1024):
    """(d) A whole step of training at the default sizes, with rotation, equal parameters, one
    thread: ours and the models of two libraries, under one optimiser, one loss and one loop.

    Beside them what ours is made of: its products with weights alone, attention alone, and the
    launches alone, which is the same step at sizes so small that nothing else is left.
    """
    tokens = draw_tokens(n_tokens // length, length + 1, device)
    ours = decoder("rope", length, device).train()
    models = {"ours": (ours, ours), **_models_of_libraries(ours.config, device)}
    candidates, sizes = {}, {}
    for name, (model, logits_of) in models.items():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        candidates[name] = step_of(model, logits_of, optimizer, tokens)
        sizes[name] = [sum(p.numel() for p in model.parameters())]
    candidates |= _parts_of_a_step(ours, tokens)
    with threads(1):
        times = in_turns(candidates, rounds, device)
    return rows("step", length, times, "seconds") + rows("step", length, sizes, "parameters")


def _parts_of_a_step(model, tokens) -> dict[str, Callable]:
    """Forward and backward of the products y = x Wᵀ with every weight, and of attention; and the
    whole step of a model in small."""
    c, B, T = model.config, len(tokens), tokens.shape[1] - 1
    device, d = tokens.device, c.d_model // c.n_heads
    weights = [p.detach() for p in model.parameters() if p.dim() == 2]  # (out, in)
    inputs = [_normal(device, (B * T, n), (B * T, m)) for m, n in (w.shape for w in weights)]
    weights = [w.to(inputs[0][0].dtype) for w in weights]

    def products():
        ahead = [x @ w.T for w, (x, _) in zip(weights, inputs, strict=True)]
        return ahead, [(g @ w, g.T @ x) for w, (x, g) in zip(weights, inputs, strict=True)]

    *qkv, along = _normal(device, *4 * [(B, c.n_heads, T, d)])
    qkv = [x.requires_grad_() for x in qkv]
    positions = torch.arange(T, device=device)
    nope = build("nope", d_model=d, n_heads=1, max_length=T)

    def attention():
        for _ in model.blocks:
            torch.autograd.grad(attend(*qkv, nope, positions, positions), qkv, along)

    config = dataclasses.replace(_config("rope", 2), d_model=2 * c.n_heads, d_ff=1)
    small = config.decoder(2).to(device).train()
    optimizer = torch.optim.AdamW(small.parameters(), lr=1e-3, fused=True)
    return {
        "ours, its products alone": products,
        "ours, its attention alone": attention,
        "ours, its launches alone": step_of(small, small, optimizer, tokens[:1, :3] % 2),
    }


def _models_of_libraries(c, device) -> dict[str, tuple]:
    """LLaMA as two libraries build it, of the sizes of our `Config` c: (model, tokens → logits)."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from x_transformers import Decoder, TransformerWrapper

    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=c.vocabulary,
            hidden_size=c.d_model,
            intermediate_size=c.d_ff,
            num_hidden_layers=c.n_layers,
            num_attention_heads=c.n_heads,
            max_position_embeddings=c.max_length,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            use_cache=False,
        )
    )
    layers = Decoder(
        dim=c.d_model,
        depth=c.n_layers,
        heads=c.n_heads,
        attn_dim_head=c.d_model // c.n_heads,
        attn_flash=True,
        rotary_pos_emb=True,
        use_rmsnorm=True,
        ff_swish=True,
        ff_glu=True,
        ff_mult=c.d_ff / c.d_model,
        ff_no_bias=True,
    )
    wrapper = TransformerWrapper(
        num_tokens=c.vocabulary,
        max_seq_len=c.max_length,
        use_abs_pos_emb=False,
        tie_embedding=True,
        attn_layers=layers,
    )
    llama, wrapper = (m.to(device).train() for m in (llama, wrapper))
    return {
        "transformers": (llama, lambda tokens: llama(tokens).logits),
        "x-transformers": (wrapper, wrapper),
    }


def decoding(device, rounds: int, contexts=CONTEXTS, names=TEXT):
    """(f) Tokens generated one by one, with a cache that holds a context already."""
    found = []
    for context in contexts:
        candidates = {name: _generation(name, context, device) for name in names}
        found += rows("decoding", context, in_turns(candidates, rounds, device), "seconds")
    return found


def _generation(encoding: str, context: int, device) -> Callable:
    model = decoder(encoding, context + GENERATED, device).eval()
    c = model.config
    shape = 1, c.n_heads, context, c.d_model // c.n_heads
    keys = [_normal(device, shape, shape) for _ in model.blocks]
    token = draw_tokens(1, 1, device)

    def generate():
        cache = Cache(context + GENERATED)
        cache.keys, cache.values = ({i: kv[n] for i, kv in enumerate(keys)} for n in (0, 1))
        cache.positions = torch.arange(context, device=device)
        with torch.inference_mode(), precision(device):
            for _ in range(GENERATED):
                model(token, cache=cache)

    return generate


def _normal(device, *shapes):
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return [torch.randn(*s, generator=generator).to(device, dtype) for s in shapes]


# ---- reporting -----------------------------------------------------------------------------------

# What each is measured against, in the same round.
BASE = {
    "training": "sinusoidal",
    "inference": "sinusoidal",
    "training, written out": "sinusoidal",
    "inference, written out": "sinusoidal",
    "growth": "sinusoidal",
    "decoding": "sinusoidal",
    "rotation": "copy",
    "attention, forward": "nope",
    "attention, forward and backward": "nope",
    "step": "ours",
}


def relative(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with the column `ratio`: a value over that of BASE in the same round."""
    at = ["part", "case", "quantity", "round"]
    base = frame[frame["subject"] == frame["part"].map(BASE)].set_index(at)["value"]
    base = base.reindex(pd.MultiIndex.from_frame(frame[at])).to_numpy()
    return frame.assign(ratio=frame["value"] / base)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Medians and quartiles over rounds, of a value and of its ratio to BASE in the same round."""
    frame = relative(frame)
    found = []
    for (part, case, quantity, subject), group in frame.groupby(
        ["part", "case", "quantity", "subject"], sort=False
    ):
        found.append(
            {
                "part": part,
                "case": case,
                "quantity": quantity,
                "subject": subject,
                **_spread("value", group["value"]),
                "against": BASE[part],
                **_spread("ratio", group["ratio"]),
                "rounds": len(group),
            }
        )
    return pd.DataFrame(found)


def _spread(name: str, x) -> dict[str, float]:
    low, high = x.quantile([0.25, 0.75])
    return {name: x.median(), f"{name}_low": low, f"{name}_high": high}


def exponents(frame: pd.DataFrame) -> pd.DataFrame:
    """p in cost ∝ Tᵖ, fitted by least squares to the logarithms of the medians over the lengths."""
    frame = frame[(frame["part"] == "growth")]
    found = []
    for (subject, quantity), group in frame.groupby(["subject", "quantity"], sort=False):
        medians = group.groupby("case")["value"].median()
        if len(medians) > 2:
            x, y = ([math.log(n) for n in values] for values in (medians.index, medians))
            slope = statistics.linear_regression(x, y).slope
            local = math.log(medians.iloc[-1] / medians.iloc[-2]) / (x[-1] - x[-2])
            found.append(
                {
                    "subject": subject,
                    "quantity": quantity,
                    "shortest": medians.index[0],
                    "longest": medians.index[-1],
                    "exponent": slope,
                    "exponent_at_the_end": local,
                }
            )
    return pd.DataFrame(found)


def published() -> pd.DataFrame:
    """Press et al. 2022, table 1, as ratios to sinusoids: method, length, training and inference
    seconds a token, memory in training."""
    table = pd.read_csv(paths.PUBLISHED / "alibi_cost_v100.csv", comment="#").rename(
        columns={"method": "subject", "length": "case"}
    )
    table["subject"] = table["subject"].replace({"rotary": "rope"})
    base = table[table["subject"] == "sinusoidal"].set_index("case").loc[table["case"]]
    columns = {"training": "train_wps", "inference": "eval_wps"}
    for part, column in columns.items():  # seconds a token are 1 / words a second
        table[part] = base[column].to_numpy() / table[column].to_numpy()
    table["memory"] = table["train_memory_gb"].to_numpy() / base["train_memory_gb"].to_numpy()
    return table[["subject", "case", *columns, "memory"]]


PARTS = {
    "rotation": lambda device: rotation(device, 41),
    "attention": lambda device: attention(device, 7),
    "step": lambda device: step(device, 41),
    "encodings": lambda device: _in_a_row(
        encodings(device, 5, names=[n for n in TEXT if n != "shaw"]),
        encodings(device, 1, names=["sinusoidal", "shaw"]),
        encodings(device, 3, PAPER[:2], OF_THE_PAPER, written_out=True),
    ),
    "decoding": lambda device: decoding(device, 9),
    "growth": lambda device: growth(device, 1, names=[n for n in TEXT if n != "shaw"]),
}


def _in_a_row(*series: list[dict]) -> list[dict]:
    """The measurements of all series; their rounds are numbered on, since a ratio is to what was
    timed in the same turn."""
    found, first = [], 0
    for some in series:
        found += [{**row, "round": row["round"] + first} for row in some]
        first = 1 + max(row["round"] for row in found)
    return found


def device_name(device) -> str:
    """In words, as far as the system knows it: the GPU, or the processor and the threads used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        text = open("/proc/cpuinfo", encoding="utf-8").read()
        found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
        model = found.group(1) if found else model
    return f"{model}, {torch.get_num_threads()} threads"


def run(names: list[str] | None = None) -> None:
    """Measure the parts (None: all) on the GPU, where there is one, or else here; print a table of
    each, and write build/bench/<part>_<device>.csv.

    Raises ValueError for an unknown part.
    """
    for name in names or []:
        if name not in PARTS:
            raise ValueError(f"No part is named {name!r}: choose of {', '.join(PARTS)}.")
    # As the trainings run, but with all threads; read when a process starts.
    os.environ |= {n: v for n, v in runs.WORKER_ENVIRONMENT.items() if "THREADS" not in n}
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(names,))
    process.start()
    try:
        process.join()
    finally:
        process.terminate()
    if process.exitcode:
        raise RuntimeError("The measurements ended early: see above.")


def _run(names: list[str] | None) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = device_name(device)
    slug = re.sub(r"[^a-z0-9]+", "-", where.lower()).strip("-")
    print(f"{where}; torch {torch.__version__}; {datetime.date.today()}")
    torch.manual_seed(0)
    for name in names or PARTS:
        began = time.perf_counter()
        frame = pd.DataFrame(PARTS[name](device))
        table = summary(frame).assign(device=where, torch=torch.__version__)
        files.write_csv(table, paths.BUILD / "bench" / f"{name}_{slug}.csv")
        print(f"\n{name} ({time.perf_counter() - began:.0f} s)")
        print(_words(table), flush=True)
        if name == "growth":
            grown = exponents(frame)
            files.write_csv(grown, paths.BUILD / "bench" / f"exponents_{slug}.csv")
            print(grown.to_string(index=False, float_format="%.2f"))


def _words(table: pd.DataFrame) -> str:
    scale = {"seconds": ("ms", 1e3), "bytes": ("MB", 1e-6), "parameters": ("", 1)}
    lines = [
        {
            "part": r.part,
            "tokens": r.case,
            "subject": r.subject,
            "median": f"{r.value * scale[r.quantity][1]:.4g} {scale[r.quantity][0]}",
            "against": r.against,
            "ratio": f"{r.ratio:.3g} [{r.ratio_low:.3g}, {r.ratio_high:.3g}]",
        }
        for r in table.itertuples()
    ]
    return pd.DataFrame(lines).to_string(index=False)
