"""Draw how the total is made: what each frame sees along the input, and what is made of it."""

from __future__ import annotations

import copy

import matplotlib.pyplot as plt
import numpy as np
from example import DOMAIN, fit_network, noise
from matplotlib.figure import Figure
from numpy.typing import NDArray
from style import Look, draw_both

from onsphere import HCMRegressor

GRID = np.linspace(-4.5, 10.5, 400)

Floats = NDArray[np.float64]


def measure_frames(model: HCMRegressor) -> dict[str, Floats]:
    """Return σ̂ of the target frame, the noise, the novelty and the total along the input."""
    result = model.assess(GRID[:, None])
    alone = copy.copy(model).set_params(uncertainty_score="sigma").predict_uncertainty(GRID[:, None])
    parts = {"noise": result.noise, "novelty": result.novelty, "total": result.sigma}
    return {"target": alone} | {name: np.asarray(values) for name, values in parts.items()}


def draw(look: Look, measured: dict[str, Floats]) -> Figure:
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(10, 5.2), sharex=True, layout="constrained", height_ratios=(2.6, 1)
    )
    within = np.linspace(*DOMAIN, 200)
    top.plot(within, noise(within), color=look.ink, linewidth=1.2, linestyle="--", label="true noise")
    top.plot(GRID, measured["total"], color=look.band, linewidth=7, alpha=0.6, label="total σ")
    top.plot(GRID, measured["target"], color=look.other, linewidth=1.8, label="T, of the target frame")
    top.plot(GRID, measured["noise"], color=look.value, linewidth=1.8, label="N, of the error frame")
    top.set(
        yscale="log", ylim=(0.08, 12), xlim=(GRID[0], GRID[-1]), yticks=(0.1, 1, 10), yticklabels=("0.1", "1", "10")
    )
    top.set_title("Standard deviation, in the unit of the target")
    top.legend(loc="upper center", ncols=2)
    bottom.fill_between(GRID, measured["novelty"], color=look.warn, alpha=0.5, linewidth=0)
    bottom.plot(GRID, measured["novelty"], color=look.warn, linewidth=2)
    bottom.set(ylim=(0, 1.05), xlabel="input")
    bottom.set_title("Novelty π, of the input frame")
    for ax in (top, bottom):
        for edge in DOMAIN:
            ax.axvline(edge, color=look.faint, linewidth=0.8, linestyle=":")
    return figure


if __name__ == "__main__":
    found = measure_frames(fit_network())
    draw_both("total", lambda look: draw(look, found))
