"""Read rows of JSON, and hold the rows of a request as plain values, whatever format they came in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import numpy as np

from onsphere.service.engine import Facts
from onsphere.service.replies import RequestError, reject_problems
from onsphere.table.cells import (
    LARGEST,
    LONGEST_TEXT,
    Problem,
    describe_expected,
    import_pandas,
    is_unicode,
    read_cells,
    show_value,
)
from onsphere.table.columns import Column

__all__ = [
    "Batch",
    "add_key_column",
    "check_number_of_rows",
    "find_wrong_keys",
    "find_wrong_names",
    "join_batches",
    "parse_json",
    "read_json",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one request.

    Attributes
    ----------
    columns : tuple of Column
        The features.
    values : dict of array
        What `read_cells` returned for each of them.
    keys : dict of list
        The columns that name the rows.
    """

    columns: tuple[Column, ...]
    values: dict[str, Any]
    keys: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def copy_last(self, n_rows: int) -> Batch:
        """Copy the last rows without their keys, so that the memory of the whole request is freed."""
        return Batch(self.columns, {name: values[-n_rows:].copy() for name, values in self.values.items()}, {})

    def get_row(self, index: int) -> dict[str, Any]:
        """Return the features of a row as JSON values, dates as ISO text."""
        return {column.name: _to_json_value(column, self.values[column.name][index]) for column in self.columns}

    def to_json(self) -> list[str]:
        """Return the features of each row as a list in JSON, from which `from_json` makes the same rows."""
        return [json.dumps(row) for row in zip(*(values.tolist() for values in self.values.values()), strict=True)]

    @classmethod
    def from_json(cls, facts: Facts, rows: Sequence[str]) -> Self:
        """Return rows that `to_json` wrote."""
        cells = zip(*map(json.loads, rows), strict=True)
        values = {
            column.name: np.array(each, dtype=object if column.kind == "category" else np.float64)
            for column, each in zip(facts.features, cells, strict=True)
        }
        return cls(facts.features, values, {})

    def get_key(self, index: int) -> dict[str, Any]:
        """Return the keys of a row."""
        return {name: values[index] for name, values in self.keys.items()}


def _to_json_value(column: Column, value: Any) -> Any:
    if value is None or value != value:
        return None
    match column.kind:
        case "boolean":
            return bool(value)
        case "date":
            return (_EPOCH + timedelta(seconds=float(value))).isoformat()
        case "number":
            return float(value)
        case _:
            return value


def join_batches(facts: Facts, batches: Sequence[Batch]) -> Any:
    """Return the rows of one or more requests as one DataFrame of plain values, or as an array."""
    joined = {
        column.name: np.concatenate([batch.values[column.name] for batch in batches]) for column in facts.features
    }
    if facts.as_array:
        return np.column_stack(list(joined.values()))
    pandas = import_pandas()
    return pandas.DataFrame({name: pandas.Series(values, dtype=values.dtype) for name, values in joined.items()})


def add_key_column(facts: Facts, key: str) -> Facts:
    """Return the facts of a model whose rows have another column, which names them."""
    if key in {column.name for column in facts.features}:
        raise RequestError(
            422, f"Expected key= to be a column that names rows. Got {key}, which the model learns from. Add a column."
        )
    others = [column for column in facts.columns if column.name != key]
    return replace(facts, columns=(*others, Column(key, "key")))


def read_json(bodies: Sequence[bytes], facts: Facts, *, max_rows: int) -> list[Batch]:
    """Read the bodies of one or more requests: {"rows": [{"size": 1.5, …}, …]}.

    A row may also be a list, in the order of the features. The cells of all requests are read at once, because one
    cell takes about as long as a hundred. If anything is wrong with any of them, nothing is read.
    """
    tables = [_parse_table(body, facts, max_rows) for body in bodies]
    cells = {
        column.name: read_cells(column, [cell for table in tables for cell in table[column.name]], strict=True)
        for column in facts.features
    }
    keys = [{name: table[name] for name in facts.key_names if name in table} for table in tables]
    problems = [problem for each in cells.values() for problem in each.problems]
    for table, named in zip(tables, keys, strict=True):
        problems += find_wrong_keys(named) + _find_nested(table, facts)
    reject_problems(problems)
    first = facts.features[0].name
    ends = np.cumsum([len(table[first]) for table in tables]).tolist()
    return [
        Batch(facts.features, {name: each.values[start:end] for name, each in cells.items()}, named)
        for start, end, named in zip([0, *ends], ends, keys, strict=False)
    ]


