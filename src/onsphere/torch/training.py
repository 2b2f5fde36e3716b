"""What we add to skorch's training: batches of rows, losses of rows, a bar, and the watch over a loss."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from onsphere._internal.validation import Floats, missing_extra_error, parameter_error, wrap_errors
from onsphere.errors import InvalidInputError
from onsphere.models.backbone import from_columns
from onsphere.torch.head import SphericalOutput
from onsphere.torch.loss import HCMLoss

try:
    from skorch import NeuralNetRegressor, hf
    from skorch.callbacks import Callback, EarlyStopping, LRScheduler
    from skorch.dataset import ValidSplit
except ImportError:
    raise missing_extra_error("TorchRegressor", "skorch", "torch") from None

__all__ = [
    "Net",
    "RowLoss",
    "Rows",
    "SharedNet",
    "accelerator_on",
    "as_it_is",
    "callbacks_for",
    "check_callbacks",
    "check_finite",
    "check_weights",
    "random_layers",
    "seeded",
    "training_errors",
    "validation_split",
]

# skorch has no types, and those inferred from its defaults are too narrow.
_NeuralNetRegressor: Any = NeuralNetRegressor
_Callback: Any = Callback
_EarlyStopping: Any = EarlyStopping
_LRScheduler: Any = LRScheduler
_ValidSplit: Any = ValidSplit
_hf: Any = hf

# What these layers do to a row is a product with factors that do not depend on it.
_DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class Rows(torch.utils.data.Dataset[Any]):
    """Arrays of equal length as (features, (the others)), a whole batch at a time; row by row would take ten times."""

    def __init__(self, *parts: Any) -> None:
        self.parts = [torch.as_tensor(part, dtype=torch.float32) for part in parts]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        features, *others = (part[indices] for part in self.parts)
        return features, tuple(others)


def as_it_is(batch: Any) -> Any:
    return batch


class RowLoss:
    """The weighted mean, over rows, of a loss of standardised columns or of the sphere that they describe.

    No Module: accelerate would wrap it, and fail for want of weights.
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
            values = self.loss(self._on_sphere(prediction), self._on_sphere(target))
        else:
            values = self.loss(prediction, target)
        if not isinstance(values, Tensor):
            raise InvalidInputError(
                f"Expected a loss that returns a tensor. Got {type(values).__name__}. Keep to the operations of torch."
            )
        if values.dim() == 0:
            if self.weighted:
                raise InvalidInputError(
                    "Expected a loss with one value per row, so that rows can be weighted. Got one for the whole "
                    "batch. Make the loss with reduction='none', or leave sample_weight out."
                )
            return values
        return (values.reshape(len(weight), -1).mean(dim=1) * weight).mean()

    def _on_sphere(self, columns: Tensor) -> SphericalOutput:
        layout = cast("Mapping[str, Any]", self.layout)
        unscaled: Any = columns * self.scale.to(columns.device) + self.center.to(columns.device)
        direction, magnitude, mean = from_columns(unscaled, **layout)
        # Where no magnitude is learned, it is 1 in the target and in the prediction.
        return SphericalOutput(direction, torch.as_tensor(magnitude, dtype=columns.dtype, device=columns.device), mean)


class _StoppedEarlyError(Exception):
    """A callback has seen enough epochs."""


class Net(_NeuralNetRegressor):
    """skorch's, in bfloat16 if asked, with draws of what is random, and the penalty of a network that has one.

    A penalty is of the whole training set (the divergence of a Bayesian network from its prior, say); a row bears its
    share.
    """

    def __init__(self, module: Any, *, mixed_precision: bool, **options: Any) -> None:
        super().__init__(module, **options)
        self.mixed_precision = mixed_precision
        # A name that ends otherwise would be a parameter to skorch.
        self.n_rows_ = 1
        self.draw_seed_: int | None = None

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **options: Any) -> Any:
        """As skorch's, but who interrupts it gets no half-trained network for a trained one."""
        self.notify("on_train_begin", X=X, y=y)
        with suppress(_StoppedEarlyError):
            self.fit_loop(X, y, **options)
        self.notify("on_train_end", X=X, y=y)
        return self

    def notify(self, method_name: str, **options: Any) -> None:
        try:
            super().notify(method_name, **options)
        except KeyboardInterrupt:
            # So skorch's callbacks end a training, after an epoch; what comes at other times is from a person.
            raise (_StoppedEarlyError if method_name == "on_epoch_end" else KeyboardInterrupt) from None

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        if training:  # without the rows that are kept for validation
            self.n_rows_ = len(dataset)
        return super().get_iterator(dataset, training=training)

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **options: Any) -> Tensor:
        loss = super().get_loss(y_pred, y_true, *args, **options)
        penalty = getattr(self.bare_module(), "penalty", None)
        return loss if penalty is None else loss + penalty() / self.n_rows_

    def bare_module(self) -> nn.Module:
        """The network itself, without what wraps it in training."""
        return self.module_

    @contextmanager
    def one_draw(self, seed: int) -> Any:
        """Predict with one draw of what is random in training, the same for all rows.

        So a row gets the same answer whatever rows and batches it comes with.
        """
        self.draw_seed_ = seed
        handles = [
            layer.register_forward_hook(_drop_alike)
            for layer in random_layers(self.module_)
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
            for layer in random_layers(self.module_):
                layer.train(not isinstance(layer, _DROPPING))
        device = next(self.module_.parameters()).device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bool(self.mixed_precision)):
            return super().infer(x, **options).float()


