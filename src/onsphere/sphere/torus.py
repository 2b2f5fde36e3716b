"""Each output on circles of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import ArrayLike

from onsphere._internal.validation import check_regression_target, parameter_error
from onsphere.sphere import geometry
from onsphere.sphere.embeddings import RegressionEmbedding, as_columns
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = ["Torus"]


class Torus(RegressionEmbedding):
    """Each output as points on circles, (cos ωz, sin ωz) for each frequency ω; gives every output its own score.

    The magnitude is 1 for every target, so that `uncertainty` is a share of the radius. A circle closes after 2π/ω,
    so where the training targets reach farther than the slowest circle goes, they are scaled down to fit it; later
    targets beyond it wrap around (the `mean` decoder does not).

    Parameters
    ----------
    frequencies : sequence of float, default (1.0, 2.0, 4.0)
        One circle each, per output, in radians per standard deviation of the target.
    standardize : bool, default True
        Whether each output is centred and scaled first.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[-1.0, 10.0], [0.5, 12.0], [2.0, 11.0]])
    >>> embedding = Torus().fit(y)
    >>> embedding.embed(y).direction.shape
    (3, 12)
    >>> bool(np.allclose(embedding.decode(embedding.embed(y)), y))
    True
    """

    has_magnitude: ClassVar[bool] = False

    def __init__(self, frequencies: Sequence[float] = (1.0, 2.0, 4.0), *, standardize: bool = True) -> None:
        self.frequencies = frequencies
        self.standardize = standardize

    def fit(self, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn centre and scale of each output, the scale large enough for the slowest circle."""
        slowest = self._check_frequencies()
        super().fit(y, sample_weight)
        values = as_columns(check_regression_target(self, y))
        counted = values if sample_weight is None else values[np.asarray(sample_weight) > 0]
        reach = np.abs(counted - self.center_).max(axis=0)
        self.scale_ = np.maximum(self.scale_, slowest * reach / (0.95 * np.pi))
        self.spread_ = np.where(self.spread_ == 0, 0.0, self.scale_)
        return self

    def _check_frequencies(self) -> float:
        """Return the lowest frequency."""
        try:
            frequencies = np.asarray(self.frequencies, dtype=np.float64)
        except (TypeError, ValueError):
            frequencies = np.empty(0)
        if frequencies.ndim != 1 or len(frequencies) == 0 or not (np.isfinite(frequencies) & (frequencies > 0)).all():
            raise parameter_error(self, "frequencies", "a non-empty sequence of floats in (0, inf)", self.frequencies)
        return float(frequencies.min())

    def resultants(self, outputs: SphericalOutput) -> Array:
        """Return the mean resultant length of each output and frequency, (..., D, F): 1 where the target is certain."""
        return geometry.norm(self._circles(outputs))

    def uncertainty_per_output(self, outputs: SphericalOutput) -> Array:
        """Return how far each output missed its circles, (..., D): the mean | ‖d‖ − 1 | of each."""
        xp = array_namespace(outputs.direction)
        return xp.mean(xp.abs(self.resultants(outputs) - 1.0), axis=-1)

    def relative_uncertainty(self, outputs: SphericalOutput) -> Array:
        """Return the mean over circles: on their common sphere, one that overshoots would hide one that shrinks."""
        xp = array_namespace(outputs.direction)
        return xp.abs(outputs.magnitude) * xp.mean(self.uncertainty_per_output(outputs), axis=-1)

    def direction_width(self, n_outputs: int) -> int:
        return 2 * n_outputs * len(self.frequencies)

    def to_sphere(self, standardized: Array) -> tuple[Array, Array]:
        xp = array_namespace(standardized)
        angles = standardized[..., None] * self._frequencies(standardized)
        circles = xp.stack([xp.cos(angles), xp.sin(angles)], axis=-1)
        # All circles together make one vector of norm 1.
        n_circles = angles.shape[-2] * angles.shape[-1]
        direction = xp.reshape(circles, (*standardized.shape[:-1], 2 * n_circles)) / n_circles**0.5
        return direction, xp.ones_like(standardized[..., 0])

    def from_sphere(self, outputs: SphericalOutput, *, decoder: str = "product") -> Array:
        xp = array_namespace(outputs.direction)
        slowest = int(np.argmin(self.frequencies))
        circle = self._circles(outputs)[..., slowest, :]
        return xp.atan2(circle[..., 1], circle[..., 0]) / float(self.frequencies[slowest])

    def relative_sigma(self, outputs: SphericalOutput) -> Array:
        xp = array_namespace(outputs.direction)
        # Gaussian noise of deviation σ shortens the mean of a circle of frequency ω to exp(−ω²σ²/2).
        lengths = xp.clip(self.resultants(outputs), float(xp.finfo(outputs.direction.dtype).eps), None)
        frequencies = self._frequencies(outputs.direction)
        return xp.sqrt(xp.mean(2.0 * xp.abs(xp.log(lengths)) / frequencies**2, axis=-1))

    def _frequencies(self, like: Array) -> Array:
        xp = array_namespace(like)
        return xp.asarray([float(frequency) for frequency in self.frequencies], dtype=like.dtype, device=device(like))

    def _circles(self, outputs: SphericalOutput) -> Array:
        """Return the outputs as (..., D, F, 2), each pair on a circle of radius 1."""
        xp = array_namespace(outputs.direction)
        n_frequencies = len(self.frequencies)
        *rows, width = outputs.direction.shape
        n_outputs = width // (2 * n_frequencies)
        circles = xp.reshape(outputs.direction, (*rows, n_outputs, n_frequencies, 2))
        return circles * (n_outputs * n_frequencies) ** 0.5
