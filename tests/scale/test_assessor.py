import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from onsphere import HCMRegressor
from onsphere.decision import AcceptShare, Novelty
from onsphere.drift import DriftMonitor
from onsphere.errors import InvalidInputError, InvalidTypeError, MissingExtraError
from onsphere.export import export_onnx
from onsphere.scale import Assessor
from onsphere.table import fit_table
from tests.scale.conftest import make_rows


@pytest.fixture(scope="module", params=["model_path", "graph_path"])
def assessor(request):
    return Assessor(request.getfixturevalue(request.param))


def test_it_answers_what_the_model_answers_in_the_order_of_the_rows(assessor, table_fit):
    rows = make_rows(200, seed=5)
    features = rows.drop_columns(["id"]).to_pandas()
    answers, expected = assessor(rows), table_fit.model.assess(features, coverage=0.9)
    assert answers["id"].to_pylist() == rows["id"].to_pylist()
    for name in ("value", "uncertainty", "noise", "novelty", "lower", "upper", "confidence"):
        np.testing.assert_allclose(answers[name], getattr(expected, name), rtol=1e-6, atol=1e-7)
    assert answers["accepted"].to_pylist() == expected.accepted.tolist()
    assert answers["reason"].to_pylist() == expected.reason.tolist()


def test_blocks_of_rows_change_nothing(assessor, monkeypatch):
    rows = make_rows(50, seed=6)
    whole = assessor(rows)
    monkeypatch.setattr("onsphere.scale.assessor._ROWS_AT_ONCE", 7)
    blocks = assessor(rows)
    assert blocks.schema == whole.schema
    np.testing.assert_allclose(blocks["upper"], whole["upper"], rtol=1e-6)


@pytest.fixture(scope="module")
def of_numbers(tmp_path_factory):
    frame = make_rows(200).select(["size", "age"]).to_pandas()
    found = fit_table(frame.assign(price=frame["size"] * frame["age"]), ["price"], backbone="kernel")
    found.model.set_threshold(AcceptShare(0.5), novelty=Novelty(max=0.3))
    path = tmp_path_factory.mktemp("numbers") / "model.onsphere"
    return Assessor(found.model.save(path, summary=found.summary())), found.model


def test_numbers_are_read_at_once_and_answered_alike(of_numbers, monkeypatch):
    assessor, model = of_numbers
    rows = make_rows(60, seed=5, scale=3.0).select(["size", "age"])
    few = rows.set_column(1, "age", [pa.array(range(60), pa.uint8())])
    with monkeypatch.context() as patch:
        patch.setattr("onsphere.scale.assessor.read_features", None)
        ways = {"at once": [assessor(rows), assessor(few)]}
    expected = model.assess(rows.to_pandas(), coverage=0.9)
    assert ways["at once"][0]["reason"].to_pylist() == expected.reason.tolist()
    assert len(set(expected.reason)) > 2  # so that every word finds its rows
    monkeypatch.setattr("onsphere.scale.assessor._read_plain_numbers", lambda table: None)
    ways["cell by cell"] = [assessor(rows), assessor(few)]
    assert ways["at once"] == ways["cell by cell"]


def test_what_is_no_plain_number_is_read_cell_by_cell(of_numbers):
    assessor, model = of_numbers
    for cells in ([1.0, None], [1.0, float("nan")], ["1", None]):
        rows = pa.table({"size": pa.array(cells, from_pandas=False), "age": [2.0, 2.0]})
        frame = pd.DataFrame({"size": [1.0, np.nan], "age": [2.0, 2.0]})
        assert assessor(rows)["value"].to_pylist() == model.predict(frame).tolist()
    for cell in (float("inf"), 1e39):
        with pytest.raises(InvalidInputError, match=r"the column size of a\.csv, row 8 .*Got the number"):
            assessor(pa.table({"size": [1.0, cell], "age": [1.0, 1.0]}), source="a.csv", first_row=7)


def test_the_schema_is_the_same_for_every_table_and_for_both_kinds_of_file(model_path, graph_path):
    found = {Assessor(path)(rows).schema for path in (model_path, graph_path) for rows in (make_rows(0), make_rows(3))}
    assert len(found) == 1


def test_columns_that_are_kept_come_first_with_their_types(model_path):
    rows = make_rows(3).append_column("lot", pa.array([1, 2, 3], pa.int8()))
    answers = Assessor(model_path, keep=["lot", "city"])(rows)
    assert answers.schema.names[:3] == ["lot", "city", "value"]
    assert answers.schema.field("lot").type == pa.int8()
    assert answers.select(["lot", "city"]).equals(rows.select(["lot", "city"]))


def test_a_table_without_the_keys_is_answered_without_them(assessor):
    assert assessor(make_rows(3).drop_columns(["id"])).column_names[0] == "value"


