"""The last layer of a network: features to direction, magnitude and mean, and these to values and uncertainty.

Annotations are evaluated here (no ``from __future__ import annotations``), because TorchScript reads them.
"""

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor, nn

from onsphere._internal.validation import check_flag, check_number, check_option, check_outputs, parameter_error
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.sphere import Duplicate, Lift, OneHot, Polar, RegressionEmbedding, Torus, geometry

__all__ = [
    "SphereReader",
    "SphericalHead",
    "SphericalOutput",
    "as_targets",
    "check_features",
    "check_output",
    "check_shares",
]

_EMBEDDINGS = {kind.__name__.lower(): kind for kind in (Duplicate, Lift, OneHot, Polar, Torus)}


class SphericalOutput(NamedTuple):
    """`onsphere.SphericalOutput` with the types that TorchScript needs; `onsphere.sphere.scores` takes it too.

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
    """The base of every head: reads plain numbers as a point near the sphere, and places targets on it.

    The numbers of a row are [direction (k) | magnitude (1) | mean (D, or none)], `width` in all.
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
        self.embedding = _fit_embedding(self, embedding, out_features)
        self.softplus = magnitude == "softplus"
        self.has_mean = mean and not isinstance(self.embedding, OneHot)
        if isinstance(self.embedding, OneHot):
            center, scale, self.n_directions = np.zeros(out_features), np.ones(out_features), out_features
            self.register_buffer("classes", torch.as_tensor(self.embedding.classes_, dtype=torch.int64))
        else:
            center, scale = self.embedding.center_, self.embedding.scale_
            self.n_directions = self.embedding.direction_width(out_features)
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
        values = as_targets(y).to(self.center.device)
        if isinstance(self.embedding, OneHot):
            direction = self._check_soft_labels(values) if values.is_floating_point() else self._encode_labels(values)
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
        outputs = self._check(output)
        if isinstance(self.embedding, OneHot):
            # `take` costs a third of indexing, which matters for a small network.
            return self.classes.take(outputs.direction.argmax(dim=-1))
        chosen = decoder or ("product" if outputs.mean is None else "mean")
        return self.embedding.decode_standardized(outputs, decoder=chosen) * self.scale + self.center

    def uncertainty(self, output: SphericalOutput) -> Tensor:
        """Return the score of each row, (...): u in the unit of the target, or | ‖d‖ − 1 | for classes."""
        outputs = self._check(output)
        if isinstance(self.embedding, OneHot):
            # `scores.violation` scales first to keep huge numbers finite; a network's outputs do not need that.
            return (torch.linalg.vector_norm(outputs.direction, dim=-1) - 1.0).abs()
        return self.embedding.relative_uncertainty(outputs) * self.scale.square().mean().sqrt()

    def sigma(self, output: SphericalOutput) -> Tensor:
        """Return the standard deviation of the noise of each output, (..., D), in the unit of the target."""
        outputs = self._check(output)
        if isinstance(self.embedding, OneHot):
            raise InvalidInputError("Classes have no standard deviation. Use 'uncertainty' for a head with OneHot.")
        return self.embedding.relative_sigma(outputs) * self.scale

    def extra_repr(self) -> str:
        return f"out_features={self.out_features}, embedding={self.embedding!r}, mean={self.has_mean}"

    def get_extra_state(self) -> Tensor:
        """Return what the numbers of this head mean, as bytes: files of tensors hold no text."""
        return torch.tensor(list(self._describe().encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Raise InvalidInputError for the state of a head whose numbers mean something else."""
        theirs = bytes(state.to(torch.uint8).tolist()).decode(errors="replace")
        if theirs != self._describe():
            raise InvalidInputError(
                f"Expected the state of a head with {self._describe()}. Got that of one with {theirs}. "
                "Make the head as the one that was saved."
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        # A state of weights and buffers alone does not say what they mean, and is accepted.
        meaning = state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        self.set_extra_state(meaning)  # before anything is loaded
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _describe(self) -> str:
        chosen = {name: value for name, value in self.embedding.get_params().items() if name != "standardize"}
        options = ", ".join(f"{name}={_format_value(value)}" for name, value in chosen.items())
        return f"{type(self.embedding).__name__}({options}) and a {'softplus' if self.softplus else 'plain'} magnitude"

    def _encode_labels(self, labels: Tensor) -> Tensor:
        index = torch.searchsorted(self.classes, labels.long().contiguous()).clamp(max=self.out_features - 1)
        unknown = labels[self.classes[index] != labels]
        if len(unknown):
            raise InvalidInputError(
                f"Expected class labels among {self.classes.tolist()}. Got {unknown.unique()[:5].tolist()}. "
                "Make a head with more classes, or fit OneHot on all labels."
            )
        return nn.functional.one_hot(index, self.out_features).to(self.center.dtype)

    def _check_soft_labels(self, soft: Tensor) -> Tensor:
        if soft.dim() < 2:
            raise InvalidInputError(
                f"Expected class labels of an integer dtype, or soft labels of shape (n, {self.out_features}). "
                f"Got {soft.dtype} of shape {tuple(soft.shape)}. Convert labels with .long()."
            )
        self._check_width("soft labels", soft)
        check_shares(soft)
        return soft.to(self.center.dtype)

    def _check_width(self, what: str, values: Tensor) -> None:
        if values.dim() == 0 or values.shape[-1] != self.out_features:
            raise InvalidInputError(
                f"Expected {what} with {self.out_features} output(s) on the last axis for {type(self).__name__}. "
                f"Got shape {tuple(values.shape)}. Reshape them, or make the head with as many outputs."
            )

    def _check(self, output: SphericalOutput) -> geometry.SphericalOutput:
        check_output(output)
        check_outputs(self.embedding, output.direction, output.mean, self.n_directions, self.out_features)
        return geometry.SphericalOutput(output.direction, output.magnitude, output.mean)


def _fit_embedding(owner: object, embedding: Any, out_features: int) -> RegressionEmbedding | OneHot:
    if isinstance(embedding, str):
        check_option(owner, "embedding", embedding, list(_EMBEDDINGS))
        embedding = _EMBEDDINGS[embedding]()
    if not isinstance(embedding, RegressionEmbedding | OneHot):
        raise parameter_error(owner, "embedding", "the name or an instance of an embedding", embedding)
    if isinstance(embedding, OneHot):
        if not hasattr(embedding, "classes_"):
            # Twice each: scikit-learn takes many labels that occur once for numbers.
            return OneHot().fit(np.arange(out_features).repeat(2))
        if embedding.classes_.dtype.kind not in "iu":
            raise parameter_error(owner, "embedding", "a OneHot fitted on integers: tensors hold no names", embedding)
    elif not hasattr(embedding, "scale_"):
        # Targets are taken as standardised already: centre 0 and scale 1.
        unscaled = cast(RegressionEmbedding, clone(embedding)).set_params(standardize=False)
        return unscaled.fit(np.zeros((2, out_features)))
    n_outputs = len(embedding.classes_) if isinstance(embedding, OneHot) else embedding.n_outputs_
    if n_outputs != out_features:
        raise parameter_error(owner, "embedding", f"fitted with {out_features} output(s)", n_outputs)
    return embedding


def _format_value(value: Any) -> str:
    """Format numbers in one way, whatever type they have: 3 as 3.0, a tuple as a list."""
    values = np.asarray(value)
    return repr(values.astype(np.float64).tolist() if values.dtype.kind in "iuf" else value)


def as_targets(y: Any) -> Tensor:
    """Convert targets to a tensor of real numbers."""
    try:
        values = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            f"Expected targets as a tensor or an array of numbers. Got {type(y).__name__} ({error}). "
            "Convert them first; names of classes become integers."
        ) from error
    if values.is_complex():
        raise InvalidInputError(f"Expected targets of real numbers. Got {values.dtype}. Pass their real parts.")
    return values


def check_shares(soft: Tensor) -> None:
    """Check that soft labels are not negative and sum to 1 in every row."""
    off = (soft.sum(dim=-1) - 1).abs()
    # Doubles may have been made in single precision. The negation also catches NaN.
    tolerance = max(torch.finfo(soft.dtype).eps ** 0.5, 1e-6)
    if not bool(((soft >= 0).all(dim=-1) & (off <= tolerance)).all()):
        raise InvalidInputError(
            "Expected soft labels that are not negative and sum to 1 in every row. "
            f"Got sums that are off by up to {float(off.max()):g} and a smallest value of {float(soft.min()):g}. "
            "Divide each row by its sum."
        )


def check_output(output: Any) -> None:
    """Check that this is the output of a head."""
    if not hasattr(output, "direction"):
        raise InvalidTypeError(
            f"Expected the output of a head, with direction, magnitude and mean. Got {type(output).__name__}. "
            "Pass what the head returns; attach gives a head to a network without one."
        )


def check_features(features: Tensor, n_features: int) -> None:
    """Check that features have the width that a layer was made for."""
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
