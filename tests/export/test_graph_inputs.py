"""Models of tables, whose graphs take the raw columns, and rows drawn from a summary."""

import copy
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.linear_model import Ridge

from onsphere import AcceptShare, HCMClassifier, HCMRegressor, InvalidInputError
from onsphere.drift import make_reference
from onsphere.export import export_onnx, open_graph, prepare_inputs
from onsphere.export.graph_inputs import draw_rows
from onsphere.table import BACKBONES, Column, fit_table
from onsphere.table.backbone_choice import make_table_model

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
y = X.sum(axis=1) + 0.1 * rng.normal(size=120)


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
    fitted = make_table_model(backbone, COLUMNS, classes=classes, calibration=0.3)
    if backbone == "extra-trees":
        fitted.estimator.set_params(trees__n_estimators=20)
    if backbone == "kernel":
        fitted.estimator.set_params(kernel__n_components=50)
    has_frames = classes or backbone in ("extra-trees", "kernel")  # the others are fitted five times more for noise
    fitted.set_params(frames="all" if has_frames else "target")
    fitted.fit(frame, target).set_threshold(AcceptShare(0.9))
    rows = frame.copy()
    rows.loc[3, "shop"] = "unknown"
    parity = export_onnx(fitted, tmp_path / "model.onnx", X=rows)
    assert max(parity.relative.values()) < 1e-10
    session, metadata = open_graph(tmp_path / "model.onnx")
    if has_frames:  # a value that is not known from training is novel
        missed = session.run(["missed"], prepare_inputs(metadata["inputs"], pd.concat([frame[3:4], rows[3:4]])))[0]
        assert missed[1] > missed[0] + 0.1
    assert [given.name for given in session.get_inputs()] == ["size", "column value", "shop", "new", "day"]
    assert [given["column"]["name"] for given in metadata["inputs"]] == [column.name for column in COLUMNS]
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
        prepare_inputs(metadata["inputs"], frame.drop(columns=["size", "day"]))


def test_an_empty_text_cannot_be_a_category(tmp_path):
    frame = pd.DataFrame({"shop": ["", "a"] * 30, "size": np.arange(60.0)})
    columns = (Column("shop", "category"), Column("size", "number"))
    fitted = make_table_model("hist-gradient-boosting", columns, classes=False).fit(frame, np.arange(60.0))
    with pytest.raises(InvalidInputError, match=r"empty text.*column shop"):
        export_onnx(fitted, tmp_path / "model.onnx", X=frame)


