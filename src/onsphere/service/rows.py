"""Read the rows of a request, JSON, CSV or Arrow, into plain values by column."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Self

import numpy as np

from onsphere._internal.validation import missing_extra_error
from onsphere.export.deployed import Facts, Values
from onsphere.service.answers import RequestError, reject_problems
from onsphere.table.cells import LARGEST, LONGEST_TEXT, Problem, describe_expected, read_cells, show_value
from onsphere.table.columns import Column

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"
MEDIA_TYPES = (JSON, CSV, ARROW, "application/vnd.apache.arrow.file")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = {"number": "numbers", "boolean": "booleans", "category": "text", "date": "dates or text"}
_CSV = "CSV in UTF-8 with a line of names"
_LIMIT = f"a number of size {LARGEST:g} at most"


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one request: the values of each feature, and the columns that name the rows."""

    columns: tuple[Column, ...]
    values: Values
    keys: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

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


def join_values(batches: Sequence[Batch]) -> Values:
    """Return the values of several requests as those of one."""
    if len(batches) == 1:
        return batches[0].values
    return {name: np.concatenate([batch.values[name] for batch in batches]) for name in batches[0].values}


@lru_cache(maxsize=8)
def add_key_column(facts: Facts, key: str | None) -> Facts:
    """Return the facts of a model whose rows have another column, which names them; without one, those of the model."""
    if key is None:
        return facts
    if key in facts.feature_names:
        raise RequestError(
            422, f"Expected key= to be a column that names rows. Got {key}, which the model learns from. Add a column."
        )
    others = [column for column in facts.columns if column.name != key]
    return replace(facts, columns=(*others, Column(key, "key")))


def read_media_type(header: bytes) -> str:
    """Return JSON, CSV or ARROW for a Content-Type header."""
    given = header.partition(b";")[0].decode("latin-1").strip().lower()
    if given not in MEDIA_TYPES:
        raise RequestError(415, f"Expected a body of the type {', '.join(MEDIA_TYPES)}. Got {given[:100] or 'none'}.")
    return given if given in (JSON, CSV) else ARROW


# --- JSON ---


def read_json(bodies: Sequence[bytes], facts: Facts, *, max_rows: int) -> list[Batch]:
    """Read the bodies of one or more requests: {"rows": [{"size": 1.5, …}, …]}.

    A row may also be a list, in the order of the features. The cells of all requests are read at once, because one
    cell takes about as long as a hundred. If anything is wrong with any of them, nothing is read.
    """
    tables = [_read_rows(body, facts, max_rows) for body in bodies]
    rows = [row for table in tables for row in table]
    cells = {
        column.name: read_cells(column, [row[column.name] for row in rows], strict=True) for column in facts.features
    }
    reject_problems([problem for each in cells.values() for problem in each.problems])
    batches: list[Batch] = []
    start = 0
    for table in tables:
        end = start + len(table)
        names = [name for name in facts.key_names if any(name in row for row in table)]
        keys = {name: [row.get(name) for row in table] for name in names}
        reject_problems(find_wrong_keys(keys))
        values = {name: each.values[start:end] for name, each in cells.items()}
        batches.append(Batch(facts.features, values, keys))
        start = end
    return batches


def _read_rows(body: bytes, facts: Facts, max_rows: int) -> list[dict[str, Any]]:
    """Return the rows of a body by the names of their columns, which are checked; their cells are not."""
    rows = parse_json(body, "rows", max_rows)
    features = facts.feature_names
    problems: list[Problem] = []
    for index, row in enumerate(rows):
        if type(row) is list:
            if len(row) != len(features):
                problems.append(Problem(None, index, f"{len(features)} values", f"{len(row)}"))
            rows[index] = dict(zip(features, row, strict=False))
        elif type(row) is not dict:
            problems.append(Problem(None, index, "an object with the columns", show_value(row)))
        elif row.keys() != features.keys():
            problems += _find_wrong_names(row, facts, index)
    reject_problems(problems)
    return rows


