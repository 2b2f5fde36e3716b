"""Target <-> sphere.

Every embedding has the same few names: `fit(y)` learns centre and scale (or the classes), `embed(y)` turns targets
into directions of norm 1 and magnitudes, `decode(outputs)` turns what a model says back into targets, and
`sigma(outputs)` reads the noise off it. Targets are standardised per output first and decoded to their own unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from onsphere import geometry
from onsphere._validation import (
    Floats,
    bad_parameter,
    check_at_least_two_classes,
    check_fitted,
    check_flag,
    check_labels,
    check_n_outputs,
    check_number,
    check_option,
    check_regression_target,
)
from onsphere.errors import InvalidInputError
from onsphere.geometry import SphericalOutput

__all__ = ["Duplicate", "Lift", "OneHot", "Polar", "RegressionEmbedding", "Torus"]


class RegressionEmbedding(BaseEstimator, ABC):
    """What the embeddings of numeric targets share: centre, scale and the `mean` decoder.

    Attributes
    ----------
    center_, scale_ : arrays of shape (D,)
        Mean and standard deviation of each output (0 and 1 where the target is not standardised; a constant
        output has scale 1).
    n_outputs_ : int
        D.
    """

    decoders: ClassVar[tuple[str, ...]] = ("product", "mean")
    has_magnitude: ClassVar[bool] = True

    standardize: bool
    center_: Floats
    scale_: Floats
    n_outputs_: int

    def fit(self, y: ArrayLike, sample_weight: Floats | None = None) -> Self:
        """Learn centre and scale of each output.

        Parameters
        ----------
        y : array of shape (n,) or (n, D)
        sample_weight : array of shape (n,), optional

        Returns
        -------
        self
        """
        check_flag(self, "standardize", self.standardize)
        values = _as_columns(check_regression_target(self, y))
        self._check_outputs(values.shape[1])
        self.n_outputs_ = values.shape[1]
        if self.standardize:
            self.center_ = np.average(values, axis=0, weights=sample_weight)
            spread = np.sqrt(np.average((values - self.center_) ** 2, axis=0, weights=sample_weight))
            # Rounding leaves a constant column with a spread of a few units in the last place.
            is_constant = spread <= 1e-12 * np.maximum(np.abs(self.center_), np.finfo(float).tiny)
            self.scale_ = np.where(is_constant, 1.0, spread)
        else:
            self.center_ = np.zeros(self.n_outputs_)
            self.scale_ = np.ones(self.n_outputs_)
        return self

    def embed(self, y: ArrayLike) -> SphericalOutput:
        """Place targets on the sphere.

        Parameters
        ----------
        y : array of shape (n,) or (n, D)

        Returns
        -------
        SphericalOutput
            With directions of norm 1, and the standardised target as its mean.
        """
        check_fitted(self, "scale_")
        values = _as_columns(check_regression_target(self, y))
        check_n_outputs(self, values, self.n_outputs_)
        standardized = (values - self.center_) / self.scale_
        direction, magnitude = self._to_sphere(standardized)
        return SphericalOutput(direction, magnitude, standardized)

    def decode(self, outputs: SphericalOutput, *, decoder: str = "product") -> Floats:
        """Turn what a model says into targets, in their own unit.

        Parameters
        ----------
        outputs : SphericalOutput
        decoder : str
            "product" multiplies direction and magnitude (the paper's), "mean" takes the output that was trained
            on the target itself, "projective" (Lift only) rescales the direction by the known anchor and needs
            no magnitude.

        Returns
        -------
        array of shape (n, D)
        """
        check_fitted(self, "scale_")
        check_option(self, "decoder", decoder, self.decoders)
        if decoder == "mean":
            if outputs.mean is None:
                raise InvalidInputError(
                    "The 'mean' decoder needs outputs that carry a mean. Got outputs with mean=None. "
                    "Train the model on the mean as well, or use another decoder."
                )
            standardized = outputs.mean
        else:
            standardized = self._from_sphere(outputs, decoder)
        return standardized * self.scale_ + self.center_

    def sigma(self, outputs: SphericalOutput) -> Floats:
        """Standard deviation of the noise of each output, in the unit of the target.

        Returns
        -------
        array of shape (n, D)
        """
        check_fitted(self, "scale_")
        return self._standardized_sigma(outputs) * self.scale_

    @property
    def unit_(self) -> float:
        """One standardised unit in the unit of the target: the root mean square of the scales."""
        return float(np.sqrt(np.mean(self.scale_**2)))

    def _check_outputs(self, n_outputs: int) -> None:
        """Refuse a number of outputs that the embedding has no room for."""

    @abstractmethod
    def _to_sphere(self, standardized: Floats) -> tuple[Floats, Floats]: ...

    @abstractmethod
    def _from_sphere(self, outputs: SphericalOutput, decoder: str) -> Floats: ...

    @abstractmethod
    def _standardized_sigma(self, outputs: SphericalOutput) -> Floats: ...


class Polar(RegressionEmbedding):
    """Direction and length of the target vector itself, for two outputs or more: the paper's.

    Parameters
    ----------
    standardize : bool, default True
        Whether each output is centred and scaled first. The paper does neither: there, the origin of the target
        is part of the model.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[3.0, 4.0], [0.0, 2.0]])
    >>> embedding = Polar(standardize=False).fit(y)
    >>> outputs = embedding.embed(y)
    >>> outputs.direction
    array([[0.6, 0.8],
           [0. , 1. ]])
    >>> embedding.decode(outputs)
    array([[3., 4.],
           [0., 2.]])
    """

    def __init__(self, *, standardize: bool = True) -> None:
        self.standardize = standardize

    def _check_outputs(self, n_outputs: int) -> None:
        if n_outputs < 2:
            raise InvalidInputError(
                "Polar needs a target with at least 2 outputs. Got 1. Use Lift(), or Duplicate() for the paper's way."
            )

    def _to_sphere(self, standardized: Floats) -> tuple[Floats, Floats]:
        return geometry.split(standardized)

    def _from_sphere(self, outputs: SphericalOutput, decoder: str) -> Floats:
        return geometry.join(outputs.direction, outputs.magnitude)

    def _standardized_sigma(self, outputs: SphericalOutput) -> Floats:
        constant = geometry.isotropic_constant(outputs.direction)
        return geometry.sigma(outputs.direction, outputs.magnitude, constant)[:, None]


class Duplicate(RegressionEmbedding):
    """One output, written twice: (z, z), then as `Polar`. The paper's way for scalar targets.

    Its direction is ±(1, 1)/√2 and so knows only the sign of z: noise that never changes the sign is invisible.
    `Lift` has no such blind spot.

    Parameters
    ----------
    standardize : bool, default True
        Whether the target is centred and scaled first.

    Examples
    --------
    >>> import numpy as np
    >>> embedding = Duplicate(standardize=False).fit([1.0, -2.0])
    >>> embedding.embed([1.0, -2.0]).direction.round(3)
    array([[ 0.707,  0.707],
           [-0.707, -0.707]])
    """

    def __init__(self, *, standardize: bool = True) -> None:
        self.standardize = standardize

    def _check_outputs(self, n_outputs: int) -> None:
        if n_outputs != 1:
            raise InvalidInputError(
                f"Duplicate needs a target with 1 output. Got {n_outputs}. Use Polar() or Lift() for several."
            )

    def _to_sphere(self, standardized: Floats) -> tuple[Floats, Floats]:
        return geometry.split(np.repeat(standardized, 2, axis=1))

    def _from_sphere(self, outputs: SphericalOutput, decoder: str) -> Floats:
        return geometry.join(outputs.direction, outputs.magnitude).mean(axis=1, keepdims=True)

    def _standardized_sigma(self, outputs: SphericalOutput) -> Floats:
        constant = geometry.isotropic_constant(outputs.direction)
        return geometry.sigma(outputs.direction, outputs.magnitude, constant)[:, None]


class Lift(RegressionEmbedding):
    """The target with a constant beside it: (z, c), then as `Polar`. For one output or many; the default.

    The constant keeps every target away from the origin, so the direction turns smoothly with z and noise shows
    wherever the target lies. And because c is known, |R·d_{D+1} − c| is an error that can be seen without a label.

    Parameters
    ----------
    anchor : float, default 3.0
        The constant c, in standard deviations of the target. A large anchor makes σ̂ the plain standard deviation,
        a small one bounds the influence of outliers.
    standardize : bool, default True
        Whether each output is centred and scaled first.

    Examples
    --------
    >>> import numpy as np
    >>> embedding = Lift(anchor=1.0, standardize=False).fit([0.0, 1.0])
    >>> embedding.embed([0.0, 1.0]).direction.round(3)
    array([[0.   , 1.   ],
           [0.707, 0.707]])
    """

    decoders: ClassVar[tuple[str, ...]] = ("product", "projective", "mean")

    def __init__(self, *, anchor: float = 3.0, standardize: bool = True) -> None:
        self.anchor = anchor
        self.standardize = standardize

    def _check_outputs(self, n_outputs: int) -> None:
        check_number(self, "anchor", self.anchor, above=0)

    def _to_sphere(self, standardized: Floats) -> tuple[Floats, Floats]:
        anchors = np.full((len(standardized), 1), float(self.anchor))
        return geometry.split(np.hstack([standardized, anchors]))

    def _from_sphere(self, outputs: SphericalOutput, decoder: str) -> Floats:
        if decoder == "product":
            return geometry.join(outputs.direction, outputs.magnitude)[:, :-1]
        # A direction at right angles to the anchor would point to infinity.
        along_anchor = np.maximum(outputs.direction[:, -1:], np.sqrt(np.finfo(np.float64).eps))
        return self.anchor * outputs.direction[:, :-1] / along_anchor

    def _standardized_sigma(self, outputs: SphericalOutput) -> Floats:
        constant = geometry.lift_constant(outputs.direction)
        return geometry.sigma(outputs.direction, outputs.magnitude, constant)[:, None]


class Torus(RegressionEmbedding):
    """Each output as points on circles, (cos ωz, sin ωz) for each frequency ω; gives every output its own score.

    The magnitude is 1 for every target. A circle closes after 2π/ω, so where the training targets reach farther
    than the slowest circle goes, they are scaled down to fit it; later targets beyond it wrap around (the `mean`
    decoder does not).

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

    def fit(self, y: ArrayLike, sample_weight: Floats | None = None) -> Self:
        """Learn centre and scale of each output, the scale large enough for the slowest circle."""
        slowest = float(self._frequencies().min())
        super().fit(y, sample_weight)
        reach = np.abs(_as_columns(check_regression_target(self, y)) - self.center_).max(axis=0)
        self.scale_ = np.maximum(self.scale_, slowest * reach / (0.95 * np.pi))
        return self

    def resultants(self, outputs: SphericalOutput) -> Floats:
        """Mean resultant length of each output and frequency: 1 where the target is certain.

        Returns
        -------
        array of shape (n, D, F)
        """
        return geometry.norm(self._circles(outputs))

    def uncertainty_per_output(self, outputs: SphericalOutput) -> Floats:
        """How far each output's circles were missed: the mean over the frequencies of | ‖d‖ − 1 |.

        Returns
        -------
        array of shape (n, D)
        """
        return np.abs(self.resultants(outputs) - 1.0).mean(axis=2)

    def _frequencies(self) -> Floats:
        try:
            frequencies = np.asarray(self.frequencies, dtype=np.float64)
        except (TypeError, ValueError):
            frequencies = np.empty(0)
        if frequencies.ndim != 1 or len(frequencies) == 0 or not (np.isfinite(frequencies) & (frequencies > 0)).all():
            raise bad_parameter(self, "frequencies", "a non-empty sequence of floats in (0, inf)", self.frequencies)
        return frequencies

    def _circles(self, outputs: SphericalOutput) -> Floats:
        """The outputs as (n, D, F, 2), each pair on a circle of radius 1."""
        check_fitted(self, "scale_")
        shape = (-1, self.n_outputs_, len(self.frequencies), 2)
        return outputs.direction.reshape(shape) * np.sqrt(self.n_outputs_ * len(self.frequencies))

    def _to_sphere(self, standardized: Floats) -> tuple[Floats, Floats]:
        angles = standardized[:, :, None] * self._frequencies()
        circles = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        # All circles together make one vector of norm 1.
        direction = circles.reshape(len(angles), -1) / np.sqrt(angles[0].size)
        return direction, np.ones(len(direction))

    def _from_sphere(self, outputs: SphericalOutput, decoder: str) -> Floats:
        frequencies = self._frequencies()
        slowest = int(frequencies.argmin())
        circle = self._circles(outputs)[:, :, slowest]
        return np.arctan2(circle[..., 1], circle[..., 0]) / frequencies[slowest]

    def _standardized_sigma(self, outputs: SphericalOutput) -> Floats:
        # Gaussian noise of deviation σ shortens the mean of a circle of frequency ω to exp(−ω²σ²/2).
        lengths = np.maximum(self.resultants(outputs), np.finfo(np.float64).eps)
        return np.sqrt(np.mean(2.0 * np.abs(np.log(lengths)) / self._frequencies() ** 2, axis=2))


