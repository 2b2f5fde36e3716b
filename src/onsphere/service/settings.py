"""How a service is to run; every worker reads it from the environment."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from onsphere._internal.validation import check_number
from onsphere.errors import InvalidInputError

__all__ = ["Settings", "is_loopback"]

_PREFIX = "ONSPHERE_"


@dataclass(frozen=True)
class Settings:
    """How a service is to run.

    Each can come from the environment: `timeout` from ONSPHERE_TIMEOUT, and so on; tuples are parted by commas.

    Attributes
    ----------
    model : str
        Path of a .onsphere or .onnx file.
    store : str
        Where assessments and the alarm are kept: a path of a SQLite file, or postgresql://…; by default a file beside
        the model.
    host, port : str, int
        Where to listen; port 0 takes a free one.
    workers : int
        Processes.
    api_keys : tuple of str
        Hashes of the keys that are let in, as `onsphere new-key` prints them.
    api_keys_file : str
        A file with further ones, one per line.
    open : bool
        Serve without keys on an address that others can reach.
    max_body : int
        Bytes of a request.
    max_rows : int
        Rows of a request.
    rate : float
        Requests per second of one client, twice as many at once; 0 for no limit.
    max_concurrent : int
        Requests that are worked on at a time, in each worker; further ones are told to come again.
    timeout : float
        Seconds for an answer.
    read_timeout : float
        Seconds in which a request has to arrive, and an answer to be taken.
    grace : float
        Seconds that requests in flight have when the service is stopped.
    keep : int
        Requests whose assessments are kept, the latest.
    keep_rows : bool
        Keep the features of rejected rows beside, which the page shows.
    log_values : bool
        Write features to the logs.
    alpha : float
        How probable a false alarm of drift may be, over all time.
    coverage : float
        Of intervals or sets; 0 for that of the model.
    watch : float
        Seconds between looks at the model's file, which is loaded anew when it changed; 0 for none.
    trusted : tuple of str
        Further types that the model's file may hold; see `onsphere.load`.
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
    keep_rows: bool = True
    log_values: bool = False
    alpha: float = 0.01
    coverage: float = 0.0
    watch: float = 2.0
    trusted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("workers", "max_body", "max_rows", "max_concurrent", "keep"):
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
        """Those given, and the others from the environment.

        Examples
        --------
        >>> Settings.from_environment({"ONSPHERE_TIMEOUT": "5"}, model="model.onsphere").timeout
        5.0
        """
        environment = os.environ if environment is None else environment
        found = {
            field.name: _read(f"{_PREFIX}{field.name.upper()}", environment[f"{_PREFIX}{field.name.upper()}"], field)
            for field in fields(cls)
            if f"{_PREFIX}{field.name.upper()}" in environment
        }
        merged = found | {name: value for name, value in given.items() if value is not None}
        if not merged.get("model"):
            raise InvalidInputError("Expected a model to serve. Got none. Pass its path, or set ONSPHERE_MODEL.")
        return cls(**merged)

    def to_environment(self) -> dict[str, str]:
        """What `from_environment` reads."""
        return {f"{_PREFIX}{field.name.upper()}": _written(getattr(self, field.name)) for field in fields(self)}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

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


def _read(name: str, text: str, field: Any) -> Any:
    kind = str(field.type)
    try:
        match kind:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "bool":
                return {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}[
                    text.strip().lower()
                ]
            case "str":
                return text
            case _:
                return tuple(part.strip() for part in text.split(",") if part.strip())
    except (KeyError, ValueError):
        noun = {"int": "a whole number", "float": "a number"}.get(kind, "true or false")
        raise InvalidInputError(f"Expected {noun} in {name}. Got {text!r}. Set it anew, or unset it.") from None


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
