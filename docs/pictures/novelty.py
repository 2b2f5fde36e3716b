"""Draw the input frame: rows of two features, the landmarks among them, and how novel every other place is."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import make_moons
from style import Look, draw_both

from onsphere.models.novelty import InputFrame, compute_novelty, fit_input_frame

LIMITS = ((-2.3, 3.3), (-1.7, 2.2))
HEIGHT = 0.25  # of the line along which the right panel shows shortfall and novelty
LINE = np.linspace(*LIMITS[0], 400)

Floats = NDArray[np.float64]


def make_rows(n: int = 800) -> Floats:
    return make_moons(n, noise=0.1, random_state=0)[0]


def draw(look: Look, rows: Floats, frame: InputFrame) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.0), layout="constrained", width_ratios=(1.25, 1))
    draw_map(figure, left, look, rows, frame)
    missed = frame.measure(np.column_stack([LINE, np.full_like(LINE, HEIGHT)]))
    right.axhline(frame.ordinary, color=look.faint, linewidth=1, linestyle=":")
    right.text(0.5, frame.ordinary + 0.02, "98 % of the rows stay below", color=look.faint, ha="center")
    right.plot(LINE, missed, color=look.value, linewidth=2, label="shortfall v")
    right.plot(LINE, compute_novelty(missed, frame.ordinary), color=look.warn, linewidth=2.4, label="novelty π")
    right.set(xlabel="first feature, along the dashed line", ylim=(-0.03, 1.03), xlim=LIMITS[0])
    right.set_title("What the landmarks miss")
    right.legend(loc="upper center")
    return figure


def draw_map(figure: Figure, ax: Axes, look: Look, rows: Floats, frame: InputFrame) -> None:
    """Draw rows, landmarks and novelty."""
    x, y = np.meshgrid(*(np.linspace(*ends, 160) for ends in LIMITS))
    missed = frame.measure(np.column_stack([x.ravel(), y.ravel()])).reshape(x.shape)
    levels = np.linspace(0, 1, 6)
    shade = LinearSegmentedColormap.from_list("novelty", [f"{look.warn}00", f"{look.warn}aa"])
    filled = ax.contourf(x, y, compute_novelty(missed, frame.ordinary), levels=levels, cmap=shade)
    ax.contour(x, y, missed, levels=[frame.ordinary], colors=look.warn, linewidths=1.2)
    ax.scatter(*rows.T, s=5, color=look.data, linewidths=0)
    landmarks = frame.landmarks * frame.scale + frame.center
    ax.scatter(*landmarks.T, s=26, facecolors="none", edgecolors=look.value, linewidths=1.3, label="landmarks")
    ax.axhline(HEIGHT, color=look.faint, linewidth=0.9, linestyle="--")
    ax.set(xlim=LIMITS[0], ylim=LIMITS[1], xlabel="first feature", ylabel="second feature", aspect="equal")
    ax.set_title("Novelty of every place")
    ax.legend(loc="lower left")
    bar = figure.colorbar(filled, ax=ax, shrink=0.8, ticks=levels)
    bar.outline.set_visible(False)


if __name__ == "__main__":
    training = make_rows()
    fitted, _ = fit_input_frame(training)
    draw_both("novelty", lambda look: draw(look, training, fitted))
