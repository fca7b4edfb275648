"""Jobs on a Ray cluster: `RUNNER=ray make reproduce`, after `make setup RUNNER=ray`.

RAY_ADDRESS names the cluster (host:port, on a machine that belongs to it); empty, Ray starts on
this machine alone and on loopback. Each job is a task of one core, and the GPUs it asks for. The
machines need what `make setup RUNNER=ray` installs, and no folder in common: the repository's
code goes to them with the first task, a job's files as bytes with its own, and each file that it
writes comes back as soon as it is whole. So a run that was on a lost machine goes on elsewhere from
its last checkpoint, and the store and the log on this machine read as if all had run here.

Ray moves functions, arguments and files between its processes by pickle: whoever reaches its ports
can run code. Keep them in a network of your own. No pickle is written to the store or read from it.
"""

import collections
import ctypes
import logging
import logging.handlers
import os
import queue
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from lib import files, paths

ATTEMPTS = 3  # of a job whose machine is lost again and again before it has written anything more
POLL = 0.5  # seconds between two looks at what a task has written
OWN = ("runs", "measured", "tasks")  # what jobs write into the store
TEXTS = ("corpus", "wikitext")  # what each machine prepares for itself
OBJECT_STORE = 2**28  # bytes of shared memory of a local cluster: what goes through it is small
# What a job does not need of the repository.
LEFT_OUT = [".git", ".venv", "build", "data/cache", "figures", "notebooks", "tests"]

log = logging.getLogger(__name__)


def run(
    jobs: list, do: Callable, stored: Callable, environment: dict, cores: int, alone: bool
) -> Iterator[tuple[int, dict]]:
    """Do the jobs as Ray tasks. Yields, now and then, the tokens done in all and what has finished
    since, by its place among the jobs.

    Args:
        do: `do(job, done)` on some machine of the cluster; it counts its tokens in done[0].
        stored: the files that a job goes on from.
        environment: of the processes that do it.
        cores: how many tasks go at once where Ray starts on this machine alone.
        alone: one job after another, on a machine that nothing else of ours runs on.

    Raises:
        ValueError: Ray is not installed, the cluster does not answer, or no machine has what a job
            asks for; or an error of a job, as others are.
        RuntimeError: a job was lost ATTEMPTS times.
    """
    ray = _connected(environment, cores)
    task = ray.remote(_work)
    waiting = collections.deque(sorted(range(len(jobs)), key=lambda i: -jobs[i].work))
    at_once = 1 if alone else len(jobs)
    going, done, attempts = {}, [0] * len(jobs), [0] * len(jobs)
    known = [list(map(_relative, stored(job))) for job in jobs]
    try:
        while waiting or going:
            while waiting and len(going) < at_once:
                i = waiting.popleft()
                mine = {path: content for path in known[i] if (content := _read(path)) is not None}
                options = _request(ray, jobs[i], alone)
                going[task.options(**options).remote(jobs[i], mine, do, _versions())] = i
            finished = {}
            ready, _ = ray.wait(list(going), timeout=POLL)
            if not ready:  # a task that no machine can take would wait for ever
                _fitting(ray, max((jobs[i] for i in going.values()), key=lambda job: job.gpus))
            for stream in ready:
                i = going[stream]
                try:
                    message = ray.get(next(stream))
                except (ray.exceptions.RayError, StopIteration) as error:
                    del going[stream]
                    _again_or_raise(ray, error, jobs[i], attempts, i)
                    waiting.appendleft(i)
                    done[i] = 0
                    continue
                done[i] = message["tokens"]
                if message["files"]:
                    attempts[i] = 0
                    known[i] = list(dict.fromkeys([*known[i], *message["files"]]))
                    _write(message["files"], paths.CACHE)
                for line in message["log"]:
                    log.warning("%s", line)
                if "error" in message:
                    raise message["error"]
                if "outcome" in message:
                    finished[i] = message["outcome"]
                    del going[stream]
            yield sum(done), finished
    finally:
        for stream in going:
            ray.cancel(stream)


def _connected(environment: dict, cores: int):
    """Ray, connected to the cluster that RAY_ADDRESS names or to one started here."""
    # Before Ray is imported. It asks nobody and reports to nobody; and where it finds its machines
    # by itself, it uses loopback, whatever other addresses this machine has.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "").strip() or "local"
    if address == "local":
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise ValueError("RUNNER=ray needs Ray: run `make setup RUNNER=ray`.") from None
    if ray.is_initialized():
        return ray
    # One arena, as in a process of one thread: what WORKER_ENVIRONMENT says holds for that alone.
    what = {"env_vars": {**environment, "MALLOC_ARENA_MAX": "1"}}
    if address == "local":
        here = {"num_cpus": cores, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        here["_node_ip_address"] = "127.0.0.1"
    else:
        _check_address(address)
        here = {}
        what |= {"working_dir": str(paths.ROOT), "excludes": LEFT_OUT}
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}  # a loss is told below
    # Ray gives a part of itself 15 s to start, which a busy machine may need longer for.
    for last in (False, False, True):
        try:
            ray.init(address, runtime_env=what, **quiet, **here)
            break
        except Exception as error:  # a bare one, among others
            ray.shutdown()
            why = " ".join(str(error).split()).rstrip(".")
            if last or address != "local":
                raise ValueError(f"Ray cannot start (RAY_ADDRESS={address}): {why}.") from None
    return ray


