"""calibrate: from a network with a spherical head, trained in any loop, to intervals, sets, novelty and decisions."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onsphere import persistence
from onsphere._internal.validation import Floats, check_number
from onsphere.assessment import Assessment
from onsphere.decision import Novelty, Rule
from onsphere.drift import DriftMonitor
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.models.frozen import OutputHead
from onsphere.sphere import OneHot
from onsphere.torch.attach import Attached
from onsphere.torch.batches import Batch, check_label_count, to_numpy
from onsphere.torch.dense import DenseHead, PixelReader
from onsphere.torch.features import as_rows, check_pooling, join_batches, run_layers
from onsphere.torch.head import SphereReader, SphericalOutput

__all__ = ["CalibratedNetwork", "calibrate", "find_head", "find_linear", "read_outputs", "split_outputs"]

# Pixels of each map that are fitted and calibrated on: neighbours tell little more.
_N_PIXELS = 256


class Rows(NamedTuple):
    """Rows of one batch: a table, the targets, the size (H, W) of maps, and the widths of the layers."""

    table: Floats
    targets: NDArray[Any] | None
    size: tuple[int, int] | None
    widths: tuple[int, ...]


class CalibratedNetwork:
    """A network with a spherical head, and what held-out rows say of it; made by `calibrate`.

    `assess`, `predict` and `predict_proba` take a batch (a tensor, or a mapping of named tensors) or a loader, and give
    maps for a network with a head for maps.

    Attributes
    ----------
    network : Module
    head : SphericalHead, DenseHead or attached model
        The head inside the network.
    model : OutputHead
        Noise, novelty, calibration and thresholds, as a model of rows like any other: `write_report`, `evaluate` and
        `DriftMonitor` take it, with `read_rows` of a loader as its rows.
    layers : tuple of str
        The layers that novelty is measured on, beside the features that the head reads.
    """

    def __init__(
        self, network: nn.Module, head: SphereReader, model: OutputHead, layers: tuple[str, ...], pooling: str | None
    ) -> None:
        self.network = network
        self.head = head
        self.model = model
        self.layers = layers
        self.pooling = pooling

    def __repr__(self) -> str:
        """Return the kind of the network and of its head, and whether it has a threshold."""
        layers = f", layer={[*self.layers]}" if self.layers else ""
        decides = "a threshold" if self.model.threshold_ is not None else "no threshold"
        n_rows = len(self.model._require_calibration("repr"))
        return (
            f"CalibratedNetwork({type(self.network).__name__} with {type(self.head).__name__}{layers}, "
            f"{n_rows} calibration rows, {decides})"
        )

    def read_rows(self, loader: Iterable[Any]) -> tuple[Floats, Any]:
        """Return the rows (n, p) that `model` sees, and the targets of a loader; all pixels, for maps.

        Parameters
        ----------
        loader : iterable of batches, as in `onsphere.torch.features`
        """
        parts = list(self._read(loader, n_pixels=None))
        return join_batches("rows", [part.table for part in parts]), join_batches(
            "targets", [part.targets for part in parts]
        )

    def assess(self, inputs: Any, *, coverage: float = 0.9) -> Assessment:
        """Return everything there is to say about each row or pixel, from one pass; see `CalibratedModel.assess`.

        Parameters
        ----------
        inputs : Tensor, mapping of tensors, loader or Dataset
        coverage : float in (0, 1), default 0.9
            Of the intervals or sets.
        """
        parts = [(self.model.assess(part.table, coverage=coverage), part.size) for part in self._read(inputs, None)]
        results = [result if size is None else _make_maps(result, size) for result, size in parts]
        return results[0] if len(results) == 1 else _join_assessments(results)

    def predict(self, inputs: Any) -> NDArray[Any]:
        """Return the value or the class of each row or pixel."""
        return self.assess(inputs).value

    def predict_proba(self, inputs: Any) -> Floats:
        """Return class probabilities, (n, C) or (B, C, H, W), scaled by the held-out rows."""
        probabilities = self.assess(inputs).probabilities
        if probabilities is None:
            raise InvalidInputError(
                "predict_proba needs a network for classes. Got one for numbers. Use assess, which has intervals."
            )
        return probabilities

    def set_threshold(self, rule: Rule | None = None, *, novelty: Novelty | None = None) -> Self:
        """Decide from now on by this rule; see `CalibratedModel.set_threshold`."""
        self.model.set_threshold(rule, novelty=novelty)
        return self

    def monitor(self, **options: Any) -> DriftMonitor:
        """Return a `DriftMonitor` of this network; it takes the assessments of new rows. Options are its own.

        The pixels of a map depend on each other, so pass one of each map, drawn at random:
        ``monitor.update(result.uncertainty[maps, i, j], missed=result.missed[maps, i, j])``.
        """
        return DriftMonitor(self.model, **options)

    def save(self, path: str | Path, *, summary: dict[str, Any] | None = None) -> Path:
        """Write everything but the code of the network to one file, its weights included; `load` reads it."""
        from safetensors.torch import save

        state = {name: values.detach().cpu().contiguous().clone() for name, values in self.network.state_dict().items()}
        self.model.network_state_ = save(state)  # type: ignore[reportAttributeAccessIssue]
        self.model.network_layers_ = [*self.layers]  # type: ignore[reportAttributeAccessIssue]
        self.model.network_pooling_ = self.pooling  # type: ignore[reportAttributeAccessIssue]
        return self.model.save(path, summary=summary)

    @classmethod
    def load(cls, path: str | Path, network: nn.Module) -> CalibratedNetwork:
        """Return what `save` wrote, around a network of the same make, whose weights are replaced.

        Parameters
        ----------
        path : path
        network : Module
            Built as the one that was saved, with its head.
        """
        from safetensors.torch import load

        model = persistence.load(path)
        if not isinstance(model, OutputHead) or not hasattr(model, "network_state_"):
            raise InvalidInputError(
                f"Expected the file of a CalibratedNetwork. Got {path}, which holds a {type(model).__name__}. Load it "
                "with onsphere.load."
            )
        state: Any = model
        head = find_head(network)
        try:
            network.load_state_dict(load(state.network_state_))
        except RuntimeError as error:
            raise InvalidInputError(
                f"Expected a network like the one that was saved. Got one that its weights do not fit: {error}. Build "
                "it as before."
            ) from None
        return cls(network, head, model, tuple(state.network_layers_), state.network_pooling_)

    def _read(self, loader: Any, n_pixels: int | None) -> Generator[Rows]:
        return read_outputs(self.network, self.head, loader, self.layers, self.pooling, n_pixels)


def calibrate(
    network: nn.Module,
    loader: Iterable[Any],
    *,
    layer: str | Sequence[str] = (),
    pooling: str | None = None,
    frames: str | Collection[str] = "all",
    share: float = 0.5,
    random_state: int = 0,
    progress: bool = False,
) -> CalibratedNetwork:
    """Calibrate a network that was trained in a loop of one's own, on rows that it was not trained on.

    A share of the rows teaches how large the errors are among similar rows (noise) and what features look like
    (novelty); the others are calibrated on, so that intervals and sets keep their promise. For maps the rows are
    pixels, 256 of each map: those of one map depend on each other, so the promise holds on average over maps only.

    Parameters
    ----------
    network : Module
        With one SphericalHead or DenseHead inside, or made by `attach`. It is not changed.
    loader : iterable of batches (inputs, targets), as in `onsphere.torch.features`
        Rows whose target is NaN, and pixels whose label is none of the classes, are left out.
    layer : str or sequence of str, optional
        Names of further layers to measure novelty on, beside the features that the head reads: early ones still see
        what the last one has learned to ignore.
    pooling : {"cls", "mean"}, optional
        How the tokens of these layers become one row.
    frames : "all", "target", or a tuple of "target", "error" and "input", default "all"
    share : float in (0, 1), default 0.5
        Of the rows (of the maps, for pixels) that teach noise and novelty.
    random_state : int, default 0
        Draws them.
    progress : bool, default False
        Whether to show a bar that counts batches.

    Returns
    -------
    CalibratedNetwork

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from onsphere import AcceptShare
    >>> from onsphere.torch import HCMLoss, SphericalHead, calibrate
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(400, 2), torch.arange(400) % 2
    >>> x[:, 0] += 3 * y
    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), SphericalHead(8, 2, embedding="onehot"))
    >>> loss, optimizer = HCMLoss(network[-1]), torch.optim.Adam(network.parameters(), lr=0.05)
    >>> for _ in range(40):
    ...     optimizer.zero_grad()
    ...     loss(network(x[:200]), y[:200]).backward()
    ...     optimizer.step()
    >>> model = calibrate(network, [(x[200:], y[200:])]).set_threshold(AcceptShare(0.95))
    >>> result = model.assess(torch.tensor([[3.0, 0.0], [90.0, 90.0]]))
    >>> result.value.tolist(), result.accepted.tolist()
    ([1, 1], [True, False])
    """
    head = find_head(network)
    check_number("calibrate", "share", share, above=0, below=1)
    check_pooling("calibrate", pooling)
    layers = tuple(layer) if isinstance(layer, list | tuple) else (cast(str, layer),)
    parts = list(read_outputs(network, head, loader, layers, pooling, _N_PIXELS, progress=progress))
    widths = parts[0].widths
    tables, targets = (
        join_batches("rows", [part.table for part in parts]),
        join_batches("targets", [part.targets for part in parts]),
    )
    if targets is None:
        raise InvalidInputError("Expected a loader with targets to calibrate on. Got inputs alone. Yield both.")
    known = _find_known(head, targets)
    groups = np.concatenate(_number_samples(parts))[known]
    tables, targets = tables[known], targets[known]
    order = np.random.default_rng(random_state).permutation(np.unique(groups))
    teaches = np.isin(groups, order[: round(share * len(order))])
    if min(teaches.sum(), (~teaches).sum()) < 2:
        what = "map(s)" if isinstance(head, PixelReader) else "row(s)"
        raise InvalidInputError(
            f"Expected at least two rows to learn from and two to calibrate on. Got {len(order)} {what} with known "
            f"targets in all, and share={share:g}. Pass more, or change the share."
        )
    is_flat = not isinstance(head.embedding, OneHot) and targets.ndim == 1
    model = OutputHead(head.embedding, widths, is_flat=is_flat, frames=frames, random_state=random_state)
    model.fit(tables[teaches], targets[teaches]).calibrate(tables[~teaches], targets[~teaches])
    return CalibratedNetwork(network, head, model, layers, pooling)


def find_head(network: Any) -> SphereReader:
    """Return the one spherical head inside a network."""
    if not isinstance(network, nn.Module):
        raise InvalidTypeError(f"calibrate needs a torch.nn.Module. Got {type(network).__name__}.")
    found = [module for module in network.modules() if isinstance(module, SphereReader)]
    if len(found) != 1:
        raise InvalidInputError(
            f"Expected a network with one spherical head inside. Got {len(found)}. Put a SphericalHead or a DenseHead "
            "at its end, or attach one; for a network that stays as it is, fit a FrozenHead on its features."
        )
    if isinstance(found[0], DenseHead) and found[0].event == "image":
        raise InvalidInputError(
            "Expected a head with one sphere per row or pixel. Got a DenseHead with event='image', which has one for a "
            "whole map. Train it with event='pixel'."
        )
    return found[0]


def read_outputs(
    network: nn.Module,
    head: SphereReader,
    loader: Any,
    layers: Sequence[str],
    pooling: str | None,
    n_pixels: int | None,
    *,
    progress: bool = False,
) -> Generator[Rows]:
    """Yield the rows of each batch: layers, the features that the head reads, and its outputs."""
    name = next(name for name, module in network.named_modules() if module is head)
    seen: dict[str, Tensor] = {}
    handle = find_linear(head).register_forward_pre_hook(lambda _, args: seen.update(features=args[0]))
    try:
        for batch, outputs in run_layers(network, loader, layer=[*layers, name], device=None, progress=progress):
            *others, output = outputs
            yield _make_rows(head, batch, others, seen["features"], cast(SphericalOutput, output), pooling, n_pixels)
    finally:
        handle.remove()


def find_linear(head: SphereReader) -> nn.Module:
    """Return the layer that makes the outputs of a head; what it reads are the features."""
    return head.get_submodule(head.path if isinstance(head, Attached) else "linear")


def _make_rows(
    head: SphereReader,
    batch: Batch,
    others: list[Any],
    features: Tensor,
    output: SphericalOutput,
    pooling: str | None,
    n_pixels: int | None,
) -> Rows:
    targets = batch.labels
    if output.magnitude.dim() != (3 if isinstance(head, PixelReader) else 1):
        raise InvalidInputError(
            "Expected a head with one answer per input, or per pixel of maps. Got answers of shape "
            f"{tuple(output.magnitude.shape)}, as of a head for each token. Pool the tokens before the head."
        )
    blocks, columns = split_outputs(head, others, features, output, pooling, batch.mask)
    widths = tuple(block.shape[-1] for block in blocks)
    if not isinstance(head, PixelReader):
        table = _to_table(torch.cat([*blocks, *columns], dim=1))
        check_label_count(len(table), targets)
        return Rows(table, targets, None, widths)
    size = cast("tuple[int, int]", tuple(output.magnitude.shape[1:]))
    chosen = torch.arange(size[0] * size[1])
    if n_pixels is not None and len(chosen) > n_pixels:
        chosen = torch.linspace(0, len(chosen) - 1, n_pixels).long()
    table = torch.cat([part.flatten(1, 2)[:, chosen].flatten(0, 1) for part in (*blocks, *columns)], dim=1)
    if targets is not None:
        targets = _take_pixels(head, targets, tuple(output.magnitude.shape), chosen.numpy())
    return Rows(_to_table(table), targets, size, widths)


def _take_pixels(
    head: SphereReader, maps: NDArray[Any], shape: tuple[int, ...], chosen: NDArray[np.intp]
) -> NDArray[Any]:
    """Return the targets of some pixels of maps (B, H, W) or, for numbers, (B, D, H, W)."""
    is_class = isinstance(head.embedding, OneHot)
    last = np.moveaxis(maps, 1, 3) if maps.ndim == 4 and not is_class else maps
    if last.shape[:3] != shape or last.ndim > (3 if is_class else 4):
        several = "" if is_class else f" or (B, {head.out_features}, H, W)"
        raise InvalidInputError(
            f"Expected target maps (B, H, W){several} as large as the outputs, which have (B, H, W) = {shape}. Got "
            f"shape {maps.shape}. Bring the targets to this size."
        )
    return last.reshape(shape[0], -1, *last.shape[3:])[:, chosen].reshape(-1, *last.shape[3:])


def _to_table(rows: Tensor) -> Floats:
    table = to_numpy(rows).astype(np.float64)
    lost = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(lost):
        raise InvalidInputError(
            f"Expected finite features and outputs of the network. Got NaN or infinity in {len(lost)} of {len(table)} "
            f"row(s) of a batch, first in row {lost[0]}. Look for NaN in the inputs and in the weights of the network."
        )
    return table


def split_outputs(
    head: SphereReader,
    others: list[Any],
    features: Tensor,
    output: SphericalOutput,
    pooling: str | None,
    mask: Tensor | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the features of each layer, and the columns of the outputs, of each row (n, p) or pixel (B, H, W, p)."""
    columns = [output.direction]
    if not isinstance(head.embedding, OneHot):
        # The value itself, as a mean whether or not the head has one.
        value = SphereReader.decode(head, output)
        columns += [output.magnitude[..., None], (value - head.center) / head.scale]
    if not isinstance(head, PixelReader):
        return [as_rows(other, pooling, mask).to(features.dtype) for other in [*others, features]], columns
    size = cast("tuple[int, int]", tuple(output.magnitude.shape[1:]))
    maps = features.permute(0, 3, 1, 2) if isinstance(head, DenseHead) else features
    return [_resize(other, size).permute(0, 2, 3, 1) for other in [*others, maps]], columns


