"""A fitted FrozenHead as a torch module, to run behind its network or to be exported with it."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from onsphere import geometry, scores
from onsphere._validation import check_fitted
from onsphere.errors import InvalidTypeError
from onsphere.frozen import FrozenHead
from onsphere.frozen.heads import Head, Kernel, Quadratic
from onsphere.frozen.targets import NumberTarget
from onsphere.geometry import SphericalOutput

__all__ = ["FrozenModule", "FrozenOutput", "to_torch"]


class FrozenOutput(NamedTuple):
    """What a FrozenModule says.

    Attributes
    ----------
    value : tensor of shape (n,) or (n, D)
        Index of the class, or the prediction in the unit of the target.
    uncertainty : tensor of shape (n,)
        As `FrozenHead.predict_uncertainty`.
    direction : tensor of shape (n, k)
        That of the head which gives the value.
    """

    value: Tensor
    uncertainty: Tensor
    direction: Tensor


class _HeadModule(nn.Module):
    """One head: columns of features, times weights, plus an intercept."""

    origin: Tensor
    landmarks: Tensor
    weights: Tensor
    intercept: Tensor

    def __init__(self, head: Head) -> None:
        super().__init__()
        design = head.design
        is_kernel = isinstance(design, Kernel)
        self.kind = "kernel" if is_kernel else "quadratic" if isinstance(design, Quadratic) else "linear"
        self.bandwidth = design.bandwidth if is_kernel else 1.0
        base = design.landmarks if is_kernel else design.origin
        self.register_buffer("landmarks" if is_kernel else "origin", torch.from_numpy(np.array(base)))
        self.register_buffer("weights", torch.from_numpy(np.array(head.weights)))
        self.register_buffer("intercept", torch.from_numpy(np.array(head.intercept)))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "kernel":
            # 2 − 2ab loses most digits of a small distance; in single precision too many would go.
            distances = (2.0 - 2.0 * (_units(x).double() @ self.landmarks.double().T)).clamp(min=0.0)
            columns = torch.exp(distances / -self.bandwidth).to(x.dtype)
        elif self.kind == "quadratic":
            columns = torch.cat([x, x * x, x.abs().sqrt()], dim=-1) - self.origin
        else:
            columns = x - self.origin
        return columns @ self.weights + self.intercept


class FrozenModule(nn.Module):
    """The numbers of a fitted FrozenHead, as buffers: nothing in it is trained. Made by `to_torch`.

    Attributes
    ----------
    classes : list or None
        What the indices in `FrozenOutput.value` stand for.
    """

    def __init__(self, head: FrozenHead) -> None:
        super().__init__()
        check_fitted(head, "estimator_")
        solution, target = head._solved(), head.target_
        self.heads = nn.ModuleDict({name: _HeadModule(each) for name, each in solution.heads.items()})
        self.value_head = solution.value_head
        self.is_joint = head.kind == "joint"
        self.reach, self.center, self.spread = solution.reach, solution.center, solution.spread
        self.is_flat, self.anchor, self.unit = True, 0.0, 1.0
        self.classes: list[Any] | None = None
        if isinstance(target, NumberTarget):
            self.is_flat, self.anchor, self.unit = target.is_flat, target.embedding.anchor, target.embedding.unit_
            self.register_buffer("target_center", torch.from_numpy(np.array(target.embedding.center_)))
            self.register_buffer("target_scale", torch.from_numpy(np.array(target.embedding.scale_)))
        else:
            self.classes = head.classes_.tolist()

    def forward(self, x: Tensor) -> FrozenOutput:
        """Value, uncertainty and direction of features (n, p)."""
        every = {name: self._read(module(x)) for name, module in self.heads.items()}
        parts = {name: self._score(outputs, self.reach[name]) for name, outputs in every.items()}
        if self.is_joint:
            parts = {name: (part - self.center[name]) / self.spread[name] for name, part in parts.items()}
        outputs, uncertainty = every[self.value_head], torch.stack(list(parts.values())).sum(dim=0)
        return FrozenOutput(self._value(outputs), uncertainty, outputs.direction)

    def _read(self, table: Tensor) -> SphericalOutput:
        if self.classes is not None:
            return SphericalOutput(table, torch.ones_like(table[:, 0]))
        n_outputs = len(cast(Tensor, self.target_center))
        return SphericalOutput(table[:, : n_outputs + 1], table[:, n_outputs + 1], table[:, n_outputs + 2 :])

    def _score(self, outputs: SphericalOutput, reach: float) -> Tensor:
        if self.classes is not None:
            return torch.abs(reach - geometry.norm(outputs.direction))
        return scores.anchored(outputs, self.anchor) * self.unit

    def _value(self, outputs: SphericalOutput) -> Tensor:
        if self.classes is not None:
            return outputs.direction.argmax(dim=-1)
        value = cast(Tensor, outputs.mean) * cast(Tensor, self.target_scale) + cast(Tensor, self.target_center)
        return value[:, 0] if self.is_flat else value


def to_torch(head: FrozenHead, *, dtype: torch.dtype = torch.float32) -> FrozenModule:
    """The torch module of a fitted head.

    Parameters
    ----------
    head : FrozenHead
    dtype : dtype, default torch.float32

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from onsphere.frozen import FrozenHead
    >>> X, y = np.random.default_rng(0).normal(size=(200, 4)), np.arange(200) % 2
    >>> module = to_torch(FrozenHead(random_state=0).fit(X, y))
    >>> module(torch.zeros(3, 4)).uncertainty.shape
    torch.Size([3])
    """
    if not isinstance(head, FrozenHead):  # type: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"to_torch needs a FrozenHead. Got {type(head).__name__}.")
    return FrozenModule(head).to(dtype)


def _units(x: Tensor) -> Tensor:
    """Rows scaled to length 1; a zero row becomes (1, ..., 1)/√p, as in `onsphere.geometry`."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    is_zero = length == 0
    return torch.where(is_zero, torch.full_like(x, x.shape[-1] ** -0.5), x / torch.where(is_zero, 1.0, length))