def _drop_alike(layer: nn.Module, given: tuple[Tensor], rows: Tensor) -> Tensor:
    """A hook on a layer that drops nothing at the moment: drop the same in all rows."""
    layer.train()
    factors = layer.forward(torch.ones_like(rows[:1]))
    layer.eval()
    return rows * factors


def random_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that are random in training: dropout with a rate above zero, and those with `is_random = True`.

    A layer of the latter kind, asked in training mode but without gradients, should draw once for all rows.
    """
    return [
        layer
        for layer in module.modules()
        if (isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0) or getattr(layer, "is_random", False)
    ]


class SharedNet(_hf.AccelerateMixin, Net):
    """The same over several processes, which must agree on when to stop and so on the loss that they see."""

    def bare_module(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.module_)

    def validation_step(self, batch: Any, **options: Any) -> dict[str, Any]:
        step = super().validation_step(batch, **options)
        return step | {"loss": self.accelerator.reduce(step["loss"], reduction="mean")}


def accelerator_on(device: torch.device) -> Any:
    try:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration
    except ImportError:
        raise missing_extra_error("TorchRegressor(multi_process=True)", "accelerate", "torch") from None
    # One batch is split among the processes, so that their number does not change what is learned.
    loading = DataLoaderConfiguration(split_batches=True)
    return Accelerator(cpu=device.type == "cpu", dataloader_config=loading)


def check_finite(data: Rows) -> None:
    """That nothing was too large for single precision."""
    for what, part in zip(("features", "targets"), data.parts, strict=False):
        if not bool(torch.isfinite(part).all()):
            raise InvalidInputError(
                f"Expected {what} that single precision holds, up to about 1e38 (standardised, unless "
                "standardize=False). Got larger ones. Divide them by a constant, or drop the outliers."
            )


@contextmanager
def training_errors() -> Generator[None]:
    """What torch raises while it trains, as an error of ours that says so."""
    try:
        with wrap_errors("The network could not be trained: "):
            yield
    except (RuntimeError, AttributeError, AssertionError) as error:
        raise InvalidInputError(
            f"The network could not be trained: {error}. Check that module, loss and optimizer fit together: the loss "
            "is called with (prediction, target), both of shape (n, k), and must return a tensor."
        ) from error


def check_weights(module: nn.Module, learning_rate: float) -> None:
    """The loss is seen before a step, so the last step may still have gone astray."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters()):
        raise InvalidInputError(
            f"The weights are not finite after training: the last steps were too large. Lower learning_rate (now "
            f"{learning_rate:g}), or clip the gradients (callbacks=[skorch.callbacks.GradientNormClipping(1.0)])."
        )


def validation_split(fraction: float, seed: int) -> Any:
    """What skorch calls to keep a share of the rows from training."""
    return _ValidSplit(float(fraction), random_state=seed)


def callbacks_for(
    *, progress: bool, schedule: str | None, max_epochs: int, early_stopping: int | None, more: Sequence[Any]
) -> list[Any]:
    """The watch over the loss, and what a user asked for."""
    chosen: list[Any] = [("watch", _Watch()), *more]
    if progress:
        chosen.append(("progress", _Progress()))
    if schedule == "cosine":
        policy = torch.optim.lr_scheduler.CosineAnnealingLR
        chosen.append(("schedule", _LRScheduler(policy, T_max=max_epochs)))
    elif schedule == "plateau":
        policy = torch.optim.lr_scheduler.ReduceLROnPlateau
        chosen.append(("schedule", _LRScheduler(policy, monitor="valid_loss")))
    if early_stopping is not None:
        chosen.append(("early_stopping", _EarlyStopping(patience=early_stopping, load_best=True)))
    return chosen


def check_callbacks(owner: object, given: Any) -> None:
    """A sequence of callbacks of skorch, each alone or with a name before it."""
    is_sequence = isinstance(given, Sequence) and not isinstance(given, str)
    alone = [item[-1] if isinstance(item, tuple) and len(item) == 2 else item for item in given] if is_sequence else [0]
    if not all(isinstance(item, _Callback) for item in alone):
        raise parameter_error(owner, "callbacks", "a sequence of skorch callbacks, made, as [EpochTimer()]", given)


class _Watch(_Callback):
    """Stop at a loss that is not finite, and let the loss know the epoch."""

    def on_epoch_begin(self, net: Any, **_: Any) -> None:
        if isinstance(net.criterion_.loss, HCMLoss):
            net.criterion_.loss.epoch = len(net.history) - 1

    def on_batch_end(self, net: Any, *, loss: Tensor, **_: Any) -> None:
        value = float(loss.detach())
        if not math.isfinite(value):
            raise InvalidInputError(
                f"The loss is not finite in epoch {len(net.history)} at step {len(net.history[-1]['batches'])}: it is "
                f"{value:g}. Features and targets are finite, so the weights have grown too large: lower learning_rate "
                f"(now {net.lr:g}), clip the gradients (callbacks=[skorch.callbacks.GradientNormClipping(1.0)]), or "
                "keep standardize=True."
            )


class _Progress(_Callback):
    """A bar that counts epochs."""

    def on_train_begin(self, net: Any, **_: Any) -> None:
        from tqdm.auto import tqdm

        self.bar_ = tqdm(total=net.max_epochs, unit="epoch")

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        losses = {
            name: f"{net.history[-1][name]:.4g}" for name in ("train_loss", "valid_loss") if name in net.history[-1]
        }
        self.bar_.set_postfix(losses, refresh=False)
        self.bar_.update()

    def on_train_end(self, net: Any, **_: Any) -> None:
        self.bar_.close()


@contextmanager
def seeded(seed: int) -> Any:
    """Random numbers of our own, and the caller's as they were afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
