"""The rows of a report: their features, what the model says about each row, and the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from onsphere.calibration import RegressionCalibration, root_mean_square
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.evaluation import MOST_SEEN, find_covered, find_row_groups
from onsphere.metrics._checks import pick_evenly
from onsphere.models.base import CalibratedModel
from onsphere.models.novelty import compute_novelty
from onsphere.sphere.embeddings import as_columns
from onsphere.table import Column
from onsphere.table.cells import read_cells

__all__ = [
    "CHANCE_LEVEL",
    "FEWEST_ROWS",
    "MOST_FEATURES",
    "OWNER",
    "UNNAMED",
    "Feature",
    "MeasuredRows",
    "measure_rows",
    "read_feature",
    "read_features",
    "to_frame",
]

OWNER = "write_report"
UNNAMED = "the target"
# With fewer rows, the figures of a report mean nothing.
FEWEST_ROWS = 10
# A difference is said to be more than chance if chance alone makes one as large less often than this.
CHANCE_LEVEL = 0.05
# At most this many columns of a wide table are looked at, evenly spread.
MOST_FEATURES = 200
# A positive target is drawn on a logarithmic axis if nine tenths of it span more than this factor.
_SKEWED = 10
# A column of dates tells the time of the rows if fewer than this share are missing, and at least so many differ.
_MOST_MISSING, _FEWEST_TIMES = 0.1, 20


class Feature(NamedTuple):
    """A column: a "number" and a "date" (in seconds) are floats, a "category" is text; NaN and None are missing."""

    name: str
    kind: str
    values: NDArray[Any]

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Return which rows have no value."""
        import pandas as pd

        return np.asarray(pd.isna(self.values))


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Rows for which the model gives finite numbers, with their errors."""

    assessment: Assessment
    target: NDArray[Any]  # of shape (n,) for classes, (n, D) for numbers
    error: Floats  # 0 and 1 for classes
    is_covered: NDArray[np.bool_]  # whether the truth lies in the intervals of all outputs, or in the set of classes
    frame: Any  # the features, as they are shown
    row_names: NDArray[Any]
    target_name: str
    output_names: list[str]
    coverage: float
    n_calibration: int
    pit: Floats | None = None  # of shape (n, D), for numbers whose calibration has the signs of errors
    alone: Floats | None = None  # intervals of each output by itself, (n, D, 2), if there are several
    n_left_out: int = 0  # rows without a finite prediction
    share_seen: float = 0.0  # of the rows, which the model was trained on, or which equal such rows
    limits_novelty: bool = False  # whether rows are rejected for their novelty alone
    max_novelty: float = 0.0  # the largest that is accepted, or 0
    share_novel_before: float = 0.0  # of the calibration rows
    groups: list[dict[str, Any]] | None = None  # that were calibrated by themselves, as `Groups.describe` has them
    group_codes: NDArray[np.intp] | None = None  # the place of the group of each row
    times: Feature | None = None  # when each row was, if that is known
    inputs: Any = None  # the features as the model takes them, if they are shown otherwise
    is_ordered: bool = False  # whether the time was given: then it is that of the fit as well

    def __len__(self) -> int:
        return len(self.error)

    @property
    def is_class(self) -> bool:
        """Return whether the target is a class."""
        return self.assessment.prediction_set is not None

    @property
    def is_fresh(self) -> bool:
        """Return whether the figures say something about new rows: hardly any of these was trained on."""
        return self.share_seen < MOST_SEEN

    @property
    def confidence(self) -> Floats:
        """Return the share of calibration rows that were at least as uncertain."""
        return np.asarray(self.assessment.confidence)

    @property
    def noise(self) -> Floats:
        """Return the noise of each row: for several outputs the root mean square, as of the errors."""
        return root_mean_square(np.asarray(self.assessment.noise).reshape(len(self), -1))

    @property
    def error_name(self) -> str:
        """Return what the mean of the errors is called."""
        return "share of wrong classes" if self.is_class else "mean error"

    @property
    def intervals(self) -> tuple[Floats, Floats, Floats]:
        """Return predictions, lower ends and upper ends, each of shape (n, D)."""
        result = self.assessment
        value, lower, upper = (as_columns(np.asarray(each)) for each in (result.value, result.lower, result.upper))
        return value, lower, upper

    @cached_property
    def is_skewed(self) -> NDArray[np.bool_]:
        """Return which outputs are positive and so skewed that a logarithmic axis shows them better."""
        if self.is_class:
            return np.zeros(1, dtype=bool)
        low, middle, high = np.quantile(self.target, (0.05, 0.5, 0.95), axis=0)
        is_wide = (self.target.min(axis=0) > 0) & (high > _SKEWED * low)
        return is_wide & (high - middle > 2 * (middle - low))

    @cached_property
    def features(self) -> list[Feature]:
        """Return the columns of the frame, at most `MOST_FEATURES` of them."""
        return read_features(self.frame)


def measure_rows(
    model: Any,
    X: Any,
    y: Any,
    *,
    coverage: float,
    target_name: Any,
    row_names: Any,
    share_seen: float | None = None,
    times: Any = None,
    time_name: str | None = None,
    show_rows: Callable[[Any], Any] | None = None,
) -> MeasuredRows:
    """Assess rows with known targets, and keep those with a finite prediction.

    Others lie so far from the training rows that the model has no finite number for them. Unless it is given, the
    share of rows that the model was trained on is found by comparing them.
    """
    if not isinstance(model, CalibratedModel):
        raise InvalidTypeError(
            f"{OWNER} needs a fitted and calibrated model of onsphere. Got {model!r}. "
            "Wrap a plain regressor as HCMRegressor(model), then fit and calibrate it; of a CalibratedNetwork, pass "
            "its model and the rows that read_rows returns."
        )
    n_calibration = int(model._require_calibration(OWNER).effective_size)
    check_number(OWNER, "coverage", coverage, above=0, below=1)
    assessment = model.assess(X, coverage=coverage)
    inputs = to_frame(model, X)
    frame = inputs if show_rows is None else show_rows(inputs)
    names = frame.index if row_names is None else row_names
    check_same_length(frame, names)
    compare = _compare_labels if assessment.prediction_set is not None else _compare_numbers
    target, error, is_covered, output_names = compare(model, assessment, y)
    keep = np.isfinite(assessment.uncertainty) & np.isfinite(error)
    if keep.sum() < FEWEST_ROWS:
        raise InvalidInputError(
            f"{OWNER} needs at least {FEWEST_ROWS} rows with a finite prediction. Got {int(keep.sum())} of "
            f"{len(keep)}. Pass more rows that the model has not seen."
        )
    given = None if times is None else _check_times(times, time_name, frame)
    return MeasuredRows(
        assessment=assessment[keep],
        target=target[keep],
        error=error[keep],
        is_covered=is_covered[keep],
        frame=frame[keep],
        row_names=np.array([str(name) for name in names], dtype=object)[keep],
        target_name=_name_target(y, output_names) if target_name is None else str(target_name),
        output_names=output_names,
        coverage=coverage,
        n_calibration=n_calibration,
        pit=_find_places(model, X, target, keep),
        alone=_predict_alone(model, X, coverage, keep) if len(output_names) > 1 else None,
        n_left_out=int(np.sum(~keep)),
        share_seen=model._compute_share_seen(X, y) if share_seen is None else share_seen,
        times=_find_dates(frame[keep]) if given is None else given._replace(values=given.values[keep]),
        inputs=None if show_rows is None else inputs[keep],
        is_ordered=given is not None,
        **_describe_novelty(model),
        **_describe_groups(model, X, y, keep),
    )


def _check_times(times: Any, name: str | None, frame: Any) -> Feature:
    """Return the time of each row as a feature."""
    import pandas as pd

    check_same_length(frame, times)
    column = pd.Series(np.asarray(times))
    feature = read_feature(str(getattr(times, "name", None) or "time") if name is None else str(name), column)
    if feature.kind == "category":
        raise InvalidInputError(
            f"Expected times of numbers or dates in {OWNER}. Got values such as {column.iloc[0]!r}. Convert them, for "
            "example by pandas.to_datetime."
        )
    return feature


def _find_dates(frame: Any) -> Feature | None:
    """Return the first column of dates that are known in nearly every row and not few."""
    for place, dtype in enumerate(frame.dtypes):
        if dtype.kind == "M":
            feature = read_feature(str(frame.columns[place]), frame.iloc[:, place])
            if feature.is_missing.mean() < _MOST_MISSING and len(np.unique(feature.values)) >= _FEWEST_TIMES:
                return feature
    return None


def _describe_groups(model: Any, X: Any, y: Any, keep: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the groups that a model was calibrated by, and which of them each row is in."""
    if model.calibration_.groups is None:
        return {}
    return {"groups": model.calibration_.groups.describe(), "group_codes": find_row_groups(model, X, y)[1][keep]}


