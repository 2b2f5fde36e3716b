"""Messages of the library that name options when the command line says them."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import onsphere
from onsphere import cli
from onsphere.cli.flag_words import FLAG_WORDS, name_flags


def run(*arguments):
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli.app, [str(each) for each in arguments])


def test_the_library_still_says_what_is_replaced():
    """Texts are joined where a line ends, and {} stands for what is filled in."""
    rooms = [path for path in Path(onsphere.__file__).parent.rglob("*.py") if "cli" not in path.parts]
    source = "".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in rooms)
    source = re.sub(r"\{OWNER\}", "write_report", re.sub(r"\{asked!r\}", "'positive'", source))
    assert [words for words in FLAG_WORDS if not re.search(words, source)] == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("say that sold is the time, and", "add --time sold, and"),
        ("Say that the column is a number, to", "Add --number NAME, to"),
        ("write_report needs at least 10 rows", "A report needs at least 10 rows"),
        ("Expected an undamaged file written by save.", "Expected an undamaged model file of onsphere fit --save."),
    ],
)
def test_parameters_become_options(said, told):
    assert name_flags(said) == told


def test_errors_and_notes_name_the_options_that_decide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    days = pd.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d")
    table = pd.DataFrame({"x": rng.normal(size=60), "day": days, "grade": rng.integers(1, 4, 60)})
    table.to_csv("data.csv", index=False)
    result = run("fit", "data.csv", "-t", "grade", "--backbone", "kernel", "--frames", "target")
    assert "; choose --task regression if they are amounts." in result.stdout
    assert "add --time day, and it is measured on the latest rows" in result.stdout
    table[["x"]].to_csv("one.csv", index=False)
    assert "pass it by --delimiter" in run("fit", "one.csv", "-t", "x").stderr
    assert "Add --tolerance, in the unit" in run("fit", "data.csv", "-t", "x", "--risk", "0.1").stderr
