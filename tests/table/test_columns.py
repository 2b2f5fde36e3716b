"""What columns hold, and how they become numbers."""

import datetime
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onsphere import InvalidInputError, InvalidTypeError, MissingExtraError, NotFittedError
from onsphere.table import Column, TableEncoder, describe_columns
from onsphere.table.columns import is_column, listed, pandas


def kinds(**columns):
    return {column.name: column.kind for column in describe_columns(pd.DataFrame(columns))}


def described(values, name="x"):
    return describe_columns(pd.DataFrame({name: values}))[0]


# --- what columns hold ---


@given(
    st.lists(st.none() | st.booleans() | st.text() | st.integers() | st.dates().map("{:%d.%m.%Y}".format), min_size=1)
)
def test_what_is_said_of_a_column_is_known_as_such(values):
    assert is_column(described(pd.Series(values, dtype=object)))


@pytest.mark.parametrize("date_format", ["%q", "%", "%Y%Y", 5])
def test_dates_are_written_in_a_way_that_can_be_read(date_format):
    assert is_column(Column("day", "date", date_format="%d.%m.%Y"))
    assert not is_column(Column("day", "date", date_format=date_format))


def test_each_kind_is_recognised():
    assert kinds(
        size=[1.5, 2.5, None, 4.0],
        rooms=[3, 1, 3, 2],
        heated=[True, False, True, True],
        maybe=[True, None, False, None],
        city=["a", "b", "a", None],
        sold=["2024-01-31", None, "2024-02-29", "2024-03-01"],
        stamp=pd.to_datetime(["2024-01-31", "2024-02-01", "2024-02-01", None], utc=True),
        name=["ann", "bob", "eve", "joe"],
        house_id=[17, 4, 99, 2],
        count=[5, 6, 7, 8],
        site=["x"] * 4,
        empty=[None] * 4,
        pairs=[[1], [2], [3], [4]],
        grade=pd.Categorical([1, 2, 1, 2]),
    ) == {
        "size": "number",
        "rooms": "number",
        "heated": "boolean",
        "maybe": "boolean",
        "city": "category",
        "sold": "date",
        "stamp": "date",
        "name": "key",
        "house_id": "key",
        "count": "key",
        "site": "unused",
        "empty": "unused",
        "pairs": "unused",
        "grade": "category",
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [("row", "key"), ("houseId", "number"), ("Order ID", "key"), ("paid", "number"), ("size", "number")],
)
def test_different_whole_numbers_are_keys_only_where_their_name_says_so(name, kind):
    assert described([17, 4, 99, 2], name).kind == kind


@pytest.mark.parametrize("name", ["__index_level_0__", "Unnamed: 0", "column_1"])
def test_the_index_that_pandas_writes_is_a_key(name):
    assert described([17, 4, 99, 2], name).kind == "key"


def test_digits_with_zeros_in_front_are_keys_if_called_so():
    assert described(["007", "012", "100"], "part_no").kind == "key"
    assert described(["007", "012", "100"], "weight").kind == "number"


def test_one_value_and_gaps_are_no_constant():
    assert described(["x", None, "x"]).kind == "category"


def test_text_with_too_many_values_is_left_out():
    column = described([f"word {index % 90}" for index in range(100)])
    assert (column.kind, column.note) == ("unused", "text with 90 different values")


def test_a_little_text_among_numbers_is_read_as_missing_and_said():
    column = described([*map(str, range(95)), *["broken"] * 5])
    assert (column.kind, column.mixed) == ("number", True)
    assert column.note == "text such as 'broken' is read as missing"
    assert described([*map(str, range(94)), *["broken"] * 6]).kind == "unused"


