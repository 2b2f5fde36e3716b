"""The methods of the experiment on depth: each trains its U-Nets and returns a function that judges pictures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor, nn

from onsphere import Duplicate, HCMRegressor, Lift, Polar
from onsphere.baselines import EvidentialLoss
from onsphere.sphere import scores
from onsphere.torch import DenseHead, HCMLoss, SphericalOutput, UNet
from reproduction.arguments import Floats
from reproduction.checkpoints import Checkpoints
from reproduction.networks import fork_seed

__all__ = [
    "METHODS",
    "Answer",
    "Fit",
    "Loss",
    "Scenes",
    "add_noise",
    "fit_dropout",
    "fit_ensemble",
    "fit_error_frame",
    "fit_evidential",
    "fit_hcm",
    "fit_hcm_lift",
    "fit_hcm_whole_map",
    "train_network",
]

_DROPOUT = 0.1
_BATCH_SIZE = 64
# The largest a of the noise a·ε.
_MOST_NOISE = 0.5
# The error frame reads every eighth pixel each way, and each held-out picture with so many draws of noise.
_STEP, _N_DRAWS = 8, 4

# Pictures (n, 3, H, W) -> maps (n, H·W) in units of 10 m, and an uncertainty (n,).
Answer = Callable[[Tensor], tuple[Floats, Floats]]
# Called with the output of a network and maps (n, 1, H, W).
Loss = Callable[[Any, Tensor], Tensor]


class Scenes(NamedTuple):
    """Pictures (n, 3, H, W) and their depth (n, 1, H, W), to train on and held out."""

    pictures: Tensor
    depth: Tensor
    held_pictures: Tensor
    held_depth: Tensor


class Fit(Protocol):
    """Trains a network, or loads the one that was trained under this name; the number is added to its seed."""

    def __call__(
        self, network: nn.Module, loss: Loss, *, name: str, number: int = 0, with_noise: bool = False
    ) -> None: ...


# --- the paper's baselines ---


def fit_evidential(fit: Fit, scenes: Scenes, settings: dict[str, Any]) -> Answer:
    center, scale, criterion = scenes.depth.mean(), scenes.depth.std(), EvidentialLoss()

    def compute_loss(output: Tensor, maps: Tensor) -> Tensor:
        return criterion(output.permute(0, 2, 3, 1).flatten(1), ((maps - center) / scale).flatten(1)).mean()

    network = _make_network(settings, out_channels=4)
    fit(network, compute_loss, name="EDL")

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        evidence = criterion.read(_run_network(network, pictures).permute(0, 2, 3, 1).flatten(1, 2).double())
        sigma = (evidence.mean_variance().sqrt() * scale).numpy()
        return (evidence.gamma * scale + center).numpy(), _root_mean_square(sigma)

    return answer


def fit_dropout(fit: Fit, scenes: Scenes, settings: dict[str, Any]) -> Answer:
    network, restored = _fit_plain(fit, scenes, settings, name="MC Dropout", dropout=_DROPOUT)

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        with fork_seed(0):
            passes = [restored(_run_network(network, pictures, dropping=True)) for _ in range(settings["n_passes"])]
        return _average_maps(passes)

    return answer


def fit_ensemble(fit: Fit, scenes: Scenes, settings: dict[str, Any]) -> Answer:
    members = [
        _fit_plain(fit, scenes, settings, name="Ensemble", number=number) for number in range(settings["n_members"])
    ]

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        return _average_maps([restored(_run_network(network, pictures)) for network, restored in members])

    return answer


def _fit_plain(
    fit: Fit, scenes: Scenes, settings: dict[str, Any], *, name: str, number: int = 0, dropout: float = 0.0
) -> tuple[nn.Module, Callable[[Tensor], Floats]]:
    """Train a U-Net on standardised depth; return it, and the function from its outputs back to depth."""
    center, scale = scenes.depth.mean(), scenes.depth.std()
    network = _make_network(settings, dropout=dropout)
    fit(
        network,
        lambda output, maps: nn.functional.mse_loss(output, (maps - center) / scale),
        name=name,
        number=number,
    )
    return network, lambda output: (output.flatten(1).double() * scale + center).numpy()


def _average_maps(maps: list[Floats]) -> tuple[Floats, Floats]:
    """Return the mean of several maps (n, H·W), and their spread as one number per picture."""
    return np.mean(maps, axis=0), _root_mean_square(np.std(maps, axis=0))


def _root_mean_square(sigma: Floats) -> Floats:
    return np.sqrt(np.mean(sigma**2, axis=1))


# --- HCM: the paper's, its other reading, and ours ---


def fit_hcm(
    fit: Fit, scenes: Scenes, settings: dict[str, Any], *, name: str = "HCM", with_noise: bool = False
) -> Answer:
    """Train the paper's: each depth is written twice, and the network returns direction and magnitude as they are."""
    read_maps = _fit_pixels(fit, scenes, settings, name=name, with_noise=with_noise)

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        maps, u = read_maps(pictures)
        return maps.reshape(len(maps), -1), _root_mean_square(u.reshape(len(u), -1))

    return answer


