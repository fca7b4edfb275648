"""Jobs on a Ray cluster: the bytes of the local runner, whatever machine is lost on the way.

What needs a cluster starts one of three machines on loopback, and is left to `make test-ray`.
"""

import dataclasses
import importlib.util
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from lib import cluster, corpus, paths, runs
from lib.training import TrainingConfig

SMALL = TrainingConfig(
    encoding="rope", seed=1, learning_rate=1e-2, tokens=1024 * 500, train_length=64,
    d_model=16, n_heads=2, n_layers=1, d_ff=24,
)  # fmt: skip


def job(gpus=0, **changes):
    training = dataclasses.replace(SMALL, **changes)
    return runs.Job(training, "lib.studies.learning_rates", {"tokens": 2000}, 500, gpus)


def new_store(place, monkeypatch):
    """A cache folder of the test's own, with the prepared corpus in it."""
    corpus.load()
    place.mkdir(exist_ok=True)
    if not (place / "corpus").exists():
        (place / "corpus").symlink_to((CORPUS / "corpus").resolve())
    monkeypatch.setattr(paths, "CACHE", place)
    monkeypatch.setenv("COMPANION_CACHE", str(place))  # for local workers
    return place


CORPUS = paths.CACHE


# ---- what a worker does, without Ray -------------------------------------------------------------


def test_files_go_in_and_what_is_written_comes_back_as_it_becomes_whole(tmp_path, monkeypatch):
    base = new_store(tmp_path / "base", monkeypatch)
    go, seen = threading.Event(), []

    def do(job, done):
        place = paths.CACHE / "runs" / "key"
        seen.append((place / "old").read_bytes())
        assert paths.CACHE != base and (paths.CACHE / "corpus").exists()
        (place / "old").unlink()
        (place / ".half-written").write_bytes(b"no")
        (place / "checkpoint").write_bytes(b"half of the way")
        done[0] += 7
        logging.getLogger("lib.test").warning("a %s", "warning")
        assert go.wait(60)
        (place / "checkpoint").unlink()
        (place / "run.json").write_bytes(b"whole")
        return "outcome"

    messages = cluster._work(job(), {"runs/key/old": b"old"}, do, cluster._versions())
    first = next(messages)
    go.set()
    *_, last = messages
    assert seen == [b"old"]
    assert first["files"] == {"runs/key/checkpoint": b"half of the way", "runs/key/old": None}
    assert (first["tokens"], first["log"]) == (7, ["a warning"])
    assert "outcome" not in first and last["outcome"] == "outcome"
    assert last["files"] == {"runs/key/run.json": b"whole", "runs/key/checkpoint": None}
    assert paths.CACHE == base and not (base / "runs").exists()


def test_an_error_of_a_job_goes_to_who_asked(tmp_path, monkeypatch):
    new_store(tmp_path, monkeypatch)
    error = FloatingPointError("not finite")

    def do(job, done):
        raise error

    (message,) = cluster._work(job(), {}, do, cluster._versions())
    assert message["error"] is error


def test_a_cancelled_job_ends_at_once_and_leaves_nothing(tmp_path, monkeypatch):
    new_store(tmp_path, monkeypatch)
    stores = []

    def do(job, done):
        stores.append(paths.CACHE)
        while True:
            done[0] += 1

    messages = cluster._work(job(), {}, do, cluster._versions())
    next(messages)
    before = threading.active_count()
    messages.close()
    assert threading.active_count() == before - 1
    assert len(stores) == 1 and not stores[0].exists()


def test_a_machine_with_other_versions_is_refused(tmp_path, monkeypatch):
    new_store(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="has Python .* of the same checkout on both"):
        next(cluster._work(job(), {}, lambda job, done: None, ("Python 3.0", "torch 1.0")))


def test_without_ray_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # what makes an import fail
    monkeypatch.setenv("RUNNER", "ray")
    with pytest.raises(ValueError, match="run `make setup RUNNER=ray`"):
        runs.run([job()], "none")


