"""Read tables from CSV, Excel, Parquet and Arrow files, whole or in batches, through pyarrow."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from onsphere._internal.validation import check_unique_names, missing_extra_error
from onsphere.errors import InvalidInputError
from onsphere.table.cells import Problem, import_pandas, is_spelled, normalize_type, raise_problems, show_value
from onsphere.table.columns import Column, select_columns
from onsphere.table.local_files import COPIED, open_local
from onsphere.table.number_styles import groups_thousands

__all__ = ["SUFFIXES", "Dialect", "check_file", "read_batches", "read_schema", "read_table", "to_frame"]

_BLOCK_BYTES = 2**24
_SNIFFED = 2**22  # bytes
_DELIMITERS = ",;\t|"
_N_GLANCED = 2_000  # rows that are looked at for numbers that are codes
_BATCH_ROWS = 65_536
SUFFIXES = {
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
    """Return a whole file as a pandas DataFrame.

    CSV may be compressed (.csv.gz); its delimiter and decimal point are found from its first lines. An empty cell, NA,
    NaN, null and the like are missing.

    Parameters
    ----------
    path : path
        To .csv, .tsv, .txt, .xlsx, .parquet, .pq, .arrow, .feather or .ipc, or to a .zip that holds one of them; others
        are recognised by how they begin. "-" stands for standard input.
    columns : sequence of Column, optional
        The columns of the table that a model was fitted on: those that it learned from must be in the file, and are
        read as they were then, whatever the cells of this file look like.
    delimiter : str, optional
        The delimiter of a CSV file, where the one that is found is wrong.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size;price\\n1,5;10\\n2,5;\\n")
    >>> read_table(path).values.tolist()
    [[1.5, 10.0], [2.5, nan]]
    """
    source = _name_source(path)
    with _explain_errors(Path(path)), _open_in_place(Path(path)) as local:
        match _find_format(local, source):
            case "parquet":
                import pyarrow.parquet as parquet

                table = parquet.ParquetFile(local).read()
                select_columns(source, table.column_names, columns)
            case "arrow":
                table = _open_arrow(local).read_all()
                select_columns(source, table.column_names, columns)
            case _:
                table = _read_csv(Dialect(local, delimiter, source), columns)
        _check_n_rows(source, table.num_rows)
        return to_frame(_spell_dates(table, columns))


def read_batches(
    path: str | Path, columns: Sequence[Column], *, delimiter: str | None = None, allow_empty: bool = False
) -> Iterator[Any]:
    """Yield some columns of a file as Arrow tables of some ten thousand rows, so that memory stays small.

    Parameters
    ----------
    path : path
    columns : sequence of Column
        The columns to read, and what they hold. Those that are learned from must be in the file; others may be missing.
    delimiter : str, optional
        The delimiter of a CSV file.
    allow_empty : bool, default False
        Whether the file may have no rows.
    """
    source = _name_source(path)
    with _explain_errors(Path(path)), _open_in_place(Path(path)) as local:
        match _find_format(local, source):
            case "parquet":
                import pyarrow.parquet as parquet

                file = parquet.ParquetFile(local)
                wanted = select_columns(source, file.schema_arrow.names, columns)
                batches = file.iter_batches(_BATCH_ROWS, columns=[column.name for column in wanted])
            case "arrow":
                reader = _open_arrow(local)
                wanted = select_columns(source, reader.schema.names, columns)
                batches = (batch.select([column.name for column in wanted]) for batch in reader)
            case _:
                batches = _read_csv_batches(Dialect(local, delimiter, source, allow_empty=allow_empty), columns)
        n_rows = 0
        for batch in batches:
            n_rows += batch.num_rows
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                table = _import_pyarrow().Table.from_batches([batch.slice(start, _BATCH_ROWS)])
                yield _spell_dates(table, columns)
        if not allow_empty:
            _check_n_rows(source, n_rows)


def read_schema(path: str | Path, columns: Sequence[Column] | None = None) -> Any:
    """Return the names and types of the columns that `read_batches` yields; by default of all, text in CSV."""
    import pyarrow as pa

    source = str(path)
    with _explain_errors(Path(path)), _open_in_place(Path(path)) as local:
        match _find_format(local, source):
            case "parquet":
                import pyarrow.parquet as parquet

                schema = parquet.read_schema(local)
            case "arrow":
                schema = _open_arrow(local).schema
            case _:
                names = Dialect(local, None, source, allow_empty=True).names
                found = [Column(name, "key") for name in names] if columns is None else columns
                return pa.schema(_choose_types(select_columns(source, names, found)))
        if columns is None:
            return schema
        return pa.schema([schema.field(each.name) for each in select_columns(source, schema.names, columns)])


def to_frame(table: Any) -> Any:
    """Return an Arrow table as a DataFrame, with text as text and all types of numbers as those of numpy."""
    import pyarrow as pa

    fields = [pa.field(field.name, normalize_type(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields)).to_pandas()


def _spell_dates(table: Any, columns: Sequence[Column]) -> Any:
    """Return a table whose dates that are whole numbers, such as 20240131, are text; see `cells.spell_dates`."""
    import pyarrow as pa

    for column in columns:
        place = table.schema.get_field_index(column.name) if is_spelled(column) else -1
        if place >= 0 and (
            pa.types.is_integer(table.schema.types[place]) or pa.types.is_floating(table.schema.types[place])
        ):
            table = table.set_column(place, column.name, table[place].cast(pa.int64()).cast(pa.string()))
    return table


def _import_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise missing_extra_error("Reading a table", "pyarrow", "cli") from None
    return pyarrow


@contextmanager
def _explain_errors(path: Path) -> Generator[None]:
    """Raise an error in one sentence for whatever keeps a file from being read as a table."""
    pyarrow = _import_pyarrow()
    check_file(path)
    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeError, csv.Error, zlib.error) as error:
        message = " ".join(str(error).split())[:300].rstrip(".")
        raise InvalidInputError(
            f"Expected a table in CSV, Parquet or Arrow. Got {path}, which cannot be read: {message}. Check that "
            "the file is complete, and for CSV that the delimiter is right and every row has all columns."
        ) from None


def check_file(path: Path) -> None:
    """Check that there is a file that can be read, more than once if need be; "-" is standard input."""
    if str(path) == "-":
        return
    if not path.exists():
        raise InvalidInputError(f"Expected a file with a table. Got {path}, which does not exist.")
    if path.is_dir():
        raise InvalidInputError(f"Expected a file with a table. Got {path}, which is a folder. Name a file in it.")
    if not path.is_file():
        raise InvalidInputError(
            f"Expected a file with a table. Got {path}, which is not an ordinary file; save it first."
        )


def _name_source(path: str | Path) -> str:
    """Return what messages call a file, which may be read from a copy."""
    return "standard input" if str(path) == "-" else str(path)


def _check_n_rows(source: str, n_rows: int) -> None:
    if n_rows == 0:
        raise InvalidInputError(f"Expected a table with rows. Got {source}, which has no rows.")


def _open_in_place(path: Path) -> AbstractContextManager[Path]:
    """Return the file itself or, where it has to be unpacked or read to the end first, a temporary copy."""
    is_ordinary = str(path) != "-" and path.suffix.lower() not in COPIED
    return nullcontext(path) if is_ordinary else open_local(path)


def _find_format(path: Path, source: str) -> str:
    if path.stat().st_size == 0:
        raise InvalidInputError(f"Expected a file with a table. Got {source}, which is empty.")
    suffix = next((suffix for suffix in reversed(path.suffixes) if suffix.lower() in SUFFIXES), None)
    with path.open("rb") as file:
        begin = file.read(6)
    by_begin = "parquet" if begin[:4] == b"PAR1" else "arrow" if begin == b"ARROW1" else "csv"
    by_name = by_begin if suffix is None else SUFFIXES[suffix.lower()]
    return by_begin if by_name == "csv" else by_name


def _open_arrow(path: Path) -> Any:
    import pyarrow as pa

    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_stream(source)
    except pa.ArrowInvalid:
        file = pa.ipc.open_file(path)
        batches = (file.get_batch(index) for index in range(file.num_record_batches))
        return pa.RecordBatchReader.from_batches(file.schema, batches)


# --- CSV ---


class Dialect:
    """The way one file is written, and the options of pyarrow that read it.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size;price\\n1,5;10\\n2,5;\\n")
    >>> found = Dialect(path, None)
    >>> found.names, found.delimiter, found.decimal, found.encoding
    (['size', 'price'], ';', ',', 'utf8')
    """

    def __init__(
        self, path: Path, delimiter: str | None, source: str | None = None, *, allow_empty: bool = False
    ) -> None:
        self.path, self.source = path, source or str(path)
        with path.open("rb") as file:
            self.compression = "gzip" if file.read(2) == b"\x1f\x8b" else None
        with (gzip.open if self.compression else open)(path, "rb") as file:
            begin = file.read(_SNIFFED)
        if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise InvalidInputError(f"Expected text in UTF-8. Got {self.source}, which is in UTF-16. Save it as UTF-8.")
        if b"\0" in begin:
            raise InvalidInputError(
                f"Expected a table in CSV, Parquet or Arrow. Got {self.source}, which is none of them."
            )
        text, self.encoding = _decode(begin)
        self.skipped_lines, text, announced = _skip_preamble(text)
        # A delimiter between quotes is part of a cell.
        bare = [line for line in re.sub(r'"[^"]*"', '""', text).splitlines() if line.strip()]
        if not bare:
            raise InvalidInputError(f"Expected a table with a header line. Got {self.source}, which holds no text.")
        self.is_empty = len(bare) == 1 and len(begin) < _SNIFFED
        if self.is_empty and not allow_empty:
            raise InvalidInputError(
                f"Expected rows below the header. Got {self.source}, which has a header and no rows."
            )
        # Where several are equally frequent, the first in the list is taken.
        self.delimiter = (
            _check_delimiter(delimiter)
            or announced
            or max(_DELIMITERS, key=lambda mark: min(line.count(mark) for line in bare[:2]))
        )
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter)
        header = next(row for row in lines if any(cell.strip() for cell in row))
        self.names = [name.strip() or f"column_{place}" for place, name in enumerate(header, start=1)]
        check_unique_names(self.source, self.names)
        self.header_lines = self.skipped_lines + lines.line_num
        self._begin = text
        # Commas and points that are surely before decimals; where commas delimit, decimals have points.
        n_commas, n_points = (0, 1) if self.delimiter == "," else _count_decimal_marks(text, self.delimiter)
        self.decimal = "," if n_commas > n_points else "."
        self.is_certain = n_commas + n_points > 0

    def find_codes(self, names: Collection[str]) -> set[str]:
        """Return those columns in which the file begins with numbers like 007, which lose their zeros as numbers."""
        return {
            name
            for name, cells in self._glance(names).items()
            if any(re.fullmatch(r"\s*0\d+\s*", cell) for cell in cells)
        }

    def find_grouped(self, names: Collection[str]) -> set[str]:
        """Return those columns in which the file begins with thousands like 1.234, which are no decimals."""
        if self.is_certain:
            return set()
        pandas, glanced = import_pandas(), self._glance(names).items()
        texts = {name: pandas.Series([cell.strip() for cell in cells if cell], dtype=object) for name, cells in glanced}
        return {name for name, each in texts.items() if len(each) and groups_thousands(each, ".")}

    def _glance(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the first cells of some columns."""
        rows = csv.reader(io.StringIO(self._begin, newline=""), delimiter=self.delimiter)
        first = [row for row in islice(rows, 1, _N_GLANCED) if len(row) == len(self.names)]
        return {name: [row[place] for row in first] for place, name in enumerate(self.names) if name in names}

    def read_batches(self, types: dict[str, Any]) -> Iterator[Any]:
        """Yield the columns with these types as Arrow batches."""
        import pyarrow.csv as arrow_csv

        with self._open() as source:
            yield from arrow_csv.open_csv(source, *self._make_options(types, only_these=True))

    def read(self, types: dict[str, Any], *, only_these: bool = False) -> Any:
        """Return all rows as an Arrow table; the types of columns that are not given are found from their cells."""
        import pyarrow.csv as arrow_csv

        with self._open() as source:
            return arrow_csv.read_csv(source, *self._make_options(types, only_these=only_these))

    def _open(self) -> Any:
        import pyarrow as pa

        return pa.input_stream(str(self.path), compression=self.compression)

    def _make_options(self, types: dict[str, Any], *, only_these: bool) -> tuple[Any, Any, Any]:
        import pyarrow.csv as arrow_csv

        return (
            arrow_csv.ReadOptions(
                block_size=_BLOCK_BYTES,
                skip_rows=self.header_lines,
                column_names=self.names,
                encoding=self.encoding,
            ),
            arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types) if only_these else None,
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                decimal_point=self.decimal,
            ),
        )


