"""Accept or reject: rules that turn calibration rows into one threshold on the uncertainty, and one on the novelty.

A row is accepted if its uncertainty is at or below the threshold, and its novelty too if that has one. The docstring of
each rule says what it promises and what it does not; all promises are about rows drawn like the calibration rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from onsphere._internal.validation import check_number, check_option, parameter_error
from onsphere.calibration import Calibration, ClassCalibration, conformal_quantile, hoeffding_bentkus_p_value
from onsphere.errors import InvalidInputError, OnsphereWarning

__all__ = ["AcceptShare", "FalseAlarm", "MaxErrorRate", "MaxMeanError", "Novelty", "Rule", "Tolerance"]

_N_STEPS = 20  # thresholds that are tried


@runtime_checkable
class Rule(Protocol):
    """Anything with a method that turns a calibration into a threshold."""

    def threshold(self, calibration: Calibration) -> float:
        """Return the largest uncertainty that is accepted."""
        ...


@dataclass(frozen=True)
class Tolerance:
    """Reject what cannot be within a tolerance.

    With of="uncertainty", as in Proposition 1 of the paper: the score is a lower bound of the error of R·d in the
    embedding, if the magnitude is right, so a score above epsilon means that the tolerance is exceeded. It is a rule of
    thumb: the decoded value may be better than R·d, and scores other than "distance" bound nothing. With
    of="expected_error", a row is rejected if calibration rows as uncertain as it had a larger error on average.
    Neither promises that accepted rows are within the tolerance: use `MaxErrorRate` for that.

    Epsilon is in the unit of the uncertainty (for regression, of the target). A wrong unit cannot be detected, so a
    tolerance that rejects every calibration row is an error, and one that accepts every one is a warning.

    Parameters
    ----------
    epsilon : float
        The tolerance.
    of : {"uncertainty", "expected_error"}
        What is compared with it.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Calibration(uncertainty=np.array([0.1, 0.5, 2.5]), error=np.array([0.2, 1.0, 4.0]))
    >>> Tolerance(2.0).threshold(rows)
    2.0
    >>> round(Tolerance(2.0, of="expected_error").threshold(rows), 3)
    1.167
    """

    epsilon: float
    of: str = "uncertainty"

    def threshold(self, calibration: Calibration) -> float:
        """Return epsilon itself, or the largest uncertainty whose expected error is epsilon."""
        check_number(self, "epsilon", self.epsilon, above=0)
        check_option(self, "of", self.of, ("uncertainty", "expected_error"))
        if self.of == "uncertainty":
            limit = float(self.epsilon)
        else:
            limit = _find_crossing(*calibration._isotonic, self.epsilon)
        share = float(np.mean(calibration.uncertainty <= limit))
        low, high = float(calibration.uncertainty.min()), float(calibration.uncertainty.max())
        seen = (
            f"of the {len(calibration)} calibration rows, whose uncertainty runs from {low:g} to {high:g}. Check that "
            "the tolerance is in the unit of the uncertainty, which for numbers is that of the target."
        )
        if share == 0:
            raise InvalidInputError(f"{self} accepts none {seen}")
        if share == 1:
            warnings.warn(f"{self} accepts all {seen}", OnsphereWarning, stacklevel=3)
        return limit


def _find_crossing(uncertainty: np.ndarray, expected: np.ndarray, epsilon: float) -> float:
    """Return where a rising, piecewise linear curve passes epsilon; beyond its ends it is flat."""
    if expected[-1] <= epsilon:
        return math.inf
    if expected[0] > epsilon:
        return -math.inf
    last = int(np.searchsorted(expected, epsilon, side="right")) - 1
    rise = expected[last + 1] - expected[last]
    return float(uncertainty[last] + (epsilon - expected[last]) / rise * (uncertainty[last + 1] - uncertainty[last]))


@dataclass(frozen=True)
class AcceptShare:
    """Accept all but the most uncertain.

    Promises: on average over calibration sets, at least this share of new rows is accepted. Does not promise it for
    the one calibration set at hand (`FalseAlarm` does), nor anything about the error of accepted rows.

    Parameters
    ----------
    share : float in (0, 1), default 0.95

    Examples
    --------
    >>> import numpy as np
    >>> AcceptShare(0.9).threshold(Calibration(uncertainty=np.arange(1.0, 20.0), error=np.zeros(19)))
    18.0
    """

    share: float = 0.95

    def threshold(self, calibration: Calibration) -> float:
        """Return the conformal quantile of the calibration rows."""
        check_number(self, "share", self.share, above=0, below=1)
        return float(conformal_quantile(calibration.uncertainty, self.share))


@dataclass(frozen=True)
class FalseAlarm:
    """Reject at most a given share of rows like those of the calibration, with confidence.

    Promises: with probability at least 1 − delta over the calibration set, at most a share `rate` of new rows drawn
    like it is rejected. Does not promise that rows of another kind are rejected.

    Parameters
    ----------
    rate : float in (0, 1)
        The share of good rows that may be rejected.
    delta : float in (0, 1), default 0.05
        The share of calibration sets for which the promise may be broken.

    Examples
    --------
    >>> import numpy as np
    >>> FalseAlarm(0.1).threshold(Calibration(uncertainty=np.arange(1.0, 101.0), error=np.zeros(100)))
    96.0
    """

    rate: float
    delta: float = 0.05

    def threshold(self, calibration: Calibration) -> float:
        """Return the smallest order statistic that, with probability 1 − delta, at most `rate` of the rows exceed."""
        from scipy.stats import binom

        check_number(self, "rate", self.rate, above=0, below=1)
        check_number(self, "delta", self.delta, above=0, below=1)
        n = len(calibration)
        # The share of all rows below the k-th of n is Beta(k, n − k + 1); it misses 1 − rate as often as
        # a binomial count of n reaches k.
        rank = int(binom.ppf(1 - self.delta, n, 1 - self.rate)) + 1
        if rank > n:
            needed = math.ceil(math.log(self.delta) / math.log1p(-self.rate))
            raise InvalidInputError(
                f"{self} needs at least {needed} calibration rows. Got {n}. "
                "Calibrate on more rows, or allow a higher rate or delta."
            )
        return float(np.partition(calibration.uncertainty, rank - 1)[rank - 1])


@dataclass(frozen=True)
class MaxErrorRate:
    """Accept as many rows as possible while a limited share of the accepted ones is wrong, with confidence.

    Promises: with probability at least 1 − delta over the calibration set, at most a share `max_error` of the accepted
    new rows drawn like it is wrong. Does not promise anything about a single row, nor how many rows are accepted.

    Twenty thresholds, which accept 5, 10, ..., 100 % of the calibration rows, are tested by the exact binomial tail at
    delta/20 each; the largest that passes is taken (selective guaranteed risk, after Geifman and El-Yaniv).

    Parameters
    ----------
    max_error : float in (0, 1)
        The share of accepted rows that may be wrong.
    delta : float in (0, 1), default 0.05
        The share of calibration sets for which the promise may be broken.
    tolerance : float, optional
        For regression, which needs it: a row is wrong when its error is above this, in the unit of the target.

    Examples
    --------
    >>> import numpy as np
    >>> uncertainty = np.arange(1000.0)
    >>> rows = Calibration(uncertainty, error=(uncertainty > 600).astype(float))
    >>> round(MaxErrorRate(0.05, tolerance=0.5).threshold(rows))
    599
    """

    max_error: float
    delta: float = 0.05
    tolerance: float | None = None

    def threshold(self, calibration: Calibration) -> float:
        """Return the largest of twenty thresholds whose error rate is small enough."""
        from scipy.stats import binom

        check_number(self, "max_error", self.max_error, above=0, below=1)
        check_number(self, "delta", self.delta, above=0, below=1)
        wrong = self._find_wrong(calibration)
        order = np.argsort(calibration.uncertainty, kind="stable")
        ranked, n_wrong = calibration.uncertainty[order], np.concatenate([[0], np.cumsum(wrong[order])])
        for limit, n_accepted in _list_thresholds(ranked):
            if binom.cdf(n_wrong[n_accepted], n_accepted, self.max_error) <= self.delta / _N_STEPS:
                return limit
        raise InvalidInputError(
            f"No threshold on the {len(order)} calibration rows, of which {int(wrong.sum())} are wrong, keeps {self}. "
            "Calibrate on more rows, allow a higher max_error or delta, or check the unit of the tolerance."
        )

    def _find_wrong(self, calibration: Calibration) -> np.ndarray:
        if isinstance(calibration, ClassCalibration):
            if self.tolerance is not None:
                raise parameter_error(self, "tolerance", "None for classes, which are right or wrong", self.tolerance)
            return calibration.error > 0
        if self.tolerance is None:
            raise InvalidInputError(
                f"{self} needs to know which errors count as wrong in regression. Got tolerance=None. "
                "Pass tolerance=, in the unit of the target."
            )
        check_number(self, "tolerance", self.tolerance, above=0, closed="left")
        return calibration.error > self.tolerance


@dataclass(frozen=True)
class MaxMeanError:
    """Accept as many rows as possible while the mean error of the accepted ones is limited, with confidence.

    Promises: with probability at least 1 − delta over the calibration set, the mean error of the accepted new rows
    drawn like it is at most `max_error`, where an error counts as `largest` at most. Does not promise anything about a
    single row, nor how many rows are accepted.

    Twenty thresholds, which accept 5, 10, ..., 100 % of the calibration rows, are tested at delta/20 each by the bounds
    of Hoeffding and Bentkus; the largest that passes is taken (Learn then Test). For other losses, and for several
    thresholds at once, see `onsphere.calibration.find_safe_settings`.

    Parameters
    ----------
    max_error : float above 0
        In the unit of the target; for classes a share.
    largest : float above max_error
        What an error counts at most; 1 for classes. The smaller it is, the more rows are accepted.
    delta : float in (0, 1), default 0.05
        The share of calibration sets for which the promise may be broken.

    Examples
    --------
    >>> import numpy as np
    >>> uncertainty = np.arange(1000.0)
    >>> rows = Calibration(uncertainty, error=uncertainty / 1000)
    >>> round(MaxMeanError(0.25, largest=1.0).threshold(rows))
    349
    """

    max_error: float
    largest: float
    delta: float = 0.05

    def threshold(self, calibration: Calibration) -> float:
        """Return the largest of twenty thresholds whose mean error is small enough."""
        check_number(self, "largest", self.largest, above=0)
        check_number(self, "max_error", self.max_error, above=0, below=self.largest)
        check_number(self, "delta", self.delta, above=0, below=1)
        order = np.argsort(calibration.uncertainty, kind="stable")
        losses = np.minimum(calibration.error[order], self.largest) / self.largest
        sums = np.concatenate([[0.0], np.cumsum(losses)])
        for limit, n_accepted in _list_thresholds(calibration.uncertainty[order]):
            mean = sums[n_accepted] / max(n_accepted, 1)
            p_value = hoeffding_bentkus_p_value(mean, n_accepted, self.max_error / self.largest)
            if n_accepted and p_value <= self.delta / _N_STEPS:
                return limit
        raise InvalidInputError(
            f"No threshold on the {len(order)} calibration rows, whose mean error is {calibration.error.mean():.3g}, "
            f"keeps {self}. Calibrate on more rows, allow a higher max_error or delta, or a smaller largest."
        )


def _list_thresholds(ranked: np.ndarray) -> Iterator[tuple[float, int]]:
    """Yield thresholds that accept 100, 95, ..., 5 % of rows with these ascending uncertainties, and how many each has.

    Given the row at a rank, those strictly below it are a plain sample of what will be accepted.
    """
    n = len(ranked)
    for step in range(_N_STEPS, 0, -1):
        rank = math.ceil(step * n / _N_STEPS)
        limit = math.inf if step == _N_STEPS else math.nextafter(ranked[rank - 1], -math.inf)
        yield limit, int(np.searchsorted(ranked, limit, side="right"))


@dataclass(frozen=True)
class Novelty:
    """Reject rows that are unlike all training rows: a second condition, `set_threshold(rule, novelty=Novelty(...))`.

    Promises, with `false_alarm`: a new row drawn like the calibration rows is rejected with at most this probability.
    Does not promise that every strange row is rejected, nor that the model errs on a row that is.

    Parameters
    ----------
    max : float in [0, 1), optional
        The largest novelty that is accepted; 0 accepts what 98 % of the training rows reach.
    false_alarm : float in (0, 1), optional
        The share of ordinary rows that may be rejected: a row is rejected if its novelty_p_value is at most this.
        Give exactly one of the two.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Calibration(np.zeros(99), np.zeros(99), missed=np.linspace(0.01, 0.99, 99))
    >>> round(Novelty(false_alarm=0.05).threshold(rows, ordinary=0.98), 3)
    0.95
    >>> round(Novelty(max=0.5).threshold(rows, ordinary=0.5), 3)
    0.667
    """

    max: float | None = None
    false_alarm: float | None = None

    def threshold(self, calibration: Calibration, ordinary: float | None) -> float:
        """Return the largest shortfall that is accepted; `ordinary` is that of a row with novelty 0."""
        if (self.max is None) == (self.false_alarm is None):
            raise InvalidInputError(
                f"Novelty needs one of 'max' and 'false_alarm'. Got {self}. Pass for example Novelty(max=0.5) or "
                "Novelty(false_alarm=0.01)."
            )
        if ordinary is None or calibration.missed is None:
            raise InvalidInputError(
                f"{self} needs a model with an input frame. Got one without. Fit with frames='all' and calibrate again."
            )
        if self.max is not None:
            check_number(self, "max", self.max, above=0, below=1, closed="left")
            return ordinary / (1 - self.max * (1 - ordinary))
        check_number(self, "false_alarm", self.false_alarm, above=0, below=1)
        rank = math.floor(float(self.false_alarm or 0) * (len(calibration) + 1))  # rows that may lie above it
        if rank < 1:
            needed = math.ceil(1 / float(self.false_alarm or 1)) - 1
            raise InvalidInputError(
                f"{self} needs at least {needed} calibration rows. Got {len(calibration)}. "
                "Calibrate on more rows, or allow a higher rate."
            )
        return float(np.sort(calibration.missed)[-rank])
