"""The parts of the service that are easier to ask one by one: bodies, engines, replies, and the start of it all."""

import asyncio
import csv
import importlib
import io
import json
import os
import re
import signal
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given as drawn
from hypothesis import settings as run_with
from hypothesis import strategies as st
from typer.testing import CliRunner

from onsphere import HCMRegressor, InvalidInputError, MissingExtraError, load
from onsphere.assessment import Assessment
from onsphere.drift import make_reference
from onsphere.export import export_onnx
from onsphere.service import Settings, serve
from onsphere.service.batches import _is_packed, rows_of_arrow, rows_of_csv
from onsphere.service.engine import Served, load_engine
from onsphere.service.graphs import GraphEngine
from onsphere.service.logs import Metrics, Watch
from onsphere.service.openapi import body_schema
from onsphere.service.problems import RequestError
from onsphere.service.recent import Recent, hints_of
from onsphere.service.replies import answer_rows, arrow_of, csv_of, reason
from onsphere.service.rows import Batch, rows_of_json
from onsphere.table.columns import Column

serve_module = sys.modules["onsphere.service.serve"]
app_module = sys.modules["onsphere.service.app"]


@pytest.fixture(scope="module")
def facts(models):
    return load_engine(models["table"]).facts


@pytest.fixture(scope="module")
def other_facts(models):
    return load_engine(models["other"]).facts


@pytest.fixture(scope="module")
def text_facts(facts):
    """Of a table whose numbers, booleans and dates came as text."""
    columns = (
        Column("n", "number", written_as_text=True),
        Column("m", "number", written_as_text=True, mixed=True),
        Column("b", "boolean", written_as_text=True),
        Column("d", "date", date_format="%d.%m.%Y"),
        Column("e", "date", date_format="%d.%m.%Y", mixed=True),
    )
    return replace(facts, columns=columns)


def arrow(table, *, file=False, **options):
    out, schema = io.BytesIO(), table.schema
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(
        out, schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(table)
    return out.getvalue()


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


def read(facts, **changed):
    return rows_of_arrow(arrow(columns(**changed)), facts, max_rows=10)


def test_text_that_was_text_in_training_is_read_as_then(text_facts):
    body = b'{"rows": [["1.5", "many", "True", "31.01.2024", "soon"], [2, 3, false, null, null]]}'
    from_json = rows_of_json(body, text_facts, max_rows=9)
    assert from_json.row(0) == {"n": 1.5, "m": None, "b": True, "d": "2024-01-31T00:00:00+00:00", "e": None}
    assert from_json.row(1) == {"n": 2.0, "m": 3.0, "b": False, "d": None, "e": None}
    from_csv = rows_of_csv(b"n,m,b,d,e\n1.5,many,True,31.01.2024,soon\n2,3,false,,\n", text_facts, max_rows=9)
    texts = {
        "n": ["1.5", "2"],
        "m": ["many", "3"],
        "b": ["True", "false"],
        "d": ["31.01.2024", None],
        "e": ["soon", None],
    }
    from_arrow = rows_of_arrow(arrow(pa.table(texts)), text_facts, max_rows=9)
    for other in (from_csv, from_arrow):
        assert [other.row(0), other.row(1)] == [from_json.row(0), from_json.row(1)]


@pytest.mark.parametrize(
    "body",
    [
        b'{"rows": [["x", 1, true, null, null]]}',
        b'{"rows": [["inf", 1, true, null, null]]}',
        b'{"rows": [[1, 1, "maybe", null, null]]}',
        b'{"rows": [[1, 1, null, "2024-01-31", null]]}',
    ],
)
def test_text_that_is_none_of_its_kind_is_refused(text_facts, body):
    with pytest.raises(RequestError) as caught:
        rows_of_json(body, text_facts, max_rows=9)
    assert caught.value.status == 422


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
def test_types_of_arrow_that_fit(facts, column, values, row):
    assert read(facts, **{column: values}).row(0)[column] == row


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
        ({"shop": pa.array(["x" * 2000])}, "shop", "a longer one"),
        ({"size": None}, "size", "no such column"),
        ({"other": pa.array([1])}, "other", "does not know"),
    ],
)
def test_types_of_arrow_that_do_not_fit_name_the_column(facts, changed, column, got):
    with pytest.raises(RequestError) as caught:
        read(facts, **changed)
    assert caught.value.status == 422
    assert caught.value.problems[0].column == column
    assert got in caught.value.problems[0].got


