"""HUQ: two scores in one ranking. Made for text classification; runs on any features."""

from __future__ import annotations

from itertools import product
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from onsphere.baselines import MSP, Detector, Mahalanobis
from onsphere.metrics import aurc
from reproduction.arguments import Floats

__all__ = ["HUQ", "huq"]

# The values of delta_min, delta_max and alpha that the released code searches.
_GRID = list(product((0.0, 0.05, 0.1, 0.15), (0.95, 1.0), np.linspace(0.0, 1.0, 11)))


def huq(
    epistemic: Floats,
    aleatoric: Floats,
    train_epistemic: Floats,
    train_aleatoric: Floats,
    *,
    delta_min: float = 0.1,
    delta_max: float = 0.9,
    alpha: float = 0.1,
) -> Floats:
    """Return two uncertainties combined in one ranking, shape (n,), with values in [0, 1].

    A rank is the share of training rows below, ties counted by half. Rows of an epistemic rank up to `delta_min` are
    known: they are ranked by ambiguity among themselves, as shares of all training rows, and those with an ambiguity
    rank above `delta_max` by that rank. All others get (1 − α) times their epistemic and α times their ambiguity rank.

    Parameters
    ----------
    epistemic, aleatoric : arrays of shape (n,)
    train_epistemic, train_aleatoric : arrays of shape (m,)
        The same scores of the training rows.
    delta_min, delta_max, alpha : floats in [0, 1]

    Examples
    --------
    >>> import numpy as np
    >>> train = np.arange(10.0)
    >>> huq(np.array([9.5, 0.0]), np.array([0.0, 9.5]), train, train, delta_min=0.5, alpha=0.2).round(3)
    array([0.81, 1.  ])
    """
    strange, ambiguous = _rank(epistemic, train_epistemic), _rank(aleatoric, train_aleatoric)
    is_known = strange <= delta_min
    among_known = train_aleatoric[_rank(train_epistemic, train_epistemic) <= delta_min]
    rank_among_known = _rank(aleatoric, among_known) * len(among_known) / len(train_aleatoric)
    mixed = (1.0 - alpha) * strange + alpha * ambiguous
    return np.where(is_known, np.where(ambiguous > delta_max, ambiguous, rank_among_known), mixed)


def _rank(values: Floats, among: Floats) -> Floats:
    ordered = np.sort(among)
    below = np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right")
    return below / (2.0 * max(len(ordered), 1))


class HUQ(Detector):
    """Hybrid uncertainty: strange rows ranked by strangeness, ordinary rows by ambiguity.

    A score of distance cannot see that an ordinary row is between two classes, and one of probabilities cannot see
    that a row is strange. Each is used where it is good, and brought to one scale by ranks.

    Vazhentsev, Kuzmin, Tsvigun, Panchenko, Panov, Burtsev and Shelmanov, "Hybrid Uncertainty Quantification for
    Selective Text Classification in Ambiguous Tasks", ACL 2023. There ranks are taken among the rows to be judged;
    here they are taken among the training rows, or those given to `tune`, so that a row's score does not depend on the
    other rows. The three numbers are given, or searched by `tune` as in that paper.

    Cost: that of both detectors, and a sorted list of the training rows' scores. Fails where training rows look far
    more certain than new ones: most new rows then share the highest ranks, unless `tune` has set that right.

    Parameters
    ----------
    epistemic : Detector, optional
        Measures strangeness; by default `Mahalanobis()`. `KNN()` measures density.
    aleatoric : Detector, optional
        Measures ambiguity; by default `MSP()`.
    delta_min : float in [0, 1], default 0.1
        Rows up to this rank of strangeness are known.
    delta_max : float in [0, 1], default 0.9
        Known rows above this rank of ambiguity keep it.
    alpha : float in [0, 1], default 0.1
        Weight of ambiguity in all other rows.

    Attributes
    ----------
    epistemic_, aleatoric_ : Detector
    delta_min_, delta_max_, alpha_ : float
        Those given, or found by `tune`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> features = rng.normal(size=(200, 2)) + 5.0 * np.eye(2)[labels]
    >>> detector = HUQ(delta_min=0.5).fit(features, features, labels)
    >>> rows = [[5.0, 99.0], [5.0, 0.0]]
    >>> strange, ordinary = detector.score(rows, rows)
    >>> bool(strange > ordinary)
    True
    """

    epistemic_: Detector
    aleatoric_: Detector
    delta_min_: float
    delta_max_: float
    alpha_: float

    def __init__(
        self,
        epistemic: Detector | None = None,
        aleatoric: Detector | None = None,
        *,
        delta_min: float = 0.1,
        delta_max: float = 0.9,
        alpha: float = 0.1,
    ) -> None:
        self.epistemic = epistemic
        self.aleatoric = aleatoric
        self.delta_min = delta_min
        self.delta_max = delta_max
        self.alpha = alpha

    def _fit(self, features: Floats, logits: Floats, label_index: NDArray[np.intp]) -> None:
        self.epistemic_ = _copy(self.epistemic, Mahalanobis())
        self.aleatoric_ = _copy(self.aleatoric, MSP())
        for part in (self.epistemic_, self.aleatoric_):
            part.fit(features, logits, label_index)
        self._ranked = self._score_parts(features, logits)
        self.delta_min_, self.delta_max_, self.alpha_ = self.delta_min, self.delta_max, self.alpha

    def tune(self, features: ArrayLike, logits: ArrayLike, labels: ArrayLike) -> Self:
        """Choose the three numbers on rows that the classifier was not trained on, and take ranks among these rows.

        The numbers are those of a grid by which mistakes of the classifier rank highest: the area under its
        risk–coverage curve is smallest. No foreign rows are needed.

        Parameters
        ----------
        features, logits, labels : as in `fit`

        Returns
        -------
        self
        """
        tables: Any = np.asarray(features, dtype=np.float64), np.asarray(logits, dtype=np.float64)
        self._ranked = self._score_parts(*tables)
        is_wrong = (self.classes_[tables[1].argmax(axis=1)] != np.asarray(labels)).astype(np.float64)
        self.delta_min_, self.delta_max_, self.alpha_ = min(
            _GRID, key=lambda chosen: aurc(is_wrong, _rank_hybrid(self._ranked, self._ranked, chosen))
        )
        return self

    def _score_parts(self, features: Floats, logits: Floats) -> list[Floats]:
        return [part.score(features, logits) for part in (self.epistemic_, self.aleatoric_)]

    def _score(self, features: Floats, logits: Floats) -> Floats:
        chosen = self.delta_min_, self.delta_max_, self.alpha_
        return _rank_hybrid(self._score_parts(features, logits), self._ranked, chosen)


def _rank_hybrid(scores: list[Floats], among: list[Floats], chosen: tuple[float, float, float]) -> Floats:
    delta_min, delta_max, alpha = chosen
    return huq(*scores, *among, delta_min=delta_min, delta_max=delta_max, alpha=alpha)


def _copy(given: Detector | None, default: Detector) -> Detector:
    fresh: Any = clone(default if given is None else given)
    return fresh
