"""The commands export and monitor."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from onsphere import InvalidInputError, cli, load, plots
from onsphere.export import open_graph, prepare_inputs
from onsphere.persistence import load_with_manifest, read_manifest
from onsphere.table import fit as fitting
from onsphere.table import fit_table, read_table
from onsphere.table.columns import KINDS
from onsphere.table.model_file import read_summary_columns


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


@pytest.fixture(scope="module")
def split_model(tmp_path_factory, houses):
    """Return a model that was calibrated on rows of their own, so that its alarm keeps its promise."""
    path = tmp_path_factory.mktemp("split") / "split.onsphere"
    houses(520, 3).to_csv(path.with_suffix(".csv"), index=False)
    fit = ("fit", path.with_suffix(".csv"), "-t", "price", "--backbone", "extra-trees", "--quiet", "--save", path)
    assert run(*fit).exit_code == 0
    return path


def test_a_graph_answers_as_the_model_does(folder):
    result = run("export", "model.onsphere", "model.onnx", "--rows", "fresh.csv")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Compared on 150 given rows. Largest difference: value" in result.stdout
    session, facts = open_graph("model.onnx")
    model, names = load("model.onsphere"), [column["name"] for column in facts["inputs"]]
    assert facts["manifest"]["summary"]["targets"] == ["price"]
    rows = read_table("fresh.csv")[list(model.feature_names_in_)]
    value = session.run(["value"], prepare_inputs(facts["inputs"], rows))[0]
    np.testing.assert_allclose(value.reshape(-1), model.predict(rows), rtol=1e-6)
    assert set(names) == set(model.feature_names_in_)


def test_inputs_are_not_overwritten(folder):
    shutil.copy("model.onsphere", "model.onnx")
    shutil.copy("model.onsphere", "model.png")
    shutil.copy("stream.csv", "stream.png")
    for command in (
        ("export", "model.onnx", "model.onnx"),
        ("export", "model.onsphere", "model.onnx", "--rows", "model.onnx"),
        ("monitor", "model.png", "stream.csv", "--plot", "model.png"),
        ("monitor", "model.onsphere", "stream.csv", "--plot", "stream.png", "--reference", "stream.png"),
    ):
        result = run(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Expected an output file that is not also an input" in result.stderr
    assert (folder / "model.onnx").read_bytes() == (folder / "model.onsphere").read_bytes()


def test_a_column_without_a_name_can_be_exported(folder):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(100, 2)), columns=["", "column"])
    table.assign(price=table.sum(axis=1)).to_parquet("nameless.parquet")
    fit = ("fit", "nameless.parquet", "-t", "price", "--backbone", "extra-trees", "--save", "nameless.onsphere")
    assert run(*fit, "--quiet").exit_code == 0
    assert run("predict", "nameless.onsphere", "nameless.parquet", "--out", "out.csv").exit_code == 0
    result = run("export", "nameless.onsphere", "nameless.onnx")
    assert (result.exit_code, result.stderr) == (0, "")
    _, facts = open_graph("nameless.onnx")
    assert [(each["name"], each["column"]["name"]) for each in facts["inputs"]] == [
        ("column", ""),
        ("column column", "column"),
    ]


def test_without_rows_a_graph_is_compared_on_generated_ones(folder):
    """Run `onsphere export model.onsphere model.onnx`, as the guide writes it."""
    result = run("export", "model.onsphere", "model.onnx")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Compared on 1,000 rows drawn column by column from the summary of each column" in result.stdout
    assert "Largest difference: value" in result.stdout
    _, facts = open_graph("model.onnx")
    assert facts["parity"]["rows"].startswith("rows drawn column by column")
    assert facts["parity"]["n_rows"] == 1_000


def test_a_file_without_a_reference_needs_rows(folder):
    """Use a file of the first versions, which had no reference."""
    model, manifest = load_with_manifest("model.onsphere")
    summary = {name: value for name, value in manifest["summary"].items() if name != "reference"}
    model.save("old.onsphere", summary=summary)
    result = run("export", "old.onsphere", "old.onnx")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "does not say what its columns hold. Pass real rows: --rows rows.csv." in result.stderr
    assert run("export", "old.onsphere", "old.onnx", "--rows", "fresh.csv").exit_code == 0
    facts = json.loads(run("monitor", "old.onsphere", "stream.csv", "--json").stdout)
    assert (facts["rows"], facts["hints"]) == (300, [])


@pytest.mark.parametrize(
    "change",
    [
        lambda reference: "forged",
        lambda reference: {},
        lambda reference: {name: each for name, each in reference.items() if name != "size"},
        lambda reference: reference | {"another": reference["size"]},
        lambda reference: reference | {"city": reference["size"]},
        lambda reference: reference | {"size": reference["city"]},
        lambda reference: reference | {"size": reference["size"] | {"sample": ["much"]}},
    ],
)
def test_a_bad_reference_is_rejected(folder, change):
    model, manifest = load_with_manifest("model.onsphere")
    summary = manifest["summary"]
    model.save("bad.onsphere", summary=summary | {"reference": change(summary["reference"])})
    for command in (("export", "bad.onsphere", "bad.onnx"), ("monitor", "bad.onsphere", "stream.csv")):
        result = run(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "does not say what it should about: reference" in result.stderr
    with pytest.raises(InvalidInputError, match="reference"):
        read_summary_columns(folder / "bad.onsphere", read_manifest("bad.onsphere")["summary"])


def test_the_file_keeps_little_of_each_column(folder):
    summary = read_manifest("model.onsphere")["summary"]
    reference = summary["reference"]
    features = {column["name"]: column["kind"] for column in summary["columns"] if column["kind"] in KINDS[:4]}
    assert reference.keys() == features.keys()
    # Training and calibration rows, not those that the model is measured on.
    assert {each["n_rows"] for each in reference.values()} == {208}
    for name, each in reference.items():
        if features[name] == "category":
            assert set(each["shares"]) <= {"Berlin", "Paris", "Rome, IT", "Zürich", "(missing)"}
        else:
            assert len(each["sample"]) == 101
    days = np.array(reference["sold"]["sample"])
    assert days.min() >= np.datetime64("2020-01-01", "s").astype(int)
    assert (np.diff(days) >= 0).all()
    assert set(reference["heating"]["sample"]) == {0.0, 1.0}
    assert None in reference["age"]["sample"]
    assert "reference" not in run("fit", "fresh.csv", "-t", "price", "--backbone", "kernel", "--json").stdout


def test_many_columns_keep_fewer_numbers_each(houses, monkeypatch):
    monkeypatch.setattr(fitting, "_N_KEPT_IN_ALL", 60)
    fit = fit_table(houses(120, 0), ["price"], backbone="kernel")
    assert [len(each["sample"]) for each in fit.reference.values() if "sample" in each] == [10] * 5


def test_export_as_json_at_another_coverage_and_quietly(folder):
    result = run("export", "model.onsphere", "--rows", "fresh.csv", "--coverage", "0.8", "--json")
    assert json.loads(result.stdout)["n_rows"] == 150
    assert open_graph("model.onnx")[1]["coverage"] == 0.8
    assert run("export", "model.onsphere", "--quiet").stdout == ""


def test_monitor_says_how_far_its_alarm_is_to_be_trusted(folder):
    result = run("monitor", "model.onsphere", "stream.csv", "--reference", "fresh.csv", "--plot", "evidence.png")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "calibrated by cross-validation, so a false alarm is more likely" in result.stdout
    assert (folder / "evidence.png").stat().st_size > 5_000


def test_monitor_finds_the_row_and_the_column_of_a_change(folder, split_model):
    result = run("monitor", split_model, "stream.csv", "--reference", "fresh.csv")
    assert "Alarm at row 1" in result.stdout
    assert re.fullmatch(r"Columns that moved since about row \d+:", result.stdout.splitlines()[1])
    assert "size: mean" in result.stdout.splitlines()[2]


def test_monitor_finds_moved_columns_from_the_model_file(folder, houses, split_model):
    result = json.loads(run("monitor", split_model, "stream.csv", "--json").stdout)
    assert result["rows"] == 300
    assert 150 < result["alarmed_at"] < 250
    assert [hint["column"] for hint in result["hints"]] == ["size"]
    assert result["hints"][0]["shift"] > 1
    assert 0 < result["changed_at"] <= result["alarmed_at"]
    # Whatever the file: dates and booleans of Parquet have types of their own, those of CSV are text.
    stream = read_table("stream.csv")
    assert stream["sold"].dtype.kind == "M"
    stream.to_parquet("stream.parquet")
    assert json.loads(run("monitor", split_model, "stream.parquet", "--json").stdout) == result
    # And a date that moved is seen as one.
    late = houses(300, 2)
    late["sold"] = (pd.to_datetime(late["sold"]) + pd.Timedelta(days=2000)).dt.strftime("%Y-%m-%d")
    late.loc[150:, "size"] += 400
    late.to_csv("late.csv", index=False)
    hints = json.loads(run("monitor", split_model, "late.csv", "--json").stdout)["hints"]
    assert any(hint["column"] == "sold" and hint["shift"] > 4 and hint["distance"] == 1 for hint in hints)


def test_a_change_that_has_passed_is_blamed_on_its_columns(folder, houses, split_model):
    stream = houses(1000, 2)
    stream.loc[300:500, "size"] += 400
    stream.to_csv("passed.csv", index=False)
    result = json.loads(run("monitor", split_model, "passed.csv", "--json").stdout)
    assert 300 < result["alarmed_at"] < 400
    assert 280 < result["changed_at"] <= 310
    assert [hint["column"] for hint in result["hints"]] == ["size"]


def test_moved_columns_are_shown_without_an_alarm(folder, houses, split_model):
    houses(200, 2).assign(rooms=2).to_csv("alike.csv", index=False)
    result = run("monitor", split_model, "alike.csv")
    assert result.stdout.splitlines()[:2] == [
        "No alarm in 200 rows.",
        "Columns that moved, though uncertainty and novelty do not show it:",
    ]
    assert result.stdout.splitlines()[2].startswith("  rooms: mean ")


def test_the_promise_is_printed_only_where_it_holds(folder, split_model):
    result = run("monitor", split_model, "stream.csv")
    assert "(a false alarm has a chance of at most 0.01)" in result.stdout


def test_the_alarm_says_whether_uncertainty_or_novelty_rose(folder, houses, split_model, monkeypatch):
    """A city that nobody has seen: trees put it with others, and are as sure of it as of them."""
    stream = houses(300, 2)
    stream.loc[150:, "city"] = "Atlantis"
    stream.to_csv("strange.csv", index=False)
    drawn, draw = {}, plots.evidence

    def note(values, **options):
        drawn[options["label"]] = values
        return draw(values, **options)

    monkeypatch.setattr(plots, "evidence", note)
    result = run("monitor", split_model, "strange.csv", "--plot", "evidence.svg", "--json")
    facts = json.loads(result.stdout)
    assert (facts["alarmed_by"], facts["alarmed_at"] > 150) == ("novelty", True)
    assert {name: len(values) for name, values in drawn.items()} == dict.fromkeys(drawn, facts["alarmed_at"])
    assert max(facts["evidence"].values()) == facts["log_capital"]
    words = f"Alarm at row {facts['alarmed_at']} of 300, by their novelty: the rows are no longer like those"
    assert words in run("monitor", split_model, "strange.csv").stdout


def test_monitor_is_quiet_when_nothing_changed(folder, split_model):
    result = run("monitor", split_model, "fresh.csv", "--reference", "fresh.csv")
    assert (result.exit_code, result.stdout) == (0, "No alarm in 150 rows.\n")
    assert run("monitor", "model.onsphere", "stream.csv", "--quiet").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("export", "model.onsphere", "m.onnx", "--rows", "nowhere.csv"), "does not exist"),
        (("export", "fresh.csv", "m.onnx"), "a model file of onsphere fit --save"),
        (("export", "model.onsphere", "nowhere/m.onnx"), "Expected to write"),
        (("export", "model.onsphere", "fresh.csv"), "ends in .onnx. Got fresh.csv. Choose another name; rows to"),
        (("monitor", "model.onsphere", "fresh.csv", "--alpha", "2"), "alpha"),
        (("monitor", "model.onsphere", "nowhere.csv"), "does not exist"),
        (("monitor", "model.onsphere", "fresh.csv", "--plot", "nowhere/e.png"), "Expected to write"),
        (("monitor", "model.onsphere", "fresh.csv", "--plot", "e.doc"), "png"),
    ],
)
def test_impossible_requests_are_rejected(folder, arguments, words):
    before = sorted(path.name for path in folder.iterdir())
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == before
