"""Scale columns by how much they tell of the target, so that a kernel compares rows by what matters."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from sklearn.preprocessing import StandardScaler

from onsphere._internal.validation import Floats

__all__ = ["RelevanceScaler", "find_length_scales", "keep_lengths"]

_N_COMPARED = 250  # rows, at most: the cost grows with their cube
_FEWEST_ROWS = 10
_MOST_COLUMNS = 50  # of more, all have one length: rows are too few to tell them apart
_MOST_STEPS = 40

# What is likely before any row is seen, as mean and standard deviation of logarithms: lengths as long as rows are
# usually apart, a signal as large as the target varies, and noise of a fifth of that.
_LENGTH_SPREAD, _SIGNAL, _NOISE = 1.5, (0.0, 2.0), (-3.0, 3.0)
_FARTHEST = 6.0  # from the likely logarithm of a length
_JITTER = 1e-8


class RelevanceScaler(StandardScaler):
    """Standardise columns, and divide each by its length in the Gaussian process that makes the target most likely.

    Differences in a column with a long length count little. A Gaussian kernel exp(−‖x − x'‖²/2) of the scaled rows is
    that of the process.

    Parameters
    ----------
    lengths : array of shape (p,), optional
        Lengths that are known already: those of all rows, for a part of them. With another number of columns they are
        found anew.

    Attributes
    ----------
    lengths_ : array of shape (p,)

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> scaled = RelevanceScaler().fit(X, np.sin(2 * X[:, 0])).transform(X)
    >>> bool(scaled[:, 0].std() > 5 * scaled[:, 1].std())
    True
    """

    def __init__(self, lengths: Floats | None = None) -> None:
        super().__init__()
        self.lengths = lengths

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn means, standard deviations and lengths; without targets all lengths are alike."""
        super().fit(X, sample_weight=sample_weight)
        self.lengths_: Floats = self.lengths  # type: ignore[reportAttributeAccessIssue]
        if self.lengths is None or len(self.lengths) != len(self.scale_):
            standardized: Any = super().transform(X)
            rows = np.asarray(standardized, dtype=np.float64)
            columns = np.empty((len(rows), 0)) if y is None else np.asarray(y, dtype=np.float64).reshape(len(rows), -1)
            self.lengths_ = find_length_scales(rows, columns)
        self.scale_: Any = self.scale_ * self.lengths_
        return self


def keep_lengths(copy: Any, fitted: Any) -> Any:
    """Return an unfitted copy of a backbone with the lengths that the fitted one found.

    Each part of the rows would find others, and a model with others errs in another way than the one it stands for.
    """
    for name, step in getattr(fitted, "steps", ()):
        if isinstance(step, RelevanceScaler):
            copy.set_params(**{f"{name}__lengths": step.lengths_})
    return copy


def find_length_scales(rows: Floats, columns: Floats) -> Floats:
    """Return the length of each column of standardised rows, (p,), by the marginal likelihood of a Gaussian process.

    Parameters
    ----------
    rows : array of shape (n, p)
    columns : array of shape (n, k)
        Targets that share the lengths.
    """
    n_rows, n_features = rows.shape
    usual = 0.5 * math.log(n_features / 2)  # rows are √(2p) apart
    spread = columns.std(axis=0)
    varies = spread > 1e-12
    if n_rows < _FEWEST_ROWS or not varies.any():
        return np.full(n_features, math.exp(usual))
    target = (columns[:, varies] - columns[:, varies].mean(axis=0)) / spread[varies]
    drawn = np.random.RandomState(0).permutation(n_rows)[:_N_COMPARED]
    n_lengths = n_features if n_features <= _MOST_COLUMNS else 1
    start = np.concatenate([np.full(n_lengths, usual), [_SIGNAL[0], _NOISE[0]]])
    bounds = [(usual - _FARTHEST, usual + _FARTHEST)] * n_lengths + [(-5.0, 5.0), (-14.0, 2.0)]
    given = (rows[drawn], target[drawn], usual)
    options: Any = {"method": "L-BFGS-B", "bounds": bounds, "options": {"maxiter": _MOST_STEPS}}
    found = minimize(compute_loss, start, given, jac=True, **options)
    return np.exp(np.broadcast_to(found.x[:-2], (n_features,)))


def compute_loss(logs: Floats, rows: Floats, target: Floats, usual: float) -> tuple[float, Floats]:
    """Return −log of likelihood and prior, and its gradient, at logarithms of lengths, signal and noise."""
    n_rows, n_columns = target.shape
    lengths, signal, noise = logs[:-2], math.exp(logs[-2]), math.exp(logs[-1])
    scaled = rows * np.exp(-lengths)
    squares = np.sum(scaled**2, axis=1)
    distances = np.maximum(squares[:, None] + squares - 2.0 * scaled @ scaled.T, 0.0)
    similar = signal * np.exp(-0.5 * distances)
    try:
        factor = cho_factor(similar + (noise + _JITTER) * np.eye(n_rows), lower=True)
    except LinAlgError:  # as good as singular
        return 1e12, np.zeros_like(logs)
    solved, inverse = cho_solve(factor, target), cho_solve(factor, np.eye(n_rows))
    loss = 0.5 * np.sum(solved * target) + n_columns * np.sum(np.log(np.diag(factor[0])))
    slope = n_columns * inverse - solved @ solved.T
    pulled = slope * similar
    by_column = pulled.sum(axis=1) @ scaled**2 - np.sum(scaled * (pulled @ scaled), axis=0)
    gradient = np.concatenate(
        [
            by_column if len(lengths) > 1 else [by_column.sum()],
            [0.5 * pulled.sum(), 0.5 * noise * np.trace(slope)],
        ]
    )
    likely = np.concatenate([np.full(len(lengths), usual), [_SIGNAL[0], _NOISE[0]]])
    spread = np.concatenate([np.full(len(lengths), _LENGTH_SPREAD), [_SIGNAL[1], _NOISE[1]]])
    away = (logs - likely) / spread
    return float(loss + 0.5 * np.sum(away**2)), gradient + away / spread
