"""`python -m lib compare`: from a file to a report, on a budget of seconds."""

import pandas as pd
import pytest
import test_own

from lib import __main__ as cli
from lib import bench, compare, conformance, figures, own, paths, runs
from lib.studies import cost, extrapolation, generalization

TINY = {"tokens": 2048, "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 24}
# It favours far keys, which one property of two catches.
WRONG = test_own.GOOD.replace("return -delta", "return delta")


@pytest.fixture(autouse=True)
def small(store, tmp_path, monkeypatch):
    """Every budget cut down."""
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setenv("WORKERS", "1")
    p = extrapolation.PROFILES["default"]
    budget = {
        "seeds": (0, 1),
        "training": TINY,
        "measuring": {"tokens": 1024, "sliding_tokens": 128},
    }
    monkeypatch.setitem(extrapolation.PROFILES, "default", {**p, **budget})
    lengths = {**extrapolation.LENGTHS, extrapolation.L: (64, 128, extrapolation.BLOCK)}
    monkeypatch.setattr(extrapolation, "LENGTHS", lengths)
    p = generalization.PROFILES["default"]
    sizes = {**p["sizes"], "n_layers": 1, "instances": 4}
    budget = {"steps": {"copy": 2}, "seeds": (0,), "sizes": sizes}
    monkeypatch.setitem(generalization.PROFILES, "default", {**p, **budget})
    monkeypatch.setitem(cost.PROFILES, "default", {**cost.PROFILES["default"], "rounds": 2})
    monkeypatch.setattr(bench, "CONTEXTS", (8, 16))
    yield
    own._loaded.clear()


def test_a_file_becomes_a_report(tmp_path, monkeypatch, capsys):
    path, out = tmp_path / "my_encoding.py", tmp_path / "report"
    path.write_text(WRONG)
    asked = [
        p for p in conformance.PROPERTIES if p.name in ("near_keys_are_favoured", "phases_add_up")
    ]
    check, jobs = conformance.check, compare.jobs

    def without_the_slow_part(name, path):
        trained, tasks, timed = jobs(name, path)
        return trained, tasks, [j for j in timed if j.settings["what"] == "decoding"]

    run = runs.run

    def costs_in_this_process(jobs, title, alone=False):  # the trainings go to a worker
        return [runs.do(job) for job in jobs] if alone else run(jobs, title)

    monkeypatch.setattr(runs, "run", costs_in_this_process)
    monkeypatch.setattr(conformance, "check", lambda subject: check(subject, asked))
    monkeypatch.setattr(compare, "jobs", without_the_slow_part)
    assert cli.main(["compare", str(path), "--out", str(out)]) == 0
    assert "report.md" in capsys.readouterr().out
    report = (out / "report.md").read_text()
    assert "1 hold" not in report and "1 fail, 1 do not apply" in report
    assert "**near_keys_are_favoured** fails" in report
    for part in ("conformance", "perplexity", "task", "cost"):
        assert "mine" in set(pd.read_csv(out / f"{part}.csv").get("encoding", ["mine"]))
    assert {(out / f"{p}.png").read_bytes()[:4] for p in ("perplexity", "task")} == {b"\x89PNG"}
    perplexity = pd.read_csv(out / "perplexity.csv")
    mine = perplexity[perplexity["encoding"] == "mine"]
    assert set(mine["seed"]) == {0, 1} and {"rope", "alibi"} < set(perplexity["encoding"])
    assert mine["length"].max() == extrapolation.BLOCK
    # Whatever the weights, two steps of training are worse than the reference's thousand.
    gap = compare.gaps(perplexity, "mine", 64).set_index("encoding").loc["rope"]
    assert gap["value"] > 0 and gap["n"] == 2
    # What is finished is used again.
    again = runs.do(jobs("mine", path)[0][0])
    assert again.trained.startswith("used again") and again.measured.startswith("used again")


@pytest.mark.parametrize(
    "source, sentence",
    [
        (None, "There is no file"),
        ("x = 1", "registers no encoding"),
        (test_own.GOOD.replace('"mine"', '"rope"'), "registered already"),
        (test_own.GOOD.replace('"mine"', '"learned_interpolated"'), "choose another name"),
        (test_own.GOOD.replace("return", "raise IndexError(delta.max()) #"), "IndexError"),
        (test_own.GOOD.replace("return", "return float('nan') *"), "not finite"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(tmp_path, capsys, source, sentence):
    path = tmp_path / "my_encoding.py"
    if source:
        path.write_text(source)
    assert cli.main(["compare", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: ") and said.count("\n") == 1 and sentence in said
    assert "Traceback" not in said


def test_everything_compared_has_the_budget_of_the_reference():
    """Same windows, seeds, sizes and measurements as RoPE's runs of the default profile."""
    path = paths.ROOT / "lib" / "examples" / "kerple.py"
    trained, tasks, timed = compare.jobs("kerple", path)
    theirs = [j for j in extrapolation.jobs("default") if j.training.encoding == "rope"]
    theirs = [j for j in theirs if j.training.train_length == extrapolation.L]
    assert [j.settings for j in trained] == [j.settings for j in theirs]
    for mine, other in zip(trained, theirs, strict=True):
        assert mine.training.seed == other.training.seed
        assert mine.training.tokens == other.training.tokens
    rope = [j for j in generalization.jobs("default") if j.settings["encoding"] == "rope"]
    assert [j.settings["sizes"] for j in tasks] == [j.settings["sizes"] for j in rope]
    assert all(set(bench.OF_THE_PAPER) < set(j.settings["names"]) for j in timed)


@pytest.mark.parametrize(
    "low, high, said", [(-2, -1, "lower"), (1, 2, "higher"), (-1, 1, "undecided"),
                        (float("nan"), float("nan"), "undecided")],
)  # fmt: skip
def test_a_gap_in_a_word(low, high, said):
    assert compare.word(figures.Interval(0.0, 1.0, low, high, 3)) == said
