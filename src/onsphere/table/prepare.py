"""Prepare a table for learning: which rows and columns to use, and whether to predict numbers or classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from onsphere._internal.validation import check_number, check_option
from onsphere.calibration import rows_needed
from onsphere.errors import InvalidInputError
from onsphere.table.cells import (
    Problem,
    parse_as,
    parse_numbers,
    raise_problems,
    read_cells,
    read_features,
    show_value,
)
from onsphere.table.columns import (
    Column,
    check_any_feature,
    check_frame,
    check_has,
    describe_column,
    describe_columns,
    force_kind,
    is_missing_word,
    join_names,
)
from onsphere.table.number_styles import share_begins_like_number

__all__ = [
    "TASKS",
    "KnownRows",
    "PreparedTable",
    "choose_columns",
    "drop_rows_without_target",
    "prepare_table",
    "read_known_rows",
    "split_target",
]

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
    kinds: Mapping[str, str] | None = None,
    test_size: float,
    random_state: int,
) -> PreparedTable:
    """Check a table, find out what can be learned from it, and leave out the rest; see `fit_table`."""
    check_option("fit_table", "task", task, TASKS)
    check_number("fit_table", "coverage", coverage, above=0, below=1)
    check_number("fit_table", "test_size", test_size, above=0, below=1)
    check_number("fit_table", "random_state", random_state, above=0, below=2**32, closed="left", whole=True)
    check_frame(frame)
    kinds = kinds or {}
    _check_names(frame, targets, [*keys, *ignore], list(kinds))
    kept, notes = drop_rows_without_target(frame, targets, kinds=kinds)
    classes, why = _choose_task(kept, targets, "classification" if "category" in map(kinds.get, targets) else task)
    if classes:
        kept = _drop_rare_classes(kept, targets[0], notes)
    _check_n_rows(kept, coverage, test_size)
    columns = choose_columns(kept, targets, keys=keys, ignore=ignore, kinds=kinds)
    check_any_feature(columns)
    cells, y = split_target(kept, targets, columns, classes=classes)
    X = read_features(cells, columns)  # as values, which the model recognises in any file; raises what cannot be read
    if not classes:
        _check_varies(y, targets)
    return PreparedTable(X, y, columns, classes, why, notes)


def _check_names(frame: Any, targets: Sequence[str], others: Sequence[str], described: Sequence[str]) -> None:
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
    for name in described:
        if name in others:
            raise InvalidInputError(
                f"Expected {name} to be learned from, or else a key or an ignored column. Got both. Choose one."
            )
    for name in [*targets, *others, *described]:
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


def choose_columns(
    frame: Any,
    targets: Sequence[str],
    *,
    keys: Sequence[str] = (),
    ignore: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
) -> list[Column]:
    """Describe all columns but the targets, as they are found or as a user says."""
    kinds = kinds or {}
    columns: list[Column] = []
    for column in describe_columns(frame.drop(columns=list(targets))):
        if column.name in kinds:
            kind, _, date_format = kinds[column.name].partition("=")
            column = force_kind(column.name, frame[column.name], kind, date_format or None)
        elif column.name in keys:
            column = Column(column.name, "key", "as asked")
        elif column.name in ignore:
            column = Column(column.name, "unused", "as asked")
        columns.append(column)
    return columns


class KnownRows(NamedTuple):
    """Rows whose target is known, as a model takes them, notes on the others, and the same rows as they came."""

    X: Any
    y: Any
    notes: list[str]
    frame: Any


def read_known_rows(
    frame: Any, targets: Sequence[str], columns: Sequence[Column], *, labels: Any = None, source: str
) -> KnownRows:
    """Return the rows of a table whose target is known.

    Parameters
    ----------
    frame : DataFrame
    targets : sequence of str
    columns : sequence of Column
        The columns that the model was fitted on.
    labels : array, optional
        The classes that the model knows; without them, targets are numbers.
    source : str
        Where the rows are from, for messages.
    """
    classes = labels is not None
    check_has(source, list(frame.columns), [*(column.name for column in columns if column.is_feature), *targets])
    # Classes that are text stay text, even where those of this table could be numbers.
    as_text = classes and labels.dtype.kind == "U"
    known, notes = drop_rows_without_target(frame, targets, as_text=as_text)
    X, y = split_target(known, targets, columns, classes=classes)
    if as_text:
        y = y.astype(np.str_)
    elif classes and y.dtype.kind not in "biu":
        values = known[targets[0]]
        numbers = parse_numbers(values)
        row = int(np.argmax(numbers.isna() | (numbers != np.floor(numbers))))
        problem = Problem(targets[0], row, f"a class such as {labels.tolist()[0]!r}", show_value(values.tolist()[row]))
        advice = "Pass rows with the classes that the model was fitted on."
        raise_problems([problem], index=values.index, source=source, advice=advice)
    if classes:
        notes = notes + _note_unknown_classes(y, labels)
    return KnownRows(read_features(X, columns, source=source), y, notes, known)


def _note_unknown_classes(y: Any, labels: Any) -> list[str]:
    unknown = y[~np.isin(y, labels)]
    if len(unknown) == 0:
        return []
    names = [str(name) for name in np.unique(unknown).tolist()]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return [f"{len(unknown):,} rows have a class the model was not fitted on: {shown}"]


def drop_rows_without_target(
    frame: Any, targets: Sequence[str], *, as_text: bool = False, kinds: Mapping[str, str] | None = None
) -> tuple[Any, list[str]]:
    """Return the rows in which every target is known, and notes on the others and on how targets are read.

    Targets become numbers, booleans or text; with `as_text`, numbers that were written as text stay text.
    """
    known = frame[frame[list(targets)].notna().all(axis=1)]
    if len(known) == 0:
        raise InvalidInputError(f"Expected rows with {' and '.join(targets)}. Got none: every value is missing.")
    notes: list[str] = []
    for name in targets:
        is_text = as_text or (kinds or {}).get(name) == "category"
        known = known.assign(**{name: _convert_target(name, known[name], (kinds or {}).get(name), is_text, notes)})
    known = known[known[list(targets)].notna().all(axis=1)]
    n_lost = len(frame) - len(known)
    return known, [*([f"{n_lost:,} rows without {' or '.join(targets)} are left out"] if n_lost else []), *notes]


def _convert_target(name: str, values: Any, kind: str | None, as_text: bool, notes: list[str]) -> Any:
    """Return a target without missing values as numbers, booleans or text."""
    values = values.infer_objects()  # booleans among which some were missing
    if as_text:
        return values
    column = describe_column(name, values) if kind is None else force_kind(name, values, kind)
    if column.note.startswith("holds"):
        raise InvalidInputError(f"Expected numbers or classes in {name}, which {column.note}. Choose another target.")
    if column.kind == "number" and column.written_as_text:
        numbers = parse_as(column, values)
        is_other = numbers.isna() & ~is_missing_word(values.astype(str))
        # Other text stays, for an error that names it, unless numbers were asked for.
        values = numbers if kind == "number" or not is_other.any() else numbers.astype(object).where(~is_other, values)
        notes += [f"{name}: {column.note}"] if column.note != "numbers written as text" else []
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
        _check_is_no_number(name, target)
        return True, f"{name} is text with {n_different} different values"
    if target.dtype.kind in "iu" and n_different <= _MOST_CLASSES:
        return True, f"{name} has {n_different} different whole numbers; choose the task regression if they are amounts"
    return False, f"{name} has {n_different:,} different numbers"


def _check_is_no_number(name: str, target: Any) -> None:
    """Raise an error if most of a target that is text begins like a number: it may be an amount, and not a class."""
    texts = target.astype(str)
    n_different = texts.nunique()
    if share_begins_like_number(texts) > 0.5 and n_different > _MOST_CLASSES:
        raise InvalidInputError(
            f"Expected numbers or classes in {name}. Got {n_different:,} different texts such as {texts.iloc[0]!r}, "
            "which begin like numbers but cannot all be read as numbers. Say that the column is a number, to read the "
            "others as missing, or a category, to predict classes."
        )


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
