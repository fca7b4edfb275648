"""README.md: its numbers are those of the reference, its links lead somewhere."""

import re
import tomllib

import nbformat
import pytest
import yaml

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


def test_links_lead_to_files_of_the_repository_and_to_cells():
    links = re.findall(r"\]\(([^)#:]+)(?:#cell-id=([\w-]+))?\)", TEXT)
    assert links and any(cell for _, cell in links)
    for file, cell in links:
        path = paths.ROOT / file
        assert path.exists(), file
        if cell:
            assert cell in {c.id for c in nbformat.read(path, as_version=4).cells}


def test_the_way_to_an_answer_is_two_clicks_long():
    """From the first page to the table of advice, and from there to a measured row."""
    assert "16k" in TEXT and "(notebooks/00_overview.ipynb#cell-id=ovw-guide-look)" in TEXT
    cells = nbformat.read(paths.NOTEBOOKS / "00_overview.ipynb", as_version=4).cells
    heading = next(cell for cell in cells if cell.id == "ovw-guide-look")
    assert heading.source.startswith("## Which encoding should I use?")
    table = cells[cells.index(heading) + 1]
    html = next(o.data["text/html"] for o in table.outputs if "text/html" in o.get("data", {}))
    assert "#cell-id=" in html


def test_every_notebook_is_in_the_list_and_every_figure_in_the_gallery():
    for path in [*paths.NOTEBOOKS.glob("[!.]*.ipynb"), *paths.FIGURES.glob("*.png")]:
        assert f"({path.relative_to(paths.ROOT)})" in TEXT, path.name


def test_the_citation_names_this_repository():
    entry = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= set(entry)
    assert entry["title"] == TEXT.splitlines()[0].removeprefix("# ")
    assert entry["version"] == project["version"]


def test_the_targets_named_are_in_the_makefile():
    makefile = (paths.ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z]+)", TEXT)) - {"sure"}:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
