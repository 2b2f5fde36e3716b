"""The frames beside the target's, fitted after the backbone: novelty of the input and noise of the error.

The target frame alone is honest only among rows like the training rows: on the way out of the data ‖d‖ passes through
1. The input frame shows when a row has left them, and the error frame how large errors are where it has not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, parameter_error
from onsphere.calibration import root_mean_square
from onsphere.calibration.shape import fit_shape
from onsphere.calibration.zeros import find_zero_end, fit_zero_shape, has_step
from onsphere.errors import InvalidInputError, OnsphereWarning
from onsphere.models.backbone import (
    encode_categories,
    find_table,
    get_fitted,
    get_input_tags,
    get_learner,
    learns_several_columns,
    name_backbone,
    predict_columns,
    predicts_by_leaves,
)
from onsphere.models.known_rows import warn_about_known_targets
from onsphere.models.noise import (
    N_ROWS_NEEDED,
    ErrorFrame,
    clip_inputs,
    find_floor,
    fit_error_frame,
    has_mean_leaves,
    predict_left_out,
)
from onsphere.models.novelty import InputFrame, compute_novelty, find_relevance, fit_input_frame
from onsphere.sphere import Domain, Lift, RegressionEmbedding, scores
from onsphere.sphere.geometry import Array

__all__ = [
    "FRAMES",
    "Fitting",
    "Frames",
    "LeftOut",
    "Measured",
    "Numbers",
    "check_frames",
    "find_numbers",
    "fit_frames",
    "fit_novelty",
    "pick_width",
    "resolve_frames",
]

FRAMES = ("target", "error", "input")

# The share of training rows on which the total relies on the model alone. Beyond its data a model of trees repeats its
# leaves and errs by no more than the target varies; any other model may err by much more, so doubt begins earlier. The
# frame of a fitted model sees only a few other rows, and what is rare there may have been common in training.
_ONSET_TREES, _ONSET_FITTED_TREES, _ONSET_OTHERS = 0.97, 0.995, 0.87

# Folds on which a backbone for the value alone is fitted again, to see its errors on rows left out: two cost as much as
# one more fit. Half of a small table is too little to learn from; of a very large one, the errors of half are enough.
_N_FOLDS_OF_MANY, _MANY_ROWS, _VERY_MANY_ROWS = 2, 1_000, 5_000

# Rows from which the shape of errors is learned, if all rows share it: about this many, up to twice as many.
_N_SHAPE_ROWS = 1_000


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
    other = "" if get_fitted(backbone) is not None else ", or fit with frames='target'"
    warnings.warn(
        f"{type(owner).__name__} measures {lost} here: it found no table of numbers, or a sparse one with too many "
        "columns. Turn columns of text into pandas categories if the model takes these, or put the steps that make "
        "numbers of them, or fewer columns of a sparse table (TruncatedSVD), before the regressor in a Pipeline"
        f"{other}.",
        OnsphereWarning,
        stacklevel=5,
    )
    return None


def fit_novelty(
    owner: Any,
    numbers: Floats,
    columns: Floats,
    weights: Floats | None,
    *,
    measured: NDArray[np.bool_] | None = None,
) -> tuple[InputFrame, Floats]:
    """Fit the input frame, on columns weighed by their relevance; return it and the shortfalls left out.

    Rows without weight are skipped; others count once. Shortfalls of rows that are not to be `measured` are NaN.
    """
    takes_missing = get_input_tags(owner.estimator)[0]
    onset_share = _ONSET_OTHERS
    if predicts_by_leaves(owner.estimator_):
        onset_share = _ONSET_TREES if get_fitted(owner.estimator_) is None else _ONSET_FITTED_TREES
    counted = np.ones(len(numbers), dtype=bool) if weights is None else weights > 0
    relevance = find_relevance(numbers[counted], columns[counted], random_state=0) if numbers.shape[1] > 1 else None
    frame, left_out = fit_input_frame(
        numbers[counted],
        relevance=relevance,
        takes_missing=takes_missing,
        onset_share=onset_share,
        measured=None if measured is None else measured[counted],
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


class LeftOut(NamedTuple):
    """The predictions of training rows by backbones that had not seen them; see `HCMRegressor._read_table`.

    Rows that were not left out are NaN.
    """

    value: Floats
    sigma: Floats | None

    def take(self, rows: Any) -> LeftOut:
        """Return that of some rows: a mask or a list of indices."""
        return LeftOut(self.value[rows], None if self.sigma is None else self.sigma[rows])


class Fitting(NamedTuple):
    """All that a model knows only while it is being fitted.

    Attributes
    ----------
    eval_set : as in fit
    left_out : LeftOut or None
        Those of further fits. A fold has those of the model that it calibrates: errors that it found by itself would be
        those of backbones with fewer rows, and larger beside its own than the model's are beside the model's own.
    choices : (Domain or None, str) or None
        Of a fold: the domain and the shape of the model that it calibrates, so that it calibrates the same scores.
    """

    eval_set: Any = None
    left_out: LeftOut | None = None
    choices: tuple[Domain | None, str] | None = None


def resolve_frames(model: Any, asked: set[str], backbone: Any, embedding: RegressionEmbedding) -> set[str]:
    """Return the frames to fit: the target's too, unless the backbone predicts the value alone.

    Columns of a direction that are fitted one by one overshoot the sphere, so that "all" leaves them out; the noise
    is then the error frame's. A score, decoder or embedding of the target frame asks for it.
    """
    needs_target = {
        "frames": model.frames != "all" and "target" in asked,
        "decoder": model.decoder != "mean",
        "uncertainty_score": model.uncertainty_score not in ("auto", "total"),
        "embedding": repr(embedding) != repr(Lift()),
    }
    named = next((name for name, is_needed in needs_target.items() if is_needed), None)
    is_fitted = get_fitted(backbone) is not None
    if is_fitted and (named is not None or "error" not in asked):
        has = "has no target frame" if named is not None else "has its sigma from the error frame"
        raise InvalidInputError(
            f"A {name_backbone(backbone)} predicts the value alone, so it {has}. Got "
            f"{named or 'frames'}={getattr(model, named or 'frames')!r}. Leave it at its default, or pass the model "
            "without FrozenEstimator to fit it."
        )
    if model.frames == "all" and named is None and (is_fitted or not learns_several_columns(backbone)):
        return asked - {"target"}
    return asked if "error" in asked else asked | {"target"}


def fit_frames(
    model: Any, asked: set[str], rows: Any, target: Floats, columns: Floats, learned: Floats, weights: Floats | None
) -> Frames | None:
    """Fit the frames that are asked for beside the target's; None if there are none.

    `columns` place the target on the sphere, and `learned` are those that the backbone learned.
    """
    has_target = "target" in asked
    lost = "neither novelty nor noise" if has_target else "no novelty, and noise by the prediction alone,"
    found = find_numbers(model, model.estimator_, rows, lost=lost) if asked & {"input", "error"} else None
    if found is None and has_target:
        return None
    numbers, input_frame, missed, error_frame, left_out = None, None, None, None, None
    counted = np.ones(len(target), dtype=bool) if weights is None else weights > 0
    needs_noise = "error" in asked and (counted.sum() >= N_ROWS_NEEDED or not has_target)
    if needs_noise:
        left_out = _predict_unseen(model, rows, target, learned, weights, counted)
    if found is not None:
        numbers = found.table
        if "input" in asked:
            measured = None if left_out is None else ~np.isnan(left_out.value[:, 0])
            input_frame, missed = fit_novelty(model, numbers, columns, weights, measured=measured)
    if needs_noise:
        error_frame = _learn_noise(model, target, left_out, numbers, missed, counted)
    if found is None:
        return Frames(None, None, error_frame)
    frames = Frames(found.n_steps, input_frame, error_frame, found.encoder)
    if left_out is not None:
        if _get_asked_shape(model) != "pooled" and has_mean_leaves(get_learner(model.estimator_)[1]):
            # The mean of a leaf without one row still depends on that row, and the trees of the shape would learn how.
            options: Any = {"by_fold": True, "n_jobs": model.n_jobs}
            table = predict_left_out(model, model.estimator_, rows, learned, weights, model._layout, **options)
            left_out = LeftOut(*model._read_table(table)[1:])
        counted = counted & ~np.isnan(left_out.value[:, 0])
        kept = None if missed is None else missed[counted]
        model._shape = _fit_shape(model, frames, found.table[counted], left_out.take(counted), target[counted], kept)
    return frames


def _get_asked_shape(model: Any) -> str:
    return model.shape if model._fitting.choices is None else model._fitting.choices[1]


def _fit_shape(
    model: Any, frames: Frames, numbers: Floats, left_out: LeftOut, target: Floats, missed: Floats | None
) -> Any:
    """Learn the shape of the errors of left-out rows."""
    if model.domain_ is None and _get_asked_shape(model) == "pooled":  # some rows tell as much of a common shape
        some = slice(None, None, -(-len(target) // _N_SHAPE_ROWS))
        numbers, left_out, target = numbers[some], left_out.take(some), target[some]
        missed = None if missed is None else missed[some]
    value, sigma = left_out
    measured: Any = frames.measure(numbers, value, sigma, center=model._center, spread=model.spread_, missed=missed)
    total = pick_width(model._usual_width, value, measured.sigma, measured.noise, model)
    residuals = np.divide(target - value, total, out=np.zeros_like(value), where=total > 0)
    inputs, asked = clip_inputs(numbers), _get_asked_shape(model)
    if model.domain_ is not None:
        end = find_zero_end(model.domain_)
        is_zero = target <= end
        is_step = has_step(model.domain_, is_zero, residuals, value, total, end=end)
        if asked == "zeros" or (is_step and model._fitting.choices is None):
            return fit_zero_shape(inputs, is_zero, residuals, value, total, end=end)
    return fit_shape(inputs, residuals, value, total, shape=asked)


def _predict_unseen(
    model: Any, rows: Any, target: Floats, learned: Floats, weights: Floats | None, counted: NDArray[np.bool_]
) -> LeftOut | None:
    """Return what is predicted for rows by backbones that have not seen them; None, with a warning, if none can be."""
    if get_fitted(model.estimator_) is None:
        return model._fitting.left_out or _leave_out(model, rows, learned, weights)
    value = predict_columns(model, model.estimator_, rows, model._n_columns)
    error = (target - value)[counted]
    model._errors_at_fit = len(error), float(np.median(root_mean_square(error)))
    model._has_known_rows = warn_about_known_targets(error, model.spread_, stacklevel=5)
    return LeftOut(value, None)


def _learn_noise(
    model: Any,
    target: Floats,
    left_out: LeftOut | None,
    numbers: Floats | None,
    missed: Floats | None,
    counted: NDArray[np.bool_],
) -> ErrorFrame | None:
    """Fit the error frame; None if there is a target frame and no row was left out."""
    has_target, learns = model._layout is not None, counted.sum() >= N_ROWS_NEEDED
    if left_out is None and has_target:
        return None
    if left_out is None:
        left_out, learns = LeftOut(np.broadcast_to(model._center, target.shape), None), False
    counted = counted & ~np.isnan(left_out.value[:, 0])
    value, sigma = left_out.take(counted)
    frame = fit_error_frame(
        None if numbers is None else numbers[counted],
        value,
        sigma,
        target[counted],
        None if missed is None else missed[counted],
        spread=model.spread_,
        learns=learns and not (has_target and has_mean_leaves(get_learner(model.estimator_)[1])),
        # Shapes are learned from these rows over their noise, in which more contrast would hide their skew.
        stretches=has_target and model.shape == "pooled",
        random_state=0,
    )
    if not has_target and learns:
        model._floor = find_floor(target[counted] - value, model.spread_)
    return frame


def _leave_out(model: Any, rows: Any, learned: Floats, weights: Floats | None) -> LeftOut | None:
    """Return what further fits of the backbone predict for rows that they have not seen.

    None, with a warning, if rows cannot be left out.
    """
    options: dict[str, Any] = {"n_jobs": model.n_jobs, "eval_set": model._scale_eval_set(model.domain_)}
    if model._layout is None and len(learned) >= _MANY_ROWS:
        options["n_folds"] = _N_FOLDS_OF_MANY
        options["n_used"] = 1 if len(learned) >= _VERY_MANY_ROWS else None
    try:
        table = predict_left_out(model, model.estimator_, rows, learned, weights, model._layout, **options)
    except InvalidInputError as error:  # for instance a category, or a known cell, that one fold alone has
        taken = "the spread of the target" if model._layout is None else "sigma"
        warnings.warn(
            f"{type(model).__name__} takes {taken} for the noise, because not every part of the rows can be "
            f"left out: {error}",
            OnsphereWarning,
            stacklevel=6,
        )
        return None
    left_out = LeftOut(*model._read_table(table)[1:])
    if not has_mean_leaves(get_learner(model.estimator_)[1]):
        model._fitting = model._fitting._replace(left_out=left_out)
    return left_out


def pick_width(width: str, value: Any, sigma: Any, noise: Any, model: Any) -> Any:
    """Return the sigma of a name in `onsphere.calibration.width`, (n, D); numpy, or arrays of a graph."""
    if width == "flat":
        return value * 0.0 + model.spread_
    return (noise if width == "noise" and noise is not None else sigma) + model._get_floor()