def _decode(begin: bytes) -> tuple[str, str]:
    try:
        # The last character may be cut in two.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(begin), "utf8"
    except UnicodeDecodeError:
        return begin.decode("cp1252", errors="replace"), "cp1252"


def _skip_preamble(text: str) -> tuple[int, str, str | None]:
    """Return how many lines come before the header, the text from there on, and the delimiter that they name.

    Spreadsheets write `sep=;` first, and instruments write lines that begin with #. A header may begin with # too: it
    has as many delimiters as the line below it.
    """
    lines, n_skipped, announced = text.splitlines(keepends=True), 0, None
    for line, below in pairwise([*lines, ""]):
        found = re.fullmatch(r'"?sep=(.)"?\s*', line, re.IGNORECASE)
        if found:
            announced = found[1]
        elif not line.startswith("#") or _has_same_delimiters(line, below):
            break
        n_skipped += 1
    return n_skipped, "".join(lines[n_skipped:]), announced


def _has_same_delimiters(line: str, other: str) -> bool:
    counts = [line.count(mark) for mark in _DELIMITERS]
    return any(counts) and counts == [other.count(mark) for mark in _DELIMITERS] and not other.startswith("#")


def _check_delimiter(delimiter: str | None) -> str | None:
    if delimiter == r"\t":  # as it is typed in a shell
        return "\t"
    if delimiter is not None and (len(delimiter.encode()) != 1 or delimiter in '"\r\n'):
        raise InvalidInputError(f"Expected a delimiter of one character, such as ; or \\t. Got {delimiter!r}.")
    return delimiter


