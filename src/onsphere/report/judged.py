"""The rows of a report: what the model says about each, beside the truth."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere import metrics
from onsphere._internal.validation import (
    Floats,
    check_labels,
    check_n_outputs,
    check_number,
    check_output_names,
    check_regression_target,
    check_same_length,
    is_frame,
)
from onsphere.assessment import Assessment
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.models.base import CalibratedModel
from onsphere.report.features import as_frame
from onsphere.sphere.embedding import as_columns

__all__ = ["FEWEST_ROWS", "NAMELESS", "OWNER", "Judged", "check_model", "judge"]

OWNER = "write_report"
NAMELESS = "the target"
# With fewer rows, no figure of the report would mean anything.
FEWEST_ROWS = 10


@dataclass(frozen=True, eq=False)
class Judged:
    """Rows with a finite answer.

    Attributes
    ----------
    answer : Assessment
    target : array of shape (n,) for classes, (n, D) for numbers
    error : array of shape (n,), 0 and 1 for classes
    is_covered : bool array of shape (n,)
        Whether the truth lies in the intervals of all outputs, or in the set of classes.
    frame : DataFrame of the features
    row_names : array of str
    target_name : str
    output_names : list of str, one for each output
    coverage : float
    n_calibration : int
    n_left_out : int
        Rows without a finite answer.
    """

    answer: Assessment
    target: NDArray[Any]
    error: Floats
    is_covered: NDArray[np.bool_]
    frame: Any
    row_names: NDArray[Any]
    target_name: str
    output_names: list[str]
    coverage: float
    n_calibration: int
    n_left_out: int = 0

    def __len__(self) -> int:
        return len(self.error)

    @property
    def is_class(self) -> bool:
        """Whether the target is a class."""
        return self.answer.prediction_set is not None

    @property
    def confidence(self) -> Floats:
        """The share of calibration rows that were at least as uncertain."""
        return np.asarray(self.answer.confidence)


def check_model(model: Any) -> None:
    """A calibrated model of onsphere."""
    if not isinstance(model, CalibratedModel):
        raise InvalidTypeError(
            f"{OWNER} needs a fitted and calibrated model of onsphere. Got {model!r}. "
            "A plain regressor becomes HCMRegressor(model); fit and calibrate it."
        )
    model._require_calibration(OWNER)


def judge(model: Any, X: Any, y: Any, *, coverage: float, target_name: Any, row_names: Any, pandas: Any) -> Judged:
    """Ask the model about rows with known targets."""
    check_model(model)
    check_number(OWNER, "coverage", coverage, above=0, below=1)
    answer: Assessment = model.assess(X, coverage=coverage)
    frame = as_frame(model, X, pandas)
    measure = _against_labels if answer.prediction_set is not None else _against_numbers
    target, error, is_covered, output_names = measure(model, answer, y)
    rows = Judged(
        answer=answer,
        target=target,
        error=error,
        is_covered=is_covered,
        frame=frame,
        row_names=_checked_names(row_names, frame),
        target_name=_name_of_target(y, output_names) if target_name is None else str(target_name),
        output_names=output_names,
        coverage=coverage,
        n_calibration=len(model.calibration_),
    )
    return _with_finite_answers(rows)


def _name_of_target(y: Any, output_names: list[str]) -> str:
    name = getattr(y, "name", None)
    if is_frame(y):
        more = f" and {len(output_names) - 3} more" if len(output_names) > 3 else ""
        name = ", ".join(output_names[:3]) + more
    return NAMELESS if name is None else str(name)


def _against_labels(model: Any, answer: Assessment, y: Any) -> tuple[Any, Floats, Any, list[str]]:
    labels = check_labels(OWNER, y)
    check_same_length(answer.value, labels)
    place = {label: index for index, label in enumerate(model.classes_.tolist())}
    true, predicted = (np.array([place.get(each, -1) for each in found.tolist()]) for found in (labels, answer.value))
    if np.all(true < 0):
        raise InvalidInputError(
            f"Expected labels in y that {type(model).__name__} was fitted with, such as {next(iter(place))!r}. "
            f"Got none of them, but such as {labels.tolist()[0]!r}. Pass the labels in the form that fit was given."
        )
    # A class that was never trained on is in no set.
    is_covered = (true >= 0) & np.asarray(answer.prediction_set)[np.arange(len(true)), true]
    return labels, (true != predicted).astype(np.float64), is_covered, []


def _against_numbers(model: Any, answer: Assessment, y: Any) -> tuple[Any, Floats, Any, list[str]]:
    target = as_columns(check_regression_target(OWNER, y))
    check_same_length(answer.value, target)
    value, lower, upper = (as_columns(np.asarray(each)) for each in (answer.value, answer.lower, answer.upper))
    check_n_outputs(model, target, value.shape[1])
    names = answer.output_names
    if is_frame(y):
        check_output_names(model, y.columns, names)
        names = tuple(str(name) for name in y.columns)
    if names is None:
        names = tuple(f"output {index}" for index in range(value.shape[1]))
    finite = np.isfinite(value).all(axis=1)
    error = np.full(len(value), np.nan)
    if finite.any():
        error[finite] = metrics.sample_rmse(target[finite], value[finite])
    is_covered = ((lower <= target) & (target <= upper)).all(axis=1)
    return target, error, is_covered, list(names)


def _checked_names(row_names: Any, frame: Any) -> NDArray[Any]:
    names = frame.index if row_names is None else row_names
    check_same_length(frame, names)
    return np.array([str(name) for name in names], dtype=object)


def _with_finite_answers(rows: Judged) -> Judged:
    """Without the rows that lie so far from all that was learned that the model has no number for them."""
    keep = np.isfinite(rows.answer.uncertainty) & np.isfinite(rows.error)
    if keep.sum() < FEWEST_ROWS:
        raise InvalidInputError(
            f"{OWNER} needs at least {FEWEST_ROWS} rows with a finite answer of the model. Got {int(keep.sum())} of "
            f"{len(keep)}. Pass more rows, which the model has not seen."
        )
    if keep.all():
        return rows
    kept = {
        field.name: values[keep]
        for field in fields(Assessment)
        if isinstance(values := getattr(rows.answer, field.name), np.ndarray)
    }
    return replace(
        rows,
        answer=replace(rows.answer, **kept),
        target=rows.target[keep],
        error=rows.error[keep],
        is_covered=rows.is_covered[keep],
        frame=rows.frame.iloc[np.flatnonzero(keep)],
        row_names=rows.row_names[keep],
        n_left_out=int(np.sum(~keep)),
    )
