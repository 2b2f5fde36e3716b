"""The drift alarm: p-values and capital against their definitions, one by one or in arrays, stored and resumed."""

import itertools
import json
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.sparse import csr_matrix
from scipy.stats import chisquare, ks_2samp, kstest
from sklearn.linear_model import Ridge

from onsphere import (
    Assessment,
    Calibration,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    NotCalibratedError,
    NotFittedError,
)
from onsphere.drift import DriftMonitor, Hint, martingale, ranks, reference_of
from onsphere.drift.martingale import N_PLAYERS, log_asleep, log_bets, log_waking
from onsphere.drift.moved_columns import Window
from onsphere.drift.ranks import Ranks, uniforms
from onsphere.drift.reference import is_reference

# A right procedure fails one comparison of these once in ten thousand runs; seeds are fixed.
LEVEL = 1e-4


def normal(n, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, size=n)


def assessed(uncertainty, residual=None):
    return Assessment(value=uncertainty, uncertainty=uncertainty, anchor_residual=residual)


# --- p-values ---


def test_a_gap_takes_the_next_score_in_proportion_to_what_it_took_before():
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


def test_p_values_are_places_within_the_share_of_the_gap():
    calibration, stream = normal(30), normal(700, 1, shift=0.5)
    counted = Ranks.of(calibration, np.random.RandomState(0))
    draws = uniforms(counted.key, np.arange(2 * len(stream)))[1::2]
    mass, expected = [1] * 31, []
    for score, draw in zip(stream, draws, strict=True):
        gap = int(np.sum(calibration < score))
        expected.append((sum(mass[gap + 1 :]) + draw * mass[gap]) / sum(mass))
        mass[gap] += 1
    np.testing.assert_allclose(counted.p_values(stream), expected, rtol=1e-12)


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
        found.append(Ranks.of(scores[:8], np.random.RandomState(seed)).p_values(scores[8:]))
    p = np.array(found)
    for column in p.T:
        assert kstest(column, "uniform").pvalue > LEVEL
    for first, second in itertools.combinations(range(4), 2):
        cells = np.floor(3 * p[:, first]) * 3 + np.floor(3 * p[:, second])
        assert chisquare(np.bincount(cells.astype(int), minlength=9)).pvalue > LEVEL
    assert chisquare(np.bincount((p > 0.5) @ [8, 4, 2, 1], minlength=16)).pvalue > LEVEL


def test_a_long_stream_has_uniform_p_values_though_its_calibration_is_small():
    p = DriftMonitor(normal(20), random_state=1).update(normal(50_000, 1)).p_values
    assert kstest(p, "uniform").pvalue > LEVEL
    assert abs(np.corrcoef(p[1:], p[:-1])[0, 1]) < 4 / math.sqrt(len(p))


def test_the_largest_score_has_the_smallest_p_value():
    update = DriftMonitor(np.arange(99.0)).update([math.inf, -1e300, 98.5])
    assert 0 < update.p_values[0] < 0.01
    assert update.p_values[1] > 0.98
    assert update.p_values[2] < 2 / 102


def test_many_calibration_scores_are_kept_as_a_thousand_cuts_and_their_ends():
    scores = normal(7001)
    counted = Ranks.of(scores, np.random.RandomState(0))
    assert len(counted.places) == ranks.N_CUTS
    assert (counted.values[0], counted.values[-1]) == (scores.min(), scores.max())
    assert (counted.gaps[0], counted.gaps[-1], counted.gaps.sum()) == (1, 1, 7002)
    # A score just above the middle cut has that many calibration scores above it, up to the width of a cell.
    middle = counted.values[500]
    assert counted.p_values(np.array([middle + 1e-12]))[0] == pytest.approx(np.mean(scores > middle), abs=8 / 7001)


def test_the_random_numbers_are_uniform_and_differ_between_keys():
    numbers = uniforms(3, np.arange(100_000))
    assert kstest(numbers, "uniform").pvalue > LEVEL
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.015
    assert abs(np.corrcoef(numbers, uniforms(4, np.arange(100_000)))[0, 1]) < 0.015


# --- capital ---


