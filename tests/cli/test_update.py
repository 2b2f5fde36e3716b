"""Groups and time at the command line, and labels that are taken in later."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from onsphere import cli, load
from onsphere.cli.model_rows import read_times


def run(*arguments):
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli.app, [str(each) for each in arguments])


def make_table(n, seed, *, first=0, noise=1.0):
    rng = np.random.default_rng(seed)
    site = rng.choice(["north", "south"], n)
    x = rng.normal(size=n)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(first, first + n), unit="D")
    y = 2 * x + noise * np.where(site == "south", 2.0, 0.5) * rng.normal(size=n)
    return pd.DataFrame({"x": x, "site": site, "day": day.strftime("%Y-%m-%d"), "y": y, "is_hot": y > 0})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_table(900, 0).drop(columns="is_hot").to_csv("data.csv", index=False)
    return tmp_path


def fit(*options):
    return run("fit", "data.csv", "-t", "y", "--backbone", "kernel", "--save", "m.onsphere", *options)


def test_labels_are_taken_in_and_the_model_is_kept_up_to_date(folder):
    result = fit("--groups", "site", "--time", "day")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "… of north" in result.stdout
    before = load("m.onsphere")
    assert before.calibration_.online is None
    make_table(300, 1, first=900, noise=4.0).to_csv("later.csv", index=False)
    result = run("update", "m.onsphere", "later.csv")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "300 labels taken in, 300 so far." in result.stdout
    after = load("m.onsphere")
    assert after.calibration_.online.n_labels == 300
    new = make_table(50, 2)[["x", "site"]]
    widths = [np.ptp(model.predict_interval(new), axis=1) for model in (before, after)]
    assert (widths[1] > 2 * widths[0]).all()
    result = run("update", "m.onsphere", "later.csv")
    assert result.exit_code == 2
    assert "row 0 with an earlier time than the last label that was taken in" in result.stderr
    make_table(200, 3, first=1200, noise=4.0).to_csv("last.csv", index=False)
    result = run("update", "m.onsphere", "last.csv", "--out", "n.onsphere", "--json")
    facts = json.loads(result.stdout)
    assert (facts["labels"], facts["labels_so_far"], facts["model"]) == (200, 500, "n.onsphere")
    assert facts["coverage_before"] == pytest.approx(0.9, abs=0.1)
    assert 0.8 < facts["coverage_rolling_worst"] <= facts["coverage_rolling"] < 1
    assert load("m.onsphere").calibration_.online.n_labels == 300
    assert run("update", "m.onsphere", "last.csv", "--quiet").stdout == ""
    assert run("predict", "m.onsphere", "last.csv", "--out", "p.csv").exit_code == 0
    assert next(iter(pd.read_csv("p.csv"))) == "day"


def test_classes_are_taken_in_and_rows_left_out_are_mentioned(folder):
    table = make_table(900, 0).drop(columns=["y", "day"])
    table.to_csv("data.csv", index=False)
    result = run("fit", "data.csv", "-t", "is_hot", "--backbone", "kernel", "--save", "m.onsphere", "--groups", "class")
    assert (result.exit_code, result.stderr) == (0, "")
    more = make_table(60, 1).drop(columns=["y", "day"]).astype({"is_hot": object})
    more.loc[3, "is_hot"] = None
    more.to_csv("more.csv", index=False)
    result = run("update", "m.onsphere", "more.csv")
    assert "The sets that stood before hold" in result.stdout
    assert result.stderr == "1 rows without is_hot are left out.\n"


def test_groups_without_calibration_rows_end_in_one_line(folder):
    fit("--groups", "site")
    before = (folder / "m.onsphere").read_bytes()
    make_table(20, 1).assign(site="west").to_csv("west.csv", index=False)
    for command in (("predict", "--out", "p.csv"), ("update",), ("evaluate",)):
        result = run(command[0], "m.onsphere", "west.csv", *command[1:])
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert "Expected groups with calibration rows: north, south. Got west" in result.stderr
    assert (folder / "m.onsphere").read_bytes() == before
    assert "Expected groups by" in fit("--groups", "place").stderr


def test_the_report_names_the_cure_and_then_the_groups(folder):
    rows = make_table(600, 5)
    rows.loc[rows["site"] == "north", "y"] += 3.0  # so that one group is missed
    rows.to_csv("rows.csv", index=False)
    fit()
    run("report", "m.onsphere", "rows.csv", "--out", "before.html")
    page = (folder / "before.html").read_text()
    fit("--groups", "site")
    run("report", "m.onsphere", "rows.csv", "--out", "after.html")
    after = (folder / "after.html").read_text()
    cure = "--groups site --report before-groups.html"
    assert cure in page
    assert "The groups that were calibrated by themselves" in after
    assert "Calibrate by" not in after


def test_labels_from_before_the_calibration_are_rejected(folder):
    """The last fifth measures the model; a quarter of the rest calibrates it, up to day 719."""
    fit("--time", "day")
    assert load("m.onsphere").calibration_.last_time == pd.Timestamp("2024-01-01").timestamp() + 719 * 86400
    result = run("update", "m.onsphere", "data.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Expected labels in the order of time. Got row 0 with an earlier time" in result.stderr
    make_table(900, 0).drop(columns="is_hot")[720:].to_csv("last.csv", index=False)
    assert run("update", "m.onsphere", "last.csv").exit_code == 0


def test_the_rows_of_a_violated_domain_are_those_of_the_file(folder):
    result = fit("--domain", "-100,1")
    y = pd.read_csv("data.csv")["y"]
    rows = np.flatnonzero(y > 1)
    assert result.exit_code == 2
    assert f"in rows {', '.join(map(str, rows[:5]))} and {len(rows) - 5} more (counted from 0)" in result.stderr


def test_a_changed_time_is_rejected(folder):
    fit("--time", "day")
    with zipfile.ZipFile("m.onsphere") as old, zipfile.ZipFile("bad.onsphere", "w") as new:
        manifest = json.loads(old.read("manifest.json"))
        manifest["summary"]["time"] = {"name": "day", "kind": "guess"}
        new.writestr("manifest.json", json.dumps(manifest))
        new.writestr("model.skops", old.read("model.skops"))
    result = run("update", "bad.onsphere", "data.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "does not say what it should about: time" in result.stderr


def test_times_are_dates_or_numbers_as_the_model_has_them():
    frame = pd.DataFrame({"day": ["2024-03-01"], "step": [7]})
    assert read_times(frame, {}) is None
    assert read_times(frame, {"time": {"name": "hour", "kind": "number"}}) is None
    assert read_times(frame, {"time": {"name": "step", "kind": "number"}}).tolist() == [7.0]
    assert read_times(frame, {"time": {"name": "day", "kind": "date"}})[0] == pd.Timestamp("2024-03-01")


def test_an_update_never_takes_the_place_of_a_table(folder):
    fit()
    make_table(60, 1).to_csv("new.csv", index=False)
    (folder / "victim.csv").write_text("a,b\n1,2\n")
    result = run("update", "m.onsphere", "new.csv", "--out", "victim.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Got victim.csv. Choose another name, for example --out model.onsphere." in result.stderr
    assert (folder / "victim.csv").read_text() == "a,b\n1,2\n"


def test_labels_that_are_not_new_are_not_taken_in(folder):
    fit()
    before = (folder / "m.onsphere").read_bytes()
    result = run("update", "m.onsphere", "data.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Expected labels of rows that are new to the model. Got data.csv, in which 60%" in result.stderr
    assert (folder / "m.onsphere").read_bytes() == before
    new = make_table(1200, 1)
    new.to_csv("new.csv", index=False)
    assert run("update", "m.onsphere", "new.csv").stderr == ""
    before = (folder / "m.onsphere").read_bytes()
    result = run("update", "m.onsphere", "new.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Got new.csv, in which 100% of the 1,200 rows were taken in before." in result.stderr
    assert (folder / "m.onsphere").read_bytes() == before
    # A few that are known are mentioned, and do not stop the others.
    pd.concat([make_table(280, 2), new[:120]]).to_csv("mixed.csv", index=False)
    result = run("update", "m.onsphere", "mixed.csv")
    assert result.exit_code == 0
    assert "rows were taken in before, or equal such rows, and count all the same.\n" in result.stderr


def test_labels_with_a_time_can_come_from_standard_input(folder):
    fit("--time", "day")
    data = make_table(60, 1, first=900).to_csv(index=False).encode()
    result = CliRunner().invoke(cli.app, ["update", "m.onsphere", "-"], input=data)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "60 labels taken in" in result.stdout
    timeless = make_table(60, 2).drop(columns="day").to_csv(index=False).encode()
    result = CliRunner().invoke(cli.app, ["update", "m.onsphere", "-"], input=timeless)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Expected the column(s) day in -" in result.stderr
