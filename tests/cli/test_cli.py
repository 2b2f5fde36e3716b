"""The command line as people and scripts use it."""

import errno
import importlib
import inspect
import io
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.testing import CliRunner

import onsphere
from onsphere import calibration, cli, demo, table
from onsphere.cli import console, info, options
from onsphere.table import fit as table_fit
from onsphere.table import predict as table_predict
from onsphere.table import prepare


def run(*arguments, **environment):
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(cli.app, arguments)


def assert_one_line(result, code, words):
    """Assert that there is one line on stderr, and nothing on stdout."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"), [(["prdeict"], "No such command 'prdeict'"), (["info", "--wrong"], "--wrong")]
)
def test_a_mistake_ends_in_one_line(arguments, words):
    assert_one_line(run(*arguments), 2, words)


def test_a_fault_of_ours_ends_in_one_line_too(monkeypatch):
    def fail():
        raise RuntimeError("nobody thought\nof this")

    monkeypatch.setattr(info, "find_installation", fail)
    assert_one_line(run("info"), 1, "please report it: RuntimeError: nobody thought of this")


def test_without_typer_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"needs typer and rich\. Install it with: pip install 'onsphere\[cli\]'"):
        importlib.reload(cli)


def test_without_a_command_there_is_help():
    result = run()
    assert result.exit_code == 0
    assert all(command in result.stdout for command in ("fit", "predict", "demo", "info"))
    assert "--target" in run("fit", "--help").stdout


def test_demo_runs_the_demo(monkeypatch):
    monkeypatch.setattr(demo, "main", lambda: print("the demo"))
    result = run("demo")
    assert (result.exit_code, result.output) == (0, "the demo\n")


def test_info_shows_versions_and_extras():
    result = run("info")
    assert result.exit_code == 0
    assert "onsphere 0" in result.stdout
    assert "│ torch " in result.stdout


def test_the_script_is_this_module(monkeypatch, capsys):
    project = Path(cli.__file__).parents[3] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["scripts"] == {"onsphere": "onsphere.cli:main"}
    monkeypatch.setattr(sys, "argv", ["onsphere", "info"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "extra" in capsys.readouterr().out


def test_the_package_runs_as_a_script_with_any_stream(monkeypatch):
    printed = io.StringIO()
    monkeypatch.setattr(sys, "argv", ["onsphere", "info"])
    monkeypatch.setattr(sys, "stdout", printed)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("onsphere.cli.__main__", run_name="__main__")
    assert ended.value.code == 0
    assert "extra" in printed.getvalue()


def test_the_version_is_printed():
    assert run("--version").stdout == f"onsphere {onsphere.__version__}\n"


def test_help_imports_nothing_large():
    large = {"numpy", "pandas", "scipy", "sklearn", "onsphere.errors"}
    code = f"""
import sys
from typer.testing import CliRunner
from onsphere.cli import app
for command in ([], {", ".join(f"[{name!r}]" for name in console._MODULES)}):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0 and "--help" in result.stdout, (command, result)
    assert not set(sys.modules) & {large}, (command, set(sys.modules) & {large})
print(CliRunner().invoke(app, ["--help"]).stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Predict each row of a table" in done.stdout


def test_options_list_what_the_library_takes():
    assert options.TASKS == prepare.TASKS
    assert tuple(table.BACKBONES) == options.BACKBONES
    assert options.CALIBRATIONS == table_fit.CALIBRATIONS
    assert options.TAILS == calibration.TAILS
    assert options.KEPT == table_predict.KEPT


def test_every_command_in_the_help_has_its_docstring():
    for name in console._MODULES:
        assert console._summarize_command(name).help == inspect.cleandoc(console._load_command(name).callback.__doc__)


@pytest.mark.parametrize("place", ["_load_command", "app"])
def test_an_interrupt_ends_in_one_line(monkeypatch, capsys, place):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(console if place == "_load_command" else cli, place, stop)
    monkeypatch.setattr(sys, "argv", ["onsphere", "info"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Stopped. What was not finished was not written.\n"


def test_an_interrupt_while_arguments_are_read_ends_in_one_line(monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(TyperGroup, "make_context", stop)
    assert_one_line(run("info"), 130, "Stopped.")


def test_a_full_disk_behind_standard_output_is_not_a_fault_of_ours(monkeypatch, tmp_path, capsys):
    with (tmp_path / "out").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert console._explain(OSError(errno.ENOSPC, "No space left on device")) == 2
        print("lost", flush=True)
    assert (tmp_path / "out").read_text() == ""
    assert "Expected to write to standard output. Got: No space left on device." in capsys.readouterr().err
