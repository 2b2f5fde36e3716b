"""Groups of rows that are each calibrated by themselves, so that every one of them is covered (Mondrian conformal).

One rule for small groups: a group of at least `MIN_ROWS` calibration rows is calibrated by itself; smaller ones are
calibrated together, as one group; and if they have fewer rows even so, all calibration rows are used for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, is_frame, wrap_errors
from onsphere.errors import InvalidInputError

__all__ = ["MIN_ROWS", "MISSING", "WHOLE", "GroupSource", "Groups", "fit_groups"]

MIN_ROWS = 50  # at which the coverage of a group is within 8 points of 90 % for 19 of 20 calibration sets
WHOLE = -1  # the part of groups for which all rows are used

_N_RANGES = 5  # into which numbers are cut, at their quantiles
_FEW_VALUES, _FEW_CODES = 10, 100  # numbers, and whole ones, with at most so many different values are levels
MISSING = "missing"
_OF_MODEL = ("prediction", "novelty", "class")


@dataclass(frozen=True, eq=False)
class GroupSource:
    """The source of the groups of rows.

    Attributes
    ----------
    kind : {"prediction", "novelty", "class", "column", "function", "values"}
    column : str, int or None
        The name of a column, or its place in an array.
    function : callable or None
        Takes X and returns a value for each row.
    """

    kind: str
    column: str | int | None = None
    function: Callable[[Any], Any] | None = None

    @classmethod
    def read(cls, groups: Any) -> GroupSource:
        """Return the source that the argument `groups` of calibrate names."""
        if isinstance(groups, str) and groups in _OF_MODEL:
            return cls(groups)
        if isinstance(groups, str | int | np.integer) and not isinstance(groups, bool):
            return cls("column", column=groups if isinstance(groups, str) else int(groups))
        if callable(groups):
            return cls("function", function=groups)
        return cls("values")

    def drop_column(self, X: Any, names: Any) -> Any:
        """Return X without the column that gives the groups, if a model was fitted on others, with these names."""
        if names is None or not is_frame(X) or self.column in set(map(str, names)):
            return X
        return X[[name for name in X.columns if str(name) != self.column]]

    def find_values(self, caller: str, X: Any, given: Any) -> NDArray[Any]:
        """Return the value of each row by a column, a function or the values themselves."""
        if self.kind == "values":
            if given is None or isinstance(given, str) or callable(given):
                raise InvalidInputError(
                    f"{caller} needs the group of each row: the model was calibrated with groups that were given as "
                    f"values. Got {given!r}. Pass groups=, one value for each row."
                )
            found = given
        elif self.kind == "column":
            found = self._take_column(caller, X)
        else:
            try:
                found = self.function(X)  # type: ignore[reportOptionalCall]
            except Exception as error:  # a user's own function may raise anything
                raise InvalidInputError(
                    f"The function that gives the groups failed with {type(error).__name__}: {error}. It gets the X of "
                    f"{caller}, and must return a value for each row."
                ) from error
        values = np.asarray(found)
        n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
        if values.shape != (n_rows,):
            raise InvalidInputError(
                f"{caller} needs one group for each of the {n_rows} rows. Got the shape {values.shape}. Pass a value "
                "for each row."
            )
        return values

    def _take_column(self, caller: str, X: Any) -> Any:
        if is_frame(X):
            names = [str(name) for name in X.columns]
            if self.column in names:
                return X[X.columns[names.index(str(self.column))]]
            raise InvalidInputError(
                f"{caller} needs the column that gives the groups, one of {', '.join(names)}. Got {self.column!r}. "
                "Name a column of X, or add it to X."
            )
        rows = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
        if rows.ndim == 2 and isinstance(self.column, int) and 0 <= self.column < rows.shape[1]:
            return rows[:, self.column]
        raise InvalidInputError(
            f"{caller} finds the groups in column {self.column!r} of X, a name in a DataFrame and a place, counted "
            f"from 0, in an array. Got an array of shape {rows.shape}. Pass rows with this column; at calibration, "
            "groups may also be 'prediction', 'novelty', 'class', a function of X or a value for each row."
        )


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups that were found at calibration.

    Attributes
    ----------
    source : GroupSource
    names : tuple of str
        Of the groups: levels, or ranges of numbers.
    edges : array or None
        The upper ends of all ranges but the last; None for levels.
    parts : array of int, shape (n_groups,)
        The part of the calibration rows that each group uses; `WHOLE` for all of them.
    n_rows : array of int, shape (n_groups,)
        Calibration rows of each group.
    """

    source: GroupSource
    names: tuple[str, ...]
    edges: Floats | None
    parts: NDArray[np.intp]
    n_rows: NDArray[np.intp]

    def locate(self, values: Any) -> NDArray[np.intp]:
        """Return the place of the group of each value, −1 for one without calibration rows."""
        given = np.asarray(values)
        if self.edges is None:
            place = {name: code for code, name in enumerate(self.names)}
            return np.array([place.get(text, -1) for text in _to_texts(given)], dtype=np.intp)
        numbers = _to_numbers(given)
        codes = np.searchsorted(self.edges, numbers, side="left").astype(np.intp)
        codes[np.isnan(numbers)] = len(self.names) - 1 if self.names[-1] == MISSING else -1
        return codes

    def find_codes(self, values: Any) -> NDArray[np.intp]:
        """Return the place of the group of each value; a group without calibration rows is an error."""
        codes = self.locate(values)
        if np.any(codes < 0):
            unseen = sorted(set(_to_texts(np.asarray(values)[codes < 0])))
            known = ", ".join(self.names[:8]) + (" …" if len(self.names) > 8 else "")
            raise InvalidInputError(
                f"Expected groups with calibration rows: {known}. Got {', '.join(unseen[:5])}"
                f"{' …' if len(unseen) > 5 else ''}, without any. Calibrate again with rows of every group, or give "
                "such rows a group that has some."
            )
        return codes

    def find_parts(self, values: Any) -> NDArray[np.intp]:
        """Return the part of the calibration rows to use for each value."""
        return self.parts[self.find_codes(values)]

    def describe(self) -> list[dict[str, Any]]:
        """Return name, calibration rows and "calibrated by" of each group, in plain values."""
        counts = np.bincount(self.parts[self.parts >= 0], minlength=1)
        how = [
            "all rows" if part == WHOLE else "small groups together" if counts[part] > 1 else "its own rows"
            for part in self.parts
        ]
        return [
            {"group": name, "calibration rows": int(n), "calibrated by": by}
            for name, n, by in zip(self.names, self.n_rows, how, strict=True)
        ]


