"""The file itself: tables, metadata, running it without onsphere, and what is refused."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from onsphere import (
    AcceptShare,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    MissingExtraError,
    NotCalibratedError,
    NotFittedError,
)
from onsphere.export import export_onnx, graph_builder, model_graphs, open_graph, prepare_inputs
from onsphere.table import BACKBONES, Column
from onsphere.table.backbone_choice import table_model

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
y = X.sum(axis=1) + 0.1 * rng.normal(size=120)


@pytest.fixture(scope="module")
def model():
    return HCMRegressor(Ridge()).fit(X[:60], y[:60]).calibrate(X[60:], y[60:]).set_threshold(AcceptShare(0.9))


def table(n=400):
    draw = np.random.default_rng(1)
    days = pd.Timestamp("1965-01-01") + pd.to_timedelta(draw.integers(0, 10**9, n), "s")
    frame = pd.DataFrame(
        {
            "size": draw.normal(size=n),
            "value": draw.integers(0, 50, n) * 1.5,  # the name of an output as well
            "shop": draw.choice(["x", "y", "z"], n),
            "new": draw.random(n) < 0.5,
            "day": days,
        }
    )
    frame["target"] = frame["size"] + frame["value"] + 3.0 * (frame["shop"] == "x") + 0.1 * draw.normal(size=n)
    frame.loc[::7, "size"] = np.nan
    frame.loc[::11, "day"] = pd.NaT
    frame["shop"] = frame["shop"].where(np.arange(n) % 5 > 0)
    return frame


COLUMNS = (
    Column("size", "number"),
    Column("value", "number"),
    Column("shop", "category"),
    Column("new", "boolean"),
    Column("day", "date"),
)


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("backbone", list(BACKBONES))
def test_models_of_tables_take_the_raw_columns(backbone, classes, tmp_path):
    frame = table()
    target = np.where(frame["target"] > 35, "much", "little") if classes else np.asarray(frame.pop("target"))
    frame = frame.drop(columns="target", errors="ignore")
    fitted = table_model(backbone, COLUMNS, classes=classes, calibration=0.3)
    if backbone == "extra-trees":
        fitted.estimator.set_params(trees__n_estimators=20)
    if backbone == "kernel":
        fitted.estimator.set_params(kernel__n_components=50)
    fitted.fit(frame, target).set_threshold(AcceptShare(0.9))
    asked = frame.copy()
    asked.loc[3, "shop"] = "unheard of"
    parity = export_onnx(fitted, tmp_path / "model.onnx", X=asked)
    assert max(parity.relative.values()) < 1e-10
    session, facts = open_graph(tmp_path / "model.onnx")
    assert [given.name for given in session.get_inputs()] == ["size", "column value", "shop", "new", "day"]
    assert [given["column"]["name"] for given in facts["inputs"]] == [column.name for column in COLUMNS]
    # One row by hand, as a reader of the metadata would.
    row = {
        "size": np.array([[np.nan]]),
        "column value": np.array([[30.0]]),
        "shop": np.array([[""]], dtype=object),
        "new": np.array([[1.0]]),
        "day": np.array([[-86_400.0]]),
    }
    same = pd.DataFrame(
        {"size": [np.nan], "value": [30.0], "shop": [None], "new": [True], "day": [pd.Timestamp("1969-12-31")]}
    ).astype({"shop": frame["shop"].dtype})
    assert session.run(["uncertainty"], row)[0][0] == pytest.approx(fitted.predict_uncertainty(same)[0], rel=1e-9)
    with pytest.raises(InvalidInputError, match="size, day"):
        prepare_inputs(facts["inputs"], frame.drop(columns=["size", "day"]))


def test_a_category_with_an_empty_text_is_refused(tmp_path):
    frame = pd.DataFrame({"shop": ["", "a"] * 30, "size": np.arange(60.0)})
    columns = (Column("shop", "category"), Column("size", "number"))
    fitted = table_model("hist-gradient-boosting", columns, classes=False).fit(frame, np.arange(60.0))
    with pytest.raises(InvalidInputError, match=r"empty text.*column shop"):
        export_onnx(fitted, tmp_path / "model.onnx", X=frame)


def test_the_file_runs_where_onsphere_cannot_be_imported(tmp_path):
    frame = table().drop(columns="target")
    fitted = table_model("extra-trees", COLUMNS, classes=False, calibration=0.3)
    fitted.fit(frame, np.asarray(table()["target"])).set_threshold(AcceptShare(0.9))
    export_onnx(fitted, tmp_path / "model.onnx", X=frame)
    _, facts = open_graph(tmp_path / "model.onnx")
    feeds = prepare_inputs(facts["inputs"], frame)
    text = {name: values.astype(str) if values.dtype == object else values for name, values in feeds.items()}
    np.savez(tmp_path / "rows.npz", **text)
    code = """
