"""Labels: joined to answers by their keys, compared with them, and followed by the model."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from onsphere import HCMRegressor, export_onnx, load
from onsphere.export.deployed import open_deployed
from onsphere.service import labels as labels_module
from onsphere.service import store as store_module
from onsphere.service.answers import RequestError
from onsphere.service.labels import Label, judge_label, name_key, summarize_labels
from onsphere.service.store import Store

FEATURES = ["size", "rooms", "shop", "new", "day"]


def make_rows(frame):
    return json.loads(frame[["id", *FEATURES]].assign(day=frame["day"].astype(str)).to_json(orient="records"))


def post_labels(service, keys, values):
    pairs = zip(keys, values, strict=True)
    labels = [{"key": key, "value": value} for key, value in pairs]
    named = {"x-request-id": "the-same-for-all"}  # which must not make one call of `update` of them after a restart
    return service.http.post("/v1/labels", json={"labels": labels}, headers=named)


def assess_and_label(service, frame, error):
    """Assess the rows of a table, label them with errors, and return the answers and the labels."""
    answers = service.assess(*make_rows(frame), params={"key": "id"}).json()["rows"]
    truth = frame["price"] + error
    taken = post_labels(service, frame["id"].tolist(), truth.tolist())
    assert taken.json() == {
        "taken": len(frame), "unknown": [], "labelled_already": [], "model_updated": True, "note": None
    }  # fmt: skip
    return answers, truth


def test_intervals_follow_labels_as_offline_and_after_a_restart(url, running, models, helpers, monkeypatch):
    frame, probe = helpers.table(125, seed=5), make_rows(helpers.table(3, seed=6))
    service, alone = running(store=url), load(models["table"])
    before = service.assess(*probe).json()["rows"]
    covered, errors = [], []
    for start in range(0, 125, 25):
        batch = frame.iloc[start : start + 25]
        answers, truth = assess_and_label(service, batch, rng_errors(start))
        covered += [one["lower"] <= y <= one["upper"] for one, y in zip(answers, truth, strict=True)]
        errors += [abs(one["value"] - y) for one, y in zip(answers, truth, strict=True)]
        alone.update(batch[FEATURES], truth)
    assert alone.calibration_.online.n_labels == 125
    expected = alone.assess(helpers.table(3, seed=6)[FEATURES], coverage=0.9)
    found = service.assess(*probe).json()["rows"]
    assert [row["upper"] for row in found] == pytest.approx(expected.upper, rel=1e-9)  # rounding of the kernel
    assert found[0]["upper"] - found[0]["lower"] > 1.5 * (before[0]["upper"] - before[0]["lower"])
    live = service.http.get("/v1/live").json()["labels"]
    assert live["coverage"] == pytest.approx(np.mean(covered))
    assert live["mean_error"] == pytest.approx(np.mean(errors))
    assert live["rolling"][-1] == live["coverage"]
    assert (live["n_labels"], live["promised"], len(live["rolling"])) == (125, 0.9, 106)
    monkeypatch.setattr(store_module, "_LABELS_READ", 60)  # not all at once
    again = running(store=url)
    assert again.assess(*probe).json()["rows"] == found
    metrics = service.http.get("/metrics").text
    assert "onsphere_labels_total 125.0" in metrics
    assert f"onsphere_rolling_coverage {np.mean(covered)}" in metrics
    assert "onsphere_rolling_error" in metrics


def test_labels_are_compared_a_hundred_at_a_time_and_taken_at_once(running, models, helpers, monkeypatch):
    frame, probe = helpers.table(130, seed=5), make_rows(helpers.table(3, seed=6))
    service, alone = running(), load(models["table"])
    parts, plain = [], service.service.recorder.do

    def count(task, *arguments):
        if Store.match_labels in arguments:
            parts.append(len(arguments[1]))
        return plain(task, *arguments)

    monkeypatch.setattr(service.service.recorder, "do", count)
    _, truth = assess_and_label(service, frame, np.random.default_rng(0).normal(size=130))
    assert parts == [100, 30]
    alone.update(frame[FEATURES], truth)
    expected = alone.assess(helpers.table(3, seed=6)[FEATURES], coverage=0.9)
    found = service.assess(*probe).json()["rows"]
    assert [row["upper"] for row in found] == pytest.approx(expected.upper, rel=1e-9)  # rounding of the kernel


def test_services_that_share_a_database_have_keys_of_their_own(url, running, helpers):
    first, second = running(store=url), running("other", store=url)
    named, row = {"idempotency-key": "a"}, {**helpers.row, "id": "S"}
    wide = first.assess(row, params={"key": "id"}, headers=named).json()["rows"][0]
    second.assess({**row, "size": 0.6}, params={"key": "id"}, headers=named).raise_for_status()
    taken = post_labels(first, ["S"], [wide["value"]]).json()
    assert (taken["taken"], taken["model_updated"]) == (1, True)
    assert first.http.get("/v1/live").json()["labels"]["mean_error"] == pytest.approx(0.0)
    assert second.http.get("/v1/live").json()["labels"] is None
    assert post_labels(second, ["S"], [1.0]).json()["taken"] == 1
    assert "1 labelled already" in post_labels(first, ["S"], [1.0]).json()["detail"]


def test_two_workers_do_not_take_one_label_twice(url, facts, open_store, helpers):
    stores, label = [open_store(url), open_store(url)], Label("a", name_key("a"), [1.5])
    stores[0].write([helpers.record(facts, 0.1, answers=[(label.name, 0.9, "[[1.0], [0.5], [2.0]]", "{}")])])
    matched = [store.match_labels([label]) for store in stores]
    first, second = (store.write_labels(found, "r") for store, found in zip(stores, matched, strict=True))
    assert first == {"taken": [facts.sha256], "unknown": [], "labelled_already": []}
    assert second == {"taken": [], "unknown": [], "labelled_already": ["a"]}
    assert len(stores[0].read_labels(facts.sha256, 0)) == 1


def rng_errors(seed):
    return np.random.default_rng(seed).normal(size=25)


def test_other_workers_follow_labels_that_one_took(url, running, helpers):
    frame, probe = helpers.table(25, seed=5), make_rows(helpers.table(3, seed=6))
    one, other = running(store=url), running(store=url)
    before = other.assess(*probe).json()["rows"]
    assess_and_label(one, frame, rng_errors(0))
    helpers.until(lambda: other.assess(*probe).json()["rows"] != before)
    assert other.assess(*probe).json()["rows"] == one.assess(*probe).json()["rows"]


def test_the_child_process_follows_labels_too(running, helpers):
    service, frame = running(), helpers.table(25, seed=5)
    probe = frame[["size", "rooms", "shop", "new", "day"]].to_csv(index=False).encode()
    headers = {"content-type": "text/csv", "accept": "application/json"}

    def read_widths(**request):
        rows = service.http.post("/v1/assess", **request).json()["rows"]
        return [row["upper"] - row["lower"] for row in rows]

    before = read_widths(content=probe, headers=headers)
    assess_and_label(service, frame, rng_errors(0))
    after = read_widths(content=probe, headers=headers)
    assert all(new > 1.2 * old for new, old in zip(after, before, strict=True))
    assert after == pytest.approx(read_widths(json={"rows": make_rows(frame)}), rel=1e-6)
    child = service.service.served.live.large
    os.kill(child._process.pid, signal.SIGKILL)  # a process that starts again learns of them as well
    helpers.until(lambda: child._streams[0].at_eof())
    assert read_widths(content=probe, headers=headers) == after


def test_the_known_keys_are_taken_and_the_others_are_listed(url, running, helpers):
    service = running(store=url)
    rows = make_rows(helpers.table(4))
    service.assess(*rows[:2], params={"key": "id"})
    service.assess(*rows[1:3], params={"key": "id"})  # 1001 is sent again, by a client that got no answer
    service.assess(rows[3])  # without key=
    found = post_labels(service, [1001, "1002", 1003, 7], [1.0, 2, 3.0, 4.0])
    assert found.status_code == 200
    assert (found.json()["taken"], found.json()["unknown"]) == (2, [1003, 7])
    found = post_labels(service, [1000.0, 1001, "nobody"], [1.0, 1.0, 1.0]).json()
    assert (found["taken"], found["labelled_already"], found["unknown"]) == (1, [1001], ["nobody"])
    refused = post_labels(service, [1000, "nobody"], [1.0, 1.0])
    assert refused.status_code == 422
    assert "Got 1 unknown and 1 labelled already." in refused.json()["detail"]
    assert [one["got"] for one in refused.json()["errors"]] == ["the number 1000", "the text 'nobody'"]
    service.assess(rows[0], params={"key": "id"})  # a key may come again
    assert post_labels(service, [1000], [1.0]).json()["taken"] == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("[]", "Expected an object with a list"),
        ('{"labels": []}', "Expected at least one row. Got none."),
        ('{"labels": [{"key": 1000}]}', 'Expected an object with "key" and "value", row 0'),
        ('{"labels": [{"key": true, "value": 1}]}', "Expected text or a number in the column key, row 0"),
        ('{"labels": [{"key": 1e39, "value": 1}]}', "Expected a number of size 3.4e+38 at most in the column key"),
        ('{"labels": [{"key": 1000, "value": NaN}]}', "Expected JSON in UTF-8"),
        ('{"labels": [{"key": 1000, "value": 1e39}]}', "Expected a number of size 3.4e+38 at most in the column value"),
        ('{"labels": [{"key": 1001, "value": 1}, {"key": 1000, "value": "1"}]}', "Got the text '1'."),
        ('{"labels": [{"key": 1000, "value": {"cost": 1}}]}', "Got an object."),
        ('{"labels": [{"key": 1000, "value": null}]}', "Got nothing."),
        ('{"labels": [{"key": 1000, "value": 1}, {"key": "1000", "value": 1}]}', "Expected each key once."),
    ],
)
def test_wrong_labels_are_refused_and_nothing_is_taken(running, helpers, body, expected):
    service = running()
    service.assess(*make_rows(helpers.table(2)), params={"key": "id"})
    refused = service.http.post("/v1/labels", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 422
    assert expected in refused.json()["detail"]
    assert post_labels(service, [1000, 1001], [1.0, 1.0]).json()["taken"] == 2


def test_other_types_and_too_many_labels_are_refused(running, helpers):
    service = running(max_rows=1)
    assert service.http.post("/v1/labels", content="key,value", headers={"content-type": "text/csv"}).status_code == 415
    assert post_labels(service, [1, 2], [1.0, 1.0]).status_code == 413


def test_a_request_has_a_thousand_keys_at_most(shared, helpers):
    """While keys are looked up, the single rows of others wait for the store."""
    many = [{**helpers.row, "id": number} for number in range(1_001)]
    assert shared.assess(*many).status_code == 200
    assert shared.assess(*many, params={"key": "id"}).status_code == 413
    assert post_labels(shared, range(1_001), [1.0] * 1_001).status_code == 413


@pytest.mark.parametrize(
    ("rows", "key", "expected"),
    [
        ([{"id": 1}], "size", "Expected key= to be a column that names rows. Got size"),
        ([{"id": 1}], "order", "Expected a key for each row, to join its label to in the column order, row 0"),
        ([{"id": 1}, {"id": None}], "id", "Expected a key for each row, to join its label to in the column id, row 1"),
        ([{"id": 1}, {"id": "1"}], "id", "Expected each key once in the column id, row 1"),
        ([{"order": 1}, {"order": [1]}], "order", "Expected a plain value in the column order, row 1"),
    ],
)
def test_rows_without_keys_are_refused(shared, helpers, rows, key, expected):
    refused = shared.assess(*({**helpers.row, **row} for row in rows), params={"key": key})
    assert refused.status_code == 422
    assert expected in refused.json()["detail"]


def test_any_column_may_name_rows_of_csv(running, helpers):
    service = running()
    body = "size,rooms,shop,new,day,order\n0.5,3,,true,2024-03-01,a17\n,3,a,,,b\n"
    answered = service.http.post("/v1/assess?key=order", content=body, headers={"content-type": "text/csv"})
    assert [line.split(",")[0] for line in answered.text.splitlines()] == ['"order"', '"a17"', '"b"']
    assert post_labels(service, ["a17", "b"], [1.0, 1.0]).json()["model_updated"] is True


def test_labels_of_classes_and_of_several_targets(running, models):
    service, alone = running("classes"), load(models["classes"])
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 2))
    rows = [{"a": a, "b": b, "key": index} for index, (a, b) in enumerate(X.tolist())]
    answers = service.assess(*rows, params={"key": "key"}).json()["rows"]
    truth = rng.choice(["up", "down"], 30).tolist()
    assert (
        post_labels(service, [0], ["left"]).json()["detail"].startswith("Expected one of the classes 'down', 'up' in")
    )
    assert post_labels(service, range(30), truth).json()["model_updated"] is True
    live = service.http.get("/v1/live").json()["labels"]
    assert live["coverage"] == np.mean([y in one["set"] for one, y in zip(answers, truth, strict=True)])
    assert live["mean_error"] == np.mean([y != one["value"] for one, y in zip(answers, truth, strict=True)])
    alone.update(pd.DataFrame(X, columns=["a", "b"]), truth)
    found = service.assess(*rows, params={"key": "key"}).json()["rows"]
    names = alone.classes_.tolist()
    expected = alone.assess(pd.DataFrame(X, columns=["a", "b"]), coverage=0.9).prediction_set
    assert [one["set"] for one in found] == [[names[at] for at in np.flatnonzero(row)] for row in expected]

    service, alone = running("several"), load(models["several"])
    answers = service.assess({"x0": 1, "x1": 0, "key": 1}, {"x0": 2, "x1": 0, "key": 2}, params={"key": "key"})
    refused = post_labels(service, [1], [1.0]).json()["detail"]
    assert refused.startswith("Expected an object with a number of size 3.4e+38 at most for each target in the column")
    truth = [{"south": 3.0, "north": one["value"]["north"]} for one in answers.json()["rows"]]
    assert post_labels(service, [1, 2], truth).json()["model_updated"] is True
    live = service.http.get("/v1/live").json()["labels"]
    south = np.array([one["value"]["south"] for one in answers.json()["rows"]])
    assert live["mean_error"] == pytest.approx(np.mean(np.abs(3.0 - south) / np.sqrt(2)))
    assert live["coverage"] == 0.0
    alone.update([[1.0, 0.0], [2.0, 0.0]], [[one["north"], one["south"]] for one in truth])
    found = service.assess([1, 0]).json()["rows"][0]["upper"]
    assert list(found.values()) == alone.assess([[1.0, 0.0]], coverage=0.9).upper[0].tolist()


def test_fixed_models_only_get_coverage_and_error(running, models, tmp_path):
    graph = tmp_path / "array.onnx"
    export_onnx(load(models["array"]), graph, X=np.eye(2))
    rows = [{"x0": 1, "x1": 0, "key": 1}, {"x0": 2, "x1": 0, "key": 2}]
    cases = [(graph, {}, "an ONNX graph is fixed"), ("plain", {}, "not calibrated")]
    for model, options, reason in [*cases, ("array", {"keep_rows": False}, "their rows were not kept")]:
        service = running(model, **options)
        before = service.assess(*rows, params={"key": "key"}).json()["rows"]
        found = post_labels(service, [1, 2], [before[0]["value"], 100.0]).json()
        assert (found["taken"], found["model_updated"]) == (2, False)
        assert reason in found["note"]
        live = service.http.get("/v1/live").json()["labels"]
        assert live["coverage"] == (None if model == "plain" else 0.5)
        assert live["mean_error"] == pytest.approx((100.0 - before[1]["value"]) / 2)
        assert service.assess(*rows, params={"key": "key"}).json()["rows"] == before
        assert ("onsphere_rolling_coverage NaN" in service.http.get("/metrics").text) == (model == "plain")


def test_an_answer_says_if_the_model_does_not_follow(running, helpers, monkeypatch, tmp_path):
    store = tmp_path / "labels.sqlite"
    service = running(store=str(store))
    service.assess(*make_rows(helpers.table(3)), params={"key": "id"})
    helpers.query(f"sqlite:///{store}", "UPDATE onsphere_answers SET features = '[1]' WHERE id = 1")
    found = post_labels(service, [1000], [1.0]).json()
    assert (found["taken"], found["model_updated"]) == (1, False)
    assert "the model cannot take them" in found["note"]
    monkeypatch.setattr(Store, "read_labels", lambda *_, **__: 1 / 0)
    found = post_labels(service, [1001], [1.0]).json()
    assert (found["taken"], found["model_updated"]) == (1, False)
    assert "once it does" in found["note"]
    monkeypatch.undo()
    helpers.until(lambda: post_labels(service, [1002], [1.0]).json().get("model_updated"))


def test_labels_that_the_process_of_the_model_does_not_take_are_followed_later(running, helpers, monkeypatch, logs):
    service = running()
    service.assess(*make_rows(helpers.table(2)), params={"key": "id"})

    async def fail(*_, **__):
        raise RequestError(504, "Expected to answer.")

    with monkeypatch.context() as patch:
        patch.setattr(service.service.served.live.large, "run", fail)
        found = post_labels(service, [1000], [1.0]).json()
        assert (found["taken"], found["model_updated"], "once it does" in found["note"]) == (1, False, True)
    assert "Expected to answer." in [line.get("reason") for line in logs if line["event"] == "labels"]
    helpers.until(lambda: service.service.served.live.last_label == 1)


def test_labels_outside_the_domain_are_refused(running, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    model = HCMRegressor(domain="positive", calibration="split", random_state=0).fit(X, np.exp(X[:, 0]))
    service = running(model.save(tmp_path / "positive.onsphere"))
    service.assess({"x0": 1, "x1": 0, "key": 1}, params={"key": "key"})
    refused = post_labels(service, [1], [-1.0])
    assert refused.status_code == 422
    assert "Got -1 in row 0" in refused.json()["detail"]
    assert post_labels(service, [1], [1.0]).json()["model_updated"] is True


def test_labels_of_an_earlier_model_are_kept_apart(running, models, helpers):
    service = running()
    path, rows = Path(service.service.settings.model), make_rows(helpers.table(4))
    service.assess(*rows, params={"key": "id"})
    assert post_labels(service, [1000], [1.0]).json()["model_updated"] is True
    first = service.assess(rows[0]).json()["rows"]
    service.http.post("/v1/reload")  # the same file: the model goes on as it is
    assert service.assess(rows[0]).json()["rows"] == first
    path.write_bytes(Path(models["other"]).read_bytes())
    service.http.post("/v1/reload")
    found = post_labels(service, [1001], [1.0]).json()
    assert (found["taken"], found["model_updated"]) == (1, False)
    assert "an earlier model answered these rows" in found["note"]
    assert service.http.get("/v1/live").json()["labels"] is None
    path.write_bytes(Path(models["classes"]).read_bytes())
    service.http.post("/v1/reload")
    assert post_labels(service, [1002], ["up"]).status_code == 422  # for another kind of target
    service.assess({"a": 1, "b": 1, "key": "class"}, params={"key": "key"})
    path.write_bytes(Path(models["table"]).read_bytes())
    service.http.post("/v1/reload")
    assert post_labels(service, ["class"], [1.0]).status_code == 422
    alone = load(models["table"])
    for price in (0, 1):
        alone.update(helpers.table(4).iloc[[price]][FEATURES], [1.0])
    expected = alone.assess(helpers.table(4).iloc[[0]][FEATURES], coverage=0.9)
    assert service.assess(rows[0]).json()["rows"][0]["upper"] == pytest.approx(expected.upper[0], rel=1e-9)


def test_labels_that_the_model_cannot_take_are_skipped(running, helpers, logs, tmp_path):
    store = tmp_path / "labels.sqlite"
    service = running(store=str(store))
    before = service.assess(helpers.row).json()["rows"]
    assess_and_label(service, helpers.table(25, seed=5), rng_errors(0))
    helpers.query(f"sqlite:///{store}", "UPDATE onsphere_labels SET features = '[1]' WHERE id = 3")
    again = running(store=str(store))
    assert again.assess(helpers.row).json()["rows"] == before
    (line,) = [line for line in logs if line["event"] == "labels"]
    assert (line["skipped"], line["type"]) == (25, "ValueError")


def test_answers_to_another_coverage_and_labels_for_old_rows(running, helpers):
    service = running(keep_answers=2)
    rows = make_rows(helpers.table(4))
    service.assess(*rows, params={"key": "id", "coverage": 0.5})
    found = post_labels(service, [1000, 1001, 1002, 1003], [1.0] * 4).json()
    assert (found["taken"], found["unknown"], found["model_updated"]) == (2, [1000, 1001], True)
    assert service.http.get("/v1/live").json()["labels"] is None  # the page shows the coverage of the service


def test_a_store_that_is_down_takes_no_labels(running, tmp_path):
    service = running(store=str(tmp_path / "none" / "s.sqlite"))
    refused = post_labels(service, [1], [1.0])
    assert refused.status_code == 503
    assert "The store does not work" in refused.json()["detail"]


def test_a_graph_takes_labels_of_classes(running, models, tmp_path):
    X = pd.DataFrame(np.eye(2), columns=["a", "b"])
    export_onnx(load(models["classes"]), tmp_path / "classes.onnx", X=X)
    service = running(tmp_path / "classes.onnx")
    answers = service.assess({"a": 1, "b": 1, "key": 1}, {"a": -1, "b": -1, "key": 2}, params={"key": "key"})
    truth = [one["value"] for one in answers.json()["rows"]]
    assert post_labels(service, [1, 2], truth).json()["taken"] == 2
    live = service.http.get("/v1/live").json()["labels"]
    assert (live["coverage"], live["mean_error"]) == (1.0, 0.0)


def test_rolling_coverage_is_the_share_of_the_latest_500():
    rng = np.random.default_rng(0)
    covered, error = rng.random(1_500) < 0.8, rng.exponential(size=1_500)
    latest = list(zip(covered.astype(int), error, strict=True))[::-1]
    for n_rows in (1, 19, 20, 300, 700, 1_000):
        found = summarize_labels(latest[:n_rows], 0.9)
        last = slice(-min(n_rows, 500), None)
        assert found["coverage"] == pytest.approx(covered[last].mean())
        assert found["mean_error"] == pytest.approx(error[last].mean())
        assert len(found["rolling"]) <= 200
    shares = [covered[end - 500 : end].mean() for end in range(1_500, 999, -3)][::-1]
    assert found["rolling"] == pytest.approx(shares)
    assert summarize_labels([], 0.9) is None
    assert summarize_labels([(1, None)], 0.9)["mean_error"] is None


def test_another_coverage_is_followed_from_when_it_is_first_asked_for(running, models, helpers):
    """The process that takes labels is not the one that answers small requests."""
    service, alone, frame = running(), load(models["table"]), helpers.table(60, seed=5)
    probe, before = helpers.table(3, seed=6), None
    for start in range(0, 60, 20):
        part = frame[start : start + 20]
        found = service.assess(*make_rows(probe), params={"coverage": 0.5}).json()["rows"]
        expected = alone.assess(probe[FEATURES], coverage=0.5)
        assert [row["upper"] for row in found] == pytest.approx(expected.upper, rel=1e-9)
        assert expected.upper.tolist() != before
        _, truth = assess_and_label(service, part, rng_errors(start)[: len(part)])
        alone.update(part[FEATURES], truth)
        alone.assess(probe[FEATURES], coverage=0.9)
        before = expected.upper.tolist()


def test_the_level_follows_all_labels_from_the_first(models, monkeypatch, facts, helpers):
    """As many as the model keeps are not enough to begin again with."""
    from onsphere.calibration import online

    monkeypatch.setattr(online, "_N_KEPT", 10)
    frame = helpers.table(40, seed=5)
    rows = [
        json.dumps([row.Size, row.rooms, row.shop, float(row.new), row.day.timestamp()])
        for _, row in frame.rename(columns={"size": "Size"}).iterrows()
    ]
    stored = [
        (index + 1, str(index // 4), json.dumps([price + 1.0]), row)
        for index, (price, row) in enumerate(zip(frame["price"], rows, strict=True))
    ]
    at_once, in_parts = open_deployed(models["table"]), open_deployed(models["table"])
    labels_module.update_model(at_once, None, stored, [])
    for start in range(0, 40, 12):
        labels_module.update_model(in_parts, None, stored[start : start + 12], [])
        in_parts.assess(frame[FEATURES], coverage=0.9)
    found = [engine.model.calibration_.online.find_level(0.9) for engine in (at_once, in_parts)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("answer", "value", "found"),
    [
        ([[1.0], [0.0], [2.0]], [1.5], (1, 0.5)),
        ([[1.0], [0.0], [2.0]], [3.0], (0, 2.0)),
        ([[1.0]], [1.5], (None, 0.5)),
        ([[1.0]], [1.5, 2.0], None),
        ([[1.0]], "up", None),
        (["up", ["up", "down"]], "down", (1, 1.0)),
        (["up"], "up", (None, 0.0)),
        (["up"], [1.0], None),
    ],
)
def test_a_label_is_compared_with_its_answer(answer, value, found):
    assert judge_label(json.dumps(answer), value) == found


def test_labels_without_intervals_have_an_error_alone():
    found = summarize_labels([(None, 0.5), (None, None), (None, 1.5)] * 20, 0.9)
    assert (found["coverage"], found["rolling"], found["mean_error"]) == (None, [], 1.0)
