"""Make the data of the front page, quiet, noisy and then missing, and fit a forest and a network to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onsphere import AcceptShare, HCMRegressor, Lift
from onsphere.torch import TorchRegressor

__all__ = ["DOMAIN", "NOISY", "calibrate", "fit_forest", "fit_network", "make_rows"]

DOMAIN = (-2.0, 8.0)
NOISY = (2.5, 6.0)
N_TRAIN = 2000

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


def calibrate(model: HCMRegressor) -> HCMRegressor:
    """Fit on two thirds of the rows, calibrate on the rest, and accept 99 % of rows like them."""
    x, y = make_rows()
    model.fit(x[:N_TRAIN, None], y[:N_TRAIN]).calibrate(x[N_TRAIN:, None], y[N_TRAIN:])
    return model.set_threshold(AcceptShare(0.99))


def fit_forest() -> HCMRegressor:
    """Fit the default model."""
    return calibrate(HCMRegressor(random_state=0))


def fit_network(anchor: float = 3.0, *, frames: str = "all") -> HCMRegressor:
    """Fit a network."""
    network = TorchRegressor(
        hidden_sizes=(100, 100, 100), learning_rate=5e-3, batch_size=128, max_epochs=60, schedule="cosine"
    )
    return calibrate(HCMRegressor(network, embedding=Lift(anchor=anchor), frames=frames, random_state=0))
