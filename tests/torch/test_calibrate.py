"""From a training loop of one's own to a calibrated network: rows, texts and maps."""

import sys
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn

from onsphere import (
    AcceptShare,
    InvalidInputError,
    InvalidTypeError,
    Lift,
    Novelty,
    OnsphereWarning,
    export_onnx,
    write_report,
)
from onsphere.metrics import expected_calibration_error
from onsphere.models.frozen import FrozenHead, OutputHead
from onsphere.sphere import OneHot
from onsphere.torch import CalibratedNetwork, DenseHead, HCMLoss, SphericalHead, attach, calibrate, to_torch

torch.set_num_threads(1)  # the tests run beside each other, one per core


def train(network, head, x, y, n_steps=150, lr=0.02):
    loss, optimizer = HCMLoss(head), torch.optim.Adam(network.parameters(), lr=lr)
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss(network(x), y).backward()
        optimizer.step()
    return network


def draw_numbers(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    noise = torch.where(x[:, 1] > 0, 1.0, 0.1) * torch.randn(n, generator=generator)
    return x, 10 + 2 * x[:, 0] + noise


def draw_classes(n, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    return 1.5 * torch.eye(3)[y] + torch.randn(n, 3, generator=generator), y


@pytest.fixture(scope="module")
def regression():
    torch.manual_seed(0)
    x, y = draw_numbers(1000, seed=0)
    network = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), SphericalHead(32, 1, embedding=Lift().fit(y.numpy()[:, None])))
    return train(network, network[-1], x, y)


@pytest.fixture(scope="module")
def classification():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 9))
    network = attach(body, 3, embedding="onehot")
    return train(network, network, *draw_classes(600, seed=0))


def batches(x, y, size=100):
    return list(zip(x.split(size), y.split(size), strict=True))


def test_numbers_get_noise_intervals_and_decisions(regression):
    """Noise .1 and 1 by the sign of a column; 1,000 new rows of each side leave a standard error of 1 % of coverage."""
    before = {name: value.clone() for name, value in regression.state_dict().items()}
    model = calibrate(regression, batches(*draw_numbers(1600, seed=1)))
    model.set_threshold(AcceptShare(0.95), novelty=Novelty(false_alarm=0.02))
    x, y = draw_numbers(2000, seed=2)
    result = model.assess(x)
    assert result.value.shape == result.noise.shape == result.lower.shape == (2000,)
    np.testing.assert_allclose(result.value, regression[-1].decode(regression.eval()(x))[:, 0].detach(), atol=1e-3)
    covered = (result.lower <= y.numpy()) & (y.numpy() <= result.upper)
    assert 0.86 < covered.mean() < 0.94
    loud = x[:, 1].numpy() > 0
    assert 0.7 < np.median(result.noise[loud]) < 1.3
    assert np.median(result.noise[~loud]) < 0.3
    assert 0.9 < result.accepted.mean() < 0.98
    far = model.assess(x + 20)
    assert far.novelty.min() > 0.9
    assert not far.accepted.any()
    for name, value in regression.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_batches_and_a_loader_of_them_give_the_same(regression):
    model = calibrate(regression, batches(*draw_numbers(400, seed=1)))
    x, y = draw_numbers(250, seed=2)
    whole, parts = model.assess(x), model.assess(batches(x, y))
    for name in ("value", "sigma", "uncertainty", "lower", "confidence", "novelty"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-4, atol=1e-5)
    assert parts.accepted is None
    np.testing.assert_array_equal(model.predict(x), whole.value)
    with pytest.raises(InvalidInputError, match="predict_proba needs a network for classes"):
        model.predict_proba(x)


def test_classes_get_probabilities_sets_and_novelty_from_early_layers(classification):
    """The ECE of 15 bins of 1,500 rows has a mean of about .03 if probabilities are right."""
    model = calibrate(classification, batches(*draw_classes(1000, seed=1)), layer="model.1")
    x, y = draw_classes(1500, seed=2)
    result = model.assess(x)
    np.testing.assert_array_equal(result.value, classification.decode(classification.eval()(x)))
    probabilities = model.predict_proba(x)
    error = expected_calibration_error(result.value == y.numpy(), probabilities.max(axis=1))
    assert error < 0.05
    assert 0.87 < result.prediction_set[np.arange(1500), y].mean() < 0.96
    assert model.model.layers == (16, 16)
    assert model.assess(x * 30).novelty.mean() > 0.9 > result.novelty.mean() + 0.5


