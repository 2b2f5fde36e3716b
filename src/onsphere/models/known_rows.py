"""Warn about rows that a fitted model was trained on.

They show by the leaves of its trees, which store how many training rows they held, by targets that it reproduces, and
by errors far below those on other rows.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, get_library, is_frame
from onsphere.errors import OnsphereWarning
from onsphere.models.backbone import find_table, get_learner

__all__ = ["compute_p_value", "warn_about_known_leaves", "warn_about_known_targets", "warn_about_small_errors"]

# New rows fill the leaves this evenly in one of ten thousand fits.
_UNLIKELY = 1e-4

# An error below this share of the spread is no error.
_SAME = 1e-9

# Rows needed to compare errors at fit with those at calibration: with this many of both, one median is twice the other
# by chance in one of 500 calibrations.
_N_COMPARED = 50


def warn_about_known_targets(error: Floats, spread: Floats, *, stacklevel: int) -> bool:
    """Warn if a fitted model makes no error (n, D) on most rows, and return whether that is so."""
    share = float(np.mean(np.all(np.abs(error) <= _SAME * spread, axis=1)))
    is_known = share > 0.5 and bool(np.any(spread > 0))
    if is_known:
        warnings.warn(
            f"The fitted model reproduces the target of {share:.0%} of the rows exactly, so it was probably trained on "
            "them. Errors on such rows are smaller than those to come. Fit on rows that it has not seen.",
            OnsphereWarning,
            stacklevel=stacklevel + 1,
        )
    return is_known


def warn_about_small_errors(n_rows: int, median: float, errors: Floats, *, stacklevel: int) -> None:
    """Warn if the median error of a fitted model on the rows of fit is far below its errors on calibration rows."""
    if min(n_rows, len(errors)) >= _N_COMPARED and 2 * median < np.median(errors):
        warnings.warn(
            "The errors of the fitted model on the rows given to fit are less than half of those on the calibration "
            "rows, so it was probably trained on the rows given to fit. Noise learned from them is too small: fit on "
            "rows that the model has not seen.",
            OnsphereWarning,
            stacklevel=stacklevel + 1,
        )


def warn_about_known_leaves(model: Any, rows: Any, *, stacklevel: int) -> None:
    """Warn if rows fill the first tree of a fitted model as its training rows do."""
    steps, learner = get_learner(model)
    found = _count_leaves(learner, rows if steps is None else steps.transform(rows))
    if found is not None and compute_p_value(*found) < _UNLIKELY:
        warnings.warn(
            f"The rows given to fit fill the leaves of the fitted {type(learner).__name__} just as the rows did that "
            "it was trained on, so they are probably the same. Errors on such rows are smaller than those to come, and "
            "intervals will be too narrow. Fit on rows that it has not seen.",
            OnsphereWarning,
            stacklevel=stacklevel + 1,
        )


def compute_p_value(given: NDArray[Any], trained: NDArray[Any]) -> float:
    """Return how likely new rows are to fill the leaves at least as evenly as the given ones.

    New rows drawn like the training rows differ from their shares in the leaves by chance, by as much as Pearson's
    statistic allows; a large part of the training rows differs by much less, and all of them not at all.

    Examples
    --------
    >>> import numpy as np
    >>> trained = np.array([30, 50, 20, 40, 60, 25, 35, 40])
    >>> compute_p_value(trained, trained) < 1e-3, compute_p_value(trained[::-1], trained) < 1e-3
    (True, False)
    """
    from scipy.stats import chi2

    grown = trained > 0
    expected = given.sum() * trained[grown] / trained.sum()
    statistic = np.sum((given[grown] - expected) ** 2 / expected)
    # Counts are whole numbers: the fewer leaves there are, the more often they are equal by chance.
    return float(chi2.cdf(statistic + len(expected) / given.sum(), max(len(expected) - 1, 1)))


def _count_leaves(learner: Any, rows: Any) -> tuple[Floats, Floats] | None:
    """Return how many rows reach each leaf of the first tree, and how many did in training; None for other models."""
    library = get_library(learner)
    count = {"lightgbm": _count_lightgbm, "xgboost": _count_xgboost, "catboost": _count_catboost}.get(library)
    if count is None:
        return _count_sklearn(learner, rows)
    if library == "catboost" and np.size(learner.get_scale_and_bias()[1]) > 1:
        return None  # it does not say how many rows a leaf with several numbers had
    leaves, trained = count(learner, rows)
    return np.bincount(leaves.astype(np.intp), minlength=len(trained)).astype(np.float64), trained


def _count_lightgbm(model: Any, rows: Any) -> tuple[NDArray[Any], Floats]:
    booster = getattr(model, "booster_", model)
    nodes = _iterate_nodes(booster.dump_model(num_iteration=1)["tree_info"][0]["tree_structure"])
    trained = {node["leaf_index"]: node["leaf_count"] for node in nodes if "leaf_index" in node}
    leaves = np.asarray(booster.predict(rows, pred_leaf=True, num_iteration=1))
    return leaves.reshape(len(leaves), -1)[:, 0], _fill(trained)


def _count_xgboost(model: Any, rows: Any) -> tuple[NDArray[Any], Floats]:
    from xgboost import DMatrix

    booster = (model.get_booster() if hasattr(model, "get_booster") else model)[:1]
    nodes = _iterate_nodes(json.loads(booster.get_dump(with_stats=True, dump_format="json")[0]))
    trained = {node["nodeid"]: node["cover"] for node in nodes if "leaf" in node}
    leaves = booster.predict(DMatrix(rows, enable_categorical=is_frame(rows)), pred_leaf=True)
    return leaves.reshape(len(leaves), -1)[:, 0], _fill(trained)


def _iterate_nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a tree as LightGBM and XGBoost write it."""
    yield node
    children = [node[name] for name in ("left_child", "right_child") if name in node]
    for child in node.get("children", children):
        yield from _iterate_nodes(child)


