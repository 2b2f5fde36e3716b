"""Where the real sets lie, and what their readers say of a file that is missing or broken."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere.errors import InvalidInputError

__all__ = ["broken_file", "data_folder", "data_root", "existing_file", "missing_file", "read_npz", "where_to_get"]


def data_folder() -> Path:
    """Where real data sets lie: `$ONSPHERE_DATA`, by default `~/.cache/onsphere`."""
    return Path(os.environ.get("ONSPHERE_DATA", Path.home() / ".cache" / "onsphere"))


def data_root(folder: str | Path | None) -> Path:
    """The folder given, else `data_folder()`."""
    return Path(folder or data_folder())


def where_to_get(source: str, folder: str | Path | None) -> str:
    """Advice for a set that is missing; the variable is only named where it is what decides."""
    if folder:
        return f"Get {source} and put it in {folder}."
    return f"Get {source} and put it there, or point ONSPHERE_DATA at the folder that holds it."


def existing_file(path: Path, advice: str) -> Path:
    """The path, where there is a file; else an error with advice on where to get it."""
    if not path.is_file():
        raise missing_file(path, advice)
    return path


def missing_file(what: object, advice: str) -> InvalidInputError:
    """The one sentence for a file that is not there."""
    return InvalidInputError(f"Expected {what}. Got no such file. {advice}")


def broken_file(
    path: Path, expected: str, got: object, *, advice: str = "Download the file again."
) -> InvalidInputError:
    """The one sentence for a file that cannot be read; an error of a library is told with its kind."""
    said = f"{type(got).__name__}: {got}" if isinstance(got, Exception) else got
    return InvalidInputError(f"Expected {path} as {expected}. Got {said}. {advice}")


def read_npz(path: Path, *names: str) -> list[NDArray[Any]]:
    """Arrays of an .npz file, of which nothing is unpickled; what is wrong with it comes as any kind of error."""
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and advise to open it as one
        raise ValueError("a file of another kind, or one cut short")
    with np.load(path, allow_pickle=False) as content:
        return [content[name] for name in names]
