"""The width of intervals: the sigma in whose units errors are measured.

"total" counts novelty, which is right as long as nothing is known of novel rows. On a scale such as that of the
logarithm it is a factor, and intervals of novel rows would have no end, so that "noise" takes its place there. Once
labels of novel rows are known, the size of their errors is too: intervals can then be measured in units of the noise
alone, or be as wide for one row as for another ("flat").
"""

from __future__ import annotations

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.metrics import winkler_score

__all__ = ["N_LABELS_NEEDED", "WIDTHS", "choose_width"]

WIDTHS = ("total", "noise", "flat")

N_LABELS_NEEDED = 100  # fewer say too little of the width

# How much of the score another width than the usual may leave, to be preferred.
_CLEARLY = 0.95

_COVERAGE = 0.9


def choose_width(errors: Floats, widths: dict[str, Floats], *, usual: str = "total") -> str:
    """Return the width whose symmetric 90 % intervals have the best Winkler score; the usual if none is clearly better.

    Parameters
    ----------
    errors : array of shape (n, D)
        Of the latest labels, in units of the spread of each output.
    widths : dict of arrays of shape (n, D)
        The candidates by name, in the same units.
    usual : str, default "total"
        One of their names.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sigma = np.exp(rng.normal(size=(500, 1)))
    >>> errors = rng.normal(size=(500, 1))  # of which sigma says nothing
    >>> choose_width(errors, {"total": sigma, "flat": np.ones((500, 1))})
    'flat'
    """
    scores = {name: _measure_width(errors, width) for name, width in widths.items()}
    best = min(scores, key=lambda name: scores[name])
    return best if scores[best] < _CLEARLY * scores[usual] else usual


def _measure_width(errors: Floats, width: Floats) -> float:
    half = np.quantile(np.abs(errors) / width, _COVERAGE, axis=0) * width
    return winkler_score(errors, -half, half, coverage=_COVERAGE)
