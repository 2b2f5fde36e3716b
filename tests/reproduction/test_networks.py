"""The residual networks of the paper's tables: their sizes, and the weights they take."""

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from onsphere.torch import resnet20
from reproduction.networks import resnet18, resnet56

WEIGHTS = Path(os.environ.get("ONSPHERE_DATA", Path.home() / ".cache/onsphere")) / "weights"


@pytest.mark.parametrize(("make", "count"), [(resnet56, 853_018), (resnet18, 11_173_962)], ids=["56", "18"])
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
