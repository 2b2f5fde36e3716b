"""Columns of new rows compared with a reference."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp

from onsphere import Assessment, DriftMonitor
from onsphere.drift import ColumnChange, make_reference


def normal(n, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, size=n)


def assess(uncertainty, residual=None):
    return Assessment(value=uncertainty, uncertainty=uncertainty, anchor_residual=residual)


def compare_to(reference, recent, **options):
    monitor = DriftMonitor(normal(50), reference=reference, **options)
    monitor.observe(recent, assess(normal(len(recent))))
    return monitor.compare_columns()


def test_changes_are_sorted_and_agree_with_scipy():
    reference, recent = normal((400, 3)), normal((100, 3), 1) * [1.0, 3.0, 1.0] + [0.0, 0.0, 2.0]
    changes = compare_to(reference, recent)
    assert [change.column for change in changes] == ["2", "1", "0"]
    for change in changes:
        old, new = reference[:, int(change.column)], recent[:, int(change.column)]
        assert change.distance == pytest.approx(ks_2samp(old, new).statistic)
        assert change.strength == pytest.approx(change.distance * math.sqrt(80))
        assert change.shift == pytest.approx((new.mean() - old.mean()) / old.std())
        assert change.spread == pytest.approx(new.std() / old.std())
    assert changes[1].strength > 1.36 > changes[2].strength
    assert str(changes[0]).startswith(f"2: mean {changes[0].shift:+.2f} standard deviations, spread ×")


def test_only_the_last_rows_count():
    reference = normal((400, 2))
    rows = np.concatenate([normal((500, 2), 1) + np.array([5.0, 0.0]), normal((60, 2), 2) + np.array([0.0, 5.0])])
    assert compare_to(reference, rows, window=60) == compare_to(reference, rows[-60:], window=60)
    assert compare_to(reference, rows, window=60)[0].column == "1"


def test_a_sample_of_a_large_reference_gives_nearly_the_same_distance():
    reference, recent = normal((5000, 1)), normal((200, 1), 1, shift=0.5)
    (change,) = compare_to(reference, recent)
    assert change.distance == pytest.approx(ks_2samp(reference[:, 0], recent[:, 0]).statistic, abs=0.002)
    assert change.strength == pytest.approx(change.distance * math.sqrt(5000 * 200 / 5200))


def test_text_new_categories_and_missing_values():
    reference = pd.DataFrame({"kind": ["a"] * 60 + ["b"] * 40, "mixed": ["x", None] * 50, "n": [1.0, math.nan] * 50})
    recent = pd.DataFrame({"n": [math.nan] * 10, "mixed": ["x"] * 5 + [None] * 5, "kind": ["a"] * 3 + ["new"] * 7})
    changes = {change.column: change for change in compare_to(reference, recent)}
    assert (changes["kind"].category, changes["kind"].distance) == ("(other)", pytest.approx(0.7))
    assert str(changes["kind"]) == "kind: share of '(other)' changed by 70%"
    assert changes["mixed"].distance == pytest.approx(0)
    assert (changes["n"].distance, changes["n"].shift) == (pytest.approx(0.5), None)
    assert str(changes["n"]) == "n: share of missing numbers changed by 50%"


def test_rare_categories_are_counted_as_one():
    reference = pd.DataFrame({"id": [f"row {index}" for index in range(400)]})
    (change,) = compare_to(reference, pd.DataFrame({"id": [f"another {index}" for index in range(10)]}))
    assert (change.distance, change.moved) == (0.0, False)  # all rows were new, and still are
    shops = pd.DataFrame({"shop": ["a", "b", "c", "d"] * 100})
    (change,) = compare_to(make_reference(shops, n_categories=3), pd.DataFrame({"shop": ["d", "e"] * 50}))
    assert (change.category, change.distance, change.moved) == ("(other)", pytest.approx(0.75, abs=0.1), True)


def test_columns_without_spread_or_numbers():
    reference = np.column_stack([np.ones(50), np.ones(50), np.full(50, np.nan), np.ones(50)])
    recent = np.column_stack([np.ones(20), np.full(20, 2.0), np.full(20, np.nan), np.arange(20) % 2])
    changes = {change.column: change for change in compare_to(reference, recent)}
    assert changes["0"] == ColumnChange("0", 0.0, 0.0, shift=0.0, spread=1.0)
    assert (changes["1"].distance, changes["1"].shift, changes["1"].spread) == (1.0, math.inf, 1.0)
    assert changes["2"] == ColumnChange("2", 0.0, 0.0)
    assert (changes["3"].shift, changes["3"].spread) == (-math.inf, math.inf)


@pytest.mark.parametrize("size", [1e300, 1.7e308])
def test_numbers_too_large_to_add_up_give_no_warning(size):
    rows = np.clip(normal((300, 1)), -1, 1) * size
    (change,) = compare_to(rows, rows[:50])
    assert (change.shift, change.spread) == (pytest.approx(0.0, abs=1e-6), 1.0)
    assert not change.moved


def test_numbers_in_arrays_of_objects_are_numbers():
    rows = np.array([[1, "a"], [None, "b"], [3.5, "a"]], dtype=object)
    changes = {change.column: change for change in compare_to(rows, rows)}
    assert changes["0"].shift == 0.0
    assert changes["1"].category is not None
    dates = np.array([[SimpleNamespace()], [SimpleNamespace()]])  # what is neither is taken as text
    assert compare_to(dates, dates)[0].category is not None


def test_boolean_and_date_columns():
    frame = pd.DataFrame(
        {"flag": [True, False] * 20, "day": pd.to_datetime(["2026-01-01", None, "2026-01-09"] * 13 + [None])}
    )
    changes = {change.column: change for change in compare_to(frame, frame)}
    assert (changes["flag"].distance, changes["flag"].shift) == (0.0, 0.0)
    assert (changes["day"].distance, changes["day"].shift) == (0.0, 0.0)
    later = frame.assign(day=frame["day"] + pd.Timedelta(days=4))
    for day in (later["day"], later["day"].dt.tz_localize("UTC"), later["day"].astype(object)):
        (change,) = compare_to(frame[["day"]], day.to_frame())
        assert change.shift == pytest.approx(1.0)
