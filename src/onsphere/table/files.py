"""Tables in files: CSV, Parquet and Arrow, whole or in batches, through pyarrow."""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onsphere._internal.atomic_files import write_atomically
from onsphere._internal.validation import check_unique_names, missing_extra_error
from onsphere.errors import InvalidInputError
from onsphere.table.cells import Problem, normalize_type, raise_problems, show_value
from onsphere.table.columns import Column, check_has
from onsphere.table.csv_dialect import Dialect

__all__ = ["TableWriter", "check_file", "check_suffix", "read_batches", "read_table", "table_writer", "to_frame"]

_BATCH_ROWS = 65_536
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


def read_table(path: str | Path, *, columns: Sequence[Column] = (), delimiter: str | None = None) -> Any:
    """All of a file as a pandas DataFrame.

    CSV may be packed (.csv.gz); its delimiter and decimal point are found from its first lines. An empty cell, NA, NaN,
    null and the like are missing.

    Parameters
    ----------
    path : path
        To .csv, .tsv, .txt, .parquet, .pq, .arrow, .feather or .ipc; others are recognised by how they begin.
    columns : sequence of Column, optional
        Of the table that a model was fitted on: those that it learned from must be there, and are read as they were
        then, whatever the cells of this file look like.
    delimiter : str, optional
        Of a CSV file, where the one that is found is wrong.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size;price\\n1,5;10\\n2,5;\\n")
    >>> read_table(path).values.tolist()
    [[1.5, 10.0], [2.5, nan]]
    """
    path = Path(path)
    with _told(path):
        match _format_of(path):
            case "parquet":
                import pyarrow.parquet as parquet

                table = parquet.ParquetFile(path).read()
                _present(path, table.column_names, columns)
            case "arrow":
                table = _arrow_reader(path).read_all()
                _present(path, table.column_names, columns)
            case _:
                table = _csv_table(path, columns, delimiter)
        _check_rows(path, table.num_rows)
        return to_frame(table)


def read_batches(path: str | Path, columns: Sequence[Column], *, delimiter: str | None = None) -> Iterator[Any]:
    """Some columns of a file, as Arrow tables of some ten thousand rows, so that memory stays small.

    Parameters
    ----------
    path : path
    columns : sequence of Column
        Those to read, and what they hold. Those that are learned from must be there; others are left out if not.
    delimiter : str, optional
        Of a CSV file.
    """
    path = Path(path)
    with _told(path):
        match _format_of(path):
            case "parquet":
                import pyarrow.parquet as parquet

                file = parquet.ParquetFile(path)
                wanted = _present(path, file.schema_arrow.names, columns)
                batches = file.iter_batches(_BATCH_ROWS, columns=[column.name for column in wanted])
            case "arrow":
                reader = _arrow_reader(path)
                wanted = _present(path, reader.schema.names, columns)
                batches = (batch.select([column.name for column in wanted]) for batch in reader)
            case _:
                batches = _csv_batches(path, columns, delimiter)
        n_rows = 0
        for batch in batches:
            n_rows += batch.num_rows
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield _pyarrow().Table.from_batches([batch.slice(start, _BATCH_ROWS)])
        _check_rows(path, n_rows)


def to_frame(table: Any) -> Any:
    """An Arrow table as a DataFrame: text as text, all sorts of numbers as those of numpy."""
    import pyarrow as pa

    fields = [pa.field(field.name, normalize_type(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields)).to_pandas()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise missing_extra_error("Reading a table", "pyarrow", "cli") from None
    return pyarrow


@contextmanager
def _told(path: Path) -> Generator[None]:
    """Every way in which a file can fail to be a table, in a sentence."""
    pyarrow = _pyarrow()
    check_file(path)
    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeError, csv.Error, zlib.error) as error:
        message = " ".join(str(error).split())
        raise InvalidInputError(
            f"Expected a table in CSV, Parquet or Arrow. Got {path}, which cannot be read: {message[:300]}. Check that "
            "it is whole, and for CSV that the delimiter is right (--delimiter) and every row has all columns."
        ) from None


def check_file(path: Path) -> None:
    """That there is a file to be read, more than once if need be."""
    if not path.exists():
        raise InvalidInputError(f"Expected a file with a table. Got {path}, which does not exist.")
    if path.is_dir():
        raise InvalidInputError(f"Expected a file with a table. Got {path}, which is a folder. Name a file in it.")
    if not path.is_file():
        raise InvalidInputError(
            f"Expected a file with a table. Got {path}, which is not an ordinary file; save it first."
        )


def _check_rows(path: Path, n_rows: int) -> None:
    if n_rows == 0:
        raise InvalidInputError(f"Expected a table with rows. Got {path}, which has no rows.")


def _format_of(path: Path) -> str:
    if path.stat().st_size == 0:
        raise InvalidInputError(f"Expected a file with a table. Got {path}, which is empty.")
    suffix = next((suffix for suffix in reversed(path.suffixes) if suffix.lower() in _SUFFIXES), None)
    with path.open("rb") as file:
        begin = file.read(6)
    by_begin = "parquet" if begin[:4] == b"PAR1" else "arrow" if begin == b"ARROW1" else "csv"
    by_name = by_begin if suffix is None else _SUFFIXES[suffix.lower()]
    return by_begin if by_name == "csv" else by_name


def _arrow_reader(path: Path) -> Any:
    import pyarrow as pa

    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_stream(source)
    except pa.ArrowInvalid:
        file = pa.ipc.open_file(path)
        batches = (file.get_batch(index) for index in range(file.num_record_batches))
        return pa.RecordBatchReader.from_batches(file.schema, batches)


