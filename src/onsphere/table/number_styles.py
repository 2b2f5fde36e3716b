"""Recognise numbers that are written with thousands, in brackets, with a percent sign, a currency, a unit or bn."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "SCALED",
    "NumberStyle",
    "find_doubt",
    "find_number_style",
    "groups_thousands",
    "make_number_style",
    "normalize_signs",
    "parse_styled_numbers",
    "share_begins_like_number",
    "share_in_brackets",
]

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
_MINUS = "\u2212\u2013"  # as typesetters write it: a minus, or a dash as long as one
_BRACKETS = rf"(?i)^\s*({_CURRENCY})?\s*\(\s*((?:{_CURRENCY})?[^()+\-{_MINUS}]*?\d[^()]*)\)(\s*%?)\s*$"
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
            mark = " and , as the decimal mark" if self.thousands == "." else ""
            notes.append(f"{shown} is read as the separator of thousands{mark}")
        return "; ".join(notes)


def make_number_style(texts: Any, written: str) -> NumberStyle | None:
    """Return the style of numbers of which a user says the decimal mark, or a word that multiplies; None for others.

    Examples
    --------
    >>> import pandas as pd
    >>> make_number_style(pd.Series(["1,234", "2,345"]), ","), make_number_style(pd.Series(["5 m"]), "m").unit
    (NumberStyle(thousands='.', unit=''), 'k, M, bn')
    """
    found = find_number_style(texts) or NumberStyle()
    if written in (",", "."):
        return found._replace(thousands="." if written == "," else ",")
    return found._replace(unit=SCALED) if written.lower() in _SCALES else None


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
    is_scaled = len(scales) > 1 or (_is_partly(found["suffix"]) and not _is_lone_metre(found["suffix"]))
    if scales and scales <= set(_SCALES) and len(currencies) <= 1 and is_scaled:
        unit = SCALED
    elif len(units) <= 1:
        unit = next(iter(units), "")
    else:
        return None
    if share_in_brackets(texts[parts["digits"].notna()]) == 1:
        return None  # losses stand among gains; numbers that all have brackets are something else
    thousands = _find_thousands(found["digits"])
    return None if thousands is None else NumberStyle(thousands, unit)


def find_doubt(texts: Any, style: NumberStyle, name: str) -> str:
    """Return what is not certain about the style of some numbers, and what decides it; "" if all is certain.

    Examples
    --------
    >>> import pandas as pd
    >>> find_doubt(pd.Series(["1,234", "2,345"]), NumberStyle(","), "size")
    "',' could be the decimal mark (--number size=,)"
    >>> find_doubt(pd.Series(["1,230", "950"]), NumberStyle(","), "size")
    ''
    """
    parts, doubts = _split(texts), list[str]()
    texts, found = texts[parts["digits"].notna()], parts[parts["digits"].notna()]
    digits = found["digits"]
    mark = style.thousands or "."
    if (
        mark in ",."
        and (style.thousands or style.unit)
        and _is_open(digits, mark)
        and not groups_thousands(digits, mark)
    ):
        is_comma, is_thousands = mark == ",", bool(style.thousands)
        decides = "," if is_comma == is_thousands else "."
        role = "the decimal mark" if is_thousands else "the separator of thousands"
        doubts.append(f"{mark!r} could be {role} (--number {name}={decides})")
    is_bare = found["suffix"].isna() & found["currency"].isna()
    if style.unit not in ("", SCALED) and is_bare.any() and not is_bare.all():
        shown = texts[is_bare].iloc[0]
        scale = f"; {style.unit} could be million (--number {name}={style.unit})" if style.unit == "m" else ""
        other = " and could be shares: write all alike" if style.unit == "%" else ""
        doubts.append(f"{shown!r} and others without {style.unit} are read as {style.unit} too{other}{scale}")
    return "; ".join(doubts)


def _is_lone_metre(suffix: Any) -> bool:
    """Return whether all words are a small m, which is metres, minutes or months more often than millions."""
    return bool((suffix.dropna().str.strip() == "m").all())


def _is_partly(suffix: Any) -> bool:
    """Return whether some numbers are followed by a word and others are not."""
    return bool(suffix.isna().any())


def _find_thousands(digits: Any) -> str | None:
    """Return what separates thousands, "" if nothing does; None where numbers are not written alike."""
    marks = [mark for mark in f",'{_SPACES}" if digits.str.contains(mark, regex=False).any()]
    if not marks:
        is_grouped = bool((digits.str.count(r"\.") > 1).any()) or groups_thousands(digits, ".")
        return "" if not is_grouped else "." if _fits(digits, ".") else None
    tried = (marks[0], ".") if marks == [","] else marks
    return next((mark for mark in tried if len(marks) == 1 and _fits(digits, mark)), None)


def _fits(digits: Any, mark: str) -> bool:
    """Return whether every number in which the mark occurs has it between thousands."""
    return bool(_is_grouped(digits[digits.str.contains(mark, regex=False)], mark).all())


def _is_grouped(digits: Any, mark: str) -> Any:
    point = re.escape("," if mark == "." else ".")
    return digits.str.fullmatch(rf"[+-]?[1-9]\d{{0,2}}(?:{re.escape(mark)}\d{{3}})+(?:{point}\d+)?")


def _is_open(digits: Any, mark: str) -> bool:
    """Return whether a mark can be between thousands as well as before decimals: 1,234, and never 1,5 or 1,234,567."""
    marked = digits[digits.str.contains(mark, regex=False)]
    return len(marked) > 0 and bool(marked.str.fullmatch(rf"[+-]?[1-9]\d{{0,2}}{re.escape(mark)}\d{{3}}").all())


def groups_thousands(digits: Any, mark: str) -> bool:
    """Return whether a mark that could be either surely separates thousands, as in 950 and 12,500.

    Three decimals in every number would stand in the small ones too, and zeros that are left out, in all.
    """
    is_marked = digits.str.contains(mark, regex=False)
    is_small = digits[~is_marked].str.fullmatch(r"[+-]?\d{1,3}")
    ends_in_zero = digits[is_marked].str.endswith("0").any()
    return _is_open(digits, mark) and len(is_small) > 0 and bool(is_small.all()) and bool(ends_in_zero)


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
        is_other = digits.str.contains(style.thousands, regex=False, na=False) & ~_is_grouped(
            digits.fillna(""), style.thousands
        )
        digits = digits.mask(is_other).str.replace(style.thousands, "", regex=False)
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
    return float(np.mean(normalize_signs(texts).str.match(rf"(?i)^\s*[+-]?\s*(?:{_CURRENCY})?\s*\d")))


def share_in_brackets(texts: Any) -> float:
    """Return the share of texts that are a number in brackets, which stand for a minus."""
    return float(np.mean(texts.astype(object).str.match(_BRACKETS)))


def normalize_signs(texts: Any) -> Any:
    """Return texts with a plain minus for a typeset one, and for brackets around a number.

    Examples
    --------
    >>> import pandas as pd
    >>> normalize_signs(pd.Series(["(1,200.00)", "$(5)", "\u22127", "3"])).tolist()
    ['-1,200.00', '-$5', '-7', '3']
    """
    texts = texts.astype(object).str.replace(rf"^\s*[{_MINUS}]\s*(?=[^\s{_MINUS}])", "-", regex=True)
    return texts.str.replace(_BRACKETS, r"-\1\2\3", regex=True)


def _split(texts: Any) -> Any:
    parts = normalize_signs(texts).str.extract(_STYLED)
    return parts.set_axis(["sign", "currency", "digits", "suffix"], axis=1)