def _fit_pixels(
    fit: Fit, scenes: Scenes, settings: dict[str, Any], *, name: str, with_noise: bool = False
) -> Callable[[Tensor], tuple[Floats, Floats]]:
    """Train the paper's HCM; return the function from pictures to maps (n, H, W) of the depth and of u."""
    duplicate = Duplicate(standardize=False).fit(scenes.depth.flatten().numpy())
    head = DenseHead(settings["width"], event="pixel", embedding=duplicate, mean=False)
    network = _make_network(settings, head=head)
    fit(network, HCMLoss(head), name=name, with_noise=with_noise)
    reader = copy.deepcopy(head).cpu()

    def read_maps(pictures: Tensor) -> tuple[Floats, Floats]:
        output = _run_network(network, pictures)
        # A pixel written twice has √2 times its error.
        return reader.decode(output)[:, 0].double().numpy(), reader.uncertainty(output).double().numpy() / np.sqrt(2)

    return read_maps


def fit_hcm_whole_map(fit: Fit, scenes: Scenes, settings: dict[str, Any]) -> Answer:
    """Train the other reading: the direction is the whole map over its length, with one magnitude per picture."""
    size = (scenes.depth.shape[2], scenes.depth.shape[3])
    polar = Polar(standardize=False).fit(scenes.depth.flatten(1).numpy())
    head = DenseHead(settings["width"], event="image", size=size, embedding=polar, mean=False)
    network = _make_network(settings, head=head)
    fit(network, HCMLoss(head), name="HCM whole map")
    reader = copy.deepcopy(head).cpu()

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        output = _run_network(network, pictures)
        return reader.decode(output).flatten(1).double().numpy(), reader.uncertainty(output).double().numpy()

    return answer


def fit_hcm_lift(fit: Fit, scenes: Scenes, settings: dict[str, Any]) -> Answer:
    lift = Lift().fit(scenes.depth.flatten().numpy())
    head = DenseHead(settings["width"], event="pixel", embedding=lift)
    network = _make_network(settings, head=head)
    fit(network, HCMLoss(head), name="HCM Lift")
    reader = copy.deepcopy(head).cpu()

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        output = _run_network(network, pictures)
        score: Tensor = scores.anchored(output, lift.anchor) * lift.unit_
        return reader.decode(output).flatten(1).double().numpy(), score.flatten(1).mean(dim=1).double().numpy()

    return answer


