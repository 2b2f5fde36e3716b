"""A fitted FrozenHead as a torch module, to run after its network or to be exported with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_fitted, parameter_error
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.models.backbone import split_columns
from onsphere.models.frozen import FrozenHead
from onsphere.models.frozen.blocks import place_blocks, take_last_block
from onsphere.models.frozen.ridge import Head, Kernel
from onsphere.models.frozen.sums import join_scores
from onsphere.models.frozen.targets import NumberTarget
from onsphere.models.novelty import InputFrame, compute_novelty
from onsphere.sphere import geometry, scores
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["FrozenModule", "FrozenOutput", "to_torch"]


class FrozenOutput(NamedTuple):
    """The output of a FrozenModule.

    Attributes
    ----------
    value : tensor of shape (n,) or (n, D)
        Index of the class, or the prediction in the unit of the target.
    uncertainty : tensor of shape (n,)
        As `FrozenHead.predict_uncertainty`.
    direction : tensor of shape (n, k)
        Of the head that gives the value.
    novelty : tensor of shape (n,), or None
        As `FrozenHead.predict_novelty`; None for a head without an input frame.
    """

    value: Tensor
    uncertainty: Tensor
    direction: Tensor
    novelty: Tensor | None


class _HeadModule(nn.Module):
    """One head: columns of features, times weights, plus an intercept."""

    origin: Tensor
    landmarks: Tensor
    weights: Tensor
    intercept: Tensor

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.is_kernel = isinstance(head.design, Kernel)
        buffers = {"weights": head.weights, "intercept": head.intercept}
        if isinstance(head.design, Kernel):
            self.bandwidth = head.design.bandwidth
            buffers["landmarks"] = head.design.landmarks
        else:
            self.raw_columns = head.design.make_raw_columns
            buffers["origin"] = head.design.origin
        for name, values in buffers.items():
            self.register_buffer(name, torch.from_numpy(np.array(values)))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_kernel:
            # 2 − 2ab loses most digits of a small distance, in single precision too many.
            units, _ = geometry.split(x.double())
            distances = (2.0 - 2.0 * (units @ self.landmarks.double().T)).clamp(min=0.0)
            columns = torch.exp(distances / -self.bandwidth).to(x.dtype)
        else:
            columns = self.raw_columns(x) - self.origin
        return columns @ self.weights + self.intercept


class _NoveltyModule(nn.Module):
    """The input frame of a head, in double precision."""

    def __init__(self, frame: InputFrame, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.widths, self.frame = widths, frame
        for name in ("center", "scale", "landmarks", "whitener"):
            self.register_buffer(name, torch.from_numpy(np.array(getattr(frame, name))))

    def forward(self, x: Tensor) -> Tensor:
        """Return the shortfall of features (n, p), (n,)."""
        numbers: dict[str, Any] = {name: values.double() for name, values in self.named_buffers()}
        missed = replace(self.frame, **numbers).measure(place_blocks(cast(Any, x.double()), self.widths))
        return cast(Tensor, missed)


class FrozenModule(nn.Module):
    """The numbers of a fitted FrozenHead, as buffers: nothing in it is trained. Made by `to_torch`.

    Attributes
    ----------
    n_features : int
        Of every row.
    classes : list or None
        The class of each index in `FrozenOutput.value`.
    """

    def __init__(self, head: FrozenHead, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        check_fitted(head, "estimator_")
        solution, target = head._solve(), head.target_
        self.heads = nn.ModuleDict({name: _HeadModule(each) for name, each in solution.heads.items()})
        self.value_head = solution.value_head
        self.n_features = head.n_features_in_
        self.reach, self.center, self.spread = solution.reach, solution.center, solution.spread
        self.is_flat, self.anchor, self.unit = True, 0.0, 1.0
        self.classes: list[Any] | None = None
        if isinstance(target, NumberTarget):
            self.is_flat, self.anchor, self.unit = target.is_flat, target.embedding.anchor, target.embedding.unit_
            self.register_buffer("target_center", torch.from_numpy(np.array(target.embedding.center_)))
            self.register_buffer("target_scale", torch.from_numpy(np.array(target.embedding.scale_)))
        else:
            self.classes = head.classes_.tolist()
        self.to(dtype)
        # What is missing to 1 is small, and single precision would leave too few digits of it.
        frame = None if solution.frames is None else solution.frames.input
        self.novelty = None if frame is None else _NoveltyModule(frame, solution.widths)
        self.widths = solution.widths

    def forward(self, x: Tensor) -> FrozenOutput:
        """Return value, uncertainty and direction of features (n, p)."""
        if x.dim() != 2 or x.shape[1] != self.n_features:
            raise InvalidInputError(
                f"Expected features of shape (n, {self.n_features}), as the head was fitted on. Got {tuple(x.shape)}. "
                "Nothing is broadcast: reshape them, or fit a head on features like these."
            )
        last = take_last_block(cast(Any, x), self.widths)
        every = {name: self._read(module(last)) for name, module in self.heads.items()}
        parts: Any = {name: self._score(outputs, self.reach[name]) for name, outputs in every.items()}
        missed: Any = None if self.novelty is None else self.novelty(x)
        uncertainty = cast(Tensor, join_scores(parts, missed, self.center, self.spread)).to(x.dtype)
        # Rows that overflow are farthest from all training rows.
        uncertainty = torch.where(torch.isnan(uncertainty), torch.inf, uncertainty)
        novelty: Any = None
        if self.novelty is not None:
            novelty = cast(Tensor, compute_novelty(missed, self.novelty.frame.ordinary)).to(x.dtype)
        outputs = every[self.value_head]
        return FrozenOutput(self._decode(outputs), uncertainty, outputs.direction, novelty)

    def _read(self, table: Tensor) -> SphericalOutput:
        if self.classes is not None:
            return SphericalOutput(table, torch.ones_like(table[:, 0]))
        n_outputs = len(cast(Tensor, self.target_center))
        return split_columns(cast(Any, table), n_outputs=n_outputs, magnitude=True, mean=True)

    def _score(self, outputs: SphericalOutput, reach: float) -> Tensor:
        if self.classes is not None:
            return abs(reach - geometry.norm(outputs.direction))
        return scores.anchored(outputs, self.anchor) * self.unit

    def _decode(self, outputs: SphericalOutput) -> Tensor:
        if self.classes is not None:
            return outputs.direction.argmax(dim=-1)
        value = cast(Tensor, outputs.mean) * cast(Tensor, self.target_scale) + cast(Tensor, self.target_center)
        return value[:, 0] if self.is_flat else value


def to_torch(head: FrozenHead, *, dtype: torch.dtype = torch.float32) -> FrozenModule:
    """Return a fitted head as a torch module.

    Parameters
    ----------
    head : FrozenHead
    dtype : dtype, default torch.float32

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from onsphere.models.frozen import FrozenHead
    >>> X, y = np.random.default_rng(0).normal(size=(200, 4)), np.arange(200) % 2
    >>> module = to_torch(FrozenHead(random_state=0).fit(X, y))
    >>> module(torch.zeros(3, 4)).uncertainty.shape
    torch.Size([3])
    """
    if not isinstance(head, FrozenHead):  # type: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"to_torch needs a FrozenHead. Got {type(head).__name__}.")
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):  # type: ignore[reportUnnecessaryIsInstance]
        raise parameter_error("to_torch", "dtype", "a floating dtype of torch", dtype)
    return FrozenModule(head, dtype)
