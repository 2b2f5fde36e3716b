"""Boosters of LightGBM, XGBoost and CatBoost as trees of a graph, read from the models' own dumps.

LightGBM compares numbers in float64. XGBoost and CatBoost round features to float32, and so does the graph: every row
reaches the same leaf. XGBoost also adds up in float32; the graph adds up in float64.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from onsphere._internal.validation import Floats, get_library
from onsphere.errors import InvalidTypeError
from onsphere.export.graph_arrays import GraphArray
from onsphere.export.tree_graphs import Tree, add_ensemble

__all__ = ["get_booster_library", "sum_booster"]


def get_booster_library(model: Any) -> str | None:
    """Return "lightgbm", "xgboost" or "catboost" for a model of theirs; None for any other."""
    library = get_library(model)
    return library if library in ("lightgbm", "xgboost", "catboost") else None


def sum_booster(x: GraphArray, model: Any, *, has_classes: bool = False) -> GraphArray:
    """Return the sums of the trees of a booster of one of the three libraries, or of an estimator over one.

    These are what a regressor predicts, (n, D). Of a classifier they are the logits of the classes, (n, C), or that of
    the second of two, (n, 1).
    """
    library = get_booster_library(model)
    read = {"lightgbm": _read_lightgbm, "xgboost": _read_xgboost, "catboost": _read_catboost}[str(library)]
    trees, weights, base, outputs = read(model, has_classes)
    rows = x if library == "lightgbm" else x.cast(np.float32).cast(np.float64)
    return add_ensemble(rows, trees, weights, np.array(outputs, dtype=np.int64), len(base)) + base


# Trees, the values of their leaves, what is added to their sums, and the output that each tree belongs to.
_Sums = tuple[list[Tree], list[Floats], Floats, list[int]]


def _booster_error(model: Any, why: str, advice: str) -> InvalidTypeError:
    return InvalidTypeError(f"Expected a booster that can be exported. Got {type(model).__name__}, {why}. {advice}")


def _check_objective(
    model: Any, name: str, objective: str, known: dict[bool, tuple[str, ...]], has_classes: bool
) -> None:
    """Check that sums of trees are what a regressor predicts, or the logits of a classifier."""
    if objective not in known[has_classes]:
        why = f"with {name}={objective}, which predicts another number than the sum of its trees"
        advice = f"Use one that predicts the sum, for example {known[False][0]!r}."
        if has_classes:
            why = f"with {name}={objective}, whose sums of trees are no logits of classes"
            advice = f"Use {' or '.join(repr(each) for each in known[True])}."
        raise _booster_error(model, why, advice)


def _make_tree(nodes: list[tuple[Any, ...]]) -> Tree:
    """Return a tree of nodes (is_leaf, left, right, feature, threshold, missing_goes_left)."""
    kinds = (np.bool_, np.int64, np.int64, np.int64, np.float64, np.bool_)
    columns: Any = (np.array(each, dtype=kind) for each, kind in zip(zip(*nodes, strict=True), kinds, strict=True))
    return Tree(*columns)


# --- LightGBM ---

_LIGHTGBM = {
    False: ("regression", "regression_l1", "huber", "fair", "quantile", "mape"),
    True: ("binary", "multiclass"),
}


def _read_lightgbm(model: Any, has_classes: bool) -> _Sums:
    booster = getattr(model, "booster_", model)
    dump = booster.dump_model()
    objective, *settings = str(dump.get("objective", "none")).split(" ")
    is_known = has_classes or not settings  # "regression sqrt" predicts squares
    _check_objective(
        model, "objective", objective if is_known else " ".join([objective, *settings]), _LIGHTGBM, has_classes
    )
    if dump["average_output"]:
        raise _booster_error(model, "with boosting='rf'", "Use boosting='gbdt'.")
    scale = next((float(each.partition(":")[2]) for each in settings if each.startswith("sigmoid:")), 1.0)
    n_outputs = dump["num_tree_per_iteration"]
    pairs = [_walk_lightgbm(model, tree["tree_structure"]) for tree in dump["tree_info"]]
    outputs = [place % n_outputs for place in range(len(pairs))]
    return [tree for tree, _ in pairs], [scale * weights for _, weights in pairs], np.zeros(n_outputs), outputs


def _walk_lightgbm(model: Any, root: dict[str, Any]) -> tuple[Tree, Floats]:
    nodes: list[tuple[Any, ...]] = []
    weights: list[float] = []

    def add(node: dict[str, Any]) -> int:
        number = len(nodes)
        nodes.append((True, 0, 0, 0, 0.0, False))
        if "split_feature" not in node:
            if node.get("leaf_coeff"):
                raise _booster_error(model, "with linear_tree=True", "Use linear_tree=False.")
            weights.append(node["leaf_value"])
            return number
        if node["decision_type"] != "<=" or node["missing_type"] == "Zero":
            why = "with categorical features or zeros taken for missing values"
            raise _booster_error(model, why, "Encode categories as zeros and ones first.")
        # Where no value was missing in training, LightGBM takes 0 for one.
        missing_left = node["default_left"] if node["missing_type"] == "NaN" else node["threshold"] >= 0.0
        left, right = add(node["left_child"]), add(node["right_child"])
        nodes[number] = (False, left, right, node["split_feature"], node["threshold"], missing_left)
        return number

    add(root)
    return _make_tree(nodes), np.array(weights)


# --- XGBoost ---


_XGBOOST = {
    False: ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror"),
    True: ("binary:logistic", "multi:softprob"),
}


def _read_xgboost(model: Any, has_classes: bool) -> _Sums:
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    learner = json.loads(booster.save_raw("json").decode())["learner"]
    objective, kind = learner["objective"]["name"], learner["gradient_booster"]["name"]
    _check_objective(model, "objective", objective, _XGBOOST, has_classes=has_classes)
    if kind != "gbtree":
        raise _booster_error(model, f"with booster={kind}", "Use booster='gbtree'.")
    found, outputs = (learner["gradient_booster"]["model"][name] for name in ("trees", "tree_info"))
    settings = learner["learner_model_param"]
    n_outputs = max(int(settings["num_target"]), int(settings["num_class"]))
    if hasattr(model, "get_booster") and booster.attr("best_iteration") is not None:  # as predict does
        n_trees = (int(booster.attr("best_iteration")) + 1) * n_outputs
        found, outputs = found[:n_trees], outputs[:n_trees]
    pairs = [_walk_xgboost(model, tree) for tree in found]
    base = np.ravel(json.loads(settings["base_score"])).astype(np.float64)
    if objective == "binary:logistic":  # which is kept as a probability
        base = np.log(base / (1.0 - base))
    base = np.broadcast_to(base, (n_outputs,))
    return [tree for tree, _ in pairs], [weights for _, weights in pairs], base, outputs


def _walk_xgboost(model: Any, found: dict[str, Any]) -> tuple[Tree, Floats]:
    if any(found["split_type"]) or int(found["tree_param"]["size_leaf_vector"]) > 1:
        why = "with categorical features or vector leaves"
        raise _booster_error(model, why, "Encode categories as zeros and ones first, and use one_output_per_tree.")
    left = np.array(found["left_children"], dtype=np.int64)
    is_leaf = left < 0
    conditions = np.array(found["split_conditions"], dtype=np.float32)
    # A row goes left below the condition, and the graph compares with "at most".
    threshold = np.nextafter(conditions, np.float32(-np.inf)).astype(np.float64)
    tree = Tree(
        is_leaf,
        left,
        np.array(found["right_children"], dtype=np.int64),
        np.array(found["split_indices"], dtype=np.int64),
        threshold,
        np.array(found["default_left"], dtype=np.bool_),
    )
    return tree, conditions[is_leaf].astype(np.float64)


# --- CatBoost ---


_CATBOOST = {
    False: ("RMSE", "MAE", "Quantile", "LogLinQuantile", "MAPE", "Huber", "Expectile", "Lq", "MultiRMSE"),
    True: ("Logloss", "CrossEntropy", "MultiClass"),
}


def _read_catboost(model: Any, has_classes: bool) -> _Sums:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        dump = json.loads(path.read_text())
    features = dump["features_info"]
    if "oblivious_trees" not in dump or features.get("categorical_features") or features.get("text_features"):
        why = "with categorical features or trees that are not symmetric"
        raise _booster_error(model, why, "Encode categories as zeros and ones first, and use SymmetricTree.")
    loss = str(model.get_all_params().get("loss_function", "RMSE")).partition(":")[0]
    _check_objective(model, "loss_function", loss, _CATBOOST, has_classes=has_classes)
    scale, bias = dump["scale_and_bias"]
    base = np.ravel(bias).astype(np.float64)
    missing = {each["feature_index"]: each["nan_value_treatment"] != "AsTrue" for each in features["float_features"]}
    trees: list[Tree] = []
    weights: list[Floats] = []
    for found in dump["oblivious_trees"]:
        values = np.reshape(found["leaf_values"], (-1, len(base))) * scale
        # The operator allows a leaf only one number, so that each output has a copy of the tree.
        trees += [_grow_symmetric(found["splits"] or [], missing)] * len(base)
        weights += [_order_leaves(column) for column in values.T]
    return trees, weights, base, list(range(len(base))) * len(dump["oblivious_trees"])


def _grow_symmetric(splits: list[dict[str, Any]], missing: dict[int, bool]) -> Tree:
    """Return the tree that asks the same question in all nodes of a level; children of node i are 2i + 1 and 2i + 2."""
    nodes: list[tuple[Any, ...]] = []
    for level, split in enumerate(splits):
        for number in range(2**level - 1, 2 ** (level + 1) - 1):
            feature = split["float_feature_index"]
            nodes.append((False, 2 * number + 1, 2 * number + 2, feature, split["border"], missing[feature]))
    return _make_tree([*nodes, *[(True, 0, 0, 0, 0.0, False)] * 2 ** len(splits)])


def _order_leaves(values: Floats) -> Floats:
    """Return the leaves from left to right; CatBoost counts them with the first question as the lowest bit."""
    depth = len(values).bit_length() - 1
    return values.reshape((2,) * depth).transpose(range(depth)[::-1]).ravel()
