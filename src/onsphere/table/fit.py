"""Fit a model on a table, calibrate it, and set a threshold."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from onsphere._internal.validation import check_option
from onsphere.calibration import rows_needed
from onsphere.calibration.groups import MIN_ROWS, Groups
from onsphere.decision import AcceptShare, MaxErrorRate, Novelty, Rule
from onsphere.drift import make_reference
from onsphere.errors import InvalidInputError, OnsphereWarning
from onsphere.evaluation import evaluate
from onsphere.models.choice import can_choose, count_columns, find_fast_candidate
from onsphere.persistence import list_frames
from onsphere.sphere.domain import find_domain
from onsphere.table.backbone_choice import BACKBONES, choose_table_backbone, estimate_cost, make_table_model
from onsphere.table.cells import read_features
from onsphere.table.columns import Column, join_names
from onsphere.table.encoder import TableEncoder
from onsphere.table.prepare import prepare_table, read_known_rows
from onsphere.table.time_order import RowSplit, find_clock, note_order, read_time

__all__ = ["CALIBRATIONS", "TableFit", "fit_table"]

CALIBRATIONS = ("auto", "split", "cv")

_ENOUGH_TO_SPLIT = 100  # calibration rows
_N_CALIBRATION, _SHARES = 1_000, (0.05, 0.25)  # rows that are enough to calibrate on, and the share that they may be
_MOST_NAMED = 10  # groups in a note
_N_KEPT, _N_KEPT_IN_ALL = 101, 100_000  # numbers of each column and of all columns, for the reference


@dataclass(frozen=True, eq=False)
class TableFit:
    """The result of `fit_table`.

    Attributes
    ----------
    model : HCMRegressor or HCMClassifier
        Fitted, calibrated, with a threshold.
    measured_model : HCMRegressor or HCMClassifier
        The model that the figures are of: the same one, or with `refit` the one that has not seen the rows kept out.
    targets : list of str
    task, why : str
        Whether numbers or classes are predicted, and why.
    columns : list of Column
        All columns but the targets.
    notes : list of str
        What was left out, and what deserves a look.
    backbone : str
    frames : list of str
        The frames that were fitted: "target" and, as far as they are asked for and possible, "error" and "input".
    candidates : list of dict
        The cross-validated figures by which the backbone was chosen; empty where it was given.
    figures : dict
        The result of `evaluate` on rows that were kept out.
    encodings : dict of str
        What each column that is learned from became, in words.
    X_test, y_test : those rows
    reference : dict
        A summary of each column of the other rows, by `onsphere.drift.make_reference`.
    groups : str or None
        What the model was calibrated by.
    time : dict or None
        The fields of the Column that orders the rows.
    target_columns : list of Column
        How the targets are written, so that those of other files are read alike.
    """

    model: Any
    targets: list[str]
    task: str
    why: str
    columns: list[Column]
    notes: list[str]
    backbone: str
    frames: list[str]
    candidates: list[dict[str, Any]]
    figures: dict[str, Any]
    n_rows: dict[str, int]
    coverage: float
    encodings: dict[str, str]
    measured_model: Any = field(repr=False)
    X_test: Any = field(repr=False)
    y_test: Any = field(repr=False)
    reference: dict[str, dict[str, Any]] = field(repr=False)
    groups: str | None = None
    time: dict[str, Any] | None = None
    target_columns: list[Column] = field(default_factory=list[Column])

    def summary(self) -> dict[str, Any]:
        """Return all but the model and its rows as plain values, which `model.save(path, summary=…)` keeps."""
        left_out = ("model", "measured_model", "columns", "target_columns", "X_test", "y_test")
        kept = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        described = {"columns": self.columns, "target_columns": self.target_columns}
        return kept | {name: [column.to_dict() for column in columns] for name, columns in described.items()}


def fit_table(
    frame: Any,
    targets: Sequence[str],
    *,
    task: str = "auto",
    backbone: str = "auto",
    frames: str | Collection[str] = "all",
    coverage: float = 0.9,
    rule: Rule | None = None,
    novelty: Novelty | None = None,
    groups: str | None = None,
    time: str | None = None,
    domain: str | tuple[float | None, float | None] | None = "auto",
    keys: Sequence[str] = (),
    ignore: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    test_size: float = 0.2,
    test: Any = None,
    calibration: str = "auto",
    refit: bool = False,
    random_state: int = 0,
    on_progress: Callable[[str], None] = lambda step: None,
) -> TableFit:
    """Fit a model with an uncertainty on a table, calibrate it, and set a threshold.

    A share of the rows is kept out to measure the model on. Encodings are learned from training rows alone. With a
    `time`, the model is trained on the past, calibrated on later rows and measured on the latest.

    Parameters
    ----------
    frame : DataFrame
    targets : sequence of str
        The column(s) to predict; rows in which one is missing are left out.
    task : {"auto", "regression", "classification"}
        "auto" takes text and booleans for classes, and whole numbers with few different values.
    backbone : {"auto", "kernel", "hist-gradient-boosting", "extra-trees", "mlp"}
        "auto" takes the one with the best Winkler score (for classes, Brier score) on rows left out, or extra-trees
        where there are too few rows for that. With a `time`, the rows left out are later than those learned from.
    frames : "all", "target", or a tuple of "target", "error" (numbers only) and "input", default "all"
        What the uncertainty is made of; see `HCMRegressor`.
    coverage : float in (0, 1), default 0.9
        The coverage of the intervals or sets that are measured.
    rule : a rule of `onsphere.decision`, default AcceptShare(0.95)
        Which rows to accept.
    novelty : Novelty, optional
        A second condition: reject rows that are more novel than this, however sure the model is.
    groups : str, optional
        What is to be covered group by group as promised: a column that is learned from, "prediction", "novelty" or, for
        classes, "class"; see `CalibratedModel.calibrate`.
    time : str, optional
        The column of numbers or dates that orders the rows; it is not learned from.
    domain : "auto", None, "positive", "count" or (low, high), default "auto"
        The numbers that the target can have; see `HCMRegressor`. What "auto" finds is among the notes. None: any.
    keys, ignore : sequence of str
        Columns that name rows, and columns not to learn from, in addition to those that are found.
    kinds : mapping of str to str, optional
        What columns hold, where that is not found or found wrongly: "number", "category" or "date", or how they are
        written: "number=," (the decimal mark), "number=M" (a word that multiplies), "date=%d.%m.%Y".
    test_size : float in (0, 1), default 0.2
    test : DataFrame, optional
        Other rows to measure the model on, so that none are kept out for it.
    calibration : {"auto", "split", "cv"}
        "split" keeps a quarter of the rows, or 1,000 where there are more than 4,000 and at least a twentieth, to
        calibrate on, which is a guarantee; with groups or a time always a quarter. "cv" calibrates by each of five
        folds in turn, so that the model learns from all rows; coverage is then usually a little above what is asked,
        but not guaranteed, and drift alarms may be false. "auto" splits where a quarter is at least 100 rows.
    refit : bool, default False
        After the model is measured, fit and calibrate another one on all rows, those kept out to measure it among them.
        The figures stay those of the first one.
    random_state : int, default 0
    on_progress : function of a str, optional
        Called with each step before it is taken.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> fit = fit_table(load_diabetes(as_frame=True).frame, ["target"], backbone="kernel")
    >>> fit.task, fit.why, fit.figures["rows"]
    ('regression', 'target has 214 different numbers', 89)
    """
    check_option("fit_table", "backbone", backbone, ["auto", *BACKBONES])
    check_option("fit_table", "calibration", calibration, CALIBRATIONS)
    kinds = dict(kinds or {})
    asked = None if time is None else kinds.pop(time, None)
    table = prepare_table(
        frame,
        targets,
        task=task,
        coverage=coverage,
        keys=[*keys, *([] if time is None else [time])],
        ignore=ignore,
        kinds=kinds,
        test_size=test_size,
        random_state=random_state,
    )
    rows, y, columns, classes, notes = table.X, table.y, table.columns, table.classes, [*table.notes]
    _check_rules(rule, novelty, classes=classes, frames=frames)
    if classes and domain not in (None, "auto"):
        raise InvalidInputError(f"Expected no domain for classes, which are not numbers. Got {domain!r}. Leave it out.")
    if not classes and domain is not None:
        find_domain("fit_table", domain, y, row_names=rows.index)
    if groups is not None:
        _check_groups(groups, columns, classes=classes)
    clock = None if time is None else find_clock(frame, time, asked)
    if clock is None and test is None:
        notes += note_order(rows, columns)
    if clock is not None:
        its_column = Column(clock.name, "key", f"the time{f'; {clock.note}' if clock.note else ''}")
        columns = [its_column if column.name == time else column for column in columns]
    split = RowSplit(None if clock is None else read_time(clock, frame.loc[rows.index]), classes, random_state)
    if test is None:
        X_rest, X_test, y_rest, y_test = split.take_last(rows, y, test_size)
    else:
        known = read_known_rows(
            test,
            targets,
            columns,
            labels=np.unique(y) if classes else None,
            target_columns=table.target_columns,
            source="the test rows",
        )
        X_rest, y_rest, X_test, y_test = rows, y, known.X, known.y
        notes += [f"in the test rows, {note}" for note in known.notes]
    candidates: list[dict[str, Any]] = []
    size: Any = {"n_rows": len(y_rest), "n_columns": count_columns(y, has_classes=classes)}
    fast = find_fast_candidate(**size)
    if backbone == "auto" and not can_choose(len(y_rest), coverage):
        backbone = "extra-trees"
        notes.append(f"{len(y_rest)} rows are too few to choose the backbone by cross-validation")
    elif backbone == "auto" and fast is not None:
        backbone = fast
        notes.append(f"for {len(y_rest):,} rows the backbone is {fast}; others take long, or much memory")
    elif backbone == "auto":
        options: Any = {"classes": classes, "frames": frames, "coverage": coverage, "random_state": random_state}
        options |= {"is_ordered": clock is not None, "on_progress": on_progress}
        backbone, candidates = choose_table_backbone(*split.sort(X_rest, y_rest), columns, **options)
    is_ordinary = groups is None and time is None
    is_split = _choose_split(calibration, len(y_rest), coverage, is_ordinary=is_ordinary)
    options = {"classes": classes, "frames": frames, "random_state": random_state, **size}
    cost = estimate_cost(backbone, columns, X_rest, y_rest, is_split=is_split, classes=classes)
    on_progress(f"fitting {backbone} on {len(y_rest):,} rows{cost}")

    def fit_model(X: Any, y: Any) -> Any:
        """Fit and calibrate a model on these rows, set its threshold, and note its warnings."""
        share = float(np.clip(_N_CALIBRATION / len(y), *_SHARES)) if is_split else "cv"
        held_out = share if is_ordinary else None
        model = make_table_model(backbone, columns, domain=domain, calibration=held_out, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if is_ordinary:
                model.fit(X, y)
            else:
                X_train, X_held, y_train, y_held = split.take_last(X, y, 0.25)
                model.fit(X_train, y_train)
                # Cells as they are read later, so that the groups are the same.
                model.calibrate(read_features(X_held, columns), y_held, groups=groups)
                model.calibration_ = replace(model.calibration_, last_time=split.find_last_time(X_held))  # type: ignore
            model.set_threshold(rule or AcceptShare(0.95), novelty=novelty)
        ours = [warning.message for warning in caught if issubclass(warning.category, OnsphereWarning)]
        new = dict.fromkeys(str(message).removesuffix(".") for message in ours)
        notes.extend(note for note in new if note not in notes)
        return model

    measured: Any = fit_model(X_rest, y_rest)
    model: Any = measured
    if refit:
        on_progress(f"fitting {backbone} again, on {len(y):,} rows")
        X_rest, y_rest, model = rows, y, fit_model(rows, y)
        notes.append(
            "the model was fitted again on all rows; its figures are those of one that had not seen the test rows"
        )
    notes += _note_small_groups(model.calibration_.groups)
    found_domain = getattr(model, "domain_", None)
    if found_domain is not None and (found_domain.is_limited or y_rest.min() >= 0):
        notes.append(found_domain.reason)
    if not is_split:
        notes.append(
            f"with {len(y_rest):,} rows the model learns from all of them and is calibrated by cross-validation, which "
            "is usually a little too careful and carries no guarantee"
        )
    on_progress("measuring it")
    figures = evaluate(measured, X_test, y_test, coverage=coverage, targets=targets)
    n_calibration = len(model.calibration_)  # type: ignore[reportArgumentType]
    n_train = len(y_rest) - (n_calibration if is_split else 0)
    n_rows = {"table": len(frame), "train": n_train, "calibration": n_calibration, "test": len(y_test)}
    return TableFit(
        model,
        list(targets),
        "classification" if classes else "regression",
        table.why,
        columns,
        notes,
        backbone,
        list_frames(model) or [],
        candidates,
        figures,
        n_rows,
        coverage,
        model.estimator_.named_steps["columns"].describe_encodings(),
        measured,
        X_test,
        y_test,
        _make_reference(X_rest, columns),
        groups,
        None if clock is None else clock.to_dict(),
        table.target_columns,
    )


def _choose_split(calibration: str, n_rows: int, coverage: float, *, is_ordinary: bool) -> bool:
    """Return whether some rows calibrate the model, or each fold in turn."""
    fewest = 4 * max(_ENOUGH_TO_SPLIT, rows_needed(coverage))
    if is_ordinary and (calibration == "cv" or (calibration == "auto" and n_rows < fewest)):
        return False
    if calibration == "cv":
        raise InvalidInputError(
            "Expected rows to calibrate on by group or by time. Got calibration='cv', which has none. Choose 'split'."
        )
    if n_rows < fewest:
        raise InvalidInputError(
            f"Expected at least {fewest} rows beside those kept out, to calibrate on a quarter of them, as by group or "
            f"by time. Got {n_rows}. Add rows, or leave groups, time and calibration out."
        )
    return True


def _note_small_groups(groups: Groups | None) -> list[str]:
    """Return notes on the groups that have too few calibration rows to be calibrated by themselves."""
    fates = {
        "small groups together": "are calibrated together, and not each by itself",
        "all rows": "are calibrated by all rows, so that nothing is promised for each of them",
    }
    notes: list[str] = []
    for how, fate in fates.items():
        names = [each["group"] for each in (groups.describe() if groups else []) if each["calibrated by"] == how]
        if names:
            shown = ", ".join(names[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else "")
            notes.append(f"groups of fewer than {MIN_ROWS} calibration rows {fate}: {shown}")
    return notes


def _check_groups(groups: str, columns: Sequence[Column], *, classes: bool) -> None:
    """Check before the fit that groups go with the target and the columns."""
    if groups in ("prediction", "novelty", "class") and any(column.name == groups for column in columns):
        raise InvalidInputError(
            f"Expected groups by the {groups} or by a column. Got {groups!r}, which is also the name of a column. Give "
            "the column another name."
        )
    if groups in ("prediction", "novelty") or (groups == "class" and classes):
        return
    kinds = ("number", "boolean", "category")
    found = next((column for column in columns if column.name == groups), None)
    if found is None or found.kind not in kinds:
        got = groups if found is None else f"{groups}, taken as {found.kind}{found.explain()}"
        names = join_names([column.name for column in columns if column.kind in kinds])
        words = "prediction, novelty, class" if classes else "prediction, novelty"
        raise InvalidInputError(f"Expected groups by {words} or one of the columns {names}. Got {got}. Choose one.")


def _check_rules(rule: Rule | None, novelty: Novelty | None, *, classes: bool, frames: str | Collection[str]) -> None:
    """Check before the fit that rules go with the target and the frames."""
    if novelty is not None and frames != "all" and "input" not in frames:
        raise InvalidInputError(
            f"Expected the input frame for a limit on novelty. Got {novelty} and the frames {frames!r}. Fit all "
            "frames, or leave the limit out."
        )
    if isinstance(rule, MaxErrorRate) and classes and rule.tolerance is not None:
        raise InvalidInputError(
            f"Expected no tolerance for classes, which are right or wrong. Got {rule}. Leave the tolerance out."
        )
    if isinstance(rule, MaxErrorRate) and not classes and rule.tolerance is None:
        raise InvalidInputError(
            f"Expected a tolerance for numbers, to know which errors count as wrong. Got {rule}. Add a tolerance, in "
            "the unit of the target."
        )


def _make_reference(X: Any, columns: Sequence[Column]) -> dict[str, dict[str, Any]]:
    """Summarise each column in few numbers, so that a model file stays small and gives nothing else away.

    Training and calibration rows are taken together: they are drawn alike, and with cross-validation they are the same.
    """
    features = read_features(X, columns)
    n_kept = max(2, min(_N_KEPT, _N_KEPT_IN_ALL // len(features.columns)))
    return make_reference(features, n_kept=n_kept, n_categories=TableEncoder().max_levels)
