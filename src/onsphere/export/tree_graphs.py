"""Trees in a graph, in double precision.

onnxruntime compares numbers in the type of the thresholds. A forest of scikit-learn rounds its features to float32 and
compares them with thresholds in float64; the graph does the same, so every row reaches the same leaf. Histogram
gradient boosting rounds nothing, in scikit-learn and in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.export.graph_arrays import ROWS, GraphArray, hide_infinite_rows
from onsphere.export.graph_builder import ML

__all__ = ["Tree", "add_ensemble", "average_forest", "look_up_steps", "sum_boosted_trees"]

_SUM, _AT_MOST = 1, 0  # the operator's codes for them
_N_NODES = 2**16  # of trees that are run together: some megabytes


@dataclass(frozen=True, eq=False)
class Tree:
    """Nodes, the root first; an inner node goes left if its feature is at most its threshold."""

    is_leaf: NDArray[np.bool_]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: Floats
    missing_goes_left: NDArray[np.bool_]


# The operator has no lone leaf: it wants a node whose sides are the same leaf.
_LONE_LEAF = Tree(
    np.array([False, True]), np.ones(2, int), np.ones(2, int), np.zeros(2, int), np.zeros(2), np.zeros(2, bool)
)


def average_forest(x: GraphArray, trees: list[Any]) -> GraphArray:
    """Return the mean of fitted trees of scikit-learn, which may have several outputs or classes."""
    rounded = x.cast(np.float32).cast(np.float64)
    first, *others = _group_trees(trees)
    total = _find_leaves(rounded, first).reduce("ReduceSum", axis=1, keepdims=True)
    for group in others:
        leaves = _find_leaves(rounded, group)
        # The total comes first in the sum, so that trees are added in the order of scikit-learn, to the last digit.
        shape = (ROWS, 1 + len(group), leaves.shape[2])
        total = total.apply("Concat", leaves, shape=shape, axis=1).reduce("ReduceSum", axis=1, keepdims=True)
    # scikit-learn rejects numbers that are too large for float32.
    return hide_infinite_rows(rounded, total[:, 0] / float(len(trees)))


def _group_trees(trees: list[Any]) -> list[list[Any]]:
    """Split trees into groups that fit the cache: onnxruntime runs each row through all trees of an operator."""
    groups: list[list[Any]] = []
    n_nodes = _N_NODES
    for tree in trees:
        if n_nodes + tree.node_count > _N_NODES:
            groups.append([])
            n_nodes = 0
        groups[-1].append(tree)
        n_nodes += tree.node_count
    return groups


def _find_leaves(x: GraphArray, trees: list[Any]) -> GraphArray:
    """Return the values of the leaf that a row reaches in each tree, (n, trees, outputs).

    The operator allows a leaf only one number. So each tree gives the number of the leaf, and the values are looked up
    in a table.
    """
    nodes = [tree.__getstate__()["nodes"] for tree in trees]
    fields = ("left_child", "right_child", "feature", "threshold")
    parts = [_read_tree(each, each["left_child"] < 0, *fields) for each in nodes]
    values = [tree.value.reshape(len(tree.value), -1)[part.is_leaf] for tree, part in zip(trees, parts, strict=True)]
    ends = np.cumsum([len(each) for each in values])
    numbers = np.split(np.arange(ends[-1], dtype=np.float64), ends[:-1])
    index = add_ensemble(x, parts, numbers, np.arange(len(trees)), len(trees)).cast(np.int64)
    table = index.to_array(np.concatenate(values))
    return table.apply("Gather", index, shape=(ROWS, len(trees), table.shape[1]), axis=0)


def sum_boosted_trees(x: GraphArray, columns: Sequence[Sequence[Any]], baselines: Floats) -> GraphArray:
    """Return for each column the sum of its trees, those of histogram gradient boosting, and of its baseline."""
    trees = [tree.nodes for column in columns for tree in column]
    fields = ("left", "right", "feature_idx", "num_threshold")
    parts = [_read_tree(nodes, nodes["is_leaf"].astype(np.bool_), *fields) for nodes in trees]
    weights = [nodes["value"][part.is_leaf] for nodes, part in zip(trees, parts, strict=True)]
    targets = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    return add_ensemble(x, parts, weights, targets, len(columns)) + baselines


def look_up_steps(x: GraphArray, steps: Floats, levels: Floats) -> GraphArray:
    """Return levels[i] where i of the ascending steps lie below x, (n, 1), by one tree that bisects them."""
    nodes: list[tuple[bool, int, int, float]] = []
    weights: list[float] = []

    def grow(low: int, high: int) -> int:
        """Add the node for the steps from low to high, without high, and return its number."""
        number, middle = len(nodes), (low + high) // 2
        nodes.append((True, 0, 0, 0.0))
        if low == high:
            weights.append(float(levels[low]))
        else:
            nodes[number] = (False, grow(low, middle), grow(middle + 1, high), float(steps[middle]))
        return number

    grow(0, len(steps))
    is_leaf, left, right, thresholds = (np.array(column) for column in zip(*nodes, strict=True))
    zeros = np.zeros(len(nodes), dtype=np.int64)
    tree = Tree(is_leaf, left, right, zeros, thresholds, zeros > 0)
    return add_ensemble(x, [tree], [np.array(weights)], np.zeros(1, dtype=np.int64), 1)


def _read_tree(nodes: Any, is_leaf: NDArray[np.bool_], *fields: str) -> Tree:
    """Read the nodes of scikit-learn, whose fields for left, right, feature and threshold differ between its trees."""
    left, right, feature, threshold = (nodes[field] for field in fields)
    return Tree(is_leaf, left, right, feature, threshold, nodes["missing_go_to_left"])


def add_ensemble(
    x: GraphArray, trees: list[Tree], weights: list[Any], targets: NDArray[Any], n_targets: int
) -> GraphArray:
    """Return for each target the sum of the leaves that a row reaches, one in each of its trees."""
    parts: list[dict[str, Any]] = []
    roots: list[int] = []
    n_nodes = n_leaves = 0
    for tree in trees:
        parts.append(_number_nodes(_LONE_LEAF if tree.is_leaf[0] else tree, n_nodes, n_leaves))
        roots.append(n_nodes)
        n_nodes += len(parts[-1]["nodes_featureids"])
        n_leaves += int(tree.is_leaf.sum())
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    splits: Any = joined.pop("nodes_splits").astype(np.float64)
    owners = np.repeat(targets, [len(each) for each in weights])
    return x.apply(
        "TreeEnsemble",
        shape=(ROWS, n_targets),
        domain=ML,
        n_targets=n_targets,
        aggregate_function=_SUM,
        post_transform=0,
        tree_roots=roots,
        nodes_splits=splits,
        nodes_modes=np.full(n_nodes, _AT_MOST, dtype=np.uint8),
        leaf_targetids=owners.tolist(),
        leaf_weights=np.concatenate(weights).astype(np.float64),
        **{name: values.astype(np.int64).tolist() for name, values in joined.items()},
    )


def _number_nodes(tree: Tree, first_node: int, first_leaf: int) -> dict[str, Any]:
    """Return the inner nodes, with numbers that count inner nodes and leaves of all trees, each by themselves."""
    inner = ~tree.is_leaf
    number = np.where(inner, np.cumsum(inner) - 1 + first_node, np.cumsum(tree.is_leaf) - 1 + first_leaf)
    left, right = tree.left[inner].astype(np.int64), tree.right[inner].astype(np.int64)
    return {
        "nodes_truenodeids": number[left],
        "nodes_falsenodeids": number[right],
        "nodes_trueleafs": tree.is_leaf[left],
        "nodes_falseleafs": tree.is_leaf[right],
        "nodes_featureids": tree.feature[inner],
        "nodes_splits": tree.threshold[inner],
        "nodes_missing_value_tracks_true": tree.missing_goes_left[inner],
    }
