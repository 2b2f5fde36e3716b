"""What a graph carries for those who run it, and what is made of a forged one; rows that are drawn from a summary."""

import copy
import json

import numpy as np
import onnx
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from onsphere import AcceptShare, HCMClassifier, HCMRegressor, InvalidInputError
from onsphere.drift import DriftMonitor, make_reference
from onsphere.export import export_onnx, onnx_file, open_graph
from onsphere.export.graph_inputs import draw_rows
from onsphere.table import fit_table

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 2))
y = X.sum(axis=1) + 0.1 * rng.normal(size=120)


def calibrated(**options):
    return HCMRegressor(Ridge(), random_state=0, **options).fit(X, y)


# --- calibration ---


def test_a_graph_carries_what_a_drift_alarm_needs(tmp_path):
    model = calibrated(calibration="split")
    export_onnx(model, tmp_path / "model.onnx", X=X)
    _, facts = open_graph(tmp_path / "model.onnx")
    assert facts["calibration"] == sorted(model.calibration_.uncertainty.tolist())
    assert facts["manifest"]["calibrated_by"] == "held-out rows"
    stream = model.predict_uncertainty(np.tile(X, (5, 1)) + 3.0)
    assert DriftMonitor(facts["calibration"]).update(stream).alarm == DriftMonitor(model).update(stream).alarm


@pytest.mark.parametrize(
    ("options", "told"),
    [({}, None), ({"calibration": 0.3}, "held-out rows"), ({"calibration": "cv"}, "cross-validation")],
)
def test_files_tell_how_a_model_was_calibrated(options, told, tmp_path):
    model = calibrated(**options)
    export_onnx(model, tmp_path / "model.onnx", X=X)
    _, facts = open_graph(tmp_path / "model.onnx")
    assert facts["manifest"]["calibrated_by"] == told
    assert (facts["calibration"] is None) == (told is None)
    export_onnx(model.calibrate(X + 0.01, y), tmp_path / "model.onnx", X=X)
    assert open_graph(tmp_path / "model.onnx")[1]["manifest"]["calibrated_by"] == "held-out rows"


def test_of_very_many_scores_some_are_drawn_at_random(monkeypatch):
    model = calibrated(calibration=0.5)
    everything = model.calibration_.uncertainty
    monkeypatch.setattr(onnx_file, "N_SCORES", 20)
    some = onnx_file.list_calibration_scores(model)
    assert len(some) == 20 < len(everything)
    assert set(some) <= set(everything.tolist())
    assert some == sorted(some) == onnx_file.list_calibration_scores(model)
    # By their ranks they would be evenly spread.
    assert len(set(np.diff(np.searchsorted(np.sort(everything), some)))) > 2


# --- forged metadata ---


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    frame = pd.DataFrame({"size": X[:, 0], "shop": np.where(X[:, 1] > 0, "a", "b"), "price": y})
    fit = fit_table(frame, ["price"], backbone="kernel")
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    export_onnx(fit.model, path, summary=fit.summary())
    return path


def forged(graph, path, change):
    model = onnx.load(graph)
    (entry,) = model.metadata_props
    facts = json.loads(entry.value)
    change(facts)
    entry.value = json.dumps(facts)
    onnx.save(model, path)
    return path


STRANGE = {
    "manifest": [[], {}, {"format": 1}],
    "coverage": [None, "0.9", 0, 1.0, float("nan"), True],
    "inputs": [[], {}, ["size"], [{"name": "size"}], [{"name": "size", "kind": "table", "columns": [1]}]],
    "outputs": [[], "value", [1], ["value"]],
    "parity": [None, []],
    "calibration": [[], "none", [1.0, "2"], [float("nan")], [float("inf")], [10**400], [True], {"0": 1.0}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in STRANGE.items() for value in values])
