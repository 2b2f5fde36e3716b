"""The application that all commands share: how it fails, and what it prints."""

from __future__ import annotations

import ast
import errno
import json
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from onsphere.table import TableFit

__all__ = [
    "app",
    "print_figures",
    "print_files",
    "print_fit",
    "print_interrupt",
    "print_json",
    "print_message",
    "print_table",
    "spin",
]

# The module of each command, which is imported when the command is used.
_MODULES = {
    "fit": "fit_command",
    "predict": "predict_command",
    "evaluate": "evaluate",
    "update": "update",
    "report": "evaluate",
    "compare": "evaluate",
    "export": "deploy",
    "monitor": "deploy",
    "serve": "serve",
    "new-key": "serve",
    "demo": "info",
    "info": "info",
}
_MOST_COLUMNS = 40  # that are listed one by one
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@cache
def _load_command(name: str) -> Any:
    """Import the module of a command, and return the command."""
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(import_module(f"onsphere.cli.{_MODULES[name]}"), name.replace("-", "_")))
    return get_command(alone)


def _summarize_command(name: str) -> Any:
    """Return a command that only knows its name and what it does, read from the file without importing it."""
    source = Path(__file__).with_name(f"{_MODULES[name]}.py").read_text(encoding="utf-8")
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    return TyperCommand(name, help=ast.get_docstring(functions[name.replace("-", "_")]))


class _Commands(TyperGroup):
    """The commands; every failure ends in one sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load_command(cmd_name) if cmd_name in _MODULES else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.get_command = lambda ctx, cmd_name: _summarize_command(cmd_name)
        try:
            super().format_help(ctx, formatter)
        finally:
            del self.get_command

    def main(self, *args: Any, **options: Any) -> Any:
        sys.exit(self._run(*args, **options))

    def _run(self, *args: Any, **options: Any) -> int:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: print_message(message)
                return super().main(*args, **{**options, "standalone_mode": False}) or 0
        except Exception as error:
            return _explain(error)

    def make_context(self, *args: Any, **options: Any) -> Any:
        try:
            return super().make_context(*args, **options)
        except KeyboardInterrupt:
            raise typer.Exit(print_interrupt()) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(print_interrupt()) from None
        except BrokenPipeError:  # the reader of our output has closed it, as `head` does
            _discard(sys.stdout)


def _explain(error: Exception) -> int:
    """Print a sentence on an error, and return the exit code."""
    from onsphere.cli.flag_words import name_flags
    from onsphere.errors import OnsphereError

    usage = getattr(error, "format_message", None)  # an unknown option or command, and the like
    if isinstance(error, OnsphereError) or usage:
        return print_message(usage() if usage else name_flags(" ".join(str(error).split())), 2)
    if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
        _discard(sys.stdout)
        return print_message(
            f"Expected to write to standard output. Got: {error.strerror}. Free some space, or write to another place.",
            2,
        )
    return print_message(f"A fault of onsphere, please report it: {type(error).__name__}: {error}", 1)


def _discard(stream: TextIO) -> None:
    """Lead a stream to nowhere, so that nothing can fail when it is flushed at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_message(message: object, code: int = 0) -> int:
    """Print a sentence on stderr, and return the exit code."""
    print(" ".join(str(message).split()), file=sys.stderr)
    return code


def print_interrupt() -> int:
    """Print that the user stopped the work, and return the exit code."""
    return print_message("Stopped. What was not finished was not written.", 130)


app = typer.Typer(cls=_Commands, help="An honest uncertainty for every prediction, in one pass.")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from onsphere import __version__

        print(f"onsphere {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _print_help(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and stop.")
    ] = False,
) -> None:
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
    return Text(_format_number(value) if isinstance(value, float) else str(value))


def _format_number(value: float) -> str:
    """Return a number with four digits, or all that come before the point."""
    from onsphere.report.formatting import format_number

    return format_number(value, digits=4).replace("−", "-")


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
    _warn_of_seen_rows(found.figures)
    print(f"{found.task}: {found.why}.")
    _print_columns(found)
    if found.candidates:
        names = dict.fromkeys(name for row in found.candidates for name in row)
        unit = "" if found.task == "classification" else ", in standard deviations of the target"
        print(f"Backbones by cross-validation{unit}; taken: {found.backbone}.")
        print_table(found.candidates, list(names))
    print(f"Frames: {', '.join(_FRAMES[name] for name in found.frames)}.")
    _print_figures(found.figures, classes=found.task == "classification")
    for note in found.notes:
        print(f"Note: {note}.")


