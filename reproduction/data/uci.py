"""The six UCI regression sets of the paper, one CSV file each with the target in the column `y`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reproduction.arguments import Floats, check_option
from reproduction.data.files import advise, broken_file_error, missing_file_error, resolve_folder

__all__ = ["UCI_NAMES", "UCI_SHAPES", "load_uci"]

# Rows and features, as published.
UCI_SHAPES = {
    "concrete": (1030, 8),
    "energy": (768, 8),
    "kin8nm": (8192, 8),
    "power_plant": (9568, 4),
    "wine": (1599, 11),
    "yacht": (308, 6),
}
UCI_NAMES = tuple(UCI_SHAPES)


def load_uci(name: str, *, folder: str | Path | None = None) -> tuple[Floats, Floats]:
    """Read one UCI set.

    Parameters
    ----------
    name : {"concrete", "energy", "kin8nm", "power_plant", "wine", "yacht"}
    folder : path, optional
        Holds `uci/NAME.csv`, with the published number of rows and columns; by default `data_folder()`.

    Returns
    -------
    X : array of shape (n, p)
    y : array of shape (n,)
    """
    check_option("load_uci", "name", name, UCI_NAMES)
    path = resolve_folder(folder) / "uci" / f"{name}.csv"
    if not path.is_file():
        raise missing_file_error(f"the UCI set {name!r} as {path}", _advise(name, folder))
    n_rows, n_features = UCI_SHAPES[name]
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        names, rows = lines[0].strip().split(",") if lines else [], lines[1:]
        if "y" not in names or {len(names), len(set(names))} != {n_features + 1} or len(rows) != n_rows:
            raise ValueError(f"{len(rows)} row(s) under {','.join(names)[:80]!r}")
        values = np.loadtxt(rows, delimiter=",", ndmin=2)
        if values.shape[1] != len(names) or not np.isfinite(values).all():
            raise ValueError(f"{values.shape[1]} values in a row, or some that are not finite")
    except ValueError as error:  # also a word among numbers, and bytes that are no text
        expected = (
            f"a CSV file in UTF-8 with {n_features + 1} names, one of them 'y', over {n_rows} rows of finite numbers"
        )
        raise broken_file_error(path, expected, str(error)) from None
    target = names.index("y")
    return np.delete(values, target, axis=1), values[:, target]


def _advise(name: str, folder: str | Path | None) -> str:
    source = "it from the UCI Machine Learning Repository (https://archive.ics.uci.edu), the target in a column 'y',"
    if name == "power_plant":  # which OpenML lacks
        return advise(source, folder)
    where = f", folder={str(folder)!r}" if folder else ""
    fetched = f"Fetch it from OpenML with reproduction.data.fetch_uci({name!r}{where})."
    return f"{fetched} Or: {advise(source, folder)}"
