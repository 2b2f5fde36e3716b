"""From held-out rows to temperature, confidence, expected error and conformal intervals, balls and sets.

A `Calibration` is what a model said about rows it had not seen, beside the truth. It is plain arrays; everything else
is read off them when it is asked for, so one calibration serves every coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_number, check_option
from onsphere.errors import InvalidInputError
from onsphere.sphere import geometry

__all__ = [
    "NORMALIZATIONS",
    "Calibration",
    "ClassCalibration",
    "RegressionCalibration",
    "conformal_quantile",
    "covered_rows",
    "covered_share_range",
    "fit_temperature",
    "set_scores",
]

NORMALIZATIONS = ("quantile", "min-max", "none", "shift")

# The shares of a Gaussian within one, two and three standard deviations.
_GAUSSIAN_SHARES = (0.68, 0.95, 0.997)


def rows_needed(coverage: float) -> int:
    """The least number of calibration rows for a coverage.

    Examples
    --------
    >>> rows_needed(0.9)
    9
    """
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def conformal_quantile(scores: Floats, coverage: float) -> Any:
    """The ⌈(n + 1)·coverage⌉-th smallest of n scores, per column.

    A new row, exchangeable with the n, has a score at or below it with probability at least `coverage`, and at most
    coverage + 1/(n + 1) where no two scores are equal.

    Examples
    --------
    >>> import numpy as np
    >>> float(conformal_quantile(np.arange(1.0, 20.0), 0.9))
    18.0
    """
    check_number("conformal_quantile", "coverage", coverage, above=0, below=1)
    n = len(scores)
    rank = max(math.ceil((n + 1) * coverage - 1e-9), 1)  # 10 · 0.7 is a hair above 7
    if rank > n:
        raise InvalidInputError(
            f"A coverage of {coverage:g} needs at least {rows_needed(coverage)} calibration rows. Got {n}. "
            "Calibrate on more rows, or ask for less coverage."
        )
    return np.partition(scores, rank - 1, axis=0)[rank - 1]


def covered_rows(n_rows: int, n_calibration: int, coverage: float) -> Any:
    """The distribution of how many of n new rows are covered where the promise of conformal prediction is kept.

    All rows share one calibration set, whose own luck counts: with m calibration rows the probability that a new row is
    covered varies over such sets like Beta(k, m + 1 − k), where k = ⌈(m + 1)·coverage⌉. The count is beta-binomial.

    Examples
    --------
    >>> float(covered_rows(100, 99, 0.9).mean())
    90.0
    """
    from scipy.stats import betabinom  # takes a while to import

    rank = min(math.ceil((n_calibration + 1) * coverage - 1e-9), n_calibration)
    return betabinom(n_rows, rank, n_calibration + 1 - rank)


def covered_share_range(n_rows: int, n_calibration: int, coverage: float, *, level: float) -> tuple[float, float]:
    """Where the share of covered rows lies, but for a probability of `level`, where the promise is kept.

    Examples
    --------
    >>> [round(share, 2) for share in covered_share_range(412, 1000, 0.9, level=0.05)]
    [0.86, 0.93]
    """
    from scipy.stats import norm

    counts = covered_rows(n_rows, n_calibration, coverage)
    if n_rows > 10_000:  # where the exact quantiles take seconds, those of a Gaussian are as good
        low, high = np.clip(norm.ppf([level / 2, 1 - level / 2], counts.mean(), counts.std()), 0, n_rows)
    else:
        low, high = counts.ppf([level / 2, 1 - level / 2])
    return float(low / n_rows), float(high / n_rows)


def fit_temperature(error: Floats, uncertainty: Floats) -> float:
    """The T whose intervals of 1, 2 and 3 T·u come nearest to holding 68, 95 and 99.7 % of the errors.

    The sum of the squared gaps changes only where an error enters an interval, so all such T are tried: the minimum
    is exact. Of equal minima the smallest T is taken.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> round(fit_temperature(2 * np.abs(rng.normal(size=10_000)), np.ones(10_000)), 1)
    2.0
    """
    ratio = np.sort(_ratio(error, uncertainty))
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


def set_scores(probabilities: Floats) -> Floats:
    """For each class, the mass of all classes that are strictly more likely: 0 for the most likely one.

    This is the score of adaptive prediction sets with the random part set to zero: sets are never empty, and a row
    always gets the same set.

    Examples
    --------
    >>> import numpy as np
    >>> set_scores(np.array([[0.6, 0.1, 0.3]])).round(3)
    array([[0. , 0.9, 0.6]])
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    mass = np.cumsum(ranked, axis=1) - ranked
    for column in range(1, ranked.shape[1]):
        equal = ranked[:, column] == ranked[:, column - 1]
        mass[equal, column] = mass[equal, column - 1]
    result = np.empty_like(mass)
    np.put_along_axis(result, order, mass, axis=1)
    return result


def root_mean_square(values: Floats) -> Floats:
    """Over the last axis, without leaving the range of floats."""
    return geometry.norm(values) / values.shape[-1] ** 0.5


