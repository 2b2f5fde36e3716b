"""Any regressor as the backbone of a model: check it, seed it, make it multi-output, fit it on columns.

A backbone learns one table: the columns of the direction, then the magnitude and the mean if there are any.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace
from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_rows,
    check_takes_weights,
    get_library,
    has_only_numbers,
    is_fitted_already,
    is_frame,
    make_random_state,
    missing_frame_error,
    unfreeze,
    wrap_backbone_errors,
)
from onsphere.errors import InvalidInputError, InvalidTypeError, OnsphereWarning
from onsphere.models.fitted import FittedModel, is_fitted
from onsphere.models.relevance import keep_lengths
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = [
    "BackboneModel",
    "clone_backbone",
    "encode_categories",
    "encode_rows",
    "find_table",
    "fit_backbone",
    "get_fitted",
    "get_input_tags",
    "get_learner",
    "is_fitted_per_column",
    "join_columns",
    "learns_several_columns",
    "make_default_backbone",
    "name_backbone",
    "point_to_tables",
    "predict_columns",
    "predicts_by_leaves",
    "prepare_backbone",
    "set_random_states",
    "split_columns",
    "sum_categories",
    "unwrap_fitted",
]


def learns_several_columns(backbone: Any) -> bool:
    """Return whether a backbone learns all columns at once, or is fitted once per column."""
    # XGBoost takes several columns, and grows trees for each.
    return get_tags(backbone).target_tags.multi_output and get_library(get_learner(backbone)[1]) != "xgboost"


def predicts_by_leaves(backbone: Any) -> bool:
    """Return whether the learner of a backbone is made of trees, and predicts what their leaves hold."""
    from sklearn import ensemble, tree

    learner = get_learner(backbone)[1]
    if is_fitted_per_column(learner):
        learner = learner.estimator
    if isinstance(learner, FittedModel):
        learner = get_learner(learner.model)[1]
    names = ("ExtraTrees", "RandomForest", "GradientBoosting", "HistGradientBoosting")
    kinds = [getattr(ensemble, name + kind) for name in names for kind in ("Classifier", "Regressor")]
    is_tree = isinstance(learner, (tree.BaseDecisionTree, *kinds))
    return is_tree or get_library(learner) in ("lightgbm", "xgboost", "catboost")


# What the nodes of a forest may take in memory, and how: of each node, and of each of its outputs.
_MOST_BYTES, _NODE_BYTES, _OUTPUT_BYTES = 2**27, 64, 8
_N_TREES, _FEWEST_TREES, _LEAF_SIZE = 200, 100, 2
_FILLED = 1.2  # rows in a leaf, over the least that there may be; at the least


def make_default_backbone(n_rows: int = 0, n_columns: int = 1) -> Any:
    """Return extremely randomised trees: no tuning, any scale of features, missing values allowed.

    For many rows or columns to learn there are fewer trees, and then more rows in each leaf, so that the forest takes
    about 128 MiB of memory at most.

    Examples
    --------
    >>> make_default_backbone(5_000, 4), make_default_backbone(60_000, 4)
    (ExtraTreesRegressor(min_samples_leaf=2, n_estimators=200), ExtraTreesRegressor(min_samples_leaf=8))
    """
    from sklearn.ensemble import ExtraTreesRegressor

    n_leaves = _MOST_BYTES / (2 * (_NODE_BYTES + _OUTPUT_BYTES * n_columns))  # in all trees
    leaves_of_a_tree = n_rows / (_FILLED * _LEAF_SIZE)
    n_trees = int(np.clip(n_leaves / max(leaves_of_a_tree, 1), _FEWEST_TREES, _N_TREES))
    leaf_size = math.ceil(n_rows / _FILLED * n_trees / n_leaves)
    return ExtraTreesRegressor(n_estimators=n_trees, min_samples_leaf=max(leaf_size, _LEAF_SIZE))


def prepare_backbone(owner: object, estimator: Any, random_state: int | np.random.RandomState | None) -> Any:
    """Return a fresh copy of the estimator, or of the default one for None.

    Every `random_state` of the copy that is None is set from the given one.
    """
    backbone = make_default_backbone() if estimator is None else _check_and_clone(owner, estimator)
    return set_random_states(owner, backbone, random_state)


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
    if isinstance(estimator, str) and estimator == "auto":
        return True, False
    if is_fitted_already(estimator):
        model = unfreeze(estimator)
        return True, hasattr(model, "__sklearn_tags__") and get_tags(model).input_tags.sparse
    if not hasattr(estimator, "__sklearn_tags__"):
        return False, False
    tags = get_tags(estimator).input_tags
    parts: Any = estimator.get_params(deep=True).values()  # type: ignore[reportAttributeAccessIssue]
    holds_others = any(hasattr(value, "fit") for value in parts)
    return tags.allow_nan or holds_others, tags.sparse


def _check_and_clone(owner: object, estimator: Any) -> Any:
    who = type(owner).__name__
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "__sklearn_tags__")):
        raise InvalidTypeError(
            f"The 'estimator' parameter of {who} must be a regressor in the manner of scikit-learn, with fit, predict "
            "and get_params; 'auto'; or a model that is fitted already: a FrozenEstimator, a booster, a function of "
            f"rows, or the name of a file that ends in .onnx. Got {estimator!r} instead. {_find_advice(estimator)}"
        )
    kind = get_tags(estimator).estimator_type
    if kind != "regressor":
        raise InvalidTypeError(
            f"The 'estimator' parameter of {who} must be a regressor, for classes too: it learns directions. "
            f"Got {type(estimator).__name__}, a {kind or 'plain estimator'}. "
            "Pass the regressor of the same family, for example ExtraTreesRegressor()."
        )
    if is_fitted(estimator) and get_tags(estimator).requires_fit:
        warnings.warn(
            f"The {type(estimator).__name__} given to {who} is fitted already, and a copy of it is fitted anew on the "
            "rows given. Pass FrozenEstimator(model) to keep it as it is, or clone(model) to fit it without this "
            "warning.",
            OnsphereWarning,
            stacklevel=7,
        )
    return clone_backbone(estimator)


def get_fitted(backbone: Any) -> FittedModel | None:
    """Return the fitted model that a backbone is, or that the last step of a pipeline is; None for any other."""
    learner = get_learner(backbone)[1]
    return learner if isinstance(learner, FittedModel) else None


def unwrap_fitted(backbone: Any) -> Any:
    """Return the model that `wrap_fitted` made a backbone of; None for a backbone that was fitted here."""
    fitted = get_fitted(backbone)
    if fitted is None or not isinstance(backbone, Pipeline):
        return None if fitted is None else fitted.model
    return Pipeline([*backbone.steps[:-1], (backbone.steps[-1][0], fitted.model)])


def clone_backbone(estimator: Any) -> Any:
    """Return an unfitted copy, of CatBoost with lists in its parameters too, which scikit-learn cannot clone."""
    try:
        return clone(estimator)
    except RuntimeError:
        if get_library(estimator) != "catboost":
            raise
        return type(estimator)(**estimator.get_params())


def _find_advice(estimator: Any) -> str:
    """Return what to pass in place of something that is no estimator."""
    if isinstance(estimator, str | Path):
        return "Load the file of another library with that library, and pass the model."
    return (
        "Pass an instance, for example ExtraTreesRegressor(), or derive your class from RegressorMixin and "
        "BaseEstimator."
    )


def name_backbone(backbone: Any) -> str:
    """Return how errors call a backbone: by the class that its user wrote."""
    learner = backbone.estimator if is_fitted_per_column(backbone) else backbone
    fitted = get_fitted(learner)
    if fitted is not None:
        return f"fitted {type(fitted.model).__name__}" if hasattr(fitted.model, "predict") else "function"
    return f"backbone {type(learner).__name__}"


def _fit_per_column(backbone: Any) -> Any:
    from sklearn.multioutput import MultiOutputRegressor

    learner = get_learner(backbone)[1]
    if not hasattr(learner, "predict"):
        raise InvalidTypeError(
            f"{type(learner).__name__} is for one output and shows that it can predict only once it is fitted, so it "
            "cannot be fitted once per column. Pass one of its parts, or a regressor for several outputs."
        )
    copies = MultiOutputRegressor(learner)
    return backbone.set_params(**{backbone.steps[-1][0]: copies}) if isinstance(backbone, Pipeline) else copies


def is_fitted_per_column(learner: Any) -> bool:
    """Return whether a learner holds a copy of itself for each column."""
    from sklearn.multioutput import MultiOutputRegressor

    return isinstance(learner, MultiOutputRegressor)


def get_learner(backbone: Any) -> tuple[Any, Any]:
    """Return the steps before the last of a fitted pipeline, None if there are none, and the last."""
    if not isinstance(backbone, Pipeline):
        return None, backbone
    return (backbone[:-1] if len(backbone) > 1 else None), backbone[-1]


# A sparse table with more columns than this is not made dense.
_MOST_SPARSE_COLUMNS = 5_000

# Of a column of categories that have a column of zeros and ones of their own; the rarer ones share one.
_MOST_CATEGORIES = 30


def find_table(backbone: Any, rows: Any) -> tuple[int, Floats] | None:
    """Return rows as a table of floats, and how many steps of the fitted backbone it takes to make them one.

    None if no step does, or if the table is sparse and too wide.
    """
    steps = backbone.steps[:-1] if isinstance(backbone, Pipeline) else []
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


def encode_categories(rows: Any) -> tuple[Any, Floats] | None:
    """Return an encoder for a table of numbers and pandas' categories, and its numbers; None for any other table."""
    kinds = [str(kind) for kind in rows.dtypes] if is_frame(rows) else []
    names = [name for name, kind in zip(getattr(rows, "columns", ()), kinds, strict=True) if kind == "category"]
    if not names or not has_only_numbers(rows.drop(columns=names)):
        return None
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder

    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=_MOST_CATEGORIES, sparse_output=False)
    encoder = ColumnTransformer([("categories", one_hot, names)], remainder="passthrough")
    return encoder, np.asarray(encoder.fit_transform(rows), dtype=np.float64)


