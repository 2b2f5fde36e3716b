"""The command line: `onsphere reproduce`, `onsphere demo`, `onsphere info`.

What goes wrong ends in one sentence on stderr: exit code 2 for what the user can mend, 1 for a fault of ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from onsphere._validation import missing_extra
from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.installation import installation
from onsphere.paper import experiment as engine

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from typer.core import TyperGroup
except ImportError:
    # Only the script `onsphere` imports this module, and it should end in a sentence as well.
    raise SystemExit(str(missing_extra("The command line", "typer and rich", "cli"))) from None

__all__ = ["app", "main"]


class _Told(TyperGroup):
    """The commands, with every failure told in one sentence."""

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except OnsphereError as error:
            code = _tell(error, 2)
        except Exception as error:
            usage = getattr(error, "format_message", None)  # an option or a command that does not exist, and the like
            fault = f"A fault of onsphere, please report it: {type(error).__name__}: {error}"
            code = _tell(usage(), 2) if usage else _tell(fault, 1)
        sys.exit(code or 0)


def _tell(what: object, code: int) -> int:
    print(" ".join(str(what).split()), file=sys.stderr)
    return code


app = typer.Typer(cls=_Told, add_completion=False, help="An honest uncertainty for every prediction, in one pass.")


def main() -> None:
    """What the script `onsphere` runs."""
    app()


@app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment; --list shows all.", show_default=False)] = None,
    preset: Annotated[
        str, typer.Option(help="quick (seconds), cpu (real data, an hour at most) or paper (for a GPU).")
    ] = "quick",
    seeds: Annotated[int | None, typer.Option(help="How many seeds.", show_default="what the preset says")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, … or auto.")] = "auto",
    data: Annotated[
        Path | None, typer.Option(help="Where the real data sets are.", show_default="$ONSPHERE_DATA")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write; what is done there already is not done again.")] = Path(
        "results"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON, and nothing else.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
) -> None:
    """Run an experiment of the paper, or go on where it was stopped."""
    if show_list:
        return _list(as_json=as_json)
    if name is None:
        raise InvalidInputError(
            f"Expected the name of an experiment, one of {', '.join(engine.EXPERIMENTS)}. Got none. "
            "Try: onsphere reproduce toy"
        )
    try:
        with _bar(name, hidden=quiet or as_json) as report:
            result = engine.reproduce(
                name, preset=preset, n_seeds=seeds, device=device, data=data, out=out, report=report
            )
    except KeyboardInterrupt:
        _tell("Stopped. Finished seeds are kept, and the same command goes on from there.", 130)
        raise typer.Exit(130) from None
    if as_json:
        summary = {
            "name": name,
            "preset": preset,
            "seeds": len(result.runs),
            "claims": [asdict(claim) for claim in result.claims],
            "rows": result.rows,
            "files": [str(path) for path in result.files],
        }
        print(json.dumps(summary, ensure_ascii=False, indent=1))
    elif not quiet:
        _show(result)


@app.command()
def demo() -> None:
    """Two bundled data sets, and how far to trust each prediction on them."""
    from onsphere.demo import main as run

    run()


@app.command()
def info(
    data: Annotated[
        Path | None, typer.Option(help="Where the real data sets are.", show_default="$ONSPHERE_DATA")
    ] = None,
) -> None:
    """Versions, extras, and which real data sets are at hand."""
    found = installation(data)
    print(", ".join(f"{package} {number}" for package, number in found.versions.items()))
    extras = Table("extra", "missing", "installed", title="pip install 'onsphere[EXTRA]'", title_justify="left")
    for extra, packages in found.extras.items():
        missing = ", ".join(package for package, number in packages.items() if number is None)
        there = ", ".join(f"{package} {number}" for package, number in packages.items() if number is not None)
        extras.add_row(extra, missing or "–", there)
    Console().print(extras)
    print(f"Real data in {found.data_folder}")
    for name, there in found.data_sets.items():
        print(f"  {name}: {'there' if there else 'missing'}")


@contextmanager
def _bar(name: str, *, hidden: bool) -> Generator[engine.Report]:
    """A bar on stderr that moves as the experiment reports."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task(name)

        def report(done: float, total: float, what: str) -> None:
            progress.update(task, completed=done, total=total, description=f"{name}: {what}")

        yield report


def _show(result: engine.Result) -> None:
    table = Table("holds?", "claim", "figures", title=f"{result.name}, preset {result.preset}", title_justify="left")
    for claim in result.claims:
        table.add_row("yes" if claim.holds else "no", claim.text, claim.figures)
    Console().print(table)
    for path in result.files:
        print(path)


def _list(*, as_json: bool) -> None:
    titles = {name: engine.load_experiment(name).TITLE for name in engine.EXPERIMENTS}
    if as_json:
        print(json.dumps(titles, ensure_ascii=False, indent=1))
        return
    table = Table("name", "what it is")
    for name, title in titles.items():
        table.add_row(name, title)
    Console().print(table)


if __name__ == "__main__":
    main()
