"""One module for all of it: a network, the rows that are read off it, and the head behind them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onsphere.errors import InvalidInputError
from onsphere.torch.batches import Batch, read_batch, to_numpy
from onsphere.torch.calibrate import CalibratedNetwork, find_head, find_linear, split_outputs
from onsphere.torch.dense import PixelReader
from onsphere.torch.features import LayerWatcher, as_rows, explain_errors, join_layers
from onsphere.torch.head import SphericalOutput

__all__ = ["FeatureReader", "NetworkModule", "OutputReader", "PlainReader"]


class PlainReader(nn.Module):
    """A reader of tensors without names, in single precision and on the CPU, as a graph is made of it.

    Attributes
    ----------
    inputs : dict of str to array
        What it was made for: the inputs by name, numbers in single precision. One without a name is "X".
    """

    def __init__(self, reader: _Reader, inputs: Any) -> None:
        super().__init__()
        self.reader = copy.deepcopy(reader).cpu().float()
        self._is_named = isinstance(inputs, Mapping)
        given: Mapping[str, Any] = inputs if self._is_named else {"X": inputs}
        batch = read_batch({name: _to_tensor(each) for name, each in given.items()})  # leaves labels out
        self.inputs = {
            name: to_numpy(each.float() if each.is_floating_point() else each)
            for name, each in cast("dict[str, Tensor]", batch.inputs).items()
        }
        n_rows = {len(each) for each in self.inputs.values()}
        if len(n_rows) != 1 or 0 in n_rows:
            raise InvalidInputError(
                f"Expected inputs of the network with one row or more, equally many under each name. Got "
                f"{' and '.join(map(str, sorted(n_rows)))}. Pass some that it has not seen."
            )

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return the rows that the head sees."""
        if not self._is_named:
            return self.reader(*tensors)
        return self.reader(**dict(zip(self.inputs, tensors, strict=True)))

    def read_rows(self) -> NDArray[Any]:
        """Return the rows that the head sees of `inputs`, as an array."""
        tensors = [torch.from_numpy(each) for each in self.inputs.values()]
        batch = Batch(dict(zip(self.inputs, tensors, strict=True)), None)
        with torch.no_grad(), explain_errors(self.reader.network, batch):
            return to_numpy(self(*tensors))


def _to_tensor(values: Any) -> Tensor:
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            f"Expected inputs of the network as tensors or arrays of numbers. Got {type(values).__name__} ({error}). "
            "Pass one batch, not the loader."
        ) from None


class _Reader(nn.Module):
    """From the inputs of a network to rows."""

    network: nn.Module
    map_size: tuple[int, ...] = ()  # (H, W) of the last maps; none for rows

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: nothing here is trained, whatever becomes of the module around it."""
        return super().train(False)


def _read_inputs(inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> Batch:
    if len(inputs) + bool(named) != 1:
        raise InvalidInputError(
            f"Expected one tensor, or all inputs by name. Got {len(inputs)} without a name and {len(named)} with one. "
            "Pass them as the network's arguments are named: module(input_ids=..., attention_mask=...)."
        )
    return Batch(named or inputs[0], None)


class FeatureReader(_Reader):
    """A copy of a network that returns the features (n, p) of some layers; see `features`."""

    def __init__(self, backbone: nn.Module, layer: str | Sequence[str] | None, pooling: str | None) -> None:
        super().__init__()
        self.network = copy.deepcopy(backbone).eval().requires_grad_(False)
        self.pooling = pooling
        self._watcher = LayerWatcher(self.network, layer)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return one row per input."""
        batch = _read_inputs(inputs, named)
        return join_layers([as_rows(output, self.pooling, batch.mask) for output in self._watcher.run(batch)])

    def fold(self, values: Tensor | None) -> Tensor | None:
        """Return values as they are, one per input."""
        return values


class OutputReader(_Reader):
    """A copy of a calibrated network that returns the rows that its `model` sees."""

    def __init__(self, calibrated: CalibratedNetwork) -> None:
        super().__init__()
        self.network = copy.deepcopy(calibrated.network).eval().requires_grad_(False)
        self.head = find_head(self.network)
        self.pooling = calibrated.pooling
        self._is_map = isinstance(self.head, PixelReader)
        name = next(name for name, module in self.network.named_modules() if module is self.head)
        self._watcher = LayerWatcher(self.network, [*calibrated.layers, name])
        self._features: list[Tensor] = []
        find_linear(self.head).register_forward_pre_hook(self._keep_features)

    def _keep_features(self, _: nn.Module, args: tuple[Tensor]) -> None:
        self._features.append(args[0])

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return one row per input or pixel."""
        batch = _read_inputs(inputs, named)
        *others, output = self._watcher.run(batch)
        outputs = cast(SphericalOutput, output)
        # Taken out again, so that torch.export finds the module as it was.
        blocks, columns = split_outputs(self.head, others, self._features.pop(), outputs, self.pooling, batch.mask)
        self.map_size = tuple(outputs.magnitude.shape[1:])
        return torch.cat([*blocks, *columns], dim=-1).flatten(0, -2)

    def fold(self, values: Tensor | None) -> Tensor | None:
        """Return values of pixels as maps (B, H, W) or (B, D, H, W), and all others as they are."""
        if values is None or not self._is_map:
            return values
        maps = values.unflatten(0, (-1, *self.map_size))
        return maps if maps.dim() == 3 else maps.movedim(3, 1)


class NetworkModule(nn.Module):
    """A network and the head behind it, with novelty, calibration and threshold; made by `to_torch`.

    Takes what the network takes, and returns a `FrozenOutput`.

    Attributes
    ----------
    reader : Module
        From inputs to the rows that the head sees.
    head : FrozenModule
    """

    def __init__(self, reader: FeatureReader | OutputReader, head: nn.Module) -> None:
        super().__init__()
        self.reader = reader
        self.head = head

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """Return value, uncertainty and all else that the head has to say of each input or pixel."""
        rows = self.reader(*inputs, **named)
        output: Any = self.head(rows)
        return type(output)(*(self.reader.fold(part) for part in output))
