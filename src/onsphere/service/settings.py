"""Set how a service runs, and which API keys it accepts; every worker reads this from the environment."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from onsphere._internal.validation import check_number
from onsphere.errors import InvalidInputError

__all__ = ["Keys", "Settings", "hash_key", "is_loopback", "make_key"]

_PREFIX = "ONSPHERE_"
_KEY_LINE = re.compile(r"(?:(?P<name>[\w.-]+)\s*[= ]\s*)?sha256:(?P<hash>[0-9a-f]{64})")
_BOOLEANS = {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Settings:
    """The settings of a service.

    Each can come from the environment: `timeout` from ONSPHERE_TIMEOUT, and so on; tuples are separated by commas.

    Attributes
    ----------
    model : str
        Path of a .onsphere or .onnx file.
    store : str
        Where assessments and the alarm are kept: a path of a SQLite file, or postgresql://…; by default a file next to
        the model.
    host, port : str, int
        Where to listen; port 0 takes a free one.
    workers : int
        Processes.
    api_keys : tuple of str
        Hashes of the keys that are accepted, as `onsphere new-key` prints them.
    api_keys_file : str
        A file with more of them, one per line.
    open : bool
        Serve without keys on an address that others can reach.
    max_body : int
        Bytes of a request.
    max_rows : int
        Rows of a request.
    rate : float
        Requests per second from one client, with bursts of twice as many; 0 for no limit.
    max_concurrent : int
        Requests that are worked on at a time, in each worker; more are answered with 503.
    timeout : float
        Seconds for an answer.
    read_timeout : float
        Seconds in which a request has to arrive, and an answer to be taken.
    grace : float
        Seconds that requests in flight have when the service is stopped.
    keep : int
        Requests whose assessments are kept, the latest.
    keep_answers : int
        Rows that wait for a label, the latest.
    keep_rows : bool
        Keep the features of rejected rows too, which the page shows, and of rows with a key, whose labels update the
        model.
    log_values : bool
        Write features to the logs.
    alpha : float
        How likely a false alarm of drift may be, over all time.
    coverage : float
        Of intervals or sets; 0 for that of the model.
    watch : float
        Seconds between looks at the model's file, which is loaded again when it changed; 0 for none.
    trusted : tuple of str
        More types that the model's file may contain; see `onsphere.load`.
    """

    model: str
    store: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    api_keys: tuple[str, ...] = ()
    api_keys_file: str = ""
    open: bool = False
    max_body: int = 16 * 2**20
    max_rows: int = 50_000
    rate: float = 1000.0
    max_concurrent: int = 64
    timeout: float = 30.0
    read_timeout: float = 10.0
    grace: float = 30.0
    keep: int = 10_000
    keep_answers: int = 100_000
    keep_rows: bool = True
    log_values: bool = False
    alpha: float = 0.01
    coverage: float = 0.0
    watch: float = 2.0
    trusted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("workers", "max_body", "max_rows", "max_concurrent", "keep", "keep_answers"):
            check_number("serve", name, getattr(self, name), above=1, closed="left", whole=True)
        check_number("serve", "port", self.port, above=0, below=65_535, closed="both", whole=True)
        for name in ("timeout", "read_timeout"):
            check_number("serve", name, getattr(self, name), above=0)
        for name in ("rate", "grace", "watch"):
            check_number("serve", name, getattr(self, name), above=0, closed="left")
        check_number("serve", "alpha", self.alpha, above=0, below=1)
        check_number("serve", "coverage", self.coverage, above=0, below=1, closed="left")

    @property
    def store_url(self) -> str:
        """The store as a URL."""
        given = self.store or f"{self.model}.sqlite"
        return given if "://" in given else f"sqlite:///{given}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **given: Any) -> Self:
        """Return the given settings, with the others from the environment.

        Examples
        --------
        >>> Settings.from_environment({"ONSPHERE_TIMEOUT": "5"}, model="model.onsphere").timeout
        5.0
        """
        environment = os.environ if environment is None else environment
        names = {f"{_PREFIX}{field.name.upper()}": field for field in fields(cls)}
        found = {
            field.name: _parse_value(name, environment[name], str(field.type))
            for name, field in names.items()
            if name in environment
        }
        merged = found | {name: value for name, value in given.items() if value is not None}
        if not merged.get("model"):
            raise InvalidInputError("Expected a model to serve. Got none. Pass its path, or set ONSPHERE_MODEL.")
        return cls(**merged)

    def to_environment(self) -> dict[str, str]:
        """Return the variables that `from_environment` reads."""
        return {f"{_PREFIX}{field.name.upper()}": _format_value(getattr(self, field.name)) for field in fields(self)}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    Examples
    --------
    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _parse_value(name: str, text: str, kind: str) -> Any:
    try:
        match kind:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "bool":
                return _BOOLEANS[text.strip().lower()]
            case "str":
                return text
            case _:
                return tuple(part.strip() for part in text.split(",") if part.strip())
    except (KeyError, ValueError):
        noun = {"int": "a whole number", "float": "a number"}.get(kind, "true or false")
        raise InvalidInputError(f"Expected {noun} in {name}. Got {text!r}. Fix it, or unset it.") from None


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_key() -> str:
    """Make a new API key.

    It has 256 random bits, which nobody can guess, so one fast hash of it is enough to keep. That is why the service
    takes only keys made here, and no passwords.

    Examples
    --------
    >>> key = make_key()
    >>> len(key), hash_key(key)[:7]
    (52, 'sha256:')
    """
    return "onsphere-" + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """Return the hash of a key, which is all that the service keeps of it."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class Keys:
    """The API keys that are accepted, by name.

    Parameters
    ----------
    lines : iterable of str
        Each a hash, or a name and a hash: "monitoring sha256:…". The logs show the name.
    file : path, optional
        With more lines; empty ones and those that begin with # are skipped.

    Examples
    --------
    >>> key = make_key()
    >>> Keys([f"shop {hash_key(key)}"]).find_name(key)
    'shop'
    """

    def __init__(self, lines: Iterable[str] = (), file: str | Path = "") -> None:
        given = [line.strip() for line in [*lines, *_read_key_file(file)]]
        self._hashes = [_parse_key_line(line, number) for number, line in enumerate(filter(None, given), 1)]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def find_name(self, key: str | None) -> str | None:
        """Return the name of a key, or None if it is not accepted; takes equally long for each key."""
        if key is None:
            return None
        code, found = hash_key(key).removeprefix("sha256:"), None
        for name, expected in self._hashes:
            if hmac.compare_digest(code, expected):
                found = name
        return found


def _read_key_file(file: str | Path) -> list[str]:
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


def _parse_key_line(line: str, number: int) -> tuple[str, str]:
    found = _KEY_LINE.fullmatch(line)
    if found is None:
        # The line itself is not repeated: it may be a key, and messages end up in logs.
        raise InvalidInputError(
            f"Expected the hash of an API key, sha256: and 64 digits, with or without a name before it. Got something "
            f"else as key {number}. Pass what `onsphere new-key` prints as the hash, and not the key itself."
        )
    return found["name"] or f"key {number}", found["hash"]
