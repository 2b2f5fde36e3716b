"""Turn a table with columns of all kinds into numbers, and find values that no training row had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from onsphere._internal.validation import Floats, check_fitted, check_number
from onsphere.table.cells import raise_problems, read_cells
from onsphere.table.columns import Column, check_any_feature, check_frame, check_has, describe_columns
from onsphere.table.level_places import place_levels

__all__ = ["DAY", "YEAR", "OrdinaryValues", "TableEncoder", "UnusualValues", "find_ordinary_values"]

DAY, YEAR = 86_400.0, 365.2425  # seconds; days
_DATE_PARTS = ("days", "day of year", "weekday", "hour")
_MOST_DRIVERS, _CLEARLY = 3, 0.2  # columns named for a row, each with this share of the largest gain at least
_FEW = 10  # rows, each of which deserves a look
_OFTEN = 0.01  # a share of rows that are out of range which deserves a look; some always are


class TableEncoder(TransformerMixin, BaseEstimator):
    """Turns the columns of a table into numbers: the first step of a pipeline whose next steps take numbers and NaN.

    Numbers stay as they are, and booleans become 0 and 1. A category becomes a column of zeros and ones for each of its
    most frequent values, one for missing where some were, and one for all values that were not seen in training, and
    missing ones where none were. That column is 0 in all of training, so a row with a new value counts as novel. If a
    category has more values than columns, and targets are given, each value is also placed by the mean target of its
    rows, drawn towards that of all rows the fewer there are; in `fit_transform`, by those of other rows only, so that
    no row sees its own target. Without targets, values that have no column count as new ones. A date becomes days
    since 1970, day of the year, day of the week and hour. Missing values stay missing (NaN), except in categories. In
    `transform`, a row becomes the same numbers whatever other rows there are.

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
    places_ : dict of tuple
        For each category that has more values: all values (None for missing), and where they lie, shape (levels, k).

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
    places_: dict[str, tuple[list[str | None], Floats]] = {}  # noqa: RUF012 (encoders of older files have none)
    _has_other = False  # nor a column for values without one

    def __init__(self, columns: Sequence[Column] | None = None, *, max_levels: int = 20) -> None:
        self.columns = columns
        self.max_levels = max_levels

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn which values the categories have and, from targets of shape (n,) or (n, c), where they lie."""
        self._fit(X, y)
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Floats:
        """Fit, and return the numbers of these rows; values are placed by the targets of other rows."""
        left_out = self._fit(X, y)
        blocks = (self._encode(column, X[column.name], left_out.get(column.name)) for column in self.columns_)
        return np.column_stack([block for each in blocks for block in each])

    def _fit(self, X: Any, y: Any) -> dict[str, Floats]:
        """Fit, and return for each placed category where the rows lie by the targets of other rows."""
        check_number(self, "max_levels", self.max_levels, above=1, closed="left", whole=True)
        described = describe_columns(X) if self.columns is None else self.columns
        self.columns_ = [column for column in described if column.is_feature]
        check_any_feature(described)
        self._check_columns(X)
        self.n_features_in_ = len(X.columns)
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.levels_, self._missing_seen, self._has_other = {}, set[str](), True
        self.places_ = {}
        left_out: dict[str, Floats] = {}
        for column in self.columns_:
            if column.kind == "category":
                values = read_cells(column, X[column.name]).values.tolist()
                counts = Counter(values)
                ranked = sorted(
                    (item for item in counts.items() if item[0] is not None), key=lambda item: (-item[1], item[0])
                )
                self.levels_[column.name] = [str(level) for level, _ in ranked[: self.max_levels]]
                if None in counts:
                    self._missing_seen.add(column.name)
                if len(ranked) > self.max_levels and y is not None:
                    levels: list[str | None] = [level for level, _ in ranked]
                    levels += [None] if None in counts else []
                    places, left_out[column.name] = place_levels(_find_codes(values, levels), y)
                    self.places_[column.name] = levels, places
        return left_out

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
                    n_places = self.places_[column.name][1].shape[1] if column.name in self.places_ else 0
                    names += [f"{column.name} by target {place}" for place in range(n_places)]
                case "date":
                    names += [f"{column.name}: {part}" for part in _DATE_PARTS]
                case _:
                    names.append(column.name)
        return np.asarray(names, dtype=object)

    def describe_encodings(self) -> dict[str, str]:
        """Return in words what each column became."""
        check_fitted(self, "columns_")
        words = {"number": "as it is", "boolean": "0 or 1", "date": ", ".join(_DATE_PARTS)}
        return {column.name: words.get(column.kind) or self._describe_category(column.name) for column in self.columns_}

    def _describe_category(self, name: str) -> str:
        n_shown = len(self.levels_[name])
        if name not in self.places_:
            return f"a column for each of {n_shown} values"
        n_levels = len(self.get_known_levels()[name])
        return f"{n_levels:,} values placed by their mean target; a column for each of the {n_shown} most frequent"

    def get_known_levels(self) -> dict[str, list[str]]:
        """Return the values of each category that were seen in training; those that older files may lack are not."""
        placed = {name: [level for level in levels if level is not None] for name, (levels, _) in self.places_.items()}
        return {
            name: placed.get(name, levels)
            for name, levels in self.levels_.items()
            if name in placed or len(levels) < self.max_levels
        }

    def _encode(self, column: Column, cells: Any, placed: Floats | None = None) -> list[Floats]:
        values, problems = read_cells(column, cells)
        raise_problems(problems, index=cells.index)
        match column.kind:
            case "category":
                levels = [*self.levels_[column.name], *([None] if column.name in self._missing_seen else [])]
                texts = values.tolist()
                codes = _find_codes(texts, levels)
                shown = [(codes == place).astype(np.float64) for place in range(len(levels))]
                if column.name in self.places_:
                    levels, places = self.places_[column.name]
                    codes = _find_codes(texts, levels)
                    # A value that was not seen lies at 0, where the mean of all rows does.
                    where = np.where(codes[:, None] < 0, 0.0, places[codes]) if placed is None else placed
                    return [*shown, (codes < 0).astype(np.float64), *where.T]
                return [*shown, (codes < 0).astype(np.float64)] if self._has_other else shown
            case "date":
                return _split_date(values)
            case _:
                return [values]

    def _check_columns(self, X: Any) -> None:
        check_frame(X)
        check_has("the table", list(X.columns), [column.name for column in self.columns_])


def _find_codes(texts: Sequence[Any], levels: Sequence[str | None]) -> NDArray[np.intp]:
    """Return the place of each text among the levels, -1 where it is none of them."""
    places = {level: place for place, level in reversed(list(enumerate(levels)))}
    return np.array([places.get(text, -1) for text in texts], dtype=np.intp)


def _split_date(seconds: Floats) -> list[Floats]:
    """Return days, day of the year, weekday (Monday is 0) and hour, by arithmetic that any runtime can do."""
    days = np.floor(seconds / DAY)
    return [seconds / DAY, days % YEAR, (days + 3) % 7, (seconds % DAY) / 3600]


@dataclass(frozen=True)
class UnusualValues:
    """The rows in which a column has a value that it never had in training.

    Attributes
    ----------
    column : str
    kind : {"above", "below", "unknown", "missing"}
    bound : str
        The largest or the smallest value in training; "" for the other kinds.
    n_rows, n_all : int
        In how many rows, and of how many.
    n_trained : int
        How many training rows there were.
    """

    column: str
    kind: str
    bound: str
    n_rows: int
    n_all: int
    n_trained: int

    @property
    def deserves_a_look(self) -> bool:
        """Return whether these are more than chance brings, as each row is the largest so often, or rows are few."""
        expected = self.n_all / (self.n_trained + 1)
        return self.n_all <= _FEW or self.n_rows > max(3 + 4 * expected, _OFTEN * self.n_all)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.n_rows:,} of {self.n_all:,} rows: {describe_value(self.column, self.kind, self.bound)}"


def describe_value(column: str, kind: str, bound: str) -> str:
    """Return in words what is unusual about a value."""
    match kind:
        case "above" | "below":
            return f"{column} is {kind} all training rows ({bound})"
        case "unknown":
            return f"{column} has a value that no training row had"
        case _:
            return f"{column} is missing, which it never was in training"


class OrdinaryValues:
    """The values that each column had in training, and counts of what lies beyond them.

    Parameters
    ----------
    columns : sequence of Column
    reference : dict
        What `make_reference` returned for the training rows.
    levels : dict of list of str
        All values of each category, as far as they are known.
    gaps : collection of str
        The categories of which some were missing.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        reference: dict[str, Any],
        levels: dict[str, list[str]],
        gaps: Collection[str] = (),
    ) -> None:
        self._columns = [column for column in columns if column.is_feature]
        self._reference, self._levels, self._gaps = reference, levels, gaps
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._n_rows = 0

    def find(self, features: Any) -> dict[tuple[str, str, str], NDArray[np.bool_]]:
        """Return which rows are unusual, by column, kind and bound, and count them."""
        found: dict[tuple[str, str, str], NDArray[np.bool_]] = {}
        for column in self._columns:
            values, summary = np.asarray(features[column.name]), self._reference[column.name]
            for (kind, bound), is_unusual in self._compare(column, values, summary).items():
                if is_unusual.any():
                    found[column.name, kind, bound] = is_unusual
        self._n_rows += len(features)
        self._counts.update({key: int(rows.sum()) for key, rows in found.items()})
        return found

    def _compare(
        self, column: Column, values: NDArray[Any], summary: dict[str, Any]
    ) -> dict[tuple[str, str], NDArray[np.bool_]]:
        if "shares" in summary:
            levels = self._levels.get(column.name)
            is_missing = np.array([value is None for value in values.tolist()], dtype=bool)
            unknown = {} if levels is None else {("unknown", ""): ~is_missing & ~np.isin(values, levels)}
            return unknown | ({} if column.name in self._gaps else {("missing", ""): is_missing})
        known = [number for number in summary["sample"] if number is not None]
        # The reference keeps the smallest and the largest value, and a gap where there was one.
        missing = {("missing", ""): np.isnan(values)} if len(known) == len(summary["sample"]) else {}
        if not known or column.kind == "boolean":
            return missing
        low, high = known[0], known[-1]
        return missing | {
            ("below", _format_bound(column, low)): values < low,
            ("above", _format_bound(column, high)): values > high,
        }

    def find_drivers(self, model: Any, features: Any, result: Any) -> list[str]:
        """Return for each rejected row the columns whose ordinary values would make it least uncertain, at most three.

        An ordinary value is the middle of the training rows, or the most frequent category. Columns that matter only
        together are not found.
        """
        names = [""] * len(features)
        rejected = [] if result.accepted is None else np.flatnonzero(~result.accepted)
        if len(rejected) == 0:
            return names
        rows = features.iloc[rejected]
        typical = {column.name: _find_typical(self._reference[column.name]) for column in self._columns}
        gains = np.stack(
            [
                result.uncertainty[rejected] - model.assess(rows.assign(**{name: value})).uncertainty
                for name, value in typical.items()
            ]
        )
        for row, gain in zip(rejected, gains.T, strict=True):
            largest = [place for place in np.argsort(-gain)[:_MOST_DRIVERS] if gain[place] > _CLEARLY * gain.max() > 0]
            names[row] = ", ".join(list(typical)[place] for place in largest)
        return names

    def summarize(self) -> list[UnusualValues]:
        """Return the counts so far, the largest first."""
        return [
            UnusualValues(*key, count, self._n_rows, self._reference[key[0]]["n_rows"])
            for key, count in self._counts.most_common()
        ]


