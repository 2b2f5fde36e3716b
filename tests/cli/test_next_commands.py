"""The commands that a report advises: those that were given, with what is to change."""

import html
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from onsphere import cli
from onsphere.cli.next_commands import make_command_writer
from onsphere.report.next_steps import MORE_ROWS

GIVEN = {"--target": ["price"], "--ignore": ["id"], "--save": ["m.onsphere"], "--refit": []}


def make_writer(options=None, **summary):
    known = {"targets": ["price"], "backbone": "mlp", "data": "my homes.csv", **summary}
    return make_command_writer(
        known | ({} if options is None else {"options": options}), model=Path("m.onsphere"), report=Path("r.html")
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"groups": "prediction"},
            "--ignore id --save m-groups.onsphere --refit --groups prediction --report r-groups.html",
        ),
        ({"ignore": ["b", "id"]}, "--ignore id --ignore b --save m-ignore.onsphere --refit --report r-ignore.html"),
    ],
)
def test_a_fit_repeats_what_was_given_with_its_changes(changes, expected):
    assert make_writer(GIVEN)("fit", changes) == f"onsphere fit 'my homes.csv' --target price {expected}"


def test_a_fit_that_was_done_already_is_left_out():
    assert make_writer(GIVEN)("fit", {"refit": True}) is None
    assert make_writer(GIVEN)("fit", {"ignore": ["id"]}) is None
    assert make_writer({"--target": ["price"], "--test": ["t.csv"]})("fit", {"refit": True}) is None
    # Without the option, the best backbone is chosen anyway.
    assert make_writer(GIVEN)("fit", {"backbone": "auto"}) is None
    chosen = make_writer({**GIVEN, "--backbone": ["mlp"]})("fit", {"backbone": "auto"})
    assert "--backbone auto" in chosen


def test_a_fit_on_more_rows_names_another_table_and_leaves_all_files_as_they_are():
    command = make_writer(GIVEN)("fit", MORE_ROWS)
    expected = "--target price --ignore id --save m-more.onsphere --refit --report r-more.html"
    assert command == f"onsphere fit 'my homes-more.csv' {expected}"


def test_a_model_that_was_not_saved_gets_a_name():
    summary = {"targets": ["y"], "backbone": "mlp", "options": {"--target": ["y"]}}
    write = make_command_writer(summary, model=None, report=Path("r.html"))
    assert "--save model-groups.onsphere" in write("fit", {"groups": "prediction"})


def test_models_of_earlier_versions_have_the_options_that_are_known():
    command = make_writer()("fit", {"domain": "positive"})
    expected = "--target price --backbone mlp --domain positive --save m-domain.onsphere --report r-domain.html"
    assert command == f"onsphere fit 'my homes.csv' {expected}"


def test_other_commands_name_the_model():
    write = make_writer(GIVEN)
    assert write("predict", {}) == "onsphere predict m.onsphere new.csv --out predictions.csv"
    assert write("update", {}) == "onsphere update m.onsphere new.csv"
    assert write("report", {}) == "onsphere report m.onsphere new.csv --out r-new.html"
    explained = "onsphere predict m.onsphere 'my homes.csv' --explain --keep all --out explained.csv"
    assert write("predict", {"explain": True, "keep": "all"}) == explained


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with a table that calls for a domain and a time, and a model of it with its report."""
    folder, rng = tmp_path_factory.mktemp("prices"), np.random.default_rng(0)
    n = 700
    size = rng.uniform(0, 3, n)
    table = pd.DataFrame({"size": size, "luck": rng.normal(size=n), "price": np.exp(1.5 * size + rng.normal(size=n))})
    table["day"] = pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d")
    table.to_csv(folder / "prices.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = ("--backbone", "kernel", "--domain", "none", "--save", "m.onsphere", "--report", "r.html")
        run("fit", "prices.csv", "-t", "price", *options)
    return folder


def run(*words):
    result = CliRunner(env={"COLUMNS": "160"}).invoke(cli.app, [*map(str, words), "--quiet"])
    assert (result.exit_code, result.stderr) == (0, "")


def list_commands(page):
    return [html.unescape(text) for text in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page.read_text())]


def test_the_commands_of_a_report_run_as_they_are(fitted, monkeypatch):
    monkeypatch.chdir(fitted)
    commands = list_commands(fitted / "r.html")
    given = "onsphere fit prices.csv --target price --backbone kernel --save m-{}.onsphere --report r-{}.html"
    (domain,) = [command for command in commands if "--domain positive" in command]
    assert domain == f"{given.format('domain', 'domain')} --domain positive"
    assert f"{given.format('time', 'time')} --domain none --time day" in commands
    # Each try leaves the model and the report that it is to be compared with.
    outputs = [word for command in commands for word in shlex.split(command) if word.endswith((".onsphere", ".html"))]
    assert "r.html" not in outputs
    assert all("fit" not in command or "m.onsphere" not in command for command in commands)
    assert "Over time" in (fitted / "r.html").read_text()
    # Both pieces of advice are taken, and no longer given.
    page = (fitted / "r.html").read_bytes()
    run(*shlex.split(domain.replace("m-domain.onsphere", "later.onsphere"))[1:], "--time", "day")
    assert (fitted / "r.html").read_bytes() == page
    titles = re.findall(r'<li class="card"><h3>(.*?)</h3>', (fitted / "r-domain.html").read_text())
    assert not {"Say that the target is never negative", "Measure it on later rows than it learned from"} & set(titles)
    assert (
        list_commands(fitted / "r-domain.html")[-1] == "onsphere predict later.onsphere new.csv --out predictions.csv"
    )
    # The model file knows its time and its options.
    run("report", "later.onsphere", "prices.csv", "--out", "again.html")
    page = (fitted / "again.html").read_text()
    assert "in the order of day" in page
    assert list_commands(fitted / "again.html") == ["onsphere report later.onsphere new.csv --out again-new.html"]
    # A file without the time has no section on it.
    table = pd.read_csv("prices.csv").drop(columns="day")
    table.assign(size=table["size"] + 1e-3).to_csv("timeless.csv", index=False)
    run("report", "later.onsphere", "timeless.csv", "--out", "again.html")
    assert "in the order of day" not in (fitted / "again.html").read_text()
