"""Which versions and extras are installed."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

__all__ = ["Installation", "extras_of", "installation"]


@dataclass(frozen=True)
class Installation:
    """What `installation` finds.

    Attributes
    ----------
    versions : dict of str
        Of Python, onsphere and the packages that it always needs.
    extras : dict of dict
        For each extra, the version of each of its packages, None where it is missing.
    """

    versions: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]


def installation() -> Installation:
    """Return what is installed.

    Examples
    --------
    >>> found = installation()
    >>> found.versions["numpy"] is not None, "torch" in found.extras["torch"]
    (True, True)
    """
    always, extras = extras_of(requires("onsphere") or [])
    return Installation(
        {"python": platform.python_version()} | {package: _version(package) for package in ("onsphere", *always)},
        {extra: {package: _version(package) for package in packages} for extra, packages in extras.items()},
    )


def extras_of(requirements: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The packages that are always needed, and those of each extra; "all" and "dev", which repeat others, are left out.

    Examples
    --------
    >>> extras_of(["numpy>=1.26", "ray[data]>=2.9; extra == 'scale'", "pytest; extra == 'dev'"])
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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
