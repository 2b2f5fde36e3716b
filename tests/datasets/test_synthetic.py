"""Synthetic sets: the noise is as large, and of the kind, that they say."""

import numpy as np
import pytest
from scipy.stats import kurtosis

from onsphere import InvalidInputError
from onsphere.datasets import NOISE_KINDS, make_noise_1d, make_toy

N = 40_000


def test_toy_is_a_cube_with_noise_in_the_middle():
    X, y, sigma = make_toy(N, random_state=0)
    x = X[:, 0]
    assert X.shape == (N, 1)
    assert -4 <= x.min() < -3.99
    assert 3.99 < x.max() <= 4
    quiet = np.abs(x) > 2
    np.testing.assert_array_equal(sigma[quiet], 0)
    np.testing.assert_array_equal(y[quiet], x[quiet] ** 3)
    np.testing.assert_allclose(sigma[~quiet], np.interp(x[~quiet], [-2, 2], [0, 20]))
    z = (y - x**3)[~quiet] / sigma[~quiet]
    assert abs(z.mean()) < 0.03
    assert z.std() == pytest.approx(1, abs=0.02)
    assert abs(kurtosis(z)) < 0.15


MEANS = {
    "gaussian": lambda x: np.sin(2 * x),
    "laplace": lambda x: np.sin(2 * x),
    "bimodal": lambda x: x / 2,
    "multivalued": np.zeros_like,
}


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_sigma_is_that_of_the_samples(kind):
    X, y, sigma = make_noise_1d(kind, N, random_state=1)
    z = (y - MEANS[kind](X[:, 0])) / sigma
    assert X.shape == (N, 1)
    assert y.shape == sigma.shape == (N,)
    for part in np.array_split(np.argsort(X[:, 0]), 8):
        assert abs(z[part].mean()) < 0.06
        assert z[part].std() == pytest.approx(1, abs=0.06)
    # a normal has excess kurtosis 0, Laplace 3, two equal points −2
    excess = {"gaussian": 0.0, "laplace": 3.0, "multivalued": -2.0}
    if kind in excess:
        assert kurtosis(z) == pytest.approx(excess[kind], abs=0.4)


def test_two_branches_move_apart():
    X, y, _ = make_noise_1d("bimodal", N, random_state=2)
    x = X[:, 0]
    upper = np.abs(y - x) < np.abs(y)
    assert np.mean(upper) == pytest.approx(0.5, abs=0.02)
    nearest = np.minimum(np.abs(y - x), np.abs(y))
    assert nearest[x > 1].max() < 0.5
    X, y, _ = make_noise_1d("multivalued", N, random_state=2)
    np.testing.assert_allclose(y**2, X[:, 0], rtol=1e-12)
    assert np.mean(y > 0) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("make", [make_toy, *(lambda n, k=k, **o: make_noise_1d(k, n, **o) for k in NOISE_KINDS)])
def test_a_seed_settles_all(make):
    one, same, other = (make(20, random_state=seed) for seed in (3, 3, 4))
    for left, right in zip(one, same, strict=True):
        np.testing.assert_array_equal(left, right)
    assert not np.array_equal(one[1], other[1])


def test_bad_arguments_are_named():
    with pytest.raises(
        InvalidInputError, match="'kind' parameter of make_noise_1d must be one of 'gaussian', 'laplace'"
    ):
        make_noise_1d("cauchy")
    for n_samples in (0, -3, 2.5, "5"):
        with pytest.raises(InvalidInputError, match="'n_samples' parameter of make_noise_1d"):
            make_noise_1d("laplace", n_samples)
        with pytest.raises(InvalidInputError, match="'n_samples' parameter of make_toy"):
            make_toy(n_samples)
