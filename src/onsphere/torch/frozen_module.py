"""A fitted FrozenHead as a torch module, to run after its network or to be exported with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree

from onsphere._internal.validation import check_fitted, check_number, parameter_error
from onsphere.calibration import root_mean_square
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.models.classifier import mix_evenly
from onsphere.models.frames import Frames, Measured
from onsphere.models.frozen.blocks import place_blocks
from onsphere.models.frozen.ridge import Head, Kernel
from onsphere.models.frozen.solved import SolvedModel
from onsphere.models.frozen.sums import Solution, join_scores
from onsphere.models.frozen.targets import NumberTarget
from onsphere.models.noise import SIGMA_FLOOR
from onsphere.sphere import geometry
from onsphere.sphere.geometry import SphericalOutput
from onsphere.torch.calibrate import CalibratedNetwork
from onsphere.torch.features import check_pooling
from onsphere.torch.network_module import FeatureReader, NetworkModule, OutputReader

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
    sigma : tensor like value, or None for classes
    lower, upper : tensors like value, or None for classes and without a calibration
    probabilities : tensor of shape (n, C), or None for numbers and without a calibration
    confidence : tensor of shape (n,), or None without a calibration
    accepted : tensor of bools of shape (n,), or None without a threshold
    noise : tensor like value, of shape (n,) for classes, or None for a head with the target frame alone
        As `Assessment.noise`.
    """

    value: Tensor
    uncertainty: Tensor
    direction: Tensor
    novelty: Tensor | None
    sigma: Tensor | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None
    probabilities: Tensor | None = None
    confidence: Tensor | None = None
    accepted: Tensor | None = None
    noise: Tensor | None = None


# So that torch.export.save can write a module that returns one.
_pytree._register_namedtuple(FrozenOutput, serialized_type_name="onsphere.torch.FrozenOutput")


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


class _TreesModule(nn.Module):
    """The trees of an error frame: every row goes down all of them at once, one level at a time."""

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    leaf: Tensor
    root: Tensor

    def __init__(self, forest: Any) -> None:
        super().__init__()
        trees = [each.tree_ for each in forest.estimators_]
        self.depth = max(tree.max_depth for tree in trees)
        starts = np.concatenate([[0], np.cumsum([tree.node_count for tree in trees])])[:-1]
        own = [np.arange(tree.node_count) for tree in trees]

        def join(parts: list[NDArray[Any]]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts))

        def point(children: list[NDArray[Any]]) -> Tensor:
            # A leaf points to itself, so that rows that arrive early wait there.
            return join([np.where(to < 0, me, to) + at for to, me, at in zip(children, own, starts, strict=True)])

        self.register_buffer("feature", join([np.maximum(tree.feature, 0) for tree in trees]))
        self.register_buffer("threshold", join([tree.threshold for tree in trees]))
        self.register_buffer("left", point([tree.children_left for tree in trees]))
        self.register_buffer("right", point([tree.children_right for tree in trees]))
        self.register_buffer("leaf", join([tree.value[..., 0] for tree in trees]))
        self.register_buffer("root", torch.from_numpy(starts))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the mean over trees, (n, c), of rows (n, f)."""
        rows = rows.float().double()  # as scikit-learn rounds them
        place = self.root.expand(rows.shape[0], -1)
        for _ in range(self.depth):
            is_left = rows.gather(1, self.feature[place]) <= self.threshold[place]
            place = torch.where(is_left, self.left[place], self.right[place])
        return self.leaf[place].mean(dim=1)


class _FramesModule(nn.Module):
    """The frames beside the target's, in double precision: single leaves too few digits of what is missing to 1."""

    def __init__(self, solution: Solution) -> None:
        super().__init__()
        frames = cast(Frames, solution.frames)
        self.frames, self.widths = frames, solution.widths
        self.trees = None if frames.error is None or frames.error.trees is None else _TreesModule(frames.error.trees)
        if frames.input is not None:
            for name in ("center", "scale", "landmarks", "whitener"):
                self.register_buffer(
                    f"input_{name}", torch.from_numpy(np.array(getattr(frames.input, name), order="C"))
                )
        if frames.error is not None:
            for name in ("scale", "unit", "power", "level"):
                values = getattr(frames.error, name)
                if isinstance(values, np.ndarray):
                    self.register_buffer(f"error_{name}", torch.from_numpy(np.array(values)))

    def measure(self, x: Tensor, value: Tensor | None, sigma: Tensor | None, **ends: Tensor) -> Measured:
        """Return the parts of the uncertainty of features (n, p); for classes novelty and shortfall alone."""
        parts: dict[str, Any] = {}
        for name in ("input", "error"):
            given = getattr(self.frames, name)
            numbers = {
                key.removeprefix(f"{name}_"): each.double()
                for key, each in self.named_buffers(recurse=False)
                if key.startswith(name)
            }
            parts[name] = None if given is None else replace(given, **numbers)
        frames = replace(self.frames, **parts)
        places: Any = place_blocks(cast(Any, x.double()), self.widths)
        if value is None or sigma is None:
            return Measured(cast(Any, None), cast(Any, None), *frames.measure_novelty(places))
        run = None if self.trees is None else lambda _, rows: cast(nn.Module, self.trees)(rows)
        doubles: dict[str, Any] = {name: each.double() for name, each in ends.items()}
        return frames.measure(places, cast(Any, value.double()), cast(Any, sigma.double()), **doubles, predict=run)


