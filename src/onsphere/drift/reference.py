"""Summaries of the columns of ordinary rows, each column by itself, so that no row can be put together from them.

A reference is plain JSON: for each column its number of rows and, for numbers, a sorted sample with None for missing
values, the mean and the standard deviation or, for text, the share of each category.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_unique_names, is_frame, is_number
from onsphere.errors import InvalidInputError

__all__ = ["MISSING", "OTHER", "choose_ranks", "is_reference", "make_reference", "mean_and_deviation", "read_rows"]

MISSING, OTHER = "(missing)", "(other)"  # as categories

Reference = dict[str, dict[str, Any]]


def make_reference(X: Any, *, n_kept: int = 1000, n_categories: int = 100) -> Reference:
    """Summarise the columns of some rows.

    Parameters
    ----------
    X : array or DataFrame of shape (n, p)
        Dates are taken as numbers, in seconds since 1970.
    n_kept : int, default 1000
        How many numbers of a column to keep at most, evenly spaced in rank.
    n_categories : int, default 100
        How many categories of a text column to keep at most; rarer ones are counted as one. If some are left out or
        were seen only once, the categories are chosen on one half of the rows and counted on the other.

    Examples
    --------
    >>> import pandas as pd
    >>> make_reference(pd.DataFrame({"size": [3.0, 1.0, None, 2.0], "shop": ["a", "b", "a", "b"]}))
    {'size': {'n_rows': 4, 'sample': [1.0, 2.0, 3.0, None], 'mean': 2.0, 'deviation': 0.81...},
     'shop': {'n_rows': 4, 'shares': {'a': 0.5, 'b': 0.5}}}
    """
    return {name: _summarize(column, n_kept, n_categories) for name, column in _split_columns(X).items()}


def is_reference(value: Any) -> bool:
    """Return whether a value, whoever wrote it, has the form of what `make_reference` returns."""
    return (
        isinstance(value, dict)
        and len(value) > 0
        and all(isinstance(name, str) and _is_summary(summary) for name, summary in value.items())
    )


def _is_summary(summary: Any) -> bool:
    match summary:
        case {"n_rows": int(n_rows)} if isinstance(n_rows, bool) or n_rows < 1 or not is_number(n_rows):
            return False
        case {"n_rows": int(), "shares": dict(shares)}:
            known = all(isinstance(text, str) and is_number(share) and share >= 0 for text, share in shares.items())
            return known and sum(shares.values()) <= 1 + 1e-9
        case {"n_rows": int(), "sample": [_, *_] as sample, "mean": mean, "deviation": deviation}:
            if not all(number is None or is_number(number) for number in sample):
                return False
            if mean is None or deviation is None:  # a column without numbers
                return mean is deviation
            return is_number(mean) and is_number(deviation) and deviation >= 0
        case _:
            return False


def read_rows(X: Any, reference: Reference, n_last: int) -> dict[str, list[Any]]:
    """Return the last rows of X by column, as plain values of the kinds that the reference has."""
    columns = _split_columns(X)
    if set(columns) != set(reference):
        missing, unknown = sorted(set(reference) - set(columns)), sorted(set(columns) - set(reference))
        raise InvalidInputError(
            f"Expected the {len(reference)} columns of the reference rows. Got {len(columns)}; unknown are "
            f"{unknown or 'none'}, and missing are {missing or 'none'}. Pass the same columns."
        )
    return {name: _read_like(summary, name, columns[name][-n_last:]) for name, summary in reference.items()}


def _read_like(summary: dict[str, Any], name: str, column: NDArray[Any]) -> list[Any]:
    if "shares" in summary:
        return _read_texts(column)
    numbers = _read_numbers(column)
    if numbers is None:
        raise InvalidInputError(
            f"Expected numbers in column {name!r}, as in the reference rows. Got {column[0]!r} among others. "
            "Pass the columns as they were in the reference."
        )
    return _to_plain(numbers)


def _split_columns(X: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a table by name, or those of an array by number."""
    if is_frame(X):
        check_unique_names("X", X.columns)
        columns = {str(name): np.asarray(X[name]) for name in X.columns}
    else:
        values = np.asarray(X)
        if values.ndim != 2:
            raise InvalidInputError(
                f"Expected X of shape (n, p), dense. Got shape {values.shape}. Pass one row per sample: "
                "X.reshape(1, -1) for a single one, X.toarray() for a sparse matrix."
            )
        columns = {str(index): values[:, index] for index in range(values.shape[1])}
    if not columns or not all(len(column) for column in columns.values()):
        raise InvalidInputError("Expected X with at least one row and one column. Got none. Pass the rows assessed.")
    return columns


