"""HCMRegressor and HCMClassifier: an uncertainty for every prediction of any regressor."""

from __future__ import annotations

from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.utils import get_tags

from onsphere import geometry, scores
from onsphere._validation import (
    Floats,
    bad_parameter,
    check_fitted,
    check_labels,
    check_option,
    check_regression_target,
    check_rows,
    check_same_length,
)
from onsphere.assessment import Assessment
from onsphere.backbones import check_weights, default_backbone, fit_backbone, from_columns, prepare_backbone, to_columns
from onsphere.embeddings import Duplicate, Lift, OneHot, Polar, RegressionEmbedding, Torus
from onsphere.errors import InvalidInputError
from onsphere.geometry import SphericalOutput

__all__ = ["HCMClassifier", "HCMRegressor"]

_EMBEDDINGS: dict[str, type[RegressionEmbedding]] = {
    "lift": Lift,
    "polar": Polar,
    "duplicate": Duplicate,
    "torus": Torus,
}


class _SphericalEstimator(MetaEstimatorMixin, BaseEstimator):
    """What regressor and classifier share: the backbone, and one pass over it."""

    estimator: Any
    random_state: int | np.random.RandomState | None
    estimator_: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        backbone = get_tags(default_backbone() if self.estimator is None else self.estimator)
        tags.input_tags.allow_nan = backbone.input_tags.allow_nan
        tags.input_tags.sparse = backbone.input_tags.sparse
        tags.target_tags.required = True
        return tags

    def _rows(self, X: Any, *, fitting: bool = False) -> Any:
        if not fitting:
            check_fitted(self, "estimator_")
        tags = get_tags(self).input_tags
        return check_rows(self, X, fitting=fitting, allow_nan=tags.allow_nan, accept_sparse=tags.sparse)


class HCMRegressor(RegressorMixin, _SphericalEstimator):
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
        the root mean square of their standard deviations). "violation" and "signed" have no unit.
    random_state : int, RandomState or None
        Seeds the backbone wherever its own random_state is None.

    Attributes
    ----------
    estimator_ : regressor
        The fitted backbone.
    embedding_ : embedding
        The fitted embedding.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from onsphere import HCMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HCMRegressor(random_state=0).fit(X[:400], y[:400])
    >>> result = model.assess(X[400:])
    >>> result.value.shape, result.uncertainty.shape, bool((result.sigma > 0).all())
    ((42,), (42,), True)
    """

    embedding_: RegressionEmbedding

    def __init__(
        self,
        estimator: Any = None,
        *,
        embedding: str | RegressionEmbedding = "lift",
        decoder: str = "mean",
        uncertainty_score: str = "uncertainty",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.embedding = embedding
        self.decoder = decoder
        self.uncertainty_score = uncertainty_score
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn to place the target on the sphere.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : array of shape (n,) or (n, D)
        sample_weight : array of shape (n,), optional
            For backbones that weigh their rows.

        Returns
        -------
        self
        """
        embedding = self._checked_embedding()
        backbone = prepare_backbone(self, self.estimator, self.random_state)
        rows = self._rows(X, fitting=True)
        target = check_regression_target(self, y)
        check_same_length(rows, target)
        weights = check_weights(self, backbone, sample_weight, rows)
        self.embedding_ = embedding.fit(target, weights)
        columns = to_columns(self.embedding_.embed(target), **self._layout())
        self.estimator_ = fit_backbone(backbone, rows, columns, weights)
        self._target_is_flat = target.ndim == 1
        self._output_names = tuple(str(name) for name in y.columns) if hasattr(y, "columns") else None  # type: ignore
        return self

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

    def assess(self, X: Any) -> Assessment:
        """Everything the model says about each row, from one pass over the backbone."""
        outputs = self._outputs(X)
        anchor = self.embedding_.anchor if isinstance(self.embedding_, Lift) else None
        return Assessment(
            value=self._value(outputs),
            uncertainty=self._uncertainty(outputs),
            direction_norm=geometry.norm(outputs.direction),
            magnitude=outputs.magnitude,
            sigma=self._sigma(outputs),
            anchor_residual=None if anchor is None else scores.anchor_residual(outputs, anchor),
            output_names=self._output_names,
        )

    def _checked_embedding(self) -> RegressionEmbedding:
        given: Any = self.embedding
        if isinstance(given, str):
            check_option(self, "embedding", given, list(_EMBEDDINGS))
            given = _EMBEDDINGS[given]()
        if not isinstance(given, RegressionEmbedding):
            raise bad_parameter(self, "embedding", "a name or an instance of a regression embedding", given)
        check_option(self, "decoder", self.decoder, given.decoders)
        possible = ["uncertainty", "sigma", "violation", "signed", *(["anchored"] if isinstance(given, Lift) else [])]
        check_option(self, "uncertainty_score", self.uncertainty_score, possible)
        return clone(given)  # type: ignore[reportReturnType]

    def _layout(self) -> dict[str, bool]:
        return {"magnitude": self.embedding_.has_magnitude, "mean": self.decoder == "mean"}

    def _outputs(self, X: Any) -> SphericalOutput:
        rows = self._rows(X)
        return from_columns(self.estimator_.predict(rows), n_outputs=self.embedding_.n_outputs_, **self._layout())

    def _value(self, outputs: SphericalOutput) -> Floats:
        return self._shaped(self.embedding_.decode(outputs, decoder=self.decoder))

    def _sigma(self, outputs: SphericalOutput) -> Floats:
        return self._shaped(self.embedding_.sigma(outputs))

    def _shaped(self, values: Floats) -> Floats:
        return values[:, 0] if self._target_is_flat else values

    def _uncertainty(self, outputs: SphericalOutput) -> Floats:
        match self.uncertainty_score:
            case "uncertainty":
                return scores.uncertainty(outputs) * self.embedding_.unit_
            case "anchored":
                return scores.anchored(outputs, self.embedding_.anchor) * self.embedding_.unit_  # type: ignore
            case "sigma":
                return np.sqrt(np.mean(self.embedding_.sigma(outputs) ** 2, axis=1))
            case "violation":
                return scores.violation(outputs)
            case _:
                return scores.signed(outputs)


