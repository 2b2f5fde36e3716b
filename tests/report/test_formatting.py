"""Numbers, shares and names as text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onsphere.report.formatting import choose_number_format, format_number, format_percent, shorten


@given(st.floats(-1e300, 1e300))
def test_a_number_keeps_three_digits(value):
    read = float(format_number(value).replace("−", "-").replace(",", ""))
    assert read == pytest.approx(value, rel=0.0051, abs=1e-300)


def test_values_that_are_not_finite_have_a_sign():
    assert [format_number(value) for value in (np.nan, np.inf, -np.inf)] == ["–", "∞", "−∞"]
    assert format_percent(np.nan) == "–"
    assert format_percent(0.0001) == "<\u202f0.1\u202f%"


@given(st.floats(0, 1))
def test_only_exact_shares_are_written_as_0_and_100_percent(share):
    assert (format_percent(share) == "100\u202f%") == (share == 1)
    assert (format_percent(share) == "0\u202f%") == (share == 0)


def format_column(values):
    return [choose_number_format(values)(value) for value in values]


def test_the_numbers_of_a_column_have_the_same_decimals():
    assert format_column([1.5, -22.25, 0.125]) == ["1.50", "−22.25", "0.12"]
    assert format_column([12345.0, 2.0]) == ["12,345", "2"]
    assert format_column([np.nan, np.inf]) == ["–", "∞"]
    assert format_column([1e-12, 3e-12]) == ["1e−12", "3e−12"]
    assert format_column([0.5, 2e12]) == ["0.5", "2e+12"]
    assert format_column([0.0, 0.25]) == ["0.000", "0.250"]


@given(st.text(), st.integers(2, 20))
def test_shortened_text_is_one_short_line(text, longest):
    line = shorten(text, longest=longest)
    assert len(line) <= longest
    assert line.isprintable()
    assert line == line.strip()
