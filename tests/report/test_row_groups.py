"""Groups of rows, and their confidence."""

import base64

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from onsphere.report.measured_rows import read_feature
from onsphere.report.row_groups import (
    MOST_LEVELS,
    group_rows,
    rank_columns,
    show_least_trusted,
)

# --- groups ---


def count_groups(values, name="x"):
    grouping = group_rows(read_feature(name, pd.Series(values)))
    assert len(grouping.member) == len(values)
    counts = np.bincount(grouping.member, minlength=len(grouping.labels))
    assert counts.min() > 0, "no group is empty"
    return dict(zip(grouping.labels, counts.tolist(), strict=True))


def test_numbers_are_grouped_by_quartile_or_by_value():
    assert count_groups(np.arange(100.0)) == {"≤ 24": 25, "24 to 49": 25, "49 to 74": 25, "> 74": 25}
    assert count_groups([0, 1] * 6) == {"0": 6, "1": 6}
    assert count_groups([1.0001, 1.0002] * 6) == {"1.0001": 6, "1.0002": 6}
    assert count_groups([5.0] * 12) == {"5": 12}
    assert count_groups([*range(6), *[9] * 30]) == {"≤ 5": 6, "> 5": 30}


def test_missing_values_have_their_own_group():
    assert count_groups([0.0, 1.0, np.nan, np.inf]) == {"0": 1, "1": 1, "missing": 2}
    assert count_groups([None, "a", "a"]) == {"a": 2, "missing": 1}
    assert count_groups(pd.array([1, None, 2], dtype="Int64")) == {"1": 1, "2": 1, "missing": 1}
    assert count_groups([np.nan] * 3) == {"missing": 3}


def test_dates_are_grouped_like_numbers():
    days = pd.Series(pd.date_range("2024-01-01", periods=8))
    assert list(count_groups(days)) == [
        "≤ 2024-01-02",
        "2024-01-02 to 2024-01-04",
        "2024-01-04 to 2024-01-06",
        "> 2024-01-06",
    ]
    assert count_groups(days.dt.tz_localize("Europe/Vienna").where(days.index > 3)).keys() >= {"missing"}
    hours = pd.Series(pd.to_datetime(["2024-01-01 08:00", "2024-01-01 09:00"]))
    assert list(count_groups(hours)) == ["2024-01-01 08:00:00", "2024-01-01 09:00:00"]


def test_rare_levels_are_merged():
    levels = [f"level {index:02}" for index in range(15) for _ in range(20 if index < 12 else 3)]
    found = count_groups(levels)
    assert len(found) == MOST_LEVELS
    assert found["6 others"] == 3 * 20 + 3 * 3
    assert count_groups(["a"] * 20 + ["b"] * 2) == {"a": 20, "b": 2}
    assert count_groups([str(index) for index in range(30)]) == {"30 others": 30}


def test_every_kind_of_cell_can_be_grouped():
    assert count_groups([True, False, True]) == {"False": 1, "True": 2}
    assert count_groups(pd.Series([[1], {2: 3}, [1]], dtype=object)) == {"[1]": 2, "{2: 3}": 1}
    assert count_groups(pd.Series([1, 2, 2], dtype=object)) == {"1": 1, "2": 2}
    assert count_groups(pd.Categorical(["a", "b", "a"])) == {"a": 2, "b": 1}


@given(st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), min_size=1, max_size=60))
def test_groups_of_numbers_are_in_order(values):
    grouping = group_rows(read_feature("x", pd.Series(values, dtype=float)))
    known = ~np.isnan(values)
    member, numbers = grouping.member[known], np.array(values)[known]
    order = np.argsort(numbers, kind="stable")
    assert np.all(np.diff(member[order]) >= 0)
    assert len(set(grouping.labels)) == len(grouping.labels)


# --- confidence ---


