"""Read cells: the only place where what a file or a request gives becomes a value.

A column's kind says what its cells become: numbers are float64 with NaN for missing, booleans are 0 and 1, dates are
seconds since 1970 (UTC), and categories are an object array of str with None for missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError
from onsphere.table.number_styles import NumberStyle, normalize_signs, parse_styled_numbers

if TYPE_CHECKING:
    from onsphere.table.columns import Column

__all__ = [
    "EPOCHS",
    "LARGEST",
    "LONGEST_TEXT",
    "Cells",
    "Problem",
    "describe_expected",
    "describe_problems",
    "import_pandas",
    "is_spelled",
    "is_unicode",
    "normalize_type",
    "parse_as",
    "parse_dates",
    "parse_numbers",
    "raise_problems",
    "read_cells",
    "read_features",
    "show_value",
    "spell_dates",
]

LARGEST = 3.4e38  # trees and networks count in single precision and take no larger number
_LIMIT = f"a number of size {LARGEST:g} at most"
LONGEST_TEXT = 1_000  # characters; longer text is no category
EPOCHS = {"epoch s": "seconds", "epoch ms": "milliseconds"}  # formats of dates that are numbers
_YEAR_1, _YEAR_9999 = -62_135_596_800, 253_402_300_799  # seconds since 1970: the first and the last that text can write
_TRUTH = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
_JSON_TYPES: dict[str, set[type]] = {"number": {int, float}, "boolean": {bool}, "category": {str}, "date": {str}}
_LONGEST_SHOWN = 60  # characters of a value in a message


class Problem(NamedTuple):
    """A cell that cannot be read: where it is, what was expected and what came."""

    column: str | None
    row: int | None
    expected: str
    got: str


class Cells(NamedTuple):
    """The values of a column, missing where there is a problem, and the problems by row."""

    values: NDArray[Any]
    problems: list[Problem]


def read_cells(column: Column, raw: Any, *, strict: bool = False) -> Cells:
    """Read the cells of a column as values of its kind.

    Values that were read before (float64, or an object array of str and None) pass through unchanged.

    Parameters
    ----------
    column : Column
        Its kind is one to learn from: number, boolean, category or date.
    raw : pandas Series, numpy array, list or pyarrow array
    strict : bool, default False
        Check what a request sends. Text has a largest size, and the cells of a list, which come from JSON, must have
        the JSON type of the column. Otherwise read what a file holds, as leniently as it was at fit.

    Examples
    --------
    >>> from onsphere.table import Column
    >>> values, problems = read_cells(Column("size", "number"), ["1.5", None, "abc"])
    >>> values.tolist(), problems
    ([1.5, nan, nan], [Problem(column='size', row=2, expected='a number', got="the text 'abc'")])
    >>> read_cells(Column("size", "number"), ["1.5", None], strict=True).problems
    [Problem(column='size', row=0, expected='a number', got="the text '1.5'")]
    """
    problems: list[Problem] = []
    if strict and isinstance(raw, list):
        raw, problems = _check_json_types(column, raw)
        if not problems and (column.kind == "category" or raw.dtype == np.float64):
            return _read_plain_cells(column, raw)
    series = _to_series(raw)
    # Arrow tells a NaN that was sent from a cell that was left out.
    given = np.array(raw.is_valid() if strict and _is_arrow(raw) else series.notna(), dtype=bool)
    if strict and series.dtype.kind not in "biufM":
        series, unfit = _check_texts(column, series)
        given &= np.asarray(series.notna(), dtype=bool)
        problems += unfit
    match column.kind:
        case "category":
            values, faults = _trim(_to_texts(series)), []
        case "date":
            values, faults = _read_dates(column, series, given)
        case _:
            values, faults = _read_numbers(column, series, given, strict)
    for wrong, expected in faults:
        rows = np.flatnonzero(wrong).tolist()
        if rows:
            values = np.where(wrong, np.nan, values)
            cells = series.iloc[rows].tolist()
            problems += [
                Problem(column.name, row, expected, show_value(cell)) for row, cell in zip(rows, cells, strict=True)
            ]
    return Cells(values, sorted(problems, key=lambda problem: problem.row or 0))


def read_features(frame: Any, columns: Sequence[Column], *, source: str | None = None) -> Any:
    """Return the columns that are learned from as a DataFrame of their values, or raise what cannot be read.

    Parameters
    ----------
    frame : DataFrame
        Problems name its rows by its index.
    columns : sequence of Column
    source : str, optional
        The file that the rows are from.
    """
    features = [column for column in columns if column.is_feature]
    cells = {column.name: read_cells(column, frame[column.name]) for column in features}
    raise_problems([problem for each in cells.values() for problem in each.problems], index=frame.index, source=source)
    pandas = import_pandas()
    series = {name: pandas.Series(each.values, frame.index, each.values.dtype) for name, each in cells.items()}
    return pandas.DataFrame(series, index=frame.index)


def raise_problems(
    problems: Sequence[Problem], *, index: Sequence[Any] | None = None, source: str | None = None, advice: str = ""
) -> None:
    """Raise an error about the first of some problems, if there are any; see `describe_problems`."""
    if problems:
        advice = advice or "Fix the value, or leave the cell empty where it is not known."
        raise InvalidInputError(f"{describe_problems(problems, index=index, source=source)} {advice}")


def describe_problems(
    problems: Sequence[Problem], *, index: Sequence[Any] | None = None, source: str | None = None, n_more: int = 0
) -> str:
    """Return a sentence on the first of some problems, and how many more there are.

    Parameters
    ----------
    problems : sequence of Problem
        At least one.
    index : sequence, optional
        The name of each row; by default its number.
    source : str, optional
        The file that the rows are from.
    n_more : int, default 0
        How many problems there are that are not in the sequence.

    Examples
    --------
    >>> describe_problems([Problem("size", 2, "a number", "the text 'abc'")])
    "Expected a number in the column size, row 2 (counted from 0). Got the text 'abc'."
    """
    name, row, expected, got = problems[0]
    column = "" if name is None else f" in the column {name}"
    file = "" if source is None else f" of {source}"
    place = "" if row is None else f", row {row if index is None else index[row]} (counted from 0)"
    n_more += len(problems) - 1
    more = f" {n_more:,} more like this." if n_more else ""
    return f"Expected {expected}{column}{file}{place}. Got {got}.{more}"


def describe_expected(column: Column) -> str:
    """Return what the cells of a column must be, for a message."""
    match column.kind:
        case "number":
            return "a number"
        case "boolean":
            return "true or false"
        case "date":
            written = "2024-01-31" if column.date_format in (None, "ISO8601") else column.date_format
            return f"a date, written as {written}"
        case _:
            return "text"


def show_value(value: Any) -> str:
    """Return a short form of a value for a message: its type and how it begins.

    Examples
    --------
    >>> [show_value(value) for value in (None, True, 1.5, "abc", [1])]
    ['nothing', 'true', 'the number 1.5', "the text 'abc'", 'a list']
    """
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int():
            return f"the number {value}" if abs(value) < 10**20 else "a whole number of more than 20 digits"
        case float():
            return f"the number {float(value)!r}"
        case str():
            return f"the text {_shorten(value)!r}"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            try:
                return _shorten(str(value))
            except NotImplementedError:  # pandas cannot write years beyond 1 to 9999, but numpy can
                return str(value.to_numpy())


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _check_json_types(column: Column, cells: list[Any]) -> tuple[Any, list[Problem]]:
    """Return the cells of a request with None for those of a wrong type, and a problem for each of these."""
    fitting = _JSON_TYPES[column.kind] | ({str} if column.written_as_text else set()) | {type(None)}
    types = set(map(type, cells))
    problems: list[Problem] = []
    if not types <= fitting or int in types:
        for row, cell in enumerate(cells):
            if type(cell) not in fitting:
                problems.append(Problem(column.name, row, describe_expected(column), show_value(cell)))
            elif type(cell) is int and abs(cell) > LARGEST:  # which may be too large for a float
                problems.append(Problem(column.name, row, _LIMIT, show_value(cell)))
        wrong = {problem.row for problem in problems}
        cells = [None if row in wrong else cell for row, cell in enumerate(cells)] if wrong else cells
        types &= fitting
    dtype = object if str in types or column.kind in ("category", "date") else np.float64
    return np.array(cells, dtype=dtype), problems


def _read_plain_cells(column: Column, raw: NDArray[Any]) -> Cells:
    """Read numbers, booleans and categories of JSON, which are values already, without pandas: it takes far longer."""
    if column.kind == "category":
        problems = []
        if any(_check_text(column, 0, text) for text in set(raw.tolist())):  # few different ones, as a rule
            problems = [problem for row, text in enumerate(raw.tolist()) if (problem := _check_text(column, row, text))]
        for problem in problems:
            raw[problem.row] = None
        return Cells(_trim(raw), problems)
    large = np.flatnonzero(np.abs(raw) > LARGEST).tolist()
    problems = [Problem(column.name, row, _LIMIT, show_value(raw[row].item())) for row in large]
    raw[large] = np.nan
    return Cells(raw, problems)


def _check_texts(column: Column, series: Any) -> tuple[Any, list[Problem]]:
    """Return the cells without text that is too long or not Unicode, and a problem for each of these."""
    problems = [problem for row, text in enumerate(series.tolist()) if (problem := _check_text(column, row, text))]
    if problems:
        series = series.astype(object)
        series.iloc[[problem.row for problem in problems]] = None
    return series, problems


def _check_text(column: Column, row: int, text: Any) -> Problem | None:
    if not isinstance(text, str):
        return None
    if len(text) > LONGEST_TEXT:
        expected, got = f"text of at most {LONGEST_TEXT:,} characters", f"{len(text):,} characters"
        return Problem(column.name, row, expected, got)
    return None if is_unicode(text) else Problem(column.name, row, "text", "half of a surrogate pair")


def is_unicode(text: str) -> bool:
    """Return whether a text can be written: JSON can hold half of a pair of surrogates, which cannot."""
    try:
        return text.isascii() or bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def _read_numbers(column: Column, series: Any, given: Any, strict: bool) -> tuple[Any, list[Any]]:
    """Return numbers, and which cells are wrong with what was expected instead."""
    if series.dtype.kind in "biuf":
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        texts = import_pandas().Series(_to_texts(series), dtype=object)
        is_boolean = column.kind == "boolean"
        read = texts.str.strip().str.lower().map(_TRUTH) if is_boolean else parse_as(column, texts)
        numbers = np.asarray(read, dtype=np.float64)
    unread = given & np.isnan(numbers) & (not column.mixed)
    is_infinite = np.isinf(numbers)
    return numbers, [
        (unread, describe_expected(column)),
        (is_infinite, _LIMIT if strict else "a finite number"),
        (~is_infinite & (np.abs(numbers) > LARGEST), _LIMIT),
    ]


def parse_as(column: Column, texts: Any) -> Any:
    """Return the numbers that a pandas Series of text holds as this column writes them, NaN for anything else."""
    if column.thousands or column.unit:
        return parse_styled_numbers(texts, NumberStyle(column.thousands, column.unit))
    numbers = parse_numbers(texts)
    return numbers.fillna(parse_numbers(normalize_signs(texts))) if numbers.isna().any() else numbers


def _read_dates(column: Column, series: Any, given: Any) -> tuple[Any, list[Any]]:
    """Return seconds since 1970, and which cells are wrong with what was expected instead."""
    if series.dtype.kind == "f" or (series.dtype.kind in "iu" and column.date_format in EPOCHS):
        seconds = series.to_numpy(dtype=np.float64, na_value=np.nan)
        if column.date_format == "epoch ms":
            # Unless they were read before: seconds as large would be beyond the year 5000.
            seconds = np.where(np.abs(seconds) > 1e11, seconds / 1e3, seconds)
        return seconds, []
    if series.dtype.kind != "M":
        texts = import_pandas().Series(_to_texts(series), dtype=object)
        series = parse_dates(texts, column.date_format or "ISO8601")
        if series.isna().any() and column.date_format not in (None, "ISO8601", *EPOCHS):
            # A date of Excel, or one with the year first, is certain however others are written.
            is_certain = texts.str.match(r"\s*\d{4}-\d\d-\d\d", na=False)
            series = series.fillna(parse_dates(texts.where(is_certain), "ISO8601"))
    moments = series.dt.tz_localize(None) if series.dt.tz is None else series.dt.tz_convert("UTC").dt.tz_localize(None)
    moments = moments.to_numpy()
    seconds = moments.astype("datetime64[s]").astype(np.int64)
    known = ~np.isnat(moments)
    far = known & ((seconds < _YEAR_1) | (seconds > _YEAR_9999))
    moments = np.where(far, np.datetime64("NaT"), moments).astype("datetime64[us]")  # finer ones end in the year 2262
    values = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 1e6)
    unread = given & ~known & (not column.mixed)
    return values, [(unread, describe_expected(column)), (far, "a date of the years 1 to 9999")]


def _to_texts(series: Any) -> NDArray[Any]:
    """Return the cells as an object array of str, with None for missing."""
    missing = np.asarray(series.isna(), dtype=bool)
    if import_pandas().api.types.infer_dtype(series, skipna=True) not in ("string", "empty"):
        series = series.astype(str)
    texts = np.asarray(series, dtype=object)
    if missing.any():
        texts = texts.copy()
        texts[missing] = None
    return texts


def _trim(texts: NDArray[Any]) -> NDArray[Any]:
    """Return texts without spaces around them."""
    trimmed = np.empty(len(texts), dtype=object)
    trimmed[:] = [None if text is None else text.strip() for text in texts.tolist()]
    return trimmed


def parse_numbers(texts: Any) -> Any:
    """Return the numbers that a pandas Series of text holds, NaN where it holds something else."""
    return import_pandas().to_numeric(texts, errors="coerce")


def parse_dates(texts: Any, date_format: str) -> Any:
    """Return the dates that a pandas Series of text holds, NaT where it holds something else."""
    if date_format in EPOCHS:
        unit: Any = date_format.removeprefix("epoch ")
        return import_pandas().to_datetime(parse_numbers(texts), unit=unit, errors="coerce", utc=True)
    return import_pandas().to_datetime(texts.str.strip(), format=date_format, errors="coerce", utc=True)


def spell_dates(frame: Any, columns: Sequence[Column]) -> Any:
    """Return a table as it came with dates that are whole numbers, such as 20240131, as text.

    Numbers in a column of dates are seconds once they are read, so this comes before.
    """
    spelled = {
        column.name: frame[column.name].map("{:.0f}".format, na_action="ignore").astype(object)
        for column in columns
        if is_spelled(column) and column.name in frame.columns and frame[column.name].dtype.kind in "iuf"
    }
    return frame.assign(**spelled) if spelled else frame


def is_spelled(column: Column) -> bool:
    """Return whether a column holds dates in a format, which is that of text."""
    return column.kind == "date" and column.date_format not in EPOCHS


def _is_arrow(raw: Any) -> bool:
    return hasattr(raw, "is_valid")


def _to_series(raw: Any) -> Any:
    pandas = import_pandas()
    if isinstance(raw, pandas.Series):
        return raw
    if _is_arrow(raw):
        return pandas.Series(raw.cast(normalize_type(raw.type)).to_pandas())
    is_object = isinstance(raw, list) or raw.dtype == object
    return pandas.Series(raw, dtype=object if is_object else None, copy=False)


def normalize_type(kind: Any) -> Any:
    """Return the Arrow type to cast to before values go to pandas: text stays text, and numbers become numpy's."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_date(kind):
        return pa.timestamp("ms")
    if pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_null(kind):
        return pa.string()
    return kind


def import_pandas() -> Any:
    """Return the package, or raise an error that names the extra that installs it."""
    try:
        import pandas as pd
    except ImportError:
        raise missing_extra_error("A table with columns", "pandas", "cli") from None
    return pd
