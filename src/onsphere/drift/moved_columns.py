"""Which columns moved: the last rows of a stream against a reference, column by column, for numbers and for text."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from onsphere.drift.reference import (
    OTHER,
    Reference,
    check_reference,
    columns_of,
    kept_ranks,
    mean_and_deviation,
    plain_numbers,
    plain_texts,
    reference_of,
)
from onsphere.errors import InvalidInputError

__all__ = ["Hint", "Window"]

_MOVED = 2.5  # of the strength: by the Kolmogorov–Smirnov distribution, 2·exp(−2·2.5²) is 7 in a million


@dataclass(frozen=True)
class Hint:
    """How far one column moved.

    Attributes
    ----------
    column : str
        Its name, or its number as text.
    distance : float in [0, 1]
        The largest difference of two shares: for numbers, of the rows at or below some value (the Kolmogorov–Smirnov
        distance; a missing number counts as larger than all others), and for text, of the rows in some category.
    strength : float
        The distance, standardised for the numbers of rows: times √(n·m/(n + m)). A column that did not move is above
        1.36 about once in twenty.
    shift : float or None
        For numbers: the change of the mean, in standard deviations of the reference.
    spread : float or None
        For numbers: the standard deviation, as a multiple of that of the reference.
    category : str or None
        For text: the category whose share changed most; "(other)" stands for all that are rare or new.
    """

    column: str
    distance: float
    strength: float
    shift: float | None = None
    spread: float | None = None
    category: str | None = None

    @property
    def moved(self) -> bool:
        """Whether it is more than chance: so strong is the hint on a column that did not move once in 100,000 looks."""
        return self.strength > _MOVED

    def __str__(self) -> str:
        if self.category is not None:
            return f"{self.column}: share of {self.category!r} changed by {self.distance:.0%}"
        if self.shift is None:
            return f"{self.column}: share of missing numbers changed by {self.distance:.0%}"
        return (
            f"{self.column}: mean {self.shift:+.2f} standard deviations, spread ×{self.spread:.2f}, "
            f"distance {self.distance:.0%}"
        )


class Window:
    """The last rows of a stream, beside what is kept of the reference.

    Parameters
    ----------
    size : int
        How many rows.
    reference : dict
        What `reference_of` some rows gave; a model of `fit_table` has it in the summary of its file.
    """

    def __init__(self, size: int, reference: Reference) -> None:
        check_reference(reference)
        self.size, self.reference = size, reference
        self.reset()

    @classmethod
    def of(cls, size: int, X: Any) -> Self:
        """With these rows as the reference, or with what was kept of some."""
        return cls(size, X if isinstance(X, dict) else reference_of(X))

    def reset(self) -> None:
        """Forget the stream."""
        self.rows: dict[str, list[Any]] = {name: [] for name in self.reference}

    def checked(self, X: Any) -> dict[str, list[Any]]:
        """The last rows of X, as they will be kept."""
        columns = columns_of(X)
        if set(columns) != set(self.reference):
            missing = sorted(set(self.reference) - set(columns))
            unknown = sorted(set(columns) - set(self.reference))
            raise InvalidInputError(
                f"Expected the {len(self.reference)} columns of the reference rows. Got {len(columns)}, of which "
                f"{unknown or 'none'} are unknown, and {missing or 'none'} are missing. Pass the same columns."
            )
        return {
            name: plain_texts(column) if "shares" in self.reference[name] else plain_numbers(name, column)
            for name, column in ((name, columns[name][-self.size :]) for name in self.reference)
        }

    def add(self, rows: dict[str, list[Any]]) -> None:
        """Keep checked rows, and drop the oldest."""
        self.rows = {name: (old + rows[name])[-self.size :] for name, old in self.rows.items()}

    def hints(self) -> list[Hint]:
        """One for each column, the one that moved most first."""
        n_rows = len(next(iter(self.rows.values())))
        if n_rows == 0:
            raise InvalidInputError("hints needs rows of the stream. Got none yet. Call observe(X, assessment) first.")
        found = [_hint(name, summary, self.rows[name], n_rows) for name, summary in self.reference.items()]
        return sorted(found, key=lambda hint: (-hint.distance, -abs(hint.shift or 0.0), hint.column))

    def state(self) -> dict[str, Any]:
        """Plain numbers, texts and lists."""
        return {"size": self.size, "reference": self.reference, "rows": self.rows}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """What `state` gave."""
        window = cls(int(state["size"]), dict(state["reference"]))
        window.rows = {name: list(state["rows"][name]) for name in window.reference}
        return window


def _hint(name: str, summary: dict[str, Any], rows: list[Any], n_rows: int) -> Hint:
    scale = math.sqrt(summary["n_rows"] * n_rows / (summary["n_rows"] + n_rows))
    if "shares" in summary:
        category, distance = _text_distance(summary["shares"], rows)
        return Hint(name, distance, scale * distance, category=category)
    distance = _number_distance(summary, rows)
    known = np.array([number for number in rows if number is not None])
    if summary["mean"] is None or len(known) == 0:
        return Hint(name, distance, scale * distance)
    mean, deviation = mean_and_deviation(known)
    ordinary: float = summary["deviation"]
    return Hint(
        name,
        distance,
        scale * distance,
        shift=_ratio(mean - summary["mean"], ordinary),
        spread=1.0 if deviation == ordinary else _ratio(deviation, ordinary),
    )


def _ratio(change: float, unit: float) -> float:
    """In units of something that may be nothing."""
    if unit == 0:
        return math.copysign(math.inf, change) if change else 0.0
    return change / unit


def _number_distance(summary: dict[str, Any], rows: list[float | None]) -> float:
    """The least that it can be, given the numbers that were kept of the reference; all of them leave nothing open."""
    sample, stream = (
        np.sort([math.inf if number is None else number for number in numbers]) for numbers in (summary["sample"], rows)
    )
    at = np.concatenate([sample, stream])
    at = at[at < math.inf]  # missing numbers are infinite: they differ in what lies at or below the largest that is not
    n_rows, kept = summary["n_rows"], kept_ranks(summary["n_rows"], len(sample))
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
