"""The pages as a person sees them: opened from disk, on a desk and on a phone."""

import json

import pytest

from lib import book, notebooks, sliders

NOTEBOOKS = [path.stem for path in notebooks.sources()]
PAGES = ["index.html", *(f"notebooks/{name}.html" for name in NOTEBOOKS)]
WIDTHS = (390, 800, 1024, 1320, 1920)  # pixels, from a phone to a desk


@pytest.fixture(scope="module")
def pages(browser):
    """The folder of the pages, made as `make book` makes them."""
    book.build()
    return book.PAGES


def test_what_is_wrong_with_a_page_is_seen(visit, tmp_path):
    """A visit that saw nothing would let every other test pass."""
    page = tmp_path / "page.html"
    page.write_text("<img src=http://127.0.0.1:9/a.png><script>throw new Error('oh')</script>")
    at = visit(page.as_uri())
    assert at.strangers == ["http://127.0.0.1:9/a.png"]
    assert "oh" in at.complaints and "no http://127.0.0.1:9/a.png" in at.complaints


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_quiet_and_fits(name, pages, visit):
    at = visit((pages / name).as_uri())
    if at.page.locator(".math").count():  # else MathJax is not asked for
        at.page.evaluate("MathJax.startup.promise")
    assert at.page.evaluate("[...document.images].filter(i => !i.naturalWidth).length") == 0
    assert at.page.locator("mjx-container").count() == at.page.locator(".math").count()
    assert at.page.locator("[data-mml-node=merror]").count() == 0
    for width in WIDTHS:
        at.page.set_viewport_size({"width": width, "height": 900})
        assert at.page.evaluate("document.documentElement.scrollWidth") == width
    assert at.complaints == at.strangers == []


def test_equations_are_there(pages, visit):
    at = visit((pages / "notebooks/05_rope.html").as_uri())
    at.page.evaluate("MathJax.startup.promise")
    assert at.page.locator("mjx-container[display=true]").count() >= 11


def test_the_notebooks_stand_in_order_beside_every_page(pages, visit):
    at = visit((pages / PAGES[-1]).as_uri())
    links = at.page.locator(".sidebar-tree a").evaluate_all("found => found.map(a => a.href)")
    beside = [link.partition("#")[0].rpartition("/")[2] for link in links]
    assert [name or f"{NOTEBOOKS[-1]}.html" for name in beside] == [f"{n}.html" for n in NOTEBOOKS]


def test_search_finds_without_a_server(pages, visit):
    at = visit((pages / "index.html").as_uri())
    at.page.fill("input[name=q]", "half-life")
    at.page.press("input[name=q]", "Enter")
    found = at.page.locator("#search-results li a")
    found.first.wait_for()
    links = found.evaluate_all("links => links.map(a => a.getAttribute('href'))")
    assert any("notebooks/06_alibi.html" in link for link in links)
    found.first.click()
    at.page.wait_for_url("**/notebooks/*.html*")
    assert at.complaints == at.strangers == []


# ---- sliders -------------------------------------------------------------------------------------

PLACES = {
    "rope": (
        "05_rope",
        [
            {"base": 4, "L": 6, "s": 2, "method": "none"},
            {"base": 4, "L": 6, "s": 2, "method": "linear"},
            {"base": 5.75, "L": 12, "s": 5, "method": "ntk"},
            {"base": 4, "L": 11, "s": 3, "method": "ntk_by_parts"},
            {"base": 1, "L": 5, "s": 0, "method": "ntk_by_parts"},
            {"base": 1.25, "L": 13, "s": 1, "method": "ntk_by_parts"},
        ],
    ),
    "alibi": ("06_alibi", [{"H": H, "delta": H % 13} for H in range(1, 17)]),
    "t5": (
        "04_relative_bias",
        [
            {"n": 32, "M": 7, "L": 6},
            {"n": 32, "M": 5, "L": 4},
            {"n": 4, "M": 10, "L": 10},
            {"n": 30, "M": 9, "L": 5},
        ],
    ),
}
SAYS = {"rope": sliders.rope_said, "alibi": sliders.alibi_said, "t5": sliders.t5_said}
COMPUTES = {"rope": sliders.rope_values, "alibi": sliders.alibi_values, "t5": sliders.t5_values}


def table(root):
    rows = root.locator("tr").evaluate_all(
        "rows => rows.map(r => [...r.children].map(c => c.textContent))"
    )
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("kind", PLACES)
def test_a_slider_moves_the_picture_by_the_formulas_of_lib(kind, pages, visit):
    name, places = PLACES[kind]
    at = visit((pages / f"notebooks/{name}.html").as_uri())
    root = at.page.locator(f".sliders.{kind}")
    pictures = set()
    for place in places:
        for control, value in place.items():
            knob = root.locator(f"[name={control}]")
            knob.evaluate(
                "(knob, value) => { knob.value = value; knob.dispatchEvent(new Event('input')); }",
                str(value),
            )
        settings = json.loads(root.get_attribute("data-settings"))
        assert settings.keys() == place.keys()
        values = json.loads(root.get_attribute("data-values"))
        for quantity, expected in COMPUTES[kind](**settings).items():
            assert values[quantity] == pytest.approx(expected.tolist(), rel=1e-12), quantity
        assert table(root) == SAYS[kind](**settings)
        pictures.add(root.locator("svg").inner_html())
    assert len(pictures) == len(places)
    assert at.complaints == at.strangers == []


@pytest.mark.parametrize("kind", PLACES)
def test_without_scripts_the_table_says_the_same(kind, pages, visit):
    address = (pages / f"notebooks/{PLACES[kind][0]}.html").as_uri()
    awake = visit(address).page.locator(f".sliders.{kind}")
    asleep = visit(address, java_script_enabled=False).page.locator(f".sliders.{kind}")
    assert table(awake) == table(asleep)
    assert awake.locator("p").count() == 0 and asleep.locator("p").inner_text() == sliders.ASLEEP
