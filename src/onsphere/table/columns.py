"""What the columns of a table hold, and how they become numbers."""

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
    "check_features",
    "check_frame",
    "check_has",
    "describe_columns",
    "described",
    "first_of",
    "is_column",
    "listed",
    "parse_column",
]

# The first four are learned from; keys name rows, and are written beside predictions.
KINDS = ("number", "boolean", "category", "date", "key", "unused")

# The last three are what pandas and the reader of CSV call an index without a name.
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
_MOSTLY = 0.95  # of the values that decide what a column of text is
_N_LOOKED_AT = 10_000  # values, to find out how dates are written


@dataclass(frozen=True)
class Column:
    """A column: what it holds, and why it is taken so.

    Attributes
    ----------
    name : str
    kind : {"number", "boolean", "category", "date", "key", "unused"}
    note : str
        Where there is more to say.
    written_as_text : bool
        Numbers or booleans that came as text.
    date_format : str or None
        How dates that came as text are written.
    mixed : bool
        Whether there is other text among numbers or dates, which is read as missing; otherwise it is an error.
    """

    name: str
    kind: str
    note: str = ""
    written_as_text: bool = False
    date_format: str | None = None
    mixed: bool = False

    @property
    def is_feature(self) -> bool:
        """Whether it is learned from."""
        return self.kind in KINDS[:4]


def is_column(column: Any) -> bool:
    """Whether it says of a column what it should, whoever wrote it."""
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
    """What each column of a pandas DataFrame holds.

    Columns that cannot help are unused: constant ones, empty ones, free text. Columns that name rows are keys: text
    that is different in every row, and whole numbers that are and that count up or are called id or the like.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"id": [7, 3, 5], "day": ["2024-01-31", "2024-02-01", None], "site": ["x", "x", "x"]})
    >>> [(column.kind, column.note) for column in describe_columns(frame)]
    [('key', 'different in every row'), ('date', ''), ('unused', 'constant')]
    """
    check_frame(frame)
    return [described(name, frame[name]) for name in frame.columns]


def check_frame(frame: Any) -> None:
    """A table whose columns have different names, all of them text."""
    if not is_frame(frame):
        raise InvalidTypeError(f"Expected a DataFrame. Got {type(frame).__name__}. Pass pandas.DataFrame(rows).")
    check_unique_names("the table", frame.columns)
    for name in frame.columns:
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"Expected a table whose columns have text for names. Got {name!r}. Pass frame.rename(columns=str)."
            )


def check_has(what: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """That a table has the columns that a model needs."""
    missing = [name for name in needed if name not in set(names)]
    if missing:
        raise InvalidInputError(
            f"Expected the column(s) {listed(missing)} in {what}. Got {listed(names)}. Pass a table with the columns "
            "that the model was fitted on; where a CSV file has them, its --delimiter is another."
        )


def check_features(columns: Sequence[Column]) -> None:
    """That there is a column to learn from."""
    if not any(column.is_feature for column in columns):
        told = listed([f"{column.name} ({column.kind}, {column.note})" for column in columns])
        raise InvalidInputError(
            f"Expected a column to learn from. Got {told or 'no columns'}. Add columns that tell rows apart."
        )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first of them where there are many."""
    return ", ".join(names[:20]) + (f" … ({len(names):,} in all)" if len(names) > 20 else "")


def first_of(values: Any, rows: Any) -> str:
    """The first value of those rows, and where it is, in a sentence."""
    row = int(rows.argmax())
    return f"{values.iloc[[row]].tolist()[0]!r} in row {values.index[row]} (counted from 0)"


def described(name: str, values: Any) -> Column:
    """What one column holds."""
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
            return _described_text(name, present.astype(str), n_different, len(values))


def _counts_up(values: Any) -> bool:
    steps = np.diff(np.asarray(values, dtype=np.float64))
    return len(steps) > 1 and bool((steps == steps[0]).all())


def _described_text(name: str, present: Any, n_different: int, n_rows: int) -> Column:
    if set(present.str.lower()) <= {"true", "false"}:
        return Column(name, "boolean", written_as_text=True)
    different = n_different == n_rows > 2
    strange = present[parse_numbers(present).isna()]
    if _few(strange, present) and not (different and _KEY_NAME.search(name)):
        note = _note(strange) or "numbers written as text"
        return Column(name, "number", note, written_as_text=True, mixed=len(strange) > 0)
    some = present.sample(min(len(present), _N_LOOKED_AT), random_state=0)
    shares = {date_format: parse_dates(some, date_format).notna().mean() for date_format in _DATE_FORMATS}
    best = max(shares, key=lambda date_format: shares[date_format])
    strange = present[parse_dates(present, best).isna()]
    if _few(strange, present):
        ambiguous = shares[best] == shares.get(best.replace("%m/%d", "%d/%m")) and best.startswith("%m")
        notes = [
            "" if best == "ISO8601" else f"dates read as {best}" + (", month first" if ambiguous else ""),
            _note(strange),
        ]
        note = "; ".join(note for note in notes if note)
        return Column(name, "date", note, date_format=best, mixed=len(strange) > 0)
    if different:
        return Column(name, "key", "different in every row")
    if n_different > max(50, n_rows // 5):
        return Column(name, "unused", f"text with {n_different:,} different values")
    return Column(name, "category")


def _few(strange: Any, values: Any) -> bool:
    return len(strange) <= (1 - _MOSTLY) * len(values)


def _note(strange: Any) -> str:
    return f"text such as {strange.iloc[0]!r} is read as missing" if len(strange) else ""


pandas, to_dates, to_numbers = import_pandas, parse_dates, parse_numbers  # their old names
