"""One module for all of it: a network, the rows that are read off it, and the head behind them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onsphere.torch.batches import Batch, to_numpy
from onsphere.torch.calibrate import CalibratedNetwork, find_head, find_linear, split_outputs
from onsphere.torch.dense import PixelReader
from onsphere.torch.features import LayerWatcher, as_rows, join_layers
from onsphere.torch.head import SphericalOutput

__all__ = ["FeatureReader", "NetworkModule", "OutputReader"]


class _PlainReader(nn.Module):
    """A reader of one tensor, as torch.export needs it."""

    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(x)


class _Reader(nn.Module):
    """From the inputs of a network to rows."""

    is_map = False

    def make_plain(self) -> nn.Module:
        """Return the same as a module of one tensor, on the CPU."""
        return _PlainReader(self.cpu()).eval()

    def read_rows(self, inputs: Any) -> NDArray[Any]:
        """Return the rows of an array of inputs, as an array."""
        with torch.no_grad():
            return to_numpy(self(torch.as_tensor(inputs)))


class FeatureReader(_Reader):
    """A copy of a network that returns the features (n, p) of some layers; see `features`."""

    def __init__(self, backbone: nn.Module, layer: str | Sequence[str] | None, pooling: str | None) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone).eval().requires_grad_(False)
        self.pooling = pooling
        self._watcher = LayerWatcher(self.backbone, layer)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return one row per input."""
        batch = Batch(named or inputs[0], None)
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
        self.is_map = isinstance(self.head, PixelReader)
        name = next(name for name, module in self.network.named_modules() if module is self.head)
        self._watcher = LayerWatcher(self.network, [*calibrated.layers, name])
        self._features: list[Tensor] = []
        self._size: tuple[int, ...] = ()
        find_linear(self.head).register_forward_pre_hook(self._keep_features)

    def _keep_features(self, _: nn.Module, args: tuple[Tensor]) -> None:
        self._features.append(args[0])

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return one row per input or pixel."""
        batch = Batch(named or inputs[0], None)
        *others, output = self._watcher.run(batch)
        outputs = cast(SphericalOutput, output)
        # Taken out again, so that torch.export finds the module as it was.
        blocks, columns = split_outputs(self.head, others, self._features.pop(), outputs, self.pooling, batch.mask)
        self._size = tuple(outputs.magnitude.shape[1:])
        return torch.cat([*blocks, *columns], dim=-1).flatten(0, -2)

    def fold(self, values: Tensor | None) -> Tensor | None:
        """Return values of pixels as maps (B, H, W) or (B, D, H, W), and all others as they are."""
        if values is None or not self.is_map:
            return values
        maps = values.unflatten(0, (-1, *self._size))
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
