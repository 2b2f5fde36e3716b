"""Numbers on a sphere: what all embeddings of numbers share, and Polar, Duplicate and Lift.

`Torus` and `OneHot` have files of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_flag,
    check_n_outputs,
    check_number,
    check_option,
    check_outputs,
    check_regression_target,
    check_sample_weight,
)
from onsphere.errors import InvalidInputError
from onsphere.sphere import geometry
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = ["Duplicate", "Lift", "Polar", "RegressionEmbedding", "as_columns"]


class RegressionEmbedding(BaseEstimator, ABC):
    """The base of the embeddings of numeric targets: centre, scale and the `mean` decoder.

    Attributes
    ----------
    center_ : array of shape (D,)
        Mean of each output (0 where the target is not standardised).
    scale_ : array of shape (D,)
        What each output is divided by: its standard deviation, or 1 for a constant output.
    spread_ : array of shape (D,)
        Noise of one standard deviation in the unit of each output: its scale, or 0 for a constant output.
    n_outputs_ : int
        D.
    """

    decoders: ClassVar[tuple[str, ...]] = ("product", "mean")
    has_magnitude: ClassVar[bool] = True

    standardize: bool
    center_: Floats
    scale_: Floats
    spread_: Floats
    n_outputs_: int

    def fit(self, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
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
        values = as_columns(check_regression_target(self, y))
        weights = check_sample_weight(sample_weight, values)
        self._check_n_outputs(values.shape[1])
        self.n_outputs_ = values.shape[1]
        self.center_ = np.zeros(self.n_outputs_)
        self.scale_ = self.spread_ = np.ones(self.n_outputs_)
        if self.standardize:
            self._standardize(values, weights)
        return self

    def _standardize(self, values: Floats, weights: Floats | None) -> None:
        largest = np.maximum(np.abs(values).max(axis=0), np.finfo(np.float64).tiny)
        shrunk = values / largest  # squares of huge or tiny targets would leave the range of floats
        center = np.average(shrunk, axis=0, weights=weights)
        spread = np.sqrt(np.average((shrunk - center) ** 2, axis=0, weights=weights))
        is_constant = spread <= 1e-12  # what rounding leaves of a constant column
        self.center_ = center * largest
        self.scale_ = np.where(is_constant, 1.0, spread * largest)
        self.spread_ = np.where(is_constant, 0.0, self.scale_)

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
        values = as_columns(check_regression_target(self, y))
        check_n_outputs(self, values, self.n_outputs_)
        standardized = (values - self.center_) / self.scale_
        direction, magnitude = self.to_sphere(standardized)
        return SphericalOutput(direction, magnitude, standardized)

    def decode(self, outputs: SphericalOutput, *, decoder: str = "product") -> Floats:
        """Turn predicted points into targets, in their own unit.

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
        return self.decode_standardized(outputs, decoder=decoder) * self.scale_ + self.center_

    def decode_standardized(self, outputs: SphericalOutput, *, decoder: str) -> Array:
        """Return standardised targets (..., D); as `decode`, for numpy and torch."""
        check_option(self, "decoder", decoder, self.decoders)
        self._check_widths(outputs)
        if decoder != "mean":
            return self.from_sphere(outputs, decoder=decoder)
        if outputs.mean is None:
            raise InvalidInputError(
                "The 'mean' decoder needs outputs that carry a mean. Got outputs with mean=None. "
                "Train the model on the mean as well (a head with mean=True), or use another decoder."
            )
        return outputs.mean

    def sigma(self, outputs: SphericalOutput) -> Floats:
        """Return the standard deviation of the noise, in the unit of the target, shape (n, D).

        Only `Torus` has a level of noise for each output. The other embeddings see how much the direction as a whole
        has shrunk: one level for all outputs, relative to the spread of each.
        """
        check_fitted(self, "scale_")
        self._check_widths(outputs)
        return self.relative_sigma(outputs) * self.spread_

    @property
    def unit_(self) -> float:
        """One standard deviation in the unit of the target: the root mean square of the spreads that are not 0."""
        return float(geometry.norm(self.spread_)) / max(np.count_nonzero(self.spread_), 1) ** 0.5

    def _check_widths(self, outputs: SphericalOutput) -> None:
        """Check that direction and mean have the widths that the embedding gives them."""
        width = self.direction_width(self.n_outputs_)
        check_outputs(self, outputs.direction, outputs.mean, width, self.n_outputs_)

    def _check_n_outputs(self, n_outputs: int) -> None:
        """Raise for a number of outputs, or a parameter, that the embedding cannot use."""

    @abstractmethod
    def direction_width(self, n_outputs: int) -> int:
        """Return the number of columns that the direction of a target with n_outputs has."""

    @abstractmethod
    def to_sphere(self, standardized: Array) -> tuple[Array, Array]:
        """Return direction (..., k) and magnitude (...) of standardised targets (..., D); numpy or torch."""

    @abstractmethod
    def from_sphere(self, outputs: SphericalOutput, *, decoder: str = "product") -> Array:
        """Return standardised targets (..., D) from direction and magnitude; numpy or torch."""

    @abstractmethod
    def relative_sigma(self, outputs: SphericalOutput) -> Array:
        """Return the noise in standard deviations of the target, (..., D), or (..., 1) where all outputs share it."""

    def relative_uncertainty(self, outputs: SphericalOutput) -> Array:
        """Return the paper's score u of each row, (...), in standard deviations of the target; numpy or torch."""
        return geometry.uncertainty(outputs.direction, outputs.magnitude)


