"""The columns that a frozen head regresses on, and how far what it predicts lies off the sphere.

Both classes have the same names in the same order. Targets and predictions are tables, one row per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_at_least_two_classes, check_labels, check_regression_target
from onsphere.models.backbone import join_columns, split_columns
from onsphere.models.frozen.survey import Moments
from onsphere.models.noise import N_ROWS_NEEDED, ErrorFrame, fit_error_frame
from onsphere.sphere import Lift, OneHot, RegressionEmbedding, geometry, scores
from onsphere.sphere.geometry import Array, SphericalOutput

__all__ = ["ClassTarget", "NumberTarget", "Target"]


@dataclass(frozen=True, eq=False)
class ClassTarget:
    """Labels, each an axis of the sphere; the score is how far ‖d‖ is from that of a row beyond doubt."""

    embedding: OneHot

    @classmethod
    def fit(cls, owner: object, classes: NDArray[Any]) -> ClassTarget:
        """Return a target with these classes, each of which comes once."""
        check_at_least_two_classes(owner, classes)
        return cls(OneHot().fit(classes))

    @property
    def identity(self) -> dict[str, Any]:
        """Everything two heads must share before their sums can be added."""
        return {"classes": self.embedding.classes_}

    @property
    def width(self) -> int:
        """Columns of a table."""
        return len(self.embedding.classes_)

    def make_table(self, owner: object, y: Any) -> Floats:
        """Return the columns to regress on."""
        return join_columns(self.embedding.embed(check_labels(owner, y)), magnitude=False, mean=False)

    def read_table(self, table: Floats) -> SphericalOutput:
        """Split columns that were predicted."""
        return split_columns(table, n_outputs=self.width, magnitude=False, mean=False)

    def find_reach(self, outputs: SphericalOutput) -> float:
        """Return the length that 99 % of ordinary directions stay below; a longer one extrapolates."""
        return float(np.quantile(geometry.norm(outputs.direction), 0.99))

    def score(self, outputs: SphericalOutput, reach: float) -> Floats:
        """Return how far each direction is from the reach."""
        return abs(reach - geometry.norm(outputs.direction))

    def compute_error(self, outputs: SphericalOutput, truth: SphericalOutput) -> float:
        """Return the share of wrong classes."""
        return float(np.mean(outputs.direction.argmax(axis=1) != truth.direction.argmax(axis=1)))

    def fit_noise(
        self, fitted: Floats, leave_out: Callable[[], Floats], table: Floats, places: Floats, missed: Floats | None
    ) -> ErrorFrame | None:
        """Return None: the noise of classes is read off the direction."""


@dataclass(frozen=True, eq=False)
class NumberTarget:
    """Numbers, lifted on a sphere; the score is u + a, in the unit of the target."""

    embedding: RegressionEmbedding
    is_flat: bool

    @classmethod
    def make(cls, moments: Moments) -> NumberTarget:
        """Return a target with this centre and scale."""
        return cls(moments.make_embedding(), moments.is_flat)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything two heads must share before their sums can be added."""
        return {"centre of the target": self.embedding.center_, "scale of the target": self.embedding.scale_}

    @property
    def width(self) -> int:
        """Columns of a table."""
        n_outputs = self.embedding.n_outputs_
        return self.embedding.direction_width(n_outputs) + 1 + n_outputs

    def make_table(self, owner: object, y: Any) -> Floats:
        """Return the columns to regress on."""
        return join_columns(self.embedding.embed(check_regression_target(owner, y)), magnitude=True, mean=True)

    def read_table(self, table: Floats) -> SphericalOutput:
        """Split columns that were predicted."""
        return split_columns(table, n_outputs=self.embedding.n_outputs_, magnitude=True, mean=True)

    def find_reach(self, outputs: SphericalOutput) -> float:
        """Return the length of every true direction."""
        return 1.0

    def score(self, outputs: SphericalOutput, reach: float) -> Floats:
        """Return u + a of each row; u for an embedding without an anchor."""
        return self.score_relatively(outputs) * self.embedding.unit_

    def score_relatively(self, outputs: SphericalOutput) -> Array:
        """Return the same in standardised units; numpy or torch."""
        if isinstance(self.embedding, Lift):
            return scores.anchored(outputs, self.embedding.anchor)
        return self.embedding.relative_uncertainty(outputs)

    def compute_error(self, outputs: SphericalOutput, truth: SphericalOutput) -> float:
        """Return the mean squared error of the standardised target."""
        return float(np.mean((np.asarray(outputs.mean) - np.asarray(truth.mean)) ** 2))

    def fit_noise(
        self, fitted: Floats, leave_out: Callable[[], Floats], table: Floats, places: Floats, missed: Floats | None
    ) -> ErrorFrame | None:
        """Return what was learned from the errors on rows that were left out; None for too few rows.

        Parameters
        ----------
        fitted : array of shape (n, width)
            The columns predicted for each row. The trees see these and not those left out, which tell the error of a
            row by how far they lie from those of its like.
        leave_out : callable
            Gives the columns predicted for each row without it.
        table : array of shape (n, width)
            The true columns.
        places : array of shape (n, q)
            The rows as the frames see them.
        missed : array of shape (n,) or None
            Their shortfalls, each without itself.
        """
        if len(table) < N_ROWS_NEEDED:
            return None
        outputs, left_out, truth = (self.read_table(each) for each in (fitted, leave_out(), table))
        value, alone, target = (self.embedding.decode(each, decoder="mean") for each in (outputs, left_out, truth))
        return fit_error_frame(
            places,
            value,
            self.embedding.sigma(outputs),
            value + (target - alone),
            missed,
            spread=self.embedding.spread_,
            learns=True,
            stretches=True,
            random_state=0,
        )


Target = ClassTarget | NumberTarget
