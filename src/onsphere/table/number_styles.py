"""Recognise numbers that are written with thousands, a percent sign, a currency, a unit or a word such as bn."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

__all__ = ["SCALED", "NumberStyle", "find_number_style", "parse_styled_numbers", "share_begins_like_number"]

SCALED = "k, M, bn"  # stands for all words that multiply

_SCALES = {
    **dict.fromkeys(["k", "thousand", "tsd"], 1e3),
    **dict.fromkeys(["m", "mn", "mio", "million"], 1e6),
    **dict.fromkeys(["b", "bn", "mrd", "billion"], 1e9),
    **dict.fromkeys(["tn", "trillion"], 1e12),
}
_SPACES = " \u00a0\u202f"
_CURRENCY = r"[$€£¥₹]|usd|eur|gbp|chf|jpy"
# A sign, a currency, digits with their separators, and what follows them.
_DIGITS = rf"[+-]?(?:\d[\d.,'{_SPACES}]*)?\d(?:e[+-]?\d+)?"
_STYLED = rf"(?i)^\s*([+-]?)\s*({_CURRENCY})?\s*({_DIGITS})\s*([^\d\s.,+-][^\d]{{0,15}})?$"


class NumberStyle(NamedTuple):
    """The way numbers are written.

    `thousands` is what separates thousands, and `unit` is a sign or a word before or after the number: a constant one
    is left out, and `SCALED` stands for words that multiply, such as k and bn.
    """

    thousands: str = ""
    unit: str = ""

    def describe(self) -> str:
        """Return a note on what is read as what."""
        notes = []
        if self.unit == SCALED:
            notes.append("words such as k, M and bn are multiplied out")
        elif self.unit:
            notes.append(f"numbers in {self.unit}")
        if self.thousands:
            shown = "a space" if self.thousands in _SPACES else self.thousands
            notes.append(f"{shown} is read as the separator of thousands")
        return "; ".join(notes)


def find_number_style(texts: Any) -> NumberStyle | None:
    """Return how the numbers in a pandas Series of text are written, or None if that is not certain.

    Examples
    --------
    >>> import pandas as pd
    >>> find_number_style(pd.Series(["$1,200", "$15"]))
    NumberStyle(thousands=',', unit='$')
    >>> find_number_style(pd.Series(["4.1 bn", "300 k"])).unit, find_number_style(pd.Series(["1st", "2nd"]))
    ('k, M, bn', None)
    """
    parts = _split(texts)
    found = parts[parts["digits"].notna()]
    if len(found) == 0:
        return None
    units = {unit.lower().strip() for unit in (*found["currency"].dropna(), *found["suffix"].dropna())}
    currencies = {unit for unit in units if re.fullmatch(_CURRENCY, unit)}
    scales = units - currencies
    if scales and scales <= set(_SCALES) and len(currencies) <= 1 and (len(scales) > 1 or _is_partly(found["suffix"])):
        unit = SCALED
    elif len(units) <= 1:
        unit = next(iter(units), "")
    else:
        return None
    thousands = _find_thousands(found["digits"])
    return None if thousands is None else NumberStyle(thousands, unit)


def _is_partly(suffix: Any) -> bool:
    """Return whether some numbers are followed by a word and others are not."""
    return bool(suffix.isna().any())


def _find_thousands(digits: Any) -> str | None:
    """Return what separates thousands, "" if nothing does; None where numbers are not written alike."""
    marks = [mark for mark in f",'{_SPACES}" if digits.str.contains(mark, regex=False).any()]
    if not marks:
        is_grouped = bool((digits.str.count(r"\.") > 1).any())
        return "" if not is_grouped else "." if _fits(digits, ".") else None
    tried = (marks[0], ".") if marks == [","] else marks
    return next((mark for mark in tried if len(marks) == 1 and _fits(digits, mark)), None)


def _fits(digits: Any, mark: str) -> bool:
    """Return whether every number in which the mark occurs has it between thousands."""
    point = re.escape("," if mark == "." else ".")
    marked = digits[digits.str.contains(mark, regex=False)]
    groups = marked.str.fullmatch(rf"[+-]?[1-9]\d{{0,2}}(?:{re.escape(mark)}\d{{3}})+(?:{point}\d+)?")
    return bool(groups.all())


def parse_styled_numbers(texts: Any, style: NumberStyle) -> Any:
    """Return the numbers that a pandas Series of text holds, NaN where it holds something else or another unit.

    Examples
    --------
    >>> import pandas as pd
    >>> parse_styled_numbers(pd.Series(["4.1%", "12", "x", "3 kg"]), NumberStyle(unit="%")).tolist()
    [4.1, 12.0, nan, nan]
    """
    import pandas as pd

    parts = _split(texts)
    digits = parts["sign"] + parts["digits"]
    if style.thousands:
        digits = digits.str.replace(style.thousands, "", regex=False)
    if style.thousands == ".":
        digits = digits.str.replace(",", ".", regex=False)
    numbers: Any = pd.to_numeric(digits, errors="coerce")
    suffix = parts["suffix"].str.lower().str.strip()
    if style.unit == SCALED:
        is_known = suffix.isna() | suffix.isin([*_SCALES])
        return (numbers * suffix.map(_SCALES).fillna(1.0)).where(is_known)
    unit = suffix.fillna(parts["currency"].str.lower())
    return numbers.where(unit.isna() | (unit == style.unit))


def share_begins_like_number(texts: Any) -> float:
    """Return the share of texts that begin with a number, whatever follows."""
    return float(np.mean(texts.str.match(rf"(?i)^\s*[+-]?\s*(?:{_CURRENCY})?\s*\d")))


def _split(texts: Any) -> Any:
    parts = texts.astype(object).str.extract(_STYLED)
    return parts.set_axis(["sign", "currency", "digits", "suffix"], axis=1)
