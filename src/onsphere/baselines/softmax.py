"""Detectors that use logits alone: nothing is learned, and features do not count.

They see how sure the classifier is, not how far a row lies from the training rows: a row far out in the direction of
one class looks surer than any of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr, logsumexp, softmax

from onsphere._internal.validation import Floats, check_number
from onsphere.baselines.detector import Detector, Indices, check_table

__all__ = ["MSP", "Energy", "Entropy", "Gini", "energy", "entropy", "gini", "msp"]


def msp(logits: ArrayLike, *, temperature: float = 1.0) -> Floats:
    """Return one minus the largest softmax probability of logits/T, shape (n,).

    Examples
    --------
    >>> msp([[0.0, 0.0], [100.0, 0.0]]).round(3)
    array([0.5, 0. ])
    """
    check_number("msp", "temperature", temperature, above=0.0)
    scaled = check_table("msp", "logits", logits) / temperature
    # The other probabilities added up, because 1 − p would lose all digits where p is close to 1.
    probabilities = softmax(scaled, axis=1)
    np.put_along_axis(probabilities, scaled.argmax(axis=1)[:, None], 0.0, axis=1)
    return probabilities.sum(axis=1)


def energy(logits: ArrayLike, *, temperature: float = 1.0) -> Floats:
    """Return −T·log Σ exp(logits/T), shape (n,).

    Examples
    --------
    >>> energy([[0.0, 0.0], [100.0, 0.0]]).round(3)
    array([  -0.693, -100.   ])
    """
    check_number("energy", "temperature", temperature, above=0.0)
    return -temperature * np.asarray(logsumexp(check_table("energy", "logits", logits) / temperature, axis=1))


def gini(logits: ArrayLike) -> Floats:
    """Return the Gini impurity of the softmax, 1 − Σ p², shape (n,).

    Examples
    --------
    >>> gini([[0.0, 0.0], [100.0, 0.0]]).round(3)
    array([0.5, 0. ])
    """
    probabilities = softmax(check_table("gini", "logits", logits), axis=1)
    # Σ p(1 − p) with 1 − p as the sum of the others, for the same reason as in `msp`.
    highest = probabilities.argmax(axis=1)[:, None]
    top = np.take_along_axis(probabilities, highest, axis=1)[:, 0]
    np.put_along_axis(probabilities, highest, 0.0, axis=1)
    rest = probabilities.sum(axis=1)
    return top * rest + np.sum(probabilities * (1.0 - probabilities), axis=1)


def entropy(logits: ArrayLike) -> Floats:
    """Return the entropy of the softmax in nats, −Σ p·log p, shape (n,).

    Examples
    --------
    >>> entropy([[0.0, 0.0], [100.0, 0.0]]).round(3)
    array([0.693, 0.   ])
    """
    return np.asarray(entr(softmax(check_table("entropy", "logits", logits), axis=1)).sum(axis=1))


class MSP(Detector):
    """Maximum softmax probability: one minus the probability of the predicted class.

    Classifiers are usually less sure of rows that they get wrong and of rows unlike those they have seen. This is the
    baseline that every other detector has to beat.

    Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural
    Networks", ICLR 2017.

    Cost: nothing to fit, O(C) per row. Fails where networks are sure of unusual inputs, as ReLU networks are far from
    their training rows.

    Parameters
    ----------
    temperature : float, default 1.0
        Logits are divided by it.

    Examples
    --------
    >>> import numpy as np
    >>> features, logits = np.zeros((2, 3)), np.array([[2.0, 2.0], [5.0, 0.0]])
    >>> MSP().fit(features, logits, [0, 1]).score(features, logits).round(3)
    array([0.5  , 0.007])
    """

    def __init__(self, *, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def _fit(self, features: Floats, logits: Floats, label_index: Indices) -> None:
        check_number(self, "temperature", self.temperature, above=0.0)

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return msp(logits, temperature=self.temperature)


class Energy(Detector):
    """Energy: −T·log Σ exp(logits/T).

    The softmax drops the size of the logits, which is large where there were many training rows; the energy keeps it
    and behaves like a negative log-density.

    Liu, Wang, Owens and Li, "Energy-based Out-of-distribution Detection", NeurIPS 2020.

    Cost: nothing to fit, O(C) per row. Fails where unusual inputs have large logits, and does not see that two
    classes are equally likely.

    Parameters
    ----------
    temperature : float, default 1.0

    Examples
    --------
    >>> import numpy as np
    >>> features, logits = np.zeros((2, 3)), np.array([[1.0, 1.0], [9.0, 9.0]])
    >>> Energy().fit(features, logits, [0, 1]).score(features, logits).round(3)
    array([-1.693, -9.693])
    """

    def __init__(self, *, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def _fit(self, features: Floats, logits: Floats, label_index: Indices) -> None:
        check_number(self, "temperature", self.temperature, above=0.0)

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return energy(logits, temperature=self.temperature)


class Gini(Detector):
    """Gini impurity of the softmax: 1 − Σ p².

    The probability that two labels drawn from the predicted distribution differ. With the probabilities as a direction
    it is one minus a squared length, so it is the plain baseline for HCM.

    Granese, Romanelli, Gorla, Palamidessi and Piantanida, "DOCTOR: A Simple Method for Detecting Misclassification
    Errors", NeurIPS 2021 (its score is a monotone function of Σ p²).

    Cost: nothing to fit, O(C) per row. Fails where MSP fails.

    Examples
    --------
    >>> import numpy as np
    >>> features, logits = np.zeros((2, 3)), np.array([[2.0, 2.0], [5.0, 0.0]])
    >>> Gini().fit(features, logits, [0, 1]).score(features, logits).round(3)
    array([0.5  , 0.013])
    """

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return gini(logits)


class Entropy(Detector):
    """Entropy of the softmax: −Σ p·log p.

    Unlike MSP it looks at all classes: a row between three classes counts as less certain than one between two.

    Shannon, "A Mathematical Theory of Communication", Bell System Technical Journal, 1948.

    Cost: nothing to fit, O(C) per row. Fails where MSP fails.

    Examples
    --------
    >>> import numpy as np
    >>> features, logits = np.zeros((2, 3)), np.array([[2.0, 2.0], [5.0, 0.0]])
    >>> Entropy().fit(features, logits, [0, 1]).score(features, logits).round(3)
    array([0.693, 0.04 ])
    """

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return entropy(logits)
