"""Scorers for GridSearchCV and cross_val_score. Higher is better, so each loss has a minus sign."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from onsphere import metrics
from onsphere._internal.validation import Floats
from onsphere.errors import InvalidTypeError
from onsphere.evaluation import compute_row_errors

__all__ = ["crps_scorer", "selective_scorer", "winkler_scorer"]


def winkler_scorer(model: Any, X: Any, y: Any, *, coverage: float = 0.9) -> float:
    """Return minus the mean Winkler score of the intervals, each output by itself; needs a calibrated model.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import GridSearchCV
    >>> from onsphere import HCMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HCMRegressor(calibration="split", random_state=0).set_params(estimator__n_estimators=20)
    >>> search = GridSearchCV(model, {"estimator__min_samples_leaf": [2, 20]}, scoring=winkler_scorer, cv=2)
    >>> bool(search.fit(X, y).best_score_ < 0)
    True
    """
    model, rows = _skip_first_steps(model, X)
    _check_offers(model, hasattr(model, "predict_interval"), "predict_interval", "winkler_scorer")
    interval = model.predict_interval(rows, coverage=coverage, simultaneous=False)
    columns = (_split_outputs(part) for part in (y, interval[..., 0], interval[..., 1]))
    scores = [metrics.winkler_score(*output, coverage=coverage) for output in zip(*columns, strict=True)]
    return -float(np.mean(scores))


def crps_scorer(model: Any, X: Any, y: Any) -> float:
    """Return minus the mean continuous ranked probability score of Gaussians with the model's value and sigma."""
    model, rows = _skip_first_steps(model, X)
    offers = "return_std" in inspect.signature(model.predict).parameters
    _check_offers(model, offers, "predict(X, return_std=True)", "crps_scorer")
    columns = (_split_outputs(part) for part in (y, *model.predict(rows, return_std=True)))
    return -float(np.mean([metrics.gaussian_crps(*output) for output in zip(*columns, strict=True)]))


def selective_scorer(model: Any, X: Any, y: Any) -> float:
    """Return minus the area under the risk-coverage curve: the mean error if rows are rejected by their uncertainty."""
    model, rows = _skip_first_steps(model, X)
    _check_offers(model, hasattr(model, "predict_uncertainty"), "predict_uncertainty", "selective_scorer")
    target = np.asarray(y) if hasattr(model, "classes_") else np.asarray(y, dtype=np.float64)
    return -metrics.aurc(compute_row_errors(target, model.predict(rows)), model.predict_uncertainty(rows))


def _skip_first_steps(model: Any, X: Any) -> tuple[Any, Any]:
    """Return the last step of a pipeline, and rows as it sees them; anything else as it is."""
    return (model[-1], model[:-1].transform(X)) if isinstance(model, Pipeline) else (model, X)


def _check_offers(model: Any, offers: bool, method: str, scorer: str) -> None:
    """Check that a model has the method that a scorer calls."""
    if not offers:
        wrapper = "HCMClassifier" if hasattr(model, "classes_") else "HCMRegressor"
        advice = f"Put it into an {wrapper}"
        if hasattr(model, "predict_uncertainty"):
            advice = "Use selective_scorer, which takes classes"
        raise InvalidTypeError(f"Expected a model with {method} in {scorer}. Got {type(model).__name__}. {advice}.")


def _split_outputs(values: Any) -> Floats:
    """Return the columns of an array, one for each output."""
    array = np.asarray(values, dtype=np.float64)
    return array.reshape(len(array), -1).T
