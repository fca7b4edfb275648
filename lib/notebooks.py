"""Executing the notebooks, for a profile or in place, and the checks that a committed one passes.

Each notebook runs in a process of its own, through papermill. That process writes the notebook only
when it is whole, and stops its kernel and itself when the process that asked for it is gone.
"""

import ast
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

from lib import files, paths

TOGETHER = min(os.cpu_count() or 1, 2)  # a notebook mostly waits for its kernel to start
LARGEST, LARGEST_PICTURE = 300_000, 80_000  # bytes
LONGEST_CELL = 15  # lines of code
# How a notebook is stored: nothing that depends on the machine or the Python release.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def sources(names=None):
    """The committed notebooks, in order; names: their stems, None for all.

    Raises ValueError for a name that is none of them, and when there are no notebooks.
    """
    known = {path.stem: path for path in sorted(paths.NOTEBOOKS.glob("[!.]*.ipynb"))}
    unknown = sorted(set(names or ()) - set(known))
    if unknown or not known:
        what = f"no notebook {', '.join(unknown)}" if unknown else "no notebook"
        raise ValueError(f"There is {what} in {_shown(paths.NOTEBOOKS)}/: {', '.join(known)}.")
    return [path for name, path in known.items() if names is None or name in names]


# ---- executing -----------------------------------------------------------------------------------


def execute(profile, names=None):
    """Run the notebooks with PROFILE = profile into build/<profile>/notebooks/.

    names: stems, None for all. Prints one line a notebook. A notebook that fails is kept beside, as
    <name>.failed.ipynb; the others still run. Raises ValueError for a bad profile, name or
    parameters cell, before anything runs, and RuntimeError when a notebook failed.
    """
    if profile not in paths.PROFILES:
        raise ValueError(
            f"Notebooks are built for {', '.join(paths.PROFILES)}, not {profile!r}; the committed "
            "ones are executed in place by refresh()."
        )
    _run(sources(names), paths.results(profile) / "notebooks", {"PROFILE": profile})


def refresh(names=None):
    """Execute the committed notebooks in place, on the reference, and store them normalised.

    names: stems, None for all. Either all of them are replaced or, when one fails, none. Raises as
    `execute` does.
    """
    # A folder of this process: two that refresh at once leave each other's alone.
    chosen, staged = sources(names), paths.BUILD / f"refresh-{os.getpid()}"
    _run(chosen, staged, {})
    for path in chosen:
        files.write_text(normalised(nbformat.read(staged / path.name, as_version=4)), path)
    shutil.rmtree(staged)


