"""The residual networks of the paper's tables, in sizes that onsphere itself does not have, and a seed for torch."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from onsphere.torch import ResNet

__all__ = ["fork_seed", "resnet18", "resnet56"]


def resnet18(n_classes: int = 10) -> ResNet:
    """Return a ResNet-18 for 32×32 images: 11.17 million parameters.

    Examples
    --------
    >>> resnet18().n_features
    512
    """
    return ResNet((2, 2, 2, 2), (64, 128, 256, 512), n_classes=n_classes)


def resnet56(n_classes: int = 10) -> ResNet:
    """Return a ResNet-56 for CIFAR with shortcuts of option A: .85 million parameters.

    Examples
    --------
    >>> resnet56().n_features
    64
    """
    return ResNet((9, 9, 9), (16, 32, 64), n_classes=n_classes, shortcut="padded")


@contextmanager
def fork_seed(seed: int) -> Generator[None]:
    """Seed torch inside a block, and leave the caller's random numbers as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
