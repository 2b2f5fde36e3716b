"""The residual networks of the paper's tables, and a seed for torch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from onsphere import InvalidInputError

__all__ = ["ResNet", "fork_seed", "resnet18", "resnet20", "resnet56"]


class _PaddedShortcut(nn.Module):
    """Every second pixel, with channels of zeros on both sides: the shortcut without weights ("option A")."""

    def __init__(self, n_more: int) -> None:
        super().__init__()
        self.n_more = n_more

    def forward(self, x: Tensor) -> Tensor:
        before = self.n_more // 2
        return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.n_more - before))


class _BasicBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, *, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        if n_in == n_out:
            self.shortcut = nn.Identity()
        elif shortcut == "padded":
            self.shortcut = _PaddedShortcut(n_out - n_in)
        else:
            projection = nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network for small images: a 3×3 stem, stages of basic blocks, the mean over pixels.

    Parameters
    ----------
    n_blocks : sequence of int
        Blocks in each stage.
    widths : sequence of int
        Channels of each stage; every stage after the first halves the size of the map.
    n_classes : int, default 10
    shortcut : {"projected", "padded"}, default "projected"
        How a block reaches more channels: by a 1×1 convolution, or by zeros.

    Examples
    --------
    >>> import torch
    >>> network = ResNet((1, 1), (8, 16), n_classes=3)
    >>> network(torch.zeros(2, 3, 32, 32)).shape, network.features(torch.zeros(2, 3, 32, 32)).shape
    (torch.Size([2, 3]), torch.Size([2, 16]))
    """

    def __init__(
        self, n_blocks: Sequence[int], widths: Sequence[int], *, n_classes: int = 10, shortcut: str = "projected"
    ) -> None:
        super().__init__()
        if len(widths) == 0 or len(widths) != len(n_blocks):
            raise InvalidInputError(f"Expected as many widths as n_blocks, at least one. Got {widths} and {n_blocks}.")
        self.n_features = widths[-1]
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self._stages: list[str] = []
        n_in = widths[0]
        for number, (depth, width) in enumerate(zip(n_blocks, widths, strict=True), start=1):
            blocks: list[nn.Module] = []
            for index in range(depth):
                stride = 2 if number > 1 and index == 0 else 1
                blocks.append(_BasicBlock(n_in, width, stride=stride, shortcut=shortcut))
                n_in = width
            self._stages.append(f"layer{number}")
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.linear = nn.Linear(self.n_features, n_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return features (n, n_features) of images (n, 3, H, W)."""
        maps = torch.relu(self.bn1(self.conv1(x)))
        for stage in self._stages:
            maps = self.get_submodule(stage)(maps)
        return maps.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.features(x))


def resnet20(n_classes: int = 10) -> ResNet:
    """Return a ResNet-20 for CIFAR with shortcuts of option A: .27 million parameters.

    Examples
    --------
    >>> resnet20().n_features
    64
    """
    return ResNet((3, 3, 3), (16, 32, 64), n_classes=n_classes, shortcut="padded")


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
