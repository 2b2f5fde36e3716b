"""The drift alarm: when it is raised, rows in parts, stored states, and bad input."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.stats import kstest
from sklearn.linear_model import Ridge

from onsphere import (
    Assessment,
    Calibration,
    DriftMonitor,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    NotCalibratedError,
    NotFittedError,
)
from onsphere.drift import martingale

# A correct procedure fails one of these comparisons once in ten thousand runs; seeds are fixed.
LEVEL = 1e-4


def normal(n, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, size=n)


def assess(uncertainty, residual=None):
    return Assessment(value=uncertainty, uncertainty=uncertainty, anchor_residual=residual)


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


def test_the_alarm_is_raised_when_the_capital_reaches_its_level_and_stays():
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


def test_reset_forgets_the_stream():
    X, scores = normal((200, 2)), normal(200)
    monitor, other = (DriftMonitor(scores, reference=X, anchor_residuals=scores) for _ in range(2))
    monitor.observe(X, assess(np.full(200, 9.0), np.full(200, 9.0)))
    assert monitor.alarm
    monitor.reset()
    assert monitor.state() == other.state()
    plain = DriftMonitor(scores)
    first = plain.update(normal(300, 1)).log_capital
    plain.reset()
    assert np.array_equal(plain.update(normal(300, 1)).log_capital, first)


def test_p_values_depend_on_the_seed():
    def p_values(seed):
        return DriftMonitor(normal(20), random_state=seed).update(normal(5, 1)).p_values.tolist()

    assert p_values(0) == p_values(0) != p_values(1)
    assert p_values(np.random.RandomState(1)) == p_values(1)
    assert p_values(None) != p_values(None)


# --- two games ---


def test_the_anchor_residual_alone_can_raise_the_alarm():
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
def test_rows_in_parts_give_the_same_bits_as_rows_at_once(portions, seed, decimals, n_calibration):
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


def test_single_rows_give_the_same_state_as_one_long_array(monkeypatch):
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
        monitor.observe(X, assess(scores))
        sizes.append(len(json.dumps(monitor.state())))
    assert max(sizes) < 1.05 * sizes[0]


def test_a_restored_monitor_finds_the_same_column_changes():
    frame = pd.DataFrame({"a": [1.0, math.nan, 3.0], "b": ["x", None, "y"]})
    monitor = DriftMonitor(normal(50), reference=frame, anchor_residuals=normal(50))
    monitor.observe(frame[::-1], assess(normal(3), normal(3)))
    again = through_json(monitor)
    assert again.compare_columns() == monitor.compare_columns()
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
def test_a_damaged_state_is_rejected(spoil, message):
    state = DriftMonitor(normal(10)).state()
    spoil(state)
    with pytest.raises(InvalidInputError, match=message):
        DriftMonitor.from_state(state)


def test_a_state_must_be_a_dict():
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
    sources = (model, model.calibration_, scores, Calibration(scores, np.zeros(100)), list(scores))
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
    assert monitor.compare_columns()[0].column == "0"


def test_models_must_be_calibrated(model):
    with pytest.raises(NotCalibratedError, match=r"DriftMonitor needs a calibrated HCMRegressor\. Call calibrate"):
        DriftMonitor(model)
    with pytest.raises(NotFittedError, match="not fitted"):
        DriftMonitor(HCMRegressor())


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
def test_bad_options_are_rejected(options, message):
    with pytest.raises(InvalidInputError, match=message):
        DriftMonitor(normal(10), **options)


@pytest.mark.parametrize("scores", [[], 1.0, [[1.0], [2.0]], ["a"], [True], [1j]], ids=str)
def test_calibration_scores_of_another_shape_are_rejected(scores):
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
def test_bad_scores_are_rejected_and_change_nothing(scores, message):
    monitor = DriftMonitor(normal(10))
    before = monitor.state()
    with pytest.raises(InvalidInputError, match=message):
        monitor.update(scores)
    assert monitor.state() == before


def test_anchor_residuals_are_needed_only_if_they_are_watched():
    with pytest.raises(InvalidInputError, match=r"Expected no anchor_residual.*made without anchor_residuals"):
        DriftMonitor(normal(10)).update(1.0, anchor_residual=1.0)
    both = DriftMonitor(normal(10), anchor_residuals=normal(10), reference=normal((10, 2)))
    with pytest.raises(InvalidInputError, match=r"Expected an anchor_residual.*made with anchor_residuals.*Lift"):
        both.update(1.0)
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        both.update([1.0, 2.0], anchor_residual=1.0)
    with pytest.raises(InvalidInputError, match=r"Expected an anchor_residual"):
        both.observe(normal((3, 2)), assess(normal(3)))
    assert both.n_seen == 0


def test_comparing_columns_needs_a_reference_and_rows():
    monitor = DriftMonitor(normal(10))
    with pytest.raises(InvalidInputError, match=r"observe needs features to compare with.*reference="):
        monitor.observe(normal((3, 2)), assess(normal(3)))
    with pytest.raises(InvalidInputError, match=r"compare_columns needs features to compare with.*reference="):
        monitor.compare_columns()
    with pytest.raises(InvalidInputError, match=r"compare_columns needs rows of the stream.*observe"):
        DriftMonitor(normal(10), reference=normal((5, 2))).compare_columns()


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (normal((3, 3)), r"Expected the 2 columns.*Got 3; unknown are \['2'\], and missing are none"),
        (normal((3, 1)), r"unknown are none, and missing are \['1'\]"),
        (pd.DataFrame(normal((3, 2)), columns=["a", "b"]), r"unknown are \['a', 'b'\]"),
        (normal((2, 2)), "inconsistent numbers of samples"),
        (normal(3), r"Expected X of shape \(n, p\)"),
        (csr_matrix(normal((3, 2))), "toarray"),
        (np.array([["a", "b"]] * 3), "Expected numbers in column '0', as in the reference rows"),
    ],
)
def test_rows_with_other_columns_are_rejected_and_change_nothing(X, message):
    monitor = DriftMonitor(normal(10), reference=normal((5, 2)))
    before = monitor.state()
    with pytest.raises(InvalidInputError, match=message):
        monitor.observe(X, assess(normal(3)))
    assert monitor.state() == before


def test_observe_needs_an_assessment():
    with pytest.raises(InvalidTypeError, match=r"observe needs an Assessment\. Got ndarray"):
        DriftMonitor(normal(10), reference=normal((5, 2))).observe(normal((3, 2)), normal(3))