@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("packing", ["zstd", "lz4"])
def test_arrow_that_could_grow_is_refused(facts, file, packing):
    for table in (columns(size=pa.array([0.5])), columns(shop=pa.array(["a"]).dictionary_encode())):
        with pytest.raises(RequestError, match="not packed"):
            rows_of_arrow(arrow(table, file=file, compression=packing), facts, max_rows=10)


def test_messages_of_arrow_without_a_batch_are_not_packed():
    nothing = struct.pack("<IHHi", 8, 4, 4, 4)
    empty_dictionary = struct.pack("<IHHHHHxxiBxxxIHHi", 16, 10, 12, 0, 4, 8, 12, 2, 8, 4, 4, 4)
    assert not _is_packed(nothing)
    assert not _is_packed(empty_dictionary)


def test_arrow_without_rows_is_refused(facts):
    for table in (columns().slice(0, 0), columns(shop=pa.array(["a"]).dictionary_encode()).slice(0, 0)):
        with pytest.raises(RequestError, match="at least one row"):
            rows_of_arrow(arrow(table), facts, max_rows=10)


@pytest.mark.parametrize(
    "key", [pa.array([0]).cast(pa.timestamp("s", "Nowhere/Land")), pa.array([2**62]).cast(pa.timestamp("s"))]
)
def test_a_key_in_arrow_that_is_no_date_is_refused(facts, key):
    with pytest.raises(RequestError, match="cannot be read"):
        rows_of_arrow(arrow(columns(id=key)), facts, max_rows=10)


def test_a_decimal_of_a_senseless_scale_is_refused(facts):
    # Cast to a float, it would end the process.
    buffers = [None, pa.py_buffer(bytes(16))]
    wild = pa.Array.from_buffers(pa.decimal128(5, 2_000_000), 1, buffers)
    with pytest.raises(RequestError, match="Expected numbers in the column rooms"):
        rows_of_arrow(arrow(columns(rooms=wild)), facts, max_rows=10)


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
def test_keys_of_types_that_are_not_plain_are_refused(facts, key):
    with pytest.raises(RequestError, match=r"plain values in the column id\. Got the type"):
        read(facts, id=key)
    with pytest.raises(RequestError, match="text in the column shop"):
        read(facts, shop=key)
    assert len(read(facts, site=key)) == 1  # which is not looked into


def test_a_long_text_that_many_rows_share_is_not_copied_for_each(facts):
    shared = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x" * 10_000]))
    with pytest.raises(RequestError, match="at most 1,000 characters in the column id"):
        read(facts, id=shared)
    nothing = pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.array([None], pa.string()))
    assert read(facts, id=nothing, shop=nothing).key(0) == {"id": None}
    assert read(facts, id=pa.array(["a"]).dictionary_encode()).key(0) == {"id": "a"}


def test_arrow_of_very_many_parts_is_refused(facts):
    table = columns(shop=pa.array(["a"]).dictionary_encode())
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        for _ in range(300):
            writer.write_table(table.slice(0, 0))
            writer.write_table(table)
    with pytest.raises(RequestError, match="at most 200 parts") as caught:
        rows_of_arrow(out.getvalue(), facts, max_rows=1000)
    assert caught.value.status == 413


def test_a_key_that_is_no_number_after_all_is_refused(facts):
    wild = pa.Array.from_buffers(pa.decimal256(76, 2), 1, [None, pa.py_buffer(b"\xff" * 31 + b"\x7f")])
    with pytest.raises(RequestError, match="cannot be read"):
        read(facts, id=wild)


