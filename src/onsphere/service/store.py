"""Keep assessments, labels and the drift alarm that all workers share in one database, SQLite or PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from onsphere._internal.validation import Floats, missing_extra_error
from onsphere.errors import InvalidInputError
from onsphere.export.deployed import Facts
from onsphere.service.answers import RequestError, encode_json
from onsphere.service.labels import ROLLING, Label, judge_label, summarize_labels
from onsphere.service.monitor_state import MonitorShelf, assessments, make_serial, metadata, name_monitor

_BINS, _BIN_SECONDS = 30, 2  # of the throughput on the page
_NOW_SECONDS = 10.0  # that the rate of now is taken over
_MAX_COUNTED = 5_000  # requests
_ROWS_AT_ONCE = 500  # of one query, which may have 32,766 values
_MAX_UNTIMED = 500  # answers whose times are written together

_answers = sql.Table(  # one row per answer that waits for its label
    "onsphere_answers",
    metadata,
    make_serial(),
    sql.Column("model", sql.Text, nullable=False),
    sql.Column("key", sql.Text, nullable=False),
    sql.Column("coverage", sql.Double, nullable=False),
    sql.Column("answer", sql.Text, nullable=False),
    sql.Column("features", sql.Text),
    sql.Column("uncertainty", sql.Double),
    sql.Column("service", sql.Text),
    sql.Index("onsphere_answers_key", "key", "id"),
    sqlite_autoincrement=True,
)
_labels = sql.Table(  # one row per label
    "onsphere_labels",
    metadata,
    make_serial(),
    sql.Column("model", sql.Text, nullable=False),
    sql.Column("key", sql.Text, nullable=False),
    sql.Column("coverage", sql.Double, nullable=False),
    sql.Column("features", sql.Text),
    sql.Column("at", sql.Double, nullable=False),
    sql.Column("request", sql.Text, nullable=False),
    sql.Column("value", sql.Text, nullable=False),
    sql.Column("covered", sql.Integer),
    sql.Column("error", sql.Double),
    sql.Column("service", sql.Text),
    sql.Index("onsphere_labels_key", "key"),
    sql.Index("onsphere_labels_model", "model", "id"),
    sqlite_autoincrement=True,
)
_probes = sql.Table(
    "onsphere_probes",
    metadata,
    sql.Column("worker", sql.Text, primary_key=True),
    sql.Column("at", sql.Double, nullable=False),
)
# Statements that run with every request are made once.
_LOCK = sql.text("SELECT pg_advisory_xact_lock(1869509488)")  # of all services that share the tables
_INSERT = sql.insert(assessments).returning(assessments.c.id)
_FORGET = sql.delete(assessments).where(assessments.c.id <= sql.bindparam("last"), assessments.c.scores.is_(None))
_SET_SECONDS = sql.update(assessments).where(assessments.c.id == sql.bindparam("number"))


class StoreError(Exception):
    """The database failed; the message says why."""


@dataclass(eq=False)
class Record:
    """The record of one request."""

    at: float  # in seconds since 1970
    started: float  # when the request arrived, by `time.perf_counter`
    request: str  # its number
    uncertainty: Floats
    missed: Floats | None  # the shortfall, from which novelty follows
    n_accepted: int
    rejected: list[dict[str, Any]]  # some rows: "answer" and, if rows are kept, "row" and "key"
    # Key, coverage, answer and features (None if rows are not kept) of each row, if labels are to be joined to them.
    answers: Sequence[tuple[str, float, str, str | None]] = ()
    idempotency: tuple[str, str] | None = None  # the key that names the request, and the hash of its body
    facts: Any = None  # about the model that answered, which its process does not send along


def open_database(url: str, *, seconds: float = 2.0) -> sql.Engine:
    """Return the database of a URL, without connecting yet; it waits some seconds for others and for its server."""
    try:
        given = sql.make_url(url)
    except ArgumentError:
        given = sql.URL.create(url.partition("://")[0] or "?")
    if given.drivername == "sqlite":
        waits = {"timeout": seconds, "check_same_thread": False}
        engine = sql.create_engine(given, connect_args=waits, poolclass=sql.NullPool)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine
    if given.drivername in ("postgresql", "postgres"):
        patience = {"connect_timeout": max(2, round(seconds)), "tcp_user_timeout": round(1000 * seconds)}
        limits = {"statement_timeout": 1000 * seconds, "idle_in_transaction_session_timeout": 2000 * seconds}
        settings = "-c client_min_messages=warning" + "".join(f" -c {name}={round(ms)}" for name, ms in limits.items())
        try:
            return sql.create_engine(
                given.set(drivername="postgresql+psycopg"),
                connect_args={**patience, "options": settings, "application_name": "onsphere"},
                poolclass=sql.NullPool,
            )
        except ImportError:
            raise missing_extra_error("A store in PostgreSQL", "psycopg[binary]", "serve") from None
    raise InvalidInputError(
        f"Expected a store such as assessments.sqlite or postgresql://user@host/database. Got {given.drivername}://…. "
        "Choose one of the two."
    )


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin as `open_database` says
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # each transaction is on the disk before it counts


class Store:
    """The log of the latest assessments, their labels, and the monitor, over one connection that is kept open.

    Keys of rows and of requests belong to the service of a name; others on the same database have their own.
    """

    def __init__(self, engine: sql.Engine, *, alpha: float, keep: int, keep_answers: int, service: str = "") -> None:
        self._own = hashlib.sha256(service.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._engine, self._alpha, self._keep, self._keep_answers = engine, alpha, keep, keep_answers
        self._monitors, self._n_forgotten = MonitorShelf(alpha), 0
        self._finished: list[dict[str, Any]] = []  # how long the last answers took, storing included
        self._connection: sql.Connection | None = None
        self._raw: Any = None
        self._file = str(engine.url.database) if engine.dialect.name == "sqlite" else None
        self._inode: int | None = None
        self._worker = f"{socket.gethostname()} {os.getpid()}"

    @contextmanager
    def _begin(self) -> Generator[sql.Connection]:
        """Open a transaction that has the tables for itself, and is on the disk when the context ends."""
        try:
            connection = self._connect()
            with connection.begin():
                if self._file is None:
                    connection.execute(_LOCK)
                yield connection
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | SQLAlchemyError):
                name, reason = "PostgreSQL" if self._file is None else "SQLite", getattr(error, "orig", error)
                raise StoreError(f"{name}: {' '.join(str(reason).split())}") from error
            raise

    def _connect(self) -> sql.Connection:
        """Return the connection, or open one; make the file of SQLite for its owner alone, and see if it was moved."""
        if self._connection is not None and self._file is not None and os.stat(self._file).st_ino != self._inode:
            self.close()
        if self._connection is None:
            if self._file is not None:
                with suppress(FileNotFoundError):  # of a folder that is missing, SQLite says so
                    os.close(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600))
            self._connection = connection = self._engine.connect()
            self._raw = connection.connection.dbapi_connection
            with connection.begin():
                if self._file is None:
                    connection.execute(_LOCK)
                _create_tables(connection)
            self._inode = None if self._file is None else os.stat(self._file).st_ino
        return self._connection

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        self._monitors.forget()  # they may have seen what was not kept
        connection, self._connection, self._raw = self._connection, None, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.invalidate()
            connection.close()

    def abort(self) -> None:
        """End what another thread is waiting for, so that it fails."""
        raw = self._raw
        with suppress(Exception):
            if self._file is not None:
                raw.interrupt()
            else:
                with socket.socket(fileno=os.dup(raw.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        """Check that the database takes a write."""
        with self._begin() as connection:
            self._write_times(connection)
            connection.execute(sql.delete(_probes).where(_probes.c.worker == self._worker))
            connection.execute(sql.insert(_probes).values(worker=self._worker, at=time.time()))

    def write(self, records: list[Record]) -> list[Any]:
        """Write records, all or none, unless they are there already; they are on the disk when this returns.

        The result of each is True, or a RequestError where its idempotency key came with another body before.
        """
        results: list[Any] = [True] * len(records)
        with self._begin() as connection:
            if len(self._finished) >= _MAX_UNTIMED:
                self._write_times(connection)
            is_new = self._skip_repeated(connection, records, results)
            fresh = [record for record, is_fresh in zip(records, is_new, strict=True) if is_fresh]
            self._monitors.prepare(connection, fresh)
            written = self._insert(connection, fresh) if fresh else []
            last = written[-1][0] - self._keep if written else 0
            if last >= self._n_forgotten + self._keep // 100:
                connection.execute(_FORGET, {"last": last})
                self._n_forgotten = last
        now = time.perf_counter()
        self._finished += [{"number": number, "seconds": now - record.started} for number, record in written]
        return results

    def _write_times(self, connection: sql.Connection) -> None:
        """Write how long the answers before took, which is known only after they were stored."""
        if self._finished:
            connection.execute(_SET_SECONDS.values(seconds=sql.bindparam("seconds")), self._finished)
            self._finished = []

    def _skip_repeated(self, connection: sql.Connection, records: list[Record], results: list[Any]) -> list[bool]:
        """Return which records are new by their idempotency keys."""
        named = {f"{self._own} {record.idempotency[0]}" for record in records if record.idempotency is not None}
        if not named:
            return [True] * len(records)
        columns = (assessments.c.idempotency, assessments.c.fingerprint)
        found = connection.execute(sql.select(*columns).where(assessments.c.idempotency.in_(named)))
        known: dict[str, str] = {str(row.idempotency): str(row.fingerprint) for row in found}
        is_new: list[bool] = []
        for place, record in enumerate(records):
            name, code = record.idempotency or ("", "")
            key = f"{self._own} {name}"
            is_new.append(not name or key not in known)
            if name and known.setdefault(key, code) != code:
                results[place] = RequestError(
                    422,
                    "Expected one body, with the same options, for each Idempotency-Key. Got another. Use a new key.",
                )
        return is_new

    def _insert(self, connection: sql.Connection, records: list[Record]) -> list[tuple[int, Record]]:
        """Insert records, and return the number of each; the monitor takes their scores from the table."""
        kept = self._find_repeated_rows(connection, records) if any(each.answers for each in records) else {}
        now = time.perf_counter()
        rows = [
            {
                "at": record.at,
                "request": record.request,
                "model": name_monitor(record.facts, self._alpha),
                "n_rows": len(record.uncertainty),
                "n_accepted": record.n_accepted,
                "seconds": now - record.started,
                "uncertainty": _find_median(record.uncertainty),
                "missed": _find_median(record.missed),
                "scores": _dump_scores(record, kept.get(id(record))),
                "rejected": encode_json(record.rejected).decode() if record.rejected else "[]",
                "idempotency": None if record.idempotency is None else f"{self._own} {record.idempotency[0]}",
                "fingerprint": None if record.idempotency is None else record.idempotency[1],
            }
            for record in records
        ]
        last = max(connection.execute(_INSERT, rows).scalars())
        names = ("key", "coverage", "answer", "features", "uncertainty", "model", "service")
        answers: list[dict[str, Any]] = [
            dict(zip(names, (*answer, score, record.facts.sha256, self._own), strict=True))
            for record in records
            for answer, score in zip(record.answers, record.uncertainty.tolist(), strict=False)
        ]
        if answers:
            connection.execute(sql.insert(_answers), answers)
            newest = sql.select(sql.func.max(_answers.c.id)).scalar_subquery()
            connection.execute(sql.delete(_answers).where(_answers.c.id <= newest - self._keep_answers))
        return [(last - len(records) + 1 + place, record) for place, record in enumerate(records)]

    def _find_latest_answers(self, connection: sql.Connection, keys: Collection[str]) -> dict[str, Any]:
        later, own = _answers.alias(), self._own
        latest = sql.select(sql.func.max(later.c.id)).where(later.c.key == _answers.c.key, later.c.service == own)
        waiting = sql.select(_answers).where(_answers.c.id == latest.scalar_subquery())
        return {row.key: row for row in _select_keys(connection, waiting, _answers, keys)}

    def _find_repeated_rows(self, connection: sql.Connection, records: list[Record]) -> dict[int, Any]:
        """Return which rows of each record are known by key and have the same uncertainty: they were sent twice."""
        given = {answer[0] for record in records for answer in record.answers}
        known = {key: row.uncertainty for key, row in self._find_latest_answers(connection, given).items()}
        found: dict[int, Any] = {}
        for record in records:
            pairs = zip(record.answers, record.uncertainty.tolist(), strict=False)
            scores = {answer[0]: score for answer, score in pairs}
            is_seen = [
                known.get(key) is not None and math.isclose(known[key], score, rel_tol=1e-6)
                for key, score in scores.items()
            ]
            if is_seen:
                found[id(record)] = np.array(is_seen)
            known |= scores
        return found

    def catch_up(self, facts: Facts) -> bool:
        """Let the monitor of a model read a slice of the rows that were written, and return whether it has read all."""
        with self._begin() as connection:
            return self._monitors.catch_up(connection, facts)[1]

    def reset(self, facts: Facts) -> None:
        """Start the monitor of a model again, for all workers."""
        with self._begin() as connection:
            self._monitors.reset(connection, facts)

    # --- labels ---

    def match_labels(self, labels: list[Label]) -> list[tuple[Label, Any]]:
        """Return with each label what is to be written of it and the answer to its key, or why it is not taken."""
        names = {label.name for label in labels}
        own_labels = sql.select(_labels.c.key).where(_labels.c.service == self._own)
        with self._begin() as connection:
            answers = self._find_latest_answers(connection, names)
            known = _select_keys(connection, own_labels, _labels, names - answers.keys())
        labelled, found = {row.key for row in known}, []
        for label in labels:
            row = answers.get(label.name)
            judged = None if row is None else judge_label(row.answer, label.value)
            if row is None or judged is None:
                found.append((label, "labelled_already" if label.name in labelled else "unknown"))
                continue
            kept = {name: getattr(row, name) for name in ("id", "model", "key", "coverage", "features", "service")}
            values = kept | {"at": time.time(), "value": json.dumps(label.value)}
            found.append((label, values | dict(zip(("covered", "error"), judged, strict=True))))
        return found

    def write_labels(self, matched: list[tuple[Label, Any]], request: str) -> dict[str, list[Any]]:
        """Take labels for answers that still wait for one, and return the keys of the others.

        For each label that was "taken", the model that answered is returned, None if its row was not kept.
        """
        found: dict[str, list[Any]] = {"taken": [], "unknown": [], "labelled_already": []}
        taken: list[dict[str, Any]] = []
        keys = [values["key"] for _, values in matched if isinstance(values, dict)]
        own_answers = sql.delete(_answers).where(_answers.c.service == self._own).returning(_answers.c.id)
        with self._begin() as connection:
            waiting = _select_keys(connection, own_answers, _answers, keys)
            left = {row.id for row in waiting}
            for label, values in matched:
                if isinstance(values, str) or values["id"] not in left:  # another worker may have taken it
                    found[values if isinstance(values, str) else "labelled_already"].append(label.key)
                else:
                    taken.append({name: value for name, value in values.items() if name != "id"} | {"request": request})
                    found["taken"].append(values["model"] if values["features"] is not None else None)
            if taken:
                connection.execute(sql.insert(_labels), taken)
        return found

    def read_labels(self, model: str, after: int) -> list[Any]:
        """Return number, request, value and features of the labels of a model after a number, in their order."""
        table = _labels.c
        chosen = sql.select(table.id, table.request, table.value, table.features).order_by(table.id)
        own = chosen.where(table.model == model, table.id > after, table.features.is_not(None))
        with self._begin() as connection:
            return [tuple(row) for row in connection.execute(own)]

    # --- what the page shows ---

    def read_live(self, facts: Facts, *, now: float | None = None) -> dict[str, Any]:
        """Return what the page shows, from the last requests of all workers."""
        now = time.time() if now is None else now
        name, table = name_monitor(facts, self._alpha), assessments.c
        own = sql.select(table.id, table.at, table.request, table.uncertainty, table.missed, table.log_capital)
        own = own.add_columns(table.rejected).where(table.model == name).order_by(table.id.desc())
        minute = sql.select(table.at, table.n_rows, table.n_accepted, table.seconds)
        minute = minute.where(table.at > now - _BINS * _BIN_SECONDS).order_by(table.id.desc()).limit(_MAX_COUNTED)
        labels = sql.select(_labels.c.covered, _labels.c.error).order_by(_labels.c.id.desc()).limit(2 * ROLLING)
        labels = labels.where(_labels.c.model == facts.sha256, _labels.c.coverage == facts.coverage)
        with self._begin() as connection:
            shared, _ = self._monitors.catch_up(connection, facts)
            counted = connection.execute(minute).all()
            points = connection.execute(own.limit(300)).all()
            rejected = connection.execute(own.where(table.rejected != "[]").limit(10)).all()
            labelled = connection.execute(labels).all()
        plain = ("id", "at", "uncertainty", "missed", "log_capital")
        return {
            "minute": _summarize_minute(counted, now),
            "points": [{each: getattr(point, each) for each in plain} for point in reversed(points)],
            "rejected": [
                {"id": each.id, "at": each.at, "request": each.request, **row}
                for each in rejected
                for row in json.loads(each.rejected)
            ][:10],
            "drift": shared and shared.describe(self._alpha, has_missed=facts.missed is not None),
            "labels": summarize_labels([tuple(label) for label in labelled], facts.coverage),
        }


def _create_tables(connection: sql.Connection) -> None:
    """Create what is not there yet: tables, and columns that those of older versions do not have."""
    metadata.create_all(connection)
    for table in metadata.tables.values():
        there = {column["name"] for column in sql.inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _select_keys(connection: sql.Connection, query: Any, table: sql.Table, keys: Collection[str]) -> list[Any]:
    """Run a query for some keys at a time, and return the rows of all."""
    ordered = sorted(keys)
    parts = [ordered[start : start + _ROWS_AT_ONCE] for start in range(0, len(ordered), _ROWS_AT_ONCE)]
    return [row for part in parts for row in connection.execute(query.where(table.c.key.in_(part)))]


def _dump_scores(record: Record, repeated: Any) -> bytes | None:
    """Return what the monitor watches, (1, n) or (2, n), of new rows that the model said something about (no NaN)."""
    if record.facts.calibration is None:
        return None
    scores = np.array([record.uncertainty] if record.facts.missed is None else [record.uncertainty, record.missed])
    is_watched = (scores > -np.inf).all(axis=0)
    return scores[:, is_watched if repeated is None else is_watched & ~repeated].astype("<f8").tobytes()


def _find_median(scores: Floats | None) -> float | None:
    """Return the median of those that are finite, None if there are none."""
    finite = np.empty(0) if scores is None else scores[np.isfinite(scores)]
    return None if len(finite) == 0 else float(finite[0] if len(finite) == 1 else np.median(finite))


def _summarize_minute(rows: Any, now: float) -> dict[str, Any]:
    """Summarize the last minute, or as much of it as was counted: requests, rows, share accepted and times."""
    at, n_rows, n_accepted, seconds = np.array([tuple(row) for row in rows], dtype=np.float64).reshape(-1, 4).T
    covered = now - at.min() if len(at) == _MAX_COUNTED else float(_BINS * _BIN_SECONDS)
    place = np.clip(((now - at) / _BIN_SECONDS).astype(np.int64), 0, _BINS - 1)
    n_bins = min(_BINS, max(1, int(covered / _BIN_SECONDS)))
    per_bin = np.bincount(place, minlength=_BINS)[:n_bins][::-1] / _BIN_SECONDS
    is_now, window = now - at <= _NOW_SECONDS, max(min(covered, _NOW_SECONDS), 1e-3)
    median, slow = np.quantile(seconds, [0.5, 0.99]).tolist() if len(seconds) else (None, None)
    return {
        "requests_per_second": float(is_now.sum()) / window,
        "rows_per_second": float(n_rows[is_now].sum()) / window,
        "accepted": float(n_accepted.sum() / n_rows.sum()) if len(at) else None,
        "seconds_median": median,
        "seconds_99": slow,
        "bin_seconds": _BIN_SECONDS,
        "requests": per_bin.tolist(),
    }
