"""How Sphinx makes the pages: README.md and the notebooks as they are, nothing executed.

`python -m lib book` calls it; lib/book.py prepares the text of each page.
"""

import importlib.metadata

from lib import book

project = "Positional encodings"
html_title = "Positional encodings, derived and measured"
author = "the authors of this repository"
language = "en"

# ---- what is read --------------------------------------------------------------------------------
extensions = ["myst_nb"]
root_doc = "README"
include_patterns = ["README.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "data/cache"]
nb_execution_mode = "off"  # the committed outputs are shown
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_dmath_double_inline = True  # an equation may follow its sentence without an empty line
myst_heading_anchors = 3

# ---- what is shown -------------------------------------------------------------------------------
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_css_files = ["book.css"]
html_show_sphinx = html_show_copyright = html_show_sourcelink = html_copy_source = False
html_use_index = False  # no terms are marked for one
# A page that is opened from disk may not fetch another one to quote from it.
html_show_search_summary = False
# MathJax comes with the pages: one file, which draws equations as pictures and needs no fonts.
_MATHJAX = importlib.metadata.distribution("sphinx-mathjax-offline")
mathjax3_config = {"options": {"enableMenu": False}}  # parts of the menu are other files
mathjax_path = "tex-svg.js"
html_static_path = [
    "book.css",
    str(_MATHJAX.locate_file("sphinx-mathjax-offline/static/mathjax/tex-svg.js")),
]


def setup(app):
    app.connect("source-read", book.prepare)
    app.connect("doctree-read", book.keep_equations)
