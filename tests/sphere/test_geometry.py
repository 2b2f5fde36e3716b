"""The arithmetic of magnitude and direction, on numpy and torch."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onsphere import InvalidInputError
from onsphere.sphere import geometry


def vectors(min_width=1, **options):
    return hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 6), st.integers(min_width, 6)),
        elements=st.floats(**({"min_value": -1e300, "max_value": 1e300} | options)),
    )


@given(vectors())
def test_split_and_join_are_inverse_to_the_last_digits(y):
    """Five roundings of half a unit in the last place, relative to the largest entry of each vector."""
    direction, magnitude = geometry.split(y)
    difference = np.abs(geometry.join(direction, magnitude) - y)
    assert (difference <= 1e-15 * np.abs(y).max(axis=1, keepdims=True) + 2e-323).all()


@given(vectors())
def test_every_direction_has_norm_one(y):
    direction, _ = geometry.split(y)
    np.testing.assert_allclose(geometry.norm(direction), 1.0, rtol=1e-15)


@given(vectors())
def test_norm_agrees_with_python_hypot(y):
    import math

    np.testing.assert_allclose(geometry.norm(y), [math.hypot(*row) for row in y], rtol=1e-15, atol=0)


def test_a_zero_vector_has_the_documented_direction():
    direction, magnitude = geometry.split(np.zeros((1, 4)))
    np.testing.assert_allclose(direction, [[0.5, 0.5, 0.5, 0.5]])
    assert magnitude[0] == 0


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 1e-160])
def test_subnormal_vectors_keep_their_direction(tiny):
    direction, magnitude = geometry.split(np.array([[tiny, tiny]]))
    np.testing.assert_allclose(direction, [[0.5**0.5, 0.5**0.5]], rtol=1e-15)
    assert magnitude[0] > 0


@given(
    st.integers(1, 5).flatmap(
        lambda k: st.tuples(*[hnp.arrays(np.float64, (3, k), elements=st.floats(-5, 5)) for _ in range(2)])
    ),
    hnp.arrays(np.float64, 3, elements=st.floats(-5, 5)),
)
def test_proposition_1_bounds_the_error_of_the_product_from_below(pair, predicted_magnitude):
    predicted_direction, y = pair
    direction, magnitude = geometry.split(y)
    error = np.linalg.norm(geometry.join(predicted_direction, predicted_magnitude) - y, axis=1)
    error_of_direction = np.abs(predicted_magnitude) * np.linalg.norm(predicted_direction - direction, axis=1)
    assume((error_of_direction > 1e-6).all())
    epsilon = np.abs(predicted_magnitude - magnitude) / error_of_direction
    u = geometry.uncertainty(predicted_direction, predicted_magnitude)
    assert (error >= u * (1 - epsilon) - 1e-9).all()


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("D", [2, 5, 25])
def test_proposition_2_recovers_the_noise_of_a_vector(D, sigma):
    """σ̂² = σ² + O((D+2)(D+4)σ⁴ / ((D−1)‖g‖²)); 400,000 draws leave a standard error below 0.5 %."""
    rng = np.random.default_rng(D)
    truth = np.ones(D) * 2.0
    direction, magnitude = geometry.split(truth + sigma * rng.standard_normal((400_000, D)))
    mean_direction = direction.mean(axis=0, keepdims=True)
    mean_magnitude = magnitude.mean(keepdims=True)
    estimate = geometry.sigma(mean_direction, mean_magnitude, geometry.isotropic_constant(mean_direction))[0] ** 2
    bound = (D + 2) * (D + 4) * sigma**4 / ((D - 1) * truth @ truth)
    assert abs(estimate - sigma**2) <= bound + 0.01 * sigma**2


def torch_and_numpy(function, *arrays, dtype):
    ours = function(*[array.astype(dtype) for array in arrays])
    theirs = function(*[torch.tensor(array.astype(dtype)) for array in arrays])
    return ours, theirs


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_numpy_and_torch_agree_and_keep_the_precision(dtype, tolerance):
    rng = np.random.default_rng(0)
    direction, magnitude = rng.standard_normal((50, 4)), rng.exponential(size=50)
    direction[0] = 0
    constant = geometry.lift_constant(direction)
    for function, arrays in [
        (geometry.norm, (direction,)),
        (geometry.norm_violation, (direction,)),
        (geometry.isotropic_constant, (direction,)),
        (geometry.lift_constant, (direction,)),
        (geometry.join, (direction, magnitude)),
        (geometry.uncertainty, (direction, magnitude)),
        (geometry.sigma, (direction, magnitude, constant)),
    ]:
        ours, theirs = torch_and_numpy(function, *arrays, dtype=dtype)
        assert ours.dtype == dtype
        assert str(theirs.dtype) == f"torch.{np.dtype(dtype).name}"
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=tolerance, atol=tolerance)


def test_gradients_are_right_where_they_exist():
    torch.manual_seed(0)
    direction = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    magnitude = torch.rand(5, dtype=torch.float64, requires_grad=True)

    def lifted_sigma(direction, magnitude):
        return geometry.sigma(direction, magnitude, geometry.lift_constant(direction))

    for function in (geometry.join, geometry.uncertainty, lifted_sigma):
        assert torch.autograd.gradcheck(function, (direction, magnitude))
    assert torch.autograd.gradcheck(geometry.split, (direction,))


def test_gradients_are_finite_on_the_sphere_and_at_zero():
    direction = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    magnitude = torch.ones(2, dtype=torch.float64, requires_grad=True)
    constant = geometry.lift_constant(direction)
    geometry.sigma(direction, magnitude, constant).sum().backward()
    assert torch.isfinite(direction.grad).all()


def test_the_gradient_of_the_norm_is_the_direction_down_to_tiny_vectors():
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1e-300, 0.0]], dtype=torch.float64, requires_grad=True)
    geometry.norm(vectors).sum().backward()
    np.testing.assert_allclose(vectors.grad, [[0.0, 0.0], [0.6, 0.8], [1.0, 0.0]], atol=1e-15)


@pytest.mark.parametrize("shape", [(3, 1), (1,), (4,), ()])
@pytest.mark.parametrize("function", [geometry.join, geometry.uncertainty])
def test_nothing_is_broadcast(function, shape):
    with pytest.raises(InvalidInputError, match=r"Expected a magnitude of shape \(3,\)"):
        function(np.ones((3, 2)), np.ones(shape))


def test_the_constant_is_not_broadcast_either():
    with pytest.raises(InvalidInputError, match=r"Expected a constant of shape \(3,\)"):
        geometry.sigma(np.ones((3, 2)), np.ones(3), np.ones(1))


def test_sigma_stays_finite_at_right_angles_to_the_anchor():
    direction = np.array([[0.5, 0.0]])
    assert np.isfinite(geometry.sigma(direction, np.ones(1), geometry.lift_constant(direction))).all()
