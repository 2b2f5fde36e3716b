"""Figure 1: a cubic with noise on a part of it."""

import numpy as np
import pytest

from reproduction import reproduce, toy
from reproduction.checkpoints import Checkpoints
from reproduction.data import make_toy

TINY = {"n_samples": 60, "batch_size": 30, "max_epochs": 2, "shift": 100}
ALL = toy.METHODS + toy.SHIFTED


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return reproduce("toy", device="cpu", out=tmp_path_factory.mktemp("toy"))


def quiet(done, total, what):
    pass


def make_run(sigma):
    """A run in which σ̂ of all methods is this function of x, or each its own."""
    x = np.linspace(-6, 6, 241)
    by_method = sigma if isinstance(sigma, dict) else dict.fromkeys(ALL, sigma)
    curves = {name: {"value": (x**3).tolist(), "sigma": by_method[name](x).tolist()} for name in ALL}
    return {"x": x.tolist(), "points": [[0.0], [0.0]], "curves": curves}


def perfect(x):
    return toy.true_sigma(x) + 0.1 + np.maximum(np.abs(x) - 4, 0)


def narrowing(x):
    return toy.true_sigma(x) + np.where(np.abs(x) > 4, 0.05, 0.1)


def test_the_quick_preset_measures_every_method(quick):
    assert {row["method"] for row in quick.rows} == set(ALL)
    assert len(quick.rows) == 2 * 3 + 4 * 6
    assert len(quick.claims) == 4
    assert [path.name for path in quick.files] == ["toy.md", "toy.json", "toy-bands.png"]
    assert (quick.folder / "runs/toy/quick/seed-0.json").stat().st_size < 100_000


def test_the_quick_preset_learns_the_curve(quick):
    run = quick.runs[0]
    x = np.array(run["x"])
    for method in ALL:
        value = np.array(run["curves"][method]["value"])
        if method != toy.SHIFTED[0]:  # so few epochs do not teach a network a magnitude of 140
            assert np.corrcoef(value[np.abs(x) < 4], x[np.abs(x) < 4] ** 3)[0, 1] > 0.9
        assert min(run["curves"][method]["sigma"]) >= 0


def test_the_paper_s_line_is_the_true_sigma():
    X, _, sigma = make_toy(500, random_state=0)
    assert toy.true_sigma(X[:, 0]) == pytest.approx(sigma)
    assert toy.true_sigma(np.array([-2.0, 2.0, 2.1, 4.0])).tolist() == [0.0, 20.0, 0.0, 0.0]
    assert toy.true_sigma(np.array(list(toy.PAPER))).tolist() == list(toy.PAPER.values())


def test_the_paper_s_training():
    settings = toy.PRESETS["paper"]
    network = toy.make_network(settings, "cpu")
    assert (settings["n_samples"], network.batch_size, network.max_epochs) == (4000, 64, 1000)
    assert (network.hidden_sizes, network.learning_rate, network.weight_decay) == ((100, 100, 100), 1e-3, 0.0)
    (steps,) = network.callbacks
    assert steps.kwargs == {"milestones": [200, 400, 600, 800], "gamma": 0.1}
    assert list(toy.make_network(settings, "cpu", schedule="cosine").callbacks) == []


def test_the_same_seed_gives_the_same_run_and_another_another(tmp_path):
    one, two, other = (
        toy.measure(TINY, seed, data=tmp_path, device="cpu", checkpoints=Checkpoints(tmp_path), on_progress=quiet)
        for seed in (3, 3, 4)
    )
    assert one == two
    assert one != other


def test_figures_of_a_perfect_curve_by_hand():
    found = toy.compute_figures(make_run(perfect), "HCM")
    correlation, error, ratio, free, beyond, widening = found.values()
    assert correlation == pytest.approx(1)
    assert error == pytest.approx(0.1 / 10, rel=1e-3)  # .1 too much, of a mean of 10
    assert ratio == pytest.approx(1.01, rel=1e-3)
    assert free == pytest.approx(0.1)
    assert beyond == pytest.approx(0.1 + np.linspace(0.05, 2, 40).mean(), rel=1e-6)
    assert widening == pytest.approx(beyond / free)


def test_claims_hold_where_sigma_is_followed_and_the_bands_widen():
    sigmas = (lambda x: 1.05 * perfect(x), perfect, lambda x: 0 * x + 0.1, perfect)
    runs = [make_run(dict(zip(ALL, sigmas, strict=True)))] * 2
    assert [claim.holds for claim in toy.check_claims(runs)] == [True] * 4


@pytest.mark.parametrize(
    ("sigma", "holds"),
    [
        (lambda x: 0 * x + 10, [False, False, False, False]),  # the same everywhere: neither is better
        (lambda x: 3 * perfect(x), [False, True, False, False]),  # in step, but three times too large
        (narrowing, [True, False, False, False]),
    ],
)
def test_claims_fail_where_they_should(sigma, holds):
    assert [claim.holds for claim in toy.check_claims([make_run(sigma)])] == holds


def test_one_seed_that_does_not_widen_is_enough_to_fail():
    runs = [make_run(perfect), make_run(narrowing)]
    claim = toy.check_claims(runs)[1]
    assert not claim.holds
    assert "in 1 of 2 seed(s)" in claim.figures
