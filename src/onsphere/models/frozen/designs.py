"""Columns made of features: what each head regresses on, and how it weighs its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from array_api_compat import array_namespace

from onsphere._internal.validation import Floats
from onsphere.sphere import geometry
from onsphere.sphere.geometry import Array

__all__ = ["LARGEST", "Design", "Kernel", "Linear", "Quadratic"]

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
