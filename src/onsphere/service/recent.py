"""The last rows of a worker, in memory only: what says which columns moved."""

from __future__ import annotations

from collections import deque

from onsphere.drift.column_changes import Window
from onsphere.service.engine import Facts
from onsphere.service.rows import Batch, joined_rows
from onsphere.table.encoder import plain_features

__all__ = ["Recent", "hints_of"]

_SIZE = 200  # rows
_SHOWN = 3


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
        self._resets: int | None = None

    def follow(self, resets: int) -> None:
        """Forget all rows where the monitor was reset since the last look, by whichever worker."""
        if self._resets not in (None, resets):
            self._batches.clear()
            self._n_rows = 0
        self._resets = resets

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
        window, rows = Window(_SIZE, facts.reference or {}), joined_rows(facts, batches)
        window.add(rows if facts.as_array else plain_features(rows, facts.features))
        return [str(hint) for hint in window.compare() if hint.moved][:_SHOWN]
    except Exception:  # whatever a file says of its columns, the alarm is shown
        return []