def sum_categories(encoder: Any, shares: Floats) -> Floats:
    """Return the share of each column of a table from those of its numbers, of which a category has one each."""
    if encoder is None:
        return shares
    (_, one_hot, names), (_, _, others) = encoder.transformers_
    pairs = zip(one_hot.categories_, one_hot.infrequent_categories_, strict=True)
    counts = [len(known) - (0 if rare is None else len(rare) - 1) for known, rare in pairs]
    owner = np.repeat([*names, *others], [*counts, *[1] * len(others)])
    return np.array([shares[owner == name].sum() for name in encoder.feature_names_in_])


def encode_rows(backbone: Any, rows: Any, n_steps: int, encoder: Any = None) -> Floats:
    """Return rows as the table of floats that these first steps of a fitted backbone, or an encoder, make of them."""
    if encoder is not None:
        return np.asarray(encoder.transform(rows), dtype=np.float64)
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
    owner: object,
    backbone: Any,
    X: Any,
    columns: Floats,
    weights: Floats | None,
    layout: dict[str, Any] | None,
    *,
    eval_set: Any = None,
) -> Any:
    """Fit the backbone, with weights if there are any.

    A regressor for one output, alone or as the last step of a pipeline, is copied for each of several columns. If its
    `fit` has a parameter `column_layout`, this gets the arguments of `split_columns`: it can weigh columns as the paper
    does.
    """
    if layout is not None and columns.min() < 0:  # those of classes are not negative
        _check_takes_negative(owner, backbone)
    if columns.ndim > 1 and columns.shape[1] > 1 and not get_tags(backbone).target_tags.multi_output:
        backbone = _fit_per_column(backbone)
    learner = get_learner(backbone)[1]
    takes = inspect.signature(learner.fit).parameters
    options: dict[str, Any] = {}
    if "column_layout" in takes:
        options["column_layout"] = layout
    if eval_set is not None:
        _check_takes_eval_set(owner, backbone, layout)
        if "eval_X" in takes:  # LightGBM since 4.7
            options["eval_X"], options["eval_y"] = (tuple(part) for part in zip(*eval_set, strict=True))
        else:
            options["eval_set"] = eval_set
        if (
            "verbose" in takes and takes["verbose"].default is True
        ):  # XGBoost, which would print every round of every fit
            options["verbose"] = False
    if weights is not None:
        wrapped = is_fitted_per_column(learner)
        check_takes_weights(owner, learner.estimator if wrapped else learner, by_name=wrapped)
        options["sample_weight"] = weights
    if isinstance(backbone, Pipeline) and not get_config()["enable_metadata_routing"]:  # which has each step ask
        options = {f"{backbone.steps[-1][0]}__{name}": value for name, value in options.items()}
    if columns.ndim > 1 and columns.shape[1] == 1:  # a plain target
        columns = columns[:, 0]
    with point_to_tables(X), wrap_backbone_errors(owner, name_backbone(backbone), "be fitted"):
        return backbone.fit(X, columns, **options)


