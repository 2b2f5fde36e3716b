"""The scores against the formulas of their papers, written out with loops, and small cases worked by hand."""

import math

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from onsphere import OnsphereWarning
from onsphere.baselines import KNN, Mahalanobis, knn, mahalanobis

N_CLASSES, N_FEATURES = 4, 7


def score(detector, train, rows):
    return detector.fit(*train).score(*rows[:2])


def test_mahalanobis(train, rows):
    features, _, labels = train
    means = [features[labels == index].mean(axis=0) for index in range(N_CLASSES)]
    covariance = np.zeros((N_FEATURES, N_FEATURES))
    for row, label in zip(features, labels, strict=True):
        covariance += np.outer(row - means[label], row - means[label]) / len(features)
    precision = np.linalg.inv(covariance)
    expected = [min((row - mean) @ precision @ (row - mean) for mean in means) for row in rows[0]]
    np.testing.assert_allclose(score(Mahalanobis(), train, rows), expected, rtol=1e-9)


def test_mahalanobis_by_hand():
    features = [[-1.0], [1.0], [9.0], [11.0]]  # means 0 and 10, variance 1
    detector = Mahalanobis().fit(features, np.zeros((4, 2)), ["a", "a", "b", "b"])
    np.testing.assert_allclose(detector.score([[2.0], [10.0], [13.0]], np.zeros((3, 2))), [4.0, 0.0, 9.0])
    np.testing.assert_allclose(mahalanobis([[1.0, 2.0]], np.zeros((1, 2)), np.array([[1.0, 1.0], [0.0, 3.0]])), [45.0])


def with_copy(train):
    return np.hstack([train[0], train[0][:, :1]]), train[1], train[2]


def with_constant(train):
    return np.hstack([train[0], np.ones((len(train[0]), 1))]), train[1], train[2]


def with_few_rows(train):
    keep = np.concatenate([np.flatnonzero(train[2] == index)[:2] for index in range(N_CLASSES)])
    wide = np.random.default_rng(0).normal(size=(len(keep), 12))
    return wide, train[1][keep], train[2][keep]


@pytest.mark.parametrize("change", [with_copy, with_constant, with_few_rows])
def test_a_singular_covariance_is_shrunk_with_a_warning(train, change):
    features, logits, labels = change(train)
    with pytest.warns(OnsphereWarning, match=r"is singular; Mahalanobis shrinks it by .* Drop constant") as caught:
        detector = Mahalanobis().fit(features, logits, labels)
    assert caught[0].filename == __file__
    means = np.array([features[labels == index].mean(axis=0) for index in range(N_CLASSES)])
    centered = features - means[labels]
    scale = np.sqrt(np.mean(centered**2, axis=0))
    scale[scale == 0.0] = min(each for each in scale if each > 0.0)
    correlation, shrinkage = ledoit_wolf(centered / scale, assume_centered=True)
    np.fill_diagonal(correlation, 1.0)
    assert shrinkage > 1e-6
    expected = []
    for row in features:
        steps = [(row - mean) / scale for mean in means]
        expected.append(min(step @ np.linalg.solve(correlation, step) for step in steps))
    np.testing.assert_allclose(detector.score(features, logits), expected, rtol=1e-6)


def test_columns_of_different_units_are_not_singular(train, rows):
    units = 10.0 ** np.arange(-9, 12, 3)
    there = Mahalanobis().fit(train[0] * units, *train[1:]).score(rows[0] * units, rows[1])
    np.testing.assert_allclose(there, score(Mahalanobis(), train, rows), rtol=1e-8)


def test_a_singular_covariance_is_shrunk_where_ledoit_and_wolf_would_not():
    """Two rows to either side of each mean: their squares do not vary, so the covariance counts as exact."""
    features = np.array([[1.0, 0.0], [-1.0, 0.0], [11.0, 0.0], [9.0, 0.0]])
    with pytest.warns(OnsphereWarning, match=r"shrinks it by 1e-06"):
        detector = Mahalanobis().fit(features, np.zeros((4, 2)), [0, 0, 1, 1])
    # The constant feature counts as much as the other one.
    np.testing.assert_allclose(detector.score([[2.0, 0.0], [0.0, 2.0]], np.zeros((2, 2))), [4.0, 4.0], rtol=1e-5)


@pytest.mark.parametrize("constant", [7.0, 0.1, -1e9 / 3])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_constant_feature_does_not_hide_small_features_behind_large_ones(constant, unit):
    """A mean of 0.1s is 0.1 but for rounding, which is no variation."""
    rng = np.random.default_rng(0)
    features = np.c_[rng.normal(size=400) * 1e4, rng.normal(size=400), np.full(400, constant)] * unit
    logits, labels = np.zeros((400, 2)), np.arange(400) % 2
    with pytest.warns(OnsphereWarning, match="is singular"):
        detector = Mahalanobis().fit(features, logits, labels)
    strange = np.array([[0.0, 100.0, constant], [0.0, 0.0, constant + 100.0]]) * unit
    scores = detector.score(strange, np.zeros((2, 2)))
    assert scores.min() > 100 * detector.score(features, logits).max()
    np.testing.assert_allclose(scores, 100.0**2, rtol=0.2)


@pytest.mark.parametrize(("k", "every"), [(1, 1), (5, 1), (50, 3)])
def test_knn(train, rows, k, every):
    def unit(row):
        return row / math.sqrt(sum(value * value for value in row))

    kept = [unit(row) for row in train[0][::every]]
    expected = [sorted(math.dist(unit(row), other) for other in kept)[k - 1] for row in rows[0]]
    np.testing.assert_allclose(score(KNN(k=k, every=every), train, rows), expected, atol=1e-7)
    np.testing.assert_allclose(knn(rows[0], train[0][::every], k=k), expected, atol=1e-7)


def test_knn_by_hand():
    kept = [[2.0, 0.0], [0.0, 0.1], [-3.0, 0.0]]
    np.testing.assert_allclose(knn([[9.0, 0.0]], kept, k=1), [0.0], atol=1e-7)
    np.testing.assert_allclose(knn([[9.0, 0.0]], kept, k=2), [math.sqrt(2)])
    np.testing.assert_allclose(knn([[9.0, 0.0]], kept, k=3), [2.0])
    np.testing.assert_allclose(knn([[0.0, 0.0]], kept, k=1), [1.0])  # no direction: equally far from all