@run_with(max_examples=200, deadline=None)
@drawn(data=st.data())
def test_arrow_that_was_damaged_is_refused_and_no_more(facts, data):
    table = columns(
        id=pa.array([pd.Timestamp("2024-03-01", tz="Europe/Berlin")]),
        rooms=pa.array([Decimal("3.25")]),
        shop=pa.array(["a"]).dictionary_encode(),
    )
    body = bytearray(arrow(table, file=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RequestError):  # anything else fails
        batch = rows_of_arrow(bytes(body[: data.draw(st.integers(0, len(body)))]), facts, max_rows=10)
        assert len(batch) >= 1


@run_with(max_examples=200, deadline=None)
@drawn(body=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_read_or_refused(facts, body):
    for reader in (rows_of_json, rows_of_csv, rows_of_arrow):
        with pytest.raises(RequestError) as caught:
            reader(body, facts, max_rows=10)
        assert caught.value.status in (413, 422)


HEADER = b"size,rooms,shop,new,day\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\xff\xfe", "cannot be read"),
        (HEADER + b"1,2\n", "Expected 5 columns"),
        (HEADER, "at least one row"),
        (b"size,size,rooms,shop,new,day\n1,1,1,a,true,\n", "one column of this name"),
        (HEADER + b"x,3,a,true,\n", "a number in the column size, row 0"),
        (HEADER + b"inf,3,a,true,\n", "a number in the column size, row 0"),
        (HEADER + b"1,3,a,maybe,\n", "true or false in the column new, row 0"),
        (HEADER + b"1,3,a,true,someday\n", "a date, written as 2024-01-31 in the column day"),
        (HEADER + b"1,3," + b"x" * 2000 + b",true,\n", "at most 1,000 characters in the column shop"),
        (HEADER + b'1,3,"a,true,\n', "cannot be read"),
    ],
)
def test_bad_csv_is_told(facts, body, expected):
    with pytest.raises(RequestError) as caught:
        rows_of_csv(body, facts, max_rows=10)
    assert expected in caught.value.detail


def test_csv_keeps_commas_quotes_and_keys(facts):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["id", "size", "rooms", "shop", "new", "day"])
    writer.writerow(["a,1", "", "3", 'say "b"\nc', "0", "2024-03-01"])
    batch = rows_of_csv(b"\xef\xbb\xbf" + out.getvalue().encode(), facts, max_rows=10)
    assert batch.row(0)["shop"] == 'say "b"\nc'
    assert batch.row(0)["new"] is False
    assert batch.row(0)["size"] is None
    assert batch.key(0) == {"id": "a,1"}


@pytest.mark.parametrize(
    "day",
    [
        pa.array([2**55], pa.timestamp("s")),  # which would come round to another date
        pa.array([2**31 - 1], pa.int32()).view(pa.date32()),
        pa.array([-(2**60)], pa.timestamp("us", "Asia/Tokyo")),
    ],
    ids=["seconds", "days", "before"],
)
def test_dates_of_arrow_beyond_all_calendars_are_refused(facts, day):
    with pytest.raises(RequestError, match="a date of the years 1 to 9999 in the column day, row 0"):
        read(facts, day=day)
    for kept, year in ((253_402_300_799, "9999"), (-62_135_596_800, "0001"), (None, "None")):
        assert str(read(facts, day=pa.array([kept], pa.timestamp("s"))).row(0)["day"])[:4] == year


def test_keys_of_arrow_may_be_anything(facts):
    ids = pa.array([pd.Timestamp("2024-03-01")])
    assert rows_of_arrow(arrow(columns(id=ids)), facts, max_rows=10).key(0) == {"id": "2024-03-01 00:00:00"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("x" * 1001, "text of at most 1,000 characters"),
        ("\ud800", "text of at most 1,000 characters"),
        (10**39, "a number of size 3.4e+38 at most"),
        (float("inf"), "a number of size 3.4e+38 at most"),
    ],
    ids=["long", "half", "large", "infinite"],
)
def test_a_key_that_cannot_be_kept_is_refused(facts, given, key, expected):
    written = json.dumps({"rows": [{**given.row, "id": key}]}).replace("Infinity", "1e999")
    with pytest.raises(RequestError, match=re.escape(f"{expected} in the column id, row 0")):
        rows_of_json(written.encode(), facts, max_rows=10)


def test_long_and_infinite_keys_of_batches_are_refused(facts):
    with pytest.raises(RequestError, match="at most 1,000 characters in the column id, row 0"):
        rows_of_csv(b"id," + HEADER + b"x" * 2000 + b",1,3,a,true,\n", facts, max_rows=10)
    for key in ("x" * 2000, float("nan")):
        with pytest.raises(RequestError, match="in the column id, row 0"):
            read(facts, id=pa.array([key]))


