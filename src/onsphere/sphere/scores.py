"""From a predicted point to an uncertainty, one small function each. Higher means less trustworthy.

`signed` and `gini` keep to that only inside the sphere: outside it, where models extrapolate, they fall below zero.

Written on `SphericalOutput` and in standardised units; numpy and torch alike.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from onsphere.sphere import geometry
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = [
    "anchor_residual",
    "anchored",
    "gini",
    "reference",
    "reference_confidence",
    "signed",
    "total_sigma",
    "total_violation",
    "uncertainty",
    "violation",
]


def uncertainty(outputs: SphericalOutput) -> Array:
    """Return the paper's score for regression: u = |R|·| ‖d‖ − 1 |, a lower bound of the error (Proposition 1).

    Examples
    --------
    >>> import numpy as np
    >>> uncertainty(SphericalOutput(np.array([[0.3, 0.4]]), np.array([4.0])))
    array([2.])
    """
    return geometry.uncertainty(outputs.direction, outputs.magnitude)


def violation(outputs: SphericalOutput) -> Array:
    """Return the reference code's score for classification: | ‖d‖ − 1 |.

    Examples
    --------
    >>> import numpy as np
    >>> violation(SphericalOutput(np.array([[0.3, 0.4], [0.0, 1.0]]), np.ones(2)))
    array([0.5, 0. ])
    """
    return geometry.norm_violation(outputs.direction)


def signed(outputs: SphericalOutput) -> Array:
    """Return on which side of the sphere a direction lies: s = 1 − ‖d‖.

    Above zero the target is ambiguous. Below zero the direction overshoots, which no conditional mean can do, so
    the model extrapolates; where that matters, use `violation`.

    Examples
    --------
    >>> import numpy as np
    >>> signed(SphericalOutput(np.array([[0.3, 0.4], [0.0, 1.5]]), np.ones(2)))
    array([ 0.5, -0.5])
    """
    return 1.0 - geometry.norm(outputs.direction)


def anchor_residual(outputs: SphericalOutput, anchor: float) -> Array:
    """Return an error that needs no label, for lifted targets: a = |R·d_{D+1} − c|.

    Examples
    --------
    >>> import numpy as np
    >>> anchor_residual(SphericalOutput(np.array([[0.0, 1.0]]), np.array([4.0])), 3.0)
    array([1.])
    """
    return geometry.anchor_residual(outputs.direction, outputs.magnitude, anchor)


def anchored(outputs: SphericalOutput, anchor: float) -> Array:
    """Return `uncertainty` plus `anchor_residual`, for lifted targets: u + a. It sees a shift of inputs better than u.

    Examples
    --------
    >>> import numpy as np
    >>> anchored(SphericalOutput(np.array([[0.0, 0.5]]), np.array([4.0])), 3.0)
    array([3.])
    """
    return uncertainty(outputs) + anchor_residual(outputs, anchor)


def gini(outputs: SphericalOutput) -> Array:
    """Return the Gini impurity 1 − ‖d‖² of a direction that estimates class probabilities: the plain baseline for HCM.

    Examples
    --------
    >>> import numpy as np
    >>> gini(SphericalOutput(np.array([[0.5, 0.5], [1.0, 0.0]]), np.ones(2)))
    array([0.5, 0. ])
    """
    length = geometry.norm(outputs.direction)
    return (1.0 - length) * (1.0 + length)


def reference_confidence(outputs: SphericalOutput) -> Array:
    """Return the reference code's confidence on CIFAR-10: exp(1 − n) for n = ‖d‖ ≥ 1, exp(1 − 1/n) for n < 1.

    Examples
    --------
    >>> import numpy as np
    >>> reference_confidence(SphericalOutput(np.array([[0.0, 1.0], [0.0, 0.5], [0.0, 0.0]]), np.ones(3))).round(3)
    array([1.   , 0.368, 0.   ])
    """
    xp = array_namespace(outputs.direction)
    # The smallest normal number has a finite inverse, and a confidence of 0.
    length = xp.clip(geometry.norm(outputs.direction), float(xp.finfo(outputs.direction.dtype).smallest_normal), None)
    return xp.exp(1.0 - xp.where(length < 1, 1.0 / length, length))


def reference(outputs: SphericalOutput) -> Array:
    """Return 1 − `reference_confidence`, so that higher means less trustworthy.

    Examples
    --------
    >>> import numpy as np
    >>> reference(SphericalOutput(np.array([[0.0, 1.0], [0.0, 0.0]]), np.ones(2)))
    array([0., 1.])
    """
    return 1.0 - reference_confidence(outputs)


def total_sigma(noise: Array, sigma: Array, novelty: Array, *, spread: Array, distance: Array) -> Array:
    """Return the standard deviation of the whole error: the noise among similar rows, the target's far from all rows.

    σ² = (1 − π)N² + π(s² + min(T², s² + δ²)): where nothing is known of a row (π = 1), the target may be anything it
    was in training, with the variance s², and the prediction is off by at most what the model says, T, or by its
    distance δ from the mean target.

    Parameters
    ----------
    noise, sigma : arrays of shape (n, D)
        N, and T of the target frame.
    novelty : array of shape (n,)
        π in [0, 1].
    spread : array of shape (D,)
        s, the standard deviation of the target.
    distance : array of shape (n, D)
        δ, from the prediction to the mean target.

    Examples
    --------
    >>> import numpy as np
    >>> parts = {"spread": np.ones(1), "distance": np.zeros((3, 1))}
    >>> total_sigma(np.full((3, 1), 0.1), np.full((3, 1), 0.2), np.array([0.0, 0.5, 1.0]), **parts)[:, 0].round(2)
    array([0.1 , 0.72, 1.02])
    """
    xp = array_namespace(noise)
    # In units of the spread, whatever that of the target, and no larger than squares can be.
    unit = xp.where(spread == 0, xp.ones_like(spread), spread)
    limit = 0.1 * float(xp.finfo(noise.dtype).max) ** 0.5
    own, near, away = (xp.clip(part / unit, -limit, limit) for part in (sigma, noise, distance))
    itself = spread / unit
    widest = away * away + itself * itself
    far = xp.where(own * own < widest, own * own, widest) + itself * itself
    share = novelty[:, None]
    return xp.sqrt((1.0 - share) * (near * near) + share * far) * unit


def total_violation(score: Array, novelty: Array) -> Array:
    """Return the score of a class whose direction loses the share of its length that is novel: u + π·(1 − u).

    A row unlike all others has a score of at least 1, however sure the model is of its class.

    Examples
    --------
    >>> import numpy as np
    >>> total_violation(np.array([0.1, 0.1, 0.1]), np.array([0.0, 0.5, 1.0]))
    array([0.1 , 0.55, 1.  ])
    """
    xp = array_namespace(score)
    return score + novelty * xp.clip(1.0 - score, 0.0, None)
