"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from onsphere.errors import InvalidInputError

__all__ = ["check_writable", "write_atomically"]

_NUMBERS = count()  # of the files of this process that were not yet whole
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_writable(path: str | Path, *inputs: str | Path) -> None:
    """Fail now rather than after the work whose result is to be written there; inputs are not to be written over."""
    for given in inputs:
        if os.path.realpath(given) == os.path.realpath(path):
            raise InvalidInputError(
                f"Expected another file to write to than those that are read or written besides. Got {path} for both. "
                "Choose another name."
            )
    with _told(path):
        part = _beside(_target(path))
        part.touch()
        part.unlink()


@contextmanager
def write_atomically(path: str | Path, *, folders: bool = False) -> Generator[Path]:
    """A place beside `path` to write to, which takes the place of `path` when the block ends without an error.

    Until then a file that was there before stays as it is, and after an error nothing else is left. With `folders`,
    those above it are made where they are missing.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with write_atomically(folder / "a.txt") as part:
    ...     _ = part.write_text("done")
    >>> [file.name for file in folder.iterdir()], (folder / "a.txt").read_text()
    (['a.txt'], 'done')
    """
    with _told(path):
        target = _target(path)
        if folders:
            target.parent.mkdir(parents=True, exist_ok=True)
    part = _beside(target)
    try:
        with _told(path, part):
            yield part
        with _told(path):
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.replace(target)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    # Another name each time, for threads that write the same file.
    return path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}.part")


def _target(path: str | Path) -> Path:
    """The file that a path leads to: a link stays a link, and nothing but an ordinary file is ever replaced."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OSError(0, "it is a folder" if target.is_dir() else "it is no ordinary file")
    return target


@contextmanager
def _told(path: str | Path, part: Path | None = None) -> Generator[None]:
    """What cannot be written, in a sentence; with a part, only what went wrong with that or for want of room."""
    try:
        yield
    except OSError as error:
        # The caller may read other files as well, whose errors are their own.
        ours = error.errno in _NO_ROOM if error.filename is None else str(error.filename) == str(part)
        if part is not None and not ours:
            raise
        raise InvalidInputError(
            f"Expected to write {path}. Got: {error.strerror or error}. Nothing there was changed; check the folder, "
            "its permissions and the room on the disk."
        ) from None
