"""Distributions from errors of calibration rows, by hand and against plain samples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

from onsphere import InvalidInputError, NotCalibratedError
from onsphere.calibration import PredictiveDistribution, RegressionCalibration, Shape
from onsphere.calibration.shape import fit_shape
from onsphere.sphere import Domain

rng = np.random.default_rng(0)


def make(residuals, value=(0.0, 10.0), sigma=(1.0, 2.0), *, domain=None, weights=None, shape=None, curves=None):
    residuals = np.asarray(residuals, dtype=float)
    residuals = residuals[:, None] if residuals.ndim == 1 else residuals
    n_outputs = residuals.shape[1]
    value, sigma = (np.repeat(np.array(each, dtype=float)[:, None], n_outputs, axis=1) for each in (value, sigma))
    ones = np.ones_like(residuals)
    calibration = RegressionCalibration.measure(residuals, ones, ones[:, 0], np.ones(n_outputs))
    calibration = replace(calibration, weights=weights)
    return PredictiveDistribution(value, sigma, calibration, domain or Domain(), shape, curves, n_outputs == 1)


NINE = make(np.arange(1.0, 10.0))  # the errors 1 … 9, in units of sigma


def test_quantiles_by_hand():
    """The level .5 is the 5th of 9 errors: 10 · .5."""
    np.testing.assert_allclose(NINE.quantiles([0.1, 0.5, 0.9]), [[1, 5, 9], [12, 20, 28]])
    np.testing.assert_allclose(NINE.median(), [5, 20])
    np.testing.assert_allclose(NINE.mean(), [5, 20])
    assert len(NINE) == 2


def test_cdf_and_pit_by_hand():
    """A target between the 4th and the 5th error has 4 below it and half of the step that it may fall in."""
    np.testing.assert_allclose(NINE.cdf(4.5), [0.45, 0.05])
    np.testing.assert_allclose(NINE.pit([4.5, 10.0]), [0.45, 0.05])
    np.testing.assert_allclose(NINE.pit([5.0, 20.0]), [0.5, 0.5])  # on the 5th error: 4 below, two steps to fall in
    drawn = np.array([NINE.pit([4.5, 10.0], random_state=seed) for seed in range(200)])
    assert ((drawn[:, 0] > 0.4) & (drawn[:, 0] < 0.5)).all()
    assert np.ptp(drawn[:, 0]) > 0.08


def test_tails_by_hand():
    """Of 19 errors 0 … 18, 80 % with equal tails leave out the two least and the two largest."""
    skewed = make(np.arange(19.0) ** 2)
    np.testing.assert_allclose(skewed.interval(0.8, tails="equal")[0], [1, 17**2])
    np.testing.assert_allclose(skewed.interval(0.8, tails="symmetric")[0], [-(15.0**2), 15**2])


def test_lower_ends_are_never_above_the_error_they_come_from():
    """Widened outwards, whatever their sign."""
    for errors in (np.arange(1.0, 20.0), -np.arange(1.0, 20.0)):
        low, high = make(errors).interval(0.9, tails="equal")[0]
        assert low <= errors.min()
        assert high >= errors.max()


def test_shortest_needs_left_out_rows_and_uses_them():
    errors = rng.exponential(size=(999, 1))
    with pytest.raises(InvalidInputError, match="tails='shortest' needs a model that left rows out"):
        make(errors).interval(0.9, tails="shortest")
    ones = np.ones_like(errors)
    known = make(errors, shape=fit_shape(ones, rng.exponential(size=(999, 1)), ones, ones, shape="pooled"))
    width = {tails: np.ptp(known.interval(0.9, tails=tails)[0]) for tails in ("equal", "shortest")}
    assert width["shortest"] < 0.9 * width["equal"]


def test_several_outputs_share_the_misses_or_stand_alone():
    """Ninety errors of two outputs: 80 % for both at once are 90 % for each, 5 % on a side."""
    errors = np.stack([np.arange(1.0, 100.0), -np.arange(1.0, 100.0)], axis=1)
    both = make(errors)
    np.testing.assert_allclose(both.interval(0.8, tails="equal")[0], [[5, 95], [-95, -5]])
    alone = both.interval(0.8, tails="equal", simultaneous=False)
    np.testing.assert_allclose(alone[0], [[10, 90], [-90, -10]])
    assert both.quantiles([0.3, 0.6]).shape == (2, 2, 2)
    assert both.cdf([[0.0, 0.0], [1.0, 1.0]]).shape == (2, 2)


def test_draws_keep_outputs_together():
    errors = rng.normal(size=(200, 1)) * np.array([[1.0, -3.0]])
    drawn = make(errors).sample(500, random_state=0)
    assert drawn.shape == (500, 2, 2)
    np.testing.assert_allclose(drawn[:, 0, 1], -3 * drawn[:, 0, 0])
    one = make(errors[:, 0])
    np.testing.assert_array_equal(one.sample(3, random_state=1), one.sample(3, random_state=1))
    assert one.sample(3).shape == (3, 2)


def test_weights_count_everywhere():
    """The first of nine errors counts for nine, the others for one: half of all weight lies on it."""
    weights = np.r_[9.0, np.ones(8)]
    weighted = make(np.arange(1.0, 10.0), weights=weights)
    assert weighted.quantiles(0.5)[0, 0] == 5  # half of 17 and the 9 of a new row are 13: 9 + 4
    assert weighted.cdf(1.5)[0] == pytest.approx((9 + 4.5) / (17 + 9))
    assert weighted.mean()[0] == pytest.approx((9 + 44) / 17)
    drawn = weighted.sample(4000, random_state=0)[:, 0]
    assert np.mean(drawn == 1) == pytest.approx(9 / 17, abs=0.04)  # five standard errors


def test_crps_is_that_of_the_sample():
    """E|X − y| − ½ E|X − X'|, written out."""
    errors = rng.normal(size=300)
    distribution, y = make(errors), np.array([0.7, 9.0])
    atoms = np.array([0.0, 10.0])[:, None] + np.array([1.0, 2.0])[:, None] * errors
    direct = np.abs(atoms - y[:, None]).mean(axis=1)
    direct -= 0.5 * np.abs(atoms[:, :, None] - atoms[:, None]).mean(axis=(1, 2))
    np.testing.assert_allclose(distribution.crps(y), direct)


