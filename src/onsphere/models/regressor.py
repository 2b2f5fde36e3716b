"""HCMRegressor: an uncertainty for every number that any regressor predicts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin, clone

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_option,
    check_same_length,
    check_sample_weight,
    is_fitted_already,
    missing_frame_error,
    parameter_error,
)
from onsphere.calibration import root_mean_square
from onsphere.calibration.shape import SHAPES
from onsphere.calibration.temperature import divide_errors
from onsphere.calibration.zeros import ZeroShape
from onsphere.errors import InvalidInputError
from onsphere.models.backbone import (
    BackboneModel,
    get_learner,
    point_to_tables,
    prepare_backbone,
    split_columns,
    sum_categories,
    unwrap_fitted,
)
from onsphere.models.choice import choose_for
from onsphere.models.fitted import wrap_fitted
from onsphere.models.frames import FRAMES, Frames, Measured, check_frames
from onsphere.models.known_rows import warn_about_known_leaves, warn_about_small_errors
from onsphere.models.noise import (
    clip_inputs,
    has_mean_leaves,
)
from onsphere.models.regression_base import RegressionMixin, RegressionPrediction, convert_value, pick_width
from onsphere.models.regressor_fitting import (
    Fitting,
    choose_domain,
    fit_frames,
    fit_target,
    resolve_frames,
    scale_eval_set,
)
from onsphere.sphere import Duplicate, Lift, Polar, RegressionEmbedding, Torus, geometry, scores
from onsphere.sphere.embeddings import as_columns
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["HCMRegressor"]

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
    _frames: Frames | None = None  # models of older files have none
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
        self.domain_ = choose_domain(self, embedding, backbone, rows, target, weights, has_target=has_target)
        scaled = target if self.domain_ is None else self.domain_.to_scale(target)
        eval_set = scale_eval_set(self, self.domain_)
        given = (embedding, backbone, rows, scaled, weights, eval_set)
        columns, learned = fit_target(self, *given, has_target=has_target)
        self._center = np.average(scaled, axis=0, weights=weights)
        self._shape = None
        self._frames = fit_frames(self, asked, rows, as_columns(scaled), columns, learned, weights)

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
        """The share of each column in what tells of the noise, (p,); at most 1 in all.

        The rest is what the prediction tells. For forests with a target frame it is what each tells of the target.
        Where the steps of a pipeline make numbers of the columns, it is that of each number.
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
        return convert_value(self, self._predict_outputs(X)[2])

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

    def _get_ordinary(self) -> float | None:
        return None if self._frames is None else self._frames.ordinary

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
