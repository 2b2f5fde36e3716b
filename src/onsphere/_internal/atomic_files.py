"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from onsphere.errors import InvalidInputError

__all__ = ["check_writable", "write_atomically"]

_NUMBERS = count()  # that make the temporary names of this process unique
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_writable(path: str | Path, *inputs: str | Path) -> None:
    """Raise an error now, before the work, if its result cannot be written to this path or would replace an input."""
    for given in inputs:
        if os.path.realpath(given) == os.path.realpath(path):
            raise InvalidInputError(
                f"Expected an output file that is not also an input or another output. Got {path} for both. "
                "Choose another name."
            )
    with _explain_errors(path):
        part = _make_temporary_path(_resolve_target(path))
        part.touch()
        part.unlink()


@contextmanager
def write_atomically(path: str | Path, *, folders: bool = False) -> Generator[Path]:
    """Yield a temporary path to write to, which replaces `path` if the block ends without an error.

    Until then an existing file stays as it is, and after an error nothing else is left. With `folders`, missing parent
    folders are created.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with write_atomically(folder / "a.txt") as part:
    ...     _ = part.write_text("done")
    >>> [file.name for file in folder.iterdir()], (folder / "a.txt").read_text()
    (['a.txt'], 'done')
    """
    with _explain_errors(path):
        target = _resolve_target(path)
        if folders:
            target.parent.mkdir(parents=True, exist_ok=True)
    part = _make_temporary_path(target)
    try:
        with _explain_errors(path, part):
            yield part
        with _explain_errors(path):
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.replace(target)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _make_temporary_path(path: Path) -> Path:
    # Another name each time, for threads that write the same file.
    return path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}.part")


def _resolve_target(path: str | Path) -> Path:
    """Return the file that a path leads to: a link stays a link, and only an ordinary file is ever replaced."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OSError(0, "it is a folder" if target.is_dir() else "it is not an ordinary file")
    return target


@contextmanager
def _explain_errors(path: str | Path, part: Path | None = None) -> Generator[None]:
    """Turn an OSError into one sentence; with a part, only errors of that file and those of a full disk."""
    try:
        yield
    except OSError as error:
        # The caller may read other files as well; their errors are passed on.
        ours = error.errno in _NO_ROOM if error.filename is None else str(error.filename) == str(part)
        if part is not None and not ours:
            raise
        raise InvalidInputError(
            f"Expected to write {path}. Got: {error.strerror or error}. Nothing there was changed; check the folder, "
            "its permissions and the free space on the disk."
        ) from None
