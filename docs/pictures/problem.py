"""Draw the problem and the answer: the curve of a plain network, and the same curve with what HCM adds."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from example import DOMAIN, fit_network, make_rows
from matplotlib.figure import Figure
from style import Look, draw_both

from onsphere import Assessment

GRID = np.linspace(-4.5, 10.5, 500)


def assess_grid() -> Assessment:
    """Assess inputs along the axis; both panels show the same predictions."""
    return fit_network().assess(GRID[:, None])


def draw(look: Look, result: Assessment, *, stacked: bool = False) -> Figure:
    x, y = make_rows()
    shape, size = ((2, 1), (5, 7)) if stacked else ((1, 2), (10, 3.9))
    figure, axes = plt.subplots(*shape, figsize=size, sharex=True, sharey=True, layout="constrained")
    for ax in axes:
        ax.scatter(x[:600], y[:600], s=7, color=look.data, alpha=0.65, linewidths=0, label="training rows")
        ax.plot(GRID, result.value, color=look.value, linewidth=2.2, label="prediction")
        ax.set(ylim=(-11, 19), xlim=(GRID[0], GRID[-1]), xlabel="input")
        ax.set_yticks([])
    plain, ours = axes
    plain.set_title("The problem: all predictions look alike")
    plain.set_ylabel("target")
    labels = ((4.25, 7.5, "noisy"), (9.4, 3.5, "never\nseen"), (-3.4, 3.5, "never\nseen"))
    for place, height, label in labels:
        plain.text(place, height, label, ha="center", color=look.warn)
    ours.set_title("The answer: how far to trust each one")
    ours.fill_between(
        GRID, result.lower, result.upper, color=look.band, alpha=0.4, linewidth=0, label="90 % interval", zorder=0
    )
    rejected = np.ma.masked_where(result.accepted, result.value)
    ours.plot(GRID, rejected, color=look.warn, linewidth=3.4, label="rejected")
    for edge in DOMAIN:
        ours.axvline(edge, ymax=0.78, color=look.faint, linewidth=0.8, linestyle=":")
    ours.legend(loc="upper left", ncols=2, fontsize=9.5)
    return figure


if __name__ == "__main__":
    assessment = assess_grid()
    draw_both("problem", lambda look: draw(look, assessment))
    draw_both("problem-narrow", lambda look: draw(look, assessment, stacked=True))
