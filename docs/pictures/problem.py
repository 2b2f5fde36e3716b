"""The problem and the answer: a curve as a plain network gives it, and with what HCM says about it."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from example import DOMAIN, NOISY, fitted, rows
from matplotlib.figure import Figure
from style import Look, draw_both

from onsphere import Assessment

GRID = np.linspace(-4.5, 10.5, 500)


def answer() -> Assessment:
    """What the network and HCM say along the axis; the prediction is that of the left panel as well."""
    return fitted().assess(GRID[:, None])


def draw(look: Look, found: Assessment, *, stacked: bool = False) -> Figure:
    x, y = rows()
    shape, size = ((2, 1), (5, 7)) if stacked else ((1, 2), (10, 3.9))
    figure, axes = plt.subplots(*shape, figsize=size, sharex=True, sharey=True, layout="constrained")
    for ax in axes:
        ax.scatter(x[:600], y[:600], s=7, color=look.data, alpha=0.65, linewidths=0, label="rows to learn from")
        ax.plot(GRID, found.value, color=look.value, linewidth=2.2, label="prediction")
        ax.set(ylim=(-11, 19), xlim=(GRID[0], GRID[-1]), xlabel="input")
        ax.set_yticks([])
    plain, ours = axes
    plain.set_title("The problem: every prediction looks alike")
    plain.set_ylabel("target")
    for place, height, told in ((NOISY[0] + 1.75, 7.5, "noisy"), (9.4, 3.5, "never\nseen"), (-3.4, 3.5, "never\nseen")):
        plain.text(place, height, told, ha="center", color=look.warn)
    ours.set_title("The answer: each says how far to trust it")
    ours.fill_between(
        GRID, found.lower, found.upper, color=look.band, alpha=0.4, linewidth=0, label="90 % interval", zorder=0
    )
    refused = np.ma.masked_where(found.accepted, found.value)
    ours.plot(GRID, refused, color=look.warn, linewidth=3.4, label="not accepted")
    for edge in DOMAIN:
        ours.axvline(edge, ymax=0.78, color=look.faint, linewidth=0.8, linestyle=":")
    ours.legend(loc="upper left", ncols=2, fontsize=9.5)
    return figure


if __name__ == "__main__":
    said = answer()
    draw_both("problem", lambda look: draw(look, said))
    draw_both("problem-narrow", lambda look: draw(look, said, stacked=True))
