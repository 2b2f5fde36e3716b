"""The fit of HCMRegressor, step by step: the scale of the target, the backbone, and the frames beside the target's."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from onsphere._internal.validation import (
    Floats,
    check_regression_target,
    check_rows,
    check_same_length,
    parameter_error,
)
from onsphere.calibration import root_mean_square
from onsphere.calibration.shape import fit_shape
from onsphere.calibration.zeros import find_zero_end, fit_zero_shape, has_step
from onsphere.errors import InvalidInputError, OnsphereWarning
from onsphere.models.backbone import (
    clone_backbone,
    fit_backbone,
    get_fitted,
    get_input_tags,
    get_learner,
    join_columns,
    learns_several_columns,
    name_backbone,
    predict_columns,
)
from onsphere.models.fitted import check_features
from onsphere.models.frames import Frames, find_numbers, fit_novelty
from onsphere.models.known_rows import warn_about_known_targets
from onsphere.models.noise import (
    N_ROWS_NEEDED,
    SIGMA_FLOOR,
    ErrorFrame,
    clip_inputs,
    find_floor,
    fit_error_frame,
    has_mean_leaves,
    predict_left_out,
)
from onsphere.models.regression_base import pick_width
from onsphere.sphere import Domain, Lift, RegressionEmbedding
from onsphere.sphere.domain import find_domain, list_scales, measure_scale, pick_scale
from onsphere.sphere.embeddings import as_columns

__all__ = ["Fitting", "LeftOut", "choose_domain", "fit_frames", "fit_target", "resolve_frames", "scale_eval_set"]

# Folds that a backbone for the value alone is fitted on again, to see its errors on rows left out: two cost as much as
# one more fit. Of few rows, half are too few to learn as much as all do; of very many, the errors of half are enough.
_N_FOLDS_OF_MANY, _MANY_ROWS, _VERY_MANY_ROWS = 2, 1_000, 5_000


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


def scale_eval_set(model: Any, domain: Domain | None) -> list[tuple[Any, Floats]] | None:
    """Return the rows to stop early by, checked, with their targets on the scale of a domain."""
    given: Any = model._fitting.eval_set
    if given is None:
        return None
    pairs = [given] if isinstance(given, tuple) and not isinstance(given[0], tuple) else list(given)
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise parameter_error("fit", "eval_set", "a pair (X, y), or a list of such pairs", given)
    allow_nan, accept_sparse = get_input_tags(model.estimator)
    scaled: list[tuple[Any, Floats]] = []
    try:
        for X, y in pairs:
            rows = check_rows(model, X, fitting=False, allow_nan=allow_nan, accept_sparse=accept_sparse)
            target = check_regression_target(model, y)
            check_same_length(rows, target)
            if domain is not None:
                domain.check(target)
                target = domain.to_scale(target)
            scaled.append((rows, target))
    except InvalidInputError as error:
        raise InvalidInputError(f"The rows of eval_set are not like those of fit: {error}") from error
    return scaled


def fit_target(
    model: Any,
    embedding: RegressionEmbedding,
    backbone: Any,
    rows: Any,
    target: Floats,
    weights: Floats | None,
    eval_set: Any,
    *,
    has_target: bool,
) -> tuple[Floats, Floats]:
    """Fit the embedding and the backbone; return the columns of the sphere, and those that the backbone learned."""
    model.embedding_ = embedding.fit(target, weights)
    model.spread_ = embedding.spread_
    carried = {"magnitude": embedding.has_magnitude, "mean": model.decoder == "mean"}
    columns = join_columns(embedding.embed(target), **carried)
    model._layout = {"n_outputs": embedding.n_outputs_, **carried} if has_target else None
    learned = columns if has_target else as_columns(target)
    model._n_columns = learned.shape[1]
    model._errors_at_fit = model._sigma_factor = model._floor = None
    if get_fitted(backbone) is not None:
        check_features(model, backbone, rows)
        if eval_set is not None:
            raise InvalidInputError(
                f"A {name_backbone(backbone)} stays as it is, so fit of {type(model).__name__} has no use for an "
                "eval_set. Leave it out, or pass the model without FrozenEstimator to fit it."
            )
        model.estimator_ = backbone
    else:
        options = {"eval_set": eval_set}
        model.estimator_ = fit_backbone(model, backbone, rows, learned, weights, model._layout, **options)
    return columns, learned


def choose_domain(
    model: Any,
    embedding: RegressionEmbedding,
    backbone: Any,
    rows: Any,
    target: Floats,
    weights: Floats | None,
    *,
    has_target: bool,
) -> Domain | None:
    """Return the domain, on the scale with the best intervals on left-out rows; None if none is asked for."""
    if model._fitting.choices is not None:
        return model._fitting.choices[0]
    if model.domain is None:
        return None
    counted = np.ones(len(target), dtype=bool) if weights is None else weights > 0
    domain = find_domain(model, model.domain, target[counted])
    candidates = list_scales(domain, as_columns(target)[counted])
    if len(candidates) < 2 or get_fitted(backbone) is not None:  # which predicts the target itmodel
        return domain
    losses: list[float] = []
    for candidate in candidates:
        fresh: Any = clone(embedding)
        options: Any = {"eval_set": scale_eval_set(model, candidate), "n_jobs": model.n_jobs}
        given = (fresh, clone_backbone(backbone), rows, candidate.to_scale(target), weights, options["eval_set"])
        _, learned = fit_target(model, *given, has_target=has_target)
        left_out = predict_left_out(model, model.estimator_, rows, learned, weights, model._layout, **options)
        _, value, sigma = model._read_table(left_out[counted])
        sigma = SIGMA_FLOOR * model.spread_ + (np.zeros_like(value) if sigma is None else sigma)
        losses.append(measure_scale(candidate, value, sigma, as_columns(target)[counted]))
    return pick_scale(candidates, losses)


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
    if found is not None:
        numbers = found.table
        if "input" in asked:
            input_frame, missed = fit_novelty(model, numbers, columns, weights)
    counted = np.ones(len(target), dtype=bool) if weights is None else weights > 0
    if "error" in asked and (counted.sum() >= N_ROWS_NEEDED or not has_target):
        error_frame, left_out = _learn_noise(model, rows, target, learned, weights, numbers, missed, counted)
    if found is None:
        return Frames(None, None, error_frame)
    frames = Frames(found.n_steps, input_frame, error_frame, found.encoder)
    if left_out is not None:
        if _get_asked_shape(model) != "pooled" and has_mean_leaves(get_learner(model.estimator_)[1]):
            # A leaf without one of its rows knows something of that row, from which trees would learn the rest.
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


def _learn_noise(
    model: Any,
    rows: Any,
    target: Floats,
    learned: Floats,
    weights: Floats | None,
    numbers: Floats | None,
    missed: Floats | None,
    counted: NDArray[np.bool_],
) -> tuple[ErrorFrame | None, LeftOut | None]:
    """Fit the error frame, and return it with what was predicted for left-out rows.

    Both are None, with a warning, if there is a target frame and rows cannot be left out.
    """
    has_target, learns = model._layout is not None, counted.sum() >= N_ROWS_NEEDED
    if get_fitted(model.estimator_) is not None:
        left_out = LeftOut(predict_columns(model, model.estimator_, rows, model._n_columns), None)
        error = (target - left_out.value)[counted]
        model._errors_at_fit = len(error), float(np.median(root_mean_square(error)))
        model._has_known_rows = warn_about_known_targets(error, model.spread_, stacklevel=5)
    else:
        left_out = model._fitting.left_out or _leave_out(model, rows, learned, weights)
    if left_out is None and has_target:
        return None, None
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
    return frame, left_out


def _leave_out(model: Any, rows: Any, learned: Floats, weights: Floats | None) -> LeftOut | None:
    """Return what further fits of the backbone predict for rows that they have not seen.

    None, with a warning, if rows cannot be left out.
    """
    options: dict[str, Any] = {"n_jobs": model.n_jobs, "eval_set": scale_eval_set(model, model.domain_)}
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
