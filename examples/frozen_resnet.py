"""A trained network, untouched: HCM on its features in closed form, after one pass over the images.

The last stage of the network gives the classes; novelty is measured on all three.

With the weights and CIFAR-10 in $ONSPHERE_DATA (`weights/cifar10_resnet20.safetensors`) the network is a trained one.
Without them its weights are random, which still shows the steps.
"""

import numpy as np
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

from onsphere import FrozenHead
from onsphere.torch import features
from reproduction.data import data_folder
from reproduction.networks import resnet20


def load_network() -> torch.nn.Module:
    weights = data_folder() / "weights" / "cifar10_resnet20.safetensors"
    model = resnet20()
    if weights.is_file():
        model.load_state_dict(load_file(weights))
    return model


def make_squares(n: int, *, seed: int) -> TensorDataset:
    """Make small images of three classes: a red, a green or a blue square on noise."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.randn(n, 3, 32, 32, generator=generator)
    labels = torch.arange(n) % 3
    images[torch.arange(n), labels, 8:24, 8:24] += 2.0
    return TensorDataset(images, labels)


def main(n: int = 300) -> tuple[float, float, float]:
    torch.manual_seed(0)
    model, stages = load_network(), ["layer1", "layer2", "layer3"]
    train, test = (DataLoader(make_squares(n, seed=seed), batch_size=64) for seed in (0, 1))
    noise = DataLoader(TensorDataset(2 * torch.randn(n, 3, 32, 32), torch.zeros(n)), batch_size=64)

    head = FrozenHead(layers=(16, 32, 64), random_state=0).fit(*features(model, train, layer=stages))

    new_features, labels = features(model, test, layer=stages)
    foreign_features, _ = features(model, noise, layer=stages)
    accuracy = float(np.mean(head.predict(new_features) == labels))
    known, foreign = (float(head.predict_uncertainty(rows).mean()) for rows in (new_features, foreign_features))
    novelty = [float(head.predict_novelty(rows).mean()) for rows in (new_features, foreign_features)]
    print(f"accuracy {accuracy:.3f}; mean uncertainty {known:.2f} on squares, {foreign:.2f} on pure noise")
    print(f"mean novelty {novelty[0]:.2f} on squares, {novelty[1]:.2f} on pure noise")
    return accuracy, known, foreign


if __name__ == "__main__":
    main()
