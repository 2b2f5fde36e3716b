"""Trees in a graph, in double precision.

onnxruntime compares numbers of the type that thresholds have. A forest of scikit-learn rounds its features to float32
and compares them with thresholds in float64; so does the graph, and every row ends in the leaf that it ends in there.
Gradient boosting by histograms rounds nothing, in scikit-learn and in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.export.graph import ML
from onsphere.export.symbols import ROWS, Symbol, unsaid_of_infinite

__all__ = ["boosted", "forest", "step_function"]

_SUM, _AT_MOST = 1, 0  # how the operator calls them
_N_NODES = 2**16  # of trees that are gone through together: some megabytes


@dataclass(frozen=True, eq=False)
class _Tree:
    """Nodes, the root first; one that is no leaf goes left where its feature is at most its threshold."""

    is_leaf: NDArray[np.bool_]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: Floats
    missing_goes_left: NDArray[np.bool_]


def forest(x: Symbol, trees: list[Any]) -> Symbol:
    """The mean of fitted trees of scikit-learn, which may have several outputs."""
    rounded = x.cast(np.float32).cast(np.float64)
    first, *others = _groups(trees)
    total = _leaves(rounded, first).reduced("ReduceSum", 1, keepdims=True)
    for group in others:
        leaves = _leaves(rounded, group)
        # The total is the first to be added up, so that trees are in the order of scikit-learn, to the last digit.
        shape = (ROWS, 1 + len(group), leaves.shape[2])
        total = total.made("Concat", leaves, shape=shape, axis=1).reduced("ReduceSum", 1, keepdims=True)
    # scikit-learn refuses numbers that are too large for float32.
    return unsaid_of_infinite(rounded, total[:, 0] / float(len(trees)))


def _groups(trees: list[Any]) -> list[list[Any]]:
    """Trees that fit a cache together: onnxruntime takes each row through all trees of an operator before the next."""
    groups: list[list[Any]] = []
    n_nodes = _N_NODES
    for tree in trees:
        if n_nodes + tree.node_count > _N_NODES:
            groups.append([])
            n_nodes = 0
        groups[-1].append(tree)
        n_nodes += tree.node_count
    return groups


def _leaves(x: Symbol, trees: list[Any]) -> Symbol:
    """What the leaf of each tree says that a row ends in, (n, trees, outputs).

    The operator allows a leaf one number. So each tree gives the number of the leaf, and the leaves are looked up in a
    table.
    """
    parts = [_of_forest(tree) for tree in trees]
    values = [tree.value[:, :, 0][part.is_leaf] for tree, part in zip(trees, parts, strict=True)]
    ends = np.cumsum([len(each) for each in values])
    numbers = np.split(np.arange(ends[-1], dtype=np.float64), ends[:-1])
    index = _ensemble(x, parts, numbers, np.arange(len(trees)), len(trees)).cast(np.int64)
    table = index.like(np.concatenate(values))
    return table.made("Gather", index, shape=(ROWS, len(trees), table.shape[1]), axis=0)


def boosted(x: Symbol, columns: list[list[Any]], baselines: Floats) -> Symbol:
    """For each column the sum of its trees, those of gradient boosting by histograms, from a baseline on."""
    trees = [tree.nodes for column in columns for tree in column]
    parts = [_of_boosting(nodes) for nodes in trees]
    weights = [nodes["value"][part.is_leaf] for nodes, part in zip(trees, parts, strict=True)]
    targets = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    return _ensemble(x, parts, weights, targets, len(columns)) + baselines


def step_function(x: Symbol, steps: Floats, levels: Floats) -> Symbol:
    """levels[i] where i of the rising steps lie below x, (n, 1): one tree, which finds it by halving."""
    nodes: list[tuple[bool, int, int, float]] = []
    weights: list[float] = []

    def grown(low: int, high: int) -> int:
        """The node that tells the steps from low to high (without it) apart."""
        number, middle = len(nodes), (low + high) // 2
        nodes.append((True, 0, 0, 0.0))
        if low == high:
            weights.append(float(levels[low]))
        else:
            nodes[number] = (False, grown(low, middle), grown(middle + 1, high), float(steps[middle]))
        return number

    grown(0, len(steps))
    is_leaf, left, right, thresholds = (np.array(column) for column in zip(*nodes, strict=True))
    nowhere = np.zeros(len(nodes), dtype=np.int64)
    tree = _Tree(is_leaf, left, right, nowhere, thresholds, nowhere > 0)
    return _ensemble(x, [tree], [np.array(weights)], np.zeros(1, dtype=np.int64), 1)


def _of_forest(tree: Any) -> _Tree:
    nodes = tree.__getstate__()["nodes"]
    return _Tree(
        is_leaf=nodes["left_child"] < 0,
        left=nodes["left_child"],
        right=nodes["right_child"],
        feature=nodes["feature"],
        threshold=nodes["threshold"],
        missing_goes_left=nodes["missing_go_to_left"].astype(np.bool_),
    )


def _of_boosting(nodes: Any) -> _Tree:
    return _Tree(
        is_leaf=nodes["is_leaf"].astype(np.bool_),
        left=nodes["left"].astype(np.int64),
        right=nodes["right"].astype(np.int64),
        feature=nodes["feature_idx"],
        threshold=nodes["num_threshold"],
        missing_goes_left=nodes["missing_go_to_left"].astype(np.bool_),
    )


def _ensemble(x: Symbol, trees: list[_Tree], weights: list[Any], targets: NDArray[Any], n_targets: int) -> Symbol:
    """For each target the sum of the leaves, one of each of its trees, that a row ends in."""
    parts: dict[str, list[Any]] = {}
    roots: list[int] = []
    n_nodes = n_leaves = 0
    for tree in trees:
        nodes = _numbered(tree, n_nodes, n_leaves)
        for name, values in nodes.items():
            parts.setdefault(name, []).append(values)
        roots.append(n_nodes)
        n_nodes += len(nodes["nodes_featureids"])
        n_leaves += int(tree.is_leaf.sum())
    joined = {name: np.concatenate(values) for name, values in parts.items()}
    splits: Any = joined.pop("nodes_splits").astype(np.float64)
    owners = np.repeat(targets, [len(each) for each in weights])
    return x.made(
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


def _numbered(tree: _Tree, first_node: int, first_leaf: int) -> dict[str, Any]:
    """The inner nodes, where nodes and leaves of all trees are counted through, each kind by itself."""
    inner = ~tree.is_leaf
    if not inner.any():  # a single leaf, which the operator wants as a node whose sides are the same leaf
        alone = np.array([first_leaf])
        sides: dict[str, Any] = {"nodes_truenodeids": alone, "nodes_falsenodeids": alone}
        flags: dict[str, Any] = {"nodes_trueleafs": np.ones(1), "nodes_falseleafs": np.ones(1)}
        zero = np.zeros(1)
        return (
            sides | flags | dict.fromkeys(("nodes_featureids", "nodes_splits", "nodes_missing_value_tracks_true"), zero)
        )
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
