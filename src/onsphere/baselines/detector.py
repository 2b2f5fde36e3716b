"""The protocol of the detectors, which judge a classifier that is already trained, and its checks.

All detectors take features, logits and labels in this order, so that one can replace another; what a detector does not
use may be left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

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
    get_name,
    restore_on_error,
    wrap_errors,
)
from onsphere.errors import InvalidInputError

__all__ = ["Detector", "Indices", "check_features_and_logits", "check_squares", "check_table", "check_width"]

Indices = NDArray[np.intp]

# The square of a difference of two rows is up to four times that of the larger; this leaves room for more.
_ROOM = 16.0


class Detector(ABC, BaseEstimator):
    """A score of how little to trust each prediction of a trained classifier.

    A new detector writes `_score`, and `_fit` if it learns something; both get checked arrays. One that can do without
    logits or labels says so in `_needs`; what was left out is then an array without columns, or zeros.

    Attributes
    ----------
    classes_ : array of shape (C,)
        The class of each column of logits; empty if labels were left out.
    n_features_in_ : int
    """

    classes_: NDArray[Any]
    n_features_in_: int
    _needs: ClassVar[tuple[str, ...]] = ("logits", "labels")

    def fit(self, features: ArrayLike, logits: ArrayLike | None = None, labels: ArrayLike | None = None) -> Self:
        """Learn from rows that the classifier was trained on.

        Parameters
        ----------
        features : array of shape (n, p)
            The inputs of the classifier's last layer.
        logits : array of shape (n, C)
            Its outputs, before any softmax. Columns are in the sorted order of the classes. `KNN` and `Mahalanobis`
            do without.
        labels : array of shape (n,)
            The true classes. Where some class has no row, labels must be the numbers of the columns. `KNN` does
            without.

        Returns
        -------
        self
        """
        with restore_on_error(self):
            features, logits = self._check_tables(features, logits)
            check_squares(self, features, logits, times=len(features))
            self.classes_, label_index = np.empty(0), np.zeros(len(features), dtype=np.intp)
            if labels is not None or "labels" in self._needs:
                labels = check_labels(self, labels)
                check_same_length(features, labels)
                self.classes_, label_index = _match_columns(self, labels, logits.shape[1])
            self.n_features_in_, self._n_logits = features.shape[1], logits.shape[1]
            with np.errstate(over="ignore", invalid="ignore"):
                self._fit(features, logits, label_index)
        return self

    def score(self, features: ArrayLike, logits: ArrayLike | None = None) -> Floats:
        """Return the score of each row, shape (n,); higher means less trustworthy.

        Parameters
        ----------
        features : array of shape (n, p)
        logits : array of shape (n, C)
            May be left out where `fit` does without.
        """
        check_fitted(self, "classes_")
        features, logits = self._check_tables(features, logits)
        check_width(self, "features", features, self.n_features_in_)
        if logits.shape[1] and self._n_logits:
            check_width(self, "logits", logits, self._n_logits)
        check_squares(self, features, logits)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._score(features, logits)
        _check_no_overflow(self, ~np.isfinite(scores))
        return scores

    def _check_tables(self, features: Any, logits: Any) -> tuple[Floats, Floats]:
        """Return features and logits; logits that are left out have no columns."""
        if logits is not None:
            return check_features_and_logits(self, features, logits)
        if "logits" in self._needs:
            raise InvalidInputError(
                f"{type(self).__name__} needs the logits of the classifier. Got None. Pass features and logits, of the "
                "same rows; KNN and Mahalanobis judge features alone."
            )
        rows = check_table(self, "features", features)
        return rows, np.empty((len(rows), 0))

    def _fit(self, features: Floats, logits: Floats, label_index: Indices) -> None:
        """Check the parameters and learn; `label_index` has the column of logits of each row's label."""

    @abstractmethod
    def _score(self, features: Floats, logits: Floats) -> Floats:
        """Return the score of each row, shape (n,)."""


def check_table(owner: object, name: str, values: Any) -> Floats:
    """Return finite numbers of shape (n, columns), with at least one row and one column."""
    check_unmasked(name, values)
    with wrap_errors(f"The {name} of {get_name(owner)}: "):
        options: dict[str, Any] = {"dtype": np.float64, "input_name": name}
        return check_array(values, **options)


def check_features_and_logits(owner: object, features: Any, logits: Any) -> tuple[Floats, Floats]:
    """Return two tables of finite numbers, with as many rows each."""
    tables = check_table(owner, "features", features), check_table(owner, "logits", logits)
    check_same_length(*tables)
    return tables


def check_width(owner: object, name: str, table: Floats, width: int) -> None:
    """Check that a table has as many columns as at fit."""
    if table.shape[1] != width:
        raise InvalidInputError(
            f"{type(owner).__name__} was fitted with {width} columns of {name}. Got {table.shape[1]}. "
            "Pass features and logits of the same network, or fit again."
        )


def check_squares(owner: object, *tables: Floats, times: int = 1) -> None:
    """Check that the squares of a row, times so many rows, can be added up without overflow."""
    with np.errstate(over="ignore"):
        squares = sum(np.einsum("ij,ij->i", table, table) for table in tables)
        _check_no_overflow(owner, ~np.isfinite(_ROOM * times * np.asarray(squares)))


def _check_no_overflow(owner: object, overflows: NDArray[np.bool_]) -> None:
    if overflows.any():
        raise InvalidInputError(
            f"Expected features and logits that {type(owner).__name__} can square and add up. Got values so large "
            f"that the score of {np.sum(overflows)} row(s) overflows. Check the rows, or divide by a constant before "
            "fit."
        )


def _match_columns(owner: object, labels: NDArray[Any], n_columns: int) -> tuple[NDArray[Any], Indices]:
    """Return the class of each column of logits, and the column of each label."""
    classes, index = np.unique(labels, return_inverse=True)
    check_at_least_two_classes(owner, classes)
    if len(classes) == n_columns or n_columns == 0:
        return classes, index
    if labels.dtype.kind in "iu" and classes[0] >= 0 and classes[-1] < n_columns:
        return np.arange(n_columns), labels.astype(np.intp)
    raise InvalidInputError(
        f"{type(owner).__name__} needs one column of logits for each class. Got {n_columns} column(s) and "
        f"{len(classes)} classes. Pass the logits of all classes; if some class has no row, number the classes "
        f"from 0 to {n_columns - 1} in the order of the columns."
    )
