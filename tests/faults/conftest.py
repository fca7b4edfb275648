"""A small copy of the checkout, built once without a fault: what every fault is compared with."""

import shutil
import subprocess
import time
from types import SimpleNamespace

import pytest

from tests.faults import trees

# A network of its own, with nothing in it but its loopback, over which kernels are spoken to.
OFFLINE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def offline_prefix() -> list[str]:
    """What a command is started with to have no network; nothing where that is not allowed."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return []
    tried = subprocess.run([*OFFLINE, "true"], capture_output=True)
    return OFFLINE if tried.returncode == 0 else []


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The copy after its first `make quick`: in locale C, in a folder with blanks and letters that
    are not ASCII, and without a network where the system lets a test take it away."""
    place = trees.copied(tmp_path_factory.mktemp("faults") / "größe, mit Leerzeichen — ñ")
    prefix, began = offline_prefix(), time.monotonic()
    done = trees.make(place, "quick", prefix, LC_ALL="C", LANG="C")
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stdout
    return SimpleNamespace(
        place=place,
        said=done.stdout,
        offline=bool(prefix),
        seconds=seconds,
        results=trees.results(place),
    )
