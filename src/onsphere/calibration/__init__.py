"""From held-out rows to intervals, sets, confidence and expected error."""

from onsphere.calibration.calibration import (
    NORMALIZATIONS,
    Calibration,
    CalibrationSource,
    ClassCalibration,
    RegressionCalibration,
    fit_temperature,
    root_mean_square,
)
from onsphere.calibration.conformal import (
    conformal_quantile,
    find_coverage_range,
    make_coverage_distribution,
    rows_needed,
    set_scores,
)

__all__ = [
    "NORMALIZATIONS",
    "Calibration",
    "CalibrationSource",
    "ClassCalibration",
    "RegressionCalibration",
    "conformal_quantile",
    "find_coverage_range",
    "fit_temperature",
    "make_coverage_distribution",
    "root_mean_square",
    "rows_needed",
    "set_scores",
]
