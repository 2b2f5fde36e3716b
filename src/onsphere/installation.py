"""What is installed here, and which real data sets are at hand."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from onsphere.datasets import data_folder

__all__ = ["DATA_SETS", "Installation", "extras_of", "installation"]

# Where each set lies in the data folder, as its reader expects it.
DATA_SETS = {
    "UCI tables": "uci",
    "CIFAR-10": "cifar-10-batches-py",
    "CIFAR-100": "cifar-100-python",
    "SVHN": "svhn",
    "MNIST": "MNIST/raw",
    "Tiny ImageNet": "tiny-imagenet-200",
    "DTD": "dtd",
    "NYU-v2": "nyu_v2",
    "texts": "text",
    "ellipsometry": "ellipsometry",
    "weights": "weights",
}


@dataclass(frozen=True)
class Installation:
    """What `installation` finds.

    Attributes
    ----------
    versions : dict of str
        Of Python, onsphere and the packages that it always needs.
    extras : dict of dict
        For each extra, the version of each of its packages, None where it is missing.
    data_folder : Path
    data_sets : dict of bool
        Whether each set of `DATA_SETS` has files there.
    """

    versions: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    data_folder: Path
    data_sets: dict[str, bool]


def installation(folder: str | Path | None = None) -> Installation:
    """Look around.

    Parameters
    ----------
    folder : path, optional
        Where the real sets are; by default `onsphere.datasets.data_folder()`.

    Examples
    --------
    >>> found = installation()
    >>> found.versions["numpy"] is not None, "torch" in found.extras["torch"], "UCI tables" in found.data_sets
    (True, True, True)
    """
    base = Path(folder) if folder is not None else data_folder()
    always, extras = extras_of(requires("onsphere") or [])
    return Installation(
        {"python": platform.python_version()} | {package: _version(package) for package in ("onsphere", *always)},
        {extra: {package: _version(package) for package in packages} for extra, packages in extras.items()},
        base,
        {name: any((base / place).glob("*")) for name, place in DATA_SETS.items()},
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
