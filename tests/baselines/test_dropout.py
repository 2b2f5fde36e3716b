"""Monte Carlo dropout: the spread of its passes, and networks that have none."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from onsphere import InvalidInputError
from onsphere.baselines.dropout import MCDropout, MCDropoutClassifier
from onsphere.torch import TorchRegressor

torch.set_num_threads(1)


def network(**options):
    defaults = {"hidden_sizes": (20, 20), "dropout": 0.2, "max_epochs": 10, "learning_rate": 1e-2}
    return TorchRegressor(**(defaults | options))


def rows(n=100, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, 3))
    return X, X[:, 0] + X[:, 1] ** 2


def test_value_and_sigma_are_mean_and_spread_of_the_passes():
    X, y = rows()
    Y = np.c_[y, 1000 * y]
    model = MCDropout(network(), n_passes=7, random_state=0).fit(X, Y)
    passes = model.estimator_.predict_outputs(X, n_samples=7) * Y.std(axis=0) + Y.mean(axis=0)
    value, sigma = model.predict(X, return_std=True)
    np.testing.assert_allclose(value, passes.mean(axis=0))
    np.testing.assert_allclose(sigma, passes.std(axis=0))
    np.testing.assert_allclose(model.predict_uncertainty(X), np.sqrt(np.mean(passes.var(axis=0), axis=1)))


def test_the_spread_of_a_linear_layer_matches_its_formula():
    """Dropping inputs of w·x at a rate p has the variance p/(1 − p)·Σ w²x²; 500 passes leave an error of 3.2 %."""
    X, y = rows()
    module = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 1))
    model = MCDropout(network(module=module), n_passes=500, random_state=0).fit(X, y)
    weight = model.estimator_.net_.module_[1].weight.detach().numpy()[0]
    seen = (X - X.mean(axis=0)) / X.std(axis=0)
    expected = np.sqrt(0.3 / 0.7 * np.sum((weight * seen) ** 2, axis=1)) * y.std()
    np.testing.assert_allclose(model.predict_sigma(X), expected, rtol=0.15)


def test_uncertainty_grows_outside_the_training_rows():
    """Measured: ten times as far out, the median is 21 times as large."""
    X, y = rows(300)
    model = MCDropout(network(max_epochs=30), random_state=0).fit(X, y)
    inside, outside = (np.median(model.predict_uncertainty(given)) for given in (X, 10 * X))
    assert outside > 5 * inside


def test_probabilities_are_the_mean_over_the_passes():
    X, y = rows()
    model = MCDropoutClassifier(network(), n_passes=6, random_state=0).fit(X, y > 1)
    passes = softmax(model.estimator_.predict_outputs(X, n_samples=6), axis=2)
    mean = passes.mean(axis=0)
    np.testing.assert_allclose(model.predict_proba(X), mean)
    total = -np.sum(mean * np.log(mean), axis=1)
    np.testing.assert_allclose(model.predict_uncertainty(X), total)
    model.set_params(uncertainty_score="disagreement")
    within = -np.sum(passes * np.log(passes), axis=2).mean(axis=0)
    np.testing.assert_allclose(model.predict_uncertainty(X), total - within, atol=1e-12)
    assert model.logits(X).shape == (100, 2)


def no_dropout(n_features, n_outputs):
    return nn.Sequential(nn.Linear(n_features, n_outputs), nn.Dropout(0.0))


@pytest.mark.parametrize("method", [MCDropout, MCDropoutClassifier])
@pytest.mark.parametrize("options", [{"dropout": 0.0}, {"module": no_dropout}], ids=["MLP", "module"])
def test_a_network_without_dropout_is_rejected(method, options):
    X, y = rows(20)
    model = method(network(), random_state=0).fit(X, y > 0)
    before = model.predict_uncertainty(X)
    message = rf"{method.__name__} needs a network with dropout.*Pass TorchRegressor\(dropout=0.1\)"
    with pytest.raises(InvalidInputError, match=message):
        model.set_params(estimator=network(**options)).fit(X, y > 0)
    assert np.array_equal(model.predict_uncertainty(X), before)


def test_a_users_loss_is_kept():
    X, y = rows(60)
    plain, robust = (
        MCDropout(network(loss=loss), random_state=0).fit(X, y).predict(X)
        for loss in ("auto", nn.HuberLoss(reduction="none", delta=0.1))
    )
    assert not np.allclose(plain, robust)


@pytest.mark.parametrize("method", [MCDropout, MCDropoutClassifier])
@pytest.mark.parametrize("n_passes", [1, 2.5, "many"])
def test_bad_number_of_passes(method, n_passes):
    X, y = rows(20)
    with pytest.raises(InvalidInputError, match=rf"'n_passes' parameter of {method.__name__} must be an int in \[2"):
        method(network(), n_passes=n_passes).fit(X, y > 0)


def test_bad_score():
    X, y = rows(20)
    with pytest.raises(InvalidInputError, match="'uncertainty_score' parameter of MCDropoutClassifier"):
        MCDropoutClassifier(network(), uncertainty_score="msp").fit(X, y > 0)
