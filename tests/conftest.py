"""Set before anything imports torch: one thread, in the tests and in the kernels they start."""

import os

# pytest runs one worker a core; a second thread in each would only make them fight. It also
# makes sums, and so printed numbers, independent of the number of cores.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # tests download nothing, and say so at once if they try

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# No deadline, since a shared core makes times meaningless. In CI the examples are the same each
# time, so that a red run is about the change; elsewhere hypothesis keeps looking.
settings.register_profile("here", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("here")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store of the test's own, here and in the workers, with the prepared corpus in it."""
    from lib import corpus, paths  # not above: the threads come first

    corpus.load()  # prepared where it usually lies, then linked
    place = tmp_path / "store"
    place.mkdir()
    (place / "corpus").symlink_to(paths.CACHE / "corpus")
    monkeypatch.setattr(paths, "CACHE", place)
    monkeypatch.setenv("COMPANION_CACHE", str(place))
    return place


@pytest.fixture(autouse=True)
def encodings_as_they_were():
    """What a test registers, or loads from a file, is gone for the next."""
    from lib.encodings import ENCODINGS

    before = dict(ENCODINGS)
    yield
    ENCODINGS.clear()
    ENCODINGS.update(before)
