"""`onsphere reproduce`, `onsphere demo` and `onsphere info`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onsphere.cli.console import bar, print_json, tell
from onsphere.errors import InvalidInputError
from onsphere.installation import installation
from onsphere.paper import experiment as engine

__all__ = ["demo", "info", "reproduce"]


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
        with bar(name, hidden=quiet or as_json) as report:
            result = engine.reproduce(
                name, preset=preset, n_seeds=seeds, device=device, data=data, out=out, report=report
            )
    except KeyboardInterrupt:
        tell("Stopped. Finished seeds are kept, and the same command goes on from there.", 130)
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
        print_json(summary)
    elif not quiet:
        _show(result)


def demo() -> None:
    """Two bundled data sets, and how far to trust each prediction on them."""
    from onsphere.demo import main as run

    run()


def info(
    data: Annotated[
        Path | None, typer.Option(help="Where the real data sets are.", show_default="$ONSPHERE_DATA")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Versions, extras, and which real data sets are at hand."""
    found = installation(data)
    if as_json:
        return print_json(asdict(found))
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
        print_json(titles)
        return
    table = Table("name", "what it is")
    for name, title in titles.items():
        table.add_row(name, title)
    Console().print(table)
