"""The six UCI regression sets of the paper, one CSV file each with the target in the column `y`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from onsphere._validation import Floats, check_option
from onsphere.errors import InvalidInputError

__all__ = ["UCI_NAMES", "data_folder", "load_uci"]

UCI_NAMES = ("concrete", "energy", "kin8nm", "power_plant", "wine", "yacht")


def data_folder() -> Path:
    """Where real data sets lie: `$ONSPHERE_DATA`, by default `~/.cache/onsphere`."""
    return Path(os.environ.get("ONSPHERE_DATA", Path.home() / ".cache" / "onsphere"))


def load_uci(name: str, *, folder: str | Path | None = None) -> tuple[Floats, Floats]:
    """Read one set.

    Parameters
    ----------
    name : {"concrete", "energy", "kin8nm", "power_plant", "wine", "yacht"}
    folder : path, optional
        Holds `uci/NAME.csv`; by default `data_folder()`.

    Returns
    -------
    X : array of shape (n, p)
    y : array of shape (n,)
    """
    check_option("load_uci", "name", name, UCI_NAMES)
    path = Path(folder or data_folder()) / "uci" / f"{name}.csv"
    if not path.is_file():
        raise InvalidInputError(
            f"Expected the UCI set {name!r} as {path}. Got no such file. Export it from OpenML as CSV with the target "
            "in a column 'y', or point ONSPHERE_DATA at the folder that holds it."
        )
    names = path.read_text().partition("\n")[0].strip().split(",")
    try:
        values = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, usecols=range(len(names)))
    except ValueError as error:
        raise InvalidInputError(
            f"Expected {path} as a table of numbers. Got: {error}. Download the file again."
        ) from None
    if "y" not in names or len(names) < 2 or len(values) == 0 or not np.isfinite(values).all():
        raise InvalidInputError(
            f"Expected {path} with at least two columns, the target in 'y', and finite numbers in every row. "
            f"Got the columns {names} and {len(values)} row(s). Download the file again."
        )
    target = names.index("y")
    return np.delete(values, target, axis=1), values[:, target]
