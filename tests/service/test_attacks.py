"""Requests, files and databases that are meant to stop the service: they stop themselves at most."""

import asyncio
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import httpx
import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper

from onsphere import InvalidInputError
from onsphere.export import export_onnx
from onsphere.persistence import read_manifest
from onsphere.service import Settings, hash_key, make_key
from onsphere.service.app import Service, _repeat
from onsphere.service.child import Child, ChildError
from onsphere.service.served_model import ServedModel

CSV = {"content-type": "text/csv"}
JSON = {"content-type": "application/json"}


def answer_meanwhile(service, helpers, attack):
    """Run an attack, and count the rows of another client that are answered until it ends."""
    found = []
    thread = threading.Thread(target=lambda: found.append(attack()))
    thread.start()
    n_answered = 0
    with httpx.Client(base_url=service.url, timeout=30, verify=False) as client:
        while thread.is_alive():
            assert client.post("/v1/assess", json={"rows": [helpers.row]}).status_code == 200
            n_answered += 1
    return found[0], n_answered


# --- bodies ---


def test_a_line_of_400_000_names_is_rejected_while_others_are_answered(running, helpers):
    service = running()
    body = ("a," * 200_000 + "b," * 200_000 + "c").encode()
    with httpx.Client(base_url=service.url, timeout=60, verify=False) as client:
        answer, _ = answer_meanwhile(service, helpers, lambda: client.post("/v1/assess", content=body, headers=CSV))
    assert answer.status_code == 422
    assert answer.json()["errors"][0] == {
        "column": "a",
        "row": None,
        "expected": "one column of this name",
        "got": "200000",
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"rows":[' + b"[]," * (5 * 2**20) + b"[]]}", 413),
        (b'{"rows":[{"size":[' + b"[]," * (5 * 2**20) + b"[]]}]}", 413),
        (b"size,rooms,shop,new,day\n" + b"1,1,a,true,\n" * 400_000, 413),
    ],
    ids=["rows", "cells", "lines"],
)
def test_a_flood_is_rejected_while_others_are_answered(running, helpers, body, status):
    service = running(timeout=120.0)
    kind = JSON if body.startswith(b"{") else CSV
    with httpx.Client(base_url=service.url, timeout=300, verify=False) as client:
        answer, n_answered = answer_meanwhile(
            service, helpers, lambda: client.post("/v1/assess", content=body, headers=kind)
        )
    assert answer.status_code == status, answer.text[:300]
    assert n_answered > 0
    assert service.assess(helpers.row).status_code == 200


def test_a_large_request_that_takes_too_long_is_ended_and_the_next_one_answered(running, helpers):
    service = running(timeout=2.0)
    child = service.service.served.live.large
    os.kill(child._process.pid, signal.SIGSTOP)
    many = [helpers.row] * 500
    assert service.assess(*many).status_code == 504
    helpers.until(lambda: service.assess(*many).status_code == 200)


def test_a_large_request_whose_process_is_killed_is_asked_again(running, helpers, logs):
    service = running()
    child = service.service.served.live.large
    os.kill(child._process.pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (child._process.pid, signal.SIGKILL)).start()
    many = [helpers.row] * 500
    answer = service.assess(*many)
    assert answer.status_code == 200  # by a new process
    assert [line["reason"] for line in logs if line["event"] == "child"] == ["crashed"]


def test_large_requests_that_wait_have_a_limit(running, helpers):
    service = running(timeout=5.0)
    os.kill(service.service.served.live.large._process.pid, signal.SIGSTOP)
    body, found = json.dumps({"rows": [helpers.row] * 300}).encode(), []

    def ask():
        with httpx.Client(base_url=service.url, timeout=60, verify=False) as client:
            found.append(client.post("/v1/assess", content=body, headers=JSON).status_code)

    threads = [threading.Thread(target=ask) for _ in range(14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 503 in found
    assert set(found) <= {503, 504}
    assert service.assess(helpers.row).status_code == 200


# --- databases ---


def test_a_locked_sqlite_file_does_not_stop_answers(running, helpers):
    service = running(store_timeout=0.5)
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])
    with sqlite3.connect(f"{service.service.settings.model}.sqlite", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert service.assess(helpers.row).json()["recorded"] is False
        ready = service.http.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert all(service.assess(helpers.row).json()["recorded"] is False for _ in range(5))
        other.execute("ROLLBACK")
    other.close()
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])
    assert service.http.get("/readyz").status_code == 200


