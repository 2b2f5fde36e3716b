"""The columns of Tables 3 and 4, the figures of a method, and the claims about correlations.

A run holds these figures as run["metrics"][method][metric].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onsphere import Calibration, metrics
from reproduction.arguments import Floats
from reproduction.experiment import Claim, make_row

__all__ = [
    "METRICS",
    "RIVALS",
    "STANDARDIZED",
    "VARIANTS",
    "average",
    "check_correlations",
    "compute_metrics",
    "coverage_gap",
    "draw_outline",
    "find_best_correlations",
    "find_rivals",
    "format_figures",
    "make_metric_rows",
    "round_figures",
]

METRICS = ("cov@1σ", "cov@2σ", "cov@3σ", "Pearson", "Spearman", "ECE_reg", "RMSE")
RIVALS, VARIANTS = ("EDL", "MC Dropout", "Ensemble"), ("HCM", "HCM Lift")
# The rivals once more, with targets that are standardised first; not every experiment has them.
STANDARDIZED = tuple(f"{rival} standardised" for rival in RIVALS)


def compute_metrics(held_out: Calibration, tested: Calibration) -> dict[str, float]:
    """Return the figures of the table, with the temperature of the held-out rows."""
    error, uncertainty = tested.error, held_out.temperature * tested.uncertainty
    coverage = [metrics.coverage_at_sigma(error, uncertainty, k=k) for k in (1, 2, 3)]
    correlation = metrics.pearson(error, uncertainty), metrics.spearman(error, uncertainty)
    rest = metrics.regression_calibration_error(error, uncertainty), float(error.mean())
    return dict(zip(METRICS, (*coverage, *correlation, *rest), strict=True))


def make_metric_rows(
    runs: Sequence[dict[str, Any]], paper: Mapping[str, Sequence[float]], methods: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for every method and metric; some methods are not in the paper."""
    return [
        make_row(
            paper[method][index] if method in paper else None,
            [run["metrics"][method][metric] for run in runs],
            method=method,
            metric=metric,
        )
        for method in methods
        for index, metric in enumerate(METRICS)
    ]


def check_correlations(runs: Sequence[dict[str, Any]]) -> list[Claim]:
    """Check the paper's main claim, for its own HCM and for ours in its place; ours against all rivals there are."""
    both = find_rivals(runs, VARIANTS[1])
    compared = [("HCM", RIVALS), *((variant, both) for variant in VARIANTS if (variant, both) != ("HCM", RIVALS))]
    found: list[Claim] = []
    for number, (variant, rivals) in enumerate(compared):
        for metric, is_best in find_best_correlations(runs, variant, rivals=rivals).items():
            values = {method: average(runs, method, metric) for method in (*rivals, variant)}
            text = f"{variant} has the highest {metric} of {_COUNTS[len(values)]} methods"
            found.append(Claim(text, is_best, format_figures(values), ours=number > 0))
    return found


_COUNTS = {4: "four", 7: "seven"}


def find_best_correlations(
    runs: Sequence[dict[str, Any]], method: str = "HCM Lift", *, rivals: Sequence[str] | None = None
) -> dict[str, bool]:
    """Return, for Pearson and Spearman, whether the method's mean over seeds is above those of its rivals."""
    others = find_rivals(runs, method) if rivals is None else rivals
    return {
        metric: all(average(runs, method, metric) > average(runs, rival, metric) for rival in others)
        for metric in ("Pearson", "Spearman")
    }


def find_rivals(runs: Sequence[dict[str, Any]], method: str) -> tuple[str, ...]:
    """Return whom a method is compared with: the paper's HCM with rivals trained like it, ours with all there are."""
    has_both = method != "HCM" and STANDARDIZED[0] in runs[0]["metrics"]
    return (*RIVALS, *STANDARDIZED) if has_both else RIVALS


def average(runs: Sequence[dict[str, Any]], method: str, metric: str) -> float:
    """Return the mean over seeds."""
    return float(np.mean([run["metrics"][method][metric] for run in runs]))


def coverage_gap(runs: Sequence[dict[str, Any]], method: str) -> float:
    """Return the mean distance of the coverages from those of a Gaussian."""
    wanted = {"cov@1σ": 0.68, "cov@2σ": 0.95, "cov@3σ": 0.997}
    return float(np.mean([abs(average(runs, method, metric) - share) for metric, share in wanted.items()]))


def format_figures(values: Mapping[str, float]) -> str:
    """Return figures by method as text, for a claim."""
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


def round_figures(values: Floats) -> list[float]:
    """Round each number to five digits, for the file of a run."""
    return [float(f"{value:.5g}") for value in values]


def draw_outline(ax: Any, values: Floats, edges: Floats, **style: Any) -> None:
    """Draw a histogram as a line, because the bars of several methods would hide each other."""
    counts, _ = np.histogram(values, edges)
    ax.plot((edges[1:] + edges[:-1]) / 2, counts / len(values), marker=".", linewidth=2, **style)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
