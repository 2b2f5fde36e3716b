"""Features of a network that stays as it is, and a fitted head as a module behind it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from onsphere import InvalidInputError, InvalidTypeError
from onsphere.models.frozen import FrozenHead
from onsphere.torch.features import feature_batches, features
from onsphere.torch.networks import MLP


class Plain(nn.Module):
    """A network without a `features` method, whose dropout and running means tell the modes apart."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.ReLU())
        self.unused = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.fixture
def loader():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=generator)
    return DataLoader(TensorDataset(x, torch.arange(50) % 3), batch_size=16)


def test_the_input_of_the_last_linear_layer_in_evaluation_mode(loader):
    network = Plain()
    state = copy.deepcopy(network.state_dict())
    X, y = features(network, loader)
    network.eval()
    expected = network.body(loader.dataset.tensors[0]).detach().numpy()
    np.testing.assert_allclose(X, expected, atol=1e-6)
    assert X.shape == (50, 5)
    assert X.dtype == np.float32
    np.testing.assert_array_equal(y, np.arange(50) % 3)
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name])


def test_every_layer_gets_its_mode_back_and_hooks_are_gone(loader):
    network = Plain().train()
    network.body[1].eval()  # a user may freeze one layer's running means
    batches = feature_batches(network, loader)
    next(batches)
    assert not network.training
    assert torch.is_grad_enabled()
    batches.close()  # even where the user stops half-way
    assert network.training
    assert not network.body[1].training
    assert network.body[2].training
    assert not any(module._forward_pre_hooks for module in network.modules())
    with pytest.raises(InvalidInputError):
        features(network, ["text"])
    assert network.training
    assert not any(module._forward_pre_hooks for module in network.modules())


