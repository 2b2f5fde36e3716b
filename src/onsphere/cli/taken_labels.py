"""Remember which labels a model has taken in, so that none counts twice and none that it was trained on counts."""

from __future__ import annotations

from pathlib import Path

from onsphere._internal.row_hashes import hash_rows
from onsphere.cli.model_rows import LabelledRows
from onsphere.errors import InvalidInputError
from onsphere.evaluation import MOST_SEEN

__all__ = ["TakenLabels"]

_N_KEPT = 1_000  # hashes of rows, the smallest: a sample of all
_MOST_KNOWN = 0.5  # of the labels; more are no mere coincidence


class TakenLabels:
    """The labels that a model has taken in, as its file keeps them.

    Examples
    --------
    >>> rows = LabelledRows([[1.0], [2.0]], [3.0, 4.0], [], None, None)
    >>> taken = TakenLabels([])
    >>> taken.compute_share(rows)
    0.0
    >>> TakenLabels(taken.add(rows)).compute_share(rows)
    1.0
    """

    def __init__(self, hashes: list[int]) -> None:
        self._hashes = set(hashes)

    def compute_share(self, rows: LabelledRows) -> float:
        """Return the share of rows that were taken in, or equal such rows, from a sample if there are many."""
        found = _hash_labels(rows)
        if len(self._hashes) >= _N_KEPT:  # nothing is known about larger ones
            found = [each for each in found if each <= max(self._hashes)]
        return sum(each in self._hashes for each in found) / max(len(found), 1)

    def check(self, rows: LabelledRows, data: Path) -> list[str]:
        """Raise an error if most of the rows are known, and return notes if some are."""
        shares = {
            "were trained on": rows.share_seen,
            "were taken in before": self.compute_share(rows),
        }
        for what, share in shares.items():
            if share > _MOST_KNOWN:
                raise InvalidInputError(
                    f"Expected labels of rows that are new to the model. Got {data}, in which {share:.0%} of the "
                    f"{len(rows.y):,} rows {what}. Pass the new rows alone; where new rows equal old ones, fit with "
                    "--time, which tells them apart."
                )
        return [
            f"{share:.1%} of these rows {what}, or equal such rows, and count all the same"
            for what, share in shares.items()
            if share >= MOST_SEEN
        ]

    def add(self, rows: LabelledRows) -> list[int]:
        """Return what the model file is to keep once these rows are taken in."""
        return sorted(self._hashes.union(_hash_labels(rows)))[:_N_KEPT]


def _hash_labels(rows: LabelledRows) -> list[int]:
    return [int(each) for each in hash_rows(rows.X, rows.y)]
