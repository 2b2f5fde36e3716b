"""The rank of each new score among all earlier ones, as a p-value, with a memory of fixed size.

Sort the n calibration scores, equal ones in random order; they leave n + 1 gaps. As long as all scores are
exchangeable, the rank of a new one among all so far is uniform and independent of how the earlier ones are ordered. So
after N new scores, whatever they were, the next one falls into a gap that holds k of them with probability
(k + 1) / (n + N + 1): only counts have to be kept. The p-value is drawn uniformly within the share of its gap, so
that p-values are independent and uniform on (0, 1), exactly and for any stream, however long. Neighbouring gaps may be
joined into a cell, whose probability is the sum.

A p-value against the calibration scores alone would be uniform too, but not independent of the others: all of them
share the random errors of one calibration set, and over thousands of rows a bet on those errors wins.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.row_hashes import mix_bits
from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError

__all__ = ["Ranks", "draw_uniforms"]

N_CUTS = 1000  # calibration scores that are kept, at most, as cuts between cells
_CHUNK = 256  # rows that are compared with each other at a time
_EARLIER = np.tri(_CHUNK, k=-1, dtype=bool)  # which rows of a chunk come before each

_STEP = np.uint64(0x9E3779B97F4A7C15)  # the increment of splitmix64


def draw_uniforms(key: int, index: NDArray[np.int64]) -> Floats:
    """Draw random numbers in (0, 1) that depend only on key and index, so that a stored stream can be continued."""
    start = mix_bits(np.array([key], dtype=np.uint64) + _STEP)
    bits = mix_bits(start + (index.astype(np.uint64) + np.uint64(1)) * _STEP)
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


class Ranks:
    """Counts of scores in the cells between calibration scores.

    `values` are the different scores among the cuts, and `places` are the cuts, each as the index of its value plus a
    random number in (0, 1) that breaks ties; both are in ascending order. `gaps` says how many gaps between calibration
    scores each cell holds, and `key` seeds the random numbers.
    """

    def __init__(self, values: Floats, places: Floats, gaps: NDArray[np.int64], key: int) -> None:
        self.values, self.places, self.gaps, self.key = values, places, gaps, key
        self.reset()

    @classmethod
    def from_scores(cls, scores: Floats, rng: np.random.RandomState) -> Self:
        """Start with calibration scores, at least one and all of them finite."""
        key = int(rng.randint(2**53, dtype=np.int64))
        n, tie_breakers = len(scores), rng.uniform(size=len(scores))
        order = np.lexsort((tie_breakers, scores))
        # The smallest and the largest are always kept: a large shift falls beyond them.
        kept = np.unique(np.linspace(0, n - 1, min(n, N_CUTS)).round().astype(np.int64))
        cuts = order[kept]
        values, index = np.unique(scores[cuts], return_inverse=True)
        gaps = np.diff(np.concatenate([[-1], kept, [n]]))
        return cls(values, index + tie_breakers[cuts], gaps, key)

    def reset(self) -> None:
        """Forget all scores except those of the calibration."""
        self.counts = np.zeros(len(self.gaps), dtype=np.int64)

    def update(self, scores: Floats) -> Floats:
        """Count the next scores, in order, and return their p-values: small where a score is high."""
        n_before = int(self.counts.sum())
        step = np.arange(n_before, n_before + len(scores))
        cells = self._cells(scores, draw_uniforms(self.key, 2 * step))
        within = draw_uniforms(self.key, 2 * step + 1)
        result = np.empty(len(scores))
        for start in range(0, len(scores), _CHUNK):
            part = slice(start, start + _CHUNK)
            above, equal = self._add(cells[part])
            result[part] = (above + within[part] * equal) / (int(self.gaps.sum()) + step[part])
        return result

    def _cells(self, scores: Floats, tie_breakers: Floats) -> NDArray[np.intp]:
        index = np.searchsorted(self.values, scores)
        tied = self.values[np.minimum(index, len(self.values) - 1)] == scores
        return np.searchsorted(self.places, index + np.where(tied, tie_breakers, 0.0))

    def _add(self, cells: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how much lies above the cell of each new score and within it, at its turn, and count them all."""
        mass = self.gaps + self.counts
        above = mass[::-1].cumsum()[::-1] - mass
        short, earlier = cells.astype(np.int32), _EARLIER[: len(cells), : len(cells)]  # half the time of int64
        n_above = np.sum(earlier & (short > short[:, None]), axis=1, dtype=np.int32)
        n_equal = np.sum(earlier & (short == short[:, None]), axis=1, dtype=np.int32)
        self.counts += np.bincount(cells, minlength=len(self.counts))
        return above[cells] + n_above, mass[cells] + n_equal

    def state(self) -> dict[str, Any]:
        """Return plain numbers and lists."""
        arrays = {name: getattr(self, name).tolist() for name in ("values", "places", "gaps", "counts")}
        return {**arrays, "key": self.key}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Continue from what `state` returned."""
        values, places = (np.array(state[name], dtype=np.float64) for name in ("values", "places"))
        gaps, counts = (np.array(state[name], dtype=np.int64) for name in ("gaps", "counts"))
        if not (0 < len(values) <= len(places) and len(gaps) == len(counts) == len(places) + 1):
            raise InvalidInputError("its cells do not fit each other")
        ranks = cls(values, places, gaps, int(state["key"]))
        ranks.counts = counts
        return ranks
