"""Ranges of chance hold as often as they should."""

import numpy as np
from numpy.testing import assert_allclose
from scipy import stats

from onsphere.metrics import auroc
from onsphere.report.chance import find_auroc_range, find_mean_range, find_spearman_range

N_TIMES = 1000


def test_the_range_of_a_rank_correlation_holds_the_truth():
    rng = np.random.default_rng(0)
    truth = 6 / np.pi * np.arcsin(0.4 / 2)  # of normal values that correlate by 0.4
    held = 0
    for _ in range(N_TIMES):
        one, other = rng.multivariate_normal([0, 0], [[1, 0.4], [0.4, 1]], size=60).T
        low, high = find_spearman_range(float(stats.spearmanr(one, other).statistic), 60, level=0.1)
        held += low <= truth <= high
    # Three standard errors around 0.9.
    assert 0.87 <= held / N_TIMES <= 0.93
    assert find_spearman_range(0.5, 3, level=0.05) == (-1.0, 1.0)


def test_the_range_of_an_auroc_holds_the_truth():
    rng = np.random.default_rng(0)
    truth = stats.norm.cdf(0.5 / np.sqrt(2))
    held = 0
    for _ in range(N_TIMES):
        score = auroc(rng.normal(size=40), 0.5 + rng.normal(size=20))
        low, high = find_auroc_range(score, 40, 20, level=0.1)
        held += low <= truth <= high
    assert 0.87 <= held / N_TIMES <= 0.93
    assert find_auroc_range(1.0, 40, 20, level=0.05) == (1.0, 1.0)


def test_the_range_of_a_mean_holds_that_of_drawn_rows():
    values = np.random.default_rng(0).exponential(size=4000)
    rng = np.random.default_rng(1)
    for n in (3, 30, 400):
        low, high = find_mean_range(values, n, level=0.1)
        means = rng.choice(values, size=(N_TIMES, n)).mean(axis=1)
        assert_allclose(np.mean((low <= means) & (means <= high)), 0.9, atol=0.04)
