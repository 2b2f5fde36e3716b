"""Additions to skorch's training: whole batches, losses of rows, draws of what is random, and checks."""

from __future__ import annotations

import io
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from onsphere._internal.validation import Floats, missing_extra_error, parameter_error, wrap_errors
from onsphere.errors import InvalidInputError
from onsphere.models.backbone import split_columns
from onsphere.torch.head import SphericalOutput
from onsphere.torch.loss import HCMLoss
from onsphere.torch.running import find_random_layers

try:
    import skorch
    from skorch import helper, hf
except ImportError:
    raise missing_extra_error("TorchRegressor", "skorch", "torch") from None

__all__ = [
    "Net",
    "RowLoss",
    "Rows",
    "SharedNet",
    "ValidSplit",
    "check_callbacks",
    "check_finite",
    "check_weights",
    "keep_batch",
    "make_accelerator",
    "make_callbacks",
    "pack_optimizer",
    "predefined_split",
    "restore_optimizer",
    "wrap_training_errors",
]

# skorch has no types, and those inferred from its defaults are too narrow.
_skorch: Any = skorch
_AccelerateMixin: Any = hf.AccelerateMixin
ValidSplit: Any = _skorch.dataset.ValidSplit
predefined_split: Any = helper.predefined_split

# These layers multiply a row by factors that do not depend on it.
_DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class Rows(torch.utils.data.Dataset[Any]):
    """Arrays of equal length as (features, (the others)), a whole batch at a time: ten times faster than row by row."""

    def __init__(self, *parts: Any) -> None:
        self.parts = [torch.as_tensor(part, dtype=torch.float32) for part in parts]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        features, *others = (part[indices] for part in self.parts)
        return features, tuple(others)


def keep_batch(batch: Any) -> Any:
    """Collate nothing: `Rows` returns whole batches."""
    return batch


class RowLoss:
    """The weighted mean, over rows, of a loss of standardised columns or of the sphere that they describe.

    Not a Module: accelerate would wrap it, and fail because it has no weights.
    """

    def __init__(
        self, loss: Any, layout: Mapping[str, Any] | None, center: Floats, scale: Floats, *, weighted: bool
    ) -> None:
        self.loss = loss
        self.layout = layout
        self.weighted = weighted
        self.center = torch.as_tensor(center, dtype=torch.float32)
        self.scale = torch.as_tensor(scale, dtype=torch.float32)

    def __call__(self, prediction: Tensor, target_and_weight: tuple[Tensor, Tensor]) -> Tensor:
        target, weight = target_and_weight
        if self.layout is not None:
            values = self.loss(self._read_sphere(prediction), self._read_sphere(target))
        else:
            values = self.loss(prediction, target)
        if not isinstance(values, Tensor):
            raise InvalidInputError(
                f"Expected a loss that returns a tensor. Got {type(values).__name__}. Use only operations of torch."
            )
        if values.dim() == 0:
            if self.weighted:
                raise InvalidInputError(
                    "Expected a loss with one value per row, so that rows can be weighted. Got one for the whole "
                    "batch. Make the loss with reduction='none', or leave sample_weight out."
                )
            return values
        return (values.reshape(len(weight), -1).mean(dim=1) * weight).mean()

    def _read_sphere(self, columns: Tensor) -> SphericalOutput:
        layout = cast("Mapping[str, Any]", self.layout)
        unscaled: Any = columns * self.scale.to(columns.device) + self.center.to(columns.device)
        direction, magnitude, mean = split_columns(unscaled, **layout)
        # Where no magnitude is learned, it is 1 in the target and in the prediction.
        return SphericalOutput(direction, torch.as_tensor(magnitude, dtype=columns.dtype, device=columns.device), mean)


class _StoppedEarlyError(Exception):
    """A callback ended the training."""


