"""What all commands share: the application, how it fails, tables, bars and JSON."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from onsphere.errors import OnsphereError

__all__ = ["app", "bar", "print_json", "print_table", "spinner", "tell"]


class _Told(TyperGroup):
    """The commands, with every failure told in one sentence."""

    def main(self, *args: Any, **options: Any) -> Any:
        sys.exit(self._code(*args, **options))

    def _code(self, *args: Any, **options: Any) -> int:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: tell(message)
                return super().main(*args, **{**options, "standalone_mode": False}) or 0
        except OnsphereError as error:
            return tell(error, 2)
        except Exception as error:
            usage = getattr(error, "format_message", None)  # an option or a command that does not exist, and the like
            fault = f"A fault of onsphere, please report it: {type(error).__name__}: {error}"
            return tell(usage(), 2) if usage else tell(fault, 1)

    def invoke(self, ctx: Any) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(tell("Stopped. What was not finished was not written.", 130)) from None
        except BrokenPipeError:  # whoever read our output has had enough
            _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Lead a stream to nowhere, so that nothing can fail when it is flushed at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def tell(what: object, code: int = 0) -> int:
    """A sentence on stderr."""
    print(" ".join(str(what).split()), file=sys.stderr)
    return code


app = typer.Typer(cls=_Told, help="An honest uncertainty for every prediction, in one pass.")


@app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@contextmanager
def bar(name: str, *, hidden: bool) -> Generator[Callable[[float, float, str], None]]:
    """A bar on stderr that moves as work is reported: how much is done, of how much, and what."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    with _progress(columns, hidden=hidden) as progress:
        task = progress.add_task(name)

        def report(done: float, total: float, what: str) -> None:
            progress.update(task, completed=done, total=total, description=f"{name}: {what}")

        yield report


@contextmanager
def spinner(name: str, *, hidden: bool) -> Generator[Callable[[str], None]]:
    """A line on stderr that says what is being done, for work whose length nobody knows."""
    with _progress((SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()), hidden=hidden) as progress:
        task = progress.add_task(name)

        def report(what: str) -> None:
            progress.update(task, description=f"{name}: {what}")

        yield report


def _progress(columns: tuple[Any, ...], *, hidden: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, title: str | None = None) -> None:
    """A table on stdout; numbers with four digits."""
    table = Table(*columns, title=_cell(title) if title else None, title_justify="left")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    Console().print(table)


def _cell(value: Any) -> Text:
    """Text as it is: names of columns may hold what rich takes for its marks."""
    if value is None:
        return Text("–")
    return Text(f"{value:.4g}" if isinstance(value, float) else str(value))


def print_json(values: Any) -> None:
    """JSON on stdout; numbers that JSON cannot write are null."""
    print(json.dumps(_plain(values), ensure_ascii=False, indent=1, default=str, allow_nan=False))


def _plain(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_plain(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values
