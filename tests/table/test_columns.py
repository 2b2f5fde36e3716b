"""What the columns of a table hold."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onsphere import InvalidInputError, InvalidTypeError
from onsphere.table import Column, TableEncoder, describe_columns
from onsphere.table.cells import read_cells, spell_dates
from onsphere.table.columns import check_has, force_kind, is_column, join_names


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


def test_digits_with_zeros_in_front_are_codes():
    assert described(["007", "012", "100"], "part_no").kind == "key"
    column = described(["01234", "90210", "01234"], "zip")
    assert (column.kind, column.note) == ("category", "codes that begin with 0; say so if they are numbers")
    assert force_kind("zip", pd.Series(["01234", "90210"]), "number").kind == "number"


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
        (["01/02/2024", "02/01/2024"], "%m/%d/%Y", "dates read as %m/%d/%Y, month first; it could be %d/%m/%Y"),
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


# --- how spreadsheets and people write numbers and dates ---


@pytest.mark.parametrize(
    ("texts", "numbers", "note"),
    [
        (["4.1%", "3 %", "-12.5%"], [4.1, 3, -12.5], "numbers in %"),
        (["1,200", "15", "3,000,000.5"], [1200, 15, 3_000_000.5], ", is read as the separator of thousands"),
        (["$1,200.50", "$15", "-$3"], [1200.5, 15, -3], "numbers in $; , is read as the separator of thousands"),
        (["1.234,5 €", "12,5 €", "1.000.000 €"], [1234.5, 12.5, 1e6], "numbers in €; . is read as the separator"),
        (["1.000.000", "2.000.000", "3"], [1e6, 2e6, 3], ". is read as the separator of thousands"),
        (["1 234", "12", "5 000"], [1234, 12, 5000], "a space is read as the separator of thousands"),
        (["4.1 bn", "300 k", "2.5M"], [4.1e9, 3e5, 2.5e6], "words such as k, M and bn are multiplied out"),
        (["4k", "300", "2k"], [4000, 300, 2000], "words such as k, M and bn are multiplied out"),
        (["36 months", "60 months", "36 months"], [36, 60, 36], "numbers in months"),
    ],
)
def test_numbers_are_read_as_they_are_written(texts, numbers, note):
    column = described(texts)
    assert (column.kind, column.mixed) == ("number", False)
    assert note in column.note
    assert read_cells(column, texts).values.tolist() == pytest.approx(numbers)
    # Another unit is an error, and a bare number is none.
    values, problems = read_cells(column, ["7", "5 apples"])
    assert values[0] == 7
    assert [(problem.row, problem.expected) for problem in problems] == [(1, "a number")]


@pytest.mark.parametrize(
    "texts",
    [
        ["1st", "2nd", "3rd"],
        ["1.2.3", "1.10.2", "2.0.1"],
        ["1,2,3", "4,5", "6"],
        ["1,5", "1'000", "2"],
        ["a", "b", "c"],
    ],
)
def test_text_that_is_not_surely_numbers_stays_text(texts):
    assert described(texts * 4).kind == "category"


def test_words_for_missing_values_do_not_hide_numbers():
    texts = ["12", "13.5", "9"] * 6 + ["unknown", "n/a"] * 2
    column = described(texts)
    assert (column.kind, column.mixed) == ("number", True)
    assert column.note == "text such as 'unknown' is read as missing"
    assert described([*texts, "4%"]).kind == "number"
    assert described(["unknown"] * 5 + ["3", "4", "4"]).kind == "category"


def test_a_column_that_might_be_numbers_is_said_to_be():
    column = described(["12", "13", "9", "8"] * 5 + ["low", "high", "mid"] * 3)
    assert (column.kind, column.note) == ("category", "69% of the values are numbers; say so if it is a number")


@pytest.mark.parametrize(
    ("texts", "date_format", "first"),
    [
        (["31/01/24", "01/02/24"], "%d/%m/%y", "2024-01-31"),
        (["31-Jan-2024", "1-Feb-2024"], "%d-%b-%Y", "2024-01-31"),
        (["Jan 31, 2024", "Feb 1, 2024"], "%b %d, %Y", "2024-01-31"),
        (["01/31/2024 02:30 PM", "02/01/2024 11:00 AM"], "%m/%d/%Y %I:%M %p", "2024-01-31T14:30"),
        (["14:30", "09:15"], "%H:%M", "1900-01-01T14:30"),
    ],
)
def test_dates_are_read_as_spreadsheets_write_them(texts, date_format, first):
    column = described(texts * 3)
    assert (column.kind, column.date_format) == ("date", date_format)
    assert read_cells(column, texts).values[0] == pd.Timestamp(first).timestamp()


def test_days_and_months_that_could_be_exchanged_are_named():
    assert described(["01/02/24", "03/04/24"] * 3).note == "dates read as %m/%d/%y, month first; it could be %d/%m/%y"


def test_seconds_since_1970_are_dates_only_with_the_name_of_a_time():
    seconds = [1_700_000_000, 1_600_000_000, 1_650_000_000, 1_700_000_000]
    column = described(seconds, "created_at")
    assert (column.kind, column.note, column.date_format) == ("date", "seconds since 1970", "epoch s")
    assert read_cells(column, pd.Series(seconds)).values.tolist() == seconds
    assert read_cells(column, ["1700000000", "1600000000"]).values.tolist() == seconds[:2]
    fine = described([1000 * each for each in seconds], "timestamp")
    values = read_cells(fine, pd.Series([1000 * each for each in seconds])).values
    assert (fine.date_format, values.tolist()) == ("epoch ms", seconds)
    assert read_cells(fine, values).values.tolist() == seconds  # as read before
    assert described(seconds, "population").kind == "number"
    assert "could be seconds since 1970" in described(seconds, "population").note
    assert described([1.5, 2.5], "time").note == ""
    assert is_column(column)


def test_what_a_column_holds_can_be_said():
    texts = pd.Series(["01/02/24", "03/04/24", "soon"])
    column = force_kind("day", texts, "date=%d/%m/%y")
    assert (column.date_format, column.mixed) == ("%d/%m/%y", True)
    assert force_kind("day", texts, "date").date_format == "%m/%d/%y"
    assert force_kind("day", pd.Series(pd.to_datetime(["2024-01-31"])), "date").kind == "date"
    assert force_kind("t", pd.Series([5, 6]), "date=epoch s").date_format == "epoch s"
    with pytest.raises(InvalidInputError, match=r"such as 5, which are not dates .* t=%Y, or, for any seconds"):
        force_kind("t", pd.Series([5, 6]), "date")
    assert force_kind("n", pd.Series(["3%", "many"]), "number") == Column(
        "n",
        "number",
        "as asked; numbers in %; text such as 'many' is read as missing",
        written_as_text=True,
        mixed=True,
        unit="%",
    )
    assert force_kind("n", pd.Series(["3", "4 kg", "5 m"]), "number").mixed
    assert force_kind("n", pd.Series([1, 2]), "number").kind == "number"
    assert force_kind("n", pd.Series([1, 2]), "category").kind == "category"
    with pytest.raises(InvalidInputError, match=r"Expected numbers in the column n, as asked\. Got text such as 'a'"):
        force_kind("n", pd.Series(["a", "b"]), "number")
    with pytest.raises(InvalidInputError, match="Expected a format such as"):
        force_kind("day", texts, "date=%q")


@pytest.mark.parametrize("values", [[20240131, 20240201, 20240302], [20240131.0, None, 20240302.0]])
def test_whole_numbers_can_be_dates_in_a_format(values):
    column = force_kind("x", pd.Series(values), "date=%Y%m%d")
    frame = spell_dates(pd.DataFrame({"x": values}), [column])
    seconds = read_cells(column, frame["x"]).values
    assert column.note == "as asked; dates read as %Y%m%d"
    assert seconds[0] == pd.Timestamp("2024-01-31").timestamp()
    assert seconds[2] == pd.Timestamp("2024-03-02").timestamp()
    assert read_cells(column, seconds).values[0] == seconds[0]  # what was read before stays
    assert force_kind("x", pd.Series(values), "date").date_format == "%Y%m%d"
    assert described(values, "day").date_format == "%Y%m%d"
    assert described(values).note == "could be dates read as %Y%m%d; say so if it is a date"
    assert described([20241331, 20240201]).note == ""


def test_whole_numbers_are_dates_in_a_format_without_a_copy_too():
    column = Column("x", "date", date_format="%Y%m%d")
    assert read_cells(column, pd.Series([20240131])).values.tolist() == [pd.Timestamp("2024-01-31").timestamp()]


def test_the_order_of_the_rows_tells_days_from_months():
    days = ["05/01/2015", "06/01/2015", "02/02/2015", "01/03/2015"]
    assert (described(days).date_format, described(days).note) == ("%d/%m/%Y", "dates read as %d/%m/%Y")
    assert described(days[::-1]).date_format == "%d/%m/%Y"
    assert "it could be %d/%m/%Y" in described([days[place] for place in (1, 0, 3, 2)]).note


def test_spaces_around_text_and_dates_do_not_count():
    assert read_cells(Column("x", "category"), ["hill ", " hill", None]).values.tolist() == ["hill", "hill", None]
    assert read_cells(Column("x", "category"), ["hill ", " "], strict=True).values.tolist() == ["hill", ""]
    column = Column("x", "date", date_format="%d.%m.%Y")
    assert read_cells(column, [" 31.01.2022"]).values.tolist() == [pd.Timestamp("2022-01-31").timestamp()]


def test_dates_with_the_year_first_are_read_however_others_are_written():
    column = Column("x", "date", date_format="%d.%m.%Y")
    values, problems = read_cells(column, ["31.01.2022", "2022-02-05T00:00:00", "2022-02-05", "05/02/2022"])
    assert values[1] == values[2] == pd.Timestamp("2022-02-05").timestamp()
    assert [problem.row for problem in problems] == [3]


def test_a_missing_column_is_named_with_what_it_may_be():
    with pytest.raises(
        InvalidInputError, match=r"Got Area, rooms\. Did you mean Area\? Pass a table that has them all\.$"
    ):
        check_has("a.csv", ["Area", "rooms"], ["area"])
    with pytest.raises(InvalidInputError, match=r"Got a;b\. Pass .* pass its delimiter"):
        check_has("a.csv", ["a;b"], ["size"])
