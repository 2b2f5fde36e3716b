"""Weights for calibration rows, so that they stand for rows that are distributed differently (covariate shift).

A classifier tells calibration rows from target rows; its odds are the ratio of their densities. Every probability comes
from a fit that has not seen its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError

__all__ = ["LARGEST_WEIGHT", "MAX_LEFT", "MIN_EFFECTIVE", "ShiftWeights", "compute_effective_size", "weigh_rows"]

LARGEST_WEIGHT = 10.0  # times the mean
MIN_EFFECTIVE = 30.0

# How well weighted calibration rows and target rows can still be told apart (AUROC), at most: where noise grows quickly
# with the feature that shifts, 90 % are then still 85 % or more.
MAX_LEFT = 0.6

_N_FOLDS = 5


@dataclass(frozen=True, eq=False)
class ShiftWeights:
    """Weights of calibration rows and what they cost.

    Attributes
    ----------
    weights : array of shape (n,)
        With mean 1 before they are clipped.
    effective_size : float
        (Σw)²/Σw², which is how many rows of equal weight tell as much, times the share of the target rows that the odds
        account for: 1 where calibration rows lie wherever target rows do.
    n_clipped : int
        Rows whose weight was above `LARGEST_WEIGHT`.
    auroc : float
        How well calibration rows and target rows can be told apart: .5 not at all, 1 always.
    auroc_left : float
        How well they still can be once calibration rows are weighted: near .5 if the weights do their work.
    """

    weights: Floats
    effective_size: float
    n_clipped: int
    auroc: float
    auroc_left: float = 0.5


def compute_effective_size(weights: Floats) -> float:
    """Return (Σw)²/Σw².

    Examples
    --------
    >>> import numpy as np
    >>> compute_effective_size(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    return float(weights.sum() ** 2 / (weights**2).sum())


def weigh_rows(rows: Floats, target_rows: Floats) -> ShiftWeights:
    """Return weights with which calibration rows stand for target rows, by cross-fitted odds of a classifier.

    Of a logistic regression and of a forest, the one with the smaller log loss on rows left out is used; if
    neither is better than a guess, all rows weigh the same. An error says so if the calibration rows cannot stand for
    the target rows: if both can be told apart even so, or if too few rows are left that count.

    Parameters
    ----------
    rows, target_rows : arrays of shape (n, p) and (m, p)
        NaN stands for missing.
    """
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    is_target = np.repeat([0, 1], [len(rows), len(target_rows)])
    if min(len(rows), len(target_rows)) < MIN_EFFECTIVE:
        raise InvalidInputError(
            f"Expected at least {MIN_EFFECTIVE:g} calibration rows and as many target rows. Got {len(rows)} and "
            f"{len(target_rows)}. Pass more of them."
        )
    features = np.concatenate([rows, target_rows])
    folds = StratifiedKFold(_N_FOLDS, shuffle=True, random_state=0)
    imputer = SimpleImputer(add_indicator=True, keep_empty_features=True)
    classifiers: list[Any] = [
        make_pipeline(imputer, StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)),
        ExtraTreesClassifier(100, min_samples_leaf=20, random_state=0),
    ]
    prior = float(is_target.mean())
    best, smallest = np.full(len(is_target), prior), _compute_entropy(prior)
    for classifier in classifiers:
        probabilities = cross_val_predict(classifier, features, is_target, cv=folds, method="predict_proba")
        found = np.asarray(probabilities)[:, 1]
        loss = float(log_loss(is_target, found))
        if loss < smallest:
            best, smallest = found, loss
    odds = best[: len(rows)] / np.maximum(1.0 - best[: len(rows)], 1e-9)
    share_met = min(float(odds.sum()) / len(target_rows), 1.0)
    odds /= odds.mean()
    weights = np.minimum(odds, LARGEST_WEIGHT)
    size = share_met * compute_effective_size(weights)
    auroc = float(roc_auc_score(is_target, best))
    counts = np.concatenate([weights, np.ones(len(target_rows))])
    left = float(roc_auc_score(is_target, best, sample_weight=counts))
    if left > MAX_LEFT:
        raise InvalidInputError(
            "Expected calibration rows wherever target rows lie, so that some can stand for the others. Got target "
            f"rows that can be told from the calibration rows even once these are weighted (AUROC {left:.2f}, of "
            f"{auroc:.2f} before; at most {MAX_LEFT:g} is accepted). Calibrate on rows that are more like the target "
            "rows."
        )
    if size < MIN_EFFECTIVE:
        raise InvalidInputError(
            f"Expected calibration rows that can stand for the target rows. Got {len(rows)} that tell as much as "
            f"{size:.0f} rows like the target rows; {MIN_EFFECTIVE:g} are needed (AUROC between both: {auroc:.2f}). "
            "Calibrate on rows that are more like the target rows, or on more of them."
        )
    return ShiftWeights(weights, size, int((odds > LARGEST_WEIGHT).sum()), auroc, left)


def _compute_entropy(share: float) -> float:
    return float(-share * np.log(share) - (1 - share) * np.log(1 - share))
