"""Predictions for held-out rows, compared with the truth.

A `Calibration` is plain arrays; intervals, sets, confidence and expected error are computed from them when they are
asked for, so one calibration serves every coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_option
from onsphere.calibration.conformal import conformal_quantile, set_scores
from onsphere.errors import InvalidInputError
from onsphere.sphere import geometry

__all__ = [
    "NORMALIZATIONS",
    "Calibration",
    "CalibrationSource",
    "ClassCalibration",
    "RegressionCalibration",
    "fit_temperature",
    "root_mean_square",
]

NORMALIZATIONS = ("quantile", "min-max", "none", "shift")

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
    ratio = np.sort(_divide_errors(error, uncertainty))
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


def _divide_errors(error: Floats, scale: Floats) -> Floats:
    """Return error / scale, with 0/0 = 0 and x/0 = ±∞ for other x."""
    with np.errstate(divide="ignore"):
        return np.divide(error, scale, out=np.zeros_like(error), where=error != 0)


def root_mean_square(values: Floats) -> Floats:
    """Return the root mean square over the last axis, without overflow."""
    return geometry.norm(values) / values.shape[-1] ** 0.5


def _replace_zeros(spread: Floats) -> Floats:
    """Return the spread of each output, 1 for a constant one."""
    return np.where(spread == 0, 1.0, spread)


def _widen_slightly(quantile: Any) -> Any:
    """Return a quantile that is wider by 1e-12, so that rounding does not exclude the row it came from."""
    if not np.isfinite(quantile).all():
        raise InvalidInputError(
            "No finite interval has this coverage: an output that was constant in the training rows varies in the "
            "calibration rows. Fit on rows in which it varies, or leave it out."
        )
    return quantile * (1 + 1e-12)


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
    """

    uncertainty: Floats
    error: Floats
    missed: Floats | None = field(default=None, kw_only=True)
    weights: Floats | None = field(default=None, kw_only=True)

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

    def find_limit(self, scores: Floats, coverage: float) -> Any:
        """Return the score, per column, at or below which a new row lies with probability `coverage`.

        Every interval, ball and set is cut off here.

        Parameters
        ----------
        scores : array of shape (n,) or (n, D)
            Of the calibration rows.
        coverage : float in (0, 1)
        """
        return conformal_quantile(scores, coverage, weights=self.weights)

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
    """

    residuals: Floats
    ball_ratios: Floats
    is_signed: bool = field(default=True, kw_only=True)

    @classmethod
    def measure(
        cls,
        residual: Floats,
        sigma: Floats,
        uncertainty: Floats,
        spread: Floats,
        *,
        missed: Floats | None = None,
    ) -> Self:
        """Make a calibration from residuals and sigmas (n, D), uncertainties (n,), spreads (D,) and shortfalls (n,)."""
        residuals = _divide_errors(residual, sigma)
        if residual.shape[1] == 1:
            return cls(uncertainty, np.abs(residual[:, 0]), residuals, np.abs(residuals[:, 0]), missed=missed)
        unit = _replace_zeros(spread)
        return cls(
            uncertainty=uncertainty,
            error=root_mean_square(residual),
            residuals=residuals,
            ball_ratios=_divide_errors(geometry.norm(residual / unit), root_mean_square(sigma / unit)),
            missed=missed,
        )

    @property
    def ratios(self) -> Floats:
        """|error| / sigma of each output, (n, D)."""
        return np.abs(self.residuals)

    def interval(self, value: Floats, sigma: Floats, *, coverage: float, simultaneous: bool = True) -> Floats:
        """Return intervals value ± q·sigma of shape (n, D, 2); simultaneous ones hold all outputs of a row at once."""
        scores = self.ratios
        if scores.shape[1] == 1:
            scores = scores[:, 0]
        elif simultaneous:
            scores = scores.max(axis=1)
        half = _widen_slightly(self.find_limit(scores, coverage)) * sigma
        result = np.empty((*value.shape, 2))
        np.subtract(value, half, out=result[..., 0])
        np.add(value, half, out=result[..., 1])
        return result

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
    """

    true_scores: Floats

    @classmethod
    def measure(
        cls,
        probabilities: Floats,
        true_index: NDArray[np.intp],
        uncertainty: Floats,
        wrong: Floats,
        *,
        missed: Floats | None = None,
    ) -> Self:
        """Make a calibration from probabilities (n, C), true classes, uncertainties, 1 for wrong, and shortfalls."""
        scores = set_scores(probabilities)
        return cls(uncertainty, wrong, scores[np.arange(len(scores)), true_index], missed=missed)

    def prediction_set(self, probabilities: Floats, *, coverage: float) -> NDArray[np.bool_]:
        """Return which classes belong to the set of each row, shape (n, C)."""
        limit = self.find_limit(self.true_scores, coverage)
        # Sums of the same probabilities may differ in the last digit.
        return set_scores(probabilities) <= limit + 1e-12
