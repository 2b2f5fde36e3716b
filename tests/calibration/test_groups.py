"""Groups found from values: levels, ranges, the rule for small groups, and values without calibration rows."""

import numpy as np
import pandas as pd
import pytest

from onsphere import InvalidInputError
from onsphere.calibration.groups import WHOLE, Groups, GroupSource, fit_groups

GIVEN = GroupSource("values")


def test_levels_are_the_same_for_any_type_of_number():
    groups, parts = fit_groups(GIVEN, np.repeat([1, 2], 60))
    assert groups.names == ("1", "2")
    np.testing.assert_array_equal(parts, np.repeat([0, 1], 60))
    np.testing.assert_array_equal(groups.find_parts([2.0, 1.0]), [1, 0])
    np.testing.assert_array_equal(groups.find_parts(np.array(["2", "1"])), [1, 0])


def test_booleans_are_levels_and_equal_to_0_and_1():
    groups, _ = fit_groups(GIVEN, np.repeat([True, False], 60))
    assert groups.names == ("0", "1")
    np.testing.assert_array_equal(groups.find_parts(np.array([1.0, 0.0])), groups.find_parts([True, False]))


def test_small_groups_are_calibrated_together():
    groups, parts = fit_groups(GIVEN, np.repeat(["a", "b", "c", "d"], [100, 30, 60, 40]))
    assert groups.parts.tolist() == [0, 2, 1, 2]
    assert np.bincount(parts).tolist() == [100, 60, 70]
    assert [each["calibrated by"] for each in groups.describe()] == [
        "its own rows",
        "small groups together",
        "its own rows",
        "small groups together",
    ]
    assert groups.describe()[1] == {"group": "b", "calibration rows": 30, "calibrated by": "small groups together"}


def test_too_few_rows_in_small_groups_borrow_from_the_whole():
    groups, parts = fit_groups(GIVEN, np.repeat(["a", "b", "c"], [100, 20, 29]))
    assert groups.parts.tolist() == [0, WHOLE, WHOLE]
    assert np.sum(parts == WHOLE) == 49
    assert groups.describe()[2]["calibrated by"] == "all rows"
    assert fit_groups(GIVEN, np.array(["a", "b"]))[0].parts.tolist() == [WHOLE, WHOLE]


def test_numbers_are_cut_at_their_quantiles():
    values = np.arange(1000.0)
    groups, parts = fit_groups(GIVEN, values)
    assert np.bincount(parts).tolist() == [200] * 5
    assert groups.names[0] == "≤ 199.5"
    assert groups.names[1] == "199.5 to 399.5"
    assert groups.names[-1] == "> 799.5"
    np.testing.assert_array_equal(groups.find_parts(values), parts)
    np.testing.assert_array_equal(groups.find_parts([-1e9, 1e9]), [0, 4])
    assert len(fit_groups(GIVEN, values[:120])[0].names) == 2
    assert fit_groups(GIVEN, values[:60] + 0.5)[0].names == ("all",)


def test_whole_numbers_are_levels_unless_they_are_very_many():
    stores = np.repeat(np.arange(101), 60)
    for codes in (stores[:1800], stores[:1800].astype(float)):
        groups, _ = fit_groups(GIVEN, codes)
        assert len(groups.names) == 30
        with pytest.raises(InvalidInputError, match="Got 99, without any"):
            groups.find_parts([99])
    assert len(fit_groups(GIVEN, stores[:6000])[0].names) == 100
    assert len(fit_groups(GIVEN, stores)[0].names) == 5
    assert len(fit_groups(GIVEN, stores[:1800] + 0.5)[0].names) == 5


def test_ties_among_numbers_leave_no_empty_range():
    values = np.r_[np.zeros(900), np.arange(1.0, 101.0)]
    groups, parts = fit_groups(GIVEN, values)
    assert groups.names == ("≤ 0.5", "> 0.5")
    assert np.bincount(parts).tolist() == [900, 100]


def test_missing_values_are_a_group():
    values = np.r_[np.full(60, np.nan), np.arange(300.0)]
    groups, parts = fit_groups(GIVEN, values)
    assert groups.names[-1] == "missing"
    assert groups.find_parts([np.nan]) == parts[0] == 5
    texts, _ = fit_groups(GIVEN, np.array(["a"] * 60 + [None, pd.NA, np.nan] * 20, dtype=object))
    assert texts.names == ("a", "missing")
    assert texts.n_rows.tolist() == [60, 60]


def test_groups_without_calibration_rows_are_an_error():
    levels, _ = fit_groups(GIVEN, np.repeat([f"g{code}" for code in range(9)], 60))
    with pytest.raises(InvalidInputError, match=r"g0, .*g7 …\. Got new, without any\. Calibrate again"):
        levels.find_parts(["g1", "new"])
    with pytest.raises(InvalidInputError, match=r"Got n0, n1, n2, n3, n4 …, without any"):
        levels.find_parts([f"n{code}" for code in range(6)])
    ranges, _ = fit_groups(GIVEN, np.arange(300.0))
    with pytest.raises(InvalidInputError, match="Got missing, without any"):
        ranges.find_parts([1.0, np.nan])
    with pytest.raises(InvalidInputError, match="numbers, as at calibration"):
        ranges.find_parts(["a"])
    assert len(ranges.find_parts(np.empty(0))) == 0


def test_sources_are_read_from_the_argument():
    assert GroupSource.read("novelty").kind == "novelty"
    assert (
        GroupSource.read("region") == GroupSource("column", "region") or GroupSource.read("region").column == "region"
    )
    assert GroupSource.read(2).column == 2
    assert GroupSource.read(len).kind == "function"
    assert GroupSource.read(["a", "b"]).kind == "values"


def test_values_come_from_columns_functions_and_the_caller():
    frame = pd.DataFrame({"region": ["n", "s"], "size": [1.0, 2.0]})
    assert GroupSource.read("region").find_values("calibrate", frame, None).tolist() == ["n", "s"]
    rows = frame[["size"]].to_numpy()
    assert GroupSource.read(0).find_values("calibrate", rows, None).tolist() == [1, 2]
    assert GroupSource.read(lambda X: X[:, 0] > 1).find_values("calibrate", rows, None).tolist() == [False, True]
    assert GIVEN.find_values("calibrate", [[1.0], [2.0]], ["a", "b"]).tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("groups", "given", "words"),
    [
        ("place", None, r"assess needs the column that gives the groups, one of region, size\. Got 'place'"),
        ([1, 2, 3], [1, 2, 3], r"one group for each of the 2 rows\. Got the shape \(3,\)"),
        ([1, 2], None, r"calibrated with groups that were given as values\. Got None\. Pass groups="),
        (lambda X: X.nothing, None, r"The function that gives the groups failed with AttributeError: .*nothing"),
        (lambda X: 1 / 0, None, r"ZeroDivisionError: division by zero\. It gets the X of assess"),
    ],
)
def test_wrong_groups_say_what_was_expected(groups, given, words):
    frame = pd.DataFrame({"region": ["n", "s"], "size": [1.0, 2.0]})
    with pytest.raises(InvalidInputError, match=words):
        GroupSource.read(groups).find_values("assess", frame, given)


def test_a_column_of_an_array_is_named_by_its_place():
    for column in ("region", 7):
        with pytest.raises(InvalidInputError, match=rf"predict_interval finds the groups in column {column!r} of X"):
            GroupSource.read(column).find_values("predict_interval", np.zeros((2, 2)), None)
    assert isinstance(fit_groups(GIVEN, ["a"])[0], Groups)
