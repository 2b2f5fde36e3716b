"""Conformal prediction: the quantile that keeps a coverage, and what coverage to expect by chance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onsphere._internal.validation import Floats, check_number
from onsphere.errors import InvalidInputError

__all__ = ["conformal_quantile", "find_coverage_range", "make_coverage_distribution", "rows_needed", "set_scores"]


def rows_needed(coverage: float) -> int:
    """Return the smallest number of calibration rows for a coverage.

    Examples
    --------
    >>> rows_needed(0.9)
    9
    """
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def conformal_quantile(
    scores: Floats, coverage: float, *, weights: Floats | None = None, new_weight: float | Floats | None = None
) -> Any:
    """Return the ⌈(n + 1)·coverage⌉-th smallest of n scores, per column.

    A new row, exchangeable with the n, has a score at or below it with probability at least `coverage`, and at most
    coverage + 1/(n + 1) if no two scores are equal.

    Parameters
    ----------
    scores : array of shape (n,) or (n, D)
    coverage : float in (0, 1)
    weights : array of shape (n,), optional
        How much each row counts. The quantile is then the smallest score that holds this share of all weight, with
        that of the new row among it.
    new_weight : float or array of shape (m,), default the mean of the weights
        The weight of the new row. For m rows the result has shape (m,) or (m, D).

    Examples
    --------
    >>> import numpy as np
    >>> float(conformal_quantile(np.arange(1.0, 20.0), 0.9))
    18.0
    >>> weights = np.r_[np.full(9, 3.0), np.ones(10)]
    >>> float(conformal_quantile(np.arange(1.0, 20.0), 0.7, weights=weights))
    10.0
    """
    check_number("conformal_quantile", "coverage", coverage, above=0, below=1)
    if weights is not None:
        return _find_weighted_quantile(scores, coverage, weights, weights.mean() if new_weight is None else new_weight)
    n = len(scores)
    rank = max(math.ceil((n + 1) * coverage - 1e-9), 1)  # 10 · 0.7 is slightly above 7
    if rank > n:
        raise InvalidInputError(
            f"A coverage of {coverage:g} needs at least {rows_needed(coverage)} calibration rows. Got {n}. "
            "Calibrate on more rows, or ask for less coverage."
        )
    return np.partition(scores, rank - 1, axis=0)[rank - 1]


def _find_weighted_quantile(scores: Floats, coverage: float, weights: Floats, new_weight: float | Floats) -> Any:
    total = weights.sum()
    needed = coverage * (total + np.asarray(new_weight)) - 1e-9 * weights.mean()
    if np.any(needed > total):
        raise InvalidInputError(
            f"A coverage of {coverage:g} needs calibration rows with {coverage / (1 - coverage):.3g} or more times the "
            f"weight of the new row. Got {total / np.max(new_weight):.3g} times. Calibrate on more rows, or ask for "
            "less coverage."
        )
    if scores.ndim > 1:
        columns = [_find_weighted_quantile(column, coverage, weights, new_weight) for column in scores.T]
        return np.stack(columns, axis=-1)
    order = np.argsort(scores, kind="stable")
    held = np.cumsum(weights[order])
    return scores[order][np.minimum(np.searchsorted(held, needed), len(scores) - 1)]  # sums may round


def make_coverage_distribution(n_rows: int, n_calibration: int, coverage: float) -> Any:
    """Return the distribution of the number of covered rows, out of n new ones, if the conformal promise is kept.

    All rows share one calibration set, which may be a lucky one: with m calibration rows the probability that a new
    row is covered varies over such sets like Beta(k, m + 1 − k), where k = ⌈(m + 1)·coverage⌉. The count is
    beta-binomial.

    Examples
    --------
    >>> float(make_coverage_distribution(100, 99, 0.9).mean())
    90.0
    """
    from scipy.stats import betabinom  # takes a while to import

    rank = min(math.ceil((n_calibration + 1) * coverage - 1e-9), n_calibration)
    return betabinom(n_rows, rank, n_calibration + 1 - rank)


def find_coverage_range(n_rows: int, n_calibration: int, coverage: float, *, level: float) -> tuple[float, float]:
    """Return the range in which the share of covered rows lies with probability 1 − level, if the promise is kept.

    Examples
    --------
    >>> [round(share, 2) for share in find_coverage_range(412, 1000, 0.9, level=0.05)]
    [0.86, 0.93]
    """
    from scipy.stats import norm

    counts = make_coverage_distribution(n_rows, n_calibration, coverage)
    if n_rows > 10_000:  # exact quantiles would take seconds, and those of a Gaussian are as good
        low, high = np.clip(norm.ppf([level / 2, 1 - level / 2], counts.mean(), counts.std()), 0, n_rows)
    else:
        low, high = counts.ppf([level / 2, 1 - level / 2])
    return float(low / n_rows), float(high / n_rows)


def set_scores(probabilities: Floats, *, penalty: float = 0.0, n_free: int = 1) -> Floats:
    """Return, for each class, the probability of all classes that are strictly more likely: 0 for the most likely one.

    This is the score of adaptive prediction sets with the random part set to zero: sets are never empty, and a row
    always gets the same set. With a penalty it is that of regularised sets (RAPS): each class beyond the first `n_free`
    adds it, so that sets are not filled up with many unlikely classes.

    Examples
    --------
    >>> import numpy as np
    >>> set_scores(np.array([[0.6, 0.1, 0.3]])).round(3)
    array([[0. , 0.9, 0.6]])
    >>> set_scores(np.array([[0.6, 0.1, 0.3]]), penalty=0.2).round(3)
    array([[0. , 1.3, 0.8]])
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    mass = np.cumsum(ranked, axis=1) - ranked + penalty * np.maximum(np.arange(1, ranked.shape[1] + 1) - n_free, 0)
    for column in range(1, ranked.shape[1]):
        equal = ranked[:, column] == ranked[:, column - 1]
        mass[equal, column] = mass[equal, column - 1]
    result = np.empty_like(mass)
    np.put_along_axis(result, order, mass, axis=1)
    return result
