"""Prepare a table for learning: which rows and columns to use, and whether to predict numbers or classes."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from onsphere._internal.validation import check_number, check_option
from onsphere.calibration import rows_needed
from onsphere.errors import InvalidInputError
from onsphere.table.cells import parse_numbers, raise_problems, read_cells, read_features
from onsphere.table.columns import (
    Column,
    check_any_feature,
    check_frame,
    describe_column,
    describe_columns,
    join_names,
)

__all__ = ["TASKS", "PreparedTable", "drop_rows_without_target", "prepare_table", "split_target"]

TASKS = ("auto", "regression", "classification")

_FEWEST_ROWS = 20
_FEWEST_OF_A_CLASS = 5
_MOST_CLASSES = 10  # whole numbers with more different values are amounts


class PreparedTable(NamedTuple):
    """A table whose rows and columns can be learned from."""

    X: Any
    y: Any
    columns: list[Column]
    classes: bool
    why: str
    notes: list[str]


def prepare_table(
    frame: Any,
    targets: Sequence[str],
    *,
    task: str,
    coverage: float,
    keys: Sequence[str],
    ignore: Sequence[str],
    test_size: float,
    random_state: int,
) -> PreparedTable:
    """Check a table, find out what can be learned from it, and leave out the rest; see `fit_table`."""
    check_option("fit_table", "task", task, TASKS)
    check_number("fit_table", "coverage", coverage, above=0, below=1)
    check_number("fit_table", "test_size", test_size, above=0, below=1)
    check_number("fit_table", "random_state", random_state, above=0, below=2**32, closed="left", whole=True)
    check_frame(frame)
    _check_names(frame, targets, [*keys, *ignore])
    kept, notes = drop_rows_without_target(frame, targets)
    classes, why = _choose_task(kept, targets, task)
    if classes:
        kept = _drop_rare_classes(kept, targets[0], notes)
    _check_n_rows(kept, coverage, test_size)
    columns = _choose_columns(kept, targets, keys, ignore)
    X, y = split_target(kept, targets, columns, classes=classes)
    read_features(X, columns)  # raises what cannot be read, with its row
    if not classes:
        _check_varies(y, targets)
    return PreparedTable(X, y, columns, classes, why, notes)


def _check_names(frame: Any, targets: Sequence[str], others: Sequence[str]) -> None:
    if not targets or len(set(targets)) < len(targets):
        raise InvalidInputError(
            f"Expected the name of each column to predict, once. Got {join_names(targets) or 'none'}. Name the "
            "target or the targets."
        )
    names = list(frame.columns)
    if len(names) == 1:
        raise InvalidInputError(
            f"Expected a table with a target and columns to learn from. Got one column, {names[0]!r}. If there should "
            "be more, the delimiter is another one: pass it when the file is read."
        )
    for name in targets:
        if name in others:
            raise InvalidInputError(
                f"Expected {name} to be a target, or else a key or an ignored column. Got both. Choose one."
            )
    for name in [*targets, *others]:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidInputError(f"Expected a column {name}. Got the columns {join_names(names)}.{hint}")


def _check_n_rows(frame: Any, coverage: float, test_size: float) -> None:
    needed = max(_FEWEST_ROWS, int(np.ceil(rows_needed(coverage) / (1 - test_size))))
    if len(frame) < needed:
        raise InvalidInputError(
            f"Expected at least {needed} rows with a target, for a coverage of {coverage:g}. Got {len(frame)}. "
            "Add rows, or choose a lower coverage."
        )


def _check_varies(y: Any, targets: Sequence[str]) -> None:
    constant = [name for name, spread in zip(targets, np.atleast_1d(np.ptp(y, axis=0)), strict=True) if spread == 0]
    if constant:
        raise InvalidInputError(
            f"Expected a target that varies. Got {', '.join(constant)}, with one value in every row: there is nothing "
            "to learn."
        )


def _choose_columns(frame: Any, targets: Sequence[str], keys: Sequence[str], ignore: Sequence[str]) -> list[Column]:
    columns: list[Column] = []
    for column in describe_columns(frame.drop(columns=list(targets))):
        if column.name in keys:
            column = Column(column.name, "key", "as asked")
        elif column.name in ignore:
            column = Column(column.name, "unused", "as asked")
        columns.append(column)
    check_any_feature(columns)
    return columns


def drop_rows_without_target(frame: Any, targets: Sequence[str], *, as_text: bool = False) -> tuple[Any, list[str]]:
    """Return the rows in which every target is known, and a note on the others.

    Targets become numbers, booleans or text; with `as_text`, numbers that were written as text stay text.
    """
    known = frame[frame[list(targets)].notna().all(axis=1)]
    if len(known) == 0:
        raise InvalidInputError(f"Expected rows with {' and '.join(targets)}. Got none: every value is missing.")
    known = known.assign(**{name: _convert_target(name, known[name], as_text) for name in targets})
    n_lost = len(frame) - len(known)
    return known, [f"{n_lost:,} rows without {' or '.join(targets)} are left out"] if n_lost else []


def _convert_target(name: str, values: Any, as_text: bool) -> Any:
    """Return a target without missing values as numbers, booleans or text."""
    values = values.infer_objects()  # booleans among which some were missing
    column = describe_column(name, values)
    if column.note.startswith("holds"):
        raise InvalidInputError(f"Expected numbers or classes in {name}, which {column.note}. Choose another target.")
    if column.kind == "number" and column.written_as_text and not column.mixed and not as_text:
        values = parse_numbers(values)
    if values.dtype.kind == "f" and bool((values == np.floor(values)).all()) and bool((values.abs() < 2**53).all()):
        return values.astype(np.int64)  # whole numbers among which some were missing
    return values


def split_target(frame: Any, targets: Sequence[str], columns: Sequence[Column], *, classes: bool) -> tuple[Any, Any]:
    """Return the columns that are learned from, and the target: floats of shape (n,) or (n, D), or labels."""
    X = frame[[column.name for column in columns if column.is_feature]]
    if classes:
        labels = frame[targets[0]]
        return X, np.asarray(labels) if labels.dtype.kind in "biu" else np.asarray(labels.astype(str), dtype=np.str_)
    cells = [read_cells(Column(name, "number"), frame[name]) for name in targets]
    raise_problems(
        [problem for each in cells for problem in each.problems],
        index=frame.index,
        advice="Fix the value, leave the cell empty where it is not known, or choose the task classification.",
    )
    y = np.column_stack([each.values for each in cells])
    return X, y[:, 0] if len(targets) == 1 else y


def _choose_task(frame: Any, targets: Sequence[str], task: str) -> tuple[bool, str]:
    """Return whether to predict classes, and why."""
    if task != "auto":
        if task == "classification" and len(targets) > 1:
            raise InvalidInputError(
                f"Expected one target for classification. Got {', '.join(targets)}. Fit one model for each."
            )
        return task == "classification", "as asked"
    if len(targets) > 1:
        return False, "several targets are numbers"
    name, target = targets[0], frame[targets[0]]
    n_different = target.nunique()
    if target.dtype.kind == "b":
        return True, f"{name} is true or false"
    if target.dtype.kind not in "iuf":
        kind = describe_column(name, target).kind
        if kind in ("number", "date"):
            return False, f"{name} holds {kind}s"  # an error that names the value follows
        return True, f"{name} is text with {n_different} different values"
    if target.dtype.kind in "iu" and n_different <= _MOST_CLASSES:
        return True, f"{name} has {n_different} different whole numbers; choose the task regression if they are amounts"
    return False, f"{name} has {n_different:,} different numbers"


def _drop_rare_classes(frame: Any, target: str, notes: list[str]) -> Any:
    """Return the rows of classes that have enough of them, and add a note on the others."""
    counts = frame[target].value_counts()
    rare = [label for label, count in counts.items() if count < _FEWEST_OF_A_CLASS]
    if len(counts) - len(rare) < 2:
        found = ", ".join(f"{label}: {count}" for label, count in list(counts.items())[:10])
        raise InvalidInputError(
            f"Expected two classes or more in {target}, each with at least {_FEWEST_OF_A_CLASS} rows. Got {found}. "
            "Add rows, or choose the task regression if these are amounts."
        )
    if not rare:
        return frame
    names = ", ".join(map(str, rare[:5])) + (" …" if len(rare) > 5 else "")
    lost = frame[target].isin(rare)
    notes.append(f"{int(lost.sum())} rows of rare classes ({names}: fewer than {_FEWEST_OF_A_CLASS} rows) are left out")
    return frame[~lost]
