"""Magnitude and direction: the arithmetic under everything else.

Pure functions on arrays of any library that array-api-compat knows (numpy and torch are tested), differentiable
where the library is. A direction has shape (..., k), a magnitude the same shape without the last axis; nothing
is broadcast.

Two rules hold everywhere:

- A zero vector has magnitude 0 and the direction (1, ..., 1)/√k, which favours no output.
- Norms are taken after division by the largest entry, so that neither subnormal nor huge vectors lose digits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from array_api_compat import array_namespace

from onsphere._internal.validation import check_direction_and_magnitude

__all__ = [
    "SphericalOutput",
    "anchor_residual",
    "isotropic_constant",
    "join",
    "lift_constant",
    "norm",
    "norm_violation",
    "sigma",
    "split",
    "uncertainty",
]

Array = Any  # an array of numpy, torch or another library of the array API


class SphericalOutput(NamedTuple):
    """A point that a model predicts near the sphere.

    Attributes
    ----------
    direction : array of shape (n, k)
        The direction, learned as a conditional mean and therefore seldom of norm 1.
    magnitude : array of shape (n,)
        The magnitude R.
    mean : array of shape (n, D) or None
        The standardised target itself, where the model carries it as a further output.
    """

    direction: Array
    magnitude: Array
    mean: Array | None = None


def norm(vectors: Array) -> Array:
    """Return the Euclidean norm over the last axis, exact for subnormal and huge entries and with gradient 0 at zero.

    Examples
    --------
    >>> import numpy as np
    >>> norm(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([5., 0.])
    """
    return split(vectors)[1]


def split(vectors: Array) -> tuple[Array, Array]:
    """Take vectors apart into direction (norm 1) and magnitude.

    Parameters
    ----------
    vectors : array of shape (..., k)

    Returns
    -------
    direction : array of shape (..., k)
    magnitude : array of shape (...)

    Examples
    --------
    >>> import numpy as np
    >>> direction, magnitude = split(np.array([[3.0, 4.0], [0.0, 0.0]]))
    >>> direction.round(3)
    array([[0.6  , 0.8  ],
           [0.707, 0.707]])
    >>> magnitude
    array([5., 0.])
    """
    xp = array_namespace(vectors)
    largest = xp.max(xp.abs(vectors), axis=-1, keepdims=True)
    is_zero = largest == 0
    one = xp.ones_like(largest)
    # Ones replace zero vectors before any root is taken: the gradient of √0 would be NaN.
    shrunk = xp.where(is_zero, xp.ones_like(vectors), vectors / xp.where(is_zero, one, largest))
    length = xp.sqrt(xp.sum(shrunk * shrunk, axis=-1, keepdims=True))
    magnitude = xp.where(is_zero, xp.zeros_like(largest), largest * length)[..., 0]
    return shrunk / length, magnitude


def join(direction: Array, magnitude: Array) -> Array:
    """Put direction and magnitude together again: R·d.

    Examples
    --------
    >>> import numpy as np
    >>> join(np.array([[0.6, 0.8]]), np.array([5.0]))
    array([[3., 4.]])
    """
    check_direction_and_magnitude(direction, magnitude)
    return direction * magnitude[..., None]


def norm_violation(direction: Array) -> Array:
    """Return how far a direction lies off the unit sphere, on either side: | ‖d‖ − 1 |.

    Examples
    --------
    >>> import numpy as np
    >>> norm_violation(np.array([[0.3, 0.4], [0.0, 1.5]]))
    array([0.5, 0.5])
    """
    xp = array_namespace(direction)
    return xp.abs(norm(direction) - 1.0)


def uncertainty(direction: Array, magnitude: Array) -> Array:
    """Return the score of the paper: u = |R|·| ‖d‖ − 1 |.

    Proposition 1: the error of R·d is at least u·(1 − ε), with ε = |R − R_true| / (|R|·‖d − d_true‖). The bars
    around R matter only for a model that extrapolates to a magnitude below zero.

    Examples
    --------
    >>> import numpy as np
    >>> uncertainty(np.array([[0.3, 0.4]]), np.array([4.0]))
    array([2.])
    """
    check_direction_and_magnitude(direction, magnitude)
    xp = array_namespace(direction, magnitude)
    return xp.abs(magnitude) * norm_violation(direction)


def anchor_residual(direction: Array, magnitude: Array, anchor: float) -> Array:
    """Return the error of a lifted target that can be seen without a label: a = |R·d_{D+1} − c|.

    Examples
    --------
    >>> import numpy as np
    >>> anchor_residual(np.array([[0.0, 1.0]]), np.array([4.0]), 3.0)
    array([1.])
    """
    xp = array_namespace(direction, magnitude)
    return xp.abs(magnitude * direction[..., -1] - anchor)


def isotropic_constant(direction: Array) -> Array:
    """Return the k of Proposition 2 for a target that fills its k-dimensional space: k − 1, one value per row.

    Examples
    --------
    >>> import numpy as np
    >>> isotropic_constant(np.ones((2, 5)))
    array([4., 4.])
    """
    xp = array_namespace(direction)
    return xp.full_like(direction[..., 0], float(direction.shape[-1] - 1))


def lift_constant(direction: Array) -> Array:
    """Return the k of a lifted target (z, c) with D outputs: k = D − 1 + d²_{D+1}/‖d‖².

    The anchor c carries no noise, so the noise seen across the direction is smaller than D, the more so the
    farther the direction leans away from the anchor. k is kept above the root of the float's precision, so that
    σ̂ stays finite where a model claims a direction at right angles to the anchor.

    Examples
    --------
    >>> import numpy as np
    >>> lift_constant(np.array([[0.0, 0.9], [0.6, 0.8]])).round(2)
    array([1.  , 0.64])
    """
    xp = array_namespace(direction)
    unit, _ = split(direction)
    constant = float(direction.shape[-1] - 2) + unit[..., -1] * unit[..., -1]
    smallest = float(xp.finfo(direction.dtype).eps) ** 0.5
    return xp.clip(constant, smallest, None)


def sigma(direction: Array, magnitude: Array, constant: Array) -> Array:
    """Return the standard deviation of the noise around the target: σ̂ = |R|·√(|1 − ‖d‖²| / k).

    Parameters
    ----------
    direction : array of shape (..., k)
    magnitude : array of shape (...)
    constant : array of shape (...)
        `isotropic_constant` or `lift_constant` of the direction.

    Examples
    --------
    >>> import numpy as np
    >>> direction = np.array([[0.6, 0.0, 0.0]])
    >>> sigma(direction, np.array([2.0]), isotropic_constant(direction)).round(3)
    array([1.131])
    """
    check_direction_and_magnitude(direction, magnitude)
    check_direction_and_magnitude(direction, constant, name="constant")
    xp = array_namespace(direction)
    length = norm(direction)
    spread = xp.abs(1.0 - length) * (1.0 + length) / constant
    on_sphere = spread == 0
    root = xp.sqrt(xp.where(on_sphere, xp.ones_like(spread), spread))
    return xp.abs(magnitude) * xp.where(on_sphere, xp.zeros_like(spread), root)
