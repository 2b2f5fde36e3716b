"""The commands fit, predict, evaluate, report and compare, as people and scripts use them."""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from onsphere import HCMRegressor, InvalidInputError, OnsphereWarning, cli, load
from onsphere.calibration import find_coverage_range
from onsphere.cli import console
from onsphere.cli.choices import choose_rule
from onsphere.models import choice
from onsphere.persistence import read_manifest
from onsphere.report.formatting import format_number
from onsphere.table import BACKBONES, read_table
from onsphere.table import compare as comparing
from onsphere.table.model_file import read_summary_columns
from onsphere.table.predict import FilePrediction


def run(*arguments, **environment):
    return CliRunner(env={"COLUMNS": "160", **environment}).invoke(cli.app, [str(each) for each in arguments])


def assert_one_line(result, words, code=2):
    """Assert that there is one line on stderr, and nothing on stdout."""
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def folder(tmp_path, monkeypatch, house_model, houses):
    """Put houses.csv, model.onsphere and rows that it has not seen in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("houses.csv", "model.onsphere"):
        shutil.copy(house_model / name, tmp_path / name)
    houses(80, 1).to_csv("fresh.csv", index=False)
    return tmp_path


# --- one command, as a new user gives it ---


def test_one_command_gives_a_model_a_report_and_predictions_that_keep_their_promise(tmp_path, monkeypatch, houses):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choice, "CANDIDATES", {name: BACKBONES[name] for name in ("kernel",)})
    houses(560, 2).to_csv("data.csv", index=False)
    result = run("fit", "data.csv", "--target", "price", "--task", "auto", "--save", "m.onsphere", "--report", "r.html")
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (
        "regression: price has",
        "│ house_id │ key      │ different in every row │",
        "│ country  │ unused   │ constant               │",
        "Backbones by cross-validation, in standard deviations of the target; taken: kernel",
        "intervals hold the truth",
        "save: m.onsphere\nreport: r.html\n",
    ):
        assert words in result.stdout
    assert "</html>" in (tmp_path / "r.html").read_text()
    fresh = houses(1000, 3)
    fresh.drop(columns="price").to_csv("fresh.csv", index=False)
    result = run("predict", "m.onsphere", "fresh.csv", "--out", "p.csv")
    assert (result.exit_code, result.stderr) == (0, "")
    answers = read_table("p.csv")
    frames, ends = ["noise", "novelty", "novelty_p_value"], ["lower", "upper", "confidence", "accepted", "reason"]
    assert list(answers) == ["house_id", "value", "uncertainty", *frames, *ends]
    counts = answers["reason"].value_counts()
    named = [f"{counts[name]} {name}" for name in ("uncertain", "novel", "uncertain and novel") if name in counts]
    rejected = f"; rejected: {', '.join(named)}" if named else ""
    assert result.stdout == f"1,000 rows, {answers['accepted'].sum():,} accepted{rejected}. Written to p.csv\n"
    covered = np.mean((answers["lower"] <= fresh["price"]) & (fresh["price"] <= answers["upper"]))
    # 560 rows: 112 are kept out, and a quarter of the others calibrates. Once in a hundred times it would lie outside.
    low, high = find_coverage_range(1000, 112, 0.9, level=0.01)
    assert low <= covered <= high


def test_classes_are_fitted_and_predicted(tmp_path, monkeypatch, houses):
    monkeypatch.chdir(tmp_path)
    frame = houses(240, 0).assign(kind=lambda rows: np.where(rows["price"] > 700, "07", "cheap")).drop(columns="price")
    frame[:160].to_csv("data.csv", index=False)
    frame[160:].to_csv("fresh.csv", index=False)
    result = run("fit", "data.csv", "-t", "kind", "--backbone", "kernel", "--save", "m.onsphere", "--report", "r.html")
    assert result.exit_code == 0, result.stderr
    assert "classification: kind is text with 2 different values." in result.stdout
    assert "classes in a set" in result.stdout
    figures = json.loads(run("evaluate", "m.onsphere", "fresh.csv", "--json").stdout)
    assert figures["rows"] == 80
    assert figures["error"] < 0.3
    # A class that looks like a number is the same class in a file where all do.
    only = frame[160:][frame[160:]["kind"] == "07"]
    only.to_csv("only.csv", index=False)
    only.to_parquet("only.parquet")
    assert (
        run("evaluate", "m.onsphere", "only.csv", "--json").stdout
        == run("evaluate", "m.onsphere", "only.parquet", "--json").stdout
    )
    assert json.loads(run("evaluate", "m.onsphere", "only.csv", "--json").stdout)["error"] < 0.5


def test_classes_that_are_numbers_are_not_mixed_with_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=80)
    frame = pd.DataFrame({"x": x, "w": x**2, "y": (x > 0).astype(int)})
    frame.to_csv("data.csv", index=False)
    assert run("fit", "data.csv", "-t", "y", "--backbone", "kernel", "--save", "m", "--quiet").exit_code == 0
    frame.loc[0, "y"] = None
    frame.to_csv("gaps.csv", index=False)
    result = run("evaluate", "m", "gaps.csv")
    assert (result.exit_code, result.stderr) == (0, "1 rows without y are left out.\n")
    frame.assign(y=frame["y"].fillna(0.0)).to_parquet("whole.parquet")
    assert run("evaluate", "m", "whole.parquet").stderr == ""
    frame.assign(y=[*frame["y"][:-1], 2.5]).to_csv("half.csv", index=False)
    assert_one_line(
        run("evaluate", "m", "half.csv"),
        "a class such as 0 in the column y of half.csv, row 79 (counted from 0). Got the number 2.5",
    )
    pd.DataFrame({"x": x, "w": x**2, "y": [*range(70), *[7] * 10]}).to_csv("more.csv", index=False)
    told = "78 rows have a class the model was not fitted on: 2, 3, 4, 5, 6 ….\n"
    assert run("evaluate", "m", "more.csv").stderr == told
    assert run("report", "m", "more.csv").stderr == told
    frame.assign(y="yes").to_csv("words.csv", index=False)
    assert_one_line(
        run("evaluate", "m", "words.csv"),
        "a class such as 0 in the column y of words.csv, row 0 (counted from 0). Got the text 'yes'",
    )


def test_several_targets_are_fitted_and_predicted(folder, houses):
    frame = houses(120, 0)
    frame["tax"] = frame["price"] * 0.2 + 30 * np.random.default_rng(0).normal(size=120)
    frame.to_csv("two.csv", index=False)
    options = ("--target", "price", "--target", "tax", "--backbone", "kernel", "--save", "two.onsphere", "--json")
    summary = json.loads(run("fit", "two.csv", *options).stdout)
    assert (summary["targets"], summary["save"], summary["report"]) == (["price", "tax"], "two.onsphere", None)
    assert run("predict", "two.onsphere", "fresh.csv").stdout.startswith(
        '"house_id","value_price","value_tax","uncertainty"'
    )
    figures = json.loads(run("evaluate", "two.onsphere", "two.csv", "--json").stdout)["targets"]
    assert list(figures) == ["price", "tax"]
    assert figures["tax"]["width"] < figures["price"]["width"]
    shown = run("evaluate", "two.onsphere", "two.csv").stdout
    for each in figures.values():
        assert f"off by {each['mean_absolute_error']:.4g} on average" in shown
        assert f" {each['width']:.4g} with all, {each['width_alone']:.4g} alone" in shown
        assert each["width_alone"] <= each["width"]
    assert figures["price"]["width_alone"] < figures["price"]["width"]
    assert "│ error of price " in shown
    assert "│ error  " not in shown, "a mean over different units says nothing"
    assert ", root mean square over the targets" in shown
    assert run("report", "two.onsphere", "two.csv").exit_code == 0
    page = Path("report.html").read_text()
    assert "output 0" not in page
    assert "Intervals: price" in page
    assert "Intervals: tax" in page
    answers = pd.read_csv(io.StringIO(run("predict", "two.onsphere", "two.csv").stdout))
    for name in ("price", "tax"):
        alone, joint = (answers[f"upper{part}_{name}"] - answers[f"lower{part}_{name}"] for part in ("_alone", ""))
        assert (alone <= joint * (1 + 1e-9)).all()


# --- what is printed ---


def test_json_is_all_that_is_printed(folder, monkeypatch):
    monkeypatch.setattr(choice, "CANDIDATES", {"kernel": BACKBONES["kernel"]})
    monkeypatch.setattr(comparing, "find_spec", lambda name: None)
    commands = {
        ("fit", "houses.csv", "-t", "price", "--backbone", "kernel", "--shifted", "fresh.csv"): {
            "task",
            "figures",
            "columns",
        },
        ("predict", "model.onsphere", "fresh.csv", "--out", "p.csv"): {"rows", "accepted", "out"},
        ("evaluate", "model.onsphere", "fresh.csv"): {"rows", "coverage", "error"},
        ("report", "model.onsphere", "fresh.csv", "--shifted", "houses.csv"): {"rows", "report"},
        ("compare", "houses.csv", "-t", "price", "--shifted", "fresh.csv"): {"rows", "failures"},
        ("info",): {"versions", "extras"},
    }
    for command, names in commands.items():
        result = run(*command, "--json", FORCE_COLOR="1")
        assert (result.exit_code, result.stderr) == (0, ""), command
        assert names <= set(json.loads(result.stdout, parse_constant=pytest.fail))


def test_quiet_prints_nothing(folder, monkeypatch):
    monkeypatch.setattr("onsphere.table.compare_table", lambda *_, **__: None)
    for command in (
        ("fit", "houses.csv", "-t", "price", "--backbone", "kernel"),
        ("predict", "model.onsphere", "fresh.csv", "--out", "p.csv"),
        ("evaluate", "model.onsphere", "fresh.csv"),
        ("report", "model.onsphere", "fresh.csv"),
        ("compare", "houses.csv", "-t", "price"),
    ):
        result = run(*command, "--quiet", FORCE_COLOR="1")
        assert (result.exit_code, result.output) == (0, ""), command


def test_fit_says_that_the_model_was_not_saved(folder):
    result = run("fit", "houses.csv", "-t", "price", "--backbone", "kernel")
    assert result.stderr == "The model was not saved; add --save model.onsphere to use it.\n"


def test_a_terminal_shows_what_is_being_done(folder):
    result = run("evaluate", "model.onsphere", "fresh.csv", FORCE_COLOR="1")
    assert "evaluate" in result.stderr
    assert "reading" not in result.stdout


def test_report_and_evaluate_say_what_they_left_out(folder, houses):
    frame = houses(60, 4)
    frame.loc[:9, "price"] = None
    frame.to_csv("gaps.csv", index=False)
    result = run("evaluate", "model.onsphere", "gaps.csv", "--coverage", "0.8")
    assert (result.exit_code, result.stderr) == (0, "10 rows without price are left out.\n")
    assert "%, 80.0% asked" in result.stdout
    result = run("report", "model.onsphere", "gaps.csv", "--out", "r.html")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "report: r.html\n",
        "10 rows without price are left out.\n",
    )
    assert "</html>" in (folder / "r.html").read_text()


def test_too_little_coverage_is_told_with_what_to_do(folder, houses):
    words = "The intervals hold fewer of these rows than chance allows: the rows are not like those"
    assert words not in run("evaluate", "model.onsphere", "fresh.csv").stdout
    houses(60, 4).assign(price=lambda rows: 3 * rows["price"]).to_csv("dear.csv", index=False)
    result = run("evaluate", "model.onsphere", "dear.csv")
    assert words in result.stdout
    assert "with onsphere update.\n" in result.stdout


def test_rows_that_were_trained_on_are_named_first_and_promise_nothing(tmp_path, monkeypatch, houses):
    monkeypatch.chdir(tmp_path)
    frame = houses(620, 0).assign(
        sold=pd.date_range("2020-01-01", periods=620), new=lambda rows: (rows["size"] > 90).astype(object)
    )
    frame.loc[3, "new"] = None
    frame[:560].to_csv("data.csv", index=False)
    frame[560:].to_csv("fresh.csv", index=False)
    options = ("--backbone", "kernel", "--frames", "target", "--save", "m", "--quiet")
    assert run("fit", "data.csv", "-t", "price", *options).exit_code == 0
    figures = json.loads(run("evaluate", "m", "data.csv", "--json").stdout)
    # A fifth is kept out to measure the model, and a quarter of the others calibrates it.
    assert figures["trained_on"] == pytest.approx(0.6, abs=0.02)
    result = run("evaluate", "m", "data.csv")
    assert re.match(r"60% of these \d+ rows were trained on: .* promise nothing", result.stdout)
    assert not any(words in result.stdout for words in ("has not seen", "chance alone gives"))
    assert run("report", "m", "data.csv").exit_code == 0
    page = Path("report.html").read_text()
    assert re.search(r'class="lead">60\u202f% of these \d+ rows were trained on', page)
    assert not any(words in page for words in ("has not seen", "keep their promise", "It has learned"))
    assert "Its intervals cannot be judged on these rows" in page
    assert json.loads(run("evaluate", "m", "fresh.csv", "--json").stdout)["trained_on"] == 0
    assert "rows it has not seen" in run("evaluate", "m", "fresh.csv").stdout


def test_without_a_threshold_accepted_rows_are_not_mentioned(folder):
    model = load("model.onsphere").set_threshold(None)
    model.save("undecided.onsphere", summary=read_manifest("model.onsphere")["summary"])
    result = run("evaluate", "undecided.onsphere", "fresh.csv")
    assert "intervals hold the truth" in result.stdout
    assert "accepted" not in result.stdout


def test_compare_prints_a_table_and_the_failures(folder, monkeypatch):
    rows = [{"method": "[red]HCM", "error": 0.123456}, {"method": "other", "error": None}]
    made = comparing.Comparison(rows, {"mlp": "it did not learn"})
    monkeypatch.setattr("onsphere.table.compare_table", lambda *_, **__: made)
    result = run("compare", "houses.csv", "--target", "price")
    assert result.stdout.startswith("houses.csv: price")
    assert "│ [red]HCM │ 0.1235 │" in result.stdout
    assert "│ other    │ –      │" in result.stdout
    assert result.stderr == "mlp failed: it did not learn\n"


def test_names_that_look_like_markup_are_printed_unchanged(folder, houses):
    frame = houses(60, 0).rename(columns={"size": "[/bold]", "rooms": "[red]", "price": "[link=x]"})
    frame.to_csv("odd[bold].csv", index=False)
    result = run("fit", "odd[bold].csv", "-t", "[link=x]", "--backbone", "kernel")
    assert result.exit_code == 0, result.stderr
    assert "│ [/bold] " in result.stdout
    assert "│ [red] " in result.stdout


def test_warnings_are_printed_as_sentences(folder, monkeypatch):
    def warn(*_, **__):
        import warnings

        warnings.warn("Take care.", OnsphereWarning, stacklevel=1)
        return FilePrediction({"rows": 1, "accepted": 1}, [])

    monkeypatch.setattr("onsphere.table.predict_file", warn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [("always", None, Warning, None, 0)])
        result = run("predict", "model.onsphere", "fresh.csv", "--out", "p.csv")
    assert (result.exit_code, result.stderr) == (0, "Take care.\n")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "arrow"])
def test_predictions_are_the_same_in_every_format(folder, suffix):
    assert run("predict", "model.onsphere", "fresh.csv", "--out", f"p.{suffix}").exit_code == 0
    printed = run("predict", "model.onsphere", "fresh.csv").stdout
    (folder / "printed.csv").write_text(printed)
    # CSV does not tell whole numbers from floats, nor an empty text from a missing one.
    one, other = (read_table(path).fillna({"reason": ""}) for path in (f"p.{suffix}", "printed.csv"))
    pd.testing.assert_frame_equal(one, other, check_exact=True, check_dtype=False)


# --- rules ---


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ([], "AcceptShare(share=0.95)"),
        (["--accept", "0.8"], "AcceptShare(share=0.8)"),
        (["--tolerance", "50"], "Tolerance(epsilon=50.0"),
        (["--risk", "0.2", "--tolerance", "100"], "MaxErrorRate(max_error=0.2, delta=0.05, tolerance=100.0"),
    ],
)
def test_options_choose_the_rule(options, rule):
    made = choose_rule(
        *(
            float(options[options.index(name) + 1]) if name in options else None
            for name in ("--accept", "--tolerance", "--risk")
        )
    )
    assert repr(made).startswith(rule)


def test_rows_that_are_novel_are_rejected_and_counted(folder, houses):
    fit = ("fit", "houses.csv", "-t", "price", "--backbone", "extra-trees", "--max-novelty", "0.5")
    result = run(*fit, "--save", "strict.onsphere")
    assert "Frames: target, error (noise), input (novelty).\n" in result.stdout
    assert re.search(r"│ novel rows +│ \d+\.\d% ", result.stdout)
    assert "│ … as uncertain and novel " in result.stdout
    frame = houses(60, 4)
    frame.loc[:9, "city"], frame.loc[:9, "size"] = "Atlantis", 900.0
    frame.to_csv("strange.csv", index=False)
    printed = run("predict", "strict.onsphere", "strange.csv", "--out", "p.csv").stdout
    answers = read_table("p.csv")
    assert (answers["novelty"][:10] > 0.9).all()
    assert answers["reason"][:10].str.contains("novel").all()
    counts = answers["reason"].value_counts()
    named = [f"{counts[name]} {name}" for name in ("uncertain", "novel", "uncertain and novel") if name in counts]
    assert (
        "10 of 60 rows: city has a value that no training row had.\n"
        in run("predict", "strict.onsphere", "strange.csv", "--out", "p.csv").stderr
    )
    assert printed == f"60 rows, {answers['accepted'].sum()} accepted; rejected: {', '.join(named)}. Written to p.csv\n"
    figures = json.loads(run("evaluate", "strict.onsphere", "strange.csv", "--json").stdout)
    assert {name: count for name, count in figures["rejected_as"].items() if count} == counts.to_dict()
    assert figures["novel"] >= 10 / 60


def test_the_frame_of_the_paper_alone_can_be_asked_for(folder):
    fit = ("fit", "houses.csv", "-t", "price", "--backbone", "extra-trees", "--frames", "target")
    result = run(*fit, "--novelty-false-alarm", "0.1")
    assert "Expected no --novelty-false-alarm 0.1 with --frames target" in result.stderr
    result = run(*fit, "--save", "plain.onsphere")
    assert "Frames: target.\n" in result.stdout
    assert "novel" not in result.stdout
    assert run("predict", "plain.onsphere", "fresh.csv").stdout.count("novelty") == 0
    assert "rejected" not in run("predict", "plain.onsphere", "fresh.csv", "--out", "p.csv").stdout


def test_the_domain_is_found_and_said_and_quantiles_stay_inside(folder, houses):
    fit = ("fit", "houses.csv", "--target", "price", "--backbone", "kernel", "--save", "new.onsphere")
    assert "targets are numbers of at least 0" not in run(*fit, "--domain", "none").stdout
    assert load("new.onsphere").domain_ is None
    assert "targets are numbers of at least 0, so lower ones are not expected" in run(*fit).stdout
    options = ("--quantiles", "0.05,0.5,0.95", "--tails", "equal", "--out", "p.csv")
    assert run("predict", "new.onsphere", "fresh.csv", *options).exit_code == 0
    answers = pd.read_csv("p.csv")
    names = ["quantile_0.05", "quantile_0.5", "quantile_0.95"]
    assert list(answers.columns[-3:]) == names
    assert (np.diff(answers[names], axis=1) >= 0).all()
    assert (answers[names] >= 0).all(axis=None)
    np.testing.assert_allclose(answers["upper"], answers["quantile_0.95"])
    assert run(*fit, "--domain", "0,inf").exit_code == 0
    assert load("new.onsphere").domain_.high == np.inf
    assert_one_line(run(*fit, "--domain", "0,10"), "Expected every target to be at least 0, at most 10. Got")
    assert run(*fit, "--domain", "positive").exit_code == 0


@pytest.mark.parametrize("text", ["0.05,much", "0,1", "0.5,1.5", ""])
def test_bad_levels_and_tails_are_rejected(folder, text):
    words = "Expected levels above 0 and below 1 as --quantiles"
    assert_one_line(run("predict", "model.onsphere", "fresh.csv", "--quantiles", text), words)
    assert_one_line(
        run("predict", "model.onsphere", "fresh.csv", "--tails", "left"),
        "Expected --tails symmetric, equal or shortest. Got 'left'",
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--accept", "2"], "Expected --accept above 0 and below 1. Got 2. 2 percent is 0.02."),
        (["--risk", "0"], "Expected --risk above 0 and below 1. Got 0."),
        (["--tolerance", "-1"], "Expected a --tolerance above 0, in the unit of the target. Got -1."),
        (["--accept", "0.9", "--tolerance", "1"], "Expected --accept or --tolerance. Got both"),
        (["--accept", "0.9", "--risk", "0.1"], "Expected --accept or --risk. Got both"),
        (["--risk", "0.1"], "Expected a tolerance for numbers, to know which errors count as wrong. Got --risk 0.1."),
        (["--ignore", "price"], "Expected price to be a target, or else a key or an ignored column. Got both"),
        (["--key", "price"], "Expected price to be a target, or else a key or an ignored column. Got both"),
        (["--max-novelty", "1"], "Expected --max-novelty of at least 0 and below 1. Got 1."),
        (["--novelty-false-alarm", "0"], "Expected --novelty-false-alarm above 0 and below 1. Got 0."),
        (["--max-novelty", "0", "--novelty-false-alarm", "0.1"], "Expected --max-novelty or --novelty-false-alarm."),
        (["--max-novelty", "0.5", "--frames", "target"], "Expected no --max-novelty 0.5 with --frames target"),
        (["--frames", "input"], "Expected --frames all or target. Got 'input'."),
        (["--domain", "prices"], "two numbers LOW,HIGH as --domain. Got 'prices'"),
        (["--domain", "5,1"], "two numbers LOW,HIGH as --domain. Got '5,1'"),
        (["--domain", "0,1,2"], "two numbers LOW,HIGH as --domain."),
        (["--accept", "much"], "'--accept'"),
        (["--seed", "-1"], "Expected --seed from 0 to 4294967295. Got -1."),
        (["--coverage", "90"], "Expected --coverage above 0 and below 1. Got 90. 90 percent is 0.9."),
        (["--backbone", "oak"], "Expected --backbone auto, kernel, hist-gradient-boosting"),
        (["--task", "guess"], "Expected --task auto, regression or classification. Got 'guess'."),
        (["--delimiter", ";;"], "a delimiter of one character"),
        (["--key", "nothing"], "Expected a column nothing"),
        (["--ignore", "hous_id"], "Did you mean house_id?"),
        (["--target", "price"], "once. Got price, price"),
        (["--shifted", "nothing.csv"], "nothing.csv, which does not exist"),
        (["--save", "houses.csv"], "Got houses.csv for both"),
        (["--report", "houses.csv"], "Got houses.csv for both"),
        (["--save", "a", "--report", "./a"], "Got a for both"),
        (["--save", "new.csv"], "Expected a name that is not that of a table. Got new.csv. Choose"),
        (["--save", "new.xlsm"], "Got new.xlsm. Choose another name, for example --save model.onsphere."),
        (["--report", "new.csv.gz"], "Got new.csv.gz. Choose another name, for example --report report.html"),
        (["--number", "size", "--category", "size"], "Expected size once among --number"),
        (["--test", "houses.csv", "--refit"], "Expected --refit or --test. Got both"),
        (["--test", "no.csv"], "no.csv"),
        (["--number", "size", "--ignore", "size"], "Expected size to be learned from, or else"),
        (["--date", "nothing=%Y"], "Expected a column nothing"),
        (["--save", "no/such/folder/m"], "Expected to write no/such/folder/m"),
        (["--report", "."], "it is a folder"),
        (["--save", "/dev/null"], "it is not an ordinary file"),
        (["--wrong"], "--wrong"),
    ],
)
def test_bad_options_of_fit_are_rejected_before_the_work(folder, options, words):
    before = contents(folder)
    assert_one_line(run("fit", "houses.csv", "--target", "price", *options), words)
    assert contents(folder) == before


# --- bad input ---


def bad_files(houses):
    frame = houses(60, 0)
    header, rest = frame.to_csv(index=False).split("\n", 1)
    return {
        "no target": (frame.drop(columns="price"), "Expected a column price. Got the columns house_id"),
        "all missing": (frame.assign(price=None), "Got none: every value is missing"),
        "delimiter": (frame.to_csv(index=False, sep="^"), "that the delimiter is right"),
        "mixed": (
            frame.assign(price=[*frame["price"].astype(str)[:-1], "abc"]),
            "row 59 (counted from 0). Got the text 'abc'",
        ),
        "duplicate": (header.replace("rooms", "size") + "\n" + rest, "more than one column named size"),
        "empty": ("", "which is empty"),
        "blank": ("\n\n\n", "which holds no text"),
        "header": (header, "which has a header and no rows"),
        "one row": (frame[:1], "Expected at least 20 rows"),
        "ragged": (header + "\n1,2\n" + rest, "Got 2 in line 2: the text '1,2'"),
        "binary": (header + "\n\0\n", "which is none of them"),
        "infinite": (
            frame.assign(size=[*frame["size"][:-1], np.inf]),
            "in the column size, row 59 (counted from 0). Got the number inf",
        ),
        "dates": (
            frame.assign(price=frame["sold"]),
            "Expected a number in the column price, row 0 (counted from 0). Got 20",
        ),
    }


@pytest.mark.parametrize(
    "name", sorted(bad_files(lambda n, seed: pd.DataFrame({"price": [1.0], "rooms": 1, "size": 1.0, "sold": "x"})))
)
def test_fit_rejects_a_bad_table_and_writes_nothing(folder, houses, name):
    content, words = bad_files(houses)[name]
    text = content if isinstance(content, str) else content.to_csv(index=False)
    (folder / "bad.csv").write_text(text)
    (folder / "report.html").write_text("old")
    before = contents(folder)
    options = ("--save", "new.onsphere", "--report", "report.html", "--backbone", "kernel")
    assert_one_line(run("fit", "bad.csv", "--target", "price", *options), words)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("predict", "houses.csv", "fresh.csv"), "cannot be read as one"),
        (("predict", "nothing.onsphere", "fresh.csv"), "which does not exist"),
        (("predict", ".", "fresh.csv"), "which is a folder"),
        (("predict", "python.onsphere", "fresh.csv"), "which was saved in Python"),
        (("predict", "zip.onsphere", "fresh.csv"), "Expected an undamaged model file of"),
        (("predict", "model.onsphere", "."), "Expected --out with the folder ."),
        (("predict", "model.onsphere", "nothing.csv"), "which does not exist"),
        (("predict", "model.onsphere", "model.onsphere"), "which is none of them"),
        (("predict", "model.onsphere", "lacking.csv"), "Expected the column(s) size in lacking.csv"),
        (
            ("predict", "model.onsphere", "words.csv"),
            "in the column size of words.csv, row 0 (counted from 0). Got the text 'large'",
        ),
        (("predict", "model.onsphere", "infinite.csv"), "row 79 (counted from 0). Got the number inf"),
        (("evaluate", "model.onsphere", "infinite.csv"), "row 79 (counted from 0). Got the number inf"),
        (
            ("report", "model.onsphere", "fresh.csv", "--shifted", "infinite.csv"),
            "row 79 (counted from 0). Got the number inf",
        ),
        (("monitor", "model.onsphere", "infinite.csv"), "row 79 (counted from 0). Got the number inf"),
        (("predict", "model.onsphere", "fresh.csv", "--json"), "Expected --out with --json"),
        (("predict", "model.onsphere", "fresh.csv", "--quiet"), "Expected --out with --quiet"),
        (("predict", "nothing.onsphere", "fresh.csv", "--out", "p.xlsx"), "whose name ends in .csv"),
        (
            ("predict", "model.onsphere", "fresh.csv", "--coverage", "2"),
            "Expected --coverage above 0 and below 1. Got 2.",
        ),
        (
            ("predict", "model.onsphere", "fresh.csv", "--probabilities"),
            "Expected a model of classes with --probabilities",
        ),
        (("monitor", "model.onsphere", "fresh.csv", "--alpha", "2"), "Expected --alpha above 0 and below 1. Got 2."),
        (("predict", "model.onsphere", "fresh.csv", "--out", "p.xlsx"), "whose name ends in .csv"),
        (("predict", "model.onsphere", "fresh.csv", "--out", "fresh.csv"), "Got fresh.csv for both"),
        (("predict", "model.onsphere", "fresh.csv", "--out", "model.onsphere"), "Got model.onsphere for both"),
        (("predict", "model.onsphere", "fresh.csv", "--out", "no/p.csv"), "Expected to write no/p.csv"),
        (("predict", "model.onsphere", "fresh.csv", "--coverage", "0.9999"), "needs at least 10000 calibration rows"),
        (("evaluate", "model.onsphere", "lacking.csv"), "Expected the column(s) size in lacking.csv"),
        (("evaluate", "model.onsphere", "untold.csv"), "Expected the column(s) price in untold.csv"),
        (("evaluate", "model.onsphere", "gone.csv"), "Expected rows with price. Got none"),
        (("report", "model.onsphere", "fresh.csv", "--out", "."), "it is a folder"),
        (("report", "model.onsphere", "fresh.csv", "--shifted", "lacking.csv"), "Expected the column(s) size"),
        (("compare", "houses.csv", "--target", "price", "--shifted", "lacking.csv"), "Expected the column(s) size"),
        (("compare", "houses.csv", "--target", "prize"), "Did you mean price?"),
        (("fit", "houses.csv"), "--target"),
        (("fit", "houses.csv", "--target", "price", "--shifted", "lacking.csv"), "Expected the column(s) size"),
    ],
)
def test_commands_reject_bad_files_and_write_nothing(folder, houses, command, words):
    fresh = houses(80, 1)
    fresh.drop(columns="size").to_csv("lacking.csv", index=False)
    fresh.drop(columns="price").to_csv("untold.csv", index=False)
    fresh.assign(price=None).to_csv("gone.csv", index=False)
    fresh.assign(size=[*fresh["size"][:-1], np.inf]).to_csv("infinite.csv", index=False)
    fresh.assign(size="large").to_csv("words.csv", index=False)
    HCMRegressor(random_state=0).fit(np.arange(8.0)[:, None], np.arange(8.0)).save("python.onsphere")
    with zipfile.ZipFile("zip.onsphere", "w") as archive:
        archive.writestr("a.txt", "a")
    before = contents(folder)
    assert_one_line(run(*command), words)
    assert contents(folder) == before


def mangled(path, change):
    """Write the model with a changed summary in its manifest."""
    with zipfile.ZipFile("model.onsphere") as old, zipfile.ZipFile(path, "w") as new:
        manifest = json.loads(old.read("manifest.json"))
        change(manifest["summary"])
        new.writestr("manifest.json", json.dumps(manifest))
        new.writestr("model.skops", old.read("model.skops"))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("columns", [None, 3, ["size"], [], [{"name": "size"}]]),
        ("targets", [None, 3, [], [3]]),
        ("coverage", [None, "0.9", 2.0]),
        ("task", [None, ["regression"], "guess", "classification"]),
        ("n_rows", [None, {"train": 3}]),
        ("notes", [None]),
        ("why", [None]),
        ("backbone", [None]),
    ],
)
def test_a_changed_summary_is_rejected(folder, name, values):
    mangled("bad.onsphere", lambda summary: summary.pop(name))
    changes = [lambda summary, value=value: summary.update({name: value}) for value in values]
    told = "Expected a model that was fitted on a table. Got bad.onsphere, which "
    assert_one_line(run("predict", "bad.onsphere", "fresh.csv"), told)
    for change in changes:
        mangled("bad.onsphere", change)
        result = run("predict", "bad.onsphere", "fresh.csv")
        assert_one_line(result, "Got bad.onsphere")
        # What no model can have is seen before the table is.
        assert told in result.stderr or "does not say what it should about: summary" in result.stderr


def test_a_model_that_was_not_fitted_on_a_table_is_rejected(folder):
    summary = read_manifest("model.onsphere")["summary"]
    HCMRegressor(random_state=0).fit(np.arange(8.0)[:, None], np.arange(8.0)).save("bad.onsphere", summary=summary)
    assert_one_line(run("predict", "bad.onsphere", "fresh.csv"), "which holds another model than it says")
    model = load("model.onsphere")
    model.calibration_ = None
    model.threshold_ = model._rule = None
    model.save("bad.onsphere", summary=summary)
    assert_one_line(run("predict", "bad.onsphere", "fresh.csv"), "which holds another model than it says")


def test_the_columns_of_a_summary_are_checked(folder):
    path, summary = Path("model.onnx"), read_manifest("model.onsphere")["summary"]
    assert [column.name for column in read_summary_columns(path, summary)] == [
        each["name"] for each in summary["columns"]
    ]
    day = {"name": "a", "kind": "date", "date_format": "%q"}
    for strange in ([{"name": "a"}], [{"name": "a", "kind": "colour"}], [{"name": 1, "kind": "number"}], [day], []):
        with pytest.raises(
            InvalidInputError, match=r"Got model\.onnx, which does not say what it should about: columns"
        ):
            read_summary_columns(path, summary | {"columns": strange})


def test_errors_about_a_rule_name_its_options(folder):
    command = ("fit", "houses.csv", "-t", "price", "--backbone", "kernel")
    for options, words in {
        (
            "--accept",
            "0.999999",
            "--frames",
            "target",
        ): "--accept 0.999999 needs at least 999999 calibration rows. Got 208.",
        ("--tolerance", "1e-9"): "--tolerance 1e-09 accepts none of the 208 calibration rows, whose uncertainty runs",
        ("--risk", "0.001", "--tolerance", "0.1"): "No threshold on the 208 calibration rows, of which",
        ("--novelty-false-alarm", "0.001"): "--novelty-false-alarm 0.001 needs at least 999 calibration rows. Got 208.",
    }.items():
        assert_one_line(run(*command, *options), words)
    assert "--tolerance 1e+09 accepts all of the 208 calibration" in run(*command, "--tolerance", "1e9").stdout


def test_the_report_shows_dates_and_numbers_that_came_as_text(folder, houses):
    frame = houses(200, 1)
    frame["sold"] = pd.to_datetime(frame["sold"]).dt.strftime("%d.%m.%Y")
    frame["size"] = frame["size"].astype(str).where(frame.index % 7 > 0, "unknown")
    frame.to_csv("german.csv", index=False)
    options = ("--backbone", "kernel", "--save", "german.onsphere", "--report", "r.html", "--shifted", "german.csv")
    result = run("fit", "german.csv", "-t", "price", *options)
    assert "dates read as %d.%m.%Y" in result.stdout
    assert "1 of dates" in (folder / "r.html").read_text()
    n_numbers = re.search(r"\((\d) of numbers", (folder / "r.html").read_text())[1]
    run("report", "german.onsphere", "german.csv", "--out", "again.html", "--shifted", "german.csv")
    page = (folder / "again.html").read_text()
    assert f"({n_numbers} of numbers" in page
    assert "1 of dates" in page


def test_the_report_names_rows_by_their_keys(folder, houses):
    run("report", "model.onsphere", "fresh.csv", "--quiet")
    page = (folder / "report.html").read_text()
    assert any(name in page for name in houses(80, 1)["house_id"])
    assert "00:00:00" not in page


def test_the_terminal_and_the_report_say_the_same(folder):
    figures = json.loads(run("evaluate", "model.onsphere", "fresh.csv", "--json").stdout)
    shown = run("evaluate", "model.onsphere", "fresh.csv").stdout
    run("report", "model.onsphere", "fresh.csv", "--quiet")
    page = (folder / "report.html").read_text().replace("\u202f", "")
    assert f"off by {figures['mean_absolute_error']:.4g} on average" in shown
    assert f"off by {format_number(figures['mean_absolute_error'])} on average" in page
    assert f"{figures['coverage']:.1%} of the true values" in page
    low, high = figures["coverage_by_chance"]
    assert f"chance alone gives {low:.1%} to {high:.1%}" in page
    assert f"those are off by {format_number(figures['error_accepted'])} on average" in page


def test_a_table_too_small_for_a_report_is_rejected_before_anything_is_written(folder, houses):
    houses(30, 0).to_csv("small.csv", index=False)
    before = contents(folder)
    command = ("fit", "small.csv", "-t", "price", "--backbone", "kernel", "--save", "s.onsphere", "--report", "s.html")
    assert_one_line(run(*command), "Expected at least 10 rows to report on, a fifth of the table. Got 6")
    assert contents(folder) == before


def test_an_interrupt_leaves_the_old_file(folder, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(HCMRegressor, "assess", stopped)
    (folder / "p.csv").write_text("old")
    before = contents(folder)
    assert_one_line(run("predict", "model.onsphere", "fresh.csv", "--out", "p.csv"), "Stopped.", code=130)
    assert contents(folder) == before


def test_a_fault_of_ours_ends_in_one_line(folder, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(HCMRegressor, "assess", broken)
    told = "A fault of onsphere, please report it: ZeroDivisionError: by zero"
    assert_one_line(run("predict", "model.onsphere", "fresh.csv", "--out", "p.csv"), told, code=1)
    assert not (folder / "p.csv").exists()


def test_no_room_on_the_disk_leaves_the_old_files(folder, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (folder / "p.csv").write_text("old")
    before = contents(folder)
    monkeypatch.setattr("os.fsync", full)
    assert_one_line(run("predict", "model.onsphere", "fresh.csv", "--out", "p.csv"), "No space left on device")
    command = ("fit", "houses.csv", "-t", "price", "--backbone", "kernel", "--save", "model.onsphere")
    assert_one_line(run(*command), "No space left on device")
    assert contents(folder) == before


# --- help, completion and real processes ---


@pytest.mark.parametrize("command", ["demo", "fit", "predict", "evaluate", "report", "compare", "info"])
def test_every_command_has_help(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert command in result.stdout
    assert command in run("--help").stdout


def completed(line):
    environment = {"_ROOT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    result = CliRunner(env=environment).invoke(cli.app, [], prog_name="root")
    return result.stdout.split()


def test_the_shell_completes_commands_options_and_values():
    assert completed("root ev") == ["evaluate"]
    assert "--backbone" in completed("root fit --back")
    assert completed("root fit a.csv --backbone h") == ["hist-gradient-boosting"]
    assert completed("root fit a.csv --task ") == ["auto", "regression", "classification"]
    assert completed("root fit a.csv --frames ") == ["all", "target"]


def test_the_command_runs_in_a_real_process(folder):
    def onsphere(*arguments, limit="", **options):
        code = f"{limit}\nfrom onsphere.cli import main\nmain()"
        command = [sys.executable, "-c", code, *arguments]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        return subprocess.run(command, capture_output=True, env=environment, **options)

    done = onsphere("evaluate", "model.onsphere", "fresh.csv")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"intervals hold the truth" in done.stdout
    # A limit on the size of files stands for a disk without room.
    (folder / "p.csv").write_text("old")
    before = contents(folder)
    limit = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))"
    )
    done = onsphere("predict", "model.onsphere", "fresh.csv", "--out", "p.csv", limit=limit)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"Expected to write p.csv. Got: ")
    assert done.stderr.count(b"\n") == 1
    assert contents(folder) == before


def test_a_closed_pipe_is_no_error(folder, monkeypatch):
    def closed(*_, **__):
        raise BrokenPipeError

    discarded = []
    monkeypatch.setattr("onsphere.table.predict_file", closed)
    monkeypatch.setattr(console, "_discard", discarded.append)
    result = run("predict", "model.onsphere", "fresh.csv")
    assert (result.exit_code, result.output, len(discarded)) == (0, "", 1)


def test_discarded_output_is_written_nowhere(tmp_path):
    with (tmp_path / "a.txt").open("w") as stream:
        stream.write("never")
        console._discard(stream)
    assert (tmp_path / "a.txt").read_text() == ""


def test_a_reader_that_stops_early_is_no_error(folder):
    command = f"{sys.executable} -m onsphere.cli predict model.onsphere fresh.csv | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


# --- what new users run into ---


def test_text_columns_are_read_as_people_write_them_and_the_rest_is_asked(tmp_path, monkeypatch, houses):
    monkeypatch.chdir(tmp_path)
    frame = houses(120, 0)[["size", "price"]]
    rng = np.random.default_rng(0)
    frame["rate"] = [f"{each:.1f}%" for each in rng.uniform(0, 9, 120)]
    frame["day"] = [f"{1 + place % 12:02}/{1 + place % 9:02}/24" for place in range(120)]
    frame["zip"] = [f"{each:05}" for each in rng.integers(1, 40, 120)]
    frame["price"] = [f"€{each:,.0f}" for each in 1000 * frame["price"]]
    frame.to_csv("data.csv", index=False)
    options = ("--backbone", "kernel", "--frames", "target", "--save", "m")
    result = run("fit", "data.csv", "-t", "price", *options, "--category", "rate", "--json")
    assert {each["name"]: each["kind"] for each in json.loads(result.stdout)["columns"]}["rate"] == "category"
    result = run("fit", "data.csv", "-t", "price", *options, "--date", "day=%d/%m/%y")
    assert result.exit_code == 0, result.stderr
    for words in (
        "regression: price has",
        "Note: price: numbers in €; , is read as the separator of thousands.",
        "numbers in %",
        "codes that begin with 0",
        "dates read as %d/%m/%y",
        "To say what a column holds: --number NAME",
    ):
        assert words in result.stdout
    assert json.loads(run("evaluate", "m", "data.csv", "--json").stdout)["rows"] == 120


def test_no_classes_are_made_of_text_that_begins_like_numbers(folder, houses):
    frame = houses(100, 0)
    frame["price"] = [f"{each:.1f} {'abc'[place % 3]}" for place, each in enumerate(frame["price"])]
    frame.to_csv("odd.csv", index=False)
    result = run("fit", "odd.csv", "-t", "price")
    assert_one_line(result, "most of which begin like numbers; 100 rows cannot be read as one, such as '1358.6 a'")


def test_many_columns_are_summed_up(folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 70)), columns=[f"wave_{place}" for place in range(70)])
    frame.assign(y=frame.sum(axis=1), site="x").to_csv("wide.csv", index=False)
    result = run("fit", "wide.csv", "-t", "y", "--backbone", "kernel", "--frames", "target")
    assert "71 columns: 70 number, 1 unused." in result.stdout
    assert "site" in result.stdout
    assert "wave_" not in result.stdout
    frame.assign(y=frame.sum(axis=1)).to_csv("wide.csv", index=False)
    result = run("fit", "wide.csv", "-t", "y", "--backbone", "kernel", "--frames", "target")
    assert "70 columns: 70 number." in result.stdout
    assert "learned as" not in result.stdout


def test_large_numbers_are_written_out(folder, houses):
    houses(80, 0).assign(price=lambda rows: 1e5 * rows["price"]).to_csv("dear.csv", index=False)
    result = run("fit", "dear.csv", "-t", "price", "--backbone", "kernel", "--frames", "target")
    assert "e+0" not in result.stdout
    assert re.search(r"off by \d{1,2},\d{3},\d{3} on average", result.stdout)


def test_a_number_too_large_for_trees_is_named(folder, houses):
    frame = houses(60, 0)
    frame.loc[7, "size"] = 1e39
    frame.to_csv("huge.csv", index=False)
    words = "Expected a number of size 3.4e+38 at most in the column size, row 7 (counted from 0). Got the number 1e+39"
    assert_one_line(run("fit", "huge.csv", "-t", "price"), words)


def test_standard_input_is_a_table(folder):
    data = Path("fresh.csv").read_bytes()
    runner = CliRunner()
    piped = runner.invoke(cli.app, ["predict", "model.onsphere", "-"], input=data)
    assert (piped.exit_code, piped.stdout) == (0, run("predict", "model.onsphere", "fresh.csv").stdout)


def test_a_full_disk_behind_standard_output_is_no_fault_of_ours(folder):
    command = [sys.executable, "-m", "onsphere.cli", "predict", "model.onsphere", "fresh.csv"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "Expected to write to standard output. Got: No space left on device. Free some space, or write to another "
        "place.\n"
    )


def test_own_test_rows_are_measured_and_a_refit_is_measured_before(folder, houses):
    houses(130, 5).to_csv("own.csv", index=False)
    options = ("--backbone", "kernel", "--frames", "target", "--json")
    summary = json.loads(run("fit", "houses.csv", "-t", "price", "--test", "own.csv", *options).stdout)
    n_known = len(read_table("houses.csv").dropna(subset="price"))
    assert (summary["n_rows"]["train"], summary["n_rows"]["test"]) == (n_known, 130)
    result = run("fit", "houses.csv", "-t", "price", "--refit", *options[:-1], "--save", "again", "--report", "r.html")
    assert result.exit_code == 0, result.stderr
    assert "Note: the model was fitted again on all rows" in result.stdout
    assert "rows it has not seen, predictions are off" in Path("r.html").read_text()
    assert json.loads(run("evaluate", "again", "houses.csv", "--json").stdout)["trained_on"] > 0.9


def test_own_test_rows_are_in_the_report(folder, houses):
    houses(30, 5).assign(house_id=[f"T{row}" for row in range(30)]).to_csv("own.csv", index=False)
    options = ("--backbone", "kernel", "--frames", "target", "--quiet", "--number", "size", "--report", "r.html")
    assert run("fit", "houses.csv", "-t", "price", "--test", "own.csv", *options).exit_code == 0
    page = Path("r.html").read_text()
    assert "On 30 rows it has not seen" in page
    assert "own.csv" in page
    assert re.search(r">T\d+<", page)


def test_predictions_can_have_their_inputs_and_reasons_beside_them(folder):
    result = run("predict", "model.onsphere", "fresh.csv", "--keep", "all", "--explain")
    assert result.exit_code == 0, result.stderr
    answers, rows = pd.read_csv(io.StringIO(result.stdout)), pd.read_csv("fresh.csv")
    assert answers["size"].tolist() == rows["size"].tolist()
    assert {"unusual", "driven_by", "price"} <= set(answers)
    assert_one_line(run("predict", "model.onsphere", "fresh.csv", "--keep", "some"), "--keep")


def test_every_probability_can_be_written(folder, houses):
    frame = (
        houses(160, 0).assign(kind=lambda rows: np.where(rows["price"] > 700, "dear", "cheap")).drop(columns="price")
    )
    frame.to_csv("kinds.csv", index=False)
    assert run("fit", "kinds.csv", "-t", "kind", "--backbone", "kernel", "--quiet", "--save", "k").exit_code == 0
    for option in (("--quantiles", "0.1"), ("--tails", "equal")):
        words = f"Expected a model of numbers with {option[0]}. Got k, a model of classes. Leave the option out."
        assert_one_line(run("predict", "k", "kinds.csv", *option), words)
    answers = pd.read_csv(io.StringIO(run("predict", "k", "kinds.csv", "--probabilities").stdout))
    assert (answers["probability_cheap"] + answers["probability_dear"]).tolist() == pytest.approx([1.0] * 160)
    assert (answers[["probability_cheap", "probability_dear"]].max(axis=1) == answers["probability"]).all()


def test_test_rows_that_were_trained_on_are_named_first(folder):
    options = ("--backbone", "kernel", "--frames", "target", "--test", "houses.csv", "--report", "r.html")
    result = run("fit", "houses.csv", "-t", "price", *options)
    assert re.match(r"\d+% of these \d+ rows were trained on: .* promise nothing", result.stdout)
    assert result.stdout.count("were trained on") == 1
    assert not any(words in result.stdout for words in ("has not seen", "chance alone gives"))
    page = Path("r.html").read_text()
    assert re.search(r'class="lead">\d+\u202f% of these \d+ rows were trained on', page)
    assert not any(words in page for words in ("has not seen", "keep their promise", "It has learned"))
    figures = json.loads(run("fit", "houses.csv", "-t", "price", *options, "--json").stdout)["figures"]
    assert figures["trained_on"] > 0.5


def test_rows_that_are_measured_on_a_second_table_are_not_split_at_random(folder, houses):
    houses(120, 0).sort_values("sold").to_csv("ordered.csv", index=False)
    fit = ("fit", "ordered.csv", "-t", "price", "--backbone", "kernel", "--frames", "target")
    assert "are split at random" in run(*fit).stdout
    assert "are split at random" not in run(*fit, "--test", "fresh.csv").stdout


def test_columns_that_are_not_learned_from_may_be_missing_in_the_test_rows(folder, houses):
    houses(60, 5).drop(columns=["sold", "rooms"]).to_csv("own.csv", index=False)
    fit = ("fit", "houses.csv", "-t", "price", "--backbone", "kernel", "--frames", "target", "--test", "own.csv")
    result = run(*fit, "--ignore", "sold", "--key", "rooms")
    assert (result.exit_code, result.stderr) == (0, "The model was not saved; add --save model.onsphere to use it.\n")


def test_names_that_only_hold_that_of_a_table_may_be_written(folder):
    options = ("--backbone", "kernel", "--frames", "target", "--save", "a.csv.onsphere", "--report", "a.csv.html")
    assert run("fit", "houses.csv", "-t", "price", *options, "--quiet").exit_code == 0
    assert {"a.csv.onsphere", "a.csv.html"} <= set(contents(folder))


def test_a_single_row_that_was_trained_on_is_no_plural(folder):
    read_table("houses.csv").dropna(subset="price").to_csv("known.csv", index=False)
    fit = ("fit", "known.csv", "-t", "price", "--backbone", "kernel", "--frames", "target", "--calibration", "cv")
    assert run(*fit, "--test", "fresh.csv", "--save", "all", "--quiet").exit_code == 0
    read_table("known.csv")[:1].to_csv("one.csv", index=False)
    assert run("evaluate", "all", "one.csv").stdout.startswith("The only row was trained on: the figures look better")
