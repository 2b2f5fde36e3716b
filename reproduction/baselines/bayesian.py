"""A network whose weights are distributions: mean-field variational inference."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number, parameter_error
from onsphere.baselines.draws import numbers_from_draws
from onsphere.baselines.likelihood import GaussianLoss
from onsphere.baselines.network import NetworkRegressor, ask_network, check_passes, positive, prepare_network
from onsphere.models.regressor import RegressionPrediction
from onsphere.torch.networks import MLP
from onsphere.torch.regressor import TorchRegressor

__all__ = ["BayesianLinear", "BayesianMLP", "BayesianNetwork"]

# Of the prior's scale, that of the weights at first: small, so that training starts like that of a plain network.
_START = 0.05


class BayesianLinear(nn.Module):
    """A linear layer whose weights are independent normal variables, with a normal prior around 0.

    In training it draws the sums and not the weights, which has the same distribution for each row and gradients that
    scatter less (Kingma, Salimans and Welling, "Variational dropout and the local reparameterization trick", NeurIPS
    2015). In training mode without gradients it draws weights, once for all rows; in evaluation mode it takes their
    means.

    Parameters
    ----------
    in_features, out_features : int
    prior_scale : float, default 1.0
        Standard deviation of the prior: of biases as it is, of weights divided by √in_features, so that the prior of
        what comes out does not grow with the width.

    Examples
    --------
    >>> import torch
    >>> layer = BayesianLinear(3, 2)
    >>> layer(torch.zeros(5, 3)).shape, bool(layer.divergence() > 0)
    (torch.Size([5, 2]), True)
    """

    is_random = True

    def __init__(self, in_features: int, out_features: int, *, prior_scale: float = 1.0) -> None:
        super().__init__()
        start = nn.Linear(in_features, out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.prior_scale = prior_scale
        self.weight = start.weight
        self.bias = start.bias
        self.raw_weight_scale = nn.Parameter(torch.full_like(start.weight, _raw(_START * self.weight_prior)))
        self.raw_bias_scale = nn.Parameter(torch.full_like(start.bias, _raw(_START * self.bias_prior)))

    @property
    def weight_prior(self) -> float:
        return self.prior_scale / math.sqrt(self.in_features)

    @property
    def bias_prior(self) -> float:
        return self.prior_scale

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return nn.functional.linear(x, self.weight, self.bias)
        weight_scale, bias_scale = positive(self.raw_weight_scale), positive(self.raw_bias_scale)
        if not torch.is_grad_enabled():
            weight = self.weight + weight_scale * torch.randn_like(weight_scale)
            return nn.functional.linear(x, weight, self.bias + bias_scale * torch.randn_like(bias_scale))
        mean = nn.functional.linear(x, self.weight, self.bias)
        variance = nn.functional.linear(x**2, weight_scale**2, bias_scale**2)
        return mean + variance.sqrt() * torch.randn_like(mean)

    def divergence(self) -> Tensor:
        """Kullback–Leibler divergence of the weights from their prior, in nats."""
        return _divergence(self.weight, positive(self.raw_weight_scale), self.weight_prior) + _divergence(
            self.bias, positive(self.raw_bias_scale), self.bias_prior
        )

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, prior_scale={self.prior_scale:g}"


def _raw(scale: float) -> float:
    """What softplus makes this number of."""
    return scale + math.log(-math.expm1(-scale))


def _divergence(mean: Tensor, scale: Tensor, prior: float) -> Tensor:
    ratio = (scale / prior) ** 2
    return 0.5 * (ratio - torch.log(ratio) - 1.0 + (mean / prior) ** 2).sum()


class BayesianMLP(MLP):
    """An `MLP` of Bayesian layers that gives a mean and a noise, the same for all rows, for each column.

    Parameters
    ----------
    in_features : int
    out_features : int
        Two for each column, as `GaussianLoss` wants them.
    hidden_sizes : sequence of int, default (100, 100, 100)
    prior_scale : float, default 1.0
        As in `BayesianLinear`.
    prior_weight : float, default 1.0
        Of the divergence from the prior, in the penalty.
    noise : float, optional
        Standard deviation of the noise, in standardised units. By default it is learned.

    Examples
    --------
    >>> import torch
    >>> network = BayesianMLP(3, 4, hidden_sizes=(10,))
    >>> network(torch.zeros(5, 3)).shape, bool(network.penalty() > 0)
    (torch.Size([5, 4]), True)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden_sizes: Sequence[int] = (100, 100, 100),
        prior_scale: float = 1.0,
        prior_weight: float = 1.0,
        noise: float | None = None,
    ) -> None:
        n_columns = out_features // 2
        super().__init__(in_features, n_columns, hidden_sizes=hidden_sizes)
        for name, layer in list(self.named_modules()):
            if isinstance(layer, nn.Linear):
                drawn = BayesianLinear(layer.in_features, layer.out_features, prior_scale=prior_scale)
                self.set_submodule(name, drawn)
        self.prior_weight = prior_weight
        raw = torch.full((n_columns,), _raw(0.5 if noise is None else noise**2))
        if noise is None:
            self.raw_noise = nn.Parameter(raw)
        else:
            self.register_buffer("raw_noise", raw)

    def forward(self, x: Tensor) -> Tensor:
        mean = super().forward(x)
        return torch.stack([mean, self.raw_noise.expand_as(mean)], dim=-1).flatten(start_dim=1)

    def penalty(self) -> Tensor:
        """Divergence of all weights from their prior, for a loss that is the mean over the columns."""
        total = torch.stack([layer.divergence() for layer in self.modules() if isinstance(layer, BayesianLinear)])
        return self.prior_weight * total.sum() / len(self.raw_noise)


