"""Choose the scale on which a target is learned, by the intervals on left-out rows, and bring further targets to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from onsphere._internal.validation import (
    Floats,
    check_regression_target,
    check_rows,
    check_same_length,
    parameter_error,
)
from onsphere.errors import InvalidInputError
from onsphere.models.backbone import clone_backbone, get_fitted, get_input_tags
from onsphere.models.noise import SIGMA_FLOOR, predict_left_out
from onsphere.sphere import Domain, RegressionEmbedding
from onsphere.sphere.domain import find_domain, list_scales, measure_scale, pick_scale
from onsphere.sphere.embeddings import as_columns

__all__ = ["choose_domain", "scale_eval_set"]


def choose_domain(
    model: Any,
    embedding: RegressionEmbedding,
    backbone: Any,
    rows: Any,
    target: Floats,
    weights: Floats | None,
    *,
    has_target: bool,
) -> Domain:
    """Return the domain that a model is asked for, on the scale with the best intervals on left-out rows."""
    counted = np.ones(len(target), dtype=bool) if weights is None else weights > 0
    domain = find_domain(model, model.domain, target[counted])
    candidates = list_scales(domain, as_columns(target)[counted])
    if len(candidates) < 2 or get_fitted(backbone) is not None:  # which predicts the target itself
        return domain
    losses: list[float] = []
    for candidate in candidates:
        fresh: Any = clone(embedding)
        options: Any = {"eval_set": model._scale_eval_set(candidate), "n_jobs": model.n_jobs}
        given = (fresh, clone_backbone(backbone), rows, candidate.to_scale(target), weights, options["eval_set"])
        _, learned = model._fit_target(*given, has_target=has_target)
        left_out = predict_left_out(model, model.estimator_, rows, learned, weights, model._layout, **options)
        _, value, sigma = model._read_table(left_out[counted])
        sigma = SIGMA_FLOOR * model.spread_ + (np.zeros_like(value) if sigma is None else sigma)
        losses.append(measure_scale(candidate, value, sigma, as_columns(target)[counted]))
    return pick_scale(candidates, losses)


def scale_eval_set(model: Any, domain: Domain | None, given: Any) -> list[tuple[Any, Floats]]:
    """Return the rows to stop early by, checked, with their targets on the scale of a domain."""
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