def _print_columns(found: TableFit) -> None:
    """Print what each column was taken as; of many columns, only those that deserve a look."""
    shown = found.columns
    if len(shown) > _MOST_COLUMNS:
        counts = Counter(column.kind for column in shown)
        print(f"{len(shown):,} columns: {', '.join(f'{count:,} {kind}' for kind, count in counts.most_common())}.")
        shown = [column for column in shown if column.note or column.kind == "category"][:_MOST_COLUMNS]
    rows = [
        {
            "column": column.name,
            "taken as": column.kind,
            "why": column.note,
            "learned as": found.encodings.get(column.name),
        }
        for column in shown
    ]
    if rows:
        print_table(rows, ["column", "taken as", "why", "learned as"])
    if any("say so" in column.note or "could be" in column.note for column in found.columns):
        print("To say what a column holds: --number NAME, --category NAME, --date NAME=%d.%m.%Y or --ignore NAME.")


def print_figures(figures: dict[str, Any], *, classes: bool) -> None:
    """Print how good a model is, and first whether it was trained on the rows that it was measured on."""
    _warn_of_seen_rows(figures)
    _print_figures(figures, classes=classes)


def _is_fresh(figures: dict[str, Any]) -> bool:
    from onsphere.evaluation import MOST_SEEN

    return figures.get("trained_on", 0.0) < MOST_SEEN


def _warn_of_seen_rows(figures: dict[str, Any]) -> None:
    """Print whether the model was trained on the rows that it was measured on."""
    if not _is_fresh(figures):
        n_rows = figures["rows"]
        share = f"{figures['trained_on']:.0%} of these {n_rows:,} rows were" if n_rows > 1 else "The only row was"
        print(
            f"{share} trained on: the figures look better than they will be on new rows, and "
            "promise nothing. Measure the model on other rows."
        )


def _print_figures(figures: dict[str, Any], *, classes: bool) -> None:
    is_fresh = _is_fresh(figures)
    low, high = figures["coverage_by_chance"]
    targets: dict[str, Any] = figures.get("targets", {})

    def show_number(error: float) -> str:
        return f"off by {_format_number(error)} on average"

    def show(error: float | None) -> str:
        """Return the mean error of rows; several targets are in different units, and have one only by name."""
        if error is None:
            return "–"
        if targets:
            return f"{_format_number(error)}, root mean square over the targets"
        return f"{error:.1%} wrong" if classes else show_number(error)

    rows = [
        ("rows it has not seen" if is_fresh else "rows", f"{figures['rows']:,}"),
        *([] if targets else [("error", show(figures["error" if classes else "mean_error"]))]),
        *[(f"error of {name}", show_number(each["mean_absolute_error"])) for name, each in targets.items()],
        *([] if classes or targets else [("root mean square error", _format_number(figures["error"]))]),
        (
            f"{'sets' if classes else 'intervals'} hold the truth",
            f"{figures['coverage']:.1%}, {figures['coverage_asked']:.1%} asked",
        ),
        *([("… chance alone gives", f"{low:.1%} to {high:.1%}")] if is_fresh else []),
        *[
            (f"… of {name}", f"{each['coverage']:.1%} of {each['rows']:,} rows")
            for name, each in figures.get("groups", {}).items()
        ],
        ("classes in a set" if classes else "width of an interval", _format_number(figures["width"])),
        *[
            (f"… of {name}", f"{_format_number(each['width'])} with all, {_format_number(each['width_alone'])} alone")
            for name, each in targets.items()
        ],
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
    if is_fresh and figures["coverage"] < low:
        print(
            f"The {'sets' if classes else 'intervals'} hold fewer of these rows than chance allows: the rows are not "
            "like those that the model was calibrated on. Fit it again with such rows among them, or take in their "
            "labels as they become known, with onsphere update."
        )


def print_files(**paths: Path | None) -> None:
    """Print where files were written."""
    for name, path in paths.items():
        if path is not None:
            print(f"{name}: {path}")
