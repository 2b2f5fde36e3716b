"""What a graph says of itself, in JSON under one key of its metadata: written at export, checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onsphere import persistence
from onsphere._internal.validation import is_number
from onsphere.errors import InvalidInputError
from onsphere.table.columns import Column, is_column

__all__ = ["KEY", "N_SCORES", "calibration_scores", "read_facts"]

KEY = "onsphere"
N_SCORES = 100_000  # calibration scores, at most, that a graph carries: two megabytes of text


def calibration_scores(model: Any) -> list[float] | None:
    """The uncertainties of the calibration rows, sorted; what a drift alarm compares with.

    Of more than N_SCORES so many are drawn at random: new rows are exchangeable with these as with all, so what the
    alarm promises stays exact. It would not with scores picked by their ranks.
    """
    if model.calibration_ is None:
        return None
    scores = model.calibration_.uncertainty
    if len(scores) > N_SCORES:
        scores = np.random.default_rng(0).choice(scores, N_SCORES, replace=False)
    return np.sort(scores).tolist()


def read_facts(path: Path, session: Any) -> dict[str, Any]:
    """The metadata of a graph, which may have been written by anybody."""
    try:
        facts: Any = json.loads(session.get_modelmeta().custom_metadata_map.get(KEY) or "null")
    except (ValueError, RecursionError):
        facts = None
    if not (isinstance(facts, dict) and all(name in facts for name in _CHECKS if name != "calibration")):
        raise InvalidInputError(
            f"Expected a graph with the metadata of onsphere. Got {path}, an ONNX graph without them, which does not "
            "say what it takes and gives. Write it by export_onnx or `onsphere export`."
        )
    manifest = facts["manifest"]
    version: Any = manifest.get("format") if isinstance(manifest, dict) else None
    if isinstance(version, int | float) and version > persistence.FORMAT:
        raise InvalidInputError(
            f"Expected a graph of format {persistence.FORMAT} or older. Got {path} of format {version}. Install a "
            "newer onsphere."
        )
    strange = [name for name, is_right in _CHECKS.items() if not is_right(facts.get(name))]
    if not strange:
        inputs, outputs = session.get_inputs(), session.get_outputs()
        fit = {
            "inputs": len(facts["inputs"]) == len(inputs) and all(map(_takes, inputs, facts["inputs"])),
            "outputs": facts["outputs"] == [each.name for each in outputs],
        }
        strange = [name for name, is_right in fit.items() if not is_right]
    if strange:
        raise InvalidInputError(
            f"Expected a graph whose metadata fit it, as export_onnx writes them. Got {path}, where these do not: "
            f"{', '.join(strange)}. Write it anew by export_onnx or `onsphere export`."
        )
    return facts


def _takes(given: Any, described: dict[str, Any]) -> bool:
    """Whether an input of a graph is as it is described: its name, its type and how many columns it has."""
    kind = "tensor(string)" if described["kind"] == "category" else "tensor(double)"
    columns = described["columns"] if described["kind"] == "table" else [described["column"]]
    return (given.name, given.type, len(given.shape)) == (described["name"], kind, 2) and (
        columns is None or len(columns) == given.shape[1]
    )


def _are(values: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and len(values) > 0 and all(is_right(value) for value in values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_input(described: Any) -> bool:
    match described:
        case {"name": str(), "kind": "table", "columns": columns}:
            return columns is None or _are(columns, _is_text)
        case {"name": str(), "kind": str(kind), "column": dict(column)}:
            try:
                said = Column(**column)
            except TypeError:
                return False
            return is_column(said) and said.is_feature and said.kind == kind
        case _:
            return False


def _is_manifest(manifest: Any) -> bool:
    return (
        isinstance(manifest, dict)
        and all(name in manifest and is_right(manifest[name]) for name, is_right in _OF_MANIFEST.items())
        and manifest.get("calibrated_by") in (None, *persistence.CALIBRATED_BY)  # older files do not say it
    )


# What is used of the metadata, and what it must be.
_OF_MANIFEST: dict[str, Callable[[Any], bool]] = {
    "format": lambda value: type(value) is int and value > 0,
    "onsphere": _is_text,
    "libraries": lambda value: isinstance(value, dict),
    "model": _is_text,
    "n_features": lambda value: value is None or (type(value) is int and value >= 0),
    "columns": lambda value: value is None or _are(value, _is_text),
    "classes": lambda value: value is None or _are(value, lambda each: _is_text(each) or isinstance(each, int | float)),
    "calibration_rows": lambda value: value is None or (type(value) is int and value > 0),
    "threshold": lambda value: value is None or value == "inf" or is_number(value),
    "rule": lambda value: value is None or _is_text(value),
    "summary": lambda value: isinstance(value, dict),
}
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "manifest": _is_manifest,
    "coverage": lambda value: is_number(value) and 0 < value < 1,
    "inputs": lambda value: (
        _are(value, _is_input) and (len(value) == 1 or all(each["kind"] != "table" for each in value))
    ),
    "outputs": lambda value: _are(value, _is_text),
    "parity": lambda value: isinstance(value, dict),
    "calibration": lambda value: value is None or _are(value, is_number),  # files written before it was have none
}
