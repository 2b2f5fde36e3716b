"""`python -m reproduction`, as a person or a script uses it."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from reproduction import EXPERIMENTS, Claim, experiment
from reproduction.__main__ import main


@pytest.fixture
def fake(monkeypatch):
    """An experiment that takes no time."""

    def measure(settings, seed, *, data, device, checkpoints, on_progress):
        on_progress(1, 2, "half-way")
        return {"score": 1.0, "data": str(data), "device": device}

    made = SimpleNamespace(
        TITLE="A title",
        ABOUT="About it.",
        DEVIATIONS=[],
        PRESETS={"quick": {"n_seeds": 2}, "cpu": {"n_seeds": 3}},
        measure=measure,
        tabulate=lambda runs: [{"method": "HCM", "ours": 1.0}],
        check_claims=lambda runs: [Claim("It holds", True, "λ = 1"), Claim("It does not", False, "0")],
        draw=lambda runs: {"picture": Figure()},
    )
    monkeypatch.setattr(experiment, "load_experiment", lambda name: made)
    return made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys):
    def command(*arguments):
        code = main(arguments)
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return command


def test_a_run_ends_in_its_claims_and_the_files(fake, folder, run):
    result = run("toy")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[1:3] == ["  holds: It holds (λ = 1)", "  does not hold: It does not (0)"]
    assert lines[-3:] == [str(Path("results") / name) for name in ("toy.md", "toy.json", "toy-picture.png")]
    assert all((folder / name).is_file() for name in lines[-3:])
    assert "25% seed 0: half-way" in result.err


def test_options_reach_the_engine(fake, folder, run):
    options = ("--preset", "cpu", "--seeds", "1", "--device", "cpu", "--data", "sets", "--out", "there")
    assert run("uci", *options).code == 0
    assert json.loads((folder / "there/uci.json").read_text())["preset"] == "cpu"
    (kept,) = (folder / "there/runs/uci/cpu").iterdir()
    assert json.loads(kept.read_text()) == {"score": 1.0, "data": "sets", "device": "cpu", "seed": 0, "settings": {}}


def test_quiet_prints_nothing(fake, folder, run):
    result = run("toy", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (folder / "results/toy.md").is_file()


def test_json_is_all_that_is_printed(fake, folder, run):
    result = run("toy", "--json")
    assert (result.code, result.err) == (0, "")
    summary = json.loads(result.out)
    assert list(summary) == ["name", "preset", "seeds", "claims", "rows", "files"]
    assert (summary["name"], summary["preset"], summary["seeds"]) == ("toy", "quick", 2)
    assert summary["claims"][0] == {"text": "It holds", "holds": True, "figures": "λ = 1", "ours": False}
    assert all((folder / name).is_file() for name in summary["files"])


def test_a_terminal_sees_one_line_that_changes(fake, folder, run, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("toy").err.count("\n") == 1, "after the last step"


def test_without_a_name_it_lists_every_experiment_with_its_title(run):
    result = run()
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == list(EXPERIMENTS)
    assert "Toy regression (Figure 1)" in result.out
    assert tuple(json.loads(run("--list", "--json").out)) == EXPERIMENTS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tois"], "Got 'tois' instead"),
        (["toy", "--preset", "fast"], "must be one of 'quick', 'cpu', 'paper'"),
        (["toy", "--seeds", "0"], "Got 0 instead"),
        (["toy", "--device", "abacus"], "a device that torch finds here"),
        (["toy", "--out", "file"], "Expected a folder to write to as 'out'"),
    ],
)
def test_a_mistake_is_one_line(fake, folder, run, arguments, words):
    (folder / "file").touch()
    result = run(*arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert words in result.err
    assert not (folder / "results").exists()


@pytest.mark.parametrize("arguments", [["toy", "--sedes", "1"], ["toy", "--seeds", "many"], ["toy", "uci"]])
def test_an_option_that_does_not_exist_is_an_error(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m reproduction" in capsys.readouterr().err


def test_missing_data_is_one_line(folder, run):
    result = run("ablation", "--preset", "cpu", "--data", "nowhere")
    assert (result.code, result.out) == (2, "")
    assert str(Path("nowhere") / "uci" / "concrete.csv") in result.err


def test_a_missing_package_is_one_line(folder, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "skorch", None)
    result = run("toy")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "pip install -e '.[reproduction]'" in result.err


def test_a_stop_says_how_to_continue(fake, folder, run):
    def measure(*_, **__):
        raise KeyboardInterrupt

    fake.measure = measure
    result = run("toy")
    assert result.code == 130
    assert "the same command continues from there" in result.err


def test_a_fault_is_one_line_and_not_a_traceback(fake, folder, run):
    def measure(*_, **__):
        raise ZeroDivisionError("division\nby zero")

    fake.measure = measure
    result = run("toy", "--quiet")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "please report it: ZeroDivisionError: division by zero. Call reproduction.reproduce('toy')" in result.err


def test_a_real_run_in_a_real_process(folder):
    command = [sys.executable, "-m", "reproduction", "efficiency", "--device", "cpu", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert len(summary["claims"]) == 4
    assert all((folder / name).stat().st_size > 0 for name in summary["files"])
