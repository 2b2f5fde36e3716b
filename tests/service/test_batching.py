"""Requests that wait at the same time: asked together, answered as if each were alone."""

import json
import socket
import threading
import time

import httpx
import numpy as np
import pytest

from onsphere import load
from onsphere.service import Settings, batching
from onsphere.service.batching import CSV, JSON, Batcher, PendingRequest, assess_together
from onsphere.service.engine import load_engine
from onsphere.service.replies import RequestError

SETTINGS = Settings("m.onsphere")


class Counted:
    """An engine that counts the rows of each call, and can be made to wait."""

    def __init__(self, path):
        self._engine, self.calls, self.go_on = load_engine(path), [], threading.Event()
        self.facts = self._engine.facts
        self.go_on.set()

    def assess(self, rows, *, coverage):
        self.calls.append(len(rows))
        assert self.go_on.wait(60)
        if len(rows) > 1 and (np.asarray(rows["size"]) == 13.0).any():
            raise ZeroDivisionError("of all of them")
        return self._engine.assess(rows, coverage=coverage)


@pytest.fixture
def engine(models):
    return Counted(models["table"])


def make_request(engine, *rows, coverage=0.9, body=None, media_type=JSON):
    body = json.dumps({"rows": rows}).encode() if body is None else body
    return PendingRequest(engine, body, media_type, media_type, coverage, "r", time.perf_counter())


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
    engine = load_engine(models[name])
    rows = make_rows(helpers, 40)
    if name != "table":
        rows = [list(pair) for pair in np.random.default_rng(0).normal(size=(40, 2))]
    parts = [rows[:1], rows[1:3], rows[3:30], rows[30:]]
    together = [make_request(engine, *part) for part in parts]
    assess_together(together, SETTINGS)
    for part, one in zip(parts, together, strict=True):
        assess_together([alone := make_request(engine, *part)], SETTINGS)
        found, expected = one.future.result(), alone.future.result()
        for row, other in zip(found.rows, expected.rows, strict=True):
            assert_alike(row, other)
        assert found.record.uncertainty == pytest.approx(expected.record.uncertainty, rel=1e-5, abs=1e-6)
        assert len(found.record.rejected) == len(expected.record.rejected)
        assert [found.batch.get_key(index) for index in range(len(part))] == [
            expected.batch.get_key(index) for index in range(len(part))
        ]


def test_requests_for_the_same_coverage_share_a_call(engine, helpers):
    together = [make_request(engine, *make_rows(helpers, 3, seed)) for seed in range(4)]
    together.insert(1, make_request(engine, helpers.row, coverage=0.5))
    assess_together(together, SETTINGS)
    assert engine.calls == [12, 1]
    narrow, wide = (together[place].future.result().rows[0] for place in (1, 0))
    assert narrow["upper"] - narrow["lower"] < wide["upper"] - wide["lower"]


def test_a_call_has_a_largest_number_of_rows(engine, helpers, monkeypatch):
    monkeypatch.setattr(batching, "_ROWS_PER_CALL", 5)
    together = [make_request(engine, *make_rows(helpers, n_rows)) for n_rows in (7, 3, 2, 2, 1)]
    assess_together(together, SETTINGS)
    assert engine.calls == [7, 5, 3]
    assert [len(one.future.result().rows) for one in together] == [7, 3, 2, 2, 1]


def test_a_bad_request_fails_alone(engine, helpers):
    good, bad = make_request(engine, helpers.row), make_request(engine, {**helpers.row, "size": "many"})
    broken, csv = make_request(engine, body=b"{"), make_request(engine, body=b"size\nx\n", media_type=CSV)
    assess_together([bad, good, broken, csv], SETTINGS)
    assert engine.calls == [1]
    assert good.future.result().rows[0]["accepted"] is True
    for one, expected in ((bad, "a number in the column size"), (broken, "Expected JSON"), (csv, "rooms")):
        with pytest.raises(RequestError, match=expected):
            one.future.result()


def test_rows_that_the_model_rejects_do_not_fail_the_others(models):
    engine = load_engine(models["array"])
    together = [make_request(engine, [0.5, 1.0]), make_request(engine, [None, 1.0]), make_request(engine, [0.5, -1.0])]
    assess_together(together, SETTINGS)
    with pytest.raises(RequestError, match="NaN"):
        together[1].future.result()
    expected = load(models["array"]).predict([[0.5, 1.0], [0.5, -1.0]])
    assert [together[place].future.result().rows[0]["value"] for place in (0, 2)] == pytest.approx(expected)


def test_a_shared_call_that_fails_is_repeated_one_by_one(engine, helpers):
    together = [make_request(engine, {**helpers.row, "size": size}) for size in (0.5, 13.0, 1.0)]
    assess_together(together, SETTINGS)
    assert engine.calls == [3, 1, 1, 1]
    assert all(one.future.result().rows for one in together)


def test_an_error_in_an_answer_fails_its_request_alone(engine, helpers, monkeypatch):
    first, second = make_request(engine, helpers.far), make_request(engine, helpers.row)
    monkeypatch.setattr(batching, "_describe_rejected", lambda *_: 1 / 0)  # which is asked for rejected rows
    assess_together([first, second], SETTINGS)
    assert isinstance(first.future.exception(), ZeroDivisionError)
    assert second.future.result().rows


def test_a_cancelled_request_is_skipped(engine, helpers):
    together = [make_request(engine, helpers.row), make_request(engine, helpers.row)]
    together[0].future.cancel()
    assess_together(together, SETTINGS)
    assert engine.calls == [1]


def test_waiting_requests_are_taken_together_and_large_ones_do_not_delay_them(engine, helpers):
    batcher = Batcher(SETTINGS)
    engine.go_on.clear()
    first = batcher.submit(make_request(engine, helpers.row))
    helpers.until(lambda: engine.calls == [1])
    others = [batcher.submit(make_request(engine, helpers.row)) for _ in range(20)]
    large = batcher.submit(make_request(engine, *[helpers.row] * 500))
    helpers.until(lambda: 500 in engine.calls)  # in a thread of its own
    engine.go_on.set()
    assert len(large.result(60).rows) == 500
    answers = [future.result(60) for future in [first, *others]]
    assert sorted(engine.calls) == [1, 20, 500]
    assert len({answer.rows[0]["value"] for answer in answers[1:]}) == 1
    assert batcher.submit(make_request(engine, helpers.row)).result(60).rows  # after a moment in which others may come
    batcher.stop()


def test_clients_at_the_same_time_get_their_own_answers(running, helpers, monkeypatch):
    service, calls = running(), []
    plain = service.service.served.engine.assess

    def counted(rows, *, coverage):
        calls.append(len(rows))
        return plain(rows, coverage=coverage)

    rows = make_rows(helpers, 12)
    expected = [service.assess(row).json()["rows"][0] for row in rows]
    monkeypatch.setattr(service.service.served.engine, "assess", counted)
    wrong = []

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
    assert sum(calls) == 12 * 8
    assert len(calls) < sum(calls)
    assert service.http.get("/v1/live").json()["drift"]["rows_seen"] == 12 * 9


def test_an_answer_does_not_wait_for_an_acknowledgement(running, helpers):
    service = running()
    service.assess(helpers.row)
    (connection,) = service.server.server_state.connections
    own = connection.transport.get_extra_info("socket")
    assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
