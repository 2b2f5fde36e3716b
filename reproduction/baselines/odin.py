"""ODIN: a score that needs the network itself and a gradient of its inputs, so it is not a `Detector`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from onsphere import InvalidInputError, InvalidTypeError, OnsphereError
from onsphere.baselines import msp
from reproduction.arguments import Floats, check_count, check_positive

__all__ = ["ODIN", "odin"]


def odin(network: Any, inputs: Tensor, *, temperature: float = 1000.0, epsilon: float = 0.0014) -> Floats:
    """Return one minus the largest softmax probability of logits/T, after a step that raises it; shape (n,).

    The step is ε·sign(∇ log p), p being the probability of the predicted class.

    Parameters
    ----------
    network : callable
        From inputs to logits (n, C). Its mode does not change; `ODIN` takes care of that, and of batches.
    inputs : tensor of shape (n, ...)
        Floats; not changed.
    temperature, epsilon : float

    Examples
    --------
    >>> import torch
    >>> odin(torch.nn.Identity(), torch.zeros(1, 2), temperature=1.0, epsilon=0.5).round(3)  # 1 / (1 + e)
    array([0.269])
    """
    place = inputs.detach().clone()
    if epsilon > 0.0:
        # The caller may have switched gradients off; they are needed here, and only with respect to the inputs.
        with torch.inference_mode(False), torch.enable_grad():
            place = place.clone().requires_grad_()
            log_probability = torch.log_softmax(_run(network, place) / temperature, dim=1).max(dim=1).values
            slope = torch.autograd.grad(log_probability.sum(), place)[0]
        place = place.detach() + epsilon * slope.sign()
    with torch.no_grad():
        logits = _run(network, place)
    # In double precision: a temperature of 1,000 leaves single precision three digits.
    return msp(logits.double().cpu().numpy(), temperature=temperature)


def _run(network: Any, inputs: Tensor) -> Tensor:
    try:
        logits = network(inputs)
    except (OnsphereError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise InvalidInputError(
            f"The network failed on inputs of shape {tuple(inputs.shape)}: {str(error).rstrip('.')}. Pass inputs of "
            "the shape that the network was trained on."
        ) from error
    is_tensor = isinstance(logits, Tensor)
    if not (is_tensor and logits.ndim == 2 and logits.shape[0] == len(inputs) and logits.shape[1] > 1):
        got = f"shape {tuple(logits.shape)}" if is_tensor else type(logits).__name__
        raise InvalidInputError(
            f"Expected a network that gives one row of logits per input, shape ({len(inputs)}, C) with C ≥ 2. "
            f"Got {got}. Wrap the network in a module that returns the logits alone."
        )
    return logits


class ODIN(BaseEstimator):
    """Softmax at a high temperature, after a small step of the input towards the predicted class.

    The step raises the probability of the predicted class, more so for inputs of known classes; a high temperature
    makes the difference visible.

    It needs the network and its inputs, because it goes back through all layers: features and logits are not enough.
    So it is not a `Detector`, nothing is fitted, and `PostHoc` and `compare` cannot take it. Call `score` with the
    inputs, and compare the scores with those of detectors on the same rows.

    Liang, Li and Srikant, "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks",
    ICLR 2018.

    Cost: two passes and one backward pass per row. Fails where ε and T do not fit: the paper chooses them with
    unusual rows, which are not needed here. With ε = 0 it is MSP at that temperature.

    Parameters
    ----------
    network : Module
        From inputs to logits. Its modes, parameters and their gradients are left as they are.
    temperature : float, default 1000.0
    epsilon : float, default 0.0014
        Size of the step, in the unit of the inputs as the network sees them.
    batch_size : int, default 250

    Examples
    --------
    >>> import torch
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    >>> ODIN(network).score(torch.zeros(4, 3)).shape
    (4,)
    """

    def __init__(
        self, network: nn.Module, *, temperature: float = 1000.0, epsilon: float = 0.0014, batch_size: int = 250
    ) -> None:
        self.network = network
        self.temperature = temperature
        self.epsilon = epsilon
        self.batch_size = batch_size

    def score(self, inputs: Tensor | ArrayLike) -> Floats:
        """Return the score of each row, shape (n,); higher means less trustworthy.

        Parameters
        ----------
        inputs : tensor or array of shape (n, ...)
            Prepared as the network expects them. Each batch is converted to its precision and moved to its device.
        """
        check_positive("ODIN", "temperature", self.temperature)
        check_positive("ODIN", "epsilon", self.epsilon, or_zero=True)
        check_count("ODIN", "batch_size", self.batch_size)
        if not isinstance(self.network, nn.Module):  # type: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(f"ODIN needs a torch.nn.Module. Got {type(self.network).__name__}.")
        rows = _as_tensor(inputs)
        first = next(self.network.parameters(), torch.zeros(0))
        settings = {"temperature": self.temperature, "epsilon": self.epsilon}
        modes = [(module, module.training) for module in self.network.modules()]
        self.network.eval()
        try:
            batches = rows.split(self.batch_size)
            return np.concatenate([odin(self.network, batch.to(first), **settings) for batch in batches])
        finally:
            for module, training in modes:
                module.training = training


def _as_tensor(inputs: Any) -> Tensor:
    if np.ma.is_masked(inputs):
        raise InvalidInputError("Expected inputs without masked entries for ODIN. Got some. Fill or drop them first.")
    try:
        rows = inputs.detach() if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    except (ValueError, TypeError) as error:
        raise InvalidInputError(
            f"Expected inputs for ODIN that torch can read as numbers. Got: {error}. Pass a tensor or an array."
        ) from error
    if rows.ndim < 2 or rows.numel() == 0:
        raise InvalidInputError(
            f"Expected inputs of shape (n, ...) with at least one row for ODIN. Got shape {tuple(rows.shape)}. "
            "Add an axis in front for a single input."
        )
    if not torch.isfinite(rows).all():
        raise InvalidInputError("Expected finite inputs for ODIN. Got NaN or infinity. Drop or fix those rows first.")
    return rows
