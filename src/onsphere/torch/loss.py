"""The loss: how far direction, magnitude and mean lie from those of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_flag, check_number, check_option, parameter_error
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.sphere import OneHot, geometry
from onsphere.torch.head import SphereReader, SphericalOutput, as_targets, check_output

__all__ = ["HCMLoss"]

_REDUCTIONS = ("mean", "sum", "none")


class HCMLoss(nn.Module):
    """φ(R·‖e_d‖) + φ(e_R) + λ·φ(| ‖d̂‖ − 1 |), and the squared error of the mean where the output carries one.

    e_d and e_R are the errors of direction and magnitude, R the true magnitude. Values are taken per sample and
    then reduced; shapes must match exactly.

    Parameters
    ----------
    head : SphericalHead, DenseHead or attached model, optional
        With it, the loss takes targets as they are and embeds them itself. The head keeps its weights. It must be the
        head that makes the outputs: another one is noticed only if its widths differ (those of Lift and Duplicate for
        one output and of OneHot for two classes are the same).
    phi : {"squared", "power", "huber", "smooth_l1"}, default "squared"
        |a|²; |a|^exponent; a²/2, or t·(|a| − t/2) beyond the threshold t; Huber's divided by t.
    exponent : float ≥ 1, default 1.5
        For "power".
    threshold : float > 0, default 1.0
        For "huber" and "smooth_l1".
    norm_weight : float ≥ 0, default 0.0
        λ. Above zero, the direction is pulled to the sphere, and with it the uncertainty to zero.
    reduction : {"mean", "sum", "none"}, default "mean"
        Over all samples (all pixels, for a map) that count.
    ignore_index : int, optional
        Samples with this label do not count, for instance the border of objects in a segmentation. Needs the head.
    ignore_nan : bool, default False
        Whether samples whose target is NaN do not count, such as the holes of a depth map; otherwise they are an error.
    class_weight : sequence of C floats, optional
        How much each class counts, for a head with OneHot. The mean is the weighted one, as in torch's cross-entropy.
    preset : {"cifar10", "two-moons"}, optional
        The losses of the paper's scripts, which differ from its text, for a target y = R·d. "cifar10" is
        MSE(d̂, y)^¾ + MSE(R̂·y, y)^¾, times .1 while `epoch` is 0 or 1; "two-moons" is MSE(R̂·d̂, y) + MSE(R·d̂, y).
        They fix all else and have no term for a mean.

    Attributes
    ----------
    epoch : int
        Set by the training loop, counted from 0; only "cifar10" uses it.
    step : int
        Number of losses computed so far, in training.

    References
    ----------
    Hyperspherical Confidence Mapping, section "Training Objective".

    Examples
    --------
    >>> import torch
    >>> from onsphere.torch import SphericalHead
    >>> head = SphericalHead(4, 2)
    >>> output, y = head(torch.zeros(3, 4)), torch.ones(3, 2)
    >>> bool(HCMLoss(head)(output, y) == HCMLoss()(output, head.embed(y)))
    True
    >>> HCMLoss(head, phi="huber", reduction="none")(output, y).shape
    torch.Size([3])
    >>> y[1] = torch.nan
    >>> bool(torch.isfinite(HCMLoss(head, ignore_nan=True)(output, y)))
    True
    """

    class_weight: Tensor | None

    def __init__(
        self,
        head: SphereReader | None = None,
        *,
        phi: str = "squared",
        exponent: float = 1.5,
        threshold: float = 1.0,
        norm_weight: float = 0.0,
        reduction: str = "mean",
        ignore_index: int | None = None,
        ignore_nan: bool = False,
        class_weight: Sequence[float] | Tensor | None = None,
        preset: str | None = None,
    ) -> None:
        super().__init__()
        check_option(self, "phi", phi, ["squared", "power", "huber", "smooth_l1"])
        # Below 1 the slope at zero error would be infinite.
        check_number(self, "exponent", exponent, above=1, closed="left")
        check_number(self, "threshold", threshold, above=0)
        check_number(self, "norm_weight", norm_weight, above=0, closed="left")
        check_option(self, "reduction", reduction, _REDUCTIONS)
        check_flag(self, "ignore_nan", ignore_nan)
        if preset is not None:
            check_option(self, "preset", preset, ["cifar10", "two-moons"])
            chosen = (phi, exponent, threshold, norm_weight, reduction, class_weight)
            if chosen != ("squared", 1.5, 1.0, 0.0, "mean", None):
                raise parameter_error(self, "preset", "None where anything else is chosen, as it fixes all", preset)
        # The bound method, so that the head's weights are not listed among the loss's own.
        self._embed = None if head is None else _find_embed(head)
        self.ignore_index = self._check_ignore_index(ignore_index)
        self.ignore_nan = ignore_nan
        self.register_buffer("class_weight", _check_class_weight(self, class_weight), persistent=False)
        self.phi = phi
        self.exponent = float(exponent)
        self.threshold = float(threshold)
        self.norm_weight = float(norm_weight)
        self.reduction = reduction
        self.preset = preset
        self.epoch = 0
        self.step = 0

    def forward(self, output: SphericalOutput, target: Any, mask: Any = None) -> Tensor:
        """Return the loss of an output.

        Parameters
        ----------
        output : SphericalOutput
            Of a head.
        target : SphericalOutput or Tensor
            From `head.embed`, or the targets themselves where the loss was given the head.
        mask : bool Tensor, optional
            Which samples count, of the shape of the output's magnitude: (n,), or (B, H, W) or (B, 1, H, W) for a map.
            Targets of samples that do not may be anything; if none counts, the loss is 0.
        """
        check_output(output)
        counted = None if mask is None else _check_mask(mask, output)
        if self.ignore_index is not None and not hasattr(target, "direction"):
            target, is_labeled = self._replace_ignored(target)
            counted = is_labeled if counted is None else counted & is_labeled
        truth = self._place_on_sphere(target)
        self._check_shapes(output, truth)
        if self.ignore_nan:
            is_known = ~(torch.isnan(truth.direction).any(dim=-1) | torch.isnan(truth.magnitude))
            counted = is_known if counted is None else counted & is_known
        if counted is not None:
            output, truth = _select(output, counted), _select(truth, counted)
            if len(output.magnitude) == 0:
                return (output.direction.sum() + output.magnitude.sum()) if self.reduction != "none" else counted * 0.0
        loss = self._compute_loss(output, truth) if self.preset is None else self._compute_preset(output, truth)
        self._check_finite(loss, output, truth)  # pyright: ignore[reportCallIssue]
        if counted is None or self.reduction != "none":
            return loss
        return torch.zeros(counted.shape, dtype=loss.dtype, device=loss.device).masked_scatter(counted, loss)

    def extra_repr(self) -> str:
        chosen = f"phi={self.phi!r}, norm_weight={self.norm_weight:g}, reduction={self.reduction!r}"
        return chosen if self.preset is None else f"preset={self.preset!r}"

    def _compute_loss(self, output: SphericalOutput, truth: SphericalOutput) -> Tensor:
        loss = self._phi_of_norm(geometry.join(output.direction - truth.direction, truth.magnitude))
        loss = loss + self._phi(torch.abs(output.magnitude - truth.magnitude))
        if self.norm_weight > 0:
            loss = loss + self.norm_weight * self._phi(geometry.norm_violation(output.direction))
        if output.mean is not None and truth.mean is not None:
            loss = loss + (output.mean - truth.mean).square().sum(dim=-1)
        return self._reduce(loss, truth)

    def _reduce(self, loss: Tensor, truth: SphericalOutput) -> Tensor:
        if self.class_weight is None:
            return {"mean": torch.mean, "sum": torch.sum, "none": torch.clone}[self.reduction](loss)
        if truth.direction.shape[-1] != len(self.class_weight):
            raise InvalidInputError(
                f"Expected class weights for {truth.direction.shape[-1]} classes. Got {len(self.class_weight)}. "
                "Give one weight per class, to the loss of a head with OneHot."
            )
        weight = truth.direction @ self.class_weight.to(truth.direction)
        loss = loss * weight
        if self.reduction == "none":
            return loss
        # Classes of weight 0 alone have a loss of 0.
        return loss.sum() / (
            weight.sum().clamp_min(torch.finfo(weight.dtype).tiny) if self.reduction == "mean" else 1.0
        )

    def _compute_preset(self, output: SphericalOutput, truth: SphericalOutput) -> Tensor:
        y = geometry.join(truth.direction, truth.magnitude)
        mse = nn.functional.mse_loss
        if self.preset == "two-moons":
            product = geometry.join(output.direction, output.magnitude)
            return mse(product, y) + mse(geometry.join(output.direction, truth.magnitude), y)
        warm_up = 0.1 if self.epoch < 2 else 1.0
        errors = torch.stack([mse(output.direction, y), mse(geometry.join(y, output.magnitude), y)])
        # The slope of the power is infinite at zero; clamped, a perfect fit has slope 0.
        return warm_up * (errors.clamp_min(torch.finfo(errors.dtype).tiny) ** 0.75).sum()

    def _phi(self, size: Tensor) -> Tensor:
        """Return φ of numbers that are not negative."""
        if self.phi == "squared":
            return size.square()
        if self.phi == "power":
            return size**self.exponent
        t = self.threshold
        huber = torch.where(size <= t, size.square() / 2, t * (size - t / 2))
        return huber if self.phi == "huber" else huber / t

    def _phi_of_norm(self, vectors: Tensor) -> Tensor:
        # No root where none is needed: cheaper, and smooth at zero.
        return vectors.square().sum(dim=-1) if self.phi == "squared" else self._phi(geometry.norm(vectors))

    def _place_on_sphere(self, target: Any) -> SphericalOutput:
        if hasattr(target, "direction"):
            return target
        if self._embed is None:
            raise InvalidInputError(
                f"Expected targets on the sphere. Got {type(target).__name__}. "
                "Call loss(output, head.embed(y)), or give the head to the loss: HCMLoss(head)."
            )
        return self._embed(target)

    def _check_ignore_index(self, ignore_index: Any) -> int | None:
        if ignore_index is None:
            return None
        check_number(self, "ignore_index", ignore_index, whole=True)
        head = getattr(self._embed, "__self__", None)
        if not (isinstance(head, SphereReader) and isinstance(head.embedding, OneHot)):
            raise parameter_error(self, "ignore_index", "None without a head that has OneHot", ignore_index)
        return int(ignore_index)

    def _replace_ignored(self, target: Any) -> tuple[Any, Tensor]:
        """Return labels with a class in place of those that do not count, and which of them count."""
        labels = as_targets(target)
        if labels.is_floating_point():
            raise InvalidInputError(
                f"Expected class labels of an integer dtype beside ignore_index={self.ignore_index}. Got "
                f"{labels.dtype}. Pass labels, or leave soft ones out with mask=."
            )
        head = cast(SphereReader, cast(Any, self._embed).__self__)
        labels = labels.to(head.classes.device)
        is_labeled = labels != self.ignore_index
        return torch.where(is_labeled, labels, head.classes[0]), is_labeled

    def _check_shapes(self, output: SphericalOutput, truth: SphericalOutput) -> None:
        geometry.check_direction_and_magnitude(output.direction, output.magnitude)
        for name, ours, theirs in zip(("direction", "magnitude", "mean"), output, truth, strict=True):
            if ours is not None and (theirs is None or ours.shape != theirs.shape):
                raise InvalidInputError(
                    f"Expected a target whose {name} has the output's shape {tuple(ours.shape)}. "
                    f"Got {None if theirs is None else tuple(theirs.shape)}. Nothing is broadcast: embed the target "
                    "with the head that made the output."
                )
        if self.preset is not None and output.mean is not None:
            raise InvalidInputError(
                f"The preset {self.preset!r} has no term for a mean, which would stay untrained. "
                "Make the head with mean=False; around a TorchRegressor, HCMRegressor(decoder='product') has none."
            )

    # Counting and branching on values would break the graph of a compiled loss, or compile it again at each step.
    @torch.compiler.disable
    def _check_finite(self, loss: Tensor, output: SphericalOutput, truth: SphericalOutput) -> None:
        self.step += self.training
        if not bool(torch.isfinite(loss).all()):
            raise InvalidInputError(
                f"The loss is not finite at step {self.step}: it is {float(loss.detach().sum()):g}. "
                + _explain(output, truth)
            )


def _find_embed(head: Any) -> Callable[[Any], SphericalOutput]:
    # Check the method and not the head: a compiled head is another module that passes on the methods of the one inside.
    embed = getattr(head, "embed", None)
    if not isinstance(getattr(embed, "__self__", None), SphereReader):
        raise InvalidTypeError(
            f"Expected a SphericalHead, a DenseHead or an attached model. Got {type(head).__name__}. "
            "Pass the head itself, for example HCMLoss(network[-1])."
        )
    return cast(Any, embed)


def _check_class_weight(owner: object, given: Any) -> Tensor | None:
    if given is None:
        return None
    weight = torch.as_tensor(given, dtype=torch.get_default_dtype())
    if weight.dim() != 1 or not bool((torch.isfinite(weight) & (weight >= 0)).all()) or not bool(weight.any()):
        raise parameter_error(owner, "class_weight", "one finite number per class, none negative and not all 0", given)
    return weight


def _check_mask(mask: Any, output: SphericalOutput) -> Tensor:
    given = torch.as_tensor(mask, device=output.magnitude.device)
    shape = output.magnitude.shape
    if given.dim() == len(shape) + 1 and given.shape[1] == 1:
        given = given[:, 0]
    if given.dtype != torch.bool or given.shape != shape:
        raise InvalidInputError(
            f"Expected a mask of bools of shape {tuple(shape)}. Got {given.dtype} of shape {tuple(given.shape)}. "
            "Nothing is broadcast: make one entry per sample, True where it counts."
        )
    return given


def _select(values: SphericalOutput, counted: Tensor) -> SphericalOutput:
    mean = None if values.mean is None else values.mean[counted]
    return SphericalOutput(values.direction[counted], values.magnitude[counted], mean)


def _explain(output: SphericalOutput, truth: SphericalOutput) -> str:
    if output.magnitude.numel() == 0:
        return "The batch is empty: look for a filter that leaves no rows, and leave such batches out."
    if not _is_finite(truth):
        return (
            "The targets are not finite: drop or fill the missing ones, or leave them out with ignore_nan=True, and "
            "check how they were standardised."
        )
    if not _is_finite(output):
        return (
            "The targets are finite, the network's outputs are not: lower the learning rate, clip the gradients, "
            "and look for missing values in the inputs."
        )
    return (
        "Targets and outputs are finite, but too large to be squared: standardise the targets (give the head a "
        "fitted embedding), or lower the learning rate."
    )


def _is_finite(values: SphericalOutput) -> bool:
    return all(bool(torch.isfinite(part).all()) for part in values if part is not None)
