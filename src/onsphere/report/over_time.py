"""Coverage and error over time: whether the promise still holds for the latest rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.calibration import find_coverage_range
from onsphere.metrics._checks import pick_evenly
from onsphere.plots import BLUE, GREY, LEGEND, REFERENCE
from onsphere.report.elements import Picture, Section, draw_picture, style_axes
from onsphere.report.formatting import format_number, format_percent, shorten
from onsphere.report.measured_rows import CHANCE_LEVEL, Feature, MeasuredRows
from onsphere.report.row_groups import label_values
from onsphere.report.summary import format_mean_error

__all__ = ["Timeline", "measure_over_time", "show_over_time"]

# A point is a mean over a tenth of the rows, within these bounds; with fewer than two such windows nothing is drawn.
FEWEST_ROWS, MOST_ROWS = 30, 500
MOST_POINTS = 400


class Timeline(NamedTuple):
    """Means over the latest rows, at the time of the last of them."""

    name: str
    window: int
    labels: tuple[str, str]
    time: NDArray[Any]
    coverage: Floats
    error: Floats
    chance: tuple[float, float]

    @property
    def is_low_at_the_end(self) -> bool:
        """Return whether the latest rows are covered less often than chance makes them."""
        return bool(self.coverage[-1] < self.chance[0])


def measure_over_time(rows: MeasuredRows) -> Timeline | None:
    """Return rolling coverage and error, or None without a time or with too few rows."""
    if rows.times is None:
        return None
    known = np.flatnonzero(~rows.times.is_missing)
    window = int(np.clip(len(known) // 10, FEWEST_ROWS, MOST_ROWS))
    order = known[np.argsort(rows.times.values[known], kind="stable")]
    moments = rows.times.values[order]
    if len(known) < 2 * window or moments[0] == moments[-1]:
        return None
    labels = [_label(rows.times, moment) for moment in moments[[0, -1]]]
    is_date = rows.times.kind == "date"
    return Timeline(
        name=rows.times.name,
        window=window,
        labels=(labels[0], labels[1]),
        time=(np.rint(1e6 * moments).astype("datetime64[us]") if is_date else moments)[window - 1 :],
        coverage=_roll(rows.is_covered[order], window),
        error=_roll(rows.error[order], window),
        chance=find_coverage_range(window, rows.n_calibration, rows.coverage, level=CHANCE_LEVEL),
    )


def _roll(values: NDArray[Any], window: int) -> Floats:
    """Return the mean of each so many values in a row."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    return (total[window:] - total[:-window]) / window


def show_over_time(rows: MeasuredRows, timeline: Timeline) -> Section:
    """Return two pictures: the share covered and the error, over the latest rows at each time."""
    low = float(timeline.coverage.min())
    place = int(np.argmin(timeline.coverage))
    when = _label(rows.times, float(_to_floats(timeline.time[[place]])[0]))
    end = "below what chance allows" if timeline.is_low_at_the_end else "within what chance allows"
    error = format_mean_error(rows, rows.error)
    half = len(timeline.error) // 2
    text = (
        f"These rows in the order of {shorten(timeline.name)}, from {timeline.labels[0]} to {timeline.labels[1]}; each "
        f"point is a mean over {timeline.window:,} rows in a row. At the end "
        f"{format_percent(float(timeline.coverage[-1]))} are covered, {end}; the lowest is {format_percent(low)}, up "
        f"to {when}. The {rows.error_name} is {error} over all rows, "
        f"{format_mean_error(rows, timeline.error[:half])} in the first half and "
        f"{format_mean_error(rows, timeline.error[half:])} in the second."
    )
    return Section("time", "Over time", [text], [_draw_coverage(rows, timeline), _draw_error(rows, timeline)])


def _label(times: Feature | None, moment: float) -> str:
    """Return a time as text: numbers such as 2015.25 with six digits."""
    if times is not None and times.kind == "date":
        return label_values(times, np.array([moment]))[0]
    return format_number(moment, digits=6)


def _to_floats(moments: NDArray[Any]) -> Floats:
    return moments.astype(np.int64) / 1e6 if moments.dtype.kind == "M" else moments


def _draw_coverage(rows: MeasuredRows, timeline: Timeline) -> Picture:
    low, high = timeline.chance

    def draw(ax: Any) -> None:
        ax.axhspan(low, high, color=GREY, alpha=0.15, linewidth=0, label="by chance")
        ax.axhline(rows.coverage, label="promised", **REFERENCE)
        _draw_line(ax, timeline, timeline.coverage)
        bottom = min(low, float(timeline.coverage.min()))
        ax.set_ylim(max(bottom - 0.05, -0.02), 1.02)
        style_axes(ax, shorten(timeline.name, longest=30), "Share covered")
        ax.legend(loc="lower left", **LEGEND)

    return _make_picture(
        "coverage-over-time",
        draw,
        timeline,
        "share covered",
        timeline.coverage,
        title="Coverage over time",
        reading=f"The share of the latest {timeline.window:,} rows whose truth was held. Within the band it may be "
        "chance; a line that leaves it for long means that the rows have changed.",
    )


def _draw_error(rows: MeasuredRows, timeline: Timeline) -> Picture:
    def draw(ax: Any) -> None:
        ax.axhline(float(np.mean(rows.error)), label="all rows", **REFERENCE)
        _draw_line(ax, timeline, timeline.error)
        ax.set_ylim(0, 1.25 * max(float(timeline.error.max()), float(np.mean(rows.error)), 1e-300))
        style_axes(ax, shorten(timeline.name, longest=30), rows.error_name.capitalize())
        ax.legend(loc="upper left", **LEGEND)

    return _make_picture(
        "error-over-time",
        draw,
        timeline,
        rows.error_name,
        timeline.error,
        title="Error over time",
        reading=f"The {rows.error_name} of the latest {timeline.window:,} rows. A line that climbs means a model that "
        "grows old.",
    )


def _draw_line(ax: Any, timeline: Timeline, values: Floats) -> None:
    from matplotlib import dates

    chosen = _choose_points(timeline)
    ax.plot(timeline.time[chosen], values[chosen], color=BLUE, linewidth=1.8)
    if timeline.time.dtype.kind == "M":
        # With fewer ticks allowed, no interval of matplotlib's fits some spans, such as 30 months, and it warns.
        locator = dates.AutoDateLocator(minticks=3, maxticks=7)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    else:
        ax.locator_params(axis="x", nbins=5)
        ax.ticklabel_format(axis="x", useOffset=False)


def _choose_points(timeline: Timeline) -> NDArray[np.intp]:
    return pick_evenly(np.arange(float(len(timeline.time))), MOST_POINTS)


def _make_picture(
    name: str, draw: Any, timeline: Timeline, header: str, values: Floats, *, title: str, reading: str
) -> Picture:
    chosen = _choose_points(timeline)
    columns = {f"{shorten(timeline.name)} up to": timeline.time[chosen], header: values[chosen]}
    return draw_picture(name, draw, columns, title=title, reading=reading)
