"""The store of finished runs, and the runner that fills it: one thread a run, a run for each core
of this machine, or of a Ray cluster (`RUNNER=ray`, see `lib.cluster`).

A run is a training configuration and what a study measures on the trained model. It lies in

    data/cache/runs/<key of the configuration>/
        model.safetensors       the trained weights
        run.json                configuration, hashes, every loss, seconds; written last
        checkpoint.safetensors  while the run is unfinished
        measured-<key>.json     rows that a study measured on the weights

A finished run is used again when its configuration, its data and its fingerprint (the losses of
its first steps, trained anew) agree; the reason is logged for every run, either way. Rows are used
again when the weights, the study's settings and the code that measures are the same.
"""

import ast
import functools
import hashlib
import importlib
import inspect
import json
import logging
import multiprocessing
import os
import resource
import signal
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from lib import cluster, files, parallel, paths, texts
from lib.training import (
    Training,
    TrainingConfig,
    fingerprint,
    read_tensors,
    same_fingerprint,
    train,
)

log = logging.getLogger(__name__)

# One thread a run; and glibc keeps freed memory instead of asking the system for each large tensor
# anew, which would fault in and zero every page of it (a tenth of a training step).
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32 - 1),
    "MALLOC_TOP_PAD_": str(2**26),
    "KINETO_LOG_LEVEL": "6",  # else torch's profiler, which counts memory, writes lines of its own
}

# Every measured row depends on these modules, and on what its study names in MEASURING.
MODEL = ("lib.attention", "lib.evaluation", "lib.transformer", "lib.encodings.*")


@dataclass(frozen=True)
class Job:
    """A model to train and what to measure on it.

    Args:
        training: the configuration of the run; None where nothing is trained, and
            `measure(None, None, settings)` is asked.
        measure: the module of a study; its function `measure(decoder, training, settings)` gives
            rows, each a dict of numbers and names. MEASURING there names the code that the rows
            depend on: functions, modules by name (`package.*` for all of a package), constants.
        settings: what to measure, in plain JSON values.
        measure_tokens: about how many tokens measuring costs, counted in trained tokens; it only
            serves the estimate of the time left.
        gpus: how many GPUs it needs; a Ray cluster then finds it a machine that has them.
    """

    training: TrainingConfig | None
    measure: str
    settings: dict = field(default_factory=dict)
    measure_tokens: int = 0
    gpus: int = 0

    @property
    def name(self) -> str:
        if self.training is None:
            return ", ".join(str(value) for value in self.settings.values())
        t = self.training
        return f"{t.encoding}, L = {t.train_length}, seed {t.seed}"

    @property
    def work(self) -> int:
        return (self.training.tokens if self.training else 0) + self.measure_tokens


@dataclass(frozen=True)
class Outcome:
    """What a job came to: the rows measured, and what was done for them."""

    job: Job
    rows: list[dict[str, Any]]
    trained: str  # why the run was trained or used again
    measured: str  # why the rows were measured or used again
    training_seconds: float  # of the whole run, whenever it was trained
    measuring_seconds: float
    peak_mib: float  # the most memory that the process held while measuring, or before
    losses: list[float]


def workers() -> int:
    """How many runs go at once: the variable WORKERS, or one for each core.

    Raises ValueError when WORKERS is not a whole number of at least 1.
    """
    asked = os.environ.get("WORKERS", "").strip()
    if not asked:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not asked.isdigit() or int(asked) < 1:
        raise ValueError(f"WORKERS must be a whole number of at least 1, not {asked!r}.")
    return int(asked)


def folder(training: TrainingConfig) -> Path:
    return paths.CACHE / "runs" / training.key


def runner() -> str:
    """Where jobs run, by the variable RUNNER: `local` (processes of this machine), or `ray`.

    Raises ValueError when RUNNER is something else.
    """
    asked = os.environ.get("RUNNER", "").strip() or "local"
    if asked not in ("local", "ray"):
        raise ValueError(f"RUNNER must be local or ray, not {asked!r}.")
    return asked


