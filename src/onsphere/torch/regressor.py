"""TorchRegressor: a network as an ordinary scikit-learn regressor, and so as a backbone. skorch runs the training."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, check_random_state
from torch import Tensor, nn

from onsphere._validation import (
    Floats,
    bad_parameter,
    check_fitted,
    check_flag,
    check_number,
    check_option,
    check_regression_target,
    check_rows,
    check_same_length,
    check_sample_weight,
    missing_extra,
    own_errors,
    unchanged_if_it_fails,
)
from onsphere.backbones import from_columns
from onsphere.errors import InvalidInputError
from onsphere.torch.head import SphericalOutput
from onsphere.torch.loss import HCMLoss
from onsphere.torch.networks import MLP

try:
    from skorch import NeuralNetRegressor, callbacks, dataset, hf
except ImportError:
    raise missing_extra("TorchRegressor", "skorch", "torch") from None

__all__ = ["TorchRegressor"]

# skorch has no types, and those inferred from its defaults are too narrow.
_NeuralNetRegressor: Any = NeuralNetRegressor
_callbacks: Any = callbacks
_dataset: Any = dataset
_hf: Any = hf

# No gradients are kept in evaluation, so that larger batches fit.
_EVALUATED_AT_ONCE = 16


class TorchRegressor(RegressorMixin, BaseEstimator):
    """A network that learns any columns, for `HCMRegressor(TorchRegressor())` or on its own.

    Parameters
    ----------
    module : callable or Module, optional
        Called with (n_features, n_outputs) it returns the network: a class or a function. An instance is copied,
        weights included, and must have as many outputs as there are columns. By default an `MLP`.
    hidden_sizes : sequence of int, default (200, 100, 50)
        Of the MLP.
    loss : {"auto", "squared"}, HCMLoss or a loss of torch, default "auto"
        "squared" is the mean squared error of the columns; `HCMLoss` weighs direction, magnitude and mean as the
        paper does, and needs an HCMRegressor (or HCMClassifier) around it that says which columns are which. "auto"
        is HCMLoss() there and "squared" elsewhere. A loss of torch, called with (prediction, target) in standardised
        columns, must have reduction="none" where rows are weighted.
    optimizer : class, default torch.optim.Adam
    learning_rate : float, default 1e-3
    weight_decay : float, default 1e-4
    batch_size : int, default 64
    max_epochs : int, default 200
    schedule : {"cosine", "plateau"}, optional
        "cosine" lets the learning rate fall to zero over max_epochs; "plateau" divides it by 10 whenever the loss of
        the validation rows has not improved for 10 epochs.
    early_stopping : int, optional
        Stop when the loss of the validation rows has not improved for so many epochs, and return to the best weights.
    validation_fraction : float in (0, 1), default 0.1
        Share of rows kept from training for "plateau" and `early_stopping`. Without these, all rows are trained on.
    callbacks : sequence of skorch callbacks, default ()
        For everything else: other schedules, clipped gradients, checkpoints, loggers.
    standardize : bool, default True
        Whether features and columns are centred and scaled to a standard deviation of 1 before they are learned.
    device : str, default "auto"
        "auto" is "cuda" where there is one, else "cpu".
    mixed_precision : bool, default False
        Whether the network runs in bfloat16 where torch deems it safe; its weights stay as they are.
    multi_process : bool, default False
        Whether to train through accelerate: of the processes that `accelerate launch script.py` starts, each takes its
        share of every batch, and all end with the same weights.
    progress : bool, default False
        Whether to show a bar that counts the epochs.
    random_state : int, RandomState or None
        Seeds weights, order of rows and split. On a CPU, the same seed gives the same network.

    Attributes
    ----------
    net_ : skorch.NeuralNetRegressor
        Of the trained network; `net_.module_` is the network itself, for standardised features and columns.
    history_ : list of dict
        Losses and duration of each epoch.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from onsphere import HCMRegressor
    >>> from onsphere.torch import TorchRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = TorchRegressor(hidden_sizes=(20, 20), max_epochs=20, early_stopping=5, random_state=0)
    >>> model = HCMRegressor(network).fit(X[:300], y[:300])
    >>> model.predict(X[300:]).shape, model.predict_uncertainty(X[300:]).shape
    ((142,), (142,))
    >>> bool(network.fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.4)
    True
    """

    net_: Any
    history_: list[dict[str, Any]]

    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        *,
        hidden_sizes: Sequence[int] = (200, 100, 50),
        loss: str | Callable[[Any, Any], Tensor] = "auto",
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        batch_size: int = 64,
        max_epochs: int = 200,
        schedule: str | None = None,
        early_stopping: int | None = None,
        validation_fraction: float = 0.1,
        callbacks: Sequence[Any] = (),
        standardize: bool = True,
        device: str = "auto",
        mixed_precision: bool = False,
        multi_process: bool = False,
        progress: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.module = module
        self.hidden_sizes = hidden_sizes
        self.loss = loss
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.schedule = schedule
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.callbacks = callbacks
        self.standardize = standardize
        self.device = device
        self.mixed_precision = mixed_precision
        self.multi_process = multi_process
        self.progress = progress
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, column_layout: Mapping[str, Any] | None = None) -> Self:
        """Train a new network.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : array of shape (n,) or (n, k)
        sample_weight : array of shape (n,), optional
            Of each row in the loss.
        column_layout : mapping, optional
            What HCMRegressor says of its columns: the arguments of `onsphere.backbones.from_columns`.
        """
        with unchanged_if_it_fails(self):
            self._fit(X, y, sample_weight, column_layout)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, layout: Mapping[str, Any] | None) -> None:
        self._check_parameters()
        rows = self._rows(X, fitting=True)
        target = check_regression_target(self, y)
        check_same_length(rows, target)
        weights = check_sample_weight(sample_weight, rows)
        columns = target[:, None] if target.ndim == 1 else target
        self._target_is_flat = target.ndim == 1
        options = {"with_mean": self.standardize, "with_std": self.standardize}
        self._feature_scaler = StandardScaler(**options).fit(rows, sample_weight=weights)
        self._column_scaler = StandardScaler(**options).fit(columns, sample_weight=weights)
        data = _Rows(
            self._feature_scaler.transform(rows),
            self._column_scaler.transform(columns),
            np.ones(len(rows)) if weights is None else weights / weights.mean(),
        )
        with own_errors(
            f"The 'random_state' parameter of {type(self).__name__} must be an int, a RandomState or None. "
        ):
            seed = check_random_state(self.random_state).randint(2**31 - 1)
        device = self._checked_device()
        with _seeded(seed):
            module = self._network(rows.shape[1], columns.shape[1], data)
            net = self._trainer(module, self._criterion(layout, weights), seed, device)
            with own_errors():
                net.fit(data, None)
        # skorch's own account of every batch would outgrow the network.
        self.history_ = [{name: value for name, value in epoch.items() if name != "batches"} for epoch in net.history]
        # Without the optimiser's memory and the accelerator, so that it is small and can be pickled.
        trained = net.accelerator.unwrap_model(net.module_) if self.multi_process else net.module_
        self.net_ = _Net(trained.to(device), **self._common(device)).initialize()

    def predict(self, X: Any) -> Floats:
        """Predict the columns, (n,) or (n, k), like the y of fit."""
        check_fitted(self, "net_")
        data = _Rows(self._feature_scaler.transform(self._rows(X, fitting=False)))
        with _seeded(0):  # a loader draws a number even where nothing is random
            table = self.net_.predict(data).astype(np.float64)
        values = self._column_scaler.inverse_transform(table)
        return values[:, 0] if self._target_is_flat else values

    def _check_parameters(self) -> None:
        for name in ("batch_size", "max_epochs"):
            check_number(self, name, getattr(self, name), above=1, closed="left", whole=True)
        if self.early_stopping is not None:
            check_number(self, "early_stopping", self.early_stopping, above=1, closed="left", whole=True)
        check_number(self, "learning_rate", self.learning_rate, above=0)
        check_number(self, "weight_decay", self.weight_decay, above=0, closed="left")
        check_number(self, "validation_fraction", self.validation_fraction, above=0, below=1)
        if self.schedule is not None:
            check_option(self, "schedule", self.schedule, ["cosine", "plateau"])
        if isinstance(self.loss, str):
            check_option(self, "loss", self.loss, ["auto", "squared"])
        elif not callable(self.loss):
            raise bad_parameter(self, "loss", "'auto', 'squared' or a loss", self.loss)
        if self.module is not None and not callable(self.module):
            raise bad_parameter(self, "module", "a Module, or a callable that makes one", self.module)
        for name in ("standardize", "mixed_precision", "multi_process", "progress"):
            check_flag(self, name, getattr(self, name))

    def _checked_device(self) -> torch.device:
        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, TypeError, AssertionError):
            raise bad_parameter(self, "device", "'auto' or a device that torch finds here", self.device) from None

    def _rows(self, X: Any, *, fitting: bool) -> Floats:
        rows = check_rows(self, X, fitting=fitting, allow_nan=False)
        with own_errors():  # of a table, text in a column
            return check_array(rows, dtype="float64")

    def _network(self, n_features: int, n_outputs: int, data: _Rows) -> nn.Module:
        if self.module is None:
            return MLP(n_features, n_outputs, hidden_sizes=self.hidden_sizes)
        module = (
            copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module(n_features, n_outputs)
        )
        if not isinstance(module, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise bad_parameter(self, "module", "a callable that returns a Module", module)
        x = data.parts[0][:2]
        try:
            with torch.no_grad():
                output: Any = module.eval()(x.to(next(module.parameters(), x).device))
            got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        except RuntimeError as error:
            output, got = None, f"the error {error}"
        if getattr(output, "shape", None) != (len(x), n_outputs):
            raise InvalidInputError(
                f"Expected a module that makes a tensor of shape (n, {n_outputs}) of {n_features} features, one number "
                f"per column. Got {got} for n = {len(x)}. Pass a callable that is told both numbers: "
                "TorchRegressor(lambda n_features, n_outputs: …)."
            )
        return module

    def _criterion(self, layout: Mapping[str, Any] | None, weights: Floats | None) -> _RowLoss:
        loss: Any = self.loss
        if loss == "auto":
            loss = "squared" if layout is None else HCMLoss()
        if loss == "squared":
            loss = nn.MSELoss(reduction="none")
        on_sphere = isinstance(loss, HCMLoss)
        if on_sphere and layout is None:
            raise InvalidInputError(
                "HCMLoss must know which columns are direction, magnitude and mean. Got columns without a layout. "
                "Fit the TorchRegressor through HCMRegressor or HCMClassifier, or choose loss='squared'."
            )
        loss = copy.deepcopy(loss)
        if on_sphere and loss.preset is None:
            loss.reduction = "none"
        scaler: Any = self._column_scaler
        center = scaler.mean_ if self.standardize else np.zeros(scaler.n_features_in_)
        scale = scaler.scale_ if self.standardize else np.ones(scaler.n_features_in_)
        return _RowLoss(loss, layout if on_sphere else None, center, scale, weighted=weights is not None)

    def _common(self, device: torch.device | None) -> dict[str, Any]:
        return {
            "mixed_precision": self.mixed_precision,
            "device": None if device is None else str(device),
            "verbose": 0,
            "iterator_valid__batch_size": _EVALUATED_AT_ONCE * self.batch_size,
            "iterator_valid__collate_fn": _as_it_is,
        }

    def _trainer(self, module: nn.Module, criterion: _RowLoss, seed: int, device: torch.device) -> Any:
        options: dict[str, Any] = {
            "criterion": lambda: criterion,
            "optimizer": self.optimizer,
            "optimizer__weight_decay": self.weight_decay,
            "lr": self.learning_rate,
            "max_epochs": self.max_epochs,
            "batch_size": self.batch_size,
            "iterator_train__shuffle": True,
            "iterator_train__collate_fn": _as_it_is,
            "callbacks": self._callbacks(),
            "train_split": None,
        }
        if self.early_stopping is not None or self.schedule == "plateau":
            options["train_split"] = _dataset.ValidSplit(float(self.validation_fraction), random_state=seed)
        if not self.multi_process:
            return _Net(module, **self._common(device), **options)
        accelerator = _accelerator(device)
        if self.batch_size % accelerator.num_processes:
            multiple = f"a multiple of {accelerator.num_processes}, the number of processes"
            raise bad_parameter(self, "batch_size", multiple, self.batch_size)
        # skorch would unwrap the network before early stopping puts the best weights back, whose names are those of the
        # wrapped one; and it would print a table, verbose or not.
        quiet = {"callbacks__print_log__sink": _as_it_is}
        wrapping: dict[str, Any] = {"accelerator": accelerator, "unwrap_after_train": False, **quiet}
        return _SharedNet(module, **self._common(None), **options, **wrapping)

    def _callbacks(self) -> list[Any]:
        chosen: list[Any] = [("watch", _Watch()), *self.callbacks]
        if self.progress:
            chosen.append(("progress", _Progress()))
        if self.schedule == "cosine":
            policy = torch.optim.lr_scheduler.CosineAnnealingLR
            chosen.append(("schedule", _callbacks.LRScheduler(policy, T_max=self.max_epochs)))
        elif self.schedule == "plateau":
            policy = torch.optim.lr_scheduler.ReduceLROnPlateau
            chosen.append(("schedule", _callbacks.LRScheduler(policy, monitor="valid_loss")))
        if self.early_stopping is not None:
            early_stopping = _callbacks.EarlyStopping(patience=self.early_stopping, load_best=True)
            chosen.append(("early_stopping", early_stopping))
        return chosen


class _Rows(torch.utils.data.Dataset[Any]):
    """Arrays of equal length as (features, (the others)), a whole batch at a time; row by row would take ten times."""

    def __init__(self, *parts: Any) -> None:
        self.parts = [torch.as_tensor(part, dtype=torch.float32) for part in parts]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        features, *others = (part[indices] for part in self.parts)
        return features, tuple(others)


def _as_it_is(batch: Any) -> Any:
    return batch


class _RowLoss:
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


class _Net(_NeuralNetRegressor):
    """skorch's, in bfloat16 if asked."""

    def __init__(self, module: Any, *, mixed_precision: bool, **options: Any) -> None:
        super().__init__(module, **options)
        self.mixed_precision = mixed_precision

    def infer(self, x: Any, **options: Any) -> Tensor:
        device = next(self.module_.parameters()).device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bool(self.mixed_precision)):
            return super().infer(x, **options).float()


class _SharedNet(_hf.AccelerateMixin, _Net):
    """The same over several processes, which must agree on when to stop and so on the loss that they see."""

    def validation_step(self, batch: Any, **options: Any) -> dict[str, Any]:
        step = super().validation_step(batch, **options)
        return step | {"loss": self.accelerator.reduce(step["loss"], reduction="mean")}


def _accelerator(device: torch.device) -> Any:
    try:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration
    except ImportError:
        raise missing_extra("TorchRegressor(multi_process=True)", "accelerate", "torch") from None
    # One batch is split among the processes, so that their number does not change what is learned.
    loading = DataLoaderConfiguration(split_batches=True)
    return Accelerator(cpu=device.type == "cpu", dataloader_config=loading)


class _Watch(_callbacks.Callback):
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


class _Progress(_callbacks.Callback):
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
def _seeded(seed: int) -> Any:
    """Random numbers of our own, and the caller's as they were afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
