"""One model over several processes: the losses of one process, resumed anywhere, never a hang."""

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from lib import parallel, paths
from lib.training import Training, train
from tests.test_training import SMALL, TEXT, V, equal, weights

# Two processes, joined through a file and speaking over loopback: each trains, goes on from a
# checkpoint, and begins once more, when the second dies.
SCRIPT = """
import datetime, functools, os, pathlib, sys
import torch.distributed as dist
from lib import parallel, training
from tests.test_training import SMALL, TEXT, V

rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
store = dist.FileStore(str(folder / "store"), 2)
wait = datetime.timedelta(seconds=120)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=wait)
make = functools.partial(parallel.Parallel, accumulate=2)
training.CHECKPOINT_STEPS = 7
whole = training.train(SMALL, TEXT, V, folder / "checkpoint.safetensors", kind=make)
# The second process is told of the checkpoint: it has no such file.
mine = folder / ("checkpoint.safetensors" if rank == 0 else "none")
resumed = training.train(SMALL, TEXT, V, mine, kind=make)
if rank == 0:
    whole.save(folder / "whole.safetensors")
    resumed.save(folder / "resumed.safetensors")

class Dies(parallel.Parallel):
    def learn(self, window):
        if rank == 1 and len(self.losses) == 3:
            os._exit(9)
        return super().learn(window)

try:
    training.train(SMALL, TEXT, V, kind=Dies)
except RuntimeError as error:
    (folder / "said").write_text(str(error))
os._exit(0)
"""


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """The folder that two processes wrote in, and their exit codes."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(folder / "script.py")]
    going = [subprocess.Popen([*command, r, str(folder)], env=environment) for r in "01"]
    try:
        return folder, [process.wait(timeout=300) for process in going]
    finally:
        for process in going:
            process.kill()


def test_two_processes_learn_what_one_learns_and_go_on_to_the_same_bits(of_two):
    folder, _ = of_two
    one = train(SMALL, TEXT, V)
    whole, resumed = Training(SMALL, TEXT, V), Training(SMALL, TEXT, V)
    whole.load(folder / "whole.safetensors")
    resumed.load(folder / "resumed.safetensors")
    assert whole.losses != one.losses  # summed in another order, else this compares nothing
    assert whole.losses == pytest.approx(one.losses, abs=1e-4)
    assert resumed.losses == whole.losses and equal(weights(resumed), weights(whole))


def test_a_process_that_dies_is_one_sentence_of_the_others_and_no_hang(of_two):
    folder, codes = of_two
    assert codes == [0, 9]
    said = (folder / "said").read_text()
    assert said.startswith("Another process of this training has ended") and "\n" not in said


def test_alone_and_undivided_it_is_the_same_training_to_the_bit():
    a, b = train(SMALL, TEXT, V), train(SMALL, TEXT, V, kind=parallel.Parallel)
    assert a.losses == b.losses and equal(weights(a), weights(b))


def test_parts_add_up_to_the_batch():
    config = dataclasses.replace(SMALL, tokens=32 * 5)
    one, parts = Training(config, TEXT, V), parallel.Parallel(config, TEXT, V, accumulate=4)
    one.step()
    parts.step()
    assert parts.losses == pytest.approx(one.losses, abs=1e-6)
    other = dict(parts.decoder.named_parameters())
    for name, p in one.decoder.named_parameters():
        assert torch.allclose(p.grad, other[name].grad, atol=1e-6), name


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
def test_compiled_it_is_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setattr("lib.training.CHECKPOINT_STEPS", 3)
    config = dataclasses.replace(SMALL, tokens=32 * 5)
    one, checkpoint = train(config, TEXT, V), tmp_path / "checkpoint.safetensors"
    make = functools.partial(parallel.Parallel, accumulate=2, compiled=True)
    compiled = train(config, TEXT, V, checkpoint, kind=make)
    assert compiled.losses == pytest.approx(one.losses, abs=1e-4)
    assert weights(compiled).keys() == weights(one).keys()  # under its own names, for who loads it
    resumed = train(config, TEXT, V, checkpoint, kind=make)
    assert resumed.losses == compiled.losses and equal(weights(resumed), weights(compiled))


def test_windows_that_cannot_be_shared_are_an_error():
    with pytest.raises(ValueError, match="share a batch of 4 windows"):
        parallel.Parallel(SMALL, TEXT, V, accumulate=3)


# ---- the command ---------------------------------------------------------------------------------


FILE = """
encoding = "alibi"
seed = 2
learning_rate = 1e-2
tokens = 1024
d_model = 16
n_heads = 2
n_layers = 1
d_ff = 24
accumulate = 2
"""


def test_a_file_is_trained_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    parallel.run(file)
    (place,) = (tmp_path / "build" / "train").iterdir()
    record = json.loads((place / "run.json").read_text())
    assert len(record["losses"]) == 1 and record["processes"] == 1
    assert (place / "model.safetensors").exists()
    assert torch.tensor(1e-310, dtype=torch.float64) / 2 > 0  # denormals are numbers again


@pytest.mark.parametrize(
    "text, said",
    [
        (FILE + "colour = 3\n", "unknown fields .colour.: known are encoding"),
        (FILE.replace("seed = 2\n", ""), "does not say what to train"),
        (FILE.replace("accumulate = 2", "accumulate = 0"), "whole number of at least 1"),
        (FILE.replace("tokens = 1024", "tokens = 10"), "at least one batch"),
        ("encoding = ", "cannot be read as TOML"),
    ],
)
def test_a_file_that_asks_for_nothing_sensible_is_one_sentence(tmp_path, text, said):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        parallel.read(tmp_path / "run.toml")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        parallel.read(tmp_path / "none.toml")