@pytest.mark.parametrize(
    ("texts", "date_format", "note"),
    [
        (["31.01.2024", "01.02.2024"], "%d.%m.%Y", "dates read as %d.%m.%Y"),
        (["31.01.2024 10:30", "01.02.2024 00:00"], "%d.%m.%Y %H:%M", "dates read as %d.%m.%Y %H:%M"),
        (["01/31/2024", "02/01/2024"], "%m/%d/%Y", "dates read as %m/%d/%Y"),
        (["31/01/2024", "02/01/2024"], "%d/%m/%Y", "dates read as %d/%m/%Y"),
        (["01/02/2024", "02/01/2024"], "%m/%d/%Y", "dates read as %m/%d/%Y, month first"),
        (["31-01-2024 01:02:03", "02-01-2024 01:02:03"], "%d-%m-%Y %H:%M:%S", "dates read as %d-%m-%Y %H:%M:%S"),
        (["2024/01/31", "2024/02/01"], "ISO8601", ""),
        (["2024-01-31T10:00:00+02:00", "2024-02-01T00:00:00Z"], "ISO8601", ""),
    ],
)
def test_dates_in_many_ways_of_writing(texts, date_format, note):
    column = described([*texts, None, texts[0]])
    assert (column.kind, column.date_format, column.note) == ("date", date_format, note)


def test_the_way_of_writing_that_reads_most_dates_is_taken():
    # Of 30 days written day first, only one could not be a month: the other way reads 97 % of them too.
    texts = [f"{1 + index % 12:02d}/03/2024" for index in range(29)] + ["13/03/2024"]
    assert described(texts).date_format == "%d/%m/%Y"


def test_text_among_dates_is_read_as_missing_and_said():
    column = described([*[f"{1 + index % 28:02d}.01.2024" for index in range(39)], "soon"])
    assert (column.kind, column.mixed) == ("date", True)
    assert column.note == "dates read as %d.%m.%Y; text such as 'soon' is read as missing"


@pytest.mark.parametrize(
    ("frame", "error", "words"),
    [
        ([[1.0]], InvalidTypeError, "Expected a DataFrame. Got list"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), InvalidInputError, "more than one column named a"),
        (pd.DataFrame([[1, 2]]), InvalidTypeError, r"Got 0. Pass frame.rename\(columns=str\)"),
    ],
)
def test_what_is_no_table_is_told(frame, error, words):
    with pytest.raises(error, match=words):
        describe_columns(frame)
    with pytest.raises(error, match=words):
        TableEncoder([Column("a", "number")]).fit(frame)


def test_many_names_are_cut_short():
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(index) for index in range(10_000)]).endswith(", 19 … (10,000 in all)")


def test_without_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"onsphere\[cli\]"):
        pandas()


# --- how they become numbers ---


def encoded(column, values, fit_values=None):
    fit_values = values if fit_values is None else fit_values
    encoder = TableEncoder([column]).fit(pd.DataFrame({column.name: fit_values}))
    return encoder.transform(pd.DataFrame({column.name: values})).T.tolist()


def test_numbers_and_booleans():
    assert encoded(Column("x", "number"), [1, 2]) == [[1.0, 2.0]]
    assert encoded(Column("x", "number"), pd.array([1, None], dtype="Int64")) == [
        [1.0, pytest.approx(np.nan, nan_ok=True)]
    ]
    assert encoded(Column("x", "number"), ["1.5", " 2 "]) == [[1.5, 2.0]]
    assert encoded(Column("x", "boolean"), ["TRUE", "false", "0", True]) == [[1.0, 0.0, 0.0, 1.0]]
    assert encoded(Column("x", "boolean"), [True, False]) == [[1.0, 0.0]]


