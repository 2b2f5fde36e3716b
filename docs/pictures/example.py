"""Make the data of the front page, quiet, noisy and then missing, and fit a network to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onsphere import AcceptShare, HCMRegressor, Lift
from onsphere.torch import TorchRegressor

__all__ = ["DOMAIN", "NOISY", "fit_network", "make_rows"]

DOMAIN = (-2.0, 8.0)
NOISY = (2.5, 6.0)
# With some other seeds, the interval is narrow for a moment just beyond the data: see docs/guide/method.md.
SEED = 4

Floats = NDArray[np.float64]


def curve(x: Floats) -> Floats:
    """Return the true value without noise."""
    return 3 * np.sin(x) + 0.5 * x


def noise(x: Floats) -> Floats:
    """Return the standard deviation of the noise: small except in the middle."""
    low, high = NOISY
    inside = (x > low) & (x < high)
    return 0.4 + 1.5 * np.where(inside, np.sin((x - low) / (high - low) * np.pi), 0.0)


def make_rows(n: int = 3000, *, seed: int = 0) -> tuple[Floats, Floats]:
    """Return inputs and targets; there are none outside DOMAIN."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(*DOMAIN, n)
    return x, curve(x) + noise(x) * rng.normal(size=n)


def fit_network(anchor: float = 3.0) -> HCMRegressor:
    """Fit one network on two thirds of the rows, calibrate it on the rest, and accept 99 % of rows like them."""
    x, y = make_rows()
    network = TorchRegressor(
        hidden_sizes=(100, 100, 100), learning_rate=5e-3, batch_size=128, max_epochs=60, schedule="cosine"
    )
    model = HCMRegressor(network, embedding=Lift(anchor=anchor), uncertainty_score="anchored", random_state=SEED)
    model.fit(x[:2000, None], y[:2000]).calibrate(x[2000:, None], y[2000:])
    return model.set_threshold(AcceptShare(0.99))
