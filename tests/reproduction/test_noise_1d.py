"""Figure 7: four kinds of noise."""

import json
from pathlib import Path

import numpy as np
import pytest

from reproduction import noise_1d, reproduce
from reproduction.checkpoints import Checkpoints
from reproduction.data.synthetic import NOISE_DOMAINS, NOISE_KINDS, make_noise_1d, noise_1d_sigma

RUNS = Path(__file__).parents[2] / "docs" / "results" / "runs" / "noise-1d" / "cpu"
TINY = {"n_samples": 60, "batch_size": 60, "max_epochs": 2, "bayesian_epochs": 2, "training": {}}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return reproduce("noise-1d", device="cpu", out=tmp_path_factory.mktemp("noise-1d"))


def quiet(done, total, what):
    pass


def curve(kind, *, off=3.0, slope=1.0, constant=0.0):
    """A σ̂ that is a multiple of the true sigma plus a constant, and `off` beyond the domain."""
    low, high = NOISE_DOMAINS[kind]
    margin = 2 if kind in noise_1d.PROBED else 0
    x = np.linspace(low - margin, high + margin, 161)
    inside = slope * noise_1d_sigma(kind, x) + constant + 0.01
    return x, np.where((x >= low) & (x <= high), inside, off * inside[(x >= low) & (x <= high)].mean())


def make_run(**methods):
    """A run in which HCM and Lift follow and notice, the mixture only follows, Bayesian networks do neither."""
    known = {
        "HCM": {"slope": 1.2},
        "HCM Lift": {},
        "MDN": {"off": 0.5},
        "BNN epistemic": {"slope": 0.0, "constant": 1.0, "off": 1.1},
        "BNN aleatoric": {"slope": 0.0, "constant": 1.0, "off": 1.0},
    }
    run = {}
    for kind in NOISE_KINDS:
        found = {"points": [[0.0], [0.0]], "curves": {}}
        for name in noise_1d.METHODS:
            x, sigma = curve(kind, **methods.get(name.replace(" ", "_"), known[name]))
            found["x"] = x.tolist()
            found["curves"][name] = {"value": (0 * x).tolist(), "sigma": sigma.tolist(), "rmse": 1.0}
        run[kind] = found
    return {"kinds": run}


def holds(*runs):
    return [claim.holds for claim in noise_1d.check_claims(runs)]


# --- the quick preset ---


def test_every_method_is_measured_under_every_noise(quick):
    assert len(quick.rows) == (3 * 6 + 4) * len(noise_1d.METHODS)  # the multi-valued set has no sides
    assert {(row["noise"], row["method"]) for row in quick.rows} == {
        (kind, method) for kind in NOISE_KINDS for method in noise_1d.METHODS
    }
    assert all(np.isfinite(row["ours"]) for row in quick.rows)
    assert len(quick.claims) == 8


def test_what_is_written(quick):
    names = ["noise-1d.md", "noise-1d.json", "noise-1d-bands.png", "noise-1d-sigma.png"]
    assert [path.name for path in quick.files] == names
    assert (quick.folder / "runs/noise-1d/quick/seed-0.json").stat().st_size < 300_000


def test_the_same_seed_gives_the_same_run(tmp_path, monkeypatch):
    monkeypatch.setattr(noise_1d, "NOISE_KINDS", NOISE_KINDS[:1])
    one, two = (
        noise_1d.measure(TINY, 3, data=tmp_path, device="cpu", checkpoints=Checkpoints(tmp_path), on_progress=quiet)
        for _ in range(2)
    )
    assert one == two


# --- the paper ---


def test_the_paper_s_protocol():
    settings = noise_1d.PRESETS["paper"]
    methods = noise_1d.make_methods(settings, 0, "cpu")
    assert tuple(methods) == noise_1d.METHODS
    for model in methods.values():
        network = model.estimator
        assert (network.hidden_sizes, network.max_epochs, network.learning_rate) == ((100, 100, 100), 1000, 1e-3)
        assert network.module.keywords["negative_slope"] == 0.0, "rectifiers, as in the script"
        assert len(network.callbacks) == 1, "the steps of the learning rate"
    assert [methods[name].estimator.standardize for name in ("HCM", "MDN")] == ["inputs", "inputs"]
    assert set(noise_1d.PAPER) < set(noise_1d.METHODS)
    assert noise_1d.PAPER["MDN"] == {"noise": True, "off the domain": False}


def test_the_short_presets_train_all_methods_alike():
    for model in noise_1d.make_methods(noise_1d.PRESETS["cpu"], 0, "cpu").values():
        assert (model.estimator.schedule, model.estimator.learning_rate) == ("cosine", 3e-3)
        assert list(model.estimator.callbacks) == []


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_the_committed_runs_were_drawn_from_these_points(kind):
    paths = sorted(RUNS.glob("seed-*.json"))
    assert paths
    for seed, path in enumerate(paths):
        run = json.loads(path.read_text())
        X, y, _ = make_noise_1d(kind, run["settings"]["n_samples"], random_state=2 * seed)
        kept = run["kinds"][kind]["points"]
        np.testing.assert_allclose([X[:300, 0], y[:300]], kept, atol=1e-5)


# --- claims ---


def test_claims_hold_where_the_paper_is_right():
    assert holds(make_run(), make_run()) == [True] * 8


def test_hcm_that_does_not_follow_the_noise():
    flat = {"slope": 0.0, "constant": 1.0}
    assert holds(make_run(HCM=flat)) == [False, False, True, True, True, True, False, True]


def test_hcm_that_does_not_notice_that_it_is_off_the_domain():
    assert holds(make_run(HCM={"off": 0.8})) == [True, True, False, True, True, False, False, False]


def test_a_mixture_that_does_both():
    assert holds(make_run(MDN={})) == [True, True, True, True, False, True, False, True]


def test_a_mixture_that_does_not_follow_the_noise():
    result = holds(make_run(MDN={"slope": 0.0, "constant": 1.0, "off": 0.5}))
    assert result == [True, True, True, False, True, True, True, True]


def test_a_bayesian_network_that_is_more_sensitive_off_the_domain():
    known = {"slope": 0.0, "constant": 1.0, "off": 9.0}
    assert holds(make_run(BNN_epistemic=known)) == [True, True, True, True, True, False, True, True]


def test_lift_that_is_further_from_sigma():
    assert holds(make_run(HCM_Lift={"slope": 2.0})) == [True] * 7 + [False]


def test_figures_of_a_curve_by_hand():
    run = make_run(HCM={"slope": 2.0, "off": 3.0})
    follows, error, ratio, fit, left, right = noise_1d.compute_figures(
        run["kinds"]["laplace"], "laplace", "HCM"
    ).values()
    assert follows == pytest.approx(1)
    assert error == pytest.approx(1, abs=0.01)
    assert ratio == pytest.approx(2, abs=0.01)
    assert (left, right) == (pytest.approx(3), pytest.approx(3))
    assert fit == 1.0
