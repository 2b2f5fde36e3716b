"""The order fit → calibrate → assess, and everything a model can be asked once it has a value and an uncertainty.

A model brings `_fit` and `_predict`, one pass over its rows; the rest follows here. What differs between numbers and
classes is in the prediction: `RegressionPrediction` in regressor.py and `ClassPrediction` in classifier.py.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed

from onsphere import persistence
from onsphere._internal.packed_trees import round_leaves
from onsphere._internal.row_hashes import hash_rows, make_indexable
from onsphere._internal.validation import (
    Floats,
    check_calibration_weight,
    check_fitted,
    check_labels,
    check_n_jobs,
    check_no_gradient,
    check_number,
    check_option,
    check_same_length,
    check_sample_weight,
    check_target_given,
    missing_frame_error,
    parameter_error,
    restore_on_error,
    wrap_errors,
)
from onsphere.assessment import Assessment
from onsphere.calibration import TAILS, Calibration, OnlineCoverage
from onsphere.calibration.groups import GroupSource, fit_groups
from onsphere.decision import Novelty, Rule
from onsphere.errors import InvalidInputError, InvalidTypeError, NotCalibratedError, OnsphereWarning
from onsphere.models.calibration_rows import find_group_values, weigh_calibration_rows

__all__ = ["REASONS", "CalibratedModel", "Prediction"]

# Why a row is rejected, by whether it is uncertain (1) and novel (2).
REASONS = np.array(["", "uncertain", "novel", "uncertain and novel"])

_N_FOLDS = 5  # of calibration="cv"
_N_HASHES = 100_000  # of training rows that are kept, the smallest: a fair sample that new rows can be added to


class Prediction(Protocol):
    """One pass over some rows."""

    @property
    def uncertainty(self) -> Floats:
        """The score of each row, shape (n,); higher means less trustworthy."""
        ...

    @property
    def novelty(self) -> Floats | None:
        """The novelty of each row, shape (n,), in [0, 1]; None without an input frame."""
        ...

    @property
    def missed(self) -> Floats | None:
        """The shortfall that the novelty comes from, shape (n,)."""
        ...

    @property
    def parts(self) -> NDArray[np.intp] | None:
        """The part of the calibration rows that each row uses, shape (n,); None without groups."""
        ...

    def get_noise(self, model: Any) -> Floats | None:
        """Return how far similar rows disagree, in the shape of the y of fit; None for a model without frames."""
        ...

    def get_value(self, model: Any) -> NDArray[Any]:
        """Return labels, or values in the shape of the y of fit."""
        ...

    def calibrate(self, model: Any, y: Any) -> Calibration:
        """Compare the prediction with the truth."""
        ...

    def get_fields(self, model: Any) -> dict[str, Any]:
        """Return the fields of an Assessment that need no calibration."""
        ...

    def get_bounds(self, model: Any, coverage: float, tails: str) -> dict[str, Any]:
        """Return the fields of an Assessment that hold intervals or sets, of a calibrated model."""
        ...


_P = TypeVar("_P", bound=Prediction)


class CalibratedModel:
    """A model that is fitted, calibrated on other rows, and then assesses new ones.

    Attributes
    ----------
    calibration_ : Calibration or None
        The model's predictions on held-out rows, compared with the truth.
    threshold_ : float or None
        The largest uncertainty that is accepted.
    novelty_threshold_ : float or None
        The largest shortfall of the landmarks that is accepted.
    """

    calibration: Any
    random_state: int | np.random.RandomState | None
    n_jobs: int | None = None
    calibration_: Calibration | None
    threshold_: float | None
    novelty_threshold_: float | None = None
    _novelty_rule: Novelty | None = None
    _frames: Any = None  # see `onsphere.models.frames.Frames`; models of older files have none

    # Parameters that a calibration depends on.
    _calibrated_settings: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit on exactly these rows."""

    @abstractmethod
    def _predict(self, X: Any) -> Prediction:
        """Predict each row, in one pass."""

    def _predict_as(self, kind: type[_P], X: Any, caller: str, target: str) -> _P:
        """Predict each row; raise an error if the model was fitted on another target than "numbers" or "classes"."""
        prediction = self._predict(X)
        if not isinstance(prediction, kind):
            other = "classes" if target == "numbers" else "numbers"
            raise InvalidInputError(
                f"{caller} needs a {type(self).__name__} that was fitted on {target}. Got one fitted on {other}. Set "
                "the 'task' parameter, which is 'auto' by default, to say what the target is."
            )
        return prediction

    @abstractmethod
    def _has_classes(self, y: Any) -> bool:
        """Return whether the targets y are classes."""

    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, *, groups: ArrayLike | None = None
    ) -> Self:
        """Fit the model and, depending on the parameter `calibration`, calibrate it on rows kept back.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : targets or labels of shape (n,), or targets of shape (n, D)
        sample_weight : array of shape (n,), optional
            For backbones that weigh their rows. Calibration counts every row once.
        groups : array of shape (n,), optional
            The group of each row, for a splitter as `calibration` that keeps groups together.

        Returns
        -------
        self
        """
        check_no_gradient(X=X, y=y)
        with restore_on_error(self):
            check_n_jobs(self, self.n_jobs)
            fraction = self._check_calibration()
            self.calibration_ = None
            vars(self).pop("_set_penalty", None)
            self._drop_thresholds()
            if fraction is None:
                self._fit_and_remember(X, y, sample_weight)
                self._inspect_rows(X)
                return self
            check_target_given(self, y)
            check_same_length(X, y)
            weights = check_sample_weight(sample_weight, X)
            is_by_group = groups is None and "Group" in type(self.calibration).__name__
            without = " without groups= in fit" if is_by_group else ""
            with wrap_errors(f"calibration={self.calibration!r} cannot hold rows out{without}: "):
                features, target = make_indexable(X), make_indexable(y)
                parts = self._split_rows(target, fraction, groups)
            if fraction == "cv" or len(parts) > 1:
                self._fit_and_remember(X, y, sample_weight)
                self._set_calibration(self._calibrate_on_folds(parts, features, target, weights), on_folds=True)
            else:
                kept, held = parts[0]
                self._fit_and_remember(*_take(kept, features, target, weights))
                X_held, y_held = _take(held, features, target)
                self._set_calibration(self._predict(X_held).calibrate(self, y_held))
            self._inspect_rows(X)
        return self

    def _inspect_rows(self, X: Any) -> None:
        """Warn about rows given to fit that should not have been; those held out among them."""

    def _fit_and_remember(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._fit(X, y, sample_weight)
        round_leaves(self)
        self._seen = np.empty(0, dtype=np.uint64)
        self._remember(hash_rows(X, y))

    def _remember(self, hashes: NDArray[np.uint64]) -> None:
        """Add the hashes of rows that were trained on."""
        # Both parts are sorted, and the stable sort only has to merge them: small batches stay cheap.
        known = np.sort(np.concatenate([self._seen, np.sort(hashes)]), kind="stable")
        self._seen = known[:_N_HASHES].copy()

    def _check_calibration(self) -> str | float | None:
        """Return the share of rows to hold out, "cv" for each of the folds in turn, or None for no rows."""
        given: Any = self.calibration
        if given is None or (isinstance(given, str) and given == "cv"):
            return given
        if isinstance(given, str) and given == "split":
            return 0.2
        if isinstance(given, float | np.floating) and 0 < given < 1:
            return float(given)
        is_count = isinstance(given, int | np.integer) and not isinstance(given, bool) and given > 1
        if is_count or _is_splitter(given):
            return "given"
        expected = "None, 'split', 'cv', a float in (0, 1), a number of folds, a splitter or a list of (train, test)"
        raise parameter_error(self, "calibration", expected, given)

    def _split_rows(self, target: Any, fraction: str | float, groups: Any) -> list[tuple[Any, Any]]:
        """Return the rows to train on and those to calibrate on, for each of the folds."""
        labels = np.asarray(target)
        splitter = self._make_splitter(target, fraction)
        given = (np.zeros(len(labels)), labels) if groups is None else (np.zeros(len(labels)), labels, groups)
        parts = list(splitter.split(*given))
        if any(len(np.intersect1d(kept, held)) for kept, held in parts):
            raise InvalidInputError(
                f"Expected folds (train, test) that share no rows as the 'calibration' of {type(self).__name__}. Got a "
                "row in both. Errors on rows that were trained on are smaller than those to come: pass other folds."
            )
        last = max(int(np.max(rows, initial=-1)) for fold in parts for rows in fold)
        if last >= len(labels):
            raise InvalidInputError(
                f"Expected folds (train, test) of the {len(labels)} rows given to fit as the 'calibration' of "
                f"{type(self).__name__}. Got row {last}. Count rows from 0, by their place and not by an index."
            )
        return parts

    def _make_splitter(self, y: Any, fraction: str | float) -> Any:
        """Return a splitter of scikit-learn that holds out a share of the rows or, for "cv", each fold in turn."""
        from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit, check_cv

        if fraction == "given":
            return check_cv(self.calibration, y, classifier=self._has_classes(y))
        n_folds, by_fold, by_share = _N_FOLDS, KFold, ShuffleSplit
        if self._has_classes(y):
            smallest = int(np.unique(check_labels(self, y), return_counts=True)[1].min())
            if smallest < 2:
                raise InvalidInputError(
                    f"calibration={self.calibration!r} needs at least two rows of every class. Got a class with one "
                    "row. Add rows, drop the class, or calibrate on rows of your own."
                )
            n_folds, by_fold, by_share = min(_N_FOLDS, smallest), StratifiedKFold, StratifiedShuffleSplit
        if fraction == "cv":
            return by_fold(n_folds, shuffle=True, random_state=self.random_state)
        return by_share(1, test_size=float(fraction), random_state=self.random_state)

    def _calibrate_on_folds(self, folds: Sequence[Any], X: Any, y: Any, weights: Any) -> Calibration:
        parts: Any = Parallel(n_jobs=self.n_jobs)(
            delayed(_calibrate_fold)(self._make_fold(kept), _take(kept, X, y, weights), _take(held, X, y))
            for kept, held in folds
        )
        return type(parts[0]).join(parts)

    def _make_fold(self, kept: NDArray[np.intp]) -> Any:
        """Return an unfitted copy, to be fitted on these rows."""
        return clone(self)

    def calibrate(
        self,
        X: Any,
        y: ArrayLike,
        *,
        groups: Any = None,
        target_rows: Any = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Compare the fitted model with the truth on rows it has not seen; intervals and decisions need it.

        A threshold that was set before is fitted again, or dropped with a warning if its rule does not fit the new
        rows. Rows that were trained on cause a warning, because errors on them are smaller than those to come. What
        `update` took in is forgotten.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : targets or labels, as in fit
        groups : optional
            Groups of rows that are each to be covered as promised: the name of a column (its place, if X is an array),
            which the model need not have been fitted with; "prediction" or "novelty" for ranges of these; "class" for
            classes, each of which is then in its sets as often as promised; a function of X; or a value for each row,
            and then again for new rows. Whole numbers with up to 100 different values are groups as they are, such as
            the numbers of stores; other numbers with more than ten are cut at their quantiles into up to five ranges. A
            group of at least 50 rows is calibrated by itself, smaller ones together, and if these have fewer than 50
            rows even so, by all rows. A group that has no calibration rows is an error later on.
        target_rows : array or DataFrame of shape (m, p), optional
            Rows like those that will come, if they differ from X: calibration rows then count as much as the ratio of
            the densities says, which a classifier estimates on rows left out (weighted conformal prediction). Weights
            are clipped at ten times their mean; `calibration_.shift` says how many were, and how many rows of equal
            weight tell as much. Fewer than 30 are an error, and so are weighted rows that can still be told from the
            target rows.
        sample_weight : array of shape (n,), optional
            How much each row counts in intervals and sets; all above zero. Confidence, expected error and rules count
            every row once.

        Returns
        -------
        self
        """
        check_fitted(self, "estimator_")
        check_no_gradient(X=X, y=y)
        source = None if groups is None else GroupSource.read(groups)
        features = X
        if source is not None:
            names = getattr(self, "feature_names_in_", None)
            features, target_rows = source.drop_column(X, names), source.drop_column(target_rows, names)
        with restore_on_error(self):
            prediction = self._predict(features)
            calibration = prediction.calibrate(self, y)
            weights = check_calibration_weight(sample_weight, X)
            shift = None if target_rows is None else weigh_calibration_rows(self, features, target_rows, weights)
            calibration = replace(calibration, weights=weights if shift is None else shift.weights, shift=shift)
            if source is not None:
                values = find_group_values(self, "calibrate", source, prediction, X, groups, y)
                model: Any = self
                found, parts = fit_groups(source, values, levels=model.classes_ if source.kind == "class" else None)
                calibration = replace(calibration, groups=found, parts=parts)
            share_seen = self._compute_share_seen(features, y)
            if share_seen > 0.5:
                warnings.warn(
                    f"{share_seen:.0%} of the {len(calibration)} calibration rows were also trained on. Errors on them "
                    "are too small, so intervals will be too narrow. Calibrate on other rows; calibration='split' or "
                    "'cv' keeps some back by itself.",
                    OnsphereWarning,
                    stacklevel=2,
                )
            self._set_calibration(calibration)
            if self._rule is not None or self._novelty_rule is not None:
                self._fit_rule_again(self._rule, self._novelty_rule)
        return self

    def _predict_by_group(self, X: Any, groups: Any, caller: str, prediction: _P) -> _P:
        """Return a prediction that knows which calibration rows each of its rows uses."""
        known = None if self.calibration_ is None else self.calibration_.groups
        kind = None if known is None else known.source.kind
        if groups is not None and kind != "values":
            found = "without groups" if kind is None else f"by {kind}, and finds the groups of new rows itself"
            raise InvalidInputError(
                f"{caller} takes groups= for a model that was calibrated with a value for each row. Got groups for one "
                f"that was calibrated {found}. Leave groups out, or calibrate(X, y, groups=values) first."
            )
        if known is None or kind == "class":
            return prediction
        values = find_group_values(self, caller, known.source, prediction, X, groups, None)
        replaced: Any = prediction
        return replaced._replace(parts=known.find_parts(values))

    def update(
        self, X: Any, y: ArrayLike, *, groups: Any = None, time: ArrayLike | None = None, step: float | None = None
    ) -> Self:
        """Take in labels that have become known since the calibration; intervals and sets follow.

        The rows of a call are compared with the intervals or sets that stand before it: if too many were missed, the
        next ones are wider, and if too few, narrower, so that coverage over time stays near the one that is asked for,
        however the rows drift. Each takes the place of the oldest calibration row (of its group). So pass labels as
        they come in; more rows than a quarter of the calibration rows are taken in part by part. Bounds are in
        `onsphere.calibration.LevelTracker`. Thresholds stay as they are; `set_threshold` fits them to the new rows.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : targets or labels, as in fit
            In the order of time; late ones too.
        groups : array of shape (n,), optional
            The group of each row, for a model that was calibrated with groups given as values.
        time : array of shape (n,), optional
            Numbers or dates, to be sure of the order: a time before the last one is an error.
        step : float in (0, 1], optional
            The step of adaptive conformal inference, at the first call; without it, steps are chosen as labels come in.

        Returns
        -------
        self
        """
        calibration = self._require_calibration("update")
        check_no_gradient(X=X, y=y)
        with restore_on_error(self):
            prediction = self._predict_by_group(X, groups, "update", self._predict(X))
            new = prediction.calibrate(self, y)
            known = calibration.groups
            parts = prediction.parts
            if known is not None and known.source.kind == "class":
                parts = known.find_parts(np.asarray(y))
            online = calibration.online or OnlineCoverage(step, last_time=calibration.last_time)
            if step is not None and step != online.step:
                raise parameter_error("update", "step", f"{online.step}, as at the first call, or left out", step)
            self.calibration_ = replace(calibration, online=online).take_in(replace(new, parts=parts), time=time)
        return self

    def _compute_share_seen(self, X: Any, y: Any) -> float:
        """Return the share of the rows that was trained on, from a sample if there are many."""
        hashes = hash_rows(X, y)
        if len(self._seen) == _N_HASHES:  # nothing is known about larger ones
            hashes = hashes[hashes <= self._seen[-1]]
        return float(np.isin(hashes, self._seen).mean()) if len(hashes) else 0.0

    def _drop_thresholds(self) -> None:
        self.threshold_ = self._rule = self.novelty_threshold_ = self._novelty_rule = None

    def _fit_rule_again(self, rule: Rule | None, novelty: Novelty | None) -> None:
        try:
            self.set_threshold(rule, novelty=novelty)
        except InvalidInputError as error:
            self._drop_thresholds()
            warnings.warn(
                f"The threshold was dropped, because its rule does not fit the new calibration: {error}",
                OnsphereWarning,
                stacklevel=3,
            )

    def _set_calibration(self, calibration: Calibration, *, on_folds: bool = False) -> None:
        n_infinite = int(np.sum(~np.isfinite(calibration.uncertainty)))
        if n_infinite:
            raise InvalidInputError(
                f"Expected calibration rows with a finite uncertainty. Got {n_infinite} of {len(calibration)} without. "
                "They lie too far from the rows that were trained on: drop them, or check the scale of their features."
            )
        if np.ptp(calibration.uncertainty) == 0 and len(calibration) > 1:
            warnings.warn(
                f"All {len(calibration)} calibration rows have the uncertainty {calibration.uncertainty[0]:g}. The "
                "score cannot tell rows apart, so confidence and decisions will be the same for all rows like them. "
                "Check the backbone, or try another uncertainty_score.",
                OnsphereWarning,
                stacklevel=3,
            )
        self.calibration_, self._on_folds = calibration, on_folds
        self._calibrated_with = {name: getattr(self, name) for name in self._calibrated_settings}

    def _require_calibration(self, caller: str) -> Any:
        """Return the calibration, or raise an error that names the missing call."""
        check_fitted(self, "estimator_")
        if self.calibration_ is None:
            raise NotCalibratedError(
                f"{caller} needs a calibrated {type(self).__name__}. Call calibrate(X, y) on rows that were not "
                "trained on, or fit with calibration='split' or 'cv'."
            )
        now = {name: getattr(self, name) for name in self._calibrated_settings}
        if now != self._calibrated_with:
            raise NotCalibratedError(
                f"{caller} needs a calibration of the model as it is. It was calibrated with {self._calibrated_with} "
                f"and now has {now}. Call calibrate(X, y) again."
            )
        return self.calibration_

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the class of each row, shape (n,), or the target in the shape of the y of fit."""
        return self._predict(X).get_value(self)

    def predict_uncertainty(self, X: Any) -> Floats:
        """Return the score of each row, shape (n,); higher means less trustworthy."""
        return self._predict(X).uncertainty

    def predict_novelty(self, X: Any) -> Floats:
        """Return how unlike all training rows each row is, shape (n,): 0 for 98 % of rows like them, at most 1."""
        return _require_frame(self, "predict_novelty", "input", self._predict(X).novelty)

    def predict_noise(self, X: Any) -> Floats:
        """Return how far similar rows disagree: a standard deviation like the target, or for classes 1 − ‖d‖, (n,)."""
        return _require_frame(self, "predict_noise", "error", self._predict(X).get_noise(self))

    def predict_confidence(self, X: Any, *, normalization: str = "quantile") -> Floats:
        """Return a number in [0, 1] for each row that falls with its uncertainty; see `Calibration.confidence`.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        normalization : {"quantile", "min-max", "none", "shift"}
        """
        calibration = self._require_calibration("predict_confidence")
        return calibration.confidence(self.predict_uncertainty(X), normalization=normalization)

    def predict_expected_error(self, X: Any) -> Floats:
        """Return the mean error of calibration rows as uncertain: in the unit of the target, or the share wrong."""
        calibration = self._require_calibration("predict_expected_error")
        return calibration.expected_error(self.predict_uncertainty(X))

    def set_threshold(self, rule: Rule | Any = None, *, novelty: Novelty | Any = None) -> Self:
        """Decide from now on by this rule, fitted on the calibration rows; see `onsphere.decision`.

        Parameters
        ----------
        rule : Tolerance, AcceptShare, MaxErrorRate, MaxMeanError or FalseAlarm; None for no limit on the uncertainty
        novelty : Novelty, optional
            A second condition: rows that are too novel are rejected, however small their uncertainty. Without a rule
            and without this, no row is rejected any more.

        Returns
        -------
        self
        """
        if rule is None and novelty is None:
            self._drop_thresholds()
            return self
        calibration = self._require_calibration("set_threshold")
        if rule is not None and (isinstance(rule, type | Novelty) or not isinstance(rule, Rule)):
            raise InvalidTypeError(
                f"set_threshold needs a rule with a threshold method. Got {rule!r}. "
                "Pass for example AcceptShare(0.95) or Tolerance(2.0), and Novelty(...) as novelty=."
            )
        if novelty is not None and not isinstance(novelty, Novelty):
            raise InvalidTypeError(
                f"set_threshold needs a Novelty rule as novelty=. Got {novelty!r}. Pass for example Novelty(max=0.5)."
            )
        limit = None if novelty is None else novelty.threshold(calibration, self._get_ordinary())
        self.threshold_ = None if rule is None else rule.threshold(calibration)
        self._rule, self._novelty_rule, self.novelty_threshold_ = rule, novelty, limit
        return self

    def _get_ordinary(self) -> float | None:
        """Return the shortfall up to which a row is ordinary; None without an input frame."""
        return None if self._frames is None else self._frames.ordinary

    def decide(self, X: Any) -> np.ma.MaskedArray[Any, Any]:
        """Return the prediction of each row, masked if the row is not accepted; needs `set_threshold`."""
        self._require_calibration("decide")
        if self.threshold_ is None and self.novelty_threshold_ is None:
            raise NotCalibratedError(
                f"decide needs a {type(self).__name__} with a threshold. Call set_threshold(rule) first, for example "
                "set_threshold(AcceptShare(0.95))."
            )
        prediction = self._predict(X)
        value, rejected = prediction.get_value(self), self._find_reasons(prediction) != ""
        mask = rejected if value.ndim == 1 else np.broadcast_to(rejected[:, None], value.shape)
        return np.ma.MaskedArray(value, mask=mask)

    def assess(self, X: Any, *, coverage: float = 0.9, tails: str = "symmetric", groups: Any = None) -> Assessment:
        """Return everything the model has to say about each row, from one pass.

        Intervals or sets, confidence and expected error are None without a calibration; `accepted` is None without a
        threshold.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        coverage : float in (0, 1), default 0.9
            Of the intervals or sets.
        tails : {"symmetric", "equal", "shortest"}
            Where the misses of intervals lie; see `PredictiveDistribution.interval`. Sets have none.
        groups : array of shape (n,), optional
            The group of each row, for a model that was calibrated with groups given as values.
        """
        if np.ndim(coverage) > 0:
            raise parameter_error("assess", "coverage", "one float in (0, 1); predict_interval takes several", coverage)
        check_number("assess", "coverage", coverage, above=0, below=1)
        check_option("assess", "tails", tails, TAILS)
        prediction = self._predict_by_group(X, groups, "assess", self._predict(X))
        fields = prediction.get_fields(self)
        if self.calibration_ is not None:
            calibration = self._require_calibration("assess")
            fields |= prediction.get_bounds(self, coverage, tails)
            fields |= {
                "confidence": calibration.confidence(prediction.uncertainty),
                "expected_error": calibration.expected_error(prediction.uncertainty),
            }
            if prediction.missed is not None and calibration.missed is not None:
                fields["novelty_p_value"] = calibration.novelty_p_value(prediction.missed)
            if self.threshold_ is not None or self.novelty_threshold_ is not None:
                fields["reason"] = self._find_reasons(prediction)
                fields["accepted"] = fields["reason"] == ""
        fields["missed"] = prediction.missed
        fields["index"] = X.index if hasattr(X, "iloc") else None
        return Assessment(value=prediction.get_value(self), uncertainty=prediction.uncertainty, **fields)

    def _find_reasons(self, prediction: Prediction) -> NDArray[np.str_]:
        """Return why each row is rejected: "uncertain", "novel" or "uncertain and novel", and "" if it is not."""
        n_rows = len(prediction.uncertainty)
        uncertain, novel = np.zeros(n_rows, dtype=bool), np.zeros(n_rows, dtype=bool)
        if self.threshold_ is not None:
            uncertain = ~(prediction.uncertainty <= self.threshold_)  # so that NaN is rejected
        if self.novelty_threshold_ is not None and prediction.missed is not None:
            novel = ~(prediction.missed <= self.novelty_threshold_)
        return REASONS[uncertain + 2 * novel]

    def save(self, path: str | Path, *, summary: dict[str, Any] | None = None) -> Path:
        """Write the fitted model, with calibration and threshold, to one file; `onsphere.load` reads it.

        The file is written completely or not at all, and holds no pickle. Needs skops. What `load` will need beside
        onsphere, such as LightGBM, is in its manifest (`onsphere.persistence.read_manifest(path)["needs"]`); of types
        that it does not trust by itself, `save` warns.

        Parameters
        ----------
        path : path
            The name usually ends in ".onsphere".
        summary : dict, optional
            Plain JSON values to keep with the model: where it comes from, what it is for.

        Returns
        -------
        Path
        """
        check_fitted(self, "estimator_")
        return persistence.save(self, path, summary=summary)


def _is_splitter(given: Any) -> bool:
    """Return whether a parameter is a splitter of scikit-learn, or a list of pairs of rows."""
    if isinstance(given, list | tuple):
        return bool(given) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in given)
    return hasattr(given, "split") and not isinstance(given, str | type)


def _calibrate_fold(model: Any, kept: list[Any], held: list[Any]) -> Calibration:
    """Fit a model on some rows, and compare it with the truth on others."""
    model._fit(*kept)
    return model._predict(held[0]).calibrate(model, held[1])


def _require_frame(owner: object, caller: str, frame: str, values: Floats | None) -> Floats:
    if values is None:
        raise missing_frame_error(owner, caller, frame)
    return values


def _take(rows: NDArray[np.intp], *tables: Any) -> list[Any]:
    """Return the same rows of each table; None stays None."""
    return [None if table is None else _safe_indexing(table, rows) for table in tables]
