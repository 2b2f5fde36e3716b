"""Draw the distributions of prices over four orders of magnitude, and where the truth lies in them."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor
from style import Look, draw_both

from onsphere import HCMRegressor

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
N_BINS = 10

Floats = NDArray[np.float64]


def make_prices(n: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Return sizes and prices; the noise is in proportion to the price."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0, 1, n)
    return size, np.exp(9.2 * size + 0.5 * rng.normal(size=n))


def fit_model() -> HCMRegressor:
    """Return a calibrated forest that found out what prices can be."""
    forest = ExtraTreesRegressor(100, min_samples_leaf=10)
    model = HCMRegressor(forest, domain="auto", random_state=0)
    size, price = make_prices(800)
    held, known = make_prices(499, seed=1)
    return model.fit(size[:, None], price).calibrate(held[:, None], known)


def draw(look: Look, model: HCMRegressor, n: int = 2000) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained", width_ratios=(1.4, 1))
    size, price = make_prices(300, seed=2)
    grid = np.linspace(0.01, 0.99, 200)
    quantiles = model.predict_quantiles(grid[:, None], LEVELS)
    for first, alpha in ((0, 0.25), (1, 0.35)):
        name = f"{LEVELS[first]:.0%} to {LEVELS[-1 - first]:.0%}"
        ends = quantiles[:, first], quantiles[:, -1 - first]
        left.fill_between(grid, *ends, color=look.band, alpha=alpha, linewidth=0, label=name)
    left.plot(grid, quantiles[:, 2], color=look.value, linewidth=2, label="median")
    left.plot(size, price, ".", color=look.data, markersize=4, label="new rows")
    left.set(xlabel="size", ylabel="price", yscale="log")
    left.set_title("Quantiles of prices")
    left.legend(loc="upper left")
    new, truth = make_prices(n, seed=3)
    pit = model.predict_distribution(new[:, None]).pit(truth)
    right.hist(pit, bins=N_BINS, range=(0, 1), weights=np.full(n, 1 / n), color=look.band, alpha=0.6)
    right.axhline(1 / N_BINS, color=look.faint, linewidth=1, linestyle=":")
    right.set(xlabel="place of the truth in its distribution", ylabel="share of rows")
    right.set_title("Each tenth holds a tenth")
    return figure


if __name__ == "__main__":
    fitted = fit_model()
    draw_both("distribution", lambda look: draw(look, fitted))
