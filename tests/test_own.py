"""An encoding in a file of its own: what is refused, and how it reaches another process."""

import pickle

import pytest

from lib import examples, own, paths, runs
from lib.encodings import ENCODINGS, build
from lib.studies import examples as of_examples
from lib.studies import learning_rates
from lib.training import TrainingConfig

GOOD = '''"""A penalty with the root of the distance."""
from lib.encodings import Encoding, register


@register("mine")
class Mine(Encoding):
    """Subtracts the root of the distance."""

    def bias_by_distance(self, delta):
        return -delta.abs().double().sqrt().expand(len(self.heads), -1)
'''
TRAINING = TrainingConfig(encoding="mine", seed=0, learning_rate=1e-2, tokens=2048)


@pytest.fixture(autouse=True)
def nothing_loaded(encodings_as_they_were):
    yield
    own._loaded.clear()


@pytest.fixture
def file(tmp_path):
    def write(source, name="my_encoding.py"):
        (tmp_path / name).write_text(source)
        return tmp_path / name

    return write


def test_the_class_of_a_file_is_registered(file):
    cls = own.load(file(GOOD))
    assert (cls.name, ENCODINGS["mine"]) == ("mine", cls)
    assert type(build("mine", d_model=8, n_heads=2, max_length=4)) is cls
    assert own.load(file(GOOD)) is cls  # nothing has changed


def test_a_file_that_changed_is_loaded_anew(file):
    own.load(file(GOOD))
    changed = own.load(file(GOOD.replace('"mine"', '"mine_too"')))
    assert changed.name == "mine_too" and ENCODINGS["mine_too"] is changed
    assert "mine" not in ENCODINGS


@pytest.mark.parametrize(
    "source, sentence",
    [
        ("import nothing_of_this_name", r"line 1\): ModuleNotFoundError: No module named"),
        ("x = 1\n1 / 0", r"line 2\): ZeroDivisionError: division by zero\."),
        ("def broken(:", r"line 1\): SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1", 'registers no encoding: put @register'),
        (GOOD.replace('"mine"', '"rope"'), "'rope' is registered already: choose another"),
        (GOOD + GOOD.replace("ine", "ore"), "registers mine, more: keep one"),
        (GOOD.replace("(Encoding)", "").replace("Encoding, ", ""), "is no Encoding"),
        (GOOD.replace("    def bias", '    domain = ("image",)\n\n    def bias'), "only text"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_one_sentence_and_leaves_no_trace(file, source, sentence):
    before = dict(ENCODINGS)
    with pytest.raises(ValueError, match=sentence) as error:
        own.load(file(source))
    assert "\n" not in str(error.value) and str(error.value).endswith(".")
    assert ENCODINGS == before


def test_a_path_that_is_no_python_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="There is no file .*absent.py"):
        own.load(tmp_path / "absent.py")
    with pytest.raises(ValueError, match="There is no file"):
        own.load(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"ends in \.py"):
        own.load(tmp_path / "notes.txt")


def test_a_job_brings_its_file_along(file):
    """What another process does with it: unpickle it, knowing nothing."""
    path = file(GOOD)
    own.load(path)
    sent = pickle.dumps(own.job(runs.Job(TRAINING, "lib.studies.extrapolation"), path))
    own._loaded.clear()
    del ENCODINGS["mine"]
    arrived = pickle.loads(sent)
    assert arrived == own.job(runs.Job(TRAINING, "lib.studies.extrapolation"), path)
    assert arrived.training.decoder(16).encoding(0).name == "mine"


def test_what_identifies_a_run_is_what_the_file_says(file):
    def keys(path):
        trained = own.job(runs.Job(TRAINING, "m"), path).training
        untrained = own.job(runs.Job(None, "m", {"task": "copy"}), path).settings
        return trained.key, untrained["source"]

    first = keys(file(GOOD))
    assert keys(file(GOOD, "elsewhere.py")) == first
    assert keys(file(GOOD + "\n# a comment\n")) == first
    other = keys(file(GOOD.replace("-delta", "-2 * delta")))
    assert other[0] != first[0] and other[1] != first[1]


# ---- the examples in the main figure -------------------------------------------------------------


def test_the_full_profile_trains_the_examples_at_the_same_budget():
    jobs = of_examples.jobs("full")
    theirs = [j for j in jobs if isinstance(j, own.OwnJob)]
    rope = [j for j in jobs if j.training.encoding == "rope" and j.training.train_length == 64]
    assert {j.training.encoding for j in theirs} == set(examples.NAMES)
    assert len(theirs) == len(examples.NAMES) * len(rope)
    for j in theirs:
        (twin,) = [r for r in rope if r.training.seed == j.training.seed]
        assert j.training.tokens == twin.training.tokens and j.settings == twin.settings
        assert paths.ROOT / j.file == examples.file(j.training.encoding)
    assert not set(examples.NAMES) & set(ENCODINGS)  # the list of jobs needs none of them


def test_the_usual_rates_are_those_that_most_encodings_chose():
    usual = learning_rates.usual()
    chosen = [learning_rates.chosen(e) for e in learning_rates.ENCODINGS]
    same = sum(c["learning_rate"] == usual["learning_rate"] for c in chosen)
    assert same > len(chosen) / 2
    own_rates = [learning_rates.chosen(e)["encoding_rate"] for e in learning_rates.WITH_PARAMETERS]
    assert own_rates.count(usual["encoding_rate"]) >= 2


def test_a_file_of_this_package_keeps_its_name():
    path = paths.ROOT / "lib" / "examples" / "kerple.py"
    assert own.load(path).__module__ == "lib.examples.kerple"
