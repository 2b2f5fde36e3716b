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
from onsphere.models.backbone import encode_categories, find_table, get_input_tags, predicts_by_leaves
from onsphere.models.noise import ErrorFrame
from onsphere.models.novelty import InputFrame, compute_novelty, find_relevance, fit_input_frame
from onsphere.sphere import scores
from onsphere.sphere.geometry import Array

__all__ = ["FRAMES", "Frames", "Measured", "Numbers", "check_frames", "find_numbers", "fit_novelty"]

FRAMES = ("target", "error", "input")

# The share of training rows on which the total counts on the model alone. Beyond its data a model of trees repeats its
# leaves and errs by no more than the target varies; any other model may err by much more, so doubt begins earlier.
_ONSET_TREES, _ONSET_OTHERS = 0.97, 0.87


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
    n_steps : int or None
        Steps of the backbone that turn rows into the numbers that the frames are fitted on; None if none do, and the
        error frame sees the prediction alone.
    input : InputFrame or None
    error : ErrorFrame or None
        None for classes too.
    encoder : transformer or None
        What makes numbers of categories that the backbone takes as they are.
    """

    n_steps: int | None
    input: InputFrame | None
    error: ErrorFrame | None = None
    encoder: Any = None

    @property
    def ordinary(self) -> float | None:
        """The shortfall up to which a row is ordinary."""
        return None if self.input is None else self.input.ordinary

    def measure_novelty(self, numbers: Array | None, missed: Array | None = None) -> tuple[Array | None, Array | None]:
        """Return novelty and shortfall of each row, (n,), if it is not known yet; None without an input frame."""
        if self.input is None:
            return None, None
        missed = self.input.measure(numbers) if missed is None else missed
        return compute_novelty(missed, self.input.ordinary), missed

    def measure(
        self,
        numbers: Array | None,
        value: Array,
        sigma: Array | None,
        *,
        center: Floats,
        spread: Floats,
        predict: Callable[[Any, Array], Array] | None = None,
        missed: Array | None = None,
    ) -> Measured:
        """Return noise, total sigma and novelty of numbers that were predicted.

        Parameters
        ----------
        numbers : array of shape (n, p), or None if there is no table of them
        value, sigma : arrays of shape (n, D)
            The prediction, and the sigma of the target frame; without one None, and the noise takes its place.
        center, spread : arrays of shape (D,)
            Mean and standard deviation of the target.
        predict : callable, optional
            Runs the trees of the error frame on rows; a graph has its own.
        missed : array of shape (n,), optional
            The shortfall of each row, if it is known.
        """
        novelty, missed = self.measure_novelty(numbers, missed)
        noise: Any = sigma
        if self.error is not None:
            noise = self.error.measure(numbers, value, sigma, missed, predict=predict)
        if novelty is None:
            return Measured(noise, noise, None, None)
        distance = value - array_namespace(value).asarray(center, dtype=value.dtype, device=value.device)
        doubt = compute_novelty(missed, self.input.onset)  # type: ignore[reportOptionalMemberAccess]
        own = noise if sigma is None else sigma
        total = scores.total_sigma(noise, own, doubt, spread=spread, distance=distance)
        return Measured(noise, total, novelty, missed)


class Numbers(NamedTuple):
    """The table of numbers that frames are fitted on, the steps of the backbone that make it, or an encoder."""

    n_steps: int
    table: Floats
    encoder: Any = None


def find_numbers(owner: Any, backbone: Any, rows: Any, *, lost: str = "neither novelty nor noise") -> Numbers | None:
    """Return the numbers that frames are fitted on; without any warn about what is `lost`, and return None."""
    found = find_table(backbone, rows)
    if found is not None:
        return Numbers(*found)
    encoded = encode_categories(rows)
    if encoded is not None:
        return Numbers(0, encoded[1], encoded[0])
    warnings.warn(
        f"{type(owner).__name__} measures {lost} here: it found no table of numbers, or a sparse one with too many "
        "columns. Put the steps that make numbers of the columns, or fewer columns of a sparse table (TruncatedSVD), "
        "before the regressor in a Pipeline, or fit with frames='target'.",
        OnsphereWarning,
        stacklevel=5,
    )
    return None


def fit_novelty(owner: Any, numbers: Floats, columns: Floats, weights: Floats | None) -> tuple[InputFrame, Floats]:
    """Fit the input frame on the columns that tell something of the target; return it and the shortfalls left out.

    A row without weight is not there; others count once.
    """
    takes_missing = get_input_tags(owner.estimator)[0]
    onset_share = _ONSET_TREES if predicts_by_leaves(owner.estimator_) else _ONSET_OTHERS
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
