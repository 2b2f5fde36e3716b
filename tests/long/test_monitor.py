"""The promise of the drift alarm, repeated on streams without drift: 50 by default, 1,000 with ONSPHERE_LONG=1.

Every stream has its own calibration and 10,000 rows. If the promise holds, the number of streams that ever alarm is at
most binomial with probability alpha; the bound is the quantile that it exceeds once in a thousand runs.
"""

import math
import os

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.linear_model import Ridge

from onsphere import DriftMonitor, HCMRegressor
from onsphere.drift.martingale import Evidence

pytestmark = pytest.mark.long

N_STREAMS = 1000 if os.environ.get("ONSPHERE_LONG") else 50
N_CALIBRATION, N_STEPS = 200, 10_000
ALPHAS = (0.01, 0.05)
LEVEL = 0.001

KINDS = {
    "continuous": lambda scores: scores,
    "five values": lambda scores: np.clip(scores.round(), -2, 2),
    "mostly zero": lambda scores: np.maximum(scores - 1, 0),
}


def n_alarms(highest, alpha):
    return int(np.sum(np.array(highest) >= -math.log(alpha)))


def check_promise(highest):
    """Check the highest log-capital of each stream."""
    for alpha in ALPHAS:
        found = n_alarms(highest, alpha)
        print(f"alpha {alpha}: {found} of {N_STREAMS} streams alarmed")
        assert found <= binom.ppf(1 - LEVEL, N_STREAMS, alpha)


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_alpha_of_the_streams_without_drift_ever_alarm(kind):
    rng = np.random.default_rng(0)
    highest, alarms = [], 0
    for seed in range(N_STREAMS):
        scores = KINDS[kind](rng.normal(size=N_CALIBRATION + N_STEPS))
        monitor = DriftMonitor(scores[:N_CALIBRATION], alpha=ALPHAS[1], random_state=seed)
        update = monitor.update(scores[N_CALIBRATION:])
        highest.append(update.log_capital.max())
        alarms += update.alarm
    assert alarms == n_alarms(highest, ALPHAS[1])
    check_promise(highest)


def test_two_games_on_dependent_scores_keep_alpha_jointly():
    rng = np.random.default_rng(1)
    highest = []
    for seed in range(N_STREAMS):
        first = rng.normal(size=N_CALIBRATION + N_STEPS)
        second = np.abs(first) + 0.3 * rng.normal(size=len(first))
        monitor = DriftMonitor(first[:N_CALIBRATION], anchor_residuals=second[:N_CALIBRATION], random_state=seed)
        update = monitor.update(first[N_CALIBRATION:], anchor_residual=second[N_CALIBRATION:])
        highest.append(update.log_capital.max())
    check_promise(highest)


def test_a_model_that_watches_uncertainty_and_novelty_keeps_alpha_jointly():
    """Rows of columns that hold few values give many equal shortfalls."""
    rng = np.random.default_rng(3)

    def draw(n_rows):
        X = rng.normal(size=(n_rows, 3))
        X[:, 1:] = X[:, 1:].round()
        return X, X[:, 0] + rng.normal(size=n_rows)

    model = HCMRegressor(Ridge(), frames=("target", "input")).fit(*draw(150))
    highest = []
    for seed in range(N_STREAMS):
        monitor = DriftMonitor(model.calibrate(*draw(N_CALIBRATION)), random_state=seed)
        assert monitor.watched == ("uncertainty", "novelty")
        highest.append(monitor.update(model.assess(draw(N_STEPS)[0])).log_capital.max())
    check_promise(highest)


def test_p_values_against_the_calibration_alone_would_break_the_promise():
    """The same bets on such p-values alarm far too often; this is why the stream is ranked too."""
    rng = np.random.default_rng(2)
    highest = []
    for seed in range(N_STREAMS):
        calibration = np.sort(rng.normal(size=N_CALIBRATION))
        n_above = N_CALIBRATION - np.searchsorted(calibration, rng.normal(size=N_STEPS))
        p_values = (n_above + rng.uniform(size=N_STEPS)) / (N_CALIBRATION + 1)
        game: Evidence = DriftMonitor(calibration, random_state=seed)._games["uncertainty"]
        highest.append(game._play(p_values).max())
    for alpha in ALPHAS:
        found = n_alarms(highest, alpha)
        print(f"alpha {alpha}: {found} of {N_STREAMS} streams alarmed")
        assert found > binom.ppf(1 - LEVEL, N_STREAMS, alpha)
