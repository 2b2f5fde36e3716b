"""HCMClassifier: an uncertainty for every class that any regressor predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from onsphere import geometry, scores
from onsphere._validation import (
    Floats,
    check_labels,
    check_option,
    check_same_length,
    check_sample_weight,
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
from onsphere.calibration import ClassCalibration
from onsphere.embeddings import OneHot
from onsphere.errors import InvalidInputError
from onsphere.estimators.base import SphericalEstimator
from onsphere.geometry import SphericalOutput

__all__ = ["HCMClassifier"]

_CLASS_SCORES = {
    "violation": scores.violation,
    "signed": scores.signed,
    "gini": scores.gini,
    "reference": scores.reference,
}


class HCMClassifier(ClassifierMixin, SphericalEstimator):
    """A classifier whose predictions carry an uncertainty, over any regressor.

    Each class is an axis of the sphere; the backbone learns the direction, the nearest axis is the prediction and
    the missing length is the uncertainty.

    Parameters
    ----------
    estimator : regressor, optional
        The backbone, a regressor because it learns directions. By default
        ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2).
    uncertainty_score : {"violation", "signed", "gini", "reference"}, default "violation"
        What `predict_uncertainty` gives; see `onsphere.scores`. They rank alike as long as no direction is longer
        than 1, as with trees; beyond, "signed" and "gini" rank overshoot, the mark of extrapolation, as trusted.
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

    embedding_: OneHot
    classes_: NDArray[Any]

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
        labels = check_labels(self, y)
        check_same_length(rows, labels)
        weights = check_sample_weight(sample_weight, rows)
        self.embedding_ = OneHot().fit(labels)
        self.classes_ = self.embedding_.classes_
        columns = to_columns(self.embedding_.embed(labels), magnitude=False, mean=False)
        self._layout: dict[str, Any] = {"n_outputs": len(self.classes_), "magnitude": False, "mean": False}
        self.estimator_ = fit_backbone(self, backbone, rows, columns, weights, self._layout)

    def _splitter(self, y: Any, fraction: float | None) -> Any:
        from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

        smallest = int(np.unique(check_labels(self, y), return_counts=True)[1].min())
        if smallest < 2:
            raise InvalidInputError(
                f"calibration={self.calibration!r} needs at least two rows of every class. Got a class with one row. "
                "Add rows, drop the class, or calibrate on rows of your own."
            )
        if fraction is None:
            return StratifiedKFold(min(N_FOLDS, smallest), shuffle=True, random_state=self.random_state)
        return StratifiedShuffleSplit(1, test_size=fraction, random_state=self.random_state)

    def _measure(self, X: Any, y: Any) -> ClassCalibration:
        outputs = self._outputs(X)
        labels = check_labels(self, y)
        check_same_length(outputs.magnitude, labels)
        true_index = self.embedding_.embed(labels).direction.argmax(axis=1)
        return ClassCalibration.measure(
            probabilities=_nearest_probabilities(outputs.direction),
            true_index=true_index,
            uncertainty=self._uncertainty(outputs),
            wrong=(outputs.direction.argmax(axis=1) != true_index).astype(np.float64),
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row, shape (n,)."""
        outputs = self._outputs(X)
        return self.embedding_.decode(outputs)

    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities, shape (n, C): the point of the probability simplex nearest to the direction."""
        return _nearest_probabilities(self._outputs(X).direction)

    def predict_uncertainty(self, X: Any) -> Floats:
        """The chosen score of each row, shape (n,); higher means less trustworthy."""
        return self._uncertainty(self._outputs(X))

    def predict_set(self, X: Any, *, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Sets of classes that hold the true one with probability `coverage`; needs a calibrated model.

        Classes are added from the most to the least likely until enough probability lies before the next one (adaptive
        prediction sets, without their random part: a set is never empty, and a row always gets the same one). For rows
        drawn like the calibration rows the promise holds on average over rows and calibration sets. A model that is
        right more often than asked covers more often than asked, with sets of one class.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9

        Returns
        -------
        bool array of shape (n, C), one column per entry of classes_
        """
        calibration = self._calibrated("predict_set")
        return calibration.prediction_set(self.predict_proba(X), coverage=coverage)

    def assess(self, X: Any, *, coverage: float = 0.9) -> Assessment:
        """Everything the model says about each row, from one pass over the backbone.

        What needs a calibration (the set of classes, confidence, expected error) or a threshold (accepted) is None
        without.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9
            Of the sets.
        """
        outputs = self._outputs(X)
        uncertainty = self._uncertainty(outputs)
        probabilities = _nearest_probabilities(outputs.direction)
        judged = self._judged(uncertainty)
        if judged:
            calibration: Any = self.calibration_
            judged["in_set"] = calibration.prediction_set(probabilities, coverage=coverage)
        return Assessment(
            value=self.embedding_.decode(outputs),
            uncertainty=uncertainty,
            direction_norm=geometry.norm(outputs.direction),
            magnitude=outputs.magnitude,
            probabilities=probabilities,
            output_names=tuple(str(label) for label in self.classes_),
            **judged,
        )

    def _value_and_uncertainty(self, X: Any) -> tuple[NDArray[Any], Floats]:
        outputs = self._outputs(X)
        return self.embedding_.decode(outputs), self._uncertainty(outputs)

    def _outputs(self, X: Any) -> SphericalOutput:
        rows = self._rows(X)
        table = predict_columns(self, self.estimator_, rows, len(self.classes_))
        return from_columns(table, **self._layout)

    def _uncertainty(self, outputs: SphericalOutput) -> Floats:
        self._check_score()
        return _CLASS_SCORES[self.uncertainty_score](outputs)

    def _check_score(self) -> None:
        check_option(self, "uncertainty_score", self.uncertainty_score, list(_CLASS_SCORES))


def _nearest_probabilities(directions: Floats) -> Floats:
    """Project each row onto the probability simplex: lower all entries by one amount, cut at zero, sum 1."""
    descending = -np.sort(-directions, axis=1)
    excess = np.cumsum(descending, axis=1) - 1.0
    counts = np.arange(1, directions.shape[1] + 1)
    n_positive = (descending * counts > excess).sum(axis=1)
    rows = np.arange(len(directions))
    shift = excess[rows, n_positive - 1] / n_positive
    probabilities = np.maximum(directions - shift[:, None], 0.0)
    return probabilities / probabilities.sum(axis=1, keepdims=True)