class HCMClassifier(ClassifierMixin, _SphericalEstimator):
    """A classifier whose predictions carry an uncertainty, over any regressor.

    Each class is an axis of the sphere; the backbone learns the direction, the nearest axis is the prediction and
    the missing length is the uncertainty.

    Parameters
    ----------
    estimator : regressor, optional
        The backbone, a regressor because it learns directions. By default
        ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2).
    uncertainty_score : {"violation", "signed", "gini", "reference"}, default "violation"
        What `predict_uncertainty` gives; see `onsphere.scores`. They differ only for backbones that overshoot.
    random_state : int, RandomState or None
        Seeds the backbone wherever its own random_state is None.

    Attributes
    ----------
    classes_ : array of shape (C,)
    estimator_ : regressor
        The fitted backbone.
    embedding_ : OneHot
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
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.uncertainty_score = uncertainty_score
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the direction of each class.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : labels of shape (n,)
        sample_weight : array of shape (n,), optional
            For backbones that weigh their rows.

        Returns
        -------
        self
        """
        check_option(self, "uncertainty_score", self.uncertainty_score, ["violation", "signed", "gini", "reference"])
        backbone = prepare_backbone(self, self.estimator, self.random_state)
        rows = self._rows(X, fitting=True)
        labels = check_labels(self, y)
        check_same_length(rows, labels)
        weights = check_weights(self, backbone, sample_weight, rows)
        self.embedding_ = OneHot().fit(labels if weights is None else labels[weights > 0])
        self.classes_ = self.embedding_.classes_
        columns = to_columns(self.embedding_.embed(labels), magnitude=False, mean=False)
        self.estimator_ = fit_backbone(backbone, rows, columns, weights)
        return self

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

    def assess(self, X: Any) -> Assessment:
        """Everything the model says about each row, from one pass over the backbone."""
        outputs = self._outputs(X)
        return Assessment(
            value=self.embedding_.decode(outputs),
            uncertainty=self._uncertainty(outputs),
            direction_norm=geometry.norm(outputs.direction),
            magnitude=outputs.magnitude,
            probabilities=_nearest_probabilities(outputs.direction),
            output_names=tuple(str(label) for label in self.classes_),
        )

    def _outputs(self, X: Any) -> SphericalOutput:
        rows = self._rows(X)
        return from_columns(self.estimator_.predict(rows), n_outputs=len(self.classes_), magnitude=False, mean=False)

    def _uncertainty(self, outputs: SphericalOutput) -> Floats:
        match self.uncertainty_score:
            case "violation":
                return scores.violation(outputs)
            case "signed":
                return scores.signed(outputs)
            case "gini":
                return scores.gini(outputs)
            case _:
                return scores.reference(outputs)


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