def test_the_file_runs_without_onsphere(tmp_path):
    frame = table().drop(columns="target")
    fitted = make_table_model("extra-trees", COLUMNS, classes=False, calibration=0.3)
    fitted.fit(frame, np.asarray(table()["target"])).set_threshold(AcceptShare(0.9))
    export_onnx(fitted, tmp_path / "model.onnx", X=frame)
    _, metadata = open_graph(tmp_path / "model.onnx")
    feeds = prepare_inputs(metadata["inputs"], frame)
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
metadata = json.loads(session.get_modelmeta().custom_metadata_map["onsphere"])
print(json.dumps({name: array.tolist() for name, array in answers.items()} | {"model": metadata["manifest"]["model"]}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout)
    assert answers.pop("model") == "HCMRegressor"
    result = fitted.assess(frame)
    assert answers.pop("reason") == result.reason.tolist()
    frames = ["noise", "novelty", "novelty_p_value", "missed"]
    assert list(answers) == ["value", "uncertainty", "sigma", *frames, "lower", "upper", "confidence", "accepted"]
    for name, values in answers.items():
        np.testing.assert_allclose(values, getattr(result, name), rtol=1e-9, atol=1e-12)


def test_frames_and_sparse_rows_are_one_input(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = HCMRegressor(Ridge()).fit(frame, y)
    export_onnx(named, tmp_path / "model.onnx", X=frame)
    _, metadata = open_graph(tmp_path / "model.onnx")
    assert metadata["inputs"][0]["columns"] == ["a", "b", "c"]
    np.testing.assert_array_equal(prepare_inputs(metadata["inputs"], frame[["c", "a", "b"]])["X"], X)
    plain = HCMRegressor(Ridge()).fit(X, y)
    export_onnx(plain, tmp_path / "model.onnx", X=csr_matrix(X))


# --- drawn rows ---

DESCRIBED = [
    {"name": name, "kind": kind, "column": {"name": name, "kind": kind}}
    for name, kind in {"size": "number", "new": "boolean", "shop": "category", "day": "date"}.items()
]
ORDINARY = pd.DataFrame(
    {
        "size": rng.normal(size=300),
        "new": rng.random(300) < 0.3,
        "shop": rng.choice(["a", "b", "c"], 300, p=[0.6, 0.3, 0.1]),
        "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, 300), "D"),
    }
)
SUMMARY = {"reference": make_reference(ORDINARY, n_kept=101)}


def test_drawn_columns_have_the_distribution_of_the_summary():
    rows = draw_rows(DESCRIBED, SUMMARY)
    assert len(rows) == 1_000
    pd.testing.assert_frame_equal(rows, draw_rows(DESCRIBED, copy.deepcopy(SUMMARY)))
    assert rows["size"].mean() == pytest.approx(ORDINARY["size"].mean(), abs=0.15)
    assert rows["size"].std() == pytest.approx(ORDINARY["size"].std(), rel=0.15)
    assert rows["size"].nunique() > 900
    assert set(rows["new"].dropna()) == {0.0, 1.0}
    assert rows["new"].mean() == pytest.approx(ORDINARY["new"].mean(), abs=0.06)
    assert pd.to_datetime(rows["day"].dropna(), unit="s").between("2020-01-01", "2022-09-27").all()
    shares = rows["shop"].value_counts(normalize=True)
    assert shares["a"] == pytest.approx(0.6, abs=0.06)
    # And what may come as well: values that are missing, and categories that nobody has heard of.
    assert set(rows["shop"].dropna()) == {"a", "b", "c", "(other)"}
    assert rows.isna().mean().between(0.02, 0.09).all()


def test_a_column_without_values_stays_empty():
    described = [{"name": "x", "kind": "number", "column": {"name": "x", "kind": "number"}}]
    summary = {"reference": {"x": {"n_rows": 3, "sample": [None], "mean": None, "deviation": None}}}
    assert draw_rows(described, summary)["x"].isna().all()


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_any_numbers_can_be_drawn_from(sample):
    numbers = {"n_rows": 5, "sample": sample, "mean": 0.0, "deviation": 1.0}
    rows = draw_rows([DESCRIBED[0], DESCRIBED[3]], {"reference": {"size": numbers, "day": numbers}})
    known = [number for number in sample if number is not None]
    assert len(rows) == 1_000
    assert rows["day"].dtype.kind == "f"
    if known:
        assert rows["size"].dropna().between(min(known), max(known)).all()


@pytest.mark.parametrize(
    ("described", "summary"),
    [
        (DESCRIBED, None),
        (DESCRIBED, {}),
        (DESCRIBED, {"reference": "forged"}),
        (DESCRIBED, {"reference": {"size": SUMMARY["reference"]["size"]}}),
        (DESCRIBED, {"reference": SUMMARY["reference"] | {"size": SUMMARY["reference"]["shop"]}}),
        ([{"name": "X", "kind": "table", "columns": None}], SUMMARY),
    ],
)
def test_drawing_needs_a_summary_that_fits_the_inputs(described, summary):
    with pytest.raises(InvalidInputError, match=r"Expected rows to compare.*Pass real rows as X"):
        draw_rows(described, summary)


def test_a_model_of_an_array_needs_rows(tmp_path):
    with pytest.raises(InvalidInputError, match=r"compare the graph and the model on\. Got none"):
        export_onnx(HCMRegressor(Ridge()).fit(X, y), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("backbone", "task"), [("extra-trees", HCMClassifier), ("kernel", HCMRegressor)])
def test_models_of_tables_are_compared_on_drawn_rows(backbone, task, tmp_path):
    target = ORDINARY["size"] + (ORDINARY["shop"] == "a") + 0.1 * rng.normal(size=300)
    if task is HCMClassifier:
        target = np.where(target > 0.5, "much", "little")
    fit = fit_table(ORDINARY.assign(target=target), ["target"], backbone=backbone)
    assert isinstance(fit.model, task)
    fit.model.set_threshold(AcceptShare(0.8))
    parity = export_onnx(fit.model, tmp_path / "model.onnx", summary=fit.summary())
    assert max(parity.relative.values()) < 1e-9
    assert str(parity).startswith("Compared on 1,000 rows drawn column by column from the summary of each column")


def test_numbers_drawn_between_the_largest_floats_are_finite():
    numbers = {"n_rows": 2, "sample": [-1.7e308, 1.7e308], "mean": 0.0, "deviation": 1.0}
    drawn = draw_rows(DESCRIBED[:1], {"reference": {"size": numbers}})["size"]
    assert np.isfinite(drawn.dropna()).all()
    assert drawn.notna().mean() > 0.9
