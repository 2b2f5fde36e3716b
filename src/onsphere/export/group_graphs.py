"""Intervals of groups in a graph: which group a row belongs to, and how wide its interval is."""

from __future__ import annotations

from typing import Any

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.calibration import ClassCalibration, Groups, RegressionCalibration
from onsphere.calibration.groups import MISSING
from onsphere.errors import InvalidInputError
from onsphere.export.graph_arrays import ROWS, GraphArray, concat
from onsphere.export.graph_inputs import Inputs
from onsphere.export.tree_graphs import look_up_steps

__all__ = ["check_groups", "compute_half_widths", "compute_widest_half", "find_group_column", "find_known_groups"]

_KINDS = ("prediction", "novelty", "column")


def check_groups(model: Any) -> None:
    """Check that a graph can do what a model was calibrated for."""
    calibration = model.calibration_
    if isinstance(calibration, ClassCalibration) and (calibration.groups is not None or calibration.penalty > 0):
        raise InvalidInputError(
            "Expected a model whose sets have one limit, to export. Got one with groups or a set_penalty. Calibrate it "
            "without them, or use the model itself."
        )
    groups = None if calibration is None else calibration.groups
    if groups is not None and groups.source.kind not in _KINDS:
        raise InvalidInputError(
            "Expected groups that a graph can find: by 'prediction', by 'novelty' or by a column. Got groups by a "
            "function or by given values. Calibrate with one of these, or use the model itself."
        )


def find_group_column(model: Any, x: GraphArray, inputs: Inputs) -> GraphArray | None:
    """Return the column that gives the groups, (n, 1): numbers, or text; None if another thing or nothing does."""
    groups = None if model.calibration_ is None else model.calibration_.groups
    if groups is None or groups.source.kind != "column":
        return None
    column = groups.source.column
    if inputs[0]["kind"] == "table":
        names = inputs[0]["columns"]
        place = column if names is None else names.index(column)
        return x[:, place : place + 1]
    described = next(each for each in inputs if each["column"]["name"] == column)
    dtype = np.dtype(np.str_) if described["kind"] == "category" else np.dtype(np.float64)
    return GraphArray(x.graph, described["name"], (ROWS, 1), dtype)


def find_known_groups(model: Any, X: Any) -> Any:
    """Return the rows of a drawn table whose group has calibration rows."""
    groups = None if model.calibration_ is None else model.calibration_.groups
    if groups is None or groups.source.kind != "column":
        return X
    return X[groups.locate(X[groups.source.column]) >= 0]


def compute_half_widths(
    calibration: RegressionCalibration,
    coverage: float,
    *,
    column: GraphArray | None,
    value: GraphArray,
    missed: GraphArray | None,
) -> Any:
    """Return half of an interval in units of sigma: (D,), or (n, D) with groups, NaN for a group without rows."""
    groups = calibration.groups
    if groups is None:
        return _find_half(calibration, coverage)
    by_group = np.array([_find_half(calibration.select(part), coverage) for part in groups.parts.tolist()])
    sources = {"prediction": value[:, :1], "novelty": None if missed is None else missed[:, None], "column": column}
    return _look_up(groups, sources[groups.source.kind], by_group)  # type: ignore[reportArgumentType]


def compute_widest_half(calibration: RegressionCalibration, coverage: float) -> Floats:
    """Return half of an interval in units of sigma, (D,), that of the widest group."""
    parts = [None] if calibration.groups is None else calibration.groups.parts.tolist()
    known = [calibration if part is None else calibration.select(part) for part in parts]
    return np.max([_find_half(each, coverage) for each in known], axis=0)


def _find_half(calibration: RegressionCalibration, coverage: float) -> Floats:
    """Return the upper end of the interval of a row with value 0 and sigma 1."""
    shape = (1, calibration.residuals.shape[1])
    return calibration.interval(np.zeros(shape), np.ones(shape), coverage=coverage)[0, :, 1]


def _look_up(groups: Groups, source: GraphArray, by_group: Floats) -> GraphArray:
    """Return the row of a table, (n, D), that belongs to the group of each value of the source, (n, 1)."""
    xp = source.__array_namespace__()
    has_missing = groups.names[-1] == MISSING
    if groups.edges is not None:
        known = by_group[: len(groups.edges) + 1]
        found = concat([look_up_steps(source, groups.edges, levels) for levels in known.T])
        return xp.where(xp.isnan(source), by_group[-1:] if has_missing else np.nan, found)
    if source.dtype.kind == "U":
        levels: Any = np.array([["" if name == MISSING else name for name in groups.names]], dtype=object)
        shown = (source == levels).cast(np.float64)
    else:
        numbers = np.array([[np.nan if name == MISSING else float(name) for name in groups.names]])
        is_missing = xp.isnan(source).cast(np.float64) * np.isnan(numbers).astype(np.float64)
        shown = (source == np.nan_to_num(numbers, nan=np.inf)).cast(np.float64) + is_missing
    is_known = shown.reduce("ReduceSum", axis=1, keepdims=True)
    return xp.where(is_known == 0.0, np.nan, shown @ by_group)
