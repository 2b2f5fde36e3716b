"""Keep one drift monitor for all workers.

The monitor depends only on the scores, in the order in which they were written. So a request only writes its scores;
a worker catches up with them every second and when the page asks, in slices, between which answers are written. From
time to time it writes the monitor, with the number of the last request that it has seen, for others to go on from. All
come to the same alarm at the same row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
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


def make_serial() -> sql.Column[int]:
    """Return a column that numbers the rows of a table; a number is never used again."""
    return sql.Column("id", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True)


assessments = sql.Table(  # one row per request
    "onsphere_assessments",
    metadata,
    make_serial(),
    sql.Column("at", sql.Double, nullable=False, index=True),
    sql.Column("request", sql.Text, nullable=False),
    sql.Column("model", sql.Text, nullable=False),
    sql.Column("n_rows", sql.Integer, nullable=False),
    sql.Column("n_accepted", sql.Integer, nullable=False),
    sql.Column("seconds", sql.Double, nullable=False),
    sql.Column("uncertainty", sql.Double),
    sql.Column("log_capital", sql.Double),
    sql.Column("scores", sql.LargeBinary),
    sql.Column("rejected", sql.Text, nullable=False),
    sql.Column("missed", sql.Double),
    sql.Column("idempotency", sql.Text, index=True),
    sql.Column("fingerprint", sql.Text),
    sqlite_autoincrement=True,
)
_monitors = sql.Table(  # one row per model that was ever watched
    "onsphere_monitors",
    metadata,
    sql.Column("model", sql.Text, primary_key=True),
    sql.Column("generation", sql.BigInteger, nullable=False),
    sql.Column("position", sql.BigInteger, nullable=False),
    sql.Column("state", sql.Text, nullable=False),
    sql.Column("n_seen", sql.BigInteger, nullable=False),
    sql.Column("log_capital", sql.Double, nullable=False),
    sql.Column("alarmed_at", sql.BigInteger),
    sql.Column("alarmed_by", sql.Text),
    sql.Column("alarm_time", sql.Double),
)
# Statements that run with every request are made once.
_own, _is_own = sql.bindparam("own"), assessments.c.model == sql.bindparam("own")
_last = sql.select(sql.func.max(assessments.c.id))
_FIND = sql.select(_monitors.c.generation, _monitors.c.position, _last.scalar_subquery()).where(
    _monitors.c.model == _own
)
_SINCE = (
    sql.select(assessments.c.id, assessments.c.at, assessments.c.scores)
    .where(_is_own, assessments.c.id > sql.bindparam("after"))
    .order_by(assessments.c.id)
    .execution_options(yield_per=50)
)
_SET_CAPITAL = sql.update(assessments).where(assessments.c.id == sql.bindparam("number"))


def name_monitor(facts: Facts, alpha: float) -> str:
    """Name the monitor by alpha and the calibration scores, which are all that it knows of a model."""
    return f"{facts.calibration_hash} {alpha:g}"


@dataclass(eq=False)
class SharedMonitor:
    """A drift monitor, and how far it has read."""

    name: str
    monitor: DriftMonitor
    generation: int  # how often it was reset
    position: int  # of the last request that it has seen
    alarm_time: float | None = None
    n_since: int = 0  # rows since it was written
    n_ahead: int = 0  # rows that it has seen of the request after `position`

    def read_slice(self, connection: sql.Connection, last: int, n_scores: int) -> None:
        """Take the next rows of the requests until the last."""
        parts: list[Any] = []
        times: list[float] = []
        numbers: list[int] = []
        n_left, position = _ROWS_OF_SLICE, last
        with connection.execute(_SINCE, {"own": self.name, "after": self.position}) as unseen:
            for number, at, stored in unseen:
                scores = np.frombuffer(stored, dtype="<f8").reshape(n_scores, -1)
                part = scores[:, self.n_ahead : self.n_ahead + n_left]
                parts.append(part)
                times.append(at)
                n_left -= part.shape[1]
                self.n_ahead += part.shape[1]
                if self.n_ahead == scores.shape[1]:
                    numbers.append(number)
                    self.n_ahead = 0
                if not n_left:
                    position = max([self.position, *numbers])
                    break
        if parts:
            capital = zip(numbers, self.update(parts, times), strict=False)
            shown = [{"number": number, "log_capital": value} for number, value in capital][-_POINTS:]
            if shown:
                connection.execute(_SET_CAPITAL.values(log_capital=sql.bindparam("log_capital")), shown)
        self.position = position

    def update(self, parts: list[Any], times: list[float]) -> list[float]:
        """Update the monitor with scores, (1, n) or (2, n), and return the logarithm of its capital after each part."""
        before, (uncertainty, *others) = self.monitor.log_capital, np.concatenate(parts, axis=1)
        ends, n_before = np.cumsum([part.shape[1] for part in parts]), self.monitor.n_seen
        missed = others[0] if others else None
        after = self.monitor.update(uncertainty, missed=missed).log_capital if len(uncertainty) else np.empty(0)
        if self.monitor.alarmed_at is not None and self.monitor.alarmed_at > n_before:
            self.alarm_time = times[int(np.searchsorted(ends, self.monitor.alarmed_at - n_before))]
        self.n_since += len(uncertainty)
        return np.append(before, after)[ends].tolist()  # a part without scores leaves the capital as it was

    def write(self, connection: sql.Connection, *, is_due: bool = False) -> None:
        """Write all that other workers need to go on from here, if it is due or was written long ago."""
        if self.n_ahead or (not is_due and self.n_since < _ROWS_BETWEEN):
            return
        monitor = self.monitor
        current: dict[str, Any] = {
            **{name: getattr(monitor, name) for name in ("n_seen", "log_capital", "alarmed_at", "alarmed_by")},
            **{name: getattr(self, name) for name in ("generation", "position", "alarm_time")},
            "state": json.dumps(monitor.state(), allow_nan=False),
        }
        changed = connection.execute(sql.update(_monitors).where(_monitors.c.model == self.name).values(**current))
        if not changed.rowcount:
            connection.execute(sql.insert(_monitors).values(model=self.name, **current))
        read = (_is_own, assessments.c.id <= self.position, assessments.c.scores.is_not(None))
        connection.execute(sql.update(assessments).where(*read).values(scores=None), {"own": self.name})
        self.n_since = 0

    def describe(self, alpha: float, *, has_missed: bool) -> dict[str, Any]:
        """Return what the page shows."""
        return {
            "alarm": self.monitor.alarm,
            **{name: getattr(self.monitor, name) for name in ("alarmed_at", "alarmed_by", "log_capital")},
            "alarm_time": self.alarm_time,
            "watched": ["uncertainty", "novelty"][: 1 + has_missed],
            "rows_seen": self.monitor.n_seen,
            "alarm_line": -math.log(alpha),
            "resets": self.generation,
        }


class MonitorShelf:
    """The monitor of the model that answers, updated with what other workers have written since."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.forget()

    def forget(self) -> None:
        """Forget what was read; the next look reads it again."""
        self._current: SharedMonitor | None = None

    def catch_up(self, connection: sql.Connection, facts: Facts) -> tuple[SharedMonitor | None, bool]:
        """Read a slice, and return the monitor of a model and whether it has read all.

        Without calibration scores to compare with, there is no monitor.
        """
        if facts.calibration is None:
            return None, True
        name, shared = name_monitor(facts, self._alpha), self._current
        found = connection.execute(_FIND, {"own": name}).first()
        generation, position, newest = found or (0, 0, connection.execute(_last).scalar())
        last: int = newest or 0
        if found is None:
            rows = Calibration(facts.calibration, np.zeros(len(facts.calibration)), missed=facts.missed)
            shared = SharedMonitor(name, DriftMonitor(rows, alpha=self._alpha), generation, last)
            shared.write(connection, is_due=True)
        elif shared is None or shared.name != name or generation != shared.generation or position > shared.position:
            columns = sql.select(_monitors.c.state, _monitors.c.alarm_time).where(_monitors.c.model == name)
            state, alarm_time = connection.execute(columns).one()
            shared = SharedMonitor(name, DriftMonitor.from_state(json.loads(state)), generation, position, alarm_time)
        if last > shared.position:
            shared.read_slice(connection, last, 1 if facts.missed is None else 2)
            shared.write(connection)
        self._current = shared
        return shared, shared.position >= last

    def prepare(self, connection: sql.Connection, records: Sequence[Any]) -> None:
        """Make sure that the models of records have a monitor before these are written."""
        for facts in {id(record.facts): record.facts for record in records}.values():
            if self._current is None or self._current.name != name_monitor(facts, self._alpha):
                self.catch_up(connection, facts)

    def reset(self, connection: sql.Connection, facts: Facts) -> None:
        """Start the monitor of a model again."""
        shared, _ = self.catch_up(connection, facts)
        if shared is not None:
            shared.monitor.reset()
            shared.generation, shared.alarm_time, shared.n_ahead = shared.generation + 1, None, 0
            shared.position = connection.execute(_last).scalar() or 0
            shared.write(connection, is_due=True)
            # The page must not draw evidence from before the reset as if it came after.
            connection.execute(sql.update(assessments).where(_is_own).values(log_capital=None), {"own": shared.name})
