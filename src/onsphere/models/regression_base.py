"""The prediction of any model of numbers, and its standard deviations, intervals, balls and distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, overload
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import (
    Floats,
    check_flag,
    check_n_outputs,
    check_number,
    check_option,
    check_output_names,
    check_regression_target,
    check_same_length,
    is_frame,
    parameter_error,
)
from onsphere.calibration import RegressionCalibration, root_mean_square
from onsphere.calibration.distribution import TAILS, PredictiveDistribution
from onsphere.calibration.grouped_distribution import GroupedDistribution
from onsphere.errors import InvalidInputError
from onsphere.models.distributions import DistributionMixin
from onsphere.models.noise import SIGMA_FLOOR
from onsphere.sphere import Domain
from onsphere.sphere.embeddings import as_columns

__all__ = ["RegressionMixin", "RegressionPrediction", "convert_value", "pick_width"]


class RegressionPrediction(NamedTuple):
    """One pass over rows with numbers to predict, on the scale on which they are learned.

    Attributes
    ----------
    value, sigma : arrays of shape (n, D)
    uncertainty : array of shape (n,)
        In the unit of the target.
    details : dict
        Further fields of an Assessment.
    noise : array of shape (n, D), or None
    novelty, missed : arrays of shape (n,), or None
        See `onsphere.models.frames.Measured`.
    parts : int array of shape (n,), or None
        The part of the calibration rows that each row uses.
    curves : array of shape (n, D, K), or None
        The shape of the error of each row; see `onsphere.calibration.shape.Shape`.
    """

    value: Floats
    sigma: Floats
    uncertainty: Floats
    details: dict[str, Any]
    noise: Floats | None = None
    novelty: Floats | None = None
    missed: Floats | None = None
    parts: NDArray[np.intp] | None = None
    curves: Floats | None = None

    def get_value(self, model: Any) -> Floats:
        """Return the value in the shape of the y of fit."""
        return convert_value(model, self.value)

    def get_sigma(self, model: Any) -> Floats:
        """Return sigma in the unit and the shape of the y of fit, as calibrated as the model is."""
        return _shape_like_target(model, self._convert_sigma(model, model._calibrate_sigma(self.sigma)))

    def _convert_sigma(self, model: Any, sigma: Floats) -> Floats:
        return sigma if model.domain_ is None else model.domain_.convert_sigma(self.value, sigma)

    def get_fields(self, model: Any) -> dict[str, Any]:
        """Return the fields of an Assessment that need no calibration."""
        names = model._output_names
        sigma = self.get_sigma(model)
        frames = {"noise": self.get_noise(model), "novelty": self.novelty}
        return {"sigma": sigma, "output_names": names, **frames, **self.details}

    def get_noise(self, model: Any) -> Floats | None:
        """Return the noise in the shape of the y of fit."""
        if self.noise is None:
            return None
        return _shape_like_target(model, self._convert_sigma(model, model._calibrate_sigma(self.noise)))

    def get_bounds(self, model: Any, coverage: float, tails: str) -> dict[str, Any]:
        """Return both ends of the intervals that hold all outputs of a row at once."""
        interval = self.get_interval(model, coverage, simultaneous=True, tails=tails)
        return {"lower": interval[..., 0], "upper": interval[..., 1]}

    def get_distribution(self, model: Any) -> PredictiveDistribution | GroupedDistribution:
        """Return the distributions of a calibrated model."""
        model.calibration_.check_signs()
        whole = self._make_distribution(model, slice(None), model.calibration_)
        return whole if self.parts is None else GroupedDistribution(whole, self.parts)

    def _make_distribution(self, model: Any, rows: Any, calibration: RegressionCalibration) -> PredictiveDistribution:
        """Return the distributions of some rows, from calibration rows for them."""
        return PredictiveDistribution(
            value=self.value[rows],
            sigma=self._get_interval_sigma(model, calibration.width)[rows],
            calibration=calibration,
            domain=model.domain_ or Domain(),
            shape=model._shape,
            curves=None if self.curves is None else self.curves[rows],
            is_flat=model._target_is_flat,
        )

    def get_interval(self, model: Any, coverage: float, *, simultaneous: bool, tails: str) -> Floats:
        """Return the intervals of a calibrated model, shape (n, 2) or (n, D, 2)."""
        sigma, interval = self._get_interval_sigma(model, model.calibration_.width), np.empty((*self.value.shape, 2))
        options: Any = {"coverage": coverage, "simultaneous": simultaneous}
        is_plain = tails == "symmetric" and self.curves is None and model.domain_ is None
        for rows, calibration in model.calibration_.split(self.parts):
            if is_plain:
                interval[rows] = calibration.interval(self.value[rows], sigma[rows], **options)
            else:
                distribution = self._make_distribution(model, rows, calibration)
                interval[rows] = distribution.interval_columns(tails=tails, **options)
        return _shape_like_target(model, interval)

    def get_radius(self, model: Any, coverage: float) -> Floats:
        """Return the radius of the ball around each value, shape (n,)."""
        if model.domain_ is not None and model.domain_.scale != "linear":
            raise InvalidInputError(
                "predict_radius needs a target that is learned as it is: on another scale a ball is none. Got a model "
                f"that learns the {model.domain_.scale} of the target. Use predict_interval, or fit with domain=None."
            )
        sigma, radius = self._get_interval_sigma(model, model.calibration_.width), np.empty(len(self.value))
        for rows, calibration in model.calibration_.split(self.parts):
            radius[rows] = calibration.radius(sigma[rows], model.spread_, coverage=coverage)
        return radius

    def calibrate(self, model: Any, y: Any) -> RegressionCalibration:
        """Compare the prediction with the truth."""
        target = as_columns(check_regression_target(model, y))
        if is_frame(y):
            check_output_names(model, y.columns, model._output_names)
        check_same_length(self.uncertainty, target)
        check_n_outputs(model, target, self.value.shape[1])
        domain = model.domain_
        if domain is not None:
            domain.check(target)
        # Scores of shapes of their own are in the units of one sigma alone.
        names = ("total", "noise") if self.curves is None else ("total",)
        others = {name: self._get_interval_sigma(model, name) for name in names}
        measured = RegressionCalibration.measure(
            residual=(target if domain is None else domain.to_scale(target)) - self.value,
            sigma=self._get_interval_sigma(model, model._usual_width),
            uncertainty=self.uncertainty,
            spread=model.spread_,
            missed=self.missed,
            width=model._usual_width,
            others=others,
        )
        if domain is not None:  # errors are in the unit of the target
            measured = replace(measured, error=root_mean_square(target - domain.from_scale(self.value)))
        if self.curves is not None:
            # Any place in the step of equal targets, and the same again for the same rows.
            place = np.random.default_rng(crc32(self.value.tobytes())).uniform(size=target.shape)
            measured = replace(measured, residuals=model._shape.to_scores(measured.residuals, self.curves, place))
        return measured

    def _get_interval_sigma(self, model: Any, width: str) -> Floats:
        """Return the sigma in whose units intervals are measured; see `onsphere.calibration.width`."""
        return pick_width(width, self.value, self.sigma, self.noise, model)


def pick_width(width: str, value: Any, sigma: Any, noise: Any, model: Any) -> Any:
    """Return the sigma of a name in `onsphere.calibration.width`, (n, D); numpy, or arrays of a graph."""
    if width == "flat":
        return value * 0.0 + model.spread_
    return (noise if width == "noise" and noise is not None else sigma) + model._get_floor()


def convert_value(model: Any, value: Floats) -> Floats:
    """Return a value in the unit and the shape of the y of fit."""
    return _shape_like_target(model, value if model.domain_ is None else model.domain_.from_scale(value))


def _shape_like_target(model: Any, values: Floats) -> Floats:
    return values[:, 0] if model._target_is_flat else values


class RegressionMixin(DistributionMixin):
    """Standard deviations, intervals, balls and distributions of a model that predicts numbers."""

    spread_: Floats
    _target_is_flat: bool
    _output_names: tuple[str, ...] | None = None
    _sigma_factor: Floats | None = None  # by which calibration made sigma fit the errors; older files have none
    _floor: Floats | None = None  # None for a share of the spread, as in models of older files

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[reportAttributeAccessIssue]
        tags.target_tags.multi_output = True
        return tags

    def _has_classes(self, y: Any) -> bool:
        return False

    @property
    def _usual_width(self) -> str:
        """The sigma in whose units errors are measured before labels come in; see `onsphere.calibration.width`."""
        return "total" if self.domain_ is None or self.domain_.scale == "linear" else "noise"

    def _get_floor(self) -> Floats:
        """Return what is added to sigma in intervals, (D,)."""
        return SIGMA_FLOOR * self.spread_ if self._floor is None else self._floor

    def _calibrate_sigma(self, sigma: Any) -> Any:
        """Return sigma times the factor that makes it fit the errors of the calibration rows, if there are any."""
        if self._sigma_factor is None:
            return sigma
        return (sigma + self._get_floor()) * self._sigma_factor

    def _check_target(self, y: Any) -> Floats:
        """Return the target of fit, (n,) or (n, D), checked, and remember its shape and names."""
        target = check_regression_target(self, y)
        self._target_is_flat = target.ndim == 1
        self._output_names = tuple(str(name) for name in y.columns) if is_frame(y) else None
        return target

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> NDArray[Any]: ...
    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[Floats, Floats]: ...
    def predict(self, X: Any, return_std: bool = False) -> NDArray[Any] | tuple[Floats, Floats]:
        """Predict the target and, if asked, the standard deviation of its noise, from one pass.

        Returns
        -------
        value : array of shape (n,) or (n, D), like the y of fit
        sigma : array like value, with return_std=True
        """
        if not return_std:
            return self._predict_value(X)
        prediction = self._predict_as(RegressionPrediction, X, "predict with return_std=True", "numbers")
        return prediction.get_value(self), prediction.get_sigma(self)

    def _predict_value(self, X: Any) -> NDArray[Any]:
        return self._predict(X).get_value(self)

    def predict_sigma(self, X: Any) -> Floats:
        """Return the standard deviation of the noise, in the unit and shape of the target."""
        return self._predict_as(RegressionPrediction, X, "predict_sigma", "numbers").get_sigma(self)

    def predict_distribution(self, X: Any, *, groups: Any = None) -> PredictiveDistribution | GroupedDistribution:
        """Return the distribution of the target of each row, from one pass; needs a calibrated model.

        The promise is that of `predict_interval`, for every quantile. After `update`, quantiles and intervals keep
        their share of the targets over time, and all else is as the latest rows say. `groups` is that of
        `predict_interval`.
        """
        return self._predict_calibrated(X, groups, "predict_distribution").get_distribution(self)

    def _predict_calibrated(self, X: Any, groups: Any, method: str) -> RegressionPrediction:
        """Return the prediction of rows, and the calibration rows of each, for a method that needs them."""
        self._require_calibration(method)
        return self._predict_by_group(X, groups, method, self._predict_as(RegressionPrediction, X, method, "numbers"))

    def predict_interval(
        self,
        X: Any,
        *,
        coverage: float | Sequence[float] = 0.9,
        simultaneous: bool = True,
        tails: str = "symmetric",
        groups: Any = None,
    ) -> Floats:
        """Return intervals that hold the target with probability `coverage`; needs a calibrated model.

        Split conformal prediction, with errors measured in units of sigma. For rows drawn like the calibration rows
        (and a calibration on rows that were not trained on) the promise holds on average over rows and calibration
        sets, whatever the backbone. It holds for groups of rows if they are named to `calibrate`, for shifted inputs if
        `calibrate` gets `target_rows`, and over time if `update` gets the labels.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), or several, default 0.9
        simultaneous : bool, default True
            For several outputs, whether all of a row lie in their intervals at once with that probability, or each
            by itself.
        tails : {"symmetric", "equal", "shortest"}
            Where the misses lie; see `PredictiveDistribution.interval`.
        groups : array of shape (n,), optional
            The group of each row, for a model that was calibrated with groups given as values.

        Returns
        -------
        array of shape (n, 2), or (n, D, 2) if y had two dimensions: lower and upper end; for several coverages, as
        many of these
        """
        is_list = not isinstance(coverage, str) and np.ndim(coverage) == 1
        asked: list[Any] = list(coverage) if is_list else [coverage]  # type: ignore[reportArgumentType]
        if not asked or isinstance(coverage, str):
            raise parameter_error("predict_interval", "coverage", "a number in (0, 1), or several", coverage)
        for each in asked:
            check_number("predict_interval", "coverage", each, above=0, below=1)
        check_flag("predict_interval", "simultaneous", simultaneous)
        check_option("predict_interval", "tails", tails, TAILS)
        prediction = self._predict_calibrated(X, groups, "predict_interval")
        found = [prediction.get_interval(self, each, simultaneous=simultaneous, tails=tails) for each in asked]
        return np.stack(found) if is_list else found[0]

    def predict_radius(self, X: Any, *, coverage: float = 0.9, groups: Any = None) -> Floats:
        """Return the radius of the ball around each prediction that holds all outputs with probability `coverage`.

        Outputs are measured in units of their spread: the target y is inside the ball if
        ‖(y − model.predict(X)) / model.spread_‖ ≤ radius (with 1 for the spread of a constant output). The promise is
        that of `predict_interval`.

        Returns
        -------
        array of shape (n,)
        """
        check_number("predict_radius", "coverage", coverage, above=0, below=1)
        return self._predict_calibrated(X, groups, "predict_radius").get_radius(self, coverage)
