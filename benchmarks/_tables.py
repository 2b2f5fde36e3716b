"""The ten tables of numbers that benchmarks share."""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, make_friedman1, make_friedman3

from reproduction.data import UCI_NAMES, load_uci


def load_tables():
    """Yield each table by name: six of UCI, two that come with scikit-learn, and two that are made."""
    for name in UCI_NAMES:
        yield name, *load_uci(name)
    yield "diabetes", *load_diabetes(return_X_y=True)
    tumours = load_breast_cancer().data
    yield "tumours", tumours[:, :10], tumours[:, 23]  # the worst area, from the ten means
    rng = np.random.default_rng(0)
    X, y = make_friedman1(3000, random_state=0)
    yield "friedman 1, growing noise", X, y + (0.2 + 2 * X[:, 5]) * rng.normal(size=len(y))
    yield "friedman 3, constant noise", *make_friedman3(3000, noise=0.1, random_state=0)
