"""The last rows of a stream, and which of their columns are not like the reference."""

import numpy as np
import pandas as pd
import pytest

from onsphere.drift import make_reference
from onsphere.drift.recent_rows import RecentRows


@pytest.fixture(scope="module")
def ordinary():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=300), "shop": rng.choice(["a", "b"], 300)})
    frame["shop"] = frame["shop"].astype(object)
    return frame


@pytest.fixture(scope="module")
def reference(ordinary):
    return make_reference(ordinary)


def make_columns(frame):
    return {name: frame[name].to_numpy() for name in frame}


def test_the_last_200_rows_are_kept_and_no_more(ordinary, reference):
    recent = RecentRows(reference)
    for n_rows, kept in ((5, 5), (190, 195), (7, 202), (3, 200), (1, 201)):
        recent.add(make_columns(ordinary.head(n_rows)))
        assert len(recent) == kept
    recent.add(make_columns(ordinary))
    assert len(recent) == 300
    recent.clear()
    assert len(recent) == 0
    assert recent.compare() == ([], [])


def test_without_a_reference_nothing_is_kept(ordinary):
    recent = RecentRows(None)
    recent.add(make_columns(ordinary))
    assert len(recent) == 0
    assert recent.compare() == (None, None)


def test_ordinary_rows_give_no_hints(ordinary, reference):
    recent = RecentRows(reference)
    for start in range(0, 150, 50):
        recent.add(make_columns(ordinary.iloc[start : start + 50]))
    assert recent.compare() == ([], [])


def test_columns_that_moved_or_left_their_range_are_named(ordinary, reference):
    recent = RecentRows(reference)
    recent.add(make_columns(ordinary.head(150).assign(size=ordinary["size"] + 2.0)))
    moved, outside = recent.compare()
    assert moved[0].startswith("size: mean +")
    assert outside == []
    recent.add(make_columns(ordinary.head(1).assign(size=50.0)))
    assert recent.compare()[1] == ["size"]
    recent.clear()
    recent.add(make_columns(ordinary.head(1).assign(size=-50.0)))
    assert recent.compare()[1] == ["size"]


def test_rows_with_all_values_missing_give_hints(ordinary, reference):
    recent = RecentRows(reference)
    recent.add(make_columns(ordinary.head(200).assign(size=np.nan)))
    moved, outside = recent.compare()
    assert "missing" in moved[0]
    assert outside == []


def test_rows_that_do_not_fit_the_reference_give_no_hints(ordinary, reference):
    for wrong in ({}, {"size": 3}, {**reference, "more": {"n_rows": "x"}}):
        recent = RecentRows(wrong)
        recent.add(make_columns(ordinary))
        assert recent.compare() == ([], [])


def test_a_column_of_which_nothing_is_known_is_never_outside():
    nothing = make_reference(pd.DataFrame({"size": [np.nan, np.nan]}))
    recent = RecentRows(nothing)
    recent.add({"size": np.array([1e9])})
    assert recent.compare()[1] == []
