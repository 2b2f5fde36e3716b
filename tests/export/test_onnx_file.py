"""The file itself: outputs, metadata, running it without onsphere, bad arguments and forged files."""

import json

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from onsphere import AcceptShare, DriftMonitor, HCMRegressor, InvalidInputError, InvalidTypeError, NotFittedError
from onsphere.calibration import Calibration
from onsphere.export import export_onnx, graph_builder, onnx_file, open_graph
from onsphere.persistence import FORMAT
from onsphere.table import fit_table

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
y = X.sum(axis=1) + 0.1 * rng.normal(size=120)


@pytest.fixture(scope="module")
def model():
    return HCMRegressor(Ridge()).fit(X[:60], y[:60]).calibrate(X[60:], y[60:]).set_threshold(AcceptShare(0.9))


def test_the_metadata_hold_the_manifest(model, tmp_path):
    path = tmp_path / "model.onnx"
    parity = export_onnx(model, path, X=X, coverage=0.8, summary={"from": "here"})
    _, metadata = open_graph(path)
    assert metadata["coverage"] == 0.8
    assert metadata["parity"]["largest"] == parity.largest
    assert metadata["inputs"] == [{"name": "X", "kind": "table", "columns": None}]
    manifest = metadata["manifest"]
    assert manifest["model"] == "HCMRegressor"
    assert manifest["summary"] == {"from": "here"}
    assert manifest["calibration_rows"] == 60
    assert manifest["rule"] == "AcceptShare(share=0.9)"
    assert manifest["threshold"] == model.threshold_
    onnx.checker.check_model(onnx.load(path), full_check=True)


# --- calibration ---


def calibrate(**options):
    return HCMRegressor(Ridge(), random_state=0, **options).fit(X, y)


def test_a_graph_holds_the_scores_for_a_drift_alarm(tmp_path):
    model = calibrate(calibration="split")
    export_onnx(model, tmp_path / "model.onnx", X=X)
    _, metadata = open_graph(tmp_path / "model.onnx")
    assert metadata["calibration"] == sorted(model.calibration_.uncertainty.tolist())
    assert metadata["calibration_missed"] == sorted(model.calibration_.missed.tolist())
    assert metadata["manifest"]["calibrated_by"] == "held-out rows"
    assert metadata["manifest"]["frames"] == ["target", "error", "input"]
    stream = model.assess(np.tile(X, (5, 1)) + 3.0)
    scores = np.array(metadata["calibration"]), np.array(metadata["calibration_missed"])
    monitor = DriftMonitor(Calibration(scores[0], np.zeros(len(scores[0])), missed=scores[1]))
    own = DriftMonitor(model)
    assert monitor.update(stream).alarm
    assert own.update(stream).alarm
    assert (monitor.alarmed_at, monitor.alarmed_by) == (own.alarmed_at, own.alarmed_by)


@pytest.mark.parametrize(
    ("options", "calibrated_by"),
    [({}, None), ({"calibration": 0.3}, "held-out rows"), ({"calibration": "cv"}, "cross-validation")],
)
def test_the_metadata_say_how_a_model_was_calibrated(options, calibrated_by, tmp_path):
    model = calibrate(**options)
    export_onnx(model, tmp_path / "model.onnx", X=X)
    _, metadata = open_graph(tmp_path / "model.onnx")
    assert metadata["manifest"]["calibrated_by"] == calibrated_by
    assert (metadata["calibration"] is None) == (calibrated_by is None)
    export_onnx(model.calibrate(X + 0.01, y), tmp_path / "model.onnx", X=X)
    assert open_graph(tmp_path / "model.onnx")[1]["manifest"]["calibrated_by"] == "held-out rows"


