"""What a frozen head regresses on, and how its answers are read: classes on axes, or numbers lifted on a sphere.

Both classes have the same names in the same order. Targets and answers are tables, one row per sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_labels, check_regression_target
from onsphere.calibration import ClassCalibration, RegressionCalibration
from onsphere.errors import InvalidInputError
from onsphere.models.answers import SIGMA_FLOOR
from onsphere.models.backbone import from_columns, to_columns
from onsphere.models.classifier import nearest_probabilities
from onsphere.sphere import Lift, OneHot, geometry, scores
from onsphere.sphere.geometry import SphericalOutput

__all__ = ["ClassTarget", "NumberTarget", "Target", "is_classification", "of_kind"]


@dataclass(frozen=True, eq=False)
class ClassTarget:
    """Labels, each an axis of the sphere; the score is how far ‖d‖ is from that of a row beyond doubt."""

    embedding: OneHot

    @classmethod
    def fit(cls, owner: object, y: Any, classes: Any) -> ClassTarget:
        """With the classes that are given or, without, those in y."""
        labels = check_labels(owner, y if classes is None else classes)
        found = np.unique(labels).tolist()
        if len(found) < 2:
            raise InvalidInputError(
                f"{type(owner).__name__} needs at least two classes in y. Got {found}. "
                "Add rows of another class: with one class there is nothing to tell apart."
            )
        return cls(OneHot().fit(labels))

    @property
    def identity(self) -> dict[str, Any]:
        """What two heads must share for their sums to mean the same."""
        return {"classes": self.embedding.classes_}

    @property
    def width(self) -> int:
        """Columns of a table."""
        return len(self.embedding.classes_)

    def table(self, owner: object, y: Any) -> Floats:
        return to_columns(self.embedding.embed(check_labels(owner, y)), magnitude=False, mean=False)

    def read(self, table: Floats) -> SphericalOutput:
        return from_columns(table, n_outputs=len(self.embedding.classes_), magnitude=False, mean=False)

    def reach(self, outputs: SphericalOutput) -> float:
        """The length that 99 % of ordinary directions stay below; a longer one extrapolates."""
        return float(np.quantile(geometry.norm(outputs.direction), 0.99))

    def score(self, outputs: SphericalOutput, reach: float) -> Floats:
        return abs(reach - geometry.norm(outputs.direction))

    def error(self, outputs: SphericalOutput, truth: SphericalOutput) -> float:
        """The share of wrong classes."""
        return float(np.mean(self._wrong(outputs, truth)))

    def value(self, outputs: SphericalOutput) -> NDArray[Any]:
        return self.embedding.decode(outputs)

    def probabilities(self, outputs: SphericalOutput) -> Floats:
        # Where there is no direction, all classes are equally likely.
        return nearest_probabilities(np.nan_to_num(outputs.direction, nan=0.0))

    def details(self, outputs: SphericalOutput) -> dict[str, Any]:
        names = tuple(str(label) for label in self.embedding.classes_)
        return {"probabilities": self.probabilities(outputs), "output_names": names}

    def limits(self, outputs: SphericalOutput, calibration: Any, coverage: float) -> dict[str, Any]:
        """What a calibration adds: the set of classes."""
        return {"prediction_set": calibration.prediction_set(self.probabilities(outputs), coverage=coverage)}

    def measure(self, outputs: SphericalOutput, truth: SphericalOutput, uncertainty: Floats) -> ClassCalibration:
        return ClassCalibration.measure(
            probabilities=self.probabilities(outputs),
            true_index=truth.direction.argmax(axis=1),
            uncertainty=uncertainty,
            wrong=self._wrong(outputs, truth).astype(np.float64),
        )

    def _wrong(self, outputs: SphericalOutput, truth: SphericalOutput) -> NDArray[np.bool_]:
        return outputs.direction.argmax(axis=1) != truth.direction.argmax(axis=1)


@dataclass(frozen=True, eq=False)
class NumberTarget:
    """Numbers, lifted on a sphere; the score is u + a, in the unit of the target."""

    embedding: Lift
    is_flat: bool

    @classmethod
    def fit(cls, owner: object, y: Any) -> NumberTarget:
        """With centre and scale of these targets."""
        target = check_regression_target(owner, y)
        return cls(Lift().fit(target), target.ndim == 1)

    @property
    def identity(self) -> dict[str, Any]:
        """What two heads must share for their sums to mean the same."""
        return {"centre of the target": self.embedding.center_, "scale of the target": self.embedding.scale_}

    @property
    def width(self) -> int:
        """Columns of a table."""
        n_outputs = self.embedding.n_outputs_
        return self.embedding.direction_width(n_outputs) + 1 + n_outputs

    def table(self, owner: object, y: Any) -> Floats:
        return to_columns(self.embedding.embed(check_regression_target(owner, y)), magnitude=True, mean=True)

    def read(self, table: Floats) -> SphericalOutput:
        return from_columns(table, n_outputs=self.embedding.n_outputs_, magnitude=True, mean=True)

    def reach(self, outputs: SphericalOutput) -> float:
        """The length of every true direction."""
        return 1.0

    def score(self, outputs: SphericalOutput, reach: float) -> Floats:
        return scores.anchored(outputs, self.embedding.anchor) * self.embedding.unit_

    def error(self, outputs: SphericalOutput, truth: SphericalOutput) -> float:
        """Mean squared error of the standardised target."""
        return float(np.mean((np.asarray(outputs.mean) - np.asarray(truth.mean)) ** 2))

    def value(self, outputs: SphericalOutput) -> Floats:
        return self._shaped(self.embedding.decode(outputs, decoder="mean"))

    def sigma(self, outputs: SphericalOutput) -> Floats:
        return self._shaped(self.embedding.sigma(outputs))

    def details(self, outputs: SphericalOutput) -> dict[str, Any]:
        residual = scores.anchor_residual(outputs, self.embedding.anchor)
        return {"sigma": self.sigma(outputs), "anchor_residual": residual}

    def limits(self, outputs: SphericalOutput, calibration: Any, coverage: float) -> dict[str, Any]:
        """What a calibration adds: both ends of an interval."""
        value = self.embedding.decode(outputs, decoder="mean")
        interval = self._shaped(calibration.interval(value, self._interval_sigma(outputs), coverage=coverage))
        return {"lower": interval[..., 0], "upper": interval[..., 1]}

    def measure(self, outputs: SphericalOutput, truth: SphericalOutput, uncertainty: Floats) -> RegressionCalibration:
        decode = self.embedding.decode
        return RegressionCalibration.measure(
            residual=decode(truth, decoder="mean") - decode(outputs, decoder="mean"),
            sigma=self._interval_sigma(outputs),
            uncertainty=uncertainty,
            spread=self.embedding.spread_,
        )

    def _interval_sigma(self, outputs: SphericalOutput) -> Floats:
        return self.embedding.sigma(outputs) + SIGMA_FLOOR * self.embedding.spread_

    def _shaped(self, values: Floats) -> Floats:
        return values[:, 0] if self.is_flat else values


Target = ClassTarget | NumberTarget

_T = TypeVar("_T", ClassTarget, NumberTarget)


def is_classification(y: Any, task: str) -> bool:
    """Whether a target is of classes: as the task says or, for "auto", unless it holds floats or several columns."""
    if task != "auto":
        return task == "classification"
    given = np.asarray(y)
    return not (given.dtype.kind == "f" or (given.ndim > 1 and given.shape[1] > 1))


def of_kind(kind: type[_T], target: Target) -> _T:
    """The target, which must be of this kind."""
    if not isinstance(target, kind):
        wanted, got = ("classes", "numbers") if kind is ClassTarget else ("numbers", "classes")
        raise InvalidInputError(
            f"This needs a FrozenHead that was fitted on {wanted}. Got one fitted on {got}. Set the 'task' parameter, "
            "which is 'auto' by default, to say what the target is."
        )
    return target
