"""Networks that predict a whole distribution, and are trained by its likelihood: of numbers, and of classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from torch import Tensor, nn

from onsphere._internal.validation import Floats, check_number
from onsphere.baselines.network_model import NetworkModel, NetworkRegressor, make_positive, split_outputs
from onsphere.baselines.softmax import msp
from onsphere.models.backbone import fit_backbone
from onsphere.models.classifier import ClassificationMixin, ClassPrediction
from onsphere.models.regressor import RegressionPrediction
from onsphere.torch.features import features
from onsphere.torch.regressor import TorchRegressor

__all__ = ["GaussianLoss", "GaussianNLL", "MixtureDensity", "MixtureLoss", "SoftmaxLoss", "SoftmaxNetwork"]

_FEATURES_AT_ONCE = 4096


class GaussianLoss(nn.Module):
    """Negative log-likelihood of a normal distribution, shape (n, D); two outputs per column.

    The outputs of a column are the mean, and a number whose softplus is the variance.

    Examples
    --------
    >>> import torch
    >>> GaussianLoss()(torch.zeros(5, 6), torch.zeros(5, 3)).shape
    torch.Size([5, 3])
    """

    outputs_per_column = 2

    def read(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each (..., D), of outputs (..., D, 2)."""
        return outputs[..., 0], make_positive(outputs[..., 1])

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        mean, variance = self.read(split_outputs(self, outputs, target))
        return -_log_normal(target, mean, variance)


class MixtureLoss(nn.Module):
    """Negative log-likelihood of a mixture of normal distributions for each column, shape (n, D).

    The outputs of a column are K logits of the shares, K means, and K numbers whose softplus is a variance.

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
        """Return the logarithms of the shares, the means and variances, each (..., D, K), of outputs (..., D, 3K)."""
        logits, means, raw = outputs.unflatten(-1, (3, self.n_components)).unbind(dim=-2)
        return torch.log_softmax(logits, dim=-1), means, make_positive(raw)

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        log_shares, means, variances = self.read(split_outputs(self, outputs, target))
        return -torch.logsumexp(log_shares + _log_normal(target[..., None], means, variances), dim=-1)

    def extra_repr(self) -> str:
        return f"n_components={self.n_components}"


def _log_normal(target: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (math.log(2 * math.pi) + torch.log(variance) + (target - mean) ** 2 / variance)


class GaussianNLL(NetworkRegressor):
    """A network that predicts mean and variance of each output, trained by the likelihood of a normal distribution.

    Where the targets scatter more, a larger variance makes them more likely. So the network learns the noise along with
    the mean.

    Nix and Weigend, "Estimating the mean and variance of the target probability distribution", ICNN 1994.

    Cost: a second number per output; training and prediction take as long as for the plain network. Fails away from the
    training rows, where it extrapolates its variance like any other number and may be very sure; and in training, where
    rows that fit badly count as noisy and then hardly move the mean, which is often worse than that of the squared
    error.

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
    >>> from onsphere.baselines import GaussianNLL
    >>> from onsphere.torch import TorchRegressor
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> y = X[:, 0] + np.where(X[:, 0] > 0, 1.0, 0.1) * np.random.default_rng(0).normal(size=200)
    >>> network = TorchRegressor(hidden_sizes=(20,), max_epochs=30, learning_rate=1e-2)
    >>> low, high = GaussianNLL(network, random_state=0).fit(X, y).predict_sigma([[-0.5], [0.5]])
    >>> bool(low < high)
    True
    """

    def _make_network(self) -> TorchRegressor:
        return self._prepare_network(TorchRegressor(), GaussianLoss())

    def _predict(self, X: Any) -> RegressionPrediction:
        return self._predict_moments(*GaussianLoss().read(self._run_network(X).unflatten(-1, (-1, 2))))


class MixtureDensity(NetworkRegressor):
    """A mixture density network: for each output a mixture of normal distributions, trained by its likelihood.

    A mixture can follow noise of any shape, with several peaks or long tails. The prediction is its mean and sigma its
    standard deviation, for each output by itself.

    Bishop, "Mixture density networks", Aston University, NCRG/94/004, 1994.

    Cost: 3K numbers per output, hardly more than the plain network. Fails away from the training rows like
    `GaussianNLL`; and where the noise has several peaks, the predicted mean lies between them, where no target is.

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
    >>> from onsphere.baselines import MixtureDensity
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
        super().__init__(estimator, calibration=calibration, random_state=random_state)
        self.n_components = n_components

    def _make_network(self) -> TorchRegressor:
        check_number(self, "n_components", self.n_components, above=1, closed="left", whole=True)
        return self._prepare_network(TorchRegressor(), MixtureLoss(self.n_components))

    def _predict(self, X: Any) -> RegressionPrediction:
        outputs = self._run_network(X)
        loss: Any = self.estimator_.loss  # as it was fitted, whatever n_components is now
        log_shares, means, variances = loss.read(outputs.unflatten(-1, (-1, loss.outputs_per_column)))
        shares = log_shares.exp()
        mean = (shares * means).sum(dim=-1)
        variance = (shares * (variances + (means - mean[..., None]) ** 2)).sum(dim=-1)
        return self._predict_moments(mean, variance)


