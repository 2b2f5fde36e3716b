"""The residual networks of the paper's tables: their sizes, and the weights they take."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from onsphere import InvalidInputError
from reproduction.networks import ResNet, resnet18, resnet20, resnet56

WEIGHTS = Path(os.environ.get("ONSPHERE_DATA", Path.home() / ".cache/onsphere")) / "weights"


@pytest.mark.parametrize(("make", "count"), [(resnet20, 269_722), (resnet56, 853_018), (resnet18, 11_173_962)])
def test_residual_networks_have_the_known_number_of_parameters(make, count):
    assert sum(parameter.numel() for parameter in make().parameters()) == count


@pytest.mark.parametrize(("make", "depth"), [(resnet20, 20), (resnet56, 56)], ids=["20", "56"])
def test_state_dict_matches_the_weights(make, depth):
    path = WEIGHTS / f"cifar10_resnet{depth}.safetensors"
    if not path.exists():
        pytest.skip(f"{path} is missing; set ONSPHERE_DATA to a folder that holds weights/")
    network, weights = make(), load_file(path)
    ours = {name: value.shape for name, value in network.state_dict().items() if not name.endswith("tracked")}
    theirs = {name: value.shape for name, value in weights.items() if not name.endswith("tracked")}
    assert ours == theirs
    network.load_state_dict(weights)


@pytest.mark.parametrize("network", [resnet20(), ResNet((2, 1), (4, 8))], ids=["padded", "projected"])
def test_features_are_the_inputs_of_the_last_layer(network):
    network.eval()
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(network(images), network.linear(network.features(images)))
    assert network.features(images).shape == (2, network.n_features)


def test_a_padded_shortcut_keeps_every_second_pixel():
    block = ResNet((1, 1), (4, 8), shortcut="padded").layer2[0]
    x = torch.rand(1, 4, 6, 6)
    short = block.shortcut(x)
    assert torch.equal(short[:, 2:6], x[:, :, ::2, ::2])
    assert not short[:, [0, 1, 6, 7]].any()


@pytest.mark.parametrize("widths", [(4,), ()])
def test_every_stage_needs_a_width(widths):
    with pytest.raises(InvalidInputError, match="as many widths as n_blocks"):
        ResNet((1, 1), widths)
