"""Measure a model on rows with known targets: errors, coverage, and how well its uncertainty ranks the errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere import metrics
from onsphere._internal.validation import Floats
from onsphere.assessment import Assessment
from onsphere.calibration import find_coverage_range
from onsphere.models import CalibratedModel, RegressionMixin
from onsphere.models.base import REASONS
from onsphere.models.calibration_rows import find_group_values

__all__ = [
    "MOST_SEEN",
    "assess_model",
    "compute_error",
    "compute_row_errors",
    "count_reasons",
    "evaluate",
    "find_covered",
    "find_row_groups",
    "measure_assessment",
]

# With a larger share of rows that the model was trained on, figures are no promise for new rows.
MOST_SEEN = 0.01


def evaluate(
    model: Any, X: Any, y: Any, *, coverage: float = 0.9, targets: Sequence[str] = (), groups: Any = None
) -> dict[str, Any]:
    """Measure error, coverage, and how well the uncertainty ranks the errors, on rows that the model has not seen.

    Parameters
    ----------
    model : calibrated model
    X, y : rows with known targets
    coverage : float in (0, 1), default 0.9
    targets : sequence of str, optional
        The names of several outputs, for figures of each.
    groups : array of shape (n,), optional
        The group of each row, for a model that was calibrated with groups given as values.

    Returns
    -------
    dict
        rows; error (root mean square over all outputs, or the share of wrong classes) and, for numbers, mean absolute
        error, and mean error of a row (for several outputs, the root mean square over them); asked and measured
        coverage (of all outputs at once), with the range in which the latter lies with 95 % probability if the promise
        holds; width of intervals or sets; Spearman of uncertainty with error; with an input frame the share of novel
        rows; with a threshold the share of accepted rows, and the mean error of accepted and rejected ones; with a
        limit on novelty how many were rejected as uncertain, as novel, and as both; for several outputs the figures of
        each; with groups rows and coverage of each.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from onsphere import HCMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HCMRegressor(random_state=0).fit(X[:250], y[:250]).calibrate(X[250:350], y[250:350])
    >>> figures = evaluate(model, X[350:], y[350:])
    >>> figures["rows"], figures["coverage_asked"], 0.8 < figures["coverage"] < 1
    (92, 0.9, True)
    """
    target = np.asarray(y)
    result: Any = model.assess(X, coverage=coverage, groups=groups)
    separate: Any = result
    errors = compute_row_errors(target, result.value)
    classes = None if result.prediction_set is None else model.classes_
    covered = find_covered(result, target, classes).reshape(len(target), -1)
    chance = find_coverage_range(len(target), int(model.calibration_.effective_size), coverage, level=0.05)
    figures: dict[str, Any] = {"rows": len(target), "error": compute_error(target, result.value)}
    if classes is None:
        separate = _use_separate_intervals(model, X, result, coverage, groups)
        alone = measure_assessment(separate, target, coverage=coverage)
        figures |= {
            "mean_absolute_error": float(np.mean(np.abs(result.value - target))),
            "mean_error": float(np.mean(errors)),
            "winkler": alone["Winkler"],
        }
    figures |= {
        "coverage_asked": coverage,
        "coverage": float(covered.all(axis=1).mean()),
        "coverage_by_chance": list(chance),
        "width": _compute_width(result),
        "spearman": _compute_spearman(errors, result.uncertainty),
    }
    if len(errors) > 1:
        figures["aurc"] = metrics.aurc(errors, result.uncertainty)
    if result.novelty is not None:
        figures["novel"] = float(np.mean(result.novelty > 0))
    if result.accepted is not None:
        figures |= {
            "accepted": float(result.accepted.mean()),
            "error_accepted": _compute_mean(errors[result.accepted]),
            "error_rejected": _compute_mean(errors[~result.accepted]),
        }
    if model.novelty_threshold_ is not None:
        figures["rejected_as"] = count_reasons(result)
    if model.calibration_.groups is not None:
        names, codes = find_row_groups(model, X, y, groups=groups)
        figures["groups"] = _measure_groups(names, codes, np.asarray(covered.all(axis=1)))
    if target.ndim == 2:
        names = targets or [f"output {place}" for place in range(target.shape[1])]
        measured = _measure_outputs(result, target, covered, separate)
        figures["targets"] = dict(zip(names, measured, strict=True))
    return figures


def find_row_groups(model: Any, X: Any, y: Any, *, groups: Any = None) -> tuple[list[str], NDArray[np.intp]]:
    """Return the names of the groups that a model was calibrated by, and the place of the group of each row.

    A class that was never trained on is no group: its place is −1.
    """
    known = model.calibration_.groups
    if known.source.kind == "class":
        return list(known.names), known.locate(np.asarray(y))
    values = find_group_values(model, "evaluate", known.source, model._predict(X), X, groups, y)
    return list(known.names), known.find_codes(values)


def _measure_groups(names: list[str], codes: NDArray[np.intp], covered: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        name: {"rows": int(np.sum(codes == code)), "coverage": float(covered[codes == code].mean())}
        for code, name in enumerate(names)
        if np.any(codes == code)
    }


def count_reasons(result: Any) -> dict[str, int]:
    """Return how many rows were rejected as uncertain, as novel, and as both; none without a threshold."""
    reasons = [] if result.reason is None else result.reason.tolist()
    return {name: reasons.count(name) for name in REASONS[1:].tolist()}


def assess_model(model: Any, X: Any, *, coverage: float) -> Assessment:
    """Assess rows, each output in an interval of its own; any object with predict and predict_uncertainty will do."""
    if not isinstance(model, CalibratedModel):
        value, uncertainty = np.asarray(model.predict(X)), model.predict_uncertainty(X)
        return Assessment(value, np.asarray(uncertainty, dtype=np.float64))
    return _use_separate_intervals(model, X, model.assess(X, coverage=coverage), coverage, None)


def _use_separate_intervals(model: Any, X: Any, result: Assessment, coverage: float, groups: Any) -> Assessment:
    """Replace intervals that hold all outputs of a row at once by those that hold each output by itself."""
    if result.lower is None or result.value.ndim == 1 or not isinstance(model, RegressionMixin):
        return result
    interval = model.predict_interval(X, coverage=coverage, simultaneous=False, groups=groups)
    return replace(result, lower=interval[..., 0], upper=interval[..., 1])


def measure_assessment(
    result: Assessment, target: Any, *, coverage: float, classes: NDArray[Any] | None = None
) -> dict[str, float]:
    """Return the figures that `compare` puts in its table, averaged over outputs, as far as they exist.

    Parameters
    ----------
    result : Assessment
    target : array of floats of shape (n,) or (n, D), or labels of shape (n,)
    coverage : float
        Of the intervals or sets.
    classes : array of shape (C,), optional
        What the columns of the sets stand for.
    """
    figures = {"error": compute_error(target, result.value)}
    spearman = _compute_spearman(compute_row_errors(target, result.value), result.uncertainty)
    if spearman is not None:
        figures["Spearman"] = spearman
    if result.prediction_set is not None or result.lower is not None:
        figures["coverage"] = float(np.mean(find_covered(result, target, classes)))
        figures["width"] = _compute_width(result)
    if result.probabilities is not None and classes is not None:
        figures |= _measure_probabilities(result.probabilities, target, classes)
    if result.lower is not None:
        columns = (np.asarray(values).reshape(len(target), -1).T for values in (target, result.lower, result.upper))
        scores = [metrics.winkler_score(*output, coverage=coverage) for output in zip(*columns, strict=True)]
        figures["Winkler"] = float(np.mean(scores))
    return figures


def _measure_probabilities(probabilities: Floats, target: Any, classes: NDArray[Any]) -> dict[str, float]:
    """Return log loss, calibration error and Brier score; none if a class was never trained on."""
    is_true = np.asarray(target)[:, None] == np.asarray(classes)
    if not is_true.any(axis=1).all():
        return {}
    truth = is_true.argmax(axis=1)
    is_right = probabilities.argmax(axis=1) == truth
    return {
        "NLL": metrics.log_loss(truth, probabilities),
        "ECE": metrics.expected_calibration_error(is_right, probabilities.max(axis=1)),
        "Brier": metrics.brier_score(truth, probabilities),
    }


def compute_error(target: Any, value: Any) -> float:
    """Return the root mean square error over all outputs, or the share of wrong classes."""
    errors = compute_row_errors(target, value)
    return float(np.sqrt(np.mean(errors**2))) if target.dtype.kind == "f" else float(errors.mean())


def compute_row_errors(target: Any, value: Any) -> Floats:
    """Return the error of each row; targets of floats are numbers, and all others are classes."""
    if target.dtype.kind != "f":
        return (np.asarray(value) != target).astype(np.float64)
    return metrics.sample_rmse(target, value)


def find_covered(result: Assessment, target: Any, classes: NDArray[Any] | None = None) -> NDArray[np.bool_]:
    """Return whether each target lies in its interval, in the shape of the target, or each label in its set.

    A class that was never trained on is in no set.
    """
    if result.prediction_set is not None:
        return (result.prediction_set & (target[:, None] == np.asarray(classes))).any(axis=1)
    return (np.asarray(result.lower) <= target) & (target <= np.asarray(result.upper))


def _compute_width(result: Any) -> float:
    """Return the mean width of the intervals, or the mean number of classes in a set."""
    if result.prediction_set is not None:
        return float(result.prediction_set.sum(axis=1).mean())
    return float(np.mean(result.upper - result.lower))


def _compute_spearman(errors: Floats, uncertainty: Floats) -> float | None:
    """Return the rank correlation, or None if either is constant."""
    return metrics.spearman(errors, uncertainty) if np.ptp(errors) > 0 and np.ptp(uncertainty) > 0 else None


def _compute_mean(errors: Floats) -> float | None:
    return float(errors.mean()) if len(errors) else None


def _measure_outputs(result: Any, target: Any, covered: NDArray[np.bool_], separate: Any) -> list[dict[str, float]]:
    """Measure each output, in the intervals that hold all of them at once and in those that hold it alone."""
    difference = result.value - target
    columns = {
        "mean_absolute_error": np.abs(difference).mean(axis=0),
        "root_mean_square_error": np.sqrt((difference**2).mean(axis=0)),
        "coverage": covered.mean(axis=0),
        "width": (result.upper - result.lower).mean(axis=0),
        "coverage_alone": find_covered(separate, target).mean(axis=0),
        "width_alone": (separate.upper - separate.lower).mean(axis=0),
    }
    return [{name: float(values[place]) for name, values in columns.items()} for place in range(target.shape[1])]
