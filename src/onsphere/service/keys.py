"""API keys: long random texts of which only hashes are kept.

A key has 256 random bits, so that one fast hash is enough: there is nothing to guess. That is why only keys made here
are taken, which are told by how they begin, and no passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from onsphere.errors import InvalidInputError

__all__ = ["Keys", "hashed", "new_key"]

_BEGIN = "onsphere-"
_LINE = re.compile(r"(?:(?P<name>[\w.-]+)\s*[= ]\s*)?sha256:(?P<hash>[0-9a-f]{64})")


def new_key() -> str:
    """A new key.

    Examples
    --------
    >>> key = new_key()
    >>> len(key), hashed(key)[:7]
    (52, 'sha256:')
    """
    return _BEGIN + secrets.token_urlsafe(32)


def hashed(key: str) -> str:
    """What is kept of a key."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class Keys:
    """The keys that are let in, by name.

    Parameters
    ----------
    lines : iterable of str
        Each a hash, or a name and a hash: "monitoring sha256:…". Names are for the logs.
    file : path, optional
        With further lines; empty ones and those that begin with # are left out.

    Examples
    --------
    >>> key = new_key()
    >>> Keys([f"shop {hashed(key)}"]).name_of(key)
    'shop'
    """

    def __init__(self, lines: Iterable[str] = (), file: str | Path = "") -> None:
        given = [line.strip() for line in [*lines, *_lines_of(file)]]
        self._hashes = [_parsed(line, number) for number, line in enumerate(filter(None, given), 1)]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def name_of(self, key: str | None) -> str | None:
        """The name of a key, or None where it is not let in; takes as long for each key."""
        if key is None:
            return None
        code, found = hashed(key).removeprefix("sha256:"), None
        for name, expected in self._hashes:
            if hmac.compare_digest(code, expected):
                found = name
        return found


def _lines_of(file: str | Path) -> list[str]:
    if not file:
        return []
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidInputError(
            f"Expected a file with hashes of API keys. Got {file}: {error}. `onsphere new-key` prints them."
        ) from None
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not lines:
        raise InvalidInputError(f"Expected a file with hashes of API keys. Got {file}, which has none.")
    return lines


def _parsed(line: str, number: int) -> tuple[str, str]:
    found = _LINE.fullmatch(line)
    if found is None:
        # The line itself is not repeated: it may be a key, and messages end in logs.
        raise InvalidInputError(
            f"Expected the hash of an API key, sha256: and 64 digits, with a name before it or not. Got something else "
            f"as key {number}. Pass what `onsphere new-key` prints as the hash, and not the key itself."
        )
    return found["name"] or f"key {number}", found["hash"]
