"""Requests that wait at the same time: asked together, answered as if each were alone."""

import asyncio
import json
import pickle
import socket
import threading
import time

import httpx
import numpy as np
import pytest

from onsphere import load
from onsphere.export.deployed import open_deployed
from onsphere.service import Settings
from onsphere.service import assess as assess_module
from onsphere.service.answers import FaultError, RequestError, StoreError
from onsphere.service.assess import AssessRequest, Reply, assess_requests
from onsphere.service.batching import Batcher
from onsphere.service.rows import CSV, JSON

SETTINGS = Settings("m.onsphere")


class Counted:
    """A model that counts the rows of each call."""

    def __init__(self, path):
        self._deployed, self.calls = open_deployed(path), []
        self.facts = self._deployed.facts

    def assess(self, values, *, coverage):
        self.calls.append(len(values["size"]))
        if (values["size"] == 14.0).any():
            raise MemoryError
        if len(values["size"]) > 1 and (values["size"] == 13.0).any():
            raise ZeroDivisionError("of all of them")
        return self._deployed.assess(values, coverage=coverage)


@pytest.fixture
def engine(models):
    return Counted(models["table"])


def make_request(*rows, coverage=0.9, body=None, media_type=JSON):
    body = json.dumps({"rows": rows}).encode() if body is None else body
    return AssessRequest(body, media_type, media_type, coverage, "r", time.perf_counter())


def assess(engine, *requests):
    """The outcome of each request, in its order."""
    return assess_requests(engine, SETTINGS, requests)


def list_rows(reply):
    return json.loads(reply.body)


def make_rows(helpers, n_rows, seed=0):
    rng = np.random.default_rng(seed)
    rows = [{**helpers.row, "size": float(rng.normal()), "rooms": int(rng.integers(1, 6))} for _ in range(n_rows)]
    rows[0].update(shop=None, new=None, day=None)
    rows[-1].update(rooms=None, shop="never seen", day="2024-01-31T12:30:00+02:00", id=7)
    return rows


def assert_alike(found, alone):
    """That two answers are the same but for rounding, which a kernel may enlarge."""
    assert found.keys() == alone.keys()
    for name, value in alone.items():
        if isinstance(value, dict):
            assert_alike(found[name], value)
        elif name != "reason" or value is None:  # which has four digits
            assert found[name] == (pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, float) else value), (
                name
            )


@pytest.mark.parametrize("name", ["table", "array", "several", "classes", "plain"])
def test_each_request_is_answered_as_if_it_were_alone(models, helpers, name):
    engine = open_deployed(models[name])
    rows = make_rows(helpers, 40)
    if name != "table":
        rows = [list(pair) for pair in np.random.default_rng(0).normal(size=(40, 2))]
    parts = [rows[:1], rows[1:3], rows[3:30], rows[30:]]
    together = assess(engine, *[make_request(*part) for part in parts])
    for part, found in zip(parts, together, strict=True):
        [expected] = assess(engine, make_request(*part))
        for row, other in zip(list_rows(found), list_rows(expected), strict=True):
            assert_alike(row, other)
        record, other = pickle.loads(found.record), pickle.loads(expected.record)
        assert record.uncertainty == pytest.approx(other.uncertainty, rel=1e-5, abs=1e-6)
        assert len(record.rejected) == len(other.rejected)


def test_requests_for_the_same_coverage_share_a_call(engine, helpers):
    together = [make_request(*make_rows(helpers, 3, seed)) for seed in range(4)]
    together.insert(1, make_request(helpers.row, coverage=0.5))
    wide, narrow, *_ = (list_rows(reply)[0] for reply in assess(engine, *together))
    assert engine.calls == [12, 1]
    assert narrow["upper"] - narrow["lower"] < wide["upper"] - wide["lower"]


def test_a_call_has_a_largest_number_of_rows(engine, helpers, monkeypatch):
    monkeypatch.setattr(assess_module, "ROWS_PER_CALL", 5)
    found = assess(engine, *[make_request(*make_rows(helpers, n_rows)) for n_rows in (7, 3, 2, 2, 1)])
    assert engine.calls == [7, 3, 5]
    assert [len(list_rows(reply)) for reply in found] == [7, 3, 2, 2, 1]


def test_a_bad_request_fails_alone(engine, helpers):
    bad, good = make_request({**helpers.row, "size": "many"}), make_request(helpers.row)
    broken, csv = make_request(body=b"{"), make_request(body=b"size\nx\n", media_type=CSV)
    first, found, *others = assess(engine, bad, good, broken, csv)
    assert engine.calls == [1]
    assert list_rows(found)[0]["accepted"] is True
    for error, expected in zip((first, *others), ("number in the column size", "Expected JSON", "rooms"), strict=True):
        assert isinstance(error, RequestError)
        assert expected in error.detail


