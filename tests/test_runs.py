"""The store and the runner: reuse for a reason, the same bits with any number of workers, resuming
after a kill."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from lib import corpus, files, paths, runs
from lib.training import Training, TrainingConfig

SMALL = TrainingConfig(
    encoding="rope", seed=1, learning_rate=1e-2, tokens=1024 * 30, train_length=64,
    d_model=16, n_heads=2, n_layers=1, d_ff=24,
)  # fmt: skip
DAMAGED_ROWS = "measured again: the rows on record are damaged"
MEASURE = "lib.studies.learning_rates"


pytestmark = pytest.mark.usefixtures("store")


def job(**changes):
    return runs.Job(dataclasses.replace(SMALL, **changes), MEASURE, {"tokens": 2000}, 500)


def record(training=SMALL):
    return json.loads((runs.folder(training) / "run.json").read_text())


def test_the_bits_do_not_depend_on_the_number_of_workers(monkeypatch, tmp_path):
    jobs = [job(seed=s, encoding=e) for s in (1, 2) for e in ("t5", "sinusoidal")]
    monkeypatch.setenv("WORKERS", "1")
    one = runs.run(jobs, "one worker")
    weights = [record(j.training)["weights"] for j in jobs]
    for j in jobs:
        for path in runs.folder(j.training).iterdir():
            path.unlink()
    monkeypatch.setenv("WORKERS", "3")
    three = runs.run(jobs, "three workers")
    assert [o.job for o in three] == jobs
    assert [record(j.training)["weights"] for j in jobs] == weights
    assert [o.rows for o in one] == [o.rows for o in three]
    assert [o.losses for o in one] == [o.losses for o in three]


def test_a_finished_run_is_used_again_and_says_so():
    first, second = runs.do(job()), runs.do(job())
    assert first.trained == "trained: no finished run has this configuration"
    assert first.measured == "measured"
    assert second.trained.startswith("used again") and second.measured.startswith("used again")
    assert (first.rows, first.losses) == (second.rows, second.losses)
    assert [list(row) for row in first.rows] == [list(row) for row in second.rows]


def test_what_is_finished_can_be_had_without_doing_anything(monkeypatch):
    jobs = [job(), job(seed=2)]
    assert runs.finished(jobs) == []
    done = runs.do(jobs[0])
    monkeypatch.setattr(runs, "train", None)
    monkeypatch.setattr(runs, "fingerprint", None)
    (found,) = runs.finished(jobs)
    assert (found.job, found.rows, found.losses) == (done.job, done.rows, done.losses)
    assert found.training_seconds == done.training_seconds
    cut_weights()
    assert runs.finished(jobs) == []


def _other_record(**changes):
    path = runs.folder(SMALL) / "run.json"
    files.write_sealed({**files.read_sealed(path), **changes}, path)


def other_losses():
    _other_record(losses=[x + 1e-4 for x in record()["losses"]])


def other_data():
    _other_record(data="0" * 64)


def cut_record():
    path = runs.folder(SMALL) / "run.json"
    path.write_text(path.read_text()[:100])


def record_of_another_shape():
    (runs.folder(SMALL) / "run.json").write_text("[1, 2]")


def edited_record():
    path = runs.folder(SMALL) / "run.json"
    path.write_text(json.dumps({**record(), "seconds": 0.0}))


def cut_weights():
    path = runs.folder(SMALL) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def edited_weights():
    path = runs.folder(SMALL) / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def no_weights():
    (runs.folder(SMALL) / "model.safetensors").unlink()


@pytest.mark.parametrize(
    "damage, reason",
    [
        (other_losses, "step 0 no longer gives the loss on record"),
        (other_data, "the data changed"),
        (cut_record, "damaged"),
        (record_of_another_shape, "damaged"),
        (edited_record, "damaged"),
        (cut_weights, "damaged"),
        (edited_weights, "damaged"),
        (no_weights, "damaged"),
    ],
)
def test_a_run_that_no_longer_fits_is_trained_again_and_says_why(damage, reason):
    first = runs.do(job())
    damage()
    if "damaged" in reason:  # nor does anybody else get a model from it
        with pytest.raises(ValueError, match="damaged"):
            runs.decoder(SMALL)
    again = runs.do(job())
    assert again.trained.startswith("trained: ") and reason in again.trained
    assert (again.losses, again.rows) == (first.losses, first.rows)
    assert runs.do(job()).trained.startswith("used again")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}'])
def test_damaged_rows_are_measured_again(text):
    first = runs.do(job())
    (path,) = runs.folder(SMALL).glob("measured-*.json")
    path.write_text(text)
    again = runs.do(job())
    assert again.measured == DAMAGED_ROWS and again.rows == first.rows


def test_edited_rows_are_measured_again():
    first = runs.do(job())
    (path,) = runs.folder(SMALL).glob("measured-*.json")
    saved = json.loads(path.read_text())
    saved["rows"][0]["perplexity"] = 1.0
    path.write_text(json.dumps(saved))
    again = runs.do(job())
    assert again.measured == DAMAGED_ROWS and again.rows == first.rows


@pytest.mark.parametrize("damage", ["cut", "edited", "not started", "of other data"])
def test_a_checkpoint_that_cannot_be_gone_on_from_says_why(damage):
    text = corpus.load()
    whole = runs.do(job())
    place = runs.folder(SMALL)
    for path in place.iterdir():
        path.unlink()
    part = Training(SMALL, text.documents("train"), text.vocabulary_size)
    for _ in range(25):
        part.step()
    path = place / "checkpoint.safetensors"
    part.save(path)
    files.write_sealed({"data": text.hash}, place / "started.json")
    raw = path.read_bytes()
    if damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "edited":
        path.write_bytes(raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:])
    elif damage == "not started":
        (place / "started.json").unlink()
    else:
        files.write_sealed({"data": "0" * 64}, place / "started.json")
    again = runs.do(job())
    why = "of other data" if damage == "of other data" else "damaged"
    assert again.trained.startswith("trained: ") and f"its checkpoint is {why}" in again.trained
    assert again.losses == whole.losses and again.rows == whole.rows


def test_rows_are_measured_again_when_the_code_that_measures_changes(monkeypatch):
    runs.do(job())
    monkeypatch.setattr(runs, "code_hash", lambda modules: "other code")
    again = runs.do(job())
    assert again.trained.startswith("used again") and again.measured == "measured"


def test_the_hash_of_code_sees_code_and_not_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "lib").mkdir()

    def hash_of(text):
        (tmp_path / "lib" / "a.py").write_text(text)
        runs.code_hash.cache_clear()
        return runs.code_hash(("lib.a",)), runs.code_hash(("lib.*",))

    assert hash_of("x = 1") == hash_of("# why\nx  =  1\n")
    assert runs.code_hash((("x", 1),)) != runs.code_hash((("x", 2),))
    assert set(hash_of("x = 1")).isdisjoint(hash_of("x = 2"))
    runs.code_hash.cache_clear()


def test_a_decoder_can_be_had_from_a_finished_run():
    with pytest.raises(ValueError, match="make reproduce"):
        runs.decoder(SMALL)
    runs.do(job())
    model = runs.decoder(SMALL)
    assert not model.training
    assert torch.isfinite(model(torch.zeros(1, 70, dtype=torch.long))).all()


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_workers_must_be_a_whole_number(monkeypatch, value):
    monkeypatch.setenv("WORKERS", value)
    with pytest.raises(ValueError, match="WORKERS must be"):
        runs.workers()


def test_a_failing_run_is_one_error_and_the_others_are_kept():
    with pytest.raises(FloatingPointError, match="not finite"):
        runs.run([job(), job(seed=2, learning_rate=1e30)], "one fails")


SCRIPT = """
import dataclasses
from lib import runs, training
from tests.test_runs import SMALL, job
if __name__ == "__main__":
    runs.run([job(seed=s, tokens=1024 * 260) for s in (1, 2)], "to be killed")
