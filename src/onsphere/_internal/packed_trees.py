"""Forests in few bytes: what model files hold in place of scikit-learn's trees.

A node of scikit-learn takes 64 bytes and 8 more for each output. Kept here are the thresholds of inner nodes, rounded
down to single precision, which splits rows in single precision alike, and the values of leaves, which `round_leaves`
brought to single precision when the model was fitted. Everything else follows from these, in the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from onsphere.errors import InvalidInputError

__all__ = ["PackedForest", "pack_trees", "round_leaves", "unpack_trees"]

# Leaves keep double precision where rounding would move them by more than this share of their spread.
_ROUNDING = 1e-6

_LEAF, _NO_FEATURE, _NO_THRESHOLD = -1, -2, -2.0
_OWN = ("tree_", "random_state")  # what differs between the trees of a forest


@dataclass(frozen=True, eq=False)
class PackedForest:
    """The trees of a forest, one after the other.

    Attributes
    ----------
    templates : list of regressors
        A tree of each kind in the forest, without its nodes.
    kinds, seeds, depths, n_nodes : arrays of shape (trees,)
        The template, random state and depth of each tree, and how many nodes it has.
    leaf_bits : bytes as an array
        Whether each node is a leaf.
    features, thresholds, jumps : arrays of shape (inner nodes,)
        What the node asks for, and how many nodes further its right child is; the left one is next.
    missing_left : array of shape (inner nodes,), or None
        Whether missing values go left; None if they nowhere do.
    values : array of shape (leaves, outputs)
    impurities, scales : arrays of shape (leaves,) and (trees,)
        The impurity of each leaf in units of that of its root, and that of the root.
    counts, weights : arrays of shape (leaves,)
        Training rows in each leaf, and the sum of their weights; None if these are the same.
    """

    templates: list[Any]
    kinds: NDArray[np.unsignedinteger]
    seeds: NDArray[np.unsignedinteger]
    depths: NDArray[np.unsignedinteger]
    n_nodes: NDArray[np.unsignedinteger]
    leaf_bits: NDArray[np.uint8]
    features: NDArray[np.unsignedinteger]
    thresholds: NDArray[np.float32]
    jumps: NDArray[np.unsignedinteger]
    missing_left: NDArray[np.uint8] | None
    values: NDArray[np.floating]
    impurities: NDArray[np.float16]
    scales: NDArray[np.float64]
    counts: NDArray[np.unsignedinteger]
    weights: NDArray[np.floating] | None


def round_leaves(model: Any) -> None:
    """Round the leaves of all trees that a model has learned to single precision, in place; a user's trees stay."""

    def round_forest(part: Any) -> Any:
        for tree in part if _is_forest(part) else ():
            values = tree.tree_.value
            rounded = values.astype(np.float32).astype(np.float64)
            lost = np.sqrt(np.mean((rounded - values) ** 2, axis=(0, 2)))
            if bool(np.all(lost <= _ROUNDING * values.std(axis=(0, 2)))):
                values[...] = rounded
        return part if _is_forest(part) or type(part).__name__ == "FittedModel" else None

    _replace_parts({name: part for name, part in vars(model).items() if name != "estimator"}, round_forest, {})


def pack_trees(model: Any) -> Any:
    """Return a model with packed forests, and the same other parts; the given one stays as it is."""
    return _replace_parts(model, lambda part: _pack(part) if _is_forest(part) else None, {})


def unpack_trees(model: Any) -> Any:
    """Return a model with the forests that were packed."""
    return _replace_parts(model, lambda part: _unpack(part) if isinstance(part, PackedForest) else None, {})


def _replace_parts(part: Any, change: Callable[[Any], Any], known: dict[int, Any]) -> Any:
    """Return a part of a model in which `change` replaced what it has an answer for; unchanged parts are shared."""
    if id(part) in known:
        return known[id(part)]
    known[id(part)] = part  # where parts hold each other
    changed = change(part)
    if changed is None:
        changed = part
        if isinstance(part, dict):
            items = {key: _replace_parts(value, change, known) for key, value in part.items()}
            if any(items[key] is not value for key, value in part.items()):
                changed = items
        elif type(part) in (list, tuple):
            parts = [_replace_parts(each, change, known) for each in part]
            if any(new is not old for new, old in zip(parts, part, strict=True)):
                changed = type(part)(parts)
        elif _holds_parts(part):
            own = vars(part)
            attributes = _replace_parts(own, change, known)
            if attributes is not own:
                changed = object.__new__(type(part))
                vars(changed).update(attributes)
    known[id(part)] = changed
    return changed