def _parse_table(body: bytes, facts: Facts, max_rows: int) -> dict[str, list[Any]]:
    """Return the cells of each column in a body."""
    given = parse_json(body)
    if not isinstance(given, dict) or set(given) != {"rows"} or not isinstance(given["rows"], list):
        raise RequestError(422, 'Expected an object with a list of rows: {"rows": [{…}, …]}. Got something else.')
    check_number_of_rows(len(given["rows"]), max_rows)
    return _transpose(given["rows"], facts)


class _RepeatedError(ValueError):
    """An object with the same name twice."""


def parse_json(body: bytes) -> Any:
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


def _transpose(rows: list[Any], facts: Facts) -> dict[str, list[Any]]:
    """Turn a list of rows into the cells of each column."""
    problems: list[Problem] = []
    features = [column.name for column in facts.features]
    expected = set(features)
    table: dict[str, list[Any]] = {name: [] for name in features}
    others = facts.known_names - expected
    for index, row in enumerate(rows):
        if isinstance(row, list):
            if len(row) != len(features):
                problems.append(Problem(None, index, f"{len(features)} values", f"{len(row)}"))
                continue
            row = dict(zip(features, row, strict=True))
        elif not isinstance(row, dict):
            problems.append(Problem(None, index, "an object with the columns", show_value(row)))
            continue
        elif row.keys() != expected:
            problems += find_wrong_names(list(row), facts, row=index)
        for name in features:
            table[name].append(row.get(name))
        for name in others & row.keys():
            # Earlier rows did not have it, so it is missing there.
            table.setdefault(name, []).extend([None] * (index - len(table.get(name, []))))
            table[name].append(row[name])
    reject_problems(problems)
    for name in others & table.keys():
        table[name].extend([None] * (len(rows) - len(table[name])))
    return table


def _find_nested(table: dict[str, list[Any]], facts: Facts) -> list[Problem]:
    """List the cells that are no plain values in columns that are not features."""
    others = table.keys() - {column.name for column in facts.features}
    return [
        Problem(name, row, "a plain value", show_value(value))
        for name in others
        for row, value in enumerate(table[name])
        if isinstance(value, list | dict)
    ]


def check_number_of_rows(n_rows: int, max_rows: int) -> None:
    """Check that there is at least one row, and not too many."""
    if n_rows == 0:
        raise RequestError(422, "Expected at least one row. Got none.")
    if n_rows > max_rows:
        raise RequestError(413, f"Expected at most {max_rows:,} rows. Got {n_rows:,}. Send them in several requests.")


def find_wrong_names(names: Sequence[str], facts: Facts, *, row: int | None = None) -> list[Problem]:
    """List the features that are not among the names, and the names that the model does not know."""
    given, known = set(names), facts.known_names
    missing = [column for column in facts.features if column.name not in given]
    unknown = [name for name in names if name not in known]
    return [Problem(column.name, row, describe_expected(column), "no such column") for column in missing] + [
        Problem(name, row, "no column of this name", "one that the model does not know") for name in unknown
    ]


def find_wrong_keys(keys: dict[str, list[Any]]) -> list[Problem]:
    """List the keys that are long or infinite: they go to the store, to the page and into the answer."""
    problems: list[Problem] = []
    for name, values in keys.items():
        for row, value in enumerate(values):
            if isinstance(value, str) and (len(value) > LONGEST_TEXT or not is_unicode(value)):
                expected = f"text of at most {LONGEST_TEXT:,} characters"
            elif isinstance(value, int | float) and not abs(value) <= LARGEST:
                expected = f"a number of size {LARGEST:g} at most"
            else:
                continue
            problems.append(Problem(name, row, expected, show_value(value)))
    return problems