def test_keys_of_several_kinds_are_answered_as_text(facts):
    result = Assessment(value=np.array([1.0, 2.0, 3.0]), uncertainty=np.array([0.1, 0.1, 0.1]))
    rows = {"a": np.array([1.0, 2.0, 3.0])}
    for keys, expected in (([7, "b", None], ["7", "b", None]), ([10**30, 1, -1], [str(10**30), "1", "-1"])):
        answer = pa.ipc.open_stream(arrow_of(result, facts, Batch(rows, {"id": keys}))).read_all()
        assert answer["id"].to_pylist() == expected


def test_a_key_called_like_an_answer_is_renamed(facts):
    result = Assessment(value=np.array([1.0]), uncertainty=np.array([0.1]))
    batch = Batch({"a": np.array([1.0])}, {"value": [7]})
    assert csv_of(result, facts, batch).decode().splitlines()[0] == '"key_value","value","uncertainty"'


def test_pyarrow_is_needed_for_batches(facts, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        rows_of_arrow(b"", facts, max_rows=1)


def test_reasons(facts):
    def told(uncertainty, norm):
        norms = None if norm is None else np.array([norm])
        result = Assessment(np.array([1.0]), np.array([uncertainty]), norms, accepted=np.array([False]))
        return reason(result, facts, 0)

    assert "too far" in told(np.inf, 1.0)
    assert "different targets" in told(9.0, 0.5)
    assert "extrapolates" in told(9.0, 1.5)
    assert told(9.0, None).endswith(f"threshold {facts.threshold:.4g}.")


def test_classes_without_a_set(facts):
    result = Assessment(np.array(["a"]), np.array([0.1]), probabilities=np.array([[0.9, 0.1]]), output_names=("a", "b"))
    (row,) = answer_rows(result, facts)
    assert row["probabilities"] == {"a": 0.9, "b": 0.1}
    assert "set" not in row


def test_the_schema_of_other_tables(text_facts, models):
    by_name, in_order = body_schema(text_facts, 5)["content"]["application/json"]["schema"]["properties"]["rows"][
        "items"
    ]["anyOf"]
    assert by_name["properties"]["n"]["type"] == ["number", "null", "string"]
    assert "format" not in by_name["properties"]["d"]
    assert in_order["minItems"] == 5
    array = load_engine(models["array"]).facts
    assert set(_properties(array)) == {"x0", "x1"}


def _properties(facts):
    schema = body_schema(facts, 5)["content"]["application/json"]["schema"]
    return schema["properties"]["rows"]["items"]["anyOf"][0]["properties"]


# --- engines ---


def test_graphs_of_arrays_classes_and_several_outputs(models, tmp_path):
    X = np.random.default_rng(5).normal(size=(40, 2))
    for name in ("array", "several", "classes"):
        model = load(models[name])
        rows = pd.DataFrame(X, columns=["a", "b"]) if name == "classes" else X
        export_onnx(model, tmp_path / f"{name}.onnx", X=rows, coverage=0.8)
        engine = load_engine(tmp_path / f"{name}.onnx")
        found, expected = engine.assess(rows, coverage=0.8), model.assess(rows, coverage=0.8)
        if name == "classes":
            assert found.value.tolist() == expected.value.tolist()
            np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-9)
        else:
            np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
        assert len(answer_rows(found, engine.facts)) == 40
    assert load_engine(tmp_path / "several.onnx").facts.targets == ("0", "1")
    with pytest.raises(InvalidInputError, match=r"coverage of 0\.8"):
        load_engine(tmp_path / "array.onnx", coverage=0.9)


def test_onnxruntime_is_needed_for_graphs(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="onnxruntime"):
        GraphEngine(tmp_path / "model.onnx")


def test_a_file_that_cannot_be_opened_is_told(models, tmp_path, monkeypatch):
    path = tmp_path / "m.onsphere"
    path.write_bytes(models["array"].read_bytes())
    served = Served(path)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sys.modules["onsphere.service.engine"], "load_with_manifest", refused)
    with pytest.raises(InvalidInputError, match="Permission denied"):
        served.reload()
    assert "Permission denied" in served.trouble


