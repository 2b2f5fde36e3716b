"""HCMClassifier: an uncertainty for every class that any regressor predicts, and what all class models share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_labels,
    check_number,
    check_option,
    check_same_length,
    check_sample_weight,
    is_fitted_already,
    restore_on_error,
)
from onsphere.calibration import ClassCalibration, ProbabilityScaling, fit_scaling
from onsphere.errors import InvalidInputError
from onsphere.models.backbone import (
    BackboneModel,
    fit_backbone,
    get_fitted,
    join_columns,
    point_to_tables,
    predict_columns,
    prepare_backbone,
    split_columns,
    unwrap_fitted,
)
from onsphere.models.base import CalibratedModel
from onsphere.models.choice import choose_for
from onsphere.models.fitted import check_features, wrap_fitted
from onsphere.models.frames import Frames, check_frames, find_numbers, fit_novelty
from onsphere.models.known_rows import warn_about_known_leaves
from onsphere.sphere import OneHot, geometry, scores
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = ["ClassPrediction", "ClassificationMixin", "HCMClassifier", "mix_evenly", "project_to_simplex"]

_CLASS_SCORES = {
    "violation": scores.violation,
    "signed": scores.signed,
    "gini": scores.gini,
    "reference": scores.reference,
}


class ClassPrediction(NamedTuple):
    """One pass over rows with classes to predict.

    Attributes
    ----------
    label_index : array of shape (n,)
        Of the most likely class.
    probabilities : array of shape (n, C)
        Before held-out rows have scaled them; sets are made of these.
    uncertainty : array of shape (n,)
    details : dict
        Further fields of an Assessment.
    noise, novelty, missed : arrays of shape (n,), or None
        The ambiguity 1 − ‖d‖; for the others see `onsphere.models.frames.Measured`.
    parts : int array of shape (n,), or None
        The part of the calibration rows that each row uses.
    direction : array of shape (n, C), or None
        For a model whose probabilities are scaled by held-out rows.
    """

    label_index: NDArray[np.intp]
    probabilities: Floats
    uncertainty: Floats
    details: dict[str, Any]
    noise: Floats | None = None
    novelty: Floats | None = None
    missed: Floats | None = None
    parts: NDArray[np.intp] | None = None
    direction: Floats | None = None

    def get_value(self, model: Any) -> NDArray[Any]:
        """Return the most likely class of each row."""
        return model.classes_[self.label_index]

    def get_probabilities(self, model: Any) -> Floats:
        """Return the class probabilities, scaled if the calibration of the model says how."""
        scaling = None if model.calibration_ is None else model.calibration_.scaling
        if scaling is None or self.direction is None:
            return self.probabilities
        return mix_evenly(scaling.apply(self.direction), self.novelty)

    def get_fields(self, model: Any) -> dict[str, Any]:
        """Return the fields of an Assessment that need no calibration."""
        names = tuple(str(label) for label in model.classes_)
        frames = {"noise": self.noise, "novelty": self.novelty}
        return {"probabilities": self.get_probabilities(model), "output_names": names, **frames, **self.details}

    def get_noise(self, model: Any) -> Floats | None:
        """Return the ambiguity of each row."""
        return self.noise

    def get_bounds(self, model: Any, coverage: float, tails: str) -> dict[str, Any]:
        """Return the set of classes of each row, of a calibrated model."""
        return {"prediction_set": self.get_set(model, coverage)}

    def get_set(self, model: Any, coverage: float) -> NDArray[np.bool_]:
        """Return which classes belong to the set of each row, shape (n, C), of a calibrated model."""
        chosen = np.empty(self.probabilities.shape, dtype=bool)
        for rows, calibration in model.calibration_.split(self.parts):
            chosen[rows] = calibration.prediction_set(self.probabilities[rows], coverage=coverage)
        return chosen

    def calibrate(self, model: Any, y: Any) -> ClassCalibration:
        """Compare the prediction with the truth."""
        labels = check_labels(model, y)
        check_same_length(self.uncertainty, labels)
        true_index = model.embedding_.embed(labels).direction.argmax(axis=1)
        calibration = ClassCalibration.measure(
            probabilities=self.probabilities,
            true_index=true_index,
            uncertainty=self.uncertainty,
            wrong=(self.label_index != true_index).astype(np.float64),
            missed=self.missed,
            penalty=model._set_penalty[0],
            n_free=model._set_penalty[1],
        )
        return calibration if self.direction is None else replace(calibration, scaling=self._fit_scaling(true_index))

    def _fit_scaling(self, true_index: NDArray[np.intp]) -> ProbabilityScaling:
        return fit_scaling(np.asarray(self.direction), true_index)


class ClassificationMixin(CalibratedModel):
    """Probabilities and sets of a model that predicts classes."""

    embedding_: OneHot
    classes_: NDArray[Any]
    _set_penalty: tuple[float, int] = (0.0, 1)

    def calibrate(
        self,
        X: Any,
        y: ArrayLike,
        *,
        groups: Any = None,
        target_rows: Any = None,
        sample_weight: ArrayLike | None = None,
        set_penalty: float = 0.0,
        n_free: int = 1,
    ) -> Self:
        """Compare the fitted model with the truth on rows it has not seen; see `CalibratedModel.calibrate`.

        Parameters
        ----------
        X, y, groups, target_rows, sample_weight
            As there.
        set_penalty : float, default 0
            For many classes: what each class beyond the first `n_free` adds to the score of a set, in units of
            probability, so that no set is filled up with unlikely classes (RAPS). Choose both before you see these
            rows; .01 to .1 and about as many free classes as a usual set has are common.
        n_free : int, default 1

        Returns
        -------
        self
        """
        check_number("calibrate", "set_penalty", set_penalty, above=0, closed="left")
        check_number("calibrate", "n_free", n_free, above=1, closed="left", whole=True)
        with restore_on_error(self):
            self._set_penalty = (float(set_penalty), int(n_free))
            options: Any = {"groups": groups, "target_rows": target_rows, "sample_weight": sample_weight}
            return super().calibrate(X, y, **options)

    def _has_classes(self, y: Any) -> bool:
        return True

    def _check_labels(self, y: Any) -> NDArray[Any]:
        """Return the labels of fit, checked, and remember the classes."""
        labels = check_labels(self, y)
        self.embedding_ = OneHot().fit(labels)
        self.classes_ = self.embedding_.classes_
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Return the class probabilities, shape (n, C)."""
        return self._predict_as(ClassPrediction, X, "predict_proba", "classes").get_probabilities(self)

    def predict_set(self, X: Any, *, coverage: float = 0.9, groups: Any = None) -> NDArray[np.bool_]:
        """Return sets of classes that hold the true one with probability `coverage`; needs a calibrated model.

        Classes are added from the most to the least likely until enough probability lies before the next one (adaptive
        prediction sets, without their random part: a set is never empty, and a row always gets the same one). For rows
        drawn like the calibration rows the promise holds on average over rows and calibration sets. A model that is
        right more often than asked covers more often than asked, with sets of one class.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9
        groups : array of shape (n,), optional
            The group of each row, for a model that was calibrated with groups given as values.

        Returns
        -------
        bool array of shape (n, C), one column per entry of classes_
        """
        check_number("predict_set", "coverage", coverage, above=0, below=1)
        self._require_calibration("predict_set")
        prediction = self._predict_as(ClassPrediction, X, "predict_set", "classes")
        return self._predict_by_group(X, groups, "predict_set", prediction).get_set(self, coverage)


