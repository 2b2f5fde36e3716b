"""HCMClassifier: an uncertainty for every class that any regressor predicts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from onsphere._internal.validation import Floats, check_option, check_same_length, check_sample_weight
from onsphere.models.answers import ClassificationMixin, ClassPrediction
from onsphere.models.backbone import (
    fit_backbone,
    from_columns,
    predict_columns,
    prepare_backbone,
    to_columns,
)
from onsphere.models.over_backbone import BackboneModel
from onsphere.sphere import geometry, scores
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["HCMClassifier", "nearest_probabilities"]

_CLASS_SCORES = {
    "violation": scores.violation,
    "signed": scores.signed,
    "gini": scores.gini,
    "reference": scores.reference,
}


class HCMClassifier(ClassificationMixin, BackboneModel):
    """A classifier whose predictions carry an uncertainty, over any regressor.

    Each class is an axis of the sphere; the backbone learns the direction, the nearest axis is the prediction and
    the missing length is the uncertainty.

    Parameters
    ----------
    estimator : regressor, optional
        The backbone, a regressor because it learns directions. By default
        ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2).
    uncertainty_score : {"violation", "signed", "gini", "reference"}, default "violation"
        What `predict_uncertainty` gives; see `onsphere.sphere.scores`. They rank alike as long as no direction is
        longer than 1, as with trees; beyond, "signed" and "gini" rank overshoot, the mark of extrapolation, as trusted.
    calibration : None, "split", "cv" or float in (0, 1), default None
        What `fit` keeps back to calibrate on; see `HCMRegressor`. What is kept back is
        stratified by class, which a guarantee strictly does not allow for but which changes coverage hardly at all; a
        class with fewer than five rows makes for as many folds as it has rows.
    random_state : int, RandomState or None
        Seeds the backbone wherever its own random_state is None.

    Attributes
    ----------
    classes_ : array of shape (C,)
    estimator_ : regressor
        The fitted backbone.
    embedding_ : OneHot
    calibration_ : ClassCalibration or None
    threshold_ : float or None
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onsphere import HCMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = HCMClassifier(random_state=0).fit(X[::2], y[::2])
    >>> result = model.assess(X[1::2])
    >>> result.value.shape, result.probabilities.shape
    ((75,), (75, 3))
    """

    _measured: ClassVar[tuple[str, ...]] = ("uncertainty_score",)

    def __init__(
        self,
        estimator: Any = None,
        *,
        uncertainty_score: str = "violation",
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.uncertainty_score = uncertainty_score
        self.calibration = calibration
        self.random_state = random_state

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._check_score()
        backbone = prepare_backbone(self, self.estimator, self.random_state)
        rows = self._rows(X, fitting=True)
        labels = self._check_labels(y)
        check_same_length(rows, labels)
        weights = check_sample_weight(sample_weight, rows)
        columns = to_columns(self.embedding_.embed(labels), magnitude=False, mean=False)
        self._layout: dict[str, Any] = {"n_outputs": len(self.classes_), "magnitude": False, "mean": False}
        self.estimator_ = fit_backbone(self, backbone, rows, columns, weights, self._layout)

    def _predict(self, X: Any) -> ClassPrediction:
        rows = self._rows(X)
        table = predict_columns(self, self.estimator_, rows, len(self.classes_))
        outputs = from_columns(table, **self._layout)
        return ClassPrediction(
            label_index=outputs.direction.argmax(axis=1),
            probabilities=nearest_probabilities(outputs.direction),
            uncertainty=self._uncertainty(outputs),
            details={"direction_norm": geometry.norm(outputs.direction), "magnitude": outputs.magnitude},
        )

    def _uncertainty(self, outputs: SphericalOutput) -> Floats:
        self._check_score()
        return _CLASS_SCORES[self.uncertainty_score](outputs)

    def _check_score(self) -> None:
        check_option(self, "uncertainty_score", self.uncertainty_score, list(_CLASS_SCORES))


def nearest_probabilities(directions: Floats) -> Floats:
    """Project each row onto the probability simplex: lower all entries by one amount, cut at zero, sum 1."""
    # A shift does not move the projection, and with the largest entry at zero it keeps its digits, however long the
    # direction is.
    directions = directions - directions.max(axis=1, keepdims=True)
    descending = -np.sort(-directions, axis=1)
    excess = np.cumsum(descending, axis=1) - 1.0
    counts = np.arange(1, directions.shape[1] + 1)
    n_positive = (descending * counts > excess).sum(axis=1)
    rows = np.arange(len(directions))
    shift = excess[rows, n_positive - 1] / n_positive
    probabilities = np.maximum(directions - shift[:, None], 0.0)
    return probabilities / probabilities.sum(axis=1, keepdims=True)
