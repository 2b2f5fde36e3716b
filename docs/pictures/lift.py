"""Draw why Lift: an output written twice has only two directions; with an added constant, the direction turns."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from style import Look, draw_both

from onsphere import Duplicate, Lift, SphericalOutput

SIGMA = 0.3  # standard deviation of the noise, that of the target being 1
DISTANCES = np.linspace(0, 10, 41)  # from zero to the mean, in units of the noise
EMBEDDINGS = {"Duplicate": Duplicate(standardize=False), "Lift": Lift(standardize=False)}


def recover_sigma(embedding: Duplicate | Lift, *, n: int = 20_000) -> NDArray[np.float64]:
    """Return σ̂ / σ of a perfect model, which knows the mean direction and magnitude, at each distance."""
    z = SIGMA * np.random.default_rng(0).normal(size=n)
    ratios: list[float] = []
    for distance in DISTANCES:
        target = z + distance * SIGMA
        outputs = embedding.fit(target).embed(target)
        mean = SphericalOutput(outputs.direction.mean(axis=0)[None], outputs.magnitude.mean()[None])
        ratios.append(embedding.sigma(mean).item() / SIGMA)
    return np.array(ratios)


def draw(look: Look, shares: dict[str, NDArray[np.float64]]) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.3), layout="constrained", width_ratios=(1, 1, 1.35))
    target = 1.5 + SIGMA * np.random.default_rng(1).normal(size=60)
    for ax, (name, embedding), colour in zip(axes, EMBEDDINGS.items(), (look.warn, look.value), strict=False):
        draw_points(ax, look, target, embedding, colour)
        ax.set_title({"Duplicate": "Duplicate: all on one spot", "Lift": "Lift: spread like y"}[name])
    ax = axes[2]
    ax.axhline(1, color=look.faint, linewidth=1, linestyle=":")
    ax.plot(DISTANCES, shares["Duplicate"], color=look.warn, linewidth=2.4)
    ax.plot(DISTANCES, shares["Lift"], color=look.value, linewidth=2.4)
    ax.text(5.2, 0.1, "Duplicate", color=look.warn)
    ax.text(7.9, 1.05, "Lift", color=look.value)
    ax.set(ylim=(0, 1.3), xlim=(0, 10), xlabel="mean of y, in units of its noise")
    ax.set_title("Share of the noise seen, σ̂ / σ")
    return figure


def draw_points(ax: Axes, look: Look, target: NDArray[np.float64], embedding: Duplicate | Lift, colour: str) -> None:
    """Draw targets as vectors, and where they meet the circle."""
    outputs = embedding.fit(target).embed(target)
    vectors = outputs.direction * outputs.magnitude[:, None]
    turn = np.linspace(-0.1, np.pi / 2 + 0.1, 100)
    ax.plot(np.cos(turn), np.sin(turn), color=look.faint, linewidth=1.2)
    for vector in vectors:
        ax.plot(*np.transpose([(0, 0), vector]), color=look.faint, linewidth=0.4, alpha=0.6)
    ax.scatter(*vectors.T, s=16, color=look.data, linewidths=0, zorder=3)
    ax.scatter(*outputs.direction.T, s=30, color=colour, linewidths=0, zorder=4)
    ax.set(aspect="equal", xlim=(-0.15, 3.2), ylim=(-0.15, 3.3))
    ax.axis("off")


if __name__ == "__main__":
    recovered = {name: recover_sigma(embedding) for name, embedding in EMBEDDINGS.items()}
    draw_both("lift", lambda look: draw(look, recovered))
