"""The last rows of a worker, in memory only: what says which columns moved when the alarm is raised."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from onsphere.monitor.hints import Window
from onsphere.service.engine import Facts
from onsphere.service.rows import Batch, joined_rows

__all__ = ["Recent", "hints_of"]

_SIZE = 200  # rows
_SHOWN = 3
_MOVED = 1.36  # the strength of a hint that a column which did not move passes once in twenty


class Recent:
    """The last rows that were assessed by one model; none where there is nothing to compare them with.

    They are only put aside here, because every request passes by; `hints_of` them costs more.

    Parameters
    ----------
    facts : Facts
        Of the model.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._batches: deque[Batch] = deque()
        self._n_rows = 0

    def add(self, facts: Facts, batch: Batch) -> None:
        """Put rows aside, unless another model assessed them."""
        if facts is not self.facts or facts.reference is None:
            return
        self._batches.append(batch.last(_SIZE))
        self._n_rows += len(self._batches[-1])
        while self._n_rows - len(self._batches[0]) >= _SIZE:
            self._n_rows -= len(self._batches.popleft())

    def batches(self) -> list[Batch]:
        """Those that hold the last rows."""
        return list(self._batches)


def hints_of(facts: Facts, batches: list[Batch]) -> list[str]:
    """What moved most, in words; nothing where the rows and the reference do not fit each other."""
    if not batches:
        return []
    try:
        window = Window(_SIZE, facts.reference or {})
        window.add(window.checked(_plain(facts, joined_rows(facts, batches))))
        return [str(hint) for hint in window.hints() if hint.strength > _MOVED][:_SHOWN]
    except Exception:  # whatever a file says of its columns, the alarm is shown
        return []


def _plain(facts: Facts, rows: Any) -> Any:
    """Dates in seconds since 1970, as the reference has them."""
    for column in facts.features:
        if column.kind == "date":
            moments = rows[column.name].dt.tz_convert(None).to_numpy("datetime64[us]")
            rows[column.name] = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 1e6)
    return rows
