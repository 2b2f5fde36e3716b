"""Read the features of a network that stays as it is, batch by batch or all at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.torch.running import find_device, use_eval_mode

__all__ = ["feature_batches", "features"]

Features = NDArray[np.floating[Any]]


def features(
    backbone: nn.Module,
    loader: Iterable[Any],
    *,
    layer: str | Sequence[str] | None = None,
    device: str | torch.device | None = None,
) -> tuple[Features, NDArray[Any]]:
    """Return features and labels of all rows, ready for `FrozenHead.fit`.

    Parameters
    ----------
    backbone : Module
        Not changed: it runs in evaluation mode without gradients, and every layer then gets its own mode back.
    loader : iterable of (inputs, labels)
        A DataLoader, or any iterable of batches.
    layer : str or list of str, optional
        Name of the layer, as in `named_modules()`, whose output to take; the outputs of several stand side by side, in
        the order of the list (then give their widths to the head: `FrozenHead(layers=...)`). By default the output of
        the network's method `features` or, without one, the input of the linear layer that runs last. Maps (n, C, H, W)
        are averaged over space.
    device : str or device, optional
        Where to run; the network is moved there. By default, where it is.

    Returns
    -------
    features : array of shape (n, p)
    labels : array of shape (n,) or (n, D)

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> loader = [(torch.zeros(4, 8), torch.arange(4)), (torch.ones(2, 8), torch.arange(2))]
    >>> X, y = features(network, loader)
    >>> X.shape, y.tolist()
    ((6, 5), [0, 1, 2, 3, 0, 1])
    >>> features(network, loader, layer=["1", "2"])[0].shape
    (6, 8)
    """
    batches = list(feature_batches(backbone, loader, layer=layer, device=device))
    return _join("features", [rows for rows, _ in batches]), _join("labels", [labels for _, labels in batches])


def feature_batches(
    backbone: nn.Module,
    loader: Iterable[Any],
    *,
    layer: str | Sequence[str] | None = None,
    device: str | torch.device | None = None,
) -> Generator[tuple[Features, NDArray[Any]]]:
    """Yield features and labels batch by batch, for `FrozenHead.partial_fit` where all rows do not fit in memory.

    Parameters are those of `features`.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    >>> [X.shape for X, _ in feature_batches(network, [(torch.zeros(2, 3, 8, 8), torch.zeros(2))], layer="1")]
    [(2, 4)]
    """
    if not isinstance(backbone, nn.Module):  # type: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"features needs a torch.nn.Module. Got {type(backbone).__name__}.")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise InvalidTypeError(f"features needs a loader, an iterable of batches. Got {type(loader).__name__}.")
    if device is not None:
        backbone.to(find_device("features", device))
    first = next(backbone.parameters(), None)
    place = torch.device(device or "cpu") if first is None else first.device
    n_batches = 0
    with use_eval_mode(backbone), _watch_layer(backbone, layer) as run:
        for batch in loader:
            n_batches += 1
            inputs, labels = _unpack_batch(batch)
            # Not around the yield, where it would switch off the caller's gradients.
            with torch.no_grad():
                rows = _join_layers([_as_rows(output) for output in run(inputs.to(place))])
            if len(rows) != len(labels):
                raise InvalidInputError(
                    f"Expected one label for each row of a batch. Got {len(rows)} rows of features and {len(labels)} "
                    "labels. Check what the loader yields, and that the layer sees one row per input."
                )
            yield _to_numpy(rows), labels
    if n_batches == 0:
        raise InvalidInputError(
            "Expected a loader with at least one batch. Got none. A generator can be used up: pass a DataLoader or a "
            "list, and check drop_last."
        )


def _join(what: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        got = " and ".join(str(("n", *shape)).replace("'", "") for shape in shapes)
        raise InvalidInputError(
            f"Expected {what} of one shape in all batches. Got {got}. Check what the loader yields: collate all "
            "batches alike, and bring all inputs to one size."
        )
    return np.concatenate(parts)


def _unpack_batch(batch: Any) -> tuple[Tensor, NDArray[Any]]:
    if not (isinstance(batch, list | tuple) and len(batch) == 2):
        got = f"{len(batch)} element(s)" if isinstance(batch, list | tuple) else type(batch).__name__
        raise InvalidInputError(
            f"Expected batches (inputs, labels) with a tensor of inputs. Got {got}. A head is fitted on labels: yield "
            "them with the inputs."
        )
    inputs, given = batch
    if not isinstance(inputs, Tensor):
        raise InvalidInputError(
            f"Expected batches (inputs, labels) with a tensor of inputs. Got {type(inputs).__name__} as inputs. "
            "Wrap the network in a module that takes one tensor, and let the loader yield it."
        )
    labels = _to_numpy(given) if isinstance(given, Tensor) else np.asarray(given)
    if labels.ndim == 0:
        raise InvalidInputError(
            f"Expected one label for each row of a batch. Got {given!r}. Yield labels of shape (n,) or (n, D)."
        )
    return inputs, labels


def _to_numpy(values: Tensor) -> NDArray[Any]:
    """Convert to numpy, half precision to single: numpy does not know bfloat16."""
    kept = values.detach().cpu()
    return (kept.float() if kept.dtype in (torch.float16, torch.bfloat16) else kept).numpy()


@contextmanager
def _watch_layer(network: nn.Module, layer: str | Sequence[str] | None) -> Generator[Callable[[Tensor], list[Any]]]:
    """Give a function from inputs to the features that `features` describes, one entry per layer."""
    own: Any = getattr(network, "features", None)
    if layer is None and callable(own) and not isinstance(own, nn.Module):
        yield lambda inputs: [own(inputs)]
        return
    seen: dict[str, Any] = {}  # only the last of each is needed, and the others would take memory
    if layer is None:
        names = ["linear"]
        missing = {"linear": f"a method 'features' or a linear layer that runs. {type(network).__name__} has neither"}
        handles = [
            module.register_forward_pre_hook(
                lambda _, args, kwargs: seen.update(linear=args[0] if args else kwargs["input"]), with_kwargs=True
            )
            for module in network.modules()
            if isinstance(module, nn.Linear)
        ]
    else:
        names: list[Any] = list(layer) if isinstance(layer, list | tuple) and layer else [layer]
        modules = {name: _find_layer(network, name) for name in names}
        missing = {name: f"a forward pass through {name!r}. {type(network).__name__} does not use it" for name in names}
        handles = [
            module.register_forward_hook(lambda _, args, output, name=name: seen.update({name: output}))
            for name, module in modules.items()
        ]

    def run(inputs: Tensor) -> list[Any]:
        seen.clear()
        network(inputs)
        for name in names:
            if name not in seen:
                raise InvalidInputError(f"Expected {missing[name]}. Name the layer whose output to take, with layer=.")
        return [seen[name] for name in names]

    try:
        yield run
    finally:
        for handle in handles:
            handle.remove()


def _join_layers(blocks: list[Tensor]) -> Tensor:
    n_rows = sorted({len(block) for block in blocks})
    if len(n_rows) > 1:
        raise InvalidInputError(
            f"Expected layers with one row per input. Got {' and '.join(map(str, n_rows))} rows of the same batch. "
            "Name layers that see each input once, with layer=."
        )
    return torch.cat(blocks, dim=1)


def _find_layer(network: nn.Module, layer: str) -> nn.Module:
    modules = dict(network.named_modules())
    if not (isinstance(layer, str) and layer in modules):  # type: ignore[reportUnnecessaryIsInstance]
        raise InvalidInputError(
            f"Expected the name of a layer of {type(network).__name__}. Got {layer!r}. "
            f"It has {', '.join(repr(name) for name in list(modules)[1:20])}."
        )
    return modules[layer]


def _as_rows(output: Any) -> Tensor:
    rows = output[0] if isinstance(output, list | tuple) and output else output
    if isinstance(rows, Tensor) and rows.ndim == 4:
        rows = rows.mean(dim=(2, 3))
    if not (isinstance(rows, Tensor) and rows.ndim == 2):
        got = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        raise InvalidInputError(
            f"Expected features of shape (n, p) or (n, C, H, W). Got {got}. Name a layer whose output has one row per "
            "input, with layer=."
        )
    return rows