def _resize(maps: Any, size: tuple[int, int]) -> Tensor:
    if not (isinstance(maps, Tensor) and maps.dim() == 4):
        got = f"shape {tuple(maps.shape)}" if isinstance(maps, Tensor) else type(maps).__name__
        raise InvalidInputError(
            f"Expected layers of maps (B, C, H, W) beside a head for maps. Got {got}. Name other layers, with layer=."
        )
    return maps if tuple(maps.shape[2:]) == size else nn.functional.interpolate(maps, size=size)


def _find_known(head: SphereReader, targets: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which targets are known: no NaN, and for pixels one of the classes."""
    if isinstance(head.embedding, OneHot):
        classes = np.asarray(head.embedding.classes_)
        return np.isin(targets, classes) if isinstance(head, PixelReader) else np.ones(len(targets), dtype=bool)
    if targets.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"Expected targets that are numbers. Got {targets.dtype}. Convert them, or train a head for classes."
        )
    return np.asarray(~np.isnan(targets.reshape(len(targets), -1)).any(axis=1))


def _number_samples(parts: list[Rows]) -> list[NDArray[np.intp]]:
    """Return the number of the sample, or of the map, that each row belongs to."""
    numbers: list[NDArray[np.intp]] = []
    start = 0
    for part in parts:
        n_each = 1 if part.size is None else min(part.size[0] * part.size[1], _N_PIXELS)
        numbers.append(start + np.arange(len(part.table)) // n_each)
        start += len(part.table) // n_each
    return numbers


def _make_maps(result: Assessment, size: tuple[int, int]) -> Assessment:
    """Return the fields of pixels as maps (B, H, W), or (B, D, H, W) if they have several columns."""

    def fold(values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return values
        maps = values.reshape(-1, *size, *values.shape[1:])
        return maps if maps.ndim == 3 else np.moveaxis(maps, 3, 1)

    return replace(result, **{field.name: fold(getattr(result, field.name)) for field in fields(result)})


def _join_assessments(results: list[Assessment]) -> Assessment:
    def join(values: list[Any]) -> Any:
        return join_batches("answers", values) if isinstance(values[0], np.ndarray) else values[0]

    return Assessment(
        **{field.name: join([getattr(each, field.name) for each in results]) for field in fields(Assessment)}
    )
