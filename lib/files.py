"""Files that are either whole or not there: an interrupted run never leaves half a result."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well, it becomes `path`.

    Missing folders are made. When the block fails or is interrupted, the temporary file goes and
    an older `path` stays as it was. Raises OSError where the disk is full or may not be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same folder, since only a rename within one file system is atomic; the same suffix,
    # since savers (matplotlib, numpy) choose the format by it.
    temporary = _empty_file(path)
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:  # a keyboard interrupt too must leave nothing behind
        temporary.unlink(missing_ok=True)
        raise


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write `text` as UTF-8 with Unix line ends."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write `frame` without its index; floats keep every digit that reading needs."""
    write_text(frame.to_csv(index=False, lineterminator="\n"), path)


def write_json(value: Any, path: str | os.PathLike[str]) -> None:
    """Write `value` as JSON, keys sorted, one entry a line.

    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(text + "\n", path)


def _empty_file(path: Path) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    # mkstemp makes private files; a result is as readable as any other file of its user.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(name, 0o666 & ~umask)
    return Path(name)


def _flush_to_disk(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
