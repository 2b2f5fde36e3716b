"""Ridge regression from sums alone: columns made of features, Gram matrices of them, and the head fitted from those.

The sums in `Statistics` are all a head needs, and sums can be added, so rows may come in any order, in batches, or on
several machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri  # type: ignore[reportAttributeAccessIssue]

from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError
from onsphere.sphere import geometry
from onsphere.sphere.geometry import Array

__all__ = ["LARGEST", "RIDGES", "Design", "Head", "Kernel", "Linear", "Quadratic", "Statistics", "leave_out", "solve"]

# The ridges that generalised cross-validation chooses from: decades, because its minimum is flat.
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)

# What columns and targets may reach: sums over 10¹⁴ rows of products of two stay within the range of floats.
LARGEST = 1e140

# On the diagonal of the kernel matrix, where landmarks that nearly coincide would leave it singular.
_JITTER = 1e-6

# What rounding may leave of the distance between two equal unit vectors.
_DISTANCE_NOISE = 8 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Linear:
    """The features as they are, and an intercept.

    Attributes
    ----------
    origin : array of shape (c,)
        Taken from every row of columns before sums are formed, so that a far-away mean costs no digits.
    """

    origin: Floats

    has_intercept = True
    largest_feature = LARGEST

    @classmethod
    def from_rows(cls, X: Floats) -> Self:
        """Return a design whose origin is the mean of these rows."""
        return cls(cls.make_raw_columns(X).mean(axis=0))

    @staticmethod
    def make_raw_columns(X: Array) -> Array:
        """Return the columns before the origin is subtracted; numpy or torch."""
        return X

    @property
    def n_columns(self) -> int:
        return len(self.origin)

    def make_columns(self, X: Floats) -> Floats:
        """Return the columns (n, c) of features (n, p)."""
        return self.make_raw_columns(X) - self.origin

    def make_penalty(self, variance: Floats) -> Floats:
        """Return the matrix M of the ridge term λ·tr(WᵀMW) that lets all columns, of these variances, weigh alike."""
        return np.diag(np.where(variance > 1e-12 * variance.max(), variance, 1.0))


@dataclass(frozen=True, eq=False)
class Quadratic(Linear):
    """The features f, their squares and the roots of their sizes, and an intercept.

    Examples
    --------
    >>> import numpy as np
    >>> Quadratic.make_raw_columns(np.array([[4.0, -9.0]]))
    array([[ 4., -9., 16., 81.,  2.,  3.]])
    """

    largest_feature = LARGEST**0.5

    @staticmethod
    def make_raw_columns(X: Array) -> Array:
        xp = array_namespace(X)
        return xp.concat([X, X * X, xp.sqrt(xp.abs(X))], axis=-1)


@dataclass(frozen=True, eq=False)
class Kernel:
    """exp(−‖f − l‖²/h) for each landmark l, features and landmarks scaled to length 1: the Nyström method.

    No intercept: far from all landmarks the columns vanish, and with them the direction that a head predicts.

    Attributes
    ----------
    landmarks : array of shape (m, p)
        Of length 1.
    bandwidth : float
        h, a squared distance.
    """

    landmarks: Floats
    bandwidth: float

    has_intercept = False
    largest_feature = np.inf

    @classmethod
    def from_landmarks(cls, rows: Floats, share: float) -> Kernel:
        """Return a design around these rows; the bandwidth is a share of their median squared distance."""
        landmarks = geometry.split(rows)[0]
        distances = _compute_squared_distances(landmarks, landmarks)[np.triu_indices(len(landmarks), 1)]
        middle = float(np.median(distances)) if len(distances) else 0.0
        # Rows that all point the same way have no distances to go by; any bandwidth serves them.
        return cls(landmarks, share * middle if middle > 1e-12 else 1.0)

    @property
    def n_columns(self) -> int:
        return len(self.landmarks)

    def make_columns(self, X: Floats) -> Floats:
        """Return the columns (n, m) of features (n, p)."""
        distances = _compute_squared_distances(geometry.split(X)[0], self.landmarks)
        distances /= -self.bandwidth
        return np.exp(distances, out=distances)

    def make_penalty(self, variance: Floats) -> Floats:
        """Return the kernel matrix of the landmarks, so that λ is that of kernel ridge regression."""
        matrix = np.exp(_compute_squared_distances(self.landmarks, self.landmarks) / -self.bandwidth)
        # Where landmarks lie so close that rounding shows beside their distances, the matrix may have eigenvalues
        # below zero, of at most about the noise of an entry times the root of their number.
        noise = _DISTANCE_NOISE / self.bandwidth * len(matrix) ** 0.5
        return matrix + max(_JITTER, noise) * np.eye(len(matrix))


Design = Linear | Kernel


def _compute_squared_distances(units: Floats, others: Floats) -> Floats:
    """Return ‖a − b‖² = 2 − 2ab between unit vectors."""
    products = units @ others.T
    products *= -2.0
    products += 2.0
    return np.maximum(products, 0.0, out=products)


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
    inner, penalty = _prepare(design, statistics)
    if isinstance(ridge, str):
        ridge = min(RIDGES, key=lambda strength: _cross_validate(design, inner, penalty, strength))
    weights: Any = cho_solve(_factor(inner.gram, penalty, ridge), inner.cross)
    intercept = np.zeros(len(statistics.target_sum))
    if design.has_intercept:
        intercept = (statistics.target_sum - statistics.column_sum @ weights) / max(statistics.n_rows, 1)
    return Head(design, weights, intercept, ridge)


def leave_out(head: Head, statistics: Statistics, X: Floats, targets: Floats) -> Floats:
    """Predict rows that a head was fitted on, each as the head fitted without it would, in closed form, (n, t).

    Parameters
    ----------
    head : Head
    statistics : Statistics
        Of all rows that it was fitted on.
    X, targets : arrays of shapes (n, p) and (n, t)
        Some of these rows.
    """
    inner, penalty = _prepare(head.design, statistics)
    columns, alone = head.design.make_columns(X), 0.0
    if head.design.has_intercept:
        columns, alone = columns - statistics.column_sum / statistics.n_rows, 1.0 / statistics.n_rows
    solved: Any = cho_solve(_factor(inner.gram, penalty, head.ridge), columns.T)
    # What a row says of itself: its error without it is that much larger.
    leverage = np.sum(columns * solved.T, axis=1, keepdims=True) + alone
    return targets - (targets - head.predict(X)) / np.maximum(1.0 - leverage, 1e-9)


def _prepare(design: Design, statistics: Statistics) -> tuple[Statistics, Floats]:
    """Return the sums to solve for, and the matrix of the ridge term."""
    inner = statistics.center() if design.has_intercept else statistics
    return inner, design.make_penalty(np.diag(inner.gram) / max(inner.n_rows, 1))


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