class LastDefinedFirst(nn.Module):
    """Defines its layers in another order than they run, and calls the last one by keyword."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.body = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(input=self.body(x))


def test_the_last_layer_is_the_one_that_runs_last(loader):
    network = LastDefinedFirst()
    X, _ = features(network, loader)
    np.testing.assert_allclose(X, network.body(loader.dataset.tensors[0]).detach(), atol=1e-6)


class WithFeatures(nn.Module):
    """A network with a method `features`, as many for images have."""

    def __init__(self):
        super().__init__()
        self.stem, self.stage = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2)
        self.linear = nn.Linear(8, 3)

    def features(self, x):
        return torch.relu(self.stage(torch.relu(self.stem(x)))).mean(dim=(2, 3))

    def forward(self, x):
        return self.linear(self.features(x))


def test_a_features_method_comes_first_and_maps_are_averaged():
    network, images = WithFeatures(), torch.rand(5, 3, 16, 16)
    X, _ = features(network, [(images, torch.arange(5))])
    network.eval()
    np.testing.assert_allclose(X, network.features(images).detach().numpy(), atol=1e-6)
    early, _ = features(network, [(images, torch.arange(5))], layer="stem")
    assert early.shape == (5, 4)
    mlp = MLP(6, 2, hidden_sizes=(7,))
    assert features(mlp, [(torch.rand(4, 6), torch.rand(4))])[0].shape == (4, 7)


def test_several_layers_stand_side_by_side():
    network, images = WithFeatures(), torch.rand(5, 3, 16, 16)
    batch = [(images, torch.arange(5))]
    both, _ = features(network, batch, layer=["stem", "stage"])
    assert both.shape == (5, 12)
    for name, part in (("stem", both[:, :4]), ("stage", both[:, 4:])):
        np.testing.assert_array_equal(part, features(network, batch, layer=name)[0])
    np.testing.assert_array_equal(features(network, batch, layer=("stage",))[0], both[:, 4:])


def test_a_module_called_features_is_a_layer_like_any_other():
    """As in VGG, where what the last linear layer sees comes later."""

    class Vgg(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Conv2d(3, 4, 3)
            self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 2))

        def forward(self, x):
            return self.classifier(self.features(x))

    batch = [(torch.rand(3, 3, 4, 4), torch.arange(3))]
    assert features(Vgg(), batch)[0].shape == (3, 9)
    assert features(Vgg(), batch, layer="features")[0].shape == (3, 4)


def test_layers_with_several_outputs_labels_without_tensors_and_precision(loader):
    network = nn.Sequential(nn.Linear(6, 4), nn.Unflatten(1, (1, 4)), nn.LSTM(4, 3, batch_first=True)).double()
    network = nn.Sequential(network, nn.Identity())
    rows = torch.rand(5, 6, dtype=torch.float64)
    X, y = features(network, [(rows, ["a", "b", "c", "d", "e"])], layer="0.0")
    assert X.dtype == np.float64
    assert y.tolist() == ["a", "b", "c", "d", "e"]
    with pytest.raises(InvalidInputError, match=r"Got shape \(5, 1, 3\). Name a layer .* or pool tokens"):
        features(network, [(rows, torch.arange(5))], layer="0.2")

    class Pair(nn.Module):
        def forward(self, x):
            return x, None

    assert features(nn.Sequential(Pair()), [(rows, torch.arange(5))], layer="0")[0].shape == (5, 6)


def test_half_precision_and_devices(loader):
    network = Plain().to(torch.bfloat16)
    x = loader.dataset.tensors[0].to(torch.bfloat16)
    X, _ = features(network, [(x, loader.dataset.tensors[1])], device="cpu")
    assert X.dtype == np.float32
    assert features(nn.Sequential(nn.ReLU()), [(x, x[:, 0])], layer="0", device="cpu")[0].shape == (50, 6)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one batch. Got none"),
        ([(torch.zeros(4, 6),) * 3], r"\(inputs, labels\) or inputs alone, .* Got 3 element\(s\)"),
        ([{"x": [1, 2], "labels": torch.zeros(4)}], "Got list under 'x'"),
        ([{"labels": torch.zeros(4)}], "Got a mapping without inputs"),
        ([("text", torch.zeros(4))], "Got str as inputs"),
        (
            [torch.zeros(4, 6), (torch.zeros(4, 6), torch.zeros(4))],
            r"labels of one shape in all batches. Got \(n,\) and none",
        ),
        ([(torch.zeros(1, 6), torch.tensor(3))], r"one label for each row of a batch. Got tensor\(3\)"),
        (
            [(torch.zeros(4, 6), torch.zeros(4)), (torch.zeros(4, 6), torch.zeros(4, 1))],
            r"labels of one shape in all batches. Got \(n,\) and \(n, 1\)",
        ),
        ([(torch.zeros(4, 6), torch.zeros(3))], "Got 4 rows and 3 labels"),
    ],
)
def test_loaders_that_cannot_be_used(batches, message):
    with pytest.raises(InvalidInputError, match=message):
        features(Plain(), batches)


def test_networks_and_layers_that_cannot_be_used(loader):
    with pytest.raises(InvalidInputError, match=r"name of a layer of Plain. Got 'neck'. It has 'body', 'body.0'"):
        features(Plain(), loader, layer="neck")
    for wrong in (0, [], ["body", 0], ["neck"]):
        with pytest.raises(InvalidInputError, match="name of a layer of Plain"):
            features(Plain(), loader, layer=wrong)
    with pytest.raises(InvalidInputError, match=r"a forward pass through 'unused'\. Plain does not use it"):
        features(Plain(), loader, layer="unused")
    with pytest.raises(InvalidInputError, match=r"a forward pass through 'unused'\. Plain does not use it"):
        features(Plain(), loader, layer=["body", "unused"])
    halves = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 3)), nn.Flatten(0, 1), nn.Unflatten(0, (-1, 2)))
    with pytest.raises(InvalidInputError, match=r"one row per input\. Got 50 and 100 rows of the same batch"):
        features(halves, [(loader.dataset.tensors[0], torch.arange(50))], layer=["0", "2"])
    with pytest.raises(InvalidInputError, match=r"a linear layer that runs\. Sequential has neither\. Name the layer"):
        features(nn.Sequential(nn.ReLU()), loader)
    for device in ("toaster", "cuda:99", 1.5):
        with pytest.raises(InvalidInputError, match=rf"'device' parameter of features must be .* Got {device!r}"):
            features(Plain(), loader, device=device)
    with pytest.raises(InvalidTypeError, match=r"Expected a loader, an iterable of batches. Got int"):
        features(Plain(), 5)
    sizes = [(torch.zeros(2, 3, size, size), torch.zeros(2)) for size in (4, 6)]
    with pytest.raises(InvalidInputError, match=r"features of one shape in all batches. Got \(n, 16\) and \(n, 36\)"):
        features(nn.Sequential(nn.Conv2d(3, 1, 1), nn.Flatten()), sizes, layer="1")
    with pytest.raises(InvalidTypeError, match=r"needs a torch.nn.Module. Got function"):
        features(lambda x: x, loader)

    class Says(nn.Module):
        def features(self, x):
            return {"x": x}

    with pytest.raises(InvalidInputError, match=r"Got dict. Name a layer"):
        features(Says(), loader)


def test_a_dataset_and_inputs_alone_are_loaders_too(loader):
    network, x = Plain(), loader.dataset.tensors[0]
    expected, labels = features(network, loader)
    for given in (loader.dataset, [(x, labels)]):
        X, y = features(network, given)
        np.testing.assert_allclose(X, expected, rtol=1e-6)
        np.testing.assert_array_equal(y, labels)
    X, y = features(network, x)
    np.testing.assert_allclose(X, expected, rtol=1e-6)
    assert y is None
    with pytest.raises(InvalidInputError, match=r"Got a tuple of 2, which is one batch. Pass a list of it"):
        features(network, (x, labels))


def test_an_error_of_the_network_comes_with_the_batch_that_raised_it(loader):
    for batch, got in (
        (torch.zeros(3, 2), r"inputs of shape \(3, 2\) and torch\.float32"),
        (torch.zeros(3, 6).double(), r"inputs of shape \(3, 6\) and torch\.float64"),
        ({"z": torch.zeros(3, 6)}, r"z of shape \(3, 6\) and torch\.float32, for which it raised TypeError"),
    ):
        with pytest.raises(InvalidInputError, match=rf"Expected batches that Plain takes\. Got {got}") as caught:
            features(Plain(), [batch])
        assert caught.value.__cause__ is not None


def test_an_error_of_memory_stays_what_it_is():
    class Large(nn.Module):
        def forward(self, x):
            raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        features(Large(), torch.zeros(2, 2), layer="")


def test_a_wrong_name_of_a_layer_is_answered_with_the_nearest(loader):
    wrapped = nn.ModuleDict({"model": Plain()})
    with pytest.raises(InvalidInputError, match=r"Got 'body\.0'\. Close to it are 'model\.body\.0'"):
        features(wrapped, loader, layer="body.0")


class Tokens(nn.Module):
    """An encoder that takes named tensors, as those of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask=None):
        return {"last_hidden_state": self.mix(self.embed(input_ids)), "attention_mask": attention_mask}


