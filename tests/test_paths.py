import pytest

from lib import paths


def test_root_is_this_repository():
    assert (paths.ROOT / "Makefile").is_file()
    assert (paths.ROOT / "lib" / "paths.py").samefile(paths.__file__)


@pytest.mark.parametrize("profile", paths.PROFILES)
def test_a_build_never_lands_among_committed_files(profile):
    folder = paths.results(profile)
    assert folder.name == profile
    assert folder.is_relative_to(paths.BUILD)


def test_ignored_folders_are_ignored():
    ignored = (paths.ROOT / ".gitignore").read_text(encoding="utf-8").split()
    for folder in (paths.BUILD, paths.CACHE):
        assert f"{folder.relative_to(paths.ROOT).as_posix()}/" in ignored


def test_reference_is_committed_data():
    assert paths.results("reference") == paths.DATA / "reference"


@pytest.mark.parametrize("profile", ["", "Quick", "../quick", "night"])
def test_unknown_profile_names_the_known_ones(profile):
    with pytest.raises(ValueError, match="reference, quick, default, full"):
        paths.results(profile)
