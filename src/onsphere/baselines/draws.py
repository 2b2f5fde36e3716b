"""Several answers to one question, of members of an ensemble or passes of one network: their mean and spread."""

from __future__ import annotations

import numpy as np
from scipy.special import entr, rel_entr

from onsphere._internal.validation import Floats
from onsphere.calibration import root_mean_square
from onsphere.models.classifier import ClassPrediction
from onsphere.models.regressor import RegressionPrediction

__all__ = ["CLASS_SCORES", "combine_class_draws", "combine_draws", "disagreement"]

CLASS_SCORES = ("entropy", "disagreement")


def combine_draws(values: Floats, sigmas: Floats | None = None) -> RegressionPrediction:
    """The mean; its variance is that of the values and, where draws have a sigma of their own, the mean of its square.

    Parameters
    ----------
    values : array of shape (m, n, D)
    sigmas : array of shape (m, n, D), optional

    Examples
    --------
    >>> import numpy as np
    >>> answer = combine_draws(np.array([[[1.0]], [[7.0]]]), sigmas=np.array([[[4.0]], [[4.0]]]))
    >>> float(answer.value[0, 0]), float(answer.sigma[0, 0]), float(answer.uncertainty[0])
    (4.0, 5.0, 5.0)
    """
    value = values.mean(axis=0)
    sigma = _root_mean_square_of_draws(values - value)
    if sigmas is not None:
        sigma = np.hypot(sigma, _root_mean_square_of_draws(sigmas))
    return RegressionPrediction(value, sigma, root_mean_square(sigma), {})


def combine_class_draws(probabilities: Floats, uncertainty_score: str) -> ClassPrediction:
    """The mean of the probabilities, with its entropy or the disagreement as uncertainty.

    Parameters
    ----------
    probabilities : array of shape (m, n, C)
    uncertainty_score : {"entropy", "disagreement"}

    Examples
    --------
    >>> import numpy as np
    >>> answer = combine_class_draws(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]), "entropy")
    >>> answer.probabilities.tolist(), answer.uncertainty.round(3).tolist()
    ([[0.5, 0.5]], [0.693])
    """
    mean = probabilities.mean(axis=0)
    score = entr(mean).sum(axis=1) if uncertainty_score == "entropy" else disagreement(probabilities)
    return ClassPrediction(mean.argmax(axis=1), mean, score, {})


def disagreement(probabilities: Floats) -> Floats:
    """Mutual information of the class and the draw, in nats: the entropy of the mean minus the mean entropy.

    0 where all draws say the same, however unsure they are.

    Parameters
    ----------
    probabilities : array of shape (m, n, C)

    Returns
    -------
    array of shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> disagreement(np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])).round(3).tolist()
    [0.693, 0.0]
    """
    # As the mean divergence from the mean: a difference of two entropies would lose its digits where it is small.
    divergence = rel_entr(probabilities, probabilities.mean(axis=0)).sum(axis=2).mean(axis=0)
    return np.maximum(divergence, 0.0)


# Until reproduction/ uses the public names.
numbers_from_draws, classes_from_draws = combine_draws, combine_class_draws


def _root_mean_square_of_draws(values: Floats) -> Floats:
    return root_mean_square(np.moveaxis(values, 0, -1))
