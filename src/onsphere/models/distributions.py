"""Questions about the distribution of numbers that a model predicts; each answer takes one pass."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from onsphere._internal.validation import Floats
from onsphere.calibration import GroupedDistribution, PredictiveDistribution, Shape
from onsphere.calibration.zeros import LEAST_SHARE, ZeroShape
from onsphere.errors import InvalidInputError
from onsphere.models.base import CalibratedModel
from onsphere.sphere import Domain

__all__ = ["DistributionMixin"]


class DistributionMixin(CalibratedModel):
    """Quantiles, probabilities and draws of a calibrated model; see `PredictiveDistribution` for each.

    `groups` is that of `predict_interval`: the group of each row, if they were given as values to `calibrate`.
    """

    domain_: Domain | None = None
    _shape: Shape | ZeroShape | None = None

    @abstractmethod
    def predict_distribution(self, X: Any, *, groups: Any = None) -> PredictiveDistribution | GroupedDistribution:
        """Return the distribution of the target of each row."""

    def predict_quantiles(self, X: Any, q: ArrayLike, *, groups: Any = None) -> Floats:
        """Return the quantiles of the target at levels q, shape (n, Q) or (n, D, Q); they never cross."""
        return self.predict_distribution(X, groups=groups).quantiles(q)

    def predict_cdf(self, X: Any, y: ArrayLike, *, groups: Any = None) -> Floats:
        """Return the probability that the target is at or below y, a number or one for each row, in its shape."""
        return self.predict_distribution(X, groups=groups).cdf(y)

    def predict_pdf(self, X: Any, y: ArrayLike, *, groups: Any = None) -> Floats:
        """Return the smoothed density of the target at y, a number or one for each row, in its shape."""
        return self.predict_distribution(X, groups=groups).pdf(y)

    def predict_median(self, X: Any, *, groups: Any = None) -> Floats:
        """Return the median of the distribution of each row, in the shape of the target."""
        return self.predict_distribution(X, groups=groups).median()

    def predict_mean(self, X: Any, *, groups: Any = None) -> Floats:
        """Return the mean of the distribution of each row, in the shape of the target."""
        return self.predict_distribution(X, groups=groups).mean()

    def predict_zero_probability(self, X: Any, *, groups: Any = None) -> Floats:
        """Return the probability that the target is 0, in its shape; it is that of `predict_cdf` and of draws.

        For whole numbers, and for targets in a domain that begins at 0 which were 0 in at least 5 % of 200 training
        rows or more. Where the errors of left-out rows do not lead to enough zeros, trees learn it from the rows.
        """
        distribution, domain = self.predict_distribution(X, groups=groups), self.domain_ or Domain()
        if domain.low != 0 or not (domain.is_whole or isinstance(self._shape, ZeroShape)):
            raise InvalidInputError(
                "predict_zero_probability needs a domain that begins at 0, and whole numbers or a model with an error "
                f"frame and 200 training rows or more, of which {LEAST_SHARE:.0%} or more are 0. Got "
                f"{'no such domain' if domain.low != 0 else f'{domain.share_zero:.1%} of zeros'}. Fit on such rows "
                "with domain='positive', or ask predict_cdf for the probability of a small number."
            )
        return distribution.cdf(0.0)

    def sample(
        self, X: Any, n: int = 1, *, groups: Any = None, random_state: int | np.random.RandomState | None = None
    ) -> Floats:
        """Draw n targets for each row, shape (n, rows) or (n, rows, D); outputs of a draw belong together."""
        return self.predict_distribution(X, groups=groups).sample(n, random_state=random_state)