def test_a_silent_store_costs_single_rows_one_short_wait(running, helpers):
    service = running(store_timeout=Settings("m").store_timeout)
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])
    with closing(sqlite3.connect(f"{service.service.settings.model}.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        started, seconds = time.monotonic(), []
        while time.monotonic() < started + 7.0:  # longer than a connection has
            before = time.monotonic()
            assert service.assess(helpers.row).json()["recorded"] is False
            seconds.append(time.monotonic() - before)
    assert sum(each > 0.2 for each in seconds) <= 1 + len(seconds) / 100
    assert max(seconds) < 2.0  # on a busy machine


def test_a_full_disk_does_not_stop_answers(running, helpers):
    service = running()
    store, endless = service.service.recorder._child._process.pid, resource.RLIM_INFINITY
    resource.prlimit(store, resource.RLIMIT_FSIZE, (40_000, endless))
    helpers.until(lambda: service.assess(*[helpers.far] * 20).json()["recorded"] is False)
    ready = service.http.get("/readyz")
    assert ready.status_code == 503
    assert "disk" in ready.json()["store"]
    resource.prlimit(store, resource.RLIMIT_FSIZE, (endless, endless))
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])


def test_a_postgresql_server_that_hangs_does_not_stop_answers(postgres, running, helpers, monkeypatch):
    monkeypatch.setattr("onsphere.service.recorder._STORE_SECONDS", 0.5)
    service = running(store=postgres.url, store_timeout=0.5)
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'onsphere' AND pid <> pg_backend_pid()"
    pids = [pid for (pid,) in helpers.query(postgres.url, query)]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        answers = [service.assess(helpers.row).json()["recorded"] for _ in range(5)]
        assert answers[-1] is False
        helpers.until(lambda: service.http.get("/readyz").status_code == 503)
        helpers.until(lambda: "late" in service.http.get("/readyz").json()["store"])  # the connection is given up
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])


# --- files ---


@pytest.fixture(scope="module")
def graph(models, fitted, helpers, tmp_path_factory):
    path, frame = tmp_path_factory.mktemp("graph") / "model.onnx", helpers.table(50)
    summary = read_manifest(models["table"])["summary"]
    rows = frame[["size", "rooms", "shop", "new", "day"]]
    export_onnx(fitted, path, X=rows, coverage=0.9, summary=summary)
    return path


