"""Target <-> sphere and back."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onsphere import Duplicate, InvalidInputError, Lift, NotFittedError, OneHot, Polar, SphericalOutput, Torus

reals = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))


def targets(min_outputs, max_outputs=4):
    return st.tuples(st.integers(2, 12), st.integers(min_outputs, max_outputs)).flatmap(
        lambda shape: hnp.arrays(np.float64, shape, elements=reals)
    )


def assert_round_trip(embedding, y, decoder):
    embedding.fit(y)
    outputs = embedding.embed(y)
    np.testing.assert_allclose(np.linalg.norm(outputs.direction, axis=1), 1.0, rtol=1e-14)
    # Subtracting a centre costs digits relative to the centre, not to the difference.
    tolerance = 1e-13 * (np.abs(y).max() + np.abs(embedding.center_).max() + embedding.scale_.max())
    np.testing.assert_allclose(embedding.decode(outputs, decoder=decoder), y, rtol=1e-12, atol=tolerance)


@given(targets(2), st.booleans(), st.sampled_from(["product", "mean"]))
def test_polar_round_trip(y, standardize, decoder):
    assert_round_trip(Polar(standardize=standardize), y, decoder)


@given(targets(1, 1), st.booleans(), st.sampled_from(["product", "mean"]))
def test_duplicate_round_trip(y, standardize, decoder):
    assert_round_trip(Duplicate(standardize=standardize), y, decoder)


@given(targets(1), st.floats(0.5, 10), st.sampled_from(["product", "projective", "mean"]))
def test_lift_round_trip(y, anchor, decoder):
    assert_round_trip(Lift(anchor=anchor), y, decoder)


@given(targets(1), st.sampled_from([(1.0,), (2.0, 1.0), (1.0, 2.0, 4.0)]), st.sampled_from(["product", "mean"]))
def test_torus_round_trip(y, frequencies, decoder):
    assert_round_trip(Torus(frequencies), y, decoder)


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=3).filter(lambda labels: len(set(labels)) > 1))
def test_one_hot_round_trip(labels):
    embedding = OneHot().fit(labels)
    assert embedding.decode(embedding.embed(labels)).tolist() == labels


def test_targets_are_standardised_per_output():
    y = np.random.default_rng(0).normal([100.0, -3.0], [20.0, 0.1], size=(500, 2))
    mean = Lift().fit(y).embed(y).mean
    np.testing.assert_allclose(mean.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(mean.std(axis=0), 1, rtol=1e-12)


def test_weights_count_like_repeated_rows():
    y = np.array([1.0, 5.0, 7.0])
    weighted = Lift().fit(y, np.array([3.0, 1.0, 2.0]))
    repeated = Lift().fit(np.repeat(y, [3, 1, 2]))
    np.testing.assert_allclose(weighted.center_, repeated.center_)
    np.testing.assert_allclose(weighted.scale_, repeated.scale_)


def test_a_constant_output_keeps_scale_one_and_has_no_spread():
    embedding = Lift().fit(np.full(7, 0.1))
    assert embedding.scale_ == 1.0
    assert embedding.spread_ == 0.0
    assert embedding.unit_ == 0.0


def test_rows_of_weight_zero_do_not_stretch_the_torus():
    y, weights = np.array([0.0, 1.0, 2.0, 1e4]), np.array([1.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(Torus().fit(y, weights).scale_, Torus().fit(y[:3]).scale_)


def sigma_ratio(embedding, mean, sigma, n=400_000):
    """Estimated over true noise for a model that has learned the conditional means exactly."""
    rng = np.random.default_rng(1)
    embedding.fit([0.0, 1.0])
    outputs = embedding.embed(mean + sigma * rng.standard_normal(n))
    learned = SphericalOutput(outputs.direction.mean(axis=0, keepdims=True), outputs.magnitude.mean(keepdims=True))
    return embedding.sigma(learned)[0, 0] / sigma


@pytest.mark.parametrize(("mean", "expected"), [(10.0, 0.00), (3.0, 0.32), (0.0, 1.13)])
def test_duplicate_is_blind_to_noise_that_keeps_the_sign(mean, expected):
    """400,000 draws leave a standard error below .005 in each of the three ratios."""
    assert sigma_ratio(Duplicate(standardize=False), mean, 1.0) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("mean", [-3.0, -1.0, 0.0, 2.0, 3.0])
@pytest.mark.parametrize(("sigma", "bound"), [(0.1, 0.01), (0.3, 0.01), (1.0, 0.06)])
def test_lift_sees_the_noise_wherever_the_target_lies(mean, sigma, bound):
    """The standard error of the ratio is below .2 %, so the bounds of 1 % and 6 % are those of the method."""
    assert abs(sigma_ratio(Lift(anchor=3.0, standardize=False), mean, sigma) - 1) <= bound


def test_the_constant_of_lift_is_the_right_one_and_that_of_polar_is_not():
    """With D = 5 and the target two anchors away, D as constant would miss σ by 8 %."""
    rng = np.random.default_rng(0)
    embedding = Lift(anchor=3.0, standardize=False).fit(np.zeros((2, 5)))
    outputs = embedding.embed(np.array([6.0, 0, 0, 0, 0]) + 0.2 * rng.standard_normal((400_000, 5)))
    learned = SphericalOutput(outputs.direction.mean(axis=0, keepdims=True), outputs.magnitude.mean(keepdims=True))
    sigma = embedding.sigma(learned)[0, 0]
    assert sigma == pytest.approx(0.2, rel=0.01)
    assert sigma * np.sqrt((4 + 0.2) / 5) < 0.2 * 0.93


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_torus_reads_the_noise_of_each_output(sigma):
    """Exact for Gaussian noise; 400,000 draws leave about .3 %."""
    rng = np.random.default_rng(0)
    embedding = Torus((1.0, 2.0), standardize=False).fit(np.array([[0.0, 0.0], [1.0, 1.0]]))
    noise = rng.standard_normal((400_000, 2)) * [sigma, 2 * sigma]
    outputs = embedding.embed(np.array([0.4, -0.2]) + noise)
    learned = SphericalOutput(outputs.direction.mean(axis=0, keepdims=True), np.ones(1))
    np.testing.assert_allclose(embedding.sigma(learned)[0], [sigma, 2 * sigma], rtol=0.02)
    per_output = embedding.uncertainty_per_output(learned)
    assert per_output.shape == (1, 2)
    assert per_output[0, 1] > per_output[0, 0]


def test_torus_makes_room_for_training_targets_beyond_its_circle():
    y = np.array([0.0] * 50 + [100.0])
    embedding = Torus().fit(y)
    np.testing.assert_allclose(embedding.decode(embedding.embed(y))[:, 0], y, atol=1e-10)


def test_projective_needs_no_magnitude_and_survives_a_direction_off_the_anchor():
    embedding = Lift().fit([0.0, 1.0, 2.0])
    outputs = embedding.embed([1.5])
    wrong_magnitude = outputs._replace(magnitude=outputs.magnitude * 7)
    np.testing.assert_allclose(embedding.decode(wrong_magnitude, decoder="projective"), [[1.5]])
    sideways = SphericalOutput(np.array([[1.0, 0.0]]), np.ones(1))
    assert np.isfinite(embedding.decode(sideways, decoder="projective")).all()


@pytest.mark.parametrize(
    ("embedding", "n_outputs"), [(Polar(), 3), (Duplicate(), 1), (Lift(), 1), (Lift(), 3), (Torus((1.0, 2.0)), 3)]
)
def test_the_sphere_is_the_same_on_torch_and_for_maps_of_pixels(embedding, n_outputs):
    maps = np.random.default_rng(0).uniform(-1, 1, size=(2, 4, 5, n_outputs))
    flat = SphericalOutput(*embedding.to_sphere(maps.reshape(-1, n_outputs)))
    dense = SphericalOutput(*embedding.to_sphere(torch.tensor(maps, requires_grad=True)))
    np.testing.assert_allclose(dense.direction.detach().reshape(40, -1), flat.direction, rtol=1e-12, atol=1e-14)
    shrunk = dense._replace(direction=0.9 * dense.direction)
    np.testing.assert_allclose(
        embedding.relative_sigma(shrunk).detach().reshape(40, -1),
        embedding.relative_sigma(flat._replace(direction=0.9 * flat.direction)),
        rtol=1e-9,
    )
    for decoder in set(embedding.decoders) - {"mean"}:
        np.testing.assert_allclose(embedding.from_sphere(dense, decoder=decoder).detach(), maps, rtol=1e-9, atol=1e-12)


def test_soft_labels_keep_their_norm():
    embedding = OneHot().fit([0, 1, 2])
    outputs = embedding.embed(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    np.testing.assert_allclose(np.linalg.norm(outputs.direction, axis=1), [0.5**0.5, 1.0])


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Polar().fit([1.0, 2.0]), "at least 2 outputs"),
        (lambda: Duplicate().fit(np.ones((3, 2))), "1 output. Got 2"),
        (lambda: Lift(anchor=0).fit([1.0, 2.0]), r"'anchor' parameter of Lift must be a float in \(0, inf\). Got 0"),
        (lambda: Lift(anchor="3").fit([1.0]), "'anchor' parameter"),
        (lambda: Lift(standardize=1).fit([1.0]), "'standardize' parameter of Lift must be True or False. Got 1"),
        (lambda: Torus(()).fit([1.0]), "non-empty sequence"),
        (lambda: Torus((1.0, -1.0)).fit([1.0]), "non-empty sequence"),
        (lambda: Torus(2.0).fit([1.0]), "non-empty sequence"),
        (lambda: Torus("ab").fit([1.0]), "non-empty sequence"),
        (lambda: Lift().fit(["a", "b"]), "numeric target y"),
        (lambda: Lift().fit([1.0, np.nan]), "contains NaN"),
        (lambda: Lift().fit([[1.0], [1.0, 2.0]]), "same length"),
        (lambda: Lift().fit(np.ones((2, 2, 2))), r"shape \(n,\) or \(n, D\)"),
        (lambda: Lift().fit([1.0, 2.0]).embed(np.ones((2, 3))), r"fitted with 1 output\(s\). Got 3"),
        (lambda: Polar().fit(np.eye(2)).decode(SphericalOutput(np.eye(2), np.ones(2)), decoder="projective"), "one of"),
        (lambda: Lift().fit([1.0]).decode(SphericalOutput(np.eye(2), np.ones(2)), decoder="mean"), "carry a mean"),
        (lambda: Lift(anchor=10**400).fit([1.0, 2.0]), "'anchor' parameter"),
        (lambda: Lift().fit([1.0, 2.0], [1.0]), "sample_weight"),
        (lambda: Lift().fit([1.0, 2.0], [0.0, 0.0]), "above zero"),
        (lambda: Lift().fit([1.0, 2.0], [1.0, -1.0]), "[Nn]egative"),
        (lambda: Lift().fit([1.0, 2.0]).decode(SphericalOutput(np.ones((3, 5)), np.ones(3))), "directions of width 2"),
        (lambda: Torus().fit([1.0, 2.0]).sigma(SphericalOutput(np.ones((3, 5)), np.ones(3))), "directions of width 6"),
        (
            lambda: Polar().fit(np.eye(2)).decode(SphericalOutput(np.eye(2), np.ones(2), np.ones((2, 1)))),
            "means of width 2",
        ),
        (lambda: OneHot().fit(["a", "a"]), "at least two classes"),
        (lambda: OneHot().fit(["a", "b"]).embed(["c"]), "Expected labels among"),
        (lambda: OneHot().fit([0, 1]).embed([[0.5, 0.6]]), "sum to 1"),
        (lambda: OneHot().fit([0, 1]).embed([[1.5, -0.5]]), "not negative"),
        (lambda: OneHot().fit([0, 1]).embed([[0.5, 0.25, 0.25]]), r"fitted with 2 output\(s\)"),
    ],
)
def test_bad_input_is_rejected_with_advice(attempt, message):
    with pytest.raises(InvalidInputError, match=message):
        attempt()


@pytest.mark.parametrize("embedding", [Polar(), Duplicate(), Lift(), Torus(), OneHot()])
def test_nothing_works_before_fit(embedding):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        embedding.embed([1.0])
    with pytest.raises(NotFittedError, match="not fitted yet"):
        embedding.decode(SphericalOutput(np.eye(2), np.ones(2)))


def test_an_overshooting_circle_does_not_hide_a_shrunk_one():
    """One output overshoots and one shrinks: their common sphere is met, and neither is."""
    torus = Torus((1.0,))
    direction = np.array([[1.2, 0.0, 0.75, 0.0]]) / 2**0.5
    outputs = SphericalOutput(direction, np.ones(1))
    assert abs(np.linalg.norm(direction) - 1) < 0.01
    np.testing.assert_allclose(torus.relative_uncertainty(outputs), [(0.2 + 0.25) / 2])