def run(jobs: list[Job], title: str, alone: bool = False) -> list[Outcome]:
    """Do the jobs, and give their outcomes in the order of the jobs; `alone`, one after another.

    Interrupted or killed, the same call goes on later from what is finished and from the last
    checkpoint of what is not.

    Raises:
        ValueError, FloatingPointError: from a job; the others are stopped.
        RuntimeError: a worker process died.
    """
    if not jobs:
        return []
    for name in {job.training.text if job.training else texts.MESSAGES for job in jobs}:
        texts.load(name)  # once, before the workers all find the cache empty
    os.environ |= WORKER_ENVIRONMENT  # read when a worker starts
    if runner() == "ray":
        work = cluster.run(jobs, do_in_thread, stored, WORKER_ENVIRONMENT, workers(), alone)
    else:
        work = _in_processes(jobs, alone)
    outcomes: dict[int, Outcome] = {}
    bar = _bar(title, sum(job.work for job in jobs))
    try:
        for done, new in work:
            bar.update(done - bar.n)
            for i, outcome in new.items():
                outcomes[i] = outcome
                bar.write(f"[{len(outcomes)}/{len(jobs)}] {_line(outcome)}")
    finally:
        work.close()
        bar.close()
    return [outcomes[i] for i in range(len(jobs))]


def _in_processes(jobs: list[Job], alone: bool) -> Iterator[tuple[int, dict[int, Outcome]]]:
    """Do the jobs in processes of this machine. Yields, now and then, the tokens done in all and
    what has finished since, by its place among the jobs."""
    context = multiprocessing.get_context("spawn")
    # Tokens done, a slot a job: each is written by one worker alone and needs no lock.
    done = context.RawArray("q", len(jobs))
    at_once = 1 if alone else min(workers(), len(jobs))
    pool = ProcessPoolExecutor(at_once, context, initializer=_start_worker, initargs=(done,))
    try:
        longest_first = sorted(range(len(jobs)), key=lambda i: -jobs[i].work)
        pending = {pool.submit(do, jobs[i], i): i for i in longest_first}
        while pending:
            ended, _ = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            yield sum(done), {pending.pop(future): future.result() for future in ended}
    except BrokenProcessPool:
        raise RuntimeError(
            "A worker process died (out of memory?). Run the same command again, perhaps with "
            "WORKERS=1: what is finished is kept."
        ) from None
    finally:
        _stop(pool)


def finished(jobs: list[Job]) -> list[Outcome]:
    """The outcomes of those jobs whose rows lie in the store; nothing is trained or measured, and
    no fingerprint is asked for."""
    outcomes = []
    for job in jobs:
        try:
            record = _record(job.training) if job.training else _untrained()
        except _Unusable:
            continue
        rows = _saved(*_place_of_rows(job, record))
        if rows is not None:
            outcomes.append(_outcome(job, record, rows, "in the store", "in the store"))
    return outcomes


def do(job: Job, slot: int = 0) -> Outcome:
    """Train (or find) the model of a job and measure (or find) its rows. Runs in a worker, which
    counts its tokens in `slot`."""
    global _slot
    _slot = slot
    record, trained = _trained(job) if job.training else (_untrained(), "no training")
    rows, measured = _measured(job, record)
    return _outcome(job, record, rows, trained, measured)


def _outcome(job: Job, record: dict, rows: dict, trained: str, measured: str) -> Outcome:
    return Outcome(
        job=job,
        rows=rows["rows"],
        trained=trained,
        measured=measured,
        training_seconds=record["seconds"],
        measuring_seconds=rows["seconds"],
        peak_mib=rows["peak_mib"],
        losses=record["losses"],
    )


def do_in_thread(job: Job, done: list[int]) -> Outcome:
    """`do` in a thread of a process that is another's to look after; counts its tokens in
    done[0]."""
    global _done
    _done = done
    _one_thread()
    return do(job)


def stored(job: Job) -> list[Path]:
    """The files of the store that a job may use again or go on from."""
    if job.training:
        found = [folder(job.training).glob("*")]
    else:  # its rows, and the checkpoints of studies that train themselves, while unfinished
        rows, _ = _place_of_rows(job, _untrained())
        found = [rows.parent.glob(rows.name), (paths.CACHE / "tasks").glob("*")]
    return sorted(path for some in found for path in some if not path.name.startswith("."))


