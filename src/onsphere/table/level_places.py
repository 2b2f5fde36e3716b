"""Place the values of a category among the targets, so that a category of many values stays a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats

__all__ = ["place_levels"]

_N_FOLDS = 5
_MOST_PLACES = 4  # numbers for a level
_SMALLEST_SHARE = 0.05  # of the spread of levels, that a number must tell
_STRONGEST, _WEAKEST = 1.0, 1_000.0  # how many rows the mean of all rows may count for


def place_levels(codes: NDArray[np.intp], y: Any) -> tuple[Floats, Floats]:
    """Return where each level lies, (levels, k), and where each row does by the rows of other folds, (n, k).

    A level lies at the mean target of its rows, with the mean of all rows counted as so many rows as make the best
    guess: the variance within levels over that between them. With several targets the few directions are kept in which
    levels differ most.

    Parameters
    ----------
    codes : array of shape (n,)
        The level of each row, from 0 on.
    y : array of shape (n,) or (n, c)

    Examples
    --------
    >>> import numpy as np
    >>> levels, rows = place_levels(np.repeat([0, 1], 50), np.repeat([-1.0, 1.0], 50) + np.tile([-0.1, 0.1], 50))
    >>> levels.shape, rows.shape, bool(abs(levels[0] - levels[1]) > 1.8)
    ((2, 1), (100, 1), True)
    """
    target = np.asarray(y, dtype=np.float64).reshape(len(codes), -1)
    spread = target.std(axis=0)
    target = (target - target.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    n_levels = int(codes.max()) + 1
    n_rows = np.bincount(codes, minlength=n_levels)
    sums = _add_up(codes, target, n_levels)
    within = np.sum((target - (sums / n_rows[:, None])[codes]) ** 2) / max(len(codes) - n_levels, 1)
    between = max(float(np.sum(target.var(axis=0))) - within, 1e-9)
    prior = float(np.clip(within / between, _STRONGEST, _WEAKEST))
    means = sums / (n_rows + prior)[:, None]
    axes = _find_axes(means, n_rows)
    folds = np.random.default_rng(0).permutation(len(codes)) % _N_FOLDS
    left_out = np.empty_like(target)
    for fold in range(_N_FOLDS):
        kept, held = folds != fold, folds == fold
        others = np.bincount(codes[kept], minlength=n_levels)
        left_out[held] = (_add_up(codes[kept], target[kept], n_levels) / (others + prior)[:, None])[codes[held]]
    return means @ axes, left_out @ axes


def _add_up(codes: NDArray[np.intp], target: Floats, n_levels: int) -> Floats:
    sums = [np.bincount(codes, column, minlength=n_levels) for column in target.T]
    return np.stack(sums, axis=1).astype(np.float64)


def _find_axes(means: Floats, n_rows: NDArray[np.intp]) -> Floats:
    """Return the directions in which levels differ most, (c, k)."""
    _, sizes, axes = np.linalg.svd(means * np.sqrt(n_rows)[:, None], full_matrices=False)
    share = sizes**2 / max(float(np.sum(sizes**2)), 1e-300)
    n_kept = max(1, min(_MOST_PLACES, int(np.sum(share >= _SMALLEST_SHARE))))
    return axes[:n_kept].T
