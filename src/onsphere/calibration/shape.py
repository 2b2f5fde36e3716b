"""The shape of the error: which quantiles residuals in units of sigma have, for all rows alike or row by row.

Residuals are compared at fixed knots, quantiles of the residuals of left-out training rows. For a row of its own shape,
trees predict how much probability lies below each knot, which makes of a residual a score that is distributed alike for
all rows. As trees average the same rows for all knots, the scores rise from knot to knot, so quantiles never cross.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from onsphere._internal.validation import Floats
from onsphere.sphere.geometry import Array

__all__ = ["LEVELS", "SHAPES", "Shape", "find_knots", "fit_shape", "share_misses"]

SHAPES = ("pooled", "local", "auto")

# Probabilities at the knots.
LEVELS = np.array([0.005, 0.01, 0.025, *np.arange(1, 20) / 20, 0.975, 0.99, 0.995])

# How much of the shape that all rows share remains in that of a row, so that scores rise everywhere.
_SHARED = 0.3

# Fewer rows than this have no shape of their own.
_N_ROWS_NEEDED = 200

# By how much left-out rows must gain from shapes of their own.
_GAIN = 0.99

# The levels at which the gain is measured.
_MEASURED = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


@dataclass(frozen=True, eq=False)
class Shape:
    """The quantiles of residuals, and how they differ from row to row.

    Attributes
    ----------
    knots : array of shape (D, K)
        Quantiles of the residuals of left-out training rows, in units of sigma.
    typical_value, typical_sigma : arrays of shape (D,)
        Those of an ordinary row.
    trees : regressor or None
        Predict the probability below each knot, D·K columns; None if all rows have the same shape.
    gain : float
        The pinball loss of left-out rows with shapes of their own, over that with the common one; NaN if not measured.
    """

    knots: Floats
    typical_value: Floats
    typical_sigma: Floats
    trees: Any
    gain: float

    def read_curves(self, columns: Array) -> Array:
        """Return the score at each knot, (n, D, K), from the columns that the trees predict; numpy or a graph."""
        n_outputs, n_knots = self.knots.shape
        below = array_namespace(columns).reshape(columns, (-1, n_outputs, n_knots))
        return below * (1.0 - _SHARED) + (_SHARED * LEVELS - 0.5)

    def to_scores(self, residuals: Floats, curves: Floats, place: float | Floats = 1.0) -> Floats:
        """Return the scores (n, D) of residuals (n, D), linear between knots and beyond; there is no step to place."""
        scores = np.empty_like(residuals)
        for output, knots in enumerate(self.knots):
            t, curve = residuals[:, output], curves[:, output]
            left = np.clip(np.searchsorted(knots, t, side="right") - 1, 0, len(knots) - 2)[:, None]
            start, end = (np.take_along_axis(curve, left + step, axis=1)[:, 0] for step in (0, 1))
            position = (t - knots[left[:, 0]]) / (knots[left[:, 0] + 1] - knots[left[:, 0]])
            below, above = self._get_slopes(output)
            inside = start + position * (end - start)
            scores[:, output] = np.where(
                t < knots[0],
                curve[:, 0] + below * (t - knots[0]),
                np.where(t > knots[-1], curve[:, -1] + above * (t - knots[-1]), inside),
            )
        return scores

    def from_scores(self, scores: Array, curves: Array, output: int) -> Array:
        """Return the residuals (n,) of one output that have these scores, (n,) or one for all; numpy or a graph."""
        xp = array_namespace(curves)
        knots, curve = self.knots[output], curves[:, output]
        below, above = self._get_slopes(output)
        # Each stretch between knots adds the part of it that lies below the score.
        gaps = knots[1:] - knots[:-1]
        reached = xp.clip((scores - curve[:, :-1]) / (curve[:, 1:] - curve[:, :-1]), 0.0, 1.0)
        inside = knots[0] + xp.sum(reached * gaps, axis=1)
        lower = xp.clip(curve[:, 0] - scores[..., 0], 0.0, None) / below
        upper = xp.clip(scores[..., 0] - curve[:, -1], 0.0, None) / above
        return inside - lower + upper

    def _get_slopes(self, output: int) -> tuple[float, float]:
        """Return how fast scores rise below the first knot and above the last."""
        knots = self.knots[output]
        return float((LEVELS[1] - LEVELS[0]) / (knots[1] - knots[0])), float(
            (LEVELS[-1] - LEVELS[-2]) / (knots[-1] - knots[-2])
        )

    def find_shortest_tails(self, coverage: float, convert: Any) -> Floats:
        """Return the share of all misses that lie below, (D,), for which the interval of an ordinary row is shortest.

        Training rows alone decide it, so that calibration rows remain like new ones. `convert` makes targets of values.
        """

        def find_quantiles(levels: Floats, output: int) -> Floats:
            residuals = np.interp(levels, LEVELS, self.knots[output])
            return convert(self.typical_value[output] + self.typical_sigma[output] * residuals)

        return share_misses(coverage, len(self.knots), find_quantiles)


def share_misses(coverage: float, n_outputs: int, find_quantiles: Callable[[Floats, int], Floats]) -> Floats:
    """Return the share of all misses that lie below, (D,), for which the intervals between quantiles are shortest."""
    shares = np.arange(1, 20) / 20
    miss = 1.0 - coverage
    widths = [
        find_quantiles(1.0 - miss * (1.0 - shares), output) - find_quantiles(miss * shares, output)
        for output in range(n_outputs)
    ]
    return shares[np.argmin(widths, axis=1)]


def find_knots(residuals: Floats) -> Floats:
    """Return the quantiles of residuals (n,) at `LEVELS`, apart even where residuals are equal."""
    knots = np.quantile(residuals, LEVELS)
    return knots + max(float(np.ptp(knots)), 1e-9) * 1e-6 * np.arange(len(LEVELS))


def fit_shape(inputs: Floats, residuals: Floats, value: Floats, sigma: Floats, *, shape: str) -> Shape:
    """Learn the shape of residuals of rows that were left out.

    Parameters
    ----------
    inputs : array of shape (n, f)
        What trees see of each row.
    residuals, value, sigma : arrays of shape (n, D)
    shape : {"pooled", "local", "auto"}
        "auto" lets rows have shapes of their own if that lowers the pinball loss of left-out rows by one percent.
    """
    knots = np.array([find_knots(column) for column in residuals.T])
    pooled = Shape(knots, np.median(value, axis=0), np.median(sigma, axis=0), None, np.nan)
    if shape == "pooled" or len(residuals) < _N_ROWS_NEEDED:
        return pooled
    from sklearn.ensemble import ExtraTreesRegressor

    trees = ExtraTreesRegressor(100, min_samples_leaf=5, bootstrap=True, oob_score=True, random_state=0)
    below = (residuals[:, :, None] <= knots).astype(np.float64).reshape(len(residuals), -1)
    trees.fit(inputs, below)
    curves = pooled.read_curves(trees.oob_prediction_.reshape(len(residuals), -1))
    del trees.oob_prediction_  # not needed any more, and as long as the table
    local, common = (_measure_loss(pooled, residuals, sigma, each) for each in (curves, None))
    gain = local / common if common > 0 else 1.0
    kept = trees if shape == "local" or gain < _GAIN else None
    return Shape(knots, pooled.typical_value, pooled.typical_sigma, kept, gain)


def _measure_loss(shape: Shape, residuals: Floats, sigma: Floats, curves: Floats | None) -> float:
    """Return the pinball loss of quantiles that are right on average, for common shapes (None) or those of each row."""
    scores = residuals if curves is None else shape.to_scores(residuals, curves)
    loss = 0.0
    for output in range(residuals.shape[1]):
        for level in _MEASURED:
            limit = np.quantile(scores[:, output], level)
            quantile = limit if curves is None else shape.from_scores(np.array([[limit]]), curves, output)
            miss = (residuals[:, output] - quantile) * sigma[:, output]
            loss += float(np.mean(np.maximum(level * miss, (level - 1.0) * miss))) / max(
                float(sigma[:, output].mean()), 1e-300
            )
    return loss
