"""Risk control on tables of losses: p-values that hold, thresholds by hand, several losses and thresholds."""

import numpy as np
import pytest
from scipy.stats import binom

from onsphere import InvalidInputError
from onsphere.calibration import control_risk, find_safe_settings, hoeffding_bentkus_p_value


def test_p_values_by_hand():
    n, risk = 100, 0.2
    mean = np.array([0.0, 0.1, 0.2, 0.5, 1.0])
    entropy = np.array([np.log(1 / 0.8), 0.1 * np.log(0.5) + 0.9 * np.log(0.9 / 0.8), 0, 0, 0])
    tail = np.e * binom.cdf(np.ceil(n * mean), n, risk)
    np.testing.assert_allclose(
        hoeffding_bentkus_p_value(mean, n, risk), np.minimum(np.minimum(np.exp(-n * entropy), tail), 1)
    )


@pytest.mark.parametrize("kind", ["binary", "uniform"])
def test_p_values_are_at_most_p_with_probability_p(kind):
    """At the edge, where the expected loss is the limit."""
    rng = np.random.default_rng(0)
    n, repetitions = 80, 20_000
    losses = rng.uniform(size=(repetitions, n))
    mean = (losses < 0.3).mean(axis=1) if kind == "binary" else 0.6 * losses.mean(axis=1)
    p_values = hoeffding_bentkus_p_value(mean, n, 0.3)
    for level in (0.01, 0.05, 0.2):
        assert np.sum(p_values <= level) <= binom.ppf(0.999, repetitions, level)


def test_the_first_safe_threshold_by_hand():
    """Of nine rows with losses 1, those left at each threshold: (sum + 1)/10 must be at most .3."""
    losses = np.arange(9)[:, None] >= np.array([0, 5, 6, 7, 8])
    assert control_risk(losses, 0.4) == 2
    assert control_risk(losses, 0.3) == 3
    assert control_risk(3.0 * losses, 0.9, largest_loss=3.0) == 3


def test_conformal_risk_control_keeps_the_expected_loss():
    """A loss that is not 0 or 1: how far a target lies outside its interval, capped at 1."""
    rng = np.random.default_rng(0)
    widths, limit, kept = np.linspace(0, 4, 81), 0.1, []
    exact = np.abs(rng.normal(size=100_000))
    expected = np.array([np.clip(exact - width, 0, 1).mean() for width in widths])
    for _ in range(400):
        error = np.abs(rng.normal(size=60))
        kept.append(expected[control_risk(np.clip(error[:, None] - widths, 0, 1), limit)])
    assert limit - 0.02 < np.mean(kept) <= limit + 3 * np.std(kept) / np.sqrt(len(kept))


def draw(rng, n):
    """Return uncertainty, novelty and loss of rows whose loss rises with both."""
    uncertainty, novelty = rng.uniform(size=(2, n))
    return uncertainty, novelty, (rng.uniform(size=n) < 0.4 * uncertainty * novelty).astype(float)


def test_two_thresholds_at_once():
    rng = np.random.default_rng(0)
    uncertainty, novelty, loss = draw(rng, 4000)
    grid = np.linspace(0.1, 1, 10)
    accepted = (uncertainty[:, None, None] <= grid[:, None]) & (novelty[:, None, None] <= grid)
    safe = find_safe_settings(loss[:, None, None] * accepted, 0.05)
    # E[loss·accepted] = .4·(a²/2)(b²/2) for the pair (a, b).
    true = 0.1 * np.outer(grid**2, grid**2)
    assert safe.shape == (10, 10)
    assert safe.any()
    assert not safe[true > 0.05].any()
    assert safe[true < 0.035].all()


def test_several_losses_must_all_be_safe():
    rng = np.random.default_rng(0)
    uncertainty, _, loss = draw(rng, 2000)
    grid = np.linspace(0.1, 1, 10)
    accepted = uncertainty[:, None] <= grid
    wrong, refused = loss[:, None] * accepted, 1.0 - accepted
    alone = find_safe_settings(wrong, 0.07)
    both = find_safe_settings([wrong, refused], [0.07, 0.5])
    np.testing.assert_array_equal(both, alone & find_safe_settings(refused, 0.5))
    assert 0 < both.sum() < alone.sum()


def test_lists_and_arrays_mean_the_same():
    losses = np.random.default_rng(0).uniform(size=(200, 4)) < 0.2
    safe = find_safe_settings(losses, 0.3)
    np.testing.assert_array_equal(find_safe_settings(losses.tolist(), 0.3), safe)
    np.testing.assert_array_equal(find_safe_settings([losses, losses], np.array([0.3, 0.3])), safe)


def test_a_fixed_sequence_stops_at_the_first_failure():
    means = np.array([0.0, 0.0, 1.0, 0.0])
    losses = np.broadcast_to(means, (200, 4))
    assert find_safe_settings(losses, 0.1, correction="fixed-sequence").tolist() == [True, True, False, False]
    assert find_safe_settings(losses, 0.1).tolist() == [True, True, False, True]


@pytest.mark.parametrize("correction", ["bonferroni", "fixed-sequence"])
def test_safe_settings_are_safe_at_the_edge(correction):
    """Every setting has a risk just above the limit, so each that is found is a broken promise."""
    rng = np.random.default_rng(0)
    broken, repetitions = 0, 400
    for _ in range(repetitions):
        losses = rng.uniform(size=(300, 10)) < 0.201
        broken += find_safe_settings(losses, 0.2, delta=0.1, correction=correction).any()
    assert broken <= binom.ppf(0.999, repetitions, 0.1)


def test_bad_input():
    losses = np.ones((10, 3))
    for wrong in (losses[:, 0], np.empty((0, 3)), 2 * losses, np.full((10, 3), np.nan)):
        with pytest.raises(InvalidInputError, match="needs losses from 0 to 1"):
            find_safe_settings(wrong, 0.1)
    with pytest.raises(InvalidInputError, match=r"one shape, and a max_risk for each.*\(10, 3\), \(10, 2\)"):
        find_safe_settings([losses, losses[:, :2]], 0.1)
    with pytest.raises(InvalidInputError, match="a max_risk for each"):
        find_safe_settings([losses], [0.1, 0.2])
    with pytest.raises(InvalidInputError, match="Got no losses"):
        find_safe_settings([], 0.1)
    for wrong in (0, 1.5, np.array([0.1, 2.0])):
        with pytest.raises(InvalidInputError, match="'max_risk' parameter of find_safe_settings"):
            find_safe_settings([losses, losses] if np.ndim(wrong) else losses, wrong)
    with pytest.raises(InvalidInputError, match=r"Got 2 in row 3 \(counted from 0\)"):
        find_safe_settings(np.where(np.arange(10) == 3, 2.0, 0.0)[:, None], 0.1)
    for ask in (find_safe_settings, control_risk):
        with pytest.raises(InvalidInputError, match="needs losses that are numbers"):
            ask([["a"]], 0.1)
    with pytest.raises(InvalidInputError, match=r"shape \(n, m\)\. Got \(10, 3, 1\)"):
        control_risk(losses[..., None], 0.1)
    with pytest.raises(InvalidInputError, match="rises at place 2"):
        control_risk(np.array([[0.5, 0.5, 0.6]]), 0.4)
    with pytest.raises(InvalidInputError, match=r"No threshold keeps an expected loss of 0.1: .* mean of 1 over 10"):
        control_risk(losses, 0.1)