def fit_error_frame(fit: Fit, scenes: Scenes, settings: dict[str, Any]) -> Answer:
    """Learn the errors of the paper's HCM on held-out pictures with noise, lifted on a sphere of their own."""
    read_maps = _fit_pixels(fit, scenes, settings, name="HCM")
    noised = torch.cat([add_noise(scenes.held_pictures, np.random.default_rng(draw))[0] for draw in range(_N_DRAWS)])
    maps, u = read_maps(noised)
    error = _pick_pixels(scenes.held_depth[:, 0].repeat(_N_DRAWS, 1, 1).numpy()) - _pick_pixels(maps)
    # Rows of one picture are alike: a leaf must hold several pictures.
    trees = ExtraTreesRegressor(100, min_samples_leaf=error.size // 20, random_state=0)
    model = HCMRegressor(trees, frames="target").fit(_describe_pixels(noised, maps, u), error.ravel())

    def answer(pictures: Tensor) -> tuple[Floats, Floats]:
        maps, u = read_maps(pictures)
        mean, sigma = model.predict(_describe_pixels(pictures, maps, u), return_std=True)
        expected = np.hypot(mean, sigma).reshape(len(maps), -1)
        return maps.reshape(len(maps), -1), _root_mean_square(expected)

    return answer


def _pick_pixels(maps: Floats) -> Floats:
    """Return some pixels of maps (n, H, W), spread evenly, shape (n, m)."""
    return maps[:, _STEP // 2 :: _STEP, _STEP // 2 :: _STEP].reshape(len(maps), -1)


def _describe_pixels(pictures: Tensor, maps: Floats, u: Floats) -> Floats:
    """Return a row for each picked pixel: its depth and u, and the brightness, contrast, roughness and depth around."""
    x = pictures.double().numpy()
    roughness = np.abs(np.diff(x, axis=-1)).mean(axis=(1, 2, 3))
    of_picture = [
        x.mean(axis=(1, 2, 3)),
        x.std(axis=(1, 2, 3)),
        roughness,
        maps.mean(axis=(1, 2)),
        maps.std(axis=(1, 2)),
    ]
    of_picture.append(np.log(_root_mean_square(u.reshape(len(u), -1)) + 1e-9))
    of_pixel = [_pick_pixels(maps), np.log(_pick_pixels(u) + 1e-9)]
    spread = [np.broadcast_to(each[:, None], of_pixel[0].shape) for each in of_picture]
    return np.stack([each.ravel() for each in (*of_pixel, *spread)], axis=1)


METHODS: dict[str, Callable[[Fit, Scenes, dict[str, Any]], Answer]] = {
    "EDL": fit_evidential,
    "MC Dropout": fit_dropout,
    "Ensemble": fit_ensemble,
    "HCM": fit_hcm,
    "HCM Lift": fit_hcm_lift,
    "HCM whole map": fit_hcm_whole_map,
    "HCM, trained with noise": partial(fit_hcm, name="HCM, trained with noise", with_noise=True),
    "HCM, error frame": fit_error_frame,
}


# --- noise ---


def add_noise(pictures: Tensor, rng: np.random.Generator) -> tuple[Tensor, Floats]:
    """Return pictures x + a·ε with a ~ U(0, .5) for each picture, and a."""
    amount = rng.uniform(0, _MOST_NOISE, size=len(pictures))
    noise = amount[:, None, None, None] * rng.normal(size=tuple(pictures.shape))
    return pictures + torch.as_tensor(noise, dtype=pictures.dtype), amount


# --- networks ---


class _MapNetwork(nn.Module):
    """A U-Net and its last layer; the layers before may work in 16 bits, the last one does not."""

    def __init__(self, body: UNet, head: nn.Module, precision: str) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.has_16_bits = precision == "bfloat16"

    def forward(self, x: Tensor) -> Any:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.has_16_bits):
            features = self.body.features(x)
        output = self.head(features.float())
        if not isinstance(output, SphericalOutput) or output.magnitude.dim() > 1:
            return output
        # The entries of a map over its length are as small as one over the root of their number, and the length as
        # large as that root: both are learned in units in which they are near 1.
        root = output.direction.shape[1] ** 0.5
        return SphericalOutput(output.direction / root, output.magnitude * root, output.mean)


def _make_network(
    settings: dict[str, Any], *, head: nn.Module | None = None, out_channels: int = 1, dropout: float = 0.0
) -> _MapNetwork:
    body = UNet(out_channels=out_channels, width=settings["width"])
    for block in (*body.down, body.bottleneck, *body.up):
        cast("nn.Sequential", block).append(nn.Dropout2d(dropout))
    last, body.last = body.last, cast("Any", nn.Identity())
    return _MapNetwork(body, last if head is None else head, settings["precision"])


def train_network(
    network: nn.Module,
    loss: Loss,
    pictures: Tensor,
    depth: Tensor,
    settings: dict[str, Any],
    *,
    seed: int,
    with_noise: bool,
    checkpoints: Checkpoints,
    name: str,
) -> None:
    """Train a network, from the epoch at which it was stopped."""
    with fork_seed(seed):
        _initialize(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings["learning_rate"])
    state = checkpoints.load(name)
    if state is not None:
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(0 if state is None else state["n_done"], settings["n_epochs"]):
        for group in optimizer.param_groups:
            group["lr"] = settings["learning_rate"] * 0.1 ** sum(epoch >= each for each in settings["decay_at"])
        # A seed for each epoch, so that a run that was stopped continues as if it had not been.
        with fork_seed(seed + 1_000_000 * (epoch + 1)):
            _train_epoch(network, loss, optimizer, pictures, depth, settings["batch_size"], with_noise=with_noise)
        state = {"n_done": epoch + 1, "network": network.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoints.save(name, state)


def _initialize(network: nn.Module) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _train_epoch(
    network: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    pictures: Tensor,
    depth: Tensor,
    batch_size: int,
    *,
    with_noise: bool,
) -> None:
    network.train()
    for rows in torch.randperm(len(pictures)).split(batch_size):
        x = pictures[rows]
        if with_noise:
            x = x + _MOST_NOISE * torch.rand(len(x), 1, 1, 1, device=x.device) * torch.randn_like(x)
        optimizer.zero_grad()
        loss(network(x), depth[rows]).backward()
        optimizer.step()


@torch.no_grad()
def _run_network(network: nn.Module, pictures: Tensor, *, dropping: bool = False) -> Any:
    """Return the outputs of a network on the CPU, with dropout on request, and batch statistics as trained."""
    network.eval()
    for layer in network.modules():
        if isinstance(layer, nn.Dropout2d):
            layer.train(dropping)
    device = next(network.parameters()).device
    parts = [network(some.to(device)) for some in pictures.split(_BATCH_SIZE)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).cpu()
    joined = [None if piece[0] is None else torch.cat(piece).cpu() for piece in zip(*parts, strict=True)]
    return SphericalOutput(*cast("Any", joined))
