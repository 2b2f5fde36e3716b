"""Regression metrics: against scipy, scikit-learn and the uncertainty toolbox, or by hand where no package has them."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onsphere.errors import InvalidInputError
from onsphere.metrics import (
    coverage_at_sigma,
    gaussian_crps,
    interval_coverage,
    interval_width,
    isotonic_calibration_error,
    mean_sample_rmse,
    monotonicity_index,
    pearson,
    regression_calibration_error,
    sample_rmse,
    spearman,
    winkler_score,
)

# Metrics that take an error and a second number in [0, 1] per row, and sample weights.
WEIGHTED = [
    functools.partial(coverage_at_sigma, k=2.0),
    functools.partial(regression_calibration_error, n_bins=4),
    functools.partial(regression_calibration_error, n_bins=4, bins="quantile"),
    functools.partial(monotonicity_index, n_bins=4),
    isotonic_calibration_error,
]


@st.composite
def rows(draw):
    """Errors, values in [0, 1] on a grid with ties, and whole weights that are not all zero."""
    n = draw(st.integers(1, 12))
    errors = draw(st.lists(st.floats(0, 10, allow_subnormal=False), min_size=n, max_size=n))
    values = draw(st.lists(st.integers(0, 10), min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    return np.array(errors), np.array(values) / 10.0, np.array(weights)


@pytest.fixture(scope="module")
def normal():
    """Targets around known means with known spreads, in one output."""
    rng = np.random.default_rng(0)
    mean, sigma = rng.normal(size=300), rng.uniform(0.2, 2.0, size=300)
    return rng.normal(mean, sigma), mean, sigma


# --- errors ---


def test_rmse_agrees_with_sklearn():
    from sklearn.metrics import mean_absolute_error, root_mean_squared_error

    rng = np.random.default_rng(1)
    true, predicted, weights = rng.normal(size=(50, 3)), rng.normal(size=(50, 3)), rng.uniform(size=50)
    expected = [root_mean_squared_error(true[i], predicted[i]) for i in range(50)]
    np.testing.assert_allclose(sample_rmse(true, predicted), expected, rtol=1e-13)
    assert mean_sample_rmse(true, predicted) == pytest.approx(np.mean(expected), rel=1e-13)
    value = mean_sample_rmse(true[:, 0], predicted[:, 0], sample_weight=weights)
    expected = mean_absolute_error(true[:, 0], predicted[:, 0], sample_weight=weights)
    assert value == pytest.approx(expected, rel=1e-13)


# --- uncertainty against error ---


def test_coverage_at_sigma_of_normal_noise(normal):
    true, mean, sigma = normal
    error = np.abs(true - mean)
    for k in (1, 2, 3):
        assert coverage_at_sigma(error, sigma, k=k) == np.count_nonzero(error <= k * sigma) / 300
    # 300 draws: five standard errors of a share near 0.68.
    assert coverage_at_sigma(error, sigma, k=1) == pytest.approx(0.6827, abs=5 * math.sqrt(0.68 * 0.32 / 300))
    assert coverage_at_sigma([2.0, 2.1], [1.0, 1.0], k=2) == 0.5  # the bound belongs to the interval


def test_calibration_error_worked_by_hand():
    error, uncertainty = [1.0, 3.0, 2.0, 9.0, 4.0], [0.0, 1.0, 2.0, 8.0, 10.0]
    # Widths of 2.5: {0, 1, 2} with mean error 2 against 1, {8, 10} with 6.5 against 9; (3·1 + 2·2.5)/5. Two are empty.
    assert regression_calibration_error(error, uncertainty, n_bins=4) == pytest.approx(8 / 5, rel=1e-14)
    # Two bins of 3 and 2 rows by count give the same sets; the row at 2 has 40 % below it.
    assert regression_calibration_error(error, uncertainty, n_bins=2, bins="quantile") == pytest.approx(
        8 / 5, rel=1e-14
    )
    # Three of 2, 2 and 1: {0, 1} 2 against 0.5, {2, 8} 5.5 against 5, {10} 4 against 10; (3 + 1 + 6)/5.
    assert regression_calibration_error(error, uncertainty, n_bins=3, bins="quantile") == pytest.approx(2.0, rel=1e-14)


def test_calibration_error_of_one_bin_agrees_with_the_gap_of_the_means():
    rng = np.random.default_rng(2)
    error, uncertainty = rng.gamma(1.0, size=(2, 100))
    expected = abs(error.mean() - uncertainty.mean())
    for bins in ("width", "quantile"):
        assert regression_calibration_error(error, uncertainty, n_bins=1, bins=bins) == pytest.approx(
            expected, rel=1e-12
        )
    # A constant uncertainty has one bin, however many were asked for.
    assert regression_calibration_error(error, np.ones(100)) == pytest.approx(abs(error.mean() - 1.0), rel=1e-12)


@pytest.mark.parametrize("decimals", [1, 12])
def test_correlations_agree_with_scipy(decimals):
    from scipy.stats import pearsonr, spearmanr

    rng = np.random.default_rng(3)
    error = rng.gamma(1.0, size=200).round(decimals)
    uncertainty = (error + rng.normal(size=200)).round(decimals)
    assert pearson(error, uncertainty) == pytest.approx(pearsonr(error, uncertainty).statistic, rel=1e-12)
    assert spearman(error, uncertainty) == pytest.approx(spearmanr(error, uncertainty).statistic, rel=1e-12)


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_correlation_of_hard_cases(correlation):
    assert correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0
    assert correlation([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]) == 0.0
    assert correlation([1.0], [2.0]) == 0.0
    # Nearly constant, huge and tiny numbers; scipy warns at the first.
    assert correlation([1.0, 1.0 + 1e-15], [1.0, 2.0]) == pytest.approx(1.0, rel=1e-15)
    assert correlation([1e300, 3e300], [2e-300, 1e-300]) == pytest.approx(-1.0, rel=1e-15)


# The first example may have to wait for an import.
@settings(deadline=None)
@given(rows())
def test_spearman_sees_only_ranks(data):
    error, values, _ = data
    # Cubes of tiny errors vanish, so the error is mapped through its ranks.
    ranks = np.unique(error, return_inverse=True)[1]
    assert spearman(error, values) == spearman(ranks, np.exp(5.0 * values))
    assert spearman(error, -values) == pytest.approx(-spearman(error, values), abs=1e-12)
    for correlation in (pearson, spearman):
        assert -1.0 <= correlation(error, values) <= 1.0
        assert correlation(error[::-1], values[::-1]) == pytest.approx(correlation(error, values), abs=1e-9)


# --- intervals and distributions ---


def test_winkler_agrees_with_the_uncertainty_toolbox(normal):
    from scipy.stats import norm
    from uncertainty_toolbox.metrics_scoring_rule import interval_score

    true, mean, sigma = normal
    lower, upper = norm.interval(0.8, mean, sigma)
    expected = interval_score(mean, sigma, true, start_p=0.8, end_p=0.8, resolution=1)
    assert winkler_score(true, lower, upper, coverage=0.8) == pytest.approx(expected, rel=1e-12)


def test_winkler_worked_by_hand():
    # α = 0.2, so a miss costs 10 times its size: 2 + 0, 2 + 10·0.5, 4 + 10·1, and 0 on the bound: 23 in all.
    true, lower, upper = [1.0, -0.5, 6.0, 2.0], [0.0, 0.0, 1.0, 2.0], [2.0, 2.0, 5.0, 2.0]
    assert winkler_score(true, lower, upper, coverage=0.8) == pytest.approx(23 / 4, rel=1e-14)
    # The last row twice: (23 + 0)/5. As two outputs of two rows nothing changes.
    assert winkler_score(true, lower, upper, coverage=0.8, sample_weight=[1, 1, 1, 2]) == pytest.approx(
        23 / 5, rel=1e-14
    )
    as_table = [np.reshape(values, (2, 2)) for values in (true, lower, upper)]
    assert winkler_score(*as_table, coverage=0.8) == pytest.approx(23 / 4, rel=1e-14)


def test_coverage_and_width_worked_by_hand():
    true = [[0.0, 5.0], [1.0, 2.0], [9.0, 9.0]]
    lower, upper = np.zeros((3, 2)), np.array([[1.0, 4.0], [1.0, 4.0], [1.0, 4.0]])
    # First output inside in rows 1 and 2, second in row 2 alone: both in row 2.
    assert interval_coverage(true, lower, upper) == pytest.approx(1 / 3, rel=1e-15)
    np.testing.assert_allclose(interval_coverage(true, lower, upper, per_output=True), [2 / 3, 1 / 3], rtol=1e-15)
    weighted = interval_coverage(true, lower, upper, per_output=True, sample_weight=[2, 0, 1])
    np.testing.assert_allclose(weighted, [2 / 3, 0.0], rtol=1e-15)
    assert interval_coverage(true, lower, upper, sample_weight=[1, 3, 0]) == 0.75
    assert interval_width(lower, upper) == 2.5
    assert interval_width([0.0, 0.0], [1.0, 3.0], sample_weight=[3, 1]) == 1.5


def test_crps_agrees_with_the_uncertainty_toolbox(normal):
    from uncertainty_toolbox.metrics_scoring_rule import crps_gaussian

    true, mean, sigma = normal
    assert gaussian_crps(true, mean, sigma) == pytest.approx(crps_gaussian(mean, sigma, true), rel=1e-12)
    weights = np.arange(300) % 3
    repeated = (np.repeat(values, weights) for values in (true, mean, sigma))
    assert gaussian_crps(true, mean, sigma, sample_weight=weights) == pytest.approx(gaussian_crps(*repeated), rel=1e-12)


def test_crps_without_spread_is_the_absolute_error():
    assert gaussian_crps([3.0, -1.0, 2.0], [1.0, 2.0, 2.0], [0.0, 0.0, 0.0]) == pytest.approx(5 / 3, rel=1e-15)
    assert gaussian_crps([3.0], [1.0], [5e-324]) == 2.0


@settings(deadline=None)
@given(st.floats(-50, 50), st.floats(0, 50))
def test_crps_lies_between_zero_and_the_absolute_error_or_spread(miss, sigma):
    # E|Y − y| is at most |miss| + σ·√(2/π), and the score is that minus σ/√π.
    score = gaussian_crps([miss], [0.0], [sigma])
    assert -1e-12 <= score <= abs(miss) + sigma * (math.sqrt(2 / math.pi) - 1 / math.sqrt(math.pi)) + 1e-9


# --- confidence against error ---


def test_monotonicity_worked_by_hand():
    # Bins of 0.25: {4, 6} mean 5, {} skipped, {5} equal to it, {7, 9} mean 8. One of two steps does not rise.
    error, confidence = [4, 6, 5, 7, 9], [0.0, 0.2, 0.5, 0.75, 1.0]
    assert monotonicity_index(error, confidence, n_bins=4) == 0.5
    # With weight on 6 the first mean is 5.5, a fall; with weight on 4 it is 4.5, a rise.
    assert monotonicity_index(error, confidence, n_bins=4, sample_weight=[1, 3, 1, 1, 1]) == 0.5
    assert monotonicity_index(error, confidence, n_bins=4, sample_weight=[3, 1, 1, 1, 1]) == 0.0
    assert monotonicity_index(error, confidence, n_bins=1) == 0.0  # no step at all
    assert monotonicity_index([3, 2, 1], [0.1, 0.5, 0.9]) == 1.0


def test_rounding_does_not_count_as_a_rise():
    # (0.1 + 0.1 + 0.1)/3 comes out slightly above 0.1.
    assert np.bincount([0, 0, 0], [0.1, 0.1, 0.1])[0] / 3 > 0.1
    assert monotonicity_index([0.1] * 4, [0.2, 0.6, 0.6, 0.6], n_bins=2) == 1.0


def test_isotonic_error_worked_by_hand():
    # By confidence the errors are 5, 2, 6, 1: 2 and 6 break the order and pool to 4, below 5. Gaps 0, 2, 2, 0.
    assert isotonic_calibration_error([5, 6, 2, 1], [0.1, 0.5, 0.3, 0.9]) == pytest.approx(1.0, rel=1e-14)
    # Tied rows share one fit: 3 and 1 become 2 each. Gaps 1, 1.
    assert isotonic_calibration_error([3, 1], [0.5, 0.5]) == pytest.approx(1.0, rel=1e-14)


def test_isotonic_error_agrees_with_scipy():
    from scipy.optimize import isotonic_regression

    rng = np.random.default_rng(4)
    confidence, error = np.sort(rng.uniform(size=200)), rng.gamma(1.0, size=200)
    weights = rng.uniform(0.1, 1.0, size=200)
    gap = np.abs(error - isotonic_regression(error, weights=weights, increasing=False).x)
    value = isotonic_calibration_error(error, confidence, sample_weight=weights)
    assert value == pytest.approx(np.average(gap, weights=weights), rel=1e-10)


@settings(deadline=None)
@given(rows())
def test_a_perfect_confidence_has_no_isotonic_error(data):
    error, _, _ = data
    ranks = np.unique(error, return_inverse=True)[1]
    confidence = 1.0 - ranks / len(error)
    assert isotonic_calibration_error(error, confidence) == pytest.approx(0.0, abs=1e-12)
    assert monotonicity_index(error, confidence) == float(len(np.unique(ranks)) > 1)


# --- all of them ---


@pytest.mark.parametrize("metric", WEIGHTED)
@settings(deadline=None)
@given(data=rows())
def test_weights_order_and_bounds(metric, data):
    error, values, weights = data
    value = metric(error, values, sample_weight=weights)
    repeated = np.repeat(error, weights)[::-1], np.repeat(values, weights)[::-1]
    assert value == pytest.approx(metric(*repeated), rel=1e-9, abs=1e-9)
    assert 0.0 <= value <= max(1.0, error.max())


@pytest.mark.parametrize("metric", [*WEIGHTED, pearson, spearman])
@pytest.mark.parametrize(
    ("error", "values", "message"),
    [
        ([1.0, np.nan], [0.1, 0.2], "finite"),
        ([1.0, 2.0], [0.1, -np.inf], "finite"),
        ([], [], "at least one row"),
        ([1.0, 2.0], [0.1], "one shape"),
        ([1.0, -2.0], [0.1, 0.2], r"\[0, inf\]"),
        ([[1.0], [2.0]], [0.1, 0.2], r"shape \(n,\)"),
        (["a", "b"], [0.1, 0.2], "numbers"),
        ([[1.0], [2.0, 3.0]], [0.1, 0.2], "numbers"),
    ],
)
def test_bad_rows_are_rejected(metric, error, values, message):
    with pytest.raises(InvalidInputError, match=message):
        metric(error, values)


@pytest.mark.parametrize("metric", WEIGHTED)
def test_bad_second_argument_and_weights_are_rejected(metric):
    with pytest.raises(InvalidInputError, match=r"'(uncertainty|confidence)' .* Got values from -0.1 to 0.2"):
        metric([1.0, 2.0], [-0.1, 0.2])
    with pytest.raises(InvalidInputError, match="one weight for each of the 2 rows"):
        metric([1.0, 2.0], [0.1, 0.2], sample_weight=[1.0, 1.0, 1.0])


@pytest.mark.parametrize("metric", [interval_coverage, functools.partial(winkler_score, coverage=0.9), gaussian_crps])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([np.nan], [0.0], [1.0]), "finite"),
        (([0.0], [0.0], [np.inf]), "finite"),
        (([], [], []), "at least one row"),
        (([0.0, 1.0], [0.0], [1.0]), "one shape"),
        (([[0.0]], [0.0], [1.0]), "one shape"),
        (([[[0.0]]], [[[0.0]]], [[[1.0]]]), r"shape \(n,\) or \(n, columns\)"),
        (([0.0], [0.0], [-1.0]), r"1 of 1 crossed|'sigma' .* \[0, inf\]"),
    ],
)
def test_bad_intervals_are_rejected(metric, arrays, message):
    with pytest.raises(InvalidInputError, match=message):
        metric(*arrays)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.5, 1.5, np.nan, True, "most"])
def test_bad_coverage_is_rejected(coverage):
    with pytest.raises(InvalidInputError, match=r"'coverage' parameter of winkler_score must be a float in \(0, 1\)"):
        winkler_score([0.0], [0.0], [1.0], coverage=coverage)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: coverage_at_sigma([1.0], [1.0], k=0), "k"),
        (lambda: regression_calibration_error([1.0], [1.0], n_bins=0), "n_bins"),
        (lambda: regression_calibration_error([1.0], [1.0], bins="rows"), "bins"),
        (lambda: monotonicity_index([1.0], [1.0], n_bins=2.5), "n_bins"),
        (lambda: interval_coverage([1.0], [1.0], [1.0], per_output="yes"), "per_output"),
    ],
)
def test_bad_parameters_are_rejected(call, name):
    with pytest.raises(InvalidInputError, match=f"The '{name}' parameter of"):
        call()


def test_bad_targets_are_rejected():
    with pytest.raises(InvalidInputError, match="one shape for sample_rmse"):
        sample_rmse([1.0, 2.0], [[1.0], [2.0]])
    with pytest.raises(InvalidInputError, match="crossed"):
        interval_width([1.0], [0.0])
