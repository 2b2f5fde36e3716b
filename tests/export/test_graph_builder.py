"""Names in a graph, its largest size, and missing packages."""

import sys

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Ridge

from onsphere import HCMRegressor, InvalidInputError, MissingExtraError, export_onnx
from onsphere.export import graph_builder, open_graph

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
y = X.sum(axis=1) + 0.1 * rng.normal(size=120)


def test_a_graph_too_large_for_the_format_is_rejected(tmp_path, monkeypatch):
    forest = HCMRegressor(ExtraTreesRegressor(5), random_state=0).fit(X, y)
    monkeypatch.setattr(graph_builder, "_LARGEST_FILE", 10_000)
    with pytest.raises(InvalidInputError, match="fewer trees"):
        export_onnx(forest, tmp_path / "model.onnx", X=X)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "skl2onnx"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*onsphere\[export\]"):
        export_onnx(HCMRegressor(Ridge()).fit(X, y), tmp_path / "model.onnx", X=X)
    if package == "onnxruntime":
        (tmp_path / "some.onnx").touch()
        with pytest.raises(MissingExtraError, match="onnxruntime"):
            open_graph(tmp_path / "some.onnx")


def test_a_name_that_is_taken_is_changed():
    graph = graph_builder.GraphBuilder(("a",))
    assert graph.add_input("a", np.dtype(np.float64), 1) == "column a"
    graph._taken.add(f"Mul {len(graph._taken) + 1}")
    assert graph.add_node("Mul", ["a", "a"]).startswith("_Mul")
