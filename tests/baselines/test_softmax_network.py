"""The plain classifier: its loss, its probabilities, and what it gives to detectors."""

import numpy as np
import pytest
import torch
from torch import nn

from onsphere import InvalidInputError, NotFittedError
from onsphere.baselines.likelihood import SoftmaxLoss, SoftmaxNetwork
from onsphere.torch import TorchRegressor

torch.set_num_threads(1)


def network(**options):
    return TorchRegressor(**({"hidden_sizes": (20, 12), "max_epochs": 5, "learning_rate": 1e-2} | options))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    labels = rng.choice(["ant", "bee", "cat"], size=150, p=[0.7, 0.2, 0.1])
    return 100 * (np.eye(3)[np.unique(labels, return_inverse=True)[1]] + 0.4 * rng.normal(size=(150, 3))), labels


def test_the_loss_is_the_cross_entropy_of_the_label():
    logits, index = torch.randn(9, 4), torch.arange(9) % 4
    loss = SoftmaxLoss()(logits, torch.eye(4)[index])
    np.testing.assert_allclose(loss, nn.functional.cross_entropy(logits, index, reduction="none"), rtol=1e-6)


def test_probabilities_and_uncertainty_are_those_of_the_logits(rows):
    X, y = rows
    model = SoftmaxNetwork(network(), random_state=0).fit(X, y)
    logits = model.logits(X)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), expected)
    np.testing.assert_allclose(model.predict_uncertainty(X), 1 - expected.max(axis=1), atol=1e-12)
    assert np.array_equal(model.predict(X), model.classes_[logits.argmax(axis=1)])


def test_features_are_what_the_last_layer_sees(rows):
    X, y = rows
    model = SoftmaxNetwork(network(dropout=0.3), random_state=0).fit(X, y)
    last = model.estimator_.net_.module_.linear
    features = model.features(X)
    assert features.shape == (150, 12)
    assert features.dtype == np.float64
    made = features @ last.weight.detach().numpy().T + last.bias.detach().numpy()
    np.testing.assert_allclose(made, model.logits(X), rtol=1e-4, atol=1e-4)


def test_features_of_a_module_of_the_user(rows):
    X, y = rows
    module = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 3))
    model = SoftmaxNetwork(network(module=module), random_state=0).fit(X, y)
    features = model.features(X)
    assert features.shape == (150, 7)
    assert np.abs(features).max() <= 1


def test_frequent_classes_are_likely_where_nothing_is_known(rows):
    """The columns are learned as they are: standardised, rare classes would weigh as much as frequent ones."""
    _, y = rows
    noise = np.random.default_rng(1).normal(size=(150, 2))
    model = SoftmaxNetwork(network(max_epochs=30, hidden_sizes=(4,)), random_state=0).fit(noise, y)
    shares = np.unique(y, return_counts=True)[1] / 150
    np.testing.assert_allclose(model.predict_proba(noise).mean(axis=0), shares, atol=0.05)


def test_it_learns(rows):
    X, y = rows
    model = SoftmaxNetwork(network(max_epochs=30), random_state=0).fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > 0.85
    wrong = model.predict(X[100:]) != y[100:]
    uncertainty = model.predict_uncertainty(X[100:])
    assert np.median(uncertainty[wrong]) > np.median(uncertainty[~wrong])


def test_bad_use(rows):
    X, y = rows
    for method in ("logits", "features"):
        with pytest.raises(NotFittedError):
            getattr(SoftmaxNetwork(network()), method)(X)
        with pytest.raises(InvalidInputError, match="2 features"):
            getattr(SoftmaxNetwork(network(max_epochs=1)).fit(X, y), method)(X[:, :2])
    with pytest.raises(InvalidInputError, match=r"shape \(n, 3\)"):
        SoftmaxNetwork(network(module=nn.Linear(3, 4))).fit(X, y)
