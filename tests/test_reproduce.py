"""The command line and the pipeline: one line a failure, nothing half promoted, drift by name."""

import shutil
import subprocess
import sys

import pandas as pd
import pytest

from lib import __main__ as cli
from lib import files, notebooks, paths, readme, reproduce, runs, studies
from lib.studies import examples


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A reference and a default build of the test's own: the build is the committed reference."""
    for name, place in (("REFERENCE", "reference"), ("BUILD", "build"), ("FIGURES", "figures")):
        monkeypatch.setattr(paths, name, tmp_path / place)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    committed = paths.DATA / "reference"
    shutil.copytree(committed, tmp_path / "reference")
    shutil.copytree(committed, tmp_path / "build" / "default")
    return tmp_path


def everything(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def said(capsys):
    output = capsys.readouterr()
    return output.out + output.err


@pytest.mark.parametrize(
    "command, words",
    [
        (["run", "--profile", "weekly"], "no profile 'weekly'"),
        (["run", "--profile", "reference"], "make accept"),
        (["draw", "--profile", "weekly"], "no profile 'weekly'"),
        (["run", "--profile", "full", "--study", "nothing"], "no study 'nothing'"),
        (["run", "--profile", "default", "--study", "examples"], "no study 'examples'"),
        (["accept", "--profile", "quick"], "not 'quick'"),
        (["accept", "--profile", "full", "--study", "nothing"], "no study 'nothing'"),
        (["notebooks", "99_nothing"], "no notebook 99_nothing"),
        (["context", "none.json", "--to", "9"], "No such file or directory: none.json. Check the"),
    ],
)
def test_a_bad_parameter_is_one_line_and_status_2(command, words, capsys):
    assert cli.main(command) == 2
    line = said(capsys)
    assert line.startswith("Error: ") and words in line and line.count("\n") == 1


def test_the_program_itself_shows_no_traceback():
    command = [sys.executable, "-m", "lib", "run", "--profile", "weekly"]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "raised, status, words",
    [
        (KeyboardInterrupt(), 130, "the same command goes on"),
        (ValueError("the reason"), 2, "the reason"),
        (RuntimeError("a worker died"), 2, "a worker died"),
        (FloatingPointError("not finite"), 2, "not finite"),
        (OSError(28, "No space left on device", "results.csv"), 2, "No space left on device: res"),
    ],
)
def test_every_failure_is_one_line(raised, status, words, monkeypatch, capsys):
    def fail(options):
        raise raised

    monkeypatch.setattr(cli, "_accept", fail)
    assert cli.main(["accept"]) == status
    line = said(capsys)
    assert words in line and line.count("\n") == 1


def test_a_second_build_of_a_profile_is_refused(folders):
    place = paths.results("quick")
    with reproduce._alone(place):
        with pytest.raises(ValueError, match="build/quick is under way"):
            with reproduce._alone(place):
                pass
    with reproduce._alone(place):  # and free again
        pass


def test_a_build_like_the_reference_has_no_drift(folders):
    lines = reproduce.compare()
    assert "no drift" in lines[-1] and ", 0 of " in lines[-1].replace(";", ",")
    assert not any("→" in line for line in lines)


def test_a_value_altered_by_hand_is_named(folders):
    path = paths.REFERENCE / "extrapolation.csv"
    table = pd.read_csv(path)
    row = (table["encoding"] == "alibi") & (table["evaluation"] == "nonoverlapping")
    row &= (table["length"] == 256) & (table["train_length"] == 64)
    table.loc[row, "perplexity"] += 10
    table.to_csv(path, index=False)
    files.enlist(path)
    lines = [line for line in reproduce.compare() if line.startswith("extrapolation:")]
    assert len(lines) == 1 and "alibi" in lines[0] and "256" in lines[0]


def test_a_verdict_altered_by_hand_is_named(folders):
    path = paths.REFERENCE / "claims.csv"
    table = pd.read_csv(path)
    table.loc[table["id"] == "ALI-5", "verdict"] = "refuted"
    table.to_csv(path, index=False)
    files.enlist(path)
    assert any("ALI-5" in line and "refuted → holds" in line for line in reproduce.compare())


def test_nothing_is_accepted_without_a_finished_build(folders):
    (paths.results("default") / "claims.csv").unlink()
    with pytest.raises(ValueError, match="make reproduce"):
        reproduce.accept()


def test_accepting_promotes_the_build(folders, monkeypatch):
    monkeypatch.setattr(notebooks, "refresh", lambda: None)
    monkeypatch.setattr(readme, "write", lambda: None)
    built = paths.results("default") / "claims.csv"
    built.write_text(built.read_text().replace("ALI-5", "ALI-X"))
    files.enlist(built)
    reproduce.accept()
    assert (paths.REFERENCE / "claims.csv").read_text() == built.read_text()


def test_a_failing_notebook_leaves_the_reference_as_it_was(folders, monkeypatch):
    def fail():
        raise RuntimeError("a notebook failed")

    monkeypatch.setattr(notebooks, "refresh", fail)
    before = everything(paths.REFERENCE)
    built = paths.results("default") / "claims.csv"
    built.write_text("id,verdict\n")
    files.enlist(built)
    with pytest.raises(RuntimeError, match="a notebook failed"):
        reproduce.accept()
    assert everything(paths.REFERENCE) == before
    assert [p.name for p in paths.BUILD.iterdir()] == ["default"]


def test_the_figures_of_a_build_are_drawn_from_its_results_alone(folders):
    reproduce.draw("default")
    drawn = {p.name for p in paths.FIGURES.iterdir()}
    assert {"extrapolation.png", "extrapolation.csv", "extrapolation.json"} <= drawn
    first = {p.name: p.read_bytes() for p in paths.FIGURES.iterdir() if p.suffix != ".json"}
    reproduce.draw("default")
    assert {p.name: p.read_bytes() for p in paths.FIGURES.iterdir() if p.suffix != ".json"} == first


def finished_in_full(monkeypatch, n: int):
    """As if n runs of the examples lay in the store, and nothing else of the full profile."""
    jobs = examples.jobs("full")
    row = {"encoding": "kerple", "evaluation": "nonoverlapping", "nll": 3.0, "tokens": 10}
    outcomes = [
        runs.Outcome(job, [row | {"length": length} for length in (64, 128)], "", "", 1, 1, 1, [])
        for job in jobs[:n]
    ]
    monkeypatch.setattr(runs, "finished", lambda asked: outcomes if len(asked) == len(jobs) else [])
    monkeypatch.setattr(studies, "STUDIES", ("minilm", "examples"))


def test_the_full_profile_is_committed_run_by_run(folders, monkeypatch, capsys):
    shutil.rmtree(paths.REFERENCE / "full", ignore_errors=True)
    before = everything(paths.REFERENCE)
    finished_in_full(monkeypatch, 0)
    with pytest.raises(ValueError, match="make full"):
        reproduce.accept_full()
    for n in (1, 2):
        finished_in_full(monkeypatch, n)
        reproduce.accept_full()
        assert f"examples {n} of " in said(capsys)
        assert len(studies.read("examples", "reference of full")) == 2 * n
    assert {p.name for p in paths.FIGURES.iterdir()} == {
        f"extrapolation_examples.{suffix}" for suffix in ("png", "csv", "json")
    }
    finished_in_full(monkeypatch, 1)
    with pytest.raises(ValueError, match="2 runs of examples are committed and 1 are finished"):
        reproduce.accept_full()
    after = everything(paths.REFERENCE)
    assert {p: b for p, b in after.items() if "full" not in p.parts} == before
