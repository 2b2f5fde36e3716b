"""Measure the errors of a regression, and how well its uncertainty, intervals and confidence match them.

`error` is one non-negative number per row, such as `sample_rmse` gives; `uncertainty` is one number per row, higher
where the prediction is less trustworthy; `confidence` lies in [0, 1]. Targets and bounds are (n,), or (n, D) for D
outputs. `sample_weight` says how many rows each row stands for.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from onsphere._internal.validation import Floats, check_flag, check_number, check_option
from onsphere.errors import InvalidInputError
from onsphere.metrics._checks import (
    Weights,
    average_bins,
    average_rows,
    bin_by_quantile,
    bin_by_width,
    check_range,
    check_rows,
    check_weights,
)

__all__ = [
    "coverage_at_sigma",
    "gaussian_crps",
    "interval_coverage",
    "interval_width",
    "isotonic_calibration_error",
    "mean_sample_rmse",
    "monotonicity_index",
    "pearson",
    "regression_calibration_error",
    "sample_rmse",
    "spearman",
    "winkler_score",
]


# --- errors ---


def sample_rmse(y_true: ArrayLike, y_pred: ArrayLike) -> Floats:
    """Return the root mean squared error of each row over its outputs: the absolute error if there is one output.

    Examples
    --------
    >>> sample_rmse([[0.0, 0.0], [1.0, 1.0]], [[1.0, 7.0], [1.0, 1.0]])
    array([5., 0.])
    """
    true, predicted, _ = check_rows("sample_rmse", None, outputs=True, y_true=y_true, y_pred=y_pred)
    return np.sqrt(np.mean((true - predicted) ** 2, axis=1))


def mean_sample_rmse(y_true: ArrayLike, y_pred: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the mean of `sample_rmse`, the RMSE of the paper; with one output this is the mean absolute error.

    Examples
    --------
    >>> mean_sample_rmse([[0.0, 0.0], [1.0, 1.0]], [[1.0, 7.0], [1.0, 1.0]])
    2.5
    """
    rows = sample_rmse(y_true, y_pred)
    return average_rows(rows, check_weights("mean_sample_rmse", sample_weight, len(rows)))


# --- uncertainty against error ---


def coverage_at_sigma(error: ArrayLike, uncertainty: ArrayLike, *, k: float, sample_weight: Weights = None) -> float:
    """Return the share of rows whose error is at most k times their uncertainty: Cov@kσ of the paper.

    Gaussian noise and a correct uncertainty give 0.68, 0.95 and 0.997 for k = 1, 2 and 3.

    Examples
    --------
    >>> coverage_at_sigma([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0], k=3)
    0.75
    """
    owner = "coverage_at_sigma"
    check_number(owner, "k", k, above=0.0)
    error, uncertainty, weights = check_rows(owner, sample_weight, error=error, uncertainty=uncertainty)
    check_range(owner, "uncertainty", uncertainty, low=0.0)
    return average_rows(error <= k * uncertainty, weights)


def regression_calibration_error(
    error: ArrayLike, uncertainty: ArrayLike, *, n_bins: int = 20, bins: str = "width", sample_weight: Weights = None
) -> float:
    """Return ECE_reg of the paper: the mean gap between uncertainty and error over bins, weighted by rows.

    Parameters
    ----------
    error, uncertainty : arrays of shape (n,)
        Both non-negative and in the same unit.
    n_bins : int, default 20
    bins : {"width", "quantile"}, default "width"
        "width" cuts the range of the uncertainty into equal parts, "quantile" cuts the rows into equal numbers
        (rows of equal uncertainty stay together). Empty bins do not count.
    sample_weight : array of shape (n,), optional

    Examples
    --------
    >>> regression_calibration_error([1.0, 2.0, 6.0], [1.0, 1.0, 5.0], n_bins=2)  # (2·½ + 1·1) / 3
    0.666...
    """
    owner = "regression_calibration_error"
    check_number(owner, "n_bins", n_bins, above=1, closed="left", whole=True)
    check_option(owner, "bins", bins, ("width", "quantile"))
    error, uncertainty, weights = check_rows(owner, sample_weight, error=error, uncertainty=uncertainty)
    check_range(owner, "uncertainty", uncertainty, low=0.0)
    if bins == "width":
        index = bin_by_width(uncertainty, float(uncertainty.min()), float(uncertainty.max()), n_bins)
    else:
        index = bin_by_quantile(uncertainty, weights, n_bins)
    mass, mean_error, mean_uncertainty = average_bins(index, weights, error, uncertainty)
    found = average_rows(np.abs(mean_error - mean_uncertainty), mass)
    return min(found, float(max(error.max(), uncertainty.max())))  # no gap is larger, but means may be rounded up