@pytest.mark.parametrize("player", range(N_PLAYERS))
def test_each_bet_is_fair_under_uniform_p_values(player):
    def factor(p):
        return math.exp(log_bets(np.array([p]))[player, 0])

    # In p = t^10 or 1 − t^10, so that the poles at 0 and 1 are tame.
    low = quad(lambda t: factor(t**10) * 10 * t**9, 0, 0.5**0.1)[0]
    high = quad(lambda t: factor(1 - t**10) * 10 * t**9, 0, 0.5**0.1)[0]
    # What lies below 2^−53 is cut off, to the disadvantage of the player.
    assert 1 - 1e-3 < low + high < 1 + 1e-6


def test_no_capital_is_made_or_lost_by_sleep():
    step = np.arange(1.0, 10_001.0)
    given_out = np.cumsum(np.exp(log_waking(step)))
    np.testing.assert_allclose(given_out + np.exp(log_asleep(step)), 1, rtol=1e-10)


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
    game = DriftMonitor([0.0])._games[0]
    log_capital = game._play(np.array([0.0, 1.0] * 500))
    assert np.isfinite(log_capital).all()


# --- alarm ---


@pytest.mark.parametrize("quiet", [0, 500, 20_000])
@pytest.mark.parametrize(("shift", "within"), [(3.0, 20), (1.0, 120), (0.5, 500), (-0.7, 500)])
def test_small_and_large_shifts_are_found_early_and_late(quiet, shift, within):
    monitor = DriftMonitor(normal(1000), alpha=0.01)
    stream = np.concatenate([normal(quiet, 1), normal(within, 2, shift)])
    assert monitor.update(stream).alarm
    assert quiet < monitor.alarmed_at <= quiet + within


def test_infinite_scores_raise_the_alarm():
    monitor = DriftMonitor(normal(300))
    assert monitor.update(np.full(10, math.inf)).alarm


def test_the_alarm_is_raised_where_the_capital_reaches_its_level_and_stays():
    calibration, stream = normal(300), np.concatenate([normal(100, 1), normal(50, 2, shift=3.0), normal(3000, 3)])
    monitor = DriftMonitor(calibration, alpha=0.05)
    assert (monitor.alarm, monitor.alarmed_at, monitor.n_seen, monitor.log_capital) == (False, None, 0, 0.0)
    update = monitor.update(stream)
    first = int(np.argmax(update.log_capital >= math.log(20)))
    assert update.log_capital[first] >= math.log(20) > update.log_capital[:first].max()
    assert (monitor.alarm, monitor.alarmed_at, monitor.n_seen) == (True, first + 1, 3150)
    assert monitor.update(0.0).alarm
    assert monitor.alarmed_at == first + 1
    stricter = DriftMonitor(calibration, alpha=1e-6)
    stricter.update(stream)
    assert stricter.alarmed_at > first + 1


def test_reset_is_a_new_start():
    X, scores = normal((200, 2)), normal(200)
    monitor, other = (DriftMonitor(scores, reference=X, anchor_residuals=scores) for _ in range(2))
    monitor.observe(X, assessed(np.full(200, 9.0), np.full(200, 9.0)))
    assert monitor.alarm
    monitor.reset()
    assert monitor.state() == other.state()
    plain = DriftMonitor(scores)
    first = plain.update(normal(300, 1)).log_capital
    plain.reset()
    assert np.array_equal(plain.update(normal(300, 1)).log_capital, first)


def test_another_seed_draws_other_p_values_and_the_same_seed_the_same():
    def p_values(seed):
        return DriftMonitor(normal(20), random_state=seed).update(normal(5, 1)).p_values.tolist()

    assert p_values(0) == p_values(0) != p_values(1)
    assert p_values(np.random.RandomState(1)) == p_values(1)
    assert p_values(None) != p_values(None)


# --- two games ---


def test_an_alarm_on_the_anchor_residual_alone():
    monitor = DriftMonitor(normal(300), anchor_residuals=normal(200, 1), alpha=0.01)
    update = monitor.update(normal(100, 2), anchor_residual=normal(100, 3, shift=2.0))
    alone = DriftMonitor(normal(300)).update(normal(100, 2))
    assert update.alarm
    assert not alone.alarm
    assert kstest(update.p_values, "uniform").pvalue > LEVEL > kstest(update.anchor_p_values, "uniform").pvalue
    assert alone.anchor_p_values is None


def test_two_games_share_alpha():
    monitor = DriftMonitor(normal(300), anchor_residuals=normal(200, 1))
    update = monitor.update(normal(100, 2, shift=0.5), anchor_residual=normal(100, 3))
    first, second = (np.array(game.log_capital) for game in monitor._games)
    assert update.log_capital[-1] == monitor.log_capital == max(first, second) - math.log(2)


