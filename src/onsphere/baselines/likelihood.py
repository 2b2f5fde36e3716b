"""Networks that say a whole distribution for each output, and are trained by its likelihood."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number
from onsphere.baselines.network import (
    NetworkRegressor,
    ask_network,
    numbers_per_column,
    positive,
    prepare_network,
)
from onsphere.calibration import root_mean_square
from onsphere.models.regressor import RegressionPrediction
from onsphere.torch.regressor import TorchRegressor

__all__ = ["GaussianLoss", "GaussianNLL", "MixtureDensity", "MixtureLoss", "answer_from_moments"]


class GaussianLoss(nn.Module):
    """Negative log-likelihood of a normal distribution, shape (n, D); two outputs per column.

    Those of a column stand beside each other: the mean, and a number whose softplus is the variance.

    Examples
    --------
    >>> import torch
    >>> GaussianLoss()(torch.zeros(5, 6), torch.zeros(5, 3)).shape
    torch.Size([5, 3])
    """

    outputs_per_column = 2

    def read(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance, each (..., D), of outputs (..., D, 2)."""
        return outputs[..., 0], positive(outputs[..., 1])

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        mean, variance = self.read(numbers_per_column(self, outputs, target))
        return -_log_normal(target, mean, variance)


class MixtureLoss(nn.Module):
    """Negative log-likelihood of a mixture of normal distributions for each column, shape (n, D).

    The 3K outputs of a column stand beside each other: K logits of the shares, K means, and K numbers whose softplus
    is a variance.

    Parameters
    ----------
    n_components : int, default 5
        K.

    Examples
    --------
    >>> import torch
    >>> MixtureLoss(2)(torch.zeros(5, 18), torch.zeros(5, 3)).shape
    torch.Size([5, 3])
    """

    def __init__(self, n_components: int = 5) -> None:
        super().__init__()
        check_number(self, "n_components", n_components, above=1, closed="left", whole=True)
        self.n_components = int(n_components)
        self.outputs_per_column = 3 * self.n_components

    def read(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logarithms of the shares, means and variances, each (..., D, K), of outputs (..., D, 3K)."""
        logits, means, raw = outputs.unflatten(-1, (3, self.n_components)).unbind(dim=-2)
        return torch.log_softmax(logits, dim=-1), means, positive(raw)

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        log_shares, means, variances = self.read(numbers_per_column(self, outputs, target))
        return -torch.logsumexp(log_shares + _log_normal(target[..., None], means, variances), dim=-1)

    def extra_repr(self) -> str:
        return f"n_components={self.n_components}"


def _log_normal(target: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (math.log(2 * math.pi) + torch.log(variance) + (target - mean) ** 2 / variance)


def answer_from_moments(network: TorchRegressor, mean: Tensor, variance: Tensor) -> RegressionPrediction:
    """Standardised moments (n, D) as an answer in the unit of the target."""
    sigma = network.unstandardize(variance.sqrt().numpy(), centered=False)
    return RegressionPrediction(network.unstandardize(mean.numpy()), sigma, root_mean_square(sigma), {})


class GaussianNLL(NetworkRegressor):
    """A network that gives mean and variance of each output, trained by the likelihood of a normal distribution.

    Where the targets scatter more, a larger variance makes them more likely, so the network learns the noise along with
    the mean.

    Nix and Weigend, "Estimating the mean and variance of the target probability distribution", ICNN 1994.

    Cost: one more output per output; training and prediction take as long as for the plain network. Fails off the
    training rows, where it extrapolates its variance like any other output and may be very sure; and in training,
    where rows that fit badly are called noisy and then hardly pull the mean any more, so that the mean is often worse
    than that of the squared error.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        The network and its training; its loss must be "auto". By default TorchRegressor().
    calibration, random_state : as in `HCMRegressor`

    Attributes
    ----------
    estimator_ : TorchRegressor
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere.baselines.likelihood import GaussianNLL
    >>> from onsphere.torch import TorchRegressor
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> y = X[:, 0] + np.where(X[:, 0] > 0, 1.0, 0.1) * np.random.default_rng(0).normal(size=200)
    >>> network = TorchRegressor(hidden_sizes=(20,), max_epochs=30, learning_rate=1e-2)
    >>> low, high = GaussianNLL(network, random_state=0).fit(X, y).predict_sigma([[-0.5], [0.5]])
    >>> bool(low < high)
    True
    """

    def _network(self) -> TorchRegressor:
        return prepare_network(self, TorchRegressor(), loss=GaussianLoss())

    def _predict(self, X: Any) -> RegressionPrediction:
        rows = self._check_rows(X)
        outputs = ask_network(self.estimator_, rows).unflatten(-1, (-1, 2))
        return answer_from_moments(self.estimator_, *GaussianLoss().read(outputs))


class MixtureDensity(NetworkRegressor):
    """A mixture density network: for each output a mixture of normal distributions, trained by its likelihood.

    A mixture can follow any shape of noise, with several peaks or long tails, where one normal distribution cannot.
    The prediction is its mean and sigma its standard deviation, outputs taken one by one.

    Bishop, "Mixture density networks", Aston University, NCRG/94/004, 1994.

    Cost: 3K outputs per output; hardly more than the plain network. Fails off the training rows like `GaussianNLL`; and
    where the noise has several peaks, the mean that is predicted lies between them, where no target is.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        The network and its training; its loss must be "auto". By default TorchRegressor().
    n_components : int, default 5
        K, the number of normal distributions for each output.
    calibration, random_state : as in `HCMRegressor`

    Attributes
    ----------
    estimator_ : TorchRegressor
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere.baselines.likelihood import MixtureDensity
    >>> from onsphere.torch import TorchRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 1, size=(300, 1))
    >>> y = X[:, 0] * rng.choice([-1, 1], size=300)    # two branches that move apart
    >>> network = TorchRegressor(hidden_sizes=(20,), max_epochs=30, learning_rate=1e-2)
    >>> model = MixtureDensity(network, n_components=2, random_state=0).fit(X, y)
    >>> low, high = model.predict_sigma([[0.1], [0.9]])
    >>> bool(low < high)
    True
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_components: int = 5,
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.n_components = n_components
        self.calibration = calibration
        self.random_state = random_state

    def _network(self) -> TorchRegressor:
        check_number(self, "n_components", self.n_components, above=1, closed="left", whole=True)
        return prepare_network(self, TorchRegressor(), loss=MixtureLoss(self.n_components))

    def _predict(self, X: Any) -> RegressionPrediction:
        rows = self._check_rows(X)
        loss: Any = self.estimator_.loss  # as it was fitted, whatever n_components is now
        outputs = ask_network(self.estimator_, rows).unflatten(-1, (-1, loss.outputs_per_column))
        log_shares, means, variances = loss.read(outputs)
        shares = log_shares.exp()
        mean = (shares * means).sum(dim=-1)
        variance = (shares * (variances + (means - mean[..., None]) ** 2)).sum(dim=-1)
        return answer_from_moments(self.estimator_, mean, variance)
