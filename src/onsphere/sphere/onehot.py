"""Classes as the axes of the sphere."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from onsphere._internal.validation import (
    Floats,
    check_at_least_two_classes,
    check_fitted,
    check_labels,
    check_n_outputs,
    check_regression_target,
)
from onsphere.errors import InvalidInputError
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["OneHot"]


class OneHot(BaseEstimator):
    """A class as a unit basis vector, magnitude 1. A soft label p stays p: its norm below 1 says how mixed it is.

    Attributes
    ----------
    classes_ : array of shape (C,)

    Examples
    --------
    >>> embedding = OneHot().fit(["cat", "dog", "cat"])
    >>> embedding.embed(["dog", "cat"]).direction
    array([[0., 1.],
           [1., 0.]])
    >>> embedding.decode(embedding.embed(["dog", "cat"])).tolist()
    ['dog', 'cat']
    """

    has_magnitude: ClassVar[bool] = False

    classes_: NDArray[Any]

    def fit(self, y: ArrayLike) -> Self:
        """Learn the classes.

        Parameters
        ----------
        y : array of labels, shape (n,)
        """
        self.classes_ = np.unique(check_labels(self, y))
        check_at_least_two_classes(self, self.classes_)
        return self

    def embed(self, y: ArrayLike) -> SphericalOutput:
        """Turn labels (n,) or soft labels (n, C) into directions.

        Soft labels are shares: not negative, and summing to 1 in every row.
        """
        check_fitted(self, "classes_")
        labels = np.asarray(y)
        direction = self._check_soft(labels) if labels.ndim == 2 and labels.shape[1] > 1 else self._encode(labels)
        return SphericalOutput(direction, np.ones(len(direction)))

    def decode(self, outputs: SphericalOutput) -> NDArray[Any]:
        """Return the class whose axis is nearest.

        Returns
        -------
        array of shape (n,)
        """
        check_fitted(self, "classes_")
        return self.classes_[outputs.direction.argmax(axis=1)]

    def _encode(self, y: NDArray[Any]) -> Floats:
        labels = check_labels(self, y)
        index = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        unknown = self.classes_[index] != labels
        if unknown.any():
            raise InvalidInputError(
                f"Expected labels among {self.classes_.tolist()}. Got {np.unique(labels[unknown])[:5].tolist()}. "
                "Fit again with all classes, or drop these rows."
            )
        return np.eye(len(self.classes_))[index]

    def _check_soft(self, shares: NDArray[Any]) -> Floats:
        values = check_regression_target(self, shares)
        check_n_outputs(self, values, len(self.classes_))
        if (values < 0).any() or not np.allclose(values.sum(axis=1), 1.0, atol=1e-6):
            raise InvalidInputError(
                "Expected soft labels that are not negative and sum to 1 in every row. "
                f"Got sums from {values.sum(axis=1).min():g} to {values.sum(axis=1).max():g} "
                f"and a smallest value of {values.min():g}. Divide each row by its sum."
            )
        return values
