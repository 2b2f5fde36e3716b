"""Rows that the tests of all detectors share."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def layer():
    """Return weights and bias of a last layer."""
    rng = np.random.default_rng(5)
    return rng.normal(size=(4, 7)), rng.normal(size=4) + 2.0


@pytest.fixture(scope="session")
def make_rows(layer):
    """Return a maker of features that vary more in some directions than in others, logits, and labels of four classes.

    Labels are not always what the logits predict.
    """
    weight, bias = layer

    def make(n, seed):
        rng = np.random.default_rng(seed)
        labels = rng.integers(4, size=n)
        features = 2.0 * np.eye(4, 7)[labels] + rng.normal(size=(n, 7)) * np.linspace(1.5, 0.2, 7)
        return features, features @ weight.T + bias, labels

    return make


@pytest.fixture(scope="session")
def train(make_rows):
    return make_rows(300, seed=0)


@pytest.fixture(scope="session")
def rows(make_rows):
    return make_rows(40, seed=1)
