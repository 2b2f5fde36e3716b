"""The last layer: from features to a direction, a magnitude and a mean, and from there to values and uncertainty.

Annotations are evaluated here (no ``from __future__ import annotations``), because TorchScript reads them.
"""

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor, nn

from onsphere import geometry, scores
from onsphere._validation import bad_parameter, check_flag, check_number, check_option
from onsphere.embeddings import Duplicate, Lift, OneHot, Polar, RegressionEmbedding, Torus
from onsphere.errors import InvalidInputError

__all__ = ["DenseHead", "SphereReader", "SphericalHead", "SphericalOutput", "check_features"]

_EMBEDDINGS = {kind.__name__.lower(): kind for kind in (Duplicate, Lift, OneHot, Polar, Torus)}


class SphericalOutput(NamedTuple):
    """`onsphere.SphericalOutput` with the types that TorchScript asks for; all of `onsphere.scores` takes it too.

    Attributes
    ----------
    direction : Tensor of shape (..., k)
    magnitude : Tensor of shape (...)
    mean : Tensor of shape (..., D) or None
        The standardised target itself.
    """

    direction: Tensor
    magnitude: Tensor
    mean: Tensor | None = None


class SphereReader(nn.Module):
    """What every head shares: how plain numbers are read as a point near the sphere, and targets put on it.

    The numbers lie side by side, [direction (k) | magnitude (1) | mean (D, or none)], `width` in all.
    """

    center: Tensor
    scale: Tensor
    classes: Tensor

    def __init__(self, out_features: int, *, embedding: Any, mean: bool, magnitude: str) -> None:
        super().__init__()
        check_number(self, "out_features", out_features, above=1, closed="left", whole=True)
        check_flag(self, "mean", mean)
        check_option(self, "magnitude", magnitude, ["plain", "softplus"])
        self.out_features = out_features
        self.embedding = _fitted(self, embedding, out_features)
        self.softplus = magnitude == "softplus"
        self.has_mean = mean and not isinstance(self.embedding, OneHot)
        if isinstance(self.embedding, OneHot):
            center, scale, self.n_directions = np.zeros(out_features), np.ones(out_features), out_features
            self.register_buffer("classes", torch.as_tensor(self.embedding.classes_, dtype=torch.int64))
        else:
            center, scale = self.embedding.center_, self.embedding.scale_
            self.n_directions = int(self.embedding.to_sphere(torch.zeros(1, out_features))[0].shape[-1])
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.get_default_dtype()))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.get_default_dtype()))
        self.width = self.n_directions + 1 + (out_features if self.has_mean else 0)

    def read(self, raw: Tensor) -> SphericalOutput:
        """Take (..., width) plain numbers apart into direction, magnitude and mean."""
        if raw.shape[-1] != self.width:
            raise InvalidInputError(
                f"Expected {self.width} numbers (direction, magnitude and mean) per row. Got {raw.shape[-1]}. "
                "Give the layer before as many outputs."
            )
        k = self.n_directions
        magnitude = raw[..., k]
        if self.softplus:
            magnitude = nn.functional.softplus(magnitude)
        mean: Tensor | None = None
        if self.has_mean:
            mean = raw[..., k + 1 :]
        return SphericalOutput(raw[..., :k], magnitude, mean)

    def embed(self, y: Any) -> SphericalOutput:
        """Place targets on the sphere, on the device of the head.

        Parameters
        ----------
        y : Tensor or array of shape (..., D), or (n,) where D = 1
            In the unit the embedding was fitted with; standardised already where it was not fitted. For OneHot,
            class labels as integers (...) or soft labels (..., C), which stay as they are.
        """
        values = torch.as_tensor(y, device=self.center.device)
        if isinstance(self.embedding, OneHot):
            direction = self._shares(values) if values.is_floating_point() else self._axes(values)
            return SphericalOutput(direction, torch.ones_like(direction[..., 0]))
        if values.dim() == 1 and self.out_features == 1:
            values = values[:, None]
        self._check_width("targets", values)
        # A difference of doubles is taken before it is rounded to the precision of the network.
        standardized = ((values - self.center) / self.scale).to(self.center.dtype)
        direction, magnitude = self.embedding.to_sphere(standardized)
        return SphericalOutput(direction, magnitude, standardized)

    def decode(self, output: SphericalOutput, *, decoder: str | None = None) -> Tensor:
        """Turn an output into values in the unit of the target, (..., D), or into class labels, (...).

        Parameters
        ----------
        output : SphericalOutput
        decoder : {"mean", "product", "projective"}, optional
            As in the embedding's own `decode`. By default the mean where the output carries it, else the product.
        """
        outputs = self._checked(output)
        if isinstance(self.embedding, OneHot):
            return self.classes[outputs.direction.argmax(dim=-1)]
        chosen = decoder or ("product" if outputs.mean is None else "mean")
        check_option(self.embedding, "decoder", chosen, self.embedding.decoders)
        if chosen == "mean" and outputs.mean is None:
            raise InvalidInputError(
                "The 'mean' decoder needs an output that carries a mean. Got mean=None. "
                "Make the head with mean=True, or use another decoder."
            )
        values: Any = outputs.mean if chosen == "mean" else self.embedding.from_sphere(outputs, decoder=chosen)
        return values * self.scale + self.center

    def uncertainty(self, output: SphericalOutput) -> Tensor:
        """How little to trust each row, (...): u in the unit of the target, or | ‖d‖ − 1 | for classes."""
        outputs = self._checked(output)
        if isinstance(self.embedding, OneHot):
            return scores.violation(outputs)
        return scores.uncertainty(outputs) * self.scale.square().mean().sqrt()

    def sigma(self, output: SphericalOutput) -> Tensor:
        """Standard deviation of the noise of each output, (..., D), in the unit of the target."""
        outputs = self._checked(output)
        if isinstance(self.embedding, OneHot):
            raise InvalidInputError("Classes have no standard deviation. Use 'uncertainty' for a head with OneHot.")
        return self.embedding.standardized_sigma(outputs) * self.scale

    def extra_repr(self) -> str:
        return f"out_features={self.out_features}, embedding={self.embedding!r}, mean={self.has_mean}"

    def _axes(self, labels: Tensor) -> Tensor:
        index = torch.searchsorted(self.classes, labels.long().contiguous()).clamp(max=self.out_features - 1)
        unknown = labels[self.classes[index] != labels]
        if len(unknown):
            raise InvalidInputError(
                f"Expected class labels among {self.classes.tolist()}. Got {unknown.unique()[:5].tolist()}. "
                "Make a head with more classes, or fit OneHot on all labels."
            )
        return nn.functional.one_hot(index, self.out_features).to(self.center.dtype)

    def _shares(self, soft: Tensor) -> Tensor:
        if soft.dim() < 2:
            raise InvalidInputError(
                f"Expected class labels of an integer dtype, or soft labels of shape (n, {self.out_features}). "
                f"Got {soft.dtype} of shape {tuple(soft.shape)}. Convert labels with .long()."
            )
        self._check_width("soft labels", soft)
        sums = soft.sum(dim=-1)
        # The negation also catches NaN.
        if not bool(((soft >= 0).all(dim=-1) & ((sums - 1).abs() <= torch.finfo(soft.dtype).eps ** 0.5)).all()):
            raise InvalidInputError(
                "Expected soft labels that are not negative and sum to 1 in every row. "
                f"Got sums from {float(sums.min()):g} to {float(sums.max()):g} and a smallest value of "
                f"{float(soft.min()):g}. Divide each row by its sum."
            )
        return soft.to(self.center.dtype)

    def _check_width(self, what: str, values: Tensor) -> None:
        if values.dim() == 0 or values.shape[-1] != self.out_features:
            raise InvalidInputError(
                f"Expected {what} with {self.out_features} output(s) on the last axis for {type(self).__name__}. "
                f"Got shape {tuple(values.shape)}. Reshape them, or make the head with as many outputs."
            )

    def _checked(self, output: SphericalOutput) -> geometry.SphericalOutput:
        n_directions = output.direction.shape[-1]
        n_outputs = self.out_features if output.mean is None else output.mean.shape[-1]
        if (n_directions, n_outputs) != (self.n_directions, self.out_features):
            raise InvalidInputError(
                f"Expected a direction with {self.n_directions} entries, as {type(self.embedding).__name__} makes of "
                f"{self.out_features} output(s). Got {n_directions} entries for {n_outputs} output(s). "
                "Use the head that made the output."
            )
        return geometry.SphericalOutput(output.direction, output.magnitude, output.mean)


