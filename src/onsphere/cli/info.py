"""`onsphere demo` and `onsphere info`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onsphere.cli.console import print_json
from onsphere.installation import installation

__all__ = ["demo", "info"]


def demo() -> None:
    """Two bundled data sets, and how far to trust each prediction on them."""
    from onsphere.demo import main as run

    run()


def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False) -> None:
    """Show versions, and which extras are installed."""
    found = installation()
    if as_json:
        return print_json(asdict(found))
    print(", ".join(f"{package} {number}" for package, number in found.versions.items()))
    extras = Table("extra", "missing", "installed", title="pip install 'onsphere[EXTRA]'", title_justify="left")
    for extra, packages in found.extras.items():
        missing = ", ".join(package for package, number in packages.items() if number is None)
        there = ", ".join(f"{package} {number}" for package, number in packages.items() if number is not None)
        extras.add_row(extra, missing or "–", there)
    Console().print(extras)
