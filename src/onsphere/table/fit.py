"""From a table to a fitted, calibrated model with a threshold, and what was found on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import train_test_split

from onsphere._internal.validation import check_number, check_option
from onsphere.calibration import rows_needed
from onsphere.decision import AcceptShare, Rule
from onsphere.drift import make_reference
from onsphere.errors import InvalidInputError, OnsphereWarning
from onsphere.evaluation import evaluate
from onsphere.table.backbone_choice import BACKBONES, can_choose, choose_backbone, table_model
from onsphere.table.cells import read_features
from onsphere.table.columns import Column, check_features, check_frame, describe_columns, listed
from onsphere.table.encoder import TableEncoder
from onsphere.table.rules import apply_rule, check_rule
from onsphere.table.targets import is_classification, rows_with_target, split_target, without_rare_classes

__all__ = ["TASKS", "TableFit", "fit_table", "prepared"]

TASKS = ("auto", "regression", "classification")

_FEWEST_ROWS = 20
_ENOUGH_TO_SPLIT = 100  # calibration rows
_N_KEPT, _N_KEPT_IN_ALL = 101, 100_000  # numbers of each column and of all, for the reference


@dataclass(frozen=True, eq=False)
class TableFit:
    """What `fit_table` found.

    Attributes
    ----------
    model : HCMRegressor or HCMClassifier
        Fitted, calibrated, with a threshold.
    targets : list of str
    task, why : str
        Whether numbers or classes are predicted, and why.
    columns : list of Column
        All but the targets.
    notes : list of str
        What was left out and what deserves a look.
    backbone : str
    candidates : list of dict
        The cross-validated figures by which it was chosen; empty where it was given.
    figures : dict
        Of `evaluate`, on rows that were kept out.
    X_test, y_test : those rows
    reference : dict
        What is kept of each column of the other rows, as `onsphere.drift.make_reference` returns it.
    """

    model: Any
    targets: list[str]
    task: str
    why: str
    columns: list[Column]
    notes: list[str]
    backbone: str
    candidates: list[dict[str, Any]]
    figures: dict[str, Any]
    n_rows: dict[str, int]
    coverage: float
    X_test: Any = field(repr=False)
    y_test: Any = field(repr=False)
    reference: dict[str, dict[str, Any]] = field(repr=False)

    def summary(self) -> dict[str, Any]:
        """All but the model and its rows, as plain values; what `model.save(path, summary=…)` keeps."""
        names = (
            "targets",
            "task",
            "why",
            "notes",
            "backbone",
            "candidates",
            "figures",
            "n_rows",
            "coverage",
            "reference",
        )
        return {name: getattr(self, name) for name in names} | {"columns": [asdict(column) for column in self.columns]}


def fit_table(
    frame: Any,
    targets: Sequence[str],
    *,
    task: str = "auto",
    backbone: str = "auto",
    coverage: float = 0.9,
    rule: Rule | None = None,
    keys: Sequence[str] = (),
    ignore: Sequence[str] = (),
    test_size: float = 0.2,
    random_state: int = 0,
    report: Callable[[str], None] = lambda what: None,
) -> TableFit:
    """Fit a model with an uncertainty on a table, calibrate it, and set a threshold.

    A share of the rows is kept out to measure the model on; of the others a quarter calibrates it where that is at
    least 100 rows, and otherwise each of five folds in turn. Encodings are learned from training rows alone.

    Parameters
    ----------
    frame : DataFrame
    targets : sequence of str
        The column(s) to predict; rows in which one is missing are left out.
    task : {"auto", "regression", "classification"}
        "auto" takes text and booleans for classes, and whole numbers with few different values.
    backbone : {"auto", "extra-trees", "hist-gradient-boosting", "mlp", "kernel"}
        "auto" takes the one with the best cross-validated Winkler score (for classes, Brier score), or the first
        where there are too few rows for that.
    coverage : float in (0, 1), default 0.9
        Of the intervals or sets that are measured.
    rule : a rule of `onsphere.decision`, default AcceptShare(0.95)
        Which rows to accept.
    keys, ignore : sequence of str
        Columns that name rows, and columns not to learn from, beside those that are found.
    test_size : float in (0, 1), default 0.2
    random_state : int, default 0
    report : function of a str, optional
        Told what is being done.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> fit = fit_table(load_diabetes(as_frame=True).frame, ["target"], backbone="kernel")
    >>> fit.task, fit.why, fit.figures["rows"]
    ('regression', 'target has 214 different numbers', 89)
    """
    check_option("fit_table", "backbone", backbone, ["auto", *BACKBONES])
    table = prepared(
        frame,
        targets,
        task=task,
        coverage=coverage,
        keys=keys,
        ignore=ignore,
        test_size=test_size,
        random_state=random_state,
    )
    X, y, columns, classes, notes = table.X, table.y, table.columns, table.classes, [*table.notes]
    check_rule(rule, classes=classes)
    X_rest, X_test, y_rest, y_test = train_test_split(
        X, y, test_size=test_size, random_state=random_state, stratify=y if classes else None
    )
    candidates: list[dict[str, Any]] = []
    if backbone == "auto" and not can_choose(len(y_rest), coverage):
        backbone = "extra-trees"
        notes.append(f"{len(y_rest)} rows are too few to choose the backbone by cross-validation")
    elif backbone == "auto":
        options: Any = {"classes": classes, "coverage": coverage, "random_state": random_state, "report": report}
        backbone, candidates = choose_backbone(X_rest, y_rest, columns, **options)
    report(f"fitting {backbone} on {len(y_rest):,} rows")
    splitting = len(y_rest) // 4 >= max(_ENOUGH_TO_SPLIT, rows_needed(coverage))
    calibration = 0.25 if splitting else "cv"
    model = table_model(backbone, columns, classes=classes, calibration=calibration, random_state=random_state)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X_rest, y_rest)
    ours = [warning.message for warning in caught if issubclass(warning.category, OnsphereWarning)]
    notes += dict.fromkeys(str(message).removesuffix(".") for message in ours)
    notes += apply_rule(model, rule or AcceptShare(0.95))
    if not splitting:
        notes.append(
            f"with {len(y_rest)} rows the model is calibrated by cross-validation, which is usually a little too "
            "careful and carries no guarantee"
        )
    report("measuring it on rows it has not seen")
    figures = evaluate(model, X_test, y_test, coverage=coverage, targets=targets)
    n_calibration = len(model.calibration_)  # type: ignore[reportArgumentType]
    n_train = len(y_rest) - (n_calibration if splitting else 0)
    n_rows = {"table": len(frame), "train": n_train, "calibration": n_calibration, "test": len(y_test)}
    kind = "classification" if classes else "regression"
    return TableFit(
        model,
        list(targets),
        kind,
        table.why,
        columns,
        notes,
        backbone,
        candidates,
        figures,
        n_rows,
        coverage,
        X_test,
        y_test,
        _reference(X_rest, columns),
    )


def _reference(X: Any, columns: Sequence[Column]) -> dict[str, dict[str, Any]]:
    """Little of each column, so that a model file stays small, however many there are, and gives nothing else away.

    Of training and calibration rows together: they are alike, and where each row calibrates in turn they are the same.
    """
    plain = read_features(X, columns)
    n_kept = max(2, min(_N_KEPT, _N_KEPT_IN_ALL // len(plain.columns)))
    return make_reference(plain, n_kept=n_kept, n_categories=TableEncoder().max_levels)


class Prepared(NamedTuple):
    """A table whose rows and columns can be learned from."""

    X: Any
    y: Any
    columns: list[Column]
    classes: bool
    why: str
    notes: list[str]


def prepared(
    frame: Any,
    targets: Sequence[str],
    *,
    task: str,
    coverage: float,
    keys: Sequence[str],
    ignore: Sequence[str],
    test_size: float,
    random_state: int,
) -> Prepared:
    """Check a table, find out what is to be learned from it, and leave out what cannot be."""
    check_option("fit_table", "task", task, TASKS)
    check_number("fit_table", "coverage", coverage, above=0, below=1)
    check_number("fit_table", "test_size", test_size, above=0, below=1)
    check_number("fit_table", "random_state", random_state, above=0, below=2**32, closed="left", whole=True)
    check_frame(frame)
    _check_names(frame, targets, [*keys, *ignore])
    kept, notes = rows_with_target(frame, targets)
    classes, why = is_classification(kept, targets, task)
    if classes:
        kept = without_rare_classes(kept, targets[0], notes)
    _check_enough(kept, coverage, test_size)
    columns = _columns(kept, targets, keys, ignore)
    X, y = split_target(kept, targets, columns, classes=classes)
    read_features(X, columns)
    if not classes:
        _check_varies(y, targets)
    return Prepared(X, y, columns, classes, why, notes)


def _check_varies(y: Any, targets: Sequence[str]) -> None:
    constant = [name for name, spread in zip(targets, np.atleast_1d(np.ptp(y, axis=0)), strict=True) if spread == 0]
    if constant:
        raise InvalidInputError(
            f"Expected a target that varies. Got {', '.join(constant)}, with one value in every row: there is nothing "
            "to learn."
        )


def _check_names(frame: Any, targets: Sequence[str], others: Sequence[str]) -> None:
    if not targets or len(set(targets)) < len(targets):
        raise InvalidInputError(
            f"Expected the name of each column to predict, once. Got {listed(targets) or 'none'}. Pass --target NAME."
        )
    names = list(frame.columns)
    if len(names) == 1:
        raise InvalidInputError(
            f"Expected a table with a target and columns to learn from. Got one column, {names[0]!r}. If it should be "
            "more, the delimiter is another: pass --delimiter."
        )
    for name in targets:
        if name in others:
            raise InvalidInputError(
                f"Expected {name} to be predicted, or left out by --key or --ignore. Got both. Choose one."
            )
    for name in [*targets, *others]:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidInputError(f"Expected a column {name}. Got the columns {listed(names)}.{hint}")


def _check_enough(frame: Any, coverage: float, test_size: float) -> None:
    needed = max(_FEWEST_ROWS, int(np.ceil(rows_needed(coverage) / (1 - test_size))))
    if len(frame) < needed:
        raise InvalidInputError(
            f"Expected at least {needed} rows with a target, for a coverage of {coverage:g}. Got {len(frame)}. "
            "Add rows, or ask for less coverage."
        )


def _columns(frame: Any, targets: Sequence[str], keys: Sequence[str], ignore: Sequence[str]) -> list[Column]:
    columns: list[Column] = []
    for column in describe_columns(frame.drop(columns=list(targets))):
        if column.name in keys:
            column = Column(column.name, "key", "as asked")
        elif column.name in ignore:
            column = Column(column.name, "unused", "as asked")
        columns.append(column)
    check_features(columns)
    return columns
