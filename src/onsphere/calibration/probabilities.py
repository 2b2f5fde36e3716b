"""Class probabilities from directions: the shares of a direction are no probabilities until held-out rows say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.sphere.geometry import Array

__all__ = ["ProbabilityScaling", "fit_scaling"]

# Rows that five numbers are fitted on, at most: more, as from the pixels of maps, would tell no more.
_N_ROWS = 20_000

# The least floor: a smaller one would make probabilities of rounding.
_LEAST_FLOOR = 1e-3

# Keeps classes below the base in their order.
_TILT = 1e-3

# By how much the most likely class stays ahead of the next, where the second step would put it behind.
_AHEAD = 1e-5

# The nearest that a probability comes to 0 and 1.
_LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class ProbabilityScaling:
    """Five numbers that turn a direction into class probabilities: p ∝ (max(d − base, 0) + floor)^power, then the top.

    The base is what a head that was held back (by a ridge, say) gives to classes that are out of the question.

    Both steps leave the order of the classes as it is. The power is a temperature on the logarithm; the second step
    (Platt's) moves the probability of the most likely class to logistic(slope·logit(p) + shift), and all others share
    what is left as before.

    Attributes
    ----------
    power, floor, base, slope, shift : float
    """

    power: float
    floor: float
    base: float
    slope: float
    shift: float

    def apply(self, direction: Array) -> Array:
        """Return the probabilities (n, C) of directions (n, C); numpy, torch, or arrays of a graph."""
        xp = array_namespace(direction)
        shares = self._raise(direction)
        top = xp.max(shares, axis=1, keepdims=True)
        rest = xp.clip(1.0 - top, _LEAST, None)
        odds = xp.log(xp.clip(top, _LEAST, None)) - xp.log(rest)
        moved = 1.0 / (1.0 + xp.exp(0.0 - (odds * self.slope + self.shift)))
        # A little above what the next class would then have, so that the most likely class stays so.
        others = xp.where(shares == top, xp.zeros_like(shares), shares)
        following = xp.max(others, axis=1, keepdims=True)
        least = following / (following + rest) * (1.0 + _AHEAD)
        moved = xp.where(moved <= least, least, moved)
        moved = xp.clip(moved, _LEAST, 1.0 - _LEAST)
        result = xp.where(shares == top, moved, shares * ((1.0 - moved) / rest))
        return result / xp.sum(result, axis=1, keepdims=True)

    def _raise(self, direction: Array) -> Array:
        xp = array_namespace(direction)
        logs = (xp.log(xp.clip(direction - self.base, 0.0, None) + self.floor) + direction * _TILT) * self.power
        shares = xp.exp(logs - xp.max(logs, axis=1, keepdims=True))
        return shares / xp.sum(shares, axis=1, keepdims=True)


def fit_scaling(direction: Floats, true_index: NDArray[np.intp]) -> ProbabilityScaling:
    """Return the scaling that makes held-out labels most likely, power, floor and base first, then slope and shift.

    Labels count as slightly uncertain, as one wrong row in addition would make them, so that a head without an error on
    these rows does not become certain.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(3, size=2000)
    >>> direction = 0.3 + 0.2 * np.eye(3)[np.where(rng.random(2000) < 0.1, (truth + 1) % 3, truth)]
    >>> fit_scaling(direction, truth).apply(direction).max(axis=1).mean().round(2)
    np.float64(0.89)
    """
    from scipy.optimize import minimize

    chosen = np.linspace(0, len(direction) - 1, min(len(direction), _N_ROWS)).astype(np.intp)
    direction, true_index = np.nan_to_num(direction[chosen]), true_index[chosen]
    rows, n_rows = np.arange(len(chosen)), len(chosen)
    doubt = 1.0 / (n_rows + 2.0)

    def compute_loss(numbers: Any) -> float:
        power, floor = np.exp(numbers[:2])
        scaling = ProbabilityScaling(power, _LEAST_FLOOR + floor, numbers[2], 1.0, 0.0)
        logs = np.log(scaling._raise(direction) + _LEAST)
        return float(-(1 - doubt) * logs[rows, true_index].mean() - doubt * logs.mean())

    options = {"maxiter": 300, "xatol": 1e-3, "fatol": 1e-7}
    # Nelder and Mead's first steps are a share of the start, so that the base must not start at 0.
    found = minimize(compute_loss, [0.5, -3.0, 0.02], method="Nelder-Mead", options=options).x
    power, floor = float(np.exp(found[0])), _LEAST_FLOOR + float(np.exp(found[1]))
    shares = ProbabilityScaling(power, floor, float(found[2]), 1.0, 0.0)._raise(direction)
    top = np.clip(shares.max(axis=1), _LEAST, 1 - _LEAST)
    odds = np.log(top) - np.log(1 - top)
    is_right = shares.argmax(axis=1) == true_index
    n_right = int(is_right.sum())
    # Platt's targets.
    goal = np.where(is_right, (n_right + 1.0) / (n_right + 2.0), 1.0 / (n_rows - n_right + 2.0))

    def compute_top_loss(numbers: Any) -> float:
        raised = np.exp(numbers[0]) * odds + numbers[1]
        return float(np.mean(np.logaddexp(0.0, raised) - goal * raised))

    log_slope, shift = minimize(compute_top_loss, [0.0, 0.0], method="Nelder-Mead", options=options).x
    return ProbabilityScaling(power, floor, float(found[2]), float(np.exp(log_slope)), float(shift))
