"""How raw cells become values, and what is said of those that cannot be read."""

import datetime
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from onsphere import InvalidInputError, MissingExtraError
from onsphere.table import Column
from onsphere.table.cells import (
    LARGEST,
    Problem,
    describe_problems,
    import_pandas,
    raise_problems,
    read_cells,
    read_features,
    show_value,
)

NUMBER, BOOLEAN, CATEGORY, DATE = (Column("x", kind) for kind in ("number", "boolean", "category", "date"))
TEXT_NUMBER = Column("x", "number", written_as_text=True)
MIXED = Column("x", "number", written_as_text=True, mixed=True)
NEW_YEAR = 1704067200.0  # 2024-01-01, in seconds since 1970


def equal(values, expected):
    if values.dtype == object:
        return values.tolist() == expected
    return np.array_equal(values, np.array(expected, dtype=np.float64), equal_nan=True)


# --- what a file gives ---


@pytest.mark.parametrize(
    ("column", "raw", "expected"),
    [
        (NUMBER, pd.Series([1, 2]), [1.0, 2.0]),
        (NUMBER, pd.array([1, None], dtype="Int64"), [1.0, None]),
        (NUMBER, np.array([1.5, np.nan]), [1.5, None]),
        (NUMBER, ["1.5", " 2 ", None], [1.5, 2.0, None]),
        (NUMBER, pa.array([Decimal("0.5"), None]), [0.5, None]),
        (NUMBER, pa.chunked_array([pa.array([2**62])]), [float(2**62)]),
        (NUMBER, pa.array([None], pa.null()), [None]),
        (NUMBER, pa.array([np.nan], from_pandas=False), [None]),
        (MIXED, ["1", "broken"], [1.0, None]),
        (BOOLEAN, [True, None, "FALSE", "1"], [1.0, None, 0.0, 1.0]),
        (BOOLEAN, pa.array([True, None]), [1.0, None]),
        (CATEGORY, ["a", None, 3, np.nan], ["a", None, "3", None]),
        (CATEGORY, pd.Categorical([1, 2]), ["1", "2"]),
        (CATEGORY, pa.array(["b", None]).dictionary_encode(), ["b", None]),
        (CATEGORY, pa.array([datetime.time(8, 30)]), ["08:30:00.000000"]),
        (DATE, ["2024-01-01", None, "2024-01-01T02:00:00+02:00"], [NEW_YEAR, None, NEW_YEAR]),
        (DATE, pd.to_datetime(["2024-01-01", None]), [NEW_YEAR, None]),
        (DATE, pd.to_datetime(["2024-01-01"]).tz_localize("Europe/Berlin"), [NEW_YEAR - 3600]),
        (DATE, [datetime.date(2024, 1, 1)], [NEW_YEAR]),
        (DATE, pa.array([datetime.date(2024, 1, 1), None]), [NEW_YEAR, None]),
        (DATE, pa.array([pd.Timestamp("2024-01-01 01:00", tz="Europe/Berlin")]), [NEW_YEAR]),
        (Column("x", "date", date_format="%d.%m.%Y"), ["01.01.2024"], [NEW_YEAR]),
        (Column("x", "date", mixed=True), ["soon"], [None]),
    ],
)
def test_cells_become_values_of_their_kind(column, raw, expected):
    values, problems = read_cells(column, raw)
    assert equal(values, expected)
    assert problems == []


@pytest.mark.parametrize("column", [NUMBER, BOOLEAN, DATE])
def test_values_that_were_read_pass_through_without_a_copy(column):
    values = np.array([0.0, 1.0, np.nan])
    assert np.shares_memory(read_cells(column, values).values, values)
    frame = pd.DataFrame({"x": values})
    assert np.shares_memory(read_cells(column, frame["x"]).values, frame["x"].to_numpy())


def test_text_that_was_read_stays_as_it_is():
    texts = np.array(["a", None, "NA"], dtype=object)
    assert read_cells(CATEGORY, texts).values.tolist() == ["a", None, "NA"]


@pytest.mark.parametrize(
    ("column", "raw", "expected", "got"),
    [
        (NUMBER, ["1", "abc"], "a number", "the text 'abc'"),
        (NUMBER, [1.0, np.inf], "a finite number", "the number inf"),
        (MIXED, ["1", "inf"], "a finite number", "the text 'inf'"),
        (BOOLEAN, [True, "yes"], "true or false", "the text 'yes'"),
        (DATE, ["2024-01-01", "tomorrow"], "a date, written as 2024-01-31", "the text 'tomorrow'"),
        (Column("x", "date", date_format="%d.%m.%Y"), [None, "?"], "a date, written as %d.%m.%Y", "the text '?'"),
        (DATE, pa.array([0, 2**55], pa.timestamp("s")), "a date of the years 1 to 9999", "1141709097-06-13 06:26:08"),
        (
            DATE,
            pa.array([0, -(2**60)], pa.timestamp("us", "Asia/Tokyo")),
            "a date of the years 1 to 9999",
            "-34565-05-17T02:29:53.153024",
        ),
    ],
)
def test_what_cannot_be_read_is_missing_and_a_problem(column, raw, expected, got):
    values, problems = read_cells(column, raw)
    assert np.isnan(values[1])
    assert problems == [Problem("x", 1, expected, got)]


# --- what a request gives ---