def test_a_calibrated_network_is_one_module(classification, regression):
    for network, draw in ((classification, draw_classes), (regression, draw_numbers)):
        model = calibrate(network, batches(*draw(600, seed=1))).set_threshold(AcceptShare(0.9))
        x, _ = draw(80, seed=2)
        output, expected = to_torch(model)(x), model.assess(x)
        np.testing.assert_allclose(output.value, expected.value, atol=1e-3)
        np.testing.assert_allclose(output.uncertainty, expected.uncertainty, atol=1e-3, rtol=1e-3)
        np.testing.assert_array_equal(output.accepted, expected.accepted)
    with pytest.raises(InvalidInputError, match=r"with the network that it holds. Got a backbone too"):
        to_torch(model, network)


def test_a_file_holds_weights_calibration_and_threshold(classification, tmp_path):
    model = calibrate(classification, batches(*draw_classes(600, seed=1)), layer=["model.1"])
    model.set_threshold(AcceptShare(0.9))
    path = model.save(tmp_path / "model.onsphere", summary={"for": "a test"})
    torch.manual_seed(5)
    body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 9))
    again = CalibratedNetwork.load(path, attach(body, 3, embedding="onehot"))
    x, _ = draw_classes(50, seed=2)
    for name in ("value", "uncertainty", "probabilities", "accepted", "novelty"):
        np.testing.assert_array_equal(getattr(again.assess(x), name), getattr(model.assess(x), name))
    with pytest.raises(
        InvalidInputError, match=r"network like the one that was saved. Got one that its weights do not"
    ):
        CalibratedNetwork.load(path, attach(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3)), 3, embedding="onehot"))
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    other = FrozenHead("linear", random_state=0).fit(X, y).save(tmp_path / "other.onsphere")
    with pytest.raises(InvalidInputError, match=r"file of a CalibratedNetwork. Got .* which holds a FrozenHead"):
        CalibratedNetwork.load(other, classification)


def test_reports_and_alarms_take_its_rows(regression, tmp_path):
    model = calibrate(regression, batches(*draw_numbers(400, seed=1)))
    rows, y = model.read_rows(batches(*draw_numbers(150, seed=2)))
    assert rows.shape == (150, 32 + 4)
    assert write_report(model.model, rows, y, tmp_path / "report.html").exists()
    monitor = model.monitor(alpha=0.01)
    monitor.update(model.assess(draw_numbers(100, seed=3)[0]))
    assert not monitor.alarm
    monitor.update(model.assess(draw_numbers(100, seed=3)[0] + 10))
    assert monitor.alarm
    assert monitor.alarmed_by in ("novelty", "uncertainty")


# --- maps ---


def draw_maps(n, seed, n_classes=None):
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(n, 2, 8, 6, generator=generator)
    if n_classes is not None:
        return pictures, (pictures[:, 0] > 0).long() + (pictures[:, 1] > 1).long()
    noise = torch.where(pictures[:, 1:] > 0, 0.5, 0.05) * torch.randn(n, 1, 8, 6, generator=generator)
    return pictures, 3 + pictures[:, :1] + noise


