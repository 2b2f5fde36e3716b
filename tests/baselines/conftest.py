import numpy as np
import pytest

N_CLASSES, N_FEATURES = 4, 7


@pytest.fixture(scope="module")
def layer():
    """Weights and bias of a last layer."""
    rng = np.random.default_rng(5)
    return rng.normal(size=(N_CLASSES, N_FEATURES)), rng.normal(size=N_CLASSES) + 2.0


@pytest.fixture(scope="module")
def train(layer):
    return make_rows(layer, 300, seed=0)


@pytest.fixture(scope="module")
def rows(layer):
    return make_rows(layer, 40, seed=1)


def make_rows(layer, n, seed):
    """Features that vary more in some directions than in others, logits, and labels that are not always predicted."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(N_CLASSES, size=n)
    features = 2.0 * np.eye(N_CLASSES, N_FEATURES)[labels] + rng.normal(size=(n, N_FEATURES)) * np.linspace(1.5, 0.2, 7)
    return features, features @ layer[0].T + layer[1], labels
