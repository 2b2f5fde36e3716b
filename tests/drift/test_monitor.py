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
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesRegressor
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


def assess(uncertainty, residual=None, missed=None):
    return Assessment(value=uncertainty, uncertainty=uncertainty, anchor_residual=residual, missed=missed)


def calibrate(n=300, seed=0):
    """Return a calibration whose rows have an uncertainty and a shortfall."""
    return Calibration(normal(n, seed), np.zeros(n), missed=normal(n, seed + 100))


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


def test_games_share_alpha():
    monitor = DriftMonitor(normal(300), anchor_residuals=normal(200, 1))
    update = monitor.update(normal(100, 2, shift=0.5), anchor_residual=normal(100, 3))
    alone = DriftMonitor(normal(300)).update(normal(100, 2, shift=0.5))
    np.testing.assert_array_equal(update.evidence["uncertainty"], alone.log_capital - math.log(2))
    np.testing.assert_array_equal(update.log_capital, np.max([*update.evidence.values()], axis=0))
    assert update.log_capital[-1] == monitor.log_capital
    third = DriftMonitor(calibrate(), anchor_residuals=normal(200, 1))
    update = third.update(assess(normal(100, 2, shift=0.5), residual=normal(100, 3), missed=normal(100, 4)))
    np.testing.assert_array_equal(update.evidence["uncertainty"], alone.log_capital - math.log(3))
    assert third.watched == tuple(update.evidence) == ("uncertainty", "novelty", "anchor residual")


@pytest.mark.parametrize(
    ("moved", "name"), [("uncertainty", "uncertainty"), ("missed", "novelty"), ("residual", "anchor residual")]
)
def test_the_alarm_names_the_score_that_raised_it(moved, name):
    monitor = DriftMonitor(calibrate(), anchor_residuals=normal(300, 1), alpha=0.01)
    scores = {"uncertainty": normal(200, 2), "missed": normal(200, 3), "residual": normal(200, 4)}
    assert not monitor.update(assess(**scores)).alarm
    assert monitor.alarmed_by is None
    update = monitor.update(assess(**scores | {moved: normal(200, 5, shift=2.0)}))
    p_values = {
        "uncertainty": update.p_values,
        "missed": update.novelty_p_values,
        "residual": update.anchor_p_values,
    }
    is_uniform = {each: kstest(values, "uniform").pvalue > LEVEL for each, values in p_values.items()}
    assert is_uniform == {each: each != moved for each in p_values}
    assert monitor.alarmed_by == name
    # It stays, whatever else moves later.
    monitor.update(assess(*(normal(200, 6, shift=3.0) for _ in range(3))))
    assert monitor.alarmed_by == name
    monitor.reset()
    assert (monitor.alarm, monitor.alarmed_by) == (False, None)


def test_a_forest_that_repeats_its_last_leaf_is_caught_by_novelty():
    """Beyond the data a forest is as sure as at their edge; the target frame alone sees nothing."""
    X = normal((600, 3))
    y = X[:, 0] + normal(600, 9)
    model = HCMRegressor(ExtraTreesRegressor(20, min_samples_leaf=2), random_state=0).fit(X[:300], y[:300])
    model.calibrate(X[300:], y[300:])
    far = normal((100, 3), 1) + np.array([0.0, 5.0, 0.0])
    monitor = DriftMonitor(model)
    assert not monitor.update(model.assess(normal((100, 3), 2))).alarm
    assert monitor.update(model.assess(far)).alarm
    assert monitor.alarmed_at <= 110
    plain = clone(model).set_params(frames="target").fit(X[:300], y[:300]).calibrate(X[300:], y[300:])
    before = DriftMonitor(plain)
    assert before.watched == ("uncertainty",)
    assert not before.update(plain.predict_uncertainty(far)).alarm


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
        (lambda state: state["games"]["uncertainty"].update(log_gain=[0.0]), "capital of 7 players"),
        (lambda state: state["games"]["uncertainty"]["ranks"]["counts"].pop(), "cells do not fit"),
        (lambda state: state["games"].update(another=state["games"]["uncertainty"]), "games on uncertainty, another"),
        (lambda state: state.update(games={"missed": state["games"]["uncertainty"]}), "games on missed"),
    ],
)
def test_a_damaged_state_is_rejected(spoil, message):
    state = DriftMonitor(normal(10)).state()
    spoil(state)
    with pytest.raises(InvalidInputError, match=message):
        DriftMonitor.from_state(state)


# What the first version wrote after two rows, with games on the uncertainty and on the anchor residual.
FORMER_STATE = """{"format": "onsphere drift monitor 1", "alpha": 0.01, "alarmed_at": null, "games": [
{"ranks": {"values": [1.0, 2.0, 2.5, 3.0], "places": [0.7151893663724195, 1.602763376071644, 2.423654799338905,
3.5448831829968968], "gaps": [1, 1, 1, 1, 1], "counts": [0, 1, 0, 0, 1], "key": 8737460674931247}, "n_seen": 2,
"log_capital": 0.0092278315716946, "log_gain": [-1.1069711699874965, -0.06635395181945059, 0.08168906109175647,
0.11266784687506895, 0.1003356937501379, -0.2993286124997243, -0.46880114148236496], "log_stakes": [
-2.5877522548267353, -3.1748630521731798, -3.3313487428936357, -3.3299278282710234, -3.243845994330585,
-2.8847800502159506, -3.2590976301710732]},
{"ranks": {"values": [0.1, 0.4, 0.5], "places": [0.8917730007820798, 1.9636627605010293, 2.4375872112626924],
"gaps": [1, 1, 1, 1], "counts": [0, 2, 0, 0], "key": 7126026704836338}, "n_seen": 2,
"log_capital": -0.06989393715131406, "log_gain": [-2.157161203442989, -0.7227227227291333, -0.18085844727211658,
-0.09906521798384935, -0.3231304359676987, -1.1462608719353975, -0.3962967263684493], "log_stakes": [
-2.2257159130183153, -3.0523547804375095, -3.2897285961867366, -3.3095586955522447, -3.205213400784774,
-2.784463613058951, -3.251773140237247]}], "window": null}"""


