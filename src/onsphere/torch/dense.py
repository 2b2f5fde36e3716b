"""DenseHead: the last layer for maps, where every pixel or every image is a point near a sphere.

Annotations are evaluated here (no ``from __future__ import annotations``), because TorchScript reads them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number, check_option, parameter_error
from onsphere.errors import InvalidInputError
from onsphere.sphere import OneHot, Polar, RegressionEmbedding
from onsphere.torch.head import SphereReader, SphericalOutput, as_targets

__all__ = ["DenseHead", "PixelReader", "check_maps"]


class PixelReader(SphereReader):
    """Reads and places maps, of which every pixel is a point near a sphere of its own."""

    def embed(self, y: Any) -> SphericalOutput:
        """Place maps of targets (B, D, H, W), or of class labels (B, H, W), on the sphere."""
        maps = as_targets(y)
        if isinstance(self.embedding, OneHot) and not maps.is_floating_point():
            return super().embed(maps)
        check_maps(maps.dim() == 4 and maps.shape[1] == self.out_features, self.out_features, "H, W", maps)
        return super().embed(maps.permute(0, 2, 3, 1))

    def decode(self, output: SphericalOutput, *, decoder: str | None = None) -> Tensor:
        """Turn an output into maps of values (B, D, H, W), or of class labels (B, H, W)."""
        values = super().decode(output, decoder=decoder)
        return values if isinstance(self.embedding, OneHot) else values.permute(0, 3, 1, 2)

    def sigma(self, output: SphericalOutput) -> Tensor:
        """Return maps of the standard deviation of the noise, (B, D, H, W)."""
        return super().sigma(output).permute(0, 3, 1, 2)


def check_maps(fits: bool, n_channels: int, size: str, maps: Tensor) -> None:
    """Raise the error for maps of another shape, unless they fit."""
    if not fits:
        raise InvalidInputError(
            f"Expected maps of shape (B, {n_channels}, {size}). Got {list(maps.shape)}. "
            "Nothing is broadcast: reshape the maps, or make the head for maps of this shape."
        )


class DenseHead(PixelReader):
    """A head for maps: features (B, C, H, W) in, a value for every pixel out.

    Parameters
    ----------
    in_channels : int
        C.
    out_channels : int, default 1
        Number of targets D per pixel, or of classes.
    event : {"pixel", "image"}, default "pixel"
        "pixel" gives every pixel a sphere of its own: direction (B, H, W, k), magnitude (B, H, W); with "duplicate"
        as embedding this is the paper's experiment on depth. "image" takes the whole map as one vector: direction
        (B, H·W·D), magnitude (B,).
    size : (H, W), optional
        Of the maps; needed for "image", and only there.
    embedding : as in `SphericalHead`
        By default "lift" for pixels, fitted on rows of D numbers, and "polar" for images, fitted on rows of H·W·D.
        Images take no other.
    mean, magnitude : as in `SphericalHead`

    Examples
    --------
    >>> import torch
    >>> head = DenseHead(16, event="image", size=(8, 8))
    >>> output = head(torch.zeros(2, 16, 8, 8))
    >>> output.direction.shape, output.magnitude.shape
    (torch.Size([2, 64]), torch.Size([2]))
    >>> head.decode(output).shape
    torch.Size([2, 1, 8, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 1,
        *,
        event: str = "pixel",
        size: tuple[int, int] | None = None,
        embedding: str | RegressionEmbedding | OneHot | None = None,
        mean: bool = True,
        magnitude: str = "plain",
    ) -> None:
        check_option(self, "event", event, ["pixel", "image"])
        check_number(self, "in_channels", in_channels, above=1, closed="left", whole=True)
        check_number(self, "out_channels", out_channels, above=1, closed="left", whole=True)
        is_image = event == "image"
        given = embedding if embedding is not None else ("polar" if is_image else "lift")
        if is_image and given != "polar" and type(given) is not Polar:
            raise parameter_error(self, "embedding", "Polar where event='image'", given)
        if not is_image and size is not None:
            raise parameter_error(self, "size", "None where event='pixel', which takes maps of any size", size)
        height, width = _check_size(self, size) if is_image else (1, 1)
        super().__init__(height * width * out_channels, embedding=given, mean=mean, magnitude=magnitude)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.event = event
        self.map_size = (height, width)
        self.expected_size = f"{height}, {width}" if is_image else "H, W"
        # A 1×1 convolution, written so that its weights are those of a SphericalHead.
        self.linear = nn.Linear(in_channels, (self.width - 1) // (height * width) + 1)

    def forward(self, features: Tensor) -> SphericalOutput:
        """Read maps of features (B, in_channels, H, W)."""
        self._check_maps(features, self.in_channels)
        raw = self.linear(features.permute(0, 2, 3, 1))
        if self.event == "pixel":
            return self.read(raw)
        # The mean over pixels of a linear function is that function of the mean feature: one number per image.
        n = self.out_channels
        magnitude = raw[..., n].mean(dim=[1, 2])
        return self.read(torch.cat([raw[..., :n].flatten(1), magnitude[:, None], raw[..., n + 1 :].flatten(1)], dim=1))

    def embed(self, y: Any) -> SphericalOutput:
        """Place maps of targets (B, D, H, W), or of class labels (B, H, W), on the sphere."""
        if self.event == "pixel":
            return super().embed(y)
        maps = as_targets(y)
        self._check_maps(maps, self.out_channels)
        return SphereReader.embed(self, maps.permute(0, 2, 3, 1).flatten(1))

    def decode(self, output: SphericalOutput, *, decoder: str | None = None) -> Tensor:
        """Turn an output into maps of values (B, D, H, W), or of class labels (B, H, W)."""
        if self.event == "pixel":
            return super().decode(output, decoder=decoder)
        return self._to_maps(SphereReader.decode(self, output, decoder=decoder))

    def sigma(self, output: SphericalOutput) -> Tensor:
        """Return maps of the standard deviation of the noise, (B, D, H, W)."""
        return super().sigma(output) if self.event == "pixel" else self._to_maps(SphereReader.sigma(self, output))

    def _to_maps(self, rows: Tensor) -> Tensor:
        return rows.unflatten(1, (*self.map_size, self.out_channels)).permute(0, 3, 1, 2)

    def _check_maps(self, maps: Tensor, n_channels: int) -> None:
        fits = maps.dim() == 4 and maps.shape[1] == n_channels
        if fits and self.event == "image":
            fits = maps.shape[2] == self.map_size[0] and maps.shape[3] == self.map_size[1]
        check_maps(fits, n_channels, self.expected_size, maps)


def _check_size(owner: object, size: Any) -> tuple[int, int]:
    try:
        height, width = size
        check_number(owner, "size", height, above=1, closed="left", whole=True)
        check_number(owner, "size", width, above=1, closed="left", whole=True)
    except (TypeError, ValueError):
        raise parameter_error(owner, "size", "two ints (H, W) where event='image'", size) from None
    return height, width
