"""The curve of the first pages: quiet, then noisy, then nothing; and the models fitted on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onsphere import AcceptShare, HCMRegressor, Lift
from onsphere.torch import TorchRegressor

__all__ = ["DOMAIN", "NOISY", "curve", "fitted", "noise", "rows"]

DOMAIN = (-2.0, 8.0)
NOISY = (2.5, 6.0)
# Of the network. With some others, the interval is for a moment narrow just beyond the data: docs/guide/method.md.
SEED = 4

Floats = NDArray[np.float64]


def curve(x: Floats) -> Floats:
    """The truth without noise."""
    return 3 * np.sin(x) + 0.5 * x


def noise(x: Floats) -> Floats:
    """Standard deviation of the noise: small but in the middle."""
    low, high = NOISY
    inside = (x > low) & (x < high)
    return 0.4 + 1.5 * np.where(inside, np.sin((x - low) / (high - low) * np.pi), 0.0)


def rows(n: int = 3000, *, seed: int = 0) -> tuple[Floats, Floats]:
    """Inputs and targets; there are none outside DOMAIN."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(*DOMAIN, n)
    return x, curve(x) + noise(x) * rng.normal(size=n)


def fitted(anchor: float = 3.0) -> HCMRegressor:
    """One network, fitted on two thirds of the rows and calibrated on the rest; accepts 99 % of rows like them."""
    x, y = rows()
    network = TorchRegressor(
        hidden_sizes=(100, 100, 100), learning_rate=5e-3, batch_size=128, max_epochs=60, schedule="cosine"
    )
    model = HCMRegressor(network, embedding=Lift(anchor=anchor), uncertainty_score="anchored", random_state=SEED)
    model.fit(x[:2000, None], y[:2000]).calibrate(x[2000:, None], y[2000:])
    return model.set_threshold(AcceptShare(0.99))
