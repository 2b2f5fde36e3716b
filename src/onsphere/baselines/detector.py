"""What every post-hoc detector shares: one protocol, and the checks behind it.

A detector judges a classifier that is already trained, from the features and logits it gives and the labels it was
trained on. All detectors take all of them in the same order, whatever they use, so that they can be exchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array

from onsphere._internal.validation import (
    Floats,
    check_at_least_two_classes,
    check_fitted,
    check_labels,
    check_same_length,
    check_unmasked,
    restore_on_error,
    wrap_errors,
)
from onsphere.errors import InvalidInputError

__all__ = ["Detector", "Indices", "check_squares", "check_table", "check_width"]

Indices = NDArray[np.intp]

# Room for the square of a difference of two rows, which is up to four times that of the larger, and for some more.
_ROOM = 16.0


class Detector(ABC, BaseEstimator):
    """A score of how little to trust each prediction of a trained classifier.

    A new detector writes `_score`, and `_fit` where it has something to learn; checked arrays are all it sees.

    Attributes
    ----------
    classes_ : array of shape (C,)
        The class of each column of logits.
    n_features_in_ : int
    """

    classes_: NDArray[Any]
    n_features_in_: int

    def fit(self, features: ArrayLike, logits: ArrayLike, labels: ArrayLike) -> Self:
        """Learn from rows that the classifier was trained on.

        Parameters
        ----------
        features : array of shape (n, p)
            What the last layer of the classifier is given.
        logits : array of shape (n, C)
            What it makes of them, before any softmax. Columns are in the sorted order of the classes.
        labels : array of shape (n,)
            The true classes. Fewer classes than columns are understood only where labels are the numbers of columns.

        Returns
        -------
        self
        """
        with restore_on_error(self):
            known, said = self._tables(features, logits)
            given = check_labels(self, labels)
            check_same_length(known, given)
            check_squares(self, known, said, times=len(known))
            self.classes_, index = _columns_of(self, given, said.shape[1])
            self.n_features_in_ = known.shape[1]
            with np.errstate(over="ignore", invalid="ignore"):
                self._fit(known, said, index)
        return self

    def score(self, features: ArrayLike, logits: ArrayLike) -> Floats:
        """The score of each row, shape (n,); higher means less trustworthy.

        Parameters
        ----------
        features : array of shape (n, p)
        logits : array of shape (n, C)
        """
        known, said = self._known_tables(features, logits)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._score(known, said)
        _check_none_overflows(self, ~np.isfinite(scores))
        return scores

    def _tables(self, features: Any, logits: Any) -> tuple[Floats, Floats]:
        known, said = check_table(self, "features", features), check_table(self, "logits", logits)
        check_same_length(known, said)
        return known, said

    def _known_tables(self, features: Any, logits: Any) -> tuple[Floats, Floats]:
        """The same, of the widths that were fitted."""
        check_fitted(self, "classes_")
        known, said = self._tables(features, logits)
        check_width(self, "features", known, self.n_features_in_)
        check_width(self, "logits", said, len(self.classes_))
        check_squares(self, known, said)
        return known, said

    def _fit(self, features: Floats, logits: Floats, label_index: Indices) -> None:
        """Check the parameters and learn; `label_index` has the number of each row's column of logits."""

    @abstractmethod
    def _score(self, features: Floats, logits: Floats) -> Floats: ...


def check_table(owner: object, name: str, values: Any) -> Floats:
    """Finite numbers of shape (n, columns), at least one of each."""
    check_unmasked(name, values)
    with wrap_errors(f"The {name} of {owner if isinstance(owner, str) else type(owner).__name__}: "):
        options: dict[str, Any] = {"dtype": np.float64, "input_name": name}
        return check_array(values, **options)


def check_width(owner: object, name: str, table: Floats, width: int) -> None:
    """As many columns as at fit."""
    if table.shape[1] != width:
        raise InvalidInputError(
            f"{type(owner).__name__} was fitted with {width} columns of {name}. Got {table.shape[1]}. "
            "Pass what the same network gives, or fit again."
        )


def check_squares(owner: object, *tables: Floats, times: int = 1) -> None:
    """Rows whose squares can be added up, those of so many rows together."""
    with np.errstate(over="ignore"):
        squares = sum(np.einsum("ij,ij->i", table, table) for table in tables)
        _check_none_overflows(owner, ~np.isfinite(_ROOM * times * np.asarray(squares)))


def _check_none_overflows(owner: object, overflows: NDArray[np.bool_]) -> None:
    if overflows.any():
        raise InvalidInputError(
            f"Expected features and logits that {type(owner).__name__} can square and add up. Got values so large "
            f"that the score of {np.sum(overflows)} row(s) overflows. Check the rows, or divide by a constant before "
            "fit."
        )


def _columns_of(owner: object, labels: NDArray[Any], n_columns: int) -> tuple[NDArray[Any], Indices]:
    """The class of each column of logits, and the column of each label."""
    classes, index = np.unique(labels, return_inverse=True)
    check_at_least_two_classes(owner, classes)
    if len(classes) == n_columns:
        return classes, index
    if labels.dtype.kind in "iu" and classes[0] >= 0 and classes[-1] < n_columns:
        return np.arange(n_columns), labels.astype(np.intp)
    raise InvalidInputError(
        f"{type(owner).__name__} needs one column of logits for each class. Got {n_columns} column(s) and "
        f"{len(classes)} classes. Pass the logits of all classes; if the labels do not show them all, number the "
        f"classes from 0 to {n_columns - 1} in the order of the columns."
    )
