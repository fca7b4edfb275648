"""`make lab` as a person uses it: open a notebook, restart and run all, read the verdicts."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from types import SimpleNamespace
from urllib.parse import urlsplit

import nbformat
import psutil
import pytest

from lib import paths, sliders

NAME = "06_alibi"
CELLS = nbformat.read(paths.NOTEBOOKS / f"{NAME}.ipynb", as_version=4).cells


def a_free_port():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """A server by `make lab`: its address with the token, its process and those below it."""
    home = tmp_path_factory.mktemp("lab")
    # Nothing is saved behind the test's back: the notebooks that it opens are the committed ones.
    settings = home / "settings/@jupyterlab/docmanager-extension/plugin.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"autosave": False}))
    folders = {f"JUPYTER_{what}_DIR": str(home / what) for what in ("CONFIG", "DATA", "RUNTIME")}
    folders["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    folders["JUPYTERLAB_WORKSPACES_DIR"] = str(home / "workspaces")
    # The variables of a make that runs these tests must not reach this one.
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "JUPYTER"))}
    arguments = f"--no-browser --ServerApp.port={a_free_port()} --ServerApp.port_retries=0"
    if os.geteuid() == 0:  # as in a container
        arguments += " --allow-root"
    with open(home / "log", "w+b") as log:
        make = subprocess.Popen(
            # The Python of these tests, which need not be that of .venv: no set-up.
            ["make", "-o", ".venv/.stamp", "lab", f"VENV_PYTHON={sys.executable}"]
            + [f"LAB_ARGS={arguments}"],
            cwd=paths.ROOT, env=ours | folders, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            address = _address(make, home / "log")
            (server,) = psutil.Process(make.pid).children()
            yield SimpleNamespace(address=address, server=server)
            family = [server, *server.children(recursive=True)]
            server.terminate()
            make.wait(timeout=60)
            _, alive = psutil.wait_procs(family, timeout=30)
            assert alive == []
        finally:
            if make.poll() is None:
                os.killpg(make.pid, signal.SIGKILL)
                make.wait()


def _address(make, log, seconds=300):
    """The first address with a token that the server prints."""
    for _ in range(seconds * 4):
        if found := re.search(r"http://\S+/lab\?token=\w+", log.read_text(errors="replace")):
            return found.group()
        try:
            make.wait(timeout=0.25)
            break
        except subprocess.TimeoutExpired:
            pass
    raise RuntimeError(f"`make lab` did not start: {log.read_text(errors='replace')}")


def status(address):
    try:
        with urllib.request.urlopen(address) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_it_listens_on_this_machine_alone_and_wants_a_token(lab):
    base, _, token = lab.address.partition("/lab?token=")
    url = urlsplit(base)
    assert url.hostname == "127.0.0.1"
    # A server for other machines too would answer at any address of this one.
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", url.port), timeout=5)
    assert len(token) >= 32
    assert status(f"{base}/api/contents") == 403
    assert status(f"{base}/api/contents?token={'0' * len(token)}") == 403
    assert status(f"{base}/api/contents?token={token}") == 200


def test_a_notebook_restarts_and_runs_to_its_verdicts(lab, visit):
    base, _, token = lab.address.partition("/lab?token=")
    home = (base, base.replace("http", "ws", 1))
    at = visit(f"{base}/lab/tree/{NAME}.ipynb?token={token}", home)
    page = at.page
    verdicts = cell(page, "alibi-verdict-lines")
    verdicts.locator(".jp-OutputArea-output").first.wait_for(state="attached")
    # Not executed here, it is not trusted: scripts sleep, the table stands.
    slider = cell(page, "alibi-slider-cell").locator(".jp-RenderedHTMLCommon").last
    slider.locator("p", has_text=sliders.ASLEEP).wait_for(state="attached")
    assert slider.locator("td").count() == 2 * len(sliders.alibi_said(8, 64))
    assert slider.locator("svg").count() == 0

    page.locator("[data-command='notebook:restart-run-all']").click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    page.locator(".jp-InputPrompt", has_text="[*]").first.wait_for(state="attached")
    prompts = "[...document.querySelectorAll('.jp-InputPrompt')]"
    page.wait_for_function(f"!{prompts}.some(prompt => prompt.textContent.includes('[*]'))")
    counts = page.locator(".jp-CodeCell .jp-InputPrompt").all_text_contents()
    assert counts == [f"[{n + 1}]:" for n in range(sum(c.cell_type == "code" for c in CELLS))]
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    (committed,) = next(c for c in CELLS if c.id == "alibi-verdict-lines").outputs
    assert committed.text.startswith("ALI-1 ")
    assert verdicts.locator("pre").all_text_contents() == [committed.text]
    assert slider.locator("svg").count() == 1 and slider.locator("p").count() == 0
    assert at.strangers == []  # of complaints JupyterLab has its own


def cell(page, name):
    """A cell of the open notebook, by its id."""
    code = [c.id for c in CELLS if c.cell_type == "code"]
    return page.locator(".jp-CodeCell").nth(code.index(name))
