"""The last rows of a stream, put aside cheaply, and which of their columns are not like the reference."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from onsphere.drift.column_changes import Window

__all__ = ["RecentRows"]


class RecentRows:
    """The last rows of a stream, column by column; none if there is no reference to compare them with.

    `add` is called for every request of a service, so it only puts rows aside; `compare` does the costly work.

    Parameters
    ----------
    reference : dict or None
        What `make_reference` returned for ordinary rows.
    size : int, default 200
        How many rows are compared; as many arrays are kept as are needed for them.

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere.drift.reference import make_reference
    >>> ordinary = np.random.default_rng(0).normal(size=(300, 2))
    >>> recent = RecentRows(make_reference(ordinary))
    >>> recent.add({"0": ordinary[:100, 0], "1": ordinary[:100, 1] + 30.0})
    >>> moved, outside = recent.compare()
    >>> moved[0].split(":")[0], outside
    ('1', ['1'])
    """

    def __init__(self, reference: dict[str, Any] | None, *, size: int = 200) -> None:
        self._reference, self._size = reference, size
        self._parts: deque[tuple[int, dict[str, Any]]] = deque()
        self._n_rows = 0

    def __len__(self) -> int:
        return self._n_rows

    def add(self, columns: dict[str, Any]) -> None:
        """Put the values of the next rows aside, by column."""
        n_rows = len(next(iter(columns.values())))
        if self._reference is not None:
            self._parts.append((n_rows, columns))
            self._n_rows += n_rows
            while self._n_rows - self._parts[0][0] >= self._size:
                self._n_rows -= self._parts.popleft()[0]

    def clear(self) -> None:
        """Forget the rows."""
        self._parts.clear()
        self._n_rows = 0

    def compare(self, *, n_most: int = 3) -> tuple[list[str], list[str]] | tuple[None, None]:
        """Return the columns that moved most, with how they did, and those with values far beyond the reference.

        Nothing is returned of rows and a reference that do not fit each other, and None without a reference.
        """
        if self._reference is None:
            return None, None
        parts = [columns for _, columns in list(self._parts)]
        if not parts:
            return [], []
        try:
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            window = Window(self._size, self._reference)
            window.add(_build_frame(columns))
            moved = [str(change) for change in window.compare() if change.moved][:n_most]
            return moved, [name for name, values in columns.items() if _is_outside(self._reference[name], values)]
        except Exception:  # whatever a file says about its columns, the alarm is more important
            return [], []


def _build_frame(columns: dict[str, Any]) -> Any:
    import pandas

    return pandas.DataFrame({name: pandas.Series(values, dtype=values.dtype) for name, values in columns.items()})


def _is_outside(summary: dict[str, Any], values: Any) -> bool:
    """Return whether a number lies beyond those of the reference by more than half of their range."""
    known = [number for number in summary.get("sample", ()) if number is not None]
    if not known:
        return False
    low, high = min(known), max(known)
    margin = (high - low) / 2
    return bool(np.any((values < low - margin) | (values > high + margin)))
