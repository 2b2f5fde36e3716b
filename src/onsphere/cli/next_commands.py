"""Write the commands for what a report says to do next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

__all__ = ["list_given_options", "make_command_writer"]

# Options that only say what to print.
_OF_OUTPUT = ("--quiet", "--json")
_NEW_ROWS = "new.csv"


def list_given_options(context: typer.Context) -> dict[str, list[str]]:
    """Return the options that the user gave to the running command, each with its values; a flag has none."""
    found: dict[str, list[str]] = {}
    for parameter in context.command.params:
        name, value = max(parameter.opts, key=len), context.params.get(str(parameter.name))
        source = context.get_parameter_source(str(parameter.name))
        is_given = source is not None and source.name == "COMMANDLINE"
        if name.startswith("--") and is_given and name not in _OF_OUTPUT:
            values: Any = value if isinstance(value, list | tuple) else [] if value is True else [value]
            found[name] = [str(each) for each in values]
    return found


def make_command_writer(
    summary: Mapping[str, Any], *, model: Path | None, report: Path
) -> Callable[[str, Mapping[str, Any]], str | None]:
    """Return a function that writes the command for a step, by how the model was fitted."""
    # A file of an earlier version does not tell its options; those that matter most are known.
    given = summary.get("options")
    known = {"--target": list(summary["targets"]), "--backbone": [summary["backbone"]]}
    options: dict[str, list[str]] = known if given is None else given
    data = str(summary.get("data", "table.csv"))
    saved = str(model or (*options.get("--save", ()), "model.onsphere")[0])

    def write_command(action: str, changes: Mapping[str, Any]) -> str | None:
        if action == "fit":
            return _write_fit(data, options, changes, saved=saved, report=str(report))
        words = {
            "predict": ["predict", saved, _NEW_ROWS, "--out", "predictions.csv"],
            "update": ["update", saved, _NEW_ROWS],
            "report": ["report", saved, _NEW_ROWS, "--out", _add_to_name(str(report), "new")],
        }[action]
        if changes.get("explain"):
            words = ["predict", saved, data, "--explain", "--keep", changes["keep"], "--out", "explained.csv"]
        return shlex.join(["onsphere", *words])

    return write_command


def _write_fit(
    data: str,
    options: Mapping[str, list[str]],
    changes: Mapping[str, Any],
    *,
    saved: str,
    report: str,
    ending: str = "",
) -> str | None:
    """Return the command that was given with some options changed; None if it had them already.

    The model and the report get names of their own, so that they can be compared with those that there are.
    """
    if "rows" in changes:  # more of them, in another table
        return _write_fit(_add_to_name(data, "more"), options, {}, saved=saved, report=report, ending="more")
    changed = {name: list(values) for name, values in options.items()}
    for name, value in changes.items():
        flag = f"--{name}"
        if name == "ignore":
            changed[flag] = list(dict.fromkeys([*changed.get(flag, []), *value]))
        elif value is True:
            changed[flag] = []
        else:
            changed[flag] = [str(value)]
    if changes.get("backbone") == "auto" and "--backbone" not in options:
        return None  # as it is by default
    if "refit" in changes and "--test" in options:
        return None  # all rows were learned from
    if changed == options and not ending:
        return None
    ending = ending or "-".join(changes)
    changed["--save"], changed["--report"] = [_add_to_name(saved, ending)], [_add_to_name(report, ending)]
    words = [word for flag, values in changed.items() for word in ([flag] if not values else _repeat(flag, values))]
    return shlex.join(["onsphere", "fit", data, *words])


def _add_to_name(path: str, ending: str) -> str:
    """Return the path of another file beside this one."""
    file = Path(path)
    return str(file.with_name(f"{file.stem}-{ending}{file.suffix}"))


def _repeat(flag: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]
