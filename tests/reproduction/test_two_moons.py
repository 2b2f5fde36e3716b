"""Figure 2: two moons."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from onsphere.sphere.geometry import norm_violation
from onsphere.torch import SphericalOutput
from reproduction import reproduce, two_moons
from reproduction.checkpoints import Checkpoints

TINY = {"n_train": 200, "n_test": 200, "noise": 0.2, "batch_size": 32, "max_epochs": 60}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return reproduce("two-moons", device="cpu", out=tmp_path_factory.mktemp("two-moons"))


def quiet(done, total, what):
    pass


def plane():
    return np.stack(np.meshgrid(two_moons.X_AXIS, two_moons.Y_AXIS), axis=-1)


def test_the_quick_preset_finds_the_moons_and_the_band_between_them(quick):
    found = quick.runs[0]["measured"]
    assert found["accuracy"] > 0.9
    inside = max(found["mean u inside the upper moon"], found["mean u inside the lower moon"])
    assert found["mean u in the band"] > 2 * inside
    assert found["Spearman of u with the distance"] < 0
    assert found["distance to the boundary, ambiguous"] < found["distance to the boundary, others"]
    assert found["Spearman of u with the true u"] > 0


def test_what_is_written(quick):
    assert [path.name for path in quick.files] == ["two-moons.md", "two-moons.json", "two-moons-moons.png"]
    assert len(quick.rows) == len(quick.runs[0]["measured"])
    assert len(quick.claims) == 4
    assert (quick.folder / "runs/two-moons/quick/seed-0.json").stat().st_size < 300_000


def test_the_paper_s_protocol():
    settings = two_moons.PRESETS["paper"]
    assert settings == two_moons.PRESETS["cpu"]
    assert (settings["max_epochs"], settings["batch_size"], settings["n_train"]) == (1000, 32, 800)
    assert two_moons.PAPER["ambiguous"] == 0.15
    X, label = two_moons.sample_moons(20, random_state=0)
    network = two_moons.train(X, label, {"max_epochs": 1, "batch_size": 32}, 0, "cpu", quiet)
    assert sum(weight.numel() for weight in network.parameters()) == 3 * 16 + 17 * 16 + 17 * 3  # d and R from 16


def test_u_is_that_of_direction_times_magnitude():
    class Constant(torch.nn.Module):
        def forward(self, x):
            return SphericalOutput(torch.tensor([[0.6, 0.8]] * len(x)), torch.full((len(x),), 1.5), None)

    direction, u = two_moons.predict(Constant(), np.zeros((3, 2)), "cpu")
    assert direction == pytest.approx(np.tile([0.6, 0.8], (3, 1)))
    assert u == pytest.approx([0.5] * 3)


def test_the_same_seed_gives_the_same_run_and_another_another(tmp_path):
    one, two, other = (
        two_moons.measure(TINY, seed, data=tmp_path, device="cpu", checkpoints=Checkpoints(tmp_path), on_progress=quiet)
        for seed in (3, 3, 4)
    )
    assert one == two
    assert one["measured"] != other["measured"]


def test_the_true_probability_is_that_of_normal_densities_along_the_moons():
    X = np.array([[0.0, 1.0], [1.0, -0.5], [0.5, 0.25], [-0.5, 0.0], [1.4, 0.3]])
    densities = np.array(
        [
            [np.mean([multivariate_normal(point, 0.2**2).pdf(x) for point in moon]) for moon in two_moons.trace_moons()]
            for x in X
        ]
    )
    expected = densities / densities.sum(axis=1, keepdims=True)
    found = two_moons.true_probability(X, 0.2)
    assert found == pytest.approx(expected, abs=1e-9)
    assert found[0, 0] > 0.99
    assert found[1, 1] > 0.99
    assert found[2] == pytest.approx([0.5, 0.5], abs=1e-6), "the moons are each other's mirror image in this point"


def test_the_true_probability_far_away_is_still_one():
    found = two_moons.true_probability(np.array([[1e3, 1e3], [-1e3, 0.0]]), 0.2)
    assert np.isfinite(found).all()
    assert found.sum(axis=1) == pytest.approx([1, 1])


def test_the_distance_to_a_known_boundary():
    grid = plane()
    on_map = np.stack([grid[..., 0] - 0.52, 0.52 - grid[..., 0]], axis=-1)  # the classes change at x₁ = .52
    X = np.array([[0.5, 0.0], [1.52, 1.0], [-0.48, -1.0], [2.02, 0.3]])
    expected = np.abs(X[:, 0] - 0.52)
    assert two_moons.distance_to_boundary(X, grid, on_map) == pytest.approx(expected, abs=0.03)
    rows = np.stack([grid[..., 1] - 0.52, 0.52 - grid[..., 1]], axis=-1)  # and at x₂ = .52
    assert two_moons.distance_to_boundary(X[:, ::-1], grid, rows) == pytest.approx(expected, abs=0.03)


def test_all_claims_hold_for_a_perfect_model():
    X, label = two_moons.sample_moons(2000, noise=0.2, random_state=0)
    grid = plane()
    on_map = two_moons.true_probability(grid.reshape(-1, 2), 0.2).reshape(grid.shape)
    probability = two_moons.true_probability(X, 0.2)
    u, u_on_map = norm_violation(probability), norm_violation(on_map)
    found = two_moons.compute_figures(X, label, probability, u, grid, on_map, u_on_map, 0.2)
    assert found["Spearman of u with the true u"] == pytest.approx(1)
    assert found["accuracy"] == found["accuracy of the true probabilities"] > 0.95
    assert found["ambiguous points: |d₁ + d₂ − 1|"] == pytest.approx(0, abs=1e-12)
    assert found["share of ambiguous points"] * found["share of ambiguous points in the band"] <= (
        found["share of points in the band"] + 1e-12
    )
    assert all(claim.holds for claim in two_moons.check_claims([{"measured": found}]))


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({"mean u inside the lower moon": 0.15}, 0),
        ({"mean u inside the upper moon": 0.15}, 0),
        ({"distance to the boundary, ambiguous": 0.3}, 1),
        ({"Spearman of u with the distance": -0.1}, 2),
        ({"ambiguous points: |d₁ + d₂ − 1|": 0.2}, 3),
    ],
)
def test_claims_fail_where_they_should(quick, changed, failing):
    good = {
        **quick.runs[0]["measured"],
        "mean u in the band": 0.3,
        "mean u inside the upper moon": 0.02,
        "mean u inside the lower moon": 0.02,
        "distance to the boundary, ambiguous": 0.1,
        "distance to the boundary, others": 0.5,
        "Spearman of u with the distance": -0.6,
        "ambiguous points: |d₁ + d₂ − 1|": 0.01,
    }
    assert [claim.holds for claim in two_moons.check_claims([{"measured": good}])] == [True] * 4
    holds = [claim.holds for claim in two_moons.check_claims([{"measured": {**good, **changed}}])]
    assert holds == [place != failing for place in range(4)]