def _count_decimal_marks(text: str, delimiter: str) -> tuple[int, int]:
    """Return how many cells surely have a decimal comma, as 1,5 and 1.234,5 do, and how many a decimal point.

    1,234 and 1.234 can be thousands as well, and say nothing.
    """
    mark = re.escape(delimiter)
    cells = re.findall(rf'(?:^|{mark}) *"?[+-]?(\d[\d.,]*)"? *(?={mark}|[\r\n]|$)', text, re.MULTILINE)
    marked = [cell for cell in cells if "," in cell or "." in cell]
    swapped = [cell.translate(str.maketrans(",.", ".,")) for cell in marked]
    return tuple(sum(_has_decimal_comma(cell) for cell in each) for each in (marked, swapped))  # type: ignore


def _has_decimal_comma(cell: str) -> bool:
    if re.fullmatch(r"\d+,\d+", cell):
        return re.fullmatch(r"[1-9]\d{0,2},\d{3}", cell) is None
    return re.fullmatch(r"[1-9]\d{0,2}(\.\d{3}){2,}|[1-9]\d{0,2}(\.\d{3})+,\d+", cell) is not None


def _read_csv(dialect: Dialect, columns: Sequence[Column]) -> Any:
    """Return all columns of a file as an Arrow table; the given ones are read as the kind that they have."""
    import pyarrow as pa

    wanted = select_columns(dialect.source, dialect.names, columns)
    types = _choose_types(wanted)
    with _locate_bad_number(dialect):
        table = dialect.read(types)
        whole = {field.name for field in table.schema if pa.types.is_integer(field.type)} - set(types)
        again = {field.name for field in table.schema if pa.types.is_time(field.type)} | dialect.find_codes(whole)
        again |= dialect.find_grouped(
            {each.name for each in table.schema if pa.types.is_floating(each.type)} - set(types)
        )
        if again:  # as text, which is how batches are read
            table = dialect.read(types | dict.fromkeys(again, pa.string()))
    return _replace_decimal_commas(table, dialect, kept=_list_kept(wanted, keys=False))


