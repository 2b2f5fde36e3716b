"""Coverage over time: levels that follow the labels as they come in.

A label is taken in as a p-value: the share of calibration rows (with the row itself) whose error is at least as large.
An interval of level α holds the row if its p-value is above α. If intervals miss too often, the level falls and they
become wider; if they miss too rarely, it rises. Labels that come in together are all judged by the intervals that stood
before them: those are the ones that were given with the answers, however much the rows changed meanwhile.

Below 1/(n + 1), the smallest share that n calibration rows can have, an interval ends beyond the largest error among
them: `STRETCH` says how fast it grows, and `extend_p_values` goes on with p-values in the same way. So intervals stay
finite, and adapt to errors of any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_number
from onsphere.errors import InvalidInputError

__all__ = [
    "STRETCH",
    "LevelTracker",
    "OnlineCoverage",
    "compute_rolling_share",
    "extend_p_values",
    "find_ceiling",
    "find_stretch",
]

STRETCH = math.log(2) / 0.05  # beyond the largest error, an interval doubles for each .05 by which its level falls

_STEPS = tuple(0.001 * 2**power for power in range(8))
# The largest step for labels that come in together. Steps of .128 to .512 were tried on simulated trends, seasons and
# random walks: less is slow to follow a trend, more makes intervals too wide at times.
_LARGEST_STEP = 0.256
_LOCAL = 500  # labels over which the mixture of steps is to be as good as the best of them
_N_KEPT = 2_000  # p-values, for coverages that were not asked for before


def extend_p_values(scores: Floats, new: Floats, weights: Floats | None = None) -> Floats:
    """Return the share of calibration scores, with the new one itself, that are at least as large, for each new one.

    A score beyond the largest s gets log(1 + (score − s)/|s|)/STRETCH less than 1/(n + 1); for sizes of errors that is
    log(score/s).

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
    if largest != 0:
        shares[beyond] -= np.log1p((new[beyond] - largest) / abs(largest)) / STRETCH
    return np.maximum(shares, -1.0)  # a million times the largest; so that an infinite score has a p-value


def find_ceiling(scores: Floats, weights: Floats | None = None) -> float:
    """Return the level above which intervals or sets do not shrink any more: they hold the smallest score alone.

    Examples
    --------
    >>> find_ceiling(np.array([0.0, 0.0, 0.0, 0.5]))  # sets are never empty, so 3 of 4 rows are always held
    0.4
    """
    return float(extend_p_values(scores, np.array([np.nextafter(scores.min(), np.inf)]), weights)[0])