def test_a_model_with_other_steps_has_no_levels(tmp_path):
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X = np.random.default_rng(0).normal(size=(30, 1))
    path = HCMRegressor(make_pipeline(StandardScaler(), Ridge())).fit(X, X[:, 0]).save(tmp_path / "m.onsphere")
    assert load_engine(path).facts.levels == {}


# --- the last rows ---


def some(n_rows, first=0.0):
    rows = [[first + index, 3, "a", True, "2024-03-01"] for index in range(n_rows)]
    return lambda facts: rows_of_json(json.dumps({"rows": rows}).encode(), facts, max_rows=10_000)


def test_a_reset_by_another_worker_ends_the_last_rows(facts):
    recent = Recent(facts)
    recent.add(facts, some(5)(facts))
    for resets, n_batches in ((3, 1), (3, 1), (4, 0)):
        recent.follow(resets)
        assert len(recent.batches()) == n_batches
    recent.add(facts, some(200)(facts))
    recent.add(facts, some(1)(facts))
    assert [len(batch) for batch in recent.batches()] == [200, 1]


def test_as_many_of_the_last_rows_are_kept_as_are_needed(facts, other_facts):
    recent = Recent(facts)
    for n_rows in (5, 190, 7, 3, 1):
        recent.add(facts, some(n_rows)(facts))
    assert [len(batch) for batch in recent.batches()] == [190, 7, 3, 1]
    recent.add(facts, large := some(5_000)(facts))
    (kept,) = recent.batches()
    assert kept.row(199)["size"] == 4_999.0
    assert kept.columns["size"].base is None  # so that the memory of the others is free
    assert len(large) == 5_000
    few = read(facts, id=pa.array(["named"]))
    recent.add(facts, few)
    assert recent.batches()[-1].keys == {}
    assert recent.batches()[-1].columns["size"].base is None  # which may be the whole body of Arrow
    recent = Recent(facts)
    recent.add(facts, large)
    (kept,) = recent.batches()
    recent.add(other_facts, some(1)(other_facts))
    assert recent.batches() == [kept]
    unknown = replace(facts, reference=None)
    recent = Recent(unknown)
    recent.add(unknown, some(1)(unknown))
    assert recent.batches() == []


def test_rows_that_do_not_fit_the_reference_give_no_hints(facts):
    batch = some(50, first=100.0)(facts)
    assert hints_of(facts, [batch, batch])[0].startswith("size: mean +")
    assert hints_of(facts, []) == []
    for wrong in ({}, {"size": facts.reference["size"]}, {"size": 3}, {**facts.reference, "day": {"n_rows": "x"}}):
        assert hints_of(replace(facts, reference=wrong), [batch]) == []


def test_rows_with_nothing_in_them_give_hints_too(facts):
    nothing = rows_of_json(b'{"rows": [[null, null, null, null, null]]}', facts, max_rows=10)
    hints = hints_of(facts, [nothing] * 200)
    assert all("missing" in hint for hint in hints)
    assert len(hints) == 3


def test_ordinary_rows_give_no_hints(facts, given):
    frame = given.table(150, seed=8)[["size", "rooms", "shop", "new", "day"]]
    body = json.dumps({"rows": frame.assign(day=frame["day"].astype(str)).values.tolist()}).encode()
    assert hints_of(facts, [rows_of_json(body, facts, max_rows=200)]) == []


def test_an_array_has_hints_by_the_number_of_its_columns(models):
    plain = load_engine(models["array"]).facts
    X = np.random.default_rng(0).normal(size=(300, 2))
    watched = replace(plain, reference=make_reference(X))
    rows = json.dumps({"rows": (X[:100] + np.array([0.0, 3.0])).tolist()}).encode()
    (hint,) = hints_of(watched, [rows_of_json(rows, watched, max_rows=200)])
    assert hint.startswith("1: mean +3")


# --- starting ---


