"""Keep one drift monitor for all workers.

The monitor depends only on the scores, in the order in which they were written. So it is not written with every
request, but from time to time, with the number of the last request that it has seen; a worker that is behind, or
starts, reads it and catches up with the scores since. All workers come to the same alarm at the same row.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sql

from onsphere.calibration import Calibration
from onsphere.drift import DriftMonitor
from onsphere.service.engine import Facts

__all__ = ["MonitorShelf", "SharedMonitor", "assessments", "make_serial", "metadata", "monitors", "name_monitor"]

_ROWS_BETWEEN = 5_000  # scores to catch up with at most, before the monitor is written again

metadata = sql.MetaData()


def make_serial() -> sql.Column[int]:
    """Return a column that numbers the rows of a table; a number is never used again."""
    return sql.Column("id", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True)


# One row per request, and one per model that was ever watched.
assessments = sql.Table(
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
monitors = sql.Table(
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

    def is_behind(self, found: Any) -> bool:
        """Return whether the database has a newer one."""
        return found.generation != self.generation or found.position > self.position

    def update(self, parts: list[Any], *, at: float) -> list[float]:
        """Update the monitor with scores, (1, n) or (2, n), and return the logarithm of its capital after each part."""
        before, (uncertainty, *others) = self.monitor.log_capital, np.concatenate(parts, axis=1)
        missed, was_alarmed = others[0] if others else None, self.monitor.alarm
        after = self.monitor.update(uncertainty, missed=missed).log_capital if len(uncertainty) else np.empty(0)
        if self.monitor.alarm and not was_alarmed:
            self.alarm_time = at
        self.n_since += len(uncertainty)
        # A part without scores leaves the capital as it was.
        return np.append(before, after)[np.cumsum([part.shape[1] for part in parts])].tolist()

    def write(self, connection: sql.Connection, *, whole: bool = False) -> None:
        """Write what the page shows and, if whole or long ago, all that other workers need to go on from here."""
        monitor = self.monitor
        current: dict[str, Any] = {
            "n_seen": monitor.n_seen,
            "log_capital": monitor.log_capital,
            "alarmed_at": monitor.alarmed_at,
            "alarmed_by": monitor.alarmed_by,
            "alarm_time": self.alarm_time,
        }
        whole = whole or self.n_since >= _ROWS_BETWEEN
        if whole:
            state = json.dumps(monitor.state(), allow_nan=False)
            current |= {"generation": self.generation, "position": self.position, "state": state}
        own = monitors.c.model == self.name
        changed = connection.execute(sql.update(monitors).where(own).values(**current))
        if not changed.rowcount:
            connection.execute(sql.insert(monitors).values(model=self.name, **current))
        if whole:
            read = (assessments.c.id <= self.position, assessments.c.scores.is_not(None))
            freed = sql.update(assessments).where(assessments.c.model == self.name, *read)
            connection.execute(freed.values(scores=None))
            self.n_since = 0


class MonitorShelf:
    """The monitor of the model that answers, updated with what other workers have written since."""

    def __init__(self, alpha: float) -> None:
        self._alpha, self._current = alpha, None

    def forget(self) -> None:
        """Forget what was read; the next look reads it again."""
        self._current: SharedMonitor | None = None

    def catch_up(self, connection: sql.Connection, facts: Facts) -> SharedMonitor | None:
        """Return the monitor of a model; None if there are no calibration scores to compare with."""
        if facts.calibration is None:
            return None
        name, shared = name_monitor(facts, self._alpha), self._current
        if shared is not None and shared.name != name:
            self._leave(connection, shared)
        found = self._find(connection, name) or self._adopt(connection, facts, name)
        if found is None:
            rows = Calibration(facts.calibration, np.zeros(len(facts.calibration)), missed=facts.missed)
            last = connection.execute(sql.select(sql.func.max(assessments.c.id))).scalar() or 0
            shared = SharedMonitor(name, DriftMonitor(rows, alpha=self._alpha), generation=0, position=last)
            shared.write(connection, whole=True)
        elif shared is None or shared.name != name or shared.is_behind(found):
            state = connection.execute(sql.select(monitors.c.state).where(monitors.c.model == name)).scalar_one()
            monitor = DriftMonitor.from_state(json.loads(state))
            shared = SharedMonitor(name, monitor, found.generation, found.position, found.alarm_time)
        since = (assessments.c.model == name, assessments.c.id > shared.position)
        chosen = sql.select(assessments.c.id, assessments.c.at, assessments.c.scores).where(*since)
        for number, at, scores in connection.execute(chosen.order_by(assessments.c.id)):
            n_scores = 1 if facts.missed is None else 2
            shared.update([np.frombuffer(scores, dtype="<f8").reshape(n_scores, -1)], at=at)
            shared.position = number
        self._current = shared
        return shared

    def _find(self, connection: sql.Connection, name: str) -> Any:
        columns = (monitors.c.generation, monitors.c.position, monitors.c.alarm_time)
        return connection.execute(sql.select(*columns).where(monitors.c.model == name)).first()

    def _adopt(self, connection: sql.Connection, facts: Facts, name: str) -> Any:
        """Take over what an older version kept under the hash of the file."""
        former = f"{facts.sha256} {self._alpha:g}"
        for table in (monitors, assessments):
            connection.execute(sql.update(table).where(table.c.model == former).values(model=name))
        return self._find(connection, name)

    def _leave(self, connection: sql.Connection, shared: SharedMonitor) -> None:
        """Write the monitor of a model that no longer answers, so that its scores need not be kept."""
        found = self._find(connection, shared.name)
        if found is not None and not shared.is_behind(found):
            shared.write(connection, whole=True)

    def reset(self, connection: sql.Connection, facts: Facts) -> None:
        """Start the monitor of a model again."""
        shared = self.catch_up(connection, facts)
        if shared is not None:
            shared.monitor.reset()
            shared.generation += 1
            shared.alarm_time = None
            shared.write(connection, whole=True)
            # The page must not draw evidence from before the reset as if it came after.
            connection.execute(
                sql.update(assessments).where(assessments.c.model == shared.name).values(log_capital=None)
            )

    def describe(self, facts: Facts, found: Any) -> dict[str, Any] | None:
        """Return what the page shows of a monitor."""
        if facts.calibration is None:
            return None
        return {
            "alarm": found is not None and found.alarmed_at is not None,
            "alarmed_at": found and found.alarmed_at,
            "alarmed_by": found and found.alarmed_by,
            "alarm_time": found and found.alarm_time,
            "watched": ["uncertainty", *([] if facts.missed is None else ["novelty"])],
            "rows_seen": found.n_seen if found else 0,
            "log_capital": found.log_capital if found else 0.0,
            "alarm_line": -math.log(self._alpha),
            "resets": found.generation if found else 0,
        }
