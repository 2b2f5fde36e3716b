"""The temperature that brings an uncertainty to the level of the errors."""

from __future__ import annotations

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError

__all__ = ["divide_errors", "fit_temperature"]

# The shares of a Gaussian within one, two and three standard deviations.
_GAUSSIAN_SHARES = (0.68, 0.95, 0.997)


def fit_temperature(error: Floats, uncertainty: Floats) -> float:
    """Return the T for which intervals of 1, 2 and 3 T·u hold as nearly as possible 68, 95 and 99.7 % of the errors.

    The sum of the squared gaps changes only if an error enters an interval, so all such T are tried: the minimum is
    exact. Of equal minima the smallest T is used.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> round(fit_temperature(2 * np.abs(rng.normal(size=10_000)), np.ones(10_000)), 1)
    2.0
    """
    ratio = np.sort(divide_errors(error, uncertainty))
    reachable = ratio[np.isfinite(ratio)]
    if len(reachable) == 0 or reachable[-1] == 0:
        raise InvalidInputError(
            "A temperature needs rows with an error and an uncertainty above zero. Got none. "
            "Use normalization='quantile', which needs no temperature, or another uncertainty_score."
        )
    candidates = np.concatenate([reachable / k for k in (1, 2, 3)])
    candidates = np.sort(candidates[candidates > 0])
    gaps = np.zeros(len(candidates))
    for k, share in enumerate(_GAUSSIAN_SHARES, start=1):
        # A multiple of T may round to just below the error it stems from.
        covered = np.searchsorted(ratio, k * candidates * (1 + 1e-12), side="right") / len(ratio)
        gaps += (covered - share) ** 2
    return float(candidates[gaps.argmin()])


def divide_errors(error: Floats, scale: Floats) -> Floats:
    """Return error / scale, with 0/0 = 0 and x/0 = ±∞ for other x."""
    with np.errstate(divide="ignore"):
        return np.divide(error, scale, out=np.zeros_like(error), where=error != 0)
