"""The error frame: errors on rows that were left out are placed on a sphere, and a second model learns the local noise.

The backbone's own sigma sees how far similar rows disagree, and not how far the backbone itself is off. Errors show
both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed

from onsphere._internal.row_hashes import make_indexable
from onsphere._internal.validation import Floats
from onsphere.models.backbone import clone_backbone, fit_backbone, get_learner, is_fitted_per_column, predict_columns
from onsphere.models.relevance import keep_lengths
from onsphere.sphere import Lift
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = [
    "N_ROWS_NEEDED",
    "SIGMA_FLOOR",
    "ErrorFrame",
    "clip_inputs",
    "find_floor",
    "fit_error_frame",
    "has_mean_leaves",
    "predict_left_out",
    "read_noise",
]

# Fewer rows than this say too little of the noise; sigma is taken as it is.
N_ROWS_NEEDED = 40

_N_FOLDS = 5

# With more columns than this, trees learn more from the prediction and its sigma than from the columns.
_MOST_COLUMNS = 100

# Rows that a tree sees at most, without a target frame, and if there are more, the number of trees and the rows that a
# node needs to be split: there, the error frame is most of the cost.
_N_TREE_ROWS, _N_TREES_OF_MANY, _SPLIT_OF_MANY = 4_000, 20, 40

# The share of rows that may be in no leaf with others.
_MOST_SEEN = 0.1

# Two-sided 90 % quantile of a Gaussian.
_GAUSSIAN_90 = 1.6449

# Added to sigma in conformal intervals, as a share of the target's spread: rows on which all trees agree would
# otherwise get intervals of width 0.
SIGMA_FLOOR = 0.01

# That share of the spread is far more than the errors of a nearly exact model. Where noise is learned from errors
# alone, the addition is at most this share of the usual error.
_FLOOR_OF_ERRORS = 0.2

# From the median of |error| to the standard deviation of a Gaussian: a scale that no outlier moves.
_MEDIAN_TO_SIGMA = 1.4826

# With fewer rows than this, and without a target frame, half of the trees try every threshold: extremely randomised
# ones miss small corners of large noise. With more rows it changes little, and takes longer.
_FEW_ROWS = 1_000

# Rows in a leaf, at least, and in tables of very few rows without a target frame, where ten are too large a part.
_LEAF, _SMALL_LEAF, _VERY_FEW_ROWS = 10, 5, 250

# Added to what trees see the logarithm of: below it, differences mean nothing.
_SMALLEST = 1e-3

# Trees round to single precision; with this, sums over a table stay finite in it too.
_LARGEST = 1e30

# Fewer errors than this are too few to correct the contrast; above the second number, half of them are enough.
_N_ROWS_STRETCHED, _N_ROWS_HALVED = 300, 2_000

# Limits of the correction of the contrast.
_CONTRASTS = (0.5, 2.0)

_LIFT = Lift(standardize=False)


@dataclass(frozen=True, eq=False)
class ErrorFrame:
    """The local noise of each output.

    Attributes
    ----------
    scale : array of shape (D,)
        The size of the errors, in units; without trees, the factor that makes sigma fit them.
    trees : regressor or None
        Learns errors on the sphere from the row, its prediction, its sigma and its shortfall. None for forests: their
        sigma ranks errors as well, and only its level is off.
    uses_rows : bool
        Whether the trees see the row itself.
    unit : array of shape (D,)
        The spread of the target, 1 for a constant one.
    """

    scale: Floats
    trees: Any
    uses_rows: bool
    unit: Floats
    power: Floats | float = 1.0  # frames of older files have neither
    level: Floats | None = None

    def measure(
        self,
        rows: Array,
        value: Array,
        sigma: Array | None,
        missed: Array | None,
        *,
        predict: Callable[[Any, Array], Array] | None = None,
    ) -> Array:
        """Return the noise of each output, (n, D), from what was predicted; `predict` runs the trees."""
        if self.trees is None:
            if sigma is None:  # one level for all rows
                return array_namespace(value).zeros_like(value) + self.scale * self.unit
            return sigma * self.scale
        inputs = self.join_inputs(rows, value, sigma, missed)
        columns = self.trees.predict(inputs) if predict is None else predict(self.trees, inputs)
        return self._stretch(read_noise(columns, len(self.unit))) * (self.scale * self.unit)

    def _stretch(self, noise: Array) -> Array:
        """Return noise, in units of the scale, on the level and with the contrast that errors left out have."""
        if self.level is None:
            return noise
        return array_namespace(noise).exp(array_namespace(noise).log(noise + _SMALLEST) * self.power + self.level)

    def join_inputs(self, rows: Array, value: Array, sigma: Array | None, missed: Array | None) -> Array:
        """Return what the trees see of each row, (n, f); numpy, or arrays of a graph."""
        xp = array_namespace(value)
        parts = [value / self.unit]
        parts += [] if sigma is None else [xp.log(sigma / self.unit + _SMALLEST)]
        parts += [] if missed is None else [xp.log(missed[:, None] + _SMALLEST)]
        return clip_inputs(xp.concat([rows, *parts] if self.uses_rows else parts, axis=-1))


def clip_inputs(rows: Array) -> Array:
    """Return rows as trees can take them; numpy, or arrays of a graph."""
    return array_namespace(rows).clip(rows, -_LARGEST, _LARGEST)


def read_noise(columns: Array, n_outputs: int) -> Array:
    """Return the standard deviation of each output, (n, D), from the columns that trees predict.

    For each output these are the direction, (2,), and the magnitude. The first part of the direction is left out where
    errors of both signs are alike: it is 0.
    """
    xp = array_namespace(columns)
    lifted = xp.reshape(columns, (-1, n_outputs, columns.shape[1] // n_outputs))
    if lifted.shape[-1] == 2:
        lifted = xp.concat([0.0 * lifted[..., :1], lifted], axis=-1)
    return _LIFT.relative_sigma(SphericalOutput(lifted[..., :2], lifted[..., 2]))[..., 0]


def fit_error_frame(
    rows: Floats | None,
    value: Floats,
    sigma: Floats | None,
    target: Floats,
    missed: Floats | None,
    *,
    spread: Floats,
    learns: bool,
    random_state: int,
    stretches: bool = False,
) -> ErrorFrame:
    """Learn the noise from predictions of rows that were left out.

    Parameters
    ----------
    rows : array of shape (n, p), or None
        None if the rows hold no table of numbers: the trees see the prediction alone.
    value, sigma, target : arrays of shape (n, D)
        What was predicted for rows that were left out, and the truth; None as sigma without a target frame.
    missed : array of shape (n,) or None
        The shortfall of each row without itself.
    spread : array of shape (D,)
    learns : bool
        Whether trees learn the noise, or sigma (or one level for all rows) is only scaled to fit the errors.
    random_state : int
    stretches : bool, default False
        Whether the noise that trees predict is brought to the level and the contrast of errors that they have not
        seen, if there are enough.
    """
    unit = np.where(spread == 0, 1.0, spread)
    error = (target - value) / unit
    if not learns:
        level = 1.0 if sigma is None else sigma / unit + SIGMA_FLOOR
        scale = np.quantile(np.abs(error) / level, 0.9, axis=0) / _GAUSSIAN_90
        return ErrorFrame(np.where(scale > 0, scale, 1.0), None, False, unit)
    from sklearn.ensemble import ExtraTreesRegressor

    scale = np.sqrt(np.mean(error**2, axis=0))
    if sigma is None:
        usual = _MEDIAN_TO_SIGMA * np.median(np.abs(error), axis=0)
        scale = np.where(usual > 0, usual, scale)
    scale = np.where(scale > 0, scale, 1.0)
    mixes = sigma is None and len(error) < _FEW_ROWS
    leaf = _SMALL_LEAF if sigma is None and len(error) < _VERY_FEW_ROWS else _LEAF
    trees = ExtraTreesRegressor(50 if mixes else 100, min_samples_leaf=leaf, random_state=random_state)
    if sigma is None and len(error) > _N_TREE_ROWS:
        options: Any = {"n_estimators": _N_TREES_OF_MANY, "min_samples_split": _SPLIT_OF_MANY}
        trees.set_params(**options, bootstrap=True, max_samples=_N_TREE_ROWS)
    frame = ErrorFrame(scale, trees, rows is not None and rows.shape[1] <= _MOST_COLUMNS, unit)
    direction, magnitude = _LIFT.to_sphere((error / scale)[..., None])
    if sigma is None:  # errors of both signs alike: what a model is off by on average is a part of its noise
        direction = direction[..., 1:]
    columns = np.concatenate([direction, magnitude[..., None]], axis=-1).reshape(len(error), -1)
    inputs = frame.join_inputs(rows, value, sigma, missed)
    trees.fit(inputs, columns)
    if mixes:
        _add_random_forest(trees, inputs, columns)
    if stretches and len(error) >= _N_ROWS_STRETCHED:
        return _fit_stretch(frame, inputs, columns, error / scale)
    return frame


def _add_random_forest(trees: Any, inputs: Floats, columns: Floats) -> None:
    """Add to fitted trees as many of a random forest."""
    from sklearn.ensemble import RandomForestRegressor

    n_trees = trees.n_estimators
    options = {"min_samples_leaf": trees.min_samples_leaf, "random_state": trees.random_state}
    trees.estimators_ += RandomForestRegressor(n_trees, **options).fit(inputs, columns).estimators_
    trees.set_params(n_estimators=2 * n_trees)


def find_floor(error: Floats, spread: Floats) -> Floats:
    """Return what is added to a sigma learned from errors on left-out rows (n, D), (D,).

    Examples
    --------
    >>> import numpy as np
    >>> find_floor(np.array([[-1.0], [1.0], [2.0]]), np.array([30.0]))
    array([0.2])
    """
    usual, largest = _FLOOR_OF_ERRORS * np.median(np.abs(error), axis=0), SIGMA_FLOOR * spread
    return np.where(usual > 0, np.minimum(usual, largest), largest)


def _fit_stretch(frame: ErrorFrame, inputs: Floats, columns: Floats, error: Floats) -> ErrorFrame:
    """Return a frame whose noise exp(level)·N^power makes errors most likely, N by trees that have not seen them.

    Leaves mix rows of different noise, so trees underestimate where it is large and overestimate where it is small.
    """
    from scipy.optimize import minimize
    from sklearn.model_selection import KFold

    noise = np.empty_like(error)
    n_folds = _N_FOLDS if len(inputs) < _N_ROWS_HALVED else 2
    for kept, held in KFold(n_folds, shuffle=True, random_state=0).split(inputs):
        trees: Any = clone(frame.trees)
        noise[held] = read_noise(trees.fit(inputs[kept], columns[kept]).predict(inputs[held]), error.shape[1])
    logs = np.log(noise + _SMALLEST)

    def compute_loss(numbers: Any, output: int) -> float:
        fitted = numbers[0] + numbers[1] * logs[:, output]
        return float(np.mean(fitted + 0.5 * (error[:, output] / np.exp(fitted)) ** 2))

    found = np.array([minimize(compute_loss, [0.0, 1.0], (each,), "Nelder-Mead").x for each in range(error.shape[1])])
    return replace(frame, level=found[:, 0], power=np.clip(found[:, 1], *_CONTRASTS))


def predict_left_out(
    owner: Any,
    backbone: Any,
    X: Any,
    columns: Floats,
    weights: Floats | None,
    layout: dict[str, Any] | None,
    *,
    by_fold: bool = False,
    n_folds: int = _N_FOLDS,
    n_used: int | None = None,
    n_jobs: int | None = None,
    eval_set: Any = None,
) -> Floats:
    """Predict the columns of each training row by a model that has not seen it, as cheaply as the backbone allows.

    Rows of folds that are not used are NaN.

    Parameters
    ----------
    owner : model, for errors
    backbone : fitted backbone
    X, columns, weights, layout, eval_set : what it was fitted on
    by_fold : bool, default False
        Whether to fit again without each part of the rows, however cheap leaving them out may be.
    n_folds, n_used, n_jobs : int
        The folds if it has to be fitted again, how many of them are left out (by default all), and how many of these
        fits run at once.
    """
    steps, forest = get_learner(backbone)
    if has_mean_leaves(forest) and not by_fold:
        left_out = _leave_out_of_leaves(forest, X if steps is None else steps.transform(X), columns, weights)
        if left_out is not None:
            return left_out
    from sklearn.model_selection import KFold

    table, left_out = make_indexable(X), np.full_like(columns, np.nan)
    folds = list(KFold(min(n_folds, len(columns)), shuffle=True, random_state=0).split(columns))[:n_used]

    def predict_fold(kept: Any, held: Any) -> Floats:
        part = None if weights is None else weights[kept]
        rows = _safe_indexing(table, kept)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit on all rows gave its own
            fold = fit_backbone(owner, _clone_chosen(backbone), rows, columns[kept], part, layout, eval_set=eval_set)
            return predict_columns(owner, fold, _safe_indexing(table, held), columns.shape[1])

    found: Any = Parallel(n_jobs=n_jobs)(delayed(predict_fold)(*fold) for fold in folds)
    for (_, held), predicted in zip(folds, found, strict=True):
        left_out[held] = predicted
    return left_out


def _clone_chosen(backbone: Any) -> Any:
    """Return an unfitted copy with what was chosen: the parameters of a search, or the lengths of columns."""
    steps, learner = get_learner(backbone)
    chosen = getattr(learner, "best_estimator_", None)
    if is_fitted_per_column(learner) and hasattr(learner.estimators_[0], "best_estimator_"):
        chosen = type(learner)(learner.estimators_[0].best_estimator_)
    if chosen is None:
        return keep_lengths(clone_backbone(backbone), backbone)
    return clone(chosen if steps is None else Pipeline([*steps.steps, ("chosen", chosen)]))


def has_mean_leaves(learner: Any) -> bool:
    """Return whether a learner is a forest whose leaves predict the mean of their rows."""
    from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

    is_forest = type(learner) in (ExtraTreesRegressor, RandomForestRegressor)
    return is_forest and learner.criterion != "absolute_error" and learner.monotonic_cst is None


def _leave_out_of_leaves(forest: Any, X: Any, columns: Floats, weights: Floats | None) -> Floats | None:
    """Predict each row by the leaves it falls in, without itself; with bootstrap, by the trees that did not see it.

    None if more than a tenth of the rows has no such leaf, as in a forest whose leaves hold one row each.
    """
    n_rows = len(columns)
    weights = np.ones(n_rows) if weights is None else weights
    total, n_trees = np.zeros_like(columns), np.zeros(n_rows)
    leaves = forest.apply(X)
    for tree, leaf in enumerate(leaves.T):
        inside = weights
        if forest.bootstrap:
            inside = weights * np.bincount(forest.estimators_samples_[tree], minlength=n_rows)
        weight = np.bincount(leaf, weights=inside)[leaf]
        sums = np.stack([np.bincount(leaf, weights=inside * column)[leaf] for column in columns.T], axis=1)
        own = np.zeros(n_rows) if forest.bootstrap else inside
        usable = (inside == 0) if forest.bootstrap else (weight - own > 1e-9 * weight)
        rest = (sums - own[:, None] * columns)[usable] / (weight - own)[usable, None]
        total[usable] += rest
        n_trees += usable
    # Rows that no tree left out are predicted by all trees, as long as there are few such rows.
    seen = n_trees == 0
    if seen.mean() > _MOST_SEEN:
        return None
    if seen.any():
        total[seen] = forest.predict(_safe_indexing(make_indexable(X), np.flatnonzero(seen)))
    return total / np.maximum(n_trees, 1)[:, None]
