"""Measure a classifier: its accuracy, its calibration, and how well a score detects inputs from outside.

The out-of-distribution metrics take two sets of scores, of in-distribution rows and of out-of-distribution rows.
A higher score is less trustworthy, so a good score is higher on the second set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onsphere._internal.validation import Floats, check_number, check_option
from onsphere.errors import InvalidInputError
from onsphere.metrics._checks import (
    Weights,
    average_bins,
    average_rows,
    bin_by_width,
    check_floats,
    check_rows,
    check_same_shape,
    check_weights,
)

__all__ = [
    "accuracy",
    "aupr",
    "auroc",
    "brier_score",
    "expected_calibration_error",
    "fpr_at_tpr",
    "log_loss",
]

# Wide enough for a softmax over thousands of classes in single precision.
_SUM_TOLERANCE = 1e-4


# --- right or wrong, and how sure ---


def accuracy(labels: ArrayLike, predicted: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the share of rows whose predicted class is the true one; classes may be numbers or text.

    Examples
    --------
    >>> accuracy(["cat", "dog", "dog", "cat"], ["cat", "dog", "cat", "cat"])
    0.75
    """
    true, guess = _check_classes("labels", labels), _check_classes("predicted", predicted)
    check_same_shape("accuracy", labels=true, predicted=guess)
    if (true.dtype.kind in "US") != (guess.dtype.kind in "US"):
        raise InvalidInputError(
            f"Expected labels and predicted of accuracy to be of one kind. Got {true.dtype} and {guess.dtype}. "
            "Convert one of them: text never equals a number."
        )
    return average_rows(true == guess, check_weights("accuracy", sample_weight, len(true)))


def _check_classes(name: str, values: ArrayLike) -> NDArray[Any]:
    # From a list, numpy finds the kind of the values in an object array, which is how pandas stores text.
    array = np.asarray(np.asarray(values).tolist())
    if array.dtype.kind in "US" and array.ndim == 1 and array.size:
        return array
    return check_floats("accuracy", name, array)


