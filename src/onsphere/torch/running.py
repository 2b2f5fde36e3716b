"""Before a network runs: build it, and choose its device, its mode and the seed of its random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from onsphere._internal.validation import parameter_error
from onsphere.errors import InvalidInputError

__all__ = ["build_module", "find_device", "find_random_layers", "use_eval_mode", "use_seed"]


def find_device(owner: object, device: Any) -> torch.device:
    """Return the device of that name; "auto" is "cuda" where there is one, else "cpu".

    Examples
    --------
    >>> find_device("fit", "cpu")
    device(type='cpu')
    """
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError):
        expected = f"'auto' or a device that torch finds here ({', '.join(_list_devices())})"
        raise parameter_error(owner, "device", expected, device) from None


def _list_devices() -> list[str]:
    """Return the names of the devices that torch finds."""
    accelerators = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *accelerators, *(["mps"] if torch.backends.mps.is_available() else [])]


@contextmanager
def use_seed(seed: int) -> Generator[None]:
    """Seed torch's random numbers inside a `with` block; afterwards they continue as if nothing had been drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def use_eval_mode(network: nn.Module) -> Generator[None]:
    """Switch to evaluation mode inside a `with` block, then give every layer its own mode back; layers can differ."""
    before = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def find_random_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers that are random in training: dropout with a rate above 0, and any with `is_random = True`.

    A layer of the second kind that runs in training mode without gradients should draw once for all rows.
    """
    return [
        layer
        for layer in module.modules()
        if (isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0) or getattr(layer, "is_random", False)
    ]


def build_module(
    module: nn.Module | Callable[[int, int], nn.Module], n_features: int, n_outputs: int, rows: Tensor
) -> nn.Module:
    """Copy a module, or call what makes one with both numbers, and try it on a few rows before it is trained.

    Examples
    --------
    >>> import torch
    >>> build_module(torch.nn.Linear, 3, 2, torch.zeros(2, 3))
    Linear(in_features=3, out_features=2, bias=True)
    """
    try:
        built = copy.deepcopy(module) if isinstance(module, nn.Module) else module(n_features, n_outputs)
    except Exception as error:  # a user's function can raise anything
        raise InvalidInputError(
            "The 'module' parameter of TorchRegressor must be a Module, or a callable that makes one from two numbers "
            f"({n_features} features, {n_outputs} outputs). Got {type(error).__name__}: {error}."
        ) from error
    if not isinstance(built, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise parameter_error("TorchRegressor", "module", "a callable that returns a Module", built)
    try:
        with torch.no_grad():
            output: Any = built.eval()(rows.to(next(built.parameters(), rows).device))
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    except Exception as error:  # so can a user's network
        output, got = None, f"{type(error).__name__}: {error}"
    if getattr(output, "shape", None) != (len(rows), n_outputs):
        raise InvalidInputError(
            f"Expected a module that turns {n_features} features into a tensor of shape (n, {n_outputs}), one number "
            f"per column. Got {got} for n = {len(rows)}. Pass a callable that takes both numbers: "
            "TorchRegressor(lambda n_features, n_outputs: …)."
        )
    if not any(parameter.requires_grad for parameter in built.parameters()):
        raise InvalidInputError(
            "Expected a module with weights to train. Got none that requires a gradient. Unfreeze some, or use "
            "FrozenHead on its features."
        )
    return built