def _find_places(model: Any, X: Any, target: Any, keep: NDArray[np.bool_]) -> Floats | None:
    """Return the place of each true number in its predicted distribution; None if there are none."""
    calibration = model.calibration_
    if not isinstance(calibration, RegressionCalibration) or not calibration.is_signed:
        return None
    distribution = model.predict_distribution(X)
    # Drawn within the steps of a distribution, so that whole numbers are not taken for a fault.
    return as_columns(distribution.pit(target[:, 0] if distribution.is_flat else target, random_state=0))[keep]


def _predict_alone(model: Any, X: Any, coverage: float, keep: NDArray[np.bool_]) -> Floats:
    """Return the intervals that hold each output by itself."""
    return model.predict_interval(X, coverage=coverage, simultaneous=False)[keep]


def _describe_novelty(model: Any) -> dict[str, Any]:
    """Return what a model says of novelty beside that of each row."""
    ordinary, limit, missed = model._get_ordinary(), model.novelty_threshold_, model.calibration_.missed
    if ordinary is None or missed is None:
        return {}
    return {
        "limits_novelty": limit is not None,
        "max_novelty": 0.0 if limit is None else float(compute_novelty(np.array([limit]), ordinary)[0]),
        "share_novel_before": float(np.mean(missed > ordinary)),
    }


