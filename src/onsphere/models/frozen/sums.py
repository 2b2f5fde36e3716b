"""Everything a FrozenHead keeps of its rows: sums for each head, and a few rows to see what scores look like."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from onsphere._internal.row_hashes import hash_numbers
from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError
from onsphere.models.frames import Frames
from onsphere.models.frozen.blocks import fit_block_frame, place_blocks, take_last_block
from onsphere.models.frozen.ridge import LARGEST, Design, Head, Statistics, leave_out, solve
from onsphere.models.frozen.targets import Target
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = ["LARGEST_OUTPUT", "Sample", "Solution", "Sums", "find_scale", "join_scores", "list_differences"]

# Rows kept, at most, to see what scores look like on rows that a head has not seen; quantiles need no more.
_N_KEPT = 5000

# Rows whose columns are held in memory at once.
_N_BLOCK = 4096

# What trees learn from is rounded to this share of the spread of a target: they would turn the last digits of sums,
# which depend on the order of rows, into other trees.
_STEP = 2.0**-20

# Directions have length 1, and targets are standardised: a larger output means nothing, and its squares would overflow.
LARGEST_OUTPUT = 1e100


@dataclass(frozen=True, eq=False)
class Solution:
    """The heads fitted on all rows, and the scale of their scores on rows that they have not seen.

    Attributes
    ----------
    target : Target
    heads : dict of str to Head
    reach : dict of str to float
        For each head, the length that directions of ordinary rows stay below.
    center, spread : dicts of str to float
        The median of each head's score, and the distance from there to the 90 % quantile; under "input", of the
        shortfall.
    value_head : str
        The head that errs least.
    widths : tuple of int
        Features of each layer; the heads see the last one.
    frames : Frames or None
        What was fitted beside the target frame.
    n_outputs : int
        Columns behind those of the layers that are the outputs of a network's own head; 0 if the heads were fitted.
    """

    target: Target
    heads: dict[str, Head]
    reach: dict[str, float]
    center: dict[str, float]
    spread: dict[str, float]
    value_head: str
    widths: tuple[int, ...] = ()  # solutions of older files have none of these
    frames: Frames | None = None
    n_outputs: int = 0

    def place(self, X: Array) -> Array:
        """Return the rows as the frames see them."""
        return place_blocks(X, self.widths)

    def take_last(self, X: Array) -> Array:
        """Return the columns that the heads see."""
        return X[:, -self.n_outputs :] if self.n_outputs else take_last_block(X, self.widths)

    def join(self, outputs: dict[str, SphericalOutput], missed: Floats | None) -> Floats:
        """Return the score of each row by all heads and the input frame."""
        return join_scores(self.score(outputs), missed, self.center, self.spread)

    def predict_per_head(self, X: Floats) -> dict[str, SphericalOutput]:
        """Return what each head predicts; NaN for rows so far away that the numbers would overflow."""
        outputs: dict[str, SphericalOutput] = {}
        last = self.take_last(X)
        for name, head in self.heads.items():
            with np.errstate(over="ignore", invalid="ignore"):
                table = _predict_in_blocks(head, last)
                table[~(np.abs(table).max(axis=1) < LARGEST_OUTPUT)] = np.nan
            outputs[name] = self.target.read_table(table)
        return outputs

    def score(self, outputs: dict[str, SphericalOutput]) -> dict[str, Floats]:
        """Return the score of each row by each head; infinite if the head predicts NaN."""
        found = {name: self.target.score(output, self.reach[name]) for name, output in outputs.items()}
        return {name: np.where(np.isnan(score), np.inf, score) for name, score in found.items()}


def join_scores(
    parts: dict[str, Array], missed: Array | None, center: dict[str, float], spread: dict[str, float]
) -> Array:
    """Return the only score, or the sum of all on one scale; numpy, torch, or arrays of a graph.

    A row that the landmarks reach better than most is not surer of its class for that, so a shortfall below the median
    counts as nothing: novelty adds to the uncertainty, and never takes from it.

    Examples
    --------
    >>> import numpy as np
    >>> scale = {"center": {"linear": 1.0, "input": 0.1}, "spread": {"linear": 2.0, "input": 0.1}}
    >>> join_scores({"linear": np.array([1.0, 1.0, 5.0])}, np.array([0.0, 0.3, 0.3]), **scale)
    array([0., 2., 4.])
    """
    if len(parts) == 1 and missed is None:
        return next(iter(parts.values()))
    scaled = [(part - center[name]) / spread[name] for name, part in parts.items()]
    if missed is not None:
        xp = array_namespace(missed)
        scaled.append(xp.clip((missed - center["input"]) / spread["input"], 0.0, None))
    return reduce(operator.add, scaled)


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn by what they hold: the same ones in any order, in any batches, on any machine.

    The rows with the smallest hashes are the sample; two samples are joined by keeping the smallest of both.

    Attributes
    ----------
    codes : array of shape (n,)
    X : array of shape (n, p)
    targets : array of shape (n, t)
    """

    codes: NDArray[np.uint64]
    X: Floats
    targets: Floats

    @classmethod
    def from_rows(cls, X: Floats, targets: Floats, seed: int) -> Sample:
        """Return a sample of all these rows, in the order of their hashes."""
        return cls(hash_numbers(np.hstack([X, targets]), seed), X, targets)._sort()

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, part: slice) -> Sample:
        return Sample(self.codes[part], self.X[part], self.targets[part])

    def __add__(self, other: Sample) -> Sample:
        joined = {name: np.concatenate([value, getattr(other, name)]) for name, value in vars(self).items()}
        return Sample(**joined)._sort()

    def _sort(self) -> Sample:
        order = np.argsort(self.codes, kind="stable")
        return Sample(self.codes[order], self.X[order], self.targets[order])


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
    widths : tuple of int
        Features of each layer; the heads see the last one.
    frames : tuple of str
        What to fit beside the target frame.
    """

    designs: dict[str, Design]
    seed: int
    n_rows: int
    statistics: dict[str, Statistics]
    kept: Sample
    widths: tuple[int, ...] = ()  # sums of older files have neither
    frames: tuple[str, ...] = ()

    @classmethod
    def empty(
        cls,
        designs: dict[str, Design],
        seed: int,
        *,
        n_features: int,
        n_targets: int,
        widths: tuple[int, ...],
        frames: tuple[str, ...],
    ) -> Sums:
        """Return sums over no rows."""
        statistics = {name: Statistics.empty(design.n_columns, n_targets) for name, design in designs.items()}
        kept = Sample.from_rows(np.empty((0, n_features)), np.empty((0, n_targets)), seed)
        return cls(designs, seed, 0, statistics, kept, widths, frames)

    def copy_empty(self) -> Sums:
        """Return the same sums over no rows."""
        sizes = {"n_features": self.kept.X.shape[1], "n_targets": self.kept.targets.shape[1]}
        return self.empty(self.designs, self.seed, **sizes, widths=self.widths, frames=self.frames)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything two sums must share before they can be added."""
        columns = {f"columns of the {name} head": list(vars(design).values()) for name, design in self.designs.items()}
        shared = {"draw of rows": self.seed, "layers": self.widths, "frames": self.frames}
        return {"kind": " and ".join(self.designs), **columns, **shared}

    def add_rows(self, X: Floats, targets: Floats) -> Sums:
        """Return the sums with these rows added; raise an error for rows whose sums would overflow."""
        last = take_last_block(X, self.widths)
        _check_size("features", last, min(design.largest_feature for design in self.designs.values()))
        _check_size("standardised targets", targets, LARGEST)
        return self._add(self.statistics, Sample.from_rows(X, targets, self.seed), len(X))

    def __add__(self, other: Sums) -> Sums:
        statistics = {name: value + other.statistics[name] for name, value in self.statistics.items()}
        return self._add(statistics, other.kept, other.n_rows)

    def _add(self, statistics: dict[str, Statistics], more: Sample, n_more: int) -> Sums:
        """Keep as many rows as there is room for, and sum the others."""
        rows = self.kept + more
        summed = {name: value + self._sum_rows(name, rows[_N_KEPT:]) for name, value in statistics.items()}
        return replace(self, n_rows=self.n_rows + n_more, statistics=summed, kept=rows[:_N_KEPT])

    def _sum_rows(self, name: str, rows: Sample) -> Statistics:
        design, last = self.designs[name], take_last_block(rows.X, self.widths)
        total = Statistics.empty(design.n_columns, rows.targets.shape[1])
        for block in _blocks(len(rows)):
            total += Statistics.from_rows(design.make_columns(last[block]), rows.targets[block])
        return total

    def solve(self, target: Target, ridge: float | str) -> Solution:
        """Fit each head without some of the kept rows, measure it on them, and fit it again with them."""
        n_held = min(len(self.kept), max(self.n_rows // 10, min(self.n_rows // 2, 20)))
        held, rest = self.kept[:n_held], self.kept[n_held:]
        last = take_last_block(held.X, self.widths)
        solution, error = Solution(target, {}, {}, {}, {}, "", self.widths), dict[str, float]()
        for name, design in self.designs.items():
            without = self.statistics[name] + self._sum_rows(name, rest)
            solution.heads[name] = solve(design, without + self._sum_rows(name, held), ridge)
            trial = target.read_table(_predict_in_blocks(solve(design, without, solution.heads[name].ridge), last))
            solution.reach[name] = target.find_reach(trial)
            solution.center[name], solution.spread[name] = find_scale(target.score(trial, solution.reach[name]))
            error[name] = target.compute_error(trial, target.read_table(held.targets))
        solution = replace(solution, value_head=min(error, key=lambda name: error[name]))
        return replace(solution, frames=self._fit_frames(solution)) if self.frames else solution

    def _fit_frames(self, solution: Solution) -> Frames:
        """Fit the frames that are asked for on the kept rows, and add the scale of the shortfall to the solution."""
        input_frame = error_frame = missed = None
        if "input" in self.frames:
            input_frame, missed = fit_block_frame(self.kept.X, self.widths)
            solution.center["input"], solution.spread["input"] = find_scale(missed)
        if "error" in self.frames:
            places = solution.place(self.kept.X)
            fitted = _predict_in_blocks(solution.heads[solution.value_head], solution.take_last(self.kept.X))
            error_frame = solution.target.fit_noise(
                _round(fitted), lambda: _round(self._leave_out(solution)), self.kept.targets, places, missed
            )
        return Frames(0, input_frame, error_frame)

    def _leave_out(self, solution: Solution) -> Floats:
        """Return what the value head predicts for each kept row if it is fitted on all others."""
        name, last = solution.value_head, take_last_block(self.kept.X, self.widths)
        statistics = self.statistics[name] + self._sum_rows(name, self.kept)
        return leave_out(solution.heads[name], statistics, last, self.kept.targets)


def _predict_in_blocks(head: Head, X: Floats) -> Floats:
    """Return what a head predicts for any number of rows, a block at a time."""
    return np.concatenate([head.predict(X[block]) for block in _blocks(len(X))])


def _round(table: Floats) -> Floats:
    return np.round(table / _STEP) * _STEP


def _blocks(n_rows: int) -> Iterator[slice]:
    return (slice(start, start + _N_BLOCK) for start in range(0, n_rows, _N_BLOCK))


def find_scale(score: Floats) -> tuple[float, float]:
    """Return the median, and the distance from there to the 90 % quantile."""
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


def list_differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return the names whose values differ between two identities."""
    return [name for name, value in ours.items() if name not in theirs or not _is_equal(value, theirs[name])]


def _is_equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list):
        return all(map(np.array_equal, ours, theirs))
    return bool(np.array_equal(ours, theirs))
