"""From held-out rows to intervals, sets, confidence and expected error."""

from onsphere.calibration.calibration import (
    NORMALIZATIONS,
    Calibration,
    ClassCalibration,
    RegressionCalibration,
    conformal_quantile,
    covered_rows,
    covered_share_range,
    fit_temperature,
    root_mean_square,
    rows_needed,
    set_scores,
)

__all__ = [
    "NORMALIZATIONS",
    "Calibration",
    "ClassCalibration",
    "RegressionCalibration",
    "conformal_quantile",
    "covered_rows",
    "covered_share_range",
    "fit_temperature",
    "root_mean_square",
    "rows_needed",
    "set_scores",
]
