"""Any regressor as the backbone of a model: check it, seed it, make it multi-output, fit it on columns.

A backbone learns one table: the columns of the direction, then the magnitude and the mean if there are any.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils import get_tags

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_rows,
    check_takes_weights,
    has_only_numbers,
    is_frame,
    make_random_state,
    missing_frame_error,
    wrap_backbone_errors,
)
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = [
    "BackboneModel",
    "encode_rows",
    "find_table",
    "fit_backbone",
    "get_input_tags",
    "get_learner",
    "join_columns",
    "make_default_backbone",
    "predict_columns",
    "prepare_backbone",
    "set_random_states",
    "split_columns",
]


def make_default_backbone() -> Any:
    """Return extremely randomised trees: no tuning, any scale of features, missing values allowed."""
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2)


def prepare_backbone(owner: object, estimator: Any, random_state: int | np.random.RandomState | None) -> Any:
    """Return a fresh multi-output copy of the estimator, or of the default one for None.

    Every `random_state` of the copy that is None is set from the given one. A regressor for one output, alone or
    as the last step of a pipeline, is wrapped so that it learns one copy of itself per column.
    """
    backbone = make_default_backbone() if estimator is None else _check_and_clone(owner, estimator)
    set_random_states(owner, backbone, random_state)
    return backbone if get_tags(backbone).target_tags.multi_output else _fit_per_column(backbone)


def set_random_states(owner: object, model: Any, random_state: int | np.random.RandomState | None) -> Any:
    """Set every `random_state` of a model and its parts that is None from the given one, and return the model."""
    generator = make_random_state(owner, random_state)
    if random_state is not None:
        unseeded = [
            name
            for name, value in sorted(model.get_params(deep=True).items())
            if (name == "random_state" or name.endswith("__random_state")) and value is None
        ]
        model.set_params(**{name: generator.randint(2**31 - 1) for name in unseeded})
    return model


def get_input_tags(estimator: Any) -> tuple[bool, bool]:
    """Return whether a backbone takes missing values, and whether it takes sparse rows.

    An estimator that holds others (a pipeline, a search) does not always declare what they take, so it is given all
    rows and raises its own errors.
    """
    if estimator is None:
        estimator = make_default_backbone()
    if not hasattr(estimator, "__sklearn_tags__"):
        return False, False
    tags = get_tags(estimator).input_tags
    holds_others = any(hasattr(value, "fit") for value in estimator.get_params(deep=True).values())
    return tags.allow_nan or holds_others, tags.sparse


def _check_and_clone(owner: object, estimator: Any) -> Any:
    who = type(owner).__name__
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "__sklearn_tags__")):
        raise InvalidTypeError(
            f"The 'estimator' parameter of {who} must be a regressor in the manner of scikit-learn, with fit, predict "
            f"and get_params. Got {estimator!r} instead. Pass an instance, for example ExtraTreesRegressor(), or "
            "derive your class from RegressorMixin and BaseEstimator."
        )
    kind = get_tags(estimator).estimator_type
    if kind != "regressor":
        raise InvalidTypeError(
            f"The 'estimator' parameter of {who} must be a regressor, for classes too: it learns directions. "
            f"Got {type(estimator).__name__}, a {kind or 'plain estimator'}. "
            "Pass the regressor of the same family, for example ExtraTreesRegressor()."
        )
    return clone(estimator)


def _fit_per_column(backbone: Any) -> Any:
    from sklearn.multioutput import MultiOutputRegressor

    last = _get_last_step(backbone)
    learner = backbone if last is None else backbone[-1]
    if not hasattr(learner, "predict"):
        raise InvalidTypeError(
            f"{type(learner).__name__} is for one output and shows that it can predict only once it is fitted, so it "
            "cannot be fitted once per column. Pass one of its parts, or a regressor for several outputs."
        )
    return (
        MultiOutputRegressor(learner) if last is None else backbone.set_params(**{last: MultiOutputRegressor(learner)})
    )


def _is_fitted_per_column(learner: Any) -> bool:
    from sklearn.multioutput import MultiOutputRegressor

    return isinstance(learner, MultiOutputRegressor)


def _get_last_step(backbone: Any) -> str | None:
    """Return the name of the last step of a pipeline; None for anything else."""
    from sklearn.pipeline import Pipeline

    return backbone.steps[-1][0] if isinstance(backbone, Pipeline) else None


def get_learner(backbone: Any) -> tuple[Any, Any]:
    """Return the steps before the last of a fitted pipeline, None if there are none, and the last."""
    if _get_last_step(backbone) is None:
        return None, backbone
    return (backbone[:-1] if len(backbone) > 1 else None), backbone[-1]


# A sparse table with more columns than this is not made dense.
_MOST_SPARSE_COLUMNS = 5_000


def find_table(backbone: Any, rows: Any) -> tuple[int, Floats] | None:
    """Return rows as a table of floats, and how many steps of the fitted backbone it takes to make them one.

    None if no step does, or if the table is sparse and too wide.
    """
    steps = [] if _get_last_step(backbone) is None else backbone.steps[:-1]
    for n_steps in range(len(steps) + 1):
        numbers = _to_floats(rows)
        if numbers is not None and not (steps[n_steps:] and _picks_columns(steps[n_steps][1], rows)):
            return n_steps, numbers
        if n_steps < len(steps) and steps[n_steps][1] != "passthrough":
            rows = steps[n_steps][1].transform(rows)
    return None


def _picks_columns(step: Any, rows: Any) -> bool:
    """Return whether a step of a pipeline keeps some columns of a table with names, and drops others."""
    if not is_frame(rows) or not hasattr(step, "get_feature_names_out"):
        return False
    kept = {str(name).rpartition("__")[2] for name in step.get_feature_names_out()}
    return kept < {str(name) for name in rows.columns}


def encode_rows(backbone: Any, rows: Any, n_steps: int) -> Floats:
    """Return rows as the table of floats that these first steps of a fitted backbone make of them."""
    numbers = _to_floats(backbone[:n_steps].transform(rows) if n_steps else rows)
    if numbers is None:
        raise InvalidInputError(
            "Expected the columns that were numbers in fit to be numbers again. Got others among them. Convert them, "
            "or fit with frames='target', which does not look at the inputs themselves."
        )
    return numbers


def _to_floats(rows: Any) -> Floats | None:
    """Return a table as floats; None if it holds something else, or is sparse and wide."""
    if hasattr(rows, "tocsr"):
        return None if rows.shape[1] > _MOST_SPARSE_COLUMNS else np.asarray(rows.toarray(), dtype=np.float64)
    if is_frame(rows) and not has_only_numbers(rows):
        return None
    try:
        if hasattr(rows, "isna"):  # pandas, whose missing values numpy does not know
            return np.ascontiguousarray(rows.to_numpy(dtype=np.float64, na_value=np.nan))
        return np.ascontiguousarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def fit_backbone(
    owner: object, backbone: Any, X: Any, columns: Floats, weights: Floats | None, layout: dict[str, Any] | None
) -> Any:
    """Fit the backbone, with weights if there are any.

    A backbone whose `fit` has a parameter `column_layout` gets the arguments of `split_columns`, so that it can weigh
    the columns as the paper does.
    """
    last = _get_last_step(backbone)
    learner = backbone if last is None else backbone[-1]
    options: dict[str, Any] = {}
    if "column_layout" in inspect.signature(learner.fit).parameters:
        options["column_layout"] = layout
    if weights is not None:
        wrapped = _is_fitted_per_column(learner)
        check_takes_weights(owner, learner.estimator if wrapped else learner, by_name=wrapped)
        options["sample_weight"] = weights
    if last is not None:
        options = {f"{last}__{name}": value for name, value in options.items()}
    with wrap_backbone_errors(owner, backbone, "be fitted"):
        return backbone.fit(X, columns, **options)


def predict_columns(owner: object, backbone: Any, X: Any, n_columns: int) -> Floats:
    """Return the predictions of the backbone, a finite table with this many columns."""
    with wrap_backbone_errors(owner, backbone, "predict"):
        table = np.asarray(backbone.predict(X), dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != n_columns:
            raise ValueError(f"expected {n_columns} columns, one per target, but got an array of shape {table.shape}.")
        if not np.isfinite(table).all():
            raise ValueError("its predictions hold NaN or infinity. Check its settings and the scale of the features.")
    return table


def join_columns(outputs: SphericalOutput, *, magnitude: bool, mean: bool) -> Floats:
    """Join direction, magnitude and mean into one table of targets for the backbone."""
    parts = [outputs.direction]
    if magnitude:
        parts.append(outputs.magnitude[:, None])
    if mean:
        parts.append(outputs.mean)
    return np.hstack(parts)


def split_columns(table: Array, *, n_outputs: int, magnitude: bool, mean: bool) -> SphericalOutput:
    """Split a table that the backbone predicted, as `join_columns` joined it; without a magnitude column it is 1."""
    n_mean = n_outputs if mean else 0
    n_direction = table.shape[1] - n_mean - magnitude
    return SphericalOutput(
        direction=table[:, :n_direction],
        magnitude=table[:, n_direction] if magnitude else array_namespace(table).ones_like(table[:, 0]),
        mean=table[:, n_direction + magnitude :] if mean else None,
    )


class BackboneModel(MetaEstimatorMixin, BaseEstimator):
    """A model whose `estimator` is the backbone, and `estimator_` the fitted one."""

    estimator: Any
    estimator_: Any
    _frames: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan, tags.input_tags.sparse = get_input_tags(self.estimator)
        tags.target_tags.required = True
        return tags

    def _run_backbone(self, X: Any, n_columns: int) -> tuple[Floats | None, Floats]:
        """Return the numbers that the frames see (None without frames) and what the backbone predicts, in one pass."""
        rows = self._check_rows(X)
        if self._frames is None:
            return None, predict_columns(self, self.estimator_, rows, n_columns)
        n_steps = self._frames.n_steps
        with wrap_backbone_errors(self, self.estimator_, "predict"):
            numbers = encode_rows(self.estimator_, rows, n_steps)
        if n_steps == 0:
            return numbers, predict_columns(self, self.estimator_, rows, n_columns)
        return numbers, predict_columns(self, self.estimator_[n_steps:], numbers, n_columns)

    def _place_rows(self, X: Any) -> tuple[Any, Floats]:
        """Return the input frame, and rows in its units."""
        rows = self._check_rows(X)
        if self._frames is None or self._frames.input is None:
            raise missing_frame_error(self, "select", "input")
        return self._frames.input, self._frames.input.place(encode_rows(self.estimator_, rows, self._frames.n_steps))

    def _check_rows(self, X: Any, *, fitting: bool = False) -> Any:
        if not fitting:
            check_fitted(self, "estimator_")
        allow_nan, accept_sparse = get_input_tags(self.estimator)
        return check_rows(self, X, fitting=fitting, allow_nan=allow_nan, accept_sparse=accept_sparse)