def test_a_forged_graph_is_told(graph, name, value, tmp_path):
    path = forged(graph, tmp_path / "forged.onnx", lambda facts: facts.update({name: value}))
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
    ],
)
def test_a_forged_manifest_is_told(graph, name, value, tmp_path):
    path = forged(graph, tmp_path / "forged.onnx", lambda facts: facts["manifest"].update({name: value}))
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
        *({"column": {"name": "size", "kind": "number", "date_format": strange}} for strange in (5, "%q", "%Y%Y")),
        {"kind": "category", "column": {"name": "size", "kind": "category"}},
        {"kind": "table", "columns": None},
    ],
)
def test_inputs_that_the_graph_does_not_have_are_told(graph, change, tmp_path):
    path = forged(graph, tmp_path / "forged.onnx", lambda facts: facts["inputs"][0].update(change))
    with pytest.raises(InvalidInputError, match="where these do not: inputs"):
        open_graph(path)


@pytest.mark.parametrize(("columns", "fits"), [(None, True), (["a", "b"], True), (["a"], False)])
def test_a_table_has_as_many_columns_as_the_graph_takes(columns, fits, tmp_path):
    export_onnx(calibrated(), tmp_path / "model.onnx", X=X)
    path = forged(
        tmp_path / "model.onnx", tmp_path / "forged.onnx", lambda facts: facts["inputs"][0].update(columns=columns)
    )
    if fits:
        assert open_graph(path)[1]["inputs"][0]["columns"] == columns
        return
    with pytest.raises(InvalidInputError, match="where these do not: inputs"):
        open_graph(path)


@pytest.mark.parametrize("version", [3, 2.5, 10**400])
def test_graphs_of_newer_formats_are_told(graph, version, tmp_path):
    path = forged(graph, tmp_path / "newer.onnx", lambda facts: facts["manifest"].update(format=version))
    with pytest.raises(InvalidInputError, match="Install a newer onsphere"):
        open_graph(path)


def test_older_graphs_carry_no_scores(graph, tmp_path):
    path = forged(graph, tmp_path / "older.onnx", lambda facts: facts.pop("calibration"))
    assert "calibration" not in open_graph(path)[1]


def test_deeply_nested_metadata_are_told(graph, tmp_path):
    model = onnx.load(graph)
    model.metadata_props[0].value = "[" * 100_000
    onnx.save(model, tmp_path / "deep.onnx")
    with pytest.raises(InvalidInputError, match="ONNX graph without them"):
        open_graph(tmp_path / "deep.onnx")


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


def test_drawn_rows_look_like_those_of_the_summary_one_column_at_a_time():
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


def test_a_column_that_was_never_known_stays_so():
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
def test_without_rows_or_a_summary_nothing_is_compared(described, summary):
    with pytest.raises(InvalidInputError, match=r"Expected rows to compare.*Pass real rows as X"):
        draw_rows(described, summary)


def test_a_model_of_an_array_needs_rows(tmp_path):
    with pytest.raises(InvalidInputError, match=r"compare the graph and the model on\. Got none"):
        export_onnx(calibrated(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backbone", ["extra-trees", "kernel"])
def test_models_of_tables_are_compared_on_draw_rows(backbone, tmp_path):
    target = ORDINARY["size"] + (ORDINARY["shop"] == "a") + 0.1 * rng.normal(size=300)
    classes = np.where(target > 0.5, "much", "little")
    for name, values in {"price": target, "kind": classes}.items():
        fit = fit_table(ORDINARY.assign(**{name: values}), [name], backbone=backbone)
        assert isinstance(fit.model, HCMClassifier if name == "kind" else HCMRegressor)
        fit.model.set_threshold(AcceptShare(0.8))
        parity = export_onnx(fit.model, tmp_path / "model.onnx", summary=fit.summary())
        assert max(parity.relative.values()) < 1e-9
        assert str(parity).startswith("Compared on 1,000 rows drawn column by column from what the model file says")


def test_between_the_largest_numbers_there_are_finite_ones():
    numbers = {"n_rows": 2, "sample": [-1.7e308, 1.7e308], "mean": 0.0, "deviation": 1.0}
    drawn = draw_rows(DESCRIBED[:1], {"reference": {"size": numbers}})["size"]
    assert np.isfinite(drawn.dropna()).all()
    assert drawn.notna().mean() > 0.9
