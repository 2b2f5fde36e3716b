"""A spherical head for an existing model: in place of its last linear layer or 1×1 convolution, or after the model."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number
from onsphere.errors import InvalidInputError, InvalidTypeError, OnsphereWarning
from onsphere.sphere import OneHot, RegressionEmbedding
from onsphere.torch.dense import PixelReader, check_maps
from onsphere.torch.head import SphereReader, SphericalOutput, check_features

__all__ = ["Attached", "AttachedMap", "attach"]

# Layers that may follow the last linear one without changing its outputs.
_PASSING = (nn.Dropout, nn.Dropout2d, nn.Identity, nn.Flatten)


class _NewLayer(nn.Module):
    """A layer that `attach` has put into a model; a state that is saved without the head warns of it."""

    is_saved_with_head = False

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if not self.is_saved_with_head:
            warnings.warn(
                f"The state of a model is taken while attach has replaced its layer {prefix.rstrip('.')!r}: it holds "
                "the weights of the new layer, and neither those of the old one nor what the head knows of the target. "
                "Save the state of what attach returned, or undo() first.",
                OnsphereWarning,
                stacklevel=2,
            )
        super()._save_to_state_dict(destination, prefix, keep_vars)


class _NewLinear(_NewLayer, nn.Linear): ...


class _NewConvolution(_NewLayer, nn.Conv2d): ...


class Attached(SphereReader):
    """A model that returns direction, magnitude and mean; made by `attach`.

    Takes what the model takes and returns a `SphericalOutput`; `embed`, `decode`, `uncertainty` and `sigma` are those
    of `SphericalHead`.

    Attributes
    ----------
    model : Module
        The model, with the new layer inside.
    layer : str or None
        Name of the layer that was replaced; None where the model was wrapped.

    Examples
    --------
    >>> from torch import nn
    >>> isinstance(attach(nn.Linear(4, 1), 1), Attached)
    True
    """

    def __init__(
        self, model: nn.Module, n_outputs: int, *, layer: str | None, n_features: int | None, **options: Any
    ) -> None:
        super().__init__(n_outputs, **options)
        self.model = model
        self.layer = layer
        self._original: tuple[nn.Linear | nn.Conv2d, ...] = ()
        self._is_undone = False
        if layer is None:
            like = next(model.parameters(), self.center)
            new = self.linear = nn.Linear(cast(int, n_features), self.width, device=like.device, dtype=like.dtype)
        else:
            original = cast("nn.Linear | nn.Conv2d", self.get_submodule(self.path))
            # In a tuple, so that it is not part of the state and no optimiser finds it.
            self._original = (original,)
            new = _make_layer_like(original, self.width)
            self.set_submodule(self.path, new)
        # Targets follow the layer to its device, but not to half precision, in which they would lose digits.
        precision = torch.promote_types(new.weight.dtype, torch.float32)
        for name, buffer in list(self.named_buffers(recurse=False)):
            dtype = precision if buffer.is_floating_point() else None
            self.register_buffer(name, buffer.to(device=new.weight.device, dtype=dtype))

    @property
    def path(self) -> str:
        """Name of the new layer inside this module."""
        if self.layer is None:
            return "linear"
        return f"model.{self.layer}".rstrip(".")

    def forward(self, *args: Any, **kwargs: Any) -> SphericalOutput:
        """Run the model and read its outputs, or those of the layer after it."""
        if self.layer is None:
            features = _pick_tensor(self.model(*args, **kwargs))
            check_features(features, self.linear.in_features)
            return self.read(self.linear(features))
        if self._is_undone:
            raise InvalidInputError(
                f"Expected an attached model. Got one whose layer {self.layer or 'the model'!r} undo() has put back. "
                "Call attach again."
            )
        try:
            raw = _pick_tensor(self.model(*args, **kwargs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise self._explain_width(f"the error {error}") from error
        rows = self._to_rows(raw)
        if rows.shape[-1] != self.width:
            raise self._explain_width(f"{rows.shape[-1]} numbers per row")
        return self.read(rows)

    def _to_rows(self, raw: Tensor) -> Tensor:
        """Return the numbers of a row on the last axis."""
        return raw

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of model and head; see `torch.nn.Module.state_dict`."""
        with self._save_with_head():
            return super().state_dict(*args, **kwargs)

    @contextmanager
    def _save_with_head(self) -> Generator[None]:
        layer = None if self.layer is None or self._is_undone else cast(Any, self.get_submodule(self.path))
        if layer is None:
            yield
            return
        layer.is_saved_with_head = True
        try:
            yield
        finally:
            layer.is_saved_with_head = False

    def _explain_width(self, got: str) -> InvalidInputError:
        others = [name for name, module in self.model.named_modules() if _is_end(module) and name != self.layer]
        choice = repr(others[-1]) if others else ""
        return InvalidInputError(
            f"Expected {self.width} numbers per row from the model, since attach has replaced its layer "
            f"{self.layer or 'the model'!r}. Got {got}. If another layer runs after it, undo() and name that one with "
            f"layer={choice}; if none does, check the inputs."
        )

    def undo(self) -> nn.Module:
        """Put the layer back that was replaced, and return the model as it was."""
        for original in () if self._is_undone else self._original:
            weight = cast(nn.Linear, self.get_submodule(self.path)).weight
            self.set_submodule(self.path, original.to(weight.device, weight.dtype))
            self._is_undone = True
        return self.model

    def extra_repr(self) -> str:
        if self.layer is None:
            return f"{super().extra_repr()}, after the model"
        return f"{super().extra_repr()}, in place of {self.layer or 'the model'!r}: {self._original[0]!r}"