def test_every_pixel_gets_an_interval():
    torch.manual_seed(0)
    pictures, depth = draw_maps(40, seed=0)
    head = DenseHead(12, embedding=Lift().fit(depth.reshape(-1, 1).numpy()))
    network = nn.Sequential(nn.Conv2d(2, 12, 1), nn.ReLU(), head)
    train(network, head, pictures, depth)
    held, truth = draw_maps(60, seed=1)
    truth[0, 0, :4] = torch.nan  # a hole
    model = calibrate(network, batches(held, truth, size=20), layer="0").set_threshold(AcceptShare(0.9))
    new, new_truth = draw_maps(30, seed=2)
    result = model.assess(new)
    assert result.value.shape == result.lower.shape == result.noise.shape == (30, 1, 8, 6)
    assert result.uncertainty.shape == result.accepted.shape == result.novelty.shape == (30, 8, 6)
    covered = (result.lower <= new_truth.numpy()) & (new_truth.numpy() <= result.upper)
    assert 0.85 < covered.mean() < 0.95
    loud = new[:, 1].numpy() > 0
    assert np.median(result.noise[:, 0][loud]) > 3 * np.median(result.noise[:, 0][~loud])
    output = to_torch(model)(new)
    np.testing.assert_allclose(output.value, result.value, atol=1e-3)
    np.testing.assert_allclose(output.lower, result.lower, atol=1e-3)
    np.testing.assert_array_equal(output.accepted, result.accepted)
    several = model.assess([new[:10], new[10:]])
    np.testing.assert_allclose(several.value, result.value, atol=1e-5)


def test_classes_of_pixels_with_labels_that_do_not_count():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 16, 1), nn.ReLU(), nn.Conv2d(16, 3, 1))
    pictures, labels = draw_maps(60, seed=0, n_classes=3)
    model = attach(network, 3, embedding="onehot")
    train(model, model, pictures, labels)
    held, truth = draw_maps(60, seed=1, n_classes=3)
    truth[:, 0] = 255
    calibrated = calibrate(model, [(held, truth)])
    result = calibrated.assess(pictures)
    assert result.value.shape == (60, 8, 6)
    assert result.probabilities.shape == result.prediction_set.shape == (60, 3, 8, 6)
    assert (result.value == labels.numpy()).mean() > 0.8


def test_large_maps_are_sampled_and_small_layers_are_resized(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(sys.modules["onsphere.torch.calibrate"], "_N_PIXELS", 10)
    head = DenseHead(4, 2, embedding="onehot")
    network = nn.Sequential(nn.Conv2d(2, 4, 1), nn.MaxPool2d(2), nn.Upsample(scale_factor=2), head)
    pictures, labels = draw_maps(40, seed=0, n_classes=3)
    model = calibrate(network, [(pictures, labels.clamp(max=1))], layer=["1"])
    assert len(model.model.calibration_) == 20 * 10
    assert model.assess(pictures).novelty.shape == (40, 8, 6)
    flat = nn.Sequential(Kept(), network)
    with pytest.raises(
        InvalidInputError, match=r"layers of maps \(B, C, H, W\) beside a head for maps. Got shape \(40, 96\)"
    ):
        calibrate(flat, [(pictures, labels.clamp(max=1))], layer="0.flat")


class Kept(nn.Module):
    """Flattens its input on the side."""

    def __init__(self):
        super().__init__()
        self.flat = nn.Flatten()

    def forward(self, x):
        self.flat(x)
        return x


# --- other embeddings, and what cannot be used ---


@pytest.mark.parametrize(
    "options", [{"embedding": "duplicate"}, {"embedding": "polar", "mean": False}, {"embedding": "torus"}]
)
def test_heads_of_other_embeddings(options):
    torch.manual_seed(0)
    n_outputs = 1 if options["embedding"] == "duplicate" else 2
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), SphericalHead(8, n_outputs, **options))
    x = torch.randn(400, 3)
    y = x[:, :n_outputs] + 0.1 * torch.randn(400, n_outputs)
    train(network, network[-1], x[:200], y[:200], n_steps=60)
    for frames in ("all", "target", ("error",), ("input",)):
        model = calibrate(network, [(x[200:], y[200:])], frames=frames)
        result = model.assess(x)
        assert result.lower.shape == (400, n_outputs)
        np.testing.assert_allclose(to_torch(model)(x).lower, result.lower, atol=1e-3, rtol=1e-3)


