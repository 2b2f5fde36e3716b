"""The service over HTTP: what it answers, and what it says of bad requests."""

import asyncio
import io
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

from onsphere import load
from onsphere.export import export_onnx
from onsphere.persistence import read_manifest
from onsphere.service import Settings, create_app, hash_key, make_key, monitor_state, schemas
from onsphere.service.answers import FaultError

FEATURES = ["size", "rooms", "shop", "new", "day"]


def as_json(frame):
    return frame[FEATURES].assign(day=frame["day"].astype(str)).to_dict(orient="records")


def assert_same(rows, expected):
    """That the rows of an answer say what an Assessment says."""
    for name in ("value", "uncertainty", "lower", "upper", "sigma", "confidence", "noise", "novelty"):
        np.testing.assert_allclose([row[name] for row in rows], getattr(expected, name), rtol=1e-9, atol=1e-9)
    assert [row["novelty_p_value"] for row in rows] == expected.novelty_p_value.tolist()
    assert [row["accepted"] for row in rows] == expected.accepted.tolist()


def test_rows_are_answered_as_the_model_does(shared, fitted, helpers):
    frame = helpers.table(30, seed=3)
    answer = shared.assess(*as_json(frame))
    assert answer.status_code == 200
    assert answer.headers["x-recorded"] == "true"
    body = answer.json()
    assert (body["recorded"], body["coverage"]) == (True, 0.9)
    assert_same(body["rows"], fitted.assess(frame[FEATURES]))


def test_another_coverage_may_be_asked_for(shared, fitted, helpers):
    service, frame = shared, helpers.table(5, seed=3)
    body = service.http.post("/v1/assess?coverage=0.5", json={"rows": as_json(frame)}).json()
    assert body["coverage"] == 0.5
    assert_same(body["rows"], fitted.assess(frame[FEATURES], coverage=0.5))
    for wrong in ("0", "1", "nan", "x", "0.5001"):  # the last of which would be followed for good
        answer = service.http.post(f"/v1/assess?coverage={wrong}", json={"rows": [helpers.row]})
        assert answer.status_code == 422
        assert "coverage" in answer.json()["detail"]


