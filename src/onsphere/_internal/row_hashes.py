"""Hashes of rows, so that a model knows which rows it has seen without keeping them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import is_frame

__all__ = ["hash_numbers", "hash_rows", "make_indexable", "mix_bits"]

_STEP = np.uint64(0x9E3779B97F4A7C15)  # of splitmix64: an odd number without a pattern


def make_indexable(table: Any) -> Any:
    """Return a table whose rows can be indexed: lists become arrays, and sparse matrices are stored by rows."""
    if hasattr(table, "tocsr"):
        return table.tocsr()
    return table if table is None or is_frame(table) or hasattr(table, "iloc") else np.asarray(table)


def hash_rows(X: Any, y: Any) -> NDArray[np.uint64]:
    """Return one number per row: equal for equal rows of features and target, hardly ever for others.

    Examples
    --------
    >>> codes = hash_rows([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], ["a", "a", "b"])
    >>> bool(codes[0] == codes[1]), bool(codes[0] == codes[2])
    (True, False)
    """
    total, place = np.uint64(0), 0
    for block in chain(_iterate_blocks(make_indexable(X)), _iterate_blocks(make_indexable(y))):
        places = np.arange(place, place + block.shape[1], dtype=np.uint64)
        # The place is hashed too, so that equal values in different columns give different rows.
        total = total + mix_bits(_hash_cells(block) + places * _STEP).sum(axis=1, dtype=np.uint64)
        place += block.shape[1]
    return mix_bits(np.asarray(total))


def hash_numbers(rows: NDArray[np.float64], seed: int) -> NDArray[np.uint64]:
    """Return a number per row of a table that looks random and depends on the values of the row alone.

    Examples
    --------
    >>> import numpy as np
    >>> codes = hash_numbers(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]), seed=0)
    >>> bool(codes[0] == codes[2]), bool(codes[0] == codes[1])
    (True, False)
    """
    bits = (rows + 0.0).view(np.uint64)  # so that −0.0 counts as 0.0
    bits = bits ^ (bits >> np.uint64(32))
    factors = np.random.default_rng(seed).integers(2**63, size=rows.shape[1], dtype=np.uint64) * 2 + 1
    return mix_bits((bits * factors).sum(axis=1, dtype=np.uint64))


def mix_bits(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Make every bit depend on every other, by the final steps of splitmix64 (Steele, Lea and Flood, 2014).

    Numbers that differ in a few bits only, as small integers do, then differ in about half of them.

    Examples
    --------
    >>> import numpy as np
    >>> [f"{int(code):016x}" for code in mix_bits(np.array([0, 1], dtype=np.uint64))]
    ['0000000000000000', '5692161d100b05e5']
    """
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _iterate_blocks(table: Any) -> Iterator[NDArray[Any]]:
    """Yield some columns of all rows at a time: few if there are many rows, to save memory."""
    if is_frame(table):
        yield from (np.asarray(table[name])[:, None] for name in table.columns)
    elif hasattr(table, "tocsr"):
        weights = np.sqrt(np.arange(2.0, table.shape[1] + 2))  # so that the sum depends on the column
        yield np.asarray(table @ weights).reshape(-1, 1)
    else:
        values = np.asarray(table)
        columns = values.reshape(len(values), -1)
        width = max(2**18 // len(columns), 1)
        yield from (columns[:, start : start + width] for start in range(0, columns.shape[1], width))


def _hash_cells(block: NDArray[Any]) -> NDArray[np.uint64]:
    if block.dtype.kind in "biuf":
        return (block.astype(np.float64) + 0.0).view(np.uint64)  # −0.0 counts as 0.0
    # One text at a time: in an array of texts, every cell takes the memory of the longest. A dictionary, because most
    # columns of text repeat themselves; and not Python's own hash, which differs between processes.
    known: dict[str, int] = {}
    codes = np.empty(block.size, dtype=np.uint64)
    for place, value in enumerate(block.reshape(-1).tolist()):
        text = str(value)
        if text not in known:
            word = text.encode(errors="surrogatepass")
            known[text] = int.from_bytes(blake2b(word, digest_size=8).digest(), "little")
        codes[place] = known[text]
    return codes.reshape(block.shape)
