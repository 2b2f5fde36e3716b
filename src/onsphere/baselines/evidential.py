"""A network that predicts how much evidence it has for each output, in one pass."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number, check_option
from onsphere.baselines.network_model import NetworkRegressor, make_positive, split_outputs
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
    with the variance σ²/ν: ν and 2α count the rows that mean and variance are known from.
    """

    gamma: Tensor
    nu: Tensor
    alpha: Tensor
    beta: Tensor

    def noise_variance(self) -> Tensor:
        """Return E[σ²] = β / (α − 1), the aleatoric part."""
        return self.beta / (self.alpha - 1.0)

    def mean_variance(self) -> Tensor:
        """Return Var[μ] = β / (ν(α − 1)), the epistemic part."""
        return self.noise_variance() / self.nu


class EvidentialLoss(nn.Module):
    """Negative log-likelihood of a normal-inverse-gamma distribution, plus a penalty on wrong evidence; shape (n, D).

    The likelihood is Student's t with 2α degrees of freedom, location γ and squared scale β(1 + ν)/(να); the penalty
    is regularization · |y − γ|(2ν + α). The outputs of a column are γ and three numbers that softplus turns into
    ν > 0, α > 1 and β > 0.

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
        """Return the evidence of outputs (..., D, 4)."""
        gamma, nu, alpha, beta = outputs.unbind(dim=-1)
        return Evidence(gamma, make_positive(nu), 1.0 + make_positive(alpha), make_positive(beta))

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        evidence = self.read(split_outputs(self, outputs, target))
        penalty = (target - evidence.gamma).abs() * (2.0 * evidence.nu + evidence.alpha)
        return _negative_log_likelihood(evidence, target) + self.regularization * penalty

    def extra_repr(self) -> str:
        return f"regularization={self.regularization:g}"


def _negative_log_likelihood(evidence: Evidence, target: Tensor) -> Tensor:
    """Return that of Student's t, written so that no two large terms cancel."""
    gamma, nu, alpha, beta = evidence
    omega = 2.0 * beta * (1.0 + nu)
    return (
        0.5 * (math.log(math.pi) + torch.log(omega) - torch.log(nu))
        + (alpha + 0.5) * torch.log1p((target - gamma) ** 2 * nu / omega)
        - _log_gamma_step(alpha)
    )


def _log_gamma_step(alpha: Tensor) -> Tensor:
    """Return log Γ(α + ½) − log Γ(α), by its series where the difference would lose its digits."""
    series = 0.5 * torch.log(alpha) - 1.0 / (8.0 * alpha) + 1.0 / (192.0 * alpha**3)
    small = alpha.clamp(max=_SERIES_FROM)
    return torch.where(alpha < _SERIES_FROM, torch.lgamma(small + 0.5) - torch.lgamma(small), series)


class Evidential(NetworkRegressor):
    """Deep evidential regression: a distribution over the mean and variance of each output, from one pass.

    The network predicts a normal-inverse-gamma distribution: how large the noise is, and from how many rows that is
    known. A penalty on evidence at rows with a wrong prediction keeps it from being sure of everything.

    Amini, Schwarting, Soleimany and Rus, "Deep evidential regression", NeurIPS 2020.

    Cost: four numbers per output; training and prediction take as long as for the plain network. Fails where the
    evidence is taken as a count of rows: the likelihood alone leaves ν free, so the penalty and not the number of rows
    sets its level, and away from the training rows it extrapolates like any other number.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        The network and its training; its loss must be "auto". By default TorchRegressor().
    regularization : float, default 0.01
        Weight of the penalty |y − γ|(2ν + α), with the target in standardised units.
    uncertainty_score : {"epistemic", "total"}, default "epistemic"
        What `predict_uncertainty` returns, in the unit of the target: √(β / (ν(α − 1))), the uncertainty of the mean,
        or sigma, which includes the noise. For several outputs their root mean square.
    calibration, random_state : as in `HCMRegressor`

    Attributes
    ----------
    estimator_ : TorchRegressor
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere.baselines import Evidential
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
        super().__init__(estimator, calibration=calibration, random_state=random_state)
        self.regularization = regularization
        self.uncertainty_score = uncertainty_score

    def _make_network(self) -> TorchRegressor:
        check_option(self, "uncertainty_score", self.uncertainty_score, _SCORES)
        check_number(self, "regularization", self.regularization, above=0, closed="left")
        return self._prepare_network(TorchRegressor(), EvidentialLoss(self.regularization))

    def _predict(self, X: Any) -> RegressionPrediction:
        check_option(self, "uncertainty_score", self.uncertainty_score, _SCORES)
        evidence = EvidentialLoss().read(self._run_network(X).unflatten(-1, (-1, 4)))
        prediction = self._predict_moments(evidence.gamma, evidence.noise_variance() + evidence.mean_variance())
        if self.uncertainty_score == "total":
            return prediction
        epistemic = self.estimator_.unstandardize(evidence.mean_variance().sqrt().numpy(), centered=False)
        return prediction._replace(uncertainty=root_mean_square(epistemic))
