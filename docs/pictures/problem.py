"""Draw the problem and the answer: the curve of a plain model, and what HCM adds to a forest and to a network."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from example import DOMAIN, fit_forest, fit_network, make_rows
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from style import Look, draw_both

from onsphere import Assessment

GRID = np.linspace(-4.5, 10.5, 500)


def assess_grid() -> dict[str, Assessment]:
    """Assess inputs along the axis by a forest and by a network."""
    return {"forest": fit_forest().assess(GRID[:, None]), "network": fit_network().assess(GRID[:, None])}


def draw(look: Look, results: dict[str, Assessment], *, stacked: bool = False) -> Figure:
    x, y = make_rows()
    shape, size = ((3, 1), (5, 9.6)) if stacked else ((1, 3), (10, 3.7))
    figure, axes = plt.subplots(*shape, figsize=size, sharex=True, sharey=True, layout="constrained")
    plain, left, right = axes
    for ax, result in zip(axes, (results["network"], *results.values()), strict=True):
        ax.scatter(x[:600], y[:600], s=6, color=look.data, alpha=0.65, linewidths=0, label="training rows")
        ax.plot(GRID, result.value, color=look.value, linewidth=2, label="prediction")
        ax.set(ylim=(-13, 21), xlim=(GRID[0], GRID[-1]), xlabel="input")
        ax.set(xticks=(-4, 0, 4, 8), yticks=[])
    plain.set_title("All predictions look alike")
    plain.set_ylabel("target")
    for place, height, label in ((4.25, 7.5, "noisy"), (9.2, 0, "never\nseen"), (-3.3, 0, "never\nseen")):
        plain.text(place, height, label, ha="center", color=look.warn)
    left.set_title("How far to trust those of a forest")
    draw_answer(left, look, results["forest"])
    right.set_title("... and of a network")
    draw_answer(right, look, results["network"])
    left.legend(loc="upper left", ncols=2, fontsize=8.5, columnspacing=1)
    return figure


def draw_answer(ax: Axes, look: Look, result: Assessment) -> None:
    """Draw intervals, and mark the part of the curve that is rejected."""
    ax.fill_between(
        GRID, result.lower, result.upper, color=look.band, alpha=0.4, linewidth=0, label="90 % interval", zorder=0
    )
    rejected = np.ma.masked_where(result.accepted, result.value)
    ax.plot(GRID, rejected, color=look.warn, linewidth=3.2, label="rejected")
    for edge in DOMAIN:
        ax.axvline(edge, ymax=0.8, color=look.faint, linewidth=0.8, linestyle=":")


if __name__ == "__main__":
    assessments = assess_grid()
    draw_both("problem", lambda look: draw(look, assessments))
    draw_both("problem-narrow", lambda look: draw(look, assessments, stacked=True))
