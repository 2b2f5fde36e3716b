"""Synthetic regression problems of the paper, whose noise is known: one input, one output and its true sigma.

Its two moons come from scikit-learn (`sklearn.datasets.make_moons`).
"""

from __future__ import annotations

import numbers

import numpy as np

from reproduction.arguments import Floats, check_count, check_option, make_random_state

__all__ = ["NOISE_DOMAINS", "NOISE_KINDS", "make_noise_1d", "make_toy", "noise_1d_sigma"]

# The range of x of each kind.
NOISE_DOMAINS = {"gaussian": (-4, 4), "laplace": (-4, 4), "bimodal": (-4, 4), "multivalued": (0, 4)}
NOISE_KINDS = tuple(NOISE_DOMAINS)

_Random = int | np.random.RandomState | None


def make_toy(n_samples: int = 1000, *, random_state: _Random = None) -> tuple[Floats, Floats, Floats]:
    """Draw the data of the paper's first figure: a cubic with noise in the middle.

    y = x³ on [−4, 4], with Gaussian noise only on [−2, 2], where sigma rises from 0 to 20.

    Parameters
    ----------
    n_samples : int, default 1000
    random_state : int, RandomState or None

    Returns
    -------
    X : array of shape (n, 1)
        Uniform on [−4, 4]; beyond, a model extrapolates.
    y : array of shape (n,)
    sigma : array of shape (n,)
        True standard deviation of y given x, 5(x + 2) on [−2, 2] and 0 elsewhere.

    Examples
    --------
    >>> X, y, sigma = make_toy(500, random_state=0)
    >>> X.shape, y.shape, bool(sigma.max() <= 20)
    ((500, 1), (500,), True)
    """
    check_count("make_toy", "n_samples", n_samples)
    random = make_random_state("make_toy", random_state)
    x = random.uniform(-4, 4, size=n_samples)
    sigma = np.where(np.abs(x) <= 2, 5 * (x + 2), 0.0)
    return x[:, None], x**3 + sigma * random.normal(size=n_samples), sigma


def make_noise_1d(kind: str, n_samples: int = 1000, *, random_state: _Random = None) -> tuple[Floats, Floats, Floats]:
    """Draw one of the four kinds of noise of the paper's last figure, as in its published script.

    - "gaussian": y = x³ on [−4, 4], with noise on [−2, 2] only, whose level s rises there from 0 to 5;
    - "laplace": the same with Laplace's distribution, of the same variance;
    - "bimodal": the same with two peaks at x³ ± 3s, equally likely, each as wide as s;
    - "multivalued": y = ±√x on [0, 4], both branches equally likely, with Gaussian noise that rises from .2 to .5.

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
    >>> X, y, sigma = make_noise_1d("gaussian", 100, random_state=0)
    >>> quiet = sigma == 0
    >>> X.shape, bool((y == X[:, 0] ** 3)[quiet].all())
    ((100, 1), True)
    """
    check_option("make_noise_1d", "kind", kind, NOISE_KINDS)
    check_count("make_noise_1d", "n_samples", n_samples)
    random = _make_generator("make_noise_1d", random_state)
    x = random.uniform(*NOISE_DOMAINS[kind], size=n_samples)
    sigma = noise_1d_sigma(kind, x)
    normal, sign = random.normal(size=n_samples), random.choice([-1.0, 1.0], size=n_samples)
    if kind == "multivalued":
        return x[:, None], sign * np.sqrt(x) + _blur(x) * normal, sigma
    of_one = {
        "gaussian": normal,
        "laplace": random.laplace(scale=0.5**0.5, size=n_samples),
        "bimodal": 3 * sign + normal,
    }
    return x[:, None], x**3 + _level(x) * of_one[kind], sigma


def noise_1d_sigma(kind: str, x: Floats) -> Floats:
    """Return the true standard deviation of y at x in `make_noise_1d`; it continues beyond the domain.

    Parameters
    ----------
    kind : {"gaussian", "laplace", "bimodal", "multivalued"}
    x : array

    Returns
    -------
    array of the shape of x

    Examples
    --------
    >>> import numpy as np
    >>> noise_1d_sigma("gaussian", np.array([-3.0, 0.0, 2.0]))
    array([0. , 2.5, 5. ])
    """
    check_option("noise_1d_sigma", "kind", kind, NOISE_KINDS)
    if kind == "multivalued":
        return np.hypot(np.sqrt(np.maximum(x, 0.0)), _blur(x))
    return _level(x) * (10**0.5 if kind == "bimodal" else 1.0)


def _level(x: Floats) -> Floats:
    return np.where(np.abs(x) <= 2, 1.25 * (x + 2), 0.0)


def _blur(x: Floats) -> Floats:
    return 0.2 + 0.075 * x


def _make_generator(function: str, random_state: _Random) -> np.random.Generator:
    """Return a newer generator, seeded by the int itself: the committed runs of "noise-1d" were drawn from it."""
    legacy = make_random_state(function, random_state)
    is_seed = isinstance(random_state, numbers.Integral)
    return np.random.default_rng(int(random_state) if is_seed else legacy.randint(2**31 - 1))