def _fitted(owner: object, embedding: Any, out_features: int) -> RegressionEmbedding | OneHot:
    if isinstance(embedding, str):
        check_option(owner, "embedding", embedding, list(_EMBEDDINGS))
        embedding = _EMBEDDINGS[embedding]()
    if not isinstance(embedding, RegressionEmbedding | OneHot):
        raise bad_parameter(owner, "embedding", "the name or an instance of an embedding", embedding)
    if isinstance(embedding, OneHot):
        if not hasattr(embedding, "classes_"):
            return OneHot().fit(np.arange(out_features))
        if embedding.classes_.dtype.kind not in "iu":
            raise bad_parameter(owner, "embedding", "a OneHot fitted on integers: tensors hold no names", embedding)
    elif not hasattr(embedding, "scale_"):
        # Nothing is known of the targets but that they are standardised: centre 0 and scale 1.
        unscaled = cast(RegressionEmbedding, clone(embedding)).set_params(standardize=False)
        return unscaled.fit(np.zeros((2, out_features)))
    n_outputs = len(embedding.classes_) if isinstance(embedding, OneHot) else embedding.n_outputs_
    if n_outputs != out_features:
        raise bad_parameter(owner, "embedding", f"fitted with {out_features} output(s)", n_outputs)
    return embedding


