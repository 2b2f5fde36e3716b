"""Small networks to start from. Each has `features(x)`, the inputs of its last layer, and their number `n_features`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number, parameter_error
from onsphere.errors import InvalidInputError

__all__ = [
    "MLP",
    "UNet",
]


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