def add_to_value(path, target, nodes, name):
    """Write a graph whose value is another one, made by more nodes from the one it was."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.output[:] = ["plain value" if each == "value" else each for each in node.output]
        node.input[:] = ["plain value" if each == "value" else each for each in node.input]
    model.graph.node.extend(nodes)
    model.graph.node.append(helper.make_node("Add", ["plain value", name], ["value"]))
    onnx.save(model, target)


def make_endless(path, target):
    """Write a graph that counts for years."""
    state = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, []) for name in ("a", "b")]
    turn = helper.make_tensor_value_info("turn", TensorProto.INT64, [])
    condition = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "goes")]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Add", ["a", "a"], ["b"])],
        "body",
        [turn, condition[0], state[0]],
        [condition[1], state[1]],
    )
    constants = {"turns": np.array(2**62), "yes": np.array(True), "nothing": np.array(0.0)}
    nodes = [
        helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(value, name))
        for name, value in constants.items()
    ]
    nodes.append(helper.make_node("Loop", ["turns", "yes", "nothing"], ["endless"], body=body))
    add_to_value(path, target, nodes, "endless")


def make_failing(path, target):
    """Write a graph that fails on every row."""
    shape = onnx.numpy_helper.from_array(np.array([7, 13]), "shape")
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=shape),
        helper.make_node("Reshape", ["plain value", "shape"], ["wrong"]),
    ]
    add_to_value(path, target, nodes, "wrong")


@pytest.mark.parametrize(("make", "reason"), [(make_failing, "fails on one row"), (make_endless, "within 3 s")])
def test_a_graph_that_fails_or_never_ends_does_not_replace_one_that_answers(
    running, helpers, graph, tmp_path, make, reason
):
    service = running(graph, trial_timeout=3.0)
    make(graph, tmp_path / "bad.onnx")
    shutil.copy(tmp_path / "bad.onnx", service.service.settings.model)
    answer = service.http.post("/v1/reload")
    assert answer.status_code == 409
    assert reason in answer.json()["detail"]
    assert service.assess(helpers.row).status_code == 200
    assert reason in service.http.get("/readyz").json()["model"]
    shutil.copy(graph, service.service.settings.model)  # and the next file is loaded again
    assert service.http.post("/v1/reload").status_code == 200
    assert service.http.get("/readyz").json()["model"] is None


def test_a_file_that_crashes_the_trial_is_not_loaded(models, tmp_path, monkeypatch):
    path = shutil.copy(models["array"], tmp_path / "model.onsphere")
    served = ServedModel(Settings(str(path), trial_timeout=300.0))
    plain = Child.wait

    def crash(child):
        os.kill(child._process.pid, signal.SIGKILL)
        return plain(child)

    monkeypatch.setattr(Child, "wait", crash)
    shutil.copy(models["table"], path)
    with pytest.raises(InvalidInputError, match="crashes the process"):
        asyncio.run(served.reload(None))
    assert served.facts.columns[0].name == "x0"
    served.live.close()


def test_an_odd_file_does_not_end_the_watch(running, models, helpers, monkeypatch):
    service = running(watch=0.05)
    before = service.service.served.facts.sha256
    Path(service.service.settings.model).write_bytes(b"odd")
    helpers.until(lambda: service.service.served.trouble)
    assert service.service.served.facts.sha256 == before
    assert service.assess(helpers.row).status_code == 200
    shutil.copy(models["other"], service.service.settings.model)
    helpers.until(lambda: service.service.served.facts.sha256 != before)
    assert service.service.served.trouble is None


def test_a_file_that_is_replaced_while_it_is_loaded_answers_under_its_own_hash(models, tmp_path, monkeypatch):
    path, plain = shutil.copy(models["table"], tmp_path / "model.onsphere"), Child.start
    monkeypatch.setattr(Child, "start", lambda child: (shutil.copy(models["array"], path), plain(child)))
    served = ServedModel(Settings(str(path), trial_timeout=300.0))
    assert served.facts.sha256 == hashlib.sha256(models["table"].read_bytes()).hexdigest()
    assert served.facts.targets == ("price",)
    assert served.has_changed()
    served.live.close()


# --- processes ---


def test_it_ends_in_time_though_the_store_is_locked_and_a_client_never_reads(models, tmp_path, helpers):
    model = shutil.copy(models["array"], tmp_path / "model.onsphere")
    with helpers.process(model, "--grace", "1", "--store-timeout", "1") as run:
        assert run.http.post("/v1/assess", json={"rows": [[0.5, 1.0]]}).json()["recorded"] is True
        with sqlite3.connect(f"{model}.sqlite", isolation_level=None) as other:
            other.execute("BEGIN EXCLUSIVE")
            run.http.post("/v1/assess", json={"rows": [[0.5, 1.0]]})
            run.send_signal(signal.SIGTERM)
            run.wait(60)
        other.close()


# --- names and headers ---


def ask_raw(service, head, body=b""):
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/assess HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + head + b"\r\n\r\n" + body
        )
        received = b""
        while part := connection.recv(65536):
            received += part
    return int(received.split(b" ")[1])


def test_a_body_whose_length_is_said_twice_is_rejected(shared, helpers):
    body = json.dumps({"rows": [helpers.row]}).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = b"Content-Type: application/json\r\n"
    assert ask_raw(shared, head + b"X-Tag: a\r\nX-Tag: b\r\nTransfer-Encoding: chunked", chunked) == 200
    assert ask_raw(shared, head + b"Content-Length: 4\r\nTransfer-Encoding: chunked", chunked) == 400
    assert ask_raw(shared, head + b"Content-Length: %d\r\nContent-Length: 4" % len(body), body) == 400


@pytest.mark.parametrize(
    "header",
    [
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: identity, chunked",
        b"Transfer-Encoding : chunked",
        b"Content-Length: +4",
        b"Content-Length: 4, 5",
        b"Content-Type: text/csv\r\nContent-Length: 4",  # a second one
        b"X: 1\rContent-Length: 4",
    ],
)
def test_headers_that_a_proxy_could_read_otherwise_are_rejected(shared, header):
    assert ask_raw(shared, b"Content-Type: application/json\r\n" + header, b"a=1\n") in (400, 501)


def test_two_keys_in_one_request_are_rejected(running):
    key = make_key()
    service = running(api_keys=(hash_key(key),))
    both = [("authorization", f"Bearer {key}"), ("authorization", "Bearer other")]
    assert service.http.get("/v1/model", headers=both).status_code == 400
    assert service.http.get("/v1/model", headers=both[:1]).status_code == 200


def test_addresses_that_a_client_makes_up_are_not_believed(running, logs, helpers):
    key = make_key()
    service = running("array", host="0.0.0.0", api_keys=(hash_key(key),))
    forged = {"x-forwarded-for": "10.0.0.7", "x-forwarded-proto": "https", "forwarded": "for=10.0.0.7;proto=https"}
    assert service.http.get("/v1/model", headers={**forged, "x-api-key": key}).status_code == 403
    helpers.until(lambda: {line.get("from") for line in logs if line["event"] == "request"} == {"127.0.0.1"})


def test_a_named_proxy_is_believed(running, logs, helpers):
    service = running(forwarded_allow_ips=("127.0.0.1",))
    service.http.get("/v1/model", headers={"x-forwarded-for": "10.0.0.7"})
    helpers.until(lambda: [line for line in logs if line.get("from") == "10.0.0.7"])


def test_what_a_cell_holds_is_no_formula_in_an_answer(running):
    service = running("table")
    frame = pd.DataFrame(
        {"id": ["=1+1", "-2", "ok", "＝1"], "size": 0.5, "rooms": 3, "shop": "a", "new": True, "day": "2024-03-01"}
    )
    answer = service.http.post("/v1/assess", content=frame.to_csv(index=False).encode(), headers=CSV)
    assert answer.status_code == 200, answer.text
    assert pd.read_csv(io.StringIO(answer.text))["id"].tolist() == ["'=1+1", "'-2", "ok", "'＝1"]


def test_a_model_that_does_not_come_back_is_noticed_and_others_are_answered(running, helpers, monkeypatch):
    service, seen, plain = running(timeout=0.5), [], Child.wait

    def look(child):
        ready = service.http.get("/readyz")
        seen.append((ready.status_code, ready.json()["process"], service.http.get("/v1/live").json()["process"]))
        return plain(child)

    monkeypatch.setattr(Child, "wait", look)
    helpers.pause(service)
    assert service.assess(helpers.row).status_code == 504
    helpers.until(lambda: service.assess(helpers.row).status_code == 200)
    status, *reasons = seen[0]
    assert status == 503
    for reason in reasons:
        assert "did not come back" in reason
    assert service.http.get("/readyz").json() == {"ready": True, "store": None, "process": None, "model": None}


def test_small_requests_whose_process_is_killed_are_asked_again(running, helpers):
    service, found = running(), []
    process = service.service.served.live.small._process
    os.kill(process.pid, signal.SIGSTOP)
    threads = [threading.Thread(target=lambda: found.append(service.assess(helpers.row).status_code)) for _ in range(3)]
    for thread in threads:
        thread.start()
    helpers.until(lambda: service.service._n_working == 3)
    os.kill(process.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert found == [200, 200, 200]


def test_a_row_that_crashes_the_model_again_and_again_costs_itself_alone(running, helpers, monkeypatch):
    service, found = running(), {}
    live, bad = service.service.served.live, {**helpers.row, "size": 13.0}
    plain = live.small.run

    async def crash(task, settings, requests, *, state):
        if any(b"13.0" in request.body for request in requests):
            raise ChildError("crashed")
        return await plain(task, settings, requests, state=state)

    monkeypatch.setattr(live.small, "run", crash)
    go_on = helpers.pause(service)
    rows = {"first": helpers.row, "bad": bad, "good": helpers.row}
    threads = [
        threading.Thread(target=lambda name=name: found.update({name: service.assess(rows[name])})) for name in rows
    ]
    for number, thread in enumerate(threads):
        thread.start()
        helpers.until(lambda number=number: service.service._n_working == number + 1)
    go_on()
    for thread in threads:
        thread.join()
    assert {name: answer.status_code for name, answer in found.items()} == {"first": 200, "bad": 422, "good": 200}
    assert "crash the model" in found["bad"].json()["detail"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.truncate(path, 2**43)], ids=["pipe", "8 TiB"])
def test_what_is_no_file_of_a_model_does_not_end_the_watch(running, models, helpers, make):
    service = running(watch=0.05)
    path = Path(service.service.settings.model)
    odd = path.with_name("odd")
    if make is not os.mkfifo:
        odd.touch()
    make(odd)
    odd.replace(path)
    helpers.until(lambda: service.service.served.trouble)
    assert "Expected the file of a model" in service.http.get("/readyz").json()["model"]
    assert service.assess(helpers.row).status_code == 200
    path.unlink()
    shutil.copy(models["other"], path)
    helpers.until(lambda: service.service.served.trouble is None)


def test_the_processes_of_a_model_that_was_replaced_end(running, models, helpers):
    service = running(timeout=0.5)
    before = service.service.served.live
    shutil.copy(models["other"], service.service.settings.model)
    assert service.http.post("/v1/reload").json()["changed"] is True
    helpers.until(lambda: not service.service._replaced)
    assert (before.small._process, before.large._process) == (None, None)


def test_a_model_that_works_on_a_small_request_for_long_is_told(running, helpers):
    service = running()
    service.service.served.live.small._since = time.monotonic() - 10.0
    assert "on a small request for 10 s" in service.http.get("/readyz").json()["process"]
    service.service.served.live.large._since = time.monotonic() - 10.0  # which may take long
    service.assess(helpers.row)
    assert service.http.get("/readyz").json()["process"] is None


def test_very_many_labels_do_not_keep_a_service_from_starting(running, helpers, monkeypatch):
    go_on, plain = threading.Event(), Service._catch_up

    async def wait(service, live):
        await asyncio.to_thread(go_on.wait, 60)
        return await plain(service, live)

    monkeypatch.setattr(Service, "_catch_up", wait)
    monkeypatch.setattr("onsphere.service.app._FIRST_SECONDS", 0.5)
    service = running()
    ready = service.http.get("/readyz")
    assert (ready.status_code, "still being followed" in ready.json()["process"]) == (503, True)
    go_on.set()
    helpers.until(lambda: service.http.get("/readyz").status_code == 200)


def test_a_look_that_fails_is_logged_and_taken_again(logs, caplog):
    looks = []

    async def look():
        looks.append(1)
        raise ZeroDivisionError

    async def repeat():
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await _repeat(0.01, look)

    asyncio.run(repeat())
    assert len(looks) > 1
    assert caplog.records[-1].fields["type"] == "ZeroDivisionError"


def test_a_model_that_cannot_be_loaded_again_is_told(running, helpers, monkeypatch):
    service = running()
    with monkeypatch.context() as patch:
        patch.setattr(Child, "start", lambda child: (_ for _ in ()).throw(InvalidInputError("No memory.")))
        os.kill(service.service.served.live.small._process.pid, signal.SIGKILL)
        helpers.until(lambda: service.assess(helpers.row).status_code == 503)
        assert service.http.get("/readyz").status_code == 503
    helpers.until(lambda: service.assess(helpers.row).status_code == 200)
    assert service.http.get("/readyz").status_code == 200


def test_labels_cannot_be_so_long_that_reading_them_holds_others_up(shared):
    body = b'{"labels":[' + b"[]," * 4_100 + b"[]]}"
    assert shared.http.post("/v1/labels", content=body, headers=JSON).status_code == 413
