"""Rows for a model of `onsphere fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onsphere._internal.validation import check_number
from onsphere.table import Column, read_table
from onsphere.table.cells import Problem, import_pandas, parse_numbers, raise_problems, read_features, show_value
from onsphere.table.columns import check_has
from onsphere.table.targets import rows_with_target, split_target

__all__ = ["KnownRows", "feature_rows", "known_rows", "names_of_rows", "share_asked", "typed_features"]


def share_asked(coverage: float | None, summary: dict[str, Any]) -> float:
    """The coverage that was asked for, or that of the fit."""
    if coverage is None:
        return summary["coverage"]
    check_number("onsphere", "--coverage", coverage, above=0, below=1)
    return coverage


def feature_rows(path: Path, columns: list[Column], delimiter: str | None) -> Any:
    """The columns of a file that a model learns from."""
    features = [column for column in columns if column.is_feature]
    return read_features(read_table(path, columns=features, delimiter=delimiter), features)


class KnownRows(NamedTuple):
    """Rows whose target is known, what to say of the others, and what each is called, where it has a name."""

    X: Any
    y: Any
    notes: list[str]
    names: list[str] | None


def known_rows(
    path: Path, model: Any, summary: dict[str, Any], columns: list[Column], delimiter: str | None
) -> KnownRows:
    """The rows of a file whose target is known, as the model takes them."""
    targets, classes = summary["targets"], summary["task"] == "classification"
    # Classes that are text stay text, even where those of this file could be numbers.
    as_text = classes and model.classes_.dtype.kind == "U"
    read = [*columns, Column(targets[0], "category")] if as_text else columns
    frame = read_table(path, columns=read, delimiter=delimiter)
    check_has(str(path), list(frame.columns), targets)
    known, notes = rows_with_target(frame, targets, as_text=as_text)
    X, y = split_target(known, targets, columns, classes=classes)
    if as_text:
        y = y.astype(np.str_)
    elif classes and y.dtype.kind not in "biu":
        values = known[targets[0]]
        numbers = parse_numbers(values)
        row = int(np.argmax(numbers.isna() | (numbers != np.floor(numbers))))
        problem = Problem(
            targets[0], row, f"a class such as {model.classes_.tolist()[0]!r}", show_value(values.iloc[row])
        )
        advice = "Pass a file with the classes that the model was fitted on."
        raise_problems([problem], index=values.index, source=str(path), advice=advice)
    if classes:
        notes += _unknown_classes(y, model.classes_)
    return KnownRows(read_features(X, columns), y, notes, names_of_rows(known, columns))


def _unknown_classes(y: Any, classes: Any) -> list[str]:
    strange = y[~np.isin(y, classes)]
    if len(strange) == 0:
        return []
    names = [str(name) for name in np.unique(strange).tolist()]
    told = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return [f"{len(strange):,} rows have a class the model was not fitted on: {told}"]


def names_of_rows(frame: Any, columns: list[Column]) -> list[str] | None:
    """What the keys call each row; nothing where a table has none."""
    keys = [column.name for column in columns if column.kind == "key" and column.name in frame.columns]
    if not keys:
        return None
    text = frame[keys].astype(object).where(frame[keys].notna(), "–")
    return [" ".join(str(value) for value in row) for row in text.itertuples(index=False, name=None)]


def typed_features(features: Any, columns: list[Column]) -> Any:
    """Return what `read_features` gives with dates as dates and booleans as booleans, as people want to see them."""
    pandas = import_pandas()
    typed = {
        column.name: (
            pandas.to_datetime(np.round(features[column.name] * 1e6), unit="us", utc=True)
            if column.kind == "date"
            else features[column.name].astype("boolean")
        )
        for column in columns
        if column.kind in ("date", "boolean")
    }
    return features.assign(**typed)
