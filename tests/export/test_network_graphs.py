"""A network, its head and its calibration in one ONNX file."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from onsphere import AcceptShare, FrozenHead, InvalidInputError, Lift, Novelty, export_onnx
from onsphere.export import network_graphs, open_graph, prepare_inputs
from onsphere.export.deployed import open_deployed
from onsphere.export.graph_builder import open_session
from onsphere.torch import DenseHead, SphericalHead, attach, calibrate, features, to_torch

torch.set_num_threads(1)  # the tests run beside each other, one per core


@pytest.fixture(scope="module")
def pictures():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, 6, 6, generator=generator)
    return x, (x.mean(dim=(1, 2, 3)) > 0).long() + (x[:, 0, 0, 0] > 0.5).long()


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def run(path, x):
    session = open_session(str(path))
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": x.numpy()}), strict=True)), session


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_the_file_answers_as_python_does(network, pictures, tmp_path, task):
    x, labels = pictures
    y = labels.numpy() if task == "classes" else x.mean(dim=(1, 2, 3)).numpy().astype(float)
    X, _ = features(network, [x], layer=["2", "4"])
    head = FrozenHead(layers=(6, 24), n_landmarks=40, random_state=0).fit(X[:200], y[:200]).calibrate(X[200:], y[200:])
    head.set_threshold(AcceptShare(0.9), novelty=Novelty(false_alarm=0.05))
    module = to_torch(head, network, layer=["2", "4"])
    parity = export_onnx(module, tmp_path / "model.onnx", X=x[:100], summary={"for": "a test"})
    assert parity.n_rows == 100
    assert max(parity.relative.values()) < 1e-4
    assert "single precision" in str(parity)
    answers, session = run(tmp_path / "model.onnx", x[:37])
    expected = head.assess(X[:37])
    assert session.get_inputs()[0].type == "tensor(float)"
    assert session.get_inputs()[0].shape[1:] == [2, 6, 6]
    for name in ("uncertainty", "novelty", "confidence", *(() if task == "classes" else ("value", "lower", "upper"))):
        np.testing.assert_allclose(answers[name], getattr(expected, name), atol=1e-4, rtol=1e-4)
    if task == "classes":
        np.testing.assert_array_equal(answers["label"], expected.value)
        np.testing.assert_allclose(answers["probabilities"], expected.probabilities, atol=1e-4)
    np.testing.assert_array_equal(answers["accepted"], expected.accepted)
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["onsphere"])
    assert metadata["manifest"]["summary"] == {"for": "a test"}


def test_a_calibrated_network_in_one_file(pictures, tmp_path):
    torch.manual_seed(0)
    x, labels = pictures
    body = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5))
    model = calibrate(attach(body, 3, embedding="onehot"), [(x, labels)], layer="model.1")
    model.set_threshold(AcceptShare(0.9))
    export_onnx(to_torch(model), tmp_path / "model.onnx", X=x[:50].numpy())
    answers, _ = run(tmp_path / "model.onnx", x[:20])
    expected = model.assess(x[:20])
    np.testing.assert_allclose(answers["probabilities"], expected.probabilities, atol=1e-4)
    np.testing.assert_allclose(answers["uncertainty"], expected.uncertainty, atol=1e-4)
    np.testing.assert_array_equal(answers["accepted"], expected.accepted)


def check_file(path, model, given, coverage=0.9):
    """Check that a file answers as `assess` does, and return its metadata."""
    session, metadata = open_graph(path)
    inputs = prepare_inputs(metadata["inputs"], given)
    answers = dict(zip(metadata["outputs"], session.run(None, inputs), strict=True))
    expected = model.assess(given, coverage=coverage)
    close = np.isclose(expected.uncertainty, model.model.threshold_ or np.nan)  # where rounding decides
    for name in ("value", "uncertainty", "noise", "lower", "probabilities", "novelty", "accepted", "reason"):
        ours, theirs = answers.get(name), getattr(expected, name)
        assert (ours is None) == (theirs is None) or name == "value", name
        if ours is not None:
            assert ours.shape == theirs.shape, name
            if theirs.dtype.kind == "f":
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, err_msg=name)
            else:
                np.testing.assert_array_equal(ours[~close], theirs[~close])
    return metadata


def test_maps_of_numbers_in_one_file(pictures, tmp_path):
    """The intervals are those that the module was made for, and one map is enough to trace it."""
    torch.manual_seed(0)
    x, depth = pictures[0], pictures[0][:, :1] + 3
    network = nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), DenseHead(4, embedding=Lift().fit(depth.reshape(-1, 1).numpy()))
    )
    model = calibrate(network, [(x[:100], depth[:100])]).set_threshold(AcceptShare(0.9))
    parity = export_onnx(to_torch(model, coverage=0.6), tmp_path / "model.onnx", X=x[:1])
    assert parity.n_rows == 36
    metadata = check_file(tmp_path / "model.onnx", model, x[:20], coverage=0.6)
    assert metadata["coverage"] == 0.6
    assert metadata["inputs"] == [{"name": "X", "kind": "tensor", "shape": [2, 6, 6], "dtype": "float32"}]


def test_maps_of_classes_of_a_network_in_double_precision(pictures, tmp_path):
    torch.manual_seed(0)
    x, labels = pictures[0].double(), (pictures[0][:, 0] > 0).long()
    model = calibrate(nn.Sequential(nn.Conv2d(2, 4, 1), DenseHead(4, 2, embedding="onehot")).double(), [(x, labels)])
    module = to_torch(model.set_threshold(AcceptShare(0.9), novelty=Novelty(false_alarm=0.1)))
    export_onnx(module, tmp_path / "model.onnx", X=x[:10])
    assert next(module.reader.parameters()).dtype == torch.float64
    check_file(tmp_path / "model.onnx", model, x[:20])


class Bag(nn.Module):
    """The mean of the words of a text that its mask keeps, and a number beside it."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 5), SphericalHead(6, 2, embedding="onehot")

    def forward(self, input_ids, attention_mask, size):
        kept = attention_mask[..., None].to(size.dtype)
        return self.head(torch.cat([(self.words(input_ids) * kept).sum(dim=1) / kept.sum(dim=1), size], dim=1))


