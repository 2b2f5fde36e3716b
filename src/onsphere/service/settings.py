"""Set how a service runs, and which API keys it accepts; every worker reads this from the environment."""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, PositiveInt, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from onsphere.errors import InvalidInputError

ROLES = ("assess", "operate")  # the second may do all that the first may
_PREFIX = "ONSPHERE_"
_READ_ELSEWHERE = ("engine", "address", "data", "long", "pictures", "quick", "rate")  # also by tests and benchmarks
_KEY_LINE = re.compile(
    rf"(?:(?P<name>[\w.-]+)\s*[= ]\s*)?(?P<hash>sha256:[0-9a-f]{{64}})(?:\s+(?P<role>{'|'.join(ROLES)}))?"
)


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _check_proxy(given: str) -> str:
    if given != "*":
        ipaddress.ip_network(given)
    return given


_Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
_Proxies = Annotated[tuple[Annotated[str, AfterValidator(_check_proxy)], ...], NoDecode, BeforeValidator(_split)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseSettings):
    """The settings of a service.

    Those that are not given, or None, come from the environment: `timeout` from ONSPHERE_TIMEOUT, and so on. Tuples are
    separated by commas there. `onsphere serve --help` says what each is for.

    Examples
    --------
    >>> Settings("model.onsphere", timeout="5").timeout
    5.0
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    model: str = Field(min_length=1)  # path of a .onsphere or .onnx file
    store: str = ""  # path of a SQLite file, or postgresql://…; by default a file next to the model
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65_535)  # 0 takes a free one
    workers: PositiveInt = 1
    api_keys: _Texts = ()  # hashes, as `onsphere new-key` prints them
    keys_file: str = ""  # with more of them, one per line
    open: bool = False  # serve without keys on an address that others can reach
    certfile: str = ""  # a certificate, to serve over TLS
    keyfile: str = ""  # its private key
    forwarded_allow_ips: _Proxies = ()  # proxies whose X-Forwarded-For and X-Forwarded-Proto are believed
    max_body: PositiveInt = 16 * 2**20  # bytes of a request
    max_rows: PositiveInt = 50_000  # rows of a request
    max_concurrent: PositiveInt = 64  # requests that are worked on at a time, in each worker
    timeout: _Seconds = 30.0  # for an answer
    read_timeout: _Seconds = 10.0  # for a request to arrive, and an answer to be taken
    store_timeout: _Seconds = 0.25  # for the database, after which rows are answered without being stored
    trial_timeout: _Seconds = 60.0  # for a new model to load and answer one row, before it replaces another
    grace: float = Field(30.0, ge=0, allow_inf_nan=False)  # seconds for requests in flight when the service is stopped
    keep: PositiveInt = 10_000  # requests whose assessments are kept, the latest
    keep_answers: PositiveInt = 100_000  # rows that wait for a label, the latest
    keep_rows: bool = True  # keep features of rejected rows, for the page, and of rows with a key, to update the model
    log_values: bool = False  # write features to the logs
    alpha: float = Field(0.01, gt=0, lt=1)  # how likely a false alarm of drift may be, over all time
    coverage: float = Field(0.0, ge=0, lt=1)  # of intervals or sets; 0 for that of the model
    watch: NonNegativeFloat = 2.0  # seconds between looks at the model's file; 0 for none
    telemetry: bool = False  # send traces by OpenTelemetry, whose own OTEL_… variables say where to
    trusted: _Texts = ()  # more types that the model's file may contain; see `onsphere.load`

    def __init__(self, model: str | None = None, **given: Any) -> None:
        given["model"] = model
        names = {f"{_PREFIX}{name.upper()}" for name in (*type(self).model_fields, *_READ_ELSEWHERE)}
        for name in sorted(os.environ.keys() - names):
            if name.startswith(_PREFIX):
                meant = difflib.get_close_matches(name, names, 1, 0.0)[0]
                raise InvalidInputError(f"Expected settings of the service. Got {name}. Unset it, or write {meant}.")
        try:
            super().__init__(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            raise _explain(error) from None

    @property
    def store_url(self) -> str:
        """The store as a URL."""
        given = self.store or f"{self.model}.sqlite"
        if "://" not in given and re.search(r"^\w*:|\?", given):  # which would be read as something else
            raise InvalidInputError(
                f"Expected a store such as assessments.sqlite or postgresql://user@host/database. Got "
                f"{given.rpartition('@')[2]}. Choose one of the two, and no file with a ? in its name."
            )
        return given if "://" in given else f"sqlite:///{given}"

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which a worker reads the same settings."""
        values = {name: ",".join(each) if isinstance(each, tuple) else str(each) for name, each in self}
        return {f"{_PREFIX}{name.upper()}": value for name, value in values.items()}


def _explain(error: ValidationError) -> InvalidInputError:
    first = error.errors()[0]
    name = str(first["loc"][0])
    if name == "model":
        return InvalidInputError("Expected a model to serve. Got none. Pass its path, or set ONSPHERE_MODEL.")
    expected = first["msg"][0].lower() + first["msg"][1:]
    return InvalidInputError(
        f"Expected a valid {name!r} of the service: {expected}. Got {first['input']!r}. Fix it where it is passed, or "
        f"in {_PREFIX}{name.upper()}."
    )


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
    """Return the hash of a key: the service keeps and compares no more, so its time tells nothing about a key."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class Key(NamedTuple):
    """An API key that is accepted."""

    name: str
    role: str


def read_keys(lines: Iterable[str] = (), file: str | Path = "") -> dict[str, Key]:
    """Return the API keys that are accepted by their hashes, from lines such as "shop sha256:… assess".

    More lines may be in a file, where others begin with #. The name before the hash, which the logs show, and the role
    after it may be left out; without a role, a key may operate.

    Examples
    --------
    >>> key = make_key()
    >>> read_keys([f"shop {hash_key(key)} assess"])[hash_key(key)]
    Key(name='shop', role='assess')
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig") if file else ""
    except (OSError, UnicodeError) as error:
        raise InvalidInputError(
            f"Expected a file with hashes of API keys. Got {file}: {error}. `onsphere new-key` prints them."
        ) from None
    written = [line for line in text.splitlines() if not line.strip().startswith("#")]
    if file and not any(map(str.strip, written)):
        raise InvalidInputError(f"Expected a file with hashes of API keys. Got {file}, which has none.")
    keys: dict[str, Key] = {}
    for number, line in enumerate(filter(None, map(str.strip, [*lines, *written])), 1):
        found = _KEY_LINE.fullmatch(line)
        if found is None:
            # The line itself is not repeated: it may be a key, and messages end up in logs.
            raise InvalidInputError(
                f"Expected the hash of an API key, sha256: and 64 digits, with or without a name before it and a role "
                f"after it ({' or '.join(ROLES)}). Got something else as key {number}. Pass what `onsphere new-key` "
                "prints as the hash, and not the key itself."
            )
        keys[found["hash"]] = Key(found["name"] or f"key {number}", found["role"] or ROLES[-1])
    return keys