def _count_catboost(model: Any, rows: Any) -> tuple[NDArray[Any], Floats]:
    n_leaves = int(model.get_tree_leaf_counts()[0])
    leaves = np.asarray(model.calc_leaf_indexes(rows, ntree_start=0, ntree_end=1))
    return leaves[:, 0], np.asarray(model.get_leaf_weights()[:n_leaves], dtype=np.float64)


def _count_sklearn(learner: Any, rows: Any) -> tuple[Floats, Floats] | None:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if isinstance(learner, HistGradientBoostingClassifier | HistGradientBoostingRegressor):
        return _count_hist(learner, rows)
    first = np.ravel(getattr(learner, "estimators_", [learner]))[0]
    if not hasattr(first, "tree_"):
        return None
    leaves = np.asarray(learner.apply(rows)).reshape(len(rows), -1)[:, 0].astype(np.intp)
    trained = np.where(first.tree_.children_left < 0, first.tree_.n_node_samples, 0)
    return np.bincount(leaves, minlength=len(trained)).astype(np.float64), trained.astype(np.float64)


def _count_hist(learner: Any, rows: Any) -> tuple[Floats, Floats] | None:
    found = find_table(learner, rows)
    if found is None or learner._preprocessor is not None:  # which renumbers categories
        return None
    table, nodes = found[1], learner._predictors[0][0].nodes
    place = np.zeros(len(table), dtype=np.intp)
    while not nodes["is_leaf"][place].all():
        values, node = table[np.arange(len(table)), nodes["feature_idx"][place]], nodes[place]
        is_left = np.where(np.isnan(values), node["missing_go_to_left"] > 0, values <= node["num_threshold"])
        place = np.where(node["is_leaf"] > 0, place, np.where(is_left, node["left"], node["right"]))
    trained = np.where(nodes["is_leaf"], nodes["count"], 0)
    return np.bincount(place, minlength=len(nodes)).astype(np.float64), trained.astype(np.float64)


def _fill(trained: dict[int, float]) -> Floats:
    """Return counts in the order of their leaves, 0 for the numbers of other nodes."""
    counts = np.zeros(max(trained) + 1)
    counts[list(trained)] = list(trained.values())
    return counts
