"""Keep assessments, labels and the drift alarm that all workers share in one database, SQLite or PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from onsphere._internal.validation import Floats, missing_extra_error
from onsphere.errors import InvalidInputError
from onsphere.export.deployed import Facts
from onsphere.service.answers import RequestError, StoreError, encode_json
from onsphere.service.labels import ROLLING, Label, judge_label, summarize_labels
from onsphere.service.monitor_state import SharedMonitor, assessments, make_table, metadata, name_monitor, set_later

_BINS, _BIN_SECONDS = 30, 2  # of the throughput on the page
_NOW_SECONDS = 10.0  # that the rate of now is taken over
_MAX_COUNTED = 5_000  # requests
_ROWS_AT_ONCE = 500  # of one query, which may have 32,766 values
_LABELS_READ = 5_000  # at once, more than a request may have
_MAX_UNTIMED = 500  # answers whose times are written together

_answers = make_table(  # one row per answer that waits for its label
    "onsphere_answers",
    model=sql.Text,
    key=sql.Text,
    coverage=sql.Double,
    answer=sql.Text,
    features=sql.Text,
    uncertainty=sql.Double,
    service=sql.Text,
)
sql.Index("onsphere_answers_key", _answers.c.key, _answers.c.id)
_labels = make_table(  # one row per label
    "onsphere_labels",
    model=sql.Text,
    key=sql.Text,
    coverage=sql.Double,
    features=sql.Text,
    at=sql.Double,
    request=sql.Text,
    value=sql.Text,
    covered=sql.Integer,
    error=sql.Double,
    service=sql.Text,
)
sql.Index("onsphere_labels_key", _labels.c.key)
sql.Index("onsphere_labels_model", _labels.c.model, _labels.c.id)
_probes = make_table("onsphere_probes", sql.Column("worker", sql.Text, primary_key=True), at=sql.Double)
_LOCK = sql.text("SELECT pg_advisory_xact_lock(1869509488)")  # of all services that share the tables
_INSERT = sql.insert(assessments).returning(assessments.c.id, sort_by_parameter_order=True)

_OTHER_BODY = "Expected one body, with the same options, for each Idempotency-Key. Got another. Use a new key."


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
    last_rows: dict[str, Any] = field(default_factory=dict)  # by column, to see which of them moved
    facts: Any = None  # about the model that answered, which its process does not send along


def open_database(url: str, *, seconds: float = 2.0) -> sql.Engine:
    """Return the database of a URL, without connecting yet; it waits some seconds for others and for its server."""
    try:
        given = sql.make_url(url)
    except ArgumentError:
        given = sql.URL.create(url.partition("://")[0] or "?")
    if given.drivername == "sqlite":
        return _open_sqlite(given, seconds)
    if given.drivername in ("postgresql", "postgres"):
        limits = {"statement_timeout": 1000 * seconds, "idle_in_transaction_session_timeout": 2000 * seconds}
        settings = "-c client_min_messages=warning" + "".join(f" -c {name}={round(ms)}" for name, ms in limits.items())
        patience = {"connect_timeout": max(2, round(seconds)), "tcp_user_timeout": round(1000 * seconds)}
        try:
            return sql.create_engine(
                given.set(drivername="postgresql+psycopg"),
                connect_args={**patience, "options": settings, "application_name": "onsphere"},
            )
        except ImportError:
            raise missing_extra_error("A store in PostgreSQL", "psycopg[binary]", "serve") from None
    raise InvalidInputError(
        f"Expected a store such as assessments.sqlite or postgresql://user@host/database. Got {given.drivername}://…. "
        "Choose one of the two."
    )


def _open_sqlite(url: sql.URL, seconds: float) -> sql.Engine:
    """Return a database in a file, which is made for its owner alone."""
    engine, file = sql.create_engine(url, connect_args={"timeout": seconds}), url.database or ""

    @event.listens_for(engine, "do_connect")
    def make_file(*_: Any) -> None:
        with suppress(FileNotFoundError):  # of a folder that is missing, SQLite says so
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin as follows
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # each transaction is on the disk before it counts

    @event.listens_for(engine, "begin")
    def begin(connection: sql.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


class Store:
    """The log of the latest assessments, their labels, and the monitor, over one connection that is kept open.

    Keys of rows and of requests belong to the service of a name; others on the same database have their own.
    """

    def __init__(self, engine: sql.Engine, *, alpha: float, keep: int, keep_answers: int, service: str = "") -> None:
        self._own = hashlib.sha256(service.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._engine, self._alpha, self._keep, self._keep_answers = engine, alpha, keep, keep_answers
        self._monitor, self._n_forgotten = SharedMonitor(alpha), 0
        self._finished: list[dict[str, Any]] = []  # how long the last answers took, storing included
        self._connection: sql.Connection | None = None
        self._file: tuple[int, int] | None = None  # in which SQLite opened the database
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._worker = f"{socket.gethostname()} {os.getpid()}"

    @contextmanager
    def _begin(self) -> Generator[sql.Connection]:
        """Open a transaction that has the tables for itself, and is on the disk when the context ends."""
        try:
            if self._connection is not None and self._find_file() != self._file:  # another took its place
                self.close()
            is_new = self._connection is None
            connection = self._connection = self._connection or self._engine.connect()
            with connection.begin():
                if not self._is_sqlite:
                    connection.execute(_LOCK)
                if is_new:
                    self._file = self._find_file()
                    _create_tables(connection)
                yield connection
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | SQLAlchemyError):
                name, reason = "SQLite" if self._is_sqlite else "PostgreSQL", getattr(error, "orig", error)
                raise StoreError(f"{name}: {' '.join(str(reason).split())}") from error
            raise

    def _find_file(self) -> tuple[int, int] | None:
        if not self._is_sqlite:
            return None
        found = os.stat(self._engine.url.database or "")
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._monitor.forget()  # it may have seen what was not kept
        self._engine.dispose()

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
        with self._begin() as connection:
            if len(self._finished) >= _MAX_UNTIMED:
                self._write_times(connection)
            fresh, results = self._skip_repeated(connection, records)
            for facts in {id(record.facts): record.facts for record in fresh}.values():
                self._monitor.watch(connection, facts)
            numbers = self._insert(connection, fresh) if fresh else [0]
            last = numbers[-1] - self._keep
            if last >= self._n_forgotten + self._keep // 100:
                old = (assessments.c.id <= last, assessments.c.scores.is_(None))
                connection.execute(sql.delete(assessments).where(*old))
                self._n_forgotten = last
        now = time.perf_counter()
        pairs = zip(numbers, fresh, strict=False)
        self._finished += [{"number": number, "seconds": now - record.started} for number, record in pairs]
        return results

    def _write_times(self, connection: sql.Connection) -> None:
        """Write how long the answers before took, which is known only after they were stored."""
        if self._finished:
            connection.execute(set_later("seconds"), self._finished)
            self._finished = []

    def _skip_repeated(self, connection: sql.Connection, records: list[Record]) -> tuple[list[Record], list[Any]]:
        """Return the records that are new by their idempotency keys, and the result of each."""
        table, known = assessments.c, dict[Any, Any]()
        named = [f"{self._own} {record.idempotency[0]}" for record in records if record.idempotency is not None]
        if named:
            found = sql.select(table.idempotency, table.fingerprint).where(table.idempotency.in_(named))
            known = {name.removeprefix(f"{self._own} "): code for name, code in connection.execute(found)}
        fresh: list[Record] = []
        results: list[Any] = []
        for record in records:
            name, code = record.idempotency or (record, "")  # without a key, each is another
            if name not in known:
                fresh.append(record)
            results.append(known.setdefault(name, code) == code or RequestError(422, _OTHER_BODY))
        return fresh, results

    def _insert(self, connection: sql.Connection, records: list[Record]) -> list[int]:
        """Insert records and the answers that wait for labels, and return the numbers of the records.

        An answer takes the place of an earlier one to the same key. If it has the same uncertainty, the row was sent
        twice, and the monitor does not see it again.
        """
        keys = [answer[0] for record in records for answer in record.answers]
        known = {row.key: row.uncertainty for row in self._delete_answers(connection, keys)} if keys else {}
        rows: list[dict[str, Any]] = []
        answers: dict[str, dict[str, Any]] = {}
        for record in records:
            is_new = np.ones(len(record.uncertainty), dtype=bool)
            for place, (key, coverage, answer, features) in enumerate(record.answers):
                score = float(record.uncertainty[place])
                is_new[place] = known.get(key) is None or not math.isclose(known[key], score, rel_tol=1e-6)
                known[key] = score
                kept = {"key": key, "coverage": coverage, "answer": answer, "features": features}
                answers[key] = kept | {"uncertainty": score, "model": record.facts.sha256, "service": self._own}
            rows.append(self._describe(record, is_new))
        numbers = connection.execute(_INSERT, rows).scalars().all()
        if answers:
            connection.execute(sql.insert(_answers), list(answers.values()))
            newest = sql.select(sql.func.max(_answers.c.id)).scalar_subquery()
            connection.execute(sql.delete(_answers).where(_answers.c.id <= newest - self._keep_answers))
        return list(numbers)

    def _describe(self, record: Record, is_new: Any) -> dict[str, Any]:
        """Return the row of a record; the monitor takes the scores of its new rows from there."""
        return {
            "at": record.at,
            "request": record.request,
            "model": name_monitor(record.facts, self._alpha),
            "n_rows": len(record.uncertainty),
            "n_accepted": record.n_accepted,
            "seconds": time.perf_counter() - record.started,
            "uncertainty": _find_median(record.uncertainty),
            "missed": _find_median(record.missed),
            "scores": _dump_scores(record, is_new),
            "rejected": encode_json(record.rejected).decode(),
            "idempotency": record.idempotency and f"{self._own} {record.idempotency[0]}",
            "fingerprint": record.idempotency and record.idempotency[1],
        }

    def _delete_answers(self, connection: sql.Connection, keys: list[str]) -> list[Any]:
        """Delete the answers to keys, and return number, key and uncertainty of each."""
        own = sql.delete(_answers).where(_answers.c.service == self._own)
        own = own.returning(_answers.c.id, _answers.c.key, _answers.c.uncertainty)
        parts = [keys[start : start + _ROWS_AT_ONCE] for start in range(0, len(keys), _ROWS_AT_ONCE)]
        return [row for part in parts for row in connection.execute(own.where(_answers.c.key.in_(part)))]

    def catch_up(self, facts: Facts) -> bool:
        """Let the monitor of a model read a slice of the rows that were written, and return whether it has read all."""
        with self._begin() as connection:
            return self._monitor.catch_up(connection, facts)

    def reset(self, facts: Facts) -> None:
        """Start the monitor of a model again, for all workers."""
        with self._begin() as connection:
            self._monitor.reset(connection, facts)

    # --- labels ---

    def match_labels(self, labels: list[Label]) -> list[tuple[Label, int | str, dict[str, Any]]]:
        """Return with each label the number of its answer, or why it is not taken, and what is to be written of it."""
        names = {label.name for label in labels}
        waiting = sql.select(_answers).where(_answers.c.service == self._own, _answers.c.key.in_(names))
        known = sql.select(_labels.c.key).where(_labels.c.service == self._own)
        with self._begin() as connection:
            answers = {row.key: row for row in connection.execute(waiting.order_by(_answers.c.id))}
            others = names - answers.keys()
            labelled = set(connection.execute(known.where(_labels.c.key.in_(others))).scalars() if others else ())
        found: list[tuple[Label, int | str, dict[str, Any]]] = []
        for label in labels:
            answer = answers.get(label.name)
            judged = None if answer is None else judge_label(answer.answer, label.value)
            if answer is None or judged is None:
                found.append((label, "labelled_already" if label.name in labelled else "unknown", {}))
                continue
            row = {name: getattr(answer, name) for name in ("model", "key", "coverage", "features", "service")}
            row |= {"at": time.time(), "value": json.dumps(label.value), "covered": judged[0], "error": judged[1]}
            found.append((label, answer.id, row))
        return found

    def write_labels(
        self, matched: list[tuple[Label, int | str, dict[str, Any]]], request: str
    ) -> dict[str, list[Any]]:
        """Take labels for answers that still wait for one, and return the keys of the others.

        For each label that was "taken", the model that answered is returned, None if its row was not kept.
        """
        found: dict[str, list[Any]] = {"taken": [], "unknown": [], "labelled_already": []}
        rows: list[dict[str, Any]] = []
        with self._begin() as connection:
            deleted = self._delete_answers(connection, [row["key"] for _, _, row in matched if row])
            waiting = {answer.id for answer in deleted}
            for label, number, row in matched:
                if number in waiting:
                    rows.append(row | {"request": request})
                    found["taken"].append(None if row["features"] is None else row["model"])
                else:  # another worker may have taken it
                    found[number if isinstance(number, str) else "labelled_already"].append(label.key)
            if rows:
                connection.execute(sql.insert(_labels), rows)
        return found

    def read_labels(self, model: str, after: int) -> list[Any]:
        """Return number, request, value and features of the next labels of a model after a number, in their order.

        All labels of a request come together. Without any left, nothing is returned.
        """
        table = _labels.c
        chosen = sql.select(table.id, table.request, table.value, table.features).order_by(table.id)
        own = chosen.where(table.model == model, table.id > after, table.features.is_not(None))
        with self._begin() as connection:
            found = [tuple(row) for row in connection.execute(own.limit(_LABELS_READ))]
        if len(found) == _LABELS_READ:  # the last request may have more of them
            found = [label for label in found if label[1] != found[-1][1]]
        return found

    # --- what the page shows ---

    def read_live(self, facts: Facts, *, now: float | None = None) -> dict[str, Any]:
        """Return what the page shows, from the last requests of all workers."""
        now = time.time() if now is None else now
        table, plain = assessments.c, ("id", "at", "uncertainty", "missed", "log_capital")
        own = sql.select(*(table[name] for name in plain), table.request, table.rejected).order_by(table.id.desc())
        own = own.where(table.model == name_monitor(facts, self._alpha))
        minute = sql.select(table.at, table.n_rows, table.n_accepted, table.seconds)
        minute = minute.where(table.at > now - _BINS * _BIN_SECONDS).order_by(table.id.desc()).limit(_MAX_COUNTED)
        labels = sql.select(_labels.c.covered, _labels.c.error).order_by(_labels.c.id.desc()).limit(2 * ROLLING)
        labels = labels.where(_labels.c.model == facts.sha256, _labels.c.coverage == facts.coverage)
        with self._begin() as connection:
            self._monitor.catch_up(connection, facts)
            counted = connection.execute(minute).all()
            points = connection.execute(own.limit(300)).all()
            rejected = connection.execute(own.where(table.rejected != "[]").limit(10)).all()
            labelled = connection.execute(labels).all()
        return {
            "minute": _summarize_minute(counted, now),
            "points": [{each: getattr(point, each) for each in plain} for point in reversed(points)],
            "rejected": [
                {"id": each.id, "at": each.at, "request": each.request, **row}
                for each in rejected
                for row in json.loads(each.rejected)
            ][:10],
            "drift": self._monitor.describe(facts),
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


def _dump_scores(record: Record, is_new: Any) -> bytes | None:
    """Return what the monitor watches, (1, n) or (2, n), of new rows that the model said something about (no NaN)."""
    if record.facts.calibration is None:
        return None
    scores = np.array([record.uncertainty] if record.facts.missed is None else [record.uncertainty, record.missed])
    return scores[:, is_new & (scores > -np.inf).all(axis=0)].astype("<f8").tobytes()


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