def test_very_many_scores_are_sampled_at_random(monkeypatch):
    model = calibrate(calibration=0.5)
    everything = model.calibration_.uncertainty
    monkeypatch.setattr(onnx_file, "N_SCORES", 20)
    found = onnx_file.list_calibration_scores(model)
    some = found["calibration"]
    assert len(found["calibration_missed"]) == 20
    assert len(some) == 20 < len(everything)
    assert set(some) <= set(everything.tolist())
    assert some == sorted(some)
    assert found == onnx_file.list_calibration_scores(model)
    # By their ranks they would be evenly spread.
    assert len(set(np.diff(np.searchsorted(np.sort(everything), some)))) > 2


# --- bad input ---


def test_bad_arguments_are_rejected(tmp_path, model):
    path = tmp_path / "model.onnx"
    with pytest.raises(InvalidTypeError, match="Got Ridge"):
        export_onnx(Ridge(), path, X=X)
    with pytest.raises(NotFittedError):
        export_onnx(HCMRegressor(), path, X=X)
    with pytest.raises(InvalidInputError, match="coverage"):
        export_onnx(model, path, X=X, coverage=1.0)
    with pytest.raises(InvalidInputError, match="at least 99 calibration rows"):
        export_onnx(model, path, X=X, coverage=0.99)
    with pytest.raises(InvalidInputError, match="features"):
        export_onnx(model, path, X=X[:, :2])
    with pytest.raises(InvalidTypeError, match="plain JSON"):
        export_onnx(model, path, X=X, summary={"a": {1}})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_an_error(model, tmp_path):
    with pytest.raises(InvalidInputError, match="Expected to write"):
        export_onnx(model, tmp_path / "nowhere" / "model.onnx", X=X)


def other_graph(path, metadata):
    graph = graph_builder.GraphBuilder()
    name = graph.add_input("X", np.dtype(np.float64), 1)
    graph.add_output("Y", name, np.dtype(np.float64), [1])
    path.write_bytes(graph.build(metadata).SerializeToString())


def test_graphs_without_our_metadata_are_rejected(tmp_path):
    path = tmp_path / "other.onnx"
    for metadata in ({}, {"onsphere": "{"}, {"onsphere": "[1]"}, {"onsphere": '{"manifest": {}}'}):
        other_graph(path, metadata)
        with pytest.raises(InvalidInputError, match="ONNX graph without them"):
            open_graph(path)
    metadata = {name: {"format": 99} for name in ("manifest", "coverage", "inputs", "outputs", "parity")}
    other_graph(path, {"onsphere": json.dumps(metadata)})
    with pytest.raises(InvalidInputError, match="format 99"):
        open_graph(path)


def test_other_files_are_rejected(tmp_path):
    with pytest.raises(InvalidInputError, match="which is not a file"):
        open_graph(tmp_path)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(InvalidInputError, match="onnxruntime cannot read"):
        open_graph(tmp_path / "text.onnx")


# --- forged metadata ---


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    frame = pd.DataFrame({"size": X[:, 0], "shop": np.where(X[:, 1] > 0, "a", "b"), "price": y})
    fit = fit_table(frame, ["price"], backbone="kernel")
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    export_onnx(fit.model, path, summary=fit.summary())
    return path


def forge(graph, path, change):
    model = onnx.load(graph)
    (entry,) = model.metadata_props
    metadata = json.loads(entry.value)
    change(metadata)
    entry.value = json.dumps(metadata)
    onnx.save(model, path)
    return path


