"""What is wrong with a request, column by column."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Problem", "Problems", "RequestError", "shown"]

_MOST = 20  # that are told of one request
_LONGEST = 60  # characters of a value in a message


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
        Of HTTP.
    detail : str
        A sentence.
    problems : list of Problem
    """

    def __init__(self, status: int, detail: str, problems: list[Problem] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.problems = status, detail, problems or []

    def body(self) -> dict[str, Any]:
        """What the client is told."""
        return {"detail": self.detail, "errors": [problem._asdict() for problem in self.problems]}


class Problems:
    """Problems as they are found, the first of them kept."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.n_found = 0

    def add(self, column: str | None, row: int | None, expected: str, got: str) -> None:
        """Note one."""
        self.n_found += 1
        if len(self.found) < _MOST:
            self.found.append(Problem(column, row, expected, got))

    def check(self) -> None:
        """Raise what was found, if anything."""
        if self.n_found:
            first = self.found[0]
            column = "" if first.column is None else f" in the column {first.column}"
            row = "" if first.row is None else f", row {first.row} (counted from 0)"
            more = f" {self.n_found - 1:,} more like this." if self.n_found > 1 else ""
            detail = f"Expected {first.expected}{column}{row}. Got {first.got}.{more}"
            raise RequestError(422, detail, self.found)


def shown(value: Any) -> str:
    """A value in a message: its kind, and the beginning of it."""
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
            return f"the text {_shortened(value)!r}"
        case list():
            return "a list"
        case _:
            return "an object"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
