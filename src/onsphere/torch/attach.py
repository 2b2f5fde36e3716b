"""A spherical head for an existing model: in place of its last linear layer, or after the model."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from onsphere._internal.validation import check_number
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.sphere import OneHot, RegressionEmbedding
from onsphere.torch.head import SphereReader, SphericalOutput, check_features

__all__ = ["Attached", "attach"]

# Layers that may follow the last linear one without changing its outputs.
_PASSING = (nn.Dropout, nn.Identity, nn.Flatten)


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
        self._original: tuple[nn.Linear, ...] = ()
        self._is_undone = False
        if layer is None:
            new = self.linear = _make_linear(
                cast(int, n_features), self.width, like=next(model.parameters(), self.center)
            )
        else:
            original = cast(nn.Linear, self.get_submodule(self._path))
            # In a tuple, so that it is not part of the state and no optimiser finds it.
            self._original = (original,)
            new = _make_linear(original.in_features, self.width, like=original.weight)
            self.set_submodule(self._path, new)
        # Targets follow the layer to its device, but not to half precision, in which they would lose digits.
        precision = torch.promote_types(new.weight.dtype, torch.float32)
        for name, buffer in list(self.named_buffers(recurse=False)):
            dtype = precision if buffer.is_floating_point() else None
            self.register_buffer(name, buffer.to(device=new.weight.device, dtype=dtype))

    @property
    def _path(self) -> str:
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
        if raw.shape[-1] != self.width:
            raise self._explain_width(f"{raw.shape[-1]} numbers per row")
        return self.read(raw)

    def _explain_width(self, got: str) -> InvalidInputError:
        linear = [name for name, module in self.model.named_modules() if isinstance(module, nn.Linear)]
        others = [name for name in linear if name != self.layer]
        choice = repr(others[-1]) if others else ""
        return InvalidInputError(
            f"Expected {self.width} numbers per row from the model, since attach has replaced its layer "
            f"{self.layer or 'the model'!r}. Got {got}. If another layer runs after it, undo() and name that one with "
            f"layer={choice}; if none does, check the inputs."
        )

    def undo(self) -> nn.Module:
        """Put the layer back that was replaced, and return the model as it was."""
        for original in self._original:
            weight = cast(nn.Linear, self.get_submodule(self._path)).weight
            self.set_submodule(self._path, original.to(weight.device, weight.dtype))
            self._is_undone = True
        return self.model

    def extra_repr(self) -> str:
        if self.layer is None:
            return f"{super().extra_repr()}, after the model"
        return f"{super().extra_repr()}, in place of {self.layer or 'the model'!r}: {self._original[0]!r}"


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
        Name of the linear layer to replace. By default the one that is defined last.
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
    return Attached(
        model, n_outputs, layer=found, n_features=n_features, embedding=embedding, mean=mean, magnitude=magnitude
    )


def _make_linear(n_in: int, n_out: int, *, like: Tensor) -> nn.Linear:
    return nn.Linear(n_in, n_out, device=like.device, dtype=like.dtype)


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
    if not isinstance(found, nn.Linear):
        what = "no layer of that name" if found is None else type(found).__name__
        raise _explain_choice(model, f"Expected layer={layer!r} to name a Linear layer. Got {what}.")
    return layer


def _find_last_linear(model: nn.Module) -> str:
    """Go from each module to its last part, down to a linear layer; raise where that may not be the last to run."""
    path, module = "", model
    while not isinstance(module, nn.Linear):
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
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    choice = f"Name one with layer=, for example layer={linear[-1]!r}" if linear else "It has no linear layer at all"
    return InvalidInputError(
        f"{problem} {choice}; or, if the model returns features, give their number with n_features=."
    )