def test_named_inputs_and_texts_of_any_length(tmp_path):
    torch.manual_seed(0)

    def draw(n, length):
        ids = torch.randint(20, (n, length))
        return {"input_ids": ids, "attention_mask": (ids > 3) | (ids == ids[:, :1]), "size": torch.rand(n, 1)}

    batch = draw(200, 6)
    labels = (batch["input_ids"][:, 0] > 9).long()
    model = calibrate(Bag(), [(batch, labels)])
    export_onnx(to_torch(model), tmp_path / "model.onnx", X={**batch, "labels": labels})
    metadata = check_file(tmp_path / "model.onnx", model, draw(30, 9))
    kinds = {each["name"]: (each["shape"], each["dtype"]) for each in metadata["inputs"]}
    assert kinds == {"input_ids": ([None], "int64"), "attention_mask": ([None], "bool"), "size": ([1], "float32")}
    with pytest.raises(InvalidInputError, match=r"inputs under the name\(s\) attention_mask, size\. Got input_ids\."):
        prepare_inputs(metadata["inputs"], {"input_ids": batch["input_ids"]})
    with pytest.raises(InvalidInputError, match=r"model of rows of a table\. Got .* which takes tensors"):
        open_deployed(tmp_path / "model.onnx")


def test_a_graph_that_answers_nothing_is_not_written(network, pictures):
    """NaN in place of a number is a difference too."""
    x, labels = pictures
    X, _ = features(network, [x], layer="4")
    module = to_torch(FrozenHead("linear", random_state=0).fit(X, labels.numpy()), network, layer="4")
    plain = network_graphs.read_network_inputs(module, x[:30])
    rows = plain.read_rows()

    class Silent:
        def run(self, names, inputs):
            return [np.full(30, np.nan)]

    inputs = [{"name": "X"}]
    with pytest.raises(InvalidInputError, match=r"Got another uncertainty in 30 of 30 row\(s\)"):
        network_graphs.compare_network(module, Silent(), ["uncertainty"], inputs, plain, rows)


def test_networks_that_cannot_be_exported(network, pictures, tmp_path, monkeypatch):
    x, labels = pictures
    X, _ = features(network, [x], layer="4")
    module = to_torch(FrozenHead("linear", random_state=0).fit(X, labels.numpy()), network, layer="4")
    path = tmp_path / "model.onnx"
    with pytest.raises(InvalidInputError, match="needs inputs of the network, as X"):
        export_onnx(module, path)
    for asked in ({"tails": "equal"}, {"quantiles": [0.5]}):
        with pytest.raises(InvalidInputError, match="symmetric intervals and no quantiles, for the graph of a network"):
            export_onnx(module, path, X=x, **asked)
    for wrong, message in (
        ([(x, labels)], r"as tensors or arrays of numbers\. Got list .* Pass one batch, not the loader"),
        (x[:0], r"with one row or more, equally many under each name\. Got 0\."),
        ({"left": x, "right": x[:3]}, r"with one row or more, equally many under each name\. Got 3 and 400\."),
        (x[:, :1], r"batches that Sequential takes\. Got X of shape \(400, 1, 6, 6\) and torch\.float32, for which"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            export_onnx(module, path, X=wrong)
    with pytest.raises(
        InvalidInputError, match=r"coverage that the module was made with, 0\.9\. Got 0\.5\. Leave it out"
    ):
        export_onnx(module, path, X=x, coverage=0.5)
    monkeypatch.setattr(network_graphs, "_TOLERANCE", -1.0)
    with pytest.raises(InvalidInputError, match=r"answers as the network does in Python\. Got another"):
        export_onnx(module, path, X=x)
    assert not path.exists()


class Branching(nn.Module):
    """A network whose path depends on its numbers, which no graph can follow."""

    def forward(self, x):
        return x.flatten(1) * (2.0 if float(x.sum()) > 0 else 3.0)


def test_a_network_that_torch_cannot_trace(pictures, tmp_path):
    x, labels = pictures
    X, _ = features(Branching(), [x], layer="")
    head = FrozenHead("linear", random_state=0).fit(X, labels.numpy())
    with pytest.raises(TypeError, match=r"torch\.onnx cannot export"):
        export_onnx(to_torch(head, Branching(), layer=""), tmp_path / "model.onnx", X=x)
