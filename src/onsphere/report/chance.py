"""Ranges that figures of few rows lie in by chance."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from onsphere._internal.validation import Floats

__all__ = ["find_auroc_range", "find_mean_range", "find_spearman_range"]

_N_DRAWS = 2_000
_MOST_DRAWN = 300  # with more values, their mean is normal enough


def find_spearman_range(score: float, n_rows: int, *, level: float) -> tuple[float, float]:
    """Return the range in which a rank correlation lies with probability 1 − level, by Fisher's transform.

    Examples
    --------
    >>> low, high = find_spearman_range(0.3, 100, level=0.05)
    >>> round(low, 2), round(high, 2)
    (0.1, 0.47)
    """
    if n_rows < 4:
        return -1.0, 1.0
    middle = np.arctanh(np.clip(score, -0.999999, 0.999999))
    # The variance of ranks is larger than that of normal values (Fieller, Hartley and Pearson, 1957).
    half = _find_factor(level) * np.sqrt(1.06 / (n_rows - 3))
    return float(np.tanh(middle - half)), float(np.tanh(middle + half))


def find_auroc_range(score: float, n_negative: int, n_positive: int, *, level: float) -> tuple[float, float]:
    """Return the range in which an AUROC lies with probability 1 − level, by the variance of Hanley and McNeil (1982).

    Examples
    --------
    >>> low, high = find_auroc_range(0.63, 42, 18, level=0.05)
    >>> round(low, 2), round(high, 2)
    (0.47, 0.79)
    """
    both_above, both_below = score / (2 - score), 2 * score**2 / (1 + score)
    variance = (
        score * (1 - score) + (n_positive - 1) * (both_above - score**2) + (n_negative - 1) * (both_below - score**2)
    ) / (n_negative * n_positive)
    half = _find_factor(level) * float(np.sqrt(max(variance, 0.0)))
    return max(score - half, 0.0), min(score + half, 1.0)


def find_mean_range(values: Floats, n_drawn: int, *, level: float) -> tuple[float, float]:
    """Return the range in which the mean of so many of these values, drawn at random, lies with probability 1 − level.

    Examples
    --------
    >>> import numpy as np
    >>> find_mean_range(np.arange(100) % 2 / 1.0, 4, level=0.05)
    (0.0, 1.0)
    """
    if n_drawn > _MOST_DRAWN:
        half = _find_factor(level) * float(np.std(values)) / math.sqrt(n_drawn)
        return float(np.mean(values)) - half, float(np.mean(values)) + half
    places = np.random.default_rng(0).integers(len(values), size=(_N_DRAWS, n_drawn))
    low, high = np.quantile(values[places].mean(axis=1), (level / 2, 1 - level / 2))
    return float(low), float(high)


def _find_factor(level: float) -> float:
    return NormalDist().inv_cdf(1 - level / 2)
