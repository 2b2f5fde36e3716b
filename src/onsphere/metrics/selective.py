"""Measure how well an uncertainty selects the predictions to keep.

Rows are accepted in the order of increasing uncertainty; the risk at a coverage is the mean error of the rows
accepted so far. Tied rows have no particular order, so each of them counts with the mean error of its group: this is
the expectation over all orders, and no result depends on how the rows were sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from onsphere._internal.validation import Floats
from onsphere.metrics._checks import Weights, average_bins, check_rows

__all__ = ["aurc", "excess_aurc", "risk_coverage_curve"]


def risk_coverage_curve(
    error: ArrayLike, uncertainty: ArrayLike, *, sample_weight: Weights = None
) -> tuple[Floats, Floats]:
    """Return the mean error of the accepted rows as more and more rows are accepted.

    Parameters
    ----------
    error : array of shape (n,)
        Non-negative: an absolute error, a per-row RMSE, or 0 and 1 for right and wrong.
    uncertainty : array of shape (n,)
        Higher is less trustworthy.
    sample_weight : array of shape (n,), optional
        How many rows each row stands for; rows of weight zero have no point on the curve.

    Returns
    -------
    coverage, risk : arrays of shape (n,)
        One point per row; the last one is coverage 1 and the mean error of all rows.

    Examples
    --------
    >>> coverage, risk = risk_coverage_curve([0.0, 4.0, 2.0, 2.0], [0.1, 0.9, 0.5, 0.3])
    >>> coverage
    array([0.25, 0.5 , 0.75, 1.  ])
    >>> risk.round(2)
    array([0.  , 1.  , 1.33, 2.  ])
    """
    error, uncertainty, weights = check_rows("risk_coverage_curve", sample_weight, error=error, uncertainty=uncertainty)
    _, group, n_rows = np.unique(uncertainty, return_inverse=True, return_counts=True)
    mass, group_error = average_bins(group, weights, error)
    step = np.repeat(mass / n_rows, n_rows)
    accepted = np.cumsum(step)
    return accepted / accepted[-1], np.cumsum(step * np.repeat(group_error, n_rows)) / accepted


def aurc(error: ArrayLike, uncertainty: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the area under the risk-coverage curve: the mean of its n risks. Lower is better.

    Parameters are those of `risk_coverage_curve`. Weights are counts here: doubling them all gives the area of the
    data seen twice, which is a little different from that of the data seen once.

    Examples
    --------
    >>> aurc([0.0, 4.0, 2.0, 2.0], [0.1, 0.9, 0.5, 0.3])  # (0 + 1 + 4/3 + 2) / 4
    1.0833...
    """
    return _area(*check_rows("aurc", sample_weight, error=error, uncertainty=uncertainty))


def excess_aurc(error: ArrayLike, uncertainty: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the AURC minus that of the oracle, which accepts rows in the order of their error. Zero is perfect.

    Parameters are those of `risk_coverage_curve`. Adding a constant to every error changes nothing, but scaling the
    errors does, so divide by the mean error to compare models of different accuracy.

    Examples
    --------
    >>> excess_aurc([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    0.0
    >>> excess_aurc([1.0, 2.0, 3.0], [30.0, 20.0, 10.0])
    1.0
    """
    error, uncertainty, weights = check_rows("excess_aurc", sample_weight, error=error, uncertainty=uncertainty)
    return _area(error, uncertainty, weights) - _area(error, error, weights)


def _area(error: Floats, uncertainty: Floats, weights: Floats) -> float:
    from scipy.special import digamma

    _, group = np.unique(uncertainty, return_inverse=True)
    mass, group_error = average_bins(group, weights, error)
    before = np.concatenate(([0.0], np.cumsum(mass)[:-1]))
    error_before = np.concatenate(([0.0], np.cumsum(mass * group_error)[:-1]))
    # A group of m rows adds Σ_{j=1..m} (E + j·e) / (M + j) = m·e + (E − M·e)·(ψ(M+m+1) − ψ(M+1)), where M rows with
    # the summed error E came before; the right side also holds for an m that is not a whole number.
    harmonic = digamma(before + mass + 1.0) - digamma(before + 1.0)
    return float(np.sum(mass * group_error + (error_before - before * group_error) * harmonic) / np.sum(mass))
