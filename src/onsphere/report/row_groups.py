"""Rows by group, and where the model is least sure.

Rows are grouped by one column at a time: by the levels of a category, and by ranges of numbers and dates.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.plots import BLUE, REFERENCE, VERMILLION
from onsphere.report.elements import Picture, Section, Table, draw_picture, make_table
from onsphere.report.formatting import choose_number_format, format_number, format_percent, shorten
from onsphere.report.measured_rows import FEWEST_ROWS, Feature, MeasuredRows
from onsphere.report.redundant_columns import find_redundant
from onsphere.report.summary import format_mean_error

__all__ = [
    "MOST_LEVELS",
    "MOST_SHOWN",
    "Grouping",
    "Means",
    "average_confidence",
    "compute_r_squared",
    "draw_means",
    "find_least_trusted",
    "group_rows",
    "label_values",
    "rank_columns",
    "show_least_trusted",
]

# A category with more levels keeps the most frequent ones; the others become one group.
MOST_LEVELS = 10
# A column with at most so many values is grouped by value, and any other number by its quartiles.
FEW_VALUES = 5
# Columns that are drawn, and groups in the table.
MOST_SHOWN, MOST_GROUPS = 6, 10


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of rows by one column: the label of each group, and the group of each row. No group is empty."""

    name: str
    labels: list[str]
    member: NDArray[np.intp]

    @cached_property
    def n_rows(self) -> NDArray[np.intp]:
        """Return the number of rows in each group."""
        return np.bincount(self.member)

    def average(self, values: NDArray[Any]) -> Floats:
        """Return the mean of the values in each group."""
        return np.bincount(self.member, values) / self.n_rows


class Means(NamedTuple):
    """Hold the mean of each group, the range it may lie in by chance, and whether it is too low."""

    name: str
    mean: Floats
    low: Floats
    high: Floats
    is_bad: NDArray[np.bool_]


# --- groups ---


def group_rows(feature: Feature) -> Grouping:
    """Group rows by the levels of a category, the values of a number that has few, or the quartiles of any other."""
    labels, member = _group_by_level(feature) if feature.kind == "category" else _group_by_range(feature)
    if feature.is_missing.any():
        labels, member = [*labels, "missing"], np.where(feature.is_missing, len(labels), member)
    return Grouping(feature.name, labels, member)


def _group_by_range(feature: Feature) -> tuple[list[str], NDArray[np.intp]]:
    values = feature.values[~feature.is_missing]
    distinct = np.unique(values)
    if len(distinct) <= FEW_VALUES:
        edges, labels = distinct[:-1], label_values(feature, distinct)
    else:
        edges = np.unique(np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf"))
        # If most rows have the largest value, compare all other rows with them.
        edges = edges[edges < distinct[-1]] if edges[0] < distinct[-1] else distinct[-2:-1]
        names = label_values(feature, edges)
        labels = [f"≤ {names[0]}", *(f"{low} to {high}" for low, high in pairwise(names)), f"> {names[-1]}"]
    return labels, np.searchsorted(edges, feature.values, side="left")


def label_values(feature: Feature, values: Floats) -> list[str]:
    """Return the values as text, with as few digits as keep them distinct."""
    if feature.kind == "date":
        moments = np.rint(1e6 * values).astype("datetime64[us]")
        unit = "D" if len(np.unique(moments.astype("datetime64[D]"))) == len(values) else "s"
        return [str(moment).replace("T", " ") for moment in np.datetime_as_string(moments, unit=unit)]
    # Seventeen digits are enough for any two floats.
    tries = ([format_number(float(value), digits=digits) for value in values] for digits in range(3, 18))
    return next(names for names in tries if len(set(names)) == len(values))


def _group_by_level(feature: Feature) -> tuple[list[str], NDArray[np.intp]]:
    counts = Counter(level for level in feature.values if level is not None)
    # Sorted by count and then by name, so that the same table always gives the same page.
    ranked = sorted(counts, key=lambda level: (-counts[level], level))
    frequent = [level for level in ranked if counts[level] >= FEWEST_ROWS]
    has_few = len(ranked) <= FEW_VALUES or (len(ranked) <= MOST_LEVELS and len(ranked) - len(frequent) <= 1)
    kept = sorted(ranked if has_few else frequent[: MOST_LEVELS - 1])
    labels = [shorten(level, longest=26) for level in kept]
    place = {level: rank for rank, level in enumerate(kept)}
    if len(kept) < len(ranked):
        labels.append(f"{len(ranked) - len(kept)} others")
    return labels, np.array([place.get(level, len(kept)) for level in feature.values], dtype=np.intp)


def rank_columns(rows: MeasuredRows) -> list[Grouping]:
    """Group the rows by each column of at least two groups, and put columns whose groups differ in confidence first.

    Of columns that say nearly the same, the first stands for all.
    """
    told = (rows.features[group[0]] for group in find_redundant(rows.features))
    found = [grouping for grouping in map(group_rows, told) if len(grouping.labels) > 1]
    return sorted(found, key=lambda grouping: -compute_r_squared(rows.confidence, grouping))


def compute_r_squared(values: Floats, grouping: Grouping) -> float:
    """Return the share of the variance that the groups explain, adjusted for the number of groups."""
    total = float(np.sum((values - values.mean()) ** 2))
    n, n_groups = len(values), len(grouping.labels)
    if total == 0 or n <= n_groups:
        return 0.0
    left = float(np.sum((values - grouping.average(values)[grouping.member]) ** 2))
    return 1 - left / total * (n - 1) / (n - n_groups)


# --- confidence ---


def show_least_trusted(rows: MeasuredRows, ranked: list[Grouping]) -> Section:
    """Return the groups with the lowest confidence."""
    anchor, title = "least-trusted", "Where it is least trusted"
    least = find_least_trusted(rows, ranked)
    if not least:
        return Section(anchor, title, ["No column splits these rows into groups of at least ten."])
    pictures = []
    for grouping in ranked[:MOST_SHOWN]:
        means = average_confidence(rows, grouping)
        lowest = int(np.argmin(means.mean))
        reading = f"Least trusted: {grouping.labels[lowest]}, with a mean confidence of {means.mean[lowest]:.2f}."
        pictures.append(draw_means(grouping, means, f"trust-{len(pictures) + 1}", reading, line=0.5, limits=(0, 1)))
    which = f", for the {len(pictures)} of {len(ranked)} columns where it differs most"
    text = (
        f"Mean confidence of the rows by the value of a column{which if len(pictures) < len(ranked) else ''}. Rows "
        "like those of the calibration have 0.5 on average; the further left, the less the model trusts itself there. "
        "A bar is where the mean may lie by chance (95\u202f%)."
    )
    return Section(anchor, title, [text], pictures, [_make_group_table(rows, least)])


def find_least_trusted(rows: MeasuredRows, ranked: list[Grouping]) -> list[tuple[float, Grouping, int]]:
    """Return the groups of the lowest mean confidence, which comes first, with their grouping and their place in it."""
    groups = [
        (float(confidence), grouping, place)
        for grouping in ranked
        for place, confidence in enumerate(grouping.average(rows.confidence))
        if grouping.n_rows[place] >= FEWEST_ROWS
    ]
    return sorted(groups, key=lambda group: group[0])[:MOST_GROUPS]


def average_confidence(rows: MeasuredRows, grouping: Grouping) -> Means:
    """Return the mean confidence of each group; one that is below that of ordinary rows by more than chance is bad."""
    mean, half = grouping.average(rows.confidence), np.full(len(grouping.labels), math.nan)
    for place in np.flatnonzero(grouping.n_rows > 1):
        values = rows.confidence[grouping.member == place]
        half[place] = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    low, high = np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1)
    return Means("mean confidence", mean, low, high, is_bad=high < 0.5)


