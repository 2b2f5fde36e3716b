"""The depth experiment: its methods, measurements, table and claims, and the data it needs."""

import json

import h5py
import numpy as np
import pytest
import torch

from onsphere import InvalidInputError
from onsphere.calibration import Calibration
from reproduction import depth, depth_methods, reproduce
from reproduction.checkpoints import Checkpoints
from reproduction.depth_methods import METHODS, Scenes
from reproduction.error_tables import METRICS, RIVALS, VARIANTS, compute_metrics, find_best_correlations

torch.set_num_threads(1)  # the tests run beside each other, one per core

TINY = depth.PRESETS["quick"] | {"n_scenes": 30, "n_epochs": 2}


def make_published_run(noise=(0.0, 0.5), **of_methods):
    """A run that found the paper's figures (for ours, HCM's or better); the less sure of two pictures is noisier."""
    metrics, rows = {}, {}
    for method in METHODS:
        figures = depth.PAPER.get(method, depth.PAPER["HCM"])
        better = {"RMSE": 0.1} if method == "HCM, trained with noise" else {}
        better |= {"Spearman": 0.6} if method == "HCM, error frame" else {}
        metrics[method] = (
            dict(zip(METRICS, figures, strict=True)) | better | of_methods.get(method.replace(" ", "_"), {})
        )
        spread = [1.0, 0.9] if method in RIVALS else [1.0, 0.0]
        rows[method] = {"error": [0.1, 0.2], "uncertainty": [0.1, 0.3], "confidence": spread}
    new = {method: {"Pearson": 0.5, "Spearman": 0.4} for method in METHODS}
    return {"metrics": metrics, "new scenes": new, "rows": rows, "noise": list(noise)}


def held(run):
    return {claim.text: claim.holds for claim in depth.check_claims([run])}


def find_claim(claims, *words):
    (found,) = [holds for text, holds in claims.items() if all(word in text for word in words)]
    return found


# --- the quick preset ---


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return reproduce("depth", preset="quick", out=tmp_path_factory.mktemp("depth"), data=tmp_path_factory.mktemp("no"))


def test_quick_writes_table_claims_and_figures(quick):
    assert len(quick.rows) == len(METHODS) * (len(METRICS) + 9)
    assert len(json.loads((quick.folder / "depth.json").read_text())["runs"]) == 1
    for name in ("calibration", "scatter", "boxes", "selective", "noise", "examples-hcm", "examples-hcm-lift"):
        assert (quick.folder / f"depth-{name}.png").stat().st_size > 1000


def test_figures_are_in_their_ranges(quick):
    run = quick.runs[0]
    assert all(0 <= each <= 0.5 for each in run["noise"])
    for method, figures in run["metrics"].items():
        coverage = [figures[f"cov@{k}σ"] for k in (1, 2, 3)]
        assert sorted(coverage) == coverage
        assert all(-1 <= figures[name] <= 1 for name in ("Pearson", "Spearman"))
        assert figures["RMSE"] == pytest.approx(np.mean(run["rows"][method]["error"]), rel=1e-4)
        assert all(0 <= each <= 1 for each in run["rows"][method]["confidence"])


def test_examples_are_the_surest_and_the_least_sure(quick):
    run = quick.runs[0]
    for method in VARIANTS:
        confidence = run["rows"][method]["confidence"]
        shown = [example["confidence"] for example in run["examples"][method]]
        assert (shown[0], shown[3]) == pytest.approx((max(confidence), min(confidence)), rel=1e-4)


def measure(folder, seed=0, **settings):
    return depth.measure(
        TINY | settings,
        seed,
        data=folder,
        device="cpu",
        checkpoints=Checkpoints(folder / str(seed)),
        on_progress=lambda *_: None,
    )


def test_the_same_seed_gives_the_same_figures_and_another_does_not(tmp_path):
    first, again, other = measure(tmp_path / "a"), measure(tmp_path / "b"), measure(tmp_path / "c", 1)
    assert first == again
    assert first["metrics"] != other["metrics"]


