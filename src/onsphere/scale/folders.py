"""Folders on a disk or in an object store, through the filesystems of pyarrow."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onsphere._internal.atomic_files import write_atomically
from onsphere.errors import InvalidInputError
from onsphere.table.files import SUFFIXES

__all__ = ["RECORDS", "RUN", "Folder", "StoredFile"]

RECORDS = "_onsphere"  # the folder, inside that of the answers, with what a run knows of them
RUN = f"{RECORDS}/run.json"
_COMPRESSED = (".gz", ".zip")
# The files that a run writes to, before they get the names that end before the two numbers.
_LEFTOVER = re.compile(r"\.(.*-[0-9a-f]{16}\.parquet|([0-9a-f]{16}|run|summary)\.json)\.\d+-\d+\.part")


@dataclass(frozen=True)
class StoredFile:
    """A file of a folder: its path inside the folder, its size in bytes, and when it was last changed."""

    path: str
    size: int
    modified: int  # in nanoseconds since 1970

    @property
    def partition(self) -> dict[str, str | None]:
        """The columns that folders such as year=2024 stand for."""
        from urllib.parse import unquote

        pairs = [part.split("=", 1) for part in self.path.split("/")[:-1] if "=" in part]
        return {name: None if text == "__HIVE_DEFAULT_PARTITION__" else unquote(text) for name, text in pairs}

    @property
    def format(self) -> str | None:
        """The format that its ending names: csv, parquet or arrow; None for what is no table."""
        name = Path(self.path.lower())
        return SUFFIXES.get(Path(name.stem).suffix if name.suffix in _COMPRESSED else name.suffix)

    @property
    def is_table(self) -> bool:
        """Whether it is to be read: readers of data sets pass over names that begin with _ or a dot."""
        return self.format is not None and not any(part.startswith(("_", ".")) for part in self.path.split("/"))


class Folder:
    """A folder on this disk or in an object store, which is cheap to send to another process.

    Parameters
    ----------
    place : str or path
        Of a folder on this disk, or an address that pyarrow understands: s3://bucket/in, gs://bucket/in.
    """

    def __init__(self, place: str | Path) -> None:
        if not str(place):
            raise InvalidInputError("Expected the path or the address of a folder. Got an empty one. Name a folder.")
        # Whole, because another process may have another working folder.
        self.place = str(place) if "://" in str(place) else str(Path(place).resolve())

    def __str__(self) -> str:
        """Return the place without a key, which an address may hold."""
        return re.sub("//[^/]*@", "//", self.place)

    @cached_property
    def _location(self) -> tuple[Any, str]:
        import pyarrow as pa
        from pyarrow import fs

        if "://" not in self.place:
            return fs.LocalFileSystem(), self.place
        try:
            return fs.FileSystem.from_uri(self.place)
        except (pa.ArrowException, OSError) as error:
            raise self._make_error(error) from None

    @property
    def is_local(self) -> bool:
        return self._location[0].type_name == "local"

    @property
    def root(self) -> Path:
        """The folder on this disk, if it is local."""
        return Path(self._location[1])

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place}

    def list_files(self) -> list[StoredFile]:
        """List the tables in the folder and the folders in it, by name, without those that begin with _ or a dot."""
        return [file for file in self._list("") if file.is_table]

    def list_inputs(self) -> list[StoredFile]:
        """List the tables but those in folders with the answers of a run; there must be some."""
        files = self._list("")
        answers = tuple(file.path.removesuffix(RUN) for file in files if file.path.endswith(f"/{RUN}"))
        found = [file for file in files if file.is_table and not file.path.startswith(answers)]
        if not found:
            raise InvalidInputError(f"Expected a folder with tables (CSV, Parquet or Arrow). Got {self}, without any.")
        return found

    def find_path_in(self, other: Folder) -> str | None:
        """Return the path of this folder inside another one, empty for the same folder; None if it is elsewhere."""
        (filesystem, root), (other_filesystem, other_root) = self._location, other._location
        is_inside = filesystem == other_filesystem and f"{root}/".startswith(f"{other_root}/")
        return root.removeprefix(other_root).strip("/") if is_inside else None

    def read_records(self, folder: str) -> dict[str, dict[str, Any]]:
        """Return what the JSON files of a folder inside this one hold, by their paths."""
        found = {file.path: self.read_record(file.path) for file in self._list(folder) if file.path.endswith(".json")}
        return {path: record or {} for path, record in found.items()}

    def read_record(self, path: str) -> dict[str, Any] | None:
        """Return what a JSON file holds; None if there is no such file, and nothing for one that is damaged."""
        filesystem, root = self._location
        with self._explain_errors(), suppress(FileNotFoundError):
            content = filesystem.open_input_stream(f"{root}/{path}").read()
            try:
                found = json.loads(content)
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
        return None

    def write_record(self, path: str, record: dict[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        with self.replace(path) as part:
            part.write_text(json.dumps(record, indent=1, sort_keys=True))

    @contextmanager
    def open_copy(self, path: str) -> Generator[Path]:
        """Yield a file on this disk with the content of a file: itself, or a copy of an object."""
        from pyarrow import fs

        if self.is_local:
            yield self.root / path
            return
        filesystem, root = self._location
        with tempfile.TemporaryDirectory(prefix="onsphere-") as folder:
            copy = Path(folder) / Path(path).name
            with self._explain_errors():
                fs.copy_files(f"{root}/{path}", str(copy), filesystem, fs.LocalFileSystem())
            yield copy

    @contextmanager
    def replace(self, path: str) -> Generator[Path]:
        """Yield a path on this disk to write to; the file of the folder appears whole, if the block ends well."""
        from pyarrow import fs

        if self.is_local:
            with write_atomically(self.root / path, folders=True) as part:
                yield part
            return
        filesystem, root = self._location
        with tempfile.TemporaryDirectory(prefix="onsphere-") as folder:
            part = Path(folder) / Path(path).name
            yield part
            with self._explain_errors():  # an object appears when all of it has come
                fs.copy_files(str(part), f"{root}/{path}", fs.LocalFileSystem(), filesystem)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        filesystem, root = self._location
        with self._explain_errors():
            if filesystem.get_file_info(f"{root}/{path}").is_file:
                filesystem.delete_file(f"{root}/{path}")

    def remove_leftovers(self) -> None:
        """Remove files on this disk that a process which was killed was writing, and nobody else's."""
        for part in self.root.rglob(".*.part"):
            if _LEFTOVER.fullmatch(part.name):
                part.unlink(missing_ok=True)

    def _list(self, folder: str) -> list[StoredFile]:
        from pyarrow import fs

        filesystem, root = self._location
        if self.is_local:
            with self._explain_errors():
                paths = [] if folder and not (self.root / folder).exists() else sorted(_walk(self.root / folder))
                found = [(str(path.relative_to(root)), path.stat(follow_symlinks=path.exists())) for path in paths]
                return [StoredFile(path, stat.st_size, stat.st_mtime_ns) for path, stat in found]
        selector = fs.FileSelector(f"{root}/{folder}".rstrip("/"), recursive=True, allow_not_found=bool(folder))
        with self._explain_errors():
            found = filesystem.get_file_info(selector)
        files = [
            StoredFile(info.path.removeprefix(root).lstrip("/"), info.size, info.mtime_ns or 0)
            for info in found
            if info.is_file
        ]
        return sorted(files, key=lambda file: file.path)

    @contextmanager
    def _explain_errors(self) -> Generator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise self._make_error(error) from None

    def _make_error(self, error: Exception) -> InvalidInputError:
        reason = re.sub(r"^\[Errno \d+\] ", "", " ".join(str(error).split())[:300])
        return InvalidInputError(
            f"Expected a folder that can be used: {self}. Got: {reason}. Check the address and the rights to it."
        )


def _walk(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the files in a folder and in those below it; links lead to other folders, but not to one above.

    Links to nothing are files too, which are then reported as missing.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from _walk(path, (*above, real))
        elif path.is_file() or not path.exists():
            yield path
