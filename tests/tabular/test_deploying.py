"""export and monitor on the command line."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from onsphere import cli, load
from onsphere.export import graph_inputs, open_graph
from onsphere.tabular import read_table


def run(*arguments):
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli.app, [str(each) for each in arguments])


@pytest.fixture
def folder(tmp_path, monkeypatch, house_model, houses):
    monkeypatch.chdir(tmp_path)
    shutil.copy(house_model / "model.onsphere", tmp_path / "model.onsphere")
    houses(150, 1).to_csv("fresh.csv", index=False)
    shifted = houses(300, 2)
    shifted.loc[150:, "size"] += 400
    shifted.drop(columns="price").to_csv("stream.csv", index=False)
    return tmp_path


def test_a_graph_answers_as_the_model_does(folder):
    result = run("export", "model.onsphere", "fresh.csv", "--out", "model.onnx")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "150 rows" in result.stdout
    session, facts = open_graph("model.onnx")
    model, names = load("model.onsphere"), [column["name"] for column in facts["inputs"]]
    assert facts["manifest"]["summary"]["targets"] == ["price"]
    rows = read_table("fresh.csv")[list(model.feature_names_in_)]
    value = session.run(["value"], graph_inputs(facts["inputs"], rows))[0]
    np.testing.assert_allclose(value.reshape(-1), model.predict(rows), rtol=1e-6)
    assert set(names) == set(model.feature_names_in_)


def test_export_as_json_at_another_coverage_and_quietly(folder):
    result = run("export", "model.onsphere", "fresh.csv", "--coverage", "0.8", "--json")
    assert json.loads(result.stdout)["n_rows"] == 150
    assert open_graph("model.onnx")[1]["coverage"] == 0.8
    assert run("export", "model.onsphere", "fresh.csv", "--quiet").stdout == ""


def test_monitor_finds_the_row_at_which_a_stream_changed(folder):
    result = run("monitor", "model.onsphere", "stream.csv", "--reference", "fresh.csv", "--plot", "evidence.png")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Alarm at row 1" in result.stdout
    assert "calibrated by cross-validation, so a false alarm is more likely" in result.stdout
    assert "size: mean" in result.stdout.splitlines()[1]
    assert (folder / "evidence.png").stat().st_size > 5_000
    facts = json.loads(run("monitor", "model.onsphere", "stream.csv", "--json").stdout)
    assert facts["rows"] == 300
    assert 150 < facts["alarmed_at"] < 250
    assert facts["hints"] == []


def test_the_promise_is_told_where_it_holds(folder, houses):
    houses(520, 3).to_csv("many.csv", index=False)
    run("fit", "many.csv", "-t", "price", "--backbone", "kernel", "--save", "split.onsphere", "--quiet")
    result = run("monitor", "split.onsphere", "stream.csv")
    assert "(a false alarm has a chance of at most 0.01)" in result.stdout


def test_monitor_is_quiet_where_nothing_changed(folder):
    result = run("monitor", "model.onsphere", "fresh.csv", "--reference", "fresh.csv")
    assert (result.exit_code, result.stdout) == (0, "No alarm in 150 rows.\n")
    assert run("monitor", "model.onsphere", "stream.csv", "--quiet").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("export", "model.onsphere", "nowhere.csv"), "does not exist"),
        (("export", "fresh.csv", "fresh.csv"), "written by save"),
        (("export", "model.onsphere", "fresh.csv", "--out", "."), "folder"),
        (("monitor", "model.onsphere", "fresh.csv", "--alpha", "2"), "alpha"),
        (("monitor", "model.onsphere", "nowhere.csv"), "does not exist"),
        (("monitor", "model.onsphere", "fresh.csv", "--plot", "nowhere/e.png"), "Expected to write"),
        (("monitor", "model.onsphere", "fresh.csv", "--plot", "e.doc"), "png"),
    ],
)
def test_what_cannot_be_done_is_told(folder, arguments, words):
    before = sorted(path.name for path in folder.iterdir())
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == before
