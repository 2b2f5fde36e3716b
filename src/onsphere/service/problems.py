"""Describe what is wrong with a request, column by column, and send it to the client."""

from __future__ import annotations

from typing import Any, NamedTuple

from onsphere.service.replies import encode_json

__all__ = ["Problem", "Problems", "RequestError", "describe_value", "send_error"]

_MAX_PROBLEMS = 20  # listed in one answer
_MAX_CHARACTERS = 60  # of a value in a message


class Problem(NamedTuple):
    """One thing that is wrong: where, what was expected, and what came."""

    column: str | None
    row: int | None
    expected: str
    got: str


class RequestError(Exception):
    """A request that cannot be answered with an assessment.

    Parameters
    ----------
    status : int
        The HTTP status.
    detail : str
        A sentence.
    problems : list of Problem
    """

    def __init__(self, status: int, detail: str, problems: list[Problem] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.problems = status, detail, problems or []

    def to_json(self) -> bytes:
        """Return the body of the answer."""
        return encode_json({"detail": self.detail, "errors": [problem._asdict() for problem in self.problems]})

    @property
    def headers(self) -> dict[str, str]:
        """The headers that an answer of this status needs."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        return {"retry-after": "1"} if self.status in (429, 503) else {}


async def send_error(error: RequestError, send: Any) -> None:
    """Send an error as JSON, from a layer around the application."""
    body = error.to_json()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


class Problems:
    """Collects problems; the first few are kept, all are counted."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.n_found = 0

    def add(self, column: str | None, row: int | None, expected: str, got: str) -> None:
        """Add one."""
        self.n_found += 1
        if len(self.found) < _MAX_PROBLEMS:
            self.found.append(Problem(column, row, expected, got))

    def check(self) -> None:
        """Raise a RequestError if anything was found."""
        if self.n_found:
            first = self.found[0]
            column = "" if first.column is None else f" in the column {first.column}"
            row = "" if first.row is None else f", row {first.row} (counted from 0)"
            more = f" {self.n_found - 1:,} more like this." if self.n_found > 1 else ""
            detail = f"Expected {first.expected}{column}{row}. Got {first.got}.{more}"
            raise RequestError(422, detail, self.found)


def describe_value(value: Any) -> str:
    """Return a value as a message shows it: its kind, and its beginning."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int():
            return f"the number {value}" if abs(value) < 10**20 else "a whole number of more than 20 digits"
        case float():
            return f"the number {value!r}"
        case str():
            text = value if len(value) <= _MAX_CHARACTERS else value[:_MAX_CHARACTERS] + "…"
            return f"the text {text!r}"
        case list():
            return "a list"
        case _:
            return "an object"
