"""What Tables 3 and 4 share: their columns, how a method gets its figures, and what is claimed of the correlations.

A run holds these figures as run["metrics"][method][metric].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onsphere import metrics
from onsphere._internal.validation import Floats
from onsphere.calibration import Calibration
from reproduction.experiment import Claim, compared

__all__ = [
    "METRICS",
    "RIVALS",
    "VARIANTS",
    "best_correlations",
    "calibrated_metrics",
    "correlation_claims",
    "coverage_gap",
    "listed",
    "mean",
    "metric_rows",
    "outline",
    "short",
]

METRICS = ("cov@1σ", "cov@2σ", "cov@3σ", "Pearson", "Spearman", "ECE_reg", "RMSE")
RIVALS, VARIANTS = ("EDL", "MC Dropout", "Ensemble"), ("HCM", "HCM Lift")


def calibrated_metrics(held_out: Calibration, tested: Calibration) -> dict[str, float]:
    """The figures of the table, with the temperature of the held-out rows."""
    error, uncertainty = tested.error, held_out.temperature * tested.uncertainty
    coverage = [metrics.coverage_at_sigma(error, uncertainty, k=k) for k in (1, 2, 3)]
    correlation = metrics.pearson(error, uncertainty), metrics.spearman(error, uncertainty)
    rest = metrics.regression_calibration_error(error, uncertainty), float(error.mean())
    return dict(zip(METRICS, (*coverage, *correlation, *rest), strict=True))


def metric_rows(
    runs: Sequence[dict[str, Any]], paper: Mapping[str, Sequence[float]], methods: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for every method and metric; some methods are not in the paper."""
    return [
        compared(
            paper[method][index] if method in paper else None,
            [run["metrics"][method][metric] for run in runs],
            method=method,
            metric=metric,
        )
        for method in methods
        for index, metric in enumerate(METRICS)
    ]


def correlation_claims(runs: Sequence[dict[str, Any]]) -> list[Claim]:
    """The paper's main claim, of its own HCM and of ours in its place."""
    found: list[Claim] = []
    for variant in VARIANTS:
        for metric, is_best in best_correlations(runs, variant).items():
            values = {method: mean(runs, method, metric) for method in (*RIVALS, variant)}
            text = f"{variant} has the highest {metric} of four methods"
            found.append(Claim(text, is_best, listed(values), ours=variant != "HCM"))
    return found


def best_correlations(runs: Sequence[dict[str, Any]], method: str = "HCM Lift") -> dict[str, bool]:
    """For Pearson and Spearman, whether the method's mean over seeds is above those of its three rivals."""
    return {
        metric: all(mean(runs, method, metric) > mean(runs, rival, metric) for rival in RIVALS)
        for metric in ("Pearson", "Spearman")
    }


def mean(runs: Sequence[dict[str, Any]], method: str, metric: str) -> float:
    """Over seeds."""
    return float(np.mean([run["metrics"][method][metric] for run in runs]))


def coverage_gap(runs: Sequence[dict[str, Any]], method: str) -> float:
    """Mean distance of the coverages from those of a Gaussian."""
    wanted = {"cov@1σ": 0.68, "cov@2σ": 0.95, "cov@3σ": 0.997}
    return float(np.mean([abs(mean(runs, method, metric) - share) for metric, share in wanted.items()]))


def listed(values: Mapping[str, float]) -> str:
    """Figures by method, for a claim."""
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


def short(values: Floats) -> list[float]:
    """Five digits of each number, to keep."""
    return [float(f"{value:.5g}") for value in values]


def outline(ax: Any, values: Floats, edges: Floats, **style: Any) -> None:
    """A histogram as a line: of several methods, bars would hide each other."""
    counts, _ = np.histogram(values, edges)
    ax.plot((edges[1:] + edges[:-1]) / 2, counts / len(values), marker=".", linewidth=2, **style)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
