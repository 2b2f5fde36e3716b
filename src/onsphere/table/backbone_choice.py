"""Backbones by name, each with the steps that let it take any table, and the choice of the best for a table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from onsphere._internal.validation import check_option
from onsphere.calibration import rows_needed
from onsphere.errors import InvalidInputError
from onsphere.evaluation import assess_model, measure_assessment
from onsphere.models import HCMClassifier, HCMRegressor
from onsphere.models.backbone import make_default_backbone
from onsphere.table.columns import Column
from onsphere.table.encoder import TableEncoder

__all__ = ["BACKBONES", "can_choose", "choose_backbone", "make_table_model"]

N_FOLDS = 3
_N_COMPARED = 3_000  # rows, at most, to choose by
_N_TESTED = 500  # rows that are enough to tell backbones apart: with so many, further folds are left out
_N_PARTS = 4  # one of them calibrates


def _make_extra_trees() -> list[tuple[str, Any]]:
    return [("trees", make_default_backbone())]


def _make_boosting() -> list[tuple[str, Any]]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return [("boosting", HistGradientBoostingRegressor(max_iter=200, learning_rate=0.06, max_leaf_nodes=15))]


def _make_network() -> list[tuple[str, Any]]:
    from sklearn.neural_network import MLPRegressor

    return [
        *_fill_and_scale(),
        ("network", MLPRegressor(hidden_layer_sizes=(128, 64), early_stopping=True, max_iter=400)),
    ]


def _make_kernel() -> list[tuple[str, Any]]:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import RidgeCV

    return [*_fill_and_scale(), ("kernel", Nystroem(n_components=300)), ("ridge", RidgeCV(np.logspace(-6, 2, 9)))]


def _fill_and_scale() -> list[tuple[str, Any]]:
    from sklearn.feature_selection import VarianceThreshold
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    return [
        ("fill", SimpleImputer(strategy="median", keep_empty_features=True)),
        # A column that never varied, such as that of unseen categories, would be weighed at random.
        ("vary", VarianceThreshold()),
        ("scale", StandardScaler()),
    ]


BACKBONES: dict[str, Callable[[], list[tuple[str, Any]]]] = {
    "extra-trees": _make_extra_trees,
    "hist-gradient-boosting": _make_boosting,
    "mlp": _make_network,
    "kernel": _make_kernel,
}


def make_table_model(
    backbone: str,
    columns: Sequence[Column],
    *,
    classes: bool,
    frames: str | Collection[str] = "all",
    calibration: Any = None,
    random_state: int | None = 0,
) -> HCMClassifier | HCMRegressor:
    """Return a model for tables with these columns, not yet fitted.

    Examples
    --------
    >>> make_table_model("kernel", [Column("size", "number")], classes=False).estimator.steps[0]
    ('columns', TableEncoder(columns=(Column(name='size', kind='number', ...),)))
    """
    check_option("make_table_model", "backbone", backbone, list(BACKBONES))
    pipeline = Pipeline([("columns", TableEncoder(tuple(columns))), *BACKBONES[backbone]()])
    kind = HCMClassifier if classes else HCMRegressor
    return kind(pipeline, frames=frames, calibration=calibration, random_state=random_state)


def can_choose(n_rows: int, coverage: float) -> bool:
    """Return whether there are enough rows to train, calibrate and test on a fold.

    Examples
    --------
    >>> can_choose(40, 0.9), can_choose(60, 0.9)
    (False, True)
    """
    return n_rows * (N_FOLDS - 1) // N_FOLDS // _N_PARTS >= rows_needed(coverage)


def choose_backbone(
    X: Any,
    y: Any,
    columns: Sequence[Column],
    *,
    classes: bool,
    frames: str | Collection[str] = "all",
    coverage: float,
    random_state: int,
    on_progress: Callable[[str], None],
) -> tuple[str, list[dict[str, Any]]]:
    """Return the backbone with the best cross-validated score, and the scores of all.

    Numbers are compared by the Winkler score of conformal intervals (for several outputs in units of their spread, on
    average), classes by the Brier score; lower is better for both.
    """
    folds = _split_folds(y, classes, random_state)
    options: Any = {"classes": classes, "frames": frames, "random_state": random_state}
    table: list[dict[str, Any]] = []
    for name in BACKBONES:
        on_progress(f"trying {name}")
        try:
            figures = [_measure(name, X, y, columns, fold, coverage, options) for fold in folds]
        except InvalidInputError as error:
            table.append({"backbone": name, "failed": str(error)})
            continue
        means = {column: float(np.mean([row[column] for row in figures])) for column in figures[0]}
        table.append({"backbone": name, **means})
    criterion = "Brier" if classes else "Winkler"
    tried = [row for row in table if criterion in row]
    if not tried:
        raise InvalidInputError(f"Expected a backbone that can learn this table. Got: {table[0]['failed']}")
    best = min(tried, key=lambda row: row[criterion])
    return best["backbone"], table


def _split_folds(y: Any, classes: bool, random_state: int) -> list[tuple[Any, Any, Any]]:
    """Return rows to train, calibrate and test on; a class is in all three, or is too rare and is in none."""
    from sklearn.model_selection import KFold, StratifiedKFold

    rows = np.random.RandomState(random_state).permutation(len(y))[:_N_COMPARED]
    target = np.asarray(y)
    if classes:
        labels, counts = np.unique(target[rows], return_counts=True)
        rows = rows[np.isin(target[rows], labels[counts >= N_FOLDS])]
    splitter = StratifiedKFold if classes else KFold
    folds: list[tuple[Any, Any, Any]] = []
    for kept, test in splitter(N_FOLDS).split(rows, target[rows]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a class with fewer rows than parts
            n_parts = min(_N_PARTS, np.unique(target[rows[kept]], return_counts=True)[1].max()) if classes else _N_PARTS
            train, held = next(splitter(n_parts).split(kept, target[rows[kept]]))
        folds.append((rows[kept[train]], rows[kept[held]], rows[test]))
    return folds[: math.ceil(_N_TESTED / len(folds[0][2]))]


def _measure(
    name: str,
    X: Any,
    y: Any,
    columns: Sequence[Column],
    fold: tuple[Any, Any, Any],
    coverage: float,
    options: dict[str, Any],
) -> dict[str, float]:
    classes = options["classes"]
    # In units of the spread of each output, so that no output outweighs the others.
    target = np.asarray(y) if classes else _standardize(np.asarray(y, dtype=np.float64), fold[0])
    model = make_table_model(name, columns, **options)
    train, held, test = ((_safe_indexing(X, rows), target[rows]) for rows in fold)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the chosen one gives its warnings when it is fitted
        model.fit(*train).calibrate(*held)
        answer = assess_model(model, test[0], coverage=coverage)
    labels = model.classes_ if isinstance(model, HCMClassifier) else None
    row = measure_assessment(answer, test[1], coverage=coverage, classes=labels)
    figures = {"error": row["error"], "Spearman": row.get("Spearman", 0.0), "coverage": row["coverage"]}
    if classes:
        truth = target[fold[2]][:, None] == model.classes_  # type: ignore[reportAttributeAccessIssue]
        # By hand, because a class may be too rare to be in every fold.
        return figures | {"Brier": float(np.mean(np.sum((answer.probabilities - truth) ** 2, axis=1)))}
    return figures | {"width": row["width"], "Winkler": row["Winkler"]}


def _standardize(target: Any, kept: Any) -> Any:
    spread = target[kept].std(axis=0)
    return (target - target[kept].mean(axis=0)) / np.where(spread == 0, 1.0, spread)
