"""Risk-coverage: against hand-worked curves and a plain loop over repeated rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onsphere.errors import InvalidInputError
from onsphere.metrics import aurc, excess_aurc, risk_coverage_curve

METRICS = [aurc, excess_aurc]


@st.composite
def tied_rows(draw):
    """Errors, uncertainties with many ties, and small whole weights that are not all zero."""
    n = draw(st.integers(1, 12))
    errors = draw(st.lists(st.floats(0, 100, allow_subnormal=False), min_size=n, max_size=n))
    uncertainties = draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    return np.array(errors), np.array(uncertainties, dtype=float), np.array(weights)


def looped_area(error, uncertainty):
    """Accept one row after the other, each with the mean error of its tied group."""
    smoothed = [np.mean(error[uncertainty == u]) for u in np.sort(uncertainty)]
    return np.mean([np.mean(smoothed[: i + 1]) for i in range(len(smoothed))])


def test_curve_worked_by_hand():
    # In the order of uncertainty the errors are 1 | 2 and 6, tied, so 4 each | 3:
    # risks 1/1, 5/2, 9/3, 12/4.
    coverage, risk = risk_coverage_curve([6, 3, 1, 2], [0.5, 0.9, 0.1, 0.5])
    np.testing.assert_allclose(coverage, [0.25, 0.5, 0.75, 1.0], rtol=1e-15)
    np.testing.assert_allclose(risk, [1.0, 2.5, 3.0, 3.0], rtol=1e-15)


def test_weighted_curve_worked_by_hand():
    # Weights 6 | 2 and 4, tied, so two steps of 3 with the mean error (2·1 + 4·4)/6 = 3; the row of weight 0 is gone.
    coverage, risk = risk_coverage_curve([2, 1, 4, 99], [0.1, 0.5, 0.5, 0.7], sample_weight=[6, 2, 4, 0])
    np.testing.assert_allclose(coverage, [6 / 12, 9 / 12, 1.0], rtol=1e-15)
    np.testing.assert_allclose(risk, [2.0, 21 / 9, 30 / 12], rtol=1e-15)


def test_excess_aurc_worked_by_hand():
    # Accepted as 2, 0, 4: risks 2, 1, 2, area 5/3. The oracle accepts 0, 2, 4: risks 0, 1, 2, area 1.
    assert aurc([0, 2, 4], [0.5, 0.1, 0.9]) == pytest.approx(5 / 3, rel=1e-14)
    assert excess_aurc([0, 2, 4], [0.5, 0.1, 0.9]) == pytest.approx(2 / 3, rel=1e-14)


def test_area_is_mean_of_curve_on_many_rows():
    rng = np.random.default_rng(0)
    error = rng.gamma(2.0, size=5000)
    uncertainty = error + rng.normal(size=5000)
    assert aurc(error, uncertainty) == pytest.approx(risk_coverage_curve(error, uncertainty)[1].mean(), rel=1e-12)


# The first example may have to wait for an import.
@settings(deadline=None)
@given(tied_rows())
def test_whole_weights_are_repeated_rows(rows):
    error, uncertainty, weights = rows
    repeated = np.repeat(error, weights), np.repeat(uncertainty, weights)
    area = aurc(error, uncertainty, sample_weight=weights)
    assert area == pytest.approx(looped_area(*repeated), rel=1e-11, abs=1e-11)
    excess = excess_aurc(error, uncertainty, sample_weight=weights)
    assert excess == pytest.approx(excess_aurc(*repeated), rel=1e-11, abs=1e-11)


@settings(deadline=None)
@given(tied_rows(), st.randoms(use_true_random=False))
def test_row_order_does_not_matter(rows, random):
    error, uncertainty, weights = rows
    weights = weights + 1
    order = list(range(len(error)))
    random.shuffle(order)
    for metric in METRICS:
        before = metric(error, uncertainty, sample_weight=weights)
        after = metric(error[order], uncertainty[order], sample_weight=weights[order])
        assert after == pytest.approx(before, rel=1e-11, abs=1e-11)
    before = risk_coverage_curve(error, uncertainty, sample_weight=weights)
    after = risk_coverage_curve(error[order], uncertainty[order], sample_weight=weights[order])
    np.testing.assert_allclose(after, before, rtol=1e-11, atol=1e-11)


@settings(deadline=None)
@given(tied_rows())
def test_bounds_and_oracle(rows):
    error, uncertainty, weights = rows
    coverage, risk = risk_coverage_curve(error, uncertainty)
    assert coverage[-1] == 1.0
    assert (np.diff(coverage) > 0).all()
    assert risk[-1] == pytest.approx(error.mean(), rel=1e-12)
    assert risk.min() >= error.min() - 1e-9
    assert risk.max() <= error.max() + 1e-9
    # No order is better than the oracle's, and any rising function of the error is the oracle.
    assert excess_aurc(error, uncertainty, sample_weight=weights) >= -1e-9
    ranks = np.unique(error, return_inverse=True)[1]
    assert excess_aurc(error, ranks - 5.0, sample_weight=weights) == 0.0


@pytest.mark.parametrize("metric", [*METRICS, risk_coverage_curve])
@pytest.mark.parametrize(
    ("error", "uncertainty", "message"),
    [
        ([1.0, np.nan], [1.0, 2.0], "finite"),
        ([1.0, 2.0], [1.0, np.inf], "finite"),
        ([], [], "at least one row"),
        ([1.0, 2.0], [1.0], "one shape"),
        ([1.0, -2.0], [1.0, 2.0], r"'error' .* \[0, inf\]"),
        ([[1.0]], [[1.0]], r"shape \(n,\)"),
    ],
)
def test_bad_rows_are_rejected(metric, error, uncertainty, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        metric(error, uncertainty)
    assert metric.__name__ in str(caught.value)


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [-1.0, 2.0], [np.nan, 1.0]])
def test_bad_weights_are_rejected(weights):
    with pytest.raises(InvalidInputError, match="weight"):
        aurc([1.0, 2.0], [1.0, 2.0], sample_weight=weights)
