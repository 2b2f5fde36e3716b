"""Build an ONNX graph step by step: named inputs, operations one after the other, named outputs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError

__all__ = ["ML", "OPSET", "GraphBuilder", "import_extra", "open_session"]

# The first opsets with trees in double precision; runtimes since 2024 know both.
OPSET, ML_OPSET, IR_VERSION = 20, 5, 10
ML = "ai.onnx.ml"

_LARGEST_FILE = 2**31 - 1  # bytes; the format allows no more


def import_extra(package: str, purpose: str) -> Any:
    """Import a package of the extra "export", or raise an error that names the extra."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise missing_extra_error(purpose, package, "export") from None


def open_session(graph: bytes | str) -> Any:
    """Start onnxruntime on one core, for a graph given as bytes or by its path."""
    onnxruntime = import_extra("onnxruntime", "Running an ONNX graph")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised anyway
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class GraphBuilder:
    """Nodes, constants and inputs, under names that do not collide.

    Examples
    --------
    >>> graph = GraphBuilder()
    >>> x = graph.add_input("x", np.dtype(np.float64), 2)
    >>> graph.add_output("twice", graph.add_node("Mul", [x, graph.add_constant(2.0)]), np.dtype(np.float64), [2])
    >>> open_session(graph.build({}).SerializeToString()).run(None, {"x": np.ones((1, 2))})
    [array([[2., 2.]])]
    """

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        self._onnx = import_extra("onnx", "ONNX export")
        self._taken = set(reserved)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def add_input(self, name: str, dtype: np.dtype[Any], *shape: int | str) -> str:
        """Add a table of some columns, or rows of another shape; return its name: another one if taken or empty.

        A length that may differ from run to run has a name in place of a number.
        """
        name = self._choose_name(name or "column", "column ")
        self._inputs.append(self._describe(name, dtype, list(shape)))
        return name

    def add_output(self, name: str, source: str, dtype: np.dtype[Any], shape: list[int]) -> None:
        """Name an output, which has one row (of this shape) per row of the inputs."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [source], [name]))
        self._outputs.append(self._describe(name, dtype, shape))

    def add_constant(self, values: Any) -> str:
        """Add a tensor of the type of these values, and return its name."""
        name = self._choose_name("constant")
        self._constants.append(self._onnx.numpy_helper.from_array(_to_contiguous(np.asarray(values)), name))
        return name

    def add_node(self, kind: str, inputs: list[str], *, n_outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """Add an operation, and return the name of its first output."""
        tensor = self._onnx.numpy_helper.from_array
        values = {
            name: tensor(_to_contiguous(value)) if isinstance(value, np.ndarray) else value
            for name, value in attributes.items()
        }
        outputs = [self._choose_name(kind) for _ in range(n_outputs)]
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, outputs, domain=domain, **values))
        return outputs[0]

    def include_model(self, model: Any, *sources: str, place: int = 0) -> str:
        """Add all of a model, whose inputs are `sources`, and return the name of its output at this place."""
        inner = model.graph
        names = {"": "", **{given.name: source for given, source in zip(inner.input, sources, strict=True)}}
        for constant in inner.initializer:
            names[constant.name] = self._choose_name("constant")
            copy = self._onnx.TensorProto()
            copy.CopyFrom(constant)
            copy.name = names[constant.name]
            self._constants.append(copy)
        for node in inner.node:
            copy = self._onnx.NodeProto()
            copy.CopyFrom(node)
            copy.ClearField("name")
            del copy.input[:], copy.output[:]
            copy.input.extend(names[name] for name in node.input)
            for name in node.output:
                names[name] = self._choose_name(node.op_type) if name else ""
            copy.output.extend(names[name] for name in node.output)
            self._nodes.append(copy)
        return names[inner.output[place].name]

    def build(self, metadata: dict[str, str]) -> Any:
        """Return the whole graph as a model that onnx has checked."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "onsphere", self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="onsphere")
        helper.set_model_props(model, metadata)
        if model.ByteSize() > _LARGEST_FILE:
            raise InvalidInputError(
                f"Expected a model whose graph fits a file of {_LARGEST_FILE:,} bytes, the most that ONNX allows. Got "
                f"{model.ByteSize():,}. Use fewer trees, or larger leaves (min_samples_leaf)."
            )
        self._onnx.checker.check_model(model)
        return model

    def _choose_name(self, wanted: str, prefix: str = "") -> str:
        name = wanted if prefix else f"{wanted} {len(self._taken)}"
        while name in self._taken:
            name = (prefix or "_") + name
        self._taken.add(name)
        return name

    def _describe(self, name: str, dtype: np.dtype[Any], shape: Sequence[int | str]) -> Any:
        helper = self._onnx.helper
        kind = self._onnx.TensorProto.STRING if dtype.kind in "UO" else helper.np_dtype_to_tensor_dtype(dtype)
        return helper.make_tensor_value_info(name, kind, ["rows", *shape])


def _to_contiguous(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, dtype=object if array.dtype.kind == "U" else array.dtype, order="C")