def test_rows_that_the_model_rejects_do_not_fail_the_others(models):
    engine = open_deployed(models["array"])
    first, wrong, last = assess(engine, *[make_request(row) for row in ([0.5, 1.0], [None, 1.0], [0.5, -1.0])])
    assert isinstance(wrong, RequestError)
    assert "no missing ones" in wrong.detail
    expected = load(models["array"]).predict([[0.5, 1.0], [0.5, -1.0]])
    assert [list_rows(reply)[0]["value"] for reply in (first, last)] == pytest.approx(expected)


def test_a_shared_call_that_fails_is_repeated_one_by_one(engine, helpers):
    found = assess(engine, *[make_request({**helpers.row, "size": size}) for size in (0.5, 13.0, 1.0)])
    assert engine.calls == [3, 1, 1, 1]
    assert all(isinstance(reply, Reply) for reply in found)


def test_a_request_for_which_memory_is_too_small_is_told_so(engine, helpers):
    [error] = assess(engine, make_request({**helpers.row, "size": 14.0}))
    assert (error.status, "fewer rows" in error.detail) == (413, True)


def test_an_error_in_an_answer_fails_its_request_alone(engine, helpers, monkeypatch):
    plain = assess_module.Batch.get_row  # which is asked for rejected rows

    def fail(batch, index):
        return plain(batch, index) if batch.values["size"][index] != helpers.far["size"] else 1 / 0

    monkeypatch.setattr(assess_module.Batch, "get_row", fail)
    first, second = assess(engine, make_request(helpers.far), make_request(helpers.row))
    assert isinstance(first, FaultError)
    assert (first.name, "test_batching.py:" in first.place) == ("ZeroDivisionError", True)
    assert list_rows(second)


def test_items_that_wait_are_taken_together_but_not_those_that_are_over():
    async def ask():
        calls, go_on = [], asyncio.Event()

        async def work(items):
            calls.append(items)
            await go_on.wait()
            return [2 * item for item in items]

        batcher = Batcher(work, n_most=15)
        waiting = [asyncio.create_task(batcher.do(item)) for item in range(1)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting += [asyncio.create_task(batcher.do(item)) for item in range(1, 23)]
        await asyncio.sleep(0)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*waiting) == [2 * item for item in range(22)]
        return [len(items) for items in calls]

    assert asyncio.run(ask()) == [1, 15, 6]


def test_an_error_ends_neither_the_wait_nor_the_work():
    async def ask():
        async def work(items):
            return [1 / item if item != 2 else RequestError(422, "two") for item in items]

        batcher = Batcher(work, n_most=1)
        found = await asyncio.gather(*map(batcher.do, [0, 1, 2, 4]), return_exceptions=True)
        assert isinstance(found[0], ZeroDivisionError)
        assert found[2].detail == "two"
        return found[1], found[3]

    assert asyncio.run(ask()) == (1.0, 0.25)


def test_all_items_may_fail_at_once_and_more_than_fit_are_refused():
    async def ask():
        go_on = asyncio.Event()

        async def work(items):
            await go_on.wait()
            return items

        batcher = Batcher(work, n_most=1, max_waiting=2, make_error=lambda: StoreError("full"))
        tasks = [asyncio.create_task(batcher.do(item)) for item in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(batcher.do(3)))
        found = asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        batcher.fail(StoreError("down"))
        go_on.set()
        assert [str(error) for error in await found] == ["down", "down", "full", "down"]
        return await batcher.do(7)

    assert asyncio.run(ask()) == 7


def test_an_answer_that_cannot_be_stored_in_time_is_given_all_the_same(running, helpers, monkeypatch):
    service = running(timeout=1.0)
    monkeypatch.setattr(service.service.recorder, "write", lambda *_: asyncio.sleep(60))
    answer = service.assess(helpers.row)
    assert (answer.status_code, answer.json()["recorded"]) == (200, False)


def test_clients_at_the_same_time_get_their_own_answers(running, helpers):
    service, wrong = running(), []
    rows = make_rows(helpers, 12)
    expected = [service.assess(row).json()["rows"][0] for row in rows]

    def ask(row, answer):
        with httpx.Client(base_url=service.url, timeout=120, verify=False) as client:
            for _ in range(8):
                found = client.post("/v1/assess", json={"rows": [row]}).json()["rows"][0]
                try:
                    assert_alike(found, answer)
                except AssertionError as error:
                    wrong.append(error)

    threads = [threading.Thread(target=ask, args=pair) for pair in zip(rows, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert service.http.get("/v1/live").json()["drift"]["rows_seen"] == 12 * 9


def test_an_answer_does_not_wait_for_an_acknowledgement(running, helpers):
    service = running()
    service.assess(helpers.row)
    (connection,) = service.server.server_state.connections
    own = connection.transport.get_extra_info("socket")
    assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
