"""Read rows for a model of `onsphere fit` from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onsphere.table import Column, read_table
from onsphere.table.cells import Problem, import_pandas, parse_numbers, raise_problems, read_features, show_value
from onsphere.table.columns import check_has
from onsphere.table.prepare import drop_rows_without_target, split_target

__all__ = ["KnownRows", "name_rows", "read_feature_rows", "read_known_rows", "restore_types"]


def read_feature_rows(path: Path, columns: list[Column], delimiter: str | None) -> Any:
    """Return the columns of a file that a model learns from."""
    features = [column for column in columns if column.is_feature]
    return read_features(read_table(path, columns=features, delimiter=delimiter), features, source=str(path))


class KnownRows(NamedTuple):
    """Rows whose target is known, notes on the others, and the name of each row where a key gives it one."""

    X: Any
    y: Any
    notes: list[str]
    names: list[str] | None


def read_known_rows(
    path: Path, model: Any, summary: dict[str, Any], columns: list[Column], delimiter: str | None
) -> KnownRows:
    """Return the rows of a file whose target is known, as the model takes them."""
    targets, classes = summary["targets"], summary["task"] == "classification"
    # Classes that are text stay text, even where those of this file could be numbers.
    as_text = classes and model.classes_.dtype.kind == "U"
    read = [*columns, Column(targets[0], "category")] if as_text else columns
    frame = read_table(path, columns=read, delimiter=delimiter)
    check_has(str(path), list(frame.columns), targets)
    known, notes = drop_rows_without_target(frame, targets, as_text=as_text)
    X, y = split_target(known, targets, columns, classes=classes)
    if as_text:
        y = y.astype(np.str_)
    elif classes and y.dtype.kind not in "biu":
        values = known[targets[0]]
        numbers = parse_numbers(values)
        row = int(np.argmax(numbers.isna() | (numbers != np.floor(numbers))))
        expected = f"a class such as {model.classes_.tolist()[0]!r}"
        problem = Problem(targets[0], row, expected, show_value(values.tolist()[row]))
        advice = "Pass a file with the classes that the model was fitted on."
        raise_problems([problem], index=values.index, source=str(path), advice=advice)
    if classes:
        notes += _note_unknown_classes(y, model.classes_)
    return KnownRows(read_features(X, columns, source=str(path)), y, notes, name_rows(known, columns))


def _note_unknown_classes(y: Any, classes: Any) -> list[str]:
    unknown = y[~np.isin(y, classes)]
    if len(unknown) == 0:
        return []
    names = [str(name) for name in np.unique(unknown).tolist()]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return [f"{len(unknown):,} rows have a class the model was not fitted on: {shown}"]


def name_rows(frame: Any, columns: list[Column]) -> list[str] | None:
    """Return what the keys of a table call each row, or None where it has no keys."""
    keys = [column.name for column in columns if column.kind == "key" and column.name in frame.columns]
    if not keys:
        return None
    text = frame[keys].astype(object).where(frame[keys].notna(), "–")
    return [" ".join(str(value) for value in row) for row in text.itertuples(index=False, name=None)]


def restore_types(features: Any, columns: list[Column]) -> Any:
    """Return what `read_features` gives with dates as dates and booleans as booleans, as people want to see them."""
    pandas = import_pandas()
    typed: dict[str, Any] = {}
    for column in columns:
        if column.kind == "date":
            typed[column.name] = pandas.to_datetime(np.round(features[column.name] * 1e6), unit="us", utc=True)
        elif column.kind == "boolean":
            typed[column.name] = features[column.name].astype("boolean")
    return features.assign(**typed)
