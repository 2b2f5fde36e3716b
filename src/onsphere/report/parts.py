"""What a page is made of, and how numbers and words are written in it and in its CSV files."""

from __future__ import annotations

import base64
import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Download",
    "Picture",
    "Section",
    "Table",
    "Tile",
    "Verdict",
    "aligned",
    "clean",
    "download",
    "number",
    "percent",
]

# Between a number and its unit, so that they stay on one line.
_THIN = "\u202f"


class Download(NamedTuple):
    """A CSV file that is part of the page."""

    name: str
    address: str
    n_rows: int


class Picture(NamedTuple):
    """A drawing, a sentence on how to read it, and its data."""

    title: str
    reading: str
    svg: str
    download: Download


class Table(NamedTuple):
    """Cells as they are shown; `is_number` says which columns are set to the right."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    is_number: list[bool]
    download: Download


class Section(NamedTuple):
    """A heading with what stands below it."""

    anchor: str
    title: str
    paragraphs: list[str]
    pictures: list[Picture]
    tables: list[Table]


class Tile(NamedTuple):
    """One large figure."""

    value: str
    name: str
    note: str


class Verdict(NamedTuple):
    """A sentence on how far to trust the model: "good", "fair" or "poor" news, or just to "know"."""

    kind: str
    title: str
    text: str


def clean(value: object, *, longest: int = 60) -> str:
    """A name or a value on one line, without control characters and not too long.

    Examples
    --------
    >>> clean("two\\nlines"), clean("abcdefgh", longest=5)
    ('two lines', 'abcd…')
    """
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def number(value: float, *, digits: int = 3) -> str:
    """A number as it is read: so many digits that count, and no exponent where it can be helped.

    Examples
    --------
    >>> number(0.123456), number(12345.6), number(-2.0), number(1e-9), number(float("nan"))
    ('0.123', '12,346', '−2', '1e−09', '–')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    size = abs(value)
    if 10.0**digits <= size < 1e9:
        text = f"{value:,.0f}" if size >= 10_000 else f"{value:.0f}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def aligned(values: Sequence[float]) -> list[str]:
    """A column of numbers with as many decimals each, three digits for the typical one.

    Examples
    --------
    >>> aligned([97.5, 162.0, 8.25]), aligned([3.0, 12.0]), aligned([float("nan"), 0.5])
    (['97.5', '162.0', '8.2'], ['3', '12'], ['–', '0.500'])
    """
    sizes = np.array([abs(value) for value in values if math.isfinite(value)])
    if np.all(sizes == np.rint(sizes)) and np.all(sizes < 1e9):
        decimals = 0
    else:
        decimals = 2 - math.floor(math.log10(float(np.median(sizes[sizes > 0]))))
        if not -6 <= decimals <= 6 or float(sizes.max()) >= 1e9:
            return [number(value) for value in values]
    shown = f",.{max(decimals, 0)}f" if len(sizes) and float(sizes.max()) >= 10_000 else f".{max(decimals, 0)}f"
    return [f"{value:{shown}}".replace("-", "−") if math.isfinite(value) else number(value) for value in values]


def percent(share: float, *, decimals: int = 0) -> str:
    """A share in per cent; all and none are only said of all and none.

    Examples
    --------
    >>> percent(0.914), percent(0.996), percent(0.99999), percent(1.0), percent(0.914, decimals=1)
    ('91\\u202f%', '99.6\\u202f%', '>\\u202f99.9\\u202f%', '100\\u202f%', '91.4\\u202f%')
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


def download(name: str, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> Download:
    """Columns of one length as a CSV file in an address, which a browser saves without a network."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_cell(title) for title in columns])
    rows = [[_cell(value) for value in row] for row in zip(*columns.values(), strict=True)]
    writer.writerows(rows)
    code = base64.b64encode(out.getvalue().encode("utf-8", errors="replace")).decode("ascii")
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return Download(f"{slug}.csv", f"data:text/csv;charset=utf-8;base64,{code}", len(rows))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else f"{float(value):.8g}"
    text = str(value)
    # A spreadsheet would take text that begins like this for a formula.
    is_formula = isinstance(value, str) and (text[:1] in ("=", "+", "@", "\t", "\r") or re.match(r"-(?![\d.]+$)", text))
    return f"'{text}" if is_formula else text