def test_networks_and_loaders_that_cannot_be_used(regression):
    x, y = draw_numbers(50, seed=0)
    with pytest.raises(InvalidTypeError, match=r"needs a torch.nn.Module. Got int"):
        calibrate(5, [(x, y)])
    for network in (nn.Linear(3, 1), nn.ModuleList([regression, SphericalHead(3, 1)])):
        with pytest.raises(InvalidInputError, match=r"one spherical head inside. Got [02]. Put a SphericalHead"):
            calibrate(network, [(x, y)])
    with pytest.raises(InvalidInputError, match="event='image', which has one for a whole map"):
        calibrate(DenseHead(3, event="image", size=(2, 2)), [(x, y)])
    with pytest.raises(InvalidInputError, match=r"loader with targets to calibrate on. Got inputs alone"):
        calibrate(regression, [x])
    with pytest.raises(InvalidInputError, match=r"at least two rows to learn from and two to calibrate on. Got 3"):
        calibrate(regression, [(x[:3], y[:3])])
    with pytest.raises(InvalidInputError, match="'share' parameter of calibrate"):
        calibrate(regression, [(x, y)], share=1.0)
    with pytest.raises(InvalidInputError, match="'pooling' parameter of calibrate"):
        calibrate(regression, [(x, y)], pooling="max")
    with pytest.raises(InvalidInputError, match=r"name of a layer of Sequential. Got 'neck'"):
        calibrate(regression, [(x, y)], layer="neck")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: [(x, y[:20])], r"one label for each row of a batch\. Got 50 rows and 20 labels"),
        (lambda x, y: (x, y), r"Got a tuple of 2, which is one batch"),
        (lambda x, y: [(x, [str(each) for each in y])], r"targets that are numbers\. Got <U"),
        (
            lambda x, y: [(x.double(), y)],
            r"batches that Sequential takes\. Got inputs of shape \(50, 3\) and torch.float",
        ),
        (
            lambda x, y: [(torch.where(x > 1, torch.nan, x), y)],
            r"finite features and outputs of the network\. Got NaN or infinity in \d+ of 50 row\(s\) of a batch, first",
        ),
    ],
)
def test_batches_that_cannot_be_calibrated_on(regression, change, message):
    with pytest.raises(InvalidInputError, match=message):
        calibrate(regression, change(*draw_numbers(50, seed=0)))


def test_what_is_wrong_with_layers_and_shares_is_said(regression, classification):
    x, y = draw_numbers(50, seed=0)
    with pytest.raises(InvalidInputError, match=r"name of a layer of Sequential\. Got 2\."):
        calibrate(regression, [(x, y)], layer=2)
    with pytest.raises(InvalidInputError, match=r"Got 50 row\(s\) with known targets in all, and share=0\.999"):
        calibrate(regression, [(x, y)], share=0.999)
    with pytest.raises(InvalidInputError, match=r"Expected labels among \[0, 1, 2\]\. Got \['0'\]"):
        calibrate(classification, [(x, ["0"] * 50)])


def test_a_head_for_each_token_is_refused():
    with pytest.raises(InvalidInputError, match=r"Got answers of shape \(8, 5\), as of a head for each token"):
        calibrate(SphericalHead(3, 2, embedding="onehot"), [(torch.zeros(8, 5, 3), torch.zeros(8, 5).long())])


def test_targets_of_maps_have_the_size_of_the_outputs():
    """Larger ones would be compared at other pixels."""
    torch.manual_seed(0)
    pictures, depth = draw_maps(8, seed=0)
    network = nn.Sequential(nn.Conv2d(2, 4, 1), DenseHead(4))
    for targets in (depth.repeat(1, 1, 2, 2), depth[:, :, :4], depth.flatten(1), depth[:4], depth[:, :, None]):
        with pytest.raises(InvalidInputError, match=r"as large as the outputs, which have \(B, H, W\) = \(8, 8, 6\)"):
            calibrate(network, [(pictures, targets)])
    flat = calibrate(network, [(pictures, depth[:, 0])])
    assert flat.assess(pictures).lower.shape == (8, 8, 6)
    with pytest.raises(InvalidInputError, match=r"Got 1 map\(s\) with known targets in all"):
        calibrate(network, [(pictures[:1], depth[:1])])
    with pytest.raises(
        InvalidInputError, match=r"answers of one shape in all batches\. Got \(n, 4, 6\) and \(n, 8, 6\)"
    ):
        flat.assess([pictures, pictures[:, :, :4]])
    segmenter = nn.Sequential(nn.Conv2d(2, 4, 1), DenseHead(4, 3, embedding="onehot"))
    pictures, labels = draw_maps(8, seed=0, n_classes=3)
    with pytest.raises(InvalidInputError, match=r"Expected target maps \(B, H, W\) as large as the outputs"):
        calibrate(segmenter, [(pictures, labels[:, None])])


