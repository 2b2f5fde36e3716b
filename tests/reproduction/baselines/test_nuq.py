"""NUQ against its paper's formula, written out once more with loops, and small cases worked by hand."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from onsphere import InvalidInputError
from reproduction.baselines import NUQ, nuq


@pytest.mark.parametrize(("bandwidth", "prior_weight"), [(1.0, 1.0), (2.0, 0.1), (None, 5.0)])
def test_nuq_is_the_formula_of_its_paper(train, rows, bandwidth, prior_weight):
    features, _, labels = train
    detector = NUQ(n_neighbors=15, bandwidth=bandwidth, prior_weight=prior_weight).fit(*train)
    h = bandwidth or detector.bandwidth_
    assert detector.bandwidth_ == h
    share = [np.mean(labels == index) for index in range(4)]
    square_integral = quad(lambda z: (math.exp(-z * z / 2) / math.sqrt(2 * math.pi)) ** 2, -20, 20)[0] ** 7
    height = (2 * math.pi) ** (-7 / 2)
    expected = []
    for row in rows[0]:
        nearest = sorted(range(len(features)), key=lambda index: math.dist(row, features[index]))[:15]
        kernel = {index: height * math.exp(-((math.dist(row, features[index]) / h) ** 2) / 2) for index in nearest}
        mass = [
            sum(kernel[index] for index in nearest if labels[index] == each) + prior_weight * height * share[each]
            for each in range(4)
        ]
        eta = [value / sum(mass) for value in mass]
        density = sum(kernel.values()) / (len(features) * h**7)
        variance = max(p * (1 - p) for p in eta) * square_integral / (len(features) * h**7 * density)
        expected.append((1 - max(eta), 2 * math.sqrt(2 / math.pi) * math.sqrt(variance)))
    np.testing.assert_allclose(np.exp(detector._score_parts(rows[0])).T, expected, rtol=1e-6)
    np.testing.assert_allclose(detector.score(*rows[:2]), np.log(np.sum(expected, axis=1)), rtol=1e-6, atol=1e-9)


def test_nuq_grows_far_from_the_data_where_every_kernel_is_zero():
    labels, frequencies = np.zeros((5, 2), dtype=int), np.array([0.25, 0.75])
    far = -(10.0 ** np.array([[0, 0], [3, 3], [6, 6], [9, 9], [12, 12]]))
    aleatoric, epistemic = nuq(far, labels, frequencies, 3)
    assert np.isfinite(epistemic).all()
    assert (np.diff(epistemic) > 0).all()
    np.testing.assert_allclose(np.exp(aleatoric[1:]), 0.25)  # the prior
    np.testing.assert_allclose(np.diff(epistemic[2:]), 0.5 * np.diff(-far[2:, 0]), rtol=1e-3)


def test_nuq_of_rows_that_coincide():
    features = np.zeros((30, 2))
    detector = NUQ(n_neighbors=10).fit(features, features, np.arange(30) % 2)
    assert detector.bandwidth_ == 1.0
    assert detector.score([[0.0, 0.0]], [[0.0, 0.0]]) < detector.score([[9.0, 0.0]], [[0.0, 0.0]])


def test_nuq_can_score_by_the_variance_alone(train, rows):
    detector = NUQ(kind="epistemic").fit(*train)
    np.testing.assert_array_equal(detector.score(*rows[:2]), detector._score_parts(rows[0])[1])
    with pytest.raises(InvalidInputError, match="'kind' parameter of NUQ must be one of 'total', 'epistemic'"):
        NUQ(kind="both").fit(*train)


def test_the_bandwidth_classifies_most_training_rows_right(train):
    features, _, labels = train
    nearest = [sorted(range(300), key=lambda other, row=row: math.dist(row, features[other]))[1:6] for row in features]
    distances = np.array([[math.dist(features[k], features[other]) for other in nearest[k]] for k in range(300)])
    grid = np.linspace(distances[:, 0].mean(), distances[:, -1].mean(), 5)

    def count_right(width):
        kernel = np.exp(-0.5 * (distances / width) ** 2)
        mass = [
            [0.1 * np.mean(labels == each) + kernel[k][labels[nearest[k]] == each].sum() for each in range(4)]
            for k in range(300)
        ]
        return np.sum(np.argmax(mass, axis=1) == labels)

    found = NUQ(n_neighbors=5, prior_weight=0.1).fit(*train).bandwidth_
    assert found == pytest.approx(grid[np.argmax([count_right(width) for width in grid])], rel=1e-6)


def test_the_bandwidth_of_many_rows_comes_from_some_of_them(make_rows):
    features, logits, labels = make_rows(4100, seed=2)
    some = np.array([np.sort(np.linalg.norm(features - row, axis=1))[[1, 5]] for row in features[::3]])
    found = NUQ(n_neighbors=5).fit(features, logits, labels).bandwidth_
    assert np.isclose(np.linspace(*some.mean(axis=0), 5), found, rtol=1e-6).any()