class BayesianNetwork(NetworkRegressor):
    """A network whose weights are normal distributions, learned by variational inference ("Bayes by backprop").

    Training balances the likelihood of the rows against the divergence of the weights from their prior. Predictions of
    networks drawn from what was learned differ where the rows leave the weights free.

    Blundell, Cornebise, Kavukcuoglu and Wierstra, "Weight uncertainty in neural networks", ICML 2015.

    Cost: twice the weights and about three times the training of a plain network, and n_passes predictions instead of
    one. Fails with wide networks and few rows: weights that are taken as independent cannot be sure together, the
    divergence outweighs the rows, and the network predicts the mean (with three layers of 100 and 500 rows of a sine,
    the error of the mean after 200 epochs is .24 of the spread with prior_weight=1 and .10 with .1). Off the training
    rows the spread grows less than that of an ensemble.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        Its hidden_sizes and its training; module, dropout and loss must be left as they are, and weight_decay is not
        used, because the prior takes its place. By default TorchRegressor(hidden_sizes=(100, 100, 100)).
    noise : "global" or float, default "global"
        Standard deviation of the noise of each output, the same for all rows: learned along with the weights ("global")
        or assumed, in units of the spread of the output. An assumed one (.1, say) is not part of sigma, which then
        is the uncertainty of the weights alone.
    n_passes : int, default 50
        Networks drawn for a prediction; the same ones for all rows.
    prior_scale : float, default 1.0
        As in `BayesianLinear`.
    prior_weight : float, default 0.1
        Of the divergence from the prior. 1 is the bound of the paper; less, a "cold" posterior, lets the rows count for
        more.
    calibration, random_state : as in `HCMRegressor`

    Attributes
    ----------
    estimator_ : TorchRegressor
        Of a `BayesianMLP`.
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from reproduction.baselines import BayesianNetwork
    >>> from onsphere.torch import TorchRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> network = TorchRegressor(hidden_sizes=(20,), max_epochs=5)
    >>> value, sigma = BayesianNetwork(network, random_state=0).fit(X, X[:, 0]).predict(X, return_std=True)
    >>> value.shape, bool((sigma > 0).all())
    ((100,), True)
    """

    _calibrated_settings: ClassVar[tuple[str, ...]] = ("n_passes",)

    def __init__(
        self,
        estimator: Any = None,
        *,
        noise: str | float = "global",
        n_passes: int = 50,
        prior_scale: float = 1.0,
        prior_weight: float = 0.1,
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.noise = noise
        self.n_passes = n_passes
        self.prior_scale = prior_scale
        self.prior_weight = prior_weight
        self.calibration = calibration
        self.random_state = random_state

    def _network(self) -> TorchRegressor:
        check_passes(self)
        check_number(self, "prior_scale", self.prior_scale, above=0)
        check_number(self, "prior_weight", self.prior_weight, above=0, closed="left")
        noise = self._assumed_noise()
        network = prepare_network(self, TorchRegressor(hidden_sizes=(100, 100, 100)), loss=GaussianLoss())
        if network.module is not None or network.dropout:
            raise parameter_error(
                self,
                "estimator",
                "a TorchRegressor with module=None and dropout=0, because the layers are the method's own",
                network,
            )
        make = partial(
            BayesianMLP,
            hidden_sizes=network.hidden_sizes,
            prior_scale=float(self.prior_scale),
            prior_weight=float(self.prior_weight),
            noise=noise,
        )
        return network.set_params(module=make, weight_decay=0.0)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        super()._fit(X, y, sample_weight)
        self._noise_is_learned = isinstance(self.noise, str)

    def _predict(self, X: Any) -> RegressionPrediction:
        check_passes(self)
        rows = self._check_rows(X)
        network = self.estimator_
        outputs = ask_network(network, rows, n_samples=self.n_passes).unflatten(-1, (-1, 2))
        means, variances = GaussianLoss().read(outputs)
        values = network.unstandardize(means.numpy())
        if not self._noise_is_learned:
            return numbers_from_draws(values)
        return numbers_from_draws(values, network.unstandardize(variances.sqrt().numpy(), centered=False))

    def _assumed_noise(self) -> float | None:
        given: Any = self.noise
        if isinstance(given, str) and given == "global":
            return None
        # Less is below the floor of a variance, more is no noise that a target could have.
        if given is not True and isinstance(given, numbers.Real) and 1e-3 <= float(given) <= 10.0:
            return float(given)
        raise parameter_error(self, "noise", "'global' or a float in [0.001, 10]", given)
