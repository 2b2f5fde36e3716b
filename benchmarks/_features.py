"""The features of CIFAR-10 ResNets on all image sets, extracted once and kept on disk.

They are kept in the FOLDER that a benchmark is called with, by default `~/.cache/onsphere/features`.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

from onsphere.torch import features
from reproduction.data import IMAGE_SETS, data_folder, load_cifar10, load_image_set, normalize_images
from reproduction.networks import resnet20, resnet56

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else data_folder() / "features"
NETWORKS = {"ResNet-20": resnet20, "ResNet-56": resnet56}
# The stages of the networks, and the width of each; the features of a network are its last stage.
STAGES, WIDTHS = ("layer1", "layer2", "last"), (16, 32, 64)
OOD = [name for name in IMAGE_SETS if name not in ("CIFAR-10", "Places365")]


@cache
def load_images(name):
    if name == "train":
        return load_cifar10("train")
    return load_image_set("CIFAR-10" if name == "test" else name)


def normalize_pictures(pictures):
    """Return pictures (n, 32, 32, 3) of bytes as the networks expect them."""
    return normalize_images(torch.as_tensor(pictures).permute(0, 3, 1, 2))


def _join_batch(rows):
    pictures, labels = zip(*rows, strict=True)
    return normalize_pictures(torch.stack(pictures)), torch.stack(labels)


@cache
def load_network(network):
    model = NETWORKS[network]()
    name = network.lower().replace("-", "")
    model.load_state_dict(load_file(data_folder() / "weights" / f"cifar10_{name}.safetensors"))
    return model


@cache
def load_features(network, name, layer="last"):
    """Return the features (n, p) of one stage on one set."""
    paths = {stage: FOLDER / f"{network} {stage} {name}.npy" for stage in STAGES}
    if not paths[layer].exists():
        print(f"extracting {network} {name}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        data = TensorDataset(*map(torch.from_numpy, load_images(name)))
        loader = DataLoader(data, batch_size=250, collate_fn=_join_batch)
        rows, _ = features(load_network(network), loader, layer=["layer1", "layer2", "layer3"])
        for path, block in zip(paths.values(), np.split(rows, np.cumsum(WIDTHS)[:-1], axis=1), strict=True):
            np.save(path, block)
    return np.load(paths[layer]).astype(np.float64)


@cache
def load_stages(network, name):
    """Return the features of all stages side by side (n, 112)."""
    return np.hstack([load_features(network, name, stage) for stage in STAGES])


@cache
def load_logits(network, name):
    """Return the logits (n, 10) of one set: the last layer on its features."""
    linear = load_network(network).linear
    weight, bias = linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()
    return load_features(network, name) @ weight.T + bias
