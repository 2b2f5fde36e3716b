"""What `compare` measures of one fitted method: time, error, and what its uncertainty is worth."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from onsphere import metrics
from onsphere._internal.validation import Floats
from onsphere.assessment import Assessment

__all__ = ["Rows", "Split", "measured", "measured_answer", "median_seconds", "row_errors", "seconds_of"]

Rows = tuple[Any, Any]
N_TIMINGS = 3


class Split(NamedTuple):
    """Rows with their targets."""

    train: Rows
    held: Rows
    test: Rows


def measured(
    model: Any, split: Split, coverage: float, *, plain_seconds: float | None
) -> tuple[dict[str, Any], Assessment]:
    """Fit, calibrate and measure; also what the model says of the test rows."""
    row: dict[str, Any] = {"fit s": seconds_of(lambda: model.fit(*split.train))}
    if hasattr(model, "calibrate"):
        model.calibrate(*split.held)
    if plain_seconds is not None:
        row["predict ×"] = median_seconds(lambda: _answer(model, split.test[0], coverage)) / plain_seconds
    figures, answer = measured_answer(model, split.test, coverage)
    return row | figures, answer


def measured_answer(model: Any, test: Rows, coverage: float) -> tuple[dict[str, Any], Assessment]:
    """The error of a fitted model on some rows and what its uncertainty is worth, beside what it said of them."""
    rows, target = test
    row: dict[str, Any] = {}
    answer = _answer(model, rows, coverage)
    row["error"], errors = row_errors(target, answer.value)
    if np.ptp(errors) > 0 and np.ptp(answer.uncertainty) > 0:
        row["Spearman"] = metrics.spearman(errors, answer.uncertainty)
    if answer.prediction_set is not None:
        row |= _set_figures(answer.prediction_set, target, model.classes_)
    elif answer.lower is not None:
        row |= _interval_figures(model, answer, test, coverage)
    return row, answer


def _answer(model: Any, rows: Any, coverage: float) -> Assessment:
    if hasattr(model, "assess"):
        return model.assess(rows, coverage=coverage)
    return Assessment(np.asarray(model.predict(rows)), np.asarray(model.predict_uncertainty(rows), dtype=np.float64))


def row_errors(target: Any, value: Any) -> tuple[float, Floats]:
    """The error of a table, and that of each row; targets of numbers are floats, and all others classes."""
    if target.dtype.kind != "f":
        wrong = (np.asarray(value) != target).astype(np.float64)
        return float(wrong.mean()), wrong
    each = metrics.sample_rmse(target, value)
    return float(np.sqrt(np.mean(each**2))), each


def _interval_figures(model: Any, answer: Assessment, test: Rows, coverage: float) -> dict[str, float]:
    """Of each output by itself, averaged."""
    rows, target = test
    if hasattr(model, "predict_interval"):
        interval = model.predict_interval(rows, coverage=coverage, simultaneous=False)
        lower, upper = interval[..., 0], interval[..., 1]
    else:
        lower, upper = np.asarray(answer.lower), np.asarray(answer.upper)
    truth, lower, upper = (values.reshape(len(target), -1) for values in (target, lower, upper))
    outputs = zip(truth.T, lower.T, upper.T, strict=True)
    return {
        "coverage": float(np.mean((lower <= truth) & (truth <= upper))),
        "width": float(np.mean(upper - lower)),
        "Winkler": float(np.mean([metrics.winkler_score(*output, coverage=coverage) for output in outputs])),
    }


def _set_figures(prediction_set: Any, target: Any, classes: Any) -> dict[str, float]:
    """A class that was never trained on is in no set."""
    held = (prediction_set & (target[:, None] == classes)).any(axis=1)
    return {"coverage": float(np.mean(held)), "width": float(np.mean(prediction_set.sum(axis=1)))}


def seconds_of(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_seconds(work: Callable[[], Any]) -> float:
    work()  # fills the caches
    return float(np.median([seconds_of(work) for _ in range(N_TIMINGS)]))
