"""A network and the head behind it in one ONNX graph: the network in float32, the head in float64."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere.errors import InvalidInputError
from onsphere.export.backbone_graphs import trace_network
from onsphere.export.graph_arrays import ROWS, GraphArray
from onsphere.export.graph_builder import GraphBuilder
from onsphere.export.graph_inputs import Inputs
from onsphere.export.model_graphs import Asked, convert_rows, list_outputs
from onsphere.export.parity import GIVEN, Parity

__all__ = ["compare_network", "convert_network", "is_network_module", "read_network_inputs"]

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


def read_network_inputs(module: Any, X: Any) -> Any:
    """Return a reader of the network's inputs in single precision, made for X."""
    if X is None:
        raise InvalidInputError(
            "export_onnx needs inputs of the network, as X, to trace it and to compare its answers. Got none. Pass "
            "some that it has not seen, as a tensor or as a mapping of named ones."
        )
    from onsphere.torch.network_module import PlainReader

    return PlainReader(module.reader, X)


def convert_network(module: Any, plain: Any) -> tuple[GraphBuilder, list[str], Inputs]:
    """Return the graph of a network and its head, the names of its outputs, and the description of its inputs."""
    model, asked = module.head.model, Asked(module.head.coverage)
    graph = GraphBuilder(list_outputs(model, asked))
    # Two rows: a single one would be taken for a constant.
    examples = [np.resize(values, (2, *values.shape[1:])) for values in plain.inputs.values()]
    traced = trace_network(plain, examples, module)
    inputs: Inputs = []
    for (name, values), given in zip(plain.inputs.items(), traced.graph.input, strict=True):
        lengths = [each.dim_value or each.dim_param for each in given.type.tensor_type.shape.dim[1:]]
        shape = [each if isinstance(each, int) else None for each in lengths]
        chosen = graph.add_input(name, values.dtype, *lengths)
        inputs.append({"name": chosen, "kind": "tensor", "shape": shape, "dtype": values.dtype.name})
    table = graph.include_model(traced, *(each["name"] for each in inputs))
    rows = GraphArray(graph, table, (ROWS, model.n_features_in_), np.dtype(np.float32)).cast(np.float64)
    outputs = {name: _fold(values, plain.reader.map_size) for name, values in convert_rows(model, rows, asked).items()}
    names = [each for each in list_outputs(model, asked) if each in outputs]
    for each in names:
        graph.add_output(each, outputs[each].name, outputs[each].dtype, list(outputs[each].shape[1:]))
    return graph, names, inputs


def _fold(values: GraphArray, size: tuple[int, ...]) -> GraphArray:
    """Return values of pixels as maps (B, H, W) or (B, D, H, W), and all others as they are."""
    if not size:
        return values
    shape = (ROWS, *size, *values.shape[1:])
    maps = values.apply("Reshape", np.array(shape), shape=shape)
    if len(shape) == 3:
        return maps
    return maps.apply("Transpose", shape=(ROWS, shape[3], *size), perm=[0, 3, 1, 2])


def _find_close_rows(model: Any, expected: Any) -> NDArray[np.bool_]:
    """Return which rows lie so close to a threshold that rounding decides; a noise from trees is the same for many."""
    is_close = np.zeros(len(expected.uncertainty), dtype=np.bool_)
    for scores, limit in ((expected.uncertainty, model.threshold_), (expected.missed, model.novelty_threshold_)):
        if limit is not None and scores is not None:
            is_close |= np.isclose(scores, limit, rtol=_TOLERANCE, atol=0.0)
    return is_close


def compare_network(
    module: Any, session: Any, names: list[str], inputs: Inputs, plain: Any, rows: NDArray[Any]
) -> Parity:
    """Compare a graph with the network and its head in Python; raise an error if it answers otherwise."""
    given = {each["name"]: values for each, values in zip(inputs, plain.inputs.values(), strict=True)}
    expected = module.head.model.assess(rows, coverage=module.head.coverage)
    is_close = _find_close_rows(module.head.model, expected)
    largest, relative = dict[str, float](), dict[str, float]()
    n_flag_differs = 0
    for name, answer in zip(names, session.run(None, given), strict=True):
        truth = np.asarray(getattr(expected, _FIELDS.get(name, name)))
        # The pixels of maps (B, D, H, W) are compared one by one, like rows.
        answer = (np.moveaxis(answer, 1, -1) if answer.ndim == 4 else answer).reshape(truth.shape)
        if truth.dtype.kind != "f":
            differs = (truth != answer).reshape(len(rows), -1).any(axis=1)
            largest[name] = float(differs.sum())
            n_flag_differs += int(differs.sum()) if name == "accepted" else 0
        else:
            with np.errstate(invalid="ignore"):  # infinity less infinity
                apart = np.where((truth == answer) | (np.isnan(truth) & np.isnan(answer)), 0.0, np.abs(truth - answer))
            difference = np.nan_to_num(apart, nan=np.inf).reshape(len(rows), -1).max(axis=1)
            finite = np.abs(truth[np.isfinite(truth)])
            size = max(1.0, float(finite.max(initial=0.0)))
            largest[name], relative[name] = float(difference.max()), float(difference.max()) / size
            differs = difference > _TOLERANCE * size
        if name in ("accepted", "reason"):
            differs &= ~is_close
        # Confidence and sets move by steps.
        if differs.mean() > _MOST_ROWS and name not in ("confidence", "novelty_p_value"):
            raise InvalidInputError(
                f"Expected a graph that answers as the network does in Python. Got another {name} in "
                f"{int(differs.sum())} of {len(rows)} row(s). Nothing was written; please report this network."
            )
    tolerance = dict.fromkeys(relative, _TOLERANCE)
    why = "The network runs in single precision, whose sums depend on their order."
    return Parity(len(rows), GIVEN, largest, relative, tolerance, n_flag_differs, 0, why)