def parse_json(body: bytes, name: str, max_rows: int) -> list[Any]:
    """Return the list of an object such as {"rows": […]} in strict JSON: UTF-8, no NaN, and no name twice."""
    check_brackets(body, max_rows)
    try:
        text = body.decode("utf-8")
        given = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:  # half of a surrogate pair cannot be written
            json.dumps(given, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise RequestError(422, f"Expected JSON in UTF-8. Got something that cannot be read: {error}.") from None
    if type(given) is not dict or given.keys() != {name} or type(given[name]) is not list:
        raise RequestError(422, f'Expected an object with a list of {name}: {{"{name}": […]}}. Got something else.')
    check_n_rows(len(given[name]), max_rows)
    return given[name]


def check_brackets(body: bytes, max_rows: int) -> None:
    """Count lists and objects before anything is read: a text may hold a bracket, but not each of them many."""
    found = np.frombuffer(body, dtype=np.uint8)
    if np.count_nonzero(found == ord("[")) + np.count_nonzero(found == ord("{")) > 4 * max_rows + 100:
        raise _make_size_error(max_rows)


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RequestError(422, "Expected each name once in an object. Got one twice. Send one value for each.")
    return found


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_build_object, parse_constant=_reject_constant)


def _make_size_error(max_rows: int) -> RequestError:
    return RequestError(413, f"Expected at most {max_rows:,} rows. Got more. Send them in several requests.")


# --- CSV and Arrow ---


def read_table(body: bytes, facts: Facts, media_type: str, *, max_rows: int) -> Batch:
    """Read CSV in UTF-8 with a line of names and commas (empty cells, NA and the like are missing), or Arrow."""
    try:
        import pyarrow as pa
    except ImportError:
        raise missing_extra_error("Reading a batch", "pyarrow", "serve") from None
    try:
        table = (_read_csv if media_type == CSV else _read_arrow)(pa, body, facts, max_rows)
        cells = {column.name: read_cells(column, table[column.name], strict=True) for column in facts.features}
        keys = {name: _read_keys(table[name]) for name in facts.key_names if name in table.column_names}
    except (pa.ArrowException, OSError, ValueError, ArithmeticError, LookupError, csv.Error, MemoryError) as error:
        expected = _CSV if media_type == CSV else "an Arrow stream or file"
        message = " ".join(str(error).split())[:200]
        raise RequestError(422, f"Expected {expected}. Got a body that cannot be read as such: {message}.") from None
    problems = [problem for each in cells.values() for problem in each.problems]
    reject_problems(problems + find_wrong_keys(keys))
    return Batch(facts.features, {name: each.values for name, each in cells.items()}, keys)


def _read_csv(pa: Any, body: bytes, facts: Facts, max_rows: int) -> Any:
    import pyarrow.csv as arrow_csv

    # The names are counted before anything is read: a line of them may be as long as the body.
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(body), encoding="utf-8-sig", newline=""), strict=True)
    names = next((line for line in lines if line), [])
    _check_names(names, facts)
    check_n_rows(max(1, body.count(b"\n") - 1 - body.count(b'"')), max_rows)  # a quoted cell may hold line ends
    table = arrow_csv.read_csv(
        io.BytesIO(body),
        arrow_csv.ReadOptions(block_size=len(body), use_threads=False),
        arrow_csv.ParseOptions(newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    _check_names(table.column_names, facts)
    check_n_rows(table.num_rows, max_rows)
    return table


def _read_arrow(pa: Any, body: bytes, facts: Facts, max_rows: int) -> Any:
    """Read the columns that are needed, after checking that they are valid."""
    # A file is a stream after its first eight bytes. Its footer says where the batches lie; it is not needed, and could
    # point to others than those that were checked.
    content = memoryview(body)[8:] if body.startswith(b"ARROW1") else memoryview(body)
    schema = pa.ipc.open_stream(pa.BufferReader(content)).schema
    _check_names(list(schema.names), facts)
    used = {column.name: column for column in facts.columns if column.is_feature or column.kind == "key"}
    kinds = {name: schema.field(name).type for name in used if name in schema.names}
    reject_problems(
        [
            Problem(name, None, _KINDS.get(used[name].kind, "plain values"), f"the type {kind}")
            for name, kind in kinds.items()
            if not _is_fitting(pa.types, used[name], kind)
        ]
    )
    options = pa.ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in kinds])
    batches: list[Any] = []
    n_rows = 0
    for batch in (reader := pa.ipc.open_stream(pa.BufferReader(content), options=options)):
        n_rows += batch.num_rows
        check_n_rows(max(n_rows, 1), max_rows)
        batch.validate(full=True)
        reject_problems(_find_long_texts(pa, batch))
        batches.append(batch)
    check_n_rows(n_rows, max_rows)
    return pa.Table.from_batches(batches, reader.schema)


