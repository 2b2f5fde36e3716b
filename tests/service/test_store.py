"""The store: what it keeps, the alarm that workers share, and what happens when the database does not work."""

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from onsphere import InvalidInputError, MissingExtraError
from onsphere.drift import DriftMonitor
from onsphere.service import store as store_module
from onsphere.service.databases import StoreError, open_database
from onsphere.service.engine import load_engine
from onsphere.service.recorder import Recorder
from onsphere.service.store import Record, Store

POSTGRES = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/nowhere"))


class PostgresServer:
    """A private server on a free port."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.url = f"postgresql://onsphere@127.0.0.1:{self.port}/postgres"
        self.run("initdb", "-D", folder, "-U", "onsphere", "-A", "trust", "--no-sync")
        self.start()

    def run(self, name, *arguments):
        command = [str(POSTGRES / name), *map(str, arguments)]
        if os.getuid() == 0:  # which the server refuses to run as
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")

    def start(self):
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self.run("pg_ctl", "-D", self.folder, "-w", "-o", options, "start")

    def stop(self):
        self.run("pg_ctl", "-D", self.folder, "-w", "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def postgres():
    if not (POSTGRES / "initdb").exists():
        pytest.skip("the binaries of PostgreSQL are not installed")
    with tempfile.TemporaryDirectory(prefix="onsphere-pg-") as folder:
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
        server = PostgresServer(Path(folder) / "data")
        yield server
        server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.sqlite'}"
    server = request.getfixturevalue("postgres")
    query(server.url, "DROP TABLE onsphere_assessments, onsphere_monitors")
    return server.url


@pytest.fixture(scope="module")
def facts(models):
    return load_engine(models["table"]).facts


@pytest.fixture(scope="module")
def other_facts(models):
    return load_engine(models["other"]).facts


OPEN = []


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPEN:
        OPEN.pop().close()


def opened(url, keep=100, alpha=0.01):
    OPEN.append(Store(open_database(url), alpha=alpha, keep=keep))
    return OPEN[-1]


def record(facts, uncertainty, request="r", **more):
    scores = np.atleast_1d(np.asarray(uncertainty, dtype=float))
    return Record(facts, more.get("at", time.time()), 0.01, request, scores, len(scores), more.get("rejected", []))


def query(url, text):
    with closing(open_database(url)) as database, database.reading() as run:
        return run(text)


@pytest.mark.parametrize("rows_between", [7, 5_000])
def test_two_workers_come_to_the_alarm_that_one_monitor_would(url, facts, monkeypatch, rows_between):
    monkeypatch.setattr(store_module, "_ROWS_BETWEEN", rows_between)
    rng = np.random.default_rng(0)
    scores = [rng.choice(facts.calibration, 3) + (0.3 if step > 30 else 0.0) for step in range(50)]
    workers = [opened(url), opened(url)]
    for step, values in enumerate(scores):
        workers[rng.integers(2)].write([record(facts, values, str(step))])
    alone = DriftMonitor(facts.calibration, alpha=0.01)
    alone.update(np.concatenate(scores))
    for worker in [*workers, opened(url)]:
        drift = worker.live(facts)["drift"]
        assert drift["log_capital"] == alone.log_capital
        assert (drift["alarmed_at"], drift["rows_seen"]) == (alone.alarmed_at, 150)
        worker.close()
    assert alone.alarm


def test_the_log_is_bounded(url, facts, monkeypatch):
    monkeypatch.setattr(store_module, "_ROWS_BETWEEN", 5)
    store = opened(url, keep=10)
    for step in range(40):
        store.write([record(facts, 0.1, str(step))])
    requests = [int(name) for (name,) in query(url, "SELECT request FROM onsphere_assessments ORDER BY id")]
    assert requests[-10:] == list(range(30, 40))
    assert len(requests) <= 10 + 5
    assert store.live(facts)["drift"]["rows_seen"] == 40


def test_a_reset_reaches_all_workers(url, facts):
    first, second = opened(url), opened(url)
    first.write([record(facts, [9.0] * 50)])
    assert first.live(facts)["drift"]["alarm"]
    second.reset(facts)
    first.write([record(facts, 0.01)])
    live = first.live(facts)
    assert live["drift"]["rows_seen"] == 1
    # What led to the alarm that was ended is drawn no more.
    assert [point["log_capital"] is None for point in live["points"]] == [True, False]


def test_each_model_has_a_monitor_of_its_own(url, facts, other_facts):
    store = opened(url)
    store.write([record(facts, [9.0] * 50), record(other_facts, 0.1), record(facts, 9.0)])
    assert store.live(facts)["drift"]["rows_seen"] == 51
    assert store.live(other_facts)["drift"]["rows_seen"] == 1
    assert not store.live(other_facts)["drift"]["alarm"]
    assert opened(url, alpha=0.5).live(facts)["drift"]["rows_seen"] == 0


def test_a_worker_that_is_behind_does_not_write_over_another(url, facts, other_facts, monkeypatch):
    behind, ahead = opened(url), opened(url)
    behind.write([record(facts, 0.1)])
    monkeypatch.setattr(store_module, "_ROWS_BETWEEN", 1)
    ahead.write([record(facts, 0.1), record(facts, 0.1)])
    behind.write([record(other_facts, 0.1)])
    assert opened(url).live(facts)["drift"]["rows_seen"] == 3
    behind.write([record(facts, 0.1)])
    assert behind.live(facts)["drift"]["rows_seen"] == 4


def test_rows_without_a_score_are_kept_but_not_watched(url, facts):
    store = opened(url)
    store.write([record(facts, [np.nan, np.inf, 0.1]), record(facts, [np.nan])])
    live = store.live(facts)
    assert live["drift"]["rows_seen"] == 2
    assert [point["uncertainty"] for point in live["points"]] == [0.1, None]


def test_what_fails_is_not_kept_and_not_watched(url, facts):
    store = opened(url)
    store.write([record(facts, 0.1)])
    with pytest.raises(ValueError, match="JSON"):
        store.write([record(facts, 0.1), record(facts, 0.1, rejected=[{"a": np.nan}])])
    with pytest.raises(AttributeError):
        store.reset(None)
    store.write([record(facts, 0.1)])
    assert len(store.live(facts)["points"]) == 2
    assert store.live(facts)["drift"]["rows_seen"] == 2


def test_the_last_minute_is_counted(url, facts):
    store, now = opened(url), 1e9
    store.write([record(facts, [0.1, 0.2], at=now - age) for age in (0.5, 1.0, 30.5, 59.0, 100.0)])
    minute = store.live(facts, now=now)["minute"]
    assert minute["requests_per_second"] == pytest.approx(4 / 60)
    assert minute["rows_per_second"] == pytest.approx(8 / 60)
    assert minute["accepted"] == 1.0
    assert minute["requests"][-1] == 1.0
    assert sum(minute["requests"]) * 2 == 4
    assert store.live(facts, now=now + 1000)["minute"]["accepted"] is None


def test_of_very_many_requests_a_part_is_counted(url, facts, monkeypatch):
    monkeypatch.setattr(store_module, "_MOST_COUNTED", 4)
    store, now = opened(url), 1e9
    store.write([record(facts, 0.1, at=now - age) for age in (5.0, 4.0, 3.0, 2.0, 1.0)])
    minute = store.live(facts, now=now)["minute"]
    assert minute["requests_per_second"] == pytest.approx(1.0)
    assert len(minute["requests"]) == 2


def test_sqlite_is_forced_to_the_disk(tmp_path):
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    assert query(url, "PRAGMA synchronous") == [(2,)]
    assert query(url, "PRAGMA journal_mode") == [("wal",)]


def test_a_file_that_was_moved_away_is_made_anew(tmp_path, facts):
    path = tmp_path / "s.sqlite"
    store = opened(f"sqlite:///{path}")
    store.write([record(facts, 0.1)])
    path.rename(tmp_path / "moved.sqlite")
    with pytest.raises(StoreError, match="No such file"):
        store.write([record(facts, 0.1)])
    store.write([record(facts, 0.1)])
    path.rename(tmp_path / "moved2.sqlite")
    path.touch()
    store.write([record(facts, 0.1)])
    assert len(store.live(facts)["points"]) == 1


def test_a_file_that_is_no_database_is_told(tmp_path, facts):
    (tmp_path / "s.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="not a database"):
        opened(f"sqlite:///{tmp_path / 's.sqlite'}").write([record(facts, 0.1)])
    with pytest.raises(StoreError, match="unable to open"):
        opened(f"sqlite:///{tmp_path / 'none' / 's.sqlite'}").check()


def test_other_stores_are_refused():
    with pytest.raises(InvalidInputError, match="postgresql://"):
        open_database("mysql://localhost")


def test_postgresql_needs_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match="psycopg"):
        open_database("postgresql://localhost/x")


# --- the thread that writes ---


def test_waiting_records_share_a_transaction(tmp_path, facts):
    store = opened(f"sqlite:///{tmp_path / 's.sqlite'}", keep=1000)
    written, plain = [], store.write
    store.write = lambda records: (written.append(len(records)), plain(records))
    recorder = Recorder(store)
    futures = [recorder.record(record(facts, 0.1)) for _ in range(300)]  # all wait when it starts
    recorder.start()
    for future in futures:
        future.result(timeout=20)
    assert written == [200, 100]
    assert recorder.do(lambda store: store.live(facts)["drift"]["rows_seen"]).result() == 300
    recorder.stop()


def test_records_handed_over_before_the_end_are_written(tmp_path, facts):
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    recorder = Recorder(opened(url))
    recorder.start()
    futures = [recorder.record(record(facts, 0.1)) for _ in range(5)]
    recorder.stop()
    assert all(future.done() for future in futures)
    assert query(url, "SELECT COUNT(*) FROM onsphere_assessments") == [(5,)]


def test_a_store_that_is_down_is_tried_again(tmp_path, facts, given):
    folder = tmp_path / "later"
    recorder = Recorder(opened(f"sqlite:///{folder / 's.sqlite'}"))
    recorder.start()
    assert "unable to open" in recorder.trouble
    with pytest.raises(StoreError):
        recorder.record(record(facts, 0.1)).result()
    folder.mkdir()
    given.until(lambda: recorder.trouble is None)
    recorder.record(record(facts, 0.1)).result()
    recorder.stop()


def test_no_more_wait_than_there_is_room_for(tmp_path, facts):
    store = opened(f"sqlite:///{tmp_path / 's.sqlite'}")
    recorder = Recorder(store)
    recorder.trouble = None  # the thread is not started, so that nothing is taken out
    for _ in range(2_000):
        recorder.record(record(facts, 0.1))
    with pytest.raises(StoreError, match="room"):
        recorder.record(record(facts, 0.1)).result()


def test_tables_of_someone_else_are_told(tmp_path, facts):
    path = tmp_path / "s.sqlite"
    store = opened(f"sqlite:///{path}")
    store.write([record(facts, 0.1)])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE onsphere_monitors SET state = '{}'")
    connection.close()
    recorder = Recorder(opened(f"sqlite:///{path}"))
    recorder.start()
    with pytest.raises(InvalidInputError):
        recorder.record(record(facts, 0.1)).result()
    assert "cannot be read" in recorder.trouble
    recorder.stop()


def test_whatever_fails_the_thread_goes_on(tmp_path, facts, monkeypatch):
    store = opened(f"sqlite:///{tmp_path / 's.sqlite'}")
    recorder = Recorder(store)
    recorder.start()
    with monkeypatch.context() as patch:
        patch.setattr(store, "write", lambda records: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            recorder.record(record(facts, 0.1)).result(timeout=20)
        assert recorder.trouble == "The store cannot be read: division by zero"
    recorder._last_attempt = 0.0
    recorder.record(record(facts, 0.1)).result(timeout=20)
    assert recorder.trouble is None
    recorder.stop()


# --- the service over it ---


def test_a_database_that_is_down_does_not_stop_answers(postgres, running, given):
    service = running(store=postgres.url)
    assert service.assess(given.row).json()["recorded"] is True
    postgres.stop()
    try:
        assert service.assess(given.row).json()["recorded"] is False
        ready = service.http.get("/readyz")
        assert ready.status_code == 503
        assert "PostgreSQL" in ready.json()["store"]
        live = service.http.get("/v1/live").json()
        assert live["store"]["working"] is False
        assert service.http.post("/v1/reset").status_code == 503
        assert "onsphere_store_working 0.0" in service.http.get("/metrics").text
        late = running(store=postgres.url)
        assert late.assess(given.row).json()["recorded"] is False
    finally:
        postgres.start()
    for each in (service, late):
        given.until(lambda each=each: each.http.get("/readyz").status_code == 200)
        assert each.assess(given.row).json()["recorded"] is True


def test_an_answer_does_not_wait_for_ever_for_its_record(running, given, monkeypatch):
    from onsphere.service import service as service_module

    monkeypatch.setattr(service_module, "_STORE_SECONDS", 0.2)
    service, go_on = running(), threading.Event()
    plain = service.service.recorder._store.write
    monkeypatch.setattr(service.service.recorder._store, "write", lambda records: (go_on.wait(20), plain(records)))
    assert service.assess(given.row).json()["recorded"] is False
    assert service.http.get("/v1/live").json()["store"]["reason"] == "The store does not answer in time."
    go_on.set()
    given.until(lambda: service.assess(given.row).json()["recorded"])