# --- rows in any portions, stored and resumed ---


def through_json(monitor):
    return DriftMonitor.from_state(json.loads(json.dumps(monitor.state(), allow_nan=False)))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, 0]),
    st.integers(1, 400),
)
def test_rows_in_any_portions_give_the_same_bits(portions, seed, decimals, n_calibration):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=n_calibration + sum(portions)) * rng.choice([1.0, 5.0])
    scores = scores if decimals is None else scores.round(decimals)
    calibration, stream = scores[:n_calibration], scores[n_calibration:]
    at_once, in_parts = DriftMonitor(calibration), DriftMonitor(calibration)
    whole = at_once.update(stream)
    parts = []
    for part in np.split(stream, np.cumsum(portions)[:-1]):
        parts.append(in_parts.update(part))
        in_parts = through_json(in_parts)
    assert np.array_equal(whole.p_values, np.concatenate([part.p_values for part in parts]))
    assert np.array_equal(whole.log_capital, np.concatenate([part.log_capital for part in parts]))
    assert at_once.state() == in_parts.state()


def test_a_long_array_is_the_same_as_single_rows(monkeypatch):
    stream = normal(1500, 1, shift=0.3)
    whole, single, chunked = (DriftMonitor(normal(300)) for _ in range(3))
    whole.update(stream)
    for score in stream:
        single.update(score)
    monkeypatch.setattr(martingale, "_CHUNK", 700)
    chunked.update(stream)
    assert whole.state() == single.state() == chunked.state()
    assert whole.alarmed_at is not None


def test_the_state_does_not_grow_with_the_stream():
    X, scores = normal((5000, 3)), normal(5000)
    monitor = DriftMonitor(scores[:1000], reference=X[:100], window=50)
    sizes = []
    for _ in range(3):
        monitor.observe(X, assessed(scores))
        sizes.append(len(json.dumps(monitor.state())))
    assert max(sizes) < 1.05 * sizes[0]


def test_a_resumed_monitor_gives_the_same_hints():
    frame = pd.DataFrame({"a": [1.0, math.nan, 3.0], "b": ["x", None, "y"]})
    monitor = DriftMonitor(normal(50), reference=frame, anchor_residuals=normal(50))
    monitor.observe(frame[::-1], assessed(normal(3), normal(3)))
    again = through_json(monitor)
    assert again.hints() == monitor.hints()
    assert again.state() == monitor.state()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("format"), r"Expected a state of the format .* Got None"),
        (lambda state: state.update(format="another"), "Got 'another'"),
        (lambda state: state.pop("alpha"), "cannot be read: 'alpha'"),
        (lambda state: state.update(games=None), "cannot be read"),
        (lambda state: state["games"][0].update(log_gain=[0.0]), "capital of 7 players"),
        (lambda state: state["games"][0]["ranks"]["counts"].pop(), "cells do not fit"),
    ],
)
def test_a_spoilt_state_is_refused(spoil, message):
    state = DriftMonitor(normal(10)).state()
    spoil(state)
    with pytest.raises(InvalidInputError, match=message):
        DriftMonitor.from_state(state)


def test_what_is_no_state_is_refused():
    with pytest.raises(InvalidInputError, match=r"Got 7.*DriftMonitor\.state"):
        DriftMonitor.from_state(7)


# --- models ---


@pytest.fixture
def model():
    X = normal((200, 3))
    return HCMRegressor(Ridge()).fit(X, X[:, 0])


def test_the_monitor_takes_a_calibrated_model_its_calibration_or_its_scores(model):
    X = normal((100, 3), 1)
    model.calibrate(X, X[:, 0])
    scores = model.calibration_.uncertainty
    duck = SimpleNamespace(calibration_=SimpleNamespace(uncertainty=scores))
    sources = (model, model.calibration_, scores, Calibration(scores, np.zeros(100)), list(scores), duck)
    states = [DriftMonitor(source).state() for source in sources]
    assert all(state == states[0] for state in states)


