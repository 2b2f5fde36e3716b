"""The normal-inverse-gamma loss against Student's t, and the two kinds of uncertainty."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import InverseGamma, StudentT

from onsphere import InvalidInputError
from onsphere.baselines.evidential import Evidence, Evidential, EvidentialLoss
from onsphere.torch import TorchRegressor

torch.set_num_threads(1)


def network(**options):
    return TorchRegressor(**({"hidden_sizes": (20, 20), "max_epochs": 40, "learning_rate": 1e-2} | options))


def natural(outputs):
    """γ, ν, α, β as the docstring has them, by hand."""
    gamma, nu, alpha, beta = outputs.T
    nu, alpha, beta = (np.log1p(np.exp(raw)) + 1e-6 for raw in (nu, alpha, beta))
    return gamma, nu, 1 + alpha, beta


@given(st.integers(0, 10_000), st.floats(0.1, 10), st.sampled_from([0.0, 0.01, 1.0]))
def test_the_loss_is_students_t_and_the_penalty(seed, size, regularization):
    rng = np.random.default_rng(seed)
    outputs, target = size * rng.normal(size=(6, 4)), size * rng.normal(size=6)
    gamma, nu, alpha, beta = map(torch.tensor, natural(outputs))
    truth = torch.tensor(target)
    expected = -StudentT(2 * alpha, gamma, (beta * (1 + nu) / (nu * alpha)).sqrt()).log_prob(truth)
    expected += regularization * (truth - gamma).abs() * (2 * nu + alpha)
    loss = EvidentialLoss(regularization)(torch.tensor(outputs), truth[:, None])
    np.testing.assert_allclose(loss[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_each_column_has_its_own_loss():
    outputs, target = torch.randn(5, 12), torch.randn(5, 3)
    whole = EvidentialLoss()(outputs, target)
    for column in range(3):
        alone = EvidentialLoss()(outputs[:, 4 * column : 4 * column + 4], target[:, [column]])
        np.testing.assert_allclose(whole[:, [column]], alone)


def test_much_evidence_keeps_its_digits_in_single_precision():
    """With α in the thousands, the terms of the formula as it is printed are too large for single precision."""
    outputs = torch.tensor([[0.0, 2.0, alpha, 3.0] for alpha in (15.0, 18.999, 19.1, 300.0, 2e4, 1e6)])
    target = torch.full((6, 1), 0.7)
    rough = EvidentialLoss(0.0)(outputs, target)
    gamma, nu, alpha, beta = map(torch.tensor, natural(np.float64(outputs[:3])))
    exact = -StudentT(2 * alpha, gamma, (beta * (1 + nu) / (nu * alpha)).sqrt()).log_prob(torch.tensor(0.7))
    np.testing.assert_allclose(rough[:3, 0], exact, rtol=1e-5)
    np.testing.assert_allclose(rough, EvidentialLoss(0.0)(outputs.double(), target.double()), rtol=1e-5)


def test_gradients():
    generator = torch.Generator().manual_seed(0)
    outputs = 3 * torch.randn(6, 8, generator=generator, dtype=torch.float64)
    outputs[0, 2] = outputs[1, 6] = 40.0  # where the series is used
    target = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda given: EvidentialLoss()(given, target), outputs.requires_grad_())


@pytest.mark.parametrize("size", [0.0, 1e2, 1e4, 1e8])
def test_loss_and_gradients_stay_finite_at_extremes(size):
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4)
    for target in (-size, 0.0, size):
        outputs = (size * signs).requires_grad_()
        loss = EvidentialLoss()(outputs, torch.full((16, 1), target))
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert torch.isfinite(outputs.grad).all()


def test_the_two_variances_are_those_of_the_distribution():
    """Of 200,000 draws: the relative error of the mean of σ² is .2 %, of the variance of μ .5 %."""
    torch.manual_seed(0)
    evidence = Evidence(*(torch.tensor(number, dtype=torch.float64) for number in (1.5, 3.0, 6.0, 2.0)))
    variance = InverseGamma(evidence.alpha, evidence.beta).sample((200_000,))
    mean = evidence.gamma + (variance / evidence.nu).sqrt() * torch.randn(200_000, dtype=torch.float64)
    assert float(variance.mean()) == pytest.approx(float(evidence.noise_variance()), rel=0.01)
    assert float(mean.var()) == pytest.approx(float(evidence.mean_variance()), rel=0.02)


def rows(n=600, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 1))
    sigma = 50 * (0.6 + 0.5 * X[:, 0])
    return X, 200 * np.sin(2 * X[:, 0]) + sigma * rng.normal(size=n), sigma


def test_sigma_follows_the_true_noise():
    """Measured: a correlation of .984, and a mean of 1.03 times the true one."""
    X, y, _ = rows()
    model = Evidential(network(), random_state=0).fit(X, y)
    new, _, truth = rows(300, seed=1)
    assert np.corrcoef(model.predict_sigma(new), truth)[0, 1] > 0.9


def test_epistemic_and_total_scores():
    X, y, _ = rows(100)
    Y = np.c_[y, 1000 * y, y**2]
    model = Evidential(network(max_epochs=3), random_state=0).fit(X, Y)
    _, nu, alpha, beta = (part.reshape(100, 3) for part in natural(model.estimator_.predict_outputs(X).reshape(300, 4)))
    sigma = np.sqrt(beta / (alpha - 1) * (1 + 1 / nu)) * Y.std(axis=0)
    epistemic = np.sqrt(beta / (nu * (alpha - 1))) * Y.std(axis=0)
    np.testing.assert_allclose(model.predict_sigma(X), sigma)
    np.testing.assert_allclose(model.predict_uncertainty(X), np.sqrt(np.mean(epistemic**2, axis=1)))
    model.set_params(uncertainty_score="total")
    np.testing.assert_allclose(model.predict_uncertainty(X), np.sqrt(np.mean(sigma**2, axis=1)))


def test_the_penalty_lowers_the_evidence():
    X, y, _ = rows(300)
    weak, strong = (
        Evidential(network(max_epochs=20), regularization=weight, random_state=0).fit(X, y) for weight in (0.0, 1.0)
    )
    shares = [np.median(model.predict_uncertainty(X) / model.predict_sigma(X)) for model in (weak, strong)]
    assert shares[0] < shares[1]


@pytest.mark.parametrize(
    "options", [{"regularization": -1}, {"regularization": "much"}, {"uncertainty_score": "aleatoric"}]
)
def test_bad_parameters(options):
    with pytest.raises(InvalidInputError, match=f"'{next(iter(options))}' parameter of Evidential"):
        Evidential(network(), **options).fit([[0.0], [1.0]], [0.0, 1.0])


def test_bad_parameters_of_the_loss():
    with pytest.raises(InvalidInputError, match="'regularization' parameter of EvidentialLoss"):
        EvidentialLoss(-1)
    with pytest.raises(InvalidInputError, match="outputs of shape"):
        EvidentialLoss()(torch.zeros(5, 4), torch.zeros(5))
    assert repr(EvidentialLoss()) == "EvidentialLoss(regularization=0.01)"
