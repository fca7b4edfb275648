"""What a GPU makes of the encodings: `make gpu-check`, in five minutes at most.

Three parts, each a table: `conformance` (what comes out on the device, held against float64 on the
CPU), `timings` (kernels side by side, in turns) and `training` (a short run on tokens drawn from a
chain of known entropy, read past its length). They are written to data/reference/gpu/<device>/.

It needs torch and numpy and nothing else, no environment of this repository and no network, so that
it runs on a machine that is lent for minutes. `--device cpu` is a dry run of the same code with
small sizes, written to build/gpu-check/, and measures nothing worth keeping.
"""

import copy
import csv
import datetime
import io
import math
import platform
import re
import statistics
import time
from contextlib import nullcontext

import numpy as np
import torch

from lib import files, paths
from lib.attention import attend, causal_mask, plain
from lib.encodings import ENCODINGS, build
from lib.evaluation import perplexity
from lib.timing import in_turns
from lib.training import TrainingConfig, Windows, descend, mean_loss, optimizer_of, set_rates
from lib.transformer import Cache, Config, Decoder

TEXT = [name for name, cls in ENCODINGS.items() if "text" in cls.domain]
SECONDS = 240  # after so many no further timing is begun
TINY = {
    "attention": {"B": 1, "H": 2, "T": 160, "d": 16},
    "rounds": 2,
    "training": {"d_model": 32, "n_heads": 2, "n_layers": 1, "d_ff": 48, "train_length": 32},
    "batch_tokens": 256,
    "steps": 40,
    "scored": 512,
}
FULL = {
    "attention": {"B": 4, "H": 16, "T": 4096, "d": 64},
    "rounds": 20,
    "training": {"d_model": 256, "n_heads": 8, "n_layers": 4, "d_ff": 688, "train_length": 512},
    "batch_tokens": 16_384,
    "steps": 300,
    "scored": 65_536,
}
VOCABULARY, BRANCHES = 256, 4  # of the chain: each token has so many followers, equally likely


def run(device: str | None = None) -> None:
    """Do the three parts on `device` ("cuda" by default) and write their tables.

    Raises ValueError without a GPU, and RuntimeError when a check failed or nothing was learned;
    the tables are written all the same.
    """
    if device not in (None, "cuda", "cpu"):
        raise ValueError(f"--device must be cuda or cpu, not {device!r}.")
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(
            f"gpu-check needs an NVIDIA GPU that torch {torch.__version__} can use, and there is "
            f"none here; `--device cpu` is a dry run."
        )
    where, began = torch.device(device or "cuda"), time.monotonic()
    name, sizes = device_name(where), FULL if where.type == "cuda" else TINY
    print(f"{name}, torch {torch.__version__}", flush=True)
    checked = conformance(where)
    timed = timings(where, sizes, began + SECONDS)
    learned = training(where, sizes)
    seconds = time.monotonic() - began
    place = write(where, name, seconds, conformance=checked, timings=timed, training=learned)
    bad = [f"{r['check']} of {r['subject']}" for r in checked if not r["passed"]]
    bad += [f"training with {r['encoding']}" for r in learned if not r["learned"]]
    shown = place.relative_to(paths.ROOT) if place.is_relative_to(paths.ROOT) else place
    print(f"{len(checked)} checks, {len(bad)} failed; {seconds:.0f} s; see {shown}/")
    if bad:
        raise RuntimeError(f"On {name} these failed: {', '.join(bad)}.")


def device_name(device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}), a dry run"


