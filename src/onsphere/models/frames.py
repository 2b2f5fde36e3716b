"""The frames beside the target's, fitted after the backbone: novelty of the input and noise of the error.

The target frame alone is honest only among rows like the training rows: on the way out of the data ‖d‖ passes through
1. The input frame tells when a row has left them, and the error frame how large errors are where it has not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from onsphere._internal.validation import Floats, parameter_error
from onsphere.errors import OnsphereWarning
from onsphere.models.backbone import find_table, get_input_tags, get_learner
from onsphere.models.noise import ErrorFrame, has_mean_leaves
from onsphere.models.novelty import InputFrame, compute_novelty, find_relevance, fit_input_frame
from onsphere.sphere import scores
from onsphere.sphere.geometry import Array

__all__ = ["FRAMES", "Frames", "Measured", "check_frames", "find_numbers", "fit_novelty"]

FRAMES = ("target", "error", "input")

# The share of training rows on which the total counts on the model alone. Beyond its data a forest repeats a leaf and
# errs by no more than the target varies; any other model may err by much more, so doubt begins earlier.
_ONSET_FOREST, _ONSET_OTHERS = 0.97, 0.87


class Measured(NamedTuple):
    """The parts of the uncertainty of some rows.

    Attributes
    ----------
    noise, sigma : arrays of shape (n, D)
        The noise among similar rows, and the standard deviation of the whole error.
    novelty, missed : arrays of shape (n,) or None
        π in [0, 1], and the shortfall it comes from; None without an input frame.
    """

    noise: Array
    sigma: Array
    novelty: Array | None
    missed: Array | None


@dataclass(frozen=True, eq=False)
class Frames:
    """The frames that were fitted beside the target frame.

    Attributes
    ----------
    n_steps : int
        Steps of the backbone that turn rows into the numbers that the frames are fitted on.
    input : InputFrame or None
    error : ErrorFrame or None
        None for classes too.
    """

    n_steps: int
    input: InputFrame | None
    error: ErrorFrame | None = None

    @property
    def ordinary(self) -> float | None:
        """The shortfall up to which a row is ordinary."""
        return None if self.input is None else self.input.ordinary

    def measure_novelty(self, numbers: Array) -> tuple[Array | None, Array | None]:
        """Return novelty and shortfall of each row, (n,); None without an input frame."""
        if self.input is None:
            return None, None
        missed = self.input.measure(numbers)
        return compute_novelty(missed, self.input.ordinary), missed

    def measure(
        self,
        numbers: Array,
        value: Array,
        sigma: Array,
        *,
        center: Floats,
        spread: Floats,
        predict: Callable[[Any, Array], Array] | None = None,
    ) -> Measured:
        """Return noise, total sigma and novelty of numbers that were predicted.

        Parameters
        ----------
        numbers : array of shape (n, p)
        value, sigma : arrays of shape (n, D)
            Of the target frame.
        center, spread : arrays of shape (D,)
            Mean and standard deviation of the target.
        predict : callable, optional
            Runs the trees of the error frame on rows; a graph has its own.
        """
        novelty, missed = self.measure_novelty(numbers)
        noise = sigma if self.error is None else self.error.measure(numbers, value, sigma, missed, predict=predict)
        if novelty is None:
            return Measured(noise, noise, None, None)
        distance = value - array_namespace(value).asarray(center, dtype=value.dtype, device=value.device)
        doubt = compute_novelty(missed, self.input.onset)  # type: ignore[reportOptionalMemberAccess]
        total = scores.total_sigma(noise, sigma, doubt, spread=spread, distance=distance)
        return Measured(noise, total, novelty, missed)


def find_numbers(owner: Any, backbone: Any, rows: Any) -> tuple[int, Floats] | None:
    """Return the numbers that frames are fitted on, and the steps that make them; warn and return None without any."""
    found = find_table(backbone, rows)
    if found is None:
        warnings.warn(
            f"{type(owner).__name__} measures neither novelty nor noise here: it found no table of numbers, or a "
            "sparse one with too many columns. Put the steps that make numbers of the columns, or fewer columns of a "
            "sparse table (TruncatedSVD), before the regressor in a Pipeline, or fit with frames='target'.",
            OnsphereWarning,
            stacklevel=5,
        )
    return found


def fit_novelty(owner: Any, numbers: Floats, columns: Floats, weights: Floats | None) -> tuple[InputFrame, Floats]:
    """Fit the input frame on the columns that tell something of the target; return it and the shortfalls left out.

    A row without weight is not there; others count once.
    """
    takes_missing = get_input_tags(owner.estimator)[0]
    onset_share = _ONSET_FOREST if has_mean_leaves(get_learner(owner.estimator_)[1]) else _ONSET_OTHERS
    counted = np.ones(len(numbers), dtype=bool) if weights is None else weights > 0
    relevance = find_relevance(numbers[counted], columns[counted], random_state=0) if numbers.shape[1] > 1 else None
    frame, left_out = fit_input_frame(
        numbers[counted], relevance=relevance, takes_missing=takes_missing, onset_share=onset_share
    )
    if not counted.all():
        left_out = np.where(counted, left_out[np.cumsum(counted) - 1], frame.measure(numbers))
    return frame, left_out


def check_frames(owner: Any, possible: tuple[str, ...]) -> set[str]:
    """Return the frames that a model is asked for: "all", "target", or some of the possible ones."""
    given: Any = owner.frames
    names = list(possible) if given == "all" else [given] if isinstance(given, str) else given
    is_list = isinstance(names, list | tuple | set | frozenset) and all(isinstance(name, str) for name in names)
    if not is_list or not set(names) <= set(possible) or not names:
        some = ", ".join(repr(name) for name in possible)
        raise parameter_error(owner, "frames", f"'all', 'target' or a tuple of some of {some}", given)
    return set(names)
