"""P-values against their definition, and whether they are uniform and independent."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from onsphere.drift import DriftMonitor, ranks
from onsphere.drift.ranks import Ranks, draw_uniforms

# A correct procedure fails one of these comparisons once in ten thousand runs; seeds are fixed.
LEVEL = 1e-4


def normal(n, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, size=n)


def test_a_gap_gets_the_next_score_in_proportion_to_its_count():
    """All orders of five scores are equally likely: count them, given the calibration's two and the history."""
    seen = {}
    for order in itertools.permutations(range(5)):
        history = [sum(score > first for first in order[:2]) for score in order[2:]]
        for step, gap in enumerate(history):
            seen.setdefault(tuple(history[:step]), Counter())[gap] += 1
    for history, following in seen.items():
        for gap in range(3):
            expected = (history.count(gap) + 1) / (2 + len(history) + 1)
            assert following[gap] / following.total() == pytest.approx(expected, rel=1e-12)


def test_p_values_lie_within_the_share_of_their_gap():
    calibration, stream = normal(30), normal(700, 1, shift=0.5)
    counted = Ranks.from_scores(calibration, np.random.RandomState(0))
    draws = draw_uniforms(counted.key, np.arange(2 * len(stream)))[1::2]
    mass, expected = [1] * 31, []
    for score, draw in zip(stream, draws, strict=True):
        gap = int(np.sum(calibration < score))
        expected.append((sum(mass[gap + 1 :]) + draw * mass[gap]) / sum(mass))
        mass[gap] += 1
    np.testing.assert_allclose(counted.update(stream), expected, rtol=1e-12)


@pytest.mark.parametrize("n_cuts", [1000, 4], ids=["all cuts", "four cuts"])
@pytest.mark.parametrize("kind", ["continuous", "ties", "atom"])
def test_p_values_are_uniform_and_independent(monkeypatch, kind, n_cuts):
    monkeypatch.setattr(ranks, "N_CUTS", n_cuts)
    rng = np.random.default_rng(0)
    found = []
    for seed in range(1500):
        scores = rng.normal(size=12)
        if kind == "ties":
            scores = scores.round()
        elif kind == "atom":  # most scores are equal, and a new value may be larger than all before
            scores = np.maximum(scores - 1, 0)
        found.append(Ranks.from_scores(scores[:8], np.random.RandomState(seed)).update(scores[8:]))
    p = np.array(found)
    for column in p.T:
        assert kstest(column, "uniform").pvalue > LEVEL
    for first, second in itertools.combinations(range(4), 2):
        cells = np.floor(3 * p[:, first]) * 3 + np.floor(3 * p[:, second])
        assert chisquare(np.bincount(cells.astype(int), minlength=9)).pvalue > LEVEL
    assert chisquare(np.bincount((p > 0.5) @ [8, 4, 2, 1], minlength=16)).pvalue > LEVEL


def test_a_long_stream_has_uniform_p_values_after_a_small_calibration():
    p = DriftMonitor(normal(20), random_state=1).update(normal(50_000, 1)).p_values
    assert kstest(p, "uniform").pvalue > LEVEL
    assert abs(np.corrcoef(p[1:], p[:-1])[0, 1]) < 4 / math.sqrt(len(p))


def test_the_largest_score_has_the_smallest_p_value():
    update = DriftMonitor(np.arange(99.0)).update([math.inf, -1e300, 98.5])
    assert 0 < update.p_values[0] < 0.01
    assert update.p_values[1] > 0.98
    assert update.p_values[2] < 2 / 102


def test_many_calibration_scores_are_reduced_to_a_thousand_cuts_with_both_ends():
    scores = normal(7001)
    counted = Ranks.from_scores(scores, np.random.RandomState(0))
    assert len(counted.places) == ranks.N_CUTS
    assert (counted.values[0], counted.values[-1]) == (scores.min(), scores.max())
    assert (counted.gaps[0], counted.gaps[-1], counted.gaps.sum()) == (1, 1, 7002)
    # A score just above the middle cut has that many calibration scores above it, up to the width of a cell.
    middle = counted.values[500]
    assert counted.update(np.array([middle + 1e-12]))[0] == pytest.approx(np.mean(scores > middle), abs=8 / 7001)


def test_the_random_numbers_are_uniform_and_differ_between_keys():
    numbers = draw_uniforms(3, np.arange(100_000))
    assert kstest(numbers, "uniform").pvalue > LEVEL
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.015
    assert abs(np.corrcoef(numbers, draw_uniforms(4, np.arange(100_000)))[0, 1]) < 0.015
