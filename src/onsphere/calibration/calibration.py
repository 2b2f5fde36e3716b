"""Predictions for held-out rows, compared with the truth.

A `Calibration` is plain arrays; intervals, sets, confidence and expected error are computed from them when they are
asked for, so one calibration serves every coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_option
from onsphere.calibration.conformal import conformal_quantile, rows_needed, set_scores
from onsphere.calibration.density_ratio import ShiftWeights, compute_effective_size
from onsphere.calibration.groups import WHOLE, Groups
from onsphere.calibration.online import OnlineCoverage, extend_p_values, find_ceiling, find_stretch
from onsphere.calibration.probabilities import ProbabilityScaling
from onsphere.calibration.width import N_LABELS_NEEDED, WIDTHS, choose_width
from onsphere.errors import InvalidInputError, NotCalibratedError
from onsphere.sphere import geometry

__all__ = [
    "NORMALIZATIONS",
    "Calibration",
    "CalibrationSource",
    "ClassCalibration",
    "RegressionCalibration",
    "divide_errors",
    "fit_temperature",
    "root_mean_square",
]

NORMALIZATIONS = ("quantile", "min-max", "none", "shift")

# Of the calibration rows. If more of them were replaced at once, errors that grew would count twice: in the rows and in
# the level.
_SHARE_AT_ONCE = 0.25

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


def root_mean_square(values: Floats) -> Floats:
    """Return the root mean square over the last axis, without overflow."""
    return geometry.norm(values) / values.shape[-1] ** 0.5


def _replace_zeros(spread: Floats) -> Floats:
    """Return the spread of each output, 1 for a constant one."""
    return np.where(spread == 0, 1.0, spread)


def _widen_slightly(quantile: Any, *, outwards: float | None = None) -> Any:
    """Return a quantile that is wider by 1e-12, so that rounding does not exclude the row it came from."""
    if not np.isfinite(quantile).all():
        raise InvalidInputError(
            "No finite interval has this coverage: an output that was constant in the training rows varies in the "
            "calibration rows. Fit on rows in which it varies, or leave it out."
        )
    return quantile * (1 + 1e-12) if outwards is None else quantile + outwards * 1e-12 * abs(quantile)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Predictions for held-out rows, compared with the truth.

    Attributes
    ----------
    uncertainty : array of shape (n,)
        The model's score.
    error : array of shape (n,)
        The error of each row: root mean square over the outputs, or 0 and 1 for right and wrong classes.
    missed : array of shape (n,) or None
        How far the landmarks of the training rows fall short of each row; None for a model without an input frame.
    weights : array of shape (n,) or None
        How much each row counts in intervals and sets; None if all count the same.
    parts : int array of shape (n,) or None
        The part of the rows that each row belongs to, if groups are calibrated by themselves.
    groups : Groups or None
        The groups, and which part each of them uses.
    shift : ShiftWeights or None
        The weights by which rows stand for target rows, with their cost.
    part : int
        The part that these rows are, if they were selected.
    online : OnlineCoverage or None
        The labels that came in afterwards, which move the level of intervals and sets.
    last_time : float or None
        That of the latest of the rows that it was made from, if known; later labels must not be earlier.
    """

    uncertainty: Floats
    error: Floats
    missed: Floats | None = field(default=None, kw_only=True)
    weights: Floats | None = field(default=None, kw_only=True)
    parts: NDArray[np.intp] | None = field(default=None, kw_only=True)
    groups: Groups | None = field(default=None, kw_only=True)
    part: int = field(default=0, kw_only=True)
    shift: ShiftWeights | None = field(default=None, kw_only=True)
    online: OnlineCoverage | None = field(default=None, kw_only=True)
    last_time: float | None = field(default=None, kw_only=True)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join several calibrations, for instance those of the folds of a cross-validation."""
        columns: dict[str, list[Any]] = {
            column.name: [getattr(part, column.name) for part in parts] for column in fields(cls)
        }
        joined: dict[str, Any] = {
            name: np.concatenate(rows) if isinstance(rows[0], np.ndarray) else rows[0] for name, rows in columns.items()
        }
        return cls(**joined)

    def __len__(self) -> int:
        return len(self.uncertainty)

    @property
    def scores(self) -> Floats:
        """The number of each row that must be at or below a limit for it to be covered, (n,)."""
        return self.error

    @property
    def tracked_scores(self) -> Floats:
        """All scores that have limits of their own, which follow the labels over time, (n, K)."""
        return self.scores[:, None]

    @property
    def effective_size(self) -> float:
        """The number of rows of equal weight that tell as much as these."""
        if self.shift is not None:
            return self.shift.effective_size
        return float(len(self)) if self.weights is None else compute_effective_size(self.weights)

    @property
    def _n_equal(self) -> float:
        """The number of rows, in units of the heaviest."""
        return float(len(self)) if self.weights is None else float(self.weights.sum() / self.weights.max())

    def take(self, rows: Any) -> Self:
        """Return the calibration of some rows: a mask or a list of indices."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return replace(self, **{name: each[rows] for name, each in columns.items() if isinstance(each, np.ndarray)})

    def select(self, part: int) -> Self:
        """Return the rows that groups of this part use."""
        return replace(self if part == WHOLE else self.take(self.parts == part), part=part)

    def split(self, parts: NDArray[np.intp] | None) -> Iterator[tuple[Any, Self]]:
        """Yield new rows that share calibration rows, and these; without groups all rows at once.

        Parameters
        ----------
        parts : int array of shape (m,) or None
            The part that each new row uses.
        """
        if parts is None:
            yield slice(None), self
        else:
            for part in np.unique(parts):
                yield parts == part, self.select(int(part))

    def take_in(self, new: Self, *, time: Any = None) -> Self:
        """Return the calibration after more rows came in, each in the place of the oldest one of its part.

        They are compared with the intervals or sets that stand before, and levels follow; see `OnlineCoverage`. More
        rows than a quarter of those that calibrate are a history to catch up with, and are taken in part by part.

        Parameters
        ----------
        new : calibration of the same kind
            With parts, if this one has them.
        time : array of shape (m,), optional
            The time of each row.
        """
        online = (self.online or OnlineCoverage(last_time=self.last_time)).check_time(time, len(new))
        current = replace(self, online=online)
        weights = None if self.weights is None else np.full(len(new), self.weights.max())
        new = replace(new, weights=weights, groups=self.groups)
        size = max(1, math.ceil(_SHARE_AT_ONCE * len(self)))
        for start in range(0, len(new), size):
            rows = new.take(slice(start, start + size))
            online = online.take_in(parts=0 if rows.parts is None else rows.parts, **current._compare(rows))
            current = replace(current._replace_oldest(rows), online=online)
        return current

    def _compare(self, new: Any) -> dict[str, Floats]:
        """Return the p-values and ceilings of new rows, both (m, K)."""
        p_values, ceilings = (np.empty_like(new.tracked_scores) for _ in range(2))
        for rows, known in self.split(new.parts):
            for column, (scores, given) in enumerate(
                zip(known.tracked_scores.T, new.tracked_scores[rows].T, strict=True)
            ):
                p_values[rows, column] = extend_p_values(scores, given, known.weights)
                ceilings[rows, column] = find_ceiling(scores, known.weights)
        return {"p_values": p_values, "ceilings": ceilings}

    def _replace_oldest(self, new: Any) -> Self:
        joined = type(self).join([self, new])
        is_old = np.zeros(len(joined), dtype=bool)
        for part in [None] if new.parts is None else np.unique(new.parts):
            places = np.arange(len(joined)) if part is None else np.flatnonzero(joined.parts == part)
            n_new = len(new) if part is None else int(np.sum(new.parts == part))
            is_old[places[:n_new]] = True
        return joined.take(~is_old)

    def find_limit(self, scores: Floats, coverage: float, *, column: int = 0) -> Any:
        """Return the score, per column, at or below which a new row lies with probability `coverage`.

        Every interval, ball and set is cut off here. Among weighted rows, a new row counts as much as the heaviest.

        Parameters
        ----------
        scores : array of shape (n,) or (n, D)
            Of the calibration rows.
        coverage : float in (0, 1)
        column : int, default 0
            That of `tracked_scores` by which the level moves over time.
        """
        heaviest = None if self.weights is None else float(self.weights.max())
        factor = 1.0
        if self.online is not None:
            level = self.online.find_level(coverage, column=column, part=self.part)
            coverage, factor = find_stretch(level, self._n_equal)
        limit = conformal_quantile(scores, coverage, weights=self.weights, new_weight=heaviest)
        return limit if factor == 1.0 else limit + (factor - 1.0) * np.abs(limit)

    @cached_property
    def temperature(self) -> float:
        """The T with which T·u holds 68 % of the errors, 2T·u 95 %, 3T·u 99.7 %, as nearly as possible."""
        if self.uncertainty.min() < 0:
            raise InvalidInputError(
                "A temperature needs an uncertainty that is never negative. Got one as low as "
                f"{self.uncertainty.min():g}. Use normalization='quantile', or another uncertainty_score."
            )
        return fit_temperature(self.error, self.uncertainty)

    @cached_property
    def shift_temperature(self) -> float:
        """T with which no calibration row has a confidence exp(−T·u) below .9: a fall below it is a shift."""
        largest = float(self.uncertainty.max())
        if largest <= 0:
            raise InvalidInputError(
                "The shift normalization needs a calibration row with an uncertainty above zero. Got none. "
                "Use normalization='quantile', or another uncertainty_score."
            )
        return -math.log(0.9) / largest

    @cached_property
    def _sorted_uncertainty(self) -> Floats:
        return np.sort(self.uncertainty)

    @cached_property
    def _sorted_missed(self) -> Floats:
        return np.sort(np.empty(0) if self.missed is None else self.missed)

    def novelty_p_value(self, missed: Floats) -> Floats:
        """Return the share of calibration rows (counting the row itself) that are at least as unlike the training rows.

        On rows drawn like the calibration rows it is at most p with probability p, for every p.
        """
        below = np.searchsorted(self._sorted_missed, missed, side="left")
        return np.asarray((1.0 + len(self) - below) / (1.0 + len(self)), dtype=np.float64)

    @cached_property
    def _isotonic(self) -> tuple[Floats, Floats]:
        from sklearn.isotonic import IsotonicRegression

        fitted = IsotonicRegression().fit(self.uncertainty, self.error)
        return fitted.X_thresholds_, fitted.y_thresholds_

    def expected_error(self, uncertainty: Floats) -> Floats:
        """Return the mean error of calibration rows as uncertain as this, by isotonic regression."""
        return np.interp(uncertainty, *self._isotonic).astype(np.float64, copy=False)

    def confidence(self, uncertainty: Floats, *, normalization: str = "quantile") -> Floats:
        """Return a number in [0, 1] that falls with the uncertainty.

        Parameters
        ----------
        uncertainty : array of shape (n,)
        normalization : {"quantile", "min-max", "none", "shift"}
            "quantile": the share of calibration rows (counting the row itself) that are at least as uncertain, so a
            confidence of .02 means that 2 % of them were. The others are the paper's, on exp(−T·u) with the
            temperature T: "min-max" stretches the calibration rows to [0, 1] and clips beyond, "none" leaves it as it
            is, "shift" chooses T such that no calibration row falls below .9.
        """
        check_option("predict_confidence", "normalization", normalization, NORMALIZATIONS)
        if normalization == "quantile":
            below = np.searchsorted(self._sorted_uncertainty, uncertainty, side="left")
            return np.asarray((1.0 + len(self) - below) / (1.0 + len(self)), dtype=np.float64)
        temperature = self.shift_temperature if normalization == "shift" else self.temperature
        raw = np.exp(-temperature * np.maximum(uncertainty, 0.0))
        if normalization != "min-max":
            return raw
        low, high = np.exp(-temperature * self._sorted_uncertainty[[-1, 0]])
        return np.clip((raw - low) / (high - low), 0.0, 1.0) if high > low else (raw >= high).astype(np.float64)


