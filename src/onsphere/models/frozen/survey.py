"""Facts that a FrozenHead needs of all its rows before the first sum; like the sums, they can be added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.row_hashes import hash_numbers
from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError
from onsphere.models.frozen.ridge import Design, Kernel, Linear, Quadratic
from onsphere.sphere import Lift

__all__ = ["Moments", "Survey"]

# Binary digits that are kept of the centre and scale of a target: the last ones depend on the order of a sum, and with
# them every hash of a standardised target would.
_N_DIGITS = 26


@dataclass(frozen=True, eq=False)
class Moments:
    """The mean and the standard deviation of each output over some rows, which can be added.

    Attributes
    ----------
    n_rows : int
    center, spread, largest : arrays of shape (D,)
        The last is the largest size, beside which rounding errors are small.
    is_flat : bool
        Whether the target came without columns.
    """

    n_rows: int
    center: Floats
    spread: Floats
    largest: Floats
    is_flat: bool

    @classmethod
    def from_target(cls, y: Floats) -> Moments:
        """Return those of a target of shape (n,) or (n, D)."""
        found = Lift().fit(y)
        largest = np.abs(y).max(axis=0, keepdims=y.ndim == 1)
        return cls(len(y), found.center_, found.spread_, largest, y.ndim == 1)

    def __add__(self, other: Moments) -> Moments:
        n_rows = self.n_rows + other.n_rows
        ours, theirs = self.n_rows / n_rows, other.n_rows / n_rows
        # By hypot, because squares of huge targets would overflow.
        within = np.hypot(ours**0.5 * self.spread, theirs**0.5 * other.spread)
        spread = np.hypot(within, (ours * theirs) ** 0.5 * (self.center - other.center))
        center = ours * self.center + theirs * other.center
        return Moments(n_rows, center, spread, np.maximum(self.largest, other.largest), self.is_flat)

    def make_embedding(self) -> Lift:
        """Return the embedding of the target, the same in whatever order the rows came."""
        is_constant = self.spread <= 1e-12 * self.largest
        step = np.ldexp(1.0, np.frexp(np.where(is_constant, 1.0, self.spread))[1] - _N_DIGITS)
        found = Lift()
        found.n_outputs_ = len(self.center)
        with np.errstate(over="ignore"):
            steps = self.center / step
        found.center_ = np.where(is_constant | ~np.isfinite(steps), self.center, np.round(steps) * step)
        found.spread_ = np.where(is_constant, 0.0, np.round(self.spread / step) * step)
        found.scale_ = np.where(is_constant, 1.0, found.spread_)
        return found


@dataclass(frozen=True, eq=False)
class Survey:
    """Centre and scale of the target or its classes, the mean of the features, and the rows to take as landmarks.

    Attributes
    ----------
    seed : int
        Decides which rows are landmarks.
    n_rows, n_landmarks : int
        The rows seen, and how many landmarks there are at most.
    mean : array of shape (3p,)
        Of what `Quadratic` makes of the p features that the heads see.
    codes, landmarks : arrays of shapes (m,) and (m, p)
        The different rows with the smallest hashes, and these.
    target : Moments or array
        For regression, or the classes.
    """

    seed: int
    n_rows: int
    n_landmarks: int
    mean: Floats
    codes: NDArray[np.uint64]
    landmarks: Floats
    target: Moments | NDArray[Any]

    @classmethod
    def from_rows(cls, X: Floats, target: Moments | NDArray[Any], seed: int, n_landmarks: int) -> Survey:
        """Return the survey of features (n, p) that the heads see."""
        mean = Quadratic.from_rows(X).origin
        return cls(seed, len(X), n_landmarks, mean, *_draw(hash_numbers(X, seed), X, n_landmarks), target)

    def __add__(self, other: Survey) -> Survey:
        n_rows = self.n_rows + other.n_rows
        mean = self.n_rows / n_rows * self.mean + other.n_rows / n_rows * other.mean
        codes = np.concatenate([self.codes, other.codes])
        drawn = _draw(codes, np.concatenate([self.landmarks, other.landmarks]), self.n_landmarks)
        return Survey(self.seed, n_rows, self.n_landmarks, mean, *drawn, _join(self.target, other.target))

    def make_design(self, name: str, bandwidth: float) -> Design:
        """Return what the head of this name makes of the features."""
        if name == "kernel":
            return Kernel.from_landmarks(self.landmarks, bandwidth)
        return Quadratic(self.mean) if name == "quadratic" else Linear(self.mean[: len(self.mean) // 3])


def _draw(codes: NDArray[np.uint64], X: Floats, n_most: int) -> tuple[NDArray[np.uint64], Floats]:
    different, places = np.unique(codes, return_index=True)
    return different[:n_most], X[places[:n_most]]


def _join(target: Any, other: Any) -> Any:
    if isinstance(target, Moments) != isinstance(other, Moments):
        raise InvalidInputError(
            "Expected the same kind of target in all rows. Got numbers in some and classes in others. Set task= of "
            "the FrozenHead."
        )
    return target + other if isinstance(target, Moments) else np.unique(np.concatenate([target, other]))
