"""An encoding in a file of its own, outside `lib.encodings`: loaded here, and in every worker.

    cls = own.load("my_encoding.py")      registers the class of the file, and gives it
    job = own.job(job, "my_encoding.py")  the same job, which loads the file wherever it is run

A worker process starts without the file, so its path travels with the job, and unpickling the job
loads it. What the file says is part of what identifies a run: its hash, comments apart, goes into
the configuration of a training and into the settings of what is measured, and a run of an earlier
version is not used again. The hash covers the one file, not what it imports.
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from lib import paths, runs
from lib.encodings import ENCODINGS, Encoding
from lib.training import TrainingConfig

_loaded: dict[Path, tuple[str, type[Encoding]]] = {}  # file → the hash of its text, its class


def load(path: str | Path) -> type[Encoding]:
    """The class that a file registers; the file is executed once, and again when it has changed.

    Raises:
        ValueError: no such file, no Python, an exception from it, a name that is registered
            already, no registered class or several, or one that does not encode text.
    """
    path = Path(path).expanduser().resolve()
    text = _text(path)
    known, cls = _loaded.get(path, (None, None))
    if known == text and ENCODINGS.get(cls.name) is cls:
        return cls
    before, module = dict(ENCODINGS), _name(path)
    for name, old in before.items():
        if old.__module__ == module:  # an earlier version
            del ENCODINGS[name]
    try:
        _execute(path)
        cls = _registered(path)
    except BaseException:
        ENCODINGS.clear()
        ENCODINGS.update(before)
        raise
    _loaded[path] = text, cls
    return cls


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"There is no file {path}: give the path of a Python file.")
    if path.suffix != ".py":
        raise ValueError(f"{path.name} is no Python file: give one that ends in .py.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text: save it as such.") from None


def _name(path: Path) -> str:
    """lib.examples.kerple of a file of this package, else a name that no package has."""
    if path.is_relative_to(paths.ROOT / "lib"):
        return ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)
    return f"encoding of {path.stem}"


def _execute(path: Path) -> None:
    name = _name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    earlier = sys.modules.get(name)
    sys.modules[name] = module  # where pickle and inspect look for its classes
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: the file is somebody's own
        sys.modules.pop(name)
        if earlier is not None:
            sys.modules[name] = earlier
        why = " ".join(str(error).split()).rstrip(".") or "no message"
        raise ValueError(
            f"{path.name} cannot be loaded{_line(error, path)}: {type(error).__name__}: {why}."
        ) from None


def _line(error: BaseException, path: Path) -> str:
    """Where in the file it happened."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f" (line {error.lineno})"
    at, line = error.__traceback__, None
    while at is not None:
        if at.tb_frame.f_code.co_filename == str(path):
            line = at.tb_lineno
        at = at.tb_next
    return "" if line is None else f" (line {line})"


def _registered(path: Path) -> type[Encoding]:
    """The one class that executing the file has registered."""
    found = [cls for cls in ENCODINGS.values() if cls.__module__ == _name(path)]
    if not found:
        raise ValueError(
            f'{path.name} registers no encoding: put @register("name") from lib.encodings above '
            f"its class."
        )
    if len(found) > 1:
        names = ", ".join(cls.name for cls in found)
        raise ValueError(f"{path.name} registers {names}: keep one encoding in a file.")
    (cls,) = found
    if not issubclass(cls, Encoding):
        raise ValueError(f"{cls.__name__} is no Encoding: let it inherit lib.encodings.Encoding.")
    if "text" not in cls.domain:
        raise ValueError(f"{cls.name} encodes {', '.join(cls.domain)}: only text is compared.")
    return cls


def source_hash(path: str | Path) -> str:
    """SHA-256 (first 16 hex digits) of what a file says, comments and layout apart."""
    tree = ast.dump(ast.parse(_text(Path(path).expanduser().resolve())))
    return hashlib.sha256(tree.encode()).hexdigest()[:16]


# ---- jobs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnTraining(TrainingConfig):
    """A training whose encoding comes from a file; `source` is the hash of what the file says."""

    source: str = ""


@dataclass(frozen=True)
class OwnJob(runs.Job):
    """A job whose encoding comes from `file`, which is loaded wherever the job arrives; a file of
    this repository is found in the one there."""

    file: str = ""

    def __setstate__(self, state: dict):
        load(paths.ROOT / state["file"])
        self.__dict__.update(state)


def job(job: runs.Job, path: str | Path) -> OwnJob:
    """The same job for the encoding of a file: it carries the file and the hash of its text."""
    file, source = Path(path).expanduser().resolve(), source_hash(path)
    file = file.relative_to(paths.ROOT) if file.is_relative_to(paths.ROOT) else file
    training, settings = job.training, job.settings
    if training is None:
        settings = {**settings, "source": source}
    else:
        training = OwnTraining(**{**asdict(training), "source": source})
    same = {f.name: getattr(job, f.name) for f in fields(runs.Job)}
    return OwnJob(**{**same, "training": training, "settings": settings, "file": str(file)})
