"""The base of the methods that train a network, and how several passes become one prediction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.special import entr, rel_entr
from sklearn.base import RegressorMixin
from torch import Tensor, nn

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_rows,
    check_same_length,
    check_sample_weight,
    parameter_error,
)
from onsphere.calibration import root_mean_square
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.models.backbone import BackboneModel, fit_backbone, get_input_tags, prepare_backbone
from onsphere.models.classifier import ClassPrediction
from onsphere.models.regressor import RegressionMixin, RegressionPrediction
from onsphere.sphere import Lift
from onsphere.sphere.embeddings import as_columns
from onsphere.torch.regressor import TorchRegressor

__all__ = [
    "CLASS_SCORES",
    "NetworkModel",
    "NetworkRegressor",
    "combine_class_draws",
    "combine_draws",
    "disagreement",
    "make_positive",
    "split_outputs",
]

CLASS_SCORES = ("entropy", "disagreement")

# Variances stay above this, in standardised units: a variance of 0 would have an infinite likelihood.
_FLOOR = 1e-6


class NetworkModel(BackboneModel):
    """A model whose backbone is a network unless another is given: no missing values, no sparse rows.

    scikit-learn reads the parameters off `__init__`, so a model with more than these three writes its own.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.calibration = calibration
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan, tags.input_tags.sparse = self._get_input_tags()
        return tags

    def _get_input_tags(self) -> tuple[bool, bool]:
        if isinstance(self.estimator, NetworkModel):
            return self.estimator._get_input_tags()
        return (False, False) if self.estimator is None else get_input_tags(self.estimator)

    def _check_rows(self, X: Any, *, fitting: bool = False) -> Any:
        if not fitting:
            check_fitted(self, "estimator_")
        allow_nan, accept_sparse = self._get_input_tags()
        return check_rows(self, X, fitting=fitting, allow_nan=allow_nan, accept_sparse=accept_sparse)

    def _check_data(
        self, X: Any, y: Any, sample_weight: Any, check_target: Callable[[Any], Any]
    ) -> tuple[Any, Any, Floats | None]:
        """Return the rows, targets and weights of fit, checked."""
        rows, target = self._check_rows(X, fitting=True), check_target(y)
        check_same_length(rows, target)
        return rows, target, check_sample_weight(sample_weight, rows)

    def _prepare_network(self, default: TorchRegressor, loss: nn.Module | None = None) -> TorchRegressor:
        """Return a seeded copy of the network, or of the default one, with the loss of the method."""
        network = default if self.estimator is None else self.estimator
        if not isinstance(network, TorchRegressor):
            raise InvalidTypeError(
                f"The 'estimator' parameter of {type(self).__name__} must be a TorchRegressor, because the method is "
                f"for networks only. Got {network!r} instead. Pass an instance such as TorchRegressor(max_epochs=100)."
            )
        copy = prepare_backbone(self, network, self.random_state)
        if loss is None:
            return copy
        if copy.loss != "auto":
            expected = f"a TorchRegressor(loss='auto'), because the method trains with {type(loss).__name__}"
            raise parameter_error(self, "estimator", expected, network)
        return copy.set_params(loss=loss)

    def _run_network(self, X: Any, *, n_samples: int | None = None) -> Tensor:
        """Return the outputs of the fitted network, (n, k) or (n_samples, n, k), in double precision."""
        rows = self._check_rows(X)
        return torch.from_numpy(self.estimator_.predict_outputs(rows, n_samples=n_samples))


