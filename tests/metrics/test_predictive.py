"""Metrics of distributions, against their definitions and against closed forms."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import mean_pinball_loss

from onsphere import InvalidInputError
from onsphere.metrics import crps, crps_per_row, gaussian_crps, pinball_loss, pit_uniformity

rng = np.random.default_rng(0)


def integrate(y, steps, weights):
    """∫ (F(x) − 1{x ≥ y})² dx, between neighbouring places where the integrand jumps."""
    places = np.sort(np.append(steps, y))
    middle = (places[1:] + places[:-1]) / 2
    below = np.array([weights[steps <= x].sum() / weights.sum() for x in middle])
    return np.sum(np.diff(places) * (below - (middle >= y)) ** 2)


def test_crps_is_the_integral_over_the_steps():
    steps, weights, y = rng.normal(size=(20, 7)), rng.uniform(0.1, 2, size=7), rng.normal(size=20)
    direct = [integrate(*row, weights) for row in zip(y, steps, strict=True)]
    np.testing.assert_allclose(crps_per_row(y, steps, weights), direct, atol=1e-12)
    equal = [integrate(*row, np.ones(7)) for row in zip(y, steps, strict=True)]
    assert crps(y, steps) == pytest.approx(np.mean(equal))
    assert crps(y, steps, sample_weight=np.r_[1.0, np.zeros(19)]) == pytest.approx(equal[0])
    assert crps([3.0], [[1.0]]) == 2.0


def test_crps_and_pinball_loss_of_many_quantiles_are_those_of_a_gaussian():
    levels, y = (np.arange(2000) + 0.5) / 2000, rng.normal(size=50)
    quantiles = np.broadcast_to(norm.ppf(levels), (50, 2000))
    exact = gaussian_crps(y, np.zeros(50), np.ones(50))
    assert crps(y, quantiles) == pytest.approx(exact, rel=1e-3)
    assert 2 * pinball_loss(y, quantiles, levels) == pytest.approx(exact, rel=1e-3)


def test_pinball_loss_agrees_with_scikit_learn():
    y, quantiles, levels = rng.normal(size=30), rng.normal(size=(30, 2)), [0.1, 0.7]
    theirs = [mean_pinball_loss(y, column, alpha=level) for column, level in zip(quantiles.T, levels, strict=True)]
    assert pinball_loss(y, quantiles, levels) == pytest.approx(np.mean(theirs))
    weights = rng.uniform(size=30)
    theirs = [
        mean_pinball_loss(y, column, alpha=level, sample_weight=weights)
        for column, level in zip(quantiles.T, levels, strict=True)
    ]
    assert pinball_loss(y, quantiles, levels, sample_weight=weights) == pytest.approx(np.mean(theirs))


def test_uniform_and_other_transforms_are_told_apart():
    pit = rng.uniform(size=2000)
    assert pit_uniformity(pit)[1] > 0.001
    distance, p_value = pit_uniformity(pit**1.3)
    assert distance > 0.05
    assert p_value < 1e-6


def test_arrays_that_do_not_fit_are_rejected():
    with pytest.raises(InvalidInputError, match="Got 2 targets and 3 rows beside them"):
        crps([1.0, 2.0], np.ones((3, 4)))
    with pytest.raises(InvalidInputError, match="Got 1 columns and 2 levels"):
        pinball_loss([1.0], [[1.0]], [0.1, 0.9])
    with pytest.raises(InvalidInputError, match=r"'q' of pinball_loss to lie in \[0, 1\]"):
        pinball_loss([1.0], [[1.0]], [1.1])
    with pytest.raises(InvalidInputError, match=r"'pit' of pit_uniformity to lie in \[0, 1\]"):
        pit_uniformity([1.1])
