"""The networks of the experiment on CIFAR-10: where they start, what images they see, and how they learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onsphere.torch import HCMLoss, attach, dirichlet_mix, mixup
from reproduction.data import normalize_images
from reproduction.data.files import broken_file_error, require_file
from reproduction.networks import ResNet, resnet18, resnet20

__all__ = ["NETWORKS", "Learner", "SquaredError", "Tail", "crop_and_flip", "draw_epoch", "make_learners"]

NETWORKS: dict[str, Callable[[int], ResNet]] = {
    "resnet18": resnet18,
    "resnet20": resnet20,
    "tiny": lambda n_classes: ResNet((1, 1), (8, 16), n_classes=n_classes),
}
DROPOUT, MARGIN = 0.1, 4


class Tail(nn.Module):
    """The part of a network that is trained: its later stages, and dropout before a linear layer."""

    def __init__(self, stages: Sequence[nn.Module], linear: nn.Linear, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.stages = nn.Sequential(*stages)
        self.dropout = nn.Dropout(dropout)
        self.linear = linear

    def features(self, maps: Tensor) -> Tensor:
        return self.stages(maps).mean(dim=(2, 3))

    def forward(self, maps: Tensor) -> Tensor:
        return self.linear(self.dropout(self.features(maps)))


class SquaredError(nn.Module):
    """Squared error of the softmax, summed over classes: the Brier score."""

    def forward(self, logits: Tensor, soft: Tensor) -> Tensor:
        return (torch.softmax(logits, dim=1) - soft).square().sum(dim=1).mean()


@dataclass
class Learner:
    """A network in training."""

    network: Any
    loss: Any
    optimizer: torch.optim.Optimizer
    schedule: Any

    def train(self, maps: Tensor, soft: Tensor, batch_size: int) -> None:
        """Train for one epoch, in a new random order."""
        self.network.train()
        for rows in torch.randperm(len(maps), device=maps.device).split(batch_size):
            self.optimizer.zero_grad()
            self.loss(self.network(maps[rows]), soft[rows]).backward()
            self.optimizer.step()
        self.schedule.step()
        self.network.eval()


def make_learners(
    settings: dict[str, Any], n_classes: int, data: Path, device: str
) -> tuple[nn.Module, dict[str, Learner]]:
    """Return the stem that all share and that is not trained, and the learners behind it, all from the same start."""
    n_frozen = settings["n_frozen"]
    stem = nn.Sequential(*split_stages(make_network(settings, n_classes, data))[:n_frozen])
    stem.eval().requires_grad_(False).to(device)
    learners: dict[str, Learner] = {}
    for kind in [*(f"softmax {member}" for member in range(settings["n_members"])), "dropout", "gini", "hcm"]:
        new = make_network(settings, n_classes, data)
        network: Any = Tail(split_stages(new)[n_frozen:], new.linear, dropout=DROPOUT if kind == "dropout" else 0.0)
        loss: Any = SquaredError() if kind == "gini" else nn.CrossEntropyLoss()
        if kind == "hcm":
            network = attach(network, n_classes, embedding="onehot", mean=False)
            loss = HCMLoss(network, preset="cifar10")
        # Convolutions on processors are faster with the channels last.
        network.to(device=device, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(network.parameters(), lr=settings["learning_rate"], momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, settings["decay_at"], gamma=0.1)
        learners[kind] = Learner(network, loss, optimizer, schedule)
    return stem, learners


def make_network(settings: dict[str, Any], n_classes: int, data: Path) -> ResNet:
    """Return a network with a new last layer; the rest is trained already if there are weights."""
    network = NETWORKS[settings["network"]](n_classes)
    if settings["weights"] is not None:
        load_weights(network, data / "weights" / f"{settings['weights']}.safetensors")
        network.linear.reset_parameters()
    return network


def split_stages(network: ResNet) -> list[nn.Module]:
    """Return all but the last layer."""
    first, norm, *stages, _ = network.children()
    return [nn.Sequential(first, norm, nn.ReLU()), *stages]


def load_weights(network: ResNet, path: Path) -> None:
    """Load the weights of a file into a network that fits them."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    what = (
        "the weights of a network for CIFAR-10 as a state dict in safetensors format, named as in "
        "reproduction.networks.ResNet (conv1.weight, bn1.weight, layer1.0.conv1.weight, ..., linear.bias)"
    )
    advice = "Put them there, or use preset='paper', which trains from scratch."
    require_file(path, f"It holds {what}. {advice}")
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise broken_file_error(path, what, error, advice=advice) from None
    except RuntimeError:  # a long list of names
        raise broken_file_error(path, what, "tensors of other names or shapes", advice=advice) from None


# --- an epoch ---


def draw_epoch(
    settings: dict[str, Any], mixing: str, stem: nn.Module, pixels: Tensor, labels: Any, device: str
) -> tuple[Tensor, Tensor]:
    """Draw, move and mix images; return the stem's maps of them and their soft labels, the same for all learners."""
    maps: list[Tensor] = []
    soft: list[Tensor] = []
    one_hot = nn.functional.one_hot(torch.from_numpy(labels)).float()
    for rows in torch.randperm(len(pixels))[: settings["n_images"]].split(settings["batch_size"]):
        images = normalize_images(crop_and_flip(pixels[rows].to(device)))
        images, shares = mix(mixing, images, one_hot[rows].to(device))
        with torch.no_grad():
            maps.append(stem(images))
        soft.append(shares)
    return torch.cat(maps), torch.cat(soft)


def crop_and_flip(pixels: Tensor) -> Tensor:
    """Move each image by up to MARGIN pixels, black beyond its border, and mirror half of them."""
    n, _, height, width = pixels.shape
    offsets = torch.randint(0, 2 * MARGIN + 1, (2, n, 1), device=pixels.device)
    rows = offsets[0] + torch.arange(height, device=pixels.device)
    columns = offsets[1] + torch.arange(width, device=pixels.device)
    mirrored = torch.rand(n, 1, device=pixels.device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    padded = nn.functional.pad(pixels, (MARGIN, MARGIN, MARGIN, MARGIN))
    image = torch.arange(n, device=pixels.device)[:, None, None, None]
    channel = torch.arange(3, device=pixels.device)[None, :, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def mix(mixing: str, images: Tensor, soft: Tensor) -> tuple[Tensor, Tensor]:
    if mixing == "none":
        return images, soft
    return mixup(images, soft) if mixing == "pairs" else dirichlet_mix(images, soft, k=20, alpha=0.5)
