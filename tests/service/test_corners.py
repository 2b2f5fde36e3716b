"""What hardly ever happens: the end of a queue, a model that was replaced, keys without TLS, and URLs that are none."""

import asyncio
import sys

import pytest
import uvicorn

from onsphere import InvalidInputError
from onsphere.export.deployed import open_deployed
from onsphere.service import Settings, child, hash_key, make_key
from onsphere.service import server as server_module
from onsphere.service.answers import RequestError
from onsphere.service.assess import AssessRequest, assess_requests
from onsphere.service.rows import CSV, JSON, parse_json
from onsphere.service.served_model import open_model
from onsphere.service.store import open_database

SETTINGS = Settings("m.onsphere")


def test_json_may_be_answered_as_csv(models):
    request = AssessRequest(b'{"rows": [[1, 2]]}', JSON, CSV, 0.9, "r", 0.0)
    [reply] = assess_requests(open_deployed(models["array"]), SETTINGS, [request])
    assert reply.body.startswith(b'"value","uncertainty"')


def test_a_child_that_was_closed_starts_no_process(models):
    closed = child.Child(open_model, models["array"], b"", SETTINGS, start_timeout=1.0, timeout=1.0)
    closed.close()
    with pytest.raises(child.ChildError, match="closed"):
        asyncio.run(closed.run(len))


def test_brackets_are_counted_before_anything_is_read():
    with pytest.raises(RequestError) as caught:
        parse_json(b"[" * 200, "rows", 5)
    assert caught.value.status == 413


def test_keys_without_tls_are_not_looked_at(running):
    key = make_key()
    service = running("array", host="0.0.0.0", api_keys=(hash_key(key),))
    answer = service.http.get("/v1/model", headers={"x-api-key": key})
    assert (answer.status_code, "over TLS" in answer.json()["detail"]) == (403, True)


def test_a_reset_by_another_worker_forgets_the_latest_rows(running, helpers, open_store):
    service = running()

    def find_outside():
        service.service._live = (0.0, {})
        return service.http.get("/v1/live").json()["drift"]["outside"]

    service.assess({**helpers.row, "size": 1e6})
    assert find_outside() == ["size"]
    open_store(service.service.settings.store_url).reset(service.service.served.facts)
    assert find_outside() == []


def test_a_server_that_was_not_stopped_by_a_signal_has_nothing_to_cancel(models, monkeypatch):
    ran, before = [], sys.getswitchinterval()
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets=None: ran.append(sockets))
    server_module.TimedServer(server_module.TimedConfig(lambda: None, Settings(str(models["array"])))).run(["socket"])
    sys.setswitchinterval(before)
    assert ran == [["socket"]]


def test_a_text_that_is_no_url_is_rejected():
    with pytest.raises(InvalidInputError, match="Expected a store such as"):
        open_database("http//x")
