"""What a calibrated model is worth on rows with known targets, as a few plain figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onsphere import metrics
from onsphere.calibration import covered_share_range
from onsphere.evaluation import measured_answer, row_errors

__all__ = ["evaluate"]


def evaluate(model: Any, X: Any, y: Any, *, coverage: float = 0.9, targets: Sequence[str] = ()) -> dict[str, Any]:
    """Error, coverage, and what the uncertainty tells, on rows that the model has not seen.

    Parameters
    ----------
    model : calibrated model
    X, y : rows with known targets
    coverage : float in (0, 1), default 0.9
    targets : sequence of str, optional
        The names of several outputs, for figures of each.

    Returns
    -------
    dict
        rows; error (root mean square over all outputs, or the share of wrong classes) and, for numbers, mean absolute
        error, and mean error of a row (for several outputs, the root mean square over them); asked and measured
        coverage (of all outputs at once), with the range in which the latter lies with 95 % probability if the promise
        holds; width of intervals or sets; Spearman of uncertainty with error; with a threshold the share of accepted
        rows, and the mean error of accepted and rejected ones; for several outputs the figures of each.

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
    figures, answer = measured_answer(model, (X, target), coverage)
    _, errors = row_errors(target, answer.value)
    result: dict[str, Any] = {"rows": len(target), "error": figures["error"]}
    if target.dtype.kind == "f":
        result["mean_absolute_error"] = float(np.mean(np.abs(answer.value - target)))
        result["mean_error"] = float(np.mean(errors))
        result["winkler"] = figures["Winkler"]
    covered, width = _covered(model, answer, target)
    result |= {
        "coverage_asked": coverage,
        "coverage": float(covered.mean()),
        "coverage_by_chance": list(covered_share_range(len(target), len(model.calibration_), coverage, level=0.05)),
        "width": width,
        "spearman": figures.get("Spearman"),
    }
    if len(errors) > 1:
        result["aurc"] = metrics.aurc(errors, answer.uncertainty)
    if answer.accepted is not None:
        kept = answer.accepted
        result |= {
            "accepted": float(kept.mean()),
            "error_accepted": _mean(errors[kept]),
            "error_rejected": _mean(errors[~kept]),
        }
    if target.ndim == 2:
        names = targets or [f"output {place}" for place in range(target.shape[1])]
        result["targets"] = dict(zip(names, _each(answer, target), strict=True))
    return result


def _each(answer: Any, target: Any) -> list[dict[str, float]]:
    """The figures of each output by itself, though the intervals are those that are to hold all of them at once."""
    off, lower, upper = answer.value - target, answer.lower, answer.upper
    columns = {
        "mean_absolute_error": np.abs(off).mean(axis=0),
        "root_mean_square_error": np.sqrt((off**2).mean(axis=0)),
        "coverage": ((lower <= target) & (target <= upper)).mean(axis=0),
        "width": (upper - lower).mean(axis=0),
    }
    return [{name: float(values[place]) for name, values in columns.items()} for place in range(target.shape[1])]


def _covered(model: Any, answer: Any, target: Any) -> tuple[Any, float]:
    """Whether each row lies in its set, or with all outputs in its intervals; and how large they are."""
    if answer.prediction_set is not None:
        return (answer.prediction_set & (target[:, None] == model.classes_)).any(axis=1), float(
            answer.prediction_set.sum(axis=1).mean()
        )
    inside = (answer.lower <= target) & (target <= answer.upper)
    return inside.reshape(len(target), -1).all(axis=1), float(np.mean(answer.upper - answer.lower))


def _mean(errors: Any) -> float | None:
    return float(errors.mean()) if len(errors) else None
