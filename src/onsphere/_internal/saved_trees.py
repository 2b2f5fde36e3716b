"""Check trees loaded from a file: a node that points outside its tree would crash the process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from onsphere.errors import InvalidInputError

__all__ = ["check_trees"]


def check_trees(model: Any) -> None:
    """Check every tree in a model: children come after their parents and inside the tree, features inside the table."""
    for tree, n_features in _iterate_trees(model, math.inf, set()):
        if hasattr(tree, "nodes"):  # histogram gradient boosting
            nodes = tree.nodes
            inner = nodes["is_leaf"] == 0
            children, features = (nodes["left"][inner], nodes["right"][inner]), nodes["feature_idx"][inner]
        else:
            inner = np.asarray(tree.children_left) >= 0
            children, features = (tree.children_left[inner], tree.children_right[inner]), tree.feature[inner]
        parents = np.flatnonzero(inner)
        inside = all(bool(np.all((child > parents) & (child < len(inner)))) for child in children)
        if not (inside and bool(np.all((features >= 0) & (features < n_features)))):
            raise InvalidInputError("Expected trees whose nodes lie inside them. Got one that points outside.")


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
        yield from _iterate_trees(each, n_features, seen)
