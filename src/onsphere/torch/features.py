"""Read the features of a network that stays as it is, batch by batch or all at once."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import header_data_from_array_1_0, write_array_header_1_0
from numpy.typing import NDArray
from torch import Tensor, nn

from onsphere._internal.atomic_files import write_atomically
from onsphere._internal.validation import check_option
from onsphere.errors import InvalidInputError, InvalidTypeError, OnsphereError
from onsphere.torch.batches import Batch, check_label_count, open_loader, read_batch, to_numpy
from onsphere.torch.running import find_device, use_eval_mode

__all__ = [
    "LayerWatcher",
    "as_rows",
    "check_pooling",
    "explain_errors",
    "feature_batches",
    "features",
    "join_batches",
    "join_layers",
    "run_layers",
]

Features = NDArray[np.floating[Any]]


def features(
    backbone: nn.Module,
    loader: Iterable[Any],
    *,
    layer: str | Sequence[str] | None = None,
    pooling: str | None = None,
    device: str | torch.device | None = None,
    path: str | Path | None = None,
    progress: bool = False,
) -> tuple[Features, Any]:
    """Return features and labels of all rows, ready for `FrozenHead.fit`.

    Parameters
    ----------
    backbone : Module
        Not changed: it runs in evaluation mode without gradients, and every layer then gets its own mode back.
    loader : iterable of batches, or Dataset
        A DataLoader, or any iterable. A batch is (inputs, labels), inputs alone, or a mapping of named tensors as
        Hugging Face's tokenizers and collators make them, with the labels under "labels" or beside it.
    layer : str or list of str, optional
        Name of the layer, as in `named_modules()`, whose output to take ("" is the whole network); the outputs of
        several stand side by side, in the order of the list (then give their widths to the head:
        `FrozenHead(layers=...)`). By default the output of the network's method `features` or, without one, the input
        of the linear layer that runs last. Maps (n, C, H, W) are averaged over space.
    pooling : {"cls", "mean"}, optional
        How the tokens of a layer with outputs (n, T, p) become one row: the first, or the mean of those that the
        batch's `attention_mask` keeps.
    device : str or device, optional
        Where to run; the network is moved there. By default, where it is.
    path : path, optional
        Write the features to this .npy file as they come, and return them memory-mapped, so that they need not fit in
        memory; then add them to a head in slices, with `FrozenHead.partial_fit`.
    progress : bool, default False
        Whether to show a bar that counts batches.

    Returns
    -------
    features : array of shape (n, p)
    labels : array of shape (n,) or (n, D), or None for a loader without labels

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
    batches = feature_batches(backbone, loader, layer=layer, pooling=pooling, device=device, progress=progress)
    if path is not None:
        return _write_rows(batches, Path(path))
    every = list(batches)
    return join_batches("features", [rows for rows, _ in every]), join_batches("labels", [each for _, each in every])


def feature_batches(
    backbone: nn.Module,
    loader: Iterable[Any],
    *,
    layer: str | Sequence[str] | None = None,
    pooling: str | None = None,
    device: str | torch.device | None = None,
    progress: bool = False,
) -> Generator[tuple[Features, Any]]:
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
    check_pooling("features", pooling)
    for batch, outputs in run_layers(backbone, loader, layer=layer, device=device, progress=progress):
        rows = join_layers([as_rows(output, pooling, batch.mask) for output in outputs])
        check_label_count(len(rows), batch.labels)
        yield to_numpy(rows), batch.labels


