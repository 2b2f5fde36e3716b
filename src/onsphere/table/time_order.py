"""Rows in the order of time: find their times, and split them at a moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from onsphere.errors import InvalidInputError
from onsphere.table.cells import import_pandas, raise_problems, read_cells, spell_dates
from onsphere.table.columns import Column, describe_column, force_kind

__all__ = ["RowSplit", "find_clock", "note_order", "read_time"]


class RowSplit:
    """Splits rows at random or, where they have a time, at a moment."""

    def __init__(self, moments: Any, classes: bool, random_state: int) -> None:
        self._moments = moments
        self._classes = classes
        self._random_state = random_state

    def find_last_time(self, X: Any) -> float | None:
        """Return the time of the latest of these rows; None without a time."""
        return None if self._moments is None else float(self._moments.loc[X.index].max())

    def sort(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows in the order of time; without a time as they are."""
        if self._moments is None:
            return X, y
        order = np.argsort(self._moments.loc[X.index], kind="stable")
        return X.iloc[order], y[order]

    def take_last(self, X: Any, y: Any, share: float) -> Any:
        """Return the earlier rows and the latest ones of this share, of X and of y; without a time, drawn ones."""
        if self._moments is None:
            stratify = y if self._classes else None
            return train_test_split(X, y, test_size=share, random_state=self._random_state, stratify=stratify)
        rows, target = self.sort(X, y)
        n_kept = len(target) - math.ceil(share * len(target))
        return rows.iloc[:n_kept], rows.iloc[n_kept:], target[:n_kept], target[n_kept:]


def find_clock(frame: Any, time: str, asked: str | None = None) -> Column:
    """Return the column that orders the rows, as numbers or dates, or as the kind that a user says it has."""
    found = describe_column(time, frame[time]) if asked is None else force_kind(time, frame[time], asked)
    if found.kind == "key" and frame[time].dtype.kind in "iuf":
        found = Column(time, "number")
    if found.kind not in ("number", "date"):
        raise InvalidInputError(
            f"Expected a time of numbers or dates. Got {time}, taken as {found.kind}{found.explain()}. Choose another "
            "column."
        )
    return found


def read_time(clock: Column, frame: Any, *, source: str | None = None) -> Any:
    """Return the time of each row of a table as floats, indexed like it; a missing one is an error."""
    cells = read_cells(clock, spell_dates(frame[[clock.name]], [clock])[clock.name])
    raise_problems(cells.problems, index=frame.index, source=source)
    moments = import_pandas().Series(cells.values, index=frame.index)
    if moments.isna().any():
        raise InvalidInputError(
            f"Expected a time in every row. Got none in {int(moments.isna().sum())} of them, in the column "
            f"{clock.name}; the first is row {moments.index[moments.isna()][0]}. Fill them in, or drop the rows."
        )
    return moments


def note_order(X: Any, columns: Sequence[Column]) -> list[str]:
    """Return a note if the rows are in the order of a date: later ones may be unlike those they are measured on."""
    for column in columns:
        if column.kind == "date":
            steps = np.diff(np.asarray(X[column.name], dtype=np.float64))
            if len(steps) and (bool((steps >= 0).all()) or bool((steps <= 0).all())):
                return [
                    f"the rows are in the order of {column.name}, and are split at random; if the model is to predict "
                    f"later ones, say that {column.name} is the time, and it is measured on the latest rows"
                ]
    return []
