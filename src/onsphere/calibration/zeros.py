"""Targets that are often 0: a probability of 0 for each row, and the errors of the rows above it.

A score is the probability that lies below a target, less a half. At 0 the distribution of a row has a step, which trees
learn from the rows; above it lie the errors of left-out rows whose target is not 0, as far as they lead above 0.
Without the step, the zeros of other rows would lead to values near 0 and not to 0 itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.calibration.shape import LEVELS, find_knots, share_misses
from onsphere.sphere.domain import Domain
from onsphere.sphere.geometry import Array

__all__ = ["LEAST_SHARE", "ZeroShape", "find_zero_end", "fit_zero_shape", "has_step"]

# Zeros that are rarer than this are no step of their own.
LEAST_SHARE = 0.05

# Rows, and rows above 0, that a probability of 0 is learned from at least.
_N_ROWS_NEEDED, _N_ABOVE_NEEDED = 200, 10

# Where zeros were never or always met, trees do not say 0 or 1.
_NEAREST = 0.005

# Whole numbers have a step if the errors of all rows, taken together, lead to less than this share of the zeros.
_ENOUGH = 0.9

# At most so much of the errors of other rows may lead below 0.
_MOST_BELOW = 0.9


def has_step(
    domain: Domain, is_zero: NDArray[np.bool_], residuals: Floats, value: Floats, sigma: Floats, *, end: float
) -> bool:
    """Return whether zeros are a step of their own in the distribution of every output.

    They are if they are frequent in a domain that begins there; for whole numbers, of which 0 is one among others, only
    if the errors of left-out rows, taken together, lead to too few of them.

    Parameters
    ----------
    domain : Domain
    is_zero : bool array of shape (n, D)
    residuals, value, sigma : arrays of shape (n, D)
    end : float
        See `find_zero_end`.
    """
    share = is_zero.mean(axis=0)
    has_enough = len(is_zero) >= _N_ROWS_NEEDED and (~is_zero).sum(axis=0).min() >= _N_ABOVE_NEEDED
    if domain.low != 0 or not has_enough or share.min() < LEAST_SHARE:
        return False
    pairs = zip(np.sort(residuals, axis=0).T, ((end - value) / sigma).T, strict=True)
    expected = np.array([np.searchsorted(*pair, side="right").mean() / len(value) for pair in pairs])
    return not (domain.is_whole and bool(np.all(expected >= _ENOUGH * share)))


def find_zero_end(domain: Domain) -> float:
    """Return the value, on the scale that is learned, at or below which a target is 0."""
    return float(domain.to_scale(np.array(0.5 if domain.is_whole else 0.0)))


@dataclass(frozen=True, eq=False)
class ZeroShape:
    """A step at 0, and the quantiles of the residuals of rows above it.

    Attributes
    ----------
    knots : array of shape (D, K)
        Quantiles of the residuals of left-out training rows that are not 0, in units of sigma.
    typical_curves : array of shape (1, D, 2)
        Those of an ordinary row.
    typical_value, typical_sigma : arrays of shape (D,)
        Of an ordinary row.
    trees : regressor
        Predict the share of zeros, D columns.
    offset, slope : arrays of shape (D,)
        By which the log odds of the trees become those of left-out rows.
    end : float
        See `find_zero_end`.
    """

    knots: Floats
    typical_curves: Floats
    typical_value: Floats
    typical_sigma: Floats
    trees: Any
    offset: Floats
    slope: Floats
    end: float

    def read_curves(self, columns: Array, value: Array, sigma: Array) -> Array:
        """Return the probability of 0 and the residual of 0, (n, D, 2), of each row; numpy or a graph.

        Parameters
        ----------
        columns : array of shape (n, D)
            What the trees predict.
        value, sigma : arrays of shape (n, D)
        """
        xp: Any = array_namespace(columns)
        share = xp.clip(xp.reshape(columns, (-1, len(self.knots))), _NEAREST, 1.0 - _NEAREST)
        odds = xp.exp(xp.log(share / (1.0 - share)) * self.slope + self.offset)
        return xp.concat([(odds / (odds + 1.0))[..., None], ((self.end - value) / sigma)[..., None]], axis=-1)

    def to_scores(self, residuals: Floats, curves: Floats, place: float | Floats = 1.0) -> Floats:
        """Return the scores (n, D) of residuals (n, D); those of 0 at a place in their step, from 0 to 1."""
        zero, start = curves[..., 0], curves[..., 1]
        scores = np.empty_like(residuals)
        for output in range(residuals.shape[1]):
            below = self._find_share_below(start[:, output], output)
            reached = np.maximum(self._find_share(residuals[:, output], output) - below, 0.0) / (1.0 - below)
            scores[:, output] = zero[:, output] + (1.0 - zero[:, output]) * reached
        is_zero = residuals <= start + 1e-9 * (1.0 + np.abs(start))
        return np.where(is_zero, place * zero, scores) - 0.5

    def from_scores(self, scores: Array, curves: Array, output: int) -> Array:
        """Return the residuals (n,) of one output that have these scores, (n, 1) or one for all; numpy or a graph."""
        xp: Any = array_namespace(curves)
        zero, start = curves[:, output, 0], curves[:, output, 1]
        level = scores[..., 0] + 0.5
        below = self._find_share_below(start, output)
        above = xp.clip((level - zero) / (1.0 - zero), 0.0, None)
        residuals = _interpolate(below + above * (1.0 - below), LEVELS, self.knots[output])
        # A whole sigma below the end of 0, so that rounding leaves it 0.
        return xp.where(level <= zero, start - 1.0, start + xp.clip(residuals - start, 0.0, None))

    def _find_share(self, residuals: Array, output: int) -> Array:
        xp: Any = array_namespace(residuals)
        return xp.clip(_interpolate(residuals, self.knots[output], LEVELS), 0.0, None)

    def _find_share_below(self, start: Array, output: int) -> Array:
        """Return how much of the errors of rows that are not 0 would lead below the start, (n,)."""
        xp: Any = array_namespace(start)
        return xp.clip(self._find_share(start, output), 0.0, _MOST_BELOW)

    def find_shortest_tails(self, coverage: float, convert: Any) -> Floats:
        """Return the share of all misses that lie below, (D,), for which the interval of an ordinary row is shortest.

        See `Shape.find_shortest_tails`.
        """

        def find_quantiles(levels: Floats, output: int) -> Floats:
            residuals = self.from_scores(levels[:, None] - 0.5, self.typical_curves, output)
            return convert(self.typical_value[output] + self.typical_sigma[output] * residuals)

        return share_misses(coverage, len(self.knots), find_quantiles)


def _interpolate(x: Array, xs: Floats, ys: Floats) -> Array:
    """Return the line through points that rise, at x, (n,); its outermost stretches go on beyond. Numpy or a graph."""
    xp: Any = array_namespace(x)
    steps = xp.clip((x[..., None] - xs[:-1]) / np.diff(xs), 0.0, 1.0)
    first, last = (float((ys[k + 1] - ys[k]) / (xs[k + 1] - xs[k])) for k in (0, len(xs) - 2))
    beyond = xp.clip(x - float(xs[-1]), 0.0, None) * last - xp.clip(float(xs[0]) - x, 0.0, None) * first
    return xp.sum(steps * np.diff(ys), axis=-1) + (beyond + float(ys[0]))


def fit_zero_shape(
    inputs: Floats, is_zero: NDArray[np.bool_], residuals: Floats, value: Floats, sigma: Floats, *, end: float
) -> ZeroShape:
    """Learn the probability of 0, and the residuals of rows that are not, from rows that were left out.

    Parameters
    ----------
    inputs : array of shape (n, f)
        What trees see of each row.
    is_zero : bool array of shape (n, D)
    residuals, value, sigma : arrays of shape (n, D)
    end : float
        See `find_zero_end`.
    """
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.linear_model import LogisticRegression

    trees = ExtraTreesRegressor(100, min_samples_leaf=5, bootstrap=True, oob_score=True, random_state=0)
    trees.fit(inputs, np.squeeze(is_zero.astype(np.float64), axis=1) if is_zero.shape[1] == 1 else is_zero)
    shares = np.clip(trees.oob_prediction_.reshape(is_zero.shape), _NEAREST, 1.0 - _NEAREST)
    del trees.oob_prediction_  # not needed any more, and as long as the table
    log_odds = np.log(shares / (1.0 - shares))
    lines, knots = [], []
    for output in range(is_zero.shape[1]):
        # With a row of either kind for which the odds are even, so that there are both.
        seen, truth = np.append(log_odds[:, output], [0.0, 0.0]), np.append(is_zero[:, output], [False, True])
        line = LogisticRegression(C=1e3).fit(seen[:, None], truth)
        lines.append((line.intercept_[0], line.coef_[0, 0]))
        knots.append(find_knots(residuals[~is_zero[:, output], output]))
    offset, slope = np.transpose(lines)
    ordinary = np.median(value, axis=0), np.median(sigma, axis=0)
    curves = np.stack([is_zero.mean(axis=0), (end - ordinary[0]) / ordinary[1]], axis=-1)[None]
    return ZeroShape(np.array(knots), curves, *ordinary, trees, offset, slope, end)