@runtime_checkable
class CalibrationSource(Protocol):
    """A model that has a calibration, or says which call is missing."""

    def _require_calibration(self, caller: str) -> Calibration: ...


@dataclass(frozen=True, eq=False)
class RegressionCalibration(Calibration):
    """A calibration with the errors measured in units of sigma.

    Attributes
    ----------
    residuals : array of shape (n, D)
        (target − prediction) / sigma of each output.
    ball_ratios : array of shape (n,)
        Length of the error over the root mean square of sigma, outputs measured in units of their spread.
    is_signed : bool
        Whether the residuals have their signs, which files of formats 1 to 3 did not keep.
    width : {"total", "noise", "flat"}
        The sigma in whose units errors are: that of the whole error, the noise, or one for all rows.
    usual_width : {"total", "noise"}
        The width before labels come in.
    scaled_errors, sigma, noise : arrays of shape (n, D) or None
        The errors, and both kinds of sigma, in units of the spread of each output. The noise is None where sigma is the
        only width: with a shape of each row. All are None for constant outputs and in older files.
    """

    residuals: Floats
    ball_ratios: Floats
    is_signed: bool = field(default=True, kw_only=True)
    width: str = field(default="total", kw_only=True)
    usual_width: str = field(default="total", kw_only=True)
    scaled_errors: Floats | None = field(default=None, kw_only=True)
    sigma: Floats | None = field(default=None, kw_only=True)
    noise: Floats | None = field(default=None, kw_only=True)

    @classmethod
    def measure(
        cls,
        residual: Floats,
        sigma: Floats,
        uncertainty: Floats,
        spread: Floats,
        *,
        missed: Floats | None = None,
        width: str = "total",
        others: dict[str, Floats] | None = None,
    ) -> Self:
        """Make a calibration from residuals and sigmas (n, D), uncertainties (n,), spreads (D,) and shortfalls (n,).

        `width` names the sigma. With `others`, those named "total" and "noise", labels can later choose between them.
        The total alone tells how large it is beside the errors.
        """
        residuals = divide_errors(residual, sigma)
        widths: dict[str, Any] = {"width": width, "usual_width": width}
        if others is not None and (spread > 0).all():
            scaled = {
                "sigma": others["total"] / spread,
                "noise": others["noise"] / spread if "noise" in others else None,
            }
            widths |= {"scaled_errors": residual / spread, **scaled}
        if residual.shape[1] == 1:
            error, ratios = np.abs(residual[:, 0]), np.abs(residuals[:, 0])
            return cls(uncertainty, error, residuals, ratios, missed=missed, **widths)
        unit = _replace_zeros(spread)
        return cls(
            uncertainty=uncertainty,
            error=root_mean_square(residual),
            residuals=residuals,
            ball_ratios=divide_errors(geometry.norm(residual / unit), root_mean_square(sigma / unit)),
            missed=missed,
            **widths,
        )

    @property
    def ratios(self) -> Floats:
        """|error| / sigma of each output, (n, D)."""
        return np.abs(self.residuals)

    @property
    def scores(self) -> Floats:
        """The largest |error| / sigma among the outputs, (n,)."""
        return self.ratios.max(axis=1)

    @property
    def tracked_scores(self) -> Floats:
        """The largest |error| / sigma, and the errors below and above of each output, (n, 1 + 2D)."""
        sides = [each for column in self.residuals.T for each in (-column, column)]
        return np.stack([self.scores, *sides], axis=1)

    def use_width(self, width: str) -> Self:
        """Return the calibration with errors in units of another width."""
        if width == self.width:
            return self
        errors: Any = self.scaled_errors
        scale = self._get_widths()[width]
        ball_ratios = divide_errors(geometry.norm(errors), root_mean_square(scale))
        return replace(self, residuals=divide_errors(errors, scale), ball_ratios=ball_ratios, width=width)

    def _get_widths(self) -> dict[str, Any]:
        return dict(zip(WIDTHS, (self.sigma, self.noise, np.ones_like(self.residuals)), strict=True))

    def _compare(self, new: Any) -> dict[str, Floats]:
        return super()._compare(new.use_width(self.width))

    def _replace_oldest(self, new: Any) -> Self:
        moved = super()._replace_oldest(new.use_width(self.width))
        n_labels = 0 if self.online is None else min(self.online.n_labels + len(new), len(moved))
        if moved.noise is None or n_labels < N_LABELS_NEEDED:
            return moved
        errors: Any = moved.scaled_errors
        latest = {name: each[-n_labels:] for name, each in moved._get_widths().items()}
        return moved.use_width(choose_width(errors[-n_labels:], latest, usual=self.usual_width))

    def interval(self, value: Floats, sigma: Floats, *, coverage: float, simultaneous: bool = True) -> Floats:
        """Return intervals value ± q·sigma of shape (n, D, 2); simultaneous ones hold all outputs of a row at once."""
        half = self.find_ends(coverage, simultaneous=simultaneous)[1] * sigma
        result = np.empty((*value.shape, 2))
        np.subtract(value, half, out=result[..., 0])
        np.add(value, half, out=result[..., 1])
        return result

    def find_ends(
        self, coverage: float, *, simultaneous: bool = True, share_below: float | Floats | None = None
    ) -> tuple[Any, Any]:
        """Return both ends of an interval in units of sigma, numbers or arrays of shape (D,).

        Parameters
        ----------
        coverage : float in (0, 1)
        simultaneous : bool, default True
            Whether all outputs are held at once; with unequal ends, each output then gets its part of the misses.
        share_below : float or array of shape (D,), optional
            The share of the misses that lie below. None for ends that are equally far away.
        """
        n_outputs = self.residuals.shape[1]
        if share_below is None:
            scores = self.ratios
            if n_outputs == 1:
                scores = scores[:, 0]
            elif simultaneous:
                scores = scores.max(axis=1)
            half = _widen_slightly(self.find_limit(scores, coverage))
            return -half, half
        self.check_signs()
        miss = (1.0 - coverage) / (n_outputs if simultaneous else 1)
        if self.online is None and 0.5 * miss * (self._n_equal + 1.0) < 1.0 - 1e-9:
            raise InvalidInputError(
                f"Both tails of intervals with a coverage of {coverage:g} need {rows_needed(1.0 - 0.5 * miss)} or more "
                f"calibration rows. Got {self._n_equal:.4g}. Calibrate on more rows, ask for less coverage, or use "
                "tails='symmetric'."
            )
        ends: list[list[Any]] = [[], []]
        for scores, share in zip(self.residuals.T, np.broadcast_to(share_below, n_outputs), strict=True):
            column = 1 + 2 * len(ends[0])
            below = self._limit_share(float(share), miss)
            ends[0].append(-self.find_limit(-scores, 1.0 - miss * below, column=column))
            ends[1].append(self.find_limit(scores, 1.0 - miss * (1.0 - below), column=column + 1))
        # Over time each end follows its own misses, so that they may pass each other.
        lower, upper = np.sort([np.stack(end, axis=-1) for end in ends], axis=0)
        return _widen_slightly(lower, outwards=-1.0), _widen_slightly(upper, outwards=1.0)

    def _limit_share(self, share: float, miss: float) -> float:
        """Return the share of the misses below nearest to the one asked for that so many rows can give."""
        least = min(1.0 / (miss * (self._n_equal + 1.0)), 0.5)
        return min(max(share, least), 1.0 - least)

    def find_quantile_scores(self, levels: Sequence[float] | Floats) -> Floats:
        """Return the scores of the quantiles at these levels, (Q, D)."""
        self.check_signs()
        highest = float(np.max(levels))
        if self.online is None and (1.0 - highest) * (self._n_equal + 1.0) < 1.0 - 1e-9:
            raise InvalidInputError(
                f"A quantile of the level {highest:g} needs {rows_needed(highest)} or more calibration rows. Got "
                f"{self._n_equal:.4g}. Calibrate on more rows, or ask for a lower level."
            )
        columns = [
            [self.find_limit(scores, float(level), column=2 + 2 * output) for level in levels]
            for output, scores in enumerate(self.residuals.T)
        ]
        found, order = np.array(columns).T, np.argsort(levels)
        # Over time each level follows its own misses; still, quantiles must not cross.
        found[order] = np.maximum.accumulate(found[order], axis=0)
        return found

    def check_signs(self) -> None:
        """Raise an error if the two sides of an interval cannot be told apart."""
        if not self.is_signed:
            raise NotCalibratedError(
                "Quantiles and tails need errors with their signs. Got a calibration of an older file, which has their "
                "sizes only. Call calibrate(X, y) again."
            )

    def radius(self, sigma: Floats, spread: Floats, *, coverage: float) -> Floats:
        """Return the radius (n,) of the ball, in units of the spread, that holds the whole target."""
        return _widen_slightly(self.find_limit(self.ball_ratios, coverage)) * root_mean_square(
            sigma / _replace_zeros(spread)
        )


