"""A fitted model as one ONNX graph that needs no onsphere to run."""

from onsphere.export.exporter import export_onnx, open_graph
from onsphere.export.inputs import graph_inputs
from onsphere.export.parity import Parity

__all__ = ["Parity", "export_onnx", "graph_inputs", "open_graph"]
