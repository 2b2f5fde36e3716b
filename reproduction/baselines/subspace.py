"""Detectors that use features and the last linear layer, which they recover from features and logits."""

from __future__ import annotations

import numbers

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.utils import check_array, check_consistent_length

from onsphere import InvalidInputError
from onsphere.baselines import Detector
from reproduction.arguments import Floats, argument_error, check_positive

__all__ = ["FDBD", "NCI", "ViM", "fdbd", "nci", "recover_last_layer", "vim"]

# Half precision leaves residuals of a thousandth of the spread of the logits; a layer that is not linear, far more.
_LARGEST_RESIDUAL = 0.01

# Directions in which standardised features vary less than this share of the most are left out: the fit would see
# only the rounding of single precision there.
_LEAST_VARIATION = 1e-6

# A mean residual below this share of the features' size is rounding.
_LEAST_RESIDUAL = 1e-9


def recover_last_layer(features: ArrayLike, logits: ArrayLike) -> tuple[Floats, Floats]:
    """Return the weights and the bias of the layer between features and logits, found by least squares.

    A feature that never varies gets weight 0, because nothing is known about it.

    Parameters
    ----------
    features : array of shape (n, p)
        More rows than columns.
    logits : array of shape (n, C)

    Returns
    -------
    weight : array of shape (C, p)
    bias : array of shape (C,)

    Examples
    --------
    >>> import numpy as np
    >>> features = np.random.default_rng(0).normal(size=(20, 3))
    >>> weight, bias = recover_last_layer(features, features @ [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]] + [7.0, 8.0])
    >>> weight.round(6).tolist(), bias.round(6).tolist()
    ([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [7.0, 8.0])
    """
    features, logits = _check_tables("recover_last_layer", features, logits)
    if len(features) <= features.shape[1]:
        raise InvalidInputError(
            f"The last layer can be recovered only from more rows than features. Got {len(features)} rows of "
            f"{features.shape[1]} features. Pass more training rows."
        )
    center, middle = features.mean(axis=0), logits.mean(axis=0)
    scale = features.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    columns, targets = (features - center) / scale, logits - middle
    solution = np.linalg.lstsq(columns, targets, rcond=_LEAST_VARIATION)[0]
    residual, spread = float(np.std(targets - columns @ solution)), float(np.std(targets))
    if not residual <= _LARGEST_RESIDUAL * spread:
        raise InvalidInputError(
            "Expected logits that are a linear function of the features, plus a constant. "
            f"Got logits with {residual / spread:.0%} of their spread left over. Pass the inputs of the last linear "
            "layer and the logits it returns, of the same rows in the same order and before any softmax."
        )
    weight = (solution / scale[:, None]).T
    return weight, middle - weight @ center


def _check_tables(function: str, features: ArrayLike, logits: ArrayLike) -> tuple[Floats, Floats]:
    """Return two tables of finite numbers, with as many rows each."""
    try:
        tables = [check_array(np.asarray(table, dtype=np.float64)) for table in (features, logits)]
        check_consistent_length(*tables)
    except ValueError as error:
        raise InvalidInputError(f"The features and logits of {function}: {error}") from error
    return tables[0], tables[1]


def vim(features: ArrayLike, logits: ArrayLike, origin: Floats, residual_space: Floats, alpha: float) -> Floats:
    """Return the virtual logit against all others: α·‖residual‖ − log Σ exp(logits), shape (n,).

    The paper reports the softmax probability of the virtual logit. It grows with this score, but is the same number
    for all rows where it is close to 0 or 1.

    Parameters
    ----------
    features : array of shape (n, p)
    logits : array of shape (n, C)
    origin : array of shape (p,)
    residual_space : array of shape (p, p − principal dimensions)
        Orthonormal columns.
    alpha : float

    Examples
    --------
    >>> import numpy as np
    >>> vim([[3.0, 4.0]], [[0.0, 0.0]], np.zeros(2), np.array([[0.0], [1.0]]), 2.0).round(3)
    array([7.307])
    """
    features, logits = _check_tables("vim", features, logits)
    virtual = alpha * np.linalg.norm((features - origin) @ residual_space, axis=1)
    return virtual - np.asarray(logsumexp(logits, axis=1))


