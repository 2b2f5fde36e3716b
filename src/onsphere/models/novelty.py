"""The input frame: every input lies on a unit sphere, and what landmarks of the training rows miss of it is novelty.

No label is needed, and the backbone is not asked: the frame says how unlike all training rows a row is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from onsphere._internal.row_hashes import hash_numbers
from onsphere._internal.validation import Floats
from onsphere.sphere import kernel
from onsphere.sphere.geometry import Array

__all__ = ["InputFrame", "compute_novelty", "find_relevance", "fit_input_frame", "place_rows"]

N_LANDMARKS = 300
RIDGE = 0.01

# Rows, at most, that landmarks are chosen from: a bound on time and memory, whatever the number of rows. Of more, the
# greedy choice takes outliers alone.
_N_CANDIDATES = 2_000

# Rows whose kernel is held in memory at once: few enough for the cache of a processor.
_N_BLOCK = 1024

# Levels of the shortfall: similar rows are tied, however many rows are measured at once and in whatever order sums are
# added up, so that none of them is above a threshold that another one gave.
_N_LEVELS = 1e10

# The share of training rows that count as ordinary.
_ORDINARY_SHARE = 0.98

# Beyond so many standard deviations, a cell is as far away as any: its square stays a number.
_FARTHEST = 1e8

# What tells relevant columns from others: trees, rows they see at most, and shuffled columns to compare with. Of many
# rows, fewer trees that look at half of the columns, and have larger leaves, tell as much.
_N_TREES, _LEAF, _N_TREE_ROWS, _N_SHUFFLED = 50, 5, 2_000, 50
_N_TREES_OF_MANY, _LEAF_OF_MANY, _MANY_ROWS = 12, 20, 1_000

# The most that one irrelevant column weighs beside a relevant one. All of them together weigh no more than one: too
# little to hide the others, and enough to show a cell that is far out.
_IRRELEVANT = 0.1


@dataclass(frozen=True, eq=False)
class InputFrame:
    """Landmarks of the training rows, and how far they fall short of an ordinary row.

    A column is measured in units of its standard deviation; one that never varied in training, in units of its own
    size: a change by as much as that is far away. A missing cell lies at the centre of its column, and a second column
    tells that it is missing.

    Attributes
    ----------
    center, scale : arrays of shape (q,)
        Of the columns and, if cells may be missing, of the columns that tell which are.
    takes_missing : bool
    landmarks : array of shape (m, q)
    whitener : array of shape (m, m)
    bandwidth : float
    ordinary : float
        The shortfall that 98 % of the training rows stay below, each reconstructed without itself; novelty begins here.
    onset : float
        The shortfall above which the total relies less on the model.
    """

    center: Floats
    scale: Floats
    takes_missing: bool
    landmarks: Floats
    whitener: Floats
    bandwidth: float
    ordinary: float
    onset: float

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the whitener, the largest part of a small model's file, if the landmarks give it again."""
        state = dict(vars(self))
        if np.array_equal(self.whitener, kernel.whiten(self.landmarks, self.bandwidth, ridge=RIDGE)):
            del state["whitener"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "whitener" not in state:
            state = {**state, "whitener": kernel.whiten(state["landmarks"], state["bandwidth"], ridge=RIDGE)}
        vars(self).update(state)

    def place(self, rows: Array) -> Array:
        """Return the rows in the units of the frame, (n, q)."""
        return place_rows(rows, self.center, self.scale, takes_missing=self.takes_missing)

    def measure(self, rows: Array) -> Array:
        """Return the shortfall of each row, (n,), in [0, 1]; numpy, torch, or arrays of a graph."""
        if isinstance(rows, np.ndarray) and len(rows) > _N_BLOCK:
            starts = range(0, len(rows), _N_BLOCK)
            return np.concatenate([self.measure(rows[start : start + _N_BLOCK]) for start in starts])
        places = self.place(rows)
        missed = kernel.shortfall(
            places, _as_array_of(places, self.landmarks), _as_array_of(places, self.whitener), self.bandwidth
        )
        return array_namespace(missed).round(missed * _N_LEVELS) / _N_LEVELS


def fit_input_frame(
    rows: Floats,
    *,
    relevance: Floats | None = None,
    takes_missing: bool = False,
    standardize: bool = True,
    n_landmarks: int = N_LANDMARKS,
    onset_share: float = _ORDINARY_SHARE,
    measured: NDArray[np.bool_] | None = None,
) -> tuple[InputFrame, Floats]:
    """Choose landmarks among the rows, and return the frame and the shortfall of each row without itself, (n,).

    The landmarks depend on what the rows hold and not on their order.

    Parameters
    ----------
    rows : array of shape (n, p)
    relevance : array of shape (p,), optional
        How much each column counts in squared distances; by default all count alike.
    takes_missing : bool, default False
        Whether cells may be missing (NaN), now or later.
    standardize : bool, default True
        Whether columns are measured in units of their standard deviation, or in their own.
    n_landmarks : int
        The most to choose.
    onset_share : float, default 0.98
        The share of the rows that stay below the onset.
    measured : bool array of shape (n,), optional
        The rows whose shortfall is needed, from which both levels follow; NaN for the others. By default all.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(200, 2))
    >>> frame, left_out = fit_input_frame(rows)
    >>> missed = frame.measure(np.array([[0.0, 0.0], [9.0, 9.0]]))
    >>> compute_novelty(missed, frame.ordinary).round(2)
    array([0., 1.])
    """
    drawn = np.argsort(hash_numbers(rows, seed=0), kind="stable")[:_N_CANDIDATES]
    center, scale = _find_scale(rows[drawn], relevance, takes_missing, standardize)
    constant, scale = scale == 0, np.where(scale == 0, 1.0, scale)
    places = place_rows(rows[drawn], center, scale, takes_missing=takes_missing)
    bandwidth = kernel.find_bandwidth(places)
    # A column that never varied: a change by its own size, or by 1 if it is zero, is one bandwidth away.
    size = np.where(center == 0, 1.0, np.abs(center))
    scale = np.where(constant, size / bandwidth**0.5, scale)
    chosen = kernel.choose_landmarks(places, bandwidth, n_landmarks=n_landmarks)
    whitener = kernel.whiten(places[chosen], bandwidth, ridge=RIDGE)
    frame = InputFrame(center, scale, takes_missing, places[chosen], whitener, bandwidth, 0.0, 0.0)
    wanted = np.ones(len(rows), dtype=bool) if measured is None else measured
    left_out = np.full(len(rows), np.nan)
    left_out[drawn[chosen]] = kernel.leave_one_out(whitener, ridge=RIDGE)
    others = wanted & np.isnan(left_out)
    left_out[others], left_out[~wanted] = frame.measure(rows[others]), np.nan
    # A shortfall of 1 stays extraordinary, even where there are few rows and all are unlike each other.
    ordinary, onset = np.minimum(np.quantile(left_out[wanted], [_ORDINARY_SHARE, onset_share]), 0.99).tolist()
    return replace(frame, ordinary=ordinary, onset=onset), left_out


def place_rows(rows: Array, center: Floats, scale: Floats, *, takes_missing: bool) -> Array:
    """Return the rows in units of a frame, (n, q), none so far away that its square overflows."""
    xp = array_namespace(rows)
    middle, unit = _as_array_of(rows, center), _as_array_of(rows, scale)
    if takes_missing:
        gaps = xp.isnan(rows)
        rows = xp.concat([xp.where(gaps, middle[: rows.shape[1]], rows), xp.astype(gaps, rows.dtype)], axis=-1)
    return xp.clip((rows - middle) / unit, -_FARTHEST, _FARTHEST)


def _as_array_of(like: Array, values: Floats) -> Array:
    return array_namespace(like).asarray(values, dtype=like.dtype, device=device(like))


def _find_scale(
    rows: Floats, relevance: Floats | None, takes_missing: bool, standardize: bool
) -> tuple[Floats, Floats]:
    """Return centre and scale of each column and of the columns that tell what is missing; 0 for constant ones."""
    gaps = np.isnan(rows)
    n_present = np.maximum((~gaps).sum(axis=0), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        center = (np.where(gaps, 0.0, rows) / n_present).sum(axis=0)
        spread = np.sqrt((np.where(gaps, 0.0, rows - center) ** 2 / n_present).sum(axis=0))
    # What rounding leaves of a constant, or a spread too large for a number, does not count as variation.
    spread = np.where((spread > 1e-12 * np.abs(center)) & np.isfinite(spread), spread, 0.0)
    if not standardize:
        spread = np.ones_like(spread)
    share = gaps.mean(axis=0)
    if takes_missing:
        center, spread = np.concatenate([center, share]), np.concatenate([spread, np.sqrt(share * (1 - share))])
    if relevance is not None:
        spread = spread / np.sqrt(np.tile(relevance, 1 + takes_missing))
    return center, spread


def compute_novelty(missed: Array, ordinary: float) -> Array:
    """Return the novelty of shortfalls: 0 for all that are ordinary, 1 for a row that has nothing in common with any.

    Examples
    --------
    >>> import numpy as np
    >>> compute_novelty(np.array([0.1, 0.2, 0.4, 1.0]), ordinary=0.2)
    array([0.   , 0.   , 0.625, 1.   ])
    """
    xp = array_namespace(missed)
    return (1.0 - ordinary / xp.clip(missed, max(ordinary, 1e-300), None)) / (1.0 - ordinary)


def find_relevance(rows: Floats, columns: Floats, random_state: int) -> Floats:
    """Return how much each feature counts in squared distances: 1, and little if it tells nothing of the target.

    A small forest is grown with shuffled copies of the features among the real ones; a feature that it uses no more
    than every copy is irrelevant. All irrelevant features together weigh at most as much as one relevant one.

    Parameters
    ----------
    rows : array of shape (n, p)
    columns : array of shape (n, c)
        What the backbone learns.
    random_state : int
    """
    from sklearn.ensemble import ExtraTreesRegressor

    rng = np.random.default_rng(random_state)
    some = rng.permutation(len(rows))[:_N_TREE_ROWS]
    sample, n_features = rows[some], rows.shape[1]
    copies = rng.permuted(sample[:, rng.permutation(n_features)[:_N_SHUFFLED]], axis=0)
    forest = ExtraTreesRegressor(_N_TREES, min_samples_leaf=_LEAF, random_state=random_state)
    if len(some) >= _MANY_ROWS:
        forest.set_params(n_estimators=_N_TREES_OF_MANY, min_samples_leaf=_LEAF_OF_MANY, max_features=0.5)
    used = forest.fit(np.hstack([sample, copies]), columns[some]).feature_importances_
    relevant = used[:n_features] > used[n_features:].max()
    if not relevant.any():  # nothing to go by
        return np.ones(n_features)
    return np.where(relevant, 1.0, min(_IRRELEVANT, 1 / max(np.sum(~relevant), 1)))
