"""A network of the user's own: made, and tried on two rows before anything is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from onsphere._internal.validation import parameter_error
from onsphere.errors import InvalidInputError

__all__ = ["made_module"]


def made_module(
    module: nn.Module | Callable[[int, int], nn.Module], n_features: int, n_outputs: int, rows: Tensor
) -> nn.Module:
    """A copy of a module, or what a callable makes of both numbers, checked on some rows.

    Examples
    --------
    >>> import torch
    >>> made_module(torch.nn.Linear, 3, 2, torch.zeros(2, 3))
    Linear(in_features=3, out_features=2, bias=True)
    """
    try:
        made = copy.deepcopy(module) if isinstance(module, nn.Module) else module(n_features, n_outputs)
    except Exception as error:  # whatever a user's function stumbles over
        raise InvalidInputError(
            "The 'module' parameter of TorchRegressor must be a Module, or a callable that makes one of two numbers "
            f"({n_features} features, {n_outputs} outputs). Got {type(error).__name__}: {error}."
        ) from error
    if not isinstance(made, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise parameter_error("TorchRegressor", "module", "a callable that returns a Module", made)
    try:
        with torch.no_grad():
            output: Any = made.eval()(rows.to(next(made.parameters(), rows).device))
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    except Exception as error:  # whatever a user's network stumbles over
        output, got = None, f"{type(error).__name__}: {error}"
    if getattr(output, "shape", None) != (len(rows), n_outputs):
        raise InvalidInputError(
            f"Expected a module that makes a tensor of shape (n, {n_outputs}) of {n_features} features, one number "
            f"per column. Got {got} for n = {len(rows)}. Pass a callable that is told both numbers: "
            "TorchRegressor(lambda n_features, n_outputs: …)."
        )
    if not any(parameter.requires_grad for parameter in made.parameters()):
        raise InvalidInputError(
            "Expected a module with weights to train. Got none that requires a gradient. Unfreeze some, or use "
            "FrozenHead on its features."
        )
    return made
