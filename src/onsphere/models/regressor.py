"""HCMRegressor: an uncertainty for every number that any regressor predicts, and what all regression models share."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any, ClassVar, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin, clone

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_flag,
    check_n_outputs,
    check_number,
    check_option,
    check_output_names,
    check_regression_target,
    check_same_length,
    check_sample_weight,
    is_frame,
    parameter_error,
)
from onsphere.calibration import RegressionCalibration, root_mean_square
from onsphere.errors import InvalidInputError, OnsphereWarning
from onsphere.models.backbone import (
    BackboneModel,
    fit_backbone,
    get_learner,
    join_columns,
    prepare_backbone,
    split_columns,
)
from onsphere.models.base import CalibratedModel
from onsphere.models.frames import FRAMES, Frames, Measured, check_frames, find_numbers, fit_novelty
from onsphere.models.noise import N_ROWS_NEEDED, SIGMA_FLOOR, fit_error_frame, has_mean_leaves, predict_left_out
from onsphere.sphere import Duplicate, Lift, Polar, RegressionEmbedding, Torus, geometry, scores
from onsphere.sphere.embeddings import as_columns
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["SIGMA_FLOOR", "HCMRegressor", "RegressionMixin", "RegressionPrediction"]

_EMBEDDINGS: dict[str, type[RegressionEmbedding]] = {
    "lift": Lift,
    "polar": Polar,
    "duplicate": Duplicate,
    "torus": Torus,
}


class RegressionPrediction(NamedTuple):
    """One pass over rows with numbers to predict, in their own unit.

    Attributes
    ----------
    value, sigma : arrays of shape (n, D)
    uncertainty : array of shape (n,)
    details : dict
        Further fields of an Assessment.
    noise : array of shape (n, D), or None
    novelty, missed : arrays of shape (n,), or None
        See `onsphere.models.frames.Measured`.
    parts : int array of shape (n,), or None
        The part of the calibration rows that each row uses.
    """

    value: Floats
    sigma: Floats
    uncertainty: Floats
    details: dict[str, Any]
    noise: Floats | None = None
    novelty: Floats | None = None
    missed: Floats | None = None
    parts: NDArray[np.intp] | None = None

    def get_value(self, model: Any) -> Floats:
        """Return the value in the shape of the y of fit."""
        return _shape_like_target(model, self.value)

    def get_fields(self, model: Any) -> dict[str, Any]:
        """Return the fields of an Assessment that need no calibration."""
        names = model._output_names
        sigma = _shape_like_target(model, self.sigma)
        frames = {"noise": self.get_noise(model), "novelty": self.novelty}
        return {"sigma": sigma, "output_names": names, **frames, **self.details}

    def get_noise(self, model: Any) -> Floats | None:
        """Return the noise in the shape of the y of fit."""
        return None if self.noise is None else _shape_like_target(model, self.noise)

    def get_bounds(self, model: Any, coverage: float) -> dict[str, Any]:
        """Return both ends of the intervals that hold all outputs of a row at once."""
        interval = self.get_interval(model, coverage, simultaneous=True)
        return {"lower": interval[..., 0], "upper": interval[..., 1]}

    def get_interval(self, model: Any, coverage: float, *, simultaneous: bool) -> Floats:
        """Return the intervals of a calibrated model, shape (n, 2) or (n, D, 2)."""
        sigma, interval = self._get_interval_sigma(model), np.empty((*self.value.shape, 2))
        options: Any = {"coverage": coverage, "simultaneous": simultaneous}
        for rows, calibration in model.calibration_.split(self.parts):
            interval[rows] = calibration.interval(self.value[rows], sigma[rows], **options)
        return _shape_like_target(model, interval)

    def get_radius(self, model: Any, coverage: float) -> Floats:
        """Return the radius of the ball around each value, shape (n,)."""
        sigma, radius = self._get_interval_sigma(model), np.empty(len(self.value))
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
        return RegressionCalibration.measure(
            residual=target - self.value,
            sigma=self._get_interval_sigma(model),
            uncertainty=self.uncertainty,
            spread=model.spread_,
            missed=self.missed,
        )

    def _get_interval_sigma(self, model: Any) -> Floats:
        return self.sigma + SIGMA_FLOOR * model.spread_


def _shape_like_target(model: Any, values: Floats) -> Floats:
    return values[:, 0] if model._target_is_flat else values


class RegressionMixin(CalibratedModel):
    """Standard deviations, intervals and balls of a model that predicts numbers."""

    spread_: Floats
    _target_is_flat: bool
    _output_names: tuple[str, ...] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[reportAttributeAccessIssue]
        tags.target_tags.multi_output = True
        return tags

    def _has_classes(self, y: Any) -> bool:
        return False

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
            return self._predict(X).get_value(self)
        prediction = self._predict_as(RegressionPrediction, X, "predict with return_std=True", "numbers")
        return prediction.get_value(self), _shape_like_target(self, prediction.sigma)

    def predict_sigma(self, X: Any) -> Floats:
        """Return the standard deviation of the noise, in the unit and shape of the target."""
        return _shape_like_target(self, self._predict_as(RegressionPrediction, X, "predict_sigma", "numbers").sigma)

    def predict_interval(
        self, X: Any, *, coverage: float = 0.9, simultaneous: bool = True, groups: Any = None
    ) -> Floats:
        """Return intervals that hold the target with probability `coverage`; needs a calibrated model.

        Split conformal prediction, with errors measured in units of sigma. For rows drawn like the calibration rows
        (and a calibration on rows that were not trained on) the promise holds on average over rows and calibration
        sets, whatever the backbone. It holds for groups of rows if they are named to `calibrate`, for shifted inputs if
        `calibrate` gets `target_rows`, and over time if `update` gets the labels.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9
        simultaneous : bool, default True
            For several outputs, whether all of a row lie in their intervals at once with that probability, or each
            by itself.
        groups : array of shape (n,), optional
            The group of each row, for a model that was calibrated with groups given as values.

        Returns
        -------
        array of shape (n, 2), or (n, D, 2) if y had two dimensions: lower and upper end
        """
        check_number("predict_interval", "coverage", coverage, above=0, below=1)
        check_flag("predict_interval", "simultaneous", simultaneous)
        self._require_calibration("predict_interval")
        prediction = self._predict_as(RegressionPrediction, X, "predict_interval", "numbers")
        prediction = self._predict_by_group(X, groups, "predict_interval", prediction)
        return prediction.get_interval(self, coverage, simultaneous=simultaneous)

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
        self._require_calibration("predict_radius")
        prediction = self._predict_as(RegressionPrediction, X, "predict_radius", "numbers")
        return self._predict_by_group(X, groups, "predict_radius", prediction).get_radius(self, coverage)


class HCMRegressor(RegressionMixin, RegressorMixin, BackboneModel):
    """A regressor whose predictions carry an uncertainty, over any regressor, for one output or many.

    The target is placed on a sphere, the backbone learns the place, and how far its prediction falls off the sphere is
    an uncertainty: that of the target frame, which is honest among rows like the training rows. Two further frames do
    the same for the input, which tells how unlike all training rows a row is (novelty), and for the error on rows left
    out, which tells how large errors are among similar rows (noise). The uncertainty is the total of both.

    Parameters
    ----------
    estimator : regressor, optional
        The backbone. A multi-output regressor is used as it is; one for a single output is fitted once per column.
        By default ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2).
    embedding : {"lift", "polar", "duplicate", "torus"} or an embedding, default "lift"
        How the target is placed on the sphere; see `onsphere.sphere`.
    decoder : {"mean", "product", "projective"}, default "mean"
        How the prediction is read off the backbone: from an output trained on the target itself, as R·d (the
        paper's), or from the direction and the known anchor alone (Lift only).
    frames : "all", "target", or a tuple of "target", "error" and "input", default "all"
        What is fitted. "target" alone is the paper's method. "error" costs forests a pass over the training rows and
        other backbones five more fits, on four fifths of the rows each; "input" costs a small forest and 300 landmarks.
        With fewer than 40 rows there is no error frame.
    uncertainty_score : {"auto", "total", "distance", "anchored", "sigma", "violation", "signed"}, default "auto"
        What `predict_uncertainty` gives. "total" is the standard deviation of the whole error, in which novelty and
        noise count. The others are of the target frame: "distance" is the paper's u, how far the prediction misses the
        sphere; "anchored" is u + a (Lift only, better against shifted inputs); "sigma" is σ̂. All these are in the unit
        of the target (for several outputs, of the root mean square of their standard deviations). "violation" and
        "signed" have no unit, and "signed" ranks directions that overshoot, the mark of extrapolation, as trusted.
        "auto" is "distance" with frames="target", else "total".
    calibration : None, "split", "cv" or float in (0, 1), default None
        What `fit` keeps back to calibrate on: nothing (call `calibrate` yourself), a fifth or this share of the rows,
        or each of five folds in turn. With "cv" every row is both trained and calibrated on: the intervals come from
        models trained on four fifths of the rows and are used with one trained on all of them, which is usually a
        little too careful and carries no guarantee; a split does.
    random_state : int, RandomState or None
        Seeds the backbone wherever its own random_state is None.

    Attributes
    ----------
    estimator_ : regressor
        The fitted backbone.
    embedding_ : embedding
        The fitted embedding.
    calibration_ : RegressionCalibration or None
    threshold_ : float or None
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from onsphere import HCMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HCMRegressor(random_state=0).fit(X[:300], y[:300]).calibrate(X[300:400], y[300:400])
    >>> result = model.assess(X[400:])
    >>> result.value.shape, result.uncertainty.shape, bool((result.sigma > 0).all())
    ((42,), (42,), True)
    >>> model.predict_interval(X[400:], coverage=0.9).shape
    (42, 2)
    """

    _calibrated_settings: ClassVar[tuple[str, ...]] = ("uncertainty_score", "decoder")

    embedding_: RegressionEmbedding
    _frames: Frames | None = None  # models of older files have none

    def __init__(
        self,
        estimator: Any = None,
        *,
        embedding: str | RegressionEmbedding = "lift",
        decoder: str = "mean",
        frames: str | Collection[str] = "all",
        uncertainty_score: str = "auto",
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.embedding = embedding
        self.decoder = decoder
        self.frames = frames
        self.uncertainty_score = uncertainty_score
        self.calibration = calibration
        self.random_state = random_state

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        asked = check_frames(self, FRAMES)
        embedding = self._make_embedding()
        backbone = prepare_backbone(self, self.estimator, self.random_state)
        rows = self._check_rows(X, fitting=True)
        target = self._check_target(y)
        check_same_length(rows, target)
        weights = check_sample_weight(sample_weight, rows)
        self.embedding_ = embedding.fit(target, weights)
        self.spread_ = embedding.spread_
        carried = {"magnitude": embedding.has_magnitude, "mean": self.decoder == "mean"}
        columns = join_columns(embedding.embed(target), **carried)
        self._layout: dict[str, Any] = {"n_outputs": embedding.n_outputs_, **carried}
        self._n_columns = columns.shape[1]
        self.estimator_ = fit_backbone(self, backbone, rows, columns, weights, self._layout)
        self._frames = self._fit_frames(asked, rows, as_columns(target), columns, weights)

    def _fit_frames(
        self, asked: set[str], rows: Any, target: Floats, columns: Floats, weights: Floats | None
    ) -> Frames | None:
        """Fit the frames that are asked for beside the target's; None if there are none."""
        self._center = np.average(target, axis=0, weights=weights)
        found = find_numbers(self, self.estimator_, rows) if asked & {"input", "error"} else None
        if found is None:
            return None
        n_steps, numbers = found
        input_frame, missed = None, None
        if "input" in asked:
            input_frame, missed = fit_novelty(self, numbers, columns, weights)
        error_frame = None
        counted = np.ones(len(target), dtype=bool) if weights is None else weights > 0
        if "error" in asked and counted.sum() >= N_ROWS_NEEDED:
            try:
                left_out = predict_left_out(self, self.estimator_, rows, columns, weights, self._layout)
            except InvalidInputError as error:  # for instance a category, or a known cell, that one fold alone has
                warnings.warn(
                    f"{type(self).__name__} takes sigma for the noise, because not every fifth of the rows can be left "
                    f"out: {error}",
                    OnsphereWarning,
                    stacklevel=4,
                )
                return Frames(n_steps, input_frame, None)
            outputs = split_columns(left_out[counted], **self._layout)
            error_frame = fit_error_frame(
                numbers[counted],
                self.embedding_.decode(outputs, decoder=self.decoder),
                self.embedding_.sigma(outputs),
                target[counted],
                None if missed is None else missed[counted],
                spread=self.spread_,
                learns=not has_mean_leaves(get_learner(self.estimator_)[1]),
                random_state=0,
            )
        return Frames(n_steps, input_frame, error_frame)

    def predict_uncertainty_per_output(self, X: Any) -> Floats:
        """Return a score for each output, shape (n, D); needs embedding="torus"."""
        check_fitted(self, "estimator_")
        if not isinstance(self.embedding_, Torus):
            raise InvalidInputError(
                "predict_uncertainty_per_output needs embedding='torus', which gives every output circles of its own. "
                f"Got {type(self.embedding_).__name__}. Fit again with HCMRegressor(embedding='torus')."
            )
        return self.embedding_.uncertainty_per_output(self._predict_outputs(X)[1])

    def _predict(self, X: Any) -> RegressionPrediction:
        numbers, outputs = self._predict_outputs(X)
        details = {"direction_norm": geometry.norm(outputs.direction), "magnitude": outputs.magnitude}
        if isinstance(self.embedding_, Lift):
            anchor = self.embedding_.anchor
            details["anchor_residual"] = geometry.anchor_residual(outputs.direction, outputs.magnitude, anchor)
        value, sigma = self.embedding_.decode(outputs, decoder=self.decoder), self.embedding_.sigma(outputs)
        measured = self._measure(numbers, value, sigma)
        return RegressionPrediction(
            value=value,
            sigma=measured.sigma,
            uncertainty=self._compute_uncertainty(outputs, sigma, measured.sigma),
            details=details,
            noise=None if self._frames is None else measured.noise,
            novelty=measured.novelty,
            missed=measured.missed,
        )

    def _get_ordinary(self) -> float | None:
        return None if self._frames is None else self._frames.ordinary

    def _measure(self, numbers: Any, value: Any, sigma: Any, *, predict: Any = None) -> Measured:
        """Return noise, total sigma and novelty; numpy, or arrays of a graph."""
        if self._frames is None:
            return Measured(sigma, sigma, None, None)
        ends = {"center": self._center, "spread": self.spread_}
        return self._frames.measure(numbers, value, sigma, **ends, predict=predict)

    def _predict_outputs(self, X: Any) -> tuple[Floats | None, SphericalOutput]:
        """Return the numbers that the frames see, and what the backbone predicts."""
        check_fitted(self, "estimator_")
        numbers, table = self._run_backbone(X, self._n_columns)
        return numbers, split_columns(table, **self._layout)

    def _make_embedding(self) -> RegressionEmbedding:
        given: Any = self.embedding
        if isinstance(given, str):
            check_option(self, "embedding", given, list(_EMBEDDINGS))
            given = _EMBEDDINGS[given]()
        if not isinstance(given, RegressionEmbedding):
            raise parameter_error(self, "embedding", "a name or an instance of a regression embedding", given)
        check_option(self, "decoder", self.decoder, given.decoders)
        self._check_score(given)
        return clone(given)  # type: ignore[reportReturnType]

    def _compute_uncertainty(self, outputs: SphericalOutput, sigma: Floats, total: Floats) -> Floats:
        embedding = self.embedding_
        self._check_score(embedding)
        score = self.uncertainty_score
        if score == "auto":
            score = "distance" if self._frames is None else "total"
        match score:
            case "total":
                return root_mean_square(total)
            case "distance":
                return embedding.relative_uncertainty(outputs) * embedding.unit_
            case "anchored":
                return scores.anchored(outputs, embedding.anchor) * embedding.unit_  # type: ignore
            case "sigma":
                return root_mean_square(sigma)
            case "violation":
                return scores.violation(outputs)
            case _:
                return scores.signed(outputs)

    def _check_score(self, embedding: RegressionEmbedding) -> None:
        lifted = ["anchored"] if isinstance(embedding, Lift) else []
        possible = ["auto", "total", "distance", *lifted, "sigma", "violation", "signed"]
        check_option(self, "uncertainty_score", self.uncertainty_score, possible)
