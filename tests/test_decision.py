"""Rules on arrays: each threshold by hand and against brute force."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from onsphere import (
    AcceptShare,
    Calibration,
    FalseAlarm,
    InvalidInputError,
    MaxErrorRate,
    MaxMeanError,
    Novelty,
    OnsphereWarning,
    Tolerance,
)
from onsphere.calibration import ClassCalibration
from onsphere.models.novelty import compute_novelty


def make_ranked(n, error=None):
    return Calibration(np.arange(1.0, n + 1), np.zeros(n) if error is None else np.asarray(error, float))


def test_tolerance_is_the_threshold():
    assert Tolerance(2.5).threshold(make_ranked(10)) == 2.5


def test_tolerance_of_the_expected_error_inverts_it():
    data = Calibration(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 1.0, 3.0]))
    for epsilon in (0.5, 1.0, 2.0):
        limit = Tolerance(epsilon, of="expected_error").threshold(data)
        assert data.expected_error(np.array([limit]))[0] == pytest.approx(epsilon)
        assert data.expected_error(np.array([limit + 1e-6]))[0] > epsilon
    with pytest.warns(OnsphereWarning, match="accepts all"):
        assert Tolerance(3.0, of="expected_error").threshold(data) == math.inf


def test_a_tolerance_that_accepts_all_rows_or_none_says_what_to_check():
    with pytest.raises(InvalidInputError, match=r"accepts none of the 10 calibration rows.*from 1 to 10.*unit"):
        Tolerance(0.5).threshold(make_ranked(10))
    with pytest.warns(OnsphereWarning, match=r"accepts all of the 10 calibration rows.*unit of the uncertainty"):
        Tolerance(100.0).threshold(make_ranked(10))
    with pytest.raises(InvalidInputError, match="accepts none"):
        Tolerance(0.5, of="expected_error").threshold(Calibration(np.arange(5.0), np.ones(5)))


def test_the_accepted_share_is_a_conformal_quantile():
    assert AcceptShare(0.95).threshold(make_ranked(99)) == 95
    with pytest.raises(InvalidInputError, match=r"needs at least 99 calibration rows\. Got 50"):
        AcceptShare(0.99).threshold(make_ranked(50))


@pytest.mark.parametrize(("rate", "delta"), [(0.05, 0.05), (0.1, 0.1), (0.3, 0.01)])
def test_false_alarm_takes_the_smallest_rank_that_keeps_the_promise(rate, delta):
    rank = int(FalseAlarm(rate, delta).threshold(make_ranked(300)))
    # The promise fails when fewer than a share 1 − rate of all rows lie below the k-th of 300.
    assert binom.sf(rank - 1, 300, 1 - rate) <= delta
    assert binom.sf(rank - 2, 300, 1 - rate) > delta


def test_false_alarm_says_how_many_rows_it_needs():
    with pytest.raises(InvalidInputError, match=r"needs at least 59 calibration rows\. Got 58"):
        FalseAlarm(0.05).threshold(make_ranked(58))
    assert FalseAlarm(0.05).threshold(make_ranked(59)) == 59


def test_max_error_rate_takes_its_largest_threshold_that_passes():
    wrong = np.arange(1000) >= 600
    data = ClassCalibration(np.arange(1000.0), wrong.astype(float), np.zeros(1000))
    limit = MaxErrorRate(0.05).threshold(data)
    accepted = int(np.sum(data.uncertainty <= limit))
    passing = [k for k in (50 * step - 1 for step in range(1, 20)) if binom.cdf(wrong[:k].sum(), k, 0.05) <= 0.05 / 20]
    assert accepted == max(passing)


def test_max_error_rate_accepts_everything_where_nothing_is_wrong():
    assert MaxErrorRate(0.1).threshold(ClassCalibration(np.arange(200.0), np.zeros(200), np.zeros(200))) == math.inf


def test_max_error_rate_of_numbers_needs_a_tolerance():
    data = make_ranked(400, error=np.where(np.arange(400) < 200, 0.5, 5.0))
    with pytest.raises(InvalidInputError, match="Pass tolerance="):
        MaxErrorRate(0.1).threshold(data)
    accepted = data.uncertainty <= MaxErrorRate(0.1, tolerance=1.0).threshold(data)
    assert 150 < accepted.sum() < 220


def test_max_error_rate_of_classes_takes_no_tolerance():
    data = ClassCalibration(np.arange(100.0), np.zeros(100), np.zeros(100))
    with pytest.raises(InvalidInputError, match="'tolerance' parameter of MaxErrorRate must be None for classes"):
        MaxErrorRate(0.1, tolerance=5.0).threshold(data)


def test_an_error_rate_that_cannot_be_kept_is_rejected():
    with pytest.raises(InvalidInputError, match="No threshold on the 100 calibration rows"):
        MaxErrorRate(0.01).threshold(ClassCalibration(np.arange(100.0), np.ones(100), np.zeros(100)))


@pytest.mark.parametrize(
    "rule",
    [
        Tolerance(-1.0),
        Tolerance(math.nan),
        Tolerance("2 mm"),
        Tolerance(1.0, of="error"),
        AcceptShare(0.0),
        AcceptShare(1.0),
        FalseAlarm(0.0),
        FalseAlarm(0.1, delta=1.0),
        MaxErrorRate(1.5),
        MaxMeanError(2.0, largest=1.0),
        MaxMeanError(0.5, largest=0.0),
        MaxMeanError(0.5, largest=1.0, delta=1.0),
        MaxErrorRate(0.1, delta=0.0),
        MaxErrorRate(0.1, tolerance=-1.0),
    ],
    ids=str,
)
def test_bad_parameters_are_rejected(rule):
    with pytest.raises(InvalidInputError, match=f"parameter of {type(rule).__name__} must be"):
        rule.threshold(make_ranked(100))


def test_a_mean_error_is_kept_and_large_errors_count_as_the_largest():
    """Errors grow with the uncertainty from 0 to 10; capped at 4, the mean up to u is u/2 for u < 4."""
    uncertainty = np.linspace(0, 10, 4000)
    rows = Calibration(uncertainty, uncertainty)
    limit = MaxMeanError(1.5, largest=4.0).threshold(rows)
    assert 2.0 < limit < 3.0
    assert rows.error[uncertainty <= limit].mean() < 1.5
    assert MaxMeanError(3.9, largest=4.0).threshold(rows) == math.inf
    # The same errors in other units lead to the same rows.
    scaled = Calibration(uncertainty, 100 * uncertainty)
    assert MaxMeanError(150.0, largest=400.0).threshold(scaled) == limit


def test_a_mean_error_that_cannot_be_kept_says_so():
    equal = Calibration(np.ones(50), np.full(50, 3.0))
    with pytest.raises(
        InvalidInputError, match=r"No threshold on the 50 calibration rows, whose mean error is 3, keeps"
    ):
        MaxMeanError(1.0, largest=5.0).threshold(equal)


# --- novelty ---


def make_novelty_rows(n=199):
    return Calibration(np.zeros(n), np.zeros(n), missed=np.arange(1, n + 1) / (n + 1))


def test_a_false_alarm_rate_of_novelty_rejects_as_many_calibration_rows_as_it_may():
    rows = make_novelty_rows()
    limit = Novelty(false_alarm=0.05).threshold(rows, ordinary=0.9)
    assert limit == pytest.approx(0.95)
    # Rejected is what has a p-value of at most .05.
    tried = np.linspace(0, 1, 1000)
    np.testing.assert_array_equal(tried > limit, rows.novelty_p_value(tried) <= 0.05)


def test_a_largest_novelty_is_turned_into_a_shortfall():
    rows = make_novelty_rows()
    for novelty in (0.0, 0.3, 0.9):
        limit = Novelty(max=novelty).threshold(rows, ordinary=0.2)
        assert compute_novelty(np.array([limit]), 0.2)[0] == pytest.approx(novelty)


@pytest.mark.parametrize(
    ("rule", "rows", "ordinary", "message"),
    [
        (Novelty(), make_novelty_rows(), 0.5, "needs one of 'max' and 'false_alarm'"),
        (Novelty(max=0.5, false_alarm=0.1), make_novelty_rows(), 0.5, "needs one of 'max' and 'false_alarm'"),
        (Novelty(max=1.0), make_novelty_rows(), 0.5, "'max' parameter of Novelty"),
        (Novelty(false_alarm=0.0), make_novelty_rows(), 0.5, "'false_alarm' parameter of Novelty"),
        (Novelty(false_alarm=0.01), make_novelty_rows(50), 0.5, "needs at least 99 calibration rows. Got 50"),
        (Novelty(max=0.5), make_novelty_rows(), None, "needs a model with an input frame"),
        (Novelty(max=0.5), Calibration(np.zeros(5), np.zeros(5)), 0.5, "needs a model with an input frame"),
    ],
)
def test_novelty_rules_that_cannot_be_kept_say_why(rule, rows, ordinary, message):
    with pytest.raises(InvalidInputError, match=message):
        rule.threshold(rows, ordinary)
