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


def test_set_scores_by_hand():
    probabilities = np.array([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.25, 0.5, 0.25]])
    np.testing.assert_allclose(set_scores(probabilities), [[0, 0.8, 0.5], [1, 0, 1], [0.5, 0, 0.5]])


def test_the_range_of_many_rows_is_that_of_a_gaussian_and_agrees_with_the_exact_one():
    exact = find_coverage_range(10_000, 500, 0.9, level=0.05)
    gaussian = find_coverage_range(10_001, 500, 0.9, level=0.05)
    np.testing.assert_allclose(gaussian, exact, atol=0.002)
