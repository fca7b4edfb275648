"""README.md: its numbers are those of the reference, its links lead somewhere."""

import re

import pytest

from lib import paths, readme

TEXT = readme.README.read_text(encoding="utf-8")


def test_the_numbers_are_those_of_the_reference():
    assert readme.updated(TEXT) == TEXT, "run `python -m lib readme`"


def test_every_part_is_asked_for():
    assert {name for _, name, _ in readme.BLOCK.findall(TEXT)} == set(readme.PARTS)


def test_a_number_altered_by_hand_is_seen():
    altered = re.sub(r"(<!-- generated: findings -->\n.*?)\d", r"\g<1>7777", TEXT, flags=re.DOTALL)
    assert altered != TEXT and readme.updated(altered) == readme.updated(TEXT)


def test_an_unknown_part_is_an_error():
    with pytest.raises(ValueError, match="'weather'"):
        readme.updated("<!-- generated: weather -->\n<!-- end -->")


def test_links_lead_to_files_of_the_repository():
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    assert [link for link in links if not (paths.ROOT / link).exists()] == []


def test_the_targets_named_are_in_the_makefile():
    makefile = (paths.ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z]+)", TEXT)) - {"sure"}:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