@pytest.mark.parametrize(
    ("column", "raw", "expected"),
    [
        (NUMBER, [1, 2.5, None], [1.0, 2.5, None]),
        (TEXT_NUMBER, ["1.5", 2, None], [1.5, 2.0, None]),
        (MIXED, ["many", 3], [None, 3.0]),
        (BOOLEAN, [True, None, False], [1.0, None, 0.0]),
        (Column("x", "boolean", written_as_text=True), ["True", False], [1.0, 0.0]),
        (CATEGORY, ["a", None, "é"], ["a", None, "é"]),
        (DATE, ["2024-01-01", None], [NEW_YEAR, None]),
        (DATE, [None], [None]),
        (NUMBER, pd.Series(["1.5", None]), [1.5, None]),
        (NUMBER, pa.array([1, None]), [1.0, None]),
        (DATE, pa.array(["2024-01-01"]), [NEW_YEAR]),
    ],
)
def test_strict_cells_that_fit_become_the_same_values(column, raw, expected):
    values, problems = read_cells(column, raw, strict=True)
    assert equal(values, expected)
    assert problems == []


@pytest.mark.parametrize(
    ("column", "cell", "expected", "got"),
    [
        (NUMBER, "1.5", "a number", "the text '1.5'"),
        (NUMBER, True, "a number", "true"),
        (NUMBER, [1], "a number", "a list"),
        (NUMBER, 10**400, "a number of size 3.4e+38 at most", "a whole number of more than 20 digits"),
        (NUMBER, 1e39, "a number of size 3.4e+38 at most", "the number 1e+39"),
        (TEXT_NUMBER, "x", "a number", "the text 'x'"),
        (TEXT_NUMBER, "inf", "a number of size 3.4e+38 at most", "the text 'inf'"),
        (BOOLEAN, 1, "true or false", "the number 1"),
        (BOOLEAN, "true", "true or false", "the text 'true'"),
        (CATEGORY, 3, "text", "the number 3"),
        (CATEGORY, {"a": 1}, "text", "an object"),
        (CATEGORY, "x" * 1001, "text of at most 1,000 characters", "1,001 characters"),
        (CATEGORY, "\ud800", "text", "half of a surrogate pair"),
        (DATE, 3, "a date, written as 2024-01-31", "the number 3"),
        (DATE, "31st of May", "a date, written as 2024-01-31", "the text '31st of May'"),
    ],
)
def test_strict_cells_that_do_not_fit_are_problems(column, cell, expected, got):
    values, problems = read_cells(column, [None, cell], strict=True)
    assert problems == [Problem("x", 1, expected, got)]
    assert values[1] is None or np.isnan(values[1])


def test_a_request_in_arrow_may_not_hold_nan_nor_large_numbers():
    column = pa.array([np.nan, None, 2 * LARGEST, 1.0], from_pandas=False)
    values, problems = read_cells(NUMBER, column, strict=True)
    assert [(problem.row, problem.got) for problem in problems] == [(0, "the number nan"), (2, "the number 6.8e+38")]
    assert equal(values, [None, None, None, 1.0])


def test_long_text_is_a_problem_wherever_it_comes_from():
    for raw in (pa.array(["x" * 1001]), pd.Series(["x" * 1001])):
        assert read_cells(CATEGORY, raw, strict=True).problems[0].got == "1,001 characters"


def test_problems_come_in_the_order_of_their_rows():
    problems = read_cells(TEXT_NUMBER, ["inf", "x", True, "1" * 2000], strict=True).problems
    assert [problem.row for problem in problems] == [0, 1, 2, 3]


# --- what is said ---


def test_one_sentence_names_the_first_problem_and_counts_the_others():
    problems = [Problem("size", row, "a number", "the text 'abc'") for row in range(3)]
    assert describe_problems(problems, n_more=5) == (
        "Expected a number in the column size, row 0 (counted from 0). Got the text 'abc'. 7 more like this."
    )
    assert describe_problems([Problem(None, None, "a list", "nothing")]) == "Expected a list. Got nothing."
    with pytest.raises(InvalidInputError, match=r"in the column size of a\.csv, row 7 .* Fix the value"):
        raise_problems(problems, index=[7, 8, 9], source="a.csv")
    with pytest.raises(InvalidInputError, match=r"2 more like this\. Do it again\.$"):
        raise_problems(problems, advice="Do it again.")
    raise_problems([])


def test_values_are_shortened_in_messages():
    assert show_value("x" * 100) == f"the text '{'x' * 60}…'"
    assert show_value(datetime.date(2024, 1, 31)) == "2024-01-31"
    assert show_value(False) == "false"


def test_features_are_read_together_and_others_left_out():
    frame = pd.DataFrame({"n": ["1", None], "c": ["a", None], "d": ["2024-01-01", None], "id": [1, 2]}, index=[5, 6])
    columns = [Column("n", "number"), Column("c", "category"), Column("d", "date"), Column("id", "key")]
    read = read_features(frame, columns)
    assert read.dtypes.astype(str).to_dict() == {"n": "float64", "c": "object", "d": "float64"}
    assert read.loc[5].tolist() == [1.0, "a", NEW_YEAR]
    assert read.index.tolist() == [5, 6]
    with pytest.raises(InvalidInputError, match=r"in the column c of a\.csv, row 6"):
        read_features(frame.assign(c=["1", "x"]), [Column("c", "number")], source="a.csv")


def test_without_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"onsphere\[cli\]"):
        import_pandas()
