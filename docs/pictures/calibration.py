"""Draw requested against measured coverage, and how much calibration sets differ from each other."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from example import make_rows
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.ensemble import ExtraTreesRegressor
from style import Look, draw_both

from onsphere import HCMRegressor
from onsphere.calibration import conformal_quantile

REQUESTED = np.linspace(0.5, 0.98, 13)
SIZES = (50, 200, 1000)
N_REPEATS = 2000

Floats = NDArray[np.float64]


def compute_ratios(n: int = 20_000, *, frames: str = "all") -> Floats:
    """Return |error| / σ of a fitted forest on rows that it has not seen."""
    x, y = make_rows(600)
    forest = ExtraTreesRegressor(100, min_samples_leaf=5)
    model = HCMRegressor(forest, frames=frames, random_state=0).fit(x[:, None], y)
    new, truth = make_rows(n, seed=1)
    value, sigma = model.predict(new[:, None], return_std=True)
    return np.abs(truth - value) / sigma


def measure_coverage(scores: Floats) -> tuple[Floats, Floats]:
    """Return the coverage of value ± k·σ, with k of a Gaussian and with k from 500 calibration rows."""
    held_out, test = scores[:500], scores[500:]
    plain = np.array([np.mean(test <= norm.ppf((1 + share) / 2)) for share in REQUESTED])
    calibrated = np.array([np.mean(test <= conformal_quantile(held_out, share)) for share in REQUESTED])
    return plain, calibrated


def measure_sets(scores: Floats, size: int, coverage: float = 0.9) -> Floats:
    """Return the coverage that each of many calibration sets of this size gives."""
    rng = np.random.default_rng(0)
    ranked = np.sort(scores)
    sets = rng.choice(scores, (N_REPEATS, size))
    limits = np.array([conformal_quantile(each, coverage) for each in sets])
    return np.searchsorted(ranked, limits, side="right") / len(ranked)


def draw(look: Look, alone: Floats, plain: Floats, calibrated: Floats, spread: dict[int, Floats]) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained", width_ratios=(1, 1.4))
    left.plot([0.5, 1], [0.5, 1], color=look.faint, linewidth=1, linestyle=":")
    line = {"linewidth": 2, "markersize": 4}
    left.plot(REQUESTED, alone, "o-", color=look.warn, **line, label="Gaussian, target frame")
    left.plot(REQUESTED, plain, "o-", color=look.other, **line, label="Gaussian, all frames")
    left.plot(REQUESTED, calibrated, "o-", color=look.value, **line, label="calibrated on 500 rows")
    left.set(xlabel="requested coverage", ylabel="coverage of new rows", aspect="equal")
    left.set_title("Requested and measured coverage")
    left.legend(loc="lower right", fontsize=9.5)
    right.set_title("90 % requested: coverage with single calibration sets")
    bins = np.linspace(0.78, 1.0, 56)
    for (size, shares), colour in zip(spread.items(), (look.warn, look.other, look.value), strict=True):
        right.hist(shares, bins=bins, histtype="stepfilled", color=colour, alpha=0.35, linewidth=0)
        right.hist(shares, bins=bins, histtype="step", color=colour, linewidth=1.6, label=f"{size:,} rows")
    right.axvline(0.9, color=look.faint, linewidth=1, linestyle=":")
    right.set(xlabel="share of new rows inside the interval", yticks=[], xlim=(0.78, 1.0))
    right.spines["left"].set_visible(False)
    right.legend(loc="upper left", title="calibrated on")
    return figure


if __name__ == "__main__":
    scores = compute_ratios()
    before, _ = measure_coverage(compute_ratios(frames="target"))
    both = measure_coverage(scores)
    spread = {size: measure_sets(scores, size) for size in SIZES}
    draw_both("calibration", lambda look: draw(look, before, *both, spread))