def fit_groups(source: GroupSource, values: Any, *, levels: Any = None) -> tuple[Groups, NDArray[np.intp]]:
    """Find the groups of calibration rows by a value of each, and return them with the part of each row.

    Text and booleans are levels, and so are whole numbers with at most 100 different values and other numbers with at
    most ten; those that remain are cut at their quantiles into up to five ranges. A missing value is a group by itself.

    Parameters
    ----------
    source : GroupSource
    values : array of shape (n,)
    levels : sequence, optional
        All groups there are, in their order, if they are known: those without rows count as small.

    Examples
    --------
    >>> import numpy as np
    >>> groups, parts = fit_groups(GroupSource("values"), np.repeat(["a", "b", "c", "d"], [100, 80, 40, 30]))
    >>> groups.names, groups.parts.tolist()
    (('a', 'b', 'c', 'd'), [0, 1, 2, 2])
    """
    given = np.asarray(values)
    edges = None
    if levels is not None:
        names = _to_texts(np.asarray(levels))
        place = {name: code for code, name in enumerate(names)}
        codes = np.array([place[text] for text in _to_texts(given)], dtype=np.intp)
    elif given.dtype.kind in "iuf" and _has_many_values(given[given == given]):
        numbers = _to_numbers(given)
        known = numbers[~np.isnan(numbers)]
        n_ranges = int(np.clip(len(known) // MIN_ROWS, 1, _N_RANGES))
        ends = np.unique(np.quantile(known, np.arange(1, n_ranges) / n_ranges, method="inverted_cdf"))
        ends = ends[ends < known.max()]
        distinct = np.unique(known)
        # Half-way to the next value, so that rounding moves no row into another range.
        edges = (ends + distinct[np.searchsorted(distinct, ends, side="right")]) / 2
        codes = np.searchsorted(edges, numbers, side="left").astype(np.intp)
        codes[np.isnan(numbers)] = len(edges) + 1
        names = [*_name_ranges(edges), *([MISSING] if len(known) < len(numbers) else [])]
    else:
        found, codes = np.unique(_to_texts(given), return_inverse=True)
        names = [str(level) for level in found]
    counts = np.bincount(codes, minlength=len(names))
    groups = Groups(source, tuple(names), edges, _share_rows(counts), counts)
    return groups, groups.parts[codes]


def _has_many_values(numbers: NDArray[Any]) -> bool:
    """Return whether numbers are to be cut into ranges."""
    distinct = np.unique(numbers)
    return len(distinct) > (_FEW_CODES if np.all(distinct == np.round(distinct)) else _FEW_VALUES)


def _share_rows(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the part of each group, by the rule for small groups."""
    is_small = counts < MIN_ROWS
    parts = np.where(is_small, 0, np.cumsum(~is_small) - 1)
    together = WHOLE if counts[is_small].sum() < MIN_ROWS else int((~is_small).sum())
    return np.where(is_small, together, parts).astype(np.intp)


def _name_ranges(edges: Floats) -> list[str]:
    texts = [f"{edge:.4g}" for edge in edges]
    if not texts:
        return ["all"]
    return [f"≤ {texts[0]}", *(f"{low} to {high}" for low, high in pairwise(texts)), f"> {texts[-1]}"]


def _to_texts(values: NDArray[Any]) -> list[str]:
    """Return values as text, equal for equal numbers of any type; missing ones as "missing"."""
    return [_to_text(value) for value in values.tolist()]


def _to_text(value: Any) -> str:
    try:
        if value is None or value != value:
            return MISSING
    except TypeError:  # pandas' NA cannot be compared
        return MISSING
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return str(value)


def _to_numbers(values: NDArray[Any]) -> Floats:
    with wrap_errors("Expected groups that are numbers, as at calibration. "):
        return np.asarray(values, dtype=np.float64)
