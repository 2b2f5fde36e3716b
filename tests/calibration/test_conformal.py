"""Conformal quantiles and set scores, against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onsphere import InvalidInputError
from onsphere.calibration import conformal_quantile, find_coverage_range, set_scores


@given(hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-10, 10)), st.floats(0.05, 0.95))
def test_the_quantile_is_the_documented_order_statistic(scores, coverage):
    n = len(scores)
    rank = int(np.ceil(round((n + 1) * coverage, 9)))
    if rank > n:
        with pytest.raises(InvalidInputError, match="calibration rows"):
            conformal_quantile(scores, coverage)
    else:
        assert conformal_quantile(scores, coverage) == np.sort(scores)[rank - 1]


@pytest.mark.parametrize(("coverage", "needed"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_an_error_says_how_many_rows_are_needed(coverage, needed):
    assert conformal_quantile(np.arange(float(needed)), coverage) == needed - 1
    with pytest.raises(InvalidInputError, match=rf"needs at least {needed} calibration rows\. Got {needed - 1}"):
        conformal_quantile(np.arange(float(needed - 1)), coverage)


def test_a_tiny_coverage_takes_the_smallest_score():
    assert conformal_quantile(np.arange(50.0), 1e-12) == 0


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 1.5, np.nan, "high", True])
def test_a_coverage_outside_its_range_is_rejected(coverage):
    with pytest.raises(InvalidInputError, match=r"'coverage' parameter .* must be a float in \(0, 1\)"):
        conformal_quantile(np.arange(50.0), coverage)


@given(
    hnp.arrays(np.float64, st.integers(1, 40), elements=st.integers(-9, 9)),
    st.integers(1, 5),
    st.floats(0.05, 0.95),
    st.randoms(use_true_random=False),
)
def test_whole_weights_count_like_repeated_rows(scores, new_weight, coverage, random):
    """A row of weight 3 is three rows, and a new one of weight k stands for k rows that come at once."""
    weights = np.array([random.randint(1, 4) for _ in scores])
    needed = coverage * (weights.sum() + new_weight)
    repeated = np.sort(np.repeat(scores, weights))
    rank = int(np.ceil(needed - 1e-6))
    if rank > len(repeated):
        with pytest.raises(InvalidInputError, match=r"times the weight of the new row\. Got"):
            conformal_quantile(scores, coverage, weights=weights, new_weight=new_weight)
    else:
        found = conformal_quantile(scores, coverage, weights=weights, new_weight=new_weight)
        assert found == repeated[max(rank, 1) - 1]


def test_equal_weights_change_nothing_and_columns_and_new_rows_are_kept_apart():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 2))
    weighted = conformal_quantile(scores, 0.8, weights=np.full(50, 0.3))
    np.testing.assert_array_equal(weighted, conformal_quantile(scores, 0.8))
    new = np.array([0.1, 5.0])
    each = [conformal_quantile(scores, 0.8, weights=np.ones(50), new_weight=weight) for weight in new]
    np.testing.assert_array_equal(conformal_quantile(scores, 0.8, weights=np.ones(50), new_weight=new), each)
    assert (each[0] < each[1]).all()


def test_set_scores_by_hand():
    probabilities = np.array([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.25, 0.5, 0.25]])
    np.testing.assert_allclose(set_scores(probabilities), [[0, 0.8, 0.5], [1, 0, 1], [0.5, 0, 0.5]])


def test_the_range_of_many_rows_is_that_of_a_gaussian_and_agrees_with_the_exact_one():
    exact = find_coverage_range(10_000, 500, 0.9, level=0.05)
    gaussian = find_coverage_range(10_001, 500, 0.9, level=0.05)
    np.testing.assert_allclose(gaussian, exact, atol=0.002)


def test_a_new_row_that_outweighs_the_others_is_an_error():
    with pytest.raises(InvalidInputError, match=r"9 or more times the weight of the new row\. Got 2\.5 times"):
        conformal_quantile(np.arange(10.0), 0.9, weights=np.ones(10), new_weight=4.0)
