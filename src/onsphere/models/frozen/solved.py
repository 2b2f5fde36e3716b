"""Heads on the features of a network once they are solved: labels or values, each with an uncertainty."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from onsphere._internal.validation import Floats, check_fitted, check_no_gradient, check_rows, wrap_errors
from onsphere.calibration import root_mean_square
from onsphere.models.classifier import ClassificationMixin, ClassPrediction, mix_evenly, project_to_simplex
from onsphere.models.frames import Frames, Measured
from onsphere.models.frozen.sums import Solution
from onsphere.models.frozen.targets import ClassTarget, NumberTarget, Target
from onsphere.models.regressor import RegressionMixin, RegressionPrediction
from onsphere.sphere import Lift, geometry, scores

__all__ = ["SolvedModel"]


class SolvedModel(RegressionMixin, ClassificationMixin, BaseEstimator):
    """A model of classes or numbers whose heads are plain matrices: it writes `_fit` and `_solve`."""

    target_: Target
    n_features_in_: int

    @abstractmethod
    def _solve(self) -> Solution:
        """Return the heads and the frames beside them."""

    @property
    def classes_(self) -> NDArray[Any]:  # type: ignore[reportIncompatibleVariableOverride]
        """The classes, in the order of the columns of `predict_proba`."""
        target = getattr(self, "target_", None)
        if not isinstance(target, ClassTarget):
            raise AttributeError(f"only a {type(self).__name__} fitted on classes has classes_")
        return target.embedding.classes_

    @property
    def embedding_(self) -> Any:  # type: ignore[reportIncompatibleVariableOverride]
        """The embedding of the target: OneHot for classes, one such as Lift for numbers."""
        return self.target_.embedding

    @property
    def spread_(self) -> Floats:  # type: ignore[reportIncompatibleVariableOverride]
        """Standard deviation of each output, for regression."""
        if not isinstance(self.target_, NumberTarget):
            raise AttributeError(f"only a {type(self).__name__} fitted on numbers has spread_")
        return self.target_.embedding.spread_

    @property
    def _target_is_flat(self) -> bool:  # type: ignore[reportIncompatibleVariableOverride]
        return isinstance(self.target_, ClassTarget) or self.target_.is_flat

    def _predict(self, X: Any) -> RegressionPrediction | ClassPrediction:
        check_fitted(self, "estimator_")
        solution, rows = self._solve(), self._check_rows(X)
        every = solution.predict_per_head(rows)
        outputs = every[solution.value_head]
        details = {"direction_norm": geometry.norm(outputs.direction), "magnitude": outputs.magnitude}
        frames = solution.frames
        if isinstance(self.target_, ClassTarget):
            novelty, missed = (None, None) if frames is None else frames.measure_novelty(solution.place(rows))
            # Without a direction, all classes are equally likely.
            direction = np.nan_to_num(outputs.direction, nan=0.0)
            return ClassPrediction(
                label_index=outputs.direction.argmax(axis=1),
                probabilities=mix_evenly(project_to_simplex(direction), novelty),
                uncertainty=solution.join(every, missed),
                details=details,
                noise=None if frames is None else np.maximum(1.0 - geometry.norm(direction), 0.0),
                novelty=novelty,
                missed=missed,
                direction=direction,
            )
        embedding = self.target_.embedding
        if isinstance(embedding, Lift):
            details["anchor_residual"] = scores.anchor_residual(outputs, embedding.anchor)
        value, sigma = embedding.decode(outputs, decoder="mean"), embedding.sigma(outputs)
        measured, uncertainty = Measured(sigma, sigma, None, None), None
        if frames is not None:
            measured = self._measure(frames, solution.place(rows), value, sigma)
            if frames.error is not None and frames.error.trees is not None:
                uncertainty = np.nan_to_num(root_mean_square(measured.sigma), nan=np.inf, posinf=np.inf)
        return RegressionPrediction(
            value=value,
            sigma=measured.sigma,
            uncertainty=solution.join(every, measured.missed) if uncertainty is None else uncertainty,
            details=details,
            noise=None if frames is None else measured.noise,
            novelty=measured.novelty,
            missed=measured.missed,
        )

    def _measure(self, frames: Frames, places: Floats, value: Floats, sigma: Floats) -> Measured:
        """Return the parts of the uncertainty of numbers; NaN for rows so far away that there is no prediction."""
        lost = np.isnan(value).any(axis=1, keepdims=True)
        ends = {"center": self.embedding_.center_, "spread": self.embedding_.spread_}
        known = frames.measure(places, np.where(lost, 0.0, value), np.where(lost, 0.0, sigma), **ends)
        return known._replace(noise=np.where(lost, np.nan, known.noise), sigma=np.where(lost, np.nan, known.sigma))

    @property
    def _frames(self) -> Frames | None:
        return self._solve().frames

    def _check_rows(self, X: Any, *, fitting: bool = False) -> Floats:
        check_no_gradient(X=X)
        rows = check_rows(self, X, fitting=fitting, allow_nan=False)
        with wrap_errors():
            return np.ascontiguousarray(rows, dtype=np.float64)