@contextmanager
def point_to_tables(X: Any) -> Generator[None]:
    """Add to an error of ours what helps if X holds something else than numbers."""
    try:
        yield
    except (InvalidInputError, InvalidTypeError) as error:
        if has_only_numbers(X) if is_frame(X) else np.asarray(X).dtype.kind not in "OUS":
            raise
        raise type(error)(
            f"{str(error).rstrip('.')}. For a table with text, categories or dates use onsphere.table.fit_table, or "
            "put an encoder before the regressor in a Pipeline."
        ) from error


# The parameters for losses of scikit-learn, its forests, LightGBM and XGBoost, and CatBoost; and which of these losses
# take no negative targets.
_LOSSES = ("loss", "criterion", "objective", "loss_function")
_POSITIVE_LOSS = re.compile("poisson|gamma|tweedie", re.IGNORECASE)


def _check_takes_negative(owner: object, backbone: Any) -> None:
    """Check that the loss of a backbone takes negative targets, as directions are; some would learn them wrongly."""
    learner = get_learner(backbone)[1]
    learner = learner.estimator if is_fitted_per_column(learner) else learner
    params: dict[str, Any] = learner.get_params(deep=False)
    losses = [type(learner).__name__, *(str(params.get(name)) for name in _LOSSES)]
    found = next((loss for loss in losses if _POSITIVE_LOSS.search(loss)), None)
    if found is not None and params.get("power") != 0:
        raise InvalidInputError(
            f"The {name_backbone(backbone)} of {type(owner).__name__} cannot learn directions: with {found} no target "
            "may be negative, and whatever the target, its directions are negative for some rows. Fit with "
            "frames=('error', 'input'), which needs no directions."
        )


