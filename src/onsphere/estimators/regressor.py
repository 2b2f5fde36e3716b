"""HCMRegressor: an uncertainty for every number that any regressor predicts."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, overload

import numpy as np
from sklearn.base import RegressorMixin, clone

from onsphere import geometry, scores
from onsphere._validation import (
    Floats,
    bad_parameter,
    check_fitted,
    check_flag,
    check_n_outputs,
    check_option,
    check_output_names,
    check_regression_target,
    check_same_length,
    check_sample_weight,
    is_frame,
)
from onsphere.assessment import Assessment
from onsphere.backbones import (
    fit_backbone,
    from_columns,
    predict_columns,
    prepare_backbone,
    to_columns,
)
from onsphere.calibrated import N_FOLDS
from onsphere.calibration import RegressionCalibration, root_mean_square
from onsphere.embeddings import Duplicate, Lift, Polar, RegressionEmbedding, Torus
from onsphere.embeddings.base import as_columns
from onsphere.errors import InvalidInputError
from onsphere.estimators.base import SphericalEstimator
from onsphere.geometry import SphericalOutput

__all__ = ["HCMRegressor"]

_EMBEDDINGS: dict[str, type[RegressionEmbedding]] = {
    "lift": Lift,
    "polar": Polar,
    "duplicate": Duplicate,
    "torus": Torus,
}


# Added to sigma in conformal intervals, as a share of the target's spread: rows on which all trees agree would
# otherwise get intervals of no width.
_SIGMA_FLOOR = 0.01


class HCMRegressor(RegressorMixin, SphericalEstimator):
    """A regressor whose predictions carry an uncertainty, over any regressor, for one output or many.

    The target is placed on a sphere, the backbone learns the place, and how far its prediction falls off the
    sphere is the uncertainty.

    Parameters
    ----------
    estimator : regressor, optional
        The backbone. A multi-output regressor is used as it is; one for a single output is fitted once per column.
        By default ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2).
    embedding : {"lift", "polar", "duplicate", "torus"} or an embedding, default "lift"
        How the target is placed on the sphere; see `onsphere.embeddings`.
    decoder : {"mean", "product", "projective"}, default "mean"
        How the prediction is read off the backbone: from an output trained on the target itself, as R·d (the
        paper's), or from the direction and the known anchor alone (Lift only).
    uncertainty_score : {"uncertainty", "anchored", "sigma", "violation", "signed"}, default "uncertainty"
        What `predict_uncertainty` gives. "uncertainty" is the paper's u and "anchored" is u + a (Lift only,
        better against shifted inputs); both, like "sigma", are in the unit of the target (for several outputs, of
        the root mean square of their standard deviations). "violation" and "signed" have no unit, and "signed" ranks
        directions that overshoot, the mark of extrapolation, as trusted.
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

    _measured: ClassVar[tuple[str, ...]] = ("uncertainty_score", "decoder")

    embedding_: RegressionEmbedding

    def __init__(
        self,
        estimator: Any = None,
        *,
        embedding: str | RegressionEmbedding = "lift",
        decoder: str = "mean",
        uncertainty_score: str = "uncertainty",
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.embedding = embedding
        self.decoder = decoder
        self.uncertainty_score = uncertainty_score
        self.calibration = calibration
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        embedding = self._checked_embedding()
        backbone = prepare_backbone(self, self.estimator, self.random_state)
        rows = self._rows(X, fitting=True)
        target = check_regression_target(self, y)
        check_same_length(rows, target)
        weights = check_sample_weight(sample_weight, rows)
        self.embedding_ = embedding.fit(target, weights)
        carried = {"magnitude": embedding.has_magnitude, "mean": self.decoder == "mean"}
        columns = to_columns(embedding.embed(target), **carried)
        self._layout: dict[str, Any] = {"n_outputs": embedding.n_outputs_, **carried}
        self._n_columns = columns.shape[1]
        self.estimator_ = fit_backbone(self, backbone, rows, columns, weights, self._layout)
        self._target_is_flat = target.ndim == 1
        self._output_names = tuple(str(name) for name in y.columns) if is_frame(y) else None

    def _splitter(self, y: Any, fraction: float | None) -> Any:
        from sklearn.model_selection import KFold, ShuffleSplit

        if fraction is None:
            return KFold(N_FOLDS, shuffle=True, random_state=self.random_state)
        return ShuffleSplit(1, test_size=fraction, random_state=self.random_state)

    def _measure(self, X: Any, y: Any) -> RegressionCalibration:
        outputs = self._outputs(X)
        target = as_columns(check_regression_target(self, y))
        if is_frame(y):
            check_output_names(self, y.columns, self._output_names)
        check_same_length(outputs.magnitude, target)
        check_n_outputs(self, target, self.embedding_.n_outputs_)
        return RegressionCalibration.measure(
            residual=target - self.embedding_.decode(outputs, decoder=self.decoder),
            sigma=self._interval_sigma(outputs),
            uncertainty=self._uncertainty(outputs),
            spread=self.embedding_.spread_,
        )

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> Floats: ...
    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[Floats, Floats]: ...
    def predict(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """Predict the target and, if asked, the standard deviation of its noise, from one pass.

        Returns
        -------
        value : array of shape (n,) or (n, D), like the y of fit
        sigma : array like value, with return_std=True
        """
        outputs = self._outputs(X)
        return (self._value(outputs), self._sigma(outputs)) if return_std else self._value(outputs)

    def predict_uncertainty(self, X: Any) -> Floats:
        """The chosen score of each row, shape (n,); higher means less trustworthy."""
        return self._uncertainty(self._outputs(X))

    def predict_sigma(self, X: Any) -> Floats:
        """Standard deviation of the noise, in the unit and shape of the target."""
        return self._sigma(self._outputs(X))

    def predict_uncertainty_per_output(self, X: Any) -> Floats:
        """A score for each output, shape (n, D); needs embedding="torus"."""
        check_fitted(self, "estimator_")
        if not isinstance(self.embedding_, Torus):
            raise InvalidInputError(
                "predict_uncertainty_per_output needs embedding='torus', which gives every output circles of its own. "
                f"Got {type(self.embedding_).__name__}. Fit again with HCMRegressor(embedding='torus')."
            )
        return self.embedding_.uncertainty_per_output(self._outputs(X))

    def predict_interval(self, X: Any, *, coverage: float = 0.9, simultaneous: bool = True) -> Floats:
        """Intervals that hold the target with probability `coverage`; needs a calibrated model.

        Split conformal prediction, with errors measured in units of sigma. For rows drawn like the calibration rows
        (and a calibration on rows that were not trained on) the promise holds on average over rows and calibration
        sets, whatever the backbone; it does not hold for a chosen group of rows, nor after a shift of the inputs.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9
        simultaneous : bool, default True
            For several outputs, whether all of a row lie in their intervals at once with that probability, or each
            by itself.

        Returns
        -------
        array of shape (n, 2), or (n, D, 2) where y had two dimensions: lower and upper end
        """
        check_flag("predict_interval", "simultaneous", simultaneous)
        calibration = self._calibrated("predict_interval")
        return self._interval(calibration, self._outputs(X), coverage, simultaneous)

    def predict_ball(self, X: Any, *, coverage: float = 0.9) -> tuple[Floats, Floats]:
        """A ball around each prediction that holds the whole target with probability `coverage`.

        Outputs are measured in units of their spread: the target y is inside where
        ‖(y − value) / model.embedding_.spread_‖ ≤ radius (with 1 for the spread of a constant output). Promises what
        `predict_interval` promises.

        Returns
        -------
        value : array of shape (n, D), or (n,) for a flat target
        radius : array of shape (n,)
        """
        calibration = self._calibrated("predict_ball")
        outputs = self._outputs(X)
        radius = calibration.radius(self._interval_sigma(outputs), self.embedding_.spread_, coverage=coverage)
        return self._value(outputs), radius

    def assess(self, X: Any, *, coverage: float = 0.9) -> Assessment:
        """Everything the model says about each row, from one pass over the backbone.

        What needs a calibration (lower, upper, confidence, expected error) or a threshold (accepted) is None without.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9
            Of the intervals.
        """
        outputs = self._outputs(X)
        anchor = self.embedding_.anchor if isinstance(self.embedding_, Lift) else None
        uncertainty = self._uncertainty(outputs)
        judged = self._judged(uncertainty)
        if judged:
            interval = self._interval(self.calibration_, outputs, coverage, True)
            judged |= {"lower": interval[..., 0], "upper": interval[..., 1]}
        return Assessment(
            value=self._value(outputs),
            uncertainty=uncertainty,
            direction_norm=geometry.norm(outputs.direction),
            magnitude=outputs.magnitude,
            sigma=self._sigma(outputs),
            anchor_residual=None if anchor is None else scores.anchor_residual(outputs, anchor),
            output_names=self._output_names,
            **judged,
        )

    def _value_and_uncertainty(self, X: Any) -> tuple[Floats, Floats]:
        outputs = self._outputs(X)
        return self._value(outputs), self._uncertainty(outputs)

    def _interval(self, calibration: Any, outputs: SphericalOutput, coverage: float, simultaneous: bool) -> Floats:
        value = self.embedding_.decode(outputs, decoder=self.decoder)
        sigma = self._interval_sigma(outputs)
        return self._shaped(calibration.interval(value, sigma, coverage=coverage, simultaneous=simultaneous))

    def _interval_sigma(self, outputs: SphericalOutput) -> Floats:
        return self.embedding_.sigma(outputs) + _SIGMA_FLOOR * self.embedding_.spread_

    def _checked_embedding(self) -> RegressionEmbedding:
        given: Any = self.embedding
        if isinstance(given, str):
            check_option(self, "embedding", given, list(_EMBEDDINGS))
            given = _EMBEDDINGS[given]()
        if not isinstance(given, RegressionEmbedding):
            raise bad_parameter(self, "embedding", "a name or an instance of a regression embedding", given)
        check_option(self, "decoder", self.decoder, given.decoders)
        self._check_score(given)
        return clone(given)  # type: ignore[reportReturnType]

    def _outputs(self, X: Any) -> SphericalOutput:
        rows = self._rows(X)
        table = predict_columns(self, self.estimator_, rows, self._n_columns)
        return from_columns(table, **self._layout)

    def _value(self, outputs: SphericalOutput) -> Floats:
        return self._shaped(self.embedding_.decode(outputs, decoder=self.decoder))

    def _sigma(self, outputs: SphericalOutput) -> Floats:
        return self._shaped(self.embedding_.sigma(outputs))

    def _shaped(self, values: Floats) -> Floats:
        return values[:, 0] if self._target_is_flat else values

    def _uncertainty(self, outputs: SphericalOutput) -> Floats:
        embedding = self.embedding_
        self._check_score(embedding)
        match self.uncertainty_score:
            case "uncertainty":
                return scores.uncertainty(outputs) * embedding.unit_
            case "anchored":
                return scores.anchored(outputs, embedding.anchor) * embedding.unit_  # type: ignore
            case "sigma":
                return root_mean_square(embedding.sigma(outputs))
            case "violation":
                return scores.violation(outputs)
            case _:
                return scores.signed(outputs)

    def _check_score(self, embedding: RegressionEmbedding) -> None:
        lifted = ["anchored"] if isinstance(embedding, Lift) else []
        possible = ["uncertainty", *lifted, "sigma", "violation", "signed"]
        check_option(self, "uncertainty_score", self.uncertainty_score, possible)
