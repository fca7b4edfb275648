"""What becomes of a notebook's links in a page, and the check that every link leads somewhere."""

import subprocess

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib import book, paths


def as_page(*cells):
    """The cells of a notebook with a title and `cells`, as a page shows them."""
    text = nbformat.writes(new_notebook(cells=[new_markdown_cell("# 99 · A title"), *cells]))
    return nbformat.reads(book.notebook_text(text), as_version=4).cells


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[a *b*](05_rope.ipynb#cell-id=rope-eq1)", '<a href="05_rope.html#rope-eq1">a *b*</a>'),
        ("[here](#cell-id=rope-eq1)", '<a href="#rope-eq1">here</a>'),
        ("[encodings](../lib/encodings)", "encodings"),
        ("[`a`](../data/claims.toml)", '<a href="../data/claims.toml">`a`</a>'),
        # MyST resolves these, or says that it cannot.
        ("[05](05_rope.ipynb)",) * 2,
        ("[05](../notebooks/05_rope.ipynb)",) * 2,
        ("[nothing](../data/nothing.toml)",) * 2,
        ("![a figure](../figures/vision.png)",) * 2,
        ("[a paper](https://arxiv.org/abs/2104.09864)",) * 2,
    ],
)
def test_links_of_a_text(link, becomes):
    *_, cell = as_page(new_markdown_cell(f"See {link}."))
    assert cell.source == f"See {becomes}."


def test_links_of_a_table():
    html = (
        '<a href="05_rope.ipynb#cell-id=rope-eq1">1</a><a href="05_rope.ipynb">2</a>'
        '<a href="../figures/vision.png">3</a><a href="https://arxiv.org">4</a>'
    )
    output = new_output("display_data", data={"text/html": html})
    *_, cell = as_page(new_code_cell("table", outputs=[output]))
    assert cell.outputs[0].data["text/html"] == (
        '<a href="05_rope.html#rope-eq1">1</a><a href="05_rope.html">2</a>'
        '<a href="../figures/vision.png">3</a><a href="https://arxiv.org">4</a>'
    )


def test_every_cell_but_the_title_can_be_linked_to():
    cells = as_page(new_markdown_cell("words", id="words"), new_code_cell("1", id="code"))
    assert [cell.source for cell in cells] == [
        "# 99 · A title",
        '<span class="cell-anchor" id="words"></span>',
        "words",
        '<span class="cell-anchor" id="code"></span>',
        "1",
    ]


def test_a_figure_says_what_drew_it():
    *_, cell = as_page(new_code_cell("x = 1\npictures.line(x)\n"))
    assert cell.metadata["mystnb"]["image"]["alt"] == "figure: pictures.line(x)"


@pytest.fixture
def folder(tmp_path):
    def write(**pages):
        for name, body in pages.items():
            (tmp_path / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
        return tmp_path

    return write


def test_links_that_lead_somewhere(folder):
    pages = folder(
        one='<p id="p"></p><a href="two.html#é">a</a><a href="#p">b</a><a href="two.html">c</a>',
        two='<p id="é"><img src="data:image/png;base64,"><a href="https://arxiv.org/x">d</a>',
    )
    assert book.broken_links(pages) == []


@pytest.mark.parametrize(
    "link", ["three.html", "two.html#p", "#q", "../two.html", "figure.png", "."]
)
def test_links_that_lead_nowhere(folder, link):
    pages = folder(one=f'<p id="p"></p><a href="{link}">a</a>', two='<p id="two">')
    assert book.broken_links(pages) == [f"one.html links to {link}"]


def test_what_an_output_links_to_comes_along(folder):
    pages = folder(one='<a href="data/claims.toml">a</a><a href="../LICENSE">b</a>')
    book.bring_files(pages)
    assert (pages / "data/claims.toml").read_bytes() == (paths.DATA / "claims.toml").read_bytes()
    assert book.broken_links(pages) == ["one.html links to ../LICENSE"]


def test_a_warning_of_sphinx_is_one_sentence_and_leaves_the_old_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    monkeypatch.setattr(book, "PAGES", tmp_path / "book")
    book.PAGES.mkdir()
    (book.PAGES / "index.html").write_text("old")

    def failing(command, **options):
        said = f"{paths.ROOT}/README.md:3: WARNING: no such link [myst]\nmore\n"
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=said)

    monkeypatch.setattr(book.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(RuntimeError) as error:
        book.build()
    assert str(error.value) == (
        "Sphinx could not make the pages: README.md:3: WARNING: no such link [myst]"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["book", "index.html"]


def test_without_sphinx_one_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(book.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="not installed: `make book` installs it"):
        book.build()