def test_training_that_was_stopped_continues_as_if_it_had_not_been(tmp_path):
    x, y = (part[:8] for part in depth._load_scenes(TINY, 0, tmp_path)[0])

    def train(folder, n_epochs):
        network = depth_methods._make_network(TINY, dropout=0.1)
        depth_methods.train_network(
            network,
            torch.nn.functional.mse_loss,
            x,
            y,
            TINY | {"n_epochs": n_epochs, "batch_size": 4},
            seed=0,
            with_noise=True,
            checkpoints=Checkpoints(tmp_path / folder),
            name="some",
        )
        return network.state_dict()

    straight = train("straight", 3)
    train("stopped", 1)
    resumed = train("stopped", 3)
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_methods_that_are_done_are_not_trained_again(tmp_path, monkeypatch):
    first = measure(tmp_path)
    monkeypatch.setattr(depth, "METHODS", dict.fromkeys(METHODS))
    assert measure(tmp_path) == first


# --- data ---


def test_real_depth_is_read_in_units_of_ten_metres(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, size=(4, 3, 64, 64), dtype=np.uint8)
    metres = rng.uniform(1, 9, size=(4, 64, 64)).astype(np.float32)
    (tmp_path / "nyu_v2").mkdir()
    with h5py.File(tmp_path / "nyu_v2" / "nyu_depth_v2_labeled.mat", "w") as file:
        file["images"], file["depths"] = pictures, metres
    np.savez(tmp_path / "nyu_v2" / "splits.npz", train=[0, 1, 2], test=[3])
    (x, y), (new_x, new_y) = depth._load_scenes({"scenes": "nyu", "n_scenes": 795}, 0, tmp_path)
    assert (x.shape, new_x.shape) == ((3, 3, 64, 64), (1, 3, 64, 64))
    # The file keeps x before y.
    np.testing.assert_allclose(torch.cat([x, new_x]), pictures.transpose(0, 1, 3, 2) / 255, rtol=1e-6)
    np.testing.assert_allclose(torch.cat([y, new_y])[:, 0], metres.transpose(0, 2, 1) / 10, rtol=1e-6)


def test_missing_data_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"nyu_depth_v2_labeled\.mat.*New York"):
        reproduce("depth", preset="cpu", data=tmp_path, out=tmp_path / "results")


def test_made_up_rooms_are_darker_where_they_are_farther():
    x, y = depth._make_rooms(5, np.random.default_rng(0))
    assert x.shape == (5, 3, 32, 32)
    assert y.min() > 0
    assert y.max() < 1
    assert all(np.corrcoef(x[i].mean(axis=0).ravel(), y[i].ravel())[0, 1] < -0.9 for i in range(5))


def test_pictures_packed_as_text_can_be_read_back():
    rng = np.random.default_rng(0)
    picture, prediction, truth = rng.uniform(size=(3, 8, 8)), rng.uniform(size=64), rng.uniform(size=(8, 8))
    example = json.loads(json.dumps(depth._pack_example(picture, prediction, truth, 0.5)))
    np.testing.assert_allclose(depth._unpack(example, "picture"), picture.transpose(1, 2, 0), atol=1 / 255)
    np.testing.assert_allclose(depth._unpack(example, "prediction"), prediction.reshape(8, 8), atol=1 / 255)
    np.testing.assert_allclose(depth._unpack(example, "truth"), truth, atol=1 / 255)


# --- what the methods answer ---


