"""Read the batches of a loader, whatever form they have: tensors, pairs with labels, or mappings of named tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from onsphere.errors import InvalidInputError, InvalidTypeError

__all__ = ["Batch", "check_label_count", "open_loader", "read_batch", "read_inputs", "read_pairs", "to_numpy"]

# Names under which a mapping holds its labels.
_LABELS = ("labels", "label")

# Of a Dataset.
_ROWS_AT_ONCE = 256


class Batch(NamedTuple):
    """Inputs of a network, and the labels beside them.

    Attributes
    ----------
    inputs : Tensor, or dict of str to Tensor
    labels : array, or None
    """

    inputs: Tensor | dict[str, Tensor]
    labels: NDArray[Any] | None

    @property
    def mask(self) -> Tensor | None:
        """Marks of the tokens that are words, (n, T); the others fill up short texts."""
        return self.inputs.get("attention_mask") if isinstance(self.inputs, dict) else None

    def describe(self) -> str:
        """Return shape and type of the inputs, in words."""
        named = self.inputs if isinstance(self.inputs, dict) else {"inputs": self.inputs}
        return ", ".join(f"{name} of shape {tuple(each.shape)} and {each.dtype}" for name, each in named.items())

    def to(self, device: torch.device) -> Batch:
        """Return the same with its inputs on a device."""
        if isinstance(self.inputs, Tensor):
            return Batch(self.inputs.to(device), self.labels)
        return Batch({name: values.to(device) for name, values in self.inputs.items()}, self.labels)

    def pass_to(self, network: Callable[..., Any]) -> Any:
        """Return what a network makes of the inputs; named ones are passed by name."""
        return network(**self.inputs) if isinstance(self.inputs, dict) else network(self.inputs)


def open_loader(given: Any) -> Iterable[Any]:
    """Return an iterable of batches: a loader as it is, a Dataset in batches, inputs alone as the only batch.

    Examples
    --------
    >>> import torch
    >>> [batch.shape for batch in open_loader(torch.zeros(3, 2))]
    [torch.Size([3, 2])]
    """
    if isinstance(given, Tensor | Mapping):
        return [given]
    if isinstance(given, Dataset):
        return DataLoader(given, batch_size=_ROWS_AT_ONCE)
    if isinstance(given, tuple) and any(isinstance(each, Tensor) for each in given):
        raise InvalidInputError(
            f"Expected a loader, an iterable of batches. Got a tuple of {len(given)}, which is one batch. Pass a list "
            "of it, [(inputs, labels)], or a DataLoader."
        )
    if not hasattr(given, "__iter__") and not hasattr(given, "__getitem__"):
        raise InvalidTypeError(f"Expected a loader, an iterable of batches. Got {type(given).__name__}.")
    return given


def read_batch(batch: Any) -> Batch:
    """Take a batch apart: inputs alone, (inputs,), (inputs, labels), or a mapping that may hold labels too.

    Examples
    --------
    >>> import torch
    >>> batch = read_batch({"input_ids": torch.zeros(2, 5), "labels": torch.arange(2)})
    >>> list(batch.inputs), batch.labels.tolist()
    (['input_ids'], [0, 1])
    >>> read_batch(torch.zeros(2, 5)).labels is None
    True
    """
    inputs, labels = batch, None
    if isinstance(batch, list | tuple):
        if len(batch) not in (1, 2):
            raise _make_error(f"{len(batch)} element(s)")
        inputs, labels = batch if len(batch) == 2 else (batch[0], None)
    if isinstance(inputs, Mapping):
        named = dict(inputs)
        found = [named.pop(name) for name in _LABELS if name in named]
        labels = labels if labels is not None or not found else found[0]
        others = [f"{type(values).__name__} under {name!r}" for name, values in named.items() if not _is_tensor(values)]
        if others or not named:
            raise _make_error(", ".join(others) or "a mapping without inputs")
        return Batch(named, _read_labels(labels))
    if not isinstance(inputs, Tensor):
        raise _make_error(f"{type(inputs).__name__} as inputs")
    return Batch(inputs, _read_labels(labels))


def _is_tensor(values: Any) -> bool:
    return isinstance(values, Tensor)


def _make_error(got: str) -> InvalidInputError:
    return InvalidInputError(
        f"Expected batches (inputs, labels) or inputs alone, where inputs are a tensor or a mapping of names to "
        f"tensors. Got {got}. Let the loader yield these; a network of several tensors takes them by name."
    )


def _read_labels(given: Any) -> NDArray[Any] | None:
    if given is None:
        return None
    labels = to_numpy(given) if isinstance(given, Tensor) else np.asarray(given)
    if labels.ndim == 0:
        raise InvalidInputError(
            f"Expected one label for each row of a batch. Got {given!r}. Yield labels of shape (n,) or (n, D)."
        )
    return labels


def check_label_count(n_rows: int, labels: NDArray[Any] | None) -> None:
    """Check that a batch has one label for each row."""
    if labels is not None and len(labels) != n_rows:
        raise InvalidInputError(
            f"Expected one label for each row of a batch. Got {n_rows} rows and {len(labels)} labels. Check what the "
            "loader yields, and that the layer sees one row per input."
        )


def to_numpy(values: Tensor) -> NDArray[Any]:
    """Convert to numpy, half precision to single: numpy does not know bfloat16."""
    kept = values.detach().cpu()
    return (kept.float() if kept.dtype in (torch.float16, torch.bfloat16) else kept).numpy()


def read_pairs(data: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all inputs and all targets of a Dataset of rows, or of a DataLoader of batches of them, as arrays.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> X, y = read_pairs(TensorDataset(torch.zeros(3, 2), torch.arange(3.0)))
    >>> X.shape, y.tolist()
    ((3, 2), [0.0, 1.0, 2.0])
    """
    if not isinstance(data, Dataset | DataLoader):
        raise InvalidInputError(
            f"Expected a target y, or a Dataset or DataLoader of pairs (x, y). Got {type(data).__name__} alone. Pass y."
        )
    batches = [read_batch(batch) for batch in open_loader(data)]
    labels = [batch.labels for batch in batches if batch.labels is not None]
    if len(labels) < len(batches) or not batches:
        raise InvalidInputError(
            "Expected pairs (x, y) of tensors from the Dataset or DataLoader. Got inputs without targets, or nothing "
            "at all. Yield both, and check drop_last."
        )
    return _join_inputs(batches), np.concatenate(labels)


def read_inputs(data: Dataset[Any] | DataLoader[Any]) -> NDArray[Any]:
    """Return all inputs of a Dataset of rows, or of a DataLoader of batches of them, as an array."""
    return _join_inputs([read_batch(batch) for batch in open_loader(data)])


def _join_inputs(batches: list[Batch]) -> NDArray[Any]:
    inputs = [to_numpy(batch.inputs) for batch in batches if isinstance(batch.inputs, Tensor)]
    if len(inputs) < len(batches) or not batches:
        raise InvalidInputError(
            "Expected one tensor of rows in each batch of the Dataset or DataLoader. Got named inputs, or no batch at "
            "all. Yield tensors, and check drop_last."
        )
    return np.concatenate(inputs)
