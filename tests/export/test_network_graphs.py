"""A network, its head and its calibration in one ONNX file."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from onsphere import AcceptShare, FrozenHead, InvalidInputError, Lift, Novelty, export_onnx
from onsphere.export import network_graphs
from onsphere.export.graph_builder import open_session
from onsphere.torch import DenseHead, attach, calibrate, features, to_torch

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
    with pytest.raises(InvalidInputError, match=r"networks of one tensor\. Got 2 named inputs\. Write the module"):
        export_onnx(module, path, X={"input_ids": x, "attention_mask": x})
    monkeypatch.setattr(network_graphs, "_TOLERANCE", -1.0)
    with pytest.raises(InvalidInputError, match=r"answers as the network does in Python\. Got another"):
        export_onnx(module, path, X=x)
    maps = nn.Sequential(nn.Conv2d(2, 4, 1), DenseHead(4, embedding=Lift().fit(np.array([[0.0], [1.0]]))))
    depth = calibrate(maps, [(x, x[:, :1])], frames="target")
    with pytest.raises(InvalidInputError, match=r"one with a head for maps\. Write the module"):
        export_onnx(to_torch(depth), path, X=x)
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