class NetworkRegressor(RegressionMixin, RegressorMixin, NetworkModel):
    """A regression model over one network, trained on one column per output."""

    @abstractmethod
    def _make_network(self) -> TorchRegressor:
        """Check the parameters, and return the network to train."""

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        network = self._make_network()
        self.estimator_ = fit_backbone(self, network, *self._check_columns(X, y, sample_weight), None)

    def _check_columns(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Floats, Floats | None]:
        """Return the rows, columns (n, D) and weights of fit, checked, and remember the spread of each column."""
        rows, target, weights = self._check_data(X, y, sample_weight, self._check_target)
        self.spread_ = Lift().fit(target, weights).spread_  # as HCM measures it, for targets of any size
        return rows, as_columns(target), weights

    def _predict_moments(self, mean: Tensor, variance: Tensor) -> RegressionPrediction:
        """Return standardised moments (n, D) as a prediction in the unit of the target."""
        sigma = self.estimator_.unstandardize(variance.sqrt().numpy(), centered=False)
        return RegressionPrediction(self.estimator_.unstandardize(mean.numpy()), sigma, root_mean_square(sigma), {})


def split_outputs(loss: Any, outputs: Tensor, target: Tensor) -> Tensor:
    """Return outputs (n, D·k) of a loss with k outputs per column as (n, D, k); the target must be (n, D)."""
    k = loss.outputs_per_column
    if target.ndim != 2 or outputs.shape != (len(target), k * target.shape[1]):
        raise InvalidInputError(
            f"{type(loss).__name__} expects a target of shape (n, D) and outputs of shape (n, {k}·D). Got "
            f"{tuple(target.shape)} and {tuple(outputs.shape)}. Nothing is broadcast: reshape them."
        )
    return outputs.unflatten(-1, (-1, k))


def make_positive(raw: Tensor) -> Tensor:
    """Return log(1 + eˣ) plus a floor: a positive number whose gradient stays finite."""
    return nn.functional.softplus(raw) + _FLOOR


def combine_draws(values: Floats, sigmas: Floats | None = None) -> RegressionPrediction:
    """Return the mean of several predictions; its variance adds theirs, if they have one, to the spread between them.

    Parameters
    ----------
    values : array of shape (m, n, D)
    sigmas : array of shape (m, n, D), optional

    Examples
    --------
    >>> import numpy as np
    >>> prediction = combine_draws(np.array([[[1.0]], [[7.0]]]), sigmas=np.array([[[4.0]], [[4.0]]]))
    >>> float(prediction.value[0, 0]), float(prediction.sigma[0, 0]), float(prediction.uncertainty[0])
    (4.0, 5.0, 5.0)
    """
    value = values.mean(axis=0)
    sigma = _root_mean_square_of_draws(values - value)
    if sigmas is not None:
        sigma = np.hypot(sigma, _root_mean_square_of_draws(sigmas))
    return RegressionPrediction(value, sigma, root_mean_square(sigma), {})


def _root_mean_square_of_draws(values: Floats) -> Floats:
    return root_mean_square(np.moveaxis(values, 0, -1))


def combine_class_draws(probabilities: Floats, uncertainty_score: str) -> ClassPrediction:
    """Return the mean of several probabilities, with its entropy or their disagreement as uncertainty.

    Parameters
    ----------
    probabilities : array of shape (m, n, C)
    uncertainty_score : {"entropy", "disagreement"}

    Examples
    --------
    >>> import numpy as np
    >>> prediction = combine_class_draws(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]), "entropy")
    >>> prediction.probabilities.tolist(), prediction.uncertainty.round(3).tolist()
    ([[0.5, 0.5]], [0.693])
    """
    mean = probabilities.mean(axis=0)
    score = entr(mean).sum(axis=1) if uncertainty_score == "entropy" else disagreement(probabilities)
    return ClassPrediction(mean.argmax(axis=1), mean, score, {})


def disagreement(probabilities: Floats) -> Floats:
    """Return the mutual information of class and draw, (n,) in nats: the entropy of the mean minus the mean entropy.

    It is 0 where all draws agree, however unsure they are.

    Parameters
    ----------
    probabilities : array of shape (m, n, C)

    Examples
    --------
    >>> import numpy as np
    >>> disagreement(np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])).round(3).tolist()
    [0.693, 0.0]
    """
    # As the mean divergence from the mean: a difference of two entropies would lose its digits where it is small.
    divergence = rel_entr(probabilities, probabilities.mean(axis=0)).sum(axis=2).mean(axis=0)
    return np.maximum(divergence, 0.0)
