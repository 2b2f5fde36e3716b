"""All that a FrozenHead keeps of its rows: sums for each head, and a few rows to see what scores look like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError
from onsphere.models.frozen.designs import LARGEST, Design
from onsphere.models.frozen.ridge import Head, Statistics, solve
from onsphere.models.frozen.sample import Sample
from onsphere.models.frozen.targets import Target
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["LARGEST_ANSWER", "Solution", "Sums", "differences"]

# At most so many rows are kept to see what scores look like on rows that a head has not seen; quantiles need no more.
_N_KEPT = 5000

# Rows whose columns are held in memory at once.
_N_BLOCK = 4096

# Directions have length 1, and targets are standardised: a larger answer says nothing, and its squares would overflow.
LARGEST_ANSWER = 1e100


@dataclass(frozen=True, eq=False)
class Solution:
    """The heads of all rows, and what they say about rows that they have not seen.

    Attributes
    ----------
    target : Target
    heads : dict of str to Head
    reach : dict of str to float
        For each head, the length that directions of ordinary rows stay below.
    center, spread : dicts of str to float
        The median of each head's score, and the distance from there to the 90 % quantile.
    value_head : str
        The head that errs least.
    """

    target: Target
    heads: dict[str, Head]
    reach: dict[str, float]
    center: dict[str, float]
    spread: dict[str, float]
    value_head: str

    def value_outputs(self, X: Floats) -> SphericalOutput:
        """What the head that gives labels or values says."""
        return self._outputs(self.value_head, X)

    def outputs(self, X: Floats) -> dict[str, SphericalOutput]:
        """What each head says."""
        return {name: self._outputs(name, X) for name in self.heads}

    def _outputs(self, name: str, X: Floats) -> SphericalOutput:
        """NaN about rows so far away that numbers cannot say it."""
        with np.errstate(over="ignore", invalid="ignore"):
            table = _outputs_of(self.heads[name], X)
            table[~(np.abs(table).max(axis=1) < LARGEST_ANSWER)] = np.nan
        return self.target.read(table)

    def scores(self, every: dict[str, SphericalOutput]) -> dict[str, Floats]:
        """The score of each row by each head; infinite where the head had nothing to say."""
        found = {name: self.target.score(outputs, self.reach[name]) for name, outputs in every.items()}
        return {name: np.where(np.isnan(score), np.inf, score) for name, score in found.items()}

    def judged(self, X: Floats) -> tuple[SphericalOutput, Floats]:
        """What the head that gives values says, and the score: the only head's, or the sum of all on one scale."""
        every = self.outputs(X)
        parts = self.scores(every)
        if len(parts) > 1:
            parts = {name: (part - self.center[name]) / self.spread[name] for name, part in parts.items()}
        return every[self.value_head], np.sum(list(parts.values()), axis=0)


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over rows, which can be added.

    Attributes
    ----------
    designs : dict of str to Design
        What each head makes of the features.
    seed : int
        Decides which rows are kept.
    n_rows : int
        All rows, the kept ones among them.
    statistics : dict of str to Statistics
        Of the rows that are not kept.
    kept : Sample
    """

    designs: dict[str, Design]
    seed: int
    n_rows: int
    statistics: dict[str, Statistics]
    kept: Sample

    @classmethod
    def empty(cls, designs: dict[str, Design], seed: int, n_features: int, n_targets: int) -> Sums:
        """Of no rows."""
        statistics = {name: Statistics.empty(design.n_columns, n_targets) for name, design in designs.items()}
        return cls(designs, seed, 0, statistics, Sample.of(np.empty((0, n_features)), np.empty((0, n_targets)), seed))

    def emptied(self) -> Sums:
        """The same, of no rows."""
        return self.empty(self.designs, self.seed, self.kept.X.shape[1], self.kept.targets.shape[1])

    @property
    def identity(self) -> dict[str, Any]:
        """What two sums must share for their sum to mean something."""
        columns = {f"columns of the {name} head": list(vars(design).values()) for name, design in self.designs.items()}
        return {"kind": " and ".join(self.designs), **columns, "draw of rows": self.seed}

    def with_rows(self, X: Floats, targets: Floats) -> Sums:
        """With these rows as well; nothing is taken of rows whose sums would overflow and spoil all others."""
        _check_size("features", X, min(design.largest_feature for design in self.designs.values()))
        _check_size("standardised targets", targets, LARGEST)
        return self._with(self.statistics, Sample.of(X, targets, self.seed), len(X))

    def __add__(self, other: Sums) -> Sums:
        statistics = {name: value + other.statistics[name] for name, value in self.statistics.items()}
        return self._with(statistics, other.kept, other.n_rows)

    def _with(self, statistics: dict[str, Statistics], more: Sample, n_more: int) -> Sums:
        """Keep as many rows as there is room for, and sum the others up."""
        rows = self.kept + more
        summed = {name: value + self._of_rows(name, rows[_N_KEPT:]) for name, value in statistics.items()}
        return replace(self, n_rows=self.n_rows + n_more, statistics=summed, kept=rows[:_N_KEPT])

    def _of_rows(self, name: str, rows: Sample) -> Statistics:
        design = self.designs[name]
        total = Statistics.empty(design.n_columns, rows.targets.shape[1])
        for block in _blocks(len(rows)):
            total += Statistics.of(design.columns(rows.X[block]), rows.targets[block])
        return total

    def solve(self, target: Target, ridge: float | str) -> Solution:
        """Fit each head without some of the kept rows, see what it says about them, and fit it with them."""
        n_held = min(len(self.kept), max(self.n_rows // 10, min(self.n_rows // 2, 20)))
        held, rest = self.kept[:n_held], self.kept[n_held:]
        found, error = Solution(target, {}, {}, {}, {}, ""), dict[str, float]()
        for name, design in self.designs.items():
            without = self.statistics[name] + self._of_rows(name, rest)
            found.heads[name] = solve(design, without + self._of_rows(name, held), ridge)
            trial = target.read(_outputs_of(solve(design, without, found.heads[name].ridge), held.X))
            found.reach[name] = target.reach(trial)
            found.center[name], found.spread[name] = _scale(target.score(trial, found.reach[name]))
            error[name] = target.error(trial, target.read(held.targets))
        return replace(found, value_head=min(error, key=lambda name: error[name]))


def _outputs_of(head: Head, X: Floats) -> Floats:
    """What a head says about any number of rows, a block at a time."""
    return np.concatenate([head.outputs(X[block]) for block in _blocks(len(X))])


def _blocks(n_rows: int) -> Iterator[slice]:
    return (slice(start, start + _N_BLOCK) for start in range(0, n_rows, _N_BLOCK))


def _scale(score: Floats) -> tuple[float, float]:
    """Median, and the distance from there to the 90 % quantile."""
    center, high = (float(value) for value in np.quantile(score, [0.5, 0.9]))
    # Scores that are all alike, as far as rounding tells, have no scale.
    return center, high - center if high - center > 1e-12 * np.abs(score).max() else 1.0


def _check_size(what: str, values: Floats, largest: float) -> None:
    reached = float(max(values.max(), -values.min()))
    if reached > largest:
        raise InvalidInputError(
            f"Expected {what} of at most {largest:g} in size, so that their squares can be added up. Got {reached:g}. "
            "Drop such rows, or divide all by a constant."
        )


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The names under which two identities hold different things."""
    return [name for name, value in ours.items() if name not in theirs or not _alike(value, theirs[name])]


def _alike(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list):
        return all(map(np.array_equal, ours, theirs))
    return bool(np.array_equal(ours, theirs))
