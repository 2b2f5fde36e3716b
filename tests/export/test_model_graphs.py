"""Outputs of classifiers and models that cannot be exported."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Ridge

from onsphere import (
    AcceptShare,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    NotCalibratedError,
    Novelty,
    export_onnx,
)
from onsphere.calibration import ClassCalibration
from onsphere.export import model_graphs, open_graph
from onsphere.export.graph_arrays import ROWS, GraphArray
from onsphere.export.graph_builder import GraphBuilder, open_session
from onsphere.models.classifier import project_to_simplex

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
y = X.sum(axis=1) + 0.1 * rng.normal(size=120)


def tables(width, numbers):
    return arrays(np.float64, st.tuples(st.integers(1, 4), st.just(width)), elements=numbers)


def compile_graph(function, width):
    """Return a function that runs the graph of a function of a table."""
    graph = GraphBuilder()
    results = function(GraphArray(graph, graph.add_input("x", np.dtype(np.float64), width), (ROWS, width)))
    for number, result in enumerate(results):
        graph.add_output(f"y{number}", result.name, result.dtype, list(result.shape[1:]))
    session = open_session(graph.build({}).SerializeToString())
    return lambda x: session.run(None, {"x": x})


PROBABILITIES = compile_graph(lambda x: (model_graphs.project_to_simplex(x),), 4)


@given(tables(4, st.floats(-1e3, 1e3)))
def test_probabilities_agree_with_the_classifier(x):
    np.testing.assert_allclose(PROBABILITIES(x)[0], project_to_simplex(x), atol=1e-12)


LEVELS = np.round(np.random.default_rng(1).random(39), 2)
CALIBRATION = ClassCalibration(np.zeros(39), np.zeros(39), LEVELS)
SETS = compile_graph(lambda x: (model_graphs._convert_sets(x, CALIBRATION, 0.7),), 5)


@given(tables(5, st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0, 17.0])))
def test_sets_agree_with_the_calibration_with_ties_and_zeros(x):
    assume((x.sum(axis=1) > 0).all())
    probabilities = x / x.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(SETS(probabilities)[0], CALIBRATION.prediction_set(probabilities, coverage=0.7))


def test_a_calibration_of_another_score_is_rejected(tmp_path):
    changed = HCMRegressor(Ridge()).fit(X[:60], y[:60]).calibrate(X[60:], y[60:])
    changed.uncertainty_score = "sigma"
    with pytest.raises(NotCalibratedError, match="calibrate"):
        export_onnx(changed, tmp_path / "model.onnx", X=X)


OF_CLASSES = {"label", "probabilities", "uncertainty"}
OF_NUMBERS = {"value", "uncertainty", "sigma"}


@pytest.mark.parametrize(
    ("model", "frames", "outputs"),
    [
        (HCMClassifier, "target", OF_CLASSES),
        (HCMClassifier, "all", {*OF_CLASSES, "noise", "novelty", "missed"}),
        (HCMRegressor, "target", OF_NUMBERS),
        (HCMRegressor, ("target", "error"), {*OF_NUMBERS, "noise"}),
        (HCMRegressor, ("target", "input"), {*OF_NUMBERS, "noise", "novelty", "missed"}),
        (HCMRegressor, "all", {*OF_NUMBERS, "noise", "novelty", "missed"}),
    ],
)
def test_a_model_without_calibration_has_the_outputs_of_its_frames(model, frames, outputs, tmp_path):
    fitted = model(Ridge(), frames=frames).fit(X, y > 0 if model is HCMClassifier else y)
    parity = export_onnx(fitted, tmp_path / "model.onnx", X=X)
    assert set(parity.largest) == outputs
    assert max(parity.relative.values()) < 1e-9


@pytest.mark.parametrize(
    ("rule", "novelty", "reasons"),
    [
        (AcceptShare(0.8), None, {"", "uncertain"}),
        (None, Novelty(max=0.5), {"", "novel"}),
        (AcceptShare(0.8), Novelty(max=0.5), {"", "uncertain", "uncertain and novel"}),
    ],
)
def test_the_graph_says_why_a_row_is_rejected(rule, novelty, reasons, tmp_path):
    model = HCMRegressor(ExtraTreesRegressor(10), random_state=0).fit(X[:60], y[:60]).calibrate(X[60:], y[60:])
    model.set_threshold(rule, novelty=novelty)
    rows = np.vstack([X[::3], X[:10] + 5.0])
    export_onnx(model, tmp_path / "model.onnx", X=rows)
    session, metadata = open_graph(tmp_path / "model.onnx")
    accepted, reason = session.run(["accepted", "reason"], {"X": rows})
    assert set(reason) == reasons
    assert reason.tolist() == model.assess(rows).reason.tolist()
    assert accepted.tolist() == (reason == "").tolist()
    assert metadata["manifest"]["novelty_threshold"] == model.novelty_threshold_


def test_a_model_without_an_input_frame_has_no_reasons(tmp_path):
    model = HCMRegressor(Ridge(), frames=("target", "error"), calibration=0.4, random_state=0).fit(X, y)
    export_onnx(model.set_threshold(AcceptShare(0.8)), tmp_path / "model.onnx", X=X)
    _, metadata = open_graph(tmp_path / "model.onnx")
    assert metadata["outputs"] == ["value", "uncertainty", "sigma", "noise", "lower", "upper", "confidence", "accepted"]
    assert metadata["calibration_missed"] is None


def test_classes_that_a_graph_cannot_hold_are_rejected():
    with pytest.raises(InvalidInputError, match="Name them by text"):
        model_graphs._convert_labels(np.array([b"a", b"b"]))
