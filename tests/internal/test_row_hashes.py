"""Hashes of rows: equal rows have equal ones, whatever the rows hold."""

import numpy as np

from onsphere._internal.row_hashes import hash_rows


def test_one_long_text_takes_only_its_own_memory():
    """An array of texts takes the memory of the longest for each of them: here 80 gigabytes."""
    long = np.array([["x"]] * 20_000, dtype=object)
    long[0, 0] = "y" * 1_000_000
    assert len(set(hash_rows(long, np.zeros(20_000)).tolist())) == 2


def test_text_that_is_not_utf_8_has_hashes():
    codes = hash_rows([["a\udcff"], ["a"]], [0.0, 0.0])
    assert codes[0] != codes[1]
