"""SQLite files and PostgreSQL URLs."""

import pytest

from onsphere import InvalidInputError, MissingExtraError
from onsphere.service.answers import StoreError
from onsphere.service.store import Store, open_database


def test_sqlite_is_forced_to_the_disk(tmp_path, helpers):
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    assert helpers.query(url, "PRAGMA synchronous") == [(2,)]
    assert helpers.query(url, "PRAGMA journal_mode") == [("wal",)]


def test_a_file_that_was_moved_away_is_created_again(tmp_path, facts, open_store, helpers):
    path = tmp_path / "s.sqlite"
    store = open_store(f"sqlite:///{path}")
    store.write([helpers.record(facts, 0.1)])
    path.rename(tmp_path / "moved.sqlite")
    with pytest.raises(StoreError, match="No such file"):
        store.write([helpers.record(facts, 0.1)])
    store.write([helpers.record(facts, 0.1)])
    path.rename(tmp_path / "moved2.sqlite")
    path.touch()
    store.write([helpers.record(facts, 0.1)])
    assert len(store.read_live(facts)["points"]) == 1


def test_a_file_that_is_no_database_is_reported(tmp_path, facts, open_store, helpers):
    (tmp_path / "s.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="not a database"):
        open_store(f"sqlite:///{tmp_path / 's.sqlite'}").write([helpers.record(facts, 0.1)])
    with pytest.raises(StoreError, match="unable to open"):
        open_store(f"sqlite:///{tmp_path / 'none' / 's.sqlite'}").check()


def test_a_worker_that_stands_still_in_a_transaction_does_not_stop_the_others(postgres, facts, helpers):
    stopped, other = (
        Store(open_database(postgres.url, seconds=0.5), alpha=0.01, keep=100, keep_answers=100) for _ in range(2)
    )
    other.check()
    transaction = stopped._begin()
    transaction.__enter__()
    helpers.until(lambda: can_write(other, helpers.record(facts, 0.1)))
    with pytest.raises(StoreError, match="PostgreSQL"):  # whose server took the lock away
        transaction.__exit__(None, None, None)
    other.close()


def can_write(store, record):
    try:
        return store.write([record]) == [True]
    except StoreError:
        return False


def test_other_databases_are_rejected():
    with pytest.raises(InvalidInputError, match="postgresql://"):
        open_database("mysql://localhost")


def test_postgresql_needs_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match="psycopg"):
        open_database("postgresql://localhost/x")
