"""Rows drawn by what they hold, not by when they came: the same ones in any order, in any batches, on any machine.

Every row gets a number that looks random and depends on its values alone; the rows with the smallest numbers are the
sample. Two samples are joined by keeping the smallest of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.row_hashes import mix_bits
from onsphere._internal.validation import Floats

__all__ = ["Sample", "row_codes"]


def row_codes(rows: Floats, seed: int) -> NDArray[np.uint64]:
    """One number per row of a table, equal for equal rows and, for others, as good as random.

    Examples
    --------
    >>> import numpy as np
    >>> codes = row_codes(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]), seed=0)
    >>> bool(codes[0] == codes[2]), bool(codes[0] == codes[1])
    (True, False)
    """
    bits = (rows + 0.0).view(np.uint64)  # so that −0.0 counts as 0.0
    bits = bits ^ (bits >> np.uint64(32))
    factors = np.random.default_rng(seed).integers(2**63, size=rows.shape[1], dtype=np.uint64) * 2 + 1
    return mix_bits((bits * factors).sum(axis=1, dtype=np.uint64))


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows in the order of their codes.

    Attributes
    ----------
    codes : array of shape (n,)
    X : array of shape (n, p)
    targets : array of shape (n, t)
    """

    codes: NDArray[np.uint64]
    X: Floats
    targets: Floats

    @classmethod
    def of(cls, X: Floats, targets: Floats, seed: int) -> Sample:
        """All these rows."""
        return cls(row_codes(np.hstack([X, targets]), seed), X, targets)._sorted()

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, part: slice) -> Sample:
        return Sample(self.codes[part], self.X[part], self.targets[part])

    def __add__(self, other: Sample) -> Sample:
        joined = {name: np.concatenate([value, getattr(other, name)]) for name, value in vars(self).items()}
        return Sample(**joined)._sorted()

    def _sorted(self) -> Sample:
        order = np.argsort(self.codes, kind="stable")
        return Sample(self.codes[order], self.X[order], self.targets[order])