def test_csv_is_answered_with_csv(shared, fitted, helpers):
    frame = helpers.table(30, seed=3)
    frame.loc[3, "size"] = np.nan
    text = frame.to_csv(index=False).encode()
    answer = shared.http.post("/v1/assess", content=text, headers={"content-type": "text/csv; charset=utf-8"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    found = pd.read_csv(io.StringIO(answer.text))
    expected = fitted.assess(frame[FEATURES])
    assert found["id"].tolist() == frame["id"].tolist()
    np.testing.assert_allclose(found["value"], expected.value, rtol=1e-9)
    np.testing.assert_allclose(found["upper"], expected.upper, rtol=1e-9)
    assert found["accepted"].tolist() == expected.accepted.tolist()
    assert found["reason"].fillna("").tolist() == expected.reason.tolist()
    for name in ("noise", "novelty", "novelty_p_value"):
        np.testing.assert_allclose(found[name], getattr(expected, name), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("file", [False, True])
def test_arrow_is_answered_with_arrow(shared, fitted, helpers, file):
    frame = helpers.table(30, seed=3)
    frame["shop"] = frame["shop"].astype("category")
    kind = "application/vnd.apache.arrow." + ("file" if file else "stream")
    answer = shared.http.post(
        "/v1/assess", content=helpers.arrow(pa.Table.from_pandas(frame), file=file), headers={"content-type": kind}
    )
    assert answer.status_code == 200, answer.text
    found = pa.ipc.open_stream(answer.content).read_all()
    expected = fitted.assess(frame[FEATURES])
    np.testing.assert_allclose(found["value"], expected.value, rtol=1e-9)
    np.testing.assert_allclose(found["novelty"], expected.novelty, atol=1e-9)
    assert found["reason"].to_pylist() == expected.reason.tolist()
    assert found["id"].to_pylist() == frame["id"].tolist()


def test_csv_may_be_answered_in_json(shared, helpers):
    text = helpers.table(3).to_csv(index=False).encode()
    headers = {"content-type": "text/csv", "accept": "application/json"}
    assert len(shared.http.post("/v1/assess", content=text, headers=headers).json()["rows"]) == 3


def test_a_rejected_row_gets_a_reason(shared, helpers):
    near, far = shared.assess(helpers.row, helpers.far).json()["rows"]
    assert (near["accepted"], near["reason"]) == (True, None)
    assert far["accepted"] is False
    assert "above the threshold" in far["reason"]


def test_a_novel_row_is_rejected_for_that(running):
    service = running("array")
    near, far = service.assess([0.1, 0.1], [30.0, -15.0]).json()["rows"]
    assert near["accepted"]
    assert (far["accepted"], far["novelty"]) == (False, 1.0)
    facts = service.http.get("/v1/model").json()
    limit = f"its shortfall 1 is above the threshold {facts['novelty_threshold']:.4g}"
    assert f"{limit}; 2.4% of the calibration rows were at least as novel." in far["reason"]
    assert facts["frames"] == ["target", "error", "input"]
    assert facts["novelty_rule"] == "Novelty(max=None, false_alarm=0.1)"
    assert 0 < facts["novelty_band"]["low"] < facts["novelty_band"]["high"] < 1
    (point,) = service.http.get("/v1/live").json()["points"]
    assert point["missed"] > facts["novelty_threshold"]


def test_an_unknown_category_is_novel(shared, helpers):
    known, unknown = shared.assess(helpers.row, {**helpers.row, "shop": "new one"}).json()["rows"]
    assert unknown["novelty"] > known["novelty"] + 0.5


def test_rows_may_be_lists_in_the_order_of_the_columns(running, models):
    body = running("array").assess([0.5, -1.0], {"x1": -1.0, "x0": 0.5}).json()
    assert body["rows"][0] == body["rows"][1]
    assert body["rows"][0]["value"] == pytest.approx(load(models["array"]).predict([[0.5, -1.0]])[0])


def test_several_outputs_are_named(running, models):
    row = running("several").assess([0.5, -1.0]).json()["rows"][0]
    expected = load(models["several"]).assess(np.array([[0.5, -1.0]]))
    for name in ("value", "lower", "upper", "sigma", "noise"):
        assert row[name] == pytest.approx(dict(zip(["north", "south"], getattr(expected, name)[0], strict=True)))


def test_classes_have_probabilities_and_a_set(running, models):
    service = running("classes")
    row = service.assess({"a": 1.0, "b": 1.0}).json()["rows"][0]
    assert row["value"] == "up"
    assert set(row["probabilities"]) == {"up", "down"}
    assert sum(row["probabilities"].values()) == pytest.approx(1)
    assert "up" in row["set"]
    csv = service.http.post("/v1/assess", content=b"a,b\n1,1\n", headers={"content-type": "text/csv"}).text
    assert "probability" in csv.splitlines()[0]
    assert service.http.get("/v1/model").json()["classes"] == ["down", "up"]


def test_a_model_without_calibration_is_served_without_intervals(running):
    service = running("plain")
    row = service.assess([0.5, -1.0]).json()["rows"][0]
    assert row["accepted"] is None
    assert "lower" not in row
    live = service.http.get("/v1/live").json()
    assert live["drift"] is None
    assert live["minute"]["accepted"] is None
    assert service.http.post("/v1/reset").status_code == 200
    assert service.http.get("/v1/model").json()["calibration_band"] is None


def test_an_onnx_file_answers_as_its_model(models, tmp_path, fitted, helpers, running):
    frame = helpers.table(1500, seed=3)
    summary = read_manifest(models["table"])["summary"]
    export_onnx(fitted, tmp_path / "model.onnx", X=frame[FEATURES].head(50), coverage=0.9, summary=summary)
    onnx = running(tmp_path / "model.onnx")
    answer = onnx.assess(*as_json(frame))
    assert answer.status_code == 200, answer.text
    rows, expected = answer.json()["rows"], fitted.assess(frame[FEATURES])
    np.testing.assert_allclose([row["value"] for row in rows], expected.value, rtol=1e-6)
    np.testing.assert_allclose([row["lower"] for row in rows], expected.lower, rtol=1e-4)
    np.testing.assert_allclose([row["novelty"] for row in rows], expected.novelty, atol=1e-6)
    np.testing.assert_allclose([row["noise"] for row in rows], expected.noise, rtol=1e-4)
    assert np.mean(np.array([row["accepted"] for row in rows]) == expected.accepted) > 0.999
    assert onnx.http.get("/v1/model").json()["kind"] == "onnx"
    assert onnx.http.get("/v1/live").json()["drift"]["watched"] == ["uncertainty", "novelty"]
    rejected = onnx.http.post("/v1/assess?coverage=0.5", json={"rows": [helpers.row]})
    assert rejected.status_code == 422
    assert "0.9" in rejected.json()["detail"]


WRONG = {
    "unknown": ({"colour": "red"}, "colour", "does not know"),
    "missing": ({"size": ...}, "size", "no such column"),
    "text for a number": ({"size": "1.5"}, "size", "the text '1.5'"),
    "true for a number": ({"size": True}, "size", "true"),
    "a list for a number": ({"size": [1]}, "size", "a list"),
    "an object for text": ({"shop": {"a": 1}}, "shop", "an object"),
    "a number for text": ({"shop": 3}, "shop", "the number 3"),
    "a number for a boolean": ({"new": 1.5}, "new", "the number 1.5"),
    "no date": ({"day": "31st of May"}, "day", "31st of May"),
    "too long": ({"shop": "x" * 1001}, "shop", "1,001 characters"),
    "too large to be a float": ({"size": 10**400}, "size", "20 digits"),
    "a list as a key": ({"id": [1]}, "id", "a list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_column_is_named(shared, helpers, name):
    change, column, got = WRONG[name]
    row = {key: value for key, value in {**helpers.row, **change}.items() if value is not ...}
    answer = shared.assess(helpers.row, row)
    assert answer.status_code == 422
    assert column in answer.json()["detail"]
    (error,) = answer.json()["errors"]
    assert (error["column"], error["row"]) == (column, 1)
    assert got in error["got"]


def test_only_the_first_of_many_errors_are_listed(shared, helpers):
    body = shared.assess(*[{**helpers.row, "size": "x"}] * 30).json()
    assert len(body["errors"]) == 20
    assert "29 more" in body["detail"]


BODIES = {
    b"": "Expecting value",
    b"[]": "list of rows",
    b'{"rows": {}}': "list of rows",
    b'{"rows": [[]], "more": 1}': "list of rows",
    b'{"rows": []}': "at least one row",
    b'{"rows": [3]}': "an object with the columns",
    b'{"rows": [null]}': "Got nothing",
    b'{"rows": [[1, 2]]}': "5 values",
    b'{"rows": [{"size":NaN,"rooms":1,"shop":"a","new":null,"day":null}]}': "cannot be read",
    b'{"rows": [{"size":-Infinity,"rooms":1,"shop":"a","new":null,"day":null}]}': "cannot be read",
    b'{"rows": [{"size": ' + b"9" * 5000 + b"}]}": "Exceeds the limit",
    b'{"rows": ' + b"[" * 100_000: "recursion depth",
    b'{"rows": "\xff"}': "codec can't decode",
    b'{"rows": [{"size":1,"rooms":1,"shop":"a","new":null,"day":null,"size" :2}]}': "one twice",
    b'{"rows": [[1,1,"a",null,null]], "rows": [[2,1,"a",null,null]]}': "one twice",
    b'{"rows": [{"size":1,"rooms":1,"shop":"\\ud800","new":null,"day":null}]}': "surrogates not allowed",
    b'{"rows": [{"size":1e999,"rooms":1,"shop":"a","new":null,"day":null}]}': "inf",
}


@pytest.mark.parametrize("body", BODIES, ids=[str(index) for index in range(len(BODIES))])
def test_bad_json_is_answered(shared, body):
    answer = shared.http.post("/v1/assess", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert BODIES[body] in answer.text


def test_other_media_types_and_methods_are_rejected(shared):
    http = shared.http
    assert http.post("/v1/assess", content=b"a").status_code == 415
    assert http.post("/v1/assess", data={"a": "b"}).status_code == 415
    assert http.get("/v1/assess").status_code == 405
    assert http.get("/nowhere").status_code == 404
    assert http.get("/page/../app.py").status_code == 404


def test_very_large_numbers_are_far_away_or_rejected(running):
    service = running("array")
    row = service.assess([1e30, -1e30]).json()["rows"][0]
    assert row["accepted"] is False
    answer = service.assess([0.5, -1.0], [1e200, 0.0])
    assert answer.status_code == 422
    assert (answer.json()["errors"][0]["column"], answer.json()["errors"][0]["row"]) == ("x0", 1)


def test_null_means_missing(shared, helpers):
    nothing = dict.fromkeys(FEATURES)
    answer = shared.assess(nothing, {**helpers.row, "site": "y", "price": 3, "id": None, "shop": "é"})
    assert answer.status_code == 200


def test_too_many_rows_are_rejected(running, helpers):
    service = running(max_rows=2)
    assert service.assess(helpers.row, helpers.row).status_code == 200
    assert service.assess(helpers.row, helpers.row, helpers.row).status_code == 413
    text = helpers.table(3).to_csv(index=False).encode()
    assert service.http.post("/v1/assess", content=text, headers={"content-type": "text/csv"}).status_code == 413
    kind = {"content-type": "application/vnd.apache.arrow.stream"}
    assert (
        service.http.post(
            "/v1/assess", content=helpers.arrow(pa.Table.from_pandas(helpers.table(3))), headers=kind
        ).status_code
        == 413
    )


def test_the_model_is_described(shared, models, fitted):
    facts = shared.http.get("/v1/model").json()
    assert (facts["task"], facts["targets"], facts["model"]) == ("regression", ["price"], "HCMRegressor")
    assert [column["name"] for column in facts["columns"] if column["required"]] == FEATURES
    (shop,) = [column for column in facts["columns"] if column["name"] == "shop"]
    assert sorted(shop["levels"]) == ["a", "b", "c"]
    assert facts["threshold"] == pytest.approx(fitted.threshold_)
    low, middle, high = np.quantile(fitted.calibration_.uncertainty, [0.05, 0.5, 0.95])
    assert facts["calibration_band"] == pytest.approx({"low": low, "middle": middle, "high": high})


def test_openapi_lists_the_columns_and_is_made_once(shared, monkeypatch):
    schema = shared.http.get("/openapi.json").json()
    with monkeypatch.context() as patch:
        patch.setattr(schemas, "build_body_model", None)  # which takes long for a model of many columns
        assert shared.http.get("/openapi.json").json() == schema
    body = schema["paths"]["/v1/assess"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    by_name = body["properties"]["rows"]["items"]["anyOf"][0]
    assert by_name == {"$ref": "#/components/schemas/Row"}
    by_name = schema["components"]["schemas"]["Row"]
    assert by_name["required"] == FEATURES
    assert by_name["additionalProperties"] is False
    assert set(schema["paths"]) >= {"/v1/assess", "/v1/model", "/healthz", "/readyz", "/metrics", "/v1/live"}


def test_metrics_count_what_was_done(running, helpers):
    service = running()
    service.assess(helpers.row, helpers.far)
    service.http.get("/nowhere")
    text = service.http.get("/metrics").text
    assert 'onsphere_rows_total{accepted="no"} 1.0' in text
    assert 'onsphere_requests_total{path="/v1/assess",status="200"} 1.0' in text
    assert 'path="other",status="404"' in text
    assert "onsphere_store_working 1.0" in text
    assert "onsphere_drift_alarm 0.0" in text


def test_live_data_show_recent_requests(running, helpers):
    service = running()
    for _ in range(3):
        service.assess(helpers.row, {**helpers.far, "id": 7})
    live = service.http.get("/v1/live").json()
    assert live["store"] == {"working": True, "reason": None}
    assert live["minute"]["accepted"] == pytest.approx(0.5)
    assert len(live["points"]) == 3
    assert live["drift"]["rows_seen"] == 6
    assert live["rejected"][0]["row"]["size"] == 9.0
    assert live["rejected"][0]["row"]["new"] is True
    assert live["rejected"][0]["key"] == {"id": 7}
    assert service.http.get("/v1/live").json() == live  # for a second


def test_features_of_rejected_rows_need_not_be_kept(running, helpers):
    service = running(keep_rows=False)
    service.assess(helpers.far)
    (rejected,) = service.http.get("/v1/live").json()["rejected"]
    assert "row" not in rejected


def test_drift_raises_the_alarm_until_it_is_reset(running, helpers):
    service = running()
    service.assess(*[helpers.far] * 200)
    assert service.http.get("/v1/live").json()["drift"]["alarm"] is True
    assert service.http.post("/v1/reset").json() == {"reset": True}
    assert service.http.get("/v1/live").json()["drift"]["alarm"] is False


def test_the_alarm_says_which_columns_moved(running, helpers):
    service = running()
    ordinary = as_json(helpers.table(30, seed=3))
    service.assess(*ordinary)
    assert service.http.get("/v1/live").json()["drift"]["hints"] == []
    moved = [{**row, "size": row["size"] + 4.0, "shop": "d", "day": "2031-05-01"} for row in ordinary * 3]
    for row in moved[:40]:
        service.assess(row)
    service.assess(*moved * 4)
    time.sleep(1.1)
    drift = service.http.get("/v1/live").json()["drift"]
    assert drift["alarm"] is True
    assert sorted(hint.split(":")[0] for hint in drift["hints"]) == ["day", "shop", "size"]
    (shop,) = [hint for hint in drift["hints"] if hint.startswith("shop")]
    assert shop == "shop: share of '(other)' changed by 100%"
    assert "2031" not in str(drift)
    assert service.http.post("/v1/reset").status_code == 200
    service.assess(*moved)
    assert service.http.get("/v1/live").json()["drift"]["hints"]
    assert service.http.post("/v1/reload").status_code == 200
    drift = service.http.get("/v1/live").json()["drift"]  # of the same file, whose alarm goes on
    assert drift["alarm"] is True


def test_many_pages_share_one_look_at_the_store(running, monkeypatch):
    service, looks = running(), []
    plain = service.service._read_live

    async def look():
        looks.append(1)
        await asyncio.sleep(0.3)
        return await plain()

    monkeypatch.setattr(service.service, "_read_live", look)
    with ThreadPoolExecutor(8) as threads:
        found = list(
            threads.map(lambda _: httpx.get(f"{service.url}/v1/live", timeout=60, verify=False).status_code, range(8))
        )
    assert found == [200] * 8
    assert len(looks) < 4


def test_columns_that_moved_are_named_without_an_alarm(running, helpers):
    service = running()
    service.assess(*as_json(helpers.table(60, seed=3).assign(rooms=1.0)))
    drift = service.http.get("/v1/live").json()["drift"]
    assert drift["alarm"] is False
    assert [hint.split(":")[0] for hint in drift["hints"]] == ["rooms"]


def test_a_file_without_a_reference_has_no_hints(running):
    service = running("array")
    service.assess(*[[9.0, 9.0]] * 200)
    drift = service.http.get("/v1/live").json()["drift"]
    assert (drift["alarm"], drift["hints"]) == (True, None)


def test_the_kind_of_calibration_is_described(shared, running):
    assert shared.http.get("/v1/model").json()["calibrated_by"] == "cross-validation"
    assert running("array").http.get("/v1/model").json()["calibrated_by"] == "held-out rows"
    assert running("plain").http.get("/v1/model").json()["calibrated_by"] is None


def test_an_onnx_file_has_an_alarm_too(models, tmp_path, fitted, helpers, running):
    summary, path = read_manifest(models["table"])["summary"], tmp_path / "model.onnx"
    export_onnx(fitted, path, X=helpers.table(50)[FEATURES], coverage=0.9, summary=summary)
    service = running(path)
    service.assess(helpers.row)
    described = service.http.get("/v1/model").json()
    assert (described["kind"], described["calibrated_by"]) == ("onnx", "cross-validation")
    assert described["calibration_band"]["middle"] == pytest.approx(np.median(fitted.calibration_.uncertainty))
    drift = service.http.get("/v1/live").json()["drift"]
    assert (drift["alarm"], drift["rows_seen"], drift["hints"]) == (False, 1, [])
    service.assess(*[helpers.far] * 200)
    time.sleep(1.1)
    drift = service.http.get("/v1/live").json()["drift"]
    assert drift["alarm"] is True
    assert drift["hints"][0].startswith("size: mean +")


def test_requests_need_a_key(running, helpers):
    key = make_key()
    service = running(api_keys=(f"shop {hash_key(key)}",))
    for path in ("/v1/model", "/v1/live", "/metrics"):
        assert service.http.get(path).status_code == 401
        assert service.http.get(path, headers={"x-api-key": "onsphere-wrong"}).status_code == 401
        assert service.http.get(path, headers={"x-api-key": key}).status_code == 200
        assert service.http.get(path, headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert service.assess(helpers.row).status_code == 401
    assert service.assess(helpers.row, headers={"x-api-key": key}).status_code == 200
    assert service.http.get("/healthz").status_code == 200
    assert service.http.get("/").status_code == 200


def test_a_changed_file_replaces_the_model(running, models, helpers):
    service = running(watch=0.05)
    path = service.service.settings.model
    before = service.assess(helpers.row).json()
    shutil.copy(models["other"], path + ".new")
    os.replace(path + ".new", path)
    helpers.until(lambda: service.assess(helpers.row).json()["model"] != before["model"])
    after = service.assess(helpers.row).json()
    assert after["rows"][0]["value"] == pytest.approx(
        load(models["other"]).predict(pd.DataFrame([{**helpers.row, "day": pd.Timestamp(helpers.row["day"])}]))[0]
    )
    schema = service.http.get("/openapi.json").json()
    assert schema["paths"]["/v1/assess"]["post"]["requestBody"]["required"] is True


def test_a_broken_file_leaves_the_model_that_answers(running, helpers):
    service = running(watch=0.05)
    with open(service.service.settings.model, "wb") as file:
        file.write(b"broken")
    helpers.until(lambda: service.service.served.trouble is not None)
    assert service.assess(helpers.row).status_code == 200
    assert service.http.get("/v1/model").json()["reload_trouble"]
    ready = service.http.get("/readyz")
    assert ready.status_code == 200
    assert "zip" in ready.json()["model"]
    answer = service.http.post("/v1/reload")
    assert answer.status_code == 409
    os.unlink(service.service.settings.model)
    assert service.http.post("/v1/reload").status_code == 409
    assert service.assess(helpers.row).status_code == 200


def test_reload_says_whether_anything_changed(shared):
    assert shared.http.post("/v1/reload").json()["changed"] is False


def test_pages_of_other_sites_are_kept_out(running, helpers):
    service = running()
    assert service.http.post("/v1/reload", headers={"origin": "https://example.org"}).status_code == 403
    assert service.http.post("/v1/reload", headers={"origin": service.url}).status_code == 200
    assert service.http.get("/v1/live", headers={"host": "example.org"}).status_code == 421
    assert service.http.get("/v1/live", headers={"host": "["}).status_code == 421
    assert service.http.get("/v1/live", headers={"origin": "http://["}).status_code == 403
    assert running(open=True).http.get("/v1/live", headers={"host": "example.org"}).status_code == 200


@pytest.mark.parametrize("log_values", [False, True])
def test_a_failure_is_answered_with_a_sentence(running, helpers, logs, monkeypatch, log_values):
    service = running(log_values=log_values)

    async def broken(*_, **__):
        return [FaultError("ZeroDivisionError", "model.py:7", "secret 123.25")]

    monkeypatch.setattr(service.service.served.live.small, "run", broken)
    answer = service.assess(helpers.row)
    assert answer.status_code == 500
    assert "onsphere failed" in answer.json()["detail"]
    (fault,) = [line for line in logs if line["event"] == "fault"]
    assert (fault["type"], fault["at"]) == ("ZeroDivisionError", "model.py:7")
    assert ("secret" in str(logs)) == log_values


def test_the_logs_hold_no_features_by_default(running, helpers, logs):
    running().assess(helpers.row)
    helpers.until(lambda: "request" in [line["event"] for line in logs])
    assert ((line := logs[-1])["rows"], line["accepted"], line["recorded"], line["status"]) == (1, 1, True, 200)
    assert "2024-03-01" not in str(logs)
    running(log_values=True).assess(helpers.row)
    helpers.until(lambda: "values" in logs[-1])
    assert logs[-1]["values"][0]["day"].startswith("2024-03-01")


def test_an_answer_that_takes_too_long_times_out(running, helpers):
    service = running(timeout=0.2)
    helpers.pause(service)
    assert service.assess(helpers.row).status_code == 504


def test_the_app_runs_without_a_server_too(models, tmp_path, helpers):
    import asyncio

    async def make_request():
        app = create_app(Settings(model=str(models["table"]), store=str(tmp_path / "s.sqlite"), open=True))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return (await client.post("/v1/assess", json={"rows": [helpers.row]})).json()

    assert asyncio.run(make_request())["recorded"] is True


def test_a_missing_value_is_named_where_the_model_takes_none(running):
    service = running("array")
    answer = service.assess({"x0": 1.0, "x1": 2.0}, {"x0": 1.0, "x1": None})
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert (problem["column"], problem["row"], problem["got"]) == ("x1", 1, "none")
    assert "x1" in answer.json()["detail"]


def test_unknown_addresses_are_named_and_balancers_may_ask_for_the_head_alone(shared):
    for method, path in (("GET", "/v1/asses"), ("DELETE", "/v1/live")):
        detail = shared.http.request(method, path).json()["detail"]
        assert detail == f"Expected an address of this service. Got {method} '{path}'. /docs lists what there is."
    for path in ("/healthz", "/readyz"):
        assert shared.http.head(path).status_code == 200


def test_what_is_shown_covers_all_rows_that_were_answered(running, helpers, monkeypatch):
    monkeypatch.setattr(monitor_state, "_ROWS_OF_SLICE", 7)
    service = running()
    assert service.assess(*[helpers.row] * 30).json()["recorded"]
    assert service.http.get("/v1/live").json()["drift"]["rows_seen"] == 30