class AttachedMap(Attached, PixelReader):
    """A model that returns maps of direction, magnitude and mean; made by `attach` from one that ends in a convolution.

    `embed`, `decode`, `uncertainty` and `sigma` are those of `DenseHead`.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))
    >>> model = attach(network, 5, embedding="onehot")
    >>> model.decode(model(torch.zeros(2, 3, 6, 6))).shape
    torch.Size([2, 6, 6])
    """

    def _to_rows(self, raw: Tensor) -> Tensor:
        check_maps(raw.dim() == 4, self.width, "H, W", raw)
        return raw.permute(0, 2, 3, 1)


def attach(
    model: nn.Module,
    n_outputs: int,
    *,
    embedding: str | RegressionEmbedding | OneHot = "lift",
    layer: str | None = None,
    n_features: int | None = None,
    mean: bool = True,
    magnitude: str = "plain",
) -> Attached:
    """Give any classifier or regressor a spherical head in the place of its last linear layer.

    A model for maps (segmentation, depth) that ends in a 1×1 convolution gets one with a point near the sphere for
    every pixel.

    Parameters
    ----------
    model : Module
        It is changed in place; `undo` of the result changes it back. It may return a tensor or, like the models of
        Hugging Face, an object with `logits` (or `pooler_output`, where it is wrapped). Do not pass `labels` to these:
        they would compute a loss of their own from numbers that are not logits. The new layer must be the last thing
        that runs: remove a softmax inside `forward`, which `attach` cannot see.
    n_outputs : int
        Number of outputs D of the target, or of classes.
    embedding, mean, magnitude : as in `SphericalHead`
    layer : str, optional
        Name of the linear layer, or of the 1×1 convolution, to replace. By default the one that is defined last.
    n_features : int, optional
        For a backbone that returns features, their number: nothing is replaced, and a layer is added after it.

    Returns
    -------
    Attached

    Examples
    --------
    >>> import torch
    >>> from onsphere.torch import MLP, attach
    >>> model = attach(MLP(4, 10), 10, embedding="onehot")
    >>> model.layer
    'linear'
    >>> model(torch.zeros(2, 4)).direction.shape
    torch.Size([2, 10])
    >>> model.undo()(torch.zeros(2, 4)).shape
    torch.Size([2, 10])
    """
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"Expected a torch.nn.Module as model. Got {type(model).__name__}.")
    check_number("attach", "n_outputs", n_outputs, above=1, closed="left", whole=True)
    for name, module in model.named_modules():
        if isinstance(module, SphereReader):
            raise InvalidInputError(
                f"Expected a model without a spherical head. Got one with {_describe(name, module)}. "
                "Use it as it is, or undo() what was attached."
            )
        if isinstance(module, _NewLayer):
            raise InvalidInputError(
                f"Expected a model as it was before attach. Got one whose layer {name or 'the model'!r} attach has "
                "replaced already. Use what attach returned then, or undo() it first."
            )
    if n_features is not None:
        check_number("attach", "n_features", n_features, above=1, closed="left", whole=True)
        if layer is not None:
            raise InvalidInputError(
                "Expected layer or n_features. Got both. Replace a layer, or add one after the model."
            )
        found = None
    else:
        found = _find_last_linear(model) if layer is None else _check_named(model, layer)
        if isinstance(model.get_submodule(found), nn.LazyLinear):
            raise InvalidInputError(
                f"Expected a linear layer whose sizes are known. Got {_describe(found, model.get_submodule(found))}, "
                "which learns them from the first batch. Run the model on a batch before attach."
            )
    is_map = found is not None and isinstance(model.get_submodule(found), nn.Conv2d)
    return (AttachedMap if is_map else Attached)(
        model, n_outputs, layer=found, n_features=n_features, embedding=embedding, mean=mean, magnitude=magnitude
    )


