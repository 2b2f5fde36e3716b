"""What the columns of a table hold."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onsphere import InvalidInputError, InvalidTypeError
from onsphere.table import Column, TableEncoder, describe_columns
from onsphere.table.columns import is_column, join_names


def kinds(**columns):
    return {column.name: column.kind for column in describe_columns(pd.DataFrame(columns))}


def described(values, name="x"):
    return describe_columns(pd.DataFrame({name: values}))[0]


@given(
    st.lists(st.none() | st.booleans() | st.text() | st.integers() | st.dates().map("{:%d.%m.%Y}".format), min_size=1)
)
def test_every_description_of_a_column_is_valid(values):
    assert is_column(described(pd.Series(values, dtype=object)))


@pytest.mark.parametrize("date_format", ["%q", "%", "%Y%Y", 5])
def test_a_date_format_that_cannot_be_used_is_not_valid(date_format):
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
def test_different_whole_numbers_are_keys_only_with_the_name_of_a_key(name, kind):
    assert described([17, 4, 99, 2], name).kind == kind


@pytest.mark.parametrize("name", ["__index_level_0__", "Unnamed: 0", "column_1"])
def test_the_index_that_pandas_writes_is_a_key(name):
    assert described([17, 4, 99, 2], name).kind == "key"


def test_digits_with_zeros_in_front_are_keys_with_the_name_of_a_key():
    assert described(["007", "012", "100"], "part_no").kind == "key"
    assert described(["007", "012", "100"], "weight").kind == "number"


def test_one_value_with_gaps_is_not_constant():
    assert described(["x", None, "x"]).kind == "category"


def test_text_with_too_many_values_is_left_out():
    column = described([f"word {index % 90}" for index in range(100)])
    assert (column.kind, column.note) == ("unused", "text with 90 different values")


def test_a_little_text_among_numbers_is_read_as_missing_with_a_note():
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
def test_dates_are_found_in_many_formats(texts, date_format, note):
    column = described([*texts, None, texts[0]])
    assert (column.kind, column.date_format, column.note) == ("date", date_format, note)


def test_the_format_that_reads_most_dates_is_taken():
    # Of 30 days written day first, only one could not be a month: the other way reads 97 % of them too.
    texts = [f"{1 + index % 12:02d}/03/2024" for index in range(29)] + ["13/03/2024"]
    assert described(texts).date_format == "%d/%m/%Y"


def test_text_among_dates_is_read_as_missing_with_a_note():
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
def test_what_is_not_a_table_is_rejected(frame, error, words):
    with pytest.raises(error, match=words):
        describe_columns(frame)
    with pytest.raises(error, match=words):
        TableEncoder([Column("a", "number")]).fit(frame)


def test_a_long_list_of_names_is_cut_short():
    assert join_names(["a", "b"]) == "a, b"
    assert join_names([str(index) for index in range(10_000)]).endswith(", 19 … (10,000 in all)")
