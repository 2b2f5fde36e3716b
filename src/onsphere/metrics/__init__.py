"""Metrics of errors, uncertainties, intervals and scores: pure functions of arrays."""

from __future__ import annotations

from onsphere.metrics.classification import (
    accuracy,
    aupr,
    auroc,
    brier_score,
    expected_calibration_error,
    fpr_at_tpr,
    log_loss,
)
from onsphere.metrics.predictive import crps, crps_per_row, pinball_loss, pit_uniformity
from onsphere.metrics.regression import (
    coverage_at_sigma,
    gaussian_crps,
    interval_coverage,
    interval_width,
    isotonic_calibration_error,
    mean_sample_rmse,
    monotonicity_index,
    pearson,
    regression_calibration_error,
    sample_rmse,
    spearman,
    winkler_score,
)
from onsphere.metrics.selective import aurc, excess_aurc, risk_coverage_curve

__all__ = [
    "accuracy",
    "aupr",
    "aurc",
    "auroc",
    "brier_score",
    "coverage_at_sigma",
    "crps",
    "crps_per_row",
    "excess_aurc",
    "expected_calibration_error",
    "fpr_at_tpr",
    "gaussian_crps",
    "interval_coverage",
    "interval_width",
    "isotonic_calibration_error",
    "log_loss",
    "mean_sample_rmse",
    "monotonicity_index",
    "pearson",
    "pinball_loss",
    "pit_uniformity",
    "regression_calibration_error",
    "risk_coverage_curve",
    "sample_rmse",
    "spearman",
    "winkler_score",
]
