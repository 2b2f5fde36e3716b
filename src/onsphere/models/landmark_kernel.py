"""Features of a kernel from landmarks, without the directions that rounding decides."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel

__all__ = ["LandmarkKernel"]

# Of the largest eigenvalue of the kernel between landmarks. Directions with smaller ones are left out: rounding errors
# in them would be enlarged by the root, and a ridge with a penalty of 1e-6 or more gives them hardly any weight.
_SMALLEST = 1e-10


class LandmarkKernel(Nystroem):
    """Nyström's features of a Gaussian kernel, in which rounding errors grow by 1e5 at most.

    scikit-learn's own divides by the roots of eigenvalues down to 1e-12, so that a row alone and the same row among
    others may get answers that differ in the seventh digit.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.repeat(np.arange(5.0), 2)[:, None] + np.tile([0.0, 1e-7], 5)[:, None]   # each row nearly twice
    >>> features = LandmarkKernel(n_components=10, gamma=0.5, random_state=0).fit_transform(X)
    >>> bool(np.allclose(features @ features.T, np.exp(-0.5 * (X - X.T) ** 2)))
    True
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw landmarks, and learn how to make features of the similarities to them."""
        super().fit(X, y)
        values, vectors = np.linalg.eigh(rbf_kernel(self.components_, gamma=self.gamma))
        is_kept = values > _SMALLEST * values[-1]
        kept = vectors[:, is_kept]
        self.normalization_: Any = (kept / np.sqrt(values[is_kept])) @ kept.T
        return self