def write(device, name: str, seconds: float, **tables: list[dict]):
    """Write the tables and where they come from; the folder comes back."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    top = paths.REFERENCE / "gpu" if device.type == "cuda" else paths.BUILD / "gpu-check"
    place = top / slug
    for table, rows in tables.items():
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        files.write_text(text.getvalue(), place / f"{table}.csv")
    about = {
        "device": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "seconds": round(seconds),
    }
    files.write_json(about, place / "provenance.json")
    files.enlist(*(place / f"{table}.csv" for table in tables), place / "provenance.json")
    return place


# ---- conformance ---------------------------------------------------------------------------------


def conformance(device) -> list[dict]:
    """Rows {check, subject, error, tolerance, passed, detail}; an exception is a failure."""
    rows = []
    for check in CHECKS:
        for name in TEXT:
            error, tolerance, detail = math.inf, 0.0, ""
            torch.manual_seed(0)
            try:
                measured = check(name, device)
                if measured is None:  # nothing to ask of this encoding
                    continue
                error, tolerance = measured
            except Exception as failure:  # whatever it is, the other checks go on
                detail = f"{type(failure).__name__}: {str(failure).strip().partition(chr(10))[0]}"
            rows.append(
                {
                    "check": check.__name__,
                    "subject": name,
                    "error": f"{error:.3g}",
                    "tolerance": f"{tolerance:.3g}",
                    "passed": error <= tolerance,
                    "detail": detail,
                }
            )
    return rows


B, H, D = 2, 6, 96  # heads that are no power of two
FAR = 4096  # positions


def _encoding(name: str, length: int = FAR):
    """One with parameters that are not zero, on the CPU."""
    encoding = build(name, d_model=D, n_heads=H, max_length=length)
    for parameter in encoding.parameters():
        parameter.data.normal_(std=0.5)
    return encoding


def _decoder(name: str, device):
    config = Config(name, 50, d_model=D, n_heads=H, n_layers=2, max_length=128, d_ff=128)
    model = Decoder(config).eval()
    for parameter in model.encodings.parameters():
        parameter.data.normal_(std=0.2)
    return model.to(device)


def _off(got, expected) -> float:
    """The largest error, in units of the largest number expected; NaN is infinite."""
    error = (got.detach().cpu().double() - expected.detach().cpu().double()).abs().max().item()
    scale = max(1.0, expected.detach().abs().max().item())
    return math.inf if math.isnan(error) else error / scale


def doors(name: str, device):
    """What each door gives on the device in float32 is what it gives on the CPU in float64."""
    encoding = _encoding(name)
    there, exact = copy.deepcopy(encoding).to(device), encoding.double()
    positions = torch.cat([torch.arange(40), torch.arange(FAR - 40, FAR)])
    x = torch.randn(B, len(positions), D)
    q, k = torch.randn(2, B, H, len(positions), D // H)

    def through(encoding, x, q, k, positions):
        found = [encoding.embed(x, positions), *encoding.rotate(q, k, positions, positions)]
        bias = encoding.bias(*found[1:], positions, positions)
        return found if bias is None else [*found, bias]

    got = through(there, *(t.to(device) for t in (x, q, k, positions)))
    expected = through(exact, x.double(), q.double(), k.double(), positions)
    return max(_off(a, b) for a, b in zip(got, expected, strict=True)), 1e-5


def half_precision(name: str, device):
    """A bfloat16 query turned at a far position is off by a rounding of the result, no more."""
    encoding = _encoding(name)
    positions = torch.arange(FAR - 64, FAR)
    q = torch.randn(B, H, 64, D // H).bfloat16()
    exact, _ = encoding.double().rotate(q.double(), q.double(), positions, positions)
    if torch.equal(exact, q.double()):
        return None
    there = copy.deepcopy(encoding).float().to(device)
    got, _ = there.rotate(q.to(device), q.to(device), positions.to(device), positions.to(device))
    size = exact.norm(dim=-1, keepdim=True)
    return ((got.cpu().double() - exact).abs() / size).max().item(), 2.0**-8


def attention(name: str, device):
    """The fused paths, in blocks, give what the formula gives in float64; gradients, too."""
    T = 1800 if device.type == "cuda" else 200
    encoding = _encoding(name, T)
    inputs = [torch.randn(1, H, T, D // H) for _ in range(3)]
    along = torch.randn(1, H, T, D // H)

    def through(function, encoding, place, dtype):
        encoding = copy.deepcopy(encoding).to(place, dtype)
        q, k, v = (x.to(place, dtype).requires_grad_() for x in inputs)
        positions = torch.arange(T, device=place)
        y = function(*encoding.rotate(q, k, positions, positions), v, encoding, positions)
        wanted = [q, k, v, *encoding.parameters()]
        gradients = torch.autograd.grad(y, wanted, along.to(place, dtype), allow_unused=True)
        return [y, *(g for g in gradients if g is not None)]

    def fused(q, k, v, encoding, positions):
        return attend(q, k, v, encoding, positions, positions)

    def formula(q, k, v, encoding, positions):
        mask = causal_mask(T, T, q.device)
        return plain(q, k, v, encoding, positions, positions, mask, None)

    got = through(fused, encoding, device, torch.float32)
    expected = through(formula, encoding, "cpu", torch.float64)
    return max(_off(a, b) for a, b in zip(got, expected, strict=True)), 2e-4


@torch.inference_mode()
def decoding(name: str, device):
    """Token by token from a cache, the logits are those of one pass."""
    model = _decoder(name, device)
    tokens = torch.randint(50, (B, 40), device=device)
    cache = Cache()
    steps = torch.cat([model(part, cache=cache) for part in tokens.split(1, dim=1)], dim=1)
    return _off(steps, model(tokens)), 1e-4


@torch.inference_mode()
def padding(name: str, device):
    """A row padded on the left has the logits that it has alone."""
    model = _decoder(name, device)
    tokens = torch.randint(50, (2, 40), device=device)
    real = torch.ones(2, 40, dtype=torch.bool, device=device)
    real[1, :13] = False
    together = model(tokens, padding_mask=real)
    return _off(together[1, 13:], model(tokens[1:, 13:])[0]), 1e-4


@torch.inference_mode()
def no_state(name: str, device):
    """A longer text in between changes no bit of what comes out."""
    model = _decoder(name, device)
    short, long = (torch.randint(50, (1, n), device=device) for n in (30, 120))
    before = model(short)
    model(long)
    return _off(model(short), before), 0.0


@torch.inference_mode()
def autocast(name: str, device):
    """Under bfloat16 autocast the logits stay near those of float32."""
    model = _decoder(name, device)
    tokens = torch.randint(50, (B, 100), device=device)
    exact = model(tokens)
    with torch.autocast(device.type, torch.bfloat16):
        rough = model(tokens)
    return _off(rough, exact), 0.1


CHECKS = (doors, half_precision, attention, decoding, padding, no_state, autocast)


# ---- timings -------------------------------------------------------------------------------------


def timings(device, sizes: dict, deadline: float) -> list[dict]:
    """Rows {part, dtype, subject, seconds, low, high, rounds}: the median and the quartiles."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        for part, make in PARTS.items():
            if time.monotonic() > deadline:
                return found
            candidates = make(device, dtype, sizes)
            for f in candidates.values():  # a second call that does not count
                f()
            times = in_turns(candidates, sizes["rounds"], device)
            for subject, values in times.items():
                low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
                found.append(
                    {
                        "part": part,
                        "dtype": str(dtype).removeprefix("torch."),
                        "subject": subject,
                        "seconds": f"{middle:.4g}",
                        "low": f"{low:.4g}",
                        "high": f"{high:.4g}",
                        "rounds": len(values),
                    }
                )
    return found