"""


def test_a_killed_study_resumes_from_its_checkpoints_to_the_same_bits(store, tmp_path):
    jobs = [job(seed=s, tokens=1024 * 260) for s in (1, 2)]
    script = tmp_path / "study.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT), "WORKERS": "2"}
    command = [sys.executable, str(script)]
    study = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    checkpoints = [runs.folder(j.training) / "checkpoint.safetensors" for j in jobs]
    deadline = time.monotonic() + 400  # a core may be shared
    while not any(c.exists() for c in checkpoints) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(study.pid, signal.SIGKILL)
    study.wait()
    time.sleep(1)  # the workers see that their parent has gone
    interrupted = [c.exists() for c in checkpoints]
    assert any(interrupted)
    resumed = runs.run(jobs, "resumed")
    assert any("resumed at step" in o.trained for o in resumed)
    weights = [record(j.training)["weights"] for j in jobs]
    for j in jobs:
        for path in runs.folder(j.training).iterdir():
            path.unlink()
    whole = runs.run(jobs, "whole")
    assert [record(j.training)["weights"] for j in jobs] == weights
    assert [o.losses for o in whole] == [o.losses for o in resumed]
    assert not any(c.exists() for c in checkpoints)


def test_a_job_may_train_nothing(monkeypatch):
    from lib.studies import learning_rates

    seen = []
    monkeypatch.setattr(
        learning_rates, "measure", lambda *a: seen.append(a) or [{"x": a[2]["what"]}]
    )
    monkeypatch.setattr(learning_rates, "MEASURING", ())
    untrained = runs.Job(None, MEASURE, {"what": 3})
    first, second = runs.do(untrained), runs.do(untrained)
    assert first.rows == second.rows == [{"x": 3}]
    assert seen == [(None, None, {"what": 3})]
    assert (first.trained, second.measured[:10]) == ("no training", "used again")
    assert runs.timings([first])["tokens"].tolist() == [0]
