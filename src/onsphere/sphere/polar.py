"""The target vector by its direction and length: Polar, and two ways to give it room, Duplicate and Lift."""

from __future__ import annotations

from typing import ClassVar

from array_api_compat import array_namespace

from onsphere._internal.validation import check_number
from onsphere.errors import InvalidInputError
from onsphere.sphere import geometry
from onsphere.sphere.embedding import RegressionEmbedding
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = ["Duplicate", "Lift", "Polar"]


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
