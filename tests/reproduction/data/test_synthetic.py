"""Synthetic sets: the noise is as large, and of the kind, that they say."""

import numpy as np
import pytest
from scipy.stats import kurtosis

from onsphere import InvalidInputError
from reproduction.data import NOISE_KINDS, make_noise_1d, make_toy
from reproduction.data.synthetic import NOISE_DOMAINS, noise_1d_sigma

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


def centre(kind, x):
    return np.zeros_like(x) if kind == "multivalued" else x**3


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_sigma_is_that_of_the_samples(kind):
    """Monte Carlo: in twelve bins, the root mean square of 200,000 residuals, within 3 %."""
    X, y, sigma = make_noise_1d(kind, 200_000, random_state=0)
    x, (low, high) = X[:, 0], NOISE_DOMAINS[kind]
    assert X.shape == (200_000, 1)
    assert low <= x.min() < low + 0.01
    assert high - 0.01 < x.max() <= high
    np.testing.assert_array_equal(sigma, noise_1d_sigma(kind, x))
    residual = y - centre(kind, x)
    bins = np.digitize(x, np.linspace(low, high, 13)[1:-1])
    for each in range(12):
        inside = bins == each
        expected = np.sqrt(np.mean(sigma[inside] ** 2))
        assert np.sqrt(np.mean(residual[inside] ** 2)) == pytest.approx(expected, rel=0.03, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "fourth_moment"),
    # of a normal, of Laplace, and of two normals three deviations to either side
    [("gaussian", 3), ("laplace", 6), ("bimodal", (3 + 6 * 9 + 81) / 100)],
)
def test_noise_has_the_shape_of_its_kind(kind, fourth_moment):
    X, y, sigma = make_noise_1d(kind, 200_000, random_state=1)
    noisy = sigma > 0
    unit = (y - X[:, 0] ** 3)[noisy] / sigma[noisy]
    assert abs(unit.mean()) < 0.02
    assert np.mean(unit**4) == pytest.approx(fourth_moment, rel=0.1)


def test_two_branches_move_apart():
    X, y, _ = make_noise_1d("multivalued", N, random_state=2)
    x, upper = X[:, 0], y > 0
    far = x > 3
    assert np.mean(upper) == pytest.approx(0.5, abs=0.02)
    for branch in (1, -1):
        along = far & (upper if branch == 1 else ~upper)
        blur = (y - branch * np.sqrt(x))[along] / (0.2 + 0.075 * x[along])
        assert abs(blur.mean()) < 0.05
        assert blur.std() == pytest.approx(1, abs=0.05)


def test_sigma_beyond_the_domain_goes_on():
    for kind in ("gaussian", "laplace", "bimodal"):
        np.testing.assert_array_equal(noise_1d_sigma(kind, np.array([-6.0, -2.5, 2.5, 6.0])), 0)
    outside = noise_1d_sigma("multivalued", np.array([-1.0, 6.0]))
    np.testing.assert_allclose(outside, [0.125, np.hypot(6**0.5, 0.65)])
    with pytest.raises(InvalidInputError, match="'kind' parameter of noise_1d_sigma"):
        noise_1d_sigma("cauchy", np.zeros(1))


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_a_generator_continues_and_a_seed_starts_again(kind):
    random = np.random.RandomState(0)
    first, second = (make_noise_1d(kind, 20, random_state=random)[1] for _ in range(2))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(make_noise_1d(kind, 20, random_state=np.random.RandomState(0))[1], first)
    assert make_noise_1d(kind, 20)[1].shape == (20,)


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
    for random_state in (-1, "0", 1.5):
        with pytest.raises(InvalidInputError, match="'random_state' parameter of make_noise_1d must be an int"):
            make_noise_1d("laplace", random_state=random_state)
        with pytest.raises(InvalidInputError, match="'random_state' parameter of make_toy must be an int"):
            make_toy(random_state=random_state)
