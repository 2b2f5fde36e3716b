"""Any regressor as the backbone: chosen, checked, seeded, made multi-output, and given its columns.

A backbone learns one table: the columns of the direction, then the magnitude, then the mean, where there are any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import get_tags

from onsphere._validation import Floats, check_sample_weight
from onsphere.errors import InvalidTypeError
from onsphere.geometry import SphericalOutput

__all__ = ["check_weights", "default_backbone", "fit_backbone", "from_columns", "prepare_backbone", "to_columns"]


def default_backbone() -> Any:
    """Extremely randomised trees: no tuning, any scale of features, missing values allowed."""
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2)


def prepare_backbone(owner: object, estimator: Any, random_state: int | np.random.RandomState | None) -> Any:
    """A fresh multi-output copy of the estimator, or of the default one for None.

    Every `random_state` of the copy that is None is set from the given one. A regressor for one output, alone or
    as the last step of a pipeline, is wrapped so that it learns one copy of itself per column.
    """
    backbone = default_backbone() if estimator is None else _checked_clone(owner, estimator)
    if random_state is not None:
        generator = np.random.RandomState(random_state) if isinstance(random_state, int) else random_state
        unseeded = [
            name
            for name, value in sorted(backbone.get_params(deep=True).items())
            if (name == "random_state" or name.endswith("__random_state")) and value is None
        ]
        backbone.set_params(**{name: generator.randint(2**31 - 1) for name in unseeded})
    return backbone if get_tags(backbone).target_tags.multi_output else _one_copy_per_column(backbone)


def _checked_clone(owner: object, estimator: Any) -> Any:
    who = type(owner).__name__
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "predict")):
        raise InvalidTypeError(
            f"The 'estimator' parameter of {who} must be a regressor with fit and predict. Got {estimator!r} instead. "
            "Pass an instance, for example ExtraTreesRegressor()."
        )
    kind = get_tags(estimator).estimator_type
    if kind != "regressor":
        raise InvalidTypeError(
            f"The 'estimator' parameter of {who} must be a regressor, for classes too: it learns directions. "
            f"Got {type(estimator).__name__}, a {kind or 'plain estimator'}. "
            "Pass the regressor of the same family, for example ExtraTreesRegressor()."
        )
    return clone(estimator)


def _one_copy_per_column(backbone: Any) -> Any:
    from sklearn.multioutput import MultiOutputRegressor

    last = _last_step(backbone)
    if last is None:
        return MultiOutputRegressor(backbone)
    return backbone.set_params(**{last: MultiOutputRegressor(backbone[-1])})


def _last_step(backbone: Any) -> str | None:
    """Name of the last step of a pipeline; None for anything else."""
    from sklearn.pipeline import Pipeline

    return backbone.steps[-1][0] if isinstance(backbone, Pipeline) else None


def check_weights(owner: object, backbone: Any, sample_weight: Any, X: Any) -> Floats | None:
    """Weights that the backbone can use, or None."""
    learner = backbone if _last_step(backbone) is None else backbone[-1]
    return check_sample_weight(owner, getattr(learner, "estimator", learner), sample_weight, X)


def fit_backbone(backbone: Any, X: Any, columns: Floats, weights: Floats | None) -> Any:
    """Fit the backbone, with weights where there are any."""
    if weights is None:
        return backbone.fit(X, columns)
    last = _last_step(backbone)
    return backbone.fit(X, columns, **{"sample_weight" if last is None else f"{last}__sample_weight": weights})


def to_columns(outputs: SphericalOutput, *, magnitude: bool, mean: bool) -> Floats:
    """One table of targets for the backbone."""
    parts = [outputs.direction]
    if magnitude:
        parts.append(outputs.magnitude[:, None])
    if mean:
        parts.append(outputs.mean)
    return np.hstack(parts)


def from_columns(columns: Any, *, n_outputs: int, magnitude: bool, mean: bool) -> SphericalOutput:
    """The inverse of `to_columns`, for what the backbone predicts; a magnitude nobody learned is 1."""
    table = np.asarray(columns, dtype=np.float64)
    n_mean = n_outputs if mean else 0
    n_direction = table.shape[1] - n_mean - magnitude
    return SphericalOutput(
        direction=table[:, :n_direction],
        magnitude=table[:, n_direction] if magnitude else np.ones(len(table)),
        mean=table[:, n_direction + magnitude :] if mean else None,
    )