def _check_takes_eval_set(owner: object, backbone: Any, layout: dict[str, Any] | None) -> None:
    """Check that a backbone can be fitted with rows to stop early by, whose targets are plain ones."""
    takes = "eval_set" in inspect.signature(backbone.fit).parameters
    if layout is not None or not takes:
        why = "learns directions beside the value, so it cannot use" if takes else "does not take"
        raise InvalidInputError(
            f"The {name_backbone(backbone)} of {type(owner).__name__} {why} an eval_set in fit. Use boosting of "
            "LightGBM, XGBoost or CatBoost for one output, not in a pipeline, and frames='all' or ('error', 'input')."
        )


def predict_columns(owner: object, backbone: Any, X: Any, n_columns: int) -> Floats:
    """Return the predictions of the backbone, a finite table with this many columns."""
    with wrap_backbone_errors(owner, name_backbone(backbone), "predict"):
        table = np.asarray(backbone.predict(X), dtype=np.float64)
        if table.ndim == 1 == n_columns:
            table = table[:, None]
        fitted = get_fitted(backbone)
        if fitted is not None and fitted.has_classes and table.shape[1] != n_columns:
            raise ValueError(
                f"expected a probability of each of the {n_columns} classes of the labels, but got {table.shape[1]} in "
                "each row. Pass rows of all classes that it knows, or a fitted classifier that names its classes in "
                "a FrozenEstimator."
            )
        if table.ndim != 2 or table.shape[1] != n_columns:
            raise ValueError(
                f"expected {n_columns} columns, one per target, but got an array of shape {table.shape}. Pass as many "
                "targets as it predicts."
            )
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

    def __sklearn_clone__(self) -> Any:
        """Return an unfitted copy, over CatBoost with lists in its parameters too; scikit-learn calls this."""
        try:
            return super().__sklearn_clone__()
        except RuntimeError:
            backbone = clone_backbone(self.estimator)
            bare: Any = copy(self)
            bare.estimator = None
            fresh: Any = clone(bare)
            fresh.estimator = backbone
            return fresh

    def _is_auto(self) -> bool:
        return isinstance(self.estimator, str) and self.estimator == "auto"

    def _clone_chosen(self) -> Any:
        """Return an unfitted copy; a backbone that was chosen, or lengths that were found, are not chosen again."""
        fold: Any = clone(self)
        if self._is_auto():
            fold.estimator = clone(self.estimator_)
        keep_lengths(fold.estimator, self.estimator_)
        return fold

    @property
    def novelty_importances_(self) -> Floats:
        """The weight of each column in novelty, (p,); they sum to 1.

        Where the steps of a pipeline make numbers of the columns, it is that of each number.
        """
        check_fitted(self, "estimator_")
        if self._frames is None or self._frames.input is None:
            raise missing_frame_error(self, "novelty_importances_", "input")
        spread = self._frames.input.landmarks.var(axis=0)
        if self._frames.input.takes_missing:  # a second column for each feature tells where it is missing
            spread = spread.reshape(2, -1).sum(axis=0)
        return sum_categories(self._frames.encoder, spread / max(spread.sum(), 1e-300))

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of the default backbone too, under estimator__ and their names."""
        has_nested = any(name.startswith("estimator__") for name in params)
        if self._is_auto() and has_nested and "estimator" not in params:
            raise InvalidTypeError(
                f"Expected an estimator with parameters in {type(self).__name__}. Got estimator='auto', which chooses "
                "one in fit. Set the estimator first, or its parameters later, in estimator_."
            )
        if self.estimator is None and has_nested:
            self.estimator = make_default_backbone()
        return super().set_params(**params)

    def _run_backbone(self, X: Any, n_columns: int) -> tuple[Floats | None, Floats]:
        """Return the numbers that the frames see (None without frames) and what the backbone predicts, in one pass."""
        rows = self._check_rows(X)
        if self._frames is None or self._frames.n_steps is None:
            return None, predict_columns(self, self.estimator_, rows, n_columns)
        n_steps, encoder = self._frames.n_steps, self._frames.encoder
        with wrap_backbone_errors(self, name_backbone(self.estimator_), "predict"):
            numbers = encode_rows(self.estimator_, rows, n_steps, encoder)
        if n_steps == 0:
            return numbers, predict_columns(self, self.estimator_, rows, n_columns)
        return numbers, predict_columns(self, self.estimator_[n_steps:], numbers, n_columns)

    def _place_rows(self, X: Any) -> tuple[Any, Floats]:
        """Return the input frame, and rows in its units."""
        rows = self._check_rows(X)
        if self._frames is None or self._frames.input is None:
            raise missing_frame_error(self, "select", "input")
        numbers = encode_rows(self.estimator_, rows, self._frames.n_steps, self._frames.encoder)
        return self._frames.input, self._frames.input.place(numbers)

    def _check_rows(self, X: Any, *, fitting: bool = False) -> Any:
        if not fitting:
            check_fitted(self, "estimator_")
        known = None if fitting else getattr(getattr(self, "calibration_", None), "groups", None)  # a fold has none
        rows = X if known is None else known.source.drop_column(X, getattr(self, "feature_names_in_", None))
        allow_nan, accept_sparse = get_input_tags(self.estimator)
        return check_rows(self, rows, fitting=fitting, allow_nan=allow_nan, accept_sparse=accept_sparse)
