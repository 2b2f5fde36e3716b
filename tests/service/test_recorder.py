"""The thread that writes records."""

import sqlite3
import threading

import pytest

from onsphere import InvalidInputError
from onsphere.service.databases import StoreError
from onsphere.service.recorder import Recorder


def test_waiting_records_share_a_transaction(tmp_path, facts, open_store, helpers):
    store = open_store(f"sqlite:///{tmp_path / 's.sqlite'}", keep=1000)
    written, plain = [], store.write
    store.write = lambda records: (written.append(len(records)), plain(records))
    recorder = Recorder(store)
    futures = [recorder.record(helpers.record(facts, 0.1)) for _ in range(300)]  # all wait when it starts
    recorder.start()
    for future in futures:
        future.result(timeout=20)
    assert written == [200, 100]
    assert recorder.do(lambda store: store.read_live(facts)["drift"]["rows_seen"]).result() == 300
    recorder.stop()


def test_records_handed_over_before_the_stop_are_written(tmp_path, facts, open_store, helpers):
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    recorder = Recorder(open_store(url))
    recorder.start()
    futures = [recorder.record(helpers.record(facts, 0.1)) for _ in range(5)]
    recorder.stop()
    assert all(future.done() for future in futures)
    assert helpers.query(url, "SELECT COUNT(*) FROM onsphere_assessments") == [(5,)]


def test_a_store_that_is_down_is_tried_again(tmp_path, facts, helpers, open_store):
    folder = tmp_path / "later"
    recorder = Recorder(open_store(f"sqlite:///{folder / 's.sqlite'}"))
    recorder.start()
    assert "unable to open" in recorder.trouble
    with pytest.raises(StoreError):
        recorder.record(helpers.record(facts, 0.1)).result()
    folder.mkdir()
    helpers.until(lambda: recorder.trouble is None)
    recorder.record(helpers.record(facts, 0.1)).result()
    recorder.stop()


def test_records_beyond_the_queue_fail(tmp_path, facts, open_store, helpers):
    store = open_store(f"sqlite:///{tmp_path / 's.sqlite'}")
    recorder = Recorder(store)
    recorder.trouble = None  # the thread is not started, so that nothing is taken out
    for _ in range(2_000):
        recorder.record(helpers.record(facts, 0.1))
    with pytest.raises(StoreError, match="room"):
        recorder.record(helpers.record(facts, 0.1)).result()


def test_tables_with_unknown_content_are_reported(tmp_path, facts, open_store, helpers):
    path = tmp_path / "s.sqlite"
    store = open_store(f"sqlite:///{path}")
    store.write([helpers.record(facts, 0.1)])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE onsphere_monitors SET state = '{}'")
    connection.close()
    recorder = Recorder(open_store(f"sqlite:///{path}"))
    recorder.start()
    with pytest.raises(InvalidInputError):
        recorder.record(helpers.record(facts, 0.1)).result()
    assert "cannot be read" in recorder.trouble
    recorder.stop()


def test_the_thread_survives_any_error(tmp_path, facts, monkeypatch, open_store, helpers):
    store = open_store(f"sqlite:///{tmp_path / 's.sqlite'}")
    recorder = Recorder(store)
    recorder.start()
    with monkeypatch.context() as patch:
        patch.setattr(store, "write", lambda records: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            recorder.record(helpers.record(facts, 0.1)).result(timeout=20)
        assert recorder.trouble == "The store cannot be read: division by zero"
    recorder._last_attempt = 0.0
    recorder.record(helpers.record(facts, 0.1)).result(timeout=20)
    assert recorder.trouble is None
    recorder.stop()


def test_an_answer_waits_a_limited_time_for_its_record(running, helpers, monkeypatch):
    from onsphere.service import operations

    monkeypatch.setattr(operations, "_STORE_SECONDS", 0.2)
    service, go_on = running(), threading.Event()
    plain = service.service.recorder._store.write
    monkeypatch.setattr(service.service.recorder._store, "write", lambda records: (go_on.wait(20), plain(records)))
    assert service.assess(helpers.row).json()["recorded"] is False
    assert service.http.get("/v1/live").json()["store"]["reason"] == "The store does not answer in time."
    go_on.set()
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])