def test_the_column_that_explains_the_uncertainty_comes_first(rows):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"noise {index}": rng.normal(size=400) for index in range(7)})
    frame["tilt"] = np.arange(400.0)
    measured = rows(rng.exponential(size=400), np.maximum(frame["tilt"] - 300, 0) + rng.uniform(size=400), frame=frame)
    ranked = rank_columns(measured)
    section = show_least_trusted(measured, ranked)
    assert section.pictures[0].title == "tilt"
    assert len(section.pictures) == 6
    assert "for the 6 of 8 columns where it differs most" in section.paragraphs[0]
    assert section.tables[0].rows[0][:2] == ["tilt", "> 299"]


def test_a_column_named_like_a_figure_keeps_its_labels_in_the_file(rows):
    measured = rows(np.arange(20.0), np.arange(20.0), frame=pd.DataFrame({"rows": [0, 1] * 10}))
    section = show_least_trusted(measured, rank_columns(measured))
    file = base64.b64decode(section.pictures[0].download.address.split(",")[1]).decode()
    assert file.startswith("column rows,rows,mean confidence,from,to\n0,10,")


def test_groups_of_one_row_have_no_range(rows):
    frame = pd.DataFrame({"x": [0.0] * 19 + [1.0]})
    measured = rows(np.arange(20.0), np.arange(20.0), frame=frame)
    section = show_least_trusted(measured, rank_columns(measured))
    assert section.pictures[0].svg.count("(1)") == 1
    equal = rows(np.arange(20.0), np.ones(20), frame=frame)
    equal.assessment.confidence[:] = 0.5
    assert len(rank_columns(equal)) == 1


def test_where_it_is_show_least_trusted(regression):
    assessment, error = regression.measure()
    table = regression.table("least-trusted.csv")
    assert np.all(np.diff(table["mean confidence"]) >= 0)
    assert len(table["rows"]) == 10
    assert table["rows"].min() >= 10
    # Every group of numbers is found again from its name and its range.
    for place, (name, value) in enumerate(zip(table["column"], table["value"], strict=True)):
        if name == "clinic":
            here = regression.X[name].isna() if value == "missing" else regression.X[name] == value.lstrip("'")
        else:
            low, high = (np.quantile(regression.X[name], q, method="inverted_cdf") for q in (0.25, 0.75))
            if value.startswith("≤"):
                here = regression.X[name] <= low
            elif value.startswith(">"):
                here = regression.X[name] > high
            else:
                continue
        here = here.to_numpy()
        assert table["rows"][place] == here.sum()
        assert_allclose(table["mean confidence"][place], assessment.confidence[here].mean(), rtol=1e-6)
        assert_allclose(table["mean error"][place], error[here].mean(), rtol=1e-6)
        assert_allclose(table["accepted"][place], assessment.accepted[here].mean(), rtol=1e-6)


def test_the_bars_of_confidence_by_hand(several):
    assessment = several.model.assess(several.X)
    files = sorted(name for name in several.page.downloads if name.startswith("trust-"))
    assert sorted(name[8:-4] for name in files) == ["x0", "x1", "x2"]
    for file in files:
        table, column = several.table(file), several.X[:, int(file[-5])]
        edges = np.quantile(column, [0.25, 0.5, 0.75], method="inverted_cdf")
        groups = [assessment.confidence[np.searchsorted(edges, column) == place] for place in range(4)]
        assert_allclose(table["rows"], [len(group) for group in groups])
        assert_allclose(table["mean confidence"], [group.mean() for group in groups], rtol=1e-6)
        half = [1.96 * group.std(ddof=1) / len(group) ** 0.5 for group in groups]
        assert_allclose(table["to"] - table["from"], np.multiply(half, 2), rtol=1e-5)


def test_columns_that_say_the_same_are_told_once(rows):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"metres": rng.uniform(size=100), "other": rng.uniform(size=100)})
    frame["feet"] = 3.28 * frame["metres"]
    measured = rows(rng.exponential(size=100), rng.uniform(size=100), frame=frame)
    assert sorted(grouping.name for grouping in rank_columns(measured)) == ["metres", "other"]