def _check_address(address: str) -> None:
    """Raises ValueError where nobody answers: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise ValueError(
            f"RAY_ADDRESS must be host:port of a cluster that this machine belongs to, not "
            f"{address!r}: `ray status` shows it."
        )
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ValueError(
            f"No Ray cluster answers at RAY_ADDRESS={address} ({error}): start one with `ray start "
            f"--head`, or leave RAY_ADDRESS empty."
        ) from None


def _fitting(ray, job) -> list[dict]:
    """The machines of the cluster that have what a job asks for; ValueError when there is none."""
    need = {"CPU": 1, "GPU": job.gpus}
    found = [
        node
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(what, 0) >= n for what, n in need.items())
    ]
    if not found:
        raise ValueError(
            f"{job.name} needs a machine with 1 CPU and {job.gpus} GPUs: the cluster has none."
        )
    return found


def _request(ray, job, alone: bool) -> dict:
    """The options of a job's task: what it asks for, and where it may run."""
    fitting = _fitting(ray, job)
    request = {"num_cpus": 1, "num_gpus": job.gpus, "num_returns": "streaming", "max_retries": 0}
    if alone:  # all times from one machine, and all of its cores, so that nothing runs beside
        most = max(fitting, key=lambda n: (n["Resources"].get("CPU", 0), n["NodeID"]))
        request["num_cpus"] = most["Resources"].get("CPU", 0)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Not soft: where that machine is lost before it begins, it is lost too, and asked for anew.
        request["scheduling_strategy"] = NodeAffinitySchedulingStrategy(most["NodeID"], soft=False)
    return request


def _again_or_raise(ray, error: Exception, job, attempts: list[int], i: int) -> None:
    """Count the loss of a job's machine; raises what will not get better by itself."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, ValueError):  # such as a job whose file that machine lacks
            raise cause from None
        why = f"{type(cause).__name__}: {cause}".partition("\n")[0]  # without its traceback
        raise RuntimeError(f"Ray could not do {job.name}: {why}") from None
    if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
        raise RuntimeError(f"Ray could not prepare a machine: {error}") from None
    attempts[i] += 1
    if attempts[i] == ATTEMPTS:
        raise RuntimeError(
            f"The worker of {job.name} was lost {ATTEMPTS} times (out of memory?). Run the same "
            f"command again: what is finished is kept."
        ) from None
    log.warning("The worker of %s was lost: it starts again from its last checkpoint.", job.name)


# ---- on the machine that does the job ------------------------------------------------------------


def _work(job, mine: dict[str, bytes], do: Callable, versions: tuple):
    """Do one job in a store of its own that holds the files `mine`. Yields messages {tokens: done
    so far, files: path → bytes of what is new, None for what is gone; log: lines}; the last has
    the outcome or the error as well."""
    if _versions() != versions:
        raise ValueError(
            f"A machine of the cluster has {' '.join(_versions())}, this one {' '.join(versions)}: "
            f"run `make setup RUNNER=ray` of the same checkout on both."
        )
    base, store = paths.CACHE, Path(tempfile.mkdtemp(prefix="positional-encodings-"))
    try:
        _write(mine, store)
        for name in TEXTS:
            (base / name).mkdir(parents=True, exist_ok=True)
            (store / name).symlink_to(base / name)
        paths.CACHE = store
        yield from _messages(job, do, store)
    finally:
        paths.CACHE = base
        shutil.rmtree(store, ignore_errors=True)


def _messages(job, do: Callable, store: Path):
    done, end = [0], {}

    def work():
        try:
            end["outcome"] = do(job, done)
        except SystemExit:  # cancelled, see below
            pass
        except Exception as error:  # of any kind: it goes to the machine that asked
            end["error"] = error

    lines = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(lines)
    logging.getLogger().addHandler(handler)
    thread = threading.Thread(target=work, daemon=True)
    before, last = _state(store), False
    thread.start()
    try:
        while not last:
            thread.join(POLL)
            last, now = not thread.is_alive(), _state(store)
            changed = [path for path in now if now[path] != before.get(path)]
            new = {path: _read(path) for path in changed} | dict.fromkeys(before.keys() - now)
            before = now
            said = [lines.get().getMessage() for _ in range(lines.qsize())]
            if last or new or said or done[0]:
                yield {"tokens": done[0], "files": new, "log": said, **(end if last else {})}
    finally:
        logging.getLogger().removeHandler(handler)
        if thread.is_alive():  # cancelled: the process stays, so the job ends here
            stop = ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(*stop)
            thread.join()


def _state(store: Path) -> dict[str, tuple]:
    """What tells one whole file of the store from another, the oldest first: a record is written
    after the weights that it vouches for."""
    found = {}
    for name in OWN:
        for path in (store / name).rglob("*"):
            try:
                state = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file() and not path.name.startswith("."):
                found[str(path.relative_to(store))] = state.st_mtime_ns, state.st_ino, state.st_size
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _versions() -> tuple:
    import torch

    return f"Python {sys.version_info.major}.{sys.version_info.minor}", f"torch {torch.__version__}"


# ---- files as bytes ------------------------------------------------------------------------------


def _relative(path: Path) -> str:
    return str(path.relative_to(paths.CACHE))


def _read(relative: str) -> bytes | None:
    """The bytes of a file of the store; None where it is gone."""
    try:
        return (paths.CACHE / relative).read_bytes()
    except FileNotFoundError:
        return None


def _write(contents: dict[str, bytes | None], store: Path) -> None:
    for relative, content in contents.items():
        if content is None:
            (store / relative).unlink(missing_ok=True)
            continue
        with files.atomic(store / relative) as temporary:
            temporary.write_bytes(content)
