"""Prepare a table for learning: which rows and columns to use, and whether to predict numbers or classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onsphere._internal.validation import check_number, check_option
from onsphere.calibration import rows_needed
from onsphere.errors import InvalidInputError
from onsphere.table.cells import (
    Problem,
    describe_expected,
    parse_as,
    parse_numbers,
    raise_problems,
    read_cells,
    read_features,
    show_value,
    spell_dates,
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
    suggest_name,
)
from onsphere.table.number_styles import (
    NumberStyle,
    find_number_style,
    parse_styled_numbers,
    share_begins_like_number,
)

__all__ = [
    "TASKS",
    "KnownRows",
    "PreparedTable",
    "choose_columns",
    "describe_target",
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
    target_columns: list[Column]


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
    described = [describe_target(name, frame[name], kinds.get(name)) for name in targets]
    kept, notes = drop_rows_without_target(frame, described)
    _check_n_rows(kept, coverage, test_size)
    classes, why = _choose_task(kept, targets, "classification" if "category" in map(kinds.get, targets) else task)
    if classes:
        kept = _drop_rare_classes(kept, targets[0], notes)
    _check_n_rows(kept, coverage, test_size)
    columns = choose_columns(kept, targets, keys=keys, ignore=ignore, kinds=kinds)
    check_any_feature(columns)
    cells, y = split_target(kept, targets, columns, classes=classes)
    # As values, which the model recognises in any file; raises what cannot be read.
    X = read_features(spell_dates(cells, columns), columns)
    if not classes:
        _check_varies(y, targets)
    return PreparedTable(X, y, columns, classes, why, notes, described)


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
            hint = suggest_name(name, names) or _suggest_header(names)
            raise InvalidInputError(f"Expected a column {name}. Got the columns {join_names(names)}.{hint}")


def _suggest_header(names: Sequence[str]) -> str:
    """Return a hint if most columns have no name, as below a title."""
    n_unnamed = sum(re.fullmatch(r"column_\d+", name) is not None for name in names)
    return " The header may be in a later line: delete those above it." if n_unnamed >= len(names) / 2 else ""


def _check_n_rows(frame: Any, coverage: float, test_size: float) -> None:
    needed = max(_FEWEST_ROWS, int(np.ceil(rows_needed(coverage) / (1 - test_size))))
    if len(frame) < needed:
        is_few = needed > _FEWEST_ROWS
        raise InvalidInputError(
            f"Expected at least {needed} rows with a target{f', for a coverage of {coverage:g}' if is_few else ''}. "
            f"Got {len(frame)}. Add rows{', or choose a lower coverage' if is_few else ''}."
        )


def _check_varies(y: Any, targets: Sequence[str]) -> None:
    constant = [name for name, spread in zip(targets, np.atleast_1d(np.ptp(y, axis=0)), strict=True) if spread == 0]
    if constant:
        raise _make_constant_error(constant)


def _make_constant_error(names: Sequence[str]) -> InvalidInputError:
    return InvalidInputError(
        f"Expected a target that varies. Got {', '.join(names)}, with one value in every row: there is nothing to "
        "learn."
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
            column = force_kind(column.name, frame[column.name], kinds[column.name])
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
    frame: Any,
    targets: Sequence[str],
    columns: Sequence[Column],
    *,
    labels: Any = None,
    target_columns: Sequence[Column] | None = None,
    source: str,
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
    target_columns : sequence of Column, optional
        How the targets were written at fit, which is how they are read; found anew for the files of older versions.
    source : str
        Where the rows are from, for messages.
    """
    classes = labels is not None
    check_has(source, list(frame.columns), [*(column.name for column in columns if column.is_feature), *targets])
    # Classes that are text stay text, even where those of this table could be numbers.
    as_text = classes and labels.dtype.kind == "U"
    if as_text:
        described = [Column(name, "category") for name in targets]
    else:
        described = target_columns or [describe_target(name, frame[name]) for name in targets]
    known, notes = drop_rows_without_target(frame, described)
    X, y = split_target(known, targets, columns, classes=classes)
    if labels is not None and as_text:  # Files of older versions may hold classes with spaces around them.
        spelled = {label.strip(): label for label in labels.tolist()}
        y = np.array([spelled.get(label.strip(), label.strip()) for label in y.tolist()], dtype=np.str_)
    elif classes and y.dtype.kind not in "biu":
        values = known[targets[0]]
        numbers = parse_numbers(values)
        row = int(np.argmax(numbers.isna() | (numbers != np.floor(numbers))))
        problem = Problem(targets[0], row, f"a class such as {labels.tolist()[0]!r}", show_value(values.tolist()[row]))
        advice = "Pass rows with the classes that the model was fitted on."
        raise_problems([problem], index=values.index, source=source, advice=advice)
    if classes:
        notes = notes + _note_unknown_classes(y, labels)
    return KnownRows(read_features(spell_dates(X, columns), columns, source=source), y, notes, known)


