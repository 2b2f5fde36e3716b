"""Small networks to start from. Each has `features(x)`, the inputs of its last layer, and their number `n_features`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number, check_option, parameter_error
from onsphere.errors import InvalidInputError

__all__ = ["MLP", "ResNet", "UNet", "resnet20"]


class MLP(nn.Module):
    """Linear layers with leaky rectifiers between them.

    Parameters
    ----------
    in_features, out_features : int
    hidden_sizes : sequence of int, default (200, 100, 50)
        At least one; the default is that of the paper's industrial experiment.
    negative_slope : float, default 0.01
        0 makes plain rectifiers.
    dropout : float in [0, 1), default 0
        The share of activations dropped after each hidden layer in training.

    Examples
    --------
    >>> import torch
    >>> network = MLP(8, 1, hidden_sizes=(20, 20, 20))
    >>> network(torch.zeros(5, 8)).shape, network.features(torch.zeros(5, 8)).shape
    (torch.Size([5, 1]), torch.Size([5, 20]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden_sizes: Sequence[int] = (200, 100, 50),
        negative_slope: float = 0.01,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_number(self, "in_features", in_features, above=1, closed="left", whole=True)
        check_number(self, "out_features", out_features, above=1, closed="left", whole=True)
        check_number(self, "negative_slope", negative_slope)
        check_number(self, "dropout", dropout, above=0, below=1, closed="left")
        sizes = _check_sizes(self, hidden_sizes)
        layers: list[nn.Module] = []
        for before, after in pairwise((in_features, *sizes)):
            layers += [nn.Linear(before, after), nn.LeakyReLU(negative_slope)]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.n_features = sizes[-1]
        self.body = nn.Sequential(*layers)
        self.linear = nn.Linear(self.n_features, out_features)

    def features(self, x: Tensor) -> Tensor:
        """Return features (n, n_features) of inputs (n, in_features)."""
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.features(x))


def _check_sizes(owner: object, hidden_sizes: Any) -> list[int]:
    try:
        sizes = list(hidden_sizes)
        for size in sizes:
            check_number(owner, "hidden_sizes", size, above=1, closed="left", whole=True)
    except (TypeError, InvalidInputError):
        sizes = []
    if not sizes:
        raise parameter_error(owner, "hidden_sizes", "a non-empty sequence of ints above 0", hidden_sizes)
    return [int(size) for size in sizes]


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
        check_option(self, "shortcut", shortcut, ["projected", "padded"])
        if len(widths) == 0 or len(widths) != len(n_blocks):
            raise parameter_error(self, "widths", "as many ints as n_blocks has, at least one", widths)
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


def _make_double_conv(n_in: int, n_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (n_in, n_out):
        layers += [nn.Conv2d(channels, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Four blocks down, a bottleneck, and four blocks up that also read the map of their size from the way down.

    Parameters
    ----------
    in_channels : int, default 3
    out_channels : int, default 1
    width : int, default 64
        Channels of the first block; each block down doubles them.

    Examples
    --------
    >>> import torch
    >>> network = UNet(width=4)
    >>> network(torch.zeros(1, 3, 64, 64)).shape, network.features(torch.zeros(1, 3, 64, 64)).shape
    (torch.Size([1, 1, 64, 64]), torch.Size([1, 4, 64, 64]))
    """

    def __init__(self, in_channels: int = 3, out_channels: int = 1, *, width: int = 64) -> None:
        super().__init__()
        check_number(self, "width", width, above=1, closed="left", whole=True)
        widths = [width * 2**level for level in range(5)]
        self.n_features = width
        self.down = nn.ModuleList(
            _make_double_conv(n_in, n_out) for n_in, n_out in pairwise((in_channels, *widths[:4]))
        )
        self.bottleneck = _make_double_conv(widths[3], widths[4])
        upwards = list(pairwise(reversed(widths)))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(n_in, n_out, 2, stride=2) for n_in, n_out in upwards)
        self.up = nn.ModuleList(_make_double_conv(n_in, n_out) for n_in, n_out in upwards)
        self.last = nn.Conv2d(width, out_channels, 1)

    def features(self, x: Tensor) -> Tensor:
        """Return features (n, n_features, H, W) of images (n, in_channels, H, W)."""
        if x.shape[-1] % 16 or x.shape[-2] % 16:
            raise InvalidInputError(
                f"Expected images whose height and width are multiples of 16. Got {tuple(x.shape[-2:])}. "
                "Crop, pad or resize them: each of the four blocks halves the map."
            )
        seen: list[Tensor] = []
        for block in self.down:
            x = block(x)
            seen.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottleneck(x)
        for widen, block, same_size in zip(self.widen, self.up, reversed(seen), strict=True):
            x = block(torch.cat([widen(x), same_size], dim=1))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.features(x))