import json, sys
for name in ("onsphere", "sklearn", "scipy", "torch", "onnx", "skl2onnx", "pandas"):
    sys.modules[name] = None
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
rows = {name: array.astype(object) if array.dtype.kind == "U" else array for name, array in np.load("rows.npz").items()}
names = [output.name for output in session.get_outputs()]
answers = dict(zip(names, session.run(None, rows)))
facts = json.loads(session.get_modelmeta().custom_metadata_map["onsphere"])
print(json.dumps({name: array.tolist() for name, array in answers.items()} | {"model": facts["manifest"]["model"]}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout)
    assert answers.pop("model") == "HCMRegressor"
    result = fitted.assess(frame)
    assert list(answers) == ["value", "uncertainty", "sigma", "lower", "upper", "confidence", "accepted"]
    for name, values in answers.items():
        np.testing.assert_allclose(values, getattr(result, name), rtol=1e-9)


def test_the_metadata_are_the_manifest(model, tmp_path):
    path = tmp_path / "model.onnx"
    parity = export_onnx(model, path, X=X, coverage=0.8, summary={"from": "here"})
    _, facts = open_graph(path)
    assert facts["coverage"] == 0.8
    assert facts["parity"]["largest"] == parity.largest
    assert facts["inputs"] == [{"name": "X", "kind": "table", "columns": None}]
    manifest = facts["manifest"]
    assert manifest["model"] == "HCMRegressor"
    assert manifest["summary"] == {"from": "here"}
    assert manifest["calibration_rows"] == 60
    assert manifest["rule"] == "AcceptShare(share=0.9)"
    assert manifest["threshold"] == model.threshold_
    onnx.checker.check_model(onnx.load(path), full_check=True)


def test_frames_and_sparse_rows_are_one_table(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = HCMRegressor(Ridge()).fit(frame, y)
    export_onnx(named, tmp_path / "model.onnx", X=frame)
    _, facts = open_graph(tmp_path / "model.onnx")
    assert facts["inputs"][0]["columns"] == ["a", "b", "c"]
    np.testing.assert_array_equal(prepare_inputs(facts["inputs"], frame[["c", "a", "b"]])["X"], X)
    plain = HCMRegressor(Ridge()).fit(X, y)
    export_onnx(plain, tmp_path / "model.onnx", X=csr_matrix(X))


# --- bad input ---


def test_what_is_no_model_of_ours_is_refused(tmp_path, model):
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


def test_a_calibration_of_another_score_is_refused(tmp_path):
    changed = HCMRegressor(Ridge()).fit(X[:60], y[:60]).calibrate(X[60:], y[60:])
    changed.uncertainty_score = "sigma"
    with pytest.raises(NotCalibratedError, match="calibrate"):
        export_onnx(changed, tmp_path / "model.onnx", X=X)


class Own(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        self.width_ = y.shape[1]
        return self

    def predict(self, X):
        return np.ones((len(X), self.width_))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@pytest.mark.parametrize(
    ("backbone", "told"),
    [
        (Own(), "Got Own, which skl2onnx"),
        (GradientBoostingRegressor(n_estimators=2), "Got GradientBoostingRegressor"),
        (make_pipeline(Nystroem(kernel="poly", n_components=5), Ridge()), "Nystroem, with kernel='poly'"),
        (make_pipeline(SimpleImputer(add_indicator=True), Ridge()), "SimpleImputer, with an indicator"),
        (make_pipeline(SimpleImputer(missing_values=0), Ridge()), "SimpleImputer, with an indicator"),
        (
            make_pipeline(OneHotEncoder(sparse_output=False), Ridge()),
            "OneHotEncoder, which skl2onnx writes for",
        ),
        (HistGradientBoostingRegressor(max_iter=2, categorical_features=[0]), "categorical features"),
    ],
)
def test_backbones_that_cannot_be_exported_are_named(backbone, told, tmp_path):
    whole = np.round(np.abs(X))
    fitted = HCMRegressor(backbone).fit(whole, y)
    with pytest.raises(InvalidTypeError, match=told):
        export_onnx(fitted, tmp_path / "model.onnx", X=whole)
    assert list(tmp_path.iterdir()) == []


def test_a_loss_with_another_link_is_refused(tmp_path):
    fitted = HCMClassifier(HistGradientBoostingRegressor(max_iter=2, loss="poisson")).fit(X, y > 0)
    with pytest.raises(InvalidTypeError, match="loss='poisson'"):
        export_onnx(fitted, tmp_path / "model.onnx", X=X)


def test_a_classifier_without_calibration(tmp_path):
    fitted = HCMClassifier(Ridge()).fit(X, y > 0)
    assert set(export_onnx(fitted, tmp_path / "model.onnx", X=X).largest) == {"label", "probabilities", "uncertainty"}


def test_classes_that_a_graph_cannot_hold_are_refused():
    with pytest.raises(InvalidInputError, match="Name them by text"):
        model_graphs._convert_labels(np.array([b"a", b"b"]))


def test_networks_that_cannot_be_exported_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    from onsphere.torch import TorchRegressor

    class Undecided(torch.nn.Linear):
        def forward(self, rows):
            return super().forward(rows) if rows.sum() > 0 else -super().forward(rows)

    path = tmp_path / "model.onnx"
    fitted = HCMRegressor(TorchRegressor(Undecided, max_epochs=1, random_state=0)).fit(X, y)
    with pytest.raises(InvalidTypeError, match=r"TorchRegressor, whose network torch.onnx cannot export"):
        export_onnx(fitted, path, X=X)
    mixed = HCMRegressor(TorchRegressor(max_epochs=1, mixed_precision=True, random_state=0)).fit(X, y)
    with pytest.raises(InvalidTypeError, match="mixed_precision=True"):
        export_onnx(mixed, path, X=X)


def test_a_graph_beyond_the_format_is_refused(tmp_path, monkeypatch):
    forest = HCMRegressor(ExtraTreesRegressor(5), random_state=0).fit(X, y)
    monkeypatch.setattr(graph_builder, "_LARGEST_FILE", 10_000)
    with pytest.raises(InvalidInputError, match="fewer trees"):
        export_onnx(forest, tmp_path / "model.onnx", X=X)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "skl2onnx"])
def test_a_missing_package_is_named(package, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*onsphere\[export\]"):
        export_onnx(model, tmp_path / "model.onnx", X=X)
    if package == "onnxruntime":
        (tmp_path / "some.onnx").touch()
        with pytest.raises(MissingExtraError, match="onnxruntime"):
            open_graph(tmp_path / "some.onnx")


def test_networks_name_what_torch_needs(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from onsphere.torch import TorchRegressor

    fitted = HCMRegressor(TorchRegressor(max_epochs=1, random_state=0)).fit(X, y)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"network needs onnxscript.*onsphere\[export\]"):
        export_onnx(fitted, tmp_path / "model.onnx", X=X)


def other_graph(path, metadata):
    graph = graph_builder.GraphBuilder()
    name = graph.add_input("X", np.dtype(np.float64), 1)
    graph.add_output("Y", name, np.dtype(np.float64), [1])
    path.write_bytes(graph.build(metadata).SerializeToString())


def test_graphs_without_our_metadata_are_refused(tmp_path):
    path = tmp_path / "other.onnx"
    for metadata in ({}, {"onsphere": "{"}, {"onsphere": "[1]"}, {"onsphere": '{"manifest": {}}'}):
        other_graph(path, metadata)
        with pytest.raises(InvalidInputError, match="ONNX graph without them"):
            open_graph(path)
    facts = {name: {"format": 99} for name in ("manifest", "coverage", "inputs", "outputs", "parity")}
    other_graph(path, {"onsphere": json.dumps(facts)})
    with pytest.raises(InvalidInputError, match="format 99"):
        open_graph(path)


def test_what_is_no_graph_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="which is not a file"):
        open_graph(tmp_path)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(InvalidInputError, match="onnxruntime cannot read"):
        open_graph(tmp_path / "text.onnx")


def test_a_file_stays_as_it_was_where_writing_fails(model, tmp_path):
    with pytest.raises(InvalidInputError, match="Expected to write"):
        export_onnx(model, tmp_path / "nowhere" / "model.onnx", X=X)


def test_names_that_are_taken_get_another():
    graph = graph_builder.GraphBuilder(("a",))
    assert graph.add_input("a", np.dtype(np.float64), 1) == "column a"
    graph._taken.add(f"Mul {len(graph._taken) + 1}")
    assert graph.add_node("Mul", ["a", "a"]).startswith("_Mul")
