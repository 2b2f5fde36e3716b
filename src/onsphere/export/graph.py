"""A graph in the making: named inputs, operations one after the other, named outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError

__all__ = ["ML", "OPSET", "Graph", "onnx_module", "onnxruntime_module", "session_of"]

# The first opsets with trees in double precision; runtimes since 2024 know both.
OPSET, ML_OPSET, IR_VERSION = 20, 5, 10
ML = "ai.onnx.ml"

_LARGEST_FILE = 2**31 - 1  # bytes; what the format can hold


def onnx_module() -> Any:
    """onnx, or an error that names the extra."""
    try:
        import onnx
    except ImportError:
        raise missing_extra_error("ONNX export", "onnx", "export") from None
    return onnx


def onnxruntime_module() -> Any:
    """onnxruntime, or an error that names the extra."""
    try:
        import onnxruntime
    except ImportError:
        raise missing_extra_error("Running an ONNX graph", "onnxruntime", "export") from None
    return onnxruntime


def session_of(graph: Any) -> Any:
    """A session of onnxruntime on one core, for a graph given as bytes or by its path."""
    onnxruntime = onnxruntime_module()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised as well
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class Graph:
    """Nodes, constants and inputs, under names that do not collide.

    Examples
    --------
    >>> graph = Graph()
    >>> x = graph.input("x", np.dtype(np.float64), 2)
    >>> graph.output("twice", graph.add("Mul", [x, graph.constant(2.0)]), np.dtype(np.float64), [2])
    >>> session_of(graph.model({}).SerializeToString()).run(None, {"x": np.ones((1, 2))})
    [array([[2., 2.]])]
    """

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        self._onnx = onnx_module()
        self._taken = set(reserved)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, dtype: np.dtype[Any], width: int) -> str:
        """A table of so many columns that is given; its name, another one where that is taken or empty."""
        name = self._free(name or "column", "column ")
        self._inputs.append(self._described(name, dtype, [width]))
        return name

    def output(self, name: str, source: str, dtype: np.dtype[Any], shape: list[int]) -> None:
        """Let an answer be known by its name, one row (of this shape) per row of the inputs."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [source], [name]))
        self._outputs.append(self._described(name, dtype, shape))

    def constant(self, values: Any) -> str:
        """A tensor that is part of the graph; text stays text, and all else keeps its type."""
        array = np.asarray(values)
        name = self._free("constant")
        self._constants.append(self._onnx.numpy_helper.from_array(_contiguous(array), name))
        return name

    def add(self, kind: str, inputs: list[str], *, domain: str = "", **attributes: Any) -> str:
        """An operation; the name of its first output."""
        return self.add_all(kind, inputs, 1, domain=domain, **attributes)[0]

    def add_all(
        self, kind: str, inputs: list[str], n_outputs: int, *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """An operation with several outputs."""
        made = {name: self._attribute(value) for name, value in attributes.items()}
        outputs = [self._free(kind) for _ in range(n_outputs)]
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, outputs, domain=domain, **made))
        return outputs

    def include(self, other: Any, source: str) -> str:
        """All of another model with one input, which is `source`; the name of its first output."""
        inner = other.graph
        names = {inner.input[0].name: source, "": ""}
        for constant in inner.initializer:
            names[constant.name] = self._free("constant")
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
                names[name] = self._free(node.op_type) if name else ""
            copy.output.extend(names[name] for name in node.output)
            self._nodes.append(copy)
        return names[inner.output[0].name]

    def model(self, metadata: dict[str, str]) -> Any:
        """The whole graph as a checked model."""
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

    def _free(self, wanted: str, prefix: str = "") -> str:
        name = wanted if prefix else f"{wanted} {len(self._taken)}"
        while name in self._taken:
            name = (prefix or "_") + name
        self._taken.add(name)
        return name

    def _described(self, name: str, dtype: np.dtype[Any], shape: list[int]) -> Any:
        helper = self._onnx.helper
        kind = self._onnx.TensorProto.STRING if dtype.kind in "UO" else helper.np_dtype_to_tensor_dtype(dtype)
        return helper.make_tensor_value_info(name, kind, ["rows", *shape])

    def _attribute(self, value: Any) -> Any:
        return self._onnx.numpy_helper.from_array(_contiguous(value)) if isinstance(value, np.ndarray) else value


def _contiguous(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, dtype=object if array.dtype.kind == "U" else array.dtype, order="C")