def _make_layer_like(original: nn.Linear | nn.Conv2d, width: int) -> nn.Linear | nn.Conv2d:
    options: Any = {"device": original.weight.device, "dtype": original.weight.dtype}
    if isinstance(original, nn.Linear):
        return _NewLinear(original.in_features, width, **options)
    return _NewConvolution(original.in_channels, width, 1, **options)


def _is_end(module: nn.Module | None) -> bool:
    """Return whether a layer is linear in what it reads: a Linear, or a convolution of single pixels."""
    if not isinstance(module, nn.Conv2d):
        return isinstance(module, nn.Linear)
    plain = (module.kernel_size, module.stride, module.groups) == ((1, 1), (1, 1), 1)
    return plain and module.padding in ((0, 0), "same", "valid")


def _pick_tensor(result: Any) -> Tensor:
    for value in (result, getattr(result, "logits", None), getattr(result, "pooler_output", None)):
        if isinstance(value, Tensor):
            return value
    raise InvalidTypeError(
        "Expected a model that returns a tensor, or an object with 'logits' or 'pooler_output'. "
        f"Got {type(result).__name__}. Wrap the model in a module that picks the tensor."
    )


def _check_named(model: nn.Module, layer: str) -> str:
    found = dict(model.named_modules()).get(layer)
    if not _is_end(found):
        what = "no layer of that name" if found is None else type(found).__name__
        raise _explain_choice(model, f"Expected layer={layer!r} to name a Linear layer or a 1×1 Conv2d. Got {what}.")
    return layer


def _find_last_linear(model: nn.Module) -> str:
    """Go from each module to its last part, down to a linear layer; raise where that may not be the last to run."""
    path, module = "", model
    while not _is_end(module):
        parts = list(module.named_children())
        ends = [index for index, (_, part) in enumerate(parts) if any(True for _ in part.parameters())]
        if not ends:
            raise _explain_choice(model, f"Expected a last layer that is linear. Got {_describe(path, module)}.")
        name, part = parts[ends[-1]]
        for later, after in parts[ends[-1] + 1 :]:
            if not isinstance(after, _PASSING):
                got = _describe(_join(path, later), after)
                raise _explain_choice(model, f"Expected nothing after the last linear layer. Got {got}.")
        for other, sibling in parts[: ends[-1]]:
            if not isinstance(module, nn.Sequential) and _are_side_by_side(sibling, part):
                raise _explain_choice(
                    model,
                    f"Expected one last linear layer. Got two side by side, {_join(path, other)!r} and "
                    f"{_join(path, name)!r}.",
                )
        path, module = _join(path, name), part
    return path


def _are_side_by_side(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two linear layers read the same features, rather than one the outputs of the other."""
    return (
        isinstance(one, nn.Linear)
        and isinstance(other, nn.Linear)
        and one.in_features == other.in_features
        and one.out_features != other.in_features
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")


def _describe(path: str, module: nn.Module) -> str:
    return f"{type(module).__name__} ({path or 'the model itself'!r})"


def _explain_choice(model: nn.Module, problem: str) -> InvalidInputError:
    ends = [name for name, module in model.named_modules() if _is_end(module)]
    choice = "It has neither a linear layer nor a 1×1 convolution"
    if ends:
        choice = f"Name one with layer=, for example layer={ends[-1]!r}"
    return InvalidInputError(
        f"{problem} {choice}; or, if the model returns features, give their number with n_features=; or, if it returns "
        "maps of features, put a DenseHead behind it."
    )