def test_rows_that_come_in_parts_give_the_same(monkeypatch):
    errors, y = rng.normal(size=50), np.array([0.5, 8.0])
    whole = make(errors)
    expected = whole.crps(y), whole.mean(), whole.pdf(y)
    monkeypatch.setattr("onsphere.calibration.distribution._N_AT_ONCE", 50)
    for ours, theirs in zip((make(errors).crps(y), make(errors).mean(), make(errors).pdf(y)), expected, strict=True):
        np.testing.assert_allclose(ours, theirs)


def test_density_is_near_that_of_scipy_and_holds_one():
    errors = rng.normal(size=500)
    grid = np.linspace(-5, 5, 201)
    ours = make(errors, value=np.zeros(201), sigma=np.ones(201)).pdf(grid)
    assert np.trapezoid(ours, grid) == pytest.approx(1, abs=0.01)
    np.testing.assert_allclose(ours, gaussian_kde(errors)(grid), atol=0.03)
    assert make(np.full(30, 2.0)).pdf([2.0, 14.0])[0] > 0.1  # equal errors have a density too


def test_whole_numbers_have_whole_quantiles_and_probabilities_that_add_up():
    errors = rng.poisson(3.0, size=999) - 3.2
    counts = make(errors, value=np.full(30, 3.2), sigma=np.ones(30), domain=Domain(low=0.0, is_whole=True))
    quantiles = counts.quantiles(np.arange(1, 20) / 20)
    assert (quantiles == np.round(quantiles)).all()
    assert (quantiles >= 0).all()
    chances = counts.pdf(np.arange(30.0))
    assert chances.sum() == pytest.approx(1, abs=0.002)
    share = np.bincount((errors + 3.2).round().astype(int), minlength=30) / 999
    np.testing.assert_allclose(chances, share, atol=0.002)
    assert counts.cdf(-1.0)[0] == 0


def test_ranges_bind_everything():
    domain = Domain(low=0.0, high=1.0)
    bounded = make(rng.normal(size=200), value=(0.1, 0.9), sigma=(1.0, 1.0), domain=domain)
    for found in (bounded.quantiles([0.01, 0.99]), bounded.interval(0.9), bounded.sample(100, random_state=0)):
        assert ((found >= 0) & (found <= 1)).all()
    np.testing.assert_array_equal(bounded.cdf(1.0), [1, 1])
    np.testing.assert_array_equal(bounded.cdf(-0.1), [0, 0])
    np.testing.assert_array_equal(bounded.pdf(2.0), [0, 0])


