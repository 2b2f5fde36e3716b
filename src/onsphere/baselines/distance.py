"""Detectors that use features alone: how far a row lies from the training rows."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cholesky, solve_triangular
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.neighbors import NearestNeighbors

from onsphere._internal.validation import Floats, check_number, get_name
from onsphere.baselines.detector import Detector, Indices, check_table
from onsphere.errors import InvalidInputError, OnsphereWarning
from onsphere.sphere import geometry

__all__ = ["KNN", "Mahalanobis", "knn", "mahalanobis"]

# A correlation matrix with an eigenvalue below this has lost too many digits to be inverted.
_SINGULAR = 1e-10

# Features that vary less than this share of their size are constant: the rest is rounding of their mean.
_ROUNDING = 1e-14

# A singular correlation is shrunk at least this much, also where Ledoit and Wolf would shrink less.
_LEAST_SHRINKAGE = 1e-6


def mahalanobis(features: ArrayLike, means: Floats, whitening: Floats) -> Floats:
    """Return the squared Mahalanobis distance to the nearest mean, shape (n,).

    Parameters
    ----------
    features : array of shape (n, p)
    means : array of shape (classes, p)
    whitening : array of shape (p, p)
        A with AᵀA = the inverse of the covariance.

    Examples
    --------
    >>> import numpy as np
    >>> mahalanobis([[3.0, 0.0]], np.array([[0.0, 0.0], [4.0, 0.0]]), np.diag([2.0, 1.0]))
    array([4.])
    """
    rows = check_table("mahalanobis", "features", features) @ whitening.T
    nearest = np.full(len(rows), np.inf)
    for center in means @ whitening.T:
        np.minimum(nearest, np.sum((rows - center) ** 2, axis=1), out=nearest)
    return nearest


def knn(features: ArrayLike, train_features: ArrayLike, *, k: int = 50) -> Floats:
    """Return the distance to the k-th nearest training row, all rows scaled to length 1; shape (n,).

    Examples
    --------
    >>> knn([[2.0, 0.0]], [[5.0, 0.0], [0.0, 1.0]], k=2).round(3)
    array([1.414])
    """
    rows = _scale_to_unit(check_table("knn", "train_features", train_features))
    _check_k("knn", k, len(rows))
    return _find_kth_distance(_index_rows(rows, k), check_table("knn", "features", features))


class Mahalanobis(Detector):
    """Squared Mahalanobis distance to the nearest class mean, with one covariance for all classes.

    The features of each class are modelled as a Gaussian cloud, all clouds with one shape. The distance is measured in
    units of that shape, so an invertible affine map of the features does not change it.

    Lee, Lee, Lee and Shin, "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial
    Attacks", NeurIPS 2018 (here on the last features, without perturbed inputs or a fitted mixture of layers).

    Cost: O(np² + p³) to fit, O(p² + Cp) per row. Fails where classes have different shapes, and where unusual rows
    differ only in directions in which the training rows vary much. A singular covariance (constant or dependent
    features, fewer rows than features) is shrunk towards its diagonal, with a warning; a constant feature then counts
    as much as the one that varies least.

    Attributes
    ----------
    means_ : array of shape (classes that occur, p)
    whitening_ : array of shape (p, p)
        A with AᵀA = the inverse of the covariance.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> features = rng.normal(size=(200, 3)) + 5.0 * labels[:, None]
    >>> detector = Mahalanobis().fit(features, labels=labels)
    >>> far, near = detector.score([[90.0, 0.0, 0.0], [5.0, 5.0, 5.0]])
    >>> bool(far > 1000 > 1 > near)
    True
    """

    means_: Floats
    whitening_: Floats
    _needs: ClassVar[tuple[str, ...]] = ("labels",)

    def _fit(self, features: Floats, logits: Floats, label_index: Indices) -> None:
        present, index = np.unique(label_index, return_inverse=True)
        self.means_ = np.array([features[index == each].mean(axis=0) for each in range(len(present))])
        centered = features - self.means_[index]
        centered[:, _root_mean_square(centered) <= _ROUNDING * np.abs(features).max(axis=0)] = 0.0
        self.whitening_ = _make_whitening(self, centered)

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return mahalanobis(features, self.means_, self.whitening_)


def _root_mean_square(centered: Floats) -> Floats:
    return np.sqrt(np.mean(centered**2, axis=0))


def _make_whitening(owner: object, centered: Floats) -> Floats:
    """Return A with AᵀA = the inverse of the covariance of centred rows, shrunk if it cannot be inverted."""
    # Columns are brought to one scale first: whether they are singular does not depend on their units.
    scale = _root_mean_square(centered)
    if not scale.any():
        raise InvalidInputError(
            f"{type(owner).__name__} needs features that vary within classes. Got each row equal to the mean of its "
            "class. Check the features."
        )
    # A constant feature has no scale; a row that differs in it counts as in the feature that varies least.
    safe = np.where(scale > 0.0, scale, scale[scale > 0.0].min())
    standardised = centered / safe
    correlation = standardised.T @ standardised / len(centered)
    if float(np.linalg.eigvalsh(correlation)[0]) > _SINGULAR:
        return _invert_root(correlation) / safe
    shrinkage = max(float(ledoit_wolf_shrinkage(standardised, assume_centered=True)), _LEAST_SHRINKAGE)
    warnings.warn(
        f"The covariance of {centered.shape[1]} features over {len(centered)} rows is singular; {type(owner).__name__} "
        f"shrinks it by {shrinkage:.2g} towards its diagonal. Drop constant or repeated features, or pass more rows.",
        OnsphereWarning,
        stacklevel=4,
    )
    # The correlation and not the covariance, where one feature of a large unit would drown all others.
    shrunk = (1.0 - shrinkage) * correlation
    np.fill_diagonal(shrunk, 1.0)
    return _invert_root(shrunk) / safe


def _invert_root(correlation: Floats) -> Floats:
    root: Any = cholesky(correlation, lower=True)
    return np.asarray(solve_triangular(root, np.eye(len(root)), lower=True))


class KNN(Detector):
    """Distance to the k-th nearest training row, with all features scaled to length 1.

    No shape is assumed for the classes: a row is unusual where training rows are sparse. The length of the features
    is left out, because it differs more between rows of one class than their direction does.

    Sun, Ming, Zhu and Li, "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022.

    Cost: all kept rows are stored, O(np) per row. Fails where unusual rows differ by length alone, and in sparse
    corners of the training rows.

    Parameters
    ----------
    k : int, default 50
        Which neighbour; fewer rows need a smaller k.
    every : int, default 1
        Keep only every such training row: 10 keeps a tenth of them.

    Attributes
    ----------
    n_rows_ : int
        Training rows that are kept.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> features = np.eye(2)[np.arange(200) % 2] + 0.1 * rng.normal(size=(200, 2))
    >>> far, near = KNN(k=10).fit(features).score([[-1.0, -1.0], [1.0, 0.0]])
    >>> bool(far > 1 > near)
    True
    """

    n_rows_: int
    _needs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, k: int = 50, every: int = 1) -> None:
        self.k = k
        self.every = every

    def _fit(self, features: Floats, logits: Floats, label_index: Indices) -> None:
        check_number(self, "every", self.every, above=1, closed="left", whole=True)
        rows = _scale_to_unit(features[:: self.every])
        _check_k(self, self.k, len(rows))
        self.n_rows_ = len(rows)
        self._neighbours = _index_rows(rows, self.k)

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return _find_kth_distance(self._neighbours, features)


def _check_k(owner: object, k: int, n_rows: int) -> None:
    check_number(owner, "k", k, above=1, closed="left", whole=True)
    if k > n_rows:
        raise InvalidInputError(
            f"{get_name(owner)} looks for neighbour number k={k} among the training rows it keeps. Got {n_rows} rows. "
            "Pass more rows, keep more of them, or choose a smaller k."
        )


def _scale_to_unit(features: Floats) -> Floats:
    """Scale rows to length 1; a row of zeros stays 0, at distance 1 from all others."""
    direction, magnitude = geometry.split(features)
    return direction * (magnitude > 0)[:, None]


def _index_rows(rows: Floats, k: int) -> Any:
    return NearestNeighbors(n_neighbors=k, algorithm="brute").fit(rows)


def _find_kth_distance(neighbours: Any, features: Floats) -> Floats:
    return np.asarray(neighbours.kneighbors(_scale_to_unit(features))[0][:, -1])
