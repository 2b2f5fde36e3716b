"""Inputs on a unit sphere, and how far landmarks fall short of them.

The kernel k(x, x') = exp(−‖x − x'‖²/h) gives every input the length k(x, x) = 1. Reconstructed from landmarks by ridge
regression, an input keeps the squared length kᵀ(K + λI)⁻¹k ≤ 1: nearly 1 among the landmarks, 0 far from them. The
rest, up to 1, is the shortfall.

`gaussian` and `shortfall` are written for numpy and torch alike; landmarks are chosen once, with numpy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dtrmm  # type: ignore[reportAttributeAccessIssue]
from scipy.spatial.distance import pdist

from onsphere._internal.validation import Floats
from onsphere.sphere.geometry import Array

__all__ = ["choose_landmarks", "find_bandwidth", "gaussian", "leave_one_out", "shortfall", "whiten"]

# Rows whose distances are compared to find the bandwidth.
_N_COMPARED = 1000


def gaussian(rows: Array, landmarks: Array, bandwidth: float) -> Array:
    """Return exp(−‖x − l‖²/h) for each row x and landmark l, shape (n, m).

    Examples
    --------
    >>> import numpy as np
    >>> gaussian(np.array([[0.0], [2.0]]), np.array([[0.0], [1.0]]), bandwidth=1.0).round(3)
    array([[1.   , 0.368],
           [0.018, 0.368]])
    """
    xp = array_namespace(rows)
    lengths = xp.sum(rows * rows, axis=-1, keepdims=True)
    distances = lengths + (landmarks * landmarks).sum(-1) - (rows @ landmarks.T) * 2.0
    return xp.exp(xp.clip(distances, 0.0, None) / -bandwidth)


def shortfall(rows: Array, landmarks: Array, whitener: Array, bandwidth: float) -> Array:
    """Return how much each row lacks to length 1 when it is reconstructed from the landmarks, shape (n,), in [0, 1].

    Parameters
    ----------
    rows : array of shape (n, p)
    landmarks : array of shape (m, p)
    whitener : array of shape (m, m)
        From `whiten`, so that only its lower triangle counts.
    bandwidth : float

    Examples
    --------
    >>> import numpy as np
    >>> landmarks = np.array([[0.0], [1.0]])
    >>> shortfall(np.array([[0.0], [9.0]]), landmarks, whiten(landmarks, 1.0, ridge=0.01), 1.0).round(2)
    array([0.01, 1.  ])
    """
    xp = array_namespace(rows)
    similar = gaussian(rows, landmarks, bandwidth)
    if isinstance(similar, np.ndarray) and similar.dtype == np.float64:  # a third of the time of what is below
        coordinates = dtrmm(1.0, whitener.T, similar.T, trans_a=1).T
        kept = np.einsum("ij,ij->i", coordinates, coordinates)
    else:
        coordinates = similar @ whitener.T
        kept = xp.sum(coordinates * coordinates, axis=-1)
    return xp.clip(1.0 - kept, 0.0, None)


def whiten(landmarks: Floats, bandwidth: float, *, ridge: float) -> Floats:
    """Return the matrix W with WᵀW = (K + λI)⁻¹, so that a row keeps the squared length ‖Wk‖²."""
    matrix = gaussian(landmarks, landmarks, bandwidth) + ridge * np.eye(len(landmarks))
    return np.asarray(solve_triangular(np.linalg.cholesky(matrix), np.eye(len(landmarks)), lower=True))


def leave_one_out(whitener: Floats, *, ridge: float) -> Floats:
    """Return the shortfall of each landmark by all other landmarks, in closed form, shape (m,).

    Examples
    --------
    >>> import numpy as np
    >>> landmarks = np.array([[0.0], [0.1], [9.0]])
    >>> leave_one_out(whiten(landmarks, 1.0, ridge=0.01), ridge=0.01).round(2)
    array([0.03, 0.03, 1.  ])
    """
    return np.clip(1.0 / np.sum(whitener * whitener, axis=0) - ridge, 0.0, 1.0)


def find_bandwidth(rows: Floats) -> float:
    """Return the median squared distance between rows, 1 for rows that are all alike.

    Examples
    --------
    >>> import numpy as np
    >>> find_bandwidth(np.array([[0.0], [1.0], [3.0]]))
    4.0
    """
    some = rows[:: -(-len(rows) // _N_COMPARED)]
    middle = float(np.median(pdist(some, "sqeuclidean"))) if len(some) > 1 else 0.0
    # Between rows that lie closer still, rounding decides how far apart they are.
    smallest = 1e-10 * float(np.sum(some * some, axis=1).max())
    return max(middle, smallest) if middle > 0 else 1.0


def choose_landmarks(
    rows: Floats, bandwidth: float, *, n_landmarks: int, tolerance: float = 1e-3, known: Floats | None = None
) -> NDArray[np.intp]:
    """Return the indices of landmarks, chosen greedily: the next is always the row that is reconstructed worst.

    Stops when no row lacks more than the tolerance. This is a pivoted Cholesky factorisation of the kernel matrix, of
    which only the columns of the landmarks are ever computed.

    Parameters
    ----------
    rows : array of shape (n, p)
    bandwidth : float
    n_landmarks : int
        The most to choose.
    tolerance : float
    known : array of shape (k, p), optional
        Landmarks that there are already.

    Returns
    -------
    int array of at most n_landmarks, in the order of choice

    Examples
    --------
    >>> import numpy as np
    >>> choose_landmarks(np.array([[0.0], [0.1], [5.0], [0.2]]), 1.0, n_landmarks=2)
    array([0, 2])
    """
    return np.array(list(_choose(rows, bandwidth, n_landmarks, tolerance, known)), dtype=np.intp)


def _choose(
    rows: Floats, bandwidth: float, n_landmarks: int, tolerance: float, known: Floats | None
) -> Iterator[np.intp]:
    n_known = 0 if known is None else len(known)
    places = rows if known is None else np.vstack([known, rows])
    n_steps = min(n_landmarks, len(rows)) + n_known
    missing, factor = np.ones(len(places)), np.zeros((n_steps, len(places)))
    lengths = np.sum(places * places, axis=1)
    for step in range(n_steps):
        chosen = np.intp(step) if step < n_known else n_known + missing[n_known:].argmax()
        if missing[chosen] < tolerance:
            if step < n_known:
                continue
            return
        distances = lengths + lengths[chosen] - 2.0 * (places @ places[chosen])
        column = np.exp(np.maximum(distances, 0.0) / -bandwidth)
        factor[step] = (column - factor[:step, chosen] @ factor[:step]) / missing[chosen] ** 0.5
        missing = np.maximum(missing - factor[step] ** 2, 0.0)
        missing[chosen] = 0.0
        if step >= n_known:
            yield chosen - n_known