@given(st.lists(st.floats(0.01, 0.95), min_size=2, max_size=6), st.integers(0, 2**20))
def test_quantiles_never_cross_whatever_the_shape(levels, seed):
    draw = np.random.default_rng(seed)
    knots = np.sort(draw.normal(size=(1, 25)), axis=1) + 1e-3 * np.arange(25)
    shape = Shape(knots, np.zeros(1), np.ones(1), None, 1.0)
    below = np.sort(draw.uniform(size=(2, 25)), axis=1)
    curves = shape.read_curves(below)
    distribution = make(draw.normal(size=60), shape=shape, curves=curves, domain=Domain(low=0.0, scale="log"))
    found = distribution.quantiles(np.sort(levels))
    assert (np.diff(found, axis=1) >= 0).all()


def test_a_calibration_without_signs_is_rejected():
    unsigned = replace(NINE.calibration, is_signed=False)
    with pytest.raises(NotCalibratedError, match="errors with their signs"):
        unsigned.find_quantile_scores([0.5])
    with pytest.raises(NotCalibratedError, match="errors with their signs"):
        replace(NINE, calibration=unsigned).interval(tails="equal")
    assert replace(NINE, calibration=unsigned).interval(0.5).shape == (2, 2)  # is symmetric


@pytest.mark.parametrize("q", [0, 1, -0.1, 1.5, [0.1, np.nan], [], "half", [[0.1]], None])
def test_levels_outside_zero_and_one_are_rejected(q):
    with pytest.raises(InvalidInputError, match="each above 0 and below 1"):
        NINE.quantiles(q)


@pytest.mark.parametrize(
    ("y", "got"), [([1.0, 2.0, 3.0], r"shape \(3,\)"), (np.nan, "NaN"), ("a", "'a'"), ([1.0, np.nan], "NaN")]
)
def test_targets_of_another_shape_are_rejected(y, got):
    with pytest.raises(InvalidInputError, match=rf"numbers of shape \(2,\), as y of cdf\. Got {got}"):
        NINE.cdf(y)


def test_a_constant_target_has_no_numbers_that_are_nan():
    constant = make(np.zeros(30), value=(1.0, 1.0), sigma=(0.0, 0.0))
    np.testing.assert_array_equal(constant.pdf(1.0), [0, 0])
    assert (constant.cdf(1.0) > 0.95).all()
    assert (constant.cdf(0.9) < 0.05).all()


def test_other_options_are_rejected():
    with pytest.raises(InvalidInputError, match="'tails' parameter of interval must be one of"):
        NINE.interval(tails="left")
    with pytest.raises(InvalidInputError, match="'n' parameter of sample"):
        NINE.sample(0)


def test_too_few_rows_for_a_tail_or_a_level_are_said_so():
    with pytest.raises(
        InvalidInputError, match=r"Both tails of intervals with a coverage of 0\.9 need 19 or more .* 9\."
    ):
        NINE.interval(0.9, tails="equal")
    with pytest.raises(InvalidInputError, match=r"A quantile of the level 0\.95 needs 19 or more .* Got 9\."):
        NINE.quantiles([0.5, 0.95])
    assert NINE.interval(0.8, tails="equal").shape == (2, 2)


def test_the_shortest_interval_needs_no_more_rows_than_the_one_with_equal_tails():
    """Errors are longer above, so all misses belong there; of nine rows, one side gets a tenth at least."""
    knots = np.sort(rng.exponential(size=(1, 25)), axis=1) + 1e-3 * np.arange(25)
    shape = Shape(knots, np.zeros(1), np.ones(1), None, 1.0)
    skewed = replace(NINE, shape=shape)
    for coverage, tails in [(0.8, "equal"), (0.7, "shortest"), (0.8, "shortest")]:
        low, high = skewed.interval(coverage, tails=tails).T
        assert (low < high).all()
    np.testing.assert_array_equal(skewed.interval(0.8, tails="shortest"), skewed.interval(0.8, tails="equal"))
    assert np.ptp(skewed.interval(0.7, tails="shortest"), axis=1).max() <= np.ptp(skewed.interval(0.8), axis=1).max()
