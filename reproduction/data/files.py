"""Find, read and write the files of the data sets, and say what is wrong with a file that is missing or broken."""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere import InvalidInputError

__all__ = [
    "advise",
    "broken_file_error",
    "data_folder",
    "missing_file_error",
    "read_npz",
    "require_file",
    "resolve_folder",
    "write_file",
]


def data_folder() -> Path:
    """Return the folder of the real data sets: `$ONSPHERE_DATA`, by default `~/.cache/onsphere`."""
    return Path(os.environ.get("ONSPHERE_DATA", Path.home() / ".cache" / "onsphere"))


def resolve_folder(folder: str | Path | None) -> Path:
    """Return the given folder, or `data_folder()` for None."""
    return Path(folder or data_folder())


def advise(source: str, folder: str | Path | None) -> str:
    """Return a sentence on where to get a missing set; it names the variable only if no folder was given."""
    if folder:
        return f"Get {source} and put it in {folder}."
    return f"Get {source} and put it there, or point ONSPHERE_DATA at the folder that holds it."


def require_file(path: Path, advice: str) -> Path:
    """Return the path if there is a file, or raise an error with advice on where to get it."""
    if not path.is_file():
        raise missing_file_error(path, advice)
    return path


def missing_file_error(what: object, advice: str) -> InvalidInputError:
    """Return the error for a file that does not exist."""
    return InvalidInputError(f"Expected {what}. Got no such file. {advice}")


def broken_file_error(
    path: Path, expected: str, got: object, *, advice: str = "Download the file again."
) -> InvalidInputError:
    """Return the error for a file that cannot be read; an exception of a library is named with its type."""
    content = f"{type(got).__name__}: {got}" if isinstance(got, Exception) else got
    return InvalidInputError(f"Expected {path} as {expected}. Got {content}. {advice}")


def read_npz(path: Path, *names: str) -> list[NDArray[Any]]:
    """Read arrays of an .npz file without unpickling anything; a broken file can raise any kind of error."""
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and advise to open it as one
        raise ValueError("a file of another kind, or one cut short")
    with np.load(path, allow_pickle=False) as content:
        return [content[name] for name in names]


def write_file(path: Path, content: bytes) -> Path:
    """Write a file completely or not at all, and make the folders above it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise InvalidInputError(
            f"Expected to write {path}. Got: {error.strerror or error}. Nothing there was changed; check the folder, "
            "its permissions and the free space on the disk."
        ) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return path
