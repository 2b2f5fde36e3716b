"""Group calibration rows, and weigh them so that they stand for other rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, missing_frame_error, parameter_error
from onsphere.calibration.density_ratio import ShiftWeights, weigh_rows
from onsphere.calibration.groups import GroupSource
from onsphere.errors import InvalidInputError
from onsphere.models.backbone import find_table

__all__ = ["find_group_values", "weigh_calibration_rows"]


def find_group_values(
    model: Any, caller: str, source: GroupSource, prediction: Any, X: Any, groups: Any, y: Any
) -> NDArray[Any]:
    """Return the value of each row by which it is grouped; y is only known at calibration."""
    if source.kind == "prediction":
        values = prediction.get_value(model)
        if values.ndim > 1:
            raise InvalidInputError(
                "groups='prediction' needs one output. Got several. Pass a function of X, or a value for each row."
            )
        return values
    if source.kind == "novelty":
        if prediction.missed is None:
            raise missing_frame_error(model, "calibrate with groups='novelty'", "input")
        return prediction.missed  # the shortfall, because most rows have the novelty 0
    if source.kind == "class":
        if not model._has_classes(y):
            raise parameter_error("calibrate", "groups", "another one for numbers, which have no classes", "class")
        return np.asarray(y)
    return source.find_values(caller, X, groups)


def weigh_calibration_rows(model: Any, X: Any, target_rows: Any, weights: Floats | None) -> ShiftWeights:
    """Return weights with which calibration rows stand for target rows."""
    if weights is not None:
        raise InvalidInputError(
            "Expected target_rows or a sample_weight. Got both. Weights that lead from X to the target rows are found "
            "by calibrate; leave sample_weight out."
        )
    model._predict(target_rows)  # raises what cannot be used
    found, wanted = find_table(model.estimator_, X), find_table(model.estimator_, target_rows)
    if found is None or wanted is None:
        raise InvalidInputError(
            "calibrate with target_rows needs rows that are a table of numbers. Got others. Put the steps that make "
            "numbers of the columns before the regressor in a Pipeline, or pass a sample_weight."
        )
    return weigh_rows(found[1], wanted[1])