class ViM(Detector):
    """Virtual-logit matching: the distance of features from the space of the training features, as one more logit.

    Training features lie close to a subspace of few dimensions. The length of the part outside it, scaled to the size
    of the largest logit of training rows, competes with the real logits.

    Wang, Li, Feng and Zhang, "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022.

    Cost: O(np² + p³) to fit, O(p²) per row. Fails where features fill all their dimensions, as a few features do, and
    where unusual rows stay within the principal space.

    Parameters
    ----------
    n_principal : int, optional
        Dimensions of the principal space. By default the paper's rule of thumb: 1,000 for at least 2,048 features,
        512 for at least 768, and half for fewer.

    Attributes
    ----------
    origin_ : array of shape (p,)
        The shortest vector at which all logits are 0, or nearly so.
    residual_space_ : array of shape (p, p − n_principal)
    alpha_ : float
        Mean largest logit over mean residual of the training rows.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> features = np.eye(4)[labels] * 5 + rng.normal(size=(200, 4)) * [1, 1, 0.1, 0.1]
    >>> logits = features[:, :2]
    >>> detector = ViM().fit(features, logits, labels)
    >>> usual, unusual = detector.score([[5.0, 0.0, 0.0, 0.0], [5.0, 0.0, 3.0, 0.0]], [[5.0, 0.0], [5.0, 0.0]])
    >>> bool(unusual > usual)
    True
    """

    origin_: Floats
    residual_space_: Floats
    alpha_: float

    def __init__(self, *, n_principal: int | None = None) -> None:
        self.n_principal = n_principal

    def _fit(self, features: Floats, logits: Floats, label_index: NDArray[np.intp]) -> None:
        n_features = features.shape[1]
        if n_features < 2:
            raise InvalidInputError("ViM needs at least two features, to split them into two spaces. Got one.")
        n_principal = _choose_n_principal(n_features) if self.n_principal is None else self.n_principal
        if not isinstance(n_principal, numbers.Integral) or not 0 < n_principal < n_features:
            raise argument_error("ViM", "n_principal", f"an int in (0, {n_features})", n_principal)
        weight, bias = recover_last_layer(features, logits)
        self.origin_ = -np.linalg.pinv(weight) @ bias
        moved = features - self.origin_
        # In ascending order, so the first vectors span the space outside the principal one.
        vectors = np.linalg.eigh(moved.T @ moved / len(moved))[1]
        self.residual_space_ = vectors[:, : n_features - n_principal]
        residual = float(np.mean(np.linalg.norm(moved @ self.residual_space_, axis=1)))
        largest = float(np.mean(logits.max(axis=1)))
        if residual <= _LEAST_RESIDUAL * float(np.mean(np.linalg.norm(moved, axis=1))):
            raise InvalidInputError(
                f"ViM needs training features that do not all lie within the {n_principal} principal dimensions. "
                "Got residuals of zero. Choose a smaller n_principal."
            )
        if largest <= 0.0:
            raise InvalidInputError(
                "ViM scales the residual to the largest logit, which must be above zero on average. "
                f"Got {largest:.3g}. Pass logits as the last layer gives them, not shifted."
            )
        self.alpha_ = largest / residual

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return vim(features, logits, self.origin_, self.residual_space_, self.alpha_)


def _choose_n_principal(n_features: int) -> int:
    if n_features >= 2048:
        return 1000
    return 512 if n_features >= 768 else n_features // 2


def fdbd(features: ArrayLike, logits: ArrayLike, weight: Floats, mean: Floats) -> Floats:
    """Return minus the mean distance to the decision boundaries, over the distance to the mean feature; shape (n,).

    A row exactly at the mean has no such ratio and gets 0, the largest possible score. Classes with the same weights as
    the predicted one have no boundary with it and are left out. The weights are compared on each call, O(Cp) per
    class predicted; `FDBD` does so once.

    Parameters
    ----------
    features : array of shape (n, p)
    logits : array of shape (n, C)
    weight : array of shape (C, p)
        Of the last layer.
    mean : array of shape (p,)
        Of the training features.

    Examples
    --------
    >>> import numpy as np
    >>> fdbd([[3.0, 1.0]], [[3.0, 1.0]], np.eye(2), np.array([3.0, 0.0])).round(3)
    array([-1.414])
    """
    features, logits = _check_tables("fdbd", features, logits)
    predicted, index = np.unique(logits.argmax(axis=1), return_inverse=True)
    return _fdbd(features, logits, _measure_gaps(weight[predicted], weight)[index], mean)


def _measure_gaps(some: Floats, others: Floats) -> Floats:
    # From differences: products of weights would leave rounding where two classes have the same weights.
    return np.asarray(cdist(some, others), dtype=np.float64)


