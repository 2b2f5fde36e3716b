"""What chance alone would do to the figures of a report, so that nobody reads noise as news."""

from __future__ import annotations

import math

import numpy as np

from onsphere._internal.validation import Floats

__all__ = ["LEVEL", "mean_range", "share_range"]

# How often chance may lie outside of a range.
LEVEL = 0.05


def share_range(counts: Floats, n: Floats) -> tuple[Floats, Floats]:
    """Where the true share may lie, with 95 % confidence, given a count out of n (Clopper and Pearson's, exact).

    Examples
    --------
    >>> import numpy as np
    >>> low, high = share_range(np.array([9.0, 10.0]), np.array([10.0, 10.0]))
    >>> low.round(3), high.round(3)
    (array([0.555, 0.692]), array([0.997, 1.   ]))
    """
    from scipy.stats import beta

    low = np.where(counts > 0, beta.ppf(LEVEL / 2, np.maximum(counts, 1), n - counts + 1), 0.0)
    high = np.where(counts < n, beta.ppf(1 - LEVEL / 2, counts + 1, np.maximum(n - counts, 1)), 1.0)
    return low, high


def mean_range(values: Floats) -> float:
    """Half of the range in which the mean of such values lies with 95 % confidence; NaN for one value."""
    if len(values) < 2:
        return math.nan
    return 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