def _read_numbers(column: NDArray[Any]) -> Floats | None:
    """Return a column as floats, dates in seconds since 1970, or None if it is text."""
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    if column.dtype.kind == "M":
        seconds = column.astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(np.isnat(column), math.nan, seconds)
    if column.dtype.kind != "O" or any(isinstance(value, str) for value in column):
        return None
    try:
        return np.array([math.nan if _is_missing(value) else _to_number(value) for value in column])
    except (TypeError, ValueError):
        return None


def _read_texts(column: NDArray[Any]) -> list[str]:
    """Return a column as text, with MISSING for missing values."""
    return [MISSING if _is_missing(value) else str(value) for value in column.tolist()]


def _to_plain(numbers: Floats) -> list[float | None]:
    """Return floats, with None for missing and infinite ones, which JSON cannot hold."""
    return [number if math.isfinite(number) else None for number in numbers.tolist()]


def _to_number(value: Any) -> float:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)


def _is_missing(value: Any) -> bool:
    return value is None or str(value) in ("nan", "<NA>", "NaT")


def _summarize(column: NDArray[Any], n_kept: int, n_categories: int) -> dict[str, Any]:
    n_rows, numbers = len(column), _read_numbers(column)
    if numbers is None:
        return _summarize_texts(_read_texts(column), n_categories)
    known = numbers[np.isfinite(numbers)]
    mean, deviation = mean_and_deviation(known) if len(known) else (None, None)
    ranked = np.sort(np.where(np.isfinite(numbers), numbers, math.inf))
    sample = _to_plain(ranked[choose_ranks(n_rows, min(n_rows, n_kept)).astype(np.intp)])
    return {"n_rows": n_rows, "sample": sample, "mean": mean, "deviation": deviation}


def choose_ranks(n_rows: int, n_kept: int) -> Floats:
    """Return the ranks of the sorted numbers of a column that are kept, the smallest and the largest among them."""
    return np.linspace(0, n_rows - 1, n_kept).round()


def _summarize_texts(texts: list[str], n_categories: int) -> dict[str, Any]:
    """Return the shares of the most frequent categories.

    The categories most frequent in some rows are less so in others, and one that was seen once may never come again.
    So if categories are left out or were seen once, they are chosen on half of the rows and counted on the other half;
    otherwise rows that did not change would seem to have more of all other categories.
    """
    counts = Counter(texts)
    if len(counts) > n_categories or 1 in counts.values():
        shuffled = [texts[row] for row in np.random.default_rng(0).permutation(len(texts))]
        chosen, texts = Counter(shuffled[: len(texts) // 2]), shuffled[len(texts) // 2 :]
        counted = Counter(texts)
        counts = Counter({text: counted[text] for text, _ in chosen.most_common(n_categories)})
    return {"n_rows": len(texts), "shares": {text: count / len(texts) for text, count in counts.most_common()}}


def mean_and_deviation(numbers: Floats) -> tuple[float, float]:
    """Return both of at least one number; what overflows is the largest float."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = np.nan_to_num([numbers.mean(), numbers.std()], nan=sys.float_info.max)
    return float(mean), float(deviation)
