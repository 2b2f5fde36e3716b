"""Format numbers, shares and names for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["choose_number_format", "format_number", "format_percent", "shorten"]

# A thin space that does not break, to keep a number and its unit on one line.
_THIN = "\u202f"


def shorten(value: object, *, longest: int = 60) -> str:
    """Return a name or a value on one line, without control characters and not too long.

    Examples
    --------
    >>> shorten("two\\nlines"), shorten("abcdefgh", longest=5)
    ('two lines', 'abcd…')
    """
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def format_number(value: float, *, digits: int = 3) -> str:
    """Return a number with so many significant digits, and without an exponent if possible.

    Examples
    --------
    >>> format_number(0.123456), format_number(12345.6), format_number(-2.0), format_number(1e-9)
    ('0.123', '12,346', '−2', '1e−09')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    size = abs(value)
    if 10.0**digits <= size < 1e9:
        text = f"{value:,.0f}" if size >= 10_000 else f"{value:.0f}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def choose_number_format(values: Sequence[float]) -> Callable[[float], str]:
    """Return a format with the same number of decimals for a whole column: three digits for the typical value.

    Examples
    --------
    >>> column = [97.5, 162.0, 8.25]
    >>> [choose_number_format(column)(value) for value in column]
    ['97.5', '162.0', '8.2']
    """
    sizes = np.array([abs(value) for value in values if math.isfinite(value)])
    if np.all(sizes == np.rint(sizes)) and np.all(sizes < 1e9):
        decimals = 0
    else:
        decimals = 2 - math.floor(math.log10(float(np.median(sizes[sizes > 0]))))
        if not -6 <= decimals <= 6 or float(sizes.max()) >= 1e9:
            return format_number
    separator = "," if len(sizes) and float(sizes.max()) >= 10_000 else ""
    pattern = f"{separator}.{max(decimals, 0)}f"
    return lambda value: f"{value:{pattern}}".replace("-", "−") if math.isfinite(value) else format_number(value)


def format_percent(share: float, *, decimals: int = 0) -> str:
    """Return a share in per cent; only a share of exactly 0 or 1 is written as 0 % or 100 %.

    Examples
    --------
    >>> format_percent(0.914), format_percent(0.996), format_percent(0.99999), format_percent(1.0)
    ('91\\u202f%', '99.6\\u202f%', '>\\u202f99.9\\u202f%', '100\\u202f%')
    """
    if math.isnan(share):
        return "–"
    if 0 < share < 0.001:
        return f"<{_THIN}0.1{_THIN}%"
    if 0.999 < share < 1:
        return f">{_THIN}99.9{_THIN}%"
    near_an_end = 0 < share < 0.01 or 0.99 < share < 1
    places = 0 if share in (0, 1) else max(decimals, 1 if near_an_end else 0)
    return f"{100 * share:.{places}f}{_THIN}%"