def normalised(notebook):
    """The notebook's text without what changes from run to run or from machine to machine."""
    # A stream comes in one piece or several, as it happens.
    notebook, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def _run(chosen, folder, parameters):
    """Execute `chosen` into `folder`, TOGETHER at a time."""
    for path in chosen:
        if wrong := _parameter_problems(nbformat.read(path, as_version=4).cells):
            raise ValueError(f"{path.name}: {wrong[0]}.")
    folder.mkdir(parents=True, exist_ok=True)
    for path in chosen:  # what an earlier run left would look like this one's
        (folder / path.name).unlink(missing_ok=True)
        _failed(folder / path.name).unlink(missing_ok=True)
    children, stopping, failures = [], threading.Event(), {}

    def run(path):
        """(why it failed or None, seconds)"""
        began = time.monotonic()
        command = [sys.executable, "-m", "lib.notebooks", str(path), str(folder / path.name)]
        # A session of its own: Ctrl-C reaches this process alone, which then stops the children.
        child = subprocess.Popen(
            [*command, json.dumps(parameters)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace",
            cwd=paths.ROOT, start_new_session=True, env=_environment(),
        )  # fmt: skip
        children.append(child)
        if stopping.is_set():
            child.send_signal(signal.SIGINT)
        said = child.stdout.read().strip().splitlines() or ["was killed"]
        return said[-1] if child.wait() else None, time.monotonic() - began

    pool = ThreadPoolExecutor(TOGETHER)
    try:
        futures = {pool.submit(run, path): path for path in chosen}
        for future in as_completed(futures):
            path, (failure, seconds) = futures[future], future.result()
            print(f"{path.stem}: {failure + ', ' if failure else ''}{seconds:.0f} s", flush=True)
            if failure:
                failures[path] = failure
    except BaseException:
        stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        _stop(children)
        raise
    finally:
        pool.shutdown()
    if failures:
        path = min(failures)
        others = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise RuntimeError(
            f"{path.name} {failures[path]}; see {_shown(_failed(folder / path.name))}{others}."
        )


def _environment():
    """This process's environment, except that a notebook draws inline whatever the backend here."""
    return {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}


def _stop(children):
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
    for child in children:
        try:
            child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            child.kill()


def _failed(path):
    return path.with_suffix(".failed.ipynb")


def _shown(path):
    return path.relative_to(paths.ROOT) if path.is_relative_to(paths.ROOT) else path


# ---- the process that executes one notebook ------------------------------------------------------


def _child(source, target, parameters):
    """Execute one notebook; why it failed is the last line printed. Returns the exit status."""
    import papermill

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    source, target = Path(source), Path(target)
    try:
        with files.atomic(target) as temporary:
            try:
                papermill.execute_notebook(
                    source, temporary, json.loads(parameters), cwd=source.parent,
                    progress_bar=False, start_timeout=300,
                )  # fmt: skip
                _every_cell_ran(temporary)
            except Exception:
                if temporary.stat().st_size:  # papermill has saved as far as it came
                    shutil.copyfile(temporary, _failed(target))
                raise
    except papermill.PapermillExecutionError as error:
        said = papermill.exceptions.strip_color("\n".join(error.traceback)).strip().splitlines()
        last = said[-1] if said else f"{error.ename}: {error.evalue}"
        first = error.source.strip().splitlines()[0]
        print(f"failed in cell [{error.exec_count}] (`{first}`): {last}")
        return 1
    except Exception as error:
        print(f"failed: {type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    except KeyboardInterrupt:
        print("was interrupted")
        return 1
    return 0


def _leave_with_parent():
    """Interrupt this process when the other end of its standard input is gone."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)


def _every_cell_ran(path):
    if wrong := _order_problems(nbformat.read(path, as_version=4).cells):
        raise RuntimeError(f"it ended early: {wrong[0]}")


# ---- hygiene -------------------------------------------------------------------------------------

# Folders of somebody's machine, not addresses on the web.
_ABSOLUTE = re.compile(r"(?<![\w.~/:-])/(?:home|work|tmp|Users|root)/\S*|\b[A-Z]:\\{1,2}Users\S*")


def problems(path, cells=None):
    """What keeps a notebook from being committed, as sentences; none for a clean one.

    cells: how many it may have at most; None for any number.
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        raw = json.loads(text)
        ids = [cell.get("id") for cell in raw["cells"]]  # reading mends them
        nbformat.validate(nbformat.from_dict(raw))
        notebook = nbformat.reads(text, as_version=4)
    except (ValueError, KeyError, nbformat.ValidationError) as error:
        return [f"it is no valid notebook: {str(error).splitlines()[0]}"]
    return [
        *_file_problems(text, notebook, cells),
        *(f"{n} cells have the id {name}" for name, n in Counter(ids).items() if n > 1 or not name),
        *_parameter_problems(notebook.cells),
        *_order_problems(notebook.cells),
        *_prose_problems(notebook.cells),
        *(
            f"cell {at}: {what}"
            for at, cell in enumerate(notebook.cells)
            for what in _in_cell(cell)
        ),
    ]


def _file_problems(text, notebook, cells):
    if len(text.encode()) > LARGEST:
        yield f"it has {len(text.encode())} bytes, more than {LARGEST}"
    if cells is not None and len(notebook.cells) > cells:
        yield f"it has {len(notebook.cells)} cells, more than {cells}"
    if notebook.metadata != METADATA:
        yield "its metadata is not normalised: execute it with `python -m lib notebooks`"


def _parameter_problems(cells):
    """The one parameters cell assigns constants, PROFILE = "reference" among them."""
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        return [f"it needs one cell tagged `parameters`, and has {len(tagged)}"]
    (cell,) = tagged
    try:
        statements = ast.parse(cell.source).body
        # A value derived here would keep what it was derived from when papermill sets another.
        constants = {s.targets[0].id: ast.literal_eval(s.value) for s in statements}
    except (SyntaxError, ValueError, AttributeError):
        return ["its parameters cell may only assign constants to names"]
    if constants.get("PROFILE") != "reference":
        return ['its parameters cell must set PROFILE = "reference"']
    return []


def _order_problems(cells):
    counts = [cell.execution_count for cell in cells if cell.cell_type == "code"]
    if counts != list(range(1, len(counts) + 1)):
        shown = ", ".join(str(count or "never") for count in counts)
        return [f"its code cells were not run once each from a new kernel, in order: {shown}"]
    return []


def _prose_problems(cells):
    """It opens with a title, and each figure comes after words of its own."""
    if not cells or cells[0].cell_type != "markdown" or not cells[0].source.startswith("# "):
        yield "its first cell is not a title (`# …`)"
    introduced = False
    for at, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            introduced |= any(not line.startswith("#") for line in lines)
        elif _pictures(cell):
            if not introduced:
                yield f"cell {at}: no words before its figure say what to look for"
            introduced = False


def _in_cell(cell):
    """What is wrong with one cell alone."""
    metadata = set(cell.metadata) - {"tags"}
    if metadata:
        yield f"its metadata is not normalised: {', '.join(sorted(metadata))}"
    shown = [cell.source]
    if cell.cell_type == "code":
        lines = len(cell.source.strip().splitlines())
        if not lines:
            yield "it is empty"
        if cell.source.rstrip().endswith(";"):
            # nbval runs cells without history, where IPython does not see the semicolon.
            yield "it ends in `;`, which does not silence it under nbval: assign the value instead"
        if lines > LONGEST_CELL:
            yield f"it has {lines} lines, more than {LONGEST_CELL}"
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"it failed with {output.ename}"
            if output.get("name") == "stderr":
                yield f"it wrote to stderr: {output.text.strip().splitlines()[0]}"
            shown += [output.get("text", ""), *_texts(output)]
        for size in _pictures(cell):
            if size > LARGEST_PICTURE:
                yield f"its figure has {size} bytes, more than {LARGEST_PICTURE}"
    for found in _ABSOLUTE.findall("\n".join(shown)):
        yield f"it names a folder of one machine: {found}"


def _texts(output):
    data = output.get("data", {})
    return [value for kind, value in data.items() if kind.startswith("text/")]


def _pictures(cell):
    """The sizes in bytes of the pictures that a cell shows."""
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return [len(base64.b64decode(d["image/png"])) for d in data if "image/png" in d] + [
        len(d["image/svg+xml"].encode()) for d in data if "image/svg+xml" in d
    ]


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))