class HCMClassifier(ClassificationMixin, ClassifierMixin, BackboneModel):
    """A classifier whose predictions carry an uncertainty, over any regressor.

    Each class is an axis of the sphere; the backbone learns the direction, the nearest axis is the prediction and the
    missing length is the noise: how far similar rows disagree. The input lies on a sphere too, and how far the training
    rows fall short of it is the novelty, by which the direction is shortened: the uncertainty is what is then missing.

    Parameters
    ----------
    estimator : regressor, "auto", a fitted classifier, or None
        The backbone, a regressor because it learns directions; by default
        ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2). "auto" chooses one. A FrozenEstimator of a fitted
        classifier, a booster, a function of rows or the name of an ONNX file stays as it is: its probabilities are the
        direction, and `fit` learns the novelty from rows that it has not seen.
    frames : "all", "target", or a tuple of "target" and "input", default "all"
        "target" alone is the paper's method; "input" adds novelty. Where a row is novel, the probabilities go over to
        equal ones, so that sets of classes grow.
    uncertainty_score : {"violation", "signed", "gini", "reference"}, default "violation"
        What `predict_uncertainty` gives, before novelty is added; see `onsphere.sphere.scores`. They rank alike as long
        as no direction is longer than 1, as with trees; beyond, "signed" and "gini" rank overshoot, the mark of
        extrapolation, as trusted.
    calibration : None, "split", "cv", float in (0, 1), or a splitter, default None
        The rows `fit` keeps back to calibrate on; see `HCMRegressor`. They are stratified by class, which the guarantee
        strictly does not allow for but which hardly changes coverage. With "cv", a class with fewer than five rows
        reduces the number of folds to its number of rows.
    n_jobs : int, optional
        How many fits run at once: of the folds of "cv", and of the candidates of "auto".
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

    _calibrated_settings: ClassVar[tuple[str, ...]] = ("uncertainty_score",)

    def __init__(
        self,
        estimator: Any = None,
        *,
        frames: str | Collection[str] = "all",
        uncertainty_score: str = "violation",
        calibration: str | float | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.frames = frames
        self.uncertainty_score = uncertainty_score
        self.calibration = calibration
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._check_score()
        asked = check_frames(self, ("target", "input"))
        fitted = wrap_fitted(self, self.estimator, has_classes=True) if is_fitted_already(self.estimator) else None
        backbone = fitted or (None if self._is_auto() else prepare_backbone(self, self.estimator, self.random_state))
        rows = self._check_rows(X, fitting=True)
        labels = self._check_labels(y)
        check_same_length(rows, labels)
        if backbone is None:
            with point_to_tables(rows):
                chosen, self.candidates_ = choose_for(self, rows, labels, has_classes=True)
            backbone = prepare_backbone(self, chosen, self.random_state)
        weights = check_sample_weight(sample_weight, rows)
        if fitted is not None:
            check_features(self, fitted, rows)
            self._take_classes(get_fitted(fitted), labels)
        columns = join_columns(self.embedding_.embed(labels), magnitude=False, mean=False)
        self._layout: dict[str, Any] = {"n_outputs": len(self.classes_), "magnitude": False, "mean": False}
        self.estimator_ = fitted or fit_backbone(self, backbone, rows, columns, weights, self._layout)
        if fitted is not None:
            predict_columns(self, fitted, rows, len(self.classes_))  # as many probabilities as classes
        found = find_numbers(self, self.estimator_, rows) if "input" in asked else None
        self._frames = None
        if found is not None:
            input_frame = fit_novelty(self, found.table, columns, weights)[0]
            self._frames = Frames(found.n_steps, input_frame, encoder=found.encoder)

    def _inspect_rows(self, X: Any) -> None:
        model = unwrap_fitted(self.estimator_)
        if model is not None:
            warn_about_known_leaves(model, X, stacklevel=3)

    def _make_fold(self, kept: NDArray[np.intp]) -> Any:
        return self._clone_chosen()

    def _take_classes(self, fitted: Any, labels: NDArray[Any]) -> None:
        """Take over the classes of a fitted model, if it names them."""
        model: Any = fitted.model
        known = getattr(model, "classes_", None)
        if known is None:
            return
        unknown = np.setdiff1d(labels, known)
        if len(unknown):
            raise InvalidInputError(
                f"Expected labels that the fitted {type(model).__name__} knows: {', '.join(map(str, known))}. Got "
                f"{', '.join(map(str, unknown))} too. Drop these rows, or pass a model that was trained on them."
            )
        self.embedding_ = OneHot().fit(np.asarray(known))
        self.classes_ = self.embedding_.classes_

    def _predict(self, X: Any) -> ClassPrediction:
        check_fitted(self, "estimator_")
        numbers, table = self._run_backbone(X, len(self.classes_))
        outputs = split_columns(table, **self._layout)
        novelty, missed = (None, None) if self._frames is None else self._frames.measure_novelty(numbers)
        length = geometry.norm(outputs.direction)
        return ClassPrediction(
            label_index=outputs.direction.argmax(axis=1),
            probabilities=mix_evenly(self._find_probabilities(outputs.direction), novelty),
            uncertainty=self._compute_uncertainty(outputs, novelty),
            details={"direction_norm": length, "magnitude": outputs.magnitude},
            noise=None if self._frames is None else np.maximum(1.0 - length, 0.0),
            novelty=novelty,
            missed=missed,
        )

    def _find_probabilities(self, direction: Floats) -> Floats:
        """Return the probabilities nearest to each direction; those of a fitted model are its own."""
        return direction if get_fitted(self.estimator_) is not None else project_to_simplex(direction)

    def _compute_uncertainty(self, outputs: SphericalOutput, novelty: Floats | None) -> Floats:
        self._check_score()
        score = _CLASS_SCORES[self.uncertainty_score](outputs)
        return score if novelty is None else scores.total_violation(score, novelty)

    def _check_score(self) -> None:
        check_option(self, "uncertainty_score", self.uncertainty_score, list(_CLASS_SCORES))


def mix_evenly(probabilities: Array, novelty: Array | None) -> Array:
    """Return probabilities of which the share that is novel is spread evenly over all classes."""
    if novelty is None:
        return probabilities
    share = novelty[:, None]
    return (1.0 - share) * probabilities + share / probabilities.shape[1]


def project_to_simplex(directions: Floats) -> Floats:
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