def check_features(features: Tensor, n_features: int) -> None:
    """Features of the width that a layer was made for."""
    if features.shape[-1] != n_features:
        raise InvalidInputError(
            f"Expected {n_features} features on the last axis. Got {features.shape[-1]}. "
            "Make the head for as many features."
        )


class SphericalHead(SphereReader):
    """A linear layer whose outputs are a direction, a magnitude and a mean.

    Parameters
    ----------
    in_features : int
        Width of the features.
    out_features : int
        Number of outputs D of the target, or of classes.
    embedding : {"lift", "polar", "duplicate", "torus", "onehot"} or an embedding, default "lift"
        How targets lie on the sphere. One that was fitted brings the target's centre and scale with it, and
        targets and values are then in their own unit; otherwise targets are taken as standardised already.
    mean : bool, default True
        Whether the standardised target itself is a further output, so that values need not be multiplied from
        direction and magnitude. Classes have none.
    magnitude : {"plain", "softplus"}, default "plain"
        Softplus keeps the magnitude above zero.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from onsphere import Lift
    >>> y = np.array([[10.0], [12.0], [14.0]])
    >>> head = SphericalHead(4, 1, embedding=Lift().fit(y))
    >>> output = head(torch.zeros(3, 4))
    >>> output.direction.shape, output.magnitude.shape, output.mean.shape
    (torch.Size([3, 2]), torch.Size([3]), torch.Size([3, 1]))
    >>> head.decode(head.embed(y)).flatten().tolist()
    [10.0, 12.0, 14.0]
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        embedding: str | RegressionEmbedding | OneHot = "lift",
        mean: bool = True,
        magnitude: str = "plain",
    ) -> None:
        super().__init__(out_features, embedding=embedding, mean=mean, magnitude=magnitude)
        check_number(self, "in_features", in_features, above=1, closed="left", whole=True)
        self.in_features = in_features
        self.linear = nn.Linear(in_features, self.width)

    def forward(self, features: Tensor) -> SphericalOutput:
        """Read features (..., in_features)."""
        check_features(features, self.in_features)
        return self.read(self.linear(features))


class DenseHead(SphereReader):
    """A head for maps: features (B, C, H, W) in, a value for every pixel out.

    Parameters
    ----------
    in_channels : int
        C.
    out_channels : int, default 1
        Number of targets D per pixel, or of classes.
    event : {"pixel", "image"}, default "pixel"
        "pixel" gives every pixel a sphere of its own: direction (B, H, W, k), magnitude (B, H, W). "image" takes the
        whole map as one vector, as in the paper's experiment on depth: direction (B, H·W·D), magnitude (B,).
    size : (H, W), optional
        Of the maps; needed for "image".
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
            raise bad_parameter(self, "embedding", "Polar where event='image'", given)
        height, width = _height_and_width(self, size) if is_image else (1, 1)
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
        maps = torch.as_tensor(y)
        if isinstance(self.embedding, OneHot) and not maps.is_floating_point():
            return super().embed(maps)
        self._check_maps(maps, self.out_channels)
        rows = maps.permute(0, 2, 3, 1)
        return super().embed(rows if self.event == "pixel" else rows.flatten(1))

    def decode(self, output: SphericalOutput, *, decoder: str | None = None) -> Tensor:
        """Turn an output into maps of values (B, D, H, W), or of class labels (B, H, W)."""
        values = super().decode(output, decoder=decoder)
        return values if isinstance(self.embedding, OneHot) else self._maps(values)

    def sigma(self, output: SphericalOutput) -> Tensor:
        """Maps of the standard deviation of the noise, (B, D, H, W)."""
        return self._maps(super().sigma(output))

    def _maps(self, rows: Tensor) -> Tensor:
        if self.event == "image":
            rows = rows.unflatten(1, (*self.map_size, self.out_channels))
        return rows.permute(0, 3, 1, 2)

    def _check_maps(self, maps: Tensor, n_channels: int) -> None:
        fits = maps.dim() == 4 and maps.shape[1] == n_channels
        if fits and self.event == "image":
            fits = maps.shape[2] == self.map_size[0] and maps.shape[3] == self.map_size[1]
        if not fits:
            raise InvalidInputError(
                f"Expected maps of shape (B, {n_channels}, {self.expected_size}). Got {list(maps.shape)}. "
                "Nothing is broadcast: reshape the maps, or make the head for theirs."
            )


def _height_and_width(owner: object, size: Any) -> tuple[int, int]:
    try:
        height, width = size
        check_number(owner, "size", height, above=1, closed="left", whole=True)
        check_number(owner, "size", width, above=1, closed="left", whole=True)
    except (TypeError, ValueError):
        raise bad_parameter(owner, "size", "two ints (H, W) where event='image'", size) from None
    return height, width
