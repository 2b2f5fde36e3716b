"""The kernel of landmarks: scikit-learn's where nothing is nearly singular, and steady where it is."""

import numpy as np
import pytest
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.pipeline import make_pipeline

from onsphere import HCMRegressor
from onsphere.models.choice import make_candidate
from onsphere.models.landmark_kernel import LandmarkKernel


def test_features_are_those_of_scikit_learn_where_landmarks_are_far_apart():
    X = np.random.default_rng(0).normal(size=(60, 5))
    options = {"n_components": 20, "gamma": 0.5, "random_state": 0}
    expected = Nystroem(**options).fit_transform(X)
    np.testing.assert_allclose(LandmarkKernel(**options).fit_transform(X), expected, atol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 1e-9, 1e-5])
def test_coinciding_landmarks_enlarge_rounding_errors_by_no_more_than_stated(spread):
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(30, 2)), 2, axis=0) + spread * rng.normal(size=(60, 2))
    kernel = LandmarkKernel(n_components=60, gamma=0.5, random_state=0).fit(X)
    assert np.linalg.norm(kernel.normalization_, 2) < 1e5
    features = kernel.transform(X)
    np.testing.assert_allclose(features @ features.T, rbf_kernel(X, gamma=0.5), atol=1e-8)


def test_a_row_alone_gets_the_answer_that_it_gets_among_others():
    X = np.random.default_rng(0).uniform(-1, 1, size=(400, 3))
    y = np.sin(3 * X[:, 0]) + X[:, 1]  # no noise, so the penalty is small and rounding counts most
    model = HCMRegressor(make_candidate("kernel"), random_state=0).fit(X[:300], y[:300])
    together, alone = model.assess(X[300:]), [model.assess(row[None]) for row in X[300:]]
    for name in ("value", "uncertainty", "sigma"):
        expected = getattr(together, name)
        found = np.concatenate([getattr(each, name) for each in alone])
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_what_is_left_out_costs_no_accuracy_without_noise():
    X = np.random.default_rng(1).uniform(-1, 1, size=(500, 2))
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1])
    options = {"n_components": 200, "gamma": 0.5, "random_state": 0}
    errors = []
    for kernel in (Nystroem(**options), LandmarkKernel(**options)):
        model = make_pipeline(kernel, Ridge(1e-6)).fit(X[:400], y[:400])
        errors.append(np.sqrt(np.mean((model.predict(X[400:]) - y[400:]) ** 2)))
    assert errors[1] < 1.05 * errors[0]
