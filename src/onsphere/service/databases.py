"""Talk to SQLite and PostgreSQL through the same few calls."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError

__all__ = ["Database", "StoreError", "open_database"]

_SECONDS_TO_WAIT = 5  # for other workers, and for a server that does not answer

# One row per request, one per model that was ever watched, one per answer that waits for its label, and one per label.
_TABLES = """
CREATE TABLE IF NOT EXISTS onsphere_assessments (
    id {serial},
    at DOUBLE PRECISION NOT NULL,
    request TEXT NOT NULL,
    model TEXT NOT NULL,
    n_rows INTEGER NOT NULL,
    n_accepted INTEGER NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    uncertainty DOUBLE PRECISION,
    log_capital DOUBLE PRECISION,
    scores {bytes},
    rejected TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS onsphere_assessments_at ON onsphere_assessments (at);
CREATE TABLE IF NOT EXISTS onsphere_monitors (
    model TEXT PRIMARY KEY,
    generation BIGINT NOT NULL,
    position BIGINT NOT NULL,
    state TEXT NOT NULL,
    n_seen BIGINT NOT NULL,
    log_capital DOUBLE PRECISION NOT NULL,
    alarmed_at BIGINT
);
CREATE TABLE IF NOT EXISTS onsphere_answers (
    id {serial},
    model TEXT NOT NULL,
    key TEXT NOT NULL,
    coverage DOUBLE PRECISION NOT NULL,
    answer TEXT NOT NULL,
    features TEXT
);
CREATE INDEX IF NOT EXISTS onsphere_answers_key ON onsphere_answers (key, id);
CREATE TABLE IF NOT EXISTS onsphere_labels (
    id {serial},
    model TEXT NOT NULL,
    key TEXT NOT NULL,
    coverage DOUBLE PRECISION NOT NULL,
    features TEXT,
    at DOUBLE PRECISION NOT NULL,
    request TEXT NOT NULL,
    value TEXT NOT NULL,
    covered INTEGER,
    error DOUBLE PRECISION
);
CREATE INDEX IF NOT EXISTS onsphere_labels_key ON onsphere_labels (key);
CREATE INDEX IF NOT EXISTS onsphere_labels_model ON onsphere_labels (model, id)
"""


# Columns that the tables of older versions do not have.
_LATER_COLUMNS = (
    ("onsphere_assessments", "missed", "DOUBLE PRECISION"),
    ("onsphere_monitors", "alarmed_by", "TEXT"),
)


class StoreError(Exception):
    """The database failed; the message says why."""


class SQLite:
    """A file with a write-ahead log; each transaction is forced to the disk before it counts.

    The connection is opened when it is needed, and closed when anything goes wrong.
    """

    def __init__(self, path: str) -> None:
        self._path, self._connection, self._inode = Path(path), None, 0
        self.name = f"SQLite {path}"

    def begin_read(self) -> Any:
        """Open a context with a function that runs a query and returns its rows."""
        return self._transaction("BEGIN")

    def begin_write(self) -> Any:
        """Do the same in a transaction with one writer at a time, which is on the disk when the context ends."""
        return self._transaction("BEGIN IMMEDIATE")

    @contextmanager
    def _transaction(self, begin: str) -> Generator[Any]:
        try:
            connection = self._connect()
            connection.execute(begin)
            yield lambda query, values=(): connection.execute(query, tuple(values)).fetchall()
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"{self.name}: {error}") from error
        except OSError as error:
            self.close()
            raise StoreError(f"{self.name}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # Someone may have moved the file away: what is written to it now would be lost.
        if self._connection is not None and os.stat(self._path).st_ino != self._inode:
            self.close()
        if self._connection is None:
            connection = sqlite3.connect(
                self._path, timeout=_SECONDS_TO_WAIT, isolation_level=None, check_same_thread=False
            )
            with _close_on_error(connection):
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                # One writer at a time, so that two workers do not both add a column.
                connection.execute("BEGIN IMMEDIATE")
                for statement in _list_statements(serial="INTEGER PRIMARY KEY AUTOINCREMENT", bytes="BLOB"):
                    connection.execute(statement)
                for table, name, kind in _LATER_COLUMNS:
                    if name not in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}:
                        connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
                connection.execute("COMMIT")
                self._inode = os.stat(self._path).st_ino
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()  # rolls an open transaction back
        self._connection = None


class PostgreSQL:
    """A server; writers queue for one lock, so that rows are in the order in which the monitor saw them."""

    _LOCK = 0x6F6E7370  # of all services that share the tables

    def __init__(self, url: str) -> None:
        self._url, self._connection = url, None
        self.name = "PostgreSQL"
        self._psycopg = _import_psycopg()

    def begin_read(self) -> Any:
        """See `SQLite.begin_read`."""
        return self._transaction(lock=False)

    def begin_write(self) -> Any:
        """See `SQLite.begin_write`."""
        return self._transaction(lock=True)

    @contextmanager
    def _transaction(self, *, lock: bool) -> Generator[Any]:
        try:
            connection = self._connect()
            with connection.transaction(), connection.cursor() as cursor:

                def run(query: str, values: Sequence[Any] = ()) -> list[Any]:
                    cursor.execute(query.replace("?", "%s"), tuple(values))
                    return cursor.fetchall() if cursor.description else []

                if lock:
                    run("SELECT pg_advisory_xact_lock(?)", [self._LOCK])
                yield run
        except self._psycopg.Error as error:
            self.close()
            raise StoreError(f"{self.name}: {' '.join(str(error).split())}") from error
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Any:
        if self._connection is None:
            connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_SECONDS_TO_WAIT,
                tcp_user_timeout=1000 * _SECONDS_TO_WAIT,
                options=f"-c statement_timeout={1000 * _SECONDS_TO_WAIT} -c client_min_messages=warning",
                application_name="onsphere",
            )
            with _close_on_error(connection), connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [self._LOCK])
                for statement in _list_statements(serial="BIGSERIAL PRIMARY KEY", bytes="BYTEA"):
                    connection.execute(statement)
                for table, name, kind in _LATER_COLUMNS:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {name} {kind}")
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """See `SQLite.close`."""
        if self._connection is not None:
            with suppress(self._psycopg.Error):
                self._connection.close()
        self._connection = None


Database = SQLite | PostgreSQL


def open_database(url: str) -> Database:
    """Return the database of a URL, without connecting yet."""
    kind, _, rest = url.partition("://")
    if kind == "sqlite":
        return SQLite(rest.removeprefix("/"))
    if kind in ("postgresql", "postgres"):
        return PostgreSQL(url)
    raise InvalidInputError(
        f"Expected a store such as assessments.sqlite or postgresql://user@host/database. Got {kind}://…. "
        "Choose one of the two."
    )


def _list_statements(**types: str) -> list[str]:
    return _TABLES.format(**types).split(";")


@contextmanager
def _close_on_error(connection: Any) -> Generator[None]:
    try:
        yield
    except BaseException:
        with closing(connection):
            raise


def _import_psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise missing_extra_error("A store in PostgreSQL", "psycopg[binary]", "serve") from None
    return psycopg
