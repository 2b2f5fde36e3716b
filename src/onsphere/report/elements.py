"""The elements of a page: sections, tables and pictures, each with its data as a CSV file.

A picture is SVG text whose colours are those of the page, light or dark.
"""

from __future__ import annotations

import base64
import csv
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from onsphere.plots import BLUE, GREY, ORANGE, VERMILLION
from onsphere.report.formatting import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Picture",
    "Section",
    "Step",
    "Table",
    "Tile",
    "Verdict",
    "are_numbers",
    "draw_picture",
    "make_table",
    "style_axes",
]

Values = Sequence[Any] | np.ndarray

# Inches. A card is about 320 pixels wide on any screen, which makes the text a readable size.
WIDTH, HEIGHT = 3.9, 3.2

# Stands for the text colour, which only the page knows. Matplotlib leaves black out of the file.
_INK = "#010203"
_COLOURS = {
    _INK: "var(--ink)",
    BLUE.lower(): "var(--blue)",
    ORANGE.lower(): "var(--orange)",
    VERMILLION.lower(): "var(--red)",
    GREY.lower(): "var(--grey)",
}
_STYLE: dict[str, Any] = {
    **{f"{part}.color": _INK for part in ("text", "xtick", "ytick", "grid")},
    **{f"axes.{part}color": _INK for part in ("edge", "label")},
    **{f"boxplot.{part}props.color": _INK for part in ("box", "whisker", "cap")},
    "axes.linewidth": 0.6,
    "font.size": 10,
    "svg.fonttype": "none",
    # A column may be called "price in $".
    "text.parse_math": False,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


class Download(NamedTuple):
    """A CSV file that is part of the page."""

    name: str
    address: str


class Picture(NamedTuple):
    """A plot, a sentence on how to read it, and its data."""

    title: str
    reading: str
    svg: str
    download: Download


class Table(NamedTuple):
    """Cells as they are shown; columns where `is_number` is true are aligned right."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    is_number: list[bool]
    download: Download


class Step(NamedTuple):
    """Something to do next, why, and the command or code for it."""

    title: str
    why: str
    command: str


class Section(NamedTuple):
    """A heading and its content."""

    anchor: str
    title: str
    paragraphs: list[str]
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    steps: Sequence[Step] = ()


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


def make_download(name: str, columns: Mapping[str, Values]) -> Download:
    """Return columns of equal length as a CSV file in a data address, which a browser can save offline."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_write_cell(title) for title in columns])
    writer.writerows([_write_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    code = base64.b64encode(out.getvalue().encode("utf-8", errors="replace")).decode("ascii")
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return Download(f"{slug}.csv", f"data:text/csv;charset=utf-8;base64,{code}")


def _write_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else f"{float(value):.8g}"
    text = str(value)
    # A spreadsheet would read text that starts like this as a formula.
    is_formula = isinstance(value, str) and (text[:1] in ("=", "+", "@", "\t", "\r") or re.match(r"-(?![\d.]+$)", text))
    return f"'{text}" if is_formula else text


def make_table(
    name: str,
    caption: str,
    columns: Sequence[tuple[str, Values, Callable[[Any], str]]],
    *,
    most_rows: int | None = None,
    file_columns: Mapping[str, Values] | None = None,
) -> Table:
    """Return a table of columns, each given by its title, its values and the format of a cell.

    At most `most_rows` rows are shown. The CSV file has all rows, of `file_columns` if given.
    """
    cells = [[format_cell(value) for value in values[:most_rows]] for _, values, format_cell in columns]
    return Table(
        caption=caption,
        columns=[shorten(title, longest=24) for title, _, _ in columns],
        rows=[list(row) for row in zip(*cells, strict=True)],
        is_number=[are_numbers(values) for _, values, _ in columns],
        download=make_download(name, file_columns or {title: values for title, values, _ in columns}),
    )


def are_numbers(values: Values) -> bool:
    """Return whether all values are numbers; booleans are not."""
    return all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values)


def draw_picture(
    name: str,
    draw: Callable[[Axes], object],
    columns: Mapping[str, Values],
    *,
    title: str,
    reading: str,
    height: float = HEIGHT,
    file_name: str | None = None,
) -> Picture:
    """Return a picture of what `draw` puts on an axes; no other picture of the page may have this name."""
    return Picture(title, reading, draw_svg(name, draw, height), make_download(file_name or name, columns))


def draw_svg(name: str, draw: Callable[[Axes], object], height: float = HEIGHT) -> str:
    """Return what `draw` puts on an axes as an SVG element."""
    from matplotlib import style
    from matplotlib.figure import Figure

    out = io.BytesIO()
    # Start from the defaults, so that the user's own style does not change the page, and ours does not leak out.
    with style.context(["default", {**_STYLE, "svg.hashsalt": name}]), warnings.catch_warnings():
        # The browser has the letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
        figure.savefig(out, format="svg", transparent=True, dpi=160, metadata=_NO_METADATA)
    return _adapt_to_page(out.getvalue(), name)


def _adapt_to_page(svg: bytes, name: str) -> str:
    """Remove the fixed size, use the colours of the page, and make the identifiers unique."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if element is root:
            attributes = {"viewBox": attributes["viewBox"], "aria-hidden": "true", "focusable": "false"}
        if "id" in attributes:
            attributes["id"] = f"{name}-{attributes['id']}"
        if attributes.get("href", "").startswith("#"):
            attributes["href"] = f"#{name}-{attributes['href'][1:]}"
        for key in ("style", "clip-path", "fill", "stroke"):
            if key in attributes:
                text = attributes[key].replace("url(#", f"url(#{name}-")
                attributes[key] = re.sub("#[0-9a-f]{6}", lambda found: _COLOURS.get(found[0], found[0]), text)
        element.attrib = attributes
    return ElementTree.tostring(root, encoding="unicode")


def style_axes(ax: Axes, x: str, y: str) -> None:
    """Label the axes, and add a faint horizontal grid."""
    ax.set(xlabel=x, ylabel=y, axisbelow=True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.2, linewidth=0.6)