def _make_group_table(rows: MeasuredRows, groups: list[tuple[float, Grouping, int]]) -> Table:
    members = [grouping.member == place for _, grouping, place in groups]
    errors = [float(np.mean(rows.error[member])) for member in members]
    columns: list[Any] = [
        ("column", [grouping.name for _, grouping, _ in groups], shorten),
        ("value", [grouping.labels[place] for _, grouping, place in groups], str),
        ("rows", [int(grouping.n_rows[place]) for _, grouping, place in groups], "{:,}".format),
        ("mean confidence", [confidence for confidence, _, _ in groups], "{:.2f}".format),
    ]
    if rows.is_class:
        columns.append(("wrong", errors, format_percent))
        overall = f"{format_mean_error(rows, rows.error)} of all rows are wrong"
    else:
        columns.append(("mean error", errors, choose_number_format(errors)))
        overall = f"the mean error of all rows is {format_mean_error(rows, rows.error)}"
    accepted = rows.assessment.accepted
    if accepted is not None:
        columns.append(("accepted", [float(np.mean(accepted[member])) for member in members], format_percent))
    caption = f"The least trusted groups of at least {FEWEST_ROWS} rows; {overall}."
    return make_table("least-trusted", caption, columns)


# --- drawing ---


def draw_means(
    grouping: Grouping,
    means: Means,
    name: str,
    reading: str,
    *,
    line: float,
    limits: tuple[float, float],
    title: str | None = None,
) -> Picture:
    """Draw a dot and a range for each group, from top to bottom, and a line to compare with."""
    labels = [f"{label}  ({n:,})" for label, n in zip(grouping.labels, grouping.n_rows, strict=True)]
    place = np.arange(len(labels))

    def draw(ax: Any) -> None:
        ax.axvline(line, zorder=1, **REFERENCE)
        for which, colour, marker in ((~means.is_bad, BLUE, "o"), (means.is_bad, VERMILLION, "X")):
            low, high = means.low[which], means.high[which]
            ax.hlines(place[which], low, high, color=colour, linewidth=3, alpha=0.4, zorder=2)
            ax.scatter(means.mean[which], place[which], s=40, color=colour, marker=marker, linewidths=0, zorder=3)
        ax.set_yticks(place, labels)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.set(xlabel=means.name.capitalize(), xlim=limits, axisbelow=True)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.grid(axis="x", alpha=0.2, linewidth=0.6)

    header = shorten(grouping.name)
    columns = {"rows": grouping.n_rows, means.name: means.mean, "from": means.low, "to": means.high}
    header = f"column {header}".strip() if header in ("", *columns) else header
    return draw_picture(
        name,
        draw,
        {header: grouping.labels, **columns},
        title=shorten(grouping.name) if title is None else title,
        reading=reading,
        height=0.7 + 0.33 * len(labels),
        file_name=f"{name}-{shorten(grouping.name)}",
    )
