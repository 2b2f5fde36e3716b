"""A head on models of many shapes, and off again."""

import copy
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from onsphere import InvalidInputError, InvalidTypeError, Lift, OnsphereWarning
from onsphere.torch import MLP, AttachedMap, DenseHead, HCMLoss, SphericalHead, attach

torch.set_num_threads(1)  # the tests run beside each other, one per core


class Backbone(nn.Module):
    """A body whose last layer goes by a name of its own."""

    def __init__(self, **last):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        for name, layer in last.items():
            self.add_module(name, layer)
        self.names = list(last)

    def forward(self, x):
        x = self.body(x)
        for name in self.names:
            x = self.get_submodule(name)(x)
        return x


class HuggingFaceLike(Backbone):
    """Takes keywords, slices its logits and returns them in an object."""

    def forward(self, *, input_ids):
        return SimpleNamespace(logits=super().forward(input_ids)[:, 0])


def timm_like():
    return Backbone(head=nn.Sequential(OrderedDict(norm=nn.LayerNorm(8), drop=nn.Dropout(0.1), fc=nn.Linear(8, 5))))


SHAPES = {
    "linear": (lambda: nn.Linear(4, 5), ""),
    "sequential": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)), "2"),
    "fc": (lambda: Backbone(fc=nn.Linear(8, 5)), "fc"),
    "head": (timm_like, "head.fc"),
    "classifier": (lambda: Backbone(classifier=nn.Linear(8, 5), dropout=nn.Dropout(0.1)), "classifier"),
    "square": (lambda: Backbone(dense=nn.Linear(8, 8), out_proj=nn.Linear(8, 5)), "out_proj"),
}


def check_undo(attached, model, original, x, before):
    assert attached.undo() is model
    assert dict(model.named_modules())[attached.layer] is original
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_last_linear_layer_is_found_replaced_and_put_back(shape):
    make, name = SHAPES[shape]
    model, x = make().eval(), torch.rand(6, 4)
    before, original = model(x), dict(model.named_modules())[name]
    attached = attach(model, 2)
    assert attached.layer == name
    assert f"in place of {name or 'the model'!r}: Linear(" in repr(attached)
    output = attached(x)
    assert output.direction.shape == (6, 3)
    assert output.magnitude.shape == (6,)
    assert attached.decode(output).shape == attached.sigma(output).shape == output.mean.shape == (6, 2)
    assert not any(parameter is original.weight for parameter in attached.parameters())
    if name:
        check_undo(attached, model, original, x, before)
        check_undo(attached, model, original, x, before)
    else:
        assert attached.undo() is original
    with pytest.raises(InvalidInputError, match=rf"Got one whose layer '{name or 'the model'}' undo\(\) has put back"):
        attached(x)


def test_the_networks_of_the_package():
    model = MLP(4, 10).eval()
    x, original = torch.rand(2, 4), model.linear
    before = model(x)
    attached = attach(model, 10, embedding="onehot").eval()
    assert attached(x).direction.shape == (2, 10)
    check_undo(attached, model, original, x, before)


def test_models_whose_output_is_an_object():
    model = HuggingFaceLike(classifier=nn.Linear(8, 5))
    attached = attach(model, 3, embedding="onehot", magnitude="softplus")
    output = attached(input_ids=torch.rand(6, 9, 4))
    assert output.direction.shape == (6, 3)
    assert (output.magnitude > 0).all()
    assert attached.decode(output).dtype == torch.int64


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers' own, on import
def test_a_tiny_bert():
    import transformers

    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=4
    )
    tokens = torch.randint(0, 20, (3, 7))
    model = transformers.BertForSequenceClassification(config).eval()
    before, original = model(input_ids=tokens).logits, model.classifier
    attached = attach(model, 4, embedding="onehot")
    assert attached.layer == "classifier"
    assert attached(input_ids=tokens).direction.shape == (3, 4)
    assert attached.undo().classifier is original
    assert torch.equal(model(input_ids=tokens).logits, before)
    with pytest.raises(InvalidInputError, match=r"Got Tanh \('pooler.activation'\)"):
        attach(model.bert, 4)
    wrapped = attach(model.bert, 4, n_features=8)
    assert wrapped(input_ids=tokens).direction.shape == (3, 5)


def test_a_backbone_that_returns_features_is_wrapped():
    backbone, x = Backbone(), torch.rand(6, 4)
    before = backbone(x)
    attached = attach(backbone, 2, n_features=8)
    assert attached.layer is None
    assert attached.get_submodule(attached.path) is attached.linear
    assert "after the model" in repr(attached)
    assert attached(x).direction.shape == (6, 3)
    assert torch.equal(attached.undo()(x), before)


def test_a_model_without_weights_is_wrapped_too():
    assert attach(nn.Flatten(), 1, n_features=4)(torch.rand(3, 2, 2)).direction.shape == (3, 2)


def test_a_named_layer_is_replaced():
    model = Backbone(head=nn.Linear(8, 5), head_dist=nn.Linear(8, 5))
    model.names = ["head_dist"]
    assert attach(model, 2, layer="head_dist")(torch.rand(3, 4)).direction.shape == (3, 3)


