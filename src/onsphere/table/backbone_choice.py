"""Models for tables: each backbone by name, after the step that makes numbers of any column."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from onsphere._internal.validation import check_option
from onsphere.models import HCMClassifier, HCMRegressor, choice
from onsphere.models.backbone import fit_backbone
from onsphere.models.choice import choose_backbone, count_columns, make_candidate
from onsphere.table.columns import Column
from onsphere.table.encoder import TableEncoder

__all__ = ["BACKBONES", "choose_table_backbone", "estimate_cost", "make_table_model"]

BACKBONES = choice.CANDIDATES

_LONG, _TIMED = 50_000, (2_000, 8_000)  # rows from which the cost of a fit is told, and rows that tell it
_N_FITS = {True: 2, False: 11}  # of the backbone, at most: with rows held out to calibrate on, and by cross-validation
_LEAF_BYTES, _OTHER_MEGABYTES = 24, 5  # of a model file


def make_table_model(
    backbone: str,
    columns: Sequence[Column],
    *,
    classes: bool,
    frames: str | Collection[str] = "all",
    calibration: Any = None,
    domain: Any = None,
    n_rows: int = 0,
    n_columns: int = 1,
    random_state: int | None = 0,
) -> HCMClassifier | HCMRegressor:
    """Return a model for tables with these columns, not yet fitted; see `make_candidate` for the size of forests.

    Examples
    --------
    >>> make_table_model("kernel", [Column("size", "number")], classes=False).estimator.steps[0]
    ('columns', TableEncoder(columns=(Column(name='size', kind='number', ...),)))
    """
    check_option("make_table_model", "backbone", backbone, list(choice.CANDIDATES))
    pipeline = make_candidate(backbone, [("columns", TableEncoder(tuple(columns)))], n_rows=n_rows, n_columns=n_columns)
    options: Any = {"frames": frames, "calibration": calibration, "random_state": random_state}
    return HCMClassifier(pipeline, **options) if classes else HCMRegressor(pipeline, domain=domain, **options)


def choose_table_backbone(
    X: Any,
    y: Any,
    columns: Sequence[Column],
    *,
    classes: bool,
    frames: str | Collection[str] = "all",
    coverage: float,
    is_ordered: bool = False,
    random_state: int,
    on_progress: Callable[[str], None],
) -> tuple[str, list[dict[str, Any]]]:
    """Return the backbone that `choose_backbone` chooses for a table with these columns, and the figures of all."""

    def make(name: str) -> Any:
        n_columns = count_columns(y, has_classes=classes)
        size: Any = {"n_rows": len(y), "n_columns": n_columns}
        return make_table_model(name, columns, classes=classes, frames=frames, random_state=random_state, **size)

    options: Any = {"coverage": coverage, "is_ordered": is_ordered, "random_state": random_state}
    options["on_progress"] = on_progress
    return choose_backbone(X, y, make, has_classes=classes, **options)


def estimate_cost(backbone: str, columns: Sequence[Column], X: Any, y: Any, *, is_split: bool, classes: bool) -> str:
    """Return how long a fit may take and how large the model file may be, in words; "" for a table of ordinary size.

    The plain backbone is fitted on few rows, twice as many and more, and its time is taken to grow with the rows.
    """
    if len(X) < _LONG:
        return ""
    size: Any = {"n_rows": len(X), "n_columns": count_columns(y, has_classes=classes)}
    pipeline: Any = make_table_model(backbone, columns, classes=classes, **size).estimator
    seconds: list[float] = []
    for n_rows in _TIMED:
        rows = np.arange(len(X))[:: len(X) // n_rows]
        target = np.eye(size["n_columns"])[np.unique(y[rows], return_inverse=True)[1]] if classes else y[rows]
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit_backbone(pipeline, clone(pipeline), X.iloc[rows], target, None, None)
        seconds.append(time.perf_counter() - start)
    growth = max(seconds[1] - seconds[0], 0.0) / (_TIMED[1] - _TIMED[0])
    minutes = max(1, round((seconds[1] + growth * (len(X) - _TIMED[1])) * _N_FITS[is_split] / 60))
    n_megabytes = _OTHER_MEGABYTES
    if backbone == "extra-trees":
        trees = pipeline[-1]
        n_megabytes += trees.n_estimators * len(X) // trees.min_samples_leaf * _LEAF_BYTES // 10**6
    return f", about {minutes} minute{'s' if minutes > 1 else ''}, for a model file of up to {n_megabytes} MB"
