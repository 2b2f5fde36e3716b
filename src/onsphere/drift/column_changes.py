"""The columns of the last rows of a stream compared with a reference, one by one, for numbers and for text."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from onsphere.drift.reference import OTHER, choose_ranks, is_reference, make_reference, mean_and_deviation, read_rows
from onsphere.errors import InvalidInputError

__all__ = ["ColumnChange", "Window"]

_MOVED = 2.5  # a strength; by the Kolmogorov–Smirnov distribution, 2·exp(−2·2.5²) is 7 in a million


@dataclass(frozen=True)
class ColumnChange:
    """The change of one column.

    Attributes
    ----------
    column : str
        Its name, or its number as text.
    distance : float in [0, 1]
        The largest difference of two shares: for numbers, of the rows at or below some value (the Kolmogorov–Smirnov
        distance; a missing number counts as larger than all others), and for text, of the rows in some category.
    strength : float
        The distance, standardised for the numbers of rows: times √(n·m/(n + m)). If the column did not move, it is
        above 1.36 about once in twenty.
    shift : float or None
        For numbers: the change of the mean, in standard deviations of the reference.
    spread : float or None
        For numbers: the standard deviation, as a multiple of that of the reference.
    category : str or None
        For text: the category whose share changed most; "(other)" stands for all rare and new ones.
    """

    column: str
    distance: float
    strength: float
    shift: float | None = None
    spread: float | None = None
    category: str | None = None

    @property
    def moved(self) -> bool:
        """Whether the change is more than chance: a column that did not move looks so once in 100,000 looks."""
        return self.strength > _MOVED

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain values."""
        return asdict(self) | {"moved": self.moved}

    def __str__(self) -> str:
        if self.category is not None:
            return f"{self.column}: share of {self.category!r} changed by {self.distance:.0%}"
        if self.shift is None:
            return f"{self.column}: share of missing numbers changed by {self.distance:.0%}"
        return (
            f"{self.column}: mean {self.shift:+.2f} standard deviations, spread ×{self.spread:.2f}, "
            f"at least {self.distance:.0%} of the rows moved"
        )


class Window:
    """The last rows of a stream, and the reference to compare them with.

    Parameters
    ----------
    size : int
        How many rows.
    reference : array or DataFrame of shape (m, p), or dict
        Ordinary rows, or what `make_reference` returned for them.
    """

    def __init__(self, size: int, reference: Any) -> None:
        self.size = size
        self.reference: dict[str, Any] = reference if isinstance(reference, dict) else make_reference(reference)
        if not is_reference(self.reference):
            raise InvalidInputError(
                "Expected a reference in the form that make_reference returns: for each column n_rows, with sample, "
                "mean and deviation for numbers, or shares for text. Got something else. Pass rows instead, or fit the "
                "model again."
            )
        self.reset()

    def reset(self) -> None:
        """Forget the stream."""
        self.rows: dict[str, list[Any]] = {name: [] for name in self.reference}
        self.alarm_rows: dict[str, list[Any]] | None = None

    def add(self, X: Any) -> None:
        """Check rows against the reference, keep them, and drop the oldest."""
        new = read_rows(X, self.reference, len(X) if self._is_filling else self.size)
        if self.alarm_rows is not None and self._is_filling:
            self.alarm_rows = {name: (old + new[name])[: self.size] for name, old in self.alarm_rows.items()}
        self.rows = {name: (old + new[name])[-self.size :] for name, old in self.rows.items()}

    @property
    def _is_filling(self) -> bool:
        return self.alarm_rows is not None and len(next(iter(self.alarm_rows.values()))) < self.size

    def keep_from(self, before: dict[str, list[Any]], X: Any, n_back: int) -> None:
        """Keep the rows since the change: the last ones before X, counted back from its first row, and X itself.

        Parameters
        ----------
        before : dict
            The rows that were kept before X.
        X : the rows in which the alarm was raised
        n_back : int
            How many rows before X the change began; negative within X.
        """
        new = read_rows(X, self.reference, len(X))
        self.alarm_rows = {
            name: ((old[-n_back:] if n_back > 0 else []) + new[name][max(-n_back, 0) :])[: self.size]
            for name, old in before.items()
        }

    def compare(self) -> list[ColumnChange]:
        """Return the change of each column, the largest first: of the rows since the alarm began, or of the last."""
        rows = self.rows if self.alarm_rows is None else self.alarm_rows
        if not any(rows.values()):
            raise InvalidInputError(
                "compare_columns needs rows of the stream. Got none yet. Call observe(X, assessment) first."
            )
        changes = [_compare_column(name, summary, rows[name]) for name, summary in self.reference.items()]
        return sorted(changes, key=lambda change: (-change.distance, -abs(change.shift or 0.0), change.column))

    def state(self) -> dict[str, Any]:
        """Return plain numbers, texts and lists."""
        return {"size": self.size, "reference": self.reference, "rows": self.rows, "alarm_rows": self.alarm_rows}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Continue from what `state` returned."""
        window = cls(int(state["size"]), dict(state["reference"]))
        window.rows = {name: list(state["rows"][name]) for name in window.reference}
        kept = state.get("alarm_rows")  # which older states do not have
        window.alarm_rows = None if kept is None else {name: list(kept[name]) for name in window.reference}
        return window


def _compare_column(name: str, summary: dict[str, Any], rows: list[Any]) -> ColumnChange:
    scale = math.sqrt(summary["n_rows"] * len(rows) / (summary["n_rows"] + len(rows)))
    if "shares" in summary:
        category, distance = _text_distance(summary["shares"], rows)
        return ColumnChange(name, distance, scale * distance, category=category)
    distance = _number_distance(summary, rows)
    known = np.array([number for number in rows if number is not None])
    if summary["mean"] is None or len(known) == 0:
        return ColumnChange(name, distance, scale * distance)
    mean, deviation = mean_and_deviation(known)
    unit: float = summary["deviation"]
    shift, spread = _ratio(mean - summary["mean"], unit), 1.0 if deviation == unit else _ratio(deviation, unit)
    return ColumnChange(name, distance, scale * distance, shift=shift, spread=spread)


def _ratio(change: float, unit: float) -> float:
    """Divide by a unit that may be zero; 0/0 is 0."""
    if unit == 0:
        return math.copysign(math.inf, change) if change else 0.0
    return change / unit


def _number_distance(summary: dict[str, Any], rows: list[float | None]) -> float:
    """Return the smallest distance that the kept numbers of the reference allow; it is exact if all were kept."""
    sample, stream = (
        np.sort([math.inf if number is None else number for number in numbers]) for numbers in (summary["sample"], rows)
    )
    at = np.concatenate([sample, stream])
    at = at[at < math.inf]  # missing numbers are infinite: they count in the shares at or below the largest known one
    n_rows, kept = summary["n_rows"], choose_ranks(summary["n_rows"], len(sample))
    place = np.searchsorted(sample, at, side="right")
    least, most = np.append(0, kept + 1)[place] / n_rows, np.append(kept, n_rows)[place] / n_rows
    share = np.searchsorted(stream, at, side="right") / len(stream)
    return float(np.max([least - share, share - most], initial=0.0))


def _text_distance(reference: dict[str, float], rows: list[str]) -> tuple[str, float]:
    counts = Counter(text if text in reference else OTHER for text in rows)
    known = {**reference, OTHER: max(0.0, 1.0 - sum(reference.values()))}
    changes = {text: abs(counts[text] / len(rows) - share) for text, share in known.items()}
    category = max(changes, key=lambda text: changes[text])
    return category, min(changes[category], 1.0)