class LastDefinedFirst(nn.Module):
    """Defines its layers in another order than they run."""

    def __init__(self, n_hidden=8):
        super().__init__()
        self.fc = nn.Linear(n_hidden, 5)
        self.body = nn.Linear(4, n_hidden)

    def forward(self, x):
        return self.fc(self.body(x))


def test_a_layer_that_is_not_the_last_to_run_is_named_with_what_to_do():
    advice = r"undo\(\) and name that one with layer='fc'; if none does, check the inputs"
    with pytest.raises(InvalidInputError, match=rf"its layer 'body'\. Got the error mat1 and mat2 shapes.*{advice}"):
        attach(LastDefinedFirst(), 2)(torch.rand(3, 4))
    with pytest.raises(InvalidInputError, match=rf"Expected 6 numbers per row.* Got 5 numbers per row\. .*{advice}"):
        attach(LastDefinedFirst(n_hidden=6), 2)(torch.rand(3, 4))
    assert attach(LastDefinedFirst(), 2, layer="fc")(torch.rand(3, 4)).direction.shape == (3, 3)
    with pytest.raises(InvalidInputError, match=r"its layer 'the model'\. Got the error mat1.*check the inputs"):
        attach(nn.Linear(4, 5), 2)(torch.rand(3, 3))


def test_running_out_of_memory_is_passed_on():
    class Greedy(nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("too little")

    with pytest.raises(torch.OutOfMemoryError, match="too little"):
        attach(nn.Sequential(Greedy(4, 4), nn.Linear(4, 5)), 2)(torch.rand(3, 4))


def test_an_attached_model_compiles_and_exports():
    model, x = attach(Backbone(fc=nn.Linear(8, 5)), 2), torch.rand(3, 4)
    for other in (torch.compile(model, backend="eager", fullgraph=True), torch.export.export(model, (x,)).module()):
        for ours, theirs in zip(model(x), other(x), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_layer_that_is_put_back_has_the_precision_of_the_model(dtype):
    attached = attach(Backbone(fc=nn.Linear(8, 5)), 2).to(dtype)
    assert attached.undo()(torch.rand(3, 4, dtype=dtype)).dtype == dtype


def test_it_agrees_with_a_head_of_the_same_weights():
    y = np.random.default_rng(0).normal(50, 4, size=(6, 1))
    model = Backbone(fc=nn.Linear(8, 5))
    attached = attach(model, 1, embedding=Lift().fit(y))
    head = SphericalHead(8, 1, embedding=Lift().fit(y))
    head.linear = model.fc
    x = torch.rand(6, 4)
    for ours, theirs in zip(attached(x), head(model.body(x)), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(HCMLoss(attached)(attached(x), y), HCMLoss(head)(attached(x), y))
    torch.testing.assert_close(attached.decode(attached.embed(y)).double(), torch.tensor(y))


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_the_layer_takes_the_precision_of_the_model_and_targets_at_least_single(dtype, kept):
    attached = attach(Backbone(fc=nn.Linear(8, 5)).to(dtype), 2, embedding="onehot")
    assert attached(torch.rand(3, 4, dtype=dtype)).direction.dtype == dtype
    assert attached.embed([0, 1]).direction.dtype == kept


def test_the_state_holds_every_weight_once():
    attached = attach(Backbone(fc=nn.Linear(8, 5)), 2)
    storages = [value.data_ptr() for value in attached.state_dict().values()]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (
            lambda: attach(nn.Sequential(nn.Conv2d(3, 4, 3)), 2),
            r"Got Conv2d \('0'\). It has neither a linear layer nor",
        ),
        (lambda: attach(nn.ReLU(), 2), r"Got ReLU \('the model itself'\)"),
        (
            lambda: attach(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), 2),
            r"Got BatchNorm1d \('1'\). Name one with layer=, for example layer='0'",
        ),
        (lambda: attach(nn.Sequential(nn.Linear(4, 8), nn.Softmax(1)), 2), r"nothing after .* Got Softmax \('1'\)"),
        (
            lambda: attach(Backbone(head=nn.Linear(8, 5), head_dist=nn.Linear(8, 5)), 2),
            "two side by side, 'head' and 'head_dist'",
        ),
        (
            lambda: attach(Backbone(), 2, layer="fc"),
            "to name a Linear layer or a 1×1 Conv2d. Got no layer",
        ),
        (lambda: attach(Backbone(), 2, layer="body.1"), "Got ReLU"),
        (lambda: attach(Backbone(), 2, n_features=9)(torch.rand(3, 4)), "Expected 9 features on the last axis. Got 8"),
        (lambda: attach(Backbone(), 2, n_features=0), "'n_features' parameter of attach"),
        (lambda: attach(Backbone(), 2, n_features=8, layer="body.0"), "layer or n_features. Got both"),
        (lambda: attach(nn.Linear(4, 5), 0), "'n_outputs' parameter of attach must be an int"),
        (lambda: attach(nn.Linear(4, 5), "two"), "'n_outputs' parameter of attach"),
        (
            lambda: attach(nn.Sequential(nn.LazyLinear(3)), 2),
            r"Got LazyLinear \('0'\), which .* Run the model on a batch",
        ),
        (lambda: attach(nn.Sequential(nn.LazyLinear(3)), 2, layer="0"), "sizes are known"),
        (lambda: attach(nn.Sequential(nn.Linear(4, 5), SphericalHead(5, 1)), 2), r"Got one with SphericalHead \('1'\)"),
        (lambda: attach(attach(nn.Linear(4, 5), 1), 2), r"Got one with Attached \('the model itself'\)"),
        (lambda: attach(attach(nn.Linear(4, 5), 1), 2, n_features=3), "without a spherical head"),
    ],
)
def test_bad_input_is_rejected_with_advice(attempt, message):
    with pytest.raises(InvalidInputError, match=message):
        attempt()


