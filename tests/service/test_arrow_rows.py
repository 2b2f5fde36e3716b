"""Rows that come as CSV or Arrow: which types and values are read, and which are rejected."""

import csv
import io
import sys
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as run_with
from hypothesis import strategies as st

from onsphere import MissingExtraError
from onsphere.service.answers import RequestError
from onsphere.service.rows import ARROW, CSV, read_table


def read_csv(body, facts, *, max_rows):
    return read_table(body, facts, CSV, max_rows=max_rows)


def read_arrow(body, facts, *, max_rows):
    return read_table(body, facts, ARROW, max_rows=max_rows)


def columns(**changed):
    """A table in Arrow with one row that fits, but for what is changed."""
    fitting = {
        "size": pa.array([0.5]),
        "rooms": pa.array([3]),
        "shop": pa.array(["a"]),
        "new": pa.array([True]),
        "day": pa.array([pd.Timestamp("2024-03-01")]),
    }
    return pa.table({name: value for name, value in {**fitting, **changed}.items() if value is not None})


@pytest.fixture(scope="module")
def read(facts, helpers):
    """Read a table in Arrow with one row that fits, but for what is changed."""
    return lambda **changed: read_arrow(helpers.arrow(columns(**changed)), facts, max_rows=10)


@pytest.mark.parametrize(
    ("column", "values", "row"),
    [
        ("size", pa.array([Decimal("0.5")]), 0.5),
        ("size", pa.array([None], pa.null()), None),
        ("size", pa.array([2**62]), float(2**62)),
        ("shop", pa.array(["b"]).dictionary_encode(), "b"),
        ("shop", pa.array(["b"], pa.large_string()), "b"),
        ("shop", pa.array([None], pa.null()), None),
        ("new", pa.array([None], pa.bool_()), None),
        ("day", pa.array(["2024-03-01"]), "2024-03-01T00:00:00+00:00"),
        ("day", pa.array([pd.Timestamp("2024-03-01").date()]), "2024-03-01T00:00:00+00:00"),
        ("day", pa.array([pd.Timestamp("2024-03-01 02:00", tz="Europe/Berlin")]), "2024-03-01T01:00:00+00:00"),
    ],
)
def test_arrow_types_that_fit_are_read(read, column, values, row):
    assert read(**{column: values}).get_row(0)[column] == row


@pytest.mark.parametrize(
    ("changed", "column", "got"),
    [
        ({"size": pa.array(["1"])}, "size", "the type string"),
        ({"size": pa.array([[1.0]])}, "size", "the type list"),
        ({"size": pa.array([np.inf])}, "size", "inf"),
        ({"size": pa.array([np.nan], from_pandas=False)}, "size", "nan"),
        ({"shop": pa.array([1])}, "shop", "the type int64"),
        ({"new": pa.array([1])}, "new", "the type int64"),
        ({"day": pa.array([1])}, "day", "the type int64"),
        ({"shop": pa.array(["x" * 2000]).dictionary_encode()}, "shop", "a longer one"),
        ({"shop": pa.array(["x" * 2000])}, "shop", "2,000 characters"),
        ({"size": None}, "size", "no such column"),
        ({"other": pa.array([1])}, "other", "does not know"),
    ],
)
def test_arrow_types_that_do_not_fit_are_rejected_by_column(read, changed, column, got):
    with pytest.raises(RequestError) as caught:
        read(**changed)
    assert caught.value.status == 422
    assert caught.value.problems[0].column == column
    assert got in caught.value.problems[0].got


@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("packing", ["zstd", "lz4"])
def test_compressed_arrow_is_read(facts, file, packing, helpers):
    batch = read_arrow(helpers.arrow(columns(), file=file, compression=packing), facts, max_rows=10)
    assert batch.get_row(0)["size"] == 0.5


def test_arrow_without_rows_is_rejected(facts, helpers):
    for table in (columns().slice(0, 0), columns(shop=pa.array(["a"]).dictionary_encode()).slice(0, 0)):
        with pytest.raises(RequestError, match="at least one row"):
            read_arrow(helpers.arrow(table), facts, max_rows=10)


@pytest.mark.parametrize(
    "key", [pa.array([0]).cast(pa.timestamp("s", "Nowhere/Land")), pa.array([2**62]).cast(pa.timestamp("s"))]
)
def test_an_arrow_key_with_an_impossible_date_is_rejected(facts, key, helpers):
    with pytest.raises(RequestError, match="cannot be read"):
        read_arrow(helpers.arrow(columns(id=key)), facts, max_rows=10)


def test_a_decimal_with_an_absurd_scale_is_rejected(facts, helpers):
    # Cast to a float, it would end the process.
    buffers = [None, pa.py_buffer(bytes(16))]
    wild = pa.Array.from_buffers(pa.decimal128(5, 2_000_000), 1, buffers)
    with pytest.raises(RequestError, match="Expected numbers in the column rooms"):
        read_arrow(helpers.arrow(columns(rooms=wild)), facts, max_rows=10)


def views_of_one_text(n_rows):
    """Long texts of many rows that all lie in one place, which no offsets could say."""
    one = pa.array(["x" * 10_000], pa.string_view())
    views = pa.py_buffer(one.buffers()[1].to_pybytes() * n_rows)
    return pa.Array.from_buffers(pa.string_view(), n_rows, [None, views, one.buffers()[2]])


UNION = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])


RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"]))


