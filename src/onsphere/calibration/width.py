"""The width of intervals over time: whether sigma still tells rows apart, once labels say so.

Sigma counts novelty, which is right as long as nothing is known of novel rows. Once their labels are known, the size of
their errors is too. Intervals can then be measured in units of the noise alone, or be as wide for one row as for
another.
"""

from __future__ import annotations

import numpy as np

from onsphere._internal.validation import Floats

__all__ = ["N_LABELS_NEEDED", "WIDTHS", "choose_width"]

WIDTHS = ("total", "noise", "flat")

N_LABELS_NEEDED = 100  # fewer say too little of the width

# How much of the score another width than sigma may leave, to be preferred.
_CLEARLY = 0.95

_COVERAGE = 0.9


def choose_width(errors: Floats, widths: dict[str, Floats]) -> str:
    """Return the width whose symmetric 90 % intervals have the best Winkler score; "total" if none is clearly better.

    Parameters
    ----------
    errors : array of shape (n, D)
        Of the latest labels, in units of the spread of each output.
    widths : dict of arrays of shape (n, D)
        The candidates by name, in the same units; "total" among them.

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
    return best if scores[best] < _CLEARLY * scores["total"] else "total"


def _measure_width(errors: Floats, width: Floats) -> float:
    ratios = np.abs(errors) / width
    half = np.quantile(ratios, _COVERAGE, axis=0)
    return float(np.mean(width * (half + np.maximum(ratios - half, 0.0) / (1.0 - _COVERAGE))))