def test_a_model_sees_shifted_rows_and_says_which_column_moved(model):
    X = normal((300, 3), 1)
    model.calibrate(X, X[:, 0])
    residuals = model.assess(X).anchor_residual
    monitor = DriftMonitor(model, anchor_residuals=residuals, reference=X)
    quiet = normal((200, 3), 2)
    assert not monitor.observe(quiet, model.assess(quiet)).alarm
    shifted = normal((200, 3), 3) + np.array([6.0, 0.0, 0.0])
    assert monitor.observe(shifted, model.assess(shifted)).alarm
    assert monitor.hints()[0].column == "0"


def test_what_is_not_calibrated_is_refused(model):
    with pytest.raises(NotCalibratedError, match=r"DriftMonitor needs a calibrated HCMRegressor\. Call calibrate"):
        DriftMonitor(model)
    with pytest.raises(NotFittedError, match="not fitted"):
        DriftMonitor(HCMRegressor())
    with pytest.raises(NotCalibratedError, match=r"needs a calibrated SimpleNamespace\. Call calibrate"):
        DriftMonitor(SimpleNamespace(calibration_=None))


# --- hints ---


def hints_of(reference, recent, **options):
    monitor = DriftMonitor(normal(50), reference=reference, **options)
    monitor.observe(recent, assessed(normal(len(recent))))
    return monitor.hints()


def test_hints_are_sorted_and_measured_by_hand():
    reference, recent = normal((400, 3)), normal((100, 3), 1) * [1.0, 3.0, 1.0] + [0.0, 0.0, 2.0]
    hints = hints_of(reference, recent)
    assert [hint.column for hint in hints] == ["2", "1", "0"]
    for hint in hints:
        old, new = reference[:, int(hint.column)], recent[:, int(hint.column)]
        assert hint.distance == pytest.approx(ks_2samp(old, new).statistic)
        assert hint.strength == pytest.approx(hint.distance * math.sqrt(80))
        assert hint.shift == pytest.approx((new.mean() - old.mean()) / old.std())
        assert hint.spread == pytest.approx(new.std() / old.std())
    assert hints[1].strength > 1.36 > hints[2].strength
    assert str(hints[0]).startswith(f"2: mean {hints[0].shift:+.2f} standard deviations, spread ×")


def test_only_the_last_rows_count():
    reference = normal((400, 2))
    rows = np.concatenate([normal((500, 2), 1) + np.array([5.0, 0.0]), normal((60, 2), 2) + np.array([0.0, 5.0])])
    assert hints_of(reference, rows, window=60) == hints_of(reference, rows[-60:], window=60)
    assert hints_of(reference, rows, window=60)[0].column == "1"


def test_large_references_are_thinned():
    reference, recent = normal((5000, 1)), normal((200, 1), 1, shift=0.5)
    (hint,) = hints_of(reference, recent)
    assert hint.distance == pytest.approx(ks_2samp(reference[:, 0], recent[:, 0]).statistic, abs=0.002)
    assert hint.strength == pytest.approx(hint.distance * math.sqrt(5000 * 200 / 5200))


def test_text_new_categories_and_missing_values():
    reference = pd.DataFrame({"kind": ["a"] * 60 + ["b"] * 40, "mixed": ["x", None] * 50, "n": [1.0, math.nan] * 50})
    recent = pd.DataFrame({"n": [math.nan] * 10, "mixed": ["x"] * 5 + [None] * 5, "kind": ["a"] * 3 + ["new"] * 7})
    hints = {hint.column: hint for hint in hints_of(reference, recent)}
    assert (hints["kind"].category, hints["kind"].distance) == ("(other)", pytest.approx(0.7))
    assert str(hints["kind"]) == "kind: share of '(other)' changed by 70%"
    assert hints["mixed"].distance == pytest.approx(0)
    assert (hints["n"].distance, hints["n"].shift) == (pytest.approx(0.5), None)
    assert str(hints["n"]) == "n: share of missing numbers changed by 50%"


def test_rare_categories_are_one():
    reference = pd.DataFrame({"id": [f"row {index}" for index in range(400)]})
    (hint,) = hints_of(reference, pd.DataFrame({"id": [f"another {index}" for index in range(10)]}))
    assert (hint.distance, hint.moved) == (0.0, False)  # all rows were new, and still are
    shops = pd.DataFrame({"shop": ["a", "b", "c", "d"] * 100})
    (hint,) = hints_of(reference_of(shops, n_categories=3), pd.DataFrame({"shop": ["d", "e"] * 50}))
    assert (hint.category, hint.distance, hint.moved) == ("(other)", pytest.approx(0.75, abs=0.1), True)


