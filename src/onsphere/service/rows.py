"""Read rows of JSON for a model, and check each value against its column."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onsphere.service.engine import Facts
from onsphere.service.problems import Problems, RequestError, describe_value
from onsphere.table.columns import Column, pandas, to_dates

__all__ = [
    "MAX_NUMBER",
    "MAX_TEXT",
    "Batch",
    "check_keys",
    "check_names",
    "check_number_of_rows",
    "join_batches",
    "read_dates",
    "read_json",
]

MAX_TEXT = 1_000  # characters: a longer text is no category, and would grow on its way to the model
MAX_NUMBER = 3.4e38  # trees and networks compute in single precision
_EXPECTED = {"number": "a number", "boolean": "true or false", "category": "text", "date": "a date"}


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one request, column by column, and their keys.

    Attributes
    ----------
    columns : dict
        The features by name, in their order: numbers as an array of floats, booleans and text as one of objects with
        None for missing, dates as one of pandas.
    keys : dict of list
    """

    columns: dict[str, Any]
    keys: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def copy_last(self, n_rows: int) -> Batch:
        """Copy the last rows without their keys, so that the memory of the whole body is freed."""
        return Batch({name: values[-n_rows:].copy() for name, values in self.columns.items()}, {})

    def row(self, index: int) -> dict[str, Any]:
        """Return the features of a row as JSON values."""
        return {name: _to_json_value(values[index]) for name, values in self.columns.items()}

    def key(self, index: int) -> dict[str, Any]:
        """Return the keys of a row."""
        return {name: values[index] for name, values in self.keys.items()}


def join_batches(facts: Facts, batches: Sequence[Batch]) -> Any:
    """Return the rows of one or more requests as one DataFrame of the features, or as an array.

    One for all of them, because a DataFrame of one row takes as long to build as one of a thousand.
    """
    columns = {
        column.name: _join(column, [batch.columns[column.name] for batch in batches]) for column in facts.features
    }
    return np.column_stack(list(columns.values())) if facts.as_array else pandas().DataFrame(columns)


def _join(column: Column, parts: list[Any]) -> Any:
    match column.kind:
        case "number":
            return np.concatenate(parts)
        case "boolean":
            return pandas().array(np.concatenate(parts), dtype="boolean")
        case "category":
            return pandas().Series(np.concatenate(parts), dtype=object)
        case _:
            return pandas().concat([pandas().Series(part) for part in parts], ignore_index=True)


def read_json(body: bytes, facts: Facts, *, max_rows: int) -> Batch:
    """Read {"rows": [{"size": 1.5, …}, …]}; each row may also be a list, in the order of the features."""
    given = _parse(body)
    if not isinstance(given, dict) or set(given) != {"rows"} or not isinstance(given["rows"], list):
        raise RequestError(422, 'Expected an object with a list of rows: {"rows": [{…}, …]}. Got something else.')
    rows: list[Any] = given["rows"]
    check_number_of_rows(len(rows), max_rows)
    problems = Problems()
    table = _transpose(rows, facts, problems)
    problems.check()
    columns = {column.name: _read_values(column, table[column.name], problems) for column in facts.features}
    keys = {name: values for name, values in table.items() if name in facts.key_names}
    check_keys(keys, problems)
    for name in set(table) - {column.name for column in facts.features}:
        for row, value in enumerate(table[name]):
            if isinstance(value, list | dict):
                problems.add(name, row, "a plain value", describe_value(value))
    problems.check()
    return Batch(columns, keys)


def check_number_of_rows(n_rows: int, max_rows: int) -> None:
    """Check that there is at least one row, and not too many."""
    if n_rows == 0:
        raise RequestError(422, "Expected at least one row. Got none.")
    if n_rows > max_rows:
        raise RequestError(413, f"Expected at most {max_rows:,} rows. Got {n_rows:,}. Send them in several requests.")


def check_names(names: Sequence[str], facts: Facts, problems: Problems, *, row: int | None = None) -> None:
    """Check that all features are there, and no unknown columns."""
    given, known = set(names), facts.known_names
    for column in facts.features:
        if column.name not in given:
            problems.add(column.name, row, _EXPECTED[column.kind], "no such column")
    for name in names:
        if name not in known:
            problems.add(name, row, "no column of this name", "one that the model does not know")


def check_keys(keys: dict[str, list[Any]], problems: Problems) -> None:
    """Check that keys are short and finite: they go to the store, to the page and into the answer."""
    for name, values in keys.items():
        for row, value in enumerate(values):
            if isinstance(value, str) and (len(value) > MAX_TEXT or not _is_unicode(value)):
                problems.add(name, row, f"text of at most {MAX_TEXT:,} characters", describe_value(value))
            elif isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
                problems.add(name, row, f"a number of size {MAX_NUMBER:g} at most", describe_value(value))


