"""A headless Chromium for the tests of what a person sees; `make browser` runs them."""

import shutil
from types import SimpleNamespace

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# No sandbox: a container's root may not make one. Nothing is fetched behind the tests' back.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE = 300_000  # milliseconds: a slow machine is no fault of a page


@pytest.fixture(scope="session")
def browser():
    needed = "`make browser` installs what these tests need."
    playwright_api = pytest.importorskip("playwright.sync_api", reason=needed)
    if CHROMIUM is None:
        pytest.skip("There is no Chromium here: install it (Debian: chromium) to run these tests.")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens an address: the page, what it complained of, and what it asked of other machines."""
    contexts = []

    def open_page(address, home=("file:",), **options):
        """home: how the addresses of all that the page may ask for begin."""
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page, complaints, strangers = context.new_page(), [], []

        def said(message):
            if message.type in ("error", "warning"):
                complaints.append(message.text)

        def asked(request):
            if not request.url.startswith((*home, "data:", "blob:")):
                strangers.append(request.url)

        page.on("console", said)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(f"no {request.url}"))
        page.on("request", asked)
        page.goto(address)
        return SimpleNamespace(page=page, complaints=complaints, strangers=strangers)

    yield open_page
    for context in contexts:
        context.close()
