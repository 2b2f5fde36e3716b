"""Read CSV and Arrow bodies with pyarrow, checked like JSON but column by column."""

from __future__ import annotations

import csv
import io
import struct
from typing import Any

import numpy as np

from onsphere._internal.validation import missing_extra_error
from onsphere.service.engine import Facts
from onsphere.service.problems import Problems, RequestError, describe_value
from onsphere.service.rows import MAX_NUMBER, MAX_TEXT, Batch, check_keys, check_names, check_number_of_rows, read_dates
from onsphere.table.columns import Column, pandas, to_numbers

__all__ = ["read_arrow", "read_csv"]

_TRUTH = {"true": True, "false": False, "1": True, "0": False}
_KINDS = {"number": "numbers", "boolean": "booleans", "category": "text", "date": "dates or text"}
_CSV = "CSV in UTF-8 with a line of names"
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2  # kinds of messages
_DATES = (-62_135_596_800, 253_402_300_799)  # seconds since 1970: the years 1 to 9999, which text can name
_MAX_MESSAGES = 200  # of Arrow: a dictionary is checked again for each


def read_csv(body: bytes, facts: Facts, *, max_rows: int) -> Batch:
    """Read CSV in UTF-8 with a line of names and commas; empty cells, NA and the like are missing."""
    pa = _import_pyarrow()
    import pyarrow.csv as arrow_csv

    names = _read_header(body)
    _check_table(names, facts)
    reading = arrow_csv.ReadOptions(block_size=len(body), use_threads=False)
    parsing = arrow_csv.ParseOptions(newlines_in_values=True)
    converting = arrow_csv.ConvertOptions(
        column_types={name: pa.string() for name in names}, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    try:
        table = arrow_csv.read_csv(io.BytesIO(body), reading, parsing, converting)
    except pa.ArrowException as error:
        raise _make_error(_CSV, error) from None
    check_names(table.column_names, facts, problems := Problems())
    problems.check()
    check_number_of_rows(table.num_rows, max_rows)
    columns = {column.name: _read_texts(column, table[column.name].to_pandas(), problems) for column in facts.features}
    keys = _read_keys(table, facts, problems)
    problems.check()
    return Batch(columns, keys)


def _read_header(body: bytes) -> list[str]:
    """Read the names in the first line; all cells are read as text."""
    try:
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
        return next((line for line in lines if line), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise _make_error(_CSV, error) from None


def read_arrow(body: bytes, facts: Facts, *, max_rows: int) -> Batch:
    """Read an Arrow stream or file."""
    pa = _import_pyarrow()
    problems = Problems()
    try:
        table = _read_table(pa, body, facts, max_rows)
        columns = {column.name: _read_column(pa, column, table[column.name], problems) for column in facts.features}
        keys = _read_keys(table, facts, problems)
    except (pa.ArrowException, OSError, ValueError, ArithmeticError, LookupError, struct.error) as error:
        raise _make_error("an Arrow stream or file", error) from None
    problems.check()
    return Batch(columns, keys)


def _read_table(pa: Any, body: bytes, facts: Facts, max_rows: int) -> Any:
    """Read the columns that are needed, after checking that they are valid and cannot grow."""
    # A file is a stream after its first eight bytes. Its footer says where the batches lie; it is not needed, and could
    # point to others than those that were checked.
    content = memoryview(body)[8:] if body.startswith(b"ARROW1") else memoryview(body)
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(pa.BufferReader(content))):
        if number == _MAX_MESSAGES:
            raise RequestError(
                413, f"Expected at most {_MAX_MESSAGES} parts of Arrow. Got more. Write more rows in each batch."
            )
        if _is_compressed(message.metadata.to_pybytes()):
            raise RequestError(
                422, "Expected Arrow that is not packed. Got a compressed batch. Write it without compression."
            )
    schema = pa.ipc.open_stream(pa.BufferReader(content)).schema
    _check_table(list(schema.names), facts)
    needed = _find_needed_fields(pa.types, schema, facts)
    reader = pa.ipc.open_stream(pa.BufferReader(content), options=pa.ipc.IpcReadOptions(included_fields=needed))
    batches: list[Any] = []
    n_rows = 0
    for batch in reader:
        n_rows += batch.num_rows
        check_number_of_rows(max(n_rows, 1), max_rows)
        batch.validate(full=True)
        _check_dictionaries(pa.types, batch)
        batches.append(batch)
    check_number_of_rows(n_rows, max_rows)
    return pa.Table.from_batches(batches, reader.schema)


def _find_needed_fields(types: Any, schema: Any, facts: Facts) -> list[int]:
    """Return the places of features and keys, after checking their types; other columns are never read."""
    problems = Problems()
    used = [column for column in facts.columns if column.is_feature or column.kind == "key"]
    found = {column.name: column for column in used if column.name in schema.names}
    for name, column in found.items():
        kind = schema.field(name).type
        if not (_is_fitting(types, column, kind) if column.is_feature else _is_plain(types, kind)):
            problems.add(name, None, _KINDS.get(column.kind, "plain values"), f"the type {kind}")
    problems.check()
    return [schema.names.index(name) for name in found]


def _check_dictionaries(types: Any, batch: Any) -> None:
    """Check that no text of a dictionary is long: each row that shares it would get a copy."""
    import pyarrow.compute

    compute: Any = pyarrow.compute
    problems = Problems()
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if not types.is_dictionary(values.type):
            continue
        longest = compute.max(compute.utf8_length(values.dictionary)).as_py()
        if longest is not None and longest > MAX_TEXT:
            problems.add(name, None, f"text of at most {MAX_TEXT:,} characters", "a longer one")
    problems.check()


def _is_compressed(message: bytes) -> bool:
    """Return whether the flatbuffer of a message says that its batch is compressed.

    Such a batch could grow a thousandfold, and pyarrow has no limit to set.
    """
    root = struct.unpack_from("<I", message)[0]
    header_type = _find_field(message, root, 1)
    header = _find_field(message, root, 2)
    if header_type is None or header is None:
        return False
    kind = message[header_type]
    batch = header + struct.unpack_from("<I", message, header)[0]
    if kind == _DICTIONARY_BATCH:
        data = _find_field(message, batch, 1)
        if data is None:
            return False
        batch = data + struct.unpack_from("<I", message, data)[0]
    return kind in (_RECORD_BATCH, _DICTIONARY_BATCH) and _find_field(message, batch, 3) is not None


def _find_field(message: bytes, table: int, index: int) -> int | None:
    """Return where a field of a flatbuffer's table lies, or None if it is absent."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    place = 4 + 2 * index
    if place >= struct.unpack_from("<H", message, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", message, vtable + place)[0]
    return table + offset if offset else None


def _check_table(names: list[str], facts: Facts) -> None:
    """Check that every feature is there, nothing is unknown, and no name comes twice."""
    problems = Problems()
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(name, None, "one column of this name", f"{names.count(name)}")
    check_names(list(dict.fromkeys(names)), facts, problems)
    problems.check()


def _is_text(types: Any, kind: Any) -> bool:
    """Return whether it is text of its own for each row, or of a dictionary; views may all share one place."""
    value = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(value) or types.is_large_string(value)


def _is_number(types: Any, kind: Any) -> bool:
    # pyarrow's cast of a decimal looks its scale up in a table without checking the table's length.
    decimal = types.is_decimal(kind) and abs(kind.scale) <= kind.precision
    return types.is_integer(kind) or types.is_floating(kind) or decimal


def _is_plain(types: Any, kind: Any) -> bool:
    dated = types.is_date(kind) or types.is_timestamp(kind)
    known = dated or types.is_null(kind) or types.is_boolean(kind)
    return known or _is_number(types, kind) or _is_text(types, kind)


def _is_fitting(types: Any, column: Column, kind: Any) -> bool:
    text = _is_text(types, kind)
    if types.is_null(kind):
        return True
    match column.kind:
        case "number":
            return _is_number(types, kind) or (text and column.written_as_text)
        case "boolean":
            return types.is_boolean(kind) or (text and column.written_as_text)
        case "category":
            return text
        case _:
            return text or types.is_date(kind) or types.is_timestamp(kind)


def _read_column(pa: Any, column: Column, values: Any, problems: Problems) -> Any:
    kind = values.type
    if pa.types.is_null(kind) or pa.types.is_dictionary(kind):
        values = values.cast(pa.string())
    elif pa.types.is_decimal(kind):
        values = values.cast(pa.float64())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return _read_texts(column, values.to_pandas(), problems)
    match column.kind:
        case "number":
            numbers = np.asarray(values.cast(pa.float64(), safe=False).to_pandas(), dtype=np.float64)
            wrong = np.asarray(values.is_valid()) & ~(np.abs(numbers) <= MAX_NUMBER)
            for row in np.flatnonzero(wrong).tolist():
                problems.add(
                    column.name, row, f"a number of size {MAX_NUMBER:g} at most", describe_value(float(numbers[row]))
                )
            return numbers
        case "boolean":
            return np.array(values.to_pylist(), dtype=object)
        case _:
            seconds = np.asarray(values.cast(pa.timestamp("s"), safe=False).cast(pa.int64()).fill_null(0))
            for row in np.flatnonzero((seconds < _DATES[0]) | (seconds > _DATES[1])).tolist():
                problems.add(column.name, row, "a date of the years 1 to 9999", "one beyond them")
            dates = pandas().to_datetime(values.cast(pa.timestamp("us"), safe=False).to_pandas(), errors="coerce")
            return (dates if dates.dt.tz is not None else dates.dt.tz_localize("UTC")).array


def _read_texts(column: Column, texts: Any, problems: Problems) -> Any:
    """Read a column of text as a Batch holds it."""
    long = np.asarray(texts.str.len() > MAX_TEXT, dtype=bool) if texts.notna().any() else np.zeros(len(texts), bool)
    for row in np.flatnonzero(long).tolist():
        problems.add(column.name, row, f"text of at most {MAX_TEXT:,} characters", "a longer one")
    match column.kind:
        case "number":
            numbers = np.asarray(to_numbers(texts), dtype=np.float64)
            given = np.asarray(texts.notna()) & ~(np.isnan(numbers) & column.mixed)
            wrong = given & ~(np.abs(numbers) <= MAX_NUMBER)
            _add_problems(column, texts, wrong, "a number", problems)
            return numbers
        case "boolean":
            lowered = [None if text is None or text != text else str(text).strip().lower() for text in texts.tolist()]
            wrong = np.array([text is not None and text not in _TRUTH for text in lowered])
            _add_problems(column, texts, wrong, "true or false", problems)
            return np.array([_TRUTH.get(text or "") for text in lowered], dtype=object)
        case "category":
            return np.asarray(texts.astype(object).where(texts.notna(), None))
        case _:
            return read_dates(column, texts, problems)


def _add_problems(column: Column, texts: Any, wrong: Any, expected: str, problems: Problems) -> None:
    for row in np.flatnonzero(wrong).tolist():
        problems.add(column.name, row, expected, describe_value(texts.iloc[row]))


def _read_keys(table: Any, facts: Facts, problems: Problems) -> dict[str, list[Any]]:
    """Read the keys of the rows, as text where they are not numbers."""
    names = [name for name in facts.key_names if name in table.column_names]
    keys = {
        name: [
            value if value is None or isinstance(value, int | float) else str(value)
            for value in table[name].to_pylist()
        ]
        for name in names
    }
    check_keys(keys, problems)
    return keys


def _make_error(expected: str, error: Exception) -> RequestError:
    message = " ".join(str(error).split())[:200]
    return RequestError(422, f"Expected {expected}. Got a body that cannot be read as such: {message}.")


def _import_pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise missing_extra_error("Reading a batch", "pyarrow", "serve") from None
    return pa