def test_columns_without_spread_or_numbers():
    reference = np.column_stack([np.ones(50), np.ones(50), np.full(50, np.nan), np.ones(50)])
    recent = np.column_stack([np.ones(20), np.full(20, 2.0), np.full(20, np.nan), np.arange(20) % 2])
    hints = {hint.column: hint for hint in hints_of(reference, recent)}
    assert hints["0"] == Hint("0", 0.0, 0.0, shift=0.0, spread=1.0)
    assert (hints["1"].distance, hints["1"].shift, hints["1"].spread) == (1.0, math.inf, 1.0)
    assert hints["2"] == Hint("2", 0.0, 0.0)
    assert (hints["3"].shift, hints["3"].spread) == (-math.inf, math.inf)


@pytest.mark.parametrize("size", [1e300, 1.7e308])
def test_numbers_too_large_to_add_up_are_told_without_a_warning(size):
    rows = np.clip(normal((300, 1)), -1, 1) * size
    (hint,) = hints_of(rows, rows[:50])
    assert (hint.shift, hint.spread) == (pytest.approx(0.0, abs=1e-6), 1.0)
    assert not hint.moved


def test_numbers_in_arrays_of_objects_are_numbers():
    rows = np.array([[1, "a"], [None, "b"], [3.5, "a"]], dtype=object)
    hints = {hint.column: hint for hint in hints_of(rows, rows)}
    assert hints["0"].shift == 0.0
    assert hints["1"].category is not None
    dates = np.array([[SimpleNamespace()], [SimpleNamespace()]])  # what is neither is taken as text
    assert hints_of(dates, dates)[0].category is not None


def test_boolean_and_date_columns():
    frame = pd.DataFrame(
        {"flag": [True, False] * 20, "day": pd.to_datetime(["2026-01-01", None, "2026-01-09"] * 13 + [None])}
    )
    hints = {hint.column: hint for hint in hints_of(frame, frame)}
    assert (hints["flag"].distance, hints["flag"].shift) == (0.0, 0.0)
    assert (hints["day"].distance, hints["day"].shift) == (0.0, 0.0)
    later = frame.assign(day=frame["day"] + pd.Timedelta(days=4))
    for day in (later["day"], later["day"].dt.tz_localize("UTC"), later["day"].astype(object)):
        (hint,) = hints_of(frame[["day"]], day.to_frame())
        assert hint.shift == pytest.approx(1.0)


# --- what is kept of a reference ---


def test_what_was_kept_serves_as_the_rows_do():
    frame = pd.DataFrame({"kind": ["a", "b", None] * 50, "n": normal(150), "day": pd.date_range("2026", periods=150)})
    recent = frame.tail(60)
    kept = json.loads(json.dumps(reference_of(frame)))
    assert hints_of(kept, recent) == hints_of(frame, recent)
    assert Window(60, kept).reference == kept
    again = DriftMonitor.from_state(DriftMonitor(normal(50), reference=kept).state())
    again.observe(recent, Assessment(value=normal(60), uncertainty=normal(60)))
    assert again.hints() == hints_of(frame, recent)


def test_few_numbers_are_nearly_as_good():
    rows, recent = normal((5000, 1)), normal((200, 1), 1, shift=0.5)
    few = reference_of(rows, n_kept=101)
    assert len(few["0"]["sample"]) == 101
    (hint,) = hints_of(few, recent)
    assert hint.distance == pytest.approx(ks_2samp(rows[:, 0], recent[:, 0]).statistic, abs=0.011)
    assert hint.shift == hints_of(rows, recent)[0].shift


def strengths(rows, *, n_rows, n_streams=200, **kept):
    return np.array([hints_of(reference_of(rows(n_rows), **kept), rows(200))[0].strength for _ in range(n_streams)])


@pytest.mark.parametrize("n_kept", [2, 5, 20, 101])
def test_numbers_that_did_not_move_seem_not_to_however_few_were_kept(n_kept):
    rng = np.random.default_rng(0)
    for rows in (lambda n: rng.normal(size=(n, 1)), lambda n: rng.integers(0, 4, (n, 1))):
        found = strengths(rows, n_rows=2000, n_kept=n_kept)
        assert np.mean(found > 1.36) < 0.1  # 0.05 at most, and what chance adds
        assert found.max() < 2.5