def _holds_parts(part: Any) -> bool:
    """Return whether a part is an estimator, or another object of ours with attributes."""
    is_ours = type(part).__module__.startswith("onsphere.") and hasattr(part, "__dict__")
    return is_ours or isinstance(part, BaseEstimator)


def _is_forest(part: Any) -> bool:
    from sklearn.tree import DecisionTreeRegressor, ExtraTreeRegressor

    kinds = (DecisionTreeRegressor, ExtraTreeRegressor)
    return type(part) is list and len(part) > 0 and all(type(tree) in kinds and hasattr(tree, "tree_") for tree in part)


def _pack(forest: list[Any]) -> PackedForest | None:
    """Return the same trees packed; None where that would lose something."""
    templates: list[Any] = []
    kinds: list[int] = []
    for tree in forest:
        settings = _get_settings(tree)
        same = [type(each) is type(tree) and _get_settings(each) == settings for each in templates]
        if True not in same:
            template = object.__new__(type(tree))
            vars(template).update(settings)
            templates.append(template)
        kinds.append(same.index(True) if True in same else len(same))
    seeds = [tree.random_state for tree in forest]
    if len(templates) > 2 or not all(isinstance(seed, int | np.integer) and seed >= 0 for seed in seeds):
        return None
    states = [tree.tree_.__getstate__() for tree in forest]
    nodes: Any = np.concatenate([state["nodes"] for state in states])
    n_nodes = np.array([len(state["nodes"]) for state in states])
    is_leaf = nodes["left_child"] == _LEAF
    inner, places = nodes[~is_leaf], np.concatenate([np.arange(count) for count in n_nodes])
    is_usual = all(tree.criterion == "squared_error" for tree in forest)
    is_in_order = bool(np.all(inner["left_child"] == places[~is_leaf] + 1))  # not grown from the best node on
    if not (is_usual and is_in_order and bool(np.all(nodes["weighted_n_node_samples"] > 0))):
        return None
    values = np.concatenate([state["values"][:, :, 0] for state in states])[is_leaf]
    single = values.astype(np.float32)
    roots, leaves = nodes["impurity"][np.cumsum(n_nodes) - n_nodes], nodes[is_leaf]
    scales = np.where(roots > 0, roots, 1.0)
    missing_left = inner["missing_go_to_left"]
    has_weights = bool(np.any(leaves["weighted_n_node_samples"] != leaves["n_node_samples"]))
    return PackedForest(
        templates=templates,
        kinds=_shrink(np.array(kinds)),
        seeds=_shrink(np.array(seeds)),
        depths=_shrink(np.array([state["max_depth"] for state in states])),
        n_nodes=_shrink(n_nodes),
        leaf_bits=np.packbits(is_leaf),
        features=_shrink(inner["feature"]),
        thresholds=_round_down(inner["threshold"]),
        jumps=_shrink(inner["right_child"] - places[~is_leaf]),
        missing_left=missing_left.copy() if missing_left.any() else None,
        values=single if np.array_equal(single, values) else values,
        impurities=(leaves["impurity"] / np.repeat(scales, n_nodes)[is_leaf]).astype(np.float16),
        scales=scales,
        counts=_shrink(leaves["n_node_samples"]),
        weights=leaves["weighted_n_node_samples"].copy() if has_weights else None,
    )


def _get_settings(tree: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(tree).items() if name not in _OWN}


def _shrink(numbers: NDArray[Any]) -> NDArray[np.unsignedinteger]:
    """Return whole numbers that are not negative in as few bytes as the largest needs."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _round_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest number of single precision that is not above each threshold."""
    single = thresholds.astype(np.float32)
    return np.where(single > thresholds, np.nextafter(single, np.float32(-np.inf)), single)


