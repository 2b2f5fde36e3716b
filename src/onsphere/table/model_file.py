"""What a model file says of the table that its model was fitted on, checked before anybody builds on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onsphere.drift.reference import is_reference
from onsphere.errors import InvalidInputError
from onsphere.persistence import load_with_manifest
from onsphere.table.columns import Column, is_column, parse_column
from onsphere.table.encoder import TableEncoder
from onsphere.table.fit import TASKS

__all__ = ["described_columns", "load_table_model", "model_columns"]


def load_table_model(path: Path) -> tuple[Any, dict[str, Any], list[Column]]:
    """A model of `fit_table` from its file, the summary that was kept with it, and its columns."""
    model, manifest = load_with_manifest(path)
    summary = manifest["summary"]
    if "columns" not in summary:
        raise _not_ours(path, "was saved in Python and does not say what its columns hold")
    return model, summary, model_columns(path, model, summary)


def model_columns(path: Path, model: Any, summary: dict[str, Any]) -> list[Column]:
    """The columns that the model itself knows, which must be those that the file says."""
    _check_summary(path, summary)
    columns = _columns_of(model)
    named = [column.name for column in columns] == [each.get("name") for each in summary["columns"]]
    if not (columns and named) or model.calibration_ is None:
        raise _not_ours(path, "holds another model than it says")
    _check_reference(path, summary, columns)
    if hasattr(model, "classes_") != (summary["task"] == "classification"):
        raise _not_ours(path, f"holds no model for {summary['task']}")
    return columns


def described_columns(path: Path, summary: dict[str, Any]) -> list[Column]:
    """The columns that the file alone says, where there is no model to ask."""
    _check_summary(path, summary)
    columns = [column for each in summary["columns"] if (column := parse_column(each)) is not None]
    if not columns or len(columns) < len(summary["columns"]):
        raise _not_ours(path, "does not say what it should of: columns")
    _check_reference(path, summary, columns)
    return columns


def _not_ours(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Expected a model fitted on a table by `onsphere fit`. Got {path}, which {why}. Load it in Python, or fit it "
        "here."
    )


def _check_summary(path: Path, summary: dict[str, Any]) -> None:
    strange = [name for name, is_right in _CHECKS.items() if not is_right(summary.get(name))]
    if strange:
        raise _not_ours(path, f"does not say what it should of: {', '.join(strange)}")


def _check_reference(path: Path, summary: dict[str, Any], columns: list[Column]) -> None:
    """That what is kept of the columns is of these; files that were written before there was any have none."""
    reference = summary.get("reference")
    if reference is not None:
        said = {name: "shares" in each for name, each in reference.items()}
        if said != {column.name: column.kind == "category" for column in columns if column.is_feature}:
            raise _not_ours(path, "does not say what it should of: reference")


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


# What is used of a summary, and what it must be.
_CHECKS = {
    "columns": lambda value: _are(value, dict),
    "targets": lambda value: _are(value, str) and len(value) > 0,
    "task": lambda value: value in TASKS[1:],
    "coverage": lambda value: isinstance(value, float) and 0 < value < 1,
    "why": lambda value: isinstance(value, str),
    "backbone": lambda value: isinstance(value, str),
    "notes": lambda value: _are(value, str),
    "reference": lambda value: value is None or is_reference(value),
    "n_rows": lambda value: (
        isinstance(value, dict) and all(isinstance(value.get(name), int) for name in ("train", "calibration"))
    ),
}


def _columns_of(model: Any) -> list[Column]:
    """What the encoder of a model was told of its columns; nothing where there is none."""
    try:
        encoder = model.estimator_.named_steps["columns"]
        columns: list[Any] = [*encoder.columns]
    except (AttributeError, KeyError, TypeError):
        return []
    return columns if isinstance(encoder, TableEncoder) and all(is_column(column) for column in columns) else []
