"""Ridge regression from sums alone: Gram matrices of columns and targets, and the head fitted from them.

The sums in `Statistics` are all a head needs, and sums can be added, so rows may come in any order, in batches, or on
several machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri  # type: ignore[reportAttributeAccessIssue]

from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError
from onsphere.models.frozen.designs import Design

__all__ = ["RIDGES", "Head", "Statistics", "solve"]

# What generalised cross-validation chooses from: decades, because its minimum is flat.
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Everything a head has to know about its rows: sums over columns C and targets T.

    Attributes
    ----------
    n_rows : int
    column_sum, target_sum : arrays of shapes (c,) and (t,)
    gram : array of shape (c, c)
        CᵀC.
    cross : array of shape (c, t)
        CᵀT.
    target_square : float
        The sum of all squared entries of T.
    """

    n_rows: int
    column_sum: Floats
    target_sum: Floats
    gram: Floats
    cross: Floats
    target_square: float

    @classmethod
    def empty(cls, n_columns: int, n_targets: int) -> Statistics:
        """Return sums over no rows."""
        square, tall = np.zeros((n_columns, n_columns)), np.zeros((n_columns, n_targets))
        return cls(0, np.zeros(n_columns), np.zeros(n_targets), square, tall, 0.0)

    @classmethod
    def from_rows(cls, columns: Floats, targets: Floats) -> Statistics:
        """Return the sums over these rows."""
        return cls(
            n_rows=len(columns),
            column_sum=columns.sum(axis=0),
            target_sum=targets.sum(axis=0),
            gram=columns.T @ columns,
            cross=columns.T @ targets,
            target_square=float(np.sum(targets * targets)),
        )

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def center(self) -> Statistics:
        """Return the same sums with columns and targets measured from their means."""
        n = max(self.n_rows, 1)
        return replace(
            self,
            column_sum=np.zeros_like(self.column_sum),
            target_sum=np.zeros_like(self.target_sum),
            gram=self.gram - np.outer(self.column_sum, self.column_sum) / n,
            cross=self.cross - np.outer(self.column_sum, self.target_sum) / n,
            target_square=self.target_square - float(np.sum(self.target_sum**2)) / n,
        )


@dataclass(frozen=True, eq=False)
class Head:
    """A fitted head.

    Attributes
    ----------
    design : Design
    weights : array of shape (c, t)
    intercept : array of shape (t,)
    ridge : float
        The strength it was fitted with.
    """

    design: Design
    weights: Floats
    intercept: Floats
    ridge: float

    def predict(self, X: Floats) -> Floats:
        """Return what the head predicts, shape (n, t)."""
        return self.design.make_columns(X) @ self.weights + self.intercept


def solve(design: Design, statistics: Statistics, ridge: float | str) -> Head:
    """Fit a head from the sums alone, with this ridge or the one that generalised cross-validation prefers."""
    inner = statistics.center() if design.has_intercept else statistics
    penalty = design.make_penalty(np.diag(inner.gram) / max(inner.n_rows, 1))
    if isinstance(ridge, str):
        ridge = min(RIDGES, key=lambda strength: _cross_validate(design, inner, penalty, strength))
    weights: Any = cho_solve(_factor(inner.gram, penalty, ridge), inner.cross)
    intercept = np.zeros(len(statistics.target_sum))
    if design.has_intercept:
        intercept = (statistics.target_sum - statistics.column_sum @ weights) / max(statistics.n_rows, 1)
    return Head(design, weights, intercept, ridge)


def _cross_validate(design: Design, inner: Statistics, penalty: Floats, ridge: float) -> float:
    """Return n·RSS / (n − df)², the cost of leaving rows out if all were alike (Golub, Heath and Wahba, 1979)."""
    try:
        factor, lower = _factor(inner.gram, penalty, ridge)
    except InvalidInputError:
        return math.inf
    weights: Any = cho_solve((factor, lower), inner.cross)
    triangle: Any = dpotri(factor, lower=lower)[0]
    # The trace of the product of two symmetric matrices, of which one is given by its lower triangle.
    below = np.tril(triangle, -1)
    n_free = 2.0 * np.sum(below * inner.gram) + np.diag(triangle) @ np.diag(inner.gram) + design.has_intercept
    explained = 2.0 * np.sum(weights * inner.cross) - np.sum(weights * (inner.gram @ weights))
    residual = max(inner.target_square - explained, 0.0)
    n_left = max(inner.n_rows - n_free, 1e-6 * inner.n_rows)
    return float(inner.n_rows * residual / n_left**2)


def _factor(gram: Floats, penalty: Floats, ridge: float) -> Any:
    """Return the Cholesky factor of gram + ridge·penalty."""
    try:
        return cho_factor(gram + ridge * penalty, lower=True)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise InvalidInputError(
            f"Expected a ridge with which the regression on the features can be solved. Got {ridge:g}, for which "
            f"rounding leaves no solution ({error}). Raise ridge, or leave it at 'gcv', and standardise the features."
        ) from error
