"""Find out what the columns of a table hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onsphere._internal.validation import check_unique_names, is_frame
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.table.cells import import_pandas, parse_dates, parse_numbers

__all__ = [
    "KINDS",
    "Column",
    "check_any_feature",
    "check_frame",
    "check_has",
    "describe_column",
    "describe_columns",
    "is_column",
    "join_names",
    "parse_column",
    "select_columns",
]

# The first four are learned from; keys name rows, and are written next to predictions.
KINDS = ("number", "boolean", "category", "date", "key", "unused")

# The last three are the names that pandas and our CSV reader give to an index without a name.
_KEY_NAME = re.compile(
    r"(^|[_\W])(id|uuid|guid|key|index|nr|no|row)$|^(__index_level_\d+__|unnamed: 0|column_1)$", re.IGNORECASE
)
_DATE_FORMATS = (
    "ISO8601",
    *(
        f"{day}{time}"
        for day in ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y")
        for time in ("", " %H:%M", " %H:%M:%S")
    ),
)
_MOSTLY = 0.95  # the share of values that decides what a column of text holds
_N_SAMPLED = 10_000  # values, to find out how dates are written


@dataclass(frozen=True)
class Column:
    """A column: its name, what it holds, and how it is written.

    Attributes
    ----------
    name : str
    kind : {"number", "boolean", "category", "date", "key", "unused"}
    note : str
        Why it was taken for this kind, where that needs saying.
    written_as_text : bool
        Whether numbers or booleans came as text.
    date_format : str or None
        The format of dates that came as text.
    mixed : bool
        Whether there was other text among numbers or dates at fit. If so, such text is read as missing; if not, it is
        an error.
    """

    name: str
    kind: str
    note: str = ""
    written_as_text: bool = False
    date_format: str | None = None
    mixed: bool = False

    @property
    def is_feature(self) -> bool:
        """Return whether it is learned from."""
        return self.kind in KINDS[:4]


def is_column(column: Any) -> bool:
    """Return whether it is a Column with valid fields, whoever wrote it."""
    return (
        isinstance(column, Column)
        and column.kind in KINDS
        and type(column.name) is type(column.note) is str
        and type(column.written_as_text) is type(column.mixed) is bool
        and _is_date_format(column.date_format)
    )


def parse_column(description: dict[str, Any]) -> Column | None:
    """Return the column that a dict describes, whoever wrote it, or None if it does not describe one."""
    try:
        column = Column(**description)
    except TypeError:
        return None
    return column if is_column(column) else None


def _is_date_format(date_format: Any) -> bool:
    if not isinstance(date_format, str):
        return date_format is None
    try:
        parse_dates(import_pandas().Series(["no date"]), date_format)
    except (ValueError, re.error):
        return False
    return True


def describe_columns(frame: Any) -> list[Column]:
    """Describe what each column of a pandas DataFrame holds.

    Columns that cannot help are unused: constant ones, empty ones, free text. Columns that name rows are keys: text
    that is different in every row, and whole numbers that are different too and count up, or have a name like id.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"id": [7, 3, 5], "day": ["2024-01-31", "2024-02-01", None], "site": ["x", "x", "x"]})
    >>> [(column.kind, column.note) for column in describe_columns(frame)]
    [('key', 'different in every row'), ('date', ''), ('unused', 'constant')]
    """
    check_frame(frame)
    return [describe_column(name, frame[name]) for name in frame.columns]


def check_frame(frame: Any) -> None:
    """Check that this is a table whose columns have different names, all of them text."""
    if not is_frame(frame):
        raise InvalidTypeError(f"Expected a DataFrame. Got {type(frame).__name__}. Pass pandas.DataFrame(rows).")
    check_unique_names("the table", frame.columns)
    for name in frame.columns:
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"Expected a table whose columns have text for names. Got {name!r}. Pass frame.rename(columns=str)."
            )


def select_columns(source: str, names: Sequence[str], columns: Sequence[Column]) -> list[Column]:
    """Return those of the columns that a table has; it must have all that are learned from, and no name twice."""
    check_unique_names(source, names)
    check_has(source, names, [column.name for column in columns if column.is_feature])
    return [column for column in columns if column.name in set(names)]


def check_has(source: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """Check that a table has the columns that a model needs."""
    missing = [name for name in needed if name not in set(names)]
    if missing:
        raise InvalidInputError(
            f"Expected the column(s) {join_names(missing)} in {source}. Got {join_names(names)}. Pass a table with the "
            "columns that the model was fitted on. If the CSV file has them, pass its delimiter, which was not found."
        )


def check_any_feature(columns: Sequence[Column]) -> None:
    """Check that there is a column to learn from."""
    if not any(column.is_feature for column in columns):
        found = join_names([f"{column.name} ({column.kind}, {column.note})" for column in columns])
        raise InvalidInputError(
            f"Expected a column to learn from. Got {found or 'no columns'}. Add columns whose values differ."
        )


def join_names(names: Sequence[str]) -> str:
    """Return names as a list in a sentence, only the first of them where there are many."""
    return ", ".join(names[:20]) + (f" … ({len(names):,} in all)" if len(names) > 20 else "")


def describe_column(name: str, values: Any) -> Column:
    """Describe what one column holds."""
    present = values.dropna()
    if len(present) == 0:
        return Column(name, "unused", "every value is missing")
    try:
        n_different = present.nunique()
    except TypeError:
        return Column(name, "unused", f"holds a {type(present.iloc[0]).__name__} in each row")
    if n_different == 1 and 1 < len(values) == len(present):
        return Column(name, "unused", "constant")
    match values.dtype.kind:
        case "b":
            return Column(name, "boolean")
        case "M":
            return Column(name, "date")
        case "i" | "u" if n_different == len(values) and (_KEY_NAME.search(name) or _counts_up(values)):
            return Column(name, "key", "different in every row")
        case "i" | "u" | "f":
            return Column(name, "number")
        case _ if str(values.dtype) == "category":
            return Column(name, "category")
        case _:
            return _describe_text(name, present.astype(str), n_different, len(values))


def _counts_up(values: Any) -> bool:
    steps = np.diff(np.asarray(values, dtype=np.float64))
    return len(steps) > 1 and bool((steps == steps[0]).all())


def _describe_text(name: str, present: Any, n_different: int, n_rows: int) -> Column:
    if set(present.str.lower()) <= {"true", "false"}:
        return Column(name, "boolean", written_as_text=True)
    different = n_different == n_rows > 2
    other = present[parse_numbers(present).isna()]
    if _is_few(other, present) and not (different and _KEY_NAME.search(name)):
        note = _note_other_text(other) or "numbers written as text"
        return Column(name, "number", note, written_as_text=True, mixed=len(other) > 0)
    some = present.sample(min(len(present), _N_SAMPLED), random_state=0)
    shares = {date_format: parse_dates(some, date_format).notna().mean() for date_format in _DATE_FORMATS}
    best = max(shares, key=lambda date_format: shares[date_format])
    other = present[parse_dates(present, best).isna()]
    if _is_few(other, present):
        ambiguous = shares[best] == shares.get(best.replace("%m/%d", "%d/%m")) and best.startswith("%m")
        notes = [
            "" if best == "ISO8601" else f"dates read as {best}" + (", month first" if ambiguous else ""),
            _note_other_text(other),
        ]
        note = "; ".join(note for note in notes if note)
        return Column(name, "date", note, date_format=best, mixed=len(other) > 0)
    if different:
        return Column(name, "key", "different in every row")
    if n_different > max(50, n_rows // 5):
        return Column(name, "unused", f"text with {n_different:,} different values")
    return Column(name, "category")


def _is_few(other: Any, values: Any) -> bool:
    return len(other) <= (1 - _MOSTLY) * len(values)


def _note_other_text(other: Any) -> str:
    return f"text such as {other.iloc[0]!r} is read as missing" if len(other) else ""