@pytest.mark.parametrize(
    "key",
    [
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([b"x"]),
        pa.array([b"x" * 16], pa.uuid()),
        UNION,
        RUNS,
        views_of_one_text(1),
        pa.array([1], pa.duration("s")),
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([[1]])),
        pa.Array.from_buffers(pa.decimal128(5, 2_000_000), 1, [None, pa.py_buffer(bytes(16))]),
    ],
    ids=lambda key: str(key.type)[:12],
)
def test_keys_of_nested_types_are_rejected(read, key):
    with pytest.raises(RequestError, match=r"plain values in the column id\. Got the type"):
        read(id=key)
    with pytest.raises(RequestError, match="text in the column shop"):
        read(shop=key)
    assert len(read(site=key)) == 1  # which is not looked into


def test_a_long_text_that_many_rows_share_is_not_copied_for_each(read):
    shared = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x" * 10_000]))
    with pytest.raises(RequestError, match="at most 1,000 characters in the column id"):
        read(id=shared)
    nothing = pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.array([None], pa.string()))
    assert read(id=nothing, shop=nothing).get_key(0) == {"id": None}
    assert read(id=pa.array(["a"]).dictionary_encode()).get_key(0) == {"id": "a"}


def test_an_arrow_decimal_key_that_overflows_is_rejected(read):
    wild = pa.Array.from_buffers(pa.decimal256(76, 2), 1, [None, pa.py_buffer(b"\xff" * 31 + b"\x7f")])
    with pytest.raises(RequestError, match="cannot be read"):
        read(id=wild)


@run_with(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_arrow_is_read_or_rejected(facts, data, helpers):
    table = columns(
        id=pa.array([pd.Timestamp("2024-03-01", tz="Europe/Berlin")]),
        rooms=pa.array([Decimal("3.25")]),
        shop=pa.array(["a"]).dictionary_encode(),
    )
    body = bytearray(helpers.arrow(table, file=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RequestError):  # anything else fails
        batch = read_arrow(bytes(body[: data.draw(st.integers(0, len(body)))]), facts, max_rows=10)
        assert len(batch) >= 1


@pytest.mark.parametrize(
    "day",
    [
        pa.array([2**55], pa.timestamp("s")),  # which would come round to another date
        pa.array([2**31 - 1], pa.int32()).view(pa.date32()),
        pa.array([-(2**60)], pa.timestamp("us", "Asia/Tokyo")),
    ],
    ids=["seconds", "days", "before"],
)
def test_arrow_dates_beyond_the_years_1_to_9999_are_rejected(read, day):
    with pytest.raises(RequestError, match="a date of the years 1 to 9999 in the column day, row 0"):
        read(day=day)
    for kept, year in ((253_402_300_799, "9999"), (-62_135_596_800, "0001"), (None, "None")):
        assert str(read(day=pa.array([kept], pa.timestamp("s"))).get_row(0)["day"])[:4] == year


def test_keys_of_arrow_may_be_anything(facts, helpers):
    ids = pa.array([pd.Timestamp("2024-03-01")])
    assert read_arrow(helpers.arrow(columns(id=ids)), facts, max_rows=10).get_key(0) == {"id": "2024-03-01 00:00:00"}


HEADER = b"size,rooms,shop,new,day\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\xff\xfe", "cannot be read"),
        (HEADER + b"1,2\n", "Expected 5 columns"),
        (HEADER, "at least one row"),
        (b"size,size,rooms,shop,new,day\n1,1,1,a,true,\n", "one column of this name"),
        (HEADER + b"x,3,a,true,\n", "a number in the column size, row 0"),
        (HEADER + b"inf,3,a,true,\n", "a number of size 3.4e+38 at most in the column size, row 0"),
        (HEADER + b"1,3,a,maybe,\n", "true or false in the column new, row 0"),
        (HEADER + b"1,3,a,true,someday\n", "a date, written as 2024-01-31 in the column day"),
        (HEADER + b"1,3," + b"x" * 2000 + b",true,\n", "at most 1,000 characters in the column shop"),
        (HEADER + b'1,3,"a,true,\n', "cannot be read"),
    ],
)
def test_bad_csv_is_rejected_with_the_reason(facts, body, expected):
    with pytest.raises(RequestError) as caught:
        read_csv(body, facts, max_rows=10)
    assert expected in caught.value.detail


def test_csv_keeps_commas_quotes_and_keys(facts):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["id", "size", "rooms", "shop", "new", "day"])
    writer.writerow(["a,1", "", "3", 'say "b"\nc', "0", "2024-03-01"])
    batch = read_csv(b"\xef\xbb\xbf" + out.getvalue().encode(), facts, max_rows=10)
    assert batch.get_row(0)["shop"] == 'say "b"\nc'
    assert batch.get_row(0)["new"] is False
    assert batch.get_row(0)["size"] is None
    assert batch.get_key(0) == {"id": "a,1"}


def test_long_and_infinite_keys_in_csv_and_arrow_are_rejected(read, facts):
    with pytest.raises(RequestError, match="at most 1,000 characters in the column id, row 0"):
        read_csv(b"id," + HEADER + b"x" * 2000 + b",1,3,a,true,\n", facts, max_rows=10)
    for key in ("x" * 2000, float("nan")):
        with pytest.raises(RequestError, match="in the column id, row 0"):
            read(id=pa.array([key]))


def test_pyarrow_is_needed_for_batches(facts, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        read_arrow(b"", facts, max_rows=1)