@pytest.mark.parametrize("value", ["Ray", "slurm"])
def test_another_runner_is_one_sentence(monkeypatch, value):
    monkeypatch.setenv("RUNNER", value)
    with pytest.raises(ValueError, match="RUNNER must be local or ray"):
        runs.run([job()], "none")


@pytest.mark.parametrize("address", ["here", "ray://127.0.0.1:1", ":6379", "127.0.0.1:x"])
def test_an_address_must_be_a_host_and_a_port(address):
    with pytest.raises(ValueError, match="must be host:port"):
        cluster._check_address(address)


def test_a_cluster_that_does_not_answer_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ValueError, match="No Ray cluster answers"):
        cluster._check_address(f"127.0.0.1:{port}")


class FakeRay:
    """A cluster of two machines that are up, one with GPUs, and a larger one that is down."""

    @staticmethod
    def nodes():
        return [
            {"Alive": True, "NodeID": "a" * 56, "Resources": {"CPU": 4.0}},
            {"Alive": True, "NodeID": "b" * 56, "Resources": {"CPU": 2.0, "GPU": 2.0}},
            {"Alive": False, "NodeID": "c" * 56, "Resources": {"CPU": 64.0, "GPU": 8.0}},
        ]


def test_a_job_asks_for_its_gpus_and_too_many_are_refused():
    assert cluster._request(FakeRay, job(), False)["num_gpus"] == 0
    assert cluster._request(FakeRay, job(gpus=2), False)["num_gpus"] == 2
    with pytest.raises(ValueError, match="1 CPU and 3 GPUs: the cluster has none"):
        cluster._request(FakeRay, job(gpus=3), False)


# ---- on a cluster --------------------------------------------------------------------------------

on_a_cluster = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed: `make test-ray` installs it and runs this",
    ),
    pytest.mark.skipif(
        os.environ.get("RUNNER") != "ray",
        reason="a Ray cluster takes half a minute to start: `make test-ray` runs this",
    ),
]