def _inputs(device, dtype, sizes: dict, n: int):
    size = sizes["attention"]
    return [torch.randn(*size.values(), device=device, dtype=dtype) for _ in range(n)]


def rotation(device, dtype, sizes: dict) -> dict:
    """Queries and keys turned, beside a copy of their bytes."""
    q, k = _inputs(device, dtype, sizes, 2)
    size = sizes["attention"]
    rope = build("rope", d_model=size["H"] * size["d"], n_heads=size["H"], max_length=size["T"])
    rope, positions = rope.to(device), torch.arange(size["T"], device=device)

    def rotate():
        with torch.inference_mode():
            rope.rotate(q, k, positions, positions)

    return {"copy": lambda: (q.clone(), k.clone()), "rope": rotate}


def forward(device, dtype, sizes: dict) -> dict:
    """Causal attention with nothing added, with ALiBi, T5, and a mask of T² numbers a head."""
    return _attention(device, dtype, sizes, backward=False)


def forward_and_backward(device, dtype, sizes: dict) -> dict:
    return _attention(device, dtype, sizes, backward=True)


def _attention(device, dtype, sizes: dict, backward: bool) -> dict:
    *inputs, along = _inputs(device, dtype, sizes, 4)
    inputs = [x.requires_grad_(backward) for x in inputs]
    size = sizes["attention"]
    positions = torch.arange(size["T"], device=device)
    options = {"d_model": size["H"] * size["d"], "n_heads": size["H"], "max_length": size["T"]}
    biases = {name: build(name, **options).to(device) for name in ("nope", "alibi", "t5")}
    with torch.no_grad():
        mask = biases["alibi"].bias(*inputs[:2], positions, positions)
        later = positions[:, None] < positions
        mask = mask.masked_fill(later, -math.inf).to(dtype)

    def timed(attention, parameters=()):
        def call():
            with torch.set_grad_enabled(backward):
                y = attention(*inputs)
                if backward:
                    torch.autograd.grad(y, [*inputs, *parameters], along)

        return call

    def through(encoding):
        return lambda q, k, v: attend(q, k, v, encoding, positions, positions)

    def masked(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    made = {name: timed(through(e), tuple(e.parameters())) for name, e in biases.items()}
    return made | {"mask of ALiBi": timed(masked)}


PARTS = {
    "rotation": rotation,
    "attention": forward,
    "attention, forward and backward": forward_and_backward,
}


# ---- training ------------------------------------------------------------------------------------


def chain(n: int, seed: int = 0) -> np.ndarray:
    """n tokens; each has BRANCHES followers, all as likely, so the entropy is ln BRANCHES nats."""
    random = np.random.default_rng(seed)
    followers = np.random.default_rng(0).integers(VOCABULARY, size=(VOCABULARY, BRANCHES))
    choices = random.integers(BRANCHES, size=n)
    tokens = np.empty(n, np.int64)
    token = 0
    for i, choice in enumerate(choices):
        tokens[i] = token = followers[token, choice]
    return tokens


def training(device, sizes: dict) -> list[dict]:
    """Rows {encoding, steps, first_loss, last_loss, entropy, tokens_a_second, learned, and the
    perplexity at 1, 2 and 4 times the training length}."""
    rows = []
    held_out = chain(sizes["scored"] + 1, seed=1)
    for name in ("rope", "alibi", "t5", "nope"):
        config = TrainingConfig(
            encoding=name,
            seed=0,
            learning_rate=3e-3,
            tokens=sizes["batch_tokens"] * sizes["steps"],
            batch_tokens=sizes["batch_tokens"],
            **sizes["training"],
        )
        model, losses, seconds = _trained(config, device)
        last = statistics.mean(losses[-5:])
        row = {
            "encoding": name,
            "steps": len(losses),
            "first_loss": f"{losses[0]:.4f}",
            "last_loss": f"{last:.4f}",
            "entropy": f"{math.log(BRANCHES):.4f}",
            "tokens_a_second": round(config.tokens / seconds),
            "learned": math.isfinite(last) and last < 0.9 * losses[0],
        }
        for ratio in (1, 2, 4):
            length = ratio * config.train_length
            row[f"perplexity_at_{ratio}_L"] = f"{perplexity(model, held_out, length):.3f}"
        rows.append(row)
    return rows


def _trained(config: TrainingConfig, device):
    """(the model, its losses, seconds), in bfloat16 on a GPU."""
    windows = Windows([chain(200_000)], config.train_length)
    model = config.decoder(VOCABULARY).to(device).train()
    optimizer = optimizer_of(model, config.learning_rate, config.encoding_rate)
    losses, began = [], time.perf_counter()
    for step in range(config.steps):
        set_rates(optimizer, step, config.steps)
        size = config.batch_tokens // config.train_length
        window = windows.batch(config.seed, step, size).to(device)
        on_gpu = device.type == "cuda"
        with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
            loss = mean_loss(model, window)
        descend(model, optimizer, loss)
        losses.append(loss.item())
    return model.eval(), losses, time.perf_counter() - began
