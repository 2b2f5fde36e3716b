"""What is kept of the columns of ordinary rows: each column summarised by itself, so that no row can be told from it.

A reference is plain JSON: for each column its number of rows and, for numbers, a sorted sample with None for what is
missing, the mean and the standard deviation, or, for text, the share of each category.
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

__all__ = [
    "MISSING",
    "OTHER",
    "Reference",
    "check_reference",
    "columns_of",
    "is_reference",
    "kept_ranks",
    "mean_and_deviation",
    "plain_numbers",
    "plain_texts",
    "reference_of",
]

MISSING, OTHER = "(missing)", "(other)"  # as categories

Reference = dict[str, dict[str, Any]]


def columns_of(X: Any) -> dict[str, NDArray[Any]]:
    """Columns of a table under their names, those of an array under their numbers."""
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


def reference_of(X: Any, *, n_kept: int = 1000, n_categories: int = 100) -> Reference:
    """A reference of some rows.

    Parameters
    ----------
    X : array or DataFrame of shape (n, p)
        Dates are taken as numbers, in seconds since 1970.
    n_kept : int, default 1000
        How many numbers to keep of a column, evenly spaced in rank, where it has more.
    n_categories : int, default 100
        How many categories to keep of a column of text; rarer ones are one category. Where there are any, or some that
        were seen once, the categories are chosen by one half of the rows, and counted in the other.

    Examples
    --------
    >>> import pandas as pd
    >>> reference_of(pd.DataFrame({"size": [3.0, 1.0, None, 2.0], "shop": ["a", "b", "a", "b"]}))
    {'size': {'n_rows': 4, 'sample': [1.0, 2.0, 3.0, None], 'mean': 2.0, 'deviation': 0.81...},
     'shop': {'n_rows': 4, 'shares': {'a': 0.5, 'b': 0.5}}}
    """
    return {name: _summary(column, n_kept, n_categories) for name, column in columns_of(X).items()}


def check_reference(reference: Any) -> None:
    """That it is what `reference_of` gives, whoever wrote it."""
    if not is_reference(reference):
        raise InvalidInputError(
            "Expected a reference that says of each column what reference_of does: n_rows, with sample, mean and "
            "deviation for numbers, or shares for text. Got something else. Pass rows instead, or fit the model anew."
        )


def is_reference(reference: Any) -> bool:
    """Whether it is what `reference_of` gives."""
    return (
        isinstance(reference, dict)
        and len(reference) > 0
        and all(isinstance(name, str) and _is_summary(summary) for name, summary in reference.items())
    )


def _is_summary(summary: Any) -> bool:
    if not isinstance(summary, dict) or type(summary.get("n_rows")) is not int:
        return False
    if summary["n_rows"] < 1 or not is_number(summary["n_rows"]):
        return False
    match summary:
        case {"shares": dict(shares)}:
            known = all(isinstance(text, str) and is_number(share) and share >= 0 for text, share in shares.items())
            return known and sum(shares.values()) <= 1 + 1e-9
        case {"sample": [_, *_] as sample, "mean": mean, "deviation": deviation}:
            if not all(number is None or is_number(number) for number in sample):
                return False
            if mean is None or deviation is None:  # of a column without numbers
                return mean is deviation
            return is_number(mean) and is_number(deviation) and deviation >= 0
        case _:
            return False


def _as_numbers(column: NDArray[Any]) -> Floats | None:
    """The column as floats, dates in seconds since 1970, or None where it is text."""
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    if column.dtype.kind == "M":
        seconds = column.astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(np.isnat(column), math.nan, seconds)
    if column.dtype.kind != "O" or any(isinstance(value, str) for value in column):
        return None
    try:
        return np.array([math.nan if _is_missing(value) else _number(value) for value in column])
    except (TypeError, ValueError):
        return None


def _number(value: Any) -> float:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)


def _is_missing(value: Any) -> bool:
    return value is None or str(value) in ("nan", "<NA>", "NaT")


def plain_numbers(name: str, column: NDArray[Any]) -> list[float | None]:
    """Floats, and None for what is missing or infinite: JSON knows neither."""
    numbers = _as_numbers(column)
    if numbers is None:
        raise InvalidInputError(
            f"Expected numbers in column {name!r}, as in the reference rows. Got {column[0]!r} among others. "
            "Pass the columns as they were in the reference."
        )
    return [number if math.isfinite(number) else None for number in numbers.tolist()]


def plain_texts(column: NDArray[Any]) -> list[str]:
    """Text, and a name for what is missing."""
    return [MISSING if _is_missing(value) else str(value) for value in column.tolist()]


def _summary(column: NDArray[Any], n_kept: int, n_categories: int) -> dict[str, Any]:
    n_rows = len(column)
    numbers = _as_numbers(column)
    if numbers is None:
        return _text_summary(plain_texts(column), n_categories)
    known = numbers[np.isfinite(numbers)]
    mean, deviation = mean_and_deviation(known) if len(known) else (None, None)
    sample = np.sort(np.where(np.isfinite(numbers), numbers, math.inf))
    kept = sample[kept_ranks(n_rows, min(n_rows, n_kept)).astype(np.intp)]
    return {
        "n_rows": n_rows,
        "sample": [number if math.isfinite(number) else None for number in kept.tolist()],
        "mean": mean,
        "deviation": deviation,
    }


def kept_ranks(n_rows: int, n_kept: int) -> Floats:
    """Which of the sorted numbers of a column are kept, the smallest and the largest among them."""
    return np.linspace(0, n_rows - 1, n_kept).round()


def _text_summary(texts: list[str], n_categories: int) -> dict[str, Any]:
    """Shares of the most frequent categories.

    Those that are frequent among some rows are less so among others, and a category that was seen once may never come
    again. So where categories are left out or were seen once, they are chosen by half of the rows and counted in the
    other; otherwise rows that did not move would seem to have more of all the rest.
    """
    counts = Counter(texts)
    if len(counts) > n_categories or 1 in counts.values():
        shuffled = [texts[row] for row in np.random.default_rng(0).permutation(len(texts))]
        chosen, texts = Counter(shuffled[: len(texts) // 2]), shuffled[len(texts) // 2 :]
        counted = Counter(texts)
        counts = Counter({text: counted[text] for text, _ in chosen.most_common(n_categories)})
    return {"n_rows": len(texts), "shares": {text: count / len(texts) for text, count in counts.most_common()}}


def mean_and_deviation(numbers: Floats) -> tuple[float, float]:
    """Of at least one number; what is too large for a float is the largest that there is."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = np.nan_to_num([numbers.mean(), numbers.std()], nan=sys.float_info.max)
    return float(mean), float(deviation)
