"""Fetch the UCI sets from OpenML into the files that `load_uci` reads.

This needs a network. The numbers of the sets were looked up, but nothing here has been run against the live site, so
the answer is checked against the published sizes before it is written.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere import InvalidInputError
from reproduction.arguments import check_option
from reproduction.data.files import resolve_folder, write_file
from reproduction.data.uci import UCI_NAMES, UCI_SHAPES

__all__ = ["fetch_uci"]


class _Source(NamedTuple):
    data_id: int
    target: str


_SOURCES = {
    "concrete": _Source(44959, "strength"),
    "energy": _Source(44960, "heating_load"),
    "kin8nm": _Source(44980, "y"),
    "wine": _Source(44972, "quality"),
    "yacht": _Source(42370, "Residuary.resistance"),
}
# A second target of the energy set, from which the first could be read off.
_NOT_FEATURES = {"cooling_load"}


def fetch_uci(name: str, *, folder: str | Path | None = None, fetch: Callable[..., Any] | None = None) -> Path:
    """Fetch one set and write `uci/NAME.csv`, whole or not at all.

    Parameters
    ----------
    name : {"concrete", "energy", "kin8nm", "wine", "yacht"}
        We know no number at OpenML for "power_plant"; the error says where to get it.
    folder : path, optional
        By default `data_folder()`.
    fetch : callable, optional
        Called with the keywords of scikit-learn's `fetch_openml`, which is the default.

    Returns
    -------
    Path
        The file.
    """
    check_option("fetch_uci", "name", name, UCI_NAMES)
    if name not in _SOURCES:
        raise InvalidInputError(
            f"Expected a set that OpenML has, one of {', '.join(_SOURCES)}. Got {name!r}. Download 'Combined Cycle "
            "Power Plant' from the UCI Machine Learning Repository (https://archive.ics.uci.edu) and save its "
            f"first sheet as {_locate(folder, name)}, the column PE renamed to y."
        )
    source = _SOURCES[name]
    if fetch is None:
        from sklearn.datasets import fetch_openml as fetch
    try:
        # This parser needs no pandas.
        bunch = fetch(data_id=source.data_id, target_column=source.target, as_frame=False, parser="liac-arff")
    except (OSError, ValueError, KeyError) as error:  # no network, no such set, no such column
        raise InvalidInputError(
            f"Expected set {source.data_id} from OpenML. Got {type(error).__name__}: {error}. Try again where there is "
            f"a network, or put the file at {_locate(folder, name)} yourself, with the target in a column 'y'."
        ) from error
    return _write_table(_locate(folder, name), _check_table(name, source, bunch))


def _locate(folder: str | Path | None, name: str) -> Path:
    return resolve_folder(folder) / "uci" / f"{name}.csv"


def _check_table(name: str, source: _Source, bunch: Any) -> NDArray[np.float64]:
    """Return the features, then the target, as one table of numbers."""
    keep = [index for index, column in enumerate(bunch.feature_names) if column not in _NOT_FEATURES]
    try:
        features = np.asarray(bunch.data, dtype=np.float64)[:, keep]
        target = np.asarray(bunch.target, dtype=np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise _content_error(name, source, str(error)) from None
    words = sorted(set(bunch.categories) & {bunch.feature_names[index] for index in keep})
    if words or features.shape != UCI_SHAPES[name] or len(target) != len(features):
        raise _content_error(name, source, f"shape {features.shape}, {len(target)} targets and classes in {words}")
    table = np.column_stack([features, target])
    if not np.isfinite(table).all():
        raise _content_error(name, source, "values that are not finite")
    return table


def _content_error(name: str, source: _Source, got: str) -> InvalidInputError:
    return InvalidInputError(
        f"Expected set {source.data_id} of OpenML as {name!r}: numbers of shape {UCI_SHAPES[name]} with the target "
        f"{source.target!r}. Got {got}. OpenML has changed it; export the set by hand."
    )


def _write_table(path: Path, table: NDArray[np.float64]) -> Path:
    names = [*(f"x{number}" for number in range(1, table.shape[1])), "y"]
    content = io.BytesIO()
    np.savetxt(content, table, fmt="%.17g", delimiter=",", header=",".join(names), comments="")
    return write_file(path, content.getvalue())
