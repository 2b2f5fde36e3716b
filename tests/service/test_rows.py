"""Rows that come as JSON, and what all three formats share."""

import json
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as run_with
from hypothesis import strategies as st

from onsphere.service.answers import RequestError
from onsphere.service.rows import ARROW, CSV, read_json, read_table


def read_csv(body, facts, *, max_rows):
    return read_table(body, facts, CSV, max_rows=max_rows)


def read_arrow(body, facts, *, max_rows):
    return read_table(body, facts, ARROW, max_rows=max_rows)


def test_numbers_written_as_text_in_training_may_come_as_text(text_facts, helpers):
    body = b'{"rows": [["1.5", "many", "True", "31.01.2024", "soon"], [2, 3, false, null, null]]}'
    from_json = read_json([body], text_facts, max_rows=9)[0]
    assert from_json.get_row(0) == {"n": 1.5, "m": None, "b": True, "d": "2024-01-31T00:00:00+00:00", "e": None}
    assert from_json.get_row(1) == {"n": 2.0, "m": 3.0, "b": False, "d": None, "e": None}
    from_csv = read_csv(b"n,m,b,d,e\n1.5,many,True,31.01.2024,soon\n2,3,false,,\n", text_facts, max_rows=9)
    texts = {
        "n": ["1.5", "2"],
        "m": ["many", "3"],
        "b": ["True", "false"],
        "d": ["31.01.2024", None],
        "e": ["soon", None],
    }
    from_arrow = read_arrow(helpers.arrow(pa.table(texts)), text_facts, max_rows=9)
    for other in (from_csv, from_arrow):
        assert [other.get_row(0), other.get_row(1)] == [from_json.get_row(0), from_json.get_row(1)]


@pytest.mark.parametrize(
    "body",
    [
        b'{"rows": [["x", 1, true, null, null]]}',
        b'{"rows": [["inf", 1, true, null, null]]}',
        b'{"rows": [[1, 1, "maybe", null, null]]}',
        b'{"rows": [[1, 1, null, "31-2024-01", null]]}',
    ],
)
def test_text_of_another_kind_is_rejected(text_facts, body):
    with pytest.raises(RequestError) as caught:
        read_json([body], text_facts, max_rows=9)
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("x" * 1001, "text of at most 1,000 characters"),
        (10**39, "a number of size 3.4e+38 at most"),
        (float("inf"), "a number of size 3.4e+38 at most"),
    ],
    ids=["long", "large", "infinite"],
)
def test_a_key_that_is_too_long_or_too_large_is_rejected(facts, helpers, key, expected):
    written = json.dumps({"rows": [{**helpers.row, "id": key}]}).replace("Infinity", "1e999")
    with pytest.raises(RequestError, match=re.escape(f"{expected} in the column id, row 0")):
        read_json([written.encode()], facts, max_rows=10)


@run_with(max_examples=200, deadline=None)
@given(body=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_random_bytes_are_rejected(facts, body):
    for reader, given_body in ((read_json, [body]), (read_csv, body), (read_arrow, body)):
        with pytest.raises(RequestError) as caught:
            reader(given_body, facts, max_rows=10)
        assert caught.value.status in (413, 422)
