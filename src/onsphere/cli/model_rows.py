"""Read rows for a model of `onsphere fit` from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onsphere.table import Column, prepare, read_table
from onsphere.table.cells import import_pandas, read_cells, read_features
from onsphere.table.columns import check_has
from onsphere.table.model_file import read_target_columns
from onsphere.table.time_order import read_time

__all__ = [
    "LabelledRows",
    "name_rows",
    "name_targets",
    "read_feature_rows",
    "read_labelled_rows",
    "read_moments",
    "read_times",
    "restore_types",
]


def read_feature_rows(path: Path, columns: list[Column], delimiter: str | None) -> Any:
    """Return the columns of a file that a model learns from."""
    features = [column for column in columns if column.is_feature]
    return read_features(read_table(path, columns=features, delimiter=delimiter), features, source=str(path))


class LabelledRows(NamedTuple):
    """The rows of a file whose target is known, notes on the others, and the name of each row where a key gives it one.

    `frame` are the rows as they came; `share_seen` is the share of the rows that the model was trained on, or that
    equal such rows; `times` are the times of the rows, if the model was fitted by time and the file has them.
    """

    X: Any
    y: Any
    notes: list[str]
    frame: Any
    names: list[str] | None
    share_seen: float = 0.0
    times: Any = None


def read_labelled_rows(
    path: Path, model: Any, summary: dict[str, Any], columns: list[Column], delimiter: str | None
) -> LabelledRows:
    """Return the rows of a file whose target is known, as the model takes them."""
    targets, classes = summary["targets"], summary["task"] == "classification"
    labels = model.classes_ if classes else None
    as_text = classes and model.classes_.dtype.kind == "U"
    as_class = Column(targets[0], "category", written_as_text=True)
    described = [as_class] if as_text else read_target_columns(summary)
    read = [*columns, *(column for column in described or () if column.written_as_text)]
    frame = read_table(path, columns=read, delimiter=delimiter)
    known = prepare.read_known_rows(frame, targets, columns, labels=labels, target_columns=described, source=str(path))
    names, share_seen = name_rows(known.frame, columns), model._compute_share_seen(known.X, known.y)
    return LabelledRows(*known, names, share_seen, read_times(known.frame, summary))


def read_times(frame: Any, summary: dict[str, Any]) -> Any:
    """Return the times of rows as numbers or dates; None if the model was not fitted by time, or there are none."""
    clock = None if summary.get("time") is None else Column(**summary["time"])
    if clock is None or clock.name not in frame.columns:
        return None
    times = read_cells(clock, frame[clock.name]).values
    if clock.kind == "date":
        return import_pandas().to_datetime(np.round(times * 1e6), unit="us")
    return times


def read_moments(rows: LabelledRows, summary: dict[str, Any], path: Path) -> Any:
    """Return the time of each row as a float; None if the model was not fitted by time. A missing one is an error."""
    if summary.get("time") is None:
        return None
    clock = Column(**summary["time"])
    check_has(str(path), list(rows.frame.columns), [clock.name])
    return read_time(clock, rows.frame, source=str(path)).to_numpy()


def name_rows(frame: Any, columns: list[Column]) -> list[str] | None:
    """Return what the keys of a table call each row, or None where it has no keys."""
    keys = [column.name for column in columns if column.kind == "key" and column.name in frame.columns]
    if not keys:
        return None
    text = frame[keys].astype(object).where(frame[keys].notna(), "–")
    return [" ".join(str(value) for value in row) for row in text.itertuples(index=False, name=None)]


def name_targets(y: Any, targets: list[str]) -> Any:
    """Return several targets as a DataFrame with their names, and a single one as it is."""
    return y if y.ndim == 1 else import_pandas().DataFrame(y, columns=targets)


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