@pytest.mark.parametrize(("n_categories", "n_rows", "n_kept"), [(2, 320, 20), (80, 320, 20), (10**6, 90, 100)])
def test_categories_that_did_not_move_seem_not_to_however_many_there_are(n_categories, n_rows, n_kept):
    rng = np.random.default_rng(0)

    def rows(n):
        return pd.DataFrame({"shop": [f"shop {number}" for number in rng.integers(0, n_categories, n)]})

    found = strengths(rows, n_rows=n_rows, n_categories=n_kept)
    assert np.mean(found > 1.36) < 0.1
    assert found.max() < 2.5
    kept = reference_of(rows(n_rows), n_categories=n_kept)
    (hint,) = hints_of(kept, pd.DataFrame({"shop": ["shop 0"] * 200}))  # but one shop alone is something else
    assert hint.moved == (n_categories < 10**6)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.datetimes())


@given(st.lists(VALUES, min_size=1, max_size=20), st.integers(2, 5), st.integers(1, 3))
def test_a_reference_is_plain_json_and_known_as_one(values, n_kept, n_categories):
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object)})
    reference = reference_of(frame, n_kept=n_kept, n_categories=n_categories)
    assert is_reference(json.loads(json.dumps(reference, allow_nan=False)))
    assert len(reference["x"].get("sample", [])) <= n_kept
    assert len(reference["x"].get("shares", [])) <= n_categories
    window = Window(50, reference)
    window.add(window.checked(frame))
    with np.errstate(all="ignore"):
        (hint,) = window.hints()
    assert 0 <= hint.distance <= 1


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
FORGED = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("n_rows", "sample", "mean", "deviation", "shares"), PLAIN | st.just(1))
)


@given(st.dictionaries(st.text(), FORGED, max_size=2) | PLAIN)
def test_a_forged_reference_is_refused_or_harmless(forged):
    if not is_reference(forged):
        with pytest.raises(InvalidInputError, match="Expected a reference that says of each column"):
            Window(5, forged)
        return
    window = Window(5, forged)
    texts = {name: "shares" in each for name, each in forged.items()}
    window.add(window.checked(pd.DataFrame({name: ["a" if text else 1.0] for name, text in texts.items()})))
    with np.errstate(all="ignore"):
        assert len(window.hints()) == len(forged)


NUMBERS = {"n_rows": 3, "sample": [1.0, 2.0, None], "mean": 1.5, "deviation": 0.5}


@pytest.mark.parametrize(
    "summary",
    [
        "1.0",
        {"n_rows": 3},
        NUMBERS | {"n_rows": 0},
        NUMBERS | {"n_rows": True},
        NUMBERS | {"n_rows": 10**400},
        NUMBERS | {"sample": []},
        NUMBERS | {"sample": [1.0, "2"]},
        NUMBERS | {"sample": [math.nan]},
        NUMBERS | {"sample": [10**400]},
        NUMBERS | {"mean": None},
        NUMBERS | {"mean": math.inf},
        NUMBERS | {"deviation": -1.0},
        {"n_rows": 3, "shares": {"a": 0.7, "b": 0.7}},
        {"n_rows": 3, "shares": {"a": -0.1}},
        {"n_rows": 3, "shares": {"a": "1"}},
        {"n_rows": 3, "shares": ["a"]},
    ],
)
def test_what_is_no_reference(summary):
    assert is_reference({"x": NUMBERS})
    assert not is_reference({"x": NUMBERS, "y": summary})
    with pytest.raises(InvalidInputError, match="Pass rows instead, or fit the model anew"):
        DriftMonitor(normal(10), reference={"x": summary})


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "'alpha' parameter of DriftMonitor must be"),
        ({"alpha": 1.0}, "'alpha' parameter of DriftMonitor must be"),
        ({"alpha": "1 %"}, "'alpha' parameter of DriftMonitor must be"),
        ({"window": 0}, "'window' parameter of DriftMonitor must be"),
        ({"window": 2.5}, "'window' parameter of DriftMonitor must be"),
        ({"random_state": "seed"}, "'random_state' parameter of DriftMonitor must be"),
        ({"anchor_residuals": []}, "Expected anchor_residuals of shape"),
        ({"anchor_residuals": [math.nan]}, "Expected finite numbers as anchor_residuals"),
        ({"reference": [1.0, 2.0]}, r"Expected X of shape \(n, p\), dense\. Got shape \(2,\)"),
        ({"reference": np.empty((0, 2))}, "at least one row and one column"),
        ({"reference": np.empty((2, 0))}, "at least one row and one column"),
        ({"reference": pd.DataFrame([[1, 2]], columns=["a", "a"])}, "more than one column named a"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        DriftMonitor(normal(10), **options)


@pytest.mark.parametrize("scores", [[], 1.0, [[1.0], [2.0]], ["a"], [True], [1j]], ids=str)
def test_calibration_scores_of_another_shape_are_refused(scores):
    with pytest.raises(InvalidInputError, match=r"Expected calibration of shape \(n,\)"):
        DriftMonitor(scores)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_calibration_scores_must_be_finite(bad):
    with pytest.raises(InvalidInputError, match=r"Expected finite numbers as calibration\. Got 1 of 2"):
        DriftMonitor([1.0, bad])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (math.nan, "Got 1 of 1 that are NaN or infinite"),
        ([1.0, -math.inf, math.nan], "Got 2 of 3"),
        ([], r"Expected uncertainty of shape \(n,\).*Got shape \(0,\)"),
        ([[1.0], [2.0]], r"Got shape \(2, 1\)"),
        ("high", "Expected uncertainty of shape"),
        (np.array(["a", None], dtype=object), "Expected numbers as uncertainty"),
        ([1.0, [2.0]], "Expected numbers as uncertainty"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "without masked entries"),
        (SimpleNamespace(requires_grad=True), "without a gradient"),
    ],
    ids=str,
)
def test_bad_scores_are_refused_and_change_nothing(scores, message):
    monitor = DriftMonitor(normal(10))
    before = monitor.state()
    with pytest.raises(InvalidInputError, match=message):
        monitor.update(scores)
    assert monitor.state() == before


