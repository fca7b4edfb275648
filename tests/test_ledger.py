"""What readers see of the ledger: every claim with its links, every word beside its sign; and the
advice, which is asked of results each time."""

import re
from functools import cache
from html.parser import HTMLParser

import nbformat
import pandas as pd
import pytest

from lib import claims, gallery, guide, ledger, paths, pictures_overview, studies
from lib.claims import entries
from lib.figures import plt
from lib.studies import extrapolation

ENTRIES = entries.load()
NOTHING = claims.Results("quick", dict.fromkeys(studies.STUDIES, pd.DataFrame()))


@cache
def notebook(name):
    return nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4)


def cell_of(address):
    name, _, id = address.partition("#")
    return next((cell for cell in notebook(name).cells if cell.id == id), None)


def has_picture(cell):
    return any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


# ---- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_a_claim_leads_to_the_cell_that_decided_it_and_to_its_figure(entry):
    cell = cell_of(entry.cell)
    assert cell is not None and cell.cell_type == "code", entry.cell
    name = entry.cell.partition("#")[0]
    assert any(entry.id in cell.source for cell in notebook(name).cells), "it never names the claim"
    if entry.figure is None:
        # What is measured was drawn, unless a count or a single number decides.
        assert "measured" not in entry.kind or entry.id in ("ALI-11",)
    elif "#" in entry.figure:
        assert has_picture(cell_of(entry.figure))
    else:
        assert (paths.FIGURES / f"{entry.figure}.png").exists()


@pytest.mark.parametrize("name", gallery.FIGURES)
def test_a_figure_leads_to_the_cell_that_shows_it(name):
    cell = cell_of(gallery.FIGURES[name].cell)
    assert cell is not None
    if (paths.FIGURES / f"{name}.png").exists():
        assert has_picture(cell)


def test_every_figure_of_every_study_is_in_the_gallery():
    drawn = {figure for name in studies.STUDIES for figure in studies.study(name).FIGURES}
    committed = {path.stem for path in paths.FIGURES.glob("*.png")}
    assert committed - set(gallery.FIGURES) == set()
    assert set(gallery.FIGURES) - drawn == set()


def test_a_link_is_one_that_jupyterlab_and_the_pages_follow():
    assert gallery.link("05_rope#rope-two") == "05_rope.ipynb#cell-id=rope-two"
    assert gallery.shown_in("vision") == gallery.FIGURES["vision"].cell
    assert gallery.shown_in("05_rope#rope-two") == "05_rope#rope-two"


# ---- the ledger ----------------------------------------------------------------------------------


class Tree(HTMLParser):
    """Tags opened and closed in order, and what is in attributes."""

    VOID = {"br", "input"}

    def __init__(self, html):
        super().__init__()
        self.open, self.attributes, self.words = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.attributes.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def verdicts():
    return pd.read_csv(paths.REFERENCE / "claims.csv")


def test_the_ledger_shows_every_claim_with_its_texts_and_its_links(verdicts):
    page = ledger.page(verdicts)
    tree = Tree(page.html)
    assert not tree.open
    rows = {a["id"]: a for tag, a in tree.attributes if tag == "tr"}
    links = [a["href"] for tag, a in tree.attributes if tag == "a"]
    for entry in ENTRIES:
        assert rows[f"claim-{entry.id}"]["data-texts"].split() == entry.texts
        assert gallery.link(entry.cell) in links
        assert re.search(rf"\b{entry.id}\b", page.text)
    assert len(links) == len(ENTRIES) + sum(entry.figure is not None for entry in ENTRIES)


def test_a_claim_moves_when_its_verdict_changes(verdicts):
    moved = verdicts.copy()
    moved.loc[moved["id"] == "ALI-4", ["verdict", "measured"]] = "undecided", "3 < 4 & so"
    page = ledger.page(moved)
    assert "undecided (1): ALI-4" in page.text and not Tree(page.html).open
    part = page.html[page.html.index('<details open data-verdict="undecided"') :]
    assert 'id="claim-ALI-4"' in part and "3 &lt; 4 &amp; so" in part


def test_the_filters_name_what_is_there(verdicts):
    boxes = [a for tag, a in Tree(ledger.page(verdicts).html).attributes if tag == "input"]
    assert [b["data-text"] for b in boxes if "data-text" in b] == list(entries.TEXTS)
    assert {b["data-verdict"] for b in boxes if "data-verdict" in b} == set(verdicts["verdict"])


def test_what_is_shown_is_the_same_each_time(verdicts):
    a, b = (ledger.page(verdicts)._repr_mimebundle_() for _ in range(2))
    assert a == b and set(a) == {"text/html", "text/plain"}


@pytest.mark.parametrize("name", ["TAB-1", "TAB-2", "TAB-3"])
def test_a_table_says_in_words_and_sign_whether_a_cell_agrees(name):
    cells = ledger.cells_of(name, NOTHING)
    page = ledger.table(cells)
    tree = Tree(page.html)
    assert not tree.open and page.text == f"{len(cells)} cells: {ledger.counted(cells)}"
    marks = [f"{ledger.SIGNS[c.verdict]} {ledger.CELL_WORDS[c.verdict]}" for c in cells]
    assert sorted(w for w in tree.words if w in marks) == sorted(marks)
    assert len(set(ledger.SIGNS.values())) == len(ledger.SIGNS)


# ---- advice --------------------------------------------------------------------------------------


def test_every_branch_rests_on_measured_rows_that_a_cell_shows():
    results = claims.Results("reference")
    found = guide.branches(results)
    for branch in found:
        assert branch.cites
        for cite in branch.cites:
            assert cell_of(cite.cell) is not None, cite.cell
            assert cite.low > -float("inf") or cite.high < float("inf"), "it can not fail"
            assert cite.found is not None, cite.what
    page = guide.page(found)
    assert not Tree(page.html).open and len(page.text.splitlines()) == len(found)


def test_advice_that_a_build_does_not_bear_out_says_so():
    frame = studies.read("extrapolation").copy()
    far = (frame["encoding"] == "alibi") & (frame["length"] > extrapolation.L)
    frame.loc[far, "nll"] += 1.0
    frames = {name: studies.read(name) for name in ("extension", "cost", "vision")}
    frames |= {"extrapolation": frame, "generalization": pd.DataFrame()}
    results = claims.Results("reference", frames)
    assert guide.answer(results)[0].count("not sure in this build") == 1
    assert guide.answer(claims.Results("reference"))[0].count("not sure") == 0
    assert "not sure in this build" in guide.page(guide.branches(results)).html


def test_a_build_without_studies_gets_advice_without_numbers():
    sentences = guide.answer(NOTHING)
    assert len(sentences) == 2 and all("not in this build" in s for s in sentences)
    assert guide.page(guide.branches(NOTHING)).text
    assert guide.field(NOTHING).empty


def test_the_figures_of_the_overview_are_drawn_with_and_without_results():
    for results in (claims.Results("reference"), NOTHING):
        figure = pictures_overview.field(guide.field(results))
        figure.canvas.draw()
        plt.close(figure)
