"""Every method, HCM's own and all baselines, works in `compare` and notices an obvious outlier."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris

from onsphere import FrozenHead, HCMClassifier, HCMRegressor, compare
from onsphere.baselines import (
    KNN,
    MSP,
    DeepEnsemble,
    Energy,
    EnsembleClassifier,
    Entropy,
    Evidential,
    GaussianNLL,
    Gini,
    Mahalanobis,
    MCDropout,
    MCDropoutClassifier,
    MixtureDensity,
    PostHoc,
    SoftmaxNetwork,
)
from onsphere.torch import TorchRegressor

NETWORK = TorchRegressor(hidden_sizes=(20,), max_epochs=20, learning_rate=1e-2)
DROPPING = clone(NETWORK).set_params(dropout=0.1)

NUMBERS = {
    "hcm": HCMRegressor(NETWORK),
    "hcm, anchored": HCMRegressor(NETWORK, uncertainty_score="anchored"),
    "frozen": FrozenHead(n_landmarks=50),
    "ensemble": DeepEnsemble(NETWORK, n_members=3),
    "dropout": MCDropout(DROPPING, n_passes=10),
    "evidential": Evidential(NETWORK),
    "gaussian": GaussianNLL(NETWORK),
    "mixture": MixtureDensity(NETWORK),
}
CLASSES = {
    "hcm": HCMClassifier(NETWORK),
    "frozen": FrozenHead(n_landmarks=50),
    "knn": KNN(k=10),
    "mahalanobis": Mahalanobis(),
    "msp": MSP(),
    "energy": Energy(),
    "gini": Gini(),
    "entropy": Entropy(),
    "softmax": SoftmaxNetwork(NETWORK),
    "ensemble": EnsembleClassifier(SoftmaxNetwork(NETWORK), n_members=3),
    "dropout": MCDropoutClassifier(DROPPING, n_passes=10),
}
# These see how much the targets scatter, which says nothing about places without rows.
SEES_NOISE_ONLY = {"evidential", "gaussian", "mixture"}
# These see probabilities, which go to 0 and 1 along almost every way out.
SEES_PROBABILITIES_ONLY = {"msp", "energy", "gini", "entropy", "softmax", "ensemble", "dropout"}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    return X, X[:, 0] + 0.1 * rng.normal(size=150)


def test_all_methods_for_numbers_compare(table):
    result = compare(NUMBERS, *table, X_shifted=5 * table[0])
    assert result.failures == {}
    for row in result.rows[1:]:
        assert all(np.isfinite(value) for name, value in row.items() if name != "method")
        assert {"Spearman", "coverage", "width", "Winkler", "AUROC"} <= set(row)


def test_all_methods_for_classes_compare():
    X, y = load_iris(return_X_y=True)
    result = compare(CLASSES, X, y, X_shifted={"scaled": 5 * X})
    assert result.failures == {}
    for row in result.rows[1:]:
        assert all(np.isfinite(value) for name, value in row.items() if name != "method")
        assert {"coverage", "width", "AUROC scaled"} <= set(row)


@pytest.mark.parametrize("name", sorted(set(NUMBERS) - SEES_NOISE_ONLY))
def test_an_outlier_is_trusted_less_than_a_usual_row(name, table):
    X, y = table
    model = clone(NUMBERS[name]).set_params(random_state=0).fit(X, y)
    outlier = model.predict_uncertainty(np.full((1, 3), 20.0))
    assert outlier[0] > np.median(model.predict_uncertainty(X))


@pytest.mark.parametrize("name", sorted(set(CLASSES) - SEES_PROBABILITIES_ONLY))
def test_an_outlier_among_classes_is_trusted_less_than_a_usual_row(name):
    X, y = load_iris(return_X_y=True)
    method = CLASSES[name]
    model = clone(method) if hasattr(method, "predict") else PostHoc(method)
    uncertainty = (
        model.set_params(random_state=0).fit(X, y).predict_uncertainty(np.vstack([X, [[0.0, 60.0, 0.0, 60.0]]]))
    )
    assert uncertainty[-1] > np.median(uncertainty[:-1])
