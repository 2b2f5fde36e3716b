"""Fitted classifiers as parts of a graph: the probabilities of their classes, as their `predict_proba` gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from onsphere.export.booster_graphs import get_booster_library, sum_booster
from onsphere.export.graph_arrays import GraphArray, concat
from onsphere.export.tree_graphs import average_forest, sum_boosted_trees

__all__ = ["add_first_class", "convert_classifier"]


def convert_classifier(model: Any, x: GraphArray) -> GraphArray | None:
    """Return the probability of each class, (n, C), or of the second of two, (n, 1); None for a model of other kinds.

    What skl2onnx writes for these models rounds to float32.
    """
    match model:
        case ExtraTreesClassifier() | RandomForestClassifier():
            return average_forest(x, [tree.tree_ for tree in model.estimators_])
        case DecisionTreeClassifier():
            return average_forest(x, [model.tree_])
        case HistGradientBoostingClassifier():
            columns = list(zip(*model._predictors, strict=True))
            return _turn_into_probabilities(sum_boosted_trees(x, columns, np.ravel(model._baseline_prediction)))
        case LogisticRegression():
            weights, shift = (np.asarray(part, dtype=np.float64) for part in (model.coef_, model.intercept_))
            return _turn_into_probabilities(x @ weights.T + shift)
        case _ if get_booster_library(model) is not None:
            return _turn_into_probabilities(sum_booster(x, model, has_classes=True))
        case _:
            return None


def _turn_into_probabilities(sums: GraphArray) -> GraphArray:
    """Return the logistic function of one column, or the softmax of several."""
    if sums.shape[1] == 1:
        return 1.0 / ((sums * -1.0).apply("Exp") + 1.0)
    powers = (sums - sums.reduce("ReduceMax", axis=1, keepdims=True)).apply("Exp")
    return powers / powers.reduce("ReduceSum", axis=1, keepdims=True)


def add_first_class(table: GraphArray) -> GraphArray:
    """Return the probabilities of both classes, if the table has that of the second alone."""
    return concat([1.0 - table, table]) if table.shape[1] == 1 else table