def as_columns(y: Floats) -> Floats:
    """Return targets (n,) or (n, D) as (n, D)."""
    return y[:, None] if y.ndim == 1 else y


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

    def _check_n_outputs(self, n_outputs: int) -> None:
        if n_outputs < 2:
            raise InvalidInputError(
                "Polar needs a target with at least 2 outputs. Got 1. Use Lift(), or Duplicate() for the paper's way."
            )

    def direction_width(self, n_outputs: int) -> int:
        return n_outputs

    def to_sphere(self, standardized: Array) -> tuple[Array, Array]:
        return geometry.split(standardized)

    def from_sphere(self, outputs: SphericalOutput, *, decoder: str = "product") -> Array:
        return geometry.join(outputs.direction, outputs.magnitude)

    def relative_sigma(self, outputs: SphericalOutput) -> Array:
        constant = geometry.isotropic_constant(outputs.direction)
        return geometry.sigma(outputs.direction, outputs.magnitude, constant)[..., None]


class Duplicate(Polar):
    """One output, written twice: (z, z), then as `Polar`. The paper's way for scalar targets.

    Its direction is ±(1, 1)/√2, the sign of z alone: noise that never changes the sign is invisible. `Lift` sees it.

    Parameters
    ----------
    standardize : bool, default True
        Whether the target is centred and scaled first.

    Examples
    --------
    >>> embedding = Duplicate(standardize=False).fit([1.0, -2.0])
    >>> embedding.embed([1.0, -2.0]).direction.round(3)
    array([[ 0.707,  0.707],
           [-0.707, -0.707]])
    """

    def _check_n_outputs(self, n_outputs: int) -> None:
        if n_outputs != 1:
            raise InvalidInputError(
                f"Duplicate needs a target with 1 output. Got {n_outputs}. Use Polar() or Lift() for several."
            )

    def direction_width(self, n_outputs: int) -> int:
        return 2

    def to_sphere(self, standardized: Array) -> tuple[Array, Array]:
        xp = array_namespace(standardized)
        return geometry.split(xp.concat([standardized, standardized], axis=-1))

    def from_sphere(self, outputs: SphericalOutput, *, decoder: str = "product") -> Array:
        xp = array_namespace(outputs.direction)
        return xp.mean(geometry.join(outputs.direction, outputs.magnitude), axis=-1, keepdims=True)


class Lift(RegressionEmbedding):
    """The target with a constant added: (z, c), then as `Polar`. For one output or many; the default.

    The constant keeps every target away from the origin, so the direction turns smoothly with z and noise shows
    wherever the target lies. Because c is known, |R·d_{D+1} − c| is an error that can be seen without a label.

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

    def _check_n_outputs(self, n_outputs: int) -> None:
        check_number(self, "anchor", self.anchor, above=0)

    def direction_width(self, n_outputs: int) -> int:
        return n_outputs + 1

    def to_sphere(self, standardized: Array) -> tuple[Array, Array]:
        xp = array_namespace(standardized)
        anchors = xp.full_like(standardized[..., :1], float(self.anchor))
        return geometry.split(xp.concat([standardized, anchors], axis=-1))

    def from_sphere(self, outputs: SphericalOutput, *, decoder: str = "product") -> Array:
        if decoder == "product":
            return geometry.join(outputs.direction, outputs.magnitude)[..., :-1]
        xp = array_namespace(outputs.direction)
        # A direction at right angles to the anchor would point to infinity.
        along_anchor = xp.clip(outputs.direction[..., -1:], float(xp.finfo(outputs.direction.dtype).eps) ** 0.5, None)
        return self.anchor * outputs.direction[..., :-1] / along_anchor

    def relative_sigma(self, outputs: SphericalOutput) -> Array:
        constant = geometry.lift_constant(outputs.direction)
        return geometry.sigma(outputs.direction, outputs.magnitude, constant)[..., None]
