"""Check the arrays and weights of the metrics, and average values within bins.

A weight counts rows: weight 3 is the row three times, weight 0 is the row left out.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onsphere._internal.validation import Floats, check_unmasked
from onsphere.errors import InvalidInputError

Weights = ArrayLike | None

# A name means the same in every metric, so its range is given once.
_LOWEST = {"error": 0.0, "confidence": 0.0, "sigma": 0.0, "probabilities": 0.0, "correct": 0.0, "weights": 0.0}
_HIGHEST = {"confidence": 1.0, "probabilities": 1.0, "correct": 1.0}


def check_floats(owner: str, name: str, values: ArrayLike, *, n_dims: tuple[int, ...] = (1,)) -> Floats:
    """Return finite numbers of an allowed shape, at least one, in the range that belongs to the name."""
    check_unmasked(name, values)
    try:
        raw = np.asarray(values)
        if raw.dtype.kind not in "biufO":
            raise TypeError
        array = raw.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"Expected numbers for {name!r} of {owner}. Got a {type(values).__name__} that cannot be turned into "
            "an array of them. Convert text, and give every row the same length."
        ) from None
    if array.ndim not in n_dims or array.size == 0:
        shapes = " or ".join("(n,)" if dims == 1 else "(n, columns)" for dims in n_dims)
        raise InvalidInputError(
            f"Expected {name!r} of {owner} to have shape {shapes} and at least one row. Got shape {array.shape}. "
            "Pass one entry per row."
        )
    finite = np.isfinite(array)
    if not finite.all():
        raise InvalidInputError(
            f"Expected finite numbers for {name!r} of {owner}. Got NaN or infinity in {np.sum(~finite)} of "
            f"{array.size} entries. Drop or fix those rows first."
        )
    check_range(owner, name, array, low=_LOWEST.get(name, -math.inf), high=_HIGHEST.get(name, math.inf))
    return array


def check_range(owner: str, name: str, array: Floats, *, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise if an entry lies outside [low, high]."""
    if array.min() < low or array.max() > high:
        raise InvalidInputError(
            f"Expected {name!r} of {owner} to lie in [{low:g}, {high:g}]. Got values from {array.min():g} to "
            f"{array.max():g}. Check the order of the arguments and the scale of the values."
        )


def check_same_shape(owner: str, **arrays: NDArray[np.generic]) -> None:
    """Raise if the arrays differ in shape; nothing is broadcast."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name!r} {array.shape}" for name, array in arrays.items())
        raise InvalidInputError(
            f"Expected arrays of one shape for {owner}. Got {shapes}. Nothing is broadcast: reshape them."
        )


def check_weights(owner: str, weights: Weights, n_rows: int) -> Floats:
    """Return one weight per row, not all zero; all are 1 if none were given."""
    if weights is None:
        return np.ones(n_rows)
    checked = check_floats(owner, "weights", weights)
    if len(checked) != n_rows or not checked.any():
        raise InvalidInputError(
            f"Expected one weight for each of the {n_rows} rows of {owner}, at least one of them above zero. "
            f"Got {len(checked)} with the sum {checked.sum():g}. Leave the weights out to count all rows equally."
        )
    return checked


def check_rows(owner: str, weights: Weights, *, outputs: bool = False, **arrays: ArrayLike) -> list[Floats]:
    """Return the arrays in order, all of one shape, and the weights last, without the rows of weight zero.

    With `outputs`, arrays may be (n,) or (n, D) and come back as (n, D).
    """
    n_dims = (1, 2) if outputs else (1,)
    checked = {name: check_floats(owner, name, values, n_dims=n_dims) for name, values in arrays.items()}
    check_same_shape(owner, **checked)
    rows = list(checked.values())
    counted = check_weights(owner, weights, len(rows[0]))
    if outputs:
        rows = [row.reshape(len(row), -1) for row in rows]
    # A row of weight zero must not stretch the bins.
    keep = counted > 0
    return [row[keep] for row in (*rows, counted)]


def average_rows(values: Floats | NDArray[np.bool_], weights: Floats) -> float:
    """Return the weighted mean over the rows, after the plain mean over the outputs if there are several."""
    per_row = values if values.ndim == 1 else values.mean(axis=1)
    return float(np.average(per_row, weights=weights))


def bin_by_width(values: Floats, low: float, high: float, n_bins: int) -> NDArray[np.intp]:
    """Return the bin of each value: [edge, next edge), and the last bin includes its upper edge."""
    return np.searchsorted(np.linspace(low, high, n_bins + 1)[1:-1], values, side="right")


def bin_by_quantile(values: Floats, weights: Floats, n_bins: int) -> NDArray[np.intp]:
    """Return the bin of each value, by the share of the weight strictly below it, so that ties stay together."""
    _, group = np.unique(values, return_inverse=True)
    (mass,) = average_bins(group, weights)
    below = np.concatenate(([0.0], np.cumsum(mass)[:-1]))
    return (n_bins * below / mass.sum()).astype(np.intp)[group]


def average_bins(bins: NDArray[np.intp], weights: Floats, *values: Floats) -> list[Floats]:
    """Return the weight of each non-empty bin, in order, and the weighted mean of each of the values there."""
    mass = np.bincount(bins, weights).astype(np.float64)
    filled = mass > 0
    sums = [np.bincount(bins, weights * each) for each in values]
    return [mass[filled], *(each[filled] / mass[filled] for each in sums)]


def pick_evenly(values: Floats, most: int) -> NDArray[np.intp]:
    """Return at most `most` row numbers, in the order of their values and evenly spread over that order."""
    order = np.argsort(values, kind="stable")
    return order if len(order) <= most else order[np.linspace(0, len(order) - 1, most).astype(np.intp)]