def decoder(training: TrainingConfig):
    """The trained model of a finished run, in evaluation mode.

    Raises ValueError when that run has not been finished on this machine, or its files are damaged.
    """
    try:
        _record(training)
    except _Unusable as reason:
        raise ValueError(
            f"No run of {training.encoding}, L = {training.train_length}, seed {training.seed} can "
            f"be used on this machine ({reason}): `make reproduce` trains it."
        ) from None
    model = training.decoder(texts.load(training.text).vocabulary_size)
    model.load_state_dict(read_tensors(folder(training) / "model.safetensors"))
    return model.eval()


def _trained(job: Job) -> tuple[dict, str]:
    """The record of the finished run of a job, and why it was trained or used again."""
    training, place = job.training, folder(job.training)
    text = texts.load(training.text)
    documents, vocabulary = text.documents("train"), text.vocabulary_size
    try:
        record = _finished(training, text.hash)
        differs = None
        if not job.gpus:  # a GPU adds in an order of chance: its losses are not those of before
            differs = same_fingerprint(
                record["losses"], fingerprint(training, documents, vocabulary)
            )
        if differs is not None:
            raise _Unusable(f"step {differs} no longer gives the loss on record")
        _report(training.tokens)
        agree = "configuration and data" if job.gpus else "configuration, data and fingerprint"
        return record, f"used again: {agree} agree"
    except _Unusable as reason:
        why = str(reason)
    checkpoint = place / "checkpoint.safetensors"
    resumed = None
    if checkpoint.exists():
        try:
            resumed = _checkpoint_step(job, text.hash, documents, vocabulary)
            why = f"resumed at step {resumed}: {why}"
        except _Unusable as reason:
            why = f"{why}, and {reason}"
    if resumed is None:
        checkpoint.unlink(missing_ok=True)
        files.write_sealed({"data": text.hash}, place / "started.json")
    began = time.perf_counter()
    kind = parallel.Parallel if job.gpus else Training
    trained = train(training, documents, vocabulary, checkpoint, _report, kind)
    seconds = time.perf_counter() - began
    if resumed is not None:  # it was timed from there on alone
        seconds *= training.steps / max(1, training.steps - resumed)
    record = trained.finish(place, text.hash, seconds)
    checkpoint.unlink(missing_ok=True)
    return record, why if resumed is not None else f"trained: {why}"


def _record(training: TrainingConfig) -> dict:
    """The record of a finished run on today's data; _Unusable where there is none."""
    return _finished(training, texts.load(training.text).hash)


def _untrained() -> dict:
    """The record of a job that trains nothing."""
    return {"data": texts.load().hash, "weights": "", "losses": [], "seconds": 0.0}


class _Unusable(Exception):
    """Why a finished run cannot be used again."""


def _finished(training: TrainingConfig, data_hash: str) -> dict:
    """The record of a finished run whose files are whole and whose data are today's."""
    place = folder(training)
    if not (place / "run.json").exists():
        raise _Unusable("no finished run has this configuration")
    try:
        record = files.read_sealed(place / "run.json")
        whole = record["weights"] == files.sha256(place / "model.safetensors")
    except (OSError, ValueError, KeyError):
        whole = False
    if not whole:
        raise _Unusable("the files of the finished run are damaged")
    if record["data"] != data_hash:
        raise _Unusable("the data changed")
    return record


def _checkpoint_step(job, data_hash, documents, vocabulary) -> int:
    """The step that the checkpoint of this run stands at; _Unusable if it may not be gone on from.

    Here, its file and that of what it was started with are whole, and its losses are those of this
    machine.
    """
    training, place = job.training, folder(job.training)
    try:
        started = files.read_sealed(place / "started.json")
        losses = read_tensors(place / "checkpoint.safetensors", sealed=True)["losses"].tolist()
        damaged = len(losses) > training.steps
    except (OSError, ValueError, KeyError):
        damaged = True
    if damaged:
        raise _Unusable("its checkpoint is damaged")
    if started["data"] != data_hash:
        raise _Unusable("its checkpoint is of other data")
    if job.gpus:
        return len(losses)
    if same_fingerprint(losses, fingerprint(training, documents, vocabulary)) is not None:
        raise _Unusable("its checkpoint no longer gives the losses on record")
    return len(losses)


