"""Losses against torch.distributions, and the noise and the probabilities that networks learn from them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal

from onsphere import InvalidInputError, NotFittedError
from onsphere.baselines.likelihood import (
    GaussianLoss,
    GaussianNLL,
    MixtureDensity,
    MixtureLoss,
    SoftmaxLoss,
    SoftmaxNetwork,
)
from onsphere.torch import TorchRegressor

torch.set_num_threads(1)


def network(**options):
    return TorchRegressor(**({"hidden_sizes": (20, 20), "max_epochs": 40, "learning_rate": 1e-2} | options))


def softplus(raw):
    return np.log1p(np.exp(raw)) + 1e-6


numbers = st.floats(-20, 20)


# --- losses ---


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=6))
def test_the_gaussian_loss_is_that_of_the_normal_distribution(rows):
    mean, raw, target = torch.tensor(rows, dtype=torch.float64).T
    loss = GaussianLoss()(torch.stack([mean, raw], dim=1), target[:, None])
    expected = -Normal(mean, torch.tensor(softplus(raw.numpy()) ** 0.5)).log_prob(target)
    np.testing.assert_allclose(loss[:, 0], expected, rtol=1e-5)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 10_000))
def test_the_mixture_loss_is_that_of_the_mixture(n_components, n_outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    outputs = 4 * torch.randn(7, n_outputs * 3 * n_components, generator=generator, dtype=torch.float64)
    target = 4 * torch.randn(7, n_outputs, generator=generator, dtype=torch.float64)
    loss = MixtureLoss(n_components)(outputs, target)
    assert loss.shape == (7, n_outputs)
    for column in range(n_outputs):
        start = column * 3 * n_components
        logits, means, raw = outputs[:, start : start + 3 * n_components].split(n_components, dim=1)
        parts = Normal(means, torch.tensor(softplus(raw.numpy()) ** 0.5))
        expected = -MixtureSameFamily(Categorical(logits=logits), parts).log_prob(target[:, column])
        np.testing.assert_allclose(loss[:, column], expected, rtol=1e-5)


def test_one_component_is_one_normal_distribution():
    outputs, target = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    with_share = torch.cat([torch.full((5, 1), 3.7), outputs], dim=1)
    np.testing.assert_allclose(MixtureLoss(1)(with_share, target), GaussianLoss()(outputs, target))


@pytest.mark.parametrize("loss", [GaussianLoss(), MixtureLoss(3)], ids=repr)
def test_gradients(loss):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 2 * loss.outputs_per_column, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda given: loss(given, target), outputs)


@pytest.mark.parametrize("loss", [GaussianLoss(), MixtureLoss(2)], ids=repr)
@pytest.mark.parametrize("size", [0.0, 1e2, 1e4, 1e8])
def test_loss_and_gradients_stay_finite_at_extremes(loss, size):
    """Every combination of signs, in single precision, with the target at the mean and far from it."""
    k = loss.outputs_per_column
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * k)
    for target in (-size, 0.0, size):
        outputs = (size * signs).requires_grad_()
        loss(outputs, torch.full((len(signs), 1), target)).sum().backward()
        assert torch.isfinite(loss(outputs, torch.full((len(signs), 1), target))).all()
        assert torch.isfinite(outputs.grad).all()


@pytest.mark.parametrize("loss", [GaussianLoss(), MixtureLoss(2)], ids=repr)
def test_nothing_is_broadcast(loss):
    k = loss.outputs_per_column
    for outputs, target in (((5, k), (5,)), ((5, k), (5, 2)), ((5, k), (1, 1)), ((5, k + 1), (5, 1))):
        with pytest.raises(InvalidInputError, match=rf"outputs of shape \(n, {k}·D\). Got .* reshape"):
            loss(torch.zeros(outputs), torch.zeros(target))


# --- the noise they find ---


def heteroscedastic(n, seed=0):
    """Noise that grows from .1 to 1.1 over the range, in a unit of 50."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 1))
    sigma = 50 * (0.6 + 0.5 * X[:, 0])
    return X, 200 * np.sin(2 * X[:, 0]) + sigma * rng.normal(size=n), sigma


@pytest.mark.parametrize("method", [GaussianNLL, MixtureDensity])
def test_sigma_follows_the_true_noise(method):
    """Measured: correlations of .991 and .993, and means of .99 and .97 times the true one."""
    X, y, _ = heteroscedastic(800)
    model = method(network(), random_state=0).fit(X, y)
    new, _, truth = heteroscedastic(300, seed=1)
    sigma = model.predict_sigma(new)
    assert np.corrcoef(sigma, truth)[0, 1] > 0.9
    assert sigma.mean() == pytest.approx(truth.mean(), rel=0.15)
    np.testing.assert_allclose(model.predict_uncertainty(new), sigma)


@pytest.mark.parametrize("method", [GaussianNLL, MixtureDensity])
def test_every_output_has_its_own_noise(method):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    truth = np.array([0.1, 2.0, 300.0])
    Y = X[:, :1] * [1.0, 2.0, 1000.0] + truth * rng.normal(size=(400, 3))
    model = method(network(), random_state=0).fit(X, Y)
    result = model.assess(X)
    np.testing.assert_allclose(np.median(result.sigma, axis=0), truth, rtol=0.25)
    np.testing.assert_allclose(result.uncertainty, np.sqrt(np.mean(result.sigma**2, axis=1)))