def test_maps_are_shown_and_watched():
    torch.manual_seed(0)
    pictures, depth = draw_maps(200, seed=0)
    model = calibrate(nn.Sequential(nn.Conv2d(2, 4, 1), DenseHead(4)), [(pictures, depth)])
    result = model.assess(draw_maps(60, seed=1)[0])
    with pytest.raises(InvalidInputError, match=r"Expected one row per prediction, for a table\. Got maps of \(8, 6\)"):
        result.to_frame()
    assert "60 rows" in result._repr_html_()
    rng = np.random.default_rng(0)
    place = np.arange(60), rng.integers(8, size=60), rng.integers(6, size=60)
    monitor = model.monitor()
    assert not monitor.update(result.uncertainty[place], missed=result.missed[place]).alarm
    far = model.assess(draw_maps(60, seed=1)[0] + 5)
    assert monitor.update(far.uncertainty[place], missed=far.missed[place]).alarm


def test_a_calibrated_network_says_what_it_is(regression):
    model = calibrate(regression, batches(*draw_numbers(400, seed=1)), layer="0")
    kind = "CalibratedNetwork(Sequential with SphericalHead, layer=['0'], 200 calibration rows"
    assert repr(model) == f"{kind}, no threshold)"
    assert repr(model.set_threshold(AcceptShare(0.9))) == f"{kind}, a threshold)"
    with pytest.raises(InvalidTypeError, match=r"Got CalibratedNetwork\. Of a CalibratedNetwork, export what"):
        export_onnx(model, "never-written.onnx")


class Named(nn.Module):
    """A network that takes its inputs by name."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, left, right):
        return self.network(torch.cat([left, right], dim=1))


def test_named_inputs_may_come_in_any_mapping(regression):
    x, y = draw_numbers(200, seed=0)
    plain = calibrate(regression, [(x, y)]).assess(x[:20])
    model = calibrate(Named(regression), [({"left": x[:, :1], "right": x[:, 1:]}, y)])
    given = UserDict({"left": x[:20, :1], "right": x[:20, 1:]})  # as tokenizers give them
    np.testing.assert_array_equal(model.assess(given).value, plain.value)


def test_rows_with_an_unknown_target_are_left_out(regression):
    x, y = draw_numbers(200, seed=0)
    y[::2] = torch.nan
    assert len(calibrate(regression, [(x, y)]).model.calibration_) + 50 == 100


def test_the_model_of_outputs_checks_its_rows():
    y = np.arange(60) % 3
    rows = np.hstack(
        [
            np.random.default_rng(0).normal(size=(60, 4)),
            (0.7 + 0.2 * np.random.default_rng(1).random((60, 1))) * np.eye(3)[y],
        ]
    )
    with pytest.raises(InvalidInputError, match="'layers' parameter of OutputHead must be widths that add up to 4"):
        OutputHead(OneHot().fit(y), (3,)).fit(rows, y)
    with pytest.raises(InvalidInputError, match="OutputHead counts every row once"):
        OutputHead(OneHot().fit(y), (4,)).fit(rows, y, sample_weight=np.ones(60))
    with pytest.warns(OnsphereWarning, match="calibration rows were also trained on"):
        OutputHead(OneHot().fit(y), (4,), random_state=0).fit(rows, y).calibrate(rows, y)
    model = OutputHead(OneHot().fit(y), (4,), calibration="cv", random_state=0).fit(rows, y)
    assert model.predict(rows).tolist() == y.tolist()
    assert not hasattr(model, "spread_")
