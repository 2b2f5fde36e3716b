"""The networks of the experiment on CIFAR-10: where they start, what images they see, and how they learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onsphere.torch import HCMLoss, attach, dirichlet_mix, mixup
from reproduction.checkpoints import Checkpoints
from reproduction.data import normalize_images
from reproduction.data.files import broken_file_error, require_file
from reproduction.networks import ResNet, fork_seed, resnet18, resnet20, resnet56

__all__ = ["NETWORKS", "SquaredError", "crop_and_flip", "draw_batch", "load_weights", "make_network", "train_network"]

NETWORKS: dict[str, Callable[[int], ResNet]] = {
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet56": resnet56,
    "tiny": lambda n_classes: ResNet((1, 1), (8, 16), n_classes=n_classes),
}
DROPOUT, MARGIN = 0.1, 4


class SquaredError(nn.Module):
    """Squared error of the softmax, summed over classes: the Brier score."""

    def forward(self, logits: Tensor, soft: Tensor) -> Tensor:
        return (torch.softmax(logits, dim=1) - soft).square().sum(dim=1).mean()


# --- networks and their losses ---


def make_network(settings: dict[str, Any], kind: str, n_classes: int, data: Path) -> Any:
    """Return a network of a kind, "softmax", "dropout", "gini" or "hcm", with a new last layer.

    The rest is trained already if the settings name weights.
    """
    network: Any = NETWORKS[settings["network"]](n_classes)
    if settings["weights"] is not None:
        load_weights(network, data / "weights" / f"{settings['weights']}.safetensors")
        network.linear.reset_parameters()
    if kind == "dropout":
        network.linear = nn.Sequential(nn.Dropout(DROPOUT), network.linear)
    return attach(network, n_classes, embedding="onehot", mean=False) if kind == "hcm" else network


def make_loss(kind: str, network: Any) -> Any:
    if kind == "hcm":
        return HCMLoss(network, preset="cifar10")
    return SquaredError() if kind == "gini" else nn.CrossEntropyLoss()


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


# --- training ---


def train_network(
    settings: dict[str, Any],
    kind: str,
    mixing: str,
    pixels: Tensor,
    labels: Any,
    *,
    seed: int,
    data: Path,
    device: str,
    checkpoints: Checkpoints,
    name: str,
    on_epoch: Callable[[int], None],
    evaluate: Callable[[Any], Any],
    loss: nn.Module | None = None,
    weight_decay: float = 1e-4,
) -> tuple[Any, list[Any]]:
    """Train a network, or continue from its last epoch.

    Parameters
    ----------
    settings : dict
        As in `cifar10.PRESETS`.
    kind, mixing : str
    pixels : uint8 Tensor of shape (n, 3, H, W)
    labels : int array of shape (n,)
    seed : int
        Of the last layer, of the order of images, and of how they are moved and mixed.
    data : Path
        Holds the weights to start from.
    device : str
    checkpoints : Checkpoints
        Keep the network after each epoch under `name`.
    on_epoch : callable
        Called with the number of epochs that are done.
    evaluate : callable
        Called with the network after each epoch; what it returns is listed.
    loss : Module, optional
        Of the output and the soft labels; by default that of the kind.
    weight_decay : float, default 1e-4

    Returns
    -------
    network : Module
        In evaluation mode.
    history : list
        What `evaluate` returned after each epoch.
    """
    one_hot = nn.functional.one_hot(torch.from_numpy(labels)).float()
    n_clean, batch_size = settings["n_images"], settings["batch_size"]
    if mixing != "none" and settings["mixing_adds"] and settings["equal_cost"]:
        n_clean, batch_size = n_clean // 2, batch_size // 2  # and as many mixed ones
    n_batches = -(-n_clean // batch_size)
    with fork_seed(seed):
        network = make_network(settings, kind, one_hot.shape[1], data)
        objective: Any = loss or make_loss(kind, network)
        # Convolutions on processors are faster with the channels last.
        network.to(device=device, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(
            network.parameters(), lr=settings["learning_rate"], momentum=0.9, weight_decay=weight_decay
        )
        schedule = make_schedule(settings, optimizer, n_batches)
        history: list[Any] = []
        kept = checkpoints.load(name)
        if kept is not None:
            history = kept["history"]
            for part, state in zip((network, optimizer, schedule), kept["states"], strict=True):
                part.load_state_dict(state)
            torch.set_rng_state(kept["random"])
        for epoch in range(len(history), settings["n_epochs"]):
            on_epoch(epoch)
            network.train()
            objective.epoch = settings["first_epoch"] + epoch  # only HCM's loss reads it
            for rows in torch.randperm(len(pixels))[:n_clean].split(batch_size):
                images, soft = draw_batch(settings, mixing, pixels[rows].to(device), one_hot[rows].to(device))
                optimizer.zero_grad()
                with torch.autocast(device, torch.bfloat16, enabled=settings["mixed_precision"]):
                    output = network(images.contiguous(memory_format=torch.channels_last))
                objective(output, soft).backward()
                optimizer.step()
                schedule.step()
            network.eval()
            history.append(evaluate(network))
            states = [part.state_dict() for part in (network, optimizer, schedule)]
            checkpoints.save(name, {"history": history, "states": states, "random": torch.get_rng_state()})
    return network.eval(), history


def make_schedule(settings: dict[str, Any], optimizer: torch.optim.Optimizer, n_batches: int) -> Any:
    """Return the learning rate batch by batch: one cycle up and down, or a tenth after each epoch of `decay_at`."""
    if settings["decay_at"] is None:
        total = n_batches * settings["n_epochs"]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, settings["learning_rate"], total_steps=total + 1)
    milestones = [n_batches * epoch for epoch in settings["decay_at"]]
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)


# --- images ---


def draw_batch(settings: dict[str, Any], mixing: str, pixels: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
    """Move and scale the images of a batch, and add as many mixtures of them, or replace them by mixtures."""
    images = normalize_images(crop_and_flip(pixels), like=settings["statistics"])
    if mixing == "none":
        return images, one_hot
    mix = mixup if mixing == "pairs" else dirichlet_mix
    mixed, shares = mix(images, one_hot)
    if not settings["mixing_adds"]:
        return mixed, shares
    return torch.cat([images, mixed]), torch.cat([one_hot, shares])


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