@pytest.fixture
def texts():
    ids = torch.arange(12).reshape(3, 4)
    return {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])}


def test_named_tensors_with_labels_inside_beside_or_nowhere(texts):
    network = Tokens()
    names = torch.tensor([0, 1, 0])
    expected = network(**texts)["last_hidden_state"][:, 0].detach().numpy()
    for batch in (texts | {"labels": names}, texts | {"label": names}, (texts, names), [texts | {"labels": 1}, names]):
        X, y = features(network, [batch], layer="", pooling="cls")
        np.testing.assert_array_equal(X, expected)
        assert y.tolist() == [0, 1, 0]
    for batch in (texts, (texts,), (texts, None)):
        X, y = features(network, [batch], layer="mix", pooling="cls")
        np.testing.assert_array_equal(X, expected)
        assert y is None


def test_the_mean_of_tokens_leaves_out_what_fills_up_short_texts(texts):
    network = Tokens()
    tokens = network(**texts)["last_hidden_state"].detach()
    X, _ = features(network, [texts], layer="mix", pooling="mean")
    np.testing.assert_allclose(X[0], tokens[0].mean(dim=0), atol=1e-6)
    np.testing.assert_allclose(X[1], tokens[1, :2].mean(dim=0), atol=1e-6)
    np.testing.assert_array_equal(X[2], 0.0)  # a text without words
    X, _ = features(network, [{"input_ids": texts["input_ids"]}], layer="mix", pooling="mean")
    np.testing.assert_allclose(X, tokens.mean(dim=1), atol=1e-6)
    short = Named(nn.Sequential(Tokens(), First(), nn.MaxPool1d(3)))
    with pytest.raises(InvalidInputError, match=r"tokens of shape \(3, 4\), as the attention_mask has. Got \(3, 2\)"):
        features(short, [texts], layer="inner.2", pooling="mean")
    with pytest.raises(InvalidInputError, match=r"must be one of 'cls', 'mean'\. Got 'max'"):
        features(network, [texts], layer="mix", pooling="max")


