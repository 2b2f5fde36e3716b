"""The capital of the betting game against its definition."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from onsphere.drift import DriftMonitor
from onsphere.drift.martingale import N_PLAYERS, log_bets, log_reserve, log_stake


def normal(n, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, size=n)


@pytest.mark.parametrize("player", range(N_PLAYERS))
def test_each_bet_is_fair_under_uniform_p_values(player):
    def factor(p):
        return math.exp(log_bets(np.array([p]))[player, 0])

    # In p = t^10 or 1 − t^10, so that the poles at 0 and 1 are tame.
    low = quad(lambda t: factor(t**10) * 10 * t**9, 0, 0.5**0.1)[0]
    high = quad(lambda t: factor(1 - t**10) * 10 * t**9, 0, 0.5**0.1)[0]
    # What lies below 2^−53 is cut off, to the disadvantage of the player.
    assert 1 - 1e-3 < low + high < 1 + 1e-6


def test_stakes_and_reserve_add_up_to_one():
    step = np.arange(1.0, 10_001.0)
    given_out = np.cumsum(np.exp(log_stake(step)))
    np.testing.assert_allclose(given_out + np.exp(log_reserve(step)), 1, rtol=1e-10)


def test_the_capital_is_the_mixture_over_all_starts_and_bets():
    monitor = DriftMonitor(normal(50))
    update = monitor.update(normal(60, 1, shift=0.7))
    factors = np.exp(log_bets(update.p_values))
    for last in range(1, 61):
        total = (last + 1) ** -0.2
        for start in range(1, last + 1):
            share = start**-0.2 - (start + 1) ** -0.2
            total += share * factors[:, start - 1 : last].prod(axis=1).mean()
        assert update.log_capital[last - 1] == pytest.approx(math.log(total), rel=1e-9, abs=1e-9)
    assert monitor.log_capital == update.log_capital[-1]


def test_the_capital_stays_a_number_for_any_p_value():
    game = DriftMonitor([0.0])._games["uncertainty"]
    log_capital = game._play(np.array([0.0, 1.0] * 500))
    assert np.isfinite(log_capital).all()
