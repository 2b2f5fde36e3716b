"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["format_markdown", "list_columns"]


def list_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return every name that some row has, in order."""
    return list(dict.fromkeys(name for row in rows for name in row))


def format_markdown(rows: Sequence[Mapping[str, Any]], *, digits: int) -> str:
    """Return a table with a line per row: floats with this many significant digits, a dash for a missing value.

    Examples
    --------
    >>> print(format_markdown([{"method": "a|b", "error": 0.12345}, {"method": "c"}], digits=3))
    | method | error |
    | --- | --- |
    | a\\|b | 0.123 |
    | c | – |
    """
    columns = list_columns(rows)
    lines = [[_format_cell(name, digits) for name in columns], ["---"] * len(columns)]
    lines += [[_format_cell(row.get(name), digits) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_cell(value: Any, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value).replace("|", "\\|")
