"""The command line, as a person or a script meets it."""

import importlib
import io
import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from onsphere import cli, demo
from onsphere.paper import EXPERIMENTS, Claim, experiment


@pytest.fixture
def fake(monkeypatch):
    """An experiment that takes no time."""

    def measure(settings, seed, *, data, device, report):
        report(1, 2, "half-way")
        return {"score": 1.0, "data": str(data), "device": device}

    made = SimpleNamespace(
        TITLE="A title",
        ABOUT="About it.",
        PRESETS={"quick": {"n_seeds": 2}, "cpu": {"n_seeds": 3}},
        measure=measure,
        tabulate=lambda runs: [{"method": "HCM", "ours": 1.0}],
        claims=lambda runs: [Claim("It holds", True, "λ = 1"), Claim("It does not", False, "0")],
        draw=lambda runs: {"picture": Figure()},
    )
    monkeypatch.setattr(experiment, "load_experiment", lambda name: made)
    return made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, **environment):
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(cli.app, arguments)


def assert_told(result, code, words):
    """One line on stderr, nothing on stdout."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


# --- reproduce ---


def test_a_run_ends_in_a_table_of_claims_and_the_files(fake, folder):
    result = run("reproduce", "toy")
    assert result.exit_code == 0
    assert result.stderr == ""
    rows = [line for line in result.stdout.splitlines() if "│" in line]
    assert [row.split("│")[1].strip() for row in rows] == ["yes", "no"]
    assert "λ = 1" in rows[0]
    files = result.stdout.splitlines()[-3:]
    assert files == [str(Path("results") / name) for name in ("toy.md", "toy.json", "toy-picture.png")]
    assert all((folder / name).is_file() for name in files)


def test_options_reach_the_engine(fake, folder):
    options = ("--preset", "cpu", "--seeds", "1", "--device", "cpu", "--data", "sets", "--out", "there")
    assert run("reproduce", "uci", *options).exit_code == 0
    assert json.loads((folder / "there/uci.json").read_text())["preset"] == "cpu"
    (kept,) = (folder / "there/runs/uci/cpu").iterdir()
    assert json.loads(kept.read_text()) == {"score": 1.0, "data": "sets", "device": "cpu", "seed": 0, "settings": {}}


def test_quiet_prints_nothing(fake, folder):
    result = run("reproduce", "toy", "--quiet", FORCE_COLOR="1")
    assert (result.exit_code, result.output) == (0, "")
    assert (folder / "results/toy.md").is_file()


def test_json_is_all_that_is_printed(fake, folder):
    result = run("reproduce", "toy", "--json", FORCE_COLOR="1")
    assert (result.exit_code, result.stderr) == (0, "")
    summary = json.loads(result.stdout)
    assert list(summary) == ["name", "preset", "seeds", "claims", "rows", "files"]
    assert (summary["name"], summary["preset"], summary["seeds"]) == ("toy", "quick", 2)
    assert summary["claims"][0] == {"text": "It holds", "holds": True, "figures": "λ = 1", "ours": False}
    assert summary["rows"] == [{"method": "HCM", "ours": 1.0}]
    assert all((folder / name).is_file() for name in summary["files"])


def test_a_terminal_sees_a_bar_on_stderr(fake, folder):
    result = run("reproduce", "toy", FORCE_COLOR="1")
    assert "toy: " in result.stderr
    assert "toy: seed" not in result.stdout


def test_the_list_names_every_experiment_with_its_title():
    result = run("reproduce", "--list")
    assert result.exit_code == 0
    for name in EXPERIMENTS:
        assert f"│ {name} " in result.stdout
    assert "Toy regression (Figure 1)" in result.stdout
    titles = json.loads(run("reproduce", "--list", "--json").stdout)
    assert tuple(titles) == EXPERIMENTS


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce"], "Expected the name of an experiment, one of toy, two-moons"),
        (["reproduce", "tois"], "Got 'tois' instead"),
        (["reproduce", "toy", "--preset", "fast"], "must be one of 'quick', 'cpu', 'paper'"),
        (["reproduce", "toy", "--seeds", "0"], "Got 0 instead"),
        (["reproduce", "toy", "--seeds", "many"], "Invalid value for '--seeds'"),
        (["reproduce", "toy", "--device", "abacus"], "a device that torch finds here"),
        (["reproduce", "toy", "--sedes", "1"], "No such option: --sedes"),
        (["reproduce", "toy", "--out"], "--out"),
        (["reproduce", "toy", "uci"], "uci"),
        (["reproduce", "toy", "--out", "file"], "Expected a folder to write to as 'out'"),
        (["reprodcue"], "No such command 'reprodcue'"),
        (["info", "--wrong"], "--wrong"),
    ],
)
def test_a_mistake_is_told_in_one_line(fake, folder, arguments, words):
    (folder / "file").touch()
    assert_told(run(*arguments), 2, words)
    assert not (folder / "results").exists()


def test_missing_data_is_told_in_one_line(folder):
    result = run("reproduce", "ablation", "--preset", "cpu", "--data", "nowhere")
    assert_told(result, 2, str(Path("nowhere") / "uci" / "concrete.csv"))


def test_a_missing_extra_is_told_in_one_line(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "skorch", None)
    assert_told(run("reproduce", "toy"), 2, "pip install 'onsphere[torch]'")


def test_a_fault_of_ours_is_told_in_one_line_too(fake, folder):
    def measure(*_, **__):
        raise RuntimeError("nobody thought\nof this")

    fake.measure = measure
    assert_told(run("reproduce", "toy"), 1, "please report it: RuntimeError: nobody thought of this")


def test_a_stop_says_how_to_go_on(fake, folder):
    def measure(*_, **__):
        raise KeyboardInterrupt

    fake.measure = measure
    assert_told(run("reproduce", "toy"), 130, "the same command goes on from there")


def test_without_typer_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"needs typer and rich\. Install it with: pip install 'onsphere\[cli\]'"):
        importlib.reload(cli)


# --- the rest ---


def test_without_a_command_there_is_help():
    result = run()
    assert result.exit_code == 0
    assert all(command in result.stdout for command in ("reproduce", "demo", "info"))
    assert "--preset" in run("reproduce", "--help").stdout


def test_demo_runs_the_demo(monkeypatch):
    monkeypatch.setattr(demo, "main", lambda: print("the demo"))
    result = run("demo")
    assert (result.exit_code, result.output) == (0, "the demo\n")


def test_info_tells_versions_extras_and_data(folder):
    (folder / "uci").mkdir()
    (folder / "uci/wine.csv").touch()
    result = run("info", "--data", str(folder))
    assert result.exit_code == 0
    assert "onsphere 0" in result.stdout
    assert "│ torch " in result.stdout
    assert f"Real data in {folder}\n  UCI tables: there\n  CIFAR-10: missing\n" in result.stdout


def test_the_script_is_this_module(monkeypatch, capsys):
    project = Path(cli.__file__).parents[3] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["scripts"] == {"onsphere": "onsphere.cli:main"}
    monkeypatch.setattr(sys, "argv", ["onsphere", "info"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "Real data in" in capsys.readouterr().out


def test_the_package_runs_as_a_script_too_and_takes_any_stream(monkeypatch):
    printed = io.StringIO()
    monkeypatch.setattr(sys, "argv", ["onsphere", "info"])
    monkeypatch.setattr(sys, "stdout", printed)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("onsphere.cli.__main__", run_name="__main__")
    assert ended.value.code == 0
    assert "Real data in" in printed.getvalue()


def test_a_real_run_in_a_real_process(folder):
    command = [sys.executable, "-m", "onsphere.cli", "reproduce", "two-moons", "--device", "cpu", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert len(summary["claims"]) == 4
    assert all((folder / name).stat().st_size > 0 for name in summary["files"])