def _ratio(error: Floats, scale: Floats) -> Floats:
    """error / scale, where nothing over nothing is 0 and something over nothing is infinite."""
    with np.errstate(divide="ignore"):
        return np.divide(error, scale, out=np.zeros_like(error), where=error != 0)


def _unit(spread: Floats) -> Floats:
    return np.where(spread == 0, 1.0, spread)


def _finite(quantile: Any) -> Any:
    """The quantile, a hair wider: the row it stems from must not fall outside by rounding."""
    if not np.isfinite(quantile).all():
        raise InvalidInputError(
            "No finite interval has this coverage: an output that was constant in the training rows varies in the "
            "calibration rows. Fit on rows in which it varies, or leave it out."
        )
    return quantile * (1 + 1e-12)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What a model said about held-out rows, beside the truth.

    Attributes
    ----------
    uncertainty : array of shape (n,)
        The model's score.
    error : array of shape (n,)
        The error of each row: root mean square over the outputs, or 0 and 1 for right and wrong classes.
    """

    uncertainty: Floats
    error: Floats

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Several calibrations as one, for instance those of the folds of a cross-validation."""
        return cls(
            **{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)}
        )

    def __len__(self) -> int:
        return len(self.uncertainty)

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
    def _isotonic(self) -> tuple[Floats, Floats]:
        from sklearn.isotonic import IsotonicRegression

        fitted = IsotonicRegression().fit(self.uncertainty, self.error)
        return fitted.X_thresholds_, fitted.y_thresholds_

    def expected_error(self, uncertainty: Floats) -> Floats:
        """The mean error of calibration rows as uncertain as this, by isotonic regression of error on uncertainty."""
        return np.interp(uncertainty, *self._isotonic).astype(np.float64, copy=False)

    def confidence(self, uncertainty: Floats, *, normalization: str = "quantile") -> Floats:
        """A number in [0, 1] that falls with the uncertainty.

        Parameters
        ----------
        uncertainty : array of shape (n,)
        normalization : {"quantile", "min-max", "none", "shift"}
            "quantile": the share of calibration rows (the row itself counted) that are at least as uncertain, so a
            confidence of .02 means that 2 % of them were. The paper's, on exp(−T·u) with the temperature T:
            "min-max" stretches the calibration rows to [0, 1] and cuts beyond, "none" leaves it as it is, "shift"
            takes T such that no calibration row falls below .9.
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


@dataclass(frozen=True, eq=False)
class RegressionCalibration(Calibration):
    """A calibration with the errors measured in units of sigma.

    Attributes
    ----------
    ratios : array of shape (n, D)
        |error| / sigma of each output.
    ball_ratios : array of shape (n,)
        Length of the error over the root mean square of sigma, outputs measured in units of their spread.
    """

    ratios: Floats
    ball_ratios: Floats

    @classmethod
    def measure(cls, residual: Floats, sigma: Floats, uncertainty: Floats, spread: Floats) -> Self:
        """From residuals and sigmas of shape (n, D), uncertainties (n,) and the spread (D,) of each output."""
        if residual.shape[1] == 1:
            error = np.abs(residual[:, 0])
            ratios = _ratio(error, sigma[:, 0])
            return cls(uncertainty, error, ratios[:, None], ratios)
        unit = _unit(spread)
        return cls(
            uncertainty=uncertainty,
            error=root_mean_square(residual),
            ratios=_ratio(np.abs(residual), sigma),
            ball_ratios=_ratio(geometry.norm(residual / unit), root_mean_square(sigma / unit)),
        )

    def interval(self, value: Floats, sigma: Floats, *, coverage: float, simultaneous: bool = True) -> Floats:
        """Intervals value ± q·sigma of shape (n, D, 2); simultaneous ones hold all outputs of a row at once."""
        if self.ratios.shape[1] == 1:
            scores = self.ratios[:, 0]
        else:
            scores = self.ratios.max(axis=1) if simultaneous else self.ratios
        half = _finite(conformal_quantile(scores, coverage)) * sigma
        result = np.empty((*value.shape, 2))
        np.subtract(value, half, out=result[..., 0])
        np.add(value, half, out=result[..., 1])
        return result

    def radius(self, sigma: Floats, spread: Floats, *, coverage: float) -> Floats:
        """Radius (n,) of the ball, in units of the spread, that holds the whole target."""
        return _finite(conformal_quantile(self.ball_ratios, coverage)) * root_mean_square(sigma / _unit(spread))


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
    def measure(cls, probabilities: Floats, true_index: NDArray[np.intp], uncertainty: Floats, wrong: Floats) -> Self:
        """From class probabilities (n, C), the index of the true class, the uncertainty and 0 or 1 for wrong."""
        scores = set_scores(probabilities)
        return cls(uncertainty, wrong, scores[np.arange(len(scores)), true_index])

    def prediction_set(self, probabilities: Floats, *, coverage: float) -> NDArray[np.bool_]:
        """Which classes belong to the set of each row, shape (n, C)."""
        limit = conformal_quantile(self.true_scores, coverage)
        # Sums of the same probabilities may differ in the last digit.
        return set_scores(probabilities) <= limit + 1e-12
