"""From held-out rows to intervals, sets, confidence and expected error."""

from onsphere.calibration.calibration import (
    Calibration,
    CalibrationSource,
    ClassCalibration,
    RegressionCalibration,
    root_mean_square,
)
from onsphere.calibration.confidence import NORMALIZATIONS, fit_temperature
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