def _read_csv_batches(dialect: Dialect, columns: Sequence[Column]) -> Iterator[Any]:
    """Yield the given columns of a file as Arrow batches."""
    wanted = select_columns(dialect.source, dialect.names, columns)
    if dialect.is_empty:
        return
    with _locate_bad_number(dialect):
        for batch in dialect.read_batches(_choose_types(wanted)):
            yield _replace_decimal_commas(batch, dialect, kept=_list_kept(wanted, keys=True))


def _list_kept(columns: Sequence[Column], *, keys: bool) -> list[str]:
    """Return the columns whose text stays as it is: numbers with a style of their own and, if asked for, keys."""
    return [column.name for column in columns if column.thousands or column.unit or (keys and column.kind == "key")]


@contextmanager
def _locate_bad_number(dialect: Dialect) -> Generator[None]:
    """Raise an error that names the column and the row of a cell that is not a number."""
    import pyarrow as pa

    found = None
    try:
        yield
    except pa.ArrowInvalid as error:
        _raise_ragged(dialect)
        found = re.match(r"In CSV column #(\d+):.* conversion error to .*: invalid value '(.*)'", str(error), re.DOTALL)
        if found is None:
            raise
    if found is not None:
        # The reader does not always say which row it is, so the column is read again, as text.
        name, value = dialect.names[int(found[1])], found[2]
        cells = dialect.read({name: pa.string()}, only_these=True)[name].to_pandas()
        row = int((cells == value).argmax())
        is_open = re.fullmatch(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*", value) is not None
        advice = (
            "It can be a decimal comma or a thousand: write it without, or with a decimal point." if is_open else ""
        )
        raise_problems([Problem(name, row, "a number", show_value(value))], source=dialect.source, advice=advice)


def _raise_ragged(dialect: Dialect) -> None:
    """Raise an error that names the first line with more or fewer cells than the header, if there is one.

    A header of one cell has another delimiter, and the line says nothing.
    """
    if len(dialect.names) == 1:
        return
    begin = gzip.open if dialect.compression else open
    encoding = "utf-8-sig" if dialect.encoding == "utf8" else dialect.encoding
    with begin(dialect.path, "rt", encoding=encoding, errors="replace", newline="") as file:
        for _ in range(dialect.skipped_lines):
            next(file)
        rows = csv.reader(file, delimiter=dialect.delimiter)
        for row in rows:
            if row and len(row) != len(dialect.names):
                raise InvalidInputError(
                    f"Expected {len(dialect.names)} cells in every row of {dialect.source}, as in the header. Got "
                    f"{len(row)} in line {dialect.skipped_lines + rows.line_num}: "
                    f"{show_value(dialect.delimiter.join(row))}. Fix the line; a cell that holds the delimiter needs "
                    "quotes around it."
                )


def _choose_types(columns: Sequence[Column]) -> dict[str, Any]:
    import pyarrow as pa

    return {
        column.name: pa.float64() if column.kind == "number" and not column.written_as_text else pa.string()
        for column in columns
    }


def _replace_decimal_commas(table: Any, dialect: Dialect, *, kept: Sequence[str]) -> Any:
    """Return the table with plain numbers in cells of text such as 1,5 and 1.234,5; some columns stay as they are."""
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute

    if dialect.decimal == ",":
        for place, field in enumerate(table.schema):
            if pa.types.is_string(field.type) and field.name not in kept:
                is_grouped = compute.match_substring_regex(table[place], r"^\s*[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?\s*$")
                cells = compute.if_else(is_grouped, compute.replace_substring(table[place], ".", ""), table[place])
                cells = compute.replace_substring_regex(cells, r"^(\s*[+-]?\d+),(\d+\s*)$", r"\1.\2")
                table = table.set_column(place, field.name, cells)
    return table
