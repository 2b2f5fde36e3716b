"""What every model can be asked, whatever gave it its value and its uncertainty: HCM or any other method.

A model brings `_fit` and `_predict`, one pass over its rows; predictions, intervals, sets and assessments follow here.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from onsphere._internal.validation import (
    Floats,
    check_flag,
    check_labels,
    check_n_outputs,
    check_number,
    check_output_names,
    check_regression_target,
    check_same_length,
    is_frame,
)
from onsphere.assessment import Assessment
from onsphere.calibration import ClassCalibration, RegressionCalibration
from onsphere.errors import InvalidInputError
from onsphere.models.base import N_FOLDS, CalibratedModel
from onsphere.sphere import OneHot
from onsphere.sphere.embedding import as_columns

__all__ = ["SIGMA_FLOOR", "ClassPrediction", "ClassificationMixin", "RegressionMixin", "RegressionPrediction"]

# Added to sigma in conformal intervals, as a share of the target's spread: rows on which all trees agree would
# otherwise get intervals of no width.
SIGMA_FLOOR = 0.01


class RegressionPrediction(NamedTuple):
    """What one pass says about numbers, in their own unit; `details` are further fields of an Assessment."""

    value: Floats  # (n, D)
    sigma: Floats  # (n, D)
    uncertainty: Floats  # (n,)
    details: dict[str, Any]


class ClassPrediction(NamedTuple):
    """What one pass says about classes; `details` are further fields of an Assessment."""

    label_index: NDArray[np.intp]  # (n,), the most likely class
    probabilities: Floats  # (n, C)
    uncertainty: Floats  # (n,)
    details: dict[str, Any]


class RegressionMixin(RegressorMixin, CalibratedModel):
    """Values, sigmas, intervals and balls of a regression model."""

    spread_: Floats

    @abstractmethod
    def _predict(self, X: Any) -> RegressionPrediction:
        """One pass over the rows."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _check_target(self, y: Any) -> Floats:
        """The target of fit, (n,) or (n, D), checked; its shape and names are remembered."""
        target = check_regression_target(self, y)
        self._target_is_flat = target.ndim == 1
        self._output_names = tuple(str(name) for name in y.columns) if is_frame(y) else None
        return target

    def _splitter(self, y: Any, fraction: float | None) -> Any:
        from sklearn.model_selection import KFold, ShuffleSplit

        if fraction is None:
            return KFold(N_FOLDS, shuffle=True, random_state=self.random_state)
        return ShuffleSplit(1, test_size=fraction, random_state=self.random_state)

    def _measure(self, X: Any, y: Any) -> RegressionCalibration:
        answer = self._predict(X)
        target = as_columns(check_regression_target(self, y))
        if is_frame(y):
            check_output_names(self, y.columns, self._output_names)
        check_same_length(answer.uncertainty, target)
        check_n_outputs(self, target, answer.value.shape[1])
        return RegressionCalibration.measure(
            residual=target - answer.value,
            sigma=self._interval_sigma(answer),
            uncertainty=answer.uncertainty,
            spread=self.spread_,
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
        answer = self._predict(X)
        value = self._shaped(answer.value)
        return (value, self._shaped(answer.sigma)) if return_std else value

    def predict_uncertainty(self, X: Any) -> Floats:
        """The score of each row, shape (n,); higher means less trustworthy."""
        return self._predict(X).uncertainty

    def predict_sigma(self, X: Any) -> Floats:
        """Standard deviation of the noise, in the unit and shape of the target."""
        return self._shaped(self._predict(X).sigma)

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
        check_number("predict_interval", "coverage", coverage, above=0, below=1)
        check_flag("predict_interval", "simultaneous", simultaneous)
        calibration = self._calibrated("predict_interval")
        return self._interval(calibration, self._predict(X), coverage, simultaneous)

    def predict_ball(self, X: Any, *, coverage: float = 0.9) -> tuple[Floats, Floats]:
        """A ball around each prediction that holds the whole target with probability `coverage`.

        Outputs are measured in units of their spread: the target y is inside where
        ‖(y − value) / model.spread_‖ ≤ radius (with 1 for the spread of a constant output). Promises what
        `predict_interval` promises.

        Returns
        -------
        value : array of shape (n, D), or (n,) for a flat target
        radius : array of shape (n,)
        """
        check_number("predict_ball", "coverage", coverage, above=0, below=1)
        calibration = self._calibrated("predict_ball")
        answer = self._predict(X)
        radius = calibration.radius(self._interval_sigma(answer), self.spread_, coverage=coverage)
        return self._shaped(answer.value), radius

    def assess(self, X: Any, *, coverage: float = 0.9) -> Assessment:
        """Everything the model says about each row, from one pass.

        What needs a calibration (lower, upper, confidence, expected error) or a threshold (accepted) is None without.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9
            Of the intervals.
        """
        check_number("assess", "coverage", coverage, above=0, below=1)
        answer = self._predict(X)
        judged = self._judged(answer.uncertainty)
        if judged:
            interval = self._interval(self.calibration_, answer, coverage, True)
            judged |= {"lower": interval[..., 0], "upper": interval[..., 1]}
        return Assessment(
            value=self._shaped(answer.value),
            uncertainty=answer.uncertainty,
            sigma=self._shaped(answer.sigma),
            output_names=self._output_names,
            **answer.details,
            **judged,
        )

    def _value_and_uncertainty(self, X: Any) -> tuple[Floats, Floats]:
        answer = self._predict(X)
        return self._shaped(answer.value), answer.uncertainty

    def _interval(self, calibration: Any, answer: RegressionPrediction, coverage: float, simultaneous: bool) -> Floats:
        sigma = self._interval_sigma(answer)
        return self._shaped(calibration.interval(answer.value, sigma, coverage=coverage, simultaneous=simultaneous))

    def _interval_sigma(self, answer: RegressionPrediction) -> Floats:
        return answer.sigma + SIGMA_FLOOR * self.spread_

    def _shaped(self, values: Floats) -> Floats:
        return values[:, 0] if self._target_is_flat else values


class ClassificationMixin(ClassifierMixin, CalibratedModel):
    """Labels, probabilities and sets of a classification model."""

    embedding_: OneHot
    classes_: NDArray[Any]

    @abstractmethod
    def _predict(self, X: Any) -> ClassPrediction:
        """One pass over the rows."""

    def _check_labels(self, y: Any) -> NDArray[Any]:
        """The labels of fit, checked; the classes are remembered."""
        labels = check_labels(self, y)
        self.embedding_ = OneHot().fit(labels)
        self.classes_ = self.embedding_.classes_
        return labels

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
        answer = self._predict(X)
        labels = check_labels(self, y)
        check_same_length(answer.uncertainty, labels)
        true_index = self.embedding_.embed(labels).direction.argmax(axis=1)
        return ClassCalibration.measure(
            probabilities=answer.probabilities,
            true_index=true_index,
            uncertainty=answer.uncertainty,
            wrong=(answer.label_index != true_index).astype(np.float64),
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row, shape (n,)."""
        answer = self._predict(X)
        return self.classes_[answer.label_index]

    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities, shape (n, C)."""
        return self._predict(X).probabilities

    def predict_uncertainty(self, X: Any) -> Floats:
        """The score of each row, shape (n,); higher means less trustworthy."""
        return self._predict(X).uncertainty

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
        check_number("predict_set", "coverage", coverage, above=0, below=1)
        calibration = self._calibrated("predict_set")
        return calibration.prediction_set(self._predict(X).probabilities, coverage=coverage)

    def assess(self, X: Any, *, coverage: float = 0.9) -> Assessment:
        """Everything the model says about each row, from one pass.

        What needs a calibration (the set of classes, confidence, expected error) or a threshold (accepted) is None
        without.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9
            Of the sets.
        """
        check_number("assess", "coverage", coverage, above=0, below=1)
        answer = self._predict(X)
        judged = self._judged(answer.uncertainty)
        if judged:
            calibration: Any = self.calibration_
            judged["prediction_set"] = calibration.prediction_set(answer.probabilities, coverage=coverage)
        return Assessment(
            value=self.classes_[answer.label_index],
            uncertainty=answer.uncertainty,
            probabilities=answer.probabilities,
            output_names=tuple(str(label) for label in self.classes_),
            **answer.details,
            **judged,
        )

    def _value_and_uncertainty(self, X: Any) -> tuple[NDArray[Any], Floats]:
        answer = self._predict(X)
        return self.classes_[answer.label_index], answer.uncertainty
