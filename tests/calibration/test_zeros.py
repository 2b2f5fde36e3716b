"""Targets that are often 0, against distributions that are known."""

import numpy as np
import pytest

from onsphere.calibration.zeros import fit_zero_shape, has_step
from onsphere.sphere import Domain

rng = np.random.default_rng(0)
N = 1500


def make_rows(n):
    """Targets that are 0 with the probability .8 or .2 by the sign of the feature, and else exponential above 1."""
    inputs = rng.uniform(-1, 1, size=(n, 2))
    is_zero = rng.uniform(size=(n, 1)) < np.where(inputs[:, :1] > 0, 0.8, 0.2)
    return inputs, np.where(is_zero, 0.0, 1.0 + rng.exponential(size=(n, 1))), is_zero


@pytest.fixture(scope="module")
def shape():
    inputs, target, is_zero = make_rows(N)
    value, sigma = np.full((N, 1), 1.5), np.full((N, 1), 2.0)
    return fit_zero_shape(inputs, is_zero, (target - value) / sigma, value, sigma, end=0.0)


def read_curves(shape, inputs):
    n = len(inputs)
    return shape.read_curves(shape.trees.predict(inputs), np.full((n, 1), 1.5), np.full((n, 1), 2.0))


def test_the_probability_of_zero_is_that_of_new_rows(shape):
    inputs, _, _ = make_rows(4000)
    curves = read_curves(shape, inputs)
    found = curves[:, 0, 0]
    assert found[inputs[:, 0] > 0].mean() == pytest.approx(0.8, abs=0.05)
    assert found[inputs[:, 0] < 0].mean() == pytest.approx(0.2, abs=0.05)
    np.testing.assert_array_equal(curves[:, 0, 1], -0.75)


def test_scores_are_uniform_and_lead_back(shape):
    inputs, target, is_zero = make_rows(4000)
    residuals, curves = (target - 1.5) / 2.0, read_curves(shape, inputs)
    place = rng.uniform(size=target.shape)
    scores = shape.to_scores(residuals, curves, place)
    counts = np.histogram(scores, bins=10, range=(-0.5, 0.5))[0]
    assert counts.min() > 320  # 400 each, with a standard deviation of 19, and the shape is learned from 1,500 rows
    assert counts.max() < 480
    back = shape.from_scores(scores, curves, 0)
    assert (1.5 + 2.0 * back[is_zero[:, 0]] < 0).all()  # from where the domain leads to 0
    above = residuals[:, 0] > shape.knots[0, 0]  # a smaller target than all known ones counts as 0
    np.testing.assert_allclose(back[above], residuals[above, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(shape.to_scores(residuals, curves)[is_zero], curves[is_zero[:, 0], 0, 0] - 0.5)
    np.testing.assert_array_equal(shape.to_scores(residuals, curves, 0.0)[is_zero], -0.5)


def test_the_shortest_interval_begins_at_zero(shape):
    """Above 0 the density falls, so all misses but the least lie above."""
    assert shape.find_shortest_tails(0.8, lambda values: np.maximum(values, 0.0)) == pytest.approx([0.05])


def test_a_step_needs_frequent_zeros_in_a_domain_that_begins_there():
    residuals = np.linspace(-2, 2, 400)[:, None]

    def ask(value, share=0.25, *, n=400, **domain):
        """Errors lead to an eighth of zeros from the value 1.5, and to a quarter from the value 1."""
        rows = residuals[:: 400 // n]
        is_zero = rows < -2 + 4 * share
        return has_step(Domain(**domain), is_zero, rows, np.full((n, 1), value), np.ones((n, 1)), end=0.0)

    assert ask(1.5, low=0.0)
    assert ask(1.0, low=0.0)
    assert ask(1.5, low=0.0, is_whole=True)
    assert not ask(1.0, low=0.0, is_whole=True)
    assert not ask(1.5)
    assert not ask(1.5, n=100, low=0.0)
    assert not ask(1.5, 0.02, low=0.0)
    assert not ask(1.5, 0.99, low=0.0)