@dataclass(frozen=True, eq=False)
class ClassCalibration(Calibration):
    """A calibration with the set score of the true class.

    Attributes
    ----------
    true_scores : array of shape (n,)
        `set_scores` of the class that was right.
    penalty, n_free : float and int
        Of regularised sets; see `set_scores`.
    scaling : ProbabilityScaling or None
        Turns directions into probabilities, for a model whose directions are no probabilities by themselves.
    """

    true_scores: Floats
    penalty: float = field(default=0.0, kw_only=True)
    n_free: int = field(default=1, kw_only=True)
    scaling: ProbabilityScaling | None = field(default=None, kw_only=True)

    @property
    def scores(self) -> Floats:
        """The set score of the true class, (n,)."""
        return self.true_scores

    @classmethod
    def measure(
        cls,
        probabilities: Floats,
        true_index: NDArray[np.intp],
        uncertainty: Floats,
        wrong: Floats,
        *,
        missed: Floats | None = None,
        penalty: float = 0.0,
        n_free: int = 1,
    ) -> Self:
        """Make a calibration from probabilities (n, C), true classes, uncertainties, 1 for wrong, and shortfalls."""
        scores = set_scores(probabilities, penalty=penalty, n_free=n_free)
        true_scores = scores[np.arange(len(scores)), true_index]
        return cls(uncertainty, wrong, true_scores, missed=missed, penalty=penalty, n_free=n_free)

    def prediction_set(self, probabilities: Floats, *, coverage: float) -> NDArray[np.bool_]:
        """Return which classes belong to the set of each row, shape (n, C)."""
        scores = set_scores(probabilities, penalty=self.penalty, n_free=self.n_free)
        # Sums of the same probabilities may differ in the last digit.
        return scores <= self.find_set_limit(coverage) + 1e-12

    def find_set_limit(self, coverage: float) -> Any:
        """Return the limit of the score of a class: one for all, or (C,) if classes are calibrated by themselves."""
        if self.groups is None or self.groups.source.kind != "class":
            return self.find_limit(self.true_scores, coverage)
        known = {part: self.select(part) for part in set(self.groups.parts.tolist())}
        limits = {part: rows.find_limit(rows.true_scores, coverage) for part, rows in known.items()}
        return np.array([limits[part] for part in self.groups.parts.tolist()])