class First(nn.Module):
    def forward(self, output):
        return output["last_hidden_state"].transpose(1, 2)[:, :2]


class Named(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask):
        return self.inner(input_ids)


def test_an_encoder_of_hugging_face_runs_as_it_is():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=30, **sizes))
    encoding = transformers.BatchEncoding(
        {"input_ids": torch.tensor([[2, 5, 7], [2, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    )
    X, y = features(bert, [encoding, encoding | {"labels": torch.arange(2)}][:1], layer="", pooling="mean")
    hidden = bert.eval()(**encoding).last_hidden_state.detach()
    np.testing.assert_allclose(X, torch.stack([hidden[0].mean(dim=0), hidden[1, :2].mean(dim=0)]), atol=1e-6)
    assert y is None
    # Without a layer, what the pooler's linear layer sees: the first token.
    np.testing.assert_allclose(features(bert, [encoding])[0], hidden[:, 0], atol=1e-6)


def test_a_features_method_takes_named_tensors_too():
    class Both(Tokens):
        def features(self, input_ids, attention_mask):
            return self.embed(input_ids).mean(dim=1)

    ids = torch.arange(6).reshape(2, 3)
    assert features(Both(), [{"input_ids": ids, "attention_mask": ids}])[0].shape == (2, 4)


def test_loaders_without_labels(loader):
    network, x = Plain(), loader.dataset.tensors[0]
    expected, _ = features(network, loader)
    for batches in ([x], [(x,)], DataLoader(TensorDataset(x), batch_size=7)):
        X, y = features(network, batches)
        np.testing.assert_allclose(X, expected, atol=1e-6)
        assert y is None


def test_rows_in_a_file(loader, tmp_path):
    network, path = Plain(), tmp_path / "rows.npy"
    X, y = features(network, loader, path=path)
    assert isinstance(X, np.memmap)
    expected, labels = features(network, loader)
    np.testing.assert_array_equal(X, expected)
    np.testing.assert_array_equal(np.load(path), expected)
    np.testing.assert_array_equal(y, labels)
    assert features(network, [loader.dataset.tensors[0]], path=str(path))[1] is None
    sizes = [torch.zeros(2, 3, size, size) for size in (4, 6)]
    with pytest.raises(InvalidInputError, match="features of one shape in all batches"):
        features(nn.Sequential(nn.Conv2d(3, 1, 1), nn.Flatten()), sizes, layer="1", path=path)
    with pytest.raises(InvalidInputError, match="at least one batch"):
        features(network, [], path=path)
    np.testing.assert_array_equal(np.load(path), expected)  # what was there stays
    assert [each.name for each in tmp_path.iterdir()] == ["rows.npy"]


def test_a_bar_counts_batches(loader, capsys):
    features(Plain(), loader, progress=True)
    assert "4/4" in capsys.readouterr().err


def test_a_frozen_network_from_loader_to_uncertainty(loader):
    """All at once and batch by batch give the same head."""
    network = Plain()
    whole = FrozenHead(n_landmarks=10, random_state=0).fit(*features(network, loader))
    streamed = FrozenHead.like(whole)
    for X, y in feature_batches(network, loader):
        streamed.partial_fit(X, y)
    X, _ = features(network, loader)
    np.testing.assert_allclose(streamed.predict_uncertainty(X), whole.predict_uncertainty(X), atol=1e-9)