def test_it_serves_until_it_is_told_to_stop(models, tmp_path, given):
    path = tmp_path / "model.onsphere"
    path.write_bytes(models["table"].read_bytes())
    found = {}

    def use(address):
        def asked():
            with httpx.Client(base_url=address, timeout=20) as client:
                given.until(lambda: _answers(client))
                found["answer"] = client.post("/v1/assess", json={"rows": [given.row]}).json()
                path.write_bytes(models["other"].read_bytes())
                os.kill(os.getpid(), signal.SIGHUP)
                given.until(lambda: client.get("/v1/model").json()["sha256"] != found["answer"]["model"])
            os.kill(os.getpid(), signal.SIGTERM)

        found["thread"] = threading.Thread(target=asked)
        found["thread"].start()

    before = signal.getsignal(signal.SIGTERM)
    serve(Settings(str(path), host="::1", port=0, watch=0.0), report=use)
    found["thread"].join()
    assert found["answer"]["recorded"] is True
    assert signal.getsignal(signal.SIGTERM) is before


def _answers(client):
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_workers_get_settings_and_counters_by_the_environment(models, monkeypatch, tmp_path):
    seen = {}

    class Fake:
        def __init__(self, config, sockets):
            seen["config"] = config

        def run(self):
            seen["app"] = app_module.from_environment()
            seen["folder"] = os.environ["PROMETHEUS_MULTIPROC_DIR"]
            seen["metrics"] = Metrics().text()

    monkeypatch.setattr(serve_module, "_Workers", Fake)
    monkeypatch.setenv("ONSPHERE_PORT", "1")
    settings = Settings(str(models["array"]), port=0, workers=2, store=str(tmp_path / "s.sqlite"))
    serve(settings)
    assert seen["app"].state.service.settings == settings
    assert seen["config"].workers == 2
    assert isinstance(seen["metrics"], bytes)
    assert os.environ["ONSPHERE_PORT"] == "1"
    assert "ONSPHERE_MODEL" not in os.environ
    assert not os.path.exists(seen["folder"])


def test_workers_are_told_of_a_hangup(monkeypatch):
    from types import SimpleNamespace

    told = []
    monkeypatch.setattr(os, "kill", lambda *given: told.append(given))
    workers = serve_module._Workers.__new__(serve_module._Workers)
    workers.processes = [
        SimpleNamespace(pid=7, exitcode=None),
        SimpleNamespace(pid=8, exitcode=0),
        SimpleNamespace(pid=None, exitcode=None),
    ]
    workers.handle_hup()
    assert told == [(7, signal.SIGHUP)]


def test_other_kinds_of_connections_are_passed_on():
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope["type"])

    watch = Watch(inner, metrics=Metrics(), paths=frozenset(), log_values=False)
    asyncio.run(watch({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_a_fault_in_the_middle_of_an_answer_is_logged(logs):
    async def inner(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        raise ZeroDivisionError

    sent = []

    async def send(message):
        sent.append(message["type"])

    watch = Watch(inner, metrics=Metrics(), paths=frozenset(), log_values=False)
    asyncio.run(watch({"type": "http", "path": "/", "method": "GET", "headers": []}, None, send))
    assert sent == ["http.response.start"]


def test_the_service_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=r"onsphere\[serve\]"):
        importlib.reload(sys.modules["onsphere.service"])


def test_the_commands(monkeypatch, models, tmp_path):
    import typer

    from onsphere.cli.serve import new_key, serve

    seen = []
    monkeypatch.setattr(
        sys.modules["onsphere.service"], "serve", lambda settings, report: (seen.append(settings), report("http://x:1"))
    )
    commands = typer.Typer()
    commands.command()(serve)
    commands.command()(new_key)
    keys = tmp_path / "keys"
    run = CliRunner().invoke(
        commands, ["serve", str(models["array"]), "--port", "7", "--keys-file", str(keys), "--open"]
    )
    assert run.exit_code == 0, run.output
    assert "http://x:1" in run.output
    assert (seen[0].port, seen[0].open, seen[0].api_keys_file, seen[0].rate) == (7, True, str(keys), 1000.0)
    assert CliRunner().invoke(commands, ["serve", str(models["array"])]).exit_code == 0
    made = CliRunner().invoke(commands, ["new-key", "shop"])
    assert made.output.startswith("onsphere-")
    assert "shop sha256:" in made.output
    assert '"hash"' in CliRunner().invoke(commands, ["new-key", "--json"]).output
