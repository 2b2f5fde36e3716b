"""What the methods that train a network share: which networks they take, how one is fitted, and how it is asked."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from torch import Tensor, nn

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_number,
    check_rows,
    check_same_length,
    check_sample_weight,
    parameter_error,
)
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.models.backbone import BackboneModel, fit_backbone, get_input_tags, prepare_backbone
from onsphere.models.regressor import RegressionMixin
from onsphere.sphere import Lift
from onsphere.sphere.embedding import as_columns
from onsphere.torch.regressor import TorchRegressor

__all__ = [
    "NetworkRegressor",
    "NumbersOverNetwork",
    "OverNetwork",
    "ask_network",
    "check_passes",
    "fit_on",
    "numbers_per_column",
    "positive",
    "prepare_network",
]

# What is positive stays above this, in standardised units: a variance of 0 would have a likelihood of infinity.
_FLOOR = 1e-6


class OverNetwork(BackboneModel):
    """A model whose backbone, unless one is given, is a network: no missing values, no sparse rows.

    Models with more to choose than these three write an `__init__` of their own, which scikit-learn reads them off.
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
        tags.input_tags.allow_nan, tags.input_tags.sparse = self._takes()
        return tags

    def _check_rows(self, X: Any, *, fitting: bool = False) -> Any:
        if not fitting:
            check_fitted(self, "estimator_")
        allow_nan, accept_sparse = self._takes()
        return check_rows(self, X, fitting=fitting, allow_nan=allow_nan, accept_sparse=accept_sparse)

    def _takes(self) -> tuple[bool, bool]:
        if isinstance(self.estimator, OverNetwork):
            return self.estimator._takes()
        return (False, False) if self.estimator is None else get_input_tags(self.estimator)


class NumbersOverNetwork(RegressionMixin, RegressorMixin, OverNetwork):
    """Regression models that learn the target as it is, in one column per output."""

    def _learned(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Floats, Floats | None]:
        """Rows, columns (n, D) and weights of fit, checked; what must be known of the target is remembered."""
        rows = self._check_rows(X, fitting=True)
        target = self._check_target(y)
        check_same_length(rows, target)
        weights = check_sample_weight(sample_weight, rows)
        self.spread_ = Lift().fit(target, weights).spread_  # as HCM measures it, for targets of any size
        return rows, as_columns(target), weights


class NetworkRegressor(NumbersOverNetwork):
    """Regression models over one network; they bring `_network` and `_predict`."""

    @abstractmethod
    def _network(self) -> TorchRegressor:
        """The network to train, after a check of the parameters."""

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        network = self._network()
        self.estimator_ = fit_on(self, network, *self._learned(X, y, sample_weight))


def prepare_network(owner: Any, default: TorchRegressor, *, loss: nn.Module | None = None) -> TorchRegressor:
    """A fresh copy of the owner's network, or of the default one, seeded and with the loss of the method."""
    network = default if owner.estimator is None else owner.estimator
    if not isinstance(network, TorchRegressor):
        raise InvalidTypeError(
            f"The 'estimator' parameter of {type(owner).__name__} must be a TorchRegressor, because the method is one "
            f"for networks. Got {network!r} instead. Pass an instance, for example TorchRegressor(max_epochs=100)."
        )
    fresh = prepare_backbone(owner, network, owner.random_state)
    if loss is None:
        return fresh
    if fresh.loss != "auto":
        raise parameter_error(
            owner,
            "estimator",
            f"a TorchRegressor(loss='auto'), because the method brings {type(loss).__name__}",
            network,
        )
    return fresh.set_params(loss=loss)


def fit_on(owner: object, backbone: Any, rows: Any, columns: Any, weights: Floats | None) -> Any:
    """Fit any backbone, or pipeline of one, on columns that are no sphere."""
    return fit_backbone(owner, backbone, rows, columns, weights, None)


def ask_network(network: TorchRegressor, X: Any, *, n_samples: int | None = None) -> Tensor:
    """What the network says of checked rows, (n, k) or (n_samples, n, k), in double precision."""
    return torch.from_numpy(network.predict_outputs(X, n_samples=n_samples))


def check_passes(owner: Any) -> None:
    """Enough passes for a spread."""
    check_number(owner, "n_passes", owner.n_passes, above=2, closed="left", whole=True)


def numbers_per_column(loss: Any, outputs: Tensor, target: Tensor) -> Tensor:
    """Outputs (n, D·k) of a loss with k outputs per column, as (n, D, k); the target must be (n, D)."""
    k = loss.outputs_per_column
    if target.ndim != 2 or outputs.shape != (len(target), k * target.shape[1]):
        raise InvalidInputError(
            f"{type(loss).__name__} expects a target of shape (n, D) and outputs of shape (n, {k}·D). Got "
            f"{tuple(target.shape)} and {tuple(outputs.shape)}. Nothing is broadcast: reshape them."
        )
    return outputs.unflatten(-1, (-1, k))


def positive(raw: Tensor) -> Tensor:
    """Any number as a positive one, log(1 + eˣ) and a floor, with gradients that stay finite."""
    return nn.functional.softplus(raw) + _FLOOR