def run_layers(
    backbone: nn.Module,
    loader: Iterable[Any],
    *,
    layer: str | Sequence[str] | None,
    device: str | torch.device | None,
    progress: bool = False,
) -> Generator[tuple[Batch, list[Any]]]:
    """Yield each batch and the outputs of these layers as they are, one entry per layer."""
    if not isinstance(backbone, nn.Module):  # type: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"features needs a torch.nn.Module. Got {type(backbone).__name__}.")
    loader = open_loader(loader)
    if device is not None:
        backbone.to(find_device("features", device))
    first = next(backbone.parameters(), None)
    place = torch.device(device or "cpu") if first is None else first.device
    if progress:
        from tqdm.auto import tqdm

        loader = tqdm(loader, unit="batch")
    n_batches = 0
    with use_eval_mode(backbone), closing(LayerWatcher(backbone, layer)) as watcher:
        for given in loader:
            n_batches += 1
            batch = read_batch(given).to(place)
            # Not around the yield, where it would switch off the caller's gradients.
            with torch.no_grad(), explain_errors(backbone, batch):
                outputs = watcher.run(batch)
            yield batch, outputs
    if n_batches == 0:
        raise InvalidInputError(
            "Expected a loader with at least one batch. Got none. A generator can be used up: pass a DataLoader or a "
            "list, and check drop_last."
        )