def _measured(job: Job, record: dict) -> tuple[dict, str]:
    """The rows that a job asks for, and why they were measured or used again."""
    path, key = _place_of_rows(job, record)
    saved = _saved(path, key)
    if saved is not None:
        _report(job.measure_tokens)
        return saved, "used again: weights, settings and code agree"
    damaged = "measured again: the rows on record are damaged"
    measured = damaged if path.exists() else "measured"
    began = time.perf_counter()
    model = decoder(job.training) if job.training else None
    rows = importlib.import_module(job.measure).measure(model, job.training, job.settings)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in KiB
    files.write_sealed({"key": key, "rows": rows, "seconds": seconds, "peak_mib": peak}, path)
    _report(job.measure_tokens)
    # As the next call will read them: the same bytes whether measured now or used again.
    return files.read_sealed(path), measured


def _place_of_rows(job: Job, record: dict) -> tuple[Path, dict]:
    """The file of the rows that a job asks for, and all that they depend on."""
    study = importlib.import_module(job.measure)
    key = {
        "measure": job.measure,
        "settings": job.settings,
        "weights": record["weights"],
        "data": record["data"],
        "code": code_hash((*MODEL, *study.MEASURING)),
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    place = folder(job.training) if job.training else paths.CACHE / "measured"
    return place / f"measured-{digest}.json", key


def _saved(path: Path, key: dict) -> dict | None:
    """The rows in a file of the store, where they are whole and depend on the same."""
    try:
        saved = files.read_sealed(path)
        return saved if saved["rows"] and saved["key"] == key else None
    except (OSError, ValueError, KeyError):
        return None


@functools.cache
def code_hash(parts: tuple) -> str:
    """SHA-256 of code, comments apart: functions, modules by name (`package.*`: all of one), and
    tuples of constants."""
    sources = []
    for part in parts:
        if isinstance(part, tuple):
            sources.append(repr(part))
            continue
        if callable(part):
            sources.append(textwrap.dedent(inspect.getsource(part)))
            continue
        place = paths.ROOT / Path(*part.removesuffix(".*").split("."))
        found = sorted(place.glob("*.py")) if part.endswith(".*") else [place.with_suffix(".py")]
        sources += [path.read_text(encoding="utf-8") for path in found]
    trees = [ast.dump(ast.parse(source)) for source in sources]
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()


def table(outcomes: list[Outcome], columns: list[str]) -> pd.DataFrame:
    """The rows of trained runs with the run's encoding, seed and training length; what a row says
    itself goes first, and its `method` is the encoding where one model was read in several ways."""
    rows = []
    for o in outcomes:
        t = o.job.training
        run = {"encoding": t.encoding, "seed": t.seed, "train_length": t.train_length}
        rows += [run | ({"encoding": r["method"]} if "method" in r else {}) | r for r in o.rows]
    return pd.DataFrame(rows, columns=columns)


def timings(outcomes: list[Outcome]) -> pd.DataFrame:
    """One row a run: what was done and why, the seconds of one core and the memory that it took."""
    return pd.DataFrame(
        {
            "run": o.job.name,
            "training": o.trained,
            "measuring": o.measured,
            "training_seconds": round(o.training_seconds, 1),
            "measuring_seconds": round(o.measuring_seconds, 1),
            "peak_mib": round(o.peak_mib),
            "tokens": o.job.training.tokens if o.job.training else 0,
        }
        for o in outcomes
    )


def _line(outcome: Outcome) -> str:
    seconds = outcome.training_seconds + outcome.measuring_seconds
    return f"{outcome.job.name}: {outcome.trained}; {outcome.measured} ({seconds:.0f} s)"


def _bar(title: str, work: int) -> tqdm:
    """Progress in trained tokens; a line every half minute where the output is no terminal."""
    return tqdm(
        total=work,
        desc=title,
        unit="tok",
        unit_scale=True,
        mininterval=0.5 if os.isatty(2) else 30,
        bar_format="{desc}: {percentage:3.0f}% |{bar:20}| {elapsed} gone, {remaining} left",
    )


_done, _slot = [0], 0


def _report(tokens: int) -> None:
    _done[_slot] += tokens


def _start_worker(done) -> None:
    """One thread, and an end when the parent ends, however it does."""
    global _done
    _done = done
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _one_thread()
    parent = multiprocessing.parent_process().sentinel
    threading.Thread(target=lambda: (connection.wait([parent]), os._exit(1)), daemon=True).start()


def _one_thread() -> None:
    """This thread computes alone, with denormals as zero."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the pool now: what a worker is at is in its checkpoint."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(timeout=10)