def _find_long_texts(pa: Any, batch: Any) -> list[Problem]:
    """List the columns with a long text in their dictionary: each row that shares it would get a copy."""
    import pyarrow.compute

    compute: Any = pyarrow.compute
    expected = f"text of at most {LONGEST_TEXT:,} characters"
    return [
        Problem(name, None, expected, "a longer one")
        for name, values in zip(batch.schema.names, batch.columns, strict=True)
        if pa.types.is_dictionary(values.type)
        and (compute.max(compute.utf8_length(values.dictionary)).as_py() or 0) > LONGEST_TEXT
    ]


def _check_names(names: list[str], facts: Facts) -> None:
    """Check that every feature is there, nothing is unknown, and no name comes twice."""
    counts = Counter(names)
    twice = [Problem(name, None, "one column of this name", f"{n}") for name, n in counts.items() if n > 1]
    reject_problems(twice + _find_wrong_names(counts, facts, None))


def _find_wrong_names(given: Mapping[str, Any], facts: Facts, row: int | None) -> list[Problem]:
    """List the features that are missing, the columns that are unknown, and other columns without a plain value."""
    return [
        *(
            Problem(name, row, describe_expected(column), "no such column")
            for name, column in facts.feature_names.items()
            if name not in given
        ),
        *(
            Problem(name, row, "a plain value", show_value(value))
            if name in facts.known_names
            else Problem(name, row, "no column of this name", "one that the model does not know")
            for name, value in given.items()
            if name not in facts.known_names or (name not in facts.feature_names and type(value) in (dict, list))
        ),
    ]


def check_n_rows(n_rows: int, max_rows: int) -> None:
    """Raise a RequestError if there are no rows, or too many."""
    if n_rows == 0:
        raise RequestError(422, "Expected at least one row. Got none.")
    if n_rows > max_rows:
        raise _make_size_error(max_rows)


def _is_fitting(types: Any, column: Column, kind: Any) -> bool:
    """Return whether a type of Arrow holds what a column does; keys may hold any plain values."""
    value = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(value) or types.is_large_string(value)  # not views, which may all share one place
    # pyarrow's cast of a decimal looks its scale up in a table without checking the table's length.
    is_decimal = types.is_decimal(kind) and abs(kind.scale) <= kind.precision
    is_number = types.is_integer(kind) or types.is_floating(kind) or is_decimal
    is_date, is_boolean = types.is_date(kind) or types.is_timestamp(kind), types.is_boolean(kind)
    is_spelled = is_text and column.written_as_text
    fits = {
        "number": is_number or is_spelled,
        "boolean": is_boolean or is_spelled,
        "category": is_text,
        "date": is_text or is_date,
    }
    return types.is_null(kind) or fits.get(column.kind, is_text or is_date or is_number or is_boolean)


def _read_keys(values: Any) -> list[Any]:
    """Return keys, as text where they are not numbers."""
    found = values.to_pylist()
    return [value if value is None or isinstance(value, int | float) else str(value) for value in found]


def find_wrong_keys(keys: dict[str, list[Any]]) -> list[Problem]:
    """List the keys that are long or infinite: they go to the store, to the page and into the answer."""
    problems: list[Problem] = []
    for name, values in keys.items():
        for row, value in enumerate(values):
            if isinstance(value, str) and len(value) > LONGEST_TEXT:
                problems.append(Problem(name, row, f"text of at most {LONGEST_TEXT:,} characters", show_value(value)))
            elif isinstance(value, int | float) and not abs(value) <= LARGEST:
                problems.append(Problem(name, row, _LIMIT, show_value(value)))
    return problems