def _unpack(packed: PackedForest) -> list[Any]:
    tree_module: Any = import_module("sklearn.tree._tree")
    n_nodes = packed.n_nodes.astype(np.intp)
    is_leaf = np.unpackbits(packed.leaf_bits, count=int(n_nodes.sum())).astype(bool)
    nodes: Any = np.zeros(len(is_leaf), dtype=tree_module.NODE_DTYPE)
    inner = np.flatnonzero(~is_leaf)
    jumps = packed.jumps.astype(np.intp)
    last = np.arange(len(nodes))
    last[inner] += jumps
    if bool(np.any(jumps < 1)) or len(jumps) != len(inner) or bool(np.any(last >= len(nodes))):
        raise InvalidInputError("Expected trees whose nodes lie inside them. Got one that points outside.")
    right = last.copy()
    while not is_leaf[last].all():  # the last leaf below each node, always on the right
        last = right[last]
    nodes["feature"], nodes["threshold"] = _NO_FEATURE, _NO_THRESHOLD
    nodes["feature"][inner], nodes["threshold"][inner] = packed.features, packed.thresholds
    nodes["left_child"] = nodes["right_child"] = _LEAF
    if packed.missing_left is not None:
        nodes["missing_go_to_left"][inner] = packed.missing_left
    starts = np.cumsum(n_nodes) - n_nodes
    first_leaves = np.concatenate([[0], np.cumsum(is_leaf)])[starts]
    forest: list[Any] = []
    for tree, (start, count) in enumerate(zip(starts.tolist(), n_nodes.tolist(), strict=True)):
        part, leaf = nodes[start : start + count], is_leaf[start : start + count]
        asks = np.flatnonzero(~leaf)
        part["left_child"][asks], part["right_child"][asks] = asks + 1, right[start + asks] - start
        found = slice(first_leaves[tree], first_leaves[tree] + int(leaf.sum()))
        values = _fill_nodes(packed, tree, part, leaf, last[start : start + count] - start, found)
        template = packed.templates[int(packed.kinds[tree])]
        grown: Any = object.__new__(type(template))
        vars(grown).update(vars(template), random_state=int(packed.seeds[tree]))
        n_outputs = values.shape[1]
        grown.tree_ = tree_module.Tree(template.n_features_in_, np.ones(n_outputs, dtype=np.intp), n_outputs)
        state = {"max_depth": int(packed.depths[tree]), "node_count": count, "nodes": part, "values": values}
        grown.tree_.__setstate__(state)
        forest.append(grown)
    return forest


def _fill_nodes(
    packed: PackedForest, tree: int, nodes: Any, is_leaf: Any, last: Any, found: slice
) -> NDArray[np.float64]:
    """Fill in rows, weights and impurity of the nodes of a tree, and return their values, from those of its leaves."""
    counts = packed.counts[found].astype(np.int64)
    weights = counts.astype(np.float64) if packed.weights is None else packed.weights[found]
    leaf_values = packed.values[found].astype(np.float64)
    places = np.concatenate([[0], np.cumsum(is_leaf)])
    first, end = places[np.arange(len(nodes))], places[last + 1]  # the leaves below each node

    def add_up(numbers: Any) -> Any:
        sums = np.concatenate([np.zeros_like(numbers[:1]), np.cumsum(numbers, axis=0)])
        return sums[end] - sums[first]

    total = add_up(weights)
    center = np.average(leaf_values, axis=0, weights=weights)  # so that little is lost to rounding
    distance = leaf_values - center
    values = add_up(distance * weights[:, None]) / total[:, None]
    impurities = packed.impurities[found] * packed.scales[tree]
    squares = add_up((impurities + np.mean(distance**2, axis=1)) * weights) / total
    nodes["n_node_samples"], nodes["weighted_n_node_samples"] = add_up(counts), total
    nodes["impurity"] = np.maximum(squares - np.mean(values**2, axis=1), 0.0)
    values += center
    values[is_leaf], nodes["impurity"][is_leaf] = leaf_values, impurities
    return np.ascontiguousarray(values[:, :, None])