class FrozenModule(nn.Module):
    """The numbers of a fitted FrozenHead, as buffers: nothing in it is trained. Made by `to_torch`.

    Attributes
    ----------
    n_features : int
        Of every row.
    classes : list or None
        The class of each index in `FrozenOutput.value`.
    model : FrozenHead or OutputHead
    coverage : float
        Of the intervals, and of the sets in a graph.
    """

    target_center: Tensor
    target_scale: Tensor
    target_spread: Tensor
    half_width: Tensor
    held_out: Tensor

    def __init__(self, head: SolvedModel, dtype: torch.dtype = torch.float64, coverage: float = 0.9) -> None:
        super().__init__()
        check_fitted(head, "estimator_")
        solution, target = head._solve(), head.target_
        self.model = head
        self.coverage = coverage
        self.heads = nn.ModuleDict({name: _HeadModule(each) for name, each in solution.heads.items()})
        self.n_features = head.n_features_in_
        self.solution = solution
        self.classes: list[Any] | None = None
        calibration = head.calibration_
        if calibration is not None and calibration.groups is not None:
            raise InvalidInputError(
                "to_torch writes one limit for all rows into a module. Got a head that was calibrated by groups. "
                "Calibrate it without them, or use the head itself."
            )
        self.scaling = None
        if isinstance(target, NumberTarget):
            embedding = target.embedding
            self.unit = float(embedding.unit_)
            for name in ("center", "scale", "spread"):
                self.register_buffer(f"target_{name}", torch.from_numpy(np.array(getattr(embedding, f"{name}_"))))
            if calibration is not None:
                ones = np.ones((1, embedding.n_outputs_))
                width = calibration.interval(0 * ones, ones, coverage=coverage)[0, :, 1]  # type: ignore
                self.register_buffer("half_width", torch.from_numpy(width))
        else:
            self.classes = head.classes_.tolist()
            self.scaling = None if calibration is None else calibration.scaling  # type: ignore
        super()._apply(lambda values: values.to(dtype))
        self.dtype = dtype
        self.frames = None if solution.frames is None else _FramesModule(solution)
        self.is_calibrated = calibration is not None
        if calibration is not None:
            self.register_buffer("held_out", torch.from_numpy(np.sort(calibration.uncertainty)))
        self.limits = (head.threshold_, head.novelty_threshold_)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # What changes the precision of a network, such as half(), moves the head to another device at most.
        return super()._apply(lambda values: values.to(fn(values).device), recurse)

    def forward(self, x: Tensor) -> FrozenOutput:
        """Return value, uncertainty and direction of features (n, p), and what the head's calibration adds."""
        if x.dim() != 2 or x.shape[1] != self.n_features:
            raise InvalidInputError(
                f"Expected features of shape (n, {self.n_features}), as the head was fitted on. Got {tuple(x.shape)}. "
                "Nothing is broadcast: reshape them, or fit a head on features like these."
            )
        x = x.to(self.dtype)  # an encoder in front may run in another
        solution = self.solution
        last = cast(Tensor, solution.take_last(cast(Any, x)))
        every = {name: self._read(module(last)) for name, module in self.heads.items()}
        outputs = every[solution.value_head]
        value, sigma, measured = self._measure(x, outputs)
        missed: Any = None if measured is None else measured.missed
        noise = None if measured is None else self._find_noise(outputs, measured, x.dtype)
        if self.frames is not None and self.frames.trees is not None and sigma is not None:
            uncertainty = cast(Tensor, root_mean_square(cast(Any, sigma)))
        else:
            parts: Any = {name: self._score(each, solution.reach[name]) for name, each in every.items()}
            uncertainty = cast(Tensor, join_scores(parts, missed, solution.center, solution.spread))
        # Rows that overflow are farthest from all training rows.
        uncertainty = torch.where(torch.isnan(uncertainty), torch.inf, uncertainty)
        novelty: Any = None if measured is None or missed is None else measured.novelty
        return FrozenOutput(
            self._flatten(value),
            uncertainty.to(x.dtype),
            outputs.direction,
            None if novelty is None else novelty.to(x.dtype),
            **self._add_sigma(value, sigma),
            **self._add_calibration(outputs, uncertainty, novelty, missed),
            noise=noise,
        )

    def _find_noise(self, outputs: Any, measured: Measured, dtype: torch.dtype) -> Tensor:
        if self.classes is not None:
            return (1.0 - cast(Tensor, geometry.norm(outputs.direction))).clamp(min=0.0)
        return self._flatten(cast(Tensor, measured.noise).to(dtype))

    def _measure(self, x: Tensor, outputs: Any) -> tuple[Tensor, Tensor | None, Measured | None]:
        if self.classes is not None:
            found = None if self.frames is None else self.frames.measure(x, None, None)
            return outputs.direction.argmax(dim=-1), None, found
        embedding = self.solution.target.embedding
        value = outputs.mean * self.target_scale + self.target_center
        sigma = cast(Any, embedding).relative_sigma(outputs) * self.target_scale
        if self.frames is None:
            return value, sigma, None
        lost = torch.isnan(value).any(dim=1, keepdim=True) | torch.isinf(value).any(dim=1, keepdim=True)
        known = [torch.where(lost, 0.0, each) for each in (value, sigma)]
        found = self.frames.measure(x, *known, center=self.target_center, spread=self.target_spread)
        return value, torch.where(lost, torch.nan, cast(Tensor, found.sigma)), found

    def _score(self, outputs: Any, reach: float) -> Any:
        target = self.solution.target
        if isinstance(target, NumberTarget):
            return target.score_relatively(outputs) * self.unit
        return target.score(outputs, reach)

    def _read(self, table: Tensor) -> SphericalOutput:
        return self.solution.target.read_table(cast(Any, table))

    def _flatten(self, value: Tensor) -> Tensor:
        target = self.solution.target
        return value[:, 0] if isinstance(target, NumberTarget) and target.is_flat else value

    def _add_sigma(self, value: Tensor, sigma: Tensor | None) -> dict[str, Tensor]:
        if sigma is None:
            return {}
        added = {"sigma": self._flatten(sigma.to(value.dtype))}
        if self.is_calibrated:
            half = (sigma + SIGMA_FLOOR * self.target_spread) * self.half_width
            added["lower"] = self._flatten((value - half).to(value.dtype))
            added["upper"] = self._flatten((value + half).to(value.dtype))
        return added

    def _add_calibration(self, outputs: Any, uncertainty: Tensor, novelty: Any, missed: Any) -> dict[str, Tensor]:
        added: dict[str, Tensor] = {}
        if self.scaling is not None:
            probabilities: Any = self.scaling.apply(torch.nan_to_num(outputs.direction.double()))
            added["probabilities"] = mix_evenly(probabilities, novelty).to(outputs.direction.dtype)
        if not self.is_calibrated:
            return added
        n_rows = self.held_out.shape[0]
        below = torch.searchsorted(self.held_out, uncertainty.to(self.held_out.dtype))
        added["confidence"] = ((1.0 + n_rows - below) / (1.0 + n_rows)).to(outputs.direction.dtype)
        limit, novelty_limit = self.limits
        passed = [] if limit is None else [uncertainty <= limit]
        passed += [] if novelty_limit is None or missed is None else [missed <= novelty_limit]
        if passed:
            added["accepted"] = torch.stack(passed).all(dim=0)
        return added


