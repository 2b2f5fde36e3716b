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
from onsphere.calibration.distribution import TAILS, PredictiveDistribution
from onsphere.calibration.grouped_distribution import GroupedDistribution
from onsphere.calibration.groups import Groups
from onsphere.calibration.online import OnlineCoverage
from onsphere.calibration.probabilities import ProbabilityScaling, fit_scaling
from onsphere.calibration.risk import control_risk, find_safe_settings, hoeffding_bentkus_p_value
from onsphere.calibration.shape import SHAPES, Shape

__all__ = [
    "NORMALIZATIONS",
    "SHAPES",
    "TAILS",
    "Calibration",
    "CalibrationSource",
    "ClassCalibration",
    "GroupedDistribution",
    "Groups",
    "OnlineCoverage",
    "PredictiveDistribution",
    "ProbabilityScaling",
    "RegressionCalibration",
    "Shape",
    "conformal_quantile",
    "control_risk",
    "find_coverage_range",
    "find_safe_settings",
    "fit_scaling",
    "fit_temperature",
    "hoeffding_bentkus_p_value",
    "make_coverage_distribution",
    "root_mean_square",
    "rows_needed",
    "set_scores",
]
