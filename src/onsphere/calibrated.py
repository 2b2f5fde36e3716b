"""What every model with a value and an uncertainty shares: fit, calibrate, confidence, threshold, decision.

A model brings `_fit`, `_measure` and `predict_uncertainty`; everything here follows from them.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from onsphere._validation import (
    Floats,
    bad_parameter,
    check_fitted,
    check_number,
    check_same_length,
    check_target_given,
    is_frame,
    own_errors,
    unchanged_if_it_fails,
)
from onsphere.calibration import Calibration
from onsphere.decision import Rule
from onsphere.errors import InvalidTypeError, NotCalibratedError, OnsphereWarning

__all__ = ["N_FOLDS", "Calibrated"]

N_FOLDS = 5  # of calibration="cv"


class Calibrated:
    """The order fit → calibrate → ask, and what can be asked.

    Attributes
    ----------
    calibration_ : Calibration or None
        What the model said about held-out rows.
    threshold_ : float or None
        The largest uncertainty that is accepted.
    """

    calibration: str | float | None
    random_state: int | np.random.RandomState | None
    calibration_: Calibration | None
    threshold_: float | None

    # The parameters that decide what a calibration has measured.
    _measured: ClassVar[tuple[str, ...]] = ("uncertainty_score",)

    @abstractmethod
    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit on exactly these rows."""

    @abstractmethod
    def _measure(self, X: Any, y: Any) -> Calibration:
        """What the fitted model says about rows with known targets."""

    @abstractmethod
    def predict_uncertainty(self, X: Any) -> Floats:
        """The score of each row, shape (n,); higher means less trustworthy."""

    @abstractmethod
    def _splitter(self, y: Any, fraction: float | None) -> Any:
        """A splitter of scikit-learn that holds out a fraction of the rows or, for None, each of `N_FOLDS` folds."""

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the model and, where `calibration` says so, calibrate it on rows kept back.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : targets or labels of shape (n,), or targets of shape (n, D)
        sample_weight : array of shape (n,), optional
            For backbones that weigh their rows. Calibration counts every row once.

        Returns
        -------
        self
        """
        with unchanged_if_it_fails(self):
            fraction = self._checked_calibration()
            self.calibration_ = self.threshold_ = self._rule = None
            if fraction is None:
                self._fit(X, y, sample_weight)
                self._seen = _fingerprints(X, y)
                return self
            check_target_given(self, y)
            check_same_length(X, y)
            with own_errors(f"calibration={self.calibration!r} cannot hold rows out: "):
                splitter = self._splitter(y, None if fraction == "cv" else float(fraction))
                parts = list(splitter.split(np.zeros(len(np.asarray(y))), np.asarray(y)))
            if fraction == "cv":
                self._cross_calibrate(parts, X, y, sample_weight)
            else:
                kept, held = parts[0]
                self._fit(*_take(kept, X, y, sample_weight))
                self._seen = _fingerprints(*_take(kept, X, y))
                self._set_calibration(self._measure(*_take(held, X, y)))
        return self

    def _checked_calibration(self) -> str | float | None:
        given = self.calibration
        if given is None or given == "cv":
            return given
        if given == "split":
            return 0.2
        if isinstance(given, str):
            raise bad_parameter(self, "calibration", "None, 'split', 'cv' or a float in (0, 1)", given)
        check_number(self, "calibration", given, above=0, below=1)
        return given

    def _cross_calibrate(self, folds: list[Any], X: Any, y: Any, sample_weight: Any) -> None:
        self._fit(X, y, sample_weight)
        self._seen = _fingerprints(X, y)
        measured: list[Any] = []
        for kept, held in folds:
            fold = clone(self)
            fold._fit(*_take(kept, X, y, sample_weight))  # type: ignore[reportAttributeAccessIssue]
            measured.append(fold._measure(*_take(held, X, y)))  # type: ignore[reportAttributeAccessIssue]
        self._set_calibration(type(measured[0]).join(measured))

    def calibrate(self, X: Any, y: ArrayLike) -> Self:
        """Measure the fitted model on rows it has not seen; needed before intervals, confidence and decisions.

        A threshold that was set before is fitted anew. Rows that were trained on are warned about, because their errors
        are smaller than those to come.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : targets or labels, as in fit

        Returns
        -------
        self
        """
        check_fitted(self, "estimator_")
        with unchanged_if_it_fails(self):
            calibration = self._measure(X, y)
            seen = np.isin(_fingerprints(X, y), self._seen)
            if seen.mean() > 0.5:
                warnings.warn(
                    f"{int(seen.sum())} of the {len(seen)} calibration rows were also trained on. Errors on them are "
                    "too small, so intervals will be too narrow. Calibrate on other rows; calibration='split' or 'cv' "
                    "keeps some back by itself.",
                    OnsphereWarning,
                    stacklevel=2,
                )
            self._set_calibration(calibration)
            if self._rule is not None:
                self.set_threshold(self._rule)
        return self

    def _set_calibration(self, calibration: Calibration) -> None:
        if np.ptp(calibration.uncertainty) == 0 and len(calibration) > 1:
            warnings.warn(
                f"All {len(calibration)} calibration rows have the uncertainty {calibration.uncertainty[0]:g}. The "
                "score tells no rows apart, so confidence and decisions will be the same for all rows like them. Check "
                "the backbone, or try another uncertainty_score.",
                OnsphereWarning,
                stacklevel=3,
            )
        self.calibration_ = calibration
        self._measured_with = {name: getattr(self, name) for name in self._measured}

    def _calibrated(self, what: str) -> Any:
        """The calibration, or an error that names the call that is missing."""
        check_fitted(self, "estimator_")
        if self.calibration_ is None:
            raise NotCalibratedError(
                f"{what} needs a calibrated {type(self).__name__}. Call calibrate(X, y) on rows that were not trained "
                "on, or fit with calibration='split' or 'cv'."
            )
        now = {name: getattr(self, name) for name in self._measured}
        if now != self._measured_with:
            raise NotCalibratedError(
                f"{what} needs a calibration of the model as it is. It was calibrated with {self._measured_with} and "
                f"now has {now}. Call calibrate(X, y) again."
            )
        return self.calibration_

    def predict_confidence(self, X: Any, *, normalization: str = "quantile") -> Floats:
        """A number in [0, 1] for each row that falls with its uncertainty; see `Calibration.confidence`.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        normalization : {"quantile", "min-max", "none", "shift"}
        """
        calibration = self._calibrated("predict_confidence")
        return calibration.confidence(self.predict_uncertainty(X), normalization=normalization)

    def predict_expected_error(self, X: Any) -> Floats:
        """The mean error of calibration rows as uncertain as each row, in the unit of the target."""
        calibration = self._calibrated("predict_expected_error")
        return calibration.expected_error(self.predict_uncertainty(X))

    def set_threshold(self, rule: Rule) -> Self:
        """Decide from now on by this rule, fitted on the calibration rows; see `onsphere.decision`.

        Parameters
        ----------
        rule : Tolerance, Quantile, Risk or FalseAlarm

        Returns
        -------
        self
        """
        calibration = self._calibrated("set_threshold")
        if isinstance(rule, type) or not hasattr(rule, "threshold"):
            raise InvalidTypeError(
                f"set_threshold needs a rule with a threshold method. Got {rule!r}. "
                "Pass for example Quantile(0.95) or Tolerance(2.0)."
            )
        self.threshold_ = rule.threshold(calibration)
        self._rule = rule
        return self

    def decide(self, X: Any) -> np.ma.MaskedArray[Any, Any]:
        """The prediction of each row, masked where the model abstains; needs `set_threshold`."""
        self._calibrated("decide")
        if self.threshold_ is None:
            raise NotCalibratedError(
                f"decide needs a {type(self).__name__} with a threshold. Call set_threshold(rule) first, for example "
                "set_threshold(Quantile(0.95))."
            )
        result = self.assess(X)  # type: ignore[reportAttributeAccessIssue]
        rejected = ~result.accepted
        mask = rejected if result.value.ndim == 1 else np.broadcast_to(rejected[:, None], result.value.shape)
        return np.ma.MaskedArray(result.value, mask=mask)

    def _judged(self, uncertainty: Floats) -> dict[str, Any]:
        """What calibration and threshold add to an assessment."""
        if self.calibration_ is None:
            return {}
        calibration = self._calibrated("assess")
        return {
            "confidence": calibration.confidence(uncertainty),
            "expected_error": calibration.expected_error(uncertainty),
            "accepted": None if self.threshold_ is None else uncertainty <= self.threshold_,
        }


def _take(rows: NDArray[np.intp], *tables: Any) -> list[Any]:
    """The same rows of each table; None stays None."""
    return [None if table is None else _safe_indexing(_indexable(table), rows) for table in tables]


def _indexable(table: Any) -> Any:
    return table if hasattr(table, "shape") else np.asarray(table)


def _fingerprints(X: Any, y: Any) -> NDArray[np.uint64]:
    """One number per row that is equal for equal rows of features and target, and hardly ever for others."""
    columns = [X[name] for name in X.columns] if is_frame(X) else _columns_of(_indexable(X))
    target = _indexable(y)
    columns += [target[name] for name in target.columns] if is_frame(target) else _columns_of(target)
    total = np.zeros(len(np.asarray(columns[-1])), dtype=np.uint64)
    for column in columns:
        total = total * np.uint64(0x9E3779B97F4A7C15) + _codes(np.asarray(column))
    return total


def _columns_of(table: Any) -> list[Any]:
    dense = table.sum(axis=1) if hasattr(table, "tocsr") else table
    values = np.asarray(dense)
    return list(values.reshape(len(values), -1).T)


def _codes(column: NDArray[Any]) -> NDArray[np.uint64]:
    if column.dtype.kind in "biuf":
        return column.astype(np.float64).view(np.uint64)
    return np.array([hash(str(value)) & 0xFFFFFFFFFFFFFFFF for value in column], dtype=np.uint64)
