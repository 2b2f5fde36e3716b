"""A network and the head behind it in one ONNX graph: the network in float32, the head in float64."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from onsphere.errors import InvalidInputError
from onsphere.export.backbone_graphs import trace_network
from onsphere.export.graph_arrays import ROWS, GraphArray
from onsphere.export.graph_builder import GraphBuilder
from onsphere.export.model_graphs import Asked, convert_rows, list_outputs
from onsphere.export.parity import GIVEN, Parity

__all__ = ["compare_network", "convert_network", "is_network_module"]

# How far numbers may differ, relative to the size of the largest, and on how many rows: single precision may send a row
# of the network to another leaf of the trees that know the noise.
_TOLERANCE, _MOST_ROWS = 1e-4, 0.01

_FIELDS = {"label": "value", "set": "prediction_set"}


def is_network_module(model: Any) -> bool:
    """Return whether a model is what `onsphere.torch.to_torch` makes of a network and its head."""
    if "onsphere.torch" not in sys.modules:  # then nobody has made one, and torch need not be installed
        return False
    from onsphere.torch.network_module import NetworkModule

    return isinstance(model, NetworkModule)


def convert_network(module: Any, X: Any, coverage: float) -> tuple[GraphBuilder, list[str], list[dict[str, Any]]]:
    """Return the graph of a network and its head, the names of its outputs, and the description of its input."""
    if X is None:
        raise InvalidInputError(
            "export_onnx needs inputs of the network, as X, to trace it and to compare its answers. Got none. Pass "
            "some that it has not seen, as a tensor."
        )
    if module.reader.is_map:
        raise InvalidInputError(
            "export_onnx writes networks with one answer per input. Got one with a head for maps. Write the module "
            "that to_torch returns with torch.export.save."
        )
    if isinstance(X, Mapping):
        n_inputs = len(cast("Mapping[str, Any]", X))
        raise InvalidInputError(
            f"export_onnx writes networks of one tensor. Got {n_inputs} named inputs. Write the module that to_torch "
            "returns with torch.export.save, or export the FrozenHead alone, for features."
        )
    example = _to_single(X)
    model = module.head.model
    asked = Asked(coverage)
    graph = GraphBuilder(list_outputs(model, asked))
    name = graph.add_input("X", np.dtype(np.float32), *example.shape[1:])
    table = graph.include_model(trace_network(module.reader.make_plain(), example[:2], module), name)
    rows = GraphArray(graph, table, (ROWS, model.n_features_in_), np.dtype(np.float32)).cast(np.float64)
    outputs = convert_rows(model, rows, asked)
    names = [each for each in list_outputs(model, asked) if each in outputs]
    for each in names:
        graph.add_output(each, outputs[each].name, outputs[each].dtype, list(outputs[each].shape[1:]))
    return graph, names, [{"name": name, "kind": "tensor", "shape": list(example.shape[1:])}]


def _to_single(X: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.asarray(X), dtype=np.float32)


def compare_network(module: Any, session: Any, names: list[str], X: Any, coverage: float) -> Parity:
    """Compare a graph with the network and its head in Python; raise an error if it answers otherwise."""
    inputs = _to_single(X)
    answers = dict(zip(names, session.run(None, {"X": inputs}), strict=True))
    expected = module.head.model.assess(module.reader.read_rows(inputs), coverage=coverage)
    largest, relative = dict[str, float](), dict[str, float]()
    n_flag_differs = 0
    for name, answer in answers.items():
        truth = np.asarray(getattr(expected, _FIELDS.get(name, name)))
        if truth.dtype.kind != "f":
            differs = (truth != answer).reshape(len(inputs), -1).any(axis=1)
            largest[name] = float(differs.sum())
            n_flag_differs += int(differs.sum()) if name == "accepted" else 0
        else:
            difference = np.nan_to_num(np.abs(truth - answer)).reshape(len(inputs), -1).max(axis=1)
            finite = np.abs(truth[np.isfinite(truth)])
            size = max(1.0, float(finite.max(initial=0.0)))
            largest[name], relative[name] = float(difference.max()), float(difference.max()) / size
            differs = difference > _TOLERANCE * size
        # Confidence and sets move by steps.
        if differs.mean() > _MOST_ROWS and name not in ("confidence", "novelty_p_value"):
            raise InvalidInputError(
                f"Expected a graph that answers as the network does in Python. Got another {name} in "
                f"{int(differs.sum())} of {len(inputs)} row(s). Nothing was written; please report this network."
            )
    tolerance = dict.fromkeys(relative, _TOLERANCE)
    why = "The network runs in single precision, whose sums depend on their order."
    return Parity(len(inputs), GIVEN, largest, relative, tolerance, n_flag_differs, 0, why)
