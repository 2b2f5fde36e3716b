"""Calibration rows of any number in little memory: a sketch that can be merged, with a bound on its error."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Self

import numpy as np

from onsphere._internal.validation import Floats, missing_extra_error
from onsphere.calibration import Calibration

__all__ = ["CalibrationSketch"]

_SIZE = 4096  # k of the sketch, which then keeps some ten thousand rows
_N_ROWS = 10_000  # of the calibration that is made from it
# Times the error of a rank that a sketch exceeds in one of 100 cases. Errors are sums of many small ones in either
# direction, so that twice as large ones have a probability of about 2 · .005⁴ = 10⁻⁹.
_SAFETY = 2.0


class CalibrationSketch:
    """The calibration rows of a part of the data, as many as it may have, in the order of their scores.

    It is a KLL sketch (Karnin, Lang and Liberty, 2016; Apache DataSketches): a sample of the rows that is spread evenly
    over the ranks of their scores. What a coverage promises is kept: ranks are raised by the error that the sketch may
    make, so a limit at 90 % is that of all rows at 90 % to 90.3 %.
    """

    def __init__(self, calibration: Calibration) -> None:
        self._sketch: Any = _import_datasketches().kll_items_sketch(_SIZE)
        self._like = calibration.take(slice(0, 0))
        self.add(calibration)

    def __len__(self) -> int:
        return self._sketch.n

    def add(self, calibration: Calibration) -> Self:
        """Add more rows of the same model."""
        table = np.column_stack([calibration.scores, *_list_columns(calibration).values()])
        for row in map(tuple, table.tolist()):
            self._sketch.update(row)
        return self

    def merge(self, other: CalibrationSketch) -> Self:
        """Add all rows of another sketch."""
        self._sketch.merge(other._sketch)
        return self

    @property
    def rank_error(self) -> float:
        """The most by which the rank of a score is wrong, as a share of the rows; 0 while all rows are kept."""
        return _SAFETY * self._sketch.normalized_rank_error(False) if self._sketch.is_estimation_mode() else 0.0

    def make_calibration(self) -> Calibration:
        """Return all rows or, of many, some that stand for them and cover at least as often."""
        items = sorted(self._sketch, key=lambda item: item[0])
        rows, weights = np.array([row for row, _ in items]), np.array([weight for _, weight in items])
        if self.rank_error:
            largest = np.array([self._sketch.get_max_value()])
            ranks = np.arange(1, _N_ROWS + 1) / (_N_ROWS + 1) * (len(self) + 1) + self.rank_error * len(self)
            # Behind all others, the largest score of all: it is known exactly.
            rows = np.concatenate([rows, largest])[np.searchsorted(np.cumsum(weights), ranks)]
        columns, start = dict[str, Floats](), 1
        for name, column in _list_columns(self._like).items():
            width = 1 if column.ndim == 1 else column.shape[1]
            part = rows[:, start : start + width]
            columns[name], start = (part[:, 0] if column.ndim == 1 else part), start + width
        return replace(self._like, **columns)

    def __getstate__(self) -> dict[str, Any]:
        return {"sketch": self._sketch.serialize(_make_pickler()), "like": self._like}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._sketch = _import_datasketches().kll_items_sketch.deserialize(state["sketch"], _make_pickler())
        self._like = state["like"]


def _import_datasketches() -> Any:
    try:
        import datasketches
    except ImportError:
        raise missing_extra_error("CalibrationSketch", "datasketches", "scale") from None
    return datasketches


def _list_columns(calibration: Calibration) -> dict[str, Any]:
    found = {column.name: getattr(calibration, column.name) for column in fields(calibration)}
    return {name: each for name, each in found.items() if isinstance(each, np.ndarray)}


def _make_pickler() -> Any:
    """Return what turns a row of numbers into bytes and back, as Apache DataSketches asks for it."""

    class Rows(_import_datasketches().PyObjectSerDe):  # type: ignore[reportUntypedBaseClass]
        def get_size(self, item: tuple[float, ...]) -> int:
            return len(self.to_bytes(item))

        def to_bytes(self, item: tuple[float, ...]) -> bytes:
            return len(item).to_bytes(4, "little") + np.array(item).tobytes()

        def from_bytes(self, data: bytes, offset: int) -> tuple[tuple[float, ...], int]:
            n_cells = int.from_bytes(data[offset : offset + 4], "little")
            row = np.frombuffer(data, np.float64, n_cells, offset + 4)
            return tuple(row.tolist()), 4 + 8 * n_cells

    return Rows()
