"""What every model with a value and an uncertainty shares: fit, calibrate, confidence, threshold, decision.

A model brings `_fit`, `_measure` and `predict_uncertainty`; everything here follows from them.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from onsphere import persistence
from onsphere._internal.row_hashes import hash_rows, make_indexable
from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_no_gradient,
    check_same_length,
    check_sample_weight,
    check_target_given,
    parameter_error,
    restore_on_error,
    wrap_errors,
)
from onsphere.calibration import Calibration
from onsphere.decision import Rule
from onsphere.errors import InvalidInputError, InvalidTypeError, NotCalibratedError, OnsphereWarning

__all__ = ["N_FOLDS", "CalibratedModel"]

N_FOLDS = 5  # of calibration="cv"

# At most so many fingerprints of training rows are kept, the smallest: a fair sample that new rows can be added to.
_N_SEEN = 100_000


class CalibratedModel:
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
    _measured: ClassVar[tuple[str, ...]] = ()

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
        check_no_gradient(X=X, y=y)
        with restore_on_error(self):
            fraction = self._checked_calibration()
            self.calibration_ = self.threshold_ = self._rule = None
            if fraction is None:
                self._fit_and_remember(X, y, sample_weight)
                return self
            check_target_given(self, y)
            check_same_length(X, y)
            weights = check_sample_weight(sample_weight, X)
            with wrap_errors(f"calibration={self.calibration!r} cannot hold rows out: "):
                features, target = make_indexable(X), make_indexable(y)
                splitter = self._splitter(target, None if fraction == "cv" else float(fraction))
                parts = list(splitter.split(np.zeros(len(np.asarray(target))), np.asarray(target)))
            if fraction == "cv":
                self._fit_and_remember(X, y, sample_weight)
                self._set_calibration(self._measured_on_folds(parts, features, target, weights), on_folds=True)
            else:
                kept, held = parts[0]
                self._fit_and_remember(*_take(kept, features, target, weights))
                self._set_calibration(self._measure(*_take(held, features, target)))
        return self

    def _fit_and_remember(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._fit(X, y, sample_weight)
        self._seen = np.empty(0, dtype=np.uint64)
        self._remember(hash_rows(X, y))

    def _remember(self, codes: NDArray[np.uint64]) -> None:
        """Add the fingerprints of rows that were trained on."""
        # Both parts are sorted, and the stable sort has only to merge them: small batches stay cheap.
        known = np.sort(np.concatenate([self._seen, np.sort(codes)]), kind="stable")
        self._seen = known[:_N_SEEN].copy()

    def _checked_calibration(self) -> str | float | None:
        given: Any = self.calibration
        if given is None:
            return None
        if isinstance(given, str) and given in ("cv", "split"):
            return "cv" if given == "cv" else 0.2
        if isinstance(given, float | np.floating) and 0 < given < 1:
            return float(given)
        raise parameter_error(self, "calibration", "None, 'split', 'cv' or a float in (0, 1)", given)

    def _measured_on_folds(self, folds: list[Any], X: Any, y: Any, weights: Any) -> Calibration:
        measured: list[Any] = []
        for kept, held in folds:
            fold = clone(self)
            fold._fit(*_take(kept, X, y, weights))  # type: ignore[reportAttributeAccessIssue]
            measured.append(fold._measure(*_take(held, X, y)))  # type: ignore[reportAttributeAccessIssue]
        return type(measured[0]).join(measured)

    def calibrate(self, X: Any, y: ArrayLike) -> Self:
        """Measure the fitted model on rows it has not seen; needed before intervals, confidence and decisions.

        A threshold that was set before is fitted anew, or dropped with a warning where its rule cannot be kept. Rows
        that were trained on are warned about, because their errors are smaller than those to come.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : targets or labels, as in fit

        Returns
        -------
        self
        """
        check_fitted(self, "estimator_")
        check_no_gradient(X=X, y=y)
        with restore_on_error(self):
            calibration = self._measure(X, y)
            seen = self._share_seen(X, y)
            if seen > 0.5:
                warnings.warn(
                    f"{seen:.0%} of the {len(calibration)} calibration rows were also trained on. Errors on them are "
                    "too small, so intervals will be too narrow. Calibrate on other rows; calibration='split' or 'cv' "
                    "keeps some back by itself.",
                    OnsphereWarning,
                    stacklevel=2,
                )
            self._set_calibration(calibration)
            if self._rule is not None:
                self._fit_rule_anew(self._rule)
        return self

    def _share_seen(self, X: Any, y: Any) -> float:
        """Which share of the rows was trained on, by a sample where there are many."""
        codes = hash_rows(X, y)
        if len(self._seen) == _N_SEEN:  # of larger ones nothing is known
            codes = codes[codes <= self._seen[-1]]
        return float(np.isin(codes, self._seen).mean()) if len(codes) else 0.0

    def _fit_rule_anew(self, rule: Rule) -> None:
        try:
            self.set_threshold(rule)
        except InvalidInputError as error:
            self.set_threshold(None)
            warnings.warn(
                f"The threshold was dropped, because its rule does not fit the new calibration: {error}",
                OnsphereWarning,
                stacklevel=3,
            )

    def _set_calibration(self, calibration: Calibration, *, on_folds: bool = False) -> None:
        n_lost = int(np.sum(~np.isfinite(calibration.uncertainty)))
        if n_lost:
            raise InvalidInputError(
                f"Expected calibration rows with a finite uncertainty. Got {n_lost} of {len(calibration)} without. "
                "They lie too far from the rows that were trained on: drop them, or check the scale of their features."
            )
        if np.ptp(calibration.uncertainty) == 0 and len(calibration) > 1:
            warnings.warn(
                f"All {len(calibration)} calibration rows have the uncertainty {calibration.uncertainty[0]:g}. The "
                "score tells no rows apart, so confidence and decisions will be the same for all rows like them. Check "
                "the backbone, or try another uncertainty_score.",
                OnsphereWarning,
                stacklevel=3,
            )
        self.calibration_, self._on_folds = calibration, on_folds
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
        """The mean error of calibration rows as uncertain: in the unit of the target, or the share that was wrong."""
        calibration = self._calibrated("predict_expected_error")
        return calibration.expected_error(self.predict_uncertainty(X))

    def set_threshold(self, rule: Rule | None) -> Self:
        """Decide from now on by this rule, fitted on the calibration rows; see `onsphere.decision`.

        Parameters
        ----------
        rule : Tolerance, AcceptShare, MaxErrorRate or FalseAlarm; None to decide no more

        Returns
        -------
        self
        """
        if rule is None:
            self.threshold_ = self._rule = None
            return self
        calibration = self._calibrated("set_threshold")
        if isinstance(rule, type) or not hasattr(rule, "threshold"):
            raise InvalidTypeError(
                f"set_threshold needs a rule with a threshold method. Got {rule!r}. "
                "Pass for example AcceptShare(0.95) or Tolerance(2.0)."
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
                "set_threshold(AcceptShare(0.95))."
            )
        value, uncertainty = self._value_and_uncertainty(X)
        rejected = ~_at_most(uncertainty, self.threshold_)
        mask = rejected if value.ndim == 1 else np.broadcast_to(rejected[:, None], value.shape)
        return np.ma.MaskedArray(value, mask=mask)

    def save(self, path: str | Path, *, summary: dict[str, Any] | None = None) -> Path:
        """Write the fitted model, with calibration and threshold, to one file; `onsphere.load` reads it.

        The file is written whole or not at all, and holds no pickle. Needs skops.

        Parameters
        ----------
        path : path
            By custom it ends in ".onsphere".
        summary : dict, optional
            Plain JSON values to keep beside the model: where it comes from, what it is for.

        Returns
        -------
        Path
        """
        check_fitted(self, "estimator_")
        return persistence.save(self, path, summary=summary)

    @abstractmethod
    def _value_and_uncertainty(self, X: Any) -> tuple[NDArray[Any], Floats]:
        """Prediction and score of each row, from one pass."""

    def _judged(self, uncertainty: Floats) -> dict[str, Any]:
        """What calibration and threshold add to an assessment."""
        if self.calibration_ is None:
            return {}
        calibration = self._calibrated("assess")
        return {
            "confidence": calibration.confidence(uncertainty),
            "expected_error": calibration.expected_error(uncertainty),
            "accepted": None if self.threshold_ is None else _at_most(uncertainty, self.threshold_),
        }


def _at_most(uncertainty: Floats, threshold: float) -> NDArray[np.bool_]:
    """Which rows are accepted; not those whose uncertainty is NaN."""
    return uncertainty <= threshold


def _take(rows: NDArray[np.intp], *tables: Any) -> list[Any]:
    """The same rows of each table; None stays None."""
    return [None if table is None else _safe_indexing(table, rows) for table in tables]
