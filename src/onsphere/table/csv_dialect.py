"""How a CSV file is written: encoding, delimiter, names of the columns and decimal point, from its first lines."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from pathlib import Path
from typing import Any

from onsphere._internal.validation import check_unique_names
from onsphere.errors import InvalidInputError

__all__ = ["Dialect"]

_BLOCK_BYTES = 2**24
_SNIFFED = 2**22
_DELIMITERS = ",;\t|"


class Dialect:
    """How one file is written, and the options of pyarrow that read it.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size;price\\n1,5;10\\n2,5;\\n")
    >>> found = Dialect(path, None)
    >>> found.names, found.delimiter, found.decimal, found.encoding
    (['size', 'price'], ';', ',', 'utf8')
    """

    def __init__(self, path: Path, delimiter: str | None) -> None:
        self.compression = "gzip" if _is_packed(path) else None
        with (gzip.open if self.compression else open)(path, "rb") as file:
            begin = file.read(_SNIFFED)
        if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise InvalidInputError(f"Expected text in UTF-8. Got {path}, which is in UTF-16. Save it as UTF-8.")
        if b"\0" in begin:
            raise InvalidInputError(f"Expected a table in CSV, Parquet or Arrow. Got {path}, which is none of them.")
        text, self.encoding = _decoded(begin)
        # Whatever is between quotes separates nothing.
        bare = [line for line in re.sub(r'"[^"]*"', '""', text).splitlines() if line.strip()]
        if not bare:
            raise InvalidInputError(f"Expected a table with a header line. Got {path}, which holds no text.")
        if len(bare) == 1 and len(begin) < _SNIFFED:
            raise InvalidInputError(f"Expected rows below the header. Got {path}, which has a header and no rows.")
        # Of equal counts the first of the list is taken.
        self.delimiter = _checked_delimiter(delimiter) or max(
            _DELIMITERS, key=lambda mark: min(line.count(mark) for line in bare[:2])
        )
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter)
        header = next(row for row in lines if any(cell.strip() for cell in row))
        self.names = [name.strip() or f"column_{place}" for place, name in enumerate(header, start=1)]
        check_unique_names(str(path), self.names)
        self.header_lines = lines.line_num
        self.decimal = "," if self.delimiter != "," and _prefers_comma(text, self.delimiter) else "."

    def reading(self) -> Any:
        """Where the rows begin, and what the columns are called."""
        import pyarrow.csv as arrow_csv

        options = {"skip_rows": self.header_lines, "column_names": self.names, "encoding": self.encoding}
        return arrow_csv.ReadOptions(block_size=_BLOCK_BYTES, **options)

    def parsing(self) -> Any:
        """Where cells begin and end."""
        import pyarrow.csv as arrow_csv

        return arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)

    def converting(self, types: dict[str, Any], *, only_these: bool = False) -> Any:
        """What cells become; the types of other columns are found from their cells."""
        import pyarrow.csv as arrow_csv

        return arrow_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types) if only_these else None,
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            decimal_point=self.decimal,
        )


def _is_packed(path: Path) -> bool:
    """Whether a file is gzip, by how it begins."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _decoded(begin: bytes) -> tuple[str, str]:
    try:
        # The last character may be cut in two.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(begin), "utf8"
    except UnicodeDecodeError:
        return begin.decode("cp1252", errors="replace"), "cp1252"


def _checked_delimiter(delimiter: str | None) -> str | None:
    if delimiter == r"\t":  # as it is typed in a shell
        return "\t"
    if delimiter is not None and (len(delimiter.encode()) != 1 or delimiter in '"\r\n'):
        raise InvalidInputError(f"Expected a delimiter of one character, such as ; or \\t. Got {delimiter!r}.")
    return delimiter


def _prefers_comma(text: str, delimiter: str) -> bool:
    """Whether more cells are written like 1,5 than like 1.5."""
    mark = re.escape(delimiter)
    marks = re.findall(rf'(?:^|{mark}) *"?[+-]?\d+([.,])\d+"? *(?={mark}|[\r\n]|$)', text, re.MULTILINE)
    return marks.count(",") > marks.count(".")
