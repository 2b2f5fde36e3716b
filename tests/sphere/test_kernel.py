"""Inputs on a unit sphere: the shortfall against direct linear algebra, and landmarks chosen greedily."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from onsphere.sphere import kernel

RIDGE = 0.01


def draw_rows(seed, n, p):
    return np.random.default_rng(seed).normal(size=(n, p))


def make_kernel(rows, others, bandwidth):
    return np.exp(-cdist(rows, others, "sqeuclidean") / bandwidth)


def test_shortfall_is_what_ridge_regression_on_the_landmarks_misses():
    landmarks, rows = draw_rows(0, 20, 3), draw_rows(1, 50, 3)
    matrix, columns = make_kernel(landmarks, landmarks, 4.0), make_kernel(rows, landmarks, 4.0)
    expected = 1 - np.einsum("ni,ij,nj->n", columns, np.linalg.inv(matrix + RIDGE * np.eye(20)), columns)
    found = kernel.shortfall(rows, landmarks, kernel.whiten(landmarks, 4.0, ridge=RIDGE), 4.0)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_torch_and_numpy_agree():
    landmarks, rows = draw_rows(0, 20, 3), draw_rows(1, 50, 3)
    whitener = kernel.whiten(landmarks, 4.0, ridge=RIDGE)
    tensors = [torch.from_numpy(array) for array in (rows, landmarks, whitener)]
    np.testing.assert_allclose(kernel.shortfall(*tensors, 4.0), kernel.shortfall(rows, landmarks, whitener, 4.0))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 5), st.floats(0.01, 100))
def test_shortfalls_lie_between_0_and_1_and_are_small_at_landmarks(seed, n, p, bandwidth):
    landmarks = draw_rows(seed, n, p)
    whitener = kernel.whiten(landmarks, bandwidth, ridge=RIDGE)
    far = kernel.shortfall(landmarks + 1e4, landmarks, whitener, bandwidth)
    assert (far == 1).all()
    at_landmarks = kernel.shortfall(landmarks, landmarks, whitener, bandwidth)
    assert (at_landmarks >= 0).all()
    # 1 − k'(K + λI)⁻¹k at a landmark is at most λ: ridge regression misses that much of it.
    assert (at_landmarks <= RIDGE + 1e-9).all()
    assert (kernel.leave_one_out(whitener, ridge=RIDGE) >= at_landmarks - 1e-9).all()


def test_leaving_a_landmark_out_in_closed_form_is_leaving_it_out():
    landmarks = draw_rows(0, 15, 2)
    found = kernel.leave_one_out(kernel.whiten(landmarks, 2.0, ridge=RIDGE), ridge=RIDGE)
    for place in range(15):
        others = np.delete(landmarks, place, axis=0)
        alone = kernel.shortfall(landmarks[[place]], others, kernel.whiten(others, 2.0, ridge=RIDGE), 2.0)
        assert found[place] == pytest.approx(alone[0], abs=1e-9)


def test_the_next_landmark_is_the_row_that_is_reconstructed_worst():
    rows = draw_rows(0, 60, 2)
    chosen = kernel.choose_landmarks(rows, 2.0, n_landmarks=10)
    for step in range(1, 10):
        known = rows[chosen[:step]]
        missed = kernel.shortfall(rows, known, kernel.whiten(known, 2.0, ridge=1e-12), 2.0)
        assert missed[chosen[step]] == pytest.approx(missed.max(), abs=1e-6)


def test_choosing_stops_when_all_rows_are_reconstructed():
    rows = np.repeat(draw_rows(0, 5, 2), 20, axis=0)
    assert len(kernel.choose_landmarks(rows, 2.0, n_landmarks=50)) == 5


def test_known_landmarks_are_not_chosen_again():
    rows = draw_rows(0, 40, 2)
    first = kernel.choose_landmarks(rows, 2.0, n_landmarks=6)
    known = np.vstack([rows[first[:3]], rows[first[:1]]])  # one of them twice
    np.testing.assert_array_equal(kernel.choose_landmarks(rows, 2.0, n_landmarks=3, known=known), first[3:])


def test_the_bandwidth_is_the_median_squared_distance():
    rows = draw_rows(0, 300, 4)
    distances = cdist(rows, rows, "sqeuclidean")[np.triu_indices(300, 1)]
    assert kernel.find_bandwidth(rows) == pytest.approx(np.median(distances))
    assert kernel.find_bandwidth(np.ones((7, 2))) == 1
    assert kernel.find_bandwidth(np.ones((1, 2))) == 1
    many = kernel.find_bandwidth(draw_rows(0, 5000, 4))
    assert many == pytest.approx(np.median(distances), rel=0.05)
