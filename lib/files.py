"""Files that are either whole or not there: an interrupted run never leaves half a result.

And files that were damaged or edited since are told from whole ones, by SHA-256: a sealed JSON file
holds the digest of the rest of itself; the results of a profile are listed in SHA256SUMS beside
them (`sha256sum -c SHA256SUMS` checks them, too).
"""

import glob
import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well, it becomes `path`.

    Missing folders are made. When the block fails or is interrupted, the temporary file goes and
    an older `path` stays as it was. Raises OSError, with `path` in it, where the disk is full or
    may not be written.
    """
    path = Path(path)
    try:
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
    except OSError as error:
        error.filename = str(path)  # the temporary name says nothing, and a full disk says none
        raise
    except Exception as error:
        # What a library in Rust (safetensors) raises is its own, with the system's number in it.
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            n = int(number[1])
            raise OSError(n, os.strerror(n), str(path)) from None
        raise


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write `text` as UTF-8 with Unix line ends."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_csv(frame: "pd.DataFrame", path: str | os.PathLike[str]) -> None:
    """Write `frame` without its index; floats keep every digit that reading needs."""
    write_text(frame.to_csv(index=False, lineterminator="\n"), path)


def write_json(value: Any, path: str | os.PathLike[str]) -> None:
    """Write `value` as JSON, keys sorted, one entry a line.

    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(text + "\n", path)


# ---- telling whole files from damaged ones -------------------------------------------------------

SUMS = "SHA256SUMS"


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 (hex) of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sealed(value: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """`write_json`, with the digest of the value as its entry "sha256"."""
    write_json({**value, "sha256": _digest(value)}, path)


def read_sealed(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `write_sealed` wrote, without the digest.

    Raises ValueError when the file was damaged or edited, OSError when it cannot be read.
    """
    value = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(value, dict) or value.pop("sha256", None) != _digest(value):
        raise ValueError(f"{path} was damaged or edited: its digest is wrong.")
    return value


def _digest(value: dict[str, Any]) -> str:
    # As it will be read: keys that are numbers become text, and are sorted as such.
    plain = json.loads(json.dumps(value, allow_nan=False))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def enlist(*results: str | os.PathLike[str]) -> None:
    """Write the SHA-256 of finished files, all of one folder, into SHA256SUMS there."""
    folder = Path(results[0]).parent
    sums = listed(folder) | {Path(path).name: sha256(path) for path in results}
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    write_text("".join(lines), folder / SUMS)


def verified(path: str | os.PathLike[str]) -> Path:
    """The path, when the file is what SHA256SUMS beside it says; ValueError when it is not."""
    path = Path(path)
    if listed(path.parent).get(path.name) != sha256(path):
        raise ValueError(
            f"{path.name} is not what {path.parent / SUMS} says: it was cut or edited. Restore it "
            f"(a committed one by `git checkout`), or make it anew."
        )
    return path


def listed(folder: Path) -> dict[str, str]:
    """Name → SHA-256 of the files listed in a folder."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.split("  ", 1) for line in lines if "  " in line)
    return {name: digest for digest, name in pairs}


def _empty_file(path: Path) -> Path:
    # The name says who writes it: what a killed process of this machine left is then swept away.
    mine = f".{path.stem}-{platform.node()}-"
    for left in path.parent.glob(f"{glob.escape(mine)}*{glob.escape(path.suffix)}"):
        if _is_gone(left.name.removeprefix(mine).partition("-")[0]):
            left.unlink(missing_ok=True)
    prefix = f"{mine}{os.getpid()}-"
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    # mkstemp makes private files; a result is as readable as any other file of its user.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(name, 0o666 & ~umask)
    return Path(name)


def _is_gone(process: str) -> bool:
    """Whether no process of this machine has this number."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OverflowError, PermissionError):
        pass
    return False


def _flush_to_disk(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