def brier_score(labels: ArrayLike, probabilities: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the mean squared distance between the probabilities and the one-hot label, from 0 (best) to 2.

    For two classes this is twice the score of one class alone.

    Parameters
    ----------
    labels : array of shape (n,) or (n, K)
        The index of the true class, 0 to K − 1, or its one-hot row.
    probabilities : array of shape (n, K)
        Each row sums to 1.
    sample_weight : array of shape (n,), optional

    Examples
    --------
    >>> brier_score([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    0.25
    """
    truth, probabilities, weights = _check_probabilities("brier_score", labels, probabilities, sample_weight)
    return average_rows(np.sum((probabilities - truth) ** 2, axis=1), weights)


def log_loss(labels: ArrayLike, probabilities: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the mean negative logarithm of the probability of the true class, 0 (best) to about 36.

    A probability of 0 counts as the smallest step of a float, 2⁻⁵², so that one row does not decide alone. Parameters
    are those of `brier_score`.

    Examples
    --------
    >>> round(log_loss([0, 1], [[1.0, 0.0], [0.5, 0.5]]), 3)
    0.347
    """
    truth, probabilities, weights = _check_probabilities("log_loss", labels, probabilities, sample_weight)
    likelihood = np.clip(np.sum(probabilities * truth, axis=1), np.finfo(np.float64).eps, 1.0)
    return average_rows(-np.log(likelihood), weights)


def _check_probabilities(
    owner: str, labels: ArrayLike, probabilities: ArrayLike, sample_weight: Weights
) -> tuple[Floats, Floats, Floats]:
    """Return one-hot labels, probabilities and weights."""
    probabilities = check_floats(owner, "probabilities", probabilities, n_dims=(2,))
    sums = probabilities.sum(axis=1)
    if np.abs(sums - 1.0).max() > _SUM_TOLERANCE:
        raise InvalidInputError(
            f"Expected each row of probabilities of {owner} to sum to 1. Got sums from {sums.min():g} to "
            f"{sums.max():g}. Divide each row by its sum."
        )
    truth = check_floats(owner, "labels", labels, n_dims=(1, 2))
    if truth.ndim == 1:
        truth = (truth[:, None] == np.arange(probabilities.shape[1])).astype(np.float64)
    check_same_shape(owner, labels=truth, probabilities=probabilities)
    if not (((truth == 0) | (truth == 1)).all() and (truth.sum(axis=1) == 1).all()):
        raise InvalidInputError(
            f"Expected labels of {owner} to be one-hot rows, or class indices from 0 to "
            f"{probabilities.shape[1] - 1}. Got something else. Number the classes as the columns of probabilities."
        )
    return truth, probabilities, check_weights(owner, sample_weight, len(truth))


def expected_calibration_error(
    correct: ArrayLike, confidence: ArrayLike, *, n_bins: int = 15, sample_weight: Weights = None
) -> float:
    """Return the mean gap between confidence and accuracy over equal-width bins of [0, 1], weighted by rows.

    Parameters
    ----------
    correct : array of shape (n,)
        True (or 1) where the prediction was right.
    confidence : array of shape (n,)
        In [0, 1].
    n_bins : int, default 15
        A bin includes its lower edge; the last bin also includes confidence 1.
    sample_weight : array of shape (n,), optional

    Examples
    --------
    >>> expected_calibration_error([True, True, False, True], [0.5, 0.5, 0.5, 0.75], n_bins=2)
    0.1875
    """
    owner = "expected_calibration_error"
    check_number(owner, "n_bins", n_bins, above=1, closed="left", whole=True)
    correct, confidence, weights = check_rows(owner, sample_weight, correct=correct, confidence=confidence)
    mass, share_right, mean_confidence = average_bins(
        bin_by_width(confidence, 0.0, 1.0, n_bins), weights, correct, confidence
    )
    return average_rows(np.abs(share_right - mean_confidence), mass)


# --- in or out of distribution ---


def auroc(
    in_scores: ArrayLike, out_scores: ArrayLike, *, in_weight: Weights = None, out_weight: Weights = None
) -> float:
    """Return the probability that a row from outside scores higher than one from inside; ties count half.

    Parameters
    ----------
    in_scores, out_scores : arrays of shapes (n,) and (m,)
        Uncertainties of in-distribution and out-of-distribution rows.
    in_weight, out_weight : arrays of shapes (n,) and (m,), optional

    Examples
    --------
    >>> auroc([0.1, 0.2, 0.3], [0.2, 0.9])  # (1 + ½ + 0 + 3) of 6 pairs
    0.75
    """
    from sklearn.metrics import roc_auc_score

    is_out, scores, weights = stack_scores("auroc", in_scores, out_scores, in_weight, out_weight)
    return float(roc_auc_score(is_out, scores, sample_weight=weights))


def aupr(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    positive: str = "out",
    in_weight: Weights = None,
    out_weight: Weights = None,
) -> float:
    """Return the area under the precision-recall curve as average precision, without interpolation.

    `positive` says which rows to find: "out" goes from the highest score down, "in" from the lowest score up. Other
    parameters are those of `auroc`.

    Examples
    --------
    >>> aupr([0.1, 0.3], [0.2, 0.9])  # precision 1 at recall ½, ⅔ at recall 1
    0.8333...
    """
    from sklearn.metrics import average_precision_score

    check_option("aupr", "positive", positive, ("out", "in"))
    is_out, scores, weights = stack_scores("aupr", in_scores, out_scores, in_weight, out_weight)
    if positive == "in":
        is_out, scores = 1.0 - is_out, -scores
    return float(average_precision_score(is_out, scores, sample_weight=weights))


def _check_scores(
    owner: str, in_scores: ArrayLike, out_scores: ArrayLike, in_weight: Weights, out_weight: Weights
) -> list[Floats]:
    inside = check_rows(owner, in_weight, in_scores=in_scores)
    return inside + check_rows(owner, out_weight, out_scores=out_scores)


def stack_scores(
    owner: str, in_scores: ArrayLike, out_scores: ArrayLike, in_weight: Weights, out_weight: Weights
) -> tuple[Floats, Floats, Floats]:
    """Return whether each row is out of distribution, its score and its weight: first all rows inside, then outside."""
    inside, inside_weight, outside, outside_weight = _check_scores(owner, in_scores, out_scores, in_weight, out_weight)
    is_out = np.repeat([0.0, 1.0], [len(inside), len(outside)])
    return is_out, np.concatenate((inside, outside)), np.concatenate((inside_weight, outside_weight))


def fpr_at_tpr(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    positive: str = "in",
    tpr: float = 0.95,
    in_weight: Weights = None,
    out_weight: Weights = None,
) -> float:
    """Return the share of the negative class taken for the positive one, where `tpr` of the positive class is found.

    Parameters
    ----------
    in_scores, out_scores : arrays of shape (n,) and (m,)
        Uncertainty in and out of distribution; higher means less trustworthy.
    positive : {"in", "out"}, default "in"
        "in": the share of the outside that is accepted, where 95 % of the inside is accepted (OpenOOD 1.0).
        "out": the share of the inside that is rejected, where 95 % of the outside is rejected (the code released
        with the paper, and OpenOOD since 1.5).
    tpr : float in (0, 1], default 0.95
        The threshold is the score of a positive row, the first at which at least this share is found.
    in_weight, out_weight : arrays of shape (n,) and (m,), optional

    Examples
    --------
    >>> inside, outside = [0.1, 0.2, 0.3, 0.9], [0.2, 0.5, 0.6, 0.7, 0.8]
    >>> fpr_at_tpr(inside, outside, tpr=0.75)  # accepted up to 0.3
    0.2
    >>> fpr_at_tpr(inside, outside, positive="out", tpr=0.75)  # rejected from 0.5 on
    0.25
    """
    check_option("fpr_at_tpr", "positive", positive, ("in", "out"))
    check_number("fpr_at_tpr", "tpr", tpr, above=0.0, below=1.0, closed="right")
    inside, inside_weight, outside, outside_weight = _check_scores(
        "fpr_at_tpr", in_scores, out_scores, in_weight, out_weight
    )
    if positive == "in":
        return _share_below(tpr, inside, inside_weight, outside, outside_weight)
    return _share_below(tpr, -outside, outside_weight, -inside, inside_weight)


def _share_below(
    tpr: float, positive: Floats, positive_weight: Floats, negative: Floats, negative_weight: Floats
) -> float:
    """Return the share of negatives at or below the smallest threshold that accepts `tpr` of the positives."""
    order = np.argsort(positive)
    reached = np.cumsum(positive_weight[order])
    # Rounding may leave a sum of shares slightly below its true value.
    threshold = positive[order][np.argmax(reached / reached[-1] >= tpr * (1 - 1e-12))]
    return average_rows(negative <= threshold, negative_weight)
