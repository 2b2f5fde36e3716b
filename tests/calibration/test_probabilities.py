"""Probabilities from directions: calibrated on new rows, in the order of the directions, in numpy as in torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onsphere.calibration import ProbabilityScaling, fit_scaling
from onsphere.metrics import brier_score, expected_calibration_error, log_loss


def draw(n, seed):
    """Return directions that are shrunk to the mean, as by a ridge, and true classes."""
    rng = np.random.default_rng(seed)
    logits = 2.5 * rng.normal(size=(n, 5))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = (shares.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return 0.12 + 0.4 * shares + 0.005 * rng.normal(size=(n, 5)), truth


def compute_error(probabilities, truth):
    return expected_calibration_error(probabilities.argmax(axis=1) == truth, probabilities.max(axis=1))


def test_flat_directions_become_probabilities():
    """On new rows, an ECE like that of the true probabilities: 2 standard errors of 15 bins of 4,000 rows are .015."""
    direction, truth = draw(4000, seed=0)
    new, new_truth = draw(4000, seed=1)
    before = new / new.sum(axis=1, keepdims=True)
    after = fit_scaling(direction, truth).apply(new)
    assert compute_error(before, new_truth) > 0.3
    assert compute_error(after, new_truth) < 0.03
    for score in (log_loss, brier_score):
        assert score(new_truth, after) < 0.8 * score(new_truth, before)


directions = arrays(np.float64, (4, 3), elements=st.floats(-2, 2))
scalings = st.builds(
    ProbabilityScaling,
    power=st.floats(0.1, 20),
    floor=st.floats(1e-3, 1),
    base=st.floats(-0.2, 0.2),
    slope=st.floats(0.05, 5),
    shift=st.floats(-8, 8),
)


@given(directions, scalings)
def test_they_sum_to_1_and_the_most_likely_class_stays(direction, scaling):
    probabilities = scaling.apply(direction)
    assert (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-9)
    rows = np.arange(4)
    top = probabilities[rows, direction.argmax(axis=1)]
    assert (top >= probabilities.max(axis=1) - 1e-9).all()
    ahead = np.diff(np.sort(direction, axis=1)[:, -2:], axis=1)[:, 0] > 0.01
    np.testing.assert_array_equal(probabilities.argmax(axis=1)[ahead], direction.argmax(axis=1)[ahead])
    same = scaling.apply(torch.from_numpy(direction)).numpy()
    np.testing.assert_allclose(same, probabilities, atol=1e-12)


def test_a_label_keeps_its_place_where_rows_say_that_it_is_hardly_ever_right():
    scaling = ProbabilityScaling(power=1.0, floor=1e-3, base=0.0, slope=1.0, shift=-9.0)
    direction = np.random.default_rng(0).uniform(0.1, 0.9, size=(500, 4))
    for rows in (direction, torch.tensor(direction, dtype=torch.float32)):
        probabilities = np.asarray(scaling.apply(rows))
        np.testing.assert_array_equal(probabilities.argmax(axis=1), np.asarray(rows).argmax(axis=1))


def test_rows_without_an_error_do_not_make_it_certain():
    truth = np.arange(30) % 3
    probabilities = fit_scaling(0.3 + 0.4 * np.eye(3)[truth], truth).apply(0.3 + 0.4 * np.eye(3)[truth])
    assert 0.9 < probabilities.max(axis=1).mean() < 1.0
    few = fit_scaling(np.eye(2)[[0, 1]], np.array([0, 1])).apply(np.eye(2))
    assert few.max() < 0.95


def test_of_many_rows_some_are_enough(monkeypatch):
    direction, truth = draw(2000, seed=0)
    monkeypatch.setattr("onsphere.calibration.probabilities._N_ROWS", 500)
    some = fit_scaling(direction, truth)
    chosen = np.linspace(0, 1999, 500).astype(int)
    assert some.power == fit_scaling(direction[chosen], truth[chosen]).power


def test_a_row_without_a_direction_gets_even_probabilities():
    scaling = fit_scaling(*draw(500, seed=0))
    np.testing.assert_allclose(scaling.apply(np.zeros((1, 5))), 0.2, atol=1e-9)


@pytest.mark.parametrize("direction", [np.full((40, 2), 0.5), np.full((40, 2), np.nan)])
def test_directions_that_say_nothing(direction):
    probabilities = fit_scaling(direction, np.arange(40) % 2).apply(np.nan_to_num(direction))
    np.testing.assert_allclose(probabilities, 0.5, atol=1e-6)
