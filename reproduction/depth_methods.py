"""The five methods of the experiment on depth: each trains its U-Nets and returns a function that judges pictures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from onsphere import Lift, Polar
from onsphere.baselines import EvidentialLoss
from onsphere.sphere import scores
from onsphere.torch import DenseHead, HCMLoss, SphericalOutput, UNet
from reproduction.arguments import Floats
from reproduction.networks import fork_seed

__all__ = [
    "METHODS",
    "Answer",
    "Fit",
    "Loss",
    "fit_dropout",
    "fit_ensemble",
    "fit_evidential",
    "fit_hcm",
    "fit_hcm_lift",
    "train_network",
]

_DROPOUT = 0.1
_BATCH_SIZE = 64

# Pictures (n, 3, H, W) -> maps (n, H·W) in units of 10 m, and an uncertainty (n,).
Answer = Callable[[Tensor], tuple[Floats, Floats]]
# Called with the output of a network and maps (n, 1, H, W).
Loss = Callable[[Any, Tensor], Tensor]
# Trains a network; the number is added to its seed.
Fit = Callable[[nn.Module, Loss, int], None]


def fit_evidential(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    center, scale, criterion = y.mean(), y.std(), EvidentialLoss()

    def compute_loss(output: Tensor, maps: Tensor) -> Tensor:
        return criterion(output.permute(0, 2, 3, 1).flatten(1), ((maps - center) / scale).flatten(1)).mean()

    network = _make_unet(settings, out_channels=4)
    fit(network, compute_loss, 0)

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        evidence = criterion.read(_run_network(network, pictures).permute(0, 2, 3, 1).flatten(1, 2).double())
        sigma = (evidence.mean_variance().sqrt() * scale).numpy()
        return (evidence.gamma * scale + center).numpy(), _root_mean_square(sigma)

    return answer


def fit_dropout(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    network, restored = _fit_plain(fit, y, settings, 0, dropout=_DROPOUT)

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        with fork_seed(0):
            passes = [restored(_run_network(network, pictures, dropping=True)) for _ in range(settings["n_passes"])]
        return _average_maps(passes)

    return answer


def fit_ensemble(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    members = [_fit_plain(fit, y, settings, number) for number in range(settings["n_members"])]

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        return _average_maps([restored(_run_network(network, pictures)) for network, restored in members])

    return answer


def _fit_plain(
    fit: Fit, y: Tensor, settings: dict[str, Any], number: int, dropout: float = 0.0
) -> tuple[nn.Module, Callable[[Tensor], Floats]]:
    """Train a U-Net on standardised depth; return it, and the function from its outputs back to depth."""
    center, scale = y.mean(), y.std()
    network = _make_unet(settings, dropout=dropout)
    fit(network, lambda output, maps: nn.functional.mse_loss(output, (maps - center) / scale), number)
    return network, lambda output: (output.flatten(1).double() * scale + center).numpy()


def fit_hcm(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    size = (y.shape[2], y.shape[3])
    polar = Polar(standardize=False).fit(y.flatten(1).numpy())
    head = DenseHead(settings["width"], event="image", size=size, embedding=polar, mean=False)
    network = _OnSphere(_make_unet(settings), head)
    fit(network, HCMLoss(head), 0)
    reader = copy.deepcopy(head).cpu()

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        output = _run_network(network, pictures)
        return reader.decode(output).flatten(1).double().numpy(), reader.uncertainty(output).double().numpy()

    return answer


def fit_hcm_lift(fit: Fit, y: Tensor, settings: dict[str, Any]) -> Answer:
    lift = Lift().fit(y.flatten().numpy())
    head = DenseHead(settings["width"], event="pixel", embedding=lift)
    network = _OnSphere(_make_unet(settings), head)
    fit(network, HCMLoss(head), 0)
    reader = copy.deepcopy(head).cpu()

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        output = _run_network(network, pictures)
        score: Tensor = scores.anchored(output, lift.anchor) * lift.unit_
        return reader.decode(output).flatten(1).double().numpy(), score.flatten(1).mean(dim=1).double().numpy()

    return answer


METHODS = {
    "EDL": fit_evidential,
    "MC Dropout": fit_dropout,
    "Ensemble": fit_ensemble,
    "HCM": fit_hcm,
    "HCM Lift": fit_hcm_lift,
}


def _average_maps(maps: list[Floats]) -> tuple[Floats, Floats]:
    """Return the mean of several maps (n, H·W), and their spread as one number per picture."""
    return np.mean(maps, axis=0), _root_mean_square(np.std(maps, axis=0))


def _root_mean_square(sigma: Floats) -> Floats:
    return np.sqrt(np.mean(sigma**2, axis=1))


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


def _make_unet(settings: dict[str, Any], *, out_channels: int = 1, dropout: float = 0.0) -> UNet:
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
def _run_network(network: nn.Module, pictures: Tensor, *, dropping: bool = False) -> Any:
    """Return the outputs of a network on the CPU, with dropout on request, and batch statistics as trained."""
    network.eval()
    for layer in network.modules():
        if isinstance(layer, nn.Dropout2d):
            layer.train(dropping)
    parts = [network(some) for some in pictures.split(_BATCH_SIZE)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).cpu()
    joined = [None if piece[0] is None else torch.cat(piece).cpu() for piece in zip(*parts, strict=True)]
    return SphericalOutput(*cast("Any", joined))
