"""What was assessed, and the drift alarm that all workers share, in one database.

The monitor is a function of the scores in the order in which they were written. So it is not written with every
request, but from time to time, with the number of the last request that it has seen; whoever is behind, or starts,
reads it and catches up with the scores since. All workers come to the same alarm at the same row.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.drift import DriftMonitor
from onsphere.service.databases import Database
from onsphere.service.engine import Facts

__all__ = ["Record", "Store"]

_ROWS_BETWEEN = 5_000  # that are caught up with at most, before the monitor is written anew
_BINS, _BIN_SECONDS = 30, 2  # of the throughput on the page
_MOST_COUNTED = 5_000  # requests


@dataclass(frozen=True, eq=False)
class Record:
    """What is kept of one request.

    Attributes
    ----------
    facts : Facts
        Of the model that answered.
    at, seconds : float
        When, in seconds since 1970, and how long the answer took.
    request : str
        Its number.
    uncertainty : array of shape (n,)
    n_accepted : int
    rejected : list of dict
        Some of the rows that were not accepted: "answer" and, if rows are kept, "row" and "key".
    """

    facts: Facts
    at: float
    seconds: float
    request: str
    uncertainty: Floats
    n_accepted: int
    rejected: list[dict[str, Any]]


class Store:
    """The log of assessments and the monitor.

    Parameters
    ----------
    database : Database
    alpha : float
        How probable a false alarm may be.
    keep : int
        Requests to keep, the latest.
    """

    def __init__(self, database: Database, *, alpha: float, keep: int) -> None:
        self._database, self._alpha, self._keep = database, alpha, keep
        self._watching: _Watching | None = None

    def close(self) -> None:
        """Give the connection up."""
        self._database.close()

    def write(self, records: list[Record]) -> None:
        """Keep records, all or none, and let the monitor see them; they are on the disk when this returns."""
        try:
            with self._database.writing() as run:
                for _, group in groupby(records, key=lambda record: record.facts.sha256):
                    self._write(run, list(group))
                run(
                    "DELETE FROM onsphere_assessments WHERE id <= (SELECT MAX(id) FROM onsphere_assessments) - ? "
                    "AND scores IS NULL",
                    [self._keep],
                )
        except BaseException:
            self._watching = None  # it may have seen what was not kept
            raise

    def _write(self, run: Any, records: list[Record]) -> None:
        """Records of one model; the monitor sees the scores of all at once, which is the same as one by one."""
        facts = records[0].facts
        watching = self._caught_up(run, facts)
        # Not a number is no score: the model said nothing of this row.
        scores = [record.uncertainty[record.uncertainty > -np.inf] for record in records]
        capital = [None] * len(records) if watching is None else watching.capital_after(scores)
        for record, values, log_capital in zip(records, scores, capital, strict=True):
            finite = values[np.isfinite(values)]
            run(
                "INSERT INTO onsphere_assessments "
                "(at, request, model, n_rows, n_accepted, seconds, uncertainty, log_capital, scores, rejected) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    record.at,
                    record.request,
                    self._name(facts),
                    len(record.uncertainty),
                    record.n_accepted,
                    record.seconds,
                    float(np.median(finite)) if len(finite) else None,
                    log_capital,
                    None if watching is None else values.astype("<f8").tobytes(),
                    json.dumps(record.rejected, allow_nan=False),
                ],
            )
        if watching is not None:
            [(watching.position,)] = run("SELECT MAX(id) FROM onsphere_assessments")
            watching.write(run, whole=watching.n_since >= _ROWS_BETWEEN)

    def _caught_up(self, run: Any, facts: Facts) -> _Watching | None:
        """The monitor of a model, with all that other workers have written since."""
        if facts.calibration is None:
            return None
        name = self._name(facts)
        found = run("SELECT generation, position FROM onsphere_monitors WHERE model = ?", [name])
        watching = self._watching
        if watching is not None and watching.name != name:
            self._leave(run, watching)
        if not found:
            watching = _Watching(name, DriftMonitor(facts.calibration, alpha=self._alpha), generation=0, position=0)
            [(last,)] = run("SELECT MAX(id) FROM onsphere_assessments")
            watching.position = last or 0
            watching.write(run, whole=True)
        elif watching is None or watching.name != name or watching.is_behind(*found[0]):
            watching = _Watching.read(run, name)
        missed = run(
            "SELECT id, scores FROM onsphere_assessments WHERE model = ? AND id > ? ORDER BY id",
            [name, watching.position],
        )
        if missed:
            watching.capital_after([np.frombuffer(scores, dtype="<f8") for _, scores in missed])
            watching.position = missed[-1][0]
        self._watching = watching
        return watching

    def _leave(self, run: Any, watching: _Watching) -> None:
        """Write the monitor of a model that is no longer asked, so that its scores need not be kept."""
        written = run("SELECT generation, position FROM onsphere_monitors WHERE model = ?", [watching.name])
        if written and not watching.is_behind(*written[0]):
            watching.write(run, whole=True)

    def reset(self, facts: Facts) -> None:
        """Start the monitor of a model again, for all workers."""
        try:
            with self._database.writing() as run:
                watching = self._caught_up(run, facts)
                if watching is not None:
                    watching.monitor.reset()
                    watching.generation += 1
                    watching.write(run, whole=True)
                    # The evidence of a game that was ended is not drawn as if it were that of the next.
                    run("UPDATE onsphere_assessments SET log_capital = NULL WHERE model = ?", [watching.name])
        except BaseException:
            self._watching = None
            raise

    def check(self) -> None:
        """That the database answers."""
        with self._database.reading() as run:
            run("SELECT 1 FROM onsphere_monitors")

    def live(self, facts: Facts, *, now: float | None = None) -> dict[str, Any]:
        """What the page shows, from the last requests of all workers."""
        now = time.time() if now is None else now
        name = self._name(facts)
        with self._database.reading() as run:
            minute = run(
                "SELECT at, n_rows, n_accepted, seconds FROM onsphere_assessments WHERE at > ? "
                "ORDER BY id DESC LIMIT ?",
                [now - _BINS * _BIN_SECONDS, _MOST_COUNTED],
            )
            points = run(
                "SELECT id, at, uncertainty, log_capital FROM onsphere_assessments WHERE model = ? "
                "ORDER BY id DESC LIMIT 300",
                [name],
            )
            rejected = run(
                "SELECT id, at, request, rejected FROM onsphere_assessments WHERE model = ? AND rejected <> '[]' "
                "ORDER BY id DESC LIMIT 10",
                [name],
            )
            monitor = run(
                "SELECT n_seen, log_capital, alarmed_at, generation FROM onsphere_monitors WHERE model = ?", [name]
            )
        return {
            "minute": _minute(minute, now),
            "points": [
                {"id": number, "at": at, "uncertainty": uncertainty, "log_capital": log_capital}
                for number, at, uncertainty, log_capital in reversed(points)
            ],
            "rejected": [
                {"id": number, "at": at, "request": request, **row}
                for number, at, request, rows in rejected
                for row in json.loads(rows)
            ][:10],
            "drift": self._drift(facts, monitor),
        }

    def _drift(self, facts: Facts, monitor: list[Any]) -> dict[str, Any] | None:
        if facts.calibration is None:
            return None
        n_seen, log_capital, alarmed_at, n_resets = monitor[0] if monitor else (0, 0.0, None, 0)
        return {
            "alarm": alarmed_at is not None,
            "alarmed_at": alarmed_at,
            "rows_seen": n_seen,
            "log_capital": log_capital,
            "alarm_line": -math.log(self._alpha),
            "resets": n_resets,
        }

    def _name(self, facts: Facts) -> str:
        """Of the monitor: another model, or another alpha, is another game."""
        return f"{facts.sha256} {self._alpha:g}"


@dataclass(eq=False)
class _Watching:
    """A monitor, and how far it has read."""

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
        """Whether what is written is newer."""
        return generation != self.generation or position > self.position

    def capital_after(self, parts: list[Floats]) -> list[float]:
        """Let the monitor see scores; the logarithm of its capital after each part of them."""
        before, scores = self.monitor.log_capital, np.concatenate(parts)
        after = self.monitor.update(scores).log_capital if len(scores) else np.empty(0)
        self.n_since += len(scores)
        # A part without scores leaves the capital as it was.
        return np.append(before, after)[np.cumsum([len(part) for part in parts])].tolist()

    def write(self, run: Any, *, whole: bool) -> None:
        """What the page shows or, whole, all that others need to go on from here."""
        shown = [self.monitor.n_seen, self.monitor.log_capital, self.monitor.alarmed_at]
        if not whole:
            query = "UPDATE onsphere_monitors SET n_seen = ?, log_capital = ?, alarmed_at = ? WHERE model = ?"
            run(query, [*shown, self.name])
            return
        state = json.dumps(self.monitor.state(), allow_nan=False)
        run(
            "INSERT INTO onsphere_monitors (model, generation, position, state, n_seen, log_capital, alarmed_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (model) DO UPDATE SET generation = excluded.generation, "
            "position = excluded.position, state = excluded.state, n_seen = excluded.n_seen, "
            "log_capital = excluded.log_capital, alarmed_at = excluded.alarmed_at",
            [self.name, self.generation, self.position, state, *shown],
        )
        run(
            "UPDATE onsphere_assessments SET scores = NULL WHERE model = ? AND id <= ? AND scores IS NOT NULL",
            [self.name, self.position],
        )
        self.n_since = 0


def _minute(rows: list[Any], now: float) -> dict[str, Any]:
    """Requests, rows, share accepted and times of the last minute, or of as much of it as was counted."""
    at, n_rows, n_accepted, seconds = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    covered = now - at.min() if len(at) == _MOST_COUNTED else float(_BINS * _BIN_SECONDS)
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
