"""The Bayesian network: its divergence, its draws, its two kinds of noise."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from onsphere.torch import TorchRegressor
from reproduction.baselines.bayesian import BayesianLinear, BayesianMLP, BayesianNetwork

torch.set_num_threads(1)


def network(**options):
    return TorchRegressor(**({"hidden_sizes": (20, 20), "max_epochs": 5, "learning_rate": 1e-2} | options))


def scales(layer):
    """Standard deviations of weights and biases, by hand."""
    return (torch.log1p(torch.exp(raw)) + 1e-6 for raw in (layer.raw_weight_scale, layer.raw_bias_scale))


def wide(layer):
    """A layer with scales of any size."""
    with torch.no_grad():
        for raw in (layer.raw_weight_scale, layer.raw_bias_scale):
            raw.copy_(torch.randn_like(raw))
    return layer


@pytest.mark.parametrize("prior_scale", [0.1, 1.0, 7.0])
def test_the_divergence_is_that_of_normal_distributions(prior_scale):
    torch.manual_seed(0)
    layer = wide(BayesianLinear(9, 4, prior_scale=prior_scale))
    weight_scale, bias_scale = scales(layer)
    expected = kl_divergence(Normal(layer.weight, weight_scale), Normal(0.0, prior_scale / 3)).sum()
    expected += kl_divergence(Normal(layer.bias, bias_scale), Normal(0.0, prior_scale)).sum()
    np.testing.assert_allclose(layer.divergence().detach(), expected.detach(), rtol=1e-5)


def test_gradients_of_the_divergence():
    layer = wide(BayesianLinear(2, 2)).double()
    names = [f"layer.{name}" for name, _ in layer.named_parameters()]

    def divergence(*values):
        return torch.func.functional_call(_Divergence(layer), dict(zip(names, values, strict=True)), ())

    given = [value.detach().clone().requires_grad_() for value in layer.parameters()]
    assert torch.autograd.gradcheck(divergence, given)


class _Divergence(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self):
        return self.layer.divergence()


def test_every_way_of_drawing_has_the_same_distribution():
    """5,000 draws: an error of 1 % in the spread, and of 1.4 % of the spread in the mean."""
    torch.manual_seed(0)
    layer = wide(BayesianLinear(3, 2))
    x = torch.tensor([[1.0, -2.0, 0.5]])
    weight_scale, bias_scale = scales(layer)
    spread = torch.sqrt(x**2 @ weight_scale.T**2 + bias_scale**2).detach()
    center = layer.eval()(x).detach()
    assert torch.equal(center, layer(x))
    layer.train()
    sums = layer(x.expand(5_000, 3)).detach()
    with torch.no_grad():
        weights = torch.cat([layer(x) for _ in range(5_000)])
    for drawn in (sums, weights):
        np.testing.assert_allclose(drawn.std(dim=0), spread[0], rtol=0.045)
        np.testing.assert_allclose(drawn.mean(dim=0), center[0], atol=0.065 * float(spread.max()))


def test_without_gradients_all_rows_share_a_draw():
    layer = BayesianLinear(3, 2).train()
    x = torch.ones(4, 3)
    assert not torch.equal(layer(x)[0], layer(x)[1])
    with torch.no_grad():
        same = layer(x)
        assert torch.equal(same, same[:1].expand(4, 2))
        assert not torch.equal(same, layer(x))


def test_the_penalty_is_shared_out_among_the_columns():
    """The loss is a mean over the columns, where the bound on the evidence has their sum."""
    module = BayesianMLP(4, 6, hidden_sizes=(5,), prior_scale=2.0, prior_weight=0.25)
    layers = [layer for layer in module.modules() if isinstance(layer, BayesianLinear)]
    assert [(layer.in_features, layer.out_features, layer.prior_scale) for layer in layers] == [(4, 5, 2), (5, 3, 2)]
    expected = 0.25 * sum(layer.divergence() for layer in layers) / 3
    np.testing.assert_allclose(module.penalty().detach(), expected.detach(), rtol=1e-6)
    assert "prior_scale=2" in repr(layers[0])


@pytest.mark.parametrize("size", [1e-20, 1e4, 1e8])
def test_gradients_stay_finite_at_extremes(size):
    module = BayesianMLP(2, 2, hidden_sizes=(3,)).train()
    for sign in (-1, 1):
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.fill_(sign * size if "raw" in name else 0.1)
        module.zero_grad()
        (module(torch.ones(4, 2)).sum() + module.penalty()).backward()
        assert all(torch.isfinite(value.grad).all() for value in module.parameters())


def line(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 1))
    return X, 100 * X[:, 0] + 20 * rng.normal(size=n)


def test_global_noise_is_learned():
    """Measured: 22.4, and a mean sigma of 23.1 with the uncertainty of the weights. The noise is 20."""
    X, y = line()
    model = BayesianNetwork(network(max_epochs=40), random_state=0).fit(X, y)
    noise = float(torch.nn.functional.softplus(model.estimator_.net_.module_.raw_noise.detach())[0]) ** 0.5 * y.std()
    assert noise == pytest.approx(20, rel=0.25)
    np.testing.assert_allclose(model.assess(X).sigma, 20, rtol=0.4)
    assert np.sqrt(np.mean((model.assess(X).value - 100 * X[:, 0]) ** 2)) < 8


@pytest.mark.parametrize("noise", [None, 0.3], ids=["learned", "assumed"])
def test_sigma_is_the_spread_of_the_passes_and_the_learned_noise(noise):
    X, y = line(50)
    model = BayesianNetwork(network(), noise=noise, n_passes=4, random_state=0).fit(X, y)
    outputs = model.estimator_.predict_outputs(X, n_samples=4)
    means, variance = outputs[..., 0], np.log1p(np.exp(outputs[0, 0, 1])) + 1e-6
    expected = np.sqrt(means.var(axis=0) + (variance if noise is None else 0)) * y.std()
    result = model.assess(X)
    np.testing.assert_allclose(result.sigma, expected)
    np.testing.assert_allclose(result.uncertainty, expected)
    np.testing.assert_allclose(result.value, means.mean(axis=0) * y.std() + y.mean())
    is_learned = "raw_noise" in dict(model.estimator_.net_.module_.named_parameters())
    assert is_learned == (noise is None)
    if not is_learned:
        np.testing.assert_allclose(variance, 0.09, rtol=1e-4)


def test_the_seed_decides():
    X, y = line(50)
    first, again, other = (
        BayesianNetwork(network(), n_passes=3, random_state=seed).fit(X, y).assess(X).value for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_uncertainty_grows_outside_of_the_training_rows():
    """Measured: ten times as far out, the median is 6 times as large."""
    X, y = line()
    model = BayesianNetwork(network(max_epochs=40), noise=0.2, random_state=0).fit(X, y)
    inside, outside = (np.median(model.assess(given).uncertainty) for given in (X, 10 * X))
    assert outside > 2 * inside


def test_more_rows_leave_less_uncertainty():
    """Measured: 6.9 with 20 rows and 3.3 with 500, after as many steps."""
    few, many = (
        np.median(
            BayesianNetwork(network(max_epochs=n_epochs), noise=0.2, random_state=0)
            .fit(*line(n))
            .assess(line()[0])
            .sigma
        )
        for n, n_epochs in ((20, 150), (500, 20))
    )
    assert many < 0.75 * few


def test_the_training_is_that_of_the_estimator_without_weight_decay():
    X, y = line(40)
    model = BayesianNetwork(network(hidden_sizes=(3, 4), weight_decay=0.5), random_state=0).fit(X, y)
    assert model.estimator_.weight_decay == 0
    assert model.estimator_.max_epochs == 5
    shapes = [
        tuple(value.shape)
        for name, value in model.estimator_.net_.module_.named_parameters()
        if name.endswith(".weight")
    ]
    assert shapes == [(3, 1), (4, 3), (1, 4)]
