"""Read CSV and Arrow bodies with pyarrow, checked like JSON but column by column."""

from __future__ import annotations

import csv
import io
import struct
from typing import Any

from onsphere._internal.validation import missing_extra_error
from onsphere.service.engine import Facts
from onsphere.service.replies import RequestError, reject_problems
from onsphere.service.rows import Batch, check_number_of_rows, find_wrong_keys, find_wrong_names
from onsphere.table.cells import LONGEST_TEXT, Problem, read_cells
from onsphere.table.columns import Column

__all__ = ["read_arrow", "read_csv"]

_KINDS = {"number": "numbers", "boolean": "booleans", "category": "text", "date": "dates or text"}
_CSV = "CSV in UTF-8 with a line of names"
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2  # kinds of messages
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
    reject_problems(find_wrong_names(table.column_names, facts))
    check_number_of_rows(table.num_rows, max_rows)
    return _read_batch(table, facts)


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
    try:
        return _read_batch(_read_table(pa, body, facts, max_rows), facts)
    except (pa.ArrowException, OSError, ValueError, ArithmeticError, LookupError, struct.error) as error:
        raise _make_error("an Arrow stream or file", error) from None


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
    used = [column for column in facts.columns if column.is_feature or column.kind == "key"]
    found = {column.name: column for column in used if column.name in schema.names}
    kinds = {name: schema.field(name).type for name in found}
    reject_problems(
        [
            Problem(name, None, _KINDS.get(column.kind, "plain values"), f"the type {kinds[name]}")
            for name, column in found.items()
            if not (_is_fitting if column.is_feature else _is_plain)(types, column, kinds[name])
        ]
    )
    return [schema.names.index(name) for name in found]


def _check_dictionaries(types: Any, batch: Any) -> None:
    """Check that no text of a dictionary is long: each row that shares it would get a copy."""
    import pyarrow.compute

    compute: Any = pyarrow.compute
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if not types.is_dictionary(values.type):
            continue
        longest = compute.max(compute.utf8_length(values.dictionary)).as_py()
        if longest is not None and longest > LONGEST_TEXT:
            expected = f"text of at most {LONGEST_TEXT:,} characters"
            reject_problems([Problem(name, None, expected, "a longer one")])


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
    repeated = sorted({name for name in names if names.count(name) > 1})
    reject_problems(
        [Problem(name, None, "one column of this name", f"{names.count(name)}") for name in repeated]
        + find_wrong_names(list(dict.fromkeys(names)), facts)
    )


def _is_text(types: Any, kind: Any) -> bool:
    """Return whether it is text of its own for each row, or of a dictionary; views may all share one place."""
    value = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(value) or types.is_large_string(value)


def _is_number(types: Any, kind: Any) -> bool:
    # pyarrow's cast of a decimal looks its scale up in a table without checking the table's length.
    decimal = types.is_decimal(kind) and abs(kind.scale) <= kind.precision
    return types.is_integer(kind) or types.is_floating(kind) or decimal


def _is_plain(types: Any, column: Column, kind: Any) -> bool:
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


def _read_batch(table: Any, facts: Facts) -> Batch:
    """Read the cells of the features, and the keys, as text where they are not numbers."""
    cells = {column.name: read_cells(column, table[column.name], strict=True) for column in facts.features}
    keys = {
        name: [
            value if value is None or isinstance(value, int | float) else str(value)
            for value in table[name].to_pylist()
        ]
        for name in facts.key_names
        if name in table.column_names
    }
    problems = [problem for each in cells.values() for problem in each.problems]
    reject_problems(problems + find_wrong_keys(keys))
    return Batch(facts.features, {name: each.values for name, each in cells.items()}, keys)


def _make_error(expected: str, error: Exception) -> RequestError:
    message = " ".join(str(error).split())[:200]
    return RequestError(422, f"Expected {expected}. Got a body that cannot be read as such: {message}.")


def _import_pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise missing_extra_error("Reading a batch", "pyarrow", "serve") from None
    return pa
