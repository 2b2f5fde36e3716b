"""Levels that follow labels, on p-values alone: the bound of ACI, the formulas of DtACI, rolling coverage, time."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onsphere import InvalidInputError
from onsphere.calibration import Calibration
from onsphere.calibration.online import (
    STRETCH,
    LevelTracker,
    OnlineCoverage,
    _Followed,
    extend_p_values,
    find_ceiling,
    find_stretch,
)

STEPS = 0.001 * 2.0 ** np.arange(8)


def follow(state, p_values, n_at_once=1, **options):
    """Return a tracker after labels that come in a few at a time, and whether each was covered."""
    covered = []
    for start in range(0, len(p_values), n_at_once):
        state, inside = state.take_in(p_values[start : start + n_at_once], **options)
        covered += inside.tolist()
    return state, np.array(covered)


def take_in_batches(online, p_values, n_at_once, parts=None):
    for start in range(0, len(p_values), n_at_once):
        rows = slice(start, start + n_at_once)
        online = online.take_in(p_values[rows], parts=0 if parts is None else parts[rows])
    return online


@given(
    hnp.arrays(np.float64, st.integers(9, 60), elements=st.floats(0.1, 10), unique=True),
    st.sampled_from([0.0, 5.0, 20.0]),
    st.floats(0.01, 1000),
    st.floats(-0.4, 1.1),
)
def test_a_p_value_is_above_the_level_exactly_if_the_interval_holds_the_row(sizes, below, new, level):
    """Also beyond the largest score, where the interval is stretched, and for errors that are all on one side."""
    scores = sizes - below
    calibration = replace(Calibration(scores, scores), online=OnlineCoverage(1.0))
    calibration.online.trackers["0: 0.9"] = _Followed(0, LevelTracker(0.9, 1.0, (level,), (1.0,)))
    limit = calibration.find_limit(scores, 0.9)
    p_value = extend_p_values(scores, np.array([new]))[0]
    is_near = math.isclose(new, limit, rel_tol=1e-6) or math.isclose(p_value, level, abs_tol=1e-6)
    # At a level near 1 the interval keeps the smallest score.
    assert is_near or level > 1 - 2 / (len(scores) + 1) or (p_value > level) == (new <= limit)


def test_p_values_count_weights_and_survive_scores_without_a_scale():
    scores = np.array([1.0, 2.0, 3.0])
    heavy = extend_p_values(scores, np.array([2.5]), np.array([1.0, 1.0, 2.0]))
    np.testing.assert_allclose(heavy, [(1 + 1) / (1 + 2)])  # the heaviest row and a new one count 1, the others 1/2
    np.testing.assert_allclose(extend_p_values(np.zeros(3), np.array([0.0, 1.0])), [1.0, 0.25])
    assert extend_p_values(scores, np.array([np.inf])) == [-1.0]


@settings(max_examples=50)
@given(
    hnp.arrays(np.float64, st.integers(1, 300), elements=st.floats(-0.5, 1.0)),
    st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    st.sampled_from([0.005, 0.02, 0.1]),
    st.data(),
)
def test_the_share_of_misses_stays_in_its_bound_for_any_labels(p_values, coverage, step, data):
    """The bound of the docstring, with B/STRETCH = .5, for any stretch of labels."""
    covered = follow(LevelTracker(coverage, step), p_values)[1]
    start = data.draw(st.integers(0, len(covered) - 1))
    part = covered[start:]
    bound = (1 + step + 0.5) / (step * len(part))
    assert abs(np.mean(~part) - (1 - coverage)) <= bound + 1e-9


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 60), st.integers(2, 80)), elements=st.floats(-0.5, 1.0)),
    st.sampled_from([0.5, 0.9]),
    st.sampled_from([0.005, 0.02, 0.5]),
)
def test_the_bound_holds_for_the_intervals_that_stood_before_each_batch(p_values, coverage, step):
    n_batches, size = p_values.shape
    covered = follow(LevelTracker(coverage, step), p_values.ravel(), size)[1]
    whole = min(step * size, max(step, 0.256))
    assert abs(np.mean(~covered) - (1 - coverage)) <= (1 + whole + 0.5) / (whole * n_batches) + 1e-9


def test_labels_that_come_in_together_are_judged_by_the_interval_before_them():
    """The level moves by the share that missed, and however many labels there are by no more than .256 of it."""
    few, inside = LevelTracker(0.9, 0.01).take_in([0.05, 0.02, 0.5])
    assert inside.tolist() == [False, False, True]
    assert few.level == pytest.approx(0.1 + 3 * 0.01 * (0.1 - 2 / 3))
    many, inside = LevelTracker(0.9, 0.01).take_in(np.full(1000, 0.05))
    assert not inside.any()
    assert many.level == pytest.approx(0.1 + 0.256 * (0.1 - 1))
    assert LevelTracker(0.9).take_in(np.full(1000, 0.05))[0].level == pytest.approx(0.1 + 0.256 * (0.1 - 1))


@pytest.mark.parametrize("n_at_once", [10, 65, 120])
def test_coverage_is_kept_where_each_batch_is_worse_than_the_one_before(n_at_once):
    """Errors grow without an end, as those of a model that never saw the season that begins.

    Compared with rows of the same batch, intervals would look as if they were kept up; those that were given are not.
    """
    covered = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        errors = np.abs(rng.normal(size=3000) + np.arange(3000) / 100)
        known = np.abs(rng.normal(size=500))
        calibration = Calibration(np.ones(500), known)
        for start in range(0, 3000, n_at_once):
            new = errors[start : start + n_at_once]
            covered += (new <= calibration.find_limit(calibration.scores, 0.9)).tolist()
            calibration = calibration.take_in(Calibration(np.ones(len(new)), new))
    assert np.mean(covered) == pytest.approx(0.9, abs=0.03)


def test_a_coverage_that_is_asked_for_later_follows_the_same_batches():
    p_values = np.random.default_rng(0).beta(1, 2, size=(40, 7))
    early, late = OnlineCoverage(), OnlineCoverage()
    early.find_level(0.9)
    for batch in p_values:
        early, late = early.take_in(batch), late.take_in(batch)
    assert late.find_level(0.9) == early.find_level(0.9) != pytest.approx(0.1, abs=0.01)
    np.testing.assert_array_equal(late.find_covered(0.9), early.find_covered(0.9))
    # A file of an earlier version does not tell batches: its labels count as if they had come one by one.
    older = replace(late, batches=None, trackers={})
    alone = follow(LevelTracker(0.9), p_values.ravel())[0]
    assert older.find_level(0.9) == pytest.approx(alone.level)
    assert older.take_in(p_values[0]).n_labels == 287


def test_the_mixture_follows_the_formulas():
    """DtACI as published, written out with arrays."""
    p_values = np.random.default_rng(0).beta(1, 3, size=300)
    alpha, k, local = 0.1, 8, 500
    eta = np.sqrt(3 / local) * np.sqrt(
        (np.log(k * local) + 2) / ((1 - alpha) ** 2 * alpha**3 + alpha**2 * (1 - alpha) ** 3)
    )
    sigma = 1 / (2 * local)
    levels, weights, covered = np.full(k, alpha), np.ones(k) / k, []
    for beta in p_values:
        covered.append(beta > weights @ levels)
        loss = alpha * (beta - levels) - np.minimum(0, beta - levels)
        grown = weights * np.exp(-eta * loss)
        weights = (1 - sigma) * grown + grown.sum() * sigma / k
        weights /= weights.sum()
        levels = levels + STEPS * (alpha - (beta <= levels))
    moved, ours = follow(LevelTracker(0.9), p_values)
    np.testing.assert_allclose(moved.level, weights @ levels, rtol=1e-9)
    assert ours.tolist() == covered
    # Labels that come one by one lead to the same level.
    state = OnlineCoverage()
    for beta in p_values:
        state.find_level(0.9)
        state = state.take_in(np.array([beta]))
    np.testing.assert_allclose(state.find_level(0.9), moved.level, rtol=1e-12)
    assert state.n_labels == 300


@pytest.mark.parametrize("step", [None, 0.02])
def test_rolling_coverage_is_kept_under_drift_where_a_fixed_level_loses_it(step):
    """Errors grow to three times their size, then shrink to a third."""
    rng = np.random.default_rng(0)
    calibration = np.abs(rng.normal(size=500))
    size = np.exp(np.log(3) * np.sin(np.linspace(0, 3 * np.pi, 6000)))
    p_values = extend_p_values(calibration, size * np.abs(rng.normal(size=6000)))
    online = take_in_batches(OnlineCoverage(step), p_values[:4000], 5)
    assert np.convolve(p_values > 0.1, np.ones(500) / 500, "valid").min() < 0.6
    online.find_level(0.9)
    rolling = np.concatenate(
        [
            online.compute_rolling_coverage(0.9),
            take_in_batches(online, p_values[4000:], 5).compute_rolling_coverage(0.9),
        ]
    )
    assert rolling.min() > 0.85
    assert np.mean(rolling) == pytest.approx(0.9, abs=0.01)


def test_a_level_does_not_rise_where_nothing_can_shrink():
    """Nine of ten scores are 0, and sets that hold 0 are the smallest; then drift begins."""
    scores = np.r_[np.zeros(180), np.linspace(0.1, 1, 20)]
    ceiling = find_ceiling(scores)
    assert ceiling == pytest.approx(21 / 201)
    calm = np.tile([1.0] * 19 + [0.01], 100)
    free, held = (follow(LevelTracker(0.9), calm, ceiling=top)[0] for top in (1.0, ceiling))
    assert held.level <= ceiling < 0.3 < free.level
    rough = np.full(30, 0.05)
    assert sum(follow(held, rough)[1]) > sum(follow(free, rough)[1])
    # Scores that differ have no such level.
    assert find_ceiling(np.arange(99.0)) == pytest.approx(0.99)


def test_each_part_has_a_level_of_its_own():
    rng = np.random.default_rng(0)
    parts = rng.integers(2, size=1000)
    p_values = np.where(parts == 1, 0.2, 1.0) * rng.uniform(size=1000)
    online = take_in_batches(OnlineCoverage(), p_values[:600], 1, parts[:600])
    online.find_level(0.9)
    online = take_in_batches(online, p_values[600:], 1, parts[600:])
    for part in (0, 1):
        alone = take_in_batches(OnlineCoverage(), p_values[parts == part], 1)
        assert online.find_level(0.9, part=part) == pytest.approx(alone.find_level(0.9))
        np.testing.assert_array_equal(online.find_covered(0.9)[parts == part], alone.find_covered(0.9))
    assert online.find_level(0.9, part=1) < 0.05 < online.find_level(0.9, part=0)
    assert online.find_level(0.9, part=7) == pytest.approx(0.1)  # of which nothing is known


def test_rolling_coverage_of_few_labels_and_of_none():
    assert len(OnlineCoverage().compute_rolling_coverage(0.9)) == 0
    few = OnlineCoverage().take_in(np.array([0.5, 0.01, 0.5, 0.5]))
    np.testing.assert_allclose(few.compute_rolling_coverage(0.9), [0.75])
    np.testing.assert_allclose(few.compute_rolling_coverage(0.9, n_rows=2), [0.5, 0.5, 1.0])
    assert few.find_level(0.8) != few.find_level(0.9)
    with pytest.raises(InvalidInputError, match="'n_rows' parameter"):
        few.compute_rolling_coverage(0.9, n_rows=0)


def test_before_the_first_label_the_level_is_the_one_asked_for():
    assert OnlineCoverage().find_level(0.9) == pytest.approx(0.1)
    assert find_stretch(0.1, 100)[1] == 1
    assert find_stretch(-0.05, math.inf)[1] == pytest.approx(math.exp(0.05 * STRETCH))


def test_wrong_steps_and_coverages_are_rejected():
    with pytest.raises(InvalidInputError, match="'step' parameter of update"):
        OnlineCoverage(0.0)
    with pytest.raises(InvalidInputError, match="'coverage' parameter"):
        OnlineCoverage().find_level(1.0)


def test_time_must_not_go_backwards():
    state = OnlineCoverage().check_time([3, 3], 2)
    assert state.last_time == 3
    with pytest.raises(InvalidInputError, match="row 0 with an earlier time than the last label"):
        state.check_time([2.0], 1)
    with pytest.raises(InvalidInputError, match="row 2 with an earlier time than the row before"):
        OnlineCoverage().check_time([1, 2, 1], 3)
    with pytest.raises(InvalidInputError, match="row 1 with an earlier time than the row before"):
        state.check_time([9, 4], 2)
    assert state.check_time(None, 1) is state.check_time([], 0) is state


def test_times_are_numbers_or_dates_and_none_is_missing():
    days = np.array(["1970-01-02", "1970-01-03"], dtype="datetime64[D]")
    assert OnlineCoverage().check_time(days, 2).last_time == 2 * 86400
    for zone in (None, "UTC", "Europe/Vienna"):
        hours = pd.date_range("1970-01-02 12:00", periods=2, freq="h", tz=zone)
        expected = 86400 + 13 * 3600 - 3600 * (zone == "Europe/Vienna")
        assert OnlineCoverage().check_time(hours, 2).last_time == expected
    state = OnlineCoverage().check_time(days, 2)
    with pytest.raises(InvalidInputError, match=r"times that are dates, as before\. Got numbers"):
        state.check_time([10**9, 10**9], 2)
    with pytest.raises(InvalidInputError, match=r"times that are numbers, as before\. Got dates"):
        OnlineCoverage().check_time([1, 2], 2).check_time(days, 2)
    for wrong, words in [
        (["monday", "friday"], "numbers or dates. Got <U6"),
        ([1.0, np.nan], "none in row 1"),
        (np.array(["2026-01-01", "NaT"], dtype="datetime64[D]"), "none in row 1"),
        (pd.DatetimeIndex(["2026-01-01", None], tz="UTC"), "none in row 1"),
        ([1.0], r"each of the 2 rows\. Got the shape \(1,\)"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            OnlineCoverage().check_time(wrong, 2)