def test_a_state_of_the_first_version_goes_on_as_it_did():
    monitor = DriftMonitor.from_state(json.loads(FORMER_STATE))
    assert monitor.watched == ("uncertainty", "anchor residual")
    update = monitor.update([4.0, 5.0, 1.0], anchor_residual=[0.6, 0.7, 0.1])
    assert update.log_capital.tolist() == pytest.approx(
        [-0.39107114245567415, -0.4106419917615605, -0.7151437123658181]
    )
    assert through_json(monitor).state() == monitor.state()


@pytest.mark.parametrize(("n_games", "name"), [(1, "uncertainty"), (2, None)])
def test_an_old_alarm_is_named_where_only_one_score_could_raise_it(n_games, name):
    state = json.loads(FORMER_STATE)
    monitor = DriftMonitor.from_state(state | {"alarmed_at": 2, "games": state["games"][:n_games]})
    assert (monitor.alarmed_at, monitor.alarmed_by) == (2, name)


def test_a_restored_monitor_knows_what_raised_its_alarm():
    monitor = DriftMonitor(calibrate())
    monitor.update(assess(normal(50, 1), missed=np.full(50, 9.0)))
    again = through_json(monitor)
    assert (again.alarmed_by, again.watched) == ("novelty", ("uncertainty", "novelty"))


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
    whole = [DriftMonitor(source) for source in (model, model.calibration_)]
    alone = [DriftMonitor(source) for source in (scores, Calibration(scores, np.zeros(100)), list(scores))]
    for monitors in (whole, alone):
        assert all(monitor.state() == monitors[0].state() for monitor in monitors)
    assert [monitors[0].watched for monitors in (whole, alone)] == [("uncertainty", "novelty"), ("uncertainty",)]


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
    with pytest.raises(InvalidInputError, match=r"Expected no anchor residual of each row .*watches uncertainty\. Got"):
        DriftMonitor(normal(10)).update(1.0, anchor_residual=1.0)
    both = DriftMonitor(normal(10), anchor_residuals=normal(10), reference=normal((10, 2)))
    with pytest.raises(
        InvalidInputError, match=r"Expected the anchor residual .*uncertainty and anchor residual.*Lift"
    ):
        both.update(1.0)
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        both.update([1.0, 2.0], anchor_residual=1.0)
    with pytest.raises(InvalidInputError, match=r"Expected the anchor residual"):
        both.observe(normal((3, 2)), assess(normal(3)))
    assert both.n_seen == 0


def test_novelty_is_needed_where_it_is_watched():
    monitor = DriftMonitor(calibrate())
    before = monitor.state()
    for rows in (normal(3), assess(normal(3))):
        with pytest.raises(InvalidInputError, match=r"Expected the novelty of each row \(missed\).*Pass model\.assess"):
            monitor.update(rows)
    with pytest.raises(InvalidInputError, match="numbers above minus infinity as missed"):
        monitor.update(normal(3), missed=[0.1, math.nan, 0.2])
    with pytest.raises(InvalidInputError, match="Expected the uncertainty of each row"):
        monitor.update(None, missed=normal(3))
    assert monitor.state() == before


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


def test_the_rows_of_an_alarm_are_the_same_in_one_batch_or_one_by_one_or_stored_between():
    rng = np.random.default_rng(0)
    X, scores = rng.normal(size=(400, 2)), rng.uniform(size=400)
    stream, rising = rng.normal(size=(500, 2)), rng.uniform(size=500)
    stream[200:280, 1] += 3
    rising[200:280] += 0.8
    monitors = {size: DriftMonitor(scores, reference=X, window=60) for size in (500, 7, 1)}
    for size, monitor in monitors.items():
        for start in range(0, 500, size):
            part = slice(start, start + size)
            monitor.observe(stream[part], Assessment(value=rising[part], uncertainty=rising[part]))
            if size == 7:
                monitor = monitors[7] = DriftMonitor.from_state(json.loads(json.dumps(monitor.state())))
    first = monitors[500]
    assert 190 <= first.changed_at <= first.alarmed_at < 280
    moved = [change.column for change in first.compare_columns() if change.moved]
    assert moved == ["1"]
    for monitor in monitors.values():
        assert (monitor.alarmed_at, monitor.changed_at) == (first.alarmed_at, first.changed_at)
        assert monitor.compare_columns() == first.compare_columns()
    first.reset()
    assert first.changed_at is None


def test_states_of_older_versions_have_no_rows_of_an_alarm():
    monitor = DriftMonitor(np.arange(50.0), reference=np.zeros((50, 1)))
    state = monitor.state()
    del state["lows"], state["window"]["alarm_rows"]
    assert DriftMonitor.from_state(state).changed_at is None