def test_anchor_residuals_come_where_they_are_watched_and_only_there():
    with pytest.raises(InvalidInputError, match=r"Expected no anchor_residual.*anchor_residuals="):
        DriftMonitor(normal(10)).update(1.0, anchor_residual=1.0)
    both = DriftMonitor(normal(10), anchor_residuals=normal(10), reference=normal((10, 2)))
    with pytest.raises(InvalidInputError, match=r"Expected an anchor_residual for every row.*Lift"):
        both.update(1.0)
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        both.update([1.0, 2.0], anchor_residual=1.0)
    with pytest.raises(InvalidInputError, match=r"Expected an anchor_residual for every row"):
        both.observe(normal((3, 2)), assessed(normal(3)))
    assert both.n_seen == 0


def test_hints_need_a_reference_and_rows():
    monitor = DriftMonitor(normal(10))
    with pytest.raises(InvalidInputError, match=r"observe needs features to compare with.*reference="):
        monitor.observe(normal((3, 2)), assessed(normal(3)))
    with pytest.raises(InvalidInputError, match=r"hints needs features to compare with.*reference="):
        monitor.hints()
    with pytest.raises(InvalidInputError, match=r"hints needs rows of the stream.*observe"):
        DriftMonitor(normal(10), reference=normal((5, 2))).hints()


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (normal((3, 3)), r"Expected the 2 columns.*Got 3, of which \['2'\] are unknown, and none are missing"),
        (normal((3, 1)), r"none are unknown, and \['1'\] are missing"),
        (pd.DataFrame(normal((3, 2)), columns=["a", "b"]), r"\['a', 'b'\] are unknown"),
        (normal((2, 2)), "inconsistent numbers of samples"),
        (normal(3), r"Expected X of shape \(n, p\)"),
        (csr_matrix(normal((3, 2))), "toarray"),
        (np.array([["a", "b"]] * 3), "Expected numbers in column '0', as in the reference rows"),
    ],
)
def test_rows_unlike_the_reference_are_refused_and_change_nothing(X, message):
    monitor = DriftMonitor(normal(10), reference=normal((5, 2)))
    before = monitor.state()
    with pytest.raises(InvalidInputError, match=message):
        monitor.observe(X, assessed(normal(3)))
    assert monitor.state() == before


def test_observe_needs_an_assessment():
    with pytest.raises(InvalidTypeError, match=r"observe needs an Assessment\. Got ndarray"):
        DriftMonitor(normal(10), reference=normal((5, 2))).observe(normal((3, 2)), normal(3))