def compute_rolling_share(covered: Any, n_rows: int, *, n_first: int) -> Floats:
    """Return the share covered among the last `n_rows` labels, after each label from the `n_first`-th on.

    While there are fewer labels than `n_rows`, it is the share of all; if there are fewer than `n_first`, of all once.

    Examples
    --------
    >>> compute_rolling_share([True, False, True, True], 2, n_first=1)
    array([1. , 0.5, 0.5, 1. ])
    """
    if len(covered) == 0:
        return np.empty(0)
    sums = np.concatenate([[0.0], np.cumsum(covered)])
    ends = np.arange(min(n_first, len(covered)), len(covered) + 1)
    starts = np.maximum(ends - n_rows, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


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
    time. Labels that come in m at a time move it once, by the share of them that missed and a step of mγ, at most .256
    (or γ, if that is larger). With that step for γ, the same bound holds for the mean over any T such batches.

    Without a step it is DtACI (Gibbs and Candès, 2024), which runs eight steps side by side, from .001 to .128, and
    mixes their levels by how well each did of late. Over every stretch of L labels that come in one by one, its pinball
    loss exceeds that of the best sequence of levels in hindsight by at most the order of √(L·log L) + √(L·V), where V
    is how far that sequence moves. The bound is on the loss: coverage comes close to the one asked for, but has no
    bound of its own.

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

    def take_in(self, p_values: Any, ceiling: float = 1.0) -> tuple[Self, NDArray[np.bool_]]:
        """Return the tracker after labels that came in together, and whether each was inside the interval before them.

        Parameters
        ----------
        p_values : array of shape (n,)
        ceiling : float, default 1
            The level above which intervals or sets do not shrink any more, so that it would rise in vain. Where it is
            reached there may be fewer misses than asked for, but not more.
        """
        given = np.asarray(p_values, dtype=np.float64)
        miss = 1.0 - self.coverage
        steps, levels, weights = np.array(self._steps), np.array(self.levels), np.array(self.weights)
        gaps = given[:, None] - levels
        n = len(steps)
        if n > 1:
            share = 1.0 / (2 * _LOCAL)  # of the weight that is spread evenly after each label
            # The mean square of the pinball loss of uniform p-values, for the rate of Gibbs and Candès.
            square = (1 - miss) ** 2 * miss**3 + miss**2 * (1 - miss) ** 3
            rate = math.sqrt(3 / _LOCAL * (math.log(n * _LOCAL) + 2) / square)
            for gains in np.exp(-rate * (miss * gaps - np.minimum(gaps, 0.0))):
                grown = weights * gains
                weights = (1 - share) * grown / grown.sum() + share / n
        moves = np.minimum(steps * len(given), np.maximum(steps, _LARGEST_STEP)) * (miss - np.mean(gaps <= 0, axis=0))
        moved = replace(
            self, levels=tuple(np.minimum(levels + moves, ceiling).tolist()), weights=tuple(weights.tolist())
        )
        return moved, given > self.level


class _Labels(NamedTuple):
    """P-values and ceilings of labels, (n, K), and their parts and batches, (n,)."""

    p_values: Floats
    ceilings: Floats
    parts: NDArray[np.intp]
    batches: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class _Followed:
    """The levels for one coverage by one column of p-values, for each part, and which labels were covered."""

    column: int
    start: LevelTracker
    trackers: dict[str, LevelTracker] = field(default_factory=dict)
    covered: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))

    def get_tracker(self, part: int) -> LevelTracker:
        return self.trackers.get(str(part), self.start)

    def take_in(self, new: _Labels) -> _Followed:
        trackers, covered = dict(self.trackers), np.empty(len(new.parts), dtype=bool)
        ends = [*np.flatnonzero(np.diff(new.batches)) + 1, len(covered)]
        for start, end in pairwise([0, *ends]):
            for part in np.unique(new.parts[start:end]).tolist():
                rows = start + np.flatnonzero(new.parts[start:end] == part)
                tracker = trackers.get(str(part), self.start)
                ceiling = new.ceilings[rows[0], self.column]  # of all rows that are compared with the same ones
                trackers[str(part)], covered[rows] = tracker.take_in(new.p_values[rows, self.column], ceiling)
        return replace(self, trackers=trackers, covered=np.concatenate([self.covered, covered])[-_N_KEPT:])


