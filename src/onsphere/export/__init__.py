"""A fitted model as one ONNX graph that runs without onsphere."""

from onsphere.export.graph_inputs import prepare_inputs
from onsphere.export.onnx_file import export_onnx, open_graph
from onsphere.export.parity import Parity

__all__ = ["Parity", "export_onnx", "open_graph", "prepare_inputs"]