def test_a_date_by_the_calendar():
    texts = ["1970-01-01", "2024-02-29T18:30:00Z", "1969-12-31", None]
    days, day_of_year, weekday, hour = encoded(Column("x", "date"), texts)
    moments = [datetime.datetime(1970, 1, 1), datetime.datetime(2024, 2, 29, 18, 30), datetime.datetime(1969, 12, 31)]
    for index, moment in enumerate(moments):
        assert days[index] == (moment - moments[0]).total_seconds() / 86400
        assert weekday[index] == moment.weekday()
        assert hour[index] == moment.hour + moment.minute / 60
        # A year of 365.2425 days is off by less than two days.
        assert abs(day_of_year[index] - (moment.timetuple().tm_yday - 1)) < 2
    assert np.isnan([days[3], day_of_year[3], weekday[3], hour[3]]).all()


def test_dates_are_the_same_however_they_are_kept():
    texts = ["2024-02-29", "1999-12-31"]
    for values in (
        pd.to_datetime(texts),
        pd.to_datetime(texts, utc=True),
        [datetime.date.fromisoformat(t) for t in texts],
    ):
        assert encoded(Column("x", "date"), values) == encoded(Column("x", "date"), texts)
    written = ["29.02.2024", "31.12.1999"]
    assert encoded(Column("x", "date", date_format="%d.%m.%Y"), written) == encoded(Column("x", "date"), texts)


def test_an_hour_elsewhere_is_the_same_moment():
    assert encoded(Column("x", "date"), ["2024-01-01T10:00:00+02:00"]) == encoded(
        Column("x", "date"), ["2024-01-01T08:00:00Z"]
    )


def test_categories_by_their_frequency_and_none_for_what_is_unknown():
    frame = pd.DataFrame({"x": ["b", "a", "b", None, "c", "a", "b"]})
    encoder = TableEncoder(max_levels=2).fit(frame)
    assert encoder.levels_ == {"x": ["b", "a"]}
    assert encoder.get_feature_names_out().tolist() == ["x=b", "x=a", "x is missing"]
    new = pd.DataFrame({"x": ["a", "c", "never seen", None]})
    assert encoder.transform(new).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_a_gap_that_was_never_seen_is_none_of_the_values():
    assert encoded(Column("x", "category"), [None, "a"], ["a", "b"]) == [[0.0, 1.0], [0.0, 0.0]]


def test_names_come_in_the_order_of_the_numbers():
    frame = pd.DataFrame(
        {"a": [1.5, 2.0, 2.5], "d": ["2024-01-31", "2024-01-31", "2024-02-01"], "b": [True, False, True]}
    )
    encoder = TableEncoder().fit(frame)
    assert encoder.get_feature_names_out().tolist() == [
        "a",
        "d: days",
        "d: day of year",
        "d: weekday",
        "d: hour",
        "b",
    ]
    assert encoder.transform(frame).shape == (3, 6)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (Column("x", "number"), "abc", r"Expected a number in the column x, row 1 .* Got the text 'abc'"),
        (
            Column("x", "number", written_as_text=True),
            "abc",
            r"Expected a number in the column x, row 1 .* Got the text 'abc'",
        ),
        (Column("x", "number"), "inf", r"Expected a finite number in the column x, row 1 .* Got the text 'inf'"),
        (Column("x", "boolean"), "yes", r"Expected true or false in the column x, row 1 .* Got the text 'yes'"),
        (Column("x", "date"), "tomorrow", "a date, written as 2024-01-31 in the column x, row 1"),
        (Column("x", "date", date_format="%d.%m.%Y"), "2024-01-31", "written as %d.%m.%Y in the column x"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_row(column, value, words):
    encoder = TableEncoder([column]).fit(pd.DataFrame({"x": [None]}))
    with pytest.raises(InvalidInputError, match=words):
        encoder.transform(pd.DataFrame({"x": [None, value]}))


def test_other_text_is_missing_where_it_always_was():
    assert np.isnan(encoded(Column("x", "number", mixed=True), ["abc"])).all()
    assert np.isnan(encoded(Column("x", "date", mixed=True), ["abc"])).all()


def test_infinite_numbers_are_told_with_their_row():
    with pytest.raises(InvalidInputError, match=r"in the column x, row 7 \(counted from 0\)\. Got the number inf"):
        encoded(Column("x", "number"), pd.Series([1.0, np.inf], index=[3, 7]))


def test_bad_use_is_told():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "x"]})
    with pytest.raises(NotFittedError):
        TableEncoder().transform(frame)
    with pytest.raises(NotFittedError):
        TableEncoder().get_feature_names_out()
    with pytest.raises(InvalidInputError, match="max_levels"):
        TableEncoder(max_levels=0).fit(frame)
    with pytest.raises(InvalidInputError, match=r"Expected a column to learn from. Got b \(unused, constant\)"):
        TableEncoder().fit(frame[["b"]])
    with pytest.raises(InvalidInputError, match="Got no columns"):
        TableEncoder([]).fit(frame)
    with pytest.raises(InvalidInputError, match=r"Expected the column\(s\) a in the table. Got b."):
        TableEncoder().fit(frame).transform(frame[["b"]])


