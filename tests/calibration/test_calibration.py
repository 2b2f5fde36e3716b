"""Calibration of arrays, without a model: temperature, confidence, intervals, balls and sets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize_scalar
from sklearn.isotonic import IsotonicRegression

from onsphere import Calibration, InvalidInputError
from onsphere.calibration import (
    ClassCalibration,
    RegressionCalibration,
    fit_temperature,
)
from onsphere.calibration.online import STRETCH

rng = np.random.default_rng(0)


positive = st.floats(1e-3, 1e3)


def make_calibration(n=200, *, noise=1.0):
    uncertainty = rng.exponential(size=n)
    return Calibration(uncertainty, noise * uncertainty * np.abs(rng.normal(size=n)))


def gap(temperature, error, uncertainty):
    return sum(
        (np.mean(error <= k * temperature * uncertainty) - share) ** 2 for k, share in enumerate((0.68, 0.95, 0.997), 1)
    )


@given(hnp.arrays(np.float64, 25, elements=positive), hnp.arrays(np.float64, 25, elements=positive))
def test_no_other_temperature_is_better(error, uncertainty):
    best = fit_temperature(error, uncertainty)
    others = np.geomspace(1e-7, 1e7, 400)
    assert gap(best * (1 + 1e-9), error, uncertainty) <= min(gap(t, error, uncertainty) for t in others) + 1e-12


def test_the_temperature_agrees_with_a_numerical_search():
    data = make_calibration(5000, noise=3.0)
    found = minimize_scalar(lambda t: gap(t, data.error, data.uncertainty), bounds=(1, 10), method="bounded").x
    assert data.temperature == pytest.approx(found, rel=0.02)
    assert data.temperature == pytest.approx(3.0, rel=0.05)


def test_rows_without_uncertainty_count_as_missed_unless_they_are_right():
    """Ratios 0, ∞ and 1: from T = 1 on two in three rows are inside at every k, nearest to the three shares."""
    assert fit_temperature(np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0])) == pytest.approx(1.0)


def test_a_temperature_needs_errors_and_scores_above_zero():
    with pytest.raises(InvalidInputError, match="above zero"):
        fit_temperature(np.zeros(3), np.ones(3))
    with pytest.raises(InvalidInputError, match="above zero"):
        fit_temperature(np.ones(3), np.zeros(3))
    with pytest.raises(InvalidInputError, match=r"never negative\. Got one as low as -1"):
        _ = Calibration(np.array([-1.0, 2.0]), np.ones(2)).temperature
    with pytest.raises(InvalidInputError, match="shift normalization"):
        Calibration(np.zeros(3), np.ones(3)).confidence(np.zeros(3), normalization="shift")


@pytest.mark.parametrize("normalization", ["quantile", "min-max", "none", "shift"])
def test_confidence_lies_in_the_unit_interval_and_falls(normalization):
    data = make_calibration()
    grid = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 100)])
    confidence = data.confidence(grid, normalization=normalization)
    assert ((confidence >= 0) & (confidence <= 1)).all()
    assert (np.diff(confidence) <= 0).all()
    assert confidence[0] > confidence[-1]


def test_each_normalization_is_what_it_says():
    data = make_calibration()
    inside = data.uncertainty
    min_max = data.confidence(inside, normalization="min-max")
    assert (min_max.min(), min_max.max()) == (0, 1)
    np.testing.assert_allclose(data.confidence(inside, normalization="none"), np.exp(-data.temperature * inside))
    assert data.confidence(inside, normalization="shift").min() == pytest.approx(0.9)
    share = [(1 + np.sum(inside >= value)) / (1 + len(inside)) for value in inside]
    np.testing.assert_allclose(data.confidence(inside), share)


def test_equal_scores_still_give_a_confidence():
    data = Calibration(np.full(9, 2.0), np.ones(9))
    np.testing.assert_allclose(data.confidence(np.array([1.0, 2.0, 3.0])), [1.0, 1.0, 0.1])
    np.testing.assert_allclose(data.confidence(np.array([1.0, 2.0, 3.0]), normalization="min-max"), [1, 1, 0])


def test_expected_error_is_isotonic_regression():
    data = make_calibration()
    grid = np.linspace(0, 10, 50)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(data.uncertainty, data.error).predict(grid)
    np.testing.assert_allclose(data.expected_error(grid), theirs, rtol=1e-12)


def test_an_unknown_normalization_is_rejected():
    with pytest.raises(InvalidInputError, match="'normalization' parameter of predict_confidence must be one of"):
        make_calibration().confidence(np.ones(2), normalization="softmax")


def measure(residual, sigma, spread=(1.0, 1.0)):
    return RegressionCalibration.measure(np.array(residual), np.array(sigma), np.zeros(len(residual)), np.array(spread))


def test_ratios_by_hand():
    data = measure([[3.0, -4.0], [0.0, 0.0]], [[1.0, 2.0], [0.0, 0.0]], spread=(1.0, 2.0))
    np.testing.assert_allclose(data.residuals, [[3, -2], [0, 0]])
    np.testing.assert_allclose(data.ratios, [[3, 2], [0, 0]])
    assert data.is_signed
    np.testing.assert_allclose(data.error, [np.sqrt(12.5), 0])
    # Length √(3² + (4/2)²) = √13 over the root mean square of sigma, √((1² + 1²)/2) = 1.
    np.testing.assert_allclose(data.ball_ratios, [np.sqrt(13), 0])


def test_an_error_where_sigma_is_zero_is_never_covered():
    data = measure([[1.0], [1.0], [1.0]], [[0.0], [1.0], [2.0]], spread=(1.0,))
    np.testing.assert_allclose(data.ratios[:, 0], [np.inf, 1, 0.5])


def test_boxes_by_hand():
    """The 8th smallest of 9 largest ratios is 8; each output by itself would need 8 and .8."""
    ranks = np.arange(1.0, 10.0)
    data = measure(np.c_[ranks, ranks / 10], np.ones((9, 2)))
    value, sigma = np.array([[10.0, 20.0]]), np.array([[1.0, 0.5]])
    np.testing.assert_allclose(data.interval(value, sigma, coverage=0.8), [[[2, 18], [16, 24]]])
    alone = data.interval(value, sigma, coverage=0.8, simultaneous=False)
    np.testing.assert_allclose(alone, [[[2, 18], [19.6, 20.4]]])


def test_balls_by_hand():
    data = measure(np.c_[np.arange(1.0, 10.0), np.zeros(9)], np.ones((9, 2)), spread=(1.0, 0.0))
    radius = data.radius(np.array([[2.0, 2.0]]), np.array([1.0, 0.0]), coverage=0.8)
    np.testing.assert_allclose(radius, [16.0])


def test_intervals_balls_and_sets_respect_weights():
    """Of nine rows, the last counts for eleven: 60 % of the weight, with that of the new row, needs its score."""
    ranks = np.arange(1.0, 10.0)
    weights = np.r_[np.ones(8), 11.0]
    data = replace(measure(ranks[:, None], np.ones((9, 1)), (1.0,)), weights=weights)
    interval = data.interval(np.zeros((1, 1)), np.ones((1, 1)), coverage=0.6)
    np.testing.assert_allclose(interval, [[[-9, 9]]])
    np.testing.assert_allclose(data.radius(np.ones((1, 1)), np.ones(1), coverage=0.6), [9.0])
    probabilities = np.array([[0.6, 0.3, 0.1]] * 9)
    classes = ClassCalibration.measure(probabilities, np.r_[np.zeros(8, dtype=int), 1], np.zeros(9), np.zeros(9))
    assert classes.prediction_set(probabilities[:1], coverage=0.6).sum() == 1
    assert replace(classes, weights=weights).prediction_set(probabilities[:1], coverage=0.6).sum() == 2


def test_sets_by_hand():
    """The largest of three scores of the true class is .6, so classes join while at most .6 lies before them."""
    probabilities = np.array([[0.6, 0.3, 0.1]] * 3)
    data = ClassCalibration.measure(probabilities, np.array([0, 0, 1]), np.zeros(3), np.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(data.true_scores, [0, 0, 0.6])
    chosen = data.prediction_set(np.array([[0.6, 0.3, 0.1], [0.05, 0.95, 0.0]]), coverage=0.75)
    np.testing.assert_array_equal(chosen, [[True, True, False], [False, True, False]])


def test_calibrations_join():
    whole = RegressionCalibration.join([measure([[1.0]], [[2.0]], (1.0,)), measure([[3.0]], [[4.0]], (1.0,))])
    assert len(whole) == 2
    np.testing.assert_allclose(whole.ratios, [[0.5], [0.75]])
    assert whole.is_signed
    assert whole.weights is None


def test_new_rows_take_the_place_of_the_oldest():
    data = Calibration(np.arange(5.0), np.arange(1.0, 6.0))
    assert len(data.take([0, 2])) == 2
    after = data.take_in(Calibration(np.array([9.0, 8.0]), np.array([5.5, 0.5])))
    np.testing.assert_array_equal(after.uncertainty, [2, 3, 4, 9, 8])
    # Of five rows and itself one is at least as large as 5.5, beyond which the p-value falls on, and all as .5.
    beyond = 1 / 6 - np.log(5.5 / 5) / STRETCH
    np.testing.assert_allclose(after.online.p_values[:, 0], [beyond, 1.0])
    assert data.online is None


def test_each_part_keeps_its_size():
    parts = np.array([0, 0, 1, 1, 1])
    data = replace(Calibration(np.arange(5.0), np.ones(5)), parts=parts)
    new = replace(Calibration(np.array([9.0, 8.0, 7.0]), np.ones(3)), parts=np.array([0, 0, 0]))
    after = data.take_in(new)
    np.testing.assert_array_equal(after.uncertainty, [2, 3, 4, 8, 7])
    np.testing.assert_array_equal(after.parts, [1, 1, 1, 0, 0])
