"""The application that all commands share: how it fails, and what it prints."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from onsphere.errors import OnsphereError
from onsphere.table import TableFit

__all__ = ["app", "print_figures", "print_files", "print_fit", "print_json", "print_message", "print_table", "spin"]


class _Commands(TyperGroup):
    """The commands; every failure ends in one sentence."""

    def main(self, *args: Any, **options: Any) -> Any:
        sys.exit(self._run(*args, **options))

    def _run(self, *args: Any, **options: Any) -> int:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: print_message(message)
                return super().main(*args, **{**options, "standalone_mode": False}) or 0
        except OnsphereError as error:
            return print_message(error, 2)
        except Exception as error:
            usage = getattr(error, "format_message", None)  # an unknown option or command, and the like
            fault = f"A fault of onsphere, please report it: {type(error).__name__}: {error}"
            return print_message(usage(), 2) if usage else print_message(fault, 1)

    def invoke(self, ctx: Any) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(print_message("Stopped. What was not finished was not written.", 130)) from None
        except BrokenPipeError:  # the reader of our output has closed it, as `head` does
            _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Lead a stream to nowhere, so that nothing can fail when it is flushed at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_message(message: object, code: int = 0) -> int:
    """Print a sentence on stderr, and return the exit code."""
    print(" ".join(str(message).split()), file=sys.stderr)
    return code


app = typer.Typer(cls=_Commands, help="An honest uncertainty for every prediction, in one pass.")


@app.callback(invoke_without_command=True)
def _print_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@contextmanager
def spin(name: str, *, hidden: bool) -> Generator[Callable[[str], None]]:
    """Show a line on stderr that says what is being done."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task(name)

        def on_progress(step: str) -> None:
            progress.update(task, description=f"{name}: {step}")

        yield on_progress


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, title: str | None = None) -> None:
    """Print a table on stdout, numbers with four digits."""
    table = Table(*columns, title=_format_cell(title) if title else None, title_justify="left")
    for row in rows:
        table.add_row(*(_format_cell(row.get(name)) for name in columns))
    Console().print(table)


def _format_cell(value: Any) -> Text:
    """Return text as it is: the names of columns may hold what rich takes for markup."""
    if value is None:
        return Text("–")
    return Text(f"{value:.4g}" if isinstance(value, float) else str(value))


def print_json(values: Any) -> None:
    """Print JSON on stdout; numbers that JSON cannot write are null."""
    print(json.dumps(_make_plain(values), ensure_ascii=False, indent=1, default=str, allow_nan=False))


def _make_plain(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _make_plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_make_plain(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


# The frames of a model, and what they measure.
_FRAMES = {"target": "target", "error": "error (noise)", "input": "input (novelty)"}


def print_fit(found: TableFit) -> None:
    """Print what `fit` found in a table and how good its model is."""
    print(f"{found.task}: {found.why}.")
    columns = [{"column": column.name, "taken as": column.kind, "why": column.note} for column in found.columns]
    print_table(columns, ["column", "taken as", "why"])
    if found.candidates:
        names = dict.fromkeys(name for row in found.candidates for name in row)
        print_table(found.candidates, list(names), title=f"Backbones by cross-validation; taken: {found.backbone}")
    print(f"Frames: {', '.join(_FRAMES[name] for name in found.frames)}.")
    print_figures(found.figures, classes=found.task == "classification")
    for note in found.notes:
        print(f"Note: {note}.")


def print_figures(figures: dict[str, Any], *, classes: bool) -> None:
    """Print how good a model is on rows that it has not seen."""
    low, high = figures["coverage_by_chance"]
    targets: dict[str, Any] = figures.get("targets", {})

    def show(error: float | None) -> str:
        return "–" if error is None else f"{error:.1%} wrong" if classes else f"off by {error:.4g} on average"

    rows = [
        ("rows it has not seen", f"{figures['rows']:,}"),
        ("error", show(figures["error" if classes else "mean_error"])),
        *[(f"… of {name}", show(each["mean_absolute_error"])) for name, each in targets.items()],
        *([] if classes else [("root mean square error", f"{figures['error']:.4g}")]),
        (
            f"{'sets' if classes else 'intervals'} hold the truth",
            f"{figures['coverage']:.1%} of {figures['coverage_asked']:.1%} asked",
        ),
        ("… by chance between", f"{low:.1%} and {high:.1%}"),
        *[
            (f"… of {name}", f"{each['coverage']:.1%} of {each['rows']:,} rows")
            for name, each in figures.get("groups", {}).items()
        ],
        ("classes in a set" if classes else "width of an interval", f"{figures['width']:.4g}"),
        *[(f"… of {name}", f"{each['width']:.4g}") for name, each in targets.items()],
        ("Spearman of uncertainty and error", "–" if figures["spearman"] is None else f"{figures['spearman']:.2f}"),
    ]
    if "novel" in figures:
        rows.append(("novel rows", f"{figures['novel']:.1%}"))
    if "accepted" in figures:
        rows += [
            ("accepted", f"{figures['accepted']:.1%}, {show(figures['error_accepted'])}"),
            ("rejected", f"{1 - figures['accepted']:.1%}, {show(figures['error_rejected'])}"),
            *[(f"… as {name}", f"{count:,}") for name, count in figures.get("rejected_as", {}).items()],
        ]
    print_table([{"measured": name, "figure": figure} for name, figure in rows], ["measured", "figure"])


def print_files(**paths: Path | None) -> None:
    """Print where files were written."""
    for name, path in paths.items():
        if path is not None:
            print(f"{name}: {path}")
