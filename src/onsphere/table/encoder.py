"""Turn a table with columns of all kinds into numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from onsphere._internal.validation import Floats, check_fitted, check_number
from onsphere.table.cells import raise_problems, read_cells
from onsphere.table.columns import Column, check_any_feature, check_frame, check_has, describe_columns

__all__ = ["DAY", "YEAR", "TableEncoder"]

DAY, YEAR = 86_400.0, 365.2425  # seconds; days


class TableEncoder(TransformerMixin, BaseEstimator):
    """Turns the columns of a table into numbers: the first step of a pipeline whose next steps take numbers and NaN.

    Numbers stay as they are, and booleans become 0 and 1. A category becomes a column of zeros and ones for each of its
    most frequent values, one for missing where some were, and a last one for all that has no column of its own: values
    that were rare or not seen in training, and missing ones where none were. Where that column is 0 in all of training,
    a row with a new value counts as novel. A date becomes days since 1970, day of the year, day of the week and hour.
    Missing values stay missing (NaN), except in categories. A row becomes the same numbers whatever other rows there
    are.

    Parameters
    ----------
    columns : sequence of Column, optional
        What the columns hold; by default `describe_columns` of the table in `fit`. Keys and unused ones are left out.
    max_levels : int, default 20
        How many values of a category get a column of their own.

    Attributes
    ----------
    columns_ : list of Column
        The columns that are learned from.
    levels_ : dict of list of str
        The values of each category that have a column of their own.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"size": [1.5, 2.0, None], "shop": ["a", "b", "a"]})
    >>> encoder = TableEncoder().fit(frame)
    >>> encoder.transform(frame).tolist()
    [[1.5, 1.0, 0.0, 0.0], [2.0, 0.0, 1.0, 0.0], [nan, 1.0, 0.0, 0.0]]
    >>> encoder.get_feature_names_out().tolist()
    ['size', 'shop=a', 'shop=b', 'shop is other']
    """

    columns_: list[Column]
    levels_: dict[str, list[str]]
    _has_other = False  # encoders of older files have no column for values without one

    def __init__(self, columns: Sequence[Column] | None = None, *, max_levels: int = 20) -> None:
        self.columns = columns
        self.max_levels = max_levels

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn which values the categories have."""
        check_number(self, "max_levels", self.max_levels, above=1, closed="left", whole=True)
        described = describe_columns(X) if self.columns is None else self.columns
        self.columns_ = [column for column in described if column.is_feature]
        check_any_feature(described)
        self._check_columns(X)
        self.n_features_in_ = len(X.columns)
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.levels_, self._missing_seen, self._has_other = {}, set[str](), True
        for column in self.columns_:
            if column.kind == "category":
                counts = Counter(read_cells(column, X[column.name]).values.tolist())
                if counts.pop(None, 0):
                    self._missing_seen.add(column.name)
                ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
                self.levels_[column.name] = [str(level) for level, _ in ranked[: self.max_levels]]
        return self

    def transform(self, X: Any) -> Floats:
        """Return the numbers, shape (n, p)."""
        check_fitted(self, "columns_")
        self._check_columns(X)
        return np.column_stack([block for column in self.columns_ for block in self._encode(column, X[column.name])])

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return a name for each number."""
        check_fitted(self, "columns_")
        names: list[str] = []
        for column in self.columns_:
            match column.kind:
                case "category":
                    names += [f"{column.name}={level}" for level in self.levels_[column.name]]
                    names += [f"{column.name} is missing"] if column.name in self._missing_seen else []
                    names += [f"{column.name} is other"] if self._has_other else []
                case "date":
                    names += [f"{column.name}: {part}" for part in ("days", "day of year", "weekday", "hour")]
                case _:
                    names.append(column.name)
        return np.asarray(names, dtype=object)

    def _encode(self, column: Column, cells: Any) -> list[Floats]:
        values, problems = read_cells(column, cells)
        raise_problems(problems, index=cells.index)
        match column.kind:
            case "category":
                levels = [*self.levels_[column.name], *([None] if column.name in self._missing_seen else [])]
                places = {level: place for place, level in enumerate(levels)}
                codes = np.array([places.get(text, -1) for text in values.tolist()])
                shown = [*places.values(), *([-1] if self._has_other else [])]
                return [(codes == place).astype(np.float64) for place in shown]
            case "date":
                return _split_date(values)
            case _:
                return [values]

    def _check_columns(self, X: Any) -> None:
        check_frame(X)
        check_has("the table", list(X.columns), [column.name for column in self.columns_])


def _split_date(seconds: Floats) -> list[Floats]:
    """Return days, day of the year, weekday (Monday is 0) and hour, by arithmetic that any runtime can do."""
    days = np.floor(seconds / DAY)
    return [seconds / DAY, days % YEAR, (days + 3) % 7, (seconds % DAY) / 3600]
