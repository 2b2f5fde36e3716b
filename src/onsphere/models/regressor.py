"""HCMRegressor: an uncertainty for every number that any regressor predicts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, overload
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray
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
    is_fitted_already,
    is_frame,
    missing_frame_error,
    parameter_error,
)
from onsphere.calibration import RegressionCalibration, root_mean_square
from onsphere.calibration.calibration import divide_errors
from onsphere.calibration.distribution import TAILS, PredictiveDistribution
from onsphere.calibration.grouped_distribution import GroupedDistribution
from onsphere.calibration.shape import SHAPES
from onsphere.calibration.zeros import ZeroShape
from onsphere.errors import InvalidInputError
from onsphere.models.backbone import (
    BackboneModel,
    fit_backbone,
    get_fitted,
    get_learner,
    join_columns,
    name_backbone,
    point_to_tables,
    prepare_backbone,
    split_columns,
    sum_categories,
    unwrap_fitted,
)
from onsphere.models.choice import choose_for
from onsphere.models.distributions import DistributionMixin
from onsphere.models.fitted import check_features, wrap_fitted
from onsphere.models.frames import (
    FRAMES,
    Fitting,
    Measured,
    check_frames,
    fit_frames,
    pick_width,
    resolve_frames,
)
from onsphere.models.known_rows import warn_about_known_leaves, warn_about_small_errors
from onsphere.models.noise import SIGMA_FLOOR, clip_inputs, has_mean_leaves
from onsphere.models.target_scale import choose_domain, scale_eval_set
from onsphere.sphere import Domain, Duplicate, Lift, Polar, RegressionEmbedding, Torus, geometry, scores
from onsphere.sphere.embeddings import as_columns
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["HCMRegressor", "RegressionMixin", "RegressionPrediction"]


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
        return _convert_value(model, self.value)

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


def _convert_value(model: Any, value: Floats) -> Floats:
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


_EMBEDDINGS: dict[str, type[RegressionEmbedding]] = {
    "lift": Lift,
    "polar": Polar,
    "duplicate": Duplicate,
    "torus": Torus,
}


class HCMRegressor(RegressionMixin, RegressorMixin, BackboneModel):
    """A regressor whose predictions carry an uncertainty, over any regressor, for one output or many.

    The target is placed on a sphere, the backbone learns the place, and how far its prediction falls off the sphere is
    an uncertainty: that of the target frame, which is honest among rows like the training rows. Two further frames do
    the same for the input, which tells how unlike all training rows a row is (novelty), and for the error on rows left
    out, which tells how large errors are among similar rows (noise). The uncertainty is the total of both.

    Parameters
    ----------
    estimator : regressor, "auto", a fitted model, or None
        The backbone; by default ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2). "auto" chooses among a
        kernel, boosting, trees and a network. A model that is fitted already stays
        as it is, and `fit` learns its noise and novelty from rows that it has not seen: a FrozenEstimator of
        scikit-learn, a booster of LightGBM or XGBoost, a function of rows, or the name of an ONNX file.
    embedding : {"lift", "polar", "duplicate", "torus"} or an embedding, default "lift"
        How the target is placed on the sphere; see `onsphere.sphere`.
    decoder : {"mean", "product", "projective"}, default "mean"
        How the prediction is read off the backbone: from an output trained on the target itself, as R·d (the
        paper's), or from the direction and the known anchor alone (Lift only).
    frames : "all", "target", or a tuple of "target", "error" and "input", default "all"
        What is fitted. "target" alone is the paper's method. "error" costs forests a pass over the training rows and
        other backbones five more fits, on four fifths of the rows each; "input" costs a small forest and 300 landmarks.
        With fewer than 40 rows there is no error frame. A regressor for one output, such as boosting or a search, and a
        fitted model predict the value alone: "all" is then "error" and "input", and five more fits are two on halves
        with 1,000 rows or more, and one with 5,000. A tuple with "target" fits one copy per column, whose directions
        may overshoot the sphere.
    uncertainty_score : {"auto", "total", "distance", "anchored", "sigma", "violation", "signed"}, default "auto"
        What `predict_uncertainty` gives, a score that ranks rows. "total" is the standard deviation of the whole error
        as known at fit, in which novelty and noise count; `calibrate` brings `sigma` to the level of the errors, and
        leaves the score. The others are of the target frame: "distance" is the paper's u, how far the prediction misses
        the sphere; "anchored" is u + a (Lift only, better against shifted inputs); "sigma" is σ̂. All these are in the
        unit of the target (for several outputs, of the root mean square of their standard deviations). "violation" and
        "signed" have no unit, and "signed" ranks directions that overshoot, the mark of extrapolation, as trusted.
        "auto" is "distance" with frames="target", else "total".
    calibration : None, "split", "cv", float in (0, 1), or a splitter, default None
        What `fit` keeps back to calibrate on: nothing (call `calibrate` yourself), a fifth or this share of the rows,
        each of five folds in turn, or what a splitter of scikit-learn or a list of (train, test) rows says. With "cv"
        every row is both trained and calibrated on: the intervals come from models trained on four fifths of the rows
        and are used with one trained on all of them, which is usually a little too careful and carries no guarantee; a
        split does.
    n_jobs : int, optional
        How many fits run at once: of the folds of "cv", of the error frame, and of the candidates of "auto".
    domain : None, "auto", "positive", "count" or (low, high), default None
        The values that the target can have: any number, at least 0, whole numbers of at least 0, or a range (None for
        an open end). Intervals, quantiles and samples stay inside. A skewed target that is never negative is learned as
        its root or logarithm if that gives better intervals on left-out rows; then `predict` gives the middle of the
        distribution, and `predict_mean` its mean. "auto" finds the domain from the targets and says so in
        `domain_.reason`.
    shape : {"pooled", "local", "auto"}, default "pooled"
        Whether errors have the same distribution on all rows, apart from sigma, or one that trees learn from rows left
        out, at the cost of five fits on four fifths of the rows. "auto" takes the better on left-out rows. Coverage
        holds with each.
    random_state : int, RandomState or None
        Seeds the backbone wherever its own random_state is None.

    Attributes
    ----------
    estimator_ : regressor
        The fitted backbone.
    candidates_ : list of dict
        With "auto", the figures by which the backbone was chosen; empty with too few rows to compare.
    embedding_ : embedding
        The fitted embedding.
    domain_ : Domain or None
        What is known of the target, and the scale on which it is learned.
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
    _layout: dict[str, Any] | None  # of the columns that the backbone learns; None for the value alone
    _n_columns: int
    _fitting: Fitting = Fitting()
    _has_known_rows = False  # that a fitted model reproduces, as was warned about
    _errors_at_fit: tuple[int, float] | None = None  # of a fitted model: the number of rows, and their median error

    def __init__(
        self,
        estimator: Any = None,
        *,
        embedding: str | RegressionEmbedding = "lift",
        decoder: str = "mean",
        frames: str | Collection[str] = "all",
        uncertainty_score: str = "auto",
        calibration: str | float | None = None,
        domain: str | tuple[float | None, float | None] | None = None,
        shape: str = "pooled",
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.embedding = embedding
        self.decoder = decoder
        self.frames = frames
        self.uncertainty_score = uncertainty_score
        self.calibration = calibration
        self.domain = domain
        self.shape = shape
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        eval_set: Any = None,
    ) -> Self:
        """Fit the model and, depending on the parameter `calibration`, calibrate it on rows kept back.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : targets of shape (n,) or (n, D)
        sample_weight : array of shape (n,), optional
            For backbones that weigh their rows. Calibration counts every row once.
        groups : array of shape (n,), optional
            The group of each row, for a splitter as `calibration` that keeps groups together.
        eval_set : list of (X, y), or one (X, y), optional
            Further rows, for boosting of LightGBM, XGBoost or CatBoost that stops early by them.

        Returns
        -------
        self
        """
        self._fitting = Fitting(eval_set)
        try:
            return super().fit(X, y, sample_weight, groups=groups)
        finally:
            del self._fitting

    def _inspect_rows(self, X: Any) -> None:
        model = unwrap_fitted(self.estimator_)
        if model is not None and not self._has_known_rows:
            warn_about_known_leaves(model, X, stacklevel=4)

    def _make_fold(self, kept: NDArray[np.intp]) -> Any:
        fold = self._clone_chosen()
        is_local = self._shape is not None and self._shape.trees is not None
        kind = "zeros" if isinstance(self._shape, ZeroShape) else "local" if is_local else "pooled"
        known = self._fitting.left_out
        left_out = None if known is None else known.take(kept)
        fold._fitting = self._fitting._replace(left_out=left_out, choices=(self.domain_, kind))
        return fold

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        asked = check_frames(self, FRAMES)
        check_option(self, "shape", self.shape, SHAPES)
        embedding = self._make_embedding()
        fitted = wrap_fitted(self, self.estimator) if is_fitted_already(self.estimator) else None
        backbone = fitted or (None if self._is_auto() else prepare_backbone(self, self.estimator, self.random_state))
        rows = self._check_rows(X, fitting=True)
        target = self._check_target(y)
        check_same_length(rows, target)
        if backbone is None:
            with point_to_tables(rows):
                chosen, self.candidates_ = choose_for(self, rows, target, has_classes=False)
            backbone = prepare_backbone(self, chosen, self.random_state)
        asked = resolve_frames(self, asked, backbone, embedding)
        weights = check_sample_weight(sample_weight, rows)
        has_target = "target" in asked
        self.domain_ = None
        if self._fitting.choices is not None:
            self.domain_ = self._fitting.choices[0]
        elif self.domain is not None:
            self.domain_ = choose_domain(self, embedding, backbone, rows, target, weights, has_target=has_target)
        scaled = target if self.domain_ is None else self.domain_.to_scale(target)
        given = (embedding, backbone, rows, scaled, weights, self._scale_eval_set(self.domain_))
        columns, learned = self._fit_target(*given, has_target=has_target)
        self._center = np.average(scaled, axis=0, weights=weights)
        self._shape = None
        self._frames = fit_frames(self, asked, rows, as_columns(scaled), columns, learned, weights)

    def _scale_eval_set(self, domain: Domain | None) -> Any:
        given = self._fitting.eval_set
        return None if given is None else scale_eval_set(self, domain, given)

    def _fit_target(
        self,
        embedding: RegressionEmbedding,
        backbone: Any,
        rows: Any,
        target: Floats,
        weights: Floats | None,
        eval_set: Any,
        *,
        has_target: bool,
    ) -> tuple[Floats, Floats]:
        """Fit the embedding and the backbone; return the columns of the sphere, and those that the backbone learned."""
        self.embedding_ = embedding.fit(target, weights)
        self.spread_ = embedding.spread_
        carried = {"magnitude": embedding.has_magnitude, "mean": self.decoder == "mean"}
        columns = join_columns(embedding.embed(target), **carried)
        self._layout = {"n_outputs": embedding.n_outputs_, **carried} if has_target else None
        learned = columns if has_target else as_columns(target)
        self._n_columns = learned.shape[1]
        self._errors_at_fit = self._sigma_factor = self._floor = None
        if get_fitted(backbone) is not None:
            check_features(self, backbone, rows)
            if eval_set is not None:
                raise InvalidInputError(
                    f"A {name_backbone(backbone)} stays as it is, so fit of {type(self).__name__} has no use for an "
                    "eval_set. Leave it out, or pass the model without FrozenEstimator to fit it."
                )
            self.estimator_ = backbone
        else:
            given = (backbone, rows, learned, weights, self._layout)
            self.estimator_ = fit_backbone(self, *given, eval_set=eval_set)
        return columns, learned

    def _set_calibration(self, calibration: Any, **options: Any) -> None:
        super()._set_calibration(calibration, **options)
        has_curves = self._shape is not None and self._shape.trees is not None
        if not has_curves:
            ratios = calibration.use_width("total").ratios
        elif calibration.sigma is not None:  # residuals are scores here, and no ratios
            ratios = divide_errors(calibration.scaled_errors, calibration.sigma)
        else:
            ratios = np.full_like(calibration.residuals, np.nan)
        size = np.sqrt(np.average(np.square(ratios), axis=0, weights=calibration.weights))
        self._sigma_factor = size if np.isfinite(size).all() else None
        if self._errors_at_fit is not None:
            warn_about_small_errors(*self._errors_at_fit, calibration.error, stacklevel=4)

    def _read_table(self, table: Any) -> tuple[SphericalOutput | None, Any, Any]:
        """Return the place on the sphere, the value and its sigma; no place and no sigma without a target frame."""
        if self._layout is None:
            return None, table, None
        outputs = split_columns(table, **self._layout)
        sigma = self.embedding_.sigma(outputs)
        return outputs, self.embedding_.decode(outputs, decoder=self.decoder), sigma

    def predict_uncertainty_per_output(self, X: Any) -> Floats:
        """Return a score for each output, shape (n, D); needs embedding="torus"."""
        check_fitted(self, "estimator_")
        if not isinstance(self.embedding_, Torus):
            raise InvalidInputError(
                "predict_uncertainty_per_output needs embedding='torus', which gives every output circles of its own. "
                f"Got {type(self.embedding_).__name__}. Fit again with HCMRegressor(embedding='torus')."
            )
        return self.embedding_.uncertainty_per_output(self._predict_outputs(X)[1])  # type: ignore[reportArgumentType]

    @property
    def noise_importances_(self) -> Floats:
        """The weight of each column in the noise, (p,); at most 1 in all.

        The rest is the prediction's. For forests with a target frame these are the importances for the target.
        Where the steps of a pipeline make numbers of the columns, there is one for each number.
        """
        check_fitted(self, "estimator_")
        frames = self._frames
        error = None if frames is None else frames.error
        learner = get_learner(self.estimator_)[1]
        if error is not None and error.trees is None and has_mean_leaves(learner):
            return learner.feature_importances_
        if frames is None or error is None:
            raise missing_frame_error(self, "noise_importances_", "error")
        if error.trees is None or not error.uses_rows:
            raise InvalidInputError(
                "noise_importances_ needs noise that is learned from the columns of rows. Got a model whose noise is "
                "one level, or comes from the prediction alone: it had few rows, no table of numbers, or one of many "
                "columns."
            )
        n_others = (1 + (self._layout is not None)) * len(self.spread_) + (frames.ordinary is not None)
        shares = error.trees.feature_importances_[: error.trees.n_features_in_ - n_others]
        return sum_categories(frames.encoder, shares)

    def _predict_value(self, X: Any) -> Floats:
        """Return the value alone: the frames, which cost more than most backbones, are not asked."""
        return _convert_value(self, self._predict_outputs(X)[2])

    def _predict(self, X: Any) -> RegressionPrediction:
        numbers, outputs, value, sigma = self._predict_outputs(X)
        details: dict[str, Any] = {}
        if outputs is not None:
            details = {"direction_norm": geometry.norm(outputs.direction), "magnitude": outputs.magnitude}
        if outputs is not None and isinstance(self.embedding_, Lift):
            anchor = self.embedding_.anchor
            details["anchor_residual"] = geometry.anchor_residual(outputs.direction, outputs.magnitude, anchor)
        measured = self._measure(numbers, value, sigma)
        return RegressionPrediction(
            value=value,
            sigma=measured.sigma,
            uncertainty=self._compute_uncertainty(outputs, value, sigma, measured.sigma),
            details=details,
            noise=None if self._frames is None else measured.noise,
            novelty=measured.novelty,
            missed=measured.missed,
            curves=self._read_curves(numbers, value, measured),
        )

    def _read_curves(self, numbers: Any, value: Any, measured: Measured, *, predict: Any = None) -> Any:
        """Return the shape of the error of each row; numpy, or arrays of a graph. None if all have the same."""
        if self._shape is None or self._shape.trees is None:
            return None
        inputs, trees = clip_inputs(numbers), self._shape.trees
        columns = trees.predict(inputs) if predict is None else predict(trees, inputs)
        if isinstance(self._shape, ZeroShape):
            sigma = pick_width(self._usual_width, value, measured.sigma, measured.noise, self)
            return self._shape.read_curves(columns, value, sigma)
        return self._shape.read_curves(columns)

    def _measure(self, numbers: Any, value: Any, sigma: Any, *, predict: Any = None) -> Measured:
        """Return noise, total sigma and novelty; numpy, or arrays of a graph."""
        if self._frames is None:
            return Measured(sigma, sigma, None, None)
        ends = {"center": self._center, "spread": self.spread_}
        return self._frames.measure(numbers, value, sigma, **ends, predict=predict)

    def _predict_outputs(self, X: Any) -> tuple[Floats | None, SphericalOutput | None, Floats, Floats | None]:
        """Return the numbers that the frames see, and what the backbone predicts; see `_read_table`."""
        check_fitted(self, "estimator_")
        numbers, table = self._run_backbone(X, self._n_columns)
        return numbers, *self._read_table(table)

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

    def _compute_uncertainty(self, outputs: Any, value: Any, sigma: Any, total: Any) -> Any:
        embedding = self.embedding_
        if self.domain_ is not None:
            sigma, total = (
                None if each is None else self.domain_.convert_sigma(value, each) for each in (sigma, total)
            )
        self._check_score(embedding)
        score = self.uncertainty_score
        if score == "auto":
            score = "distance" if self._frames is None else "total"
        if score != "total" and outputs is None:
            raise InvalidInputError(
                f"uncertainty_score={score!r} needs a target frame. Got a model that was fitted without. Use 'total', "
                "or fit again with frames=('target', 'error', 'input')."
            )
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
