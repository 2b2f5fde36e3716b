"""Summaries of columns: what they are good for, what they hold, and forged ones."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from onsphere import Assessment, DriftMonitor, InvalidInputError
from onsphere.drift import make_reference
from onsphere.drift.column_changes import Window
from onsphere.drift.reference import is_reference


def normal(n, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, size=n)


def assess(uncertainty, residual=None):
    return Assessment(value=uncertainty, uncertainty=uncertainty, anchor_residual=residual)


def compare_to(reference, recent, **options):
    monitor = DriftMonitor(normal(50), reference=reference, **options)
    monitor.observe(recent, assess(normal(len(recent))))
    return monitor.compare_columns()


def test_a_reference_gives_the_same_changes_as_its_rows():
    frame = pd.DataFrame({"kind": ["a", "b", None] * 50, "n": normal(150), "day": pd.date_range("2026", periods=150)})
    recent = frame.tail(60)
    kept = json.loads(json.dumps(make_reference(frame)))
    assert compare_to(kept, recent) == compare_to(frame, recent)
    assert Window(60, kept).reference == kept
    again = DriftMonitor.from_state(DriftMonitor(normal(50), reference=kept).state())
    again.observe(recent, Assessment(value=normal(60), uncertainty=normal(60)))
    assert again.compare_columns() == compare_to(frame, recent)


def test_a_small_sample_gives_nearly_the_same_distance():
    rows, recent = normal((5000, 1)), normal((200, 1), 1, shift=0.5)
    few = make_reference(rows, n_kept=101)
    assert len(few["0"]["sample"]) == 101
    (change,) = compare_to(few, recent)
    assert change.distance == pytest.approx(ks_2samp(rows[:, 0], recent[:, 0]).statistic, abs=0.011)
    assert change.shift == compare_to(rows, recent)[0].shift


def strengths(rows, *, n_rows, n_streams=200, **kept):
    return np.array([compare_to(make_reference(rows(n_rows), **kept), rows(200))[0].strength for _ in range(n_streams)])


@pytest.mark.parametrize("n_kept", [2, 5, 20, 101])
def test_numbers_that_did_not_move_are_rarely_reported_however_small_the_sample(n_kept):
    rng = np.random.default_rng(0)
    for rows in (lambda n: rng.normal(size=(n, 1)), lambda n: rng.integers(0, 4, (n, 1))):
        found = strengths(rows, n_rows=2000, n_kept=n_kept)
        assert np.mean(found > 1.36) < 0.1  # 0.05 at most, and what chance adds
        assert found.max() < 2.5


@pytest.mark.parametrize(("n_categories", "n_rows", "n_kept"), [(2, 320, 20), (80, 320, 20), (10**6, 90, 100)])
def test_categories_that_did_not_move_are_rarely_reported_however_many_there_are(n_categories, n_rows, n_kept):
    rng = np.random.default_rng(0)

    def rows(n):
        return pd.DataFrame({"shop": [f"shop {number}" for number in rng.integers(0, n_categories, n)]})

    found = strengths(rows, n_rows=n_rows, n_categories=n_kept)
    assert np.mean(found > 1.36) < 0.1
    assert found.max() < 2.5
    kept = make_reference(rows(n_rows), n_categories=n_kept)
    (change,) = compare_to(kept, pd.DataFrame({"shop": ["shop 0"] * 200}))  # but one shop alone is something else
    assert change.moved == (n_categories < 10**6)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.datetimes())


@given(st.lists(VALUES, min_size=1, max_size=20), st.integers(2, 5), st.integers(1, 3))
def test_a_reference_of_any_values_is_valid_plain_json(values, n_kept, n_categories):
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object)})
    reference = make_reference(frame, n_kept=n_kept, n_categories=n_categories)
    assert is_reference(json.loads(json.dumps(reference, allow_nan=False)))
    assert len(reference["x"].get("sample", [])) <= n_kept
    assert len(reference["x"].get("shares", [])) <= n_categories
    window = Window(50, reference)
    window.add(frame)
    with np.errstate(all="ignore"):
        (change,) = window.compare()
    assert 0 <= change.distance <= 1


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
FORGED = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("n_rows", "sample", "mean", "deviation", "shares"), PLAIN | st.just(1))
)


@given(PLAIN)
def test_only_a_dict_can_be_a_reference(value):
    assert isinstance(value, dict) or not is_reference(value)


@given(st.dictionaries(st.text(), FORGED, max_size=2))
def test_a_forged_reference_is_rejected_or_harmless(forged):
    if not is_reference(forged):
        with pytest.raises(InvalidInputError, match="Expected a reference in the form that make_reference returns"):
            Window(5, forged)
        return
    window = Window(5, forged)
    texts = {name: "shares" in each for name, each in forged.items()}
    window.add(pd.DataFrame({name: ["a" if text else 1.0] for name, text in texts.items()}))
    with np.errstate(all="ignore"):
        assert len(window.compare()) == len(forged)


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
def test_invalid_references_are_rejected(summary):
    assert is_reference({"x": NUMBERS})
    assert not is_reference({"x": NUMBERS, "y": summary})
    with pytest.raises(InvalidInputError, match="Pass rows instead, or fit the model again"):
        DriftMonitor(normal(10), reference={"x": summary})