def _fdbd(features: Floats, logits: Floats, gaps: Floats, mean: Floats) -> Floats:
    """Return the same from the distances of all weights to those of each row's predicted class, shape (n, C)."""
    lead = logits.max(axis=1, keepdims=True) - logits
    is_other = gaps > 0.0
    distances = np.divide(lead, gaps, out=np.zeros_like(lead), where=is_other)
    mean_distance = distances.sum(axis=1) / np.maximum(is_other.sum(axis=1), 1)
    spread = np.linalg.norm(features - mean, axis=1)
    # Subtracted from zero, so that no row gets a negative zero.
    return 0.0 - np.divide(mean_distance, spread, out=np.zeros_like(spread), where=spread > 0.0)


class FDBD(Detector):
    """fDBD: distance of the features to the decision boundaries of the last layer.

    Features of known classes lie farther from the boundaries than unusual ones. Distances grow with the distance from
    the mean of all features, so they are divided by it.

    Liu and Qin, "Fast Decision Boundary based Out-of-Distribution Detector", ICML 2024.

    Cost: one least squares and O(C²p) to fit, O(p + C) per row. Fails for rows far out: the ratio tends to a constant
    that depends only on their direction, so the distance itself does not count.

    Attributes
    ----------
    weight_ : array of shape (C, p)
    gaps_ : array of shape (C, C)
        Distances between the weights of classes.
    mean_ : array of shape (p,)

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> features = np.eye(2)[labels] * 5 + rng.normal(size=(200, 2))
    >>> detector = FDBD().fit(features, features, labels)
    >>> between, inside = detector.score([[9.0, 8.9], [5.0, 0.0]], [[9.0, 8.9], [5.0, 0.0]])
    >>> bool(between > inside)
    True
    """

    weight_: Floats
    gaps_: Floats
    mean_: Floats

    def _fit(self, features: Floats, logits: Floats, label_index: NDArray[np.intp]) -> None:
        self.weight_, self.mean_ = recover_last_layer(features, logits)[0], features.mean(axis=0)
        self.gaps_ = _measure_gaps(self.weight_, self.weight_)

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return _fdbd(features, logits, self.gaps_[logits.argmax(axis=1)], self.mean_)


def nci(features: ArrayLike, logits: ArrayLike, weight: Floats, mean: Floats, *, alpha: float = 1e-4) -> Floats:
    """Return minus the projection of the predicted class's weights on the centred feature, minus α·‖feature‖₁; (n,).

    A row exactly at the mean has no direction and projects to 0.

    Parameters
    ----------
    features, logits, weight, mean : as in `fdbd`
    alpha : float, default 1e-4

    Examples
    --------
    >>> import numpy as np
    >>> nci([[3.0, 4.0]], [[0.0, 1.0]], np.eye(2), np.zeros(2), alpha=0.1).round(3)
    array([-1.5])
    """
    check_positive("nci", "alpha", alpha, or_zero=True)
    features, logits = _check_tables("nci", features, logits)
    centered = features - mean
    along = np.sum(centered * weight[logits.argmax(axis=1)], axis=1)
    length = np.linalg.norm(centered, axis=1)
    proximity = np.divide(along, length, out=np.zeros_like(along), where=length > 0.0)
    return -proximity - alpha * np.abs(features).sum(axis=1)


class NCI(Detector):
    """Neural-collapse-inspired detector: closeness of a feature to the weights of its class, and its size.

    Late in training, centred features of a class line up with the weights of that class. Unusual features line up
    less, and are smaller.

    Liu and Qin, "Detecting Out-of-Distribution through the Lens of Neural Collapse", CVPR 2025.

    Cost: one least squares to fit, O(p + C) per row. Fails far out: larger features are trusted more, whatever they
    are, and networks trained for a short time do not line up.

    Parameters
    ----------
    alpha : float, default 1e-4
        Weight of the feature's size, ‖feature‖₁. The best value depends on the unit and number of the features; the
        paper chooses it with rows from elsewhere, which are not needed here. 0 leaves the size out.

    Attributes
    ----------
    weight_ : array of shape (C, p)
    mean_ : array of shape (p,)

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> features = np.eye(2)[labels] * 5 + rng.normal(size=(200, 2))
    >>> detector = NCI().fit(features, features @ [[1, -1], [-1, 1]], labels)
    >>> between, inside = detector.score([[9.0, 8.9], [5.0, 0.0]], [[0.1, -0.1], [5.0, -5.0]])
    >>> bool(between > inside)
    True
    """

    weight_: Floats
    mean_: Floats

    def __init__(self, *, alpha: float = 1e-4) -> None:
        self.alpha = alpha

    def _fit(self, features: Floats, logits: Floats, label_index: NDArray[np.intp]) -> None:
        check_positive("NCI", "alpha", self.alpha, or_zero=True)
        self.weight_, self.mean_ = recover_last_layer(features, logits)[0], features.mean(axis=0)

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return nci(features, logits, self.weight_, self.mean_, alpha=self.alpha)
