"""Keep assessments, and the drift alarm that all workers share, in one database.

The monitor depends only on the scores, in the order in which they were written. So it is not written with every
request, but from time to time, with the number of the last request that it has seen; a worker that is behind, or
starts, reads it and catches up with the scores since. All workers come to the same alarm at the same row.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.calibration import Calibration
from onsphere.drift import DriftMonitor
from onsphere.service.databases import Database
from onsphere.service.engine import Facts
from onsphere.service.labels import ROLLING, Label, judge_label, summarize_labels

__all__ = ["Record", "Store"]

_ROWS_BETWEEN = 5_000  # scores to catch up with at most, before the monitor is written again
_BINS, _BIN_SECONDS = 30, 2  # of the throughput on the page
_MAX_COUNTED = 5_000  # requests
_ROWS_AT_ONCE = 500  # of one statement, which may have 32,766 values


@dataclass(frozen=True, eq=False)
class Record:
    """The record of one request.

    Attributes
    ----------
    facts : Facts
        About the model that answered.
    at, seconds : float
        When, in seconds since 1970, and how long the answer took.
    request : str
        Its number.
    uncertainty : array of shape (n,)
    missed : array of shape (n,) or None
        The shortfall, from which novelty follows.
    n_accepted : int
    rejected : list of dict
        Some of the rows that were not accepted: "answer" and, if rows are kept, "row" and "key".
    answers : list of tuple
        Key, coverage, answer and features (None if rows are not kept) of each row, if labels are to be joined to them.
    """

    facts: Facts
    at: float
    seconds: float
    request: str
    uncertainty: Floats
    missed: Floats | None
    n_accepted: int
    rejected: list[dict[str, Any]]
    answers: list[tuple[str, float, str, str | None]] = field(default_factory=list)


class Store:
    """The log of assessments and the monitor.

    Parameters
    ----------
    database : Database
    alpha : float
        How likely a false alarm may be.
    keep : int
        How many of the latest requests to keep.
    keep_answers : int
        How many of the latest rows that wait for a label to keep.
    """

    def __init__(self, database: Database, *, alpha: float, keep: int, keep_answers: int) -> None:
        self._database, self._alpha, self._keep, self._keep_answers = database, alpha, keep, keep_answers
        self._monitor: _SharedMonitor | None = None

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def write(self, records: list[Record]) -> None:
        """Write records, all or none, and update the monitor; they are on the disk when this returns."""
        try:
            with self._database.begin_write() as run:
                for _, group in groupby(records, key=lambda record: record.facts.sha256):
                    self._write(run, list(group))
                run(
                    "DELETE FROM onsphere_assessments WHERE id <= (SELECT MAX(id) FROM onsphere_assessments) - ? "
                    "AND scores IS NULL",
                    [self._keep],
                )
                if any(record.answers for record in records):
                    answers = [(record.facts.sha256, *answer) for record in records for answer in record.answers]
                    _insert(run, "onsphere_answers (model, key, coverage, answer, features)", answers)
                    run(
                        "DELETE FROM onsphere_answers WHERE id <= (SELECT MAX(id) FROM onsphere_answers) - ?",
                        [self._keep_answers],
                    )
        except BaseException:
            self._monitor = None  # it may have seen what was not kept
            raise

    def _write(self, run: Any, records: list[Record]) -> None:
        """Write records of one model; the monitor takes all scores at once, which is the same as one by one."""
        facts = records[0].facts
        shared = self._catch_up(run, facts)
        scores = [_take_scores(record) for record in records]
        capital = [None] * len(records) if shared is None else shared.update(scores)
        for record, values, log_capital in zip(records, scores, capital, strict=True):
            run(
                "INSERT INTO onsphere_assessments "
                "(at, request, model, n_rows, n_accepted, seconds, uncertainty, missed, log_capital, scores, rejected) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    record.at,
                    record.request,
                    self._name_monitor(facts),
                    len(record.uncertainty),
                    record.n_accepted,
                    record.seconds,
                    _find_median(record.uncertainty),
                    _find_median(record.missed),
                    log_capital,
                    None if shared is None else values.astype("<f8").tobytes(),
                    json.dumps(record.rejected, allow_nan=False),
                ],
            )
        if shared is not None:
            [(shared.position,)] = run("SELECT MAX(id) FROM onsphere_assessments")
            shared.write(run, whole=shared.n_since >= _ROWS_BETWEEN)

    def _catch_up(self, run: Any, facts: Facts) -> _SharedMonitor | None:
        """Return the monitor of a model, updated with what other workers have written since."""
        if facts.calibration is None:
            return None
        name = self._name_monitor(facts)
        found = run("SELECT generation, position FROM onsphere_monitors WHERE model = ?", [name])
        shared = self._monitor
        if shared is not None and shared.name != name:
            self._leave(run, shared)
        if not found:
            rows = Calibration(facts.calibration, np.zeros(len(facts.calibration)), missed=facts.missed)
            shared = _SharedMonitor(name, DriftMonitor(rows, alpha=self._alpha), generation=0, position=0)
            [(last,)] = run("SELECT MAX(id) FROM onsphere_assessments")
            shared.position = last or 0
            shared.write(run, whole=True)
        elif shared is None or shared.name != name or shared.is_behind(*found[0]):
            shared = _SharedMonitor.read(run, name)
        unread = run(
            "SELECT id, scores FROM onsphere_assessments WHERE model = ? AND id > ? ORDER BY id",
            [name, shared.position],
        )
        if unread:
            shared.update(
                [np.frombuffer(scores, dtype="<f8").reshape(_count_scores(facts), -1) for _, scores in unread]
            )
            shared.position = unread[-1][0]
        self._monitor = shared
        return shared

    def _leave(self, run: Any, shared: _SharedMonitor) -> None:
        """Write the monitor of a model that no longer answers, so that its scores need not be kept."""
        written = run("SELECT generation, position FROM onsphere_monitors WHERE model = ?", [shared.name])
        if written and not shared.is_behind(*written[0]):
            shared.write(run, whole=True)

    def reset(self, facts: Facts) -> None:
        """Start the monitor of a model again, for all workers."""
        try:
            with self._database.begin_write() as run:
                shared = self._catch_up(run, facts)
                if shared is not None:
                    shared.monitor.reset()
                    shared.generation += 1
                    shared.write(run, whole=True)
                    # The page must not draw evidence from before the reset as if it came after.
                    run("UPDATE onsphere_assessments SET log_capital = NULL WHERE model = ?", [shared.name])
        except BaseException:
            self._monitor = None
            raise

    def write_labels(self, labels: list[Label], request: str) -> dict[str, list[Any]]:
        """Take labels for answers that wait for one, the latest of each key; they are on the disk when this returns.

        Returns
        -------
        dict of list
            The keys that are "unknown" and "labelled_already", and for each label that was "taken" the model that
            answered, which can be updated with it; None if its row was not kept.
        """
        keys = [label.name for label in labels]
        found: dict[str, list[Any]] = {"taken": [], "unknown": [], "labelled_already": []}
        taken: list[tuple[Any, ...]] = []
        with self._database.begin_write() as run:
            waiting = _run_for_keys(
                run,
                "SELECT key, model, coverage, answer, features FROM onsphere_answers WHERE id IN "
                "(SELECT MAX(id) FROM onsphere_answers WHERE key IN ({}) GROUP BY key)",
                keys,
            )
            answers = {key: rest for key, *rest in waiting}
            missing = [key for key in keys if key not in answers]
            query = "SELECT key FROM onsphere_labels WHERE key IN ({})"
            labelled = {key for (key,) in _run_for_keys(run, query, missing)}
            for label in labels:
                model, coverage, answer, features = answers.get(label.name, (None,) * 4)
                judged = None if answer is None else judge_label(answer, label.value)
                if judged is None:
                    found["labelled_already" if label.name in labelled else "unknown"].append(label.key)
                    continue
                value = json.dumps(label.value)
                taken.append((model, label.name, coverage, features, time.time(), request, value, *judged))
                found["taken"].append(model if features is not None else None)
            names = "model, key, coverage, features, at, request, value, covered, error"
            _insert(run, f"onsphere_labels ({names})", taken)
            _run_for_keys(run, "DELETE FROM onsphere_answers WHERE key IN ({})", [row[1] for row in taken])
        return found

    def read_labels(self, model: str, after: int) -> list[Any]:
        """Return number, request, value and features of the labels of a model after a number, in their order."""
        with self._database.begin_read() as run:
            return run(
                "SELECT id, request, value, features FROM onsphere_labels WHERE model = ? AND id > ? "
                "AND features IS NOT NULL ORDER BY id",
                [model, after],
            )

    def check(self) -> None:
        """Check that the database answers."""
        with self._database.begin_read() as run:
            run("SELECT 1 FROM onsphere_monitors")

    def read_live(self, facts: Facts, *, now: float | None = None) -> dict[str, Any]:
        """Return what the page shows, from the last requests of all workers."""
        now = time.time() if now is None else now
        name = self._name_monitor(facts)
        with self._database.begin_read() as run:
            minute = run(
                "SELECT at, n_rows, n_accepted, seconds FROM onsphere_assessments WHERE at > ? "
                "ORDER BY id DESC LIMIT ?",
                [now - _BINS * _BIN_SECONDS, _MAX_COUNTED],
            )
            points = run(
                "SELECT id, at, uncertainty, missed, log_capital FROM onsphere_assessments WHERE model = ? "
                "ORDER BY id DESC LIMIT 300",
                [name],
            )
            rejected = run(
                "SELECT id, at, request, rejected FROM onsphere_assessments WHERE model = ? AND rejected <> '[]' "
                "ORDER BY id DESC LIMIT 10",
                [name],
            )
            monitor = run(
                "SELECT n_seen, log_capital, alarmed_at, alarmed_by, generation FROM onsphere_monitors WHERE model = ?",
                [name],
            )
            labels = run(
                "SELECT covered, error FROM onsphere_labels WHERE model = ? AND coverage = ? ORDER BY id DESC LIMIT ?",
                [facts.sha256, facts.coverage, 2 * ROLLING],
            )
        return {
            "minute": _summarize_minute(minute, now),
            "points": [
                {"id": number, "at": at, "uncertainty": uncertainty, "missed": missed, "log_capital": log_capital}
                for number, at, uncertainty, missed, log_capital in reversed(points)
            ],
            "rejected": [
                {"id": number, "at": at, "request": request, **row}
                for number, at, request, rows in rejected
                for row in json.loads(rows)
            ][:10],
            "drift": self._describe_drift(facts, monitor),
            "labels": summarize_labels(labels, facts.coverage),
        }

    def _describe_drift(self, facts: Facts, monitor: list[Any]) -> dict[str, Any] | None:
        if facts.calibration is None:
            return None
        n_seen, log_capital, alarmed_at, alarmed_by, n_resets = monitor[0] if monitor else (0, 0.0, None, None, 0)
        return {
            "alarm": alarmed_at is not None,
            "alarmed_at": alarmed_at,
            "alarmed_by": alarmed_by,
            "watched": ["uncertainty", *([] if facts.missed is None else ["novelty"])],
            "rows_seen": n_seen,
            "log_capital": log_capital,
            "alarm_line": -math.log(self._alpha),
            "resets": n_resets,
        }

    def _name_monitor(self, facts: Facts) -> str:
        """Name the monitor: each model and alpha has its own."""
        return f"{facts.sha256} {self._alpha:g}"


@dataclass(eq=False)
class _SharedMonitor:
    """A drift monitor, and how far it has read."""

    name: str
    monitor: DriftMonitor
    generation: int  # how often it was reset
    position: int  # of the last request that it has seen
    n_since: int = 0  # rows since it was written

    @classmethod
    def read(cls, run: Any, name: str) -> Self:
        [(generation, position, state)] = run(
            "SELECT generation, position, state FROM onsphere_monitors WHERE model = ?", [name]
        )
        return cls(name, DriftMonitor.from_state(json.loads(state)), generation, position)

    def is_behind(self, generation: int, position: int) -> bool:
        """Return whether the database has a newer one."""
        return generation != self.generation or position > self.position

    def update(self, parts: list[Floats]) -> list[float]:
        """Update the monitor with scores, (1, n) or (2, n), and return the logarithm of its capital after each part."""
        before, (uncertainty, *others) = self.monitor.log_capital, np.concatenate(parts, axis=1)
        missed = others[0] if others else None
        after = self.monitor.update(uncertainty, missed=missed).log_capital if len(uncertainty) else np.empty(0)
        self.n_since += len(uncertainty)
        # A part without scores leaves the capital as it was.
        return np.append(before, after)[np.cumsum([part.shape[1] for part in parts])].tolist()

    def write(self, run: Any, *, whole: bool) -> None:
        """Write what the page shows or, if whole, all that other workers need to go on from here."""
        monitor = self.monitor
        current = [monitor.n_seen, monitor.log_capital, monitor.alarmed_at, monitor.alarmed_by]
        if not whole:
            changed = "n_seen = ?, log_capital = ?, alarmed_at = ?, alarmed_by = ?"
            run(f"UPDATE onsphere_monitors SET {changed} WHERE model = ?", [*current, self.name])
            return
        state = json.dumps(monitor.state(), allow_nan=False)
        run(
            "INSERT INTO onsphere_monitors "
            "(model, generation, position, state, n_seen, log_capital, alarmed_at, alarmed_by) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (model) DO UPDATE SET generation = excluded.generation, "
            "position = excluded.position, state = excluded.state, n_seen = excluded.n_seen, "
            "log_capital = excluded.log_capital, alarmed_at = excluded.alarmed_at, alarmed_by = excluded.alarmed_by",
            [self.name, self.generation, self.position, state, *current],
        )
        run(
            "UPDATE onsphere_assessments SET scores = NULL WHERE model = ? AND id <= ? AND scores IS NOT NULL",
            [self.name, self.position],
        )
        self.n_since = 0


def _insert(run: Any, columns: str, rows: Sequence[Sequence[Any]]) -> None:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        marks = ", ".join(f"({', '.join('?' * len(row))})" for row in part)
        run(f"INSERT INTO {columns} VALUES {marks}", [cell for row in part for cell in row])


def _run_for_keys(run: Any, query: str, keys: Sequence[str]) -> list[Any]:
    """Run a query for some keys at a time, and return the rows of all."""
    parts = [keys[start : start + _ROWS_AT_ONCE] for start in range(0, len(keys), _ROWS_AT_ONCE)]
    return [row for part in parts for row in run(query.format(", ".join("?" * len(part))), part)]


def _count_scores(facts: Facts) -> int:
    """Return how many scores of each row the monitor of a model watches."""
    return 1 if facts.missed is None else 2


def _take_scores(record: Record) -> Floats:
    """Return what the monitor watches, (1, n) or (2, n), of the rows that the model said something about (no NaN)."""
    watched = [record.uncertainty, record.missed][: _count_scores(record.facts)]
    scores = np.array(watched, dtype=np.float64)
    return scores[:, (scores > -np.inf).all(axis=0)]


def _find_median(scores: Floats | None) -> float | None:
    """Return the median of those that are finite, None if there are none."""
    finite = np.empty(0) if scores is None else scores[np.isfinite(scores)]
    return float(np.median(finite)) if len(finite) else None


def _summarize_minute(rows: list[Any], now: float) -> dict[str, Any]:
    """Summarize the last minute, or as much of it as was counted: requests, rows, share accepted and times."""
    at, n_rows, n_accepted, seconds = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    covered = now - at.min() if len(at) == _MAX_COUNTED else float(_BINS * _BIN_SECONDS)
    place = np.clip(((now - at) / _BIN_SECONDS).astype(np.int64), 0, _BINS - 1)
    n_bins = min(_BINS, max(1, int(covered / _BIN_SECONDS)))
    per_bin = np.bincount(place, minlength=_BINS)[:n_bins][::-1] / _BIN_SECONDS
    median, slow = np.quantile(seconds, [0.5, 0.99]).tolist() if len(seconds) else (None, None)
    return {
        "requests_per_second": len(at) / max(covered, 1e-3),
        "rows_per_second": float(n_rows.sum()) / max(covered, 1e-3),
        "accepted": float(n_accepted.sum() / n_rows.sum()) if len(at) else None,
        "seconds_median": median,
        "seconds_99": slow,
        "bin_seconds": _BIN_SECONDS,
        "requests": per_bin.tolist(),
    }