def test_wrong_types_are_rejected():
    with pytest.raises(InvalidTypeError, match=r"Expected a torch.nn.Module as model. Got str"):
        attach("resnet18", 2)
    with pytest.raises(InvalidTypeError, match="Got tuple"):
        attach(nn.LSTM(4, 8), 2, n_features=8)(torch.rand(3, 5, 4))


# --- convolutions, twice, and saving ---


def make_segmenter(n_classes=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.1), nn.Conv2d(8, n_classes, 1))


def test_a_network_for_maps_gets_a_point_near_the_sphere_per_pixel():
    network, pictures = make_segmenter(), torch.randn(2, 3, 6, 4)
    before = network.eval()(pictures)
    model = attach(network, 2)
    assert isinstance(model, AttachedMap)
    assert model.layer == "3"
    output = model.eval()(pictures)
    assert output.direction.shape == (2, 6, 4, 3)
    assert model.decode(output).shape == model.sigma(output).shape == (2, 2, 6, 4)
    assert model.uncertainty(output).shape == (2, 6, 4)
    # The same weights in a DenseHead give the same.
    head = DenseHead(8, 2)
    layer = network[3]
    head.linear.load_state_dict({"weight": layer.weight[:, :, 0, 0], "bias": layer.bias})
    other = head(network[:3](pictures))
    torch.testing.assert_close(model.decode(output), head.decode(other))
    torch.testing.assert_close(model.sigma(output), head.sigma(other))
    targets = torch.randn(2, 2, 6, 4)
    torch.testing.assert_close(HCMLoss(model)(output, targets), HCMLoss(head)(other, targets))
    torch.testing.assert_close(model.undo()(pictures), before)


def test_classes_of_pixels_and_maps_that_do_not_fit():
    model = attach(make_segmenter(), 5, embedding="onehot")
    output = model(torch.randn(2, 3, 6, 4))
    assert model.decode(output).shape == (2, 6, 4)
    HCMLoss(model)(output, torch.randint(5, (2, 6, 4))).backward()
    with pytest.raises(InvalidInputError, match=r"maps of shape \(B, 2, H, W\). Got \[2, 6, 4\]"):
        attach(make_segmenter(), 2).embed(torch.zeros(2, 6, 4))
    flat = nn.Sequential(make_segmenter(), nn.Flatten())
    with pytest.raises(InvalidInputError, match=r"maps of shape \(B, 6, H, W\). Got \[2, 144\]"):
        attach(flat, 5, embedding="onehot")(torch.randn(2, 3, 6, 4))


@pytest.mark.parametrize(
    "options", [{"kernel_size": 3}, {"kernel_size": 1, "stride": 2}, {"kernel_size": 1, "groups": 2}]
)
def test_other_convolutions_are_no_end(options):
    network = nn.Sequential(nn.ReLU(), nn.Conv2d(8, 4, **options))
    message = r"last layer that is linear\. Got Conv2d \('1'\)\. It has neither .* put a DenseHead behind it"
    with pytest.raises(InvalidInputError, match=message):
        attach(network, 4)


def test_a_model_that_is_attached_already_is_refused():
    network = MLP(4, 3)
    first = attach(network, 3, embedding="onehot")
    for other in (network, copy.deepcopy(network)):
        with pytest.raises(
            InvalidInputError, match=r"whose layer 'linear' attach has replaced already\. Use what attach"
        ):
            attach(other, 2)
    with pytest.raises(InvalidInputError, match="without a spherical head"):
        attach(first, 2)
    original = first.undo().linear
    second = attach(network, 2)
    first.undo()  # once more changes nothing
    assert second(torch.zeros(1, 4)).direction.shape == (1, 3)
    assert second.undo().linear is original


def test_a_state_without_the_head_is_warned_of():
    network = MLP(4, 3)
    model = attach(network, 3, embedding="onehot")
    with pytest.warns(OnsphereWarning, match=r"while attach has replaced its layer 'linear'.* undo\(\) first"):
        network.state_dict()
    state = model.state_dict()  # all of it, and no warning
    nn.Sequential(model).state_dict()
    attach(MLP(4, 3), 3, embedding="onehot").load_state_dict(state)
    with pytest.warns(OnsphereWarning, match="while attach"):
        network.state_dict()
    model.undo().state_dict()
    model.state_dict()
