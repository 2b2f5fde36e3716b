"""HCMRegressor: an uncertainty for every number that any regressor predicts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_option,
    check_same_length,
    check_sample_weight,
    parameter_error,
)
from onsphere.calibration import root_mean_square
from onsphere.errors import InvalidInputError
from onsphere.models.answers import RegressionMixin, RegressionPrediction
from onsphere.models.backbone import (
    fit_backbone,
    from_columns,
    predict_columns,
    prepare_backbone,
    to_columns,
)
from onsphere.models.over_backbone import BackboneModel
from onsphere.sphere import Duplicate, Lift, Polar, RegressionEmbedding, Torus, geometry, scores
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["HCMRegressor"]

_EMBEDDINGS: dict[str, type[RegressionEmbedding]] = {
    "lift": Lift,
    "polar": Polar,
    "duplicate": Duplicate,
    "torus": Torus,
}


class HCMRegressor(RegressionMixin, BackboneModel):
    """A regressor whose predictions carry an uncertainty, over any regressor, for one output or many.

    The target is placed on a sphere, the backbone learns the place, and how far its prediction falls off the
    sphere is the uncertainty.

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
    uncertainty_score : {"distance", "anchored", "sigma", "violation", "signed"}, default "distance"
        What `predict_uncertainty` gives. "distance" is the paper's u: how far the prediction misses the sphere.
        "anchored" is u + a (Lift only, better against shifted inputs). Both, like "sigma", are in the unit of the
        target (for several outputs, of the root mean square of their standard deviations). "violation" and "signed"
        have no unit, and "signed" ranks directions that overshoot, the mark of extrapolation, as trusted.
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
        uncertainty_score: str = "distance",
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.embedding = embedding
        self.decoder = decoder
        self.uncertainty_score = uncertainty_score
        self.calibration = calibration
        self.random_state = random_state

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        embedding = self._checked_embedding()
        backbone = prepare_backbone(self, self.estimator, self.random_state)
        rows = self._rows(X, fitting=True)
        target = self._check_target(y)
        check_same_length(rows, target)
        weights = check_sample_weight(sample_weight, rows)
        self.embedding_ = embedding.fit(target, weights)
        self.spread_ = embedding.spread_
        carried = {"magnitude": embedding.has_magnitude, "mean": self.decoder == "mean"}
        columns = to_columns(embedding.embed(target), **carried)
        self._layout: dict[str, Any] = {"n_outputs": embedding.n_outputs_, **carried}
        self._n_columns = columns.shape[1]
        self.estimator_ = fit_backbone(self, backbone, rows, columns, weights, self._layout)

    def predict_uncertainty_per_output(self, X: Any) -> Floats:
        """A score for each output, shape (n, D); needs embedding="torus"."""
        check_fitted(self, "estimator_")
        if not isinstance(self.embedding_, Torus):
            raise InvalidInputError(
                "predict_uncertainty_per_output needs embedding='torus', which gives every output circles of its own. "
                f"Got {type(self.embedding_).__name__}. Fit again with HCMRegressor(embedding='torus')."
            )
        return self.embedding_.uncertainty_per_output(self._outputs(X))

    def _predict(self, X: Any) -> RegressionPrediction:
        outputs = self._outputs(X)
        details = {"direction_norm": geometry.norm(outputs.direction), "magnitude": outputs.magnitude}
        if isinstance(self.embedding_, Lift):
            details["anchor_residual"] = scores.anchor_residual(outputs, self.embedding_.anchor)
        sigma = self.embedding_.sigma(outputs)
        return RegressionPrediction(
            value=self.embedding_.decode(outputs, decoder=self.decoder),
            sigma=sigma,
            uncertainty=self._uncertainty(outputs, sigma),
            details=details,
        )

    def _outputs(self, X: Any) -> SphericalOutput:
        rows = self._rows(X)
        table = predict_columns(self, self.estimator_, rows, self._n_columns)
        return from_columns(table, **self._layout)

    def _checked_embedding(self) -> RegressionEmbedding:
        given: Any = self.embedding
        if isinstance(given, str):
            check_option(self, "embedding", given, list(_EMBEDDINGS))
            given = _EMBEDDINGS[given]()
        if not isinstance(given, RegressionEmbedding):
            raise parameter_error(self, "embedding", "a name or an instance of a regression embedding", given)
        check_option(self, "decoder", self.decoder, given.decoders)
        self._check_score(given)
        return clone(given)  # type: ignore[reportReturnType]

    def _uncertainty(self, outputs: SphericalOutput, sigma: Floats) -> Floats:
        embedding = self.embedding_
        self._check_score(embedding)
        match self.uncertainty_score:
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
        possible = ["distance", *lifted, "sigma", "violation", "signed"]
        check_option(self, "uncertainty_score", self.uncertainty_score, possible)
