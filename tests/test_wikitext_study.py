"""The profile gpu, made small enough for a CPU: what it trains, measures, reuses and draws."""


import numpy as np
import pytest

from lib import __main__ as cli
from lib import figures, paths, reproduce, runs, studies, wikitext
from lib.studies import wikitext as study
from lib.training import Training
from tests.test_wikitext import archive_of, zipped

LENGTHS = (16, 32)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two little archives in the folder WIKITEXT, little models, and windows of 16."""
    words = np.random.default_rng(0).choice("the of cat dog house sees runs".split(), 3000)
    text = " \n".join(" ".join(words[n : n + 12]) for n in range(0, 3000, 12))
    for kind, known in wikitext.KINDS.items():
        raw = zipped({name: text for name in known.members.values()})
        (tmp_path / known.name).write_bytes(raw)
        monkeypatch.setitem(wikitext.KINDS, kind, archive_of(raw, kind))
    monkeypatch.setenv("WIKITEXT", str(tmp_path))
    monkeypatch.setattr(wikitext, "BPE_SIZE", 300)
    profile = {
        "seeds": (0,),
        "training": {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16},
        "tokens": dict.fromkeys(wikitext.KINDS, 64 * 30),
        "batch_tokens": 64,
        "learning_rate": 1e-2,
        "encoding_rate": 10.0,
        "measuring": {"tokens": 320, "sliding_tokens": 64, "sliding_block": 32},
    }
    monkeypatch.setitem(study.PROFILES, "gpu", profile)
    monkeypatch.setattr(study, "L", 16)
    monkeypatch.setattr(study, "LENGTHS", LENGTHS)
    monkeypatch.setattr(study, "BLOCK", 32)
    monkeypatch.setattr(study, "ENCODINGS", ("rope", "alibi"))
    for name in ("CACHE", "BUILD"):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())
    wikitext.load.cache_clear()
    yield
    wikitext.load.cache_clear()


def test_the_profile_is_trained_measured_and_drawn(small, monkeypatch):
    jobs = study.jobs("gpu")
    assert len(jobs) == 4 and all(job.gpus == 1 for job in jobs)
    outcomes = [runs.do(job) for job in jobs]
    place = paths.results("gpu")
    reproduce.write("wikitext", "gpu", outcomes, place)
    reproduce.draw("gpu")
    results = studies.read("wikitext", "gpu")
    assert set(results["text"]) == set(wikitext.KINDS) and len(results) == 4 * 2 * len(LENGTHS)
    assert np.isfinite(results["nll"]).all() and (results["perplexity"] > 1).all()
    scored = results.groupby(["text", "evaluation"])["tokens"].nunique()
    assert scored.eq(1).all()  # the same targets at every length
    assert {p.name for p in (place / "figures").iterdir()} >= {"wikitext.png", "wikitext.csv"}
    frame = study.curves(results, "nonoverlapping")
    assert list(frame.columns) == figures.COLUMNS
    assert (frame.loc[frame["x"] == 16, "value"] == 1).all()
    # A GPU's losses are not those of before to the bit: files and configuration decide.
    again = runs.do(jobs[0])
    assert again.trained == "used again: configuration and data agree"
    assert again.rows == outcomes[0].rows


def test_an_interrupted_run_of_it_goes_on(small):
    job = study.jobs("gpu")[0]
    whole = runs.do(job)
    place = runs.folder(job.training)
    text = wikitext.load(job.training.text)
    part = Training(job.training, text.documents("train"), text.vocabulary_size)
    for _ in range(10):
        part.step()
    for name in ("run.json", "model.safetensors"):
        (place / name).unlink()
    part.save(place / "checkpoint.safetensors")
    resumed = runs.do(job)
    assert resumed.trained.startswith("resumed at step 10")
    np.testing.assert_allclose(resumed.losses, whole.losses, rtol=1e-4)


def test_without_a_gpu_it_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(reproduce.torch.cuda, "is_available", lambda: False)
    assert cli.main(["run", "--profile", "gpu"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "needs an NVIDIA GPU" in said


def test_it_is_the_papers_setting():
    jobs = study.jobs("gpu")
    assert {j.training.train_length for j in jobs} == {512} and max(study.LENGTHS) == 16_384
    assert {j.training.text for j in jobs} == set(wikitext.KINDS)
    assert study.COST["gpu"] <= 3600 and studies.of("gpu") == ["wikitext"]
    assert "wikitext" not in {name for p in paths.PROFILES for name in studies.of(p)}
    keys = [j.training.key for j in jobs]
    assert len(set(keys)) == len(keys)
