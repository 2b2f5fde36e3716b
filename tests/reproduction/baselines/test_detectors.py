"""What the paper's detectors share with all others, and what their theory says stays the same."""

import pickle

import numpy as np
import pytest
from scipy.stats import ortho_group
from sklearn.base import clone
from sklearn.datasets import load_iris

from onsphere import compare
from onsphere.baselines import KNN, Entropy
from reproduction.baselines import FDBD, HUQ, NCI, NUQ, RAU, ViM

ALL = [NUQ(), HUQ(KNN(k=10), Entropy()), RAU(n_steps=20, random_state=0), ViM(), FDBD(), NCI()]


def name_detector(detector):
    return type(detector).__name__


every_detector = pytest.mark.parametrize("detector", ALL, ids=name_detector)


def parametrize(*kinds):
    return pytest.mark.parametrize("detector", [each for each in ALL if isinstance(each, kinds)], ids=name_detector)


@every_detector
def test_a_score_is_finite_and_does_not_depend_on_other_rows(detector, train, rows):
    model = clone(detector).fit(*train)
    scores = model.score(*rows[:2])
    assert scores.shape == (40,)
    assert np.isfinite(scores).all()
    assert len(np.unique(scores)) > 10
    np.testing.assert_allclose(model.score(rows[0][:1], rows[1][:1]), scores[:1], rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(clone(model).fit(*train).score(*rows[:2]), scores)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).score(*rows[:2]), scores)


@every_detector
@pytest.mark.parametrize("size", [1e6, 1e-6, 1e150])
def test_training_rows_of_extreme_size(detector, train, rows, size):
    model = clone(detector).fit(size * train[0], size * train[1], train[2])
    assert np.isfinite(model.score(size * rows[0], size * rows[1])).all()


def test_all_detectors_compare():
    X, y = load_iris(return_X_y=True)
    result = compare({name_detector(each): each for each in ALL}, X, y, X_shifted={"scaled": 5 * X})
    assert result.failures == {}


def move(detector, train, rows, change):
    return clone(detector).fit(change(train[0]), *train[1:]).score(change(rows[0]), rows[1])


@parametrize(NUQ, RAU)
def test_unit_and_origin_of_the_features_change_nothing(detector, train, rows):
    expected = move(detector, train, rows, lambda X: X)
    moved = move(detector, train, rows, lambda X: 1e3 * X + np.arange(7.0))
    np.testing.assert_allclose(moved, expected, rtol=1e-6, atol=1e-7)


def test_nuq_does_not_change_when_the_features_are_turned(train, rows):
    rotation = ortho_group.rvs(7, random_state=3)
    expected = move(NUQ(), train, rows, lambda X: X)
    np.testing.assert_allclose(move(NUQ(), train, rows, lambda X: X @ rotation), expected, rtol=1e-6, atol=1e-7)


def test_rau_does_not_depend_on_the_unit_of_any_feature(train, rows):
    units = 10.0 ** np.arange(-3, 4)
    expected = move(ALL[2], train, rows, lambda X: X)
    np.testing.assert_allclose(move(ALL[2], train, rows, lambda X: X * units), expected, rtol=1e-6)


@parametrize(NUQ, RAU)
def test_scores_of_features_do_not_look_at_logits(detector, train, rows):
    model = clone(detector).fit(*train)
    np.testing.assert_array_equal(model.score(rows[0], rows[1] * 0), model.score(*rows[:2]))


@parametrize(NUQ, HUQ)
def test_a_row_far_from_the_data_is_trusted_less(detector, train):
    model = clone(detector).fit(*train)
    far = train[0][:20] + 50.0 * np.array([0, 0, 0, 0, 1, -1, 1])
    assert model.score(far, train[1][:20]).min() > np.median(model.score(*train[:2]))
