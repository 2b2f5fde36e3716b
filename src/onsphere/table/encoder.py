"""A table with columns of all kinds as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from onsphere._internal.validation import Floats, check_fitted, check_number
from onsphere.errors import InvalidInputError
from onsphere.table.columns import (
    Column,
    check_features,
    check_frame,
    check_has,
    describe_columns,
    first_of,
    pandas,
    to_dates,
    to_numbers,
)

__all__ = ["DAY", "YEAR", "TableEncoder", "check_numbers", "plain_features", "plain_values", "typed_features"]

DAY, YEAR = 86_400.0, 365.2425  # seconds; days
_BOOLEANS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}


class TableEncoder(TransformerMixin, BaseEstimator):
    """Columns of a table as numbers: the first step of a pipeline whose next steps take numbers, and missing ones.

    Numbers stay as they are, and booleans become 0 and 1. A category becomes a column of zeros and ones for each of its
    most frequent values, and one for missing where it was; a value that was not seen in training, or was rare, is none
    of them. A date becomes days since 1970, day of the year, day of the week and hour. What is missing stays missing
    (NaN), except in categories. A row becomes the same numbers whatever rows come with it.

    Parameters
    ----------
    columns : sequence of Column, optional
        What the columns hold; by default `describe_columns` of the table in `fit`. Keys and unused ones are left out.
    max_levels : int, default 20
        How many values of a category get a column of their own.

    Attributes
    ----------
    columns_ : list of Column
        Those that are learned from.
    levels_ : dict of list of str
        The values of each category that have a column of their own.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"size": [1.5, 2.0, None], "shop": ["a", "b", "a"]})
    >>> encoder = TableEncoder().fit(frame)
    >>> encoder.transform(frame).tolist()
    [[1.5, 1.0, 0.0], [2.0, 0.0, 1.0], [nan, 1.0, 0.0]]
    >>> encoder.get_feature_names_out().tolist()
    ['size', 'shop=a', 'shop=b']
    """

    columns_: list[Column]
    levels_: dict[str, list[str]]

    def __init__(self, columns: Sequence[Column] | None = None, *, max_levels: int = 20) -> None:
        self.columns = columns
        self.max_levels = max_levels

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn which values the categories have."""
        check_number(self, "max_levels", self.max_levels, above=1, closed="left", whole=True)
        described = describe_columns(X) if self.columns is None else self.columns
        self.columns_ = [column for column in described if column.is_feature]
        check_features(described)
        self._check_there(X)
        self.n_features_in_ = len(X.columns)
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.levels_, self._missing_seen = {}, set[str]()
        for column in self.columns_:
            if column.kind == "category":
                text = as_text(X[column.name])
                counts = text.value_counts()
                ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
                self.levels_[column.name] = [str(level) for level, _ in ranked[: self.max_levels]]
                if bool(text.isna().any()):
                    self._missing_seen.add(column.name)
        return self

    def transform(self, X: Any) -> Floats:
        """The numbers, shape (n, p)."""
        check_fitted(self, "columns_")
        self._check_there(X)
        return np.column_stack([block for column in self.columns_ for block in self._blocks(column, X[column.name])])

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """A name for each number."""
        check_fitted(self, "columns_")
        names: list[str] = []
        for column in self.columns_:
            match column.kind:
                case "category":
                    names += [f"{column.name}={level}" for level in self.levels_[column.name]]
                    names += [f"{column.name} is missing"] if column.name in self._missing_seen else []
                case "date":
                    names += [f"{column.name}: {part}" for part in ("days", "day of year", "weekday", "hour")]
                case _:
                    names.append(column.name)
        return np.asarray(names, dtype=object)

    def _blocks(self, column: Column, values: Any) -> list[Floats]:
        match column.kind:
            case "category":
                text = as_text(values)
                levels = self.levels_[column.name]
                codes = np.asarray(text.map(dict(zip(levels, range(len(levels)), strict=True))), dtype=np.float64)
                blocks = [(codes == code).astype(np.float64) for code in range(len(levels))]
                if column.name in self._missing_seen:
                    blocks.append(np.asarray(text.isna(), dtype=np.float64))
                return blocks
            case "date":
                return _calendar(seconds_of(column, values))
            case _:
                return [numbers_of(column, values)]

    def _check_there(self, X: Any) -> None:
        check_frame(X)
        check_has("the table", list(X.columns), [column.name for column in self.columns_])


