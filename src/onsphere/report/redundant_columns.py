"""Find columns that say nearly the same as another one, so that the page tells them once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.metrics._checks import pick_evenly
from onsphere.report.measured_rows import Feature

__all__ = ["SAME", "find_redundant"]

# Numbers with at least this rank correlation, in either direction, say nearly the same.
SAME = 0.95
# So many rows are compared, evenly spread.
MOST_ROWS = 1_000
# A column with fewer known values than this share of the rows is like no other.
_MOSTLY_KNOWN = 0.5


def find_redundant(features: Sequence[Feature]) -> list[list[int]]:
    """Return the places of the columns, those that say nearly the same together, the first of the table leading them.

    Numbers and dates are compared by their ranks, and categories by whether each level of one goes with one level of
    the other.
    """
    if not features:
        return []
    chosen = pick_evenly(np.arange(float(len(features[0].values))), MOST_ROWS)
    is_number = np.array([feature.kind != "category" for feature in features])
    numbers = [feature.values[chosen] for feature in features if feature.kind != "category"]
    same = np.eye(len(features), dtype=bool)
    same[np.ix_(is_number, is_number)] |= np.abs(_correlate_ranks(numbers)) >= SAME
    codes = {
        place: _encode_levels(feature, chosen) for place, feature in enumerate(features) if feature.kind == "category"
    }
    for place, first in codes.items():
        for other, second in codes.items():
            if place < other and _match_one_to_one(first, second):
                same[place, other] = True
    groups: list[list[int]] = []
    is_told = np.zeros(len(features), dtype=bool)
    for place in range(len(features)):
        if not is_told[place]:
            found = np.flatnonzero(same[place] & ~is_told)
            groups.append([place, *found[found > place].tolist()])
            is_told[found] = True
    return groups


def _correlate_ranks(columns: list[Floats]) -> Floats:
    """Return the rank correlation of each two columns; a missing number has the middle rank."""
    from scipy.stats import rankdata

    if not columns:
        return np.zeros((0, 0))
    scores = np.zeros((len(columns), len(columns[0])))
    for place, values in enumerate(columns):
        known = ~np.isnan(values)
        if known.mean() >= _MOSTLY_KNOWN:
            ranks = rankdata(values[known])
            spread = np.std(ranks)
            scores[place, known] = (ranks - ranks.mean()) / (spread if spread > 0 else np.inf)
            scores[place] /= np.sqrt(known.mean())
    return scores @ scores.T / scores.shape[1]


def _encode_levels(feature: Feature, chosen: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.unique([str(level) for level in feature.values[chosen]], return_inverse=True)[1]


def _match_one_to_one(first: NDArray[np.intp], second: NDArray[np.intp]) -> bool:
    """Return whether each level of one goes with one level of the other; not if nearly every row has its own."""
    n_levels = int(first.max()) + 1
    if n_levels != int(second.max()) + 1 or not 1 < n_levels <= len(first) / 4:
        return False
    return len(np.unique(first * n_levels + second)) == n_levels