class Net(_skorch.NeuralNetRegressor):
    """skorch's regressor with three additions: bfloat16, draws of what is random, and the penalty of a network.

    A penalty belongs to the whole training set (for example the divergence of a Bayesian network from its prior); each
    row pays its share.
    """

    def __init__(self, module: Any, *, mixed_precision: bool, **options: Any) -> None:
        super().__init__(module, **options)
        self.mixed_precision = mixed_precision
        # skorch takes an attribute without the underscore at the end for a parameter.
        self.n_rows_ = 1
        self.draw_seed_: int | None = None

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **options: Any) -> Any:
        """Train as skorch does, except that an interrupt by the user raises and leaves no half-trained network."""
        self.notify("on_train_begin", X=X, y=y)
        with suppress(_StoppedEarlyError):
            self.fit_loop(X, y, **options)
        self.notify("on_train_end", X=X, y=y)
        return self

    def notify(self, method_name: str, **options: Any) -> None:
        try:
            super().notify(method_name, **options)
        except KeyboardInterrupt:
            # skorch's callbacks end a training this way after an epoch; at any other time it is the user.
            raise (_StoppedEarlyError if method_name == "on_epoch_end" else KeyboardInterrupt) from None

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        if training:  # without the rows that are kept for validation
            self.n_rows_ = len(dataset)
        return super().get_iterator(dataset, training=training)

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **options: Any) -> Tensor:
        loss = super().get_loss(y_pred, y_true, *args, **options)
        penalty = getattr(self.unwrap_module(), "penalty", None)
        return loss if penalty is None else loss + penalty() / self.n_rows_

    def unwrap_module(self) -> nn.Module:
        """Return the network without what wraps it in training."""
        return self.module_

    @contextmanager
    def use_one_draw(self, seed: int) -> Any:
        """Predict with one draw of what is random in training, the same for all rows.

        A row then gets the same answer whatever rows and batches it comes with.
        """
        self.draw_seed_ = seed
        handles = [
            layer.register_forward_hook(_drop_same_in_all_rows)
            for layer in find_random_layers(self.module_)
            if isinstance(layer, _DROPPING)
        ]
        try:
            yield
        finally:
            self.draw_seed_ = None
            for handle in handles:
                handle.remove()
            self.module_.eval()

    def infer(self, x: Any, **options: Any) -> Tensor:
        if self.draw_seed_ is not None:
            torch.manual_seed(self.draw_seed_)
            for layer in find_random_layers(self.module_):
                layer.train(not isinstance(layer, _DROPPING))
        device = next(self.module_.parameters()).device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bool(self.mixed_precision)):
            return super().infer(x, **options).float()


def _drop_same_in_all_rows(layer: nn.Module, given: tuple[Tensor], rows: Tensor) -> Tensor:
    """Multiply all rows by one draw of a layer that is in evaluation mode; a forward hook."""
    layer.train()
    factors = layer.forward(torch.ones_like(rows[:1]))
    layer.eval()
    return rows * factors


class SharedNet(_AccelerateMixin, Net):
    """The same over several processes, which must see one loss to agree on when to stop."""

    def unwrap_module(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.module_)

    def validation_step(self, batch: Any, **options: Any) -> dict[str, Any]:
        step = super().validation_step(batch, **options)
        return step | {"loss": self.accelerator.reduce(step["loss"], reduction="mean")}


def make_accelerator(device: torch.device) -> Any:
    """Return accelerate's Accelerator; one batch is split among its processes, so their number changes nothing."""
    try:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration
    except ImportError:
        raise missing_extra_error("TorchRegressor(multi_process=True)", "accelerate", "torch") from None
    return Accelerator(cpu=device.type == "cpu", dataloader_config=DataLoaderConfiguration(split_batches=True))


def check_finite(data: Rows) -> None:
    """Check that nothing is too large for single precision."""
    for what, part in zip(("features", "targets"), data.parts, strict=False):
        if not bool(torch.isfinite(part).all()):
            raise InvalidInputError(
                f"Expected {what} that single precision holds, up to about 1e38 after the scaling "
                "that standardize= asks for. Got larger ones. Divide them by a constant, or drop the outliers."
            )