def test_value_and_sigma_are_mean_and_standard_deviation_of_the_mixture():
    X, y, _ = heteroscedastic(100)
    model = MixtureDensity(network(max_epochs=5), n_components=4, random_state=0).fit(X, np.c_[y, -y])
    outputs = torch.tensor(model.estimator_.predict_outputs(X)).reshape(100, 2, 3, 4)
    parts = Normal(outputs[:, :, 1], torch.tensor(softplus(outputs[:, :, 2].numpy()) ** 0.5))
    mixture = MixtureSameFamily(Categorical(logits=outputs[:, :, 0]), parts)
    value, sigma = model.predict(X, return_std=True)
    np.testing.assert_allclose(value, mixture.mean.numpy() * y.std() + [[y.mean(), -y.mean()]], rtol=1e-6)
    np.testing.assert_allclose(sigma, mixture.stddev.numpy() * y.std(), rtol=1e-6)
    assert np.array_equal(model.set_params(n_components=7).predict(X), value)  # as it was fitted


def test_a_mixture_sees_two_branches_move_apart():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, size=(400, 1))
    y = X[:, 0] * rng.choice([-1.0, 1.0], size=400)
    sigma = MixtureDensity(network(), n_components=2, random_state=0).fit(X, y).predict_sigma([[0.3], [0.9]])
    np.testing.assert_allclose(sigma, [0.3, 0.9], rtol=0.25)


def test_a_target_without_noise_can_be_learned():
    X = np.linspace(-1, 1, 50)[:, None]
    for y in (X[:, 0], np.full(50, 4.2)):
        value, sigma = GaussianNLL(network(), random_state=0).fit(X, y).predict(X, return_std=True)
        assert np.abs(value - y).max() < 0.2
        assert (sigma > 0).all()
        assert np.isfinite(sigma).all()


@pytest.mark.parametrize("n_components", [0, 2.5, "five", None])
def test_bad_number_of_components(n_components):
    with pytest.raises(InvalidInputError, match="'n_components' parameter of MixtureDensity must be an int"):
        MixtureDensity(network(), n_components=n_components).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(InvalidInputError, match="'n_components' parameter of MixtureLoss"):
        MixtureLoss(n_components)


# --- classes ---


def small_network(**options):
    return network(**({"hidden_sizes": (20, 12), "max_epochs": 5} | options))


@pytest.fixture(scope="module")
def classes():
    rng = np.random.default_rng(0)
    labels = rng.choice(["ant", "bee", "cat"], size=150, p=[0.7, 0.2, 0.1])
    return 100 * (np.eye(3)[np.unique(labels, return_inverse=True)[1]] + 0.4 * rng.normal(size=(150, 3))), labels


def test_the_softmax_loss_is_the_cross_entropy_of_the_label():
    logits, index = torch.randn(9, 4), torch.arange(9) % 4
    loss = SoftmaxLoss()(logits, torch.eye(4)[index])
    np.testing.assert_allclose(loss, nn.functional.cross_entropy(logits, index, reduction="none"), rtol=1e-6)


def test_probabilities_and_uncertainty_are_those_of_the_logits(classes):
    X, y = classes
    model = SoftmaxNetwork(small_network(), random_state=0).fit(X, y)
    logits = model.logits(X)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), expected)
    np.testing.assert_allclose(model.predict_uncertainty(X), 1 - expected.max(axis=1), atol=1e-12)
    assert np.array_equal(model.predict(X), model.classes_[logits.argmax(axis=1)])


def test_features_are_the_inputs_of_the_last_layer(classes):
    X, y = classes
    model = SoftmaxNetwork(small_network(dropout=0.3), random_state=0).fit(X, y)
    last = model.estimator_.net_.module_.linear
    features = model.features(X)
    assert features.shape == (150, 12)
    assert features.dtype == np.float64
    made = features @ last.weight.detach().numpy().T + last.bias.detach().numpy()
    np.testing.assert_allclose(made, model.logits(X), rtol=1e-4, atol=1e-4)


def test_features_of_a_users_module(classes):
    X, y = classes
    module = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 3))
    model = SoftmaxNetwork(small_network(module=module), random_state=0).fit(X, y)
    features = model.features(X)
    assert features.shape == (150, 7)
    assert np.abs(features).max() <= 1


def test_probabilities_are_the_class_frequencies_where_features_say_nothing(classes):
    """The columns are learned as they are: standardised, rare classes would weigh as much as frequent ones."""
    _, y = classes
    noise = np.random.default_rng(1).normal(size=(150, 2))
    model = SoftmaxNetwork(small_network(max_epochs=30, hidden_sizes=(4,)), random_state=0).fit(noise, y)
    shares = np.unique(y, return_counts=True)[1] / 150
    np.testing.assert_allclose(model.predict_proba(noise).mean(axis=0), shares, atol=0.05)


def test_softmax_network_learns_and_is_less_sure_of_its_mistakes(classes):
    X, y = classes
    model = SoftmaxNetwork(small_network(max_epochs=30), random_state=0).fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > 0.85
    wrong = model.predict(X[100:]) != y[100:]
    uncertainty = model.predict_uncertainty(X[100:])
    assert np.median(uncertainty[wrong]) > np.median(uncertainty[~wrong])


def test_bad_rows_and_modules_of_a_softmax_network_are_rejected(classes):
    X, y = classes
    for method in ("logits", "features"):
        with pytest.raises(NotFittedError):
            getattr(SoftmaxNetwork(small_network()), method)(X)
        with pytest.raises(InvalidInputError, match="2 features"):
            getattr(SoftmaxNetwork(small_network(max_epochs=1)).fit(X, y), method)(X[:, :2])
    with pytest.raises(InvalidInputError, match=r"shape \(n, 3\)"):
        SoftmaxNetwork(small_network(module=nn.Linear(3, 4))).fit(X, y)
