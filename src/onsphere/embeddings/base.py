"""What the embeddings of numeric targets share: centre, scale and the `mean` decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from onsphere._validation import (
    Floats,
    check_fitted,
    check_flag,
    check_n_outputs,
    check_option,
    check_regression_target,
)
from onsphere.errors import InvalidInputError
from onsphere.geometry import Array, SphericalOutput

__all__ = ["RegressionEmbedding", "as_columns"]


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
        values = as_columns(check_regression_target(self, y))
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
        values = as_columns(check_regression_target(self, y))
        check_n_outputs(self, values, self.n_outputs_)
        standardized = (values - self.center_) / self.scale_
        direction, magnitude = self.to_sphere(standardized)
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
            standardized = self.from_sphere(outputs, decoder=decoder)
        return standardized * self.scale_ + self.center_

    def sigma(self, outputs: SphericalOutput) -> Floats:
        """Standard deviation of the noise of each output, in the unit of the target.

        Returns
        -------
        array of shape (n, D)
        """
        check_fitted(self, "scale_")
        return self.standardized_sigma(outputs) * self.scale_

    @property
    def unit_(self) -> float:
        """One standardised unit in the unit of the target: the root mean square of the scales."""
        return float(np.sqrt(np.mean(self.scale_**2)))

    def _check_outputs(self, n_outputs: int) -> None:
        """Refuse a number of outputs that the embedding has no room for."""

    @abstractmethod
    def to_sphere(self, standardized: Array) -> tuple[Array, Array]:
        """Direction (..., k) and magnitude (...) of standardised targets (..., D); numpy or torch, needs no fit."""

    @abstractmethod
    def from_sphere(self, outputs: SphericalOutput, *, decoder: str = "product") -> Array:
        """Standardised targets (..., D) from direction and magnitude; numpy or torch, needs no fit."""

    @abstractmethod
    def standardized_sigma(self, outputs: SphericalOutput) -> Array:
        """Standard deviation of the noise in standardised units, (..., D) or (..., 1) if all outputs share it."""


def as_columns(y: Floats) -> Floats:
    return y[:, None] if y.ndim == 1 else y
