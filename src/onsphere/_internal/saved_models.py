"""Models from files: names and settings of older versions, and a check of trees, whose nodes could point outside."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from onsphere.errors import InvalidInputError

__all__ = ["add_settings", "check_trees", "mark_unsigned", "rename_settings", "rename_types"]

# Where the modules and classes of version 0.1 are now.
_MODULES = {
    "onsphere.baselines.softmax_network": "onsphere.baselines.likelihood",
    "onsphere.calibration": "onsphere.calibration.calibration",
    "onsphere.embeddings.polar": "onsphere.sphere.embeddings",
    "onsphere.embeddings.torus": "onsphere.sphere.torus",
    "onsphere.embeddings.onehot": "onsphere.sphere.onehot",
    "onsphere.estimators.regressor": "onsphere.models.regressor",
    "onsphere.estimators.classifier": "onsphere.models.classifier",
    "onsphere.frozen.designs": "onsphere.models.frozen.ridge",
    "onsphere.frozen.head": "onsphere.models.frozen.frozen_head",
    "onsphere.frozen.ridge": "onsphere.models.frozen.ridge",
    "onsphere.frozen.sample": "onsphere.models.frozen.sums",
    "onsphere.frozen.sums": "onsphere.models.frozen.sums",
    "onsphere.frozen.targets": "onsphere.models.frozen.targets",
    "onsphere.tabular.columns": "onsphere.table.columns",
    "onsphere.tabular.encoding": "onsphere.table.encoder",
}
_CLASSES = {"Quantile": "AcceptShare", "Risk": "MaxErrorRate"}


def rename_types(content: bytes) -> bytes:
    """Return the same skops file with the classes of onsphere under the names they have now."""
    renamed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(renamed, "w") as new:
        for part in old.infolist():
            data = old.read(part)
            if part.filename == "schema.json":
                data = json.dumps(json.loads(data, object_hook=_rename)).encode()
            new.writestr(part.filename, data)
    return renamed.getvalue()


def _rename(node: dict[str, Any]) -> dict[str, Any]:
    module = node.get("__module__")
    if isinstance(module, str) and module.startswith("onsphere."):
        name = node.get("__class__")
        node |= {"__module__": _MODULES.get(module, module), "__class__": _CLASSES.get(str(name), name)}
    return node


def rename_settings(model: Any) -> None:
    """Give a loaded model the names that its settings have now."""
    if "_measured_with" in vars(model):
        model._calibrated_with = vars(model).pop("_measured_with")
    for settings in (vars(model), vars(model).get("_calibrated_with", {})):
        if settings.get("uncertainty_score") == "uncertainty":
            settings["uncertainty_score"] = "distance"
    if vars(model).get("_rule") is not None and "q" in vars(model._rule):
        vars(model._rule)["share"] = vars(model._rule).pop("q")


# Settings that models of formats 1 to 3 (and "frames" of 1 and 2) do not have, with what these models do.
_LATER_SETTINGS = {"frames": "target", "domain": None, "shape": "pooled"}


def add_settings(model: Any) -> None:
    """Give a loaded model of format 1 to 3 the settings that came later."""
    for name in set(_LATER_SETTINGS) & set(model._get_param_names()):
        vars(model).setdefault(name, _LATER_SETTINGS[name])


def mark_unsigned(calibration: Any) -> None:
    """Give the calibration of a file of formats 1 to 3, which kept |errors| only, the name that they have now."""
    kept = getattr(calibration, "__dict__", {})  # a model may have none
    if "ratios" in kept:
        kept.update(residuals=kept.pop("ratios"), is_signed=False)


def check_trees(model: Any) -> None:
    """Check every tree in a model: children come after their parents and inside the tree, features inside the table."""
    for tree, n_features in _iterate_trees(model, math.inf, set()):
        if hasattr(tree, "nodes"):  # histogram gradient boosting
            nodes = tree.nodes
            inner = nodes["is_leaf"] == 0
            left, right, features = nodes["left"][inner], nodes["right"][inner], nodes["feature_idx"][inner]
            _check_bitsets(tree, nodes[inner & (nodes["is_categorical"] != 0)]["bitset_idx"])
        else:
            left = np.asarray(tree.children_left)
            inner = left >= 0
            left, right, features = left[inner], tree.children_right[inner], tree.feature[inner]
        is_after = (np.minimum(left, right) > np.flatnonzero(inner)).all()
        is_inside = (np.maximum(left, right) < len(inner)).all()
        if not (is_after and is_inside and ((features >= 0) & (features < n_features)).all()):
            raise InvalidInputError(_OUTSIDE)


_OUTSIDE = "Expected trees whose nodes lie inside them. Got one that points outside."


def _check_bitsets(tree: Any, places: Any) -> None:
    """Check that the nodes which split categories have their sets of categories."""
    for bitsets in (tree.binned_left_cat_bitsets, tree.raw_left_cat_bitsets):
        if len(places) and not (np.shape(bitsets)[1:] == (8,) and int(places.max()) < len(bitsets)):
            raise InvalidInputError(_OUTSIDE)


_PLAIN = {bool, bytes, float, int, str, type(None)}


def _iterate_trees(part: Any, n_features: float, seen: set[int]) -> Iterator[tuple[Any, float]]:
    """Yield the trees anywhere in the attributes of a model, each with the number of features that it may use."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if hasattr(part, "children_left") or type(part).__name__ == "TreePredictor":
        yield part, n_features
        return
    if isinstance(part, dict):
        parts: Any = part.values()
    elif isinstance(part, list | tuple) or (isinstance(part, np.ndarray) and part.dtype == object):
        parts = part
    else:
        parts = vars(part).values() if hasattr(part, "__dict__") and not isinstance(part, type) else ()
        # Forests pass their rows on as they are; an estimator that holds a pipeline may not.
        hands_on = any(hasattr(part, name) for name in ("estimators_", "tree_", "_predictors"))
        n_features = min(n_features, getattr(part, "n_features_in_", math.inf)) if hands_on else math.inf
    for each in parts:
        if type(each) not in _PLAIN:  # most attributes, in trees above all
            yield from _iterate_trees(each, n_features, seen)