@pytest.fixture
def ask_method():
    """A method with networks as they were made, its answer to pictures, and what its networks say of them."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(3, 3, 16, 16, generator=rng), torch.rand(6, 1, 16, 16, generator=rng) + 0.2

    def ask(method):
        networks, losses = [], []

        def fit(network, loss, *, name, number=0, with_noise=False):
            torch.manual_seed(number)
            for layer in network.modules():
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
            networks.append(network)
            losses.append(loss)

        value, uncertainty = method(fit, Scenes(x, y[:3], x, y[3:]), TINY)(x)
        with torch.no_grad():
            outputs = [network.eval()(x) for network in networks]
            loss = float(losses[0](outputs[0], y[:3]))
        return value, uncertainty, outputs, loss, y

    return ask


def test_hcm_writes_each_pixel_twice(ask_method):
    value, uncertainty, (output,), loss, y = ask_method(depth_methods.fit_hcm)
    assert output.direction.shape == (3, 16, 16, 2)
    np.testing.assert_allclose(
        value, (output.magnitude * output.direction.mean(dim=-1)).flatten(1), rtol=1e-4, atol=1e-5
    )
    u = output.magnitude.abs() * (output.direction.norm(dim=-1) - 1).abs()
    np.testing.assert_allclose(uncertainty, (u**2 / 2).mean(dim=(1, 2)).sqrt(), rtol=1e-4)
    magnitude = y[:3, 0] * 2**0.5
    of_direction = magnitude**2 * ((output.direction - 0.5**0.5) ** 2).sum(dim=-1)
    assert loss == pytest.approx(float((of_direction + (output.magnitude - magnitude) ** 2).mean()), rel=1e-4)


def test_the_error_frame_keeps_the_maps_of_hcm_and_not_its_score(ask_method):
    plain, framed = ask_method(depth_methods.fit_hcm), ask_method(depth_methods.fit_error_frame)
    np.testing.assert_array_equal(plain[0], framed[0])
    assert (framed[1] > 0).all()
    # Without training, all maps miss the depth by about as much, and so says the frame.
    error = np.sqrt(np.mean((framed[0] - framed[4][3:].flatten(1).numpy()) ** 2))
    assert framed[1] == pytest.approx(error, rel=0.3)


def test_noise_has_its_own_amount_for_each_picture():
    x = torch.zeros(200, 3, 16, 16)
    noised, amount = depth_methods.add_noise(x, np.random.default_rng(0))
    assert 0 < amount.min() < 0.02
    assert 0.48 < amount.max() < 0.5
    np.testing.assert_allclose(noised.flatten(1).std(dim=1), amount, rtol=0.15)


def test_the_whole_map_is_one_vector(ask_method):
    value, uncertainty, (output,), loss, y = ask_method(depth_methods.fit_hcm_whole_map)
    length = output.direction.norm(dim=1)
    np.testing.assert_allclose(value, output.magnitude[:, None] * output.direction, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(uncertainty, output.magnitude.abs() * (length - 1).abs(), rtol=1e-4)
    magnitude = y[:3].flatten(1).norm(dim=1)
    direction = y[:3].flatten(1) / magnitude[:, None]
    of_direction = magnitude**2 * ((output.direction - direction) ** 2).sum(dim=1)
    assert loss == pytest.approx(float((of_direction + (output.magnitude - magnitude) ** 2).mean()), rel=1e-4)


def test_hcm_lift_averages_u_plus_a_over_pixels(ask_method):
    value, uncertainty, (output,), _, y = ask_method(depth_methods.fit_hcm_lift)
    scale, center = y[:3].double().std(correction=0), y[:3].double().mean()
    u = output.magnitude.abs() * (output.direction.norm(dim=-1) - 1).abs()
    a = (output.magnitude * output.direction[..., -1] - 3).abs()
    np.testing.assert_allclose(uncertainty, (u + a).double().mean(dim=(1, 2)) * scale, rtol=1e-4)
    np.testing.assert_allclose(value, output.mean[..., 0].flatten(1) * scale + center, rtol=1e-4, atol=1e-5)


def test_an_ensemble_answers_mean_and_spread(ask_method):
    value, uncertainty, outputs, loss, y = ask_method(depth_methods.fit_ensemble)
    maps = torch.stack(outputs)[:, :, 0].flatten(2).double() * y[:3].double().std() + y[:3].double().mean()
    assert len(outputs) == TINY["n_members"]
    in_spreads = (maps[0] - y[:3].flatten(1)) / y[:3].std()
    assert loss == pytest.approx(float((in_spreads**2).mean()), rel=1e-4)
    np.testing.assert_allclose(value, maps.mean(dim=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(uncertainty, maps.var(dim=0, correction=0).mean(dim=1).sqrt(), rtol=1e-4)


def test_evidence_answers_its_mean_and_what_is_not_known_of_it(ask_method):
    value, uncertainty, (output,), loss, y = ask_method(depth_methods.fit_evidential)
    gamma, nu, alpha, beta = output.flatten(2).double().unbind(dim=1)
    nu, beta = (torch.nn.functional.softplus(each) + 1e-6 for each in (nu, beta))
    variance = beta / (nu * (torch.nn.functional.softplus(alpha) + 1e-6)) * y[:3].double().var()
    np.testing.assert_allclose(value, gamma * y[:3].double().std() + y[:3].double().mean(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(uncertainty, variance.mean(dim=1).sqrt(), rtol=1e-3)
    assert np.isfinite(loss)


def test_dropout_repeats_its_answer_although_passes_differ(ask_method):
    first, again = ask_method(depth_methods.fit_dropout), ask_method(depth_methods.fit_dropout)
    np.testing.assert_array_equal(first[0], again[0])
    assert (first[1] > 0).all()


def test_metrics_use_the_temperature_of_the_held_out_rows():
    error = np.linspace(0.1, 1.0, 100)
    held_out = Calibration(np.full(100, 0.5), error)
    tested = Calibration(np.linspace(0.2, 1.1, 100), error)
    figures = compute_metrics(held_out, tested)
    scaled = held_out.temperature * tested.uncertainty
    assert figures["cov@2σ"] == np.mean(error <= 2 * scaled)
    assert figures["Pearson"] == pytest.approx(1)
    assert figures["Spearman"] == pytest.approx(1)
    assert figures["RMSE"] == pytest.approx(0.55)
    # The scaled uncertainty is a straight line of the error, so the bins change nothing but the sign within a bin.
    assert figures["ECE_reg"] == pytest.approx(np.abs(scaled - error).mean(), abs=0.02)


# --- table and claims ---


def test_rows_have_the_published_figures():
    rows = {(row["method"], row["metric"]): row for row in depth.tabulate([make_published_run()])}
    assert rows["HCM", "Pearson"]["paper"] == 0.4919
    assert rows["MC Dropout", "RMSE"]["paper"] == 0.1189
    assert rows["EDL", "cov@3σ"]["paper"] == 0.9884
    assert rows["Ensemble", "ECE_reg"]["paper"] == 0.1838
    assert rows["HCM Lift", "Pearson"]["paper"] is None
    assert {row["agrees?"] for row in rows.values() if row["paper"] is not None} == {"yes"}
    assert rows["HCM", "RMSE of the surest half"]["ours"] == 0.1
    assert rows["HCM", "E-AURC"]["ours"] == 0
    assert rows["HCM", "Spearman of error and noise"]["ours"] == pytest.approx(1)
    assert rows["HCM whole map", "new scenes: Spearman"]["ours"] == 0.4


def test_the_papers_own_figures_uphold_its_claims():
    assert all(held(make_published_run()).values())


def test_claims_fail_where_the_figures_say_so():
    poor = dict.fromkeys(("Pearson", "Spearman", "ECE_reg", "RMSE"), 0.0)
    exact = dict(zip(METRICS[:3], (0.68, 0.95, 0.997), strict=True))
    run = make_published_run(noise=(0.5, 0.0), HCM=poor | exact)
    run["rows"]["HCM"] = {"error": [0.2, 0.1], "uncertainty": [0.1, 0.1], "confidence": [0.5, 0.5]}
    run["metrics"]["HCM, error frame"]["Spearman"] = -0.1
    claims = depth.check_claims([run])
    lift = [claim.holds for claim in claims if claim.text.startswith("HCM Lift")]
    assert lift == [True, True]
    assert not any(claim.holds for claim in claims if not claim.text.startswith("HCM Lift"))


def test_best_correlations_are_counted_for_each_variant():
    run = make_published_run(HCM_Lift={"Pearson": 0.2})
    assert find_best_correlations([run]) == {"Pearson": False, "Spearman": True}
    assert find_best_correlations([run], "HCM") == {"Pearson": True, "Spearman": True}
    assert find_claim(held(run), "HCM Lift", "Pearson") is False
