"""Shapes of errors that differ from row to row, against errors whose distribution is known."""

import numpy as np
import pytest

from onsphere.calibration.shape import Shape, fit_shape

rng = np.random.default_rng(0)
N = 1500


def make_errors(n, *, differ):
    """Exponential errors, skewed to the right or, where the feature is negative and they differ, to the left."""
    inputs = rng.uniform(-1, 1, size=(n, 2))
    errors = rng.exponential(size=(n, 1)) - 1.0
    return inputs, np.where(differ & (inputs[:, :1] < 0), -errors, errors)


@pytest.fixture(scope="module")
def local():
    inputs, residuals = make_errors(N, differ=True)
    ones = np.ones_like(residuals)
    return fit_shape(inputs, residuals, 2 * ones, 3 * ones, shape="auto")


def read_curves(shape, inputs):
    return shape.read_curves(shape.trees.predict(inputs))


def test_shapes_that_differ_are_found_and_others_are_not(local):
    assert local.trees is not None
    assert local.gain < 0.99
    inputs, residuals = make_errors(N, differ=False)
    ones = np.ones_like(residuals)
    common = fit_shape(inputs, residuals, ones, ones, shape="auto")
    assert common.trees is None
    assert common.gain > 0.99
    assert fit_shape(inputs, residuals, ones, ones, shape="local").trees is not None
    assert fit_shape(inputs[:100], residuals[:100], ones[:100], ones[:100], shape="local").trees is None
    pooled = fit_shape(inputs, residuals, ones, ones, shape="pooled")
    assert pooled.trees is None
    assert np.isnan(pooled.gain)


def test_scores_rise_and_residuals_come_back(local):
    inputs, residuals = make_errors(300, differ=True)
    residuals[:4, 0] = [-50.0, 50.0, local.knots[0, 0], local.knots[0, -1]]  # beyond the knots, and on the outermost
    curves = read_curves(local, inputs)
    assert (np.diff(curves, axis=2) > 0).all()
    scores = local.to_scores(residuals, curves)
    back = local.from_scores(scores, curves, 0)
    np.testing.assert_allclose(back, residuals[:, 0], rtol=1e-9, atol=1e-9)
    larger = local.to_scores(residuals + 0.1, curves)
    assert (larger > scores).all()


def test_quantiles_of_a_row_are_those_of_its_own_errors(local):
    """The 95 % quantile of the errors is log 20 − 1 ≈ 2.0 on the right and 1 − log(20/19) ≈ .95 on the left."""
    inputs, residuals = make_errors(3000, differ=True)
    scores = local.to_scores(residuals, read_curves(local, inputs))
    limit = np.quantile(scores, 0.95)
    found = local.from_scores(np.array([[limit]]), read_curves(local, np.array([[0.6, 0.0], [-0.6, 0.0]])), 0)
    np.testing.assert_allclose(found, [np.log(20) - 1, 1 - np.log(20 / 19)], atol=0.45)
    assert found[0] - found[1] > 0.6


def test_the_shortest_interval_of_skewed_errors_lies_on_their_steep_side():
    """Of exponential errors, the shortest interval of 80 % leaves out as few as it may below."""
    inputs, residuals = make_errors(2000, differ=False)
    both = np.concatenate([residuals, -residuals], axis=1)
    ones = np.ones_like(both)
    shape = fit_shape(inputs, both, ones, ones, shape="pooled")
    np.testing.assert_allclose(shape.find_shortest_tails(0.8, lambda values: values), [0.05, 0.95])
    # Where targets are exponentials of what is learned, the upper side is longer still.
    assert shape.find_shortest_tails(0.8, np.exp)[1] < 0.95


def test_equal_residuals_have_knots_apart_and_scores():
    zeros = np.zeros((300, 1))
    shape = fit_shape(rng.uniform(size=(300, 1)), zeros, zeros, zeros, shape="local")
    assert isinstance(shape, Shape)
    assert (np.diff(shape.knots) > 0).all()
    assert shape.gain == 1.0
    assert np.isfinite(shape.to_scores(zeros, read_curves(shape, zeros))).all()