def _note_unknown_classes(y: Any, labels: Any) -> list[str]:
    unknown = y[~np.isin(y, labels)]
    if len(unknown) == 0:
        return []
    names = [str(name) for name in np.unique(unknown).tolist()]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return [f"{len(unknown):,} rows have a class the model was not fitted on: {shown}"]


def drop_rows_without_target(frame: Any, described: Sequence[Column]) -> tuple[Any, list[str]]:
    """Return the rows in which every target is known, and notes on the others and on how targets are read.

    Targets become numbers, booleans or text, as their columns say.
    """
    targets = [column.name for column in described]
    known = frame[frame[list(targets)].notna().all(axis=1)]
    if len(known) == 0:
        raise InvalidInputError(f"Expected rows with {' and '.join(targets)}. Got none: every value is missing.")
    notes: list[str] = []
    for column in described:
        known = known.assign(**{column.name: _convert_target(column, known[column.name], notes)})
    is_lost, names = known[list(targets)].isna(), " or ".join(targets)
    is_word = frame.loc[known.index, list(targets)].astype(str).apply(is_missing_word)
    known, n_unread = known[~is_lost.any(axis=1)], int((is_lost & ~is_word).any(axis=1).sum())
    n_empty = len(frame) - len(known) - n_unread
    lost = [f"{n_empty:,} rows without {names} are left out"] if n_empty else []
    lost += [f"{n_unread:,} rows in which {names} is no number are left out"] if n_unread else []
    return known, [*lost, *notes]


def describe_target(name: str, values: Any, asked: str | None = None) -> Column:
    """Describe a target: numbers with how they are written, booleans, or classes of text."""
    values = values.dropna().infer_objects()  # booleans among which some were missing
    column = describe_column(name, values) if asked is None else force_kind(name, values, asked)
    if column.note.startswith("holds"):
        raise InvalidInputError(f"Expected numbers or classes in {name}, which {column.note}. Choose another target.")
    if column.kind == "category" or (column.kind == "number" and column.written_as_text):
        return column
    return Column(name, {"b": "boolean"}.get(values.dtype.kind, "number" if values.dtype.kind in "iuf" else "category"))


def _convert_target(column: Column, values: Any, notes: list[str]) -> Any:
    """Return a target without missing values as numbers, booleans or text."""
    values = values.infer_objects()
    if column.kind == "number" and values.dtype.kind not in "biuf":
        numbers = parse_as(column, values.astype(str))
        is_other = numbers.isna() & ~is_missing_word(values.astype(str))
        # Other text stays, for an error that names it, unless numbers were asked for.
        is_asked = column.note.startswith("as asked")
        values = numbers if is_asked or not is_other.any() else numbers.astype(object).where(~is_other, values)
        notes += [f"{column.name}: {column.note}"] if column.note not in ("", "numbers written as text") else []
    if column.kind == "category" and values.dtype.kind not in "biuf":
        return values.map(lambda value: value.strip() if isinstance(value, str) else value)
    if column.kind != "category" and _is_whole(values):
        return values.astype(np.int64)  # whole numbers among which some were missing
    return values


def _is_whole(values: Any) -> bool:
    return values.dtype.kind == "f" and bool((values == np.floor(values)).all()) and bool((values.abs() < 2**53).all())


def split_target(frame: Any, targets: Sequence[str], columns: Sequence[Column], *, classes: bool) -> tuple[Any, Any]:
    """Return the columns that are learned from, and the target: floats of shape (n,) or (n, D), or labels."""
    X = frame[[column.name for column in columns if column.is_feature]]
    if classes:
        labels = frame[targets[0]]
        return X, np.asarray(labels) if labels.dtype.kind in "biu" else np.asarray(labels.astype(str), dtype=np.str_)
    described = [Column(name, "number") for name in targets]
    cells = [read_cells(column, frame[column.name]) for column in described]
    problems = [problem for each in cells for problem in each.problems]
    is_text = any(problem.expected == describe_expected(described[0]) for problem in problems)
    other = ", or choose the task classification" if is_text else ""
    advice = f"Fix the value, or leave the cell empty where it is not known{other}."
    raise_problems(problems, index=frame.index, advice=advice)
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
    if target.dtype.kind in "iuf" and n_different == 1:
        raise _make_constant_error([name])
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
        unread = texts[parse_styled_numbers(texts, find_number_style(texts) or NumberStyle()).isna()]
        raise InvalidInputError(
            f"Expected numbers or classes in {name}. Got {n_different:,} different texts, most of which begin like "
            f"numbers; {len(unread):,} rows cannot be read as one, such as {unread.iloc[0]!r}. Say that the column is "
            "a number, to leave these rows out, or a category, to predict classes."
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
