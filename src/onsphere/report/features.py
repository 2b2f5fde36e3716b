"""The columns of a table as features that rows can be grouped by: levels of categories, ranges of numbers and dates."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, is_frame
from onsphere.report.parts import clean, number

__all__ = ["MOST_FEATURES", "Feature", "Grouping", "as_frame", "grouped", "is_missing", "read_feature", "read_features"]

# Of a wider table, so many columns are looked at, evenly spread.
MOST_FEATURES = 200
# A category with more levels keeps the most frequent; one with fewer rows than this is put with the others.
MOST_LEVELS, FEWEST_ROWS = 10, 10
# A column with so few values is grouped by value, and any other number by its quartiles.
FEW_VALUES = 5
_QUARTERS = (0.25, 0.5, 0.75)
_MISSING = "missing"


class Feature(NamedTuple):
    """A column: a "number" and a "date" (in nanoseconds) are floats, a "category" is text; NaN and None are missing."""

    name: str
    kind: str
    values: NDArray[Any]


class Grouping(NamedTuple):
    """The group that each row belongs to; no group is empty."""

    name: str
    labels: list[str]
    member: NDArray[np.intp]


def as_frame(model: Any, X: Any, pandas: Any) -> Any:
    """X as a pandas DataFrame, with the names that the model knows, or x0, x1, … where it knows none."""
    if isinstance(X, pandas.DataFrame):
        return X
    if is_frame(X):
        return pandas.DataFrame({name: np.asarray(X[name]) for name in X.columns})
    rows = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
    names = getattr(model, "feature_names_in_", [f"x{index}" for index in range(rows.shape[1])])
    return pandas.DataFrame(rows, columns=list(names))


def read_features(frame: Any) -> list[Feature]:
    """The columns of a frame, at most `MOST_FEATURES` of them."""
    n_columns = frame.shape[1]
    chosen = np.unique(np.linspace(0, n_columns - 1, min(n_columns, MOST_FEATURES)).astype(np.intp))
    return [read_feature(str(frame.columns[index]), frame.iloc[:, index]) for index in chosen]


def read_feature(name: str, column: Any) -> Feature:
    """One column, by its kind."""
    import pandas as pd

    column = column.infer_objects()
    kinds = pd.api.types
    if kinds.is_datetime64_any_dtype(column.dtype):
        moments = pd.to_datetime(column, utc=True).astype("datetime64[ns, UTC]")
        values = np.where(moments.isna(), np.nan, moments.astype("int64").to_numpy(dtype=np.float64))
        return Feature(name, "date", values)
    if kinds.is_numeric_dtype(column.dtype) and not kinds.is_bool_dtype(column.dtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return Feature(name, "number", np.where(np.isfinite(values), values, np.nan))
    missing = column.isna().to_numpy()
    # Any object has a text, and text can be counted where lists cannot.
    values = np.array([None if gone else str(each) for each, gone in zip(column, missing, strict=True)], dtype=object)
    return Feature(name, "category", values)


def is_missing(feature: Feature) -> NDArray[np.bool_]:
    """Which rows have no value."""
    if feature.kind != "category":
        return np.isnan(feature.values)
    return np.array([value is None for value in feature.values])


def grouped(feature: Feature) -> Grouping:
    """The rows by the levels of a category, the values of a number that has few, or the quarters of any other."""
    if feature.kind == "category":
        return _by_level(feature)
    known = feature.values[~np.isnan(feature.values)]
    distinct = np.unique(known)
    if len(distinct) <= FEW_VALUES:
        edges, labels = distinct[:-1], _names(feature, distinct)
    else:
        edges = np.unique(np.quantile(known, _QUARTERS, method="inverted_cdf"))
        # Where the largest value makes up most of the rows, all others are set against it.
        edges = edges[edges < distinct[-1]] if edges[0] < distinct[-1] else distinct[-2:-1]
        names = _names(feature, edges)
        between = [f"{low} to {high}" for low, high in pairwise(names)]
        labels = [f"≤ {names[0]}", *between, f"> {names[-1]}"]
    return _with_missing(feature, labels, np.searchsorted(edges, feature.values, side="left"))


def _names(feature: Feature, values: Floats) -> list[str]:
    """As few digits as tell the values apart."""
    if feature.kind == "date":
        moments = values.astype("int64").astype("datetime64[ns]")
        unit = "D" if len(np.unique(moments.astype("datetime64[D]"))) == len(values) else "s"
        return [str(moment).replace("T", " ") for moment in np.datetime_as_string(moments, unit=unit)]
    # Seventeen digits tell any two floats apart.
    tries = ([number(float(value), digits=digits) for value in values] for digits in range(3, 18))
    return next(names for names in tries if len(set(names)) == len(values))


def _by_level(feature: Feature) -> Grouping:
    counts = Counter(level for level in feature.values if level is not None)
    # The most frequent first, and equal ones by name: the same table gives the same page.
    ranked = sorted(counts, key=lambda level: (-counts[level], level))
    frequent = [level for level in ranked if counts[level] >= FEWEST_ROWS]
    has_few = len(ranked) <= FEW_VALUES or (len(ranked) <= MOST_LEVELS and len(ranked) - len(frequent) <= 1)
    kept = sorted(ranked if has_few else frequent[: MOST_LEVELS - 1])
    labels = [clean(level, longest=26) for level in kept]
    place = {level: rank for rank, level in enumerate(kept)}
    if len(kept) < len(ranked):
        labels.append(f"{len(ranked) - len(kept)} others")
    index = np.array([place.get(level, len(kept)) for level in feature.values], dtype=np.intp)
    return _with_missing(feature, labels, index)


def _with_missing(feature: Feature, labels: list[str], index: NDArray[np.intp]) -> Grouping:
    missing = is_missing(feature)
    if missing.any():
        labels, index = [*labels, _MISSING], np.where(missing, len(labels), index)
    return Grouping(feature.name, labels, index)
