"""Forests in few bytes: what model files hold in place of scikit-learn's trees.

A node of scikit-learn takes 64 bytes and 8 more for each output. Kept here are the thresholds of inner nodes, rounded
down to single precision, which splits rows in single precision alike, and the values of leaves, which `round_leaves`
brought to single precision when the model was fitted. Everything else follows from these, in the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
# Nodes that are unpacked at once: few enough for the cache of a processor, and many beside the cost of each call.
_N_NODES_AT_ONCE = 20_000

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
    n_nodes = packed.n_nodes.astype(np.intp)
    is_leaf = np.unpackbits(packed.leaf_bits, count=int(n_nodes.sum())).astype(bool)
    ends = np.cumsum(n_nodes)
    n_leaves = np.concatenate([[0], np.cumsum(is_leaf)])
    forest: list[Any] = []
    first = 0
    while first < len(n_nodes):
        start = int(ends[first] - n_nodes[first])
        last = max(int(np.searchsorted(ends, start + _N_NODES_AT_ONCE, side="right")), first + 1)
        end = int(ends[last - 1])
        leaves = slice(n_leaves[start], n_leaves[end])
        inner = slice(start - n_leaves[start], end - n_leaves[end])
        some = _take(packed, slice(first, last), inner, leaves)
        forest += _unpack_some(some, is_leaf[start:end])
        first = last
    return forest


def _take(packed: PackedForest, trees: slice, inner: slice, leaves: slice) -> PackedForest:
    """Return some of the trees, and their inner nodes and leaves; the bits that tell these apart stay."""
    parts = (
        (trees, ("kinds", "seeds", "depths", "n_nodes", "scales")),
        (inner, ("features", "thresholds", "jumps", "missing_left")),
        (leaves, ("values", "impurities", "counts", "weights")),
    )
    taken: dict[str, Any] = {}
    for part, names in parts:
        for name in names:
            whole = getattr(packed, name)
            taken[name] = None if whole is None else whole[part]
    return replace(packed, **taken)


def _unpack_some(packed: PackedForest, is_leaf: NDArray[np.bool_]) -> list[Any]:
    """Return the trees of `_take`."""
    tree_module: Any = import_module("sklearn.tree._tree")
    n_nodes = packed.n_nodes.astype(np.intp)
    nodes: Any = np.zeros(len(is_leaf), dtype=tree_module.NODE_DTYPE)
    inner = np.flatnonzero(~is_leaf)
    jumps = packed.jumps.astype(np.intp)
    right = np.arange(len(nodes))
    right[inner] += jumps
    starts = np.cumsum(n_nodes) - n_nodes
    ends = np.repeat(starts + n_nodes, n_nodes)
    is_inside = bool(np.all(n_nodes > 0)) and bool(np.all(jumps > 0)) and bool(np.all(right < ends))
    if not is_inside or len(jumps) != len(inner):
        raise InvalidInputError("Expected trees whose nodes lie inside them. Got one that points outside.")
    nodes["feature"], nodes["threshold"] = _NO_FEATURE, _NO_THRESHOLD
    nodes["feature"][inner], nodes["threshold"][inner] = packed.features, packed.thresholds
    own = inner - np.repeat(starts, n_nodes)[inner]
    nodes["left_child"] = nodes["right_child"] = _LEAF
    nodes["left_child"][inner], nodes["right_child"][inner] = own + 1, own + jumps
    if packed.missing_left is not None:
        nodes["missing_go_to_left"][inner] = packed.missing_left
    values = _fill_nodes(packed, nodes, is_leaf, right, starts)
    forest: list[Any] = []
    n_outputs = values.shape[1]
    n_classes = np.ones(n_outputs, dtype=np.intp)
    for tree, (start, count) in enumerate(zip(starts.tolist(), n_nodes.tolist(), strict=True)):
        template = packed.templates[int(packed.kinds[tree])]
        grown: Any = object.__new__(type(template))
        vars(grown).update(vars(template), random_state=int(packed.seeds[tree]))
        grown.tree_ = tree_module.Tree(template.n_features_in_, n_classes, n_outputs)
        part = slice(start, start + count)
        state = {"max_depth": int(packed.depths[tree]), "node_count": count}
        grown.tree_.__setstate__(state | {"nodes": nodes[part], "values": values[part]})
        forest.append(grown)
    return forest


def _fill_nodes(packed: PackedForest, nodes: Any, is_leaf: Any, right: Any, starts: Any) -> NDArray[np.float64]:
    """Fill in rows, weights and impurity of all nodes, and return their values, from those of the leaves."""
    last = right
    while not is_leaf[last].all():  # the last leaf below each node, always on the right; twice as far in each step
        last = last[last]
    places = np.cumsum(is_leaf)
    first, end = places - is_leaf, places[last]  # the leaves below each node
    first_leaves = first[starts]
    counts = packed.counts.astype(np.int64)
    weights = counts.astype(np.float64) if packed.weights is None else packed.weights
    leaf_values = packed.values.astype(np.float64)

    def add_up(numbers: Any) -> Any:
        sums = np.concatenate([np.zeros_like(numbers[:1]), np.cumsum(numbers, axis=0)])
        return sums[end] - sums[first]

    n_leaves = np.diff(first_leaves, append=len(counts))
    # Each tree around its own centre, so that little is lost to rounding.
    centers = np.add.reduceat(leaf_values * weights[:, None], first_leaves)
    centers /= np.add.reduceat(weights, first_leaves)[:, None]
    distance = leaf_values - np.repeat(centers, n_leaves, axis=0)
    total = add_up(weights)
    values = add_up(distance * weights[:, None]) / total[:, None]
    impurities = packed.impurities * np.repeat(packed.scales, n_leaves)
    squares = add_up((impurities + np.mean(distance**2, axis=1)) * weights) / total
    nodes["n_node_samples"], nodes["weighted_n_node_samples"] = add_up(counts), total
    nodes["impurity"] = np.maximum(squares - np.mean(values**2, axis=1), 0.0)
    values += np.repeat(centers, np.diff(starts, append=len(nodes)), axis=0)
    values[is_leaf], nodes["impurity"][is_leaf] = leaf_values, impurities
    return np.ascontiguousarray(values[:, :, None])