# --- any table ---

FLOATS = st.floats(allow_nan=True, allow_infinity=False)
CELLS = st.one_of(
    st.lists(FLOATS, min_size=3, max_size=12),
    st.lists(st.integers(-(2**62), 2**62), min_size=3, max_size=12),
    st.lists(st.booleans() | st.none(), min_size=3, max_size=12),
    st.lists(st.sampled_from(["a", "b", "ç", "", " ", "true", "1"]) | st.none(), min_size=3, max_size=12),
    st.lists(st.dates().map(str) | st.none(), min_size=3, max_size=12),
    st.lists(
        st.dates(datetime.date(1800, 1, 1)).map(lambda day: f"{day:%d.%m.%Y}") | st.none(), min_size=3, max_size=12
    ),
    st.lists(FLOATS.map(repr), min_size=3, max_size=12),
    st.lists(st.text(max_size=3) | st.none(), min_size=3, max_size=12),
    st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=2), st.booleans(), st.none()), min_size=3, max_size=12),
    st.lists(st.lists(st.integers(), max_size=2), min_size=3, max_size=12),
)


@settings(max_examples=60)
@given(columns=st.lists(CELLS, min_size=1, max_size=4), order=st.randoms(use_true_random=False))
def test_any_table_becomes_numbers_and_each_row_by_itself(columns, order):
    n_rows = min(map(len, columns))
    frame = pd.DataFrame({f"c{index}": pd.Series(cells[:n_rows]) for index, cells in enumerate(columns)})
    try:
        encoder = TableEncoder().fit(frame)
        together = encoder.transform(frame)
    except InvalidInputError as error:
        assert "Expected" in str(error)  # noqa: PT017
        return
    assert together.shape == (n_rows, len(encoder.get_feature_names_out()))
    assert together.dtype == np.float64
    assert not np.isinf(together).any()
    # A row's numbers do not depend on its company, nor on its place, nor on the order of the columns.
    apart = np.vstack([encoder.transform(frame.iloc[[row]]) for row in range(n_rows)])
    np.testing.assert_array_equal(apart, together)
    shuffled = list(range(n_rows))
    order.shuffle(shuffled)
    np.testing.assert_array_equal(encoder.transform(frame.iloc[shuffled]), together[shuffled])
    np.testing.assert_array_equal(encoder.transform(frame[frame.columns[::-1]].assign(more=1)), together)


@settings(max_examples=30)
@given(levels=st.lists(st.text(max_size=3), min_size=1), new=st.text(min_size=4, max_size=6))
def test_an_unknown_category_is_none_of_the_known(levels, new):
    encoder = TableEncoder([Column("x", "category")]).fit(pd.DataFrame({"x": levels}))
    assert not encoder.transform(pd.DataFrame({"x": [new]})).any()
    known = encoder.transform(pd.DataFrame({"x": levels}))
    kept = [level in encoder.levels_["x"] for level in levels]
    assert known.sum(axis=1).tolist() == [float(each) for each in kept]