def describe_rows(found: dict[tuple[str, str, str], NDArray[np.bool_]], n_rows: int) -> list[str]:
    """Return for each row what is unusual about it, "" if nothing is."""
    notes: list[list[str]] = [[] for _ in range(n_rows)]
    for key, rows in found.items():
        for row in np.flatnonzero(rows):
            notes[row].append(describe_value(*key))
    return ["; ".join(each) for each in notes]


def _find_typical(summary: dict[str, Any]) -> Any:
    """Return the middle number of a column or its most frequent category; NaN or None where all are missing."""
    if "shares" in summary:
        return max(summary["shares"], key=summary["shares"].get, default=None)
    known = [number for number in summary["sample"] if number is not None]
    return known[len(known) // 2] if known else np.nan


def _format_bound(column: Column, value: float) -> str:
    if column.kind == "date":
        return str(np.datetime64(int(value), "s")).replace("T", " ")
    return f"{value:,.6g}"


def find_ordinary_values(model: Any, summary: dict[str, Any], columns: Sequence[Column]) -> OrdinaryValues | None:
    """Return what a model file says about its training rows; None where it says nothing."""
    reference = summary.get("reference")
    if reference is None:
        return None
    encoder: TableEncoder = model.estimator_.named_steps["columns"]
    return OrdinaryValues(columns, reference, encoder.get_known_levels(), encoder._missing_seen)
