"""Draw the target frame: targets on a circle, the mean direction under noise, and the direction beyond the data."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from example import DOMAIN, NOISY, fit_network, make_rows
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from style import Look, draw_both

from onsphere import HCMRegressor

GRID = np.linspace(-4.5, 10.5, 400)
# The inputs of the three circles: a quiet place, a noisy one, and one without rows nearby.
PLACES = {"quiet": 7.4, "noisy": 4.25, "never seen": 10.0}
NEAR = 0.1


def predict_directions(model: HCMRegressor, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the direction that the backbone predicts, (n, 2)."""
    return model.estimator_.predict(x[:, None])[:, :2]


def draw(look: Look, model: HCMRegressor) -> Figure:
    figure = plt.figure(figsize=(10, 5.6), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=(1.25, 1))
    for place, (label, x) in enumerate(PLACES.items()):
        draw_circle(figure.add_subplot(grid[0, place]), look, model, label, x)
    ax = figure.add_subplot(grid[1, :])
    length = np.linalg.norm(predict_directions(model, GRID), axis=1)
    ax.axhline(1.0, color=look.faint, linewidth=1)
    ax.fill_between(GRID, 1, length, where=length < 1, color=look.band, alpha=0.5, linewidth=0, label="shorter than 1")
    ax.fill_between(GRID, 1, length, where=length >= 1, color=look.warn, alpha=0.5, linewidth=0, label="longer than 1")
    ax.plot(GRID, length, color=look.value, linewidth=2)
    for edge in (*DOMAIN, *NOISY):
        ax.axvline(edge, ymax=0.82, color=look.faint, linewidth=0.8, linestyle=":")
    for x in PLACES.values():
        ax.plot(x, np.interp(x, GRID, length), "o", color=look.ink, markersize=5)
    for x, label in ((0.25, "quiet"), (4.25, "noisy"), (7.0, "quiet"), (-3.25, "no rows"), (8.9, "no rows")):
        ax.text(x, 0.92, label, transform=ax.get_xaxis_transform(), ha="center", color=look.faint)
    low, high = length.min(), length.max()
    ax.set(
        xlabel="input", ylabel="length of d̂", xlim=(GRID[0], GRID[-1]), ylim=(low - 0.02, high + 0.25 * (high - low))
    )
    ax.legend(loc="lower right")
    return figure


def draw_circle(ax: Axes, look: Look, model: HCMRegressor, label: str, x: float) -> None:
    """Draw the targets near x on the circle, and the direction that the network predicts there."""
    turn = np.linspace(0, np.pi, 200)
    ax.plot(np.cos(turn), np.sin(turn), color=look.faint, linewidth=1.2)
    inputs, y = make_rows()
    near = y[np.abs(inputs - x) < NEAR]
    if len(near):
        spots = model.embedding_.embed(near).direction
        ax.scatter(*spots.T, s=34, color=look.data, alpha=0.55, linewidths=0, zorder=3)
    tip = predict_directions(model, np.array([x]))[0]
    length = float(np.linalg.norm(tip))
    colour = look.warn if length > 1.02 else look.value
    ax.annotate("", tip, (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2.4})
    ax.set(xlim=(-1.25, 1.25), ylim=(-0.05, 1.15), aspect="equal")
    ax.set_title(f"{label}: ‖d̂‖ = {length:.2f}")
    ax.axis("off")


if __name__ == "__main__":
    network = fit_network(anchor=1.0, frames="target")
    draw_both("sphere", lambda look: draw(look, network))