def test_the_coverage_is_that_of_the_fit_or_the_one_asked_for(model_path, graph_path):
    rows = make_rows(50, seed=7)
    narrow, usual = Assessor(model_path, coverage=0.5)(rows), Assessor(model_path)(rows)
    assert np.all(np.asarray(narrow["upper"]) < np.asarray(usual["upper"]))
    with pytest.raises(InvalidInputError, match=r"Expected a coverage of 0\.9, .* Got 0\.5"):
        Assessor(graph_path, coverage=0.5)
    with pytest.raises(InvalidInputError, match="coverage"):
        Assessor(model_path, coverage=1.5)


def test_quantiles_of_a_graph_have_no_place_among_the_answers(table_fit, graph_path, tmp_path):
    export_onnx(table_fit.model, tmp_path / "more.onnx", summary=table_fit.summary(), quantiles=[0.1, 0.9])
    assert Assessor(tmp_path / "more.onnx").answer_schema == Assessor(graph_path).answer_schema


def test_the_monitor_sees_what_one_of_the_model_sees(assessor, table_fit):
    rows, monitor = make_rows(300, seed=8, scale=2.0), assessor.make_monitor()
    assessor(rows, monitor=monitor)
    expected = DriftMonitor(table_fit.model)
    expected.update(table_fit.model.assess(rows.drop_columns(["id"]).to_pandas()))
    assert monitor.n_seen == 300
    assert monitor.log_capital == pytest.approx(expected.log_capital, rel=1e-4)


def test_of_many_rows_the_monitor_sees_some_evenly_spread(assessor, table_fit, monkeypatch):
    monkeypatch.setattr("onsphere.scale.assessor._ROWS_WATCHED", 100)
    rows, monitor = make_rows(250, seed=8), assessor.make_monitor()
    assessor(rows, monitor=monitor)
    expected = DriftMonitor(table_fit.model)
    expected.update(table_fit.model.assess(rows.drop_columns(["id"]).to_pandas()[::3]))
    assert monitor.n_seen == 84
    assert monitor.log_capital == pytest.approx(expected.log_capital, rel=1e-4)


@pytest.mark.parametrize("package", ["pyarrow", "onnxruntime"])
def test_a_package_that_is_missing_is_named(graph_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=package):
        Assessor(graph_path)


def test_after_a_cross_validation_there_is_no_monitor(tmp_path):
    frame = make_rows(100).drop_columns(["id"]).to_pandas()
    found = fit_table(frame.assign(price=frame["size"]), ["price"], backbone="kernel")
    found.model.save(tmp_path / "small.onsphere", summary=found.summary())
    assert Assessor(tmp_path / "small.onsphere").make_monitor() is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (make_rows(3).drop_columns(["age"]), r"Expected the column\(s\) age in the table"),
        (make_rows(3).set_column(1, "size", [["1", "two", "3"]]), r"size.*two"),
    ],
)
def test_tables_that_do_not_fit_are_rejected(assessor, rows, message):
    with pytest.raises(InvalidInputError, match=message):
        assessor(rows)


def test_errors_count_rows_from_the_first_one(assessor):
    rows = make_rows(3).set_column(1, "size", [["1", "two", "3"]])
    with pytest.raises(InvalidInputError, match=r"part-7.*101"):
        assessor(rows, source="part-7", first_row=100)


@pytest.mark.parametrize(
    ("keep", "message"),
    [("id", "a list of names"), ([1], "a list of names"), (["id", "id"], "more than one column named id")],
)
def test_keep_names_columns(model_path, keep, message):
    with pytest.raises(InvalidInputError, match=message):
        Assessor(model_path, keep=keep)


def test_only_arrow_tables_with_different_names_are_taken(model_path):
    assessor, rows = Assessor(model_path), make_rows(2)
    with pytest.raises(InvalidTypeError, match=r"Expected a pyarrow\.Table\. Got DataFrame"):
        assessor(rows.to_pandas())
    with pytest.raises(InvalidInputError, match="more than one column named id"):
        assessor(rows.append_column("id", rows["id"]))


def test_columns_that_are_kept_must_be_there_and_get_other_names_than_answers(model_path):
    rows = make_rows(2).append_column("value", pa.array(["a", "b"]))
    assert Assessor(model_path, keep=["value"])(rows)["key_value"].to_pylist() == ["a", "b"]
    with pytest.raises(InvalidInputError, match=r"Expected the column\(s\) lot"):
        Assessor(model_path, keep=["lot"])(make_rows(2))


def test_a_graph_of_a_model_without_a_table_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = HCMRegressor(frames="target").fit(X[:20], X[:20, 0]).calibrate(X[20:], X[20:, 0])
    export_onnx(model, tmp_path / "plain.onnx", X=X)
    with pytest.raises(InvalidInputError, match="Expected a model that was fitted on a table"):
        Assessor(tmp_path / "plain.onnx")
