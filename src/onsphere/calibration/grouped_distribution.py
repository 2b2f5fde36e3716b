"""Distributions of rows of several groups, each from the calibration rows of its own group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onsphere._internal.validation import Floats, make_random_state
from onsphere.calibration.distribution import PredictiveDistribution
from onsphere.calibration.shape import Shape
from onsphere.calibration.zeros import ZeroShape
from onsphere.sphere.domain import Domain

__all__ = ["GroupedDistribution"]


@dataclass(frozen=True, eq=False)
class GroupedDistribution:
    """The distribution of the target of each row of a model that was calibrated by groups.

    It has the methods of `PredictiveDistribution`.

    Attributes
    ----------
    whole : PredictiveDistribution
        Of all rows, from all calibration rows.
    parts : int array of shape (n,)
        The part of the calibration rows that each row uses.
    """

    whole: PredictiveDistribution
    parts: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def is_flat(self) -> bool:
        """Whether y had one dimension."""
        return self.whole.is_flat

    @property
    def domain(self) -> Domain:
        """The values that the target can have."""
        return self.whole.domain

    @property
    def shape(self) -> Shape | ZeroShape | None:
        """The shape of the errors of left-out rows."""
        return self.whole.shape

    def quantiles(self, q: ArrayLike) -> Floats:
        """Return the quantiles at levels q, shape (n, Q) or (n, D, Q); they never cross."""
        return self._collect(lambda part, rows: part.quantiles(q))

    def interval(self, coverage: float = 0.9, *, tails: str = "symmetric", simultaneous: bool = True) -> Floats:
        """Return intervals that hold the target with probability `coverage` in each group, (n, 2) or (n, D, 2)."""
        return self._collect(lambda part, rows: part.interval(coverage, tails=tails, simultaneous=simultaneous))

    def median(self) -> Floats:
        """Return the median of each row, in the shape of the target."""
        return self._collect(lambda part, rows: part.median())

    def mean(self) -> Floats:
        """Return the mean of each row, in the shape of the target."""
        return self._collect(lambda part, rows: part.mean())

    def cdf(self, y: ArrayLike) -> Floats:
        """Return the probability that the target is at or below y, in the shape of the target."""
        target = self.whole.check_target("cdf", y)
        return self._collect(lambda part, rows: part.cdf(target[rows]))

    def pdf(self, y: ArrayLike) -> Floats:
        """Return the density at y, smoothed, in the shape of the target; for whole numbers the probability of y."""
        target = self.whole.check_target("pdf", y)
        return self._collect(lambda part, rows: part.pdf(target[rows]))

    def pit(self, y: ArrayLike, *, random_state: int | np.random.RandomState | None = None) -> Floats:
        """Return the probability integral transform of true targets y, in their shape."""
        target = self.whole.check_target("pit", y)
        generator = None if random_state is None else make_random_state("pit", random_state)
        return self._collect(lambda part, rows: part.pit(target[rows], random_state=generator))

    def crps(self, y: ArrayLike) -> Floats:
        """Return the continuous ranked probability score of each true target, in its shape."""
        target = self.whole.check_target("crps", y)
        return self._collect(lambda part, rows: part.crps(target[rows]))

    def sample(self, n: int = 1, *, random_state: int | np.random.RandomState | None = None) -> Floats:
        """Draw n targets for each row, shape (n, m) or (n, m, D) for m rows."""
        generator = make_random_state("sample", random_state)

        def draw(part: PredictiveDistribution, rows: Any) -> Floats:
            return np.moveaxis(part.sample(n, random_state=generator), 0, 1)

        return np.moveaxis(self._collect(draw), 1, 0)

    @cached_property
    def _members(self) -> list[tuple[Any, PredictiveDistribution]]:
        """The rows that share calibration rows, with their distributions."""
        known = self.whole.calibration.split(self.parts)
        return [(rows, replace(self.whole.take(rows), calibration=calibration)) for rows, calibration in known]

    def _collect(self, answer: Callable[[PredictiveDistribution, Any], Floats]) -> Floats:
        """Return the answers for all rows, in their order."""
        found = [answer(part, rows) for rows, part in self._members]
        joined = np.empty((len(self), *found[0].shape[1:]))
        for (rows, _), each in zip(self._members, found, strict=True):
            joined[rows] = each
        return joined
