"""A network that says how much evidence it has for each output, in one pass."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number, check_option
from onsphere.baselines.likelihood import answer_from_moments
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

__all__ = ["Evidence", "Evidential", "EvidentialLoss"]

_SCORES = ("epistemic", "total")

# From here on the series of log Γ(α + ½) − log Γ(α) is off by less than 1e-9.
_SERIES_FROM = 20.0


class Evidence(NamedTuple):
    """Parameters of a normal-inverse-gamma distribution, each of shape (..., D).

    The noise variance σ² follows an inverse gamma distribution with shape α and scale β, the mean a normal one around γ
    with the variance σ²/ν: ν and 2α count the rows that speak for mean and variance.
    """

    gamma: Tensor
    nu: Tensor
    alpha: Tensor
    beta: Tensor

    def noise_variance(self) -> Tensor:
        """E[σ²] = β / (α − 1), the aleatoric part."""
        return self.beta / (self.alpha - 1.0)

    def mean_variance(self) -> Tensor:
        """Var[μ] = β / (ν(α − 1)), the epistemic part."""
        return self.noise_variance() / self.nu


class EvidentialLoss(nn.Module):
    """Negative log-likelihood of a normal-inverse-gamma distribution, and evidence where it errs; shape (n, D).

    The likelihood is Student's t with 2α degrees of freedom, location γ and squared scale β(1 + ν)/(να). To it comes
    regularization · |y − γ|(2ν + α). The four outputs of a column stand beside each other: γ, and numbers from
    which ν > 0, α > 1 and β > 0 are made by softplus.

    Parameters
    ----------
    regularization : float, default 0.01

    Examples
    --------
    >>> import torch
    >>> EvidentialLoss()(torch.zeros(5, 12), torch.zeros(5, 3)).shape
    torch.Size([5, 3])
    """

    outputs_per_column = 4

    def __init__(self, regularization: float = 0.01) -> None:
        super().__init__()
        check_number(self, "regularization", regularization, above=0, closed="left")
        self.regularization = float(regularization)

    def read(self, outputs: Tensor) -> Evidence:
        """The evidence of outputs (..., D, 4)."""
        gamma, nu, alpha, beta = outputs.unbind(dim=-1)
        return Evidence(gamma, positive(nu), 1.0 + positive(alpha), positive(beta))

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        evidence = self.read(numbers_per_column(self, outputs, target))
        gamma, nu, alpha, _ = evidence
        return _negative_log_likelihood(evidence, target) + self.regularization * (target - gamma).abs() * (
            2.0 * nu + alpha
        )

    def extra_repr(self) -> str:
        return f"regularization={self.regularization:g}"


def _negative_log_likelihood(evidence: Evidence, target: Tensor) -> Tensor:
    """Of Student's t, written such that no two large terms cancel."""
    gamma, nu, alpha, beta = evidence
    omega = 2.0 * beta * (1.0 + nu)
    return (
        0.5 * (math.log(math.pi) + torch.log(omega) - torch.log(nu))
        + (alpha + 0.5) * torch.log1p((target - gamma) ** 2 * nu / omega)
        - _log_gamma_step(alpha)
    )


def _log_gamma_step(alpha: Tensor) -> Tensor:
    """log Γ(α + ½) − log Γ(α), by its series where the difference would lose its digits."""
    series = 0.5 * torch.log(alpha) - 1.0 / (8.0 * alpha) + 1.0 / (192.0 * alpha**3)
    small = alpha.clamp(max=_SERIES_FROM)
    return torch.where(alpha < _SERIES_FROM, torch.lgamma(small + 0.5) - torch.lgamma(small), series)


class Evidential(NetworkRegressor):
    """Deep evidential regression: a distribution over the mean and variance of each output, from one pass.

    The network gives a normal-inverse-gamma distribution, which says how large the noise is and how many rows that is
    known from. A penalty on evidence at rows that are predicted wrongly keeps it from being sure of everything.

    Amini, Schwarting, Soleimany and Rus, "Deep evidential regression", NeurIPS 2020.

    Cost: four outputs per output; training and prediction take as long as for the plain network. Fails where the
    evidence is to be taken at its word: the likelihood alone leaves ν free, so that its level is set by the
    penalty and not by the number of rows, and off the training rows it extrapolates like any other output.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        The network and its training; its loss must be "auto". By default TorchRegressor().
    regularization : float, default 0.01
        Weight of the penalty |y − γ|(2ν + α), with the target in standardised units.
    uncertainty_score : {"epistemic", "total"}, default "epistemic"
        What `predict_uncertainty` gives, in the unit of the target: √(β / (ν(α − 1))), what is not known of the mean,
        or sigma, which holds the noise too. For several outputs their root mean square.
    calibration, random_state : as in `HCMRegressor`

    Attributes
    ----------
    estimator_ : TorchRegressor
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere.baselines.evidential import Evidential
    >>> from onsphere.torch import TorchRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> network = TorchRegressor(hidden_sizes=(20,), max_epochs=5)
    >>> model = Evidential(network, random_state=0).fit(X, X[:, 0] * 100)
    >>> bool((model.predict_uncertainty(X) < model.predict_sigma(X)).all())
    True
    """

    _calibrated_settings: ClassVar[tuple[str, ...]] = ("uncertainty_score",)

    def __init__(
        self,
        estimator: Any = None,
        *,
        regularization: float = 0.01,
        uncertainty_score: str = "epistemic",
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.regularization = regularization
        self.uncertainty_score = uncertainty_score
        self.calibration = calibration
        self.random_state = random_state

    def _network(self) -> TorchRegressor:
        check_option(self, "uncertainty_score", self.uncertainty_score, _SCORES)
        check_number(self, "regularization", self.regularization, above=0, closed="left")
        return prepare_network(self, TorchRegressor(), loss=EvidentialLoss(self.regularization))

    def _predict(self, X: Any) -> RegressionPrediction:
        check_option(self, "uncertainty_score", self.uncertainty_score, _SCORES)
        rows = self._check_rows(X)
        network = self.estimator_
        evidence = EvidentialLoss().read(ask_network(network, rows).unflatten(-1, (-1, 4)))
        total = evidence.noise_variance() + evidence.mean_variance()
        answer = answer_from_moments(network, evidence.gamma, total)
        if self.uncertainty_score == "total":
            return answer
        epistemic = network.unstandardize(evidence.mean_variance().sqrt().numpy(), centered=False)
        return answer._replace(uncertainty=root_mean_square(epistemic))