def to_torch(
    head: Any,
    backbone: nn.Module | None = None,
    *,
    layer: str | Sequence[str] | None = None,
    pooling: str | None = None,
    coverage: float = 0.9,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Return a fitted head as a torch module, alone or behind its network, with calibration and threshold.

    Parameters
    ----------
    head : FrozenHead or CalibratedNetwork
        A `CalibratedNetwork` brings its network with it.
    backbone : Module, optional
        The network whose features the head was fitted on; it is copied. Without one, the module takes features.
    layer, pooling : as in `features`
        With which the features were read.
    coverage : float in (0, 1), default 0.9
        Of the intervals.
    dtype : dtype, default torch.float32
        Of the heads; novelty and noise are measured in double precision.

    Returns
    -------
    FrozenModule or NetworkModule
        Both return a `FrozenOutput`, and can be compiled and exported; `onsphere.export_onnx` writes a NetworkModule
        to one ONNX file.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from onsphere.models.frozen import FrozenHead
    >>> X, y = np.random.default_rng(0).normal(size=(200, 4)), np.arange(200) % 2
    >>> head = FrozenHead(random_state=0).fit(X, y)
    >>> to_torch(head)(torch.zeros(3, 4)).uncertainty.shape
    torch.Size([3])
    >>> to_torch(head, torch.nn.Linear(9, 4), layer="")(torch.zeros(3, 9)).value.shape
    torch.Size([3])
    """
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):  # type: ignore[reportUnnecessaryIsInstance]
        raise parameter_error("to_torch", "dtype", "a floating dtype of torch", dtype)
    check_number("to_torch", "coverage", coverage, above=0, below=1)
    if isinstance(head, CalibratedNetwork):
        if backbone is not None:
            raise InvalidInputError(
                "to_torch takes a CalibratedNetwork with the network that it holds. Got a backbone too. Leave it out."
            )
        return NetworkModule(OutputReader(head), FrozenModule(head.model, dtype, coverage))
    if not isinstance(head, SolvedModel):
        raise InvalidTypeError(f"to_torch needs a FrozenHead or a CalibratedNetwork. Got {type(head).__name__}.")
    if backbone is not None and not isinstance(backbone, nn.Module):  # type: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"to_torch needs a torch.nn.Module as backbone. Got {type(backbone).__name__}.")
    check_pooling("to_torch", pooling)
    module = FrozenModule(head, dtype, coverage)
    return module if backbone is None else NetworkModule(FeatureReader(backbone, layer, pooling), module)
