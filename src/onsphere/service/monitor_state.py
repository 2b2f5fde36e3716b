"""Keep one drift monitor for all workers.

The monitor depends only on the scores, in the order in which they were written. So a request only writes its scores;
a worker catches up with them every second and when the page asks, in slices, between which answers are written. From
time to time it writes the monitor, with the number of the last request that it has seen, for others to go on from. All
come to the same alarm at the same row.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import sqlalchemy as sql

from onsphere.calibration import Calibration
from onsphere.drift import DriftMonitor
from onsphere.export.deployed import Facts

_ROWS_BETWEEN = 5_000  # before the monitor is written again
_ROWS_OF_SLICE = 500  # for which answers wait to be written
_POINTS = 300  # requests of which the page draws the evidence

metadata = sql.MetaData()


def make_table(name: str, *keys: Any, **columns: Any) -> sql.Table:
    """Make a table of columns by their types, numbered unless it has a key of its own; no number is used again."""
    numbered = sql.Column("id", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True)
    parts = [sql.Column(column, kind) for column, kind in columns.items()]
    return sql.Table(name, metadata, *(keys or (numbered,)), *parts, sqlite_autoincrement=not keys)


assessments = make_table(  # one row per request
    "onsphere_assessments",
    at=sql.Double,
    request=sql.Text,
    model=sql.Text,
    n_rows=sql.Integer,
    n_accepted=sql.Integer,
    seconds=sql.Double,
    uncertainty=sql.Double,
    log_capital=sql.Double,
    scores=sql.LargeBinary,
    rejected=sql.Text,
    missed=sql.Double,
    idempotency=sql.Text,
    fingerprint=sql.Text,
)
sql.Index("ix_onsphere_assessments_at", assessments.c.at)
sql.Index("ix_onsphere_assessments_idempotency", assessments.c.idempotency)
_monitors = make_table(  # one row per model that was ever watched
    "onsphere_monitors",
    sql.Column("model", sql.Text, primary_key=True),
    generation=sql.BigInteger,
    position=sql.BigInteger,
    state=sql.Text,
    n_seen=sql.BigInteger,
    log_capital=sql.Double,
    alarm_time=sql.Double,
)
_is_own = assessments.c.model == sql.bindparam("own")
_newest = sql.select(sql.func.coalesce(sql.func.max(assessments.c.id), 0).label("last")).subquery()
_FIND = sql.select(_newest.c.last, _monitors.c.generation, _monitors.c.position).select_from(
    _newest.outerjoin(_monitors, _monitors.c.model == sql.bindparam("own"))
)
_SINCE = (
    sql.select(assessments.c.id, assessments.c.at, assessments.c.scores)
    .where(_is_own, assessments.c.id > sql.bindparam("after"))
    .order_by(assessments.c.id)
    .execution_options(yield_per=50)
)


def name_monitor(facts: Facts, alpha: float) -> str:
    """Name the monitor by alpha and the calibration scores, which are all that it knows of a model."""
    return f"{facts.calibration_hash} {alpha:g}"


class SharedMonitor:
    """The drift monitor of the model that answers, and how far it has read what any worker wrote."""

    _monitor: DriftMonitor
    _generation: int  # how often it was reset
    _position: int  # of the last request that it has seen
    _alarm_time: float | None
    _n_since: int  # rows since it was written
    _n_ahead: int  # rows that it has seen of the request after the position

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.forget()

    def forget(self) -> None:
        """Forget what was read; the next look reads it again."""
        self._name = ""

    def catch_up(self, connection: sql.Connection, facts: Facts) -> bool:
        """Read a slice of what was written, and return whether nothing is left.

        Without calibration scores to compare with, there is no monitor.
        """
        if facts.calibration is None:
            return True
        name = name_monitor(facts, self._alpha)
        last, generation, position = connection.execute(_FIND, {"own": name}).one()
        if generation is None:
            rows = Calibration(facts.calibration, np.zeros(len(facts.calibration)), missed=facts.missed)
            self._set(name, DriftMonitor(rows, alpha=self._alpha), 0, last)
            self._write(connection)
        elif name != self._name or generation != self._generation or position > self._position:
            columns = sql.select(_monitors.c.state, _monitors.c.alarm_time).where(_monitors.c.model == name)
            state, alarm_time = connection.execute(columns).one()
            self._set(name, DriftMonitor.from_state(json.loads(state)), generation, position, alarm_time)
        if last > self._position:
            self._read_slice(connection, last, 1 if facts.missed is None else 2)
            if self._n_since >= _ROWS_BETWEEN and not self._n_ahead:
                self._write(connection)
        return self._position >= last

    def _set(
        self, name: str, monitor: DriftMonitor, generation: int, position: int, alarm_time: float | None = None
    ) -> None:
        self._name, self._monitor, self._alarm_time = name, monitor, alarm_time
        self._generation, self._position, self._n_since, self._n_ahead = generation, position, 0, 0

    def _read_slice(self, connection: sql.Connection, last: int, n_scores: int) -> None:
        """Take the next rows of the requests until the last."""
        parts: list[Any] = []
        times: list[float] = []
        numbers: list[int] = []  # of the requests of which all rows were taken
        n_left = _ROWS_OF_SLICE
        with connection.execute(_SINCE, {"own": self._name, "after": self._position}) as unseen:
            for number, at, stored in unseen:
                scores = np.frombuffer(stored, dtype="<f8").reshape(n_scores, -1)
                parts.append(scores[:, self._n_ahead : self._n_ahead + n_left])
                times.append(at)
                n_left -= parts[-1].shape[1]
                self._n_ahead += parts[-1].shape[1]
                if self._n_ahead == scores.shape[1]:
                    numbers.append(number)
                    self._n_ahead = 0
                if not n_left:
                    last = max([self._position, *numbers])
                    break
        if parts:
            capital = zip(numbers, self._update(parts, times), strict=False)
            if shown := [{"number": number, "log_capital": value} for number, value in capital][-_POINTS:]:
                connection.execute(set_later("log_capital"), shown)
        self._position = last

    def _update(self, parts: list[Any], times: list[float]) -> list[float]:
        """Update the monitor with scores, (1, n) or (2, n), and return the logarithm of its capital after each part."""
        monitor, (uncertainty, *others) = self._monitor, np.concatenate(parts, axis=1)
        before, n_before, ends = monitor.log_capital, monitor.n_seen, np.cumsum([part.shape[1] for part in parts])
        missed = others[0] if others else None
        after = monitor.update(uncertainty, missed=missed).log_capital if len(uncertainty) else np.empty(0)
        if monitor.alarmed_at is not None and monitor.alarmed_at > n_before:
            self._alarm_time = times[int(np.searchsorted(ends, monitor.alarmed_at - n_before))]
        self._n_since += len(uncertainty)
        return np.append(before, after)[ends].tolist()  # a part without scores leaves the capital as it was

    def _write(self, connection: sql.Connection) -> None:
        """Write all that other workers need to go on from here."""
        connection.execute(sql.delete(_monitors).where(_monitors.c.model == self._name))
        current = sql.insert(_monitors).values(
            model=self._name,
            generation=self._generation,
            position=self._position,
            state=json.dumps(self._monitor.state(), allow_nan=False),
            n_seen=self._monitor.n_seen,
            log_capital=self._monitor.log_capital,
            alarm_time=self._alarm_time,
        )
        connection.execute(current)
        read = (_is_own, assessments.c.id <= self._position, assessments.c.scores.is_not(None))
        connection.execute(sql.update(assessments).where(*read).values(scores=None), {"own": self._name})
        self._n_since = 0

    def watch(self, connection: sql.Connection, facts: Facts) -> None:
        """Make sure that a model has a monitor before its first record is written."""
        if self._name != name_monitor(facts, self._alpha):
            self.catch_up(connection, facts)

    def reset(self, connection: sql.Connection, facts: Facts) -> None:
        """Start the monitor of a model again."""
        self.catch_up(connection, facts)
        if facts.calibration is not None:
            self._monitor.reset()
            last: int = connection.execute(sql.select(_newest.c.last)).scalar_one()
            self._set(self._name, self._monitor, self._generation + 1, last)
            self._write(connection)
            # The page must not draw evidence from before the reset as if it came after.
            connection.execute(sql.update(assessments).where(_is_own).values(log_capital=None), {"own": self._name})

    def describe(self, facts: Facts) -> dict[str, Any] | None:
        """Return what the page shows of a model, after a look."""
        if facts.calibration is None:
            return None
        return {
            **{name: getattr(self._monitor, name) for name in ("alarm", "alarmed_at", "alarmed_by", "log_capital")},
            "alarm_time": self._alarm_time,
            "watched": ["uncertainty"] if facts.missed is None else ["uncertainty", "novelty"],
            "rows_seen": self._monitor.n_seen,
            "alarm_line": -math.log(self._alpha),
            "resets": self._generation,
        }


def set_later(name: str) -> sql.Update:
    """Return a statement that sets a column of assessments by their number."""
    number = assessments.c.id == sql.bindparam("number")
    return sql.update(assessments).where(number).values({name: sql.bindparam(name)})
