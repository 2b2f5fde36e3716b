import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from onsphere import cli
from onsphere.cli.folder import _format_time
from onsphere.scale.dataset import DatasetSummary
from onsphere.table import fit_table


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(1200, 2)), columns=["size", "age"])
    found = fit_table(rows.assign(price=rows["size"] * rows["age"]), ["price"], backbone="kernel")
    path = tmp_path_factory.mktemp("model") / "model.onsphere"
    found.model.save(path, summary=found.summary())
    return path


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(1)
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        rows = pd.DataFrame(rng.normal(size=(30, 2)), columns=["size", "age"])
        rows.to_csv(tmp_path / "in" / f"{name}.csv", index=False)
    return tmp_path / "in"


def run(*words):
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli.app, ["predict", *map(str, words)])


def test_a_folder_is_assessed_file_by_file(model, folder, tmp_path):
    result = run(model, folder, "--out", tmp_path / "out", "--workers", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("2 files, 60 rows, ")
    assert result.stdout.endswith(f"Written to {tmp_path / 'out'}\n")
    assert sum(parquet.read_metadata(path).num_rows for path in (tmp_path / "out").glob("*.parquet")) == 60


def test_json_and_quiet(model, folder, tmp_path):
    result = run(model, folder, "--out", tmp_path / "out", "--workers", "1", "--json")
    assert json.loads(result.stdout)["rows"] == 60
    result = run(model, folder, "--out", tmp_path / "out", "--workers", "1", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_drift_is_said(model, folder, tmp_path):
    pd.DataFrame(np.full((300, 2), 9.0), columns=["size", "age"]).to_csv(folder / "c.csv", index=False)
    result = run(model, folder, "--out", tmp_path / "out", "--workers", "1")
    assert result.exit_code == 0
    assert "Drift: these rows are not like those of the calibration" in result.stderr
    assert "rejected: " in result.stdout


def test_files_that_fail_are_named_and_change_the_exit_code(model, folder, tmp_path):
    (folder / "b.csv").write_text("size,age\n1,2\n3,broken\n")
    words = (model, folder, "--out", tmp_path / "out", "--workers", "1")
    result = run(*words, "--on-error", "skip")
    assert result.exit_code == 1
    assert result.stdout.startswith("1 file, 30 rows")
    assert "b.csv" in result.stderr
    assert "broken" in result.stderr
    result = run(*words)
    assert result.exit_code == 2
    assert "1 of 2 files are done and kept" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["FOLDER"], "Expected --out with the folder"),
        (["FOLDER", "--out", "OUT", "--quantiles", "0.5"], "Expected a single file with --quantiles"),
        (["FOLDER", "--out", "OUT", "--tails", "equal", "--delimiter", ";"], "with --tails and --delimiter"),
        (["FOLDER/a.csv", "--engine", "ray"], "Expected a folder with --engine"),
        (["FOLDER/a.csv", "--workers", "2", "--on-error", "skip"], "with --workers and --on-error"),
        (["FOLDER", "--out", "OUT", "--engine", "spark"], "--engine"),
        (["FOLDER", "--out", "OUT", "--workers", "0"], "--workers"),
        (["FOLDER", "--out", "OUT", "--coverage", "90"], "Expected --coverage above 0 and below 1"),
        (["FOLDER", "--out", "OUT", "--address", "ray-head:6379"], "Add --engine ray"),
        (["FOLDER/nowhere/", "--out", "OUT"], "Expected a folder that can be used"),
        (["s3:///", "--out", "OUT"], "Expected a folder that can be used"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(model, folder, tmp_path, words, message):
    words = [word.replace("FOLDER", str(folder)).replace("OUT", str(tmp_path / "out")) for word in words]
    result = run(model, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_graph_answers_folders_alone(folder, tmp_path):
    result = run(tmp_path / "model.onnx", folder / "a.csv")
    assert result.exit_code == 2
    assert "Expected a folder with" in result.stderr
    result = run(tmp_path / "model.onnx", folder, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "model.onnx, which does not exist" in result.stderr


def test_time_left_is_short():
    assert [_format_time(seconds) for seconds in (9.4, 600.0)] == ["9 s", "10 min"]


def test_speed_and_time_left_are_those_of_this_run(model, folder, tmp_path, monkeypatch):
    said, moments = [], iter([100.0, 110.0])

    def assess(*_, on_progress, **__):
        on_progress(1_000, 0.5)
        on_progress(1_200, 0.75)
        return DatasetSummary(1, 1_200, 1_200, {}, {}, None)

    monkeypatch.setattr("onsphere.cli.folder.assess_dataset", assess)
    monkeypatch.setattr("onsphere.cli.folder.spin", lambda *_, **__: nullcontext(said.append))
    monkeypatch.setattr("onsphere.cli.folder.time", SimpleNamespace(monotonic=lambda: next(moments)))
    assert run(model, folder, "--out", tmp_path / "out").exit_code == 0
    assert said == ["1,200 rows, 20 rows/s, 75%, 10 s left"]
