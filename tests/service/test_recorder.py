"""The thread that writes records."""

import threading

import numpy as np
import pytest

from onsphere import InvalidInputError
from onsphere.service.recorder import Recorder
from onsphere.service.store import StoreError


@pytest.fixture
def start(open_store):
    """Start a recorder on a store; it is stopped after the test."""
    started = []

    def start(url, *, seconds=2.0, limit=20.0, before=lambda recorder: None):
        recorder = Recorder(open_store(url, keep=1000), seconds=seconds, limit=limit)
        before(recorder)
        started.append(recorder)
        recorder.start()
        return recorder

    yield start
    for recorder in started:
        recorder.stop()


def write(recorder, *records):
    """The results of records, once they are known; False where they cannot be written."""
    try:
        return recorder.do(list(records)).result(timeout=20)
    except StoreError:
        return [False] * len(records)


def test_waiting_records_share_a_transaction(tmp_path, facts, helpers, start):
    written, results = [], []

    def hand_over(recorder):
        plain = recorder._store.write
        recorder._store.write = lambda records: (written.append(len(records)), plain(records))[1]
        recorder.trouble = None  # so that all wait when it starts
        for _ in range(300):
            recorder.do([helpers.record(facts, 0.1)]).add_done_callback(lambda done: results.extend(done.result()))

    recorder = start(f"sqlite:///{tmp_path / 's.sqlite'}", before=hand_over)
    helpers.until(lambda: len(results) == 300)
    assert written == [200, 100]
    assert set(results) == {True}
    assert recorder.do(lambda store: store.read_live(facts)["drift"]["rows_seen"]).result() == 300


def test_records_handed_over_before_the_stop_are_written(tmp_path, facts, helpers, start):
    url, results = f"sqlite:///{tmp_path / 's.sqlite'}", []
    recorder = start(url)
    for _ in range(5):
        recorder.do([helpers.record(facts, 0.1)]).add_done_callback(lambda done: results.extend(done.result()))
    recorder.stop()
    assert results == [True] * 5
    assert helpers.query(url, "SELECT COUNT(*) FROM onsphere_assessments") == [(5,)]


def test_a_store_that_is_down_is_tried_again(tmp_path, facts, helpers, start):
    folder = tmp_path / "later"
    recorder = start(f"sqlite:///{folder / 's.sqlite'}")
    assert "unable to open" in recorder.trouble
    assert write(recorder, helpers.record(facts, 0.1)) == [False]
    with pytest.raises(StoreError, match="unable to open"):
        recorder.do(lambda store: store.check()).result(timeout=20)
    folder.mkdir()
    helpers.until(lambda: recorder.trouble is None)
    assert write(recorder, helpers.record(facts, 0.1)) == [True]


def test_records_beyond_the_queue_fail(tmp_path, facts, open_store, helpers):
    recorder = Recorder(open_store(f"sqlite:///{tmp_path / 's.sqlite'}"), seconds=2.0, limit=0.01)
    recorder.trouble = None  # the thread is not started, so that nothing is taken out
    for _ in range(2_000):
        recorder.do([helpers.record(facts, 0.1)])
    assert write(recorder, helpers.record(facts, 0.1)) == [False]
    recorder._thread.join = lambda seconds: None
    recorder.stop()  # there is no room for the end either


def test_tables_with_unknown_content_are_reported(tmp_path, facts, open_store, helpers, start):
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    open_store(url).write([helpers.record(facts, 0.1)])
    helpers.query(url, "UPDATE onsphere_monitors SET state = '{}'")
    recorder = start(url)
    with pytest.raises(InvalidInputError, match="Expected a state"):
        write(recorder, helpers.record(facts, 0.1))
    assert "cannot be read" in recorder.trouble