def check_weights(module: nn.Module, learning_rate: float) -> None:
    """Check that the weights are finite: the loss is computed before a step, so the last step may have gone wrong."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters()):
        raise InvalidInputError(
            f"The weights are not finite after training: the last steps were too large. Lower learning_rate (now "
            f"{learning_rate:g}), or clip the gradients (callbacks=[skorch.callbacks.GradientNormClipping(1.0)])."
        )


@contextmanager
def wrap_training_errors() -> Generator[None]:
    """Raise what torch raises in training as InvalidInputError."""
    try:
        with wrap_errors("The network could not be trained: "):
            yield
    except (RuntimeError, AttributeError, AssertionError) as error:
        raise InvalidInputError(
            f"The network could not be trained: {error}. Check that module, loss and optimizer fit together: the loss "
            "is called with (prediction, target), both of shape (n, k), and must return a tensor."
        ) from error


def check_callbacks(owner: object, given: Any) -> None:
    """Check that these are skorch callbacks, each alone or as (name, callback)."""
    is_sequence = isinstance(given, Sequence) and not isinstance(given, str)
    alone = [item[-1] if isinstance(item, tuple) and len(item) == 2 else item for item in given] if is_sequence else [0]
    if not all(isinstance(item, _skorch.callbacks.Callback) for item in alone):
        raise parameter_error(owner, "callbacks", "a sequence of skorch callbacks such as [EpochTimer()]", given)


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what an optimiser has learned of the weights, so that it can be kept in a file."""
    written = io.BytesIO()
    torch.save(optimizer.state_dict()["state"], written)
    return {"kind": type(optimizer).__name__, "state": written.getvalue()}


def restore_optimizer(optimizer: torch.optim.Optimizer, packed: dict[str, Any] | None) -> None:
    """Give an optimiser what one of its kind has learned; its own learning rate stays. Another kind starts anew."""
    if packed is None or packed["kind"] != type(optimizer).__name__:
        return
    state = torch.load(io.BytesIO(packed["state"]), weights_only=True)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def make_callbacks(owner: Any, n_epochs_before: int = 0, *, is_part: bool = False) -> list[Any]:
    """Return the callbacks that a TorchRegressor trains with: the check of the loss, and those that the user chose.

    A training that goes on has had some epochs before; one on a part of the rows has neither bar nor schedule.
    """
    chosen: list[Any] = [("check", _LossCheck(n_epochs_before)), *owner.callbacks]
    if is_part:
        return chosen
    if owner.progress:
        chosen.append(("progress", _ProgressBar()))
    schedulers, make_scheduler = torch.optim.lr_scheduler, _skorch.callbacks.LRScheduler
    if owner.schedule == "cosine":
        chosen.append(("schedule", make_scheduler(schedulers.CosineAnnealingLR, T_max=owner.max_epochs)))
    elif owner.schedule == "plateau":
        chosen.append(("schedule", make_scheduler(schedulers.ReduceLROnPlateau, monitor="valid_loss")))
    if owner.early_stopping is not None:
        stopping = _skorch.callbacks.EarlyStopping(patience=owner.early_stopping, load_best=True)
        chosen.append(("early_stopping", stopping))
    return chosen


class _LossCheck(_skorch.callbacks.Callback):
    """Stop at a loss that is not finite, and set the epoch of an HCMLoss."""

    def __init__(self, n_epochs_before: int) -> None:
        self.n_epochs_before = n_epochs_before

    def on_epoch_begin(self, net: Any, **_: Any) -> None:
        if isinstance(net.criterion_.loss, HCMLoss):
            net.criterion_.loss.epoch = self.n_epochs_before + len(net.history) - 1

    def on_batch_end(self, net: Any, *, loss: Tensor, **_: Any) -> None:
        value = float(loss.detach())
        if not math.isfinite(value):
            raise InvalidInputError(
                f"The loss is not finite in epoch {len(net.history)} at step {len(net.history[-1]['batches'])}: it is "
                f"{value:g}. Features and targets are finite, so the targets are too large to be squared (use "
                f"standardize=True) or the weights have grown too large: lower learning_rate (now {net.lr:g}), or clip "
                "the gradients (callbacks=[skorch.callbacks.GradientNormClipping(1.0)])."
            )


class _ProgressBar(_skorch.callbacks.Callback):
    """A bar that counts epochs; skorch's own counts batches."""

    def on_train_begin(self, net: Any, **_: Any) -> None:
        from tqdm.auto import tqdm

        self.bar_ = tqdm(total=net.max_epochs, unit="epoch")

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        last = net.history[-1]
        losses = {name: f"{last[name]:.4g}" for name in ("train_loss", "valid_loss") if name in last}
        self.bar_.set_postfix(losses, refresh=False)
        self.bar_.update()

    def on_train_end(self, net: Any, **_: Any) -> None:
        self.bar_.close()
