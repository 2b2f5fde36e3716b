"""Drawings as text of the page: SVG whose colours are those of the page, light or dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from onsphere._internal.validation import Floats, missing_extra_error
from onsphere.plots import BLUE, GREY, LEGEND, ORANGE, REFERENCE, VERMILLION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["WIDTH", "counts", "draw", "put_legend", "ranges", "two_histograms"]

# Inches; a card is about 320 pixels wide on any screen, so that text comes out at a size to be read.
LARGE, WIDTH = (3.9, 3.2), 3.9

# Stands for the colour of the text, which only the page knows. Black would not be written into the file.
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


def draw(name: str, paint: Callable[[Axes], object], *, size: tuple[float, float] = LARGE) -> str:
    """What `paint` puts on an axes, as an SVG element; the name must be that of no other drawing of the page."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra_error("write_report", "matplotlib", "report") from None
    out = io.BytesIO()
    # From the defaults, so that no style of the user's own gets into the page, and nothing of ours gets out.
    with style.context(["default", {**_STYLE, "svg.hashsalt": name}]), warnings.catch_warnings():
        # The browser has the letters that the font of the layout lacks.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.subplots())
        figure.savefig(out, format="svg", transparent=True, dpi=160, metadata={"Date": None})
    return _themed(out.getvalue(), name)


def _themed(svg: bytes, name: str) -> str:
    """The drawing without a size of its own, in the colours of the page, and with identifiers of its own."""
    root = ElementTree.fromstring(svg)
    for parent in root.iter():
        for child in [each for each in parent if each.tag.endswith("}metadata")]:
            parent.remove(child)
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
                attributes[key] = _in_page_colours(attributes[key].replace("url(#", f"url(#{name}-"))
        element.attrib = attributes
    return ElementTree.tostring(root, encoding="unicode")


def _in_page_colours(text: str) -> str:
    return re.sub("#[0-9a-f]{6}", lambda found: _COLOURS.get(found.group(), found.group()), text)


def ranges(
    ax: Axes,
    labels: Sequence[str],
    middle: Floats,
    low: Floats,
    high: Floats,
    *,
    line: float,
    is_bad: Any,
    x: str,
    limits: tuple[float, float],
) -> None:
    """A dot for each group, from top to bottom, with the range in which it may lie by chance, and a line to compare."""
    place = np.arange(len(labels))
    ax.axvline(line, zorder=1, **REFERENCE)
    for which, colour, marker in ((~is_bad, BLUE, "o"), (is_bad, VERMILLION, "X")):
        ax.hlines(place[which], low[which], high[which], color=colour, linewidth=3, alpha=0.4, zorder=2)
        ax.scatter(middle[which], place[which], s=40, color=colour, marker=marker, linewidths=0, zorder=3)
    ax.set_yticks(place, list(labels))
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set(xlabel=x, xlim=limits, axisbelow=True)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.grid(axis="x", alpha=0.2, linewidth=0.6)


def counts(ax: Axes, numbers: Any, shares: Floats, *, x: str, y: str) -> None:
    """A bar for each whole number."""
    ax.bar(numbers, shares, color=BLUE, width=0.7)
    ax.locator_params(axis="x", integer=True)
    _plain(ax, x, y)


def two_histograms(ax: Axes, edges: Floats, shares: Sequence[Floats], names: Sequence[str], *, x: str) -> None:
    """Shares of two sets of rows in the same bins, one filled and one as an outline; `edges` has one entry more."""
    ax.stairs(shares[0], edges, fill=True, color=BLUE, alpha=0.45, label=names[0])
    ax.stairs(shares[1], edges, color=VERMILLION, linewidth=2, label=names[1])
    _plain(ax, x, "Share of rows")
    ax.margins(y=0.25)
    ax.legend(loc="upper right", **LEGEND)


def put_legend(ax: Axes, corner: Any) -> None:
    """The legend of a plot in one column, elsewhere."""
    legend = ax.legend(*ax.get_legend_handles_labels(), loc=corner, **LEGEND)
    for handle in filter(None, legend.legend_handles):
        handle.set_alpha(1)


def _plain(ax: Axes, x: str, y: str) -> None:
    ax.set(xlabel=x, ylabel=y, axisbelow=True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.2, linewidth=0.6)
