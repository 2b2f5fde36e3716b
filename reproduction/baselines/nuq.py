"""NUQ: a kernel estimate of class probabilities around each row. Made for text classification; runs on any features."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.neighbors import NearestNeighbors

from onsphere.baselines import Detector
from reproduction.arguments import Floats, check_option

__all__ = ["NUQ", "nuq"]

# The bandwidth is chosen on no more rows than these, spread evenly over the training rows, among this many values.
_ROWS_FOR_BANDWIDTH = 2000
_N_BANDWIDTHS = 5


def nuq(
    log_kernel: Floats,
    neighbour_labels: NDArray[np.intp],
    frequencies: Floats,
    n_features: int,
    *,
    prior_weight: float = 1.0,
) -> tuple[Floats, Floats]:
    """Return the logarithms of the aleatoric and the epistemic uncertainty, each of shape (n,).

    With the Nadaraya–Watson estimate η of the class probabilities, the first is log(1 − max η) and the second
    log(2·√(2/π)·τ), where τ² = η(1 − η)·‖K‖² / (n·hᵈ·density) is the variance of the estimate for the likeliest class.

    Parameters
    ----------
    log_kernel : array of shape (n, k)
        −‖x − x_i‖²/(2h²) for the k nearest training rows, of a normalised Gaussian kernel.
    neighbour_labels : array of shape (n, k)
        Their classes, as numbers.
    frequencies : array of shape (C,)
        Of the classes among all training rows.
    n_features : int
    prior_weight : float, default 1.0
        The number of extra neighbours at distance 0, shared among all classes by their frequencies, in η.

    Examples
    --------
    >>> import numpy as np
    >>> near, far = np.zeros((1, 3)), np.full((1, 3), -1e6)
    >>> labels, frequencies = np.array([[0, 0, 1]]), np.array([0.5, 0.5])
    >>> np.exp(nuq(near, labels, frequencies, 2)[0]).round(3)  # (1 + 0.5) / (3 + 1)
    array([0.375])
    >>> nuq(far, labels, frequencies, 2)[1].round()
    array([499999.])
    """
    mass = _weigh_classes(log_kernel, neighbour_labels, frequencies, prior_weight)
    total = mass.sum(axis=1)
    best = mass.argmax(axis=1)[:, None]
    likeliest = np.take_along_axis(mass, best, axis=1)[:, 0]
    np.put_along_axis(mass, best, 0.0, axis=1)
    log_other = np.log(mass.sum(axis=1)) - np.log(total)
    # n·hᵈ·density is the sum of the kernel. Its square integral over its height, for the Gaussian, is 2^(−d/2).
    log_variance = (
        np.log(likeliest) - np.log(total) + log_other - 0.5 * n_features * math.log(2) - logsumexp(log_kernel, axis=1)
    )
    return log_other, 1.5 * math.log(2) - 0.5 * math.log(math.pi) + 0.5 * np.asarray(log_variance)


class NUQ(Detector):
    """Nonparametric uncertainty: a kernel estimate of class probabilities, and how far it can itself be trusted.

    The share of other classes around a row is its ambiguity; where training rows are few, the estimate has a large
    variance, which is added, or is the score itself. All is computed in logarithms, so that the score grows without
    bound far from the data.

    Kotelevskii, Artemenkov, Fedyanin, Noskov, Fishkov, Shelmanov, Vazhentsev, Petiushko and Panov, "Nonparametric
    Uncertainty Quantification for Single Deterministic Neural Network", NeurIPS 2022.

    Cost: all training rows are stored, O(np) per row. Fails with many noisy features, where all rows are about equally
    far, and where classes differ in density, because there is one bandwidth.

    Parameters
    ----------
    n_neighbors : int, default 20
    bandwidth : float, optional
        Standard deviation of the Gaussian kernel. By default it is chosen as in the paper's code: of five values
        between the mean distances of training rows to their nearest and to their farthest neighbour, the (smallest) one
        with which most training rows are classified right from their neighbours.
    prior_weight : float, default 1.0
        The number of extra rows assumed at each place, of all classes by their frequencies. It keeps probabilities
        away from 0 and 1.
    kind : {"total", "epistemic"}, default "total"
        The sum of ambiguity and variance, or the variance alone, by which the paper finds foreign rows.

    Attributes
    ----------
    bandwidth_ : float
    frequencies_ : array of shape (C,)

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> features = rng.normal(size=(200, 3)) + 5.0 * labels[:, None]
    >>> detector = NUQ().fit(features, features[:, :2], labels)
    >>> far, between, inside = detector.score([[99.0] * 3, [2.5] * 3, [5.0] * 3], np.zeros((3, 2)))
    >>> bool(far > between > inside)
    True
    """

    bandwidth_: float
    frequencies_: Floats

    def __init__(
        self,
        *,
        n_neighbors: int = 20,
        bandwidth: float | None = None,
        prior_weight: float = 1.0,
        kind: str = "total",
    ) -> None:
        self.n_neighbors = n_neighbors
        self.bandwidth = bandwidth
        self.prior_weight = prior_weight
        self.kind = kind

    def _fit(self, features: Floats, logits: Floats, label_index: NDArray[np.intp]) -> None:
        check_option("NUQ", "kind", self.kind, ("total", "epistemic"))
        self._labels = label_index
        self._rows = features
        self.frequencies_ = np.bincount(label_index, minlength=logits.shape[1]) / len(features)
        self._neighbours = NearestNeighbors(n_neighbors=self.n_neighbors, algorithm="brute").fit(features)
        self.bandwidth_ = self._choose_bandwidth() if self.bandwidth is None else float(self.bandwidth)

    def _choose_bandwidth(self) -> float:
        some = np.arange(0, len(self._rows), math.ceil(len(self._rows) / _ROWS_FOR_BANDWIDTH))
        # One neighbour more, because each row is its own nearest.
        distances, nearest = self._neighbours.kneighbors(self._rows[some], n_neighbors=self.n_neighbors + 1)
        low, high = distances[:, 1].mean(), distances[:, -1].mean()
        # Rows that coincide have no distances to go by; any bandwidth serves them.
        grid = [width for width in np.linspace(low, high, _N_BANDWIDTHS) if width > 0.0] or [1.0]
        labels = self._labels[nearest[:, 1:]]
        kernels = [-0.5 * (distances[:, 1:] / width) ** 2 for width in grid]
        masses = [_weigh_classes(kernel, labels, self.frequencies_, self.prior_weight) for kernel in kernels]
        n_right = [np.sum(mass.argmax(axis=1) == self._labels[some]) for mass in masses]
        return float(grid[int(np.argmax(n_right))])

    def _score_parts(self, features: Floats) -> tuple[Floats, Floats]:
        """Return the logarithms of the aleatoric and the epistemic uncertainty of each row."""
        nearest = self._neighbours.kneighbors(features, return_distance=False)
        # Taken again from the rows: the search multiplies out squares and loses digits where rows are close.
        squares = np.array([np.sum((self._rows[column] - features) ** 2, axis=1) for column in nearest.T]).T
        log_kernel = -0.5 * squares / self.bandwidth_**2
        return nuq(
            log_kernel, self._labels[nearest], self.frequencies_, features.shape[1], prior_weight=self.prior_weight
        )

    def _score(self, features: Floats, logits: Floats) -> Floats:
        aleatoric, epistemic = self._score_parts(features)
        return epistemic if self.kind == "epistemic" else np.logaddexp(aleatoric, epistemic)


def _weigh_classes(
    log_kernel: Floats, neighbour_labels: NDArray[np.intp], frequencies: Floats, prior_weight: float
) -> Floats:
    """Return the weight of each class around each row, shape (n, C), the prior included."""
    # The prior is at least as heavy as any one neighbour times prior_weight, so only neighbours can underflow, and the
    # shares of the classes are then those of the prior.
    kernel = np.exp(log_kernel)
    mass = prior_weight * np.tile(frequencies, (len(kernel), 1))
    np.add.at(mass, (np.arange(len(kernel))[:, None], neighbour_labels), kernel)
    return mass
