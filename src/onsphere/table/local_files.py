"""Files in a form that can be read twice: standard input, zip archives and Excel sheets become a temporary file."""

from __future__ import annotations

import csv
import shutil
import sys
import warnings
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from datetime import date, datetime, time
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError, OnsphereWarning

__all__ = ["COPIED", "open_local"]

_EXCEL = (".xlsx", ".xlsm")
COPIED = (*_EXCEL, ".zip")  # the endings of files that are not read in place


@contextmanager
def open_local(path: Path) -> Generator[Path]:
    """Yield the file itself, or a temporary copy of what it holds, which is deleted afterwards.

    A zip archive must hold one file, and of an Excel file the first sheet is read. "-" is standard input.
    """
    is_excel = path.suffix.lower() in _EXCEL
    if str(path) != "-" and path.suffix.lower() not in COPIED:
        yield path
        return
    with TemporaryDirectory(prefix="onsphere-") as name:
        folder = Path(name)
        if is_excel:
            yield _write_sheet(path, folder)
        elif str(path) == "-":
            copy = folder / "standard input"
            with copy.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            yield copy
        else:
            with open_local(_unpack(path, folder)) as copy:
                yield copy


def _unpack(path: Path, folder: Path) -> Path:
    if not zipfile.is_zipfile(path):
        raise InvalidInputError(f"Expected a zip archive. Got {path}, which is none, or is not complete.")
    with zipfile.ZipFile(path) as archive:
        # Some systems add files that nobody sees.
        files = [each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX/")]
        if len(files) != 1:
            found = ", ".join(each.filename for each in files[:5]) or "none"
            raise InvalidInputError(
                f"Expected one file in {path}. Got {len(files)}: {found}. Unpack it, and name the file."
            )
        if files[0].flag_bits & 1:
            raise InvalidInputError(f"Expected a zip archive without a password. Got {path}, which has one. Unpack it.")
        copy = folder / PurePath(files[0].filename).name
        with archive.open(files[0]) as packed, copy.open("wb") as file:
            shutil.copyfileobj(packed, file)
        return copy


def _write_sheet(path: Path, folder: Path) -> Path:
    """Write the first sheet of an Excel file as CSV."""
    try:
        import openpyxl
    except ImportError:
        raise missing_extra_error("Reading an Excel file", "openpyxl", "cli") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and the like
        try:
            book: Any = openpyxl.load_workbook(path, read_only=True, data_only=True)
        except (zipfile.BadZipFile, KeyError, ValueError):
            raise InvalidInputError(
                f"Expected an Excel file. Got {path}, which is none. Save it again, or as CSV."
            ) from None
    sheet, *others = book.worksheets
    if others:
        warnings.warn(
            f"{path} has {len(others) + 1} sheets; the first, {sheet.title}, is read.", OnsphereWarning, stacklevel=4
        )
    copy = folder / f"{path.stem}.csv"
    with copy.open("w", encoding="utf-8", newline="") as file:
        rows = ([_write_cell(cell) for cell in row] for row in sheet.iter_rows(values_only=True))
        csv.writer(file).writerows(row for row in rows if any(row))
    book.close()
    return copy


def _write_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)
