"""Weights of calibration rows under a known shift, and sizes that are too small."""

import numpy as np
import pytest

from onsphere import InvalidInputError
from onsphere.calibration.density_ratio import LARGEST_WEIGHT, compute_effective_size, weigh_rows


def test_weights_are_near_the_true_ratio():
    """Rows from N(0, 1) stand for rows from N(1, 1): the ratio of their densities is exp(x − 1/2)."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 2))
    target = rng.normal([1, 0], size=(2000, 2))
    found = weigh_rows(rows, target)
    true = np.exp(rows[:, 0] - 0.5)
    assert np.corrcoef(np.log(found.weights), np.log(true))[0, 1] > 0.98
    assert np.average(rows[:, 0], weights=found.weights) == pytest.approx(1.0, abs=0.15)
    assert found.effective_size == pytest.approx(compute_effective_size(np.minimum(true, LARGEST_WEIGHT)), rel=0.3)
    assert found.auroc == pytest.approx(0.76, abs=0.03)


def test_a_shift_that_no_line_separates_is_found_by_the_forest():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, size=(3000, 1))
    target = rng.uniform(0.7, 1, size=(3000, 1)) * rng.choice([-1, 1], size=(3000, 1))
    target[::2] = rng.uniform(-1, 1, size=(1500, 1))
    weights = weigh_rows(rows, target).weights
    outside = np.abs(rows[:, 0]) > 0.7
    # Densities: half of the target rows as before, and half in three tenths of the range.
    assert weights[outside].mean() / weights[~outside].mean() == pytest.approx((0.5 + 0.5 / 0.3) / 0.5, rel=0.2)


def test_without_a_shift_all_rows_weigh_the_same():
    rng = np.random.default_rng(0)
    found = weigh_rows(rng.normal(size=(400, 3)), rng.normal(size=(300, 3)))
    assert found.effective_size > 0.95 * 400
    assert found.n_clipped == 0


def test_missing_values_are_told_apart():
    rng = np.random.default_rng(0)
    rows, target = rng.normal(size=(500, 2)), rng.normal(size=(500, 2))
    rows[rng.uniform(size=500) < 0.2, 1] = np.nan
    target[rng.uniform(size=500) < 0.6, 1] = np.nan
    weights = weigh_rows(rows, target).weights
    is_missing = np.isnan(rows[:, 1])
    assert weights[is_missing].mean() / weights[~is_missing].mean() == pytest.approx(6.0, rel=0.3)


def test_weights_are_clipped_and_counted():
    rng = np.random.default_rng(0)
    rows, target = rng.normal(size=(4000, 1)), rng.normal(1.6, 0.6, size=(4000, 1))
    found = weigh_rows(rows, target)
    assert found.weights.max() == LARGEST_WEIGHT
    assert found.n_clipped > 0


def test_rows_that_cannot_stand_for_the_target_are_an_error():
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInputError, match=r"40 that tell as much as \d+ rows .*; 30 are needed \(AUROC"):
        weigh_rows(rng.normal(size=(40, 1)), rng.normal(1, 0.5, size=(300, 1)))
    with pytest.raises(InvalidInputError, match=r"at least 30 calibration rows .* Got 200 and 5"):
        weigh_rows(np.zeros((200, 1)), np.zeros((5, 1)))


@pytest.mark.parametrize(("n_rows", "n_target"), [(300, 40), (3000, 1000), (6000, 40)])
def test_target_rows_without_calibration_rows_near_them_are_an_error(n_rows, n_target):
    """However many rows there are: more of them at the wrong place are no help."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n_rows, 1))
    assert weigh_rows(rows, rng.normal(1, 1, size=(n_target, 1))).auroc_left < 0.6
    for centre in (3, 8):
        with pytest.raises(InvalidInputError, match=r"told from the calibration rows even once these are weighted"):
            weigh_rows(rows, rng.normal(centre, 1, size=(n_target, 1)))
