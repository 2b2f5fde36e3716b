"""`onsphere demo` and `onsphere info`."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from onsphere.cli.console import print_json

__all__ = ["Installation", "demo", "find_installation", "info", "split_requirements"]


def demo() -> None:
    """Show on two bundled data sets how far each prediction can be trusted."""
    from onsphere.demo import main as run

    run()


def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False) -> None:
    """Show versions, and which extras are installed."""
    found = find_installation()
    if as_json:
        return print_json(found._asdict())
    print(", ".join(f"{package} {number}" for package, number in found.versions.items()))
    extras = Table("extra", "missing", "installed", title="pip install 'onsphere[EXTRA]'", title_justify="left")
    for extra, packages in found.extras.items():
        missing = ", ".join(package for package, number in packages.items() if number is None)
        installed = ", ".join(f"{package} {number}" for package, number in packages.items() if number is not None)
        extras.add_row(extra, missing or "–", installed)
    Console().print(extras)


class Installation(NamedTuple):
    """The versions of Python, onsphere and the packages that it always needs, and those of the packages of each extra.

    The version of a package that is missing is None.
    """

    versions: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]


def find_installation() -> Installation:
    """Return what is installed.

    Examples
    --------
    >>> found = find_installation()
    >>> found.versions["numpy"] is not None, "torch" in found.extras["torch"]
    (True, True)
    """
    always, extras = split_requirements(requires("onsphere") or [])
    return Installation(
        {"python": platform.python_version()} | {package: _find_version(package) for package in ("onsphere", *always)},
        {extra: {package: _find_version(package) for package in packages} for extra, packages in extras.items()},
    )


def split_requirements(requirements: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the packages that are always needed, and those of each extra but "all" and "dev", which repeat others.

    Examples
    --------
    >>> split_requirements(["numpy>=1.26", "ray[data]>=2.9; extra == 'scale'", "pytest; extra == 'dev'"])
    (['numpy'], {'scale': ['ray']})
    """
    always: list[str] = []
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if extra is None:
            always.append(package)
        elif extra[1] not in ("all", "dev"):
            extras.setdefault(extra[1], []).append(package)
    return always, extras


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