class _RepeatedError(ValueError):
    """An object with the same name twice."""


def _parse(body: bytes) -> Any:
    """Parse strict JSON: UTF-8, no NaN, no name twice."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_reject_constant, object_pairs_hook=_build_object)
    except RecursionError:
        raise RequestError(422, "Expected rows of plain values. Got JSON that is nested too deeply.") from None
    except _RepeatedError as error:
        raise RequestError(422, str(error)) from None
    except (ValueError, UnicodeDecodeError) as error:
        reason = getattr(error, "msg", None) or getattr(error, "reason", None) or str(error).split(";")[0]
        place = f" at position {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise RequestError(
            422, f"Expected JSON in UTF-8. Got something that cannot be read: {reason}{place}."
        ) from None


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON, write null where a number is unknown")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedError("Expected each name once in an object. Got one twice.")
    return found


def _transpose(rows: list[Any], facts: Facts, problems: Problems) -> dict[str, list[Any]]:
    """Turn a list of rows into the values of each column."""
    features = [column.name for column in facts.features]
    expected = set(features)
    table: dict[str, list[Any]] = {name: [] for name in features}
    others = facts.known_names - expected
    for index, row in enumerate(rows):
        if isinstance(row, list):
            if len(row) != len(features):
                problems.add(None, index, f"{len(features)} values", f"{len(row)}")
                continue
            row = dict(zip(features, row, strict=True))
        elif not isinstance(row, dict):
            problems.add(None, index, "an object with the columns", describe_value(row))
            continue
        elif row.keys() != expected:
            check_names(list(row), facts, problems, row=index)
        for name in features:
            table[name].append(row.get(name))
        for name in others & row.keys():
            # Earlier rows did not have it, so it is missing there.
            table.setdefault(name, []).extend([None] * (index - len(table.get(name, []))))
            table[name].append(row[name])
    for name in others & table.keys():
        table[name].extend([None] * (len(rows) - len(table[name])))
    return table


def _read_values(column: Column, values: list[Any], problems: Problems) -> Any:
    """Read the values of one column as a Batch holds them; null is missing."""
    match column.kind:
        case "number":
            return np.array([_read_number(column, row, value, problems) for row, value in enumerate(values)])
        case "boolean":
            found = [_read_boolean(column, row, value, problems) for row, value in enumerate(values)]
            return np.array(found, dtype=object)
        case "category":
            found = [_read_text(column, row, value, problems) for row, value in enumerate(values)]
            return np.array(found, dtype=object)
        case _:
            texts = [_read_text(column, row, value, problems) for row, value in enumerate(values)]
            return read_dates(column, pandas().Series(texts, dtype=object), problems)


def _read_number(column: Column, row: int, value: Any, problems: Problems) -> float:
    if value is None:
        return math.nan
    number = math.nan
    try:
        if (isinstance(value, int | float) and not isinstance(value, bool)) or (
            isinstance(value, str) and column.written_as_text
        ):
            number = float(value)
    except (OverflowError, ValueError):
        if isinstance(value, str) and column.mixed:
            return math.nan
    if not abs(number) <= MAX_NUMBER:
        large = isinstance(value, int | float) and not isinstance(value, bool)
        problems.add(
            column.name, row, f"a number of size {MAX_NUMBER:g} at most" if large else "a number", describe_value(value)
        )
    return number


def _read_boolean(column: Column, row: int, value: Any, problems: Problems) -> bool | None:
    if isinstance(value, str) and column.written_as_text and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is None or isinstance(value, bool):
        return value
    problems.add(column.name, row, "true or false", describe_value(value))
    return None


def _read_text(column: Column, row: int, value: Any, problems: Problems) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        problems.add(column.name, row, _EXPECTED[column.kind], describe_value(value))
        return None
    if len(value) > MAX_TEXT:
        problems.add(column.name, row, f"text of at most {MAX_TEXT:,} characters", f"{len(value):,} characters")
        return None
    if not value.isascii() and not _is_unicode(value):
        problems.add(column.name, row, "text", "half of a surrogate pair")
        return None
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_dates(column: Column, texts: Any, problems: Problems) -> Any:
    """Read text as dates; other text is a problem, unless there was some among the dates in training."""
    dates = to_dates(texts, column.date_format or "ISO8601")
    wrong = np.asarray(dates.isna() & texts.notna())
    if not column.mixed:
        written = "2024-01-31" if column.date_format in (None, "ISO8601") else column.date_format
        for row in np.flatnonzero(wrong).tolist():
            problems.add(column.name, row, f"a date, written as {written}", describe_value(texts.iloc[row]))
    return dates.array


def _to_json_value(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if value is None or str(value) in ("nan", "<NA>", "NaT"):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else value