def test_the_thread_survives_any_error(tmp_path, facts, monkeypatch, helpers, start):
    recorder = start(f"sqlite:///{tmp_path / 's.sqlite'}")
    with monkeypatch.context() as patch:
        patch.setattr(recorder._store, "write", lambda records: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(recorder, helpers.record(facts, 0.1))
        assert recorder.trouble == "The store cannot be read: division by zero"
    helpers.until(lambda: recorder.trouble is None)
    assert write(recorder, helpers.record(facts, 0.1)) == [True]


def test_a_store_that_does_not_come_back_is_given_up(tmp_path, facts, helpers, start):
    recorder, go_on = start(f"sqlite:///{tmp_path / 's.sqlite'}", seconds=0.3), threading.Event()
    plain = recorder._store.write
    recorder._store.write = lambda records: (go_on.wait(20), plain(records))[1]
    first = recorder.do([helpers.record(facts, 0.1)])
    helpers.until(lambda: recorder._working is not None)
    later = recorder.do([helpers.record(facts, 0.1)])
    recorder.check_time()
    assert not first.done()
    helpers.until(lambda: (recorder.check_time(), first.done())[1])
    for future in (first, later):
        assert isinstance(future.exception(timeout=20), StoreError)
    assert write(recorder, helpers.record(facts, 0.1)) == [False]  # at once
    assert recorder.trouble == "The store has not answered for 0.3 s."
    go_on.set()
    helpers.until(lambda: recorder.trouble is None)


def test_the_end_is_not_lost_while_a_store_does_not_come_back(tmp_path, facts, helpers, start):
    recorder, go_on = start(f"sqlite:///{tmp_path / 's.sqlite'}", seconds=0.3, limit=0.1), threading.Event()
    recorder._store.check = lambda: go_on.wait(20)
    helpers.until(lambda: recorder._working is not None)
    recorder.stop()
    helpers.until(lambda: (recorder.check_time(), recorder.trouble)[1] is not None)
    go_on.set()
    recorder._thread.join(20)
    assert not recorder._thread.is_alive()


def test_rows_have_their_turn_while_the_monitor_catches_up(tmp_path, facts, helpers, start):
    recorder, order = start(f"sqlite:///{tmp_path / 's.sqlite'}"), []
    store, plain = recorder._store, recorder._store.catch_up

    def catch_up(facts):
        if len(order) == 1:
            recorder.do([helpers.record(facts, 0.1)]).add_done_callback(lambda done: order.append("row"))
        order.append("slice")
        return plain(facts)

    store.catch_up = catch_up
    assert write(recorder, helpers.record(facts, np.full(2_250, 0.1))) == [True]
    while not recorder.do(lambda store: store.catch_up(facts)).result():
        pass
    assert order == ["slice", "slice", "row", "slice", "slice", "slice"]
    assert recorder.do(lambda store: store.read_live(facts)["drift"]["rows_seen"]).result() == 2_251


def test_a_task_has_longer_than_an_answer_waits(tmp_path, facts, helpers, start):
    recorder, go_on = start(f"sqlite:///{tmp_path / 's.sqlite'}", seconds=0.05), threading.Event()
    task = recorder.do(lambda store: go_on.wait(20))
    helpers.until(lambda: (recorder.check_time(), recorder.trouble)[1] is not None)
    assert write(recorder, helpers.record(facts, 0.1)) == [False]  # at once
    assert not task.done()
    go_on.set()
    assert task.result(20) is True
    helpers.until(lambda: recorder.trouble is None)


def test_an_answer_waits_a_limited_time_for_its_record(running, helpers, monkeypatch):
    service, go_on = running(store_timeout=0.3), threading.Event()
    store = service.service.recorder._store
    plain = store.write
    monkeypatch.setattr(store, "write", lambda records: (go_on.wait(20), plain(records))[1])
    assert service.assess(helpers.row).json()["recorded"] is False
    assert service.http.get("/readyz").status_code == 503
    assert service.http.get("/v1/live").json()["store"]["reason"] == "The store has not answered for 0.3 s."
    go_on.set()
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])
