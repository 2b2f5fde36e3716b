"""Dropout that stays on in prediction: many thinned networks from one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax

from onsphere._internal.validation import check_number, check_option
from onsphere.baselines.likelihood import SoftmaxLoss, SoftmaxNetwork
from onsphere.baselines.network_model import CLASS_SCORES, NetworkRegressor, combine_class_draws, combine_draws
from onsphere.errors import InvalidInputError
from onsphere.models.classifier import ClassPrediction
from onsphere.models.regressor import RegressionPrediction
from onsphere.torch.regressor import TorchRegressor
from onsphere.torch.running import find_random_layers

__all__ = ["MCDropout", "MCDropoutClassifier"]


class MCDropout(NetworkRegressor):
    """Monte Carlo dropout: the mean and spread of many passes, each with other activations dropped.

    Each pass is one thinned network, drawn from an approximate posterior over weights; where they disagree, the network
    is unsure. A pass drops the same for all rows and passes are seeded, so a row always gets the same prediction.

    Gal and Ghahramani, "Dropout as a Bayesian approximation: representing model uncertainty in deep learning",
    ICML 2016 (sigma is the spread of the passes, without the constant noise that the paper adds to it).

    Cost: training as for the plain network; n_passes predictions instead of one. Fails as a measure of noise, which it
    does not see: the spread depends on the rate of dropout and hardly on the targets, and does not go to 0 with more
    rows.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        The network and its training; it must have dropout. By default TorchRegressor(dropout=0.1).
    n_passes : int, default 50
    calibration, random_state : as in `HCMRegressor`

    Attributes
    ----------
    estimator_ : TorchRegressor
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere.baselines import MCDropout
    >>> from onsphere.torch import TorchRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> network = TorchRegressor(hidden_sizes=(20,), dropout=0.1, max_epochs=5)
    >>> model = MCDropout(network, random_state=0).fit(X, X[:, 0])
    >>> inside, outside = model.predict_uncertainty([[0.0, 0.0], [100.0, 0.0]])
    >>> bool(inside < outside)
    True
    """

    _calibrated_settings: ClassVar[tuple[str, ...]] = ("n_passes",)

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_passes: int = 50,
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(estimator, calibration=calibration, random_state=random_state)
        self.n_passes = n_passes

    def _make_network(self) -> TorchRegressor:
        _check_n_passes(self)
        return _check_rate(self, self._prepare_network(TorchRegressor(dropout=0.1)))

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        super()._fit(X, y, sample_weight)
        _check_dropout(self)

    def _predict(self, X: Any) -> RegressionPrediction:
        _check_n_passes(self)
        passes = self._run_network(X, n_samples=self.n_passes).numpy()
        return combine_draws(self.estimator_.unstandardize(passes))


class MCDropoutClassifier(SoftmaxNetwork):
    """Monte Carlo dropout for classes: the mean of the softmax over many passes with dropout.

    As in `MCDropout`, each pass is one thinned network. Where they disagree, the mean of their probabilities is less
    sure than any of them.

    Gal and Ghahramani, "Dropout as a Bayesian approximation: representing model uncertainty in deep learning",
    ICML 2016; Houlsby et al., "Bayesian active learning for classification and preference learning", 2011, for
    the disagreement.

    Cost: training as for `SoftmaxNetwork`; n_passes predictions instead of one. Fails away from the training rows,
    where thinned networks can all be sure of the same class.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        The network and its training; it must have dropout, and its loss must be "auto". By default
        TorchRegressor(dropout=0.1).
    n_passes : int, default 50
    uncertainty_score : {"entropy", "disagreement"}, default "entropy"
        What `predict_uncertainty` returns: the entropy of the mean, or the part of it that comes from passes that
        disagree (the mutual information of class and pass).
    calibration, random_state : as in `HCMClassifier`

    Attributes
    ----------
    classes_ : array of shape (C,)
    estimator_ : TorchRegressor
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMClassifier`

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onsphere.baselines import MCDropoutClassifier
    >>> from onsphere.torch import TorchRegressor
    >>> X, y = load_iris(return_X_y=True)
    >>> network = TorchRegressor(hidden_sizes=(20,), dropout=0.1, max_epochs=30, learning_rate=1e-2)
    >>> model = MCDropoutClassifier(network, random_state=0).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    _calibrated_settings: ClassVar[tuple[str, ...]] = ("n_passes", "uncertainty_score")

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_passes: int = 50,
        uncertainty_score: str = "entropy",
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(estimator, calibration=calibration, random_state=random_state)
        self.n_passes = n_passes
        self.uncertainty_score = uncertainty_score

    def _make_network(self) -> TorchRegressor:
        self._check_options()
        return _check_rate(self, self._prepare_network(TorchRegressor(dropout=0.1), SoftmaxLoss()))

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        super()._fit(X, y, sample_weight)
        _check_dropout(self)

    def _predict(self, X: Any) -> ClassPrediction:
        self._check_options()
        passes = self._run_network(X, n_samples=self.n_passes).numpy()
        return combine_class_draws(softmax(passes, axis=2), self.uncertainty_score)

    def _check_options(self) -> None:
        _check_n_passes(self)
        check_option(self, "uncertainty_score", self.uncertainty_score, CLASS_SCORES)


def _check_n_passes(owner: Any) -> None:
    check_number(owner, "n_passes", owner.n_passes, above=2, closed="left", whole=True)


def _check_rate(owner: object, network: TorchRegressor) -> TorchRegressor:
    """Return the network, unless it is clear before its training that it has no dropout."""
    if network.module is None and network.dropout == 0:
        raise _dropout_error(owner)
    return network


def _check_dropout(owner: Any) -> None:
    if not find_random_layers(owner.estimator_.net_.module_):
        raise _dropout_error(owner)


def _dropout_error(owner: object) -> InvalidInputError:
    return InvalidInputError(
        f"{type(owner).__name__} needs a network with dropout. Got one without, whose passes would all be the same. "
        "Pass TorchRegressor(dropout=0.1), or a module with layers like nn.Dropout(0.1)."
    )
