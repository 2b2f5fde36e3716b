"""Made-up regression problems of the paper, whose noise is known: one input, one output and its true sigma.

Two moons, the fifth of them, come from scikit-learn (`sklearn.datasets.make_moons`).
"""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_random_state

from onsphere._validation import Floats, check_number, check_option

__all__ = ["NOISE_KINDS", "make_noise_1d", "make_toy"]

NOISE_KINDS = ("gaussian", "laplace", "bimodal", "multivalued")

_Random = int | np.random.RandomState | None


def make_toy(n_samples: int = 1000, *, random_state: _Random = None) -> tuple[Floats, Floats, Floats]:
    """The paper's first figure: y = x³ on [−4, 4], with Gaussian noise only on [−2, 2], where sigma rises from 0 to 20.

    Parameters
    ----------
    n_samples : int, default 1000
    random_state : int, RandomState or None

    Returns
    -------
    X : array of shape (n, 1)
        Uniform on [−4, 4]; what a model says beyond is extrapolation.
    y : array of shape (n,)
    sigma : array of shape (n,)
        True standard deviation of y given x, 5(x + 2) on [−2, 2] and 0 elsewhere.

    Examples
    --------
    >>> X, y, sigma = make_toy(500, random_state=0)
    >>> X.shape, y.shape, bool(sigma.max() <= 20)
    ((500, 1), (500,), True)
    """
    check_number("make_toy", "n_samples", n_samples, above=1, closed="left", whole=True)
    random = check_random_state(random_state)
    x = random.uniform(-4, 4, size=n_samples)
    sigma = np.where(np.abs(x) <= 2, 5 * (x + 2), 0.0)
    return x[:, None], x**3 + sigma * random.normal(size=n_samples), sigma


def make_noise_1d(kind: str, n_samples: int = 1000, *, random_state: _Random = None) -> tuple[Floats, Floats, Floats]:
    """The four kinds of noise of the paper's last figure.

    The paper names the kinds and, for the last, the function; the others are ours:

    - "gaussian": y = sin 2x + sigma·ε on [−3, 3], sigma = 0.05 + 0.15 (x + 3), ε standard normal;
    - "laplace": the same with ε of Laplace's distribution, scaled to variance 1;
    - "bimodal": y = x/2 ± h + 0.1 ε on [0, 4], h = x/2, both signs alike likely;
    - "multivalued": y = ±√x on [0, 4], both signs alike likely, with no other noise.

    Parameters
    ----------
    kind : {"gaussian", "laplace", "bimodal", "multivalued"}
    n_samples : int, default 1000
    random_state : int, RandomState or None

    Returns
    -------
    X : array of shape (n, 1)
    y : array of shape (n,)
    sigma : array of shape (n,)
        True standard deviation of y given x.

    Examples
    --------
    >>> X, y, sigma = make_noise_1d("multivalued", 100, random_state=0)
    >>> bool((abs(y) == sigma).all())
    True
    """
    check_option("make_noise_1d", "kind", kind, NOISE_KINDS)
    check_number("make_noise_1d", "n_samples", n_samples, above=1, closed="left", whole=True)
    random = check_random_state(random_state)
    if kind in ("gaussian", "laplace"):
        x = random.uniform(-3, 3, size=n_samples)
        sigma = 0.05 + 0.15 * (x + 3)
        gaussian = kind == "gaussian"
        noise = random.normal(size=n_samples) if gaussian else random.laplace(scale=0.5**0.5, size=n_samples)
        return x[:, None], np.sin(2 * x) + sigma * noise, sigma
    x = random.uniform(0, 4, size=n_samples)
    sign = random.choice([-1.0, 1.0], size=n_samples)
    if kind == "multivalued":
        return x[:, None], sign * np.sqrt(x), np.sqrt(x)
    half = x / 2
    return x[:, None], x / 2 + sign * half + 0.1 * random.normal(size=n_samples), np.hypot(half, 0.1)