WRONG = {
    "manifest": [[], {}, {"format": 1}],
    "coverage": [None, "0.9", 0, 1.0, float("nan"), True],
    "inputs": [[], {}, ["size"], [{"name": "size"}], [{"name": "size", "kind": "table", "columns": [1]}]],
    "outputs": [[], "value", [1], ["value"]],
    "parity": [None, []],
    "calibration": [[], "none", [1.0, "2"], [float("nan")], [float("inf")], [10**400], [True], {"0": 1.0}],
    "calibration_missed": [[], "none", [1.0, "2"]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_forged_metadata_are_rejected(graph, name, value, tmp_path):
    path = forge(graph, tmp_path / "forged.onnx", lambda metadata: metadata.update({name: value}))
    with pytest.raises(InvalidInputError, match=rf"where these do not: {name}\. Write it again"):
        open_graph(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("format", value) for value in (0, "1", None, 0.5)),
        *(("calibrated_by", value) for value in (5, ["held-out rows"], "hand")),
        *(("columns", value) for value in ([1], "size", [])),
        *(("classes", value) for value in ([], [None], "a")),
        *(("threshold", value) for value in ("much", float("nan"), [1])),
        *(("summary", value) for value in (None, [])),
        *(("n_features", value) for value in ("2", -1)),
        *(("calibration_rows", value) for value in (0, 1.5)),
        *(("model", value) for value in (None, 1)),
        ("libraries", []),
        ("rule", 1),
        ("frames", "all"),
        ("novelty_threshold", "inf"),
        ("novelty_rule", 1),
    ],
)
def test_a_forged_manifest_is_rejected(graph, name, value, tmp_path):
    path = forge(graph, tmp_path / "forged.onnx", lambda metadata: metadata["manifest"].update({name: value}))
    with pytest.raises(InvalidInputError, match="where these do not: manifest"):
        open_graph(path)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "key"},
        {"kind": 1},
        {"name": "another"},
        {"name": 1},
        {"column": {"name": "size", "kind": "date"}},
        {"column": {"name": 1, "kind": "number"}},
        {"column": {"name": "size", "kind": "number", "more": 1}},
        {"column": {"name": "size", "kind": "number", "mixed": "yes"}},
        *({"column": {"name": "size", "kind": "number", "date_format": unknown}} for unknown in (5, "%q", "%Y%Y")),
        {"kind": "category", "column": {"name": "size", "kind": "category"}},
        {"kind": "table", "columns": None},
        {"kind": "tensor", "shape": [1], "dtype": "float32"},
        {"kind": "tensor", "shape": [0], "dtype": "float32"},
        {"kind": "tensor", "shape": [1], "dtype": "object"},
    ],
)
def test_inputs_that_do_not_fit_the_graph_are_rejected(graph, change, tmp_path):
    path = forge(graph, tmp_path / "forged.onnx", lambda metadata: metadata["inputs"][0].update(change))
    with pytest.raises(InvalidInputError, match="where these do not: inputs"):
        open_graph(path)


@pytest.mark.parametrize(("columns", "fits"), [(None, True), (["a", "b", "c"], True), (["a"], False)])
def test_a_table_must_have_the_columns_of_the_graph(columns, fits, tmp_path):
    export_onnx(calibrate(), tmp_path / "model.onnx", X=X)
    source, path = tmp_path / "model.onnx", tmp_path / "forged.onnx"
    forge(source, path, lambda metadata: metadata["inputs"][0].update(columns=columns))
    if fits:
        assert open_graph(path)[1]["inputs"][0]["columns"] == columns
        return
    with pytest.raises(InvalidInputError, match="where these do not: inputs"):
        open_graph(path)


@pytest.mark.parametrize("version", [FORMAT + 1, FORMAT + 0.5, 10**400])
def test_graphs_of_newer_formats_are_rejected(graph, version, tmp_path):
    path = forge(graph, tmp_path / "newer.onnx", lambda metadata: metadata["manifest"].update(format=version))
    with pytest.raises(InvalidInputError, match="Install a newer onsphere"):
        open_graph(path)


def test_older_graphs_without_scores_open(graph, tmp_path):
    def remove(metadata):
        for name in ("calibration", "calibration_missed"):
            del metadata[name]
        for name in ("frames", "novelty_threshold", "novelty_rule"):
            del metadata["manifest"][name]

    path = forge(graph, tmp_path / "older.onnx", remove)
    assert "calibration" not in open_graph(path)[1]


def test_deeply_nested_metadata_are_rejected(graph, tmp_path):
    model = onnx.load(graph)
    model.metadata_props[0].value = "[" * 100_000
    onnx.save(model, tmp_path / "deep.onnx")
    with pytest.raises(InvalidInputError, match="ONNX graph without them"):
        open_graph(tmp_path / "deep.onnx")