def _compare_labels(model: Any, assessment: Assessment, y: Any) -> tuple[Any, Floats, NDArray[np.bool_], list[str]]:
    """Return the labels, which of them were predicted wrongly, and which are in their set."""
    labels = check_labels(OWNER, y)
    check_same_length(assessment.value, labels)
    if not np.any(labels[:, None] == model.classes_):
        raise InvalidInputError(
            f"Expected labels in y that {type(model).__name__} was fitted with, such as {model.classes_.item(0)!r}. "
            f"Got none of them, but labels such as {labels.item(0)!r}. Pass labels of the same type as in fit."
        )
    is_wrong = (labels != assessment.value).astype(np.float64)
    return labels, is_wrong, find_covered(assessment, labels, model.classes_), []


def _compare_numbers(model: Any, assessment: Assessment, y: Any) -> tuple[Any, Floats, NDArray[np.bool_], list[str]]:
    """Return the target as columns, the error of each row, which rows are in their intervals, and names of outputs."""
    target = as_columns(check_regression_target(OWNER, y))
    check_same_length(assessment.value, target)
    value = as_columns(assessment.value)
    check_n_outputs(model, target, value.shape[1])
    names = assessment.output_names
    if is_frame(y):
        check_output_names(model, y.columns, names)
        names = tuple(str(name) for name in y.columns)
    if names is None:
        names = tuple(f"output {index}" for index in range(value.shape[1]))
    # Rows without a finite prediction are left out later.
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.sqrt(np.mean((target - value) ** 2, axis=1))
    is_inside = find_covered(assessment, target.reshape(assessment.value.shape)).reshape(target.shape)
    return target, error, np.asarray(is_inside.all(axis=1)), list(names)


def _name_target(y: Any, output_names: list[str]) -> str:
    if is_frame(y):
        return ", ".join(output_names[:3]) + (f" and {len(output_names) - 3} more" if len(output_names) > 3 else "")
    name = getattr(y, "name", None)
    return UNNAMED if name is None else str(name)


def to_frame(model: Any, X: Any) -> Any:
    """Return X as a pandas DataFrame, with the column names of the model, or x0, x1, … if it has none."""
    import pandas as pd

    if isinstance(X, pd.DataFrame):
        return X
    if is_frame(X):
        return pd.DataFrame({name: np.asarray(X[name]) for name in X.columns})
    rows = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
    names = getattr(model, "feature_names_in_", [f"x{index}" for index in range(rows.shape[1])])
    return pd.DataFrame(rows, columns=list(names))


def read_features(frame: Any, *, most: int = MOST_FEATURES) -> list[Feature]:
    """Read the columns of a frame, at most so many of them, evenly spread."""
    chosen = pick_evenly(np.arange(float(frame.shape[1])), most)
    return [read_feature(str(frame.columns[index]), frame.iloc[:, index]) for index in chosen]


def read_feature(name: str, column: Any) -> Feature:
    """Read one column of a frame as its dtype says: text stays text, and infinite numbers are missing."""
    column = column.infer_objects()
    kinds = {"M": "date", "i": "number", "u": "number", "f": "number"}
    kind = kinds.get(column.dtype.kind, "category")
    return Feature(name, kind, read_cells(Column(name, kind), column).values)