@contextmanager
def explain_errors(network: nn.Module, batch: Batch) -> Generator[None]:
    """Turn what a network raises for inputs that do not fit into an error that describes them."""
    try:
        yield
    except (OnsphereError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise InvalidInputError(
            f"Expected batches that {type(network).__name__} takes. Got {batch.describe()}, for which it "
            f"raised {type(error).__name__}: {error}. Pass inputs like those that it was trained on, in their type."
        ) from error


def join_batches(what: str, parts: Sequence[NDArray[Any] | None]) -> Any:
    """Return all rows of all batches in one array; None if no batch has any."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    shapes = sorted({part.shape[1:] for part in given})
    if len(shapes) > 1 or len(given) < len(parts):
        names = [str(("n", *shape)).replace("'", "") for shape in shapes] + ["none"] * (len(given) < len(parts))
        raise InvalidInputError(
            f"Expected {what} of one shape in all batches. Got {' and '.join(names)}. Check what the loader yields: "
            "collate all batches alike, and bring all inputs to one size."
        )
    return np.concatenate(given)


def _write_rows(batches: Iterable[tuple[Features, Any]], path: Path) -> tuple[Features, Any]:
    """Write features to a .npy file as they come, and return them memory-mapped, and the labels."""
    labels: list[Any] = []
    n_rows, empty = 0, None
    with write_atomically(path) as part, part.open("wb") as file:
        for rows, more in batches:
            if empty is None:
                empty = rows[:0]
                _write_header(file, empty, 0)
            join_batches("features", [empty, rows[:0]])  # raises an error for another shape
            np.ascontiguousarray(rows, dtype=empty.dtype).tofile(file)
            labels.append(more)
            n_rows += len(rows)
        file.seek(0)
        _write_header(file, empty, n_rows)
    return np.load(path, mmap_mode="r"), join_batches("labels", labels)


def _write_header(file: Any, empty: Any, n_rows: int) -> None:
    """Write the header of a .npy file; numpy leaves room for the number of rows to grow."""
    write_array_header_1_0(file, header_data_from_array_1_0(empty) | {"shape": (n_rows, *empty.shape[1:])})


class LayerWatcher:
    """Watches what layers of a network put out while it runs, until it is closed."""

    def __init__(self, network: nn.Module, layer: str | Sequence[str] | None) -> None:
        self.network = network
        own: Any = getattr(network, "features", None)
        self._own = own if layer is None and callable(own) and not isinstance(own, nn.Module) else None
        self._seen: dict[str, Any] = {}
        self._handles: list[Any] = []
        kind = type(network).__name__
        if self._own is not None:
            return
        if layer is None:
            self._missing = {"linear": f"a method 'features' or a linear layer that runs. {kind} has neither"}
            self._handles = [
                module.register_forward_pre_hook(self._keep_input, with_kwargs=True)
                for module in network.modules()
                if isinstance(module, nn.Linear)
            ]
            return
        names: list[Any] = list(layer) if isinstance(layer, list | tuple) and layer else [layer]
        modules = {name: _find_layer(network, name) for name in names}
        self._missing = {name: f"a forward pass through {name!r}. {kind} does not use it" for name in names}
        # No lambda, so that a network with its watcher can be copied and pickled.
        self._handles = [
            module.register_forward_hook(partial(self._keep_output, name)) for name, module in modules.items()
        ]

    def _keep_output(self, name: str, _: nn.Module, args: Any, output: Any) -> None:
        self._seen[name] = output

    def _keep_input(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self._seen["linear"] = args[0] if args else kwargs["input"]

    def run(self, batch: Batch) -> list[Any]:
        """Return the features that `features` describes, one entry per layer."""
        if self._own is not None:
            return [batch.pass_to(self._own)]
        self._seen.clear()
        batch.pass_to(self.network)
        for name, missing in self._missing.items():
            if name not in self._seen:
                raise InvalidInputError(f"Expected {missing}. Name the layer whose output to take, with layer=.")
        outputs = [self._seen[name] for name in self._missing]
        self._seen.clear()
        return outputs

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()


def join_layers(blocks: list[Tensor]) -> Tensor:
    """Return the rows of several layers side by side."""
    # No set of lengths: while a graph is traced they are symbols.
    if any(block.shape[0] != blocks[0].shape[0] for block in blocks):
        n_rows = sorted({len(block) for block in blocks})
        raise InvalidInputError(
            f"Expected layers with one row per input. Got {' and '.join(map(str, n_rows))} rows of the same batch. "
            "Name layers that see each input once, with layer=."
        )
    return torch.cat(blocks, dim=1)


def _find_layer(network: nn.Module, layer: str) -> nn.Module:
    modules = dict(network.named_modules())
    if not (isinstance(layer, str) and layer in modules):  # type: ignore[reportUnnecessaryIsInstance]
        near = difflib.get_close_matches(str(layer), modules, n=3)
        shown = ", ".join(map(repr, near or list(modules)[1:20]))
        raise InvalidInputError(
            f"Expected the name of a layer of {type(network).__name__}. Got {layer!r}. "
            f"{'Close to it are' if near else 'It has'} {shown}."
        )
    return modules[layer]


def check_pooling(owner: str, pooling: Any) -> None:
    """Check a way to make one row of the tokens of a text."""
    if pooling is not None:
        check_option(owner, "pooling", pooling, ["cls", "mean"])


def as_rows(output: Any, pooling: str | None, mask: Tensor | None) -> Tensor:
    """Return one row per input: maps averaged over space, tokens pooled as asked."""
    rows = output
    if isinstance(output, Mapping):  # Hugging Face's outputs
        rows = next((output[name] for name in ("last_hidden_state", "logits") if name in output), output)
    elif isinstance(output, list | tuple) and output:
        rows = output[0]
    if isinstance(rows, Tensor) and rows.ndim == 4:
        rows = rows.mean(dim=(2, 3))
    if isinstance(rows, Tensor) and rows.ndim == 3 and pooling is not None:
        return _pool_tokens(rows, pooling, mask)
    if not (isinstance(rows, Tensor) and rows.ndim == 2):
        got = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        raise InvalidInputError(
            f"Expected features of shape (n, p), (n, C, H, W) or, with pooling=, (n, T, p). Got {got}. Name a layer "
            "whose output has one row per input, with layer=, or pool tokens with pooling='cls' or 'mean'."
        )
    return rows


def _pool_tokens(tokens: Tensor, pooling: str, mask: Tensor | None) -> Tensor:
    if pooling == "cls":
        return tokens[:, 0]
    if mask is None:
        return tokens.mean(dim=1)
    if mask.shape != tokens.shape[:2]:
        raise InvalidInputError(
            f"Expected tokens of shape {tuple(mask.shape)}, as the attention_mask has. Got {tuple(tokens.shape[:2])}. "
            "Name a layer with one output per token, with layer=, or take pooling='cls'."
        )
    kept = mask[..., None].to(tokens.dtype)
    return (tokens * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1.0)
