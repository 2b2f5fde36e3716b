"""The five methods of the experiment on depth: how each trains its U-Nets, and what it answers to pictures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from onsphere import Lift, Polar
from onsphere._internal.validation import Floats
from onsphere.baselines.draws import numbers_from_draws
from onsphere.baselines.evidential import EvidentialLoss
from onsphere.calibration import root_mean_square
from onsphere.sphere import scores
from onsphere.torch import DenseHead, HCMLoss, SphericalOutput, UNet
from onsphere.torch.training import random_layers, seeded

__all__ = [
    "METHODS",
    "Answer",
    "Fit",
    "Loss",
    "dropout_passes",
    "ensemble",
    "evidential",
    "hcm",
    "hcm_lift",
    "train_network",
]

_DROPOUT = 0.1
_ASKED_AT_ONCE = 64

# Pictures (n, 3, H, W) -> maps (n, H·W) in units of 10 m, and an uncertainty (n,).
Answer = Callable[[Tensor], tuple[Floats, Floats]]
# Of what a network says and maps (n, 1, H, W).
Loss = Callable[[Any, Tensor], Tensor]
# Trains a network, with a number for its seed.
Fit = Callable[[nn.Module, Loss, int], None]


def evidential(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    center, scale, criterion = y.mean(), y.std(), EvidentialLoss()

    def loss(output: Tensor, maps: Tensor) -> Tensor:
        return criterion(output.permute(0, 2, 3, 1).flatten(1), ((maps - center) / scale).flatten(1)).mean()

    network = _unet(settings, out_channels=4)
    fit(network, loss, 0)

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        evidence = criterion.read(_asked(network, pictures).permute(0, 2, 3, 1).flatten(1, 2).double())
        sigma = (evidence.mean_variance().sqrt() * scale).numpy()
        return (evidence.gamma * scale + center).numpy(), root_mean_square(sigma)

    return answer


def dropout_passes(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    network, restored = _plain(fit, y, settings, 0, dropout=_DROPOUT)

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        with seeded(0):
            passes = [restored(_asked(network, pictures, dropping=True)) for _ in range(settings["n_passes"])]
        drawn = numbers_from_draws(np.stack(passes))
        return drawn.value, drawn.uncertainty

    return answer


def ensemble(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    members = [_plain(fit, y, settings, number) for number in range(settings["n_members"])]

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        drawn = numbers_from_draws(np.stack([restored(_asked(network, pictures)) for network, restored in members]))
        return drawn.value, drawn.uncertainty

    return answer


def _plain(
    fit: Fit, y: Tensor, settings: dict[str, Any], number: int, dropout: float = 0.0
) -> tuple[nn.Module, Callable[[Tensor], Floats]]:
    """A U-Net that learns standardised depth, and the way back from it."""
    center, scale = y.mean(), y.std()
    network = _unet(settings, dropout=dropout)
    fit(network, lambda output, maps: nn.functional.mse_loss(output, (maps - center) / scale), number)
    return network, lambda output: (output.flatten(1).double() * scale + center).numpy()


def hcm(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    size = (y.shape[2], y.shape[3])
    polar = Polar(standardize=False).fit(y.flatten(1).numpy())
    head = DenseHead(settings["width"], event="image", size=size, embedding=polar, mean=False)
    network = _OnSphere(_unet(settings), head)
    fit(network, HCMLoss(head), 0)
    reader = copy.deepcopy(head).cpu()

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        output = _asked(network, pictures)
        return reader.decode(output).flatten(1).double().numpy(), reader.uncertainty(output).double().numpy()

    return answer


def hcm_lift(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    lift = Lift().fit(y.flatten().numpy())
    head = DenseHead(settings["width"], event="pixel", embedding=lift)
    network = _OnSphere(_unet(settings), head)
    fit(network, HCMLoss(head), 0)
    reader = copy.deepcopy(head).cpu()

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        output = _asked(network, pictures)
        score: Tensor = scores.anchored(output, lift.anchor) * lift.unit_
        return reader.decode(output).flatten(1).double().numpy(), score.flatten(1).mean(dim=1).double().numpy()

    return answer


METHODS = {
    "EDL": evidential,
    "MC Dropout": dropout_passes,
    "Ensemble": ensemble,
    "HCM": hcm,
    "HCM Lift": hcm_lift,
}


# --- networks ---


class _OnSphere(nn.Module):
    """A U-Net with a head for maps.

    The entries of a direction are as small as one over the root of its length, and the magnitude as large as that
    root: both are learned in units in which they are near 1, like the depth itself.
    """

    def __init__(self, body: UNet, head: DenseHead) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.root = (head.map_size[0] * head.map_size[1]) ** 0.5

    def forward(self, x: Tensor) -> SphericalOutput:
        direction, magnitude, mean = self.head(self.body.features(x))
        return SphericalOutput(direction / self.root, magnitude * self.root, mean)


def _unet(settings: dict[str, Any], *, out_channels: int = 1, dropout: float = 0.0) -> UNet:
    network = UNet(out_channels=out_channels, width=settings["width"])
    for block in (*network.down, network.bottleneck, *network.up):
        cast("nn.Sequential", block).append(nn.Dropout2d(dropout))
    return network


def train_network(network: nn.Module, loss: Loss, x: Tensor, y: Tensor, settings: dict[str, Any]) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings["learning_rate"])
    steps = [round(share * settings["n_epochs"]) for share in (0.25, 0.5, 0.75)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, steps, gamma=0.1)
    for _ in range(settings["n_epochs"]):
        for rows in torch.randperm(len(x)).split(settings["batch_size"]):
            optimizer.zero_grad()
            loss(network(x[rows]), y[rows]).backward()
            optimizer.step()
        schedule.step()


@torch.no_grad()
def _asked(network: nn.Module, pictures: Tensor, *, dropping: bool = False) -> Any:
    """What a network says, on the CPU; with dropout if asked, and always with the batch statistics of its training."""
    network.eval()
    for layer in random_layers(network):
        layer.train(dropping)
    parts = [network(some) for some in pictures.split(_ASKED_AT_ONCE)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).cpu()
    joined = [None if piece[0] is None else torch.cat(piece).cpu() for piece in zip(*parts, strict=True)]
    return SphericalOutput(*cast("Any", joined))