def check_numbers(frame: Any, columns: Sequence[Column]) -> None:
    """That columns of numbers hold finite ones or nothing; models ask the same, but cannot name the row."""
    for column in columns:
        if column.kind == "number":
            numbers_of(column, frame[column.name])


def plain_features(frame: Any, columns: Sequence[Column]) -> Any:
    """The columns that are learned from, in one form however they came: numbers, with dates in seconds, or text."""
    plain = {column.name: plain_values(column, frame[column.name]) for column in columns if column.is_feature}
    return pandas().DataFrame(plain, index=frame.index)


def typed_features(frame: Any, columns: Sequence[Column]) -> Any:
    """The columns that are learned from, with dates and numbers that came as text read for what they are."""
    readers = {"date": _dates, "number": numbers_of}
    features = [column for column in columns if column.is_feature]
    typed = {each.name: readers[each.kind](each, frame[each.name]) for each in features if each.kind in readers}
    return frame[[each.name for each in features]].assign(**typed)


def plain_values(column: Column, values: Any) -> Any:
    """Numbers with NaN for missing, dates in seconds since 1970, or text."""
    match column.kind:
        case "category":
            return as_text(values)
        case "date":
            return seconds_of(column, values)
        case _:
            return numbers_of(column, values)


def as_text(values: Any) -> Any:
    """The values as text, missing ones as they are."""
    return values.astype(object).where(values.isna(), values.astype(str))


def numbers_of(column: Column, values: Any) -> Floats:
    """A column of numbers or booleans."""
    if values.dtype.kind in "biuf":
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        text = as_text(values)
        read = text.str.lower().map(_BOOLEANS) if column.kind == "boolean" else to_numbers(text)
        numbers = np.asarray(read, dtype=np.float64)
        _check_read(column, values, np.isnan(numbers), f"{column.kind}s")
    infinite = np.isinf(numbers)
    if infinite.any():
        raise _unreadable(column, values, infinite, "finite numbers")
    return numbers


def seconds_of(column: Column, values: Any) -> Floats:
    """Seconds since 1970, missing ones as NaN."""
    dates = _dates(column, values)
    written = "2024-01-31" if column.date_format in (None, "ISO8601") else column.date_format
    _check_read(column, values, np.asarray(dates.isna()), f"dates, written as {written},")
    moments = dates.dt.tz_localize(None).dt.as_unit("us").to_numpy()  # finer ones end in the year 2262
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 1e6)


def _dates(column: Column, values: Any) -> Any:
    return to_dates(values if values.dtype.kind == "M" else as_text(values), column.date_format or "ISO8601")


def _check_read(column: Column, values: Any, lost: Any, expected: str) -> None:
    """That all is read that is not missing, unless other text was among the values from the start."""
    strange = lost & np.asarray(values.notna())
    if strange.any() and not column.mixed:
        raise _unreadable(column, values, strange, expected)


def _unreadable(column: Column, values: Any, strange: Any, expected: str) -> InvalidInputError:
    return InvalidInputError(
        f"Expected {expected} in the column {column.name}. Got {first_of(values, strange)}. Mend it, or leave it empty "
        "where it is not known."
    )


def _calendar(seconds: Floats) -> list[Floats]:
    """Days, day of the year, weekday (Monday is 0) and hour: by arithmetic alone, so that any runtime can do it."""
    days = np.floor(seconds / DAY)
    return [seconds / DAY, days % YEAR, (days + 3) % 7, (seconds % DAY) / 3600]