@dataclass(frozen=True, eq=False)
class OnlineCoverage:
    """The labels that came in after the calibration, and the levels that they call for.

    Each `take_in` returns a new object, so that a failure loses nothing. It takes in labels that came in together, and
    judges them by the levels that stood before.

    Parameters
    ----------
    step : float in (0, 1], optional
        γ of ACI; without it, DtACI is used, which needs none. See `LevelTracker`.

    Attributes
    ----------
    n_labels : int
        Labels so far.
    p_values : array of shape (n, K)
        Of the latest labels: that of the size of the error and, for numbers, those of both sides of each output.
    ceilings : array of shape (n, K)
        See `LevelTracker.take_in`.
    parts : int array of shape (n,)
        The part of the calibration rows that each of these labels was compared with; each has levels of its own.
    batches : int array of shape (n,) or None
        The number of the `take_in` by which each of these labels came in; None in files of earlier versions, which took
        them for labels that came in one by one.
    last_time : float or None
        The time of the latest label, if times are given.
    has_dates : bool or None
        Whether times are dates and not numbers, once known.

    Examples
    --------
    >>> import numpy as np
    >>> online = OnlineCoverage()
    >>> for p_values in np.random.default_rng(0).uniform(size=(100, 10)):
    ...     online = online.take_in(p_values)
    >>> bool(0.87 < online.compute_rolling_coverage(0.9).min() < 0.93)
    True
    """

    step: float | None = None
    n_labels: int = 0
    p_values: Floats = field(default_factory=lambda: np.empty((0, 1)))
    ceilings: Floats = field(default_factory=lambda: np.empty((0, 1)))
    parts: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    last_time: float | None = None
    trackers: dict[str, Any] = field(default_factory=dict)
    has_dates: bool | None = None
    batches: NDArray[np.intp] | None = None

    def __post_init__(self) -> None:
        if self.step is not None:
            check_number("update", "step", self.step, above=0, below=1, closed="right")

    def take_in(self, p_values: Floats, *, ceilings: Any = 1.0, parts: Any = 0) -> OnlineCoverage:
        """Return the state after labels that came in together, in the order of time.

        Parameters
        ----------
        p_values : array of shape (m,) or (m, K)
            Those of `extend_p_values`.
        ceilings : float or array of shape (m, K), default 1
        parts : int or array of shape (m,), default 0
        """
        shown = p_values.reshape(len(p_values), -1)
        known = self._get_kept()
        batch = known.batches[-1] + 1 if self.n_labels else 0
        new = _Labels(
            shown,
            np.broadcast_to(ceilings, shown.shape),
            np.broadcast_to(parts, len(shown)),
            np.full(len(shown), batch, dtype=np.intp),
        )
        trackers = {name: followed.take_in(new) for name, followed in self.trackers.items()}
        kept = [np.concatenate(pair)[-_N_KEPT:] if self.n_labels else pair[1] for pair in zip(known, new, strict=True)]
        n_labels = self.n_labels + len(shown)
        return replace(self, n_labels=n_labels, trackers=trackers, **dict(zip(_Labels._fields, kept, strict=True)))

    def _get_kept(self) -> _Labels:
        batches = np.arange(len(self.parts)) if self.batches is None else self.batches
        return _Labels(self.p_values, self.ceilings, self.parts, batches)

    def check_time(self, time: Any, n_rows: int) -> OnlineCoverage:
        """Return the state with the time of the last of these labels.

        Parameters
        ----------
        time : array of shape (n_rows,) or None
            Numbers or dates; must not go backwards, neither here nor from the last call to this one.
        n_rows : int
        """
        if time is None or n_rows == 0:
            return self
        has_dates = np.asarray(time).dtype.kind in "MO"
        if self.has_dates is not None and has_dates != self.has_dates:
            kinds = ("dates", "numbers") if self.has_dates else ("numbers", "dates")
            raise InvalidInputError(
                f"Expected times that are {kinds[0]}, as before. Got {kinds[1]}, which cannot be compared with them. "
                f"Pass {kinds[0]}."
            )
        return replace(self, last_time=self._find_last_time(time, n_rows), has_dates=has_dates)

    def find_level(self, coverage: float, *, column: int = 0, part: int = 0) -> float:
        """Return the level of the next interval that is to have this coverage: 1 − coverage before the first label.

        Parameters
        ----------
        coverage : float in (0, 1)
        column : int, default 0
            Of the p-values.
        part : int, default 0
            The part of the calibration rows that is used.
        """
        return self._follow(coverage, column).get_tracker(part).level

    def find_covered(self, coverage: float) -> NDArray[np.bool_]:
        """Return whether the latest labels (up to 2,000) were inside the intervals that stood before them."""
        return self._follow(coverage, 0).covered

    def compute_rolling_coverage(self, coverage: float, *, n_rows: int = 500) -> Floats:
        """Return the share covered among each `n_rows` labels in a row, of the latest; of all, if they are fewer.

        Labels are compared with the interval that stood before they came in. If they come later than others of the same
        time, the interval that was given with the answer was an older one, and may have covered less.
        """
        check_number("compute_rolling_coverage", "n_rows", n_rows, above=1, closed="left", whole=True)
        return compute_rolling_share(self.find_covered(coverage), n_rows, n_first=n_rows)

    def _follow(self, coverage: float, column: int) -> _Followed:
        """Return the trackers of a coverage, which start with the labels that were kept."""
        check_number("OnlineCoverage", "coverage", coverage, above=0, below=1)
        name = f"{column}: {float(coverage)!r}"
        if name not in self.trackers:
            start = _Followed(column, LevelTracker(float(coverage), self.step))
            self.trackers[name] = start.take_in(self._get_kept()) if self.n_labels else start
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


def _to_moments(time: Any) -> Floats:
    """Return times as floats: numbers as they are, dates as seconds since 1970; a missing one is an error."""
    values = np.asarray(time)
    if values.dtype.kind == "O" and all(isinstance(each, datetime) for each in values.flat):  # with a zone, or without
        moments = np.array([_to_seconds(each) for each in values.flat]).reshape(values.shape)
    elif values.dtype.kind == "M":
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


def _to_seconds(moment: datetime) -> float:
    """Return the seconds since 1970, NaN if it is missing; without a zone, a moment counts as UTC."""
    if moment != moment:  # pandas' NaT
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