def pearson(error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Return the linear correlation of error and uncertainty, or 0 if either is constant.

    Examples
    --------
    >>> pearson([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    0.981...
    """
    error, uncertainty, _ = check_rows("pearson", None, error=error, uncertainty=uncertainty)
    return _correlation(error, uncertainty)


def spearman(error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Return the rank correlation of error and uncertainty, or 0 if either is constant.

    Examples
    --------
    >>> spearman([1.0, 2.0, 3.0], [1.0, 2.0, 400.0])
    1.0
    """
    from scipy.stats import rankdata

    error, uncertainty, _ = check_rows("spearman", None, error=error, uncertainty=uncertainty)
    return _correlation(rankdata(error), rankdata(uncertainty))


def _correlation(first: Floats, second: Floats) -> float:
    # scipy's pearsonr warns and returns NaN for an input that is constant or nearly so.
    return float(np.clip(np.dot(_standardize(first), _standardize(second)), -1.0, 1.0))


def _standardize(values: Floats) -> Floats:
    """Return the values centred and with norm 1, or all zero if constant."""
    if values.min() == values.max():
        return np.zeros_like(values)
    # Scale first, so that no square overflows or underflows.
    values = values / np.abs(values).max()
    centred = values - values.mean()
    return centred / np.linalg.norm(centred)


# --- intervals and distributions ---


def interval_coverage(
    y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, per_output: bool = False, sample_weight: Weights = None
) -> float | Floats:
    """Return the share of rows inside their interval, bounds included.

    With several outputs, a row is inside when all its outputs are; `per_output` gives the share of each output
    instead, as an array of shape (D,).

    Examples
    --------
    >>> y, lower, upper = [[1.0, 1.0], [3.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]], [[2.0, 2.0], [2.0, 2.0]]
    >>> interval_coverage(y, lower, upper)
    0.5
    >>> interval_coverage(y, lower, upper, per_output=True)
    array([0.5, 1. ])
    """
    owner = "interval_coverage"
    check_flag(owner, "per_output", per_output)
    true, low, high, weights = _check_intervals(owner, sample_weight, y_true=y_true, lower=lower, upper=upper)
    inside = (low <= true) & (true <= high)
    return np.average(inside, axis=0, weights=weights) if per_output else average_rows(np.all(inside, axis=1), weights)


def interval_width(lower: ArrayLike, upper: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the mean width of the intervals over rows and outputs.

    Examples
    --------
    >>> interval_width([0.0, 1.0], [1.0, 4.0])
    2.0
    """
    low, high, weights = _check_intervals("interval_width", sample_weight, lower=lower, upper=upper)
    return average_rows(high - low, weights)


def winkler_score(
    y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, coverage: float, sample_weight: Weights = None
) -> float:
    """Return the width plus 2/(1 − coverage) times the miss, averaged over rows and outputs. Lower is better.

    Examples
    --------
    >>> winkler_score([0.5, 3.0], [0.0, 0.0], [1.0, 2.0], coverage=0.5)  # widths 1 and 2, one miss of 1 times 4
    3.5
    """
    owner = "winkler_score"
    check_number(owner, "coverage", coverage, above=0.0, below=1.0)
    true, low, high, weights = _check_intervals(owner, sample_weight, y_true=y_true, lower=lower, upper=upper)
    miss = np.maximum(low - true, 0.0) + np.maximum(true - high, 0.0)
    return average_rows(high - low + 2.0 / (1.0 - coverage) * miss, weights)


def _check_intervals(owner: str, weights: Weights, **arrays: ArrayLike) -> list[Floats]:
    rows = check_rows(owner, weights, outputs=True, **arrays)
    low, high = rows[-3:-1]
    if crossed := int(np.sum(low > high)):
        raise InvalidInputError(
            f"Expected lower bounds at or below the upper bounds in {owner}. Got {crossed} of {low.size} crossed. "
            "Check the order of the arguments, or sort each pair."
        )
    return rows


def gaussian_crps(y_true: ArrayLike, mean: ArrayLike, sigma: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the continuous ranked probability score of normal distributions, averaged over rows and outputs.

    Lower is better. It has the unit of y, and is the absolute error where sigma is 0.

    Examples
    --------
    >>> gaussian_crps([1.0, 2.0], [1.0, 0.0], [1.0, 0.0])  # 0.2337 and 2
    1.1168...
    """
    from scipy.special import ndtr

    true, center, spread, weights = check_rows(
        "gaussian_crps", sample_weight, outputs=True, y_true=y_true, mean=mean, sigma=sigma
    )
    miss = true - center
    # Where sigma is 0, z is infinite and the score is the absolute miss.
    with np.errstate(over="ignore"):
        z = np.divide(miss, spread, out=np.copysign(np.inf, miss), where=spread > 0)
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    score = miss * (2.0 * ndtr(z) - 1.0) + spread * (2.0 * density - 1.0 / math.sqrt(math.pi))
    return average_rows(score, weights)


# --- confidence against error ---


def monotonicity_index(
    error: ArrayLike, confidence: ArrayLike, *, n_bins: int = 20, sample_weight: Weights = None
) -> float:
    """Return the share of steps between confidence bins at which the mean error does not rise. 1 is best.

    The bins cut [0, 1] into equal widths, and a step leads from one non-empty bin to the next. If all rows fall into
    one bin there is no step and the index is 0: a confidence that separates no rows is worth nothing. This is our
    reading of the MI in the paper's tables; the paper gives no formula.

    Examples
    --------
    >>> monotonicity_index([5.0, 3.0, 4.0, 1.0], [0.0, 0.3, 0.6, 0.9], n_bins=4)  # falls, rises, falls
    0.666...
    """
    owner = "monotonicity_index"
    check_number(owner, "n_bins", n_bins, above=1, closed="left", whole=True)
    error, confidence, weights = check_rows(owner, sample_weight, error=error, confidence=confidence)
    _, mean_error = average_bins(bin_by_width(confidence, 0.0, 1.0, n_bins), weights, error)
    if len(mean_error) == 1:
        return 0.0
    # Means of equal errors may differ in their last digits; that does not count as a rise.
    return float(np.mean(np.diff(mean_error) <= 1e-12 * error.max()))


def isotonic_calibration_error(error: ArrayLike, confidence: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the mean distance of the errors from the best curve that never rises with confidence. Lower is better.

    The curve is the isotonic least-squares fit of the error on the confidence. This is our reading of the ICE in the
    paper's tables; the paper gives no formula.

    Examples
    --------
    >>> isotonic_calibration_error([4.0, 1.0, 3.0], [0.1, 0.5, 0.9])  # the fit is 4, 2, 2
    0.666...
    """
    from sklearn.isotonic import IsotonicRegression

    error, confidence, weights = check_rows(
        "isotonic_calibration_error", sample_weight, error=error, confidence=confidence
    )
    fit = IsotonicRegression(increasing=False).fit_transform(confidence, error, sample_weight=weights)
    return average_rows(np.abs(error - fit), weights)
