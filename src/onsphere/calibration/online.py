"""Coverage over time: levels that follow the labels as they come in.

A label is taken in as a p-value: the share of calibration rows (with the row itself) whose error is at least as large.
An interval of level α holds the row if its p-value is above α. If intervals miss too often, the level falls and they
become wider; if they miss too rarely, it rises.

Below 1/(n + 1), the smallest share that n calibration rows can have, an interval ends beyond the largest error among
them: `STRETCH` says how fast it grows, and `extend_p_values` goes on with p-values in the same way. So intervals stay
finite, and adapt to errors of any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_number
from onsphere.errors import InvalidInputError

__all__ = ["STRETCH", "LevelTracker", "OnlineCoverage", "extend_p_values", "find_stretch"]

STRETCH = math.log(2) / 0.05  # beyond the largest error, an interval doubles for each .05 by which its level falls

_STEPS = tuple(0.001 * 2**power for power in range(8))
_LOCAL = 500  # labels over which the mixture of steps is to be as good as the best of them
_N_KEPT = 2_000  # p-values, for coverages that were not asked for before


def extend_p_values(scores: Floats, new: Floats, weights: Floats | None = None) -> Floats:
    """Return the share of calibration scores, with the new one itself, that are at least as large, for each new one.

    A score beyond the largest s gets log(score/s)/STRETCH less than 1/(n + 1).

    Parameters
    ----------
    scores, new : arrays of shape (n,) and (m,)
    weights : array of shape (n,), optional
        How much each calibration row counts; a new row counts as much as the heaviest of them.

    Examples
    --------
    >>> import numpy as np
    >>> extend_p_values(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.5, 6.0])).round(2)
    array([1. , 0.5, 0.2])
    """
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    counts = np.ones(len(scores)) if weights is None else weights[order] / weights.max()
    at_least = np.concatenate([np.cumsum(counts[::-1])[::-1], [0.0]])[np.searchsorted(ranked, new, side="left")]
    shares = (1.0 + at_least) / (1.0 + counts.sum())
    largest = ranked[-1]
    beyond = new > largest
    if largest > 0:
        shares[beyond] -= np.log(new[beyond] / largest) / STRETCH
    return np.maximum(shares, -1.0)  # a million times the largest; so that an infinite score has a p-value


def find_stretch(level: float, n_effective: float) -> tuple[float, float]:
    """Return the coverage that so many calibration rows can give at a level, and the factor by which to widen it.

    Examples
    --------
    >>> find_stretch(0.1, 99)
    (0.9, 1.0)
    >>> coverage, factor = find_stretch(-0.04, 99)
    >>> round(coverage, 3), round(factor, 3)
    (0.99, 2.0)
    """
    smallest = 1.0 / (n_effective + 1.0)
    coverage = 1.0 - min(max(level, smallest), 1.0 - smallest)
    return coverage, math.exp(STRETCH * max(smallest - level, 0.0))


@dataclass(frozen=True)
class LevelTracker:
    """The level for one coverage, moved by each label.

    With a step γ this is ACI (Gibbs and Candès, 2021), which moves one level: α ← α + γ(1 − coverage − miss). Whatever
    the labels are, and however they drift, the share of misses among any T labels in a row differs from 1 − coverage by
    at most (1 + γ + B/STRETCH)/(γT), if no error is more than exp(B) times the largest of the calibration rows at the
    time.

    Without a step it is DtACI (Gibbs and Candès, 2024), which runs eight steps side by side, from .001 to .128, and
    mixes their levels by how well each did of late. Over every stretch of L labels, its pinball loss exceeds that of
    the best sequence of levels in hindsight by at most the order of √(L·log L) + √(L·V), where V is how far that
    sequence moves. The bound is on the loss: coverage comes close to the one asked for, but has no bound of its own.

    Labels that come d rows late are judged by the level at which they come in, not by that of the answer.

    Parameters
    ----------
    coverage : float in (0, 1)
    step : float in (0, 1], optional

    Examples
    --------
    >>> tracker = LevelTracker(0.9, step=0.02)
    >>> round(tracker.take_in([0.05])[0].level, 3)  # an interval that missed: the next is wider
    0.082
    """

    coverage: float
    step: float | None = None
    levels: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.levels:
            n = len(self._steps)
            object.__setattr__(self, "levels", (1.0 - self.coverage,) * n)
            object.__setattr__(self, "weights", (1.0 / n,) * n)

    @property
    def _steps(self) -> tuple[float, ...]:
        return _STEPS if self.step is None else (self.step,)

    @property
    def level(self) -> float:
        """The level of the next interval."""
        return sum(weight * level for weight, level in zip(self.weights, self.levels, strict=True))

    def take_in(self, p_values: Any) -> tuple[Self, list[bool]]:
        """Return the tracker after these labels, and whether each was inside the interval that stood before it."""
        miss = 1.0 - self.coverage
        steps, levels, weights = self._steps, list(self.levels), list(self.weights)
        n = len(steps)
        share = 1.0 / (2 * _LOCAL)  # of the weight that is spread evenly after each label
        # The mean square of the pinball loss of uniform p-values, for the rate of Gibbs and Candès.
        square = (1 - miss) ** 2 * miss**3 + miss**2 * (1 - miss) ** 3
        rate = math.sqrt(3 / _LOCAL * (math.log(n * _LOCAL) + 2) / square)
        covered: list[bool] = []
        for p_value in np.asarray(p_values, dtype=np.float64).tolist():
            covered.append(p_value > sum(weight * level for weight, level in zip(weights, levels, strict=True)))
            if n > 1:
                gaps = (p_value - level for level in levels)
                grown = [
                    weight * math.exp(-rate * (miss * gap - min(gap, 0.0)))
                    for weight, gap in zip(weights, gaps, strict=True)
                ]
                total = sum(grown)
                weights = [(1 - share) * weight / total + share / n for weight in grown]
            levels = [level + step * (miss - (p_value <= level)) for level, step in zip(levels, steps, strict=True)]
        return replace(self, levels=tuple(levels), weights=tuple(weights)), covered


@dataclass(frozen=True, eq=False)
class OnlineCoverage:
    """The labels that came in after the calibration, and the levels that they call for.

    Each `take_in` returns a new object, so that a failure loses nothing.

    Parameters
    ----------
    step : float in (0, 1], optional
        γ of ACI; without it, DtACI is used, which needs none. See `LevelTracker`.

    Attributes
    ----------
    n_labels : int
        Labels so far.
    p_values : array
        Of the latest labels.
    last_time : float or None
        The time of the latest label, if times are given.

    Examples
    --------
    >>> import numpy as np
    >>> online = OnlineCoverage().take_in(np.random.default_rng(0).uniform(size=1000))
    >>> bool(0.87 < online.compute_rolling_coverage(0.9).min() < 0.93)
    True
    """

    step: float | None = None
    n_labels: int = 0
    p_values: Floats = field(default_factory=lambda: np.empty(0))
    last_time: float | None = None
    trackers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step is not None:
            check_number("update", "step", self.step, above=0, below=1, closed="right")

    def take_in(self, p_values: Floats) -> OnlineCoverage:
        """Return the state after these labels, in the order in which they came; their p-values of `extend_p_values`."""
        trackers = {name: _advance(tracker, covered, p_values) for name, (tracker, covered) in self.trackers.items()}
        kept = np.concatenate([self.p_values, p_values])[-_N_KEPT:]
        return replace(self, n_labels=self.n_labels + len(p_values), p_values=kept, trackers=trackers)

    def check_time(self, time: Any, n_rows: int) -> OnlineCoverage:
        """Return the state with the time of the last of these labels.

        Parameters
        ----------
        time : array of shape (n_rows,) or None
            Numbers or dates; must not go backwards, neither here nor from the last call to this one.
        n_rows : int
        """
        return self if time is None or n_rows == 0 else replace(self, last_time=self._find_last_time(time, n_rows))

    def find_level(self, coverage: float) -> float:
        """Return the level of the next interval that is to have this coverage: 1 − coverage before the first label."""
        return self._follow(coverage)[0].level

    def find_covered(self, coverage: float) -> NDArray[np.bool_]:
        """Return whether the latest labels (up to 2,000) were inside the intervals that stood before them."""
        return self._follow(coverage)[1]

    def compute_rolling_coverage(self, coverage: float, *, n_rows: int = 500) -> Floats:
        """Return the share covered among each `n_rows` labels in a row, of the latest; of all, if they are fewer."""
        check_number("compute_rolling_coverage", "n_rows", n_rows, above=1, closed="left", whole=True)
        covered = self.find_covered(coverage)
        if len(covered) == 0:
            return np.empty(0)
        size = min(n_rows, len(covered))
        sums = np.concatenate([[0.0], np.cumsum(covered)])
        return (sums[size:] - sums[:-size]) / size

    def _follow(self, coverage: float) -> tuple[LevelTracker, NDArray[np.bool_]]:
        """Return the tracker of a coverage, which starts with the labels that were kept."""
        check_number("OnlineCoverage", "coverage", coverage, above=0, below=1)
        name = repr(float(coverage))
        if name not in self.trackers:
            start = LevelTracker(float(coverage), self.step)
            self.trackers[name] = _advance(start, np.empty(0, dtype=bool), self.p_values)
        return self.trackers[name]

    def _find_last_time(self, time: Any, n_rows: int) -> float:
        moments = _to_moments(time)
        if moments.shape != (n_rows,):
            raise InvalidInputError(
                f"Expected a time for each of the {n_rows} rows. Got the shape {moments.shape}. Pass one for each."
            )
        before = moments if self.last_time is None else np.concatenate([[self.last_time], moments])
        back = np.flatnonzero(np.diff(before) < 0)
        if len(back):
            row = int(back[0]) + (self.last_time is None)
            than = "the last label that was taken in" if row == 0 else "the row before"
            raise InvalidInputError(
                f"Expected labels in the order of time. Got row {row} with an earlier time than {than}. Sort the rows "
                "by time, and leave out those that were taken in before."
            )
        return float(moments[-1])


def _advance(
    tracker: LevelTracker, covered: NDArray[np.bool_], p_values: Floats
) -> tuple[LevelTracker, NDArray[np.bool_]]:
    moved, more = tracker.take_in(p_values)
    return moved, np.concatenate([covered, np.array(more, dtype=bool)])[-_N_KEPT:]


def _to_moments(time: Any) -> Floats:
    """Return times as floats: numbers as they are, dates as seconds since 1970; a missing one is an error."""
    values = np.asarray(time)
    if values.dtype.kind == "M":
        moments = np.where(np.isnat(values), np.nan, values.astype("datetime64[us]").astype(np.int64) / 1e6)
    elif values.dtype.kind in "iuf":
        moments = values.astype(np.float64)
    else:
        raise InvalidInputError(
            f"Expected times that are numbers or dates. Got {values.dtype}. Convert them, for example with "
            "pandas.to_datetime."
        )
    if not np.isfinite(moments).all():
        row = int(np.flatnonzero(~np.isfinite(moments))[0])
        raise InvalidInputError(f"Expected a time in every row. Got none in row {row}. Fill it in, or drop the row.")
    return moments
