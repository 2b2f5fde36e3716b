"""The networks: their sizes, shapes and weights."""

import pytest
import torch

from onsphere import InvalidInputError
from onsphere.torch import MLP, UNet

torch.set_num_threads(1)  # the tests run beside each other, one per core


@pytest.mark.parametrize(
    ("network", "shape", "out"),
    [
        (MLP(8, 2, hidden_sizes=(20, 10)), (5, 8), (5, 2)),
        (UNet(width=2), (2, 3, 64, 64), (2, 1, 64, 64)),
        (UNet(1, 2, width=2), (1, 1, 32, 48), (1, 2, 32, 48)),
    ],
    ids=["mlp", "unet", "unet-wide"],
)
def test_features_are_the_inputs_of_the_last_layer(network, shape, out):
    network.eval()
    seen = []
    last = list(network.children())[-1]
    last.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    x = torch.rand(*shape)
    assert network(x).shape == out
    assert network.features(x).shape[1] == network.n_features
    torch.testing.assert_close(network.features(x), seen[0])


def test_an_mlp_has_leaky_or_plain_rectifiers():
    assert {layer.negative_slope for layer in MLP(2, 1).body if hasattr(layer, "negative_slope")} == {0.01}
    assert MLP(2, 1, negative_slope=0.0).features(-torch.ones(1, 2)).min() >= 0
    assert [layer.out_features for layer in MLP(400, 25).body if hasattr(layer, "out_features")] == [200, 100, 50]


def test_an_mlp_drops_activations_in_training_only():
    network, x = MLP(4, 1, hidden_sizes=(50,), dropout=0.5), torch.rand(20, 4)
    assert not torch.equal(network(x), network(x))
    assert torch.equal(network.eval()(x), network(x))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (
            lambda: MLP(2, 1, hidden_sizes=()),
            "'hidden_sizes' parameter of MLP must be a non-empty sequence of ints above",
        ),
        (lambda: MLP(2, 1, hidden_sizes=5), "'hidden_sizes' parameter of MLP .* Got 5 instead"),
        (lambda: MLP(2, 1, hidden_sizes=(8, -1)), r"'hidden_sizes' parameter of MLP .* Got \(8, -1\) instead"),
        (lambda: MLP(2, 1, hidden_sizes=(0,)), "'hidden_sizes' parameter of MLP"),
        (lambda: MLP(2, 1, hidden_sizes=(2.5,)), "'hidden_sizes' parameter of MLP"),
        (lambda: MLP(2, 1, hidden_sizes=("a",)), "'hidden_sizes' parameter of MLP"),
        (lambda: MLP(2, 1, hidden_sizes="ab"), "'hidden_sizes' parameter of MLP"),
        (lambda: MLP(0, 1), "'in_features' parameter of MLP"),
        (lambda: MLP(2, 0), "'out_features' parameter of MLP"),
        (lambda: MLP(2, 1, negative_slope="a"), "'negative_slope' parameter of MLP"),
        (lambda: UNet(width=0), "'width' parameter of UNet"),
        (lambda: UNet(width=2)(torch.zeros(1, 3, 64, 60)), r"multiples of 16. Got \(64, 60\)"),
    ],
)
def test_bad_input_is_rejected_with_advice(attempt, message):
    with pytest.raises(InvalidInputError, match=message):
        attempt()
