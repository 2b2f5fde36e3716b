"""What is to be predicted: numbers or classes, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onsphere.errors import InvalidInputError
from onsphere.table.cells import parse_numbers, raise_problems, read_cells
from onsphere.table.columns import Column, described

__all__ = ["is_classification", "rows_with_target", "split_target", "without_rare_classes"]

_FEWEST_OF_A_CLASS = 5
_MOST_CLASSES = 10  # that whole numbers are taken for


def rows_with_target(frame: Any, targets: Sequence[str], *, as_text: bool = False) -> tuple[Any, list[str]]:
    """The rows in which every target is known, and what to say of it; numbers that are text stay text only if asked."""
    known = frame[frame[list(targets)].notna().all(axis=1)]
    if len(known) == 0:
        raise InvalidInputError(f"Expected rows with {' and '.join(targets)}. Got none: every value is missing.")
    known = known.assign(**{name: _cleaned(name, known[name], as_text) for name in targets})
    n_lost = len(frame) - len(known)
    return known, [f"{n_lost:,} rows without {' or '.join(targets)} are left out"] if n_lost else []


def _cleaned(name: str, values: Any, as_text: bool) -> Any:
    """A target without missing values: numbers, booleans or text."""
    values = values.infer_objects()  # booleans among which some were missing
    column = described(name, values)
    if column.note.startswith("holds"):
        raise InvalidInputError(f"Expected numbers or classes in {name}, which {column.note}. Choose another target.")
    if column.kind == "number" and column.written_as_text and not column.mixed and not as_text:
        values = parse_numbers(values)
    if values.dtype.kind == "f" and bool((values == np.floor(values)).all()) and bool((values.abs() < 2**53).all()):
        return values.astype(np.int64)  # whole numbers among which some were missing
    return values


def split_target(frame: Any, targets: Sequence[str], columns: Sequence[Column], *, classes: bool) -> tuple[Any, Any]:
    """The columns that are learned from, and the target: floats of shape (n,) or (n, D), or labels."""
    X = frame[[column.name for column in columns if column.is_feature]]
    if classes:
        labels = frame[targets[0]]
        return X, np.asarray(labels) if labels.dtype.kind in "biu" else np.asarray(labels.astype(str), dtype=np.str_)
    numbers = {name: _numbers(name, frame[name]) for name in targets}
    y = np.column_stack(list(numbers.values()))
    return X, y[:, 0] if len(targets) == 1 else y


def _numbers(name: str, values: Any) -> Any:
    numbers, problems = read_cells(Column(name, "number"), values)
    advice = "Fix the value, leave the cell empty where it is not known, or choose task='classification'."
    raise_problems(problems, index=values.index, advice=advice)
    return numbers


def is_classification(frame: Any, targets: Sequence[str], task: str) -> tuple[bool, str]:
    """Whether to predict classes, and why."""
    if task != "auto":
        if task == "classification" and len(targets) > 1:
            raise InvalidInputError(
                f"Expected one target for classification. Got {', '.join(targets)}. Fit each apart."
            )
        return task == "classification", "as asked"
    if len(targets) > 1:
        return False, "several targets are numbers"
    name, target = targets[0], frame[targets[0]]
    n_different = target.nunique()
    if target.dtype.kind == "b":
        return True, f"{name} is true or false"
    if target.dtype.kind not in "iuf":
        kind = described(name, target).kind
        if kind in ("number", "date"):
            return False, f"{name} holds {kind}s"  # which is an error, and told of the value that is none
        return True, f"{name} is text with {n_different} different values"
    if target.dtype.kind in "iu" and n_different <= _MOST_CLASSES:
        return True, f"{name} has {n_different} different whole numbers; --task regression takes them as amounts"
    return False, f"{name} has {n_different:,} different numbers"


def without_rare_classes(frame: Any, target: str, notes: list[str]) -> Any:
    """The rows of classes that have enough of them; those that are left out are noted."""
    counts = frame[target].value_counts()
    rare = [label for label, count in counts.items() if count < _FEWEST_OF_A_CLASS]
    if len(counts) - len(rare) < 2:
        told = ", ".join(f"{label}: {count}" for label, count in list(counts.items())[:10])
        raise InvalidInputError(
            f"Expected two classes or more in {target}, each with at least {_FEWEST_OF_A_CLASS} rows. Got {told}. "
            "Add rows, or choose --task regression if these are amounts."
        )
    if not rare:
        return frame
    told = ", ".join(map(str, rare[:5])) + (" …" if len(rare) > 5 else "")
    lost = frame[target].isin(rare)
    notes.append(f"{int(lost.sum())} rows of rare classes ({told}: fewer than {_FEWEST_OF_A_CLASS} rows) are left out")
    return frame[~lost]
