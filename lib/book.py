"""The pages: README.md and the notebooks with their committed outputs, as static HTML.

`python -m lib book` writes build/book/, which opens from disk and asks nothing of the network.
Sphinx with MyST-NB makes the pages, as book/conf.py says; here is what they need beyond that: links
to a cell of a notebook, and a check that every link leads somewhere.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat

from lib import paths

PAGES = paths.BUILD / "book"
# The README is the first page; the notebooks follow by number.
CONTENTS = "\n\n```{toctree}\n:hidden:\n:glob:\n\nnotebooks/*\n```\n"

# Not of a picture, nor around one.
MARKDOWN_LINK = re.compile(r"(?<!!)\[(?!!)([^\]]*)\]\(([^)\s]+)\)")
HTML_LINK = re.compile(r'(?<=href=")([\w.-]+)\.ipynb(?:#cell-id=([\w-]+))?(?=")')
CELL = re.compile(r"(?:([\w./-]+)\.ipynb)?#cell-id=([\w-]+)")  # as JupyterLab writes it


def build():
    """Write the pages into build/book/; older ones stay until the new ones are whole.

    Raises RuntimeError when Sphinx is missing, when it warns, and for a link that leads nowhere.
    """
    if importlib.util.find_spec("sphinx") is None:
        raise RuntimeError("Sphinx is not installed: `make book` installs it and makes the pages.")
    work = paths.BUILD / f"book-{os.getpid()}"  # a folder of this process
    shutil.rmtree(work, ignore_errors=True)
    try:
        _sphinx(work)
        # Those who look for a first page find it; README.html is the one that pages link to.
        shutil.copyfile(work / "html/README.html", work / "html/index.html")
        bring_files(work / "html")
        if wrong := broken_links(work / "html"):
            more = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise RuntimeError(f"A link of the pages leads nowhere: {wrong[0]}{more}.")
        shutil.rmtree(PAGES, ignore_errors=True)
        (work / "html").rename(PAGES)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"The pages are ready: open {PAGES.relative_to(paths.ROOT)}/index.html in a browser.")


def _sphinx(work):
    """Run Sphinx over the repository into work/html; a warning fails."""
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--quiet", "--fail-on-warning"]
    command += ["--conf-dir", "book", "--doctree-dir", work / "doctrees", ".", work / "html"]
    done = subprocess.run(
        command, cwd=paths.ROOT, capture_output=True, encoding="utf-8", errors="replace"
    )
    if done.returncode:
        said = [line for line in done.stderr.strip().splitlines() if line] or ["it said nothing"]
        said = said[0].replace(f"{paths.ROOT}/", "")
        raise RuntimeError(f"Sphinx could not make the pages: {said}")


# ---- what a page is made from --------------------------------------------------------------------


def prepare(app, name, content):
    """Sphinx's `source-read` hook: content[0], the text of page `name`, made ready to parse."""
    if name == app.config.root_doc:
        content[0] = _links(content[0], paths.ROOT) + CONTENTS
    else:
        content[0] = notebook_text(content[0])


def notebook_text(text):
    """A notebook's JSON with an anchor before each cell, and links that hold among pages."""
    notebook = nbformat.reads(text, as_version=4)
    title, *others = notebook.cells
    cells = [title]
    for cell in others:
        anchor = f'<span class="cell-anchor" id="{cell.id}"></span>'
        cells += [nbformat.v4.new_markdown_cell(anchor), cell]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _links(cell.source, paths.NOTEBOOKS)
        else:  # what is said where a figure cannot be seen
            drawn_by = cell.source.rstrip().rpartition("\n")[2].strip()
            cell.metadata["mystnb"] = {"image": {"alt": f"figure: {drawn_by}"}}
        for output in cell.get("outputs", []):
            if html := output.get("data", {}).get("text/html"):
                output.data["text/html"] = HTML_LINK.sub(_page, html)
    notebook.cells = cells
    return nbformat.writes(notebook)


def _links(text, base):
    """Markdown links from a text in folder `base`, where MyST does not know what they lead to.

    It knows pages and headings. A link to a cell, or to another file, becomes one of HTML, which
    MyST leaves alone; a link to a folder, which pages have not, becomes its words.
    """

    def link(match):
        words, target = match.groups()
        if cell := CELL.fullmatch(target):
            return f'<a href="{_page(cell)}">{words}</a>'
        path = base / target
        if path.is_dir():
            return words
        if path.is_file() and path.resolve().parent != paths.NOTEBOOKS:
            return f'<a href="{target}">{words}</a>'
        return match.group()

    return MARKDOWN_LINK.sub(link, text)


def _page(match):
    """The address, within the pages, of a notebook or of one of its cells."""
    name, cell = match.groups()
    return (f"{name}.html" if name else "") + (f"#{cell}" if cell else "")


def keep_equations(app, doctree):
    """Sphinx's `doctree-read` hook: display equations reach MathJax as they are written.

    Sphinx would put one of several lines into a `split` of its own, where no \\tag may stand; one
    that MyST calls amsmath it leaves alone.
    """
    from docutils import nodes

    for equation in doctree.findall(nodes.math_block):
        equation["classes"].append("amsmath")


# ---- where their links lead ----------------------------------------------------------------------


class _Page(HTMLParser):
    """The ids and the links within the pages that the HTML file at `path` has."""

    def __init__(self, path):
        super().__init__()
        self.path, self.ids, self.links = path, set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src") and not urlsplit(value).scheme:
                self.links.append(value)

    def targets(self):
        """(link, the file that it names, its anchor or "")"""
        for link in self.links:
            url = urlsplit(link)
            file = os.path.normpath(self.path.parent / unquote(url.path)) if url.path else self.path
            yield link, Path(file), unquote(url.fragment)


def _read(folder):
    return [_Page(path) for path in sorted(folder.rglob("*.html"))]


def bring_files(folder):
    """Copy what an output links to, such as a table: the pages lie as the repository does."""
    for page in _read(folder):
        for _, target, _ in page.targets():
            if target.is_relative_to(folder) and not target.exists():
                source = paths.ROOT / target.relative_to(folder)
                if source.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)


def broken_links(folder):
    """The links of the pages below `folder` that lead to no file or no anchor, as sentences."""
    pages = _read(folder)
    ids = {page.path: page.ids for page in pages}
    return [
        f"{page.path.relative_to(folder)} links to {link}"
        for page in pages
        for link, target, anchor in page.targets()
        if not target.is_file() or (anchor and anchor not in ids.get(target, {anchor}))
    ]