class Machines:
    """A Ray cluster on loopback whose machines do not share this process's cache folder."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self.head = self.add(0)  # the driver's machine, which does no job

    def add(self, cores, **more):
        for last in (False, False, True):  # a busy machine may be too slow for Ray at first
            ports = {name: free_port() for name in FIXED}
            try:
                return self.cluster.add_node(
                    num_cpus=cores,
                    node_ip_address="127.0.0.1",
                    include_dashboard=False,
                    object_store_memory=2**27,
                    **ports,
                    **more,
                )
            except Exception:
                if last:
                    raise


# Where these are given, a slow agent does not end its machine.
FIXED = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray then keeps to loopback
    new_store(tmp_path_factory.mktemp("machines"), patch)
    import ray

    machines = Machines()
    patch.setenv("RAY_ADDRESS", machines.cluster.address)
    yield machines
    ray.shutdown()
    machines.cluster.shutdown()
    patch.undo()


def summary(jobs, outcomes):
    """All that must be the same, whoever ran the jobs: losses, bytes of weights, rows as CSV."""
    weights = [(runs.folder(j.training) / "model.safetensors").read_bytes() for j in jobs]
    rows = runs.table(outcomes, ["encoding", "seed", "train_length", "perplexity"])
    return [o.losses for o in outcomes], weights, rows.to_csv(index=False)


@pytest.mark.usefixtures("machines")
class TestOnACluster:
    pytestmark = on_a_cluster

    def test_a_machine_lost_amid_a_study_changes_no_byte(
        self, machines, tmp_path, monkeypatch, caplog
    ):
        nodes = [machines.add(1), machines.add(1)]
        jobs = [job(seed=1), job(seed=2, encoding="t5"), job(seed=3, tokens=1024 * 100)]
        new_store(tmp_path / "local", monkeypatch)
        monkeypatch.setenv("RUNNER", "local")
        local = summary(jobs, runs.run(jobs, "local"))
        new_store(tmp_path / "ray", monkeypatch)
        monkeypatch.setenv("RUNNER", "ray")

        def lose_one():
            checkpoints = [runs.folder(j.training) / "checkpoint.safetensors" for j in jobs[:2]]
            deadline = time.monotonic() + 300
            while not all(c.exists() for c in checkpoints) and time.monotonic() < deadline:
                time.sleep(0.02)
            machines.cluster.remove_node(nodes[0], allow_graceful=False)

        killer = threading.Thread(target=lose_one)
        killer.start()
        outcomes = runs.run(jobs, "on Ray")
        killer.join()
        assert "was lost: it starts again from its last checkpoint" in caplog.text
        assert any(o.trained.startswith("resumed at step") for o in outcomes)
        assert summary(jobs, outcomes) == local
        again = runs.run(jobs, "again")
        assert all(o.trained.startswith("used again") for o in again)
        assert not list(tmp_path.rglob("checkpoint.safetensors"))
        machines.cluster.remove_node(nodes[1])

    def test_jobs_of_every_kind(self, machines, tmp_path, monkeypatch):
        """A GPU asked for, one that nobody has, a job that fails, and jobs that go alone."""
        node = machines.add(2, num_gpus=1)
        new_store(tmp_path, monkeypatch)
        few = [job(seed=s, tokens=1024 * 30) for s in (1, 2)]
        assert [o.job for o in runs.run(few, "alone", alone=True)] == few
        (done,) = runs.run([job(gpus=1, tokens=1024 * 30, seed=4)], "on a GPU")
        assert done.trained.startswith("trained")
        with pytest.raises(ValueError, match="1 CPU and 2 GPUs: the cluster has none"):
            runs.run([job(gpus=2)], "on no GPU")
        with pytest.raises(FloatingPointError, match="seed 5"):
            runs.run([job(seed=5, learning_rate=1e30), job(seed=6)], "one fails")
        machines.cluster.remove_node(node)

    def test_the_last_machine_lost_is_one_sentence_and_no_hang(
        self, machines, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(cluster, "ATTEMPTS", 1)
        node = machines.add(1)
        new_store(tmp_path, monkeypatch)
        endless = job(tokens=1024 * 190_000)

        def lose_it():
            while not (runs.folder(endless.training) / "started.json").exists():
                time.sleep(0.02)
            machines.cluster.remove_node(node, allow_graceful=False)

        killer = threading.Thread(target=lose_it)
        killer.start()
        with pytest.raises((RuntimeError, ValueError), match="was lost 1 times|the cluster has"):
            runs.run([endless], "lost")
        killer.join()

    def test_a_machine_lost_before_its_job_begins_leaves_it_to_another(
        self, machines, tmp_path, monkeypatch
    ):
        """A job that goes alone waits for the largest machine, which is busy, and then gone."""
        import ray

        small, large = machines.add(1), machines.add(2)
        new_store(tmp_path, monkeypatch)
        cluster._connected({}, 1)
        busy = ray.remote(num_cpus=2, max_retries=0)(lambda: time.sleep(600)).remote()

        def lose_it():
            time.sleep(10)
            machines.cluster.remove_node(large, allow_graceful=False)

        killer = threading.Thread(target=lose_it)
        killer.start()
        (done,) = runs.run([job(tokens=1024 * 30, seed=7)], "alone", alone=True)
        assert not killer.is_alive() and done.trained.startswith("trained")
        killer.join()
        with pytest.raises(ray.exceptions.RayError):
            ray.get(busy)
        machines.cluster.remove_node(small)

    def test_everything_listens_on_loopback_alone(self):
        of_ray = [(address, who) for address, who in listening() if "ray" in who.lower()]
        assert len(of_ray) > 3  # the head's server, its machine's, the agents
        assert [x for x in of_ray if not x[0].endswith("0100007F")] == []  # 127.0.0.1


def listening():
    """(address in hex, command) of every TCP socket that listens and whose process can be told."""
    owner = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            owner[os.readlink(link)] = link.parts[2]
        except OSError:
            continue
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            process = owner.get(f"socket:[{words[9]}]")
            if words[3] == "0A" and process is not None:
                yield words[1].partition(":")[0], Path("/proc", process, "cmdline").read_text()
