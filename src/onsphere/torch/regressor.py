"""TorchRegressor: a network as an ordinary scikit-learn regressor, and so as a backbone. skorch runs the training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_flag,
    check_number,
    check_option,
    check_regression_target,
    check_rows,
    check_same_length,
    check_sample_weight,
    make_random_state,
    parameter_error,
    restore_on_error,
    wrap_errors,
)
from onsphere.errors import InvalidInputError
from onsphere.torch.batches import read_inputs, read_pairs, to_numpy
from onsphere.torch.loss import HCMLoss
from onsphere.torch.networks import MLP
from onsphere.torch.running import build_module, find_device, use_seed
from onsphere.torch.training import (
    Net,
    RowLoss,
    Rows,
    SharedNet,
    ValidSplit,
    check_callbacks,
    check_finite,
    check_weights,
    keep_batch,
    make_accelerator,
    make_callbacks,
    pack_optimizer,
    predefined_split,
    restore_optimizer,
    wrap_training_errors,
)

__all__ = ["TorchRegressor"]

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
    dropout : float in [0, 1), default 0
        Of the MLP: the share of activations dropped after each hidden layer while it learns.
    loss : {"auto", "squared"}, HCMLoss or a loss of torch, default "auto"
        "squared" is the mean squared error of the columns; `HCMLoss` weighs direction, magnitude and mean as the
        paper does, and needs an HCMRegressor (or HCMClassifier) around it that says which columns are which. "auto"
        is HCMLoss() there and "squared" elsewhere. A loss of torch, called with (prediction, target) in standardised
        columns, must have reduction="none" where rows are weighted. Its attribute `outputs_per_column` can ask for
        several outputs of the network for each column, and `standardizes=False` for columns as they are.
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
        Share of rows kept from training for "plateau" and `early_stopping`, unless `fit` gets an `eval_set`. Without
        these, all rows are trained on.
    warm_start : bool, default False
        Whether `fit` goes on from the network and the optimiser that the last `fit` or `partial_fit` left, instead of
        training a new one. Features and columns stay standardised as they were at first.
    callbacks : sequence of skorch callbacks, default ()
        For everything else: other schedules, clipped gradients, checkpoints, loggers.
    standardize : {True, False, "inputs"}, default True
        Whether features and columns are centred and scaled to a standard deviation of 1 before they are learned.
        "inputs" does so with the features only: the network's outputs are the columns themselves (direction, magnitude,
        targets), as in the paper. Targets far from 0 or with a large spread are then learned more slowly, but off the
        training rows the length of the direction moves more.
    device : str, default "auto"
        "auto" is "cuda" where there is one, else "cpu".
    mixed_precision : bool, default False
        Whether the network runs in bfloat16 where torch considers that safe; its weights stay as they are.
    multi_process : bool, default False
        Whether to train through accelerate: of the processes that `accelerate launch script.py` starts, each takes its
        share of every batch, and all end with the same weights.
    progress : bool, default False
        Whether to show a bar that counts the epochs.
    random_state : int, RandomState or None
        Seeds the weights, the order of rows and the split. On a CPU, the same seed gives the same network.

    Attributes
    ----------
    net_ : skorch.NeuralNetRegressor
        Of the trained network; `net_.module_` is the network itself, for features and columns standardised as
        `standardize` says.
    history_ : list of dict
        Losses and duration of each epoch, earlier fits included where the training went on from them.
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
    _optimizer_state: dict[str, Any] | None = None  # files of older versions have none
    history_: list[dict[str, Any]]

    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        *,
        hidden_sizes: Sequence[int] = (200, 100, 50),
        dropout: float = 0.0,
        loss: str | Callable[[Any, Any], Tensor] = "auto",
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        batch_size: int = 64,
        max_epochs: int = 200,
        schedule: str | None = None,
        early_stopping: int | None = None,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        callbacks: Sequence[Any] = (),
        standardize: bool | str = True,
        device: str = "auto",
        mixed_precision: bool = False,
        multi_process: bool = False,
        progress: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.module = module
        self.hidden_sizes = hidden_sizes
        self.dropout = dropout
        self.loss = loss
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.schedule = schedule
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
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

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        eval_set: Any = None,
        column_layout: Mapping[str, Any] | None = None,
    ) -> Self:
        """Train a new network, or with `warm_start` the one there is.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p), array of shape (n, ...), or a Dataset or DataLoader of pairs (x, y)
            Rows of several axes, such as pictures (n, C, H, W), reach the network in their shape, standardised along
            their first axis (each channel); `module` is called with its length C as n_features. What a Dataset holds
            is read into memory; where it does not fit, pass one part after another to `partial_fit`.
        y : array of shape (n,) or (n, k), left out for a Dataset or DataLoader
        sample_weight : array of shape (n,), optional
            Of each row in the loss.
        eval_set : (X, y), a list of one such pair, Dataset or DataLoader, optional
            Rows of one's own for "plateau", `early_stopping` and `history_`; all of X is trained on then.
        column_layout : mapping, optional
            Which columns are which, from HCMRegressor: the arguments of `onsphere.models.backbone.split_columns`.
        """
        with restore_on_error(self):
            self._check_parameters()
            goes_on = self.warm_start and hasattr(self, "net_")
            data, weighted = self._read_data(X, y, sample_weight, goes_on=goes_on)
            validation = None if eval_set is None else self._read_eval_set(eval_set)
            self._train(data, self._make_loss(column_layout, weighted=weighted), validation, goes_on=goes_on)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these rows, and go on from the network and the optimiser that there are.

        The first rows settle how features and columns are standardised. `schedule` and `early_stopping` are for `fit`.

        Parameters
        ----------
        X, y, sample_weight : as in `fit`

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(400, 2))
        >>> network = TorchRegressor(hidden_sizes=(20,), learning_rate=0.01, random_state=0)
        >>> for _ in range(30):
        ...     for part in np.split(np.arange(400), 4):
        ...         network = network.partial_fit(X[part], X[part, 0])
        >>> len(network.history_), bool(network.score(X, X[:, 0]) > 0.9)
        (120, True)
        """
        with restore_on_error(self):
            self._check_parameters()
            goes_on = hasattr(self, "net_")
            data, weighted = self._read_data(X, y, sample_weight, goes_on=goes_on)
            self._train(data, self._make_loss(None, weighted=weighted), None, goes_on=goes_on, is_part=True)
        return self

    def _read_data(self, X: Any, y: Any, sample_weight: Any, *, goes_on: bool) -> tuple[Rows, bool]:
        """Return standardised rows, columns and weights, and whether weights were given; settle the scales, if new."""
        if y is not None and isinstance(X, Dataset | DataLoader):
            raise InvalidInputError(
                f"Expected a {type(X).__name__} of pairs (x, y) alone, whose targets are taken. Got a y beside it. "
                "Leave y out, or pass X and y as arrays."
            )
        given, values = read_pairs(X) if y is None and not hasattr(X, "shape") else (X, y)
        rows = self._check_rows(given, fitting=not goes_on)
        target = check_regression_target(self, values)
        check_same_length(rows, target)
        weights = check_sample_weight(sample_weight, rows)
        columns = target[:, None] if target.ndim == 1 else target
        if not goes_on:
            self._target_is_flat = target.ndim == 1
            self._feature_scaler = _fit_feature_scaler(rows, self._row_shape, weights, active=bool(self.standardize))
            scales_columns = not _is_inputs_only(self.standardize) and getattr(self.loss, "standardizes", True)
            self._column_scaler: Any = _make_scaler(bool(self.standardize and scales_columns)).fit(
                columns, sample_weight=weights
            )
        elif (self._target_is_flat, self._column_scaler.n_features_in_) != (target.ndim == 1, columns.shape[1]):
            raise InvalidInputError(
                f"TorchRegressor goes on with a network for {self._column_scaler.n_features_in_} column(s). Got a "
                f"target of shape {target.shape}. Pass targets of the same shape, or train a new network."
            )
        data = Rows(
            self._feature_scaler.transform(rows).reshape(len(rows), *self._get_row_shape()),
            self._column_scaler.transform(columns),
            np.ones(len(rows)) if weights is None else weights / weights.mean(),
        )
        check_finite(data)
        return data, weights is not None

    def _read_eval_set(self, eval_set: Any) -> Rows:
        pairs: Any = [(eval_set, None)] if isinstance(eval_set, Dataset | DataLoader) else eval_set
        if isinstance(pairs, tuple) and len(pairs) == 2:
            pairs = [pairs]
        if not (isinstance(pairs, Sequence) and len(pairs) == 1 and len(pairs[0]) == 2):
            raise parameter_error(
                "fit", "eval_set", "a pair (X, y), a list of one, a Dataset or a DataLoader", eval_set
            )
        rows, target = pairs[0]
        return self._read_data(rows, target, None, goes_on=True)[0]

    def _train(
        self, data: Rows, loss: RowLoss, validation: Rows | None, *, goes_on: bool, is_part: bool = False
    ) -> None:
        before = self.history_ if goes_on else []
        seed = make_random_state(self, self.random_state).randint(2**31 - 1)
        device = find_device(self, self.device)
        with use_seed(seed + len(before)):
            if goes_on:
                self._check_unchanged()
                module = copy.deepcopy(self.net_.module_)
            else:
                # A module is kept in net_ whole; what makes another one is kept to build it again from a file.
                self._architecture = None if isinstance(self.module, nn.Module) else self._choose_architecture()
                module = self._build_network(data.parts[0][:2], self._choose_architecture())
            net = self._make_net(module, loss, seed, device, validation, len(before), is_part=is_part)
            with wrap_training_errors():
                net.initialize()
                if goes_on:
                    restore_optimizer(net.optimizer_, self._optimizer_state)
                net.partial_fit(data, None)
            check_weights(net.module_, self.learning_rate)
        # skorch's record of every batch would be larger than the network.
        history = [{name: value for name, value in epoch.items() if name != "batches"} for epoch in net.history]
        self.history_ = before + history
        self._optimizer_state = pack_optimizer(net.optimizer_) if self.warm_start or is_part else None
        self._keep_network(net.unwrap_module(), device)

    def _keep_network(self, module: nn.Module, device: torch.device) -> None:
        """Keep the network without optimiser and accelerator, so that it is small and can be pickled."""
        self.net_ = Net(module.to(device), **self._net_options(device)).initialize()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is kept in a file: only the weights, where the network can be built again."""
        inherited: Any = super().__getstate__()
        state: dict[str, Any] = dict(inherited)
        if "net_" in state and not isinstance(self.module, nn.Module):
            from safetensors.torch import save

            tensors = self.net_.module_.state_dict().items()
            state["net_"] = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if isinstance(getattr(self, "net_", None), bytes):
            from safetensors.torch import load

            with use_seed(0):
                # Files of earlier versions have the parameters alone.
                architecture = getattr(self, "_architecture", None) or self._choose_architecture()
                module = self._build_network(torch.zeros(2, *self._get_row_shape()), architecture)
            module.load_state_dict(load(self.net_))
            self._keep_network(module, find_device(self, self.device))

    def predict(self, X: Any) -> Floats:
        """Predict the columns, (n,) or (n, k), like the y of fit."""
        if self._outputs_per_column() != 1:
            raise InvalidInputError(
                f"The network has {self._outputs_per_column()} outputs per column, because its loss needs them; they "
                "are not predictions. Use predict_outputs, or the model that chose the loss."
            )
        values = self.unstandardize(self.predict_outputs(X))
        return values[:, 0] if self._target_is_flat else values

    def predict_outputs(self, X: Any, *, n_samples: int | None = None, seed: int = 0) -> Floats:
        """Return the outputs of the network itself: numbers for columns standardised as `standardize` says.

        Parameters
        ----------
        X : like that of fit; the targets of a Dataset or DataLoader are left aside
        n_samples : int, optional
            Number of passes in which what is random in training (dropout, weights that are drawn) stays random. Each
            pass draws once for all rows, so that the answer for a row does not depend on the other rows. By default
            one pass in which nothing is random.
        seed : int, default 0
            Of these passes.

        Returns
        -------
        array of shape (n, k), or (n_samples, n, k)
        """
        check_number("predict_outputs", "seed", seed, above=0, below=2**32, closed="left", whole=True)
        data = Rows(self.standardize_rows(X))
        with use_seed(seed):  # a loader draws a number even where nothing is random
            if n_samples is None:
                return self._run_network(data)
            check_number("predict_outputs", "n_samples", n_samples, above=1, closed="left", whole=True)
            draws: list[Floats] = []
            for draw_seed in np.random.RandomState(seed).randint(2**31 - 1, size=n_samples):
                with self.net_.use_one_draw(int(draw_seed)):
                    draws.append(self._run_network(data))
            return np.stack(draws)

    def _run_network(self, data: Rows) -> Floats:
        outputs = self.net_.predict(data).astype(np.float64)
        if not np.isfinite(outputs).all():
            n_bad = int(np.sum(~np.isfinite(outputs).all(axis=1)))
            raise InvalidInputError(
                f"Expected finite predictions of the network. Got NaN or infinity in {n_bad} of {len(outputs)} row(s). "
                "Check these rows for features far beyond those trained on."
            )
        return outputs

    def unstandardize(self, columns: Floats, *, centered: bool = True) -> Floats:
        """Return standardised columns (..., k) in their own unit; centered=False scales spreads without moving them."""
        scaler = self._column_scaler
        scaled = columns if scaler.scale_ is None else columns * scaler.scale_
        return scaled + scaler.mean_ if centered and scaler.with_mean else scaled

    def standardize_rows(self, X: Any) -> Tensor:
        """Return the rows as `net_.module_` sees them."""
        check_fitted(self, "net_")
        rows = self._feature_scaler.transform(self._check_rows(X, fitting=False))
        return torch.as_tensor(rows.reshape(len(rows), *self._get_row_shape()), dtype=torch.float32)

    def _get_row_shape(self) -> tuple[int, ...]:
        """Return the shape of a row; networks of older files take flat ones."""
        return getattr(self, "_row_shape", (self._feature_scaler.n_features_in_,))

    def _outputs_per_column(self) -> int:
        return int(getattr(self.loss, "outputs_per_column", 1))

    def _check_parameters(self) -> None:
        for name in ("batch_size", "max_epochs"):
            check_number(self, name, getattr(self, name), above=1, closed="left", whole=True)
        if self.early_stopping is not None:
            check_number(self, "early_stopping", self.early_stopping, above=1, closed="left", whole=True)
        check_number(self, "dropout", self.dropout, above=0, below=1, closed="left")
        check_number(self, "learning_rate", self.learning_rate, above=0)
        check_number(self, "weight_decay", self.weight_decay, above=0, closed="left")
        check_number(self, "validation_fraction", self.validation_fraction, above=0, below=1)
        if self.schedule is not None:
            check_option(self, "schedule", self.schedule, ["cosine", "plateau"])
        if isinstance(self.loss, str):
            check_option(self, "loss", self.loss, ["auto", "squared"])
        elif isinstance(self.loss, type) or not callable(self.loss):
            raise parameter_error(self, "loss", "'auto', 'squared' or an instance such as nn.L1Loss()", self.loss)
        if not callable(self.optimizer):
            raise parameter_error(self, "optimizer", "a class of optimizers such as torch.optim.Adam", self.optimizer)
        check_callbacks(self, self.callbacks)
        if self.module is not None and not callable(self.module):
            raise parameter_error(self, "module", "a Module, or a callable that makes one", self.module)
        if not isinstance(self.standardize, bool | np.bool_) and not _is_inputs_only(self.standardize):
            raise parameter_error(self, "standardize", "True, False or 'inputs'", self.standardize)
        for name in ("warm_start", "mixed_precision", "multi_process", "progress"):
            check_flag(self, name, getattr(self, name))

    def _check_rows(self, X: Any, *, fitting: bool) -> Floats:
        """Return rows of one axis each; the shape of those in fit is remembered, and others must have it."""
        given: Any = read_inputs(X) if isinstance(X, Dataset | DataLoader) else X
        shape = tuple(int(length) for length in getattr(given, "shape", ())[1:])
        flat = given
        if len(shape) > 1:
            flat = (to_numpy(given) if isinstance(given, Tensor) else np.asarray(given)).reshape(len(given), -1)
        if not fitting and shape != self._get_row_shape() and max(len(shape), len(self._get_row_shape())) > 1:
            raise InvalidInputError(
                f"TorchRegressor was fitted on rows of shape {self._get_row_shape()}. Got {shape}. Pass rows of the "
                "same shape."
            )
        rows = check_rows(self, flat, fitting=fitting, allow_nan=False)
        with wrap_errors():  # a table can have text in a column
            checked = check_array(rows, dtype="float64")
        if fitting:
            self._row_shape = shape if len(shape) > 1 else (checked.shape[1],)
        return checked

    def _choose_architecture(self) -> dict[str, Any]:
        """Return the parameters that say which network is built."""
        if self.module is not None:
            return {"module": self.module}
        return {"hidden_sizes": self.hidden_sizes, "dropout": self.dropout}

    def _check_unchanged(self) -> None:
        """Check that the network which training goes on with is the one that the parameters ask for."""
        before, now = getattr(self, "_architecture", None), self._choose_architecture()
        if before is not None and before != now:
            raise InvalidInputError(
                f"TorchRegressor goes on with a network that was built with {before}. Got {now}. Set these back, or "
                "train a new network with warm_start=False."
            )

    def _build_network(self, some_rows: Tensor, architecture: dict[str, Any]) -> nn.Module:
        n_features, n_outputs = some_rows.shape[1], self._outputs_per_column() * self._column_scaler.n_features_in_
        if "module" in architecture:
            return build_module(architecture["module"], n_features, n_outputs, some_rows)
        return MLP(n_features, n_outputs, **architecture)

    def _make_loss(self, layout: Mapping[str, Any] | None, *, weighted: bool) -> RowLoss:
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
        n_columns = self._column_scaler.n_features_in_
        center = self.unstandardize(np.zeros(n_columns))
        scale = self.unstandardize(np.ones(n_columns), centered=False)
        return RowLoss(loss, layout if on_sphere else None, center, scale, weighted=weighted)

    def _net_options(self, device: torch.device | None) -> dict[str, Any]:
        return {
            "mixed_precision": self.mixed_precision,
            "device": None if device is None else str(device),
            "verbose": 0,
            # skorch prints its table, whatever verbose says, under accelerate and where another library has replaced
            # `print`, as Ray does.
            "callbacks__print_log__sink": keep_batch,
            "iterator_valid__batch_size": _EVALUATED_AT_ONCE * self.batch_size,
            "iterator_valid__collate_fn": keep_batch,
        }

    def _make_net(
        self,
        module: nn.Module,
        loss: RowLoss,
        seed: int,
        device: torch.device,
        validation: Rows | None,
        n_epochs_before: int,
        *,
        is_part: bool,
    ) -> Net:
        split = None
        if validation is not None:
            split = predefined_split(validation)
        elif not is_part and (self.early_stopping is not None or self.schedule == "plateau"):
            split = ValidSplit(float(self.validation_fraction), random_state=seed)
        options: dict[str, Any] = {
            "criterion": lambda: loss,
            "optimizer": self.optimizer,
            "optimizer__weight_decay": self.weight_decay,
            "lr": self.learning_rate,
            "max_epochs": 1 if is_part else self.max_epochs,
            "batch_size": self.batch_size,
            "iterator_train__shuffle": True,
            "iterator_train__collate_fn": keep_batch,
            "callbacks": make_callbacks(self, n_epochs_before, is_part=is_part),
            "train_split": split,
        }
        if not self.multi_process:
            return Net(module, **self._net_options(device), **options)
        accelerator = make_accelerator(device)
        if self.batch_size % accelerator.num_processes:
            multiple = f"a multiple of {accelerator.num_processes}, the number of processes"
            raise parameter_error(self, "batch_size", multiple, self.batch_size)
        # skorch would unwrap the network before early stopping restores the best weights, which carry the names of the
        # wrapped one.
        wrapping: dict[str, Any] = {"accelerator": accelerator, "unwrap_after_train": False}
        return SharedNet(module, **self._net_options(None), **options, **wrapping)


def _fit_feature_scaler(rows: Floats, shape: tuple[int, ...], weights: Floats | None, *, active: bool) -> Any:
    """Return a scaler of flat rows (n, p); rows of several axes have one centre and scale for each channel."""
    scaler = _make_scaler(active)
    if len(shape) == 1 or not active:
        return scaler.fit(rows, sample_weight=weights)
    n_each = int(np.prod(shape[1:]))
    pixels = rows.reshape(len(rows), shape[0], n_each).transpose(0, 2, 1).reshape(-1, shape[0])
    scaler.fit(pixels, sample_weight=None if weights is None else np.repeat(weights, n_each))
    scaler.mean_, scaler.var_, scaler.scale_ = (
        np.repeat(each, n_each) for each in (scaler.mean_, scaler.var_, scaler.scale_)
    )
    scaler.n_features_in_ = rows.shape[1]
    return scaler


def _make_scaler(active: bool) -> Any:
    return StandardScaler(with_mean=active, with_std=active)


def _is_inputs_only(standardize: Any) -> bool:
    return isinstance(standardize, str) and standardize == "inputs"
