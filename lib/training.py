"""One function trains one model, and can be stopped and resumed at any step to the same bits.

What makes a run repeatable: weights and batches are drawn from the seed, batch t from (seed, t)
alone; one thread; float32. What makes runs comparable: the same weights (but for the encoding's own
parameters), the same batches in the same order and the same number of tokens for every encoding.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from lib import files
from lib.transformer import Config, Decoder

TEXT = "messages"  # what `lib.texts.load` gives unless asked for another
FINGERPRINT_STEPS = 20  # the losses of the first steps tell one training from another
FINGERPRINT_TOLERANCE = 1e-5
CHECKPOINT_STEPS = 200
BETAS, WEIGHT_DECAY, CLIP, WARM_UP = (0.9, 0.95), 0.1, 1.0, 0.1


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides what a training run computes, but for the data.

    Args:
        encoding: the name of an encoding, built with `options`.
        seed: draws the weights and the batches.
        train_length: L, tokens a training window predicts.
        tokens: tokens predicted over the whole run.
        learning_rate: the peak of a linear warm-up and a cosine decay to zero.
        encoding_rate: the encoding's own parameters (a learned table, relation vectors, a bias)
            learn this many times faster, without weight decay.
        text: what it learns from, a name that `lib.texts.load` knows.
    """

    encoding: str
    seed: int
    learning_rate: float
    tokens: int
    train_length: int = 64
    encoding_rate: float = 1.0
    options: dict = field(default_factory=dict)
    batch_tokens: int = 1024
    d_model: int = 96
    n_heads: int = 3
    n_layers: int = 3
    d_ff: int = 256
    text: str = TEXT

    def __post_init__(self):
        if self.batch_tokens % self.train_length:
            raise ValueError(
                f"train_length {self.train_length} must divide batch_tokens {self.batch_tokens}."
            )
        if self.tokens < self.batch_tokens:
            raise ValueError(f"tokens must be at least one batch of {self.batch_tokens}.")
        if not (self.learning_rate > 0 and self.encoding_rate > 0):
            raise ValueError("learning_rate and encoding_rate must be positive.")

    @property
    def steps(self) -> int:
        return self.tokens // self.batch_tokens

    @property
    def key(self) -> str:
        """SHA-256 (first 16 hex digits) of the configuration."""
        configuration = asdict(self)
        if self.text == TEXT:  # runs from before there was another text keep their keys
            del configuration["text"]
        canonical = json.dumps(configuration, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def decoder(self, vocabulary: int) -> Decoder:
        """The untrained model of this run."""
        config = Config(
            encoding=self.encoding,
            options=self.options,
            vocabulary=vocabulary,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            max_length=self.train_length,
            d_ff=self.d_ff,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return Decoder(config)


class Windows:
    """Training windows of L + 1 tokens from documents, none across a border of two.

    The documents stay where they are, on disk too (memory maps): a batch copies what it reads.
    Raises ValueError when no document is long enough.
    """

    def __init__(self, documents: list[np.ndarray], train_length: int):
        self.size = train_length + 1
        usable = [d for d in documents if len(d) >= self.size]
        if not usable:
            raise ValueError(
                f"No training document has {self.size} tokens: choose a shorter train_length."
            )
        self.documents = usable
        self.ends = np.cumsum([len(d) - train_length for d in usable])  # windows up to here

    def batch(self, seed: int, step: int, size: int) -> torch.Tensor:
        """The windows of one step: (size, L + 1), a function of the arguments alone."""
        chosen = np.random.default_rng([seed, step]).integers(self.ends[-1], size=size)
        rows = []
        for n, i in zip(chosen, np.searchsorted(self.ends, chosen, side="right"), strict=True):
            document = self.documents[i]
            start = n - (self.ends[i - 1] if i else 0)
            rows.append(document[start : start + self.size])
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear from 0 over the first tenth, then half a cosine down to 0."""
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def optimizer_of(model, lr: float, encoding_rate: float = 1.0) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices, none on gains, and the parameters of `model.encodings`
    in a group of their own, `encoding_rate` times as fast."""
    own = {id(p) for p in model.encodings.parameters()}
    others = [p for p in model.parameters() if id(p) not in own]
    groups = [
        {"params": [p for p in others if p.dim() > 1], "peak": lr, "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in others if p.dim() == 1], "peak": lr, "weight_decay": 0.0},
    ]
    if own:
        mine = list(model.encodings.parameters())
        groups.append({"params": mine, "peak": lr * encoding_rate, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, fused=True)


def set_rates(optimizer: torch.optim.AdamW, step: int, steps: int) -> None:
    """The learning rates of one of `steps` steps, from the groups' peaks."""
    factor = learning_rate_factor(step, steps)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def descend(model, optimizer: torch.optim.AdamW, loss) -> None:
    """One step along the gradient of the loss, its norm clipped."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()


def mean_loss(model, window: torch.Tensor) -> torch.Tensor:
    """The mean loss (nats a token) of predicting the last L tokens of windows (B, L + 1)."""
    logits = model(window[:, :-1])  # (B, L, V)
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


class Training:
    """A run that goes step by step: `losses` (nats a token) grows by one with each `step()`."""

    def __init__(self, config: TrainingConfig, documents: list[np.ndarray], vocabulary: int):
        self.config = config
        self.windows = Windows(documents, config.train_length)
        self.decoder = config.decoder(vocabulary).train()
        self.optimizer = optimizer_of(self.decoder, config.learning_rate, config.encoding_rate)
        self.losses: list[float] = []

    def step(self) -> None:
        config, t = self.config, len(self.losses)
        set_rates(self.optimizer, t, config.steps)
        size = config.batch_tokens // config.train_length
        window = self.windows.batch(config.seed, t, size)  # (B, L + 1)
        self.losses.append(self.learn(window))

    def learn(self, window: torch.Tensor) -> float:
        """One step on windows (B, L + 1); their mean loss before it, in nats a token."""
        loss = mean_loss(self.decoder, window)
        descend(self.decoder, self.optimizer, loss)
        return loss.item()

    def resume(self, checkpoint: Path) -> None:
        """Go on from a checkpoint where there is one; raises ValueError as `load` does."""
        if checkpoint.exists():
            self.load(checkpoint)

    def save(self, path: Path) -> None:
        """Weights, the optimizer's moments and the losses, in one safetensors file."""
        import safetensors.torch  # not above: training itself needs torch and numpy alone

        tensors = {f"weights.{n}": p.detach() for n, p in self.decoder.named_parameters()}
        for name, state in self._moments().items():
            tensors |= {f"optimizer.{name}.{what}": value for what, value in state.items()}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        seal = {"sha256": digest(tensors)}
        with files.atomic(path) as temporary:
            safetensors.torch.save_file(tensors, temporary, seal)

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote; raises ValueError when the file is missing or damaged, or
        does not fit this run."""
        saved = read_tensors(path, sealed=True)
        try:
            for name, parameter in self.decoder.named_parameters():
                parameter.data.copy_(saved[f"weights.{name}"])
                prefix = f"optimizer.{name}."
                self.optimizer.state[parameter] = {
                    n.removeprefix(prefix): t for n, t in saved.items() if n.startswith(prefix)
                }
            self.losses = saved["losses"].tolist()
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"{path.name} does not belong to this run ({error}).") from None

    def finish(self, place: Path, data: str, seconds: float, **more) -> dict:
        """Write the weights into a folder, and run.json, which vouches for them and comes last.

        data: the hash of what was learned from; seconds: what it took; more: what else the record
        says. The record comes back.
        """
        import safetensors.torch

        weights = {n: p.detach() for n, p in self.decoder.named_parameters()}
        with files.atomic(place / "model.safetensors") as temporary:
            safetensors.torch.save_file(weights, temporary)
        record = {
            "configuration": asdict(self.config),
            "data": data,
            "weights": files.sha256(place / "model.safetensors"),
            "losses": self.losses,
            "parameters": sum(p.numel() for p in weights.values()),
            "seconds": seconds,
            "torch": torch.__version__,
            **more,
        }
        files.write_sealed(record, place / "run.json")
        return record

    def _moments(self) -> dict[str, dict[str, torch.Tensor]]:
        state = self.optimizer.state
        return {n: state[p] for n, p in self.decoder.named_parameters() if p in state}


def read_tensors(path: Path, sealed: bool = False) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file; raises ValueError when it is missing or damaged.

    `sealed`: as `Training.save` wrote it, with the digest of the tensors, which is checked.
    """
    import safetensors

    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            said = (file.metadata() or {}).get("sha256")
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} is missing or damaged ({error}).") from None
    if sealed and said != digest(tensors):
        raise ValueError(f"{path.name} is damaged (its digest is wrong).")
    return tensors


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 (hex) of the names, shapes, types and bytes of tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def same_fingerprint(a: list[float], b: list[float]) -> int | None:
    """None when the losses of the first steps agree; else the first step that differs."""
    for t, (x, y) in enumerate(zip(a[:FINGERPRINT_STEPS], b[:FINGERPRINT_STEPS], strict=False)):
        if not abs(x - y) <= FINGERPRINT_TOLERANCE:
            return t
    return None


def fingerprint(config: TrainingConfig, documents, vocabulary: int) -> list[float]:
    """The losses of the first steps, trained anew."""
    training = Training(config, documents, vocabulary)
    for _ in range(min(FINGERPRINT_STEPS, config.steps)):
        training.step()
    return training.losses


def train(
    config: TrainingConfig,
    documents: list[np.ndarray],
    vocabulary: int,
    checkpoint: Path | None = None,
    report: Callable[[int], None] = lambda tokens: None,
    kind: Callable[..., Training] = Training,
) -> Training:
    """Train to the end, from `checkpoint` on if that file holds a valid one.

    `report` is called with the tokens of each few steps as they are done. `kind` makes the run:
    in this process, or over several (`lib.parallel`).
    Raises ValueError for a checkpoint of another run, FloatingPointError for a loss not finite.
    """
    training = kind(config, documents, vocabulary)
    if checkpoint is not None:
        training.resume(checkpoint)
        report(len(training.losses) * config.batch_tokens)
    while len(training.losses) < config.steps:
        training.step()
        report(config.batch_tokens)
        if not math.isfinite(training.losses[-1]):
            raise FloatingPointError(
                f"The loss of {config.encoding}, seed {config.seed}, is not finite at step "
                f"{len(training.losses)}: choose a learning rate below {config.learning_rate}."
            )
        if checkpoint is not None and len(training.losses) % CHECKPOINT_STEPS == 0:
            training.save(checkpoint)
    return training