class OneHot(BaseEstimator):
    """A class as a unit basis vector, magnitude 1. A soft label p stays p: its norm below 1 says how mixed it is.

    Attributes
    ----------
    classes_ : array of shape (C,)

    Examples
    --------
    >>> embedding = OneHot().fit(["cat", "dog", "cat"])
    >>> embedding.embed(["dog", "cat"]).direction
    array([[0., 1.],
           [1., 0.]])
    >>> embedding.decode(embedding.embed(["dog", "cat"])).tolist()
    ['dog', 'cat']
    """

    has_magnitude: ClassVar[bool] = False

    classes_: NDArray[Any]

    def fit(self, y: ArrayLike) -> Self:
        """Learn the classes.

        Parameters
        ----------
        y : array of labels, shape (n,)
        """
        self.classes_ = np.unique(check_labels(self, y))
        check_at_least_two_classes(self, self.classes_)
        return self

    def embed(self, y: ArrayLike) -> SphericalOutput:
        """Turn labels (n,) or soft labels (n, C) into directions.

        Soft labels are shares: not negative, and summing to 1 in every row.
        """
        check_fitted(self, "classes_")
        labels = np.asarray(y)
        direction = self._soft(labels) if labels.ndim == 2 and labels.shape[1] > 1 else self._hard(labels)
        return SphericalOutput(direction, np.ones(len(direction)))

    def decode(self, outputs: SphericalOutput) -> NDArray[Any]:
        """The class whose axis is nearest.

        Returns
        -------
        array of shape (n,)
        """
        check_fitted(self, "classes_")
        return self.classes_[outputs.direction.argmax(axis=1)]

    def _hard(self, y: NDArray[Any]) -> Floats:
        labels = check_labels(self, y)
        index = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        unknown = self.classes_[index] != labels
        if unknown.any():
            raise InvalidInputError(
                f"Expected labels among {self.classes_.tolist()}. Got {np.unique(labels[unknown])[:5].tolist()}. "
                "Fit again with all classes, or drop these rows."
            )
        return np.eye(len(self.classes_))[index]

    def _soft(self, shares: NDArray[Any]) -> Floats:
        values = check_regression_target(self, shares)
        check_n_outputs(self, values, len(self.classes_))
        if (values < 0).any() or not np.allclose(values.sum(axis=1), 1.0, atol=1e-6):
            raise InvalidInputError(
                "Expected soft labels that are not negative and sum to 1 in every row. "
                f"Got sums from {values.sum(axis=1).min():g} to {values.sum(axis=1).max():g} "
                f"and a smallest value of {values.min():g}. Divide each row by its sum."
            )
        return values


def _as_columns(y: Floats) -> Floats:
    return y[:, None] if y.ndim == 1 else y
