"""A classifier and a detector as one model, so that its scores are calibrated and compared like any other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_classifier

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_labels,
    check_rows,
    check_same_length,
    check_sample_weight,
    wrap_backbone_errors,
)
from onsphere.baselines.detector import Detector, check_table, check_width
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.models.backbone import set_random_states
from onsphere.models.classifier import ClassificationMixin, ClassPrediction

__all__ = ["LastLayer", "PostHoc", "make_default_classifier"]


class PostHoc(ClassificationMixin, ClassifierMixin, BaseEstimator):
    """A classifier whose predictions are judged by a detector.

    Parameters
    ----------
    detector : Detector
        For example `KNN()`.
    classifier : classifier, optional
        It predicts the labels. Features and logits come from its methods `features` and `logits` if it has them
        (`SoftmaxNetwork`); otherwise the rows are the features, and its `decision_function`, or the logarithm of its
        `predict_proba`, the logits. By default LogisticRegression().
    calibration : None, "split", "cv" or float in (0, 1), default None
        What `fit` keeps back to calibrate on; see `HCMClassifier`.
    random_state : int, RandomState or None
        Seeds classifier and detector wherever their own random_state is None.

    Attributes
    ----------
    classes_ : array of shape (C,)
    estimator_ : classifier
        The fitted one.
    detector_ : Detector
        The fitted one.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from onsphere.baselines import KNN, PostHoc
    >>> X, y = load_digits(return_X_y=True)
    >>> model = PostHoc(KNN(k=10)).fit(X[::2], y[::2])
    >>> rotated = X[1::2, ::-1]  # upside down
    >>> bool(model.predict_uncertainty(rotated).mean() > model.predict_uncertainty(X[1::2]).mean())
    True
    """

    estimator_: Any
    detector_: Detector

    def __init__(
        self,
        detector: Detector,
        classifier: Any = None,
        *,
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.detector = detector
        self.classifier = classifier
        self.calibration = calibration
        self.random_state = random_state

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        if not isinstance(self.detector, Detector):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(
                f"The 'detector' parameter of PostHoc must be a detector of onsphere.baselines. Got {self.detector!r}. "
                "Pass an instance, for example KNN()."
            )
        rows = check_rows(self, X, fitting=True, allow_nan=False)
        labels = self._check_labels(y)
        check_same_length(rows, labels)
        weights = check_sample_weight(sample_weight, rows)
        given: Any = make_default_classifier() if self.classifier is None else self.classifier
        if isinstance(given, type) or not hasattr(given, "__sklearn_tags__") or not is_classifier(given):
            raise InvalidTypeError(
                f"The 'classifier' parameter of PostHoc must be a classifier. Got {given!r}. "
                "Pass for example LogisticRegression() or SoftmaxNetwork()."
            )
        classifier = set_random_states(self, clone(given), self.random_state)
        with wrap_backbone_errors(self, classifier, "be fitted"):
            options = {} if weights is None else {"sample_weight": weights}
            self.estimator_ = classifier.fit(rows, labels, **options)
        features, logits = self._read_features_and_logits(rows)
        self._check_logits(rows, logits)
        detector = set_random_states(self, clone(self.detector), self.random_state)
        self.detector_ = detector.fit(features, logits, labels)

    def _predict(self, X: Any) -> ClassPrediction:
        check_fitted(self, "estimator_")
        rows = check_rows(self, X, fitting=False, allow_nan=False)
        features, logits = self._read_features_and_logits(rows)
        return ClassPrediction(
            label_index=logits.argmax(axis=1),
            probabilities=softmax(logits, axis=1),
            uncertainty=self.detector_.score(features, logits),
            details={},
        )

    def _check_logits(self, rows: Any, logits: Floats) -> None:
        """Check that the largest logit is that of the predicted class: not every decision_function returns logits."""
        n_columns, n_classes = logits.shape[1], len(self.classes_)
        predicted = self.estimator_.predict(rows)
        agree = n_columns == n_classes and np.mean(self.classes_[logits.argmax(axis=1)] == predicted) > 0.99
        if not agree:
            raise InvalidInputError(
                f"Expected logits of {type(self.estimator_).__name__} that are largest for the class it predicts, one "
                f"column for each of {n_classes} classes. Got {n_columns} column(s) that say otherwise. Choose a "
                "decision_function of one column per class (for SVC, decision_function_shape='ovr'), or another "
                "classifier."
            )

    def _read_features_and_logits(self, rows: Any) -> tuple[Floats, Floats]:
        """Return what the detector judges each row by."""
        classifier = self.estimator_
        with wrap_backbone_errors(self, classifier, "predict"):
            features = classifier.features(rows) if hasattr(classifier, "features") else rows
            return np.asarray(features, dtype=np.float64), _compute_logits(classifier, rows)


class LastLayer(ClassifierMixin, BaseEstimator):
    """The last linear layer of a network that is already trained, as a classifier of its features; fit changes nothing.

    Parameters
    ----------
    weight : array of shape (C, p)
    bias : array of shape (C,)

    Examples
    --------
    >>> import numpy as np
    >>> layer = LastLayer(np.eye(3), np.zeros(3)).fit(np.eye(3), [0, 1, 2])
    >>> layer.predict(np.eye(3)[::-1]).tolist()
    [2, 1, 0]
    """

    classes_: NDArray[Any]

    def __init__(self, weight: ArrayLike, bias: ArrayLike) -> None:
        self.weight = weight
        self.bias = bias

    def fit(self, X: Any, y: ArrayLike) -> LastLayer:
        """Learn the names of the classes, in sorted order one for each row of the weights."""
        weight = check_table(self, "weight", self.weight)
        if np.shape(self.bias) != (len(weight),):
            raise InvalidInputError(
                f"Expected a bias of shape ({len(weight)},) for weights of shape {weight.shape}. "
                f"Got {np.shape(self.bias)}. Pass both as the layer has them."
            )
        classes = np.unique(check_labels(self, y))
        if len(classes) != len(weight):
            raise InvalidInputError(
                f"Expected labels of {len(weight)} classes, one for each row of the weights. Got {len(classes)}. "
                "Fit on rows of all classes."
            )
        self.classes_ = classes
        self.n_features_in_ = weight.shape[1]
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return logits of shape (n, C)."""
        check_fitted(self, "classes_")
        rows = check_table(self, "features", X)
        check_width(self, "features", rows, self.n_features_in_)
        return rows @ np.asarray(self.weight, dtype=np.float64).T + np.asarray(self.bias, dtype=np.float64)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of the largest logit of each row."""
        return self.classes_[self.decision_function(X).argmax(axis=1)]


def make_default_classifier() -> Any:
    """Return a logistic regression, with the rows as features."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000)


def _compute_logits(classifier: Any, rows: Any) -> Floats:
    if hasattr(classifier, "logits"):
        return classifier.logits(rows)
    if not hasattr(classifier, "decision_function"):
        # A probability of zero stays a finite logit.
        return np.log(np.maximum(classifier.predict_proba(rows), np.finfo(np.float64).tiny))
    decision = np.asarray(classifier.decision_function(rows), dtype=np.float64)
    return np.column_stack([np.zeros(len(decision)), decision]) if decision.ndim == 1 else decision
