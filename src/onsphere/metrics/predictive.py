"""Measure distributions: by samples or steps (CRPS), by quantiles (pinball loss), by the place of the truth (PIT)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError
from onsphere.metrics._checks import Weights, average_rows, check_floats, check_range, check_weights

__all__ = ["crps", "crps_per_row", "pinball_loss", "pit_uniformity"]


def crps(y_true: ArrayLike, samples: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the continuous ranked probability score of samples, averaged over rows. Lower is better.

    It has the unit of y, is the absolute error for one sample, and is exact for the distribution that has a step at
    each sample.

    Parameters
    ----------
    y_true : array of shape (n,)
    samples : array of shape (n, m)
        Draws, or quantiles at levels (k − ½)/m, of each row.
    sample_weight : array of shape (n,), optional

    Examples
    --------
    >>> crps([1.0], [[0.0, 2.0]])  # E|X − y| − ½ E|X − X'| = 1 − ½
    0.5
    """
    true, drawn = check_floats("crps", "y_true", y_true), check_floats("crps", "samples", samples, n_dims=(2,))
    _check_lengths("crps", true, drawn)
    scores = crps_per_row(true, drawn, np.ones(drawn.shape[1]))
    return average_rows(scores, check_weights("crps", sample_weight, len(true)))


def crps_per_row(y_true: Floats, steps: Floats, weights: Floats) -> Floats:
    """Return the CRPS of each row, (n,), for distributions with steps at (n, m) of the heights that weights (m,) give.

    Examples
    --------
    >>> crps_per_row(np.array([0.0]), np.array([[0.0, 1.0]]), np.array([3.0, 1.0]))  # (1 − ¾)²
    array([0.0625])
    """
    height = weights / weights.sum()
    distance = np.abs(steps - y_true[:, None]) @ height
    order = np.argsort(steps, axis=1)
    ranked, heights = np.take_along_axis(steps, order, axis=1), height[order]
    # Half the mean distance of two draws: each step counts with all below it and against all above it.
    spread = np.sum(heights * ranked * (2.0 * np.cumsum(heights, axis=1) - heights - 1.0), axis=1)
    return np.maximum(distance - spread, 0.0)


def pinball_loss(y_true: ArrayLike, quantiles: ArrayLike, q: ArrayLike, *, sample_weight: Weights = None) -> float:
    """Return the pinball loss of quantiles, averaged over rows and levels. Lower is better.

    Over many evenly spaced levels, twice the loss is the CRPS.

    Parameters
    ----------
    y_true : array of shape (n,)
    quantiles : array of shape (n, Q)
    q : array of shape (Q,)
        Their levels, in (0, 1).
    sample_weight : array of shape (n,), optional

    Examples
    --------
    >>> pinball_loss([1.0, 3.0], [[2.0], [2.0]], [0.9])  # .1 · 1 and .9 · 1
    0.5
    """
    owner = "pinball_loss"
    true, predicted = check_floats(owner, "y_true", y_true), check_floats(owner, "quantiles", quantiles, n_dims=(2,))
    levels = check_floats(owner, "q", np.atleast_1d(np.asarray(q)))
    check_range(owner, "q", levels, low=0.0, high=1.0)
    _check_lengths(owner, true, predicted)
    if predicted.shape[1] != len(levels):
        raise InvalidInputError(
            f"Expected one column of 'quantiles' of {owner} for each level. Got {predicted.shape[1]} columns and "
            f"{len(levels)} levels. Pass the q of predict_quantiles."
        )
    miss = true[:, None] - predicted
    loss = np.maximum(levels * miss, (levels - 1.0) * miss).mean(axis=1)
    return average_rows(loss, check_weights(owner, sample_weight, len(true)))


def pit_uniformity(pit: ArrayLike) -> tuple[float, float]:
    """Return how far probability integral transforms are from uniform, and the p-value of that (Kolmogorov–Smirnov).

    The p-value takes rows for independent and the distribution for known. Rows that share a small calibration set
    differ a little more from uniform: by about 1/√m with m calibration rows.

    Examples
    --------
    >>> distance, p_value = pit_uniformity((np.arange(100) + 0.5) / 100)
    >>> round(distance, 3), p_value > 0.99
    (0.005, True)
    """
    from scipy.stats import kstest

    values = check_floats("pit_uniformity", "pit", pit)
    check_range("pit_uniformity", "pit", values, low=0.0, high=1.0)
    found = kstest(values, "uniform")
    return float(found.statistic), float(found.pvalue)


def _check_lengths(owner: str, true: Floats, table: Floats) -> None:
    if len(true) != len(table):
        raise InvalidInputError(
            f"Expected as many rows in both arrays of {owner}. Got {len(true)} targets and {len(table)} rows beside "
            "them. Pass the same rows."
        )
