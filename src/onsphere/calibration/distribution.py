"""Conformal predictive distributions: every quantile of the target, from the errors of calibration rows.

A row's distribution is its value plus sigma times an error of the calibration rows, in units of their own sigma. On
rows drawn like the calibration rows a quantile of level q holds the share q of the targets, whatever the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from onsphere._internal.validation import Floats, check_number, check_option, make_random_state
from onsphere.calibration.calibration import RegressionCalibration, divide_errors
from onsphere.calibration.shape import Shape
from onsphere.calibration.zeros import ZeroShape
from onsphere.errors import InvalidInputError
from onsphere.metrics import crps_per_row
from onsphere.sphere.domain import Domain

__all__ = ["TAILS", "PredictiveDistribution", "check_levels"]

TAILS = ("symmetric", "equal", "shortest")

_N_AT_ONCE = 2_000_000  # numbers, when all rows meet all errors

# Silverman's rule for the bandwidth of a kernel.
_BANDWIDTH = 0.9


def check_levels(owner: str, q: ArrayLike) -> Floats:
    """Return the levels of quantiles, (Q,), or raise an error if one is not inside (0, 1)."""
    try:
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
    except (TypeError, ValueError):
        levels = np.empty(0)
    if levels.ndim != 1 or len(levels) == 0 or not np.all((levels > 0) & (levels < 1)):
        raise InvalidInputError(
            f"Expected levels of quantiles in {owner}, one number or several, each above 0 and below 1. Got {q!r}. The "
            "5 % quantile has the level 0.05."
        )
    return levels


@dataclass(frozen=True, eq=False)
class PredictiveDistribution:
    """The distribution of the target of each row; `predict_distribution` of a calibrated model makes it.

    Arrays of targets have shape (n,) or (n, D), as the y of fit.

    Attributes
    ----------
    value, sigma : arrays of shape (n, D)
        On the scale on which the target is learned.
    calibration : RegressionCalibration
    domain : Domain
    shape : Shape, ZeroShape or None
        None where no rows were left out in training.
    curves : array of shape (n, D, K) or None
        What the shape says of each row; None if all have the same.
    is_flat : bool
        Whether y had one dimension.
    """

    value: Floats
    sigma: Floats
    calibration: RegressionCalibration
    domain: Domain
    shape: Shape | ZeroShape | None
    curves: Floats | None
    is_flat: bool

    def __len__(self) -> int:
        return len(self.value)

    def quantiles(self, q: ArrayLike) -> Floats:
        """Return the quantiles at levels q, shape (n, Q) or (n, D, Q); they never cross.

        The quantile at level q is at or above the target with probability q, or up to 1/(m + 1) more with m calibration
        rows: below the level 1/(m + 1) it is the smallest error. The lower end of an equal-tailed interval is rounded
        to the other side, so that it may lie one error below the quantile. Those of whole numbers are whole.
        """
        levels = check_levels("quantiles", q)
        found = self.calibration.find_quantile_scores(levels)
        limits = [np.broadcast_to(limit, self.value.shape) for limit in found]
        values = np.stack([self._to_target(limit) for limit in limits], axis=-1)
        return self._shape_like_target(values)

    def interval(self, coverage: float = 0.9, *, tails: str = "symmetric", simultaneous: bool = True) -> Floats:
        """Return intervals that hold the target with probability `coverage`, shape (n, 2) or (n, D, 2).

        Parameters
        ----------
        coverage : float in (0, 1), default 0.9
        tails : {"symmetric", "equal", "shortest"}
            "symmetric" is value ± a multiple of sigma. With "equal" the target lies below with the same probability as
            above. "shortest" shares the misses between both sides as makes an ordinary training row's interval
            shortest. All keep the coverage, with a finite number of calibration rows.
        simultaneous : bool, default True
            Whether all outputs of a row are held at once, or each by itself.
        """
        check_number("interval", "coverage", coverage, above=0, below=1)
        return self._shape_like_target(self.interval_columns(coverage, tails=tails, simultaneous=simultaneous))

    def interval_columns(self, coverage: float, *, tails: str, simultaneous: bool) -> Floats:
        """Return intervals of shape (n, D, 2), however many dimensions y had."""
        ends = self.find_ends(coverage, tails=tails, simultaneous=simultaneous)
        return np.stack([self._to_target(end) for end in ends], axis=-1)

    def median(self) -> Floats:
        """Return the median of each row, in the shape of the target."""
        return self.quantiles(0.5)[..., 0]

    def mean(self) -> Floats:
        """Return the mean of each row, in the shape of the target."""
        weights = self._weights / self._weights.sum()
        means = [np.einsum("ndm,m->nd", atoms, weights) for _, atoms in self._iterate_atoms()]
        return self._shape_like_target(np.concatenate(means))

    def cdf(self, y: ArrayLike) -> Floats:
        """Return the probability that the target is at or below y, in the shape of the target.

        Parameters
        ----------
        y : a number, or an array of shape (n,) or (n, D)
        """
        target = self.check_target("cdf", y)
        # All that is rounded to a whole number belongs to it.
        share = self._rank(np.floor(target) + 0.5 if self.domain.is_whole else target)
        share = np.where(target < self.domain.low, 0.0, np.where(target >= self.domain.high, 1.0, share))
        return self._shape_like_target(share)

    def pdf(self, y: ArrayLike) -> Floats:
        """Return the density at y, smoothed, in the shape of the target.

        It is for plots: smoothing widens the distribution a little. The ends of a domain may have a probability of
        their own, such as that of 0 for targets that are often 0; it is no density, so the integral falls short of 1 by
        it. `cdf(low)` tells it. For whole numbers this is the probability of y, which is not smoothed.

        Parameters
        ----------
        y : as in cdf
        """
        target = self.check_target("pdf", y)
        if self.domain.is_whole:
            return self.cdf(target) - self.cdf(target - 1.0)
        step = 1e-3 * np.maximum(self.domain.convert_sigma(self.value, self.sigma), np.finfo(np.float64).tiny)
        below, above = self.domain.clip(target - step), self.domain.clip(target + step)
        rise = self._smooth_rank(above) - self._smooth_rank(below)
        inside = (target >= self.domain.low) & (target <= self.domain.high)
        return self._shape_like_target(
            np.where(inside, rise / np.maximum(above - below, np.finfo(np.float64).tiny), 0.0)
        )

    def pit(self, y: ArrayLike, *, random_state: int | np.random.RandomState | None = None) -> Floats:
        """Return the probability integral transform of true targets y, in their shape: uniform if all is calibrated.

        Parameters
        ----------
        y : array of shape (n,) or (n, D)
        random_state : int or RandomState, optional
            Draws the place within a step of the distribution, with which the transform of rows drawn like the
            calibration rows is uniform exactly. None takes the middle of the step.
        """
        target = self.check_target("pit", y)
        first, last = self._to_scores(target, 0.0), self._to_scores(target)  # of a step, such as that at 0
        place: Any = 0.5 if random_state is None else make_random_state("pit", random_state).uniform(size=last.shape)
        heaviest = self._weights.max()
        total = self._weights.sum() + heaviest
        result = np.empty_like(last)
        for output in range(last.shape[1]):
            ranked, held = self._sorted[output]
            below = held[np.searchsorted(ranked, first[:, output], side="left")]
            upto = held[np.searchsorted(ranked, last[:, output], side="right")] + heaviest
            at = place if random_state is None else place[:, output]
            result[:, output] = (below + at * (upto - below)) / total
        return self._shape_like_target(result)

    def crps(self, y: ArrayLike) -> Floats:
        """Return the continuous ranked probability score of each true target, in its shape; exact for the steps."""
        target = self.check_target("crps", y)
        parts = [
            np.stack(
                [crps_per_row(target[rows, d], atoms[:, d], self._weights) for d in range(target.shape[1])], axis=1
            )
            for rows, atoms in self._iterate_atoms()
        ]
        return self._shape_like_target(np.concatenate(parts))

    def sample(self, n: int = 1, *, random_state: int | np.random.RandomState | None = None) -> Floats:
        """Draw n targets for each row, shape (n, m) or (n, m, D) for m rows.

        All outputs of a draw come from the errors of one calibration row, so their dependence is kept.
        """
        check_number("sample", "n", n, above=1, closed="left", whole=True)
        generator = make_random_state("sample", random_state)
        chances = self._weights / self._weights.sum()
        drawn = generator.choice(len(chances), size=(n, len(self)), p=chances)
        targets = np.stack([self._to_target(self.calibration.residuals[rows]) for rows in drawn])
        return targets[:, :, 0] if self.is_flat else targets

    @cached_property
    def _weights(self) -> Floats:
        weights = self.calibration.weights
        return np.ones(len(self.calibration)) if weights is None else weights

    @cached_property
    def _sorted(self) -> list[tuple[Floats, Floats]]:
        """The scores of each output, sorted, and the weight of all before each."""
        orders = np.argsort(self.calibration.residuals, axis=0).T
        residuals = self.calibration.residuals.T
        return [
            (scores[order], np.concatenate([[0.0], np.cumsum(self._weights[order])]))
            for scores, order in zip(residuals, orders, strict=True)
        ]

    def _rank(self, target: Floats) -> Floats:
        """Return the share of calibration rows with a score at or below that of the target."""
        scores = self._to_scores(target)
        columns = [
            held[np.searchsorted(ranked, column, side="right")]
            for (ranked, held), column in zip(self._sorted, scores.T, strict=True)
        ]
        half = 0.5 * self._weights.max()  # a new row counts as much as the heaviest
        return (np.stack(columns, axis=1) + half) / (self._weights.sum() + 2 * half)

    def _smooth_rank(self, target: Floats) -> Floats:
        """Return the share of calibration rows below the target, each score widened by a Gaussian kernel."""
        from scipy.special import ndtr

        scores, result = self._to_scores(target), np.empty_like(target)
        for output, (ranked, held) in enumerate(self._sorted):
            low, high = np.interp([0.25, 0.75], held[1:] / held[-1], ranked)
            spread = min(float(ranked.std()), float(high - low) / 1.34) or float(ranked.std()) or 1.0
            width = _BANDWIDTH * spread * len(ranked) ** -0.2
            share = np.diff(held) / held[-1]
            for rows in self._split_rows(len(ranked)):
                result[rows, output] = ndtr((scores[rows, output, None] - ranked) / width) @ share
        return result

    def find_ends(self, coverage: float, *, tails: str, simultaneous: bool = True) -> tuple[Floats, Floats]:
        """Return the scores of both ends of the intervals, (n, D)."""
        check_option("interval", "tails", tails, TAILS)
        share_below: Any = None if tails == "symmetric" else 0.5
        if tails == "shortest":
            share_below = _require_shape(self.shape).find_shortest_tails(coverage, self.domain.from_scale)
        lower, upper = self.calibration.find_ends(coverage, simultaneous=simultaneous, share_below=share_below)
        return np.broadcast_to(lower, self.value.shape), np.broadcast_to(upper, self.value.shape)

    def _to_values(self, scores: Floats) -> Floats:
        """Return values (n, D), on the scale that is learned, that have these scores."""
        if self.curves is None or self.shape is None:
            return self.value + self.sigma * scores
        columns = [
            self.shape.from_scores(scores[:, output, None], self.curves, output) for output in range(scores.shape[1])
        ]
        return self.value + self.sigma * np.stack(columns, axis=1)

    def _to_target(self, scores: Floats) -> Floats:
        """Return targets (n, D) that have these scores."""
        return self.domain.to_target(self._to_values(scores))

    def _to_scores(self, target: Floats, place: float = 1.0) -> Floats:
        """Return the scores of targets (n, D), of equal ones at a place in their step."""
        residuals = divide_errors(self.domain.to_scale(self.domain.clip(target)) - self.value, self.sigma)
        if self.curves is None or self.shape is None:
            return residuals
        return self.shape.to_scores(residuals, self.curves, place)

    def _iterate_atoms(self) -> Iterator[tuple[slice, Floats]]:
        """Yield some rows at a time, with the target that each calibration row's error makes of each, (n, D, m)."""
        residuals = self.calibration.residuals
        for rows in self._split_rows(residuals.size):
            part = self.take(rows)
            atoms = [part._to_target(np.broadcast_to(scores, part.value.shape)) for scores in residuals]
            yield rows, np.stack(atoms, axis=-1)

    def take(self, rows: Any) -> PredictiveDistribution:
        """Return the distributions of some rows: a slice or a mask."""
        curves = None if self.curves is None else self.curves[rows]
        common = (self.calibration, self.domain, self.shape, curves, self.is_flat)
        return PredictiveDistribution(self.value[rows], self.sigma[rows], *common)

    def _split_rows(self, n_numbers: int) -> Iterator[slice]:
        step = max(1, _N_AT_ONCE // n_numbers)
        for start in range(0, len(self), step):
            yield slice(start, start + step)

    def check_target(self, caller: str, y: ArrayLike) -> Floats:
        """Return a target for each row and output, (n, D)."""
        expected = self.value.shape[:1] if self.is_flat else self.value.shape
        try:
            target = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidInputError(
                f"Expected a number, or numbers of shape {expected}, as y of {caller}. Got {y!r}. Pass numbers."
            ) from None
        if target.shape not in ((), expected, self.value.shape) or np.isnan(target).any():
            raise InvalidInputError(
                f"Expected a number, or numbers of shape {expected}, as y of {caller}. Got "
                f"{'NaN' if target.shape in ((), expected) else f'shape {target.shape}'}. Pass one target for each row."
            )
        return np.broadcast_to(target[:, None] if target.ndim == 1 else target, self.value.shape)

    def _shape_like_target(self, values: Floats) -> Floats:
        return values[:, 0] if self.is_flat else values


def _require_shape(shape: Shape | ZeroShape | None) -> Shape | ZeroShape:
    if shape is None:
        raise InvalidInputError(
            "tails='shortest' needs a model that left rows out in training, to know which side errors are longer on. "
            "Got one without. Fit HCMRegressor with the error frame on 40 rows or more, or use tails='equal'."
        )
    return shape
