"""Load a model that was fitted on a table, and check what its file says about the table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from onsphere.drift.reference import is_reference
from onsphere.errors import InvalidInputError
from onsphere.models import HCMClassifier, HCMRegressor
from onsphere.persistence import load_with_manifest
from onsphere.table.columns import Column, is_column, parse_column
from onsphere.table.encoder import TableEncoder
from onsphere.table.prepare import TASKS

__all__ = ["load_table_model", "read_model_columns", "read_summary_columns", "read_target_columns"]


def load_table_model(path: Path) -> tuple[Any, dict[str, Any], list[Column]]:
    """Return a model of `fit_table` from its file, the summary that was saved with it, and its columns."""
    model, manifest = load_with_manifest(path)
    summary = manifest["summary"]
    if "columns" not in summary:
        raise _make_error(path, "was saved in Python and does not say what its columns hold")
    return model, summary, read_model_columns(path, model, summary)


def read_target_columns(summary: dict[str, Any]) -> list[Column] | None:
    """Return how the targets of a model are written; None where its file, of an older version, does not say.

    Numbers are to be read as text, since how other files write them is not found anew.
    """
    described = summary.get("target_columns")
    if described is None:
        return None
    columns = [Column(**each) for each in described]
    return [replace(column, written_as_text=True) if column.kind == "number" else column for column in columns]


def read_model_columns(path: Path, model: Any, summary: dict[str, Any]) -> list[Column]:
    """Return the columns that the encoder of a model has, which must be those that the file names."""
    _check_summary(path, summary)
    columns = _find_columns(model)
    _trim_levels(model, columns, summary)
    has_names = [column.name for column in columns] == [each.get("name") for each in summary["columns"]]
    if not (columns and has_names) or model.calibration_ is None:
        raise _make_error(path, "holds another model than it says")
    _check_reference(path, summary, columns)
    if not isinstance(model, HCMClassifier if summary["task"] == "classification" else HCMRegressor):
        raise _make_error(path, f"holds no model for {summary['task']}")
    return columns


def _trim_levels(model: Any, columns: list[Column], summary: dict[str, Any]) -> None:
    """Take spaces from around the categories of an older version, which kept them; cells are read without."""
    if not columns:
        return
    encoder: TableEncoder = model.estimator_.named_steps["columns"]
    encoder.levels_ = {name: [level.strip() for level in levels] for name, levels in encoder.levels_.items()}
    encoder.places_ = {
        name: ([None if level is None else level.strip() for level in levels], places)
        for name, (levels, places) in encoder.places_.items()
    }
    for each in (summary.get("reference") or {}).values():
        if "shares" in each:
            shares = Counter[str]()
            for level, share in each["shares"].items():
                shares[level.strip()] += share
            each["shares"] = dict(shares)


def read_summary_columns(path: Path, summary: dict[str, Any]) -> list[Column]:
    """Return the columns that a file names, where there is no model to compare them with."""
    _check_summary(path, summary)
    columns = [column for each in summary["columns"] if (column := parse_column(each)) is not None]
    if not columns or len(columns) < len(summary["columns"]):
        raise _make_error(path, f"{_WRONG} columns")
    _check_reference(path, summary, columns)
    return columns


_WRONG = "does not say what it should about:"


def _make_error(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Expected a model that was fitted on a table. Got {path}, which {why}. Load it in Python, or fit it again."
    )


def _check_summary(path: Path, summary: dict[str, Any]) -> None:
    wrong = [name for name, is_valid in _CHECKS.items() if not is_valid(summary.get(name))]
    if wrong:
        raise _make_error(path, f"{_WRONG} {', '.join(wrong)}")


def _check_reference(path: Path, summary: dict[str, Any], columns: list[Column]) -> None:
    """Check that the reference is about these columns; files of the first versions have none."""
    reference = summary.get("reference")
    if reference is not None:
        is_text = {name: "shares" in each for name, each in reference.items()}
        if is_text != {column.name: column.kind == "category" for column in columns if column.is_feature}:
            raise _make_error(path, f"{_WRONG} reference")


def _is_list_of(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


# The parts of a summary that are used, and what each must be.
_CHECKS = {
    "columns": lambda value: _is_list_of(value, dict),
    "targets": lambda value: _is_list_of(value, str) and len(value) > 0,
    "task": lambda value: value in TASKS[1:],
    "coverage": lambda value: isinstance(value, float) and 0 < value < 1,
    "why": lambda value: isinstance(value, str),
    "backbone": lambda value: isinstance(value, str),
    "notes": lambda value: _is_list_of(value, str),
    "target_columns": lambda value: value is None or (_is_list_of(value, dict) and all(map(parse_column, value))),
    "reference": lambda value: value is None or is_reference(value),
    "taken_in": lambda value: value is None or _is_list_of(value, int),
    "time": lambda value: value is None or (isinstance(value, dict) and parse_column(value) is not None),
    "n_rows": lambda value: (
        isinstance(value, dict) and all(isinstance(value.get(name), int) for name in ("train", "calibration"))
    ),
}


def _find_columns(model: Any) -> list[Column]:
    """Return the columns that the encoder of a model was given; none where there is no encoder."""
    try:
        encoder = model.estimator_.named_steps["columns"]
        columns: list[Any] = [*encoder.columns]
    except (AttributeError, KeyError, TypeError):
        return []
    return columns if isinstance(encoder, TableEncoder) and all(is_column(column) for column in columns) else []