class SoftmaxLoss(nn.CrossEntropyLoss):
    """Cross-entropy of each row, shape (n,), for classes given as columns of shares.

    Examples
    --------
    >>> import torch
    >>> SoftmaxLoss()(torch.zeros(2, 4), torch.eye(4)[:2]).tolist() == [torch.tensor(4.0).log().item()] * 2
    True
    """

    standardizes = False

    def __init__(self) -> None:
        super().__init__(reduction="none")


class SoftmaxNetwork(ClassificationMixin, ClassifierMixin, NetworkModel):
    """A network with a softmax, trained by cross-entropy: the plain classifier to compare with.

    One minus the probability of the predicted class is the uncertainty. Logits and features are there for the
    detectors of `onsphere.baselines`.

    Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural
    Networks", ICLR 2017.

    Cost: that of the plain network. Fails away from the training rows, where the largest probability goes to 1 in
    almost every direction, and where training for too long makes it sure of its mistakes.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        The network and its training; its loss must be "auto". By default TorchRegressor().
    calibration, random_state : as in `HCMClassifier`

    Attributes
    ----------
    classes_ : array of shape (C,)
    estimator_ : TorchRegressor
        Trained on one column per class.
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMClassifier`

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onsphere.baselines import SoftmaxNetwork
    >>> from onsphere.torch import TorchRegressor
    >>> X, y = load_iris(return_X_y=True)
    >>> network = TorchRegressor(hidden_sizes=(20,), max_epochs=30, learning_rate=1e-2)
    >>> model = SoftmaxNetwork(network, random_state=0).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9)
    True
    >>> model.logits(X).shape, model.features(X).shape
    ((150, 3), (150, 20))
    """

    def _make_network(self) -> TorchRegressor:
        """Check the parameters, and return the network to train."""
        return self._prepare_network(TorchRegressor(), SoftmaxLoss())

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        network = self._make_network()
        rows, labels, weights = self._check_data(X, y, sample_weight, self._check_labels)
        self.estimator_ = fit_backbone(self, network, rows, self.embedding_.embed(labels).direction, weights, None)

    def logits(self, X: Any) -> Floats:
        """Return the outputs of the network before the softmax, shape (n, C)."""
        return self._run_network(X).numpy()

    def features(self, X: Any) -> Floats:
        """Return the inputs of the last layer of the network, shape (n, p)."""
        rows = self._check_rows(X)
        batches = self.estimator_.standardize_rows(rows).split(_FEATURES_AT_ONCE)
        # `features` wants labels too; the rows take their place.
        return features(self.estimator_.net_.module_, [(batch, batch) for batch in batches])[0].astype(np.float64)

    def _predict(self, X: Any) -> ClassPrediction:
        logits = self.logits(X)
        return ClassPrediction(logits.argmax(axis=1), softmax(logits, axis=1), msp(logits), {})
