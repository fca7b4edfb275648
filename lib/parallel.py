"""One model over several processes, or on a GPU: `torchrun --nproc-per-node 8 -m lib train FILE`.

Data-parallel: every process has the whole model and takes its share of each batch; the gradients
are averaged. The batch of a step is the one that a single process draws, so the losses are the same
but for rounding. On a GPU the products are in bfloat16 (autocast), weights, moments and sums in
float32. What is trained is a `TrainingConfig`, through `lib.training.train`, and a checkpoint goes
on with any number of processes.

FILE is TOML: the fields of `TrainingConfig`, and `accumulate` (parts that a process computes its
share in, one after another, to save memory) and `compile` (whether the model goes through
torch.compile) where they are wanted. data/large/ has two. The run lies in build/train/<key>/, apart
from the store of the studies: bits that depend on the number of processes are not theirs.
"""

import contextlib
import dataclasses
import datetime
import functools
import os
import re
import time
import tomllib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from lib import paths, texts
from lib.training import CLIP, Training, TrainingConfig, mean_loss, train

PATIENCE = 300  # seconds that a process waits for the others
LOST = re.compile(r"gloo|nccl|connection (closed|reset)|timed out|store", re.IGNORECASE)


class Parallel(Training):
    """A run whose every step is shared among the processes of the default group, if there is one.

    Args:
        accumulate: in how many parts each process computes its share of a batch.
        compiled: whether the model goes through torch.compile.

    Raises ValueError where processes and parts do not divide the windows of a batch.
    """

    def __init__(self, config, documents, vocabulary, accumulate=1, compiled=False):
        super().__init__(config, documents, vocabulary)
        self.parts = accumulate
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if _group() else (0, 1)
        windows = config.batch_tokens // config.train_length
        if windows % (self.world * accumulate):
            raise ValueError(
                f"{self.world} processes with {accumulate} parts each cannot share a batch of "
                f"{windows} windows evenly: choose another batch_tokens or accumulate."
            )
        self.device = device()
        self.decoder.to(self.device)
        self.shared = self.decoder
        if self.world > 1:
            ids = [self.device.index] if self.device.type == "cuda" else None
            self.shared = DistributedDataParallel(self.decoder, device_ids=ids)
        self.model = torch.compile(self.shared) if compiled else self.shared

    def learn(self, window: torch.Tensor) -> float:
        """As `Training.learn`: window (B, L + 1) is the whole batch, in every process."""
        parts = window[self.rank :: self.world].to(self.device).chunk(self.parts)
        loss = torch.zeros((), device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with _others_may_end():
            for n, part in enumerate(parts, 1):
                with self._averaged(n == len(parts)):
                    with torch.autocast("cuda", torch.bfloat16, self.device.type == "cuda"):
                        some = mean_loss(self.model, part) / len(parts)
                    some.backward()
                loss += some.detach()
            torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), CLIP)
            self.optimizer.step()
            if self.world > 1:
                dist.all_reduce(loss)
            return loss.item() / self.world

    def _averaged(self, last: bool):
        """Whether the gradients of what follows are averaged now, or wait for the last part."""
        return contextlib.nullcontext() if last or self.world == 1 else self.shared.no_sync()

    def save(self, path: Path) -> None:
        """Written by the first process alone."""
        if self.rank == 0:
            super().save(path)

    def resume(self, checkpoint: Path) -> None:
        """The first process reads, and tells the others: they need no folder in common."""
        wrong = None
        if self.rank == 0:
            try:
                super().resume(checkpoint)
            except ValueError as error:
                wrong = error
        steps = torch.tensor(-1 if wrong else len(self.losses), device=self.device)
        with _others_may_end():
            self._told(steps)
            if steps < 0:
                raise wrong or ValueError(f"{checkpoint.name} cannot be gone on from.")
            if steps == 0:
                return
            losses = torch.tensor(self.losses or [0.0] * int(steps), dtype=torch.float64)
            losses = self._told(losses.to(self.device))
            for parameter in self.decoder.parameters():
                self._told(parameter.data)
                state = self.optimizer.state[parameter] or {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
                self.optimizer.state[parameter] = {
                    name: self._told(state[name].to(self.device)) for name in sorted(state)
                }
            self.losses = losses.tolist()

    def _told(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of the first process, in place."""
        if self.world > 1:
            dist.broadcast(tensor, 0)
        return tensor


def device() -> torch.device:
    """The GPU of this process, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")


def _group() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextlib.contextmanager
def _others_may_end():
    """One sentence where another process is gone, in the place of its transport's report."""
    try:
        yield
    except RuntimeError as error:
        if not (_group() and LOST.search(str(error))):
            raise
        raise RuntimeError(
            f"Another process of this training has ended, or has not answered for {PATIENCE} s: "
            f"what it wrote says why. The same command goes on from the last checkpoint."
        ) from None


# ---- the command ---------------------------------------------------------------------------------


def read(path: str | Path) -> tuple[TrainingConfig, dict]:
    """The run that a TOML file asks for, and how: the arguments of `Parallel`.

    Raises ValueError for a file that is missing or no TOML, unknown fields, or bad values.
    """
    path = Path(path).expanduser()
    try:
        asked = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read as TOML: {error}.") from None
    how = {"accumulate": asked.pop("accumulate", 1), "compiled": asked.pop("compile", False)}
    known = [field.name for field in dataclasses.fields(TrainingConfig)]
    unknown = sorted(asked.keys() - set(known))
    if unknown:
        raise ValueError(
            f"{path.name} has unknown fields ({', '.join(unknown)}): known are "
            f"{', '.join([*known, 'accumulate', 'compile'])}."
        )
    if type(how["accumulate"]) is not int or how["accumulate"] < 1:
        raise ValueError(f"accumulate must be a whole number of at least 1 in {path.name}.")
    try:
        return TrainingConfig(**asked), how
    except TypeError as error:  # a field that is missing, or of another type
        raise ValueError(f"{path.name} does not say what to train: {error}.") from None


def run(path: str | Path) -> None:
    """Train what a file asks for, in this process or as one of those that torchrun has started.

    Raises as `read` and `lib.training.train` do, and RuntimeError where another process is gone.
    """
    config, how = read(path)
    with _joined() as (rank, world):
        with _others_may_end():
            text = _text(config.text)
        place = paths.BUILD / "train" / config.key
        bar = tqdm(total=config.tokens, unit="tok", unit_scale=True, disable=rank > 0)
        began = time.perf_counter()
        with bar:
            training = train(
                config,
                text.documents("train"),
                text.vocabulary_size,
                place / "checkpoint.safetensors",
                bar.update,
                functools.partial(Parallel, **how),
            )
        if rank == 0:
            seconds = time.perf_counter() - began  # of this call
            where = {"processes": training.world, "device": training.device.type}
            training.finish(place, text.hash, seconds, **where)
            print(f"{config.encoding}: {place.relative_to(paths.ROOT)}/model.safetensors")


@contextlib.contextmanager
def _joined():
    """Join the processes that torchrun has started; yields the number of this one, and how many."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if torch.cuda.is_available():
        torch.cuda.set_device(device())
    torch.set_flush_denormal(True)
    try:
        if world == 1:
            yield 0, 1
            return
        kind = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(kind, timeout=datetime.timedelta(seconds=PATIENCE))
        try:
            yield dist.get_rank(), world
        finally:
            dist.destroy_process_group()
    finally:
        torch.set_flush_denormal(False)


def _text(name: str):
    """The text; on each machine the first process prepares it, and the others find it prepared."""
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    text = texts.load(name) if first else None
    if _group():
        dist.barrier()
    return text or texts.load(name)
