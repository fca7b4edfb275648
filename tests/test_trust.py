"""What is read is not run: no pickle is loaded, and every file from outside is checked first."""

import ast
import pickle
import re
import shutil
import subprocess
import sys

import pytest
import torch

from lib import corpus, paths, runs, smollm2, wikitext
from lib.probes import minilm
from lib.training import TrainingConfig
from tests.refusing import refuses

SOURCES = [*paths.ROOT.glob("lib/**/*.py"), *paths.NOTEBOOKS.glob("[!.]*.ipynb")]
# Modules that are there to load pickles.
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def loads(source: str) -> list[str]:
    """The calls in a Python text that may load a pickle, and the imports of modules for it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names]
            module = getattr(node, "module", None)
            found += [n for n in [*names, module] if n and n.split(".")[0] in MODULES]
        if not isinstance(node, ast.Call):
            continue
        name, named = ast.unparse(node.func), {k.arg: k.value for k in node.keywords}
        true = {k for k, v in named.items() if isinstance(v, ast.Constant) and v.value is True}
        if name.endswith("read_pickle") or "allow_pickle" in true:
            found.append(name)
        if name in ("torch.load", "load_state_dict_from_url") and "weights_only" not in true:
            found.append(name)
        if name in ("np.load", "numpy.load") and "allow_pickle" not in named:
            found.append(name)
        if name.startswith(("torch.hub.", "torch.jit.load")):
            found.append(name)
    return found


def code_of(path) -> str:
    if path.suffix == ".py":
        return path.read_text(encoding="utf-8")
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(c.source for c in cells if c.cell_type == "code" and "%" not in c.source[:1])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nothing_loads_a_pickle(path):
    assert loads(code_of(path)) == []


@pytest.mark.parametrize(
    "source, found",
    [
        ("import pickle", ["pickle"]),
        ("from joblib import load", ["joblib"]),
        ("torch.load(f)", ["torch.load"]),
        ("torch.load(f, weights_only=False)", ["torch.load"]),
        ("torch.load(f, weights_only=True)", []),
        ("np.load(f)", ["np.load"]),
        ("np.load(f, allow_pickle=True)", ["np.load"]),
        ("np.load(f, allow_pickle=False)", []),
        ("pd.read_pickle(f)", ["pd.read_pickle"]),
        ("json.load(f)", []),
    ],
)
def test_a_loader_is_seen_however_it_is_called(source, found):
    assert loads(source) == found


def test_no_pickle_is_loaded_from_the_store(store, monkeypatch):
    """Processes of one run hand each other jobs and outcomes by pickle; files hold none."""

    def refuse(*arguments, **named):
        raise AssertionError("a pickle was loaded")

    class Refusing(pickle.Unpickler):
        load = refuse

    for name, instead in {"load": refuse, "loads": refuse, "Unpickler": Refusing}.items():
        monkeypatch.setattr(pickle, name, instead)
    monkeypatch.setattr(torch, "load", refuse)
    corpus.load.cache_clear()
    training = TrainingConfig(
        encoding="alibi", seed=1, learning_rate=1e-3, tokens=256 * 21, batch_tokens=256,
        d_model=16, n_heads=2, n_layers=1, d_ff=16,
    )  # fmt: skip
    job = runs.Job(training, "lib.studies.learning_rates", {"tokens": 300})
    first, second = runs.do(job), runs.do(job)
    assert first.rows == second.rows and second.trained.startswith("used again")
    runs.decoder(training)


# ---- files from outside --------------------------------------------------------------------------


def test_another_manifest_of_the_corpus_is_refused(monkeypatch):
    corpus.source()
    monkeypatch.setattr(corpus, "MANIFEST", "0" * 64)
    refuses(corpus.source, "manifest", "force-reinstall")


@pytest.mark.parametrize("name", minilm.SHA256)
def test_another_file_of_minilm_is_refused(name, monkeypatch):
    minilm.file(name)
    monkeypatch.setitem(minilm.SHA256, name, "0" * 64)
    refuses(lambda: minilm.file(name), name, "force-reinstall")


def test_another_file_of_smollm2_is_refused(monkeypatch):
    smollm2.file()
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    refuses(smollm2.file, "force-reinstall")


def test_every_archive_that_may_be_downloaded_has_its_digest():
    for archive in wikitext.KINDS.values():
        assert re.fullmatch("[0-9a-f]{64}", archive.sha256) and archive.size > 10**8
        assert archive.url.startswith("https://")


# ---- JupyterLab ----------------------------------------------------------------------------------

ASK = """
import sys
from jupyter_server.serverapp import ServerApp
app = ServerApp()
app.parse_command_line(sys.argv[1:])
app.init_configurables()
print(app.ip, app.allow_remote_access, len(app.identity_provider.token))
"""


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make here")
def test_jupyterlab_is_on_this_machine_alone_and_asks_for_its_token(tmp_path):
    said = subprocess.run(
        ["make", "-n", "lab"], cwd=paths.ROOT, capture_output=True, text=True, check=True
    )
    (line,) = [line for line in said.stdout.splitlines() if " -m jupyterlab" in line]
    arguments = [word for word in line.split() if word.startswith("--ServerApp.")]
    assert "--ServerApp.ip=127.0.0.1" in arguments
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "JUPYTER_NO_CONFIG": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments], cwd=paths.ROOT, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split()[:2] == ["127.0.0.1", "False"], done.stderr
    assert int(done.stdout.split()[2]) >= 32