def _csv_table(path: Path, columns: Sequence[Column], delimiter: str | None) -> Any:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    dialect = Dialect(path, delimiter)
    types = _csv_types(_present(path, dialect.names, columns))

    def read(types: dict[str, Any]) -> Any:
        with _source(path, dialect) as source, _told_cell(path, dialect):
            return arrow_csv.read_csv(source, dialect.reading(), dialect.parsing(), dialect.converting(types))

    table = read(types)
    times = {field.name: pa.string() for field in table.schema if pa.types.is_time(field.type)}
    if times:  # as they are written, which is how batches are read
        table = read(types | times)
    return _with_points(table, dialect, keys=())


def _csv_batches(path: Path, columns: Sequence[Column], delimiter: str | None) -> Iterator[Any]:
    import pyarrow.csv as arrow_csv

    dialect = Dialect(path, delimiter)
    wanted = _present(path, dialect.names, columns)
    converting = dialect.converting(_csv_types(wanted), only_these=True)
    keys = [column.name for column in wanted if column.kind == "key"]
    with _source(path, dialect) as source, _told_cell(path, dialect):
        for batch in arrow_csv.open_csv(source, dialect.reading(), dialect.parsing(), converting):
            yield _with_points(batch, dialect, keys=keys)


def _source(path: Path, dialect: Dialect) -> Any:
    return _pyarrow().input_stream(str(path), compression=dialect.compression)


@contextmanager
def _told_cell(path: Path, dialect: Dialect) -> Generator[None]:
    """A cell that is no number, by its column and row."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    found = None
    try:
        yield
    except pa.ArrowInvalid as error:
        found = re.match(r"In CSV column #(\d+):.* conversion error to .*: invalid value '(.*)'", str(error), re.DOTALL)
        if found is None:
            raise
    if found is not None:
        name, value = dialect.names[int(found[1])], found[2]
        # The reader does not always say where it is, so the column is read again, as text.
        converting = dialect.converting({name: pa.string()}, only_these=True)
        with _source(path, dialect) as source:
            cells = arrow_csv.read_csv(source, dialect.reading(), dialect.parsing(), converting)[name].to_pandas()
        row = int((cells == value).argmax())
        raise_problems([Problem(name, row, "a number", show_value(value))], source=str(path))


def _csv_types(columns: Sequence[Column]) -> dict[str, Any]:
    import pyarrow as pa

    return {
        column.name: pa.float64() if column.kind == "number" and not column.written_as_text else pa.string()
        for column in columns
    }


def _with_points(table: Any, dialect: Dialect, *, keys: Sequence[str]) -> Any:
    """Decimal points in the cells of text that are numbers with a comma; keys stay as they are."""
    import pyarrow as pa
    from pyarrow.compute import replace_substring_regex  # type: ignore[reportAttributeAccessIssue]

    if dialect.decimal == ",":
        for place, field in enumerate(table.schema):
            if pa.types.is_string(field.type) and field.name not in keys:
                cells = replace_substring_regex(table[place], r"^(\s*[+-]?\d+),(\d+\s*)$", r"\1.\2")
                table = table.set_column(place, field.name, cells)
    return table


def _present(path: Path, names: Sequence[str], columns: Sequence[Column]) -> list[Column]:
    """Those of the columns that a file has, which must be all that are learned from."""
    check_unique_names(str(path), names)
    check_has(str(path), names, [column.name for column in columns if column.is_feature])
    return [column for column in columns if column.name in set(names)]


class TableWriter:
    """A file that tables are added to, one after the other."""

    def __init__(self, path: Path, kind: str, *, delimiter: str = ",") -> None:
        self._path, self._kind, self._delimiter, self._writer = path, kind, delimiter, None

    def add(self, columns: dict[str, Any]) -> None:
        """Add rows; every call has the same columns."""
        import pyarrow as pa

        try:
            table = pa.table(columns)
            if self._writer is None:
                self._writer = self._opened(table.schema)
            self._writer.write_table(table)
        except pa.ArrowException as error:
            message = " ".join(str(error).split())
            raise InvalidInputError(
                f"Expected key columns that can be written as {self._kind}. Got: {message}. Write .parquet or .arrow, "
                "or fit the model with other keys."
            ) from None

    def _opened(self, schema: Any) -> Any:
        import pyarrow as pa

        if self._kind == "parquet":
            import pyarrow.parquet as parquet

            return parquet.ParquetWriter(self._path, schema)
        if self._kind == "arrow":
            return pa.ipc.new_file(str(self._path), schema)
        import pyarrow.csv as arrow_csv

        options = arrow_csv.WriteOptions(quoting_style="needed", delimiter=self._delimiter)
        return arrow_csv.CSVWriter(str(self._path), schema, write_options=options)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def check_suffix(path: Path) -> str:
    """The format that the ending of a name stands for."""
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise InvalidInputError(
            f"Expected a file to write whose name ends in {', '.join(_SUFFIXES)}. Got {path.name}. Choose another name."
        )
    return kind


@contextmanager
def table_writer(path: str | Path) -> Generator[TableWriter]:
    """A writer by the ending of the name (CSV, Parquet or Arrow); the file appears when all is written."""
    path = Path(path)
    kind = check_suffix(path)
    with write_atomically(path) as part:
        writer = TableWriter(part, kind, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        try:
            yield writer
        finally:
            writer.close()
