"""Coverage by group: whether the promise holds for every class, every range of predictions and every column."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from onsphere.calibration import make_coverage_distribution
from onsphere.report.elements import Picture, Section, Table, make_table
from onsphere.report.formatting import format_percent, shorten
from onsphere.report.measured_rows import CHANCE_LEVEL, Feature, MeasuredRows, read_feature
from onsphere.report.row_groups import MOST_SHOWN, Grouping, Means, draw_means, group_rows

__all__ = ["PREDICTED", "TRUE_CLASS", "GroupCoverage", "LowGroup", "measure_group_coverage", "show_group_coverage"]

TRUE_CLASS, PREDICTED = "true class", "predicted value"
_CALIBRATED = "calibrated group"
_MOST_NAMED = 10  # groups in the text


class LowGroup(NamedTuple):
    """A group that is covered too rarely, by more than chance."""

    column: str
    label: str
    share: float
    n_rows: int

    def __str__(self) -> str:
        return f"{shorten(self.column)}: {self.label}"


class GroupCoverage(NamedTuple):
    """The groupings to show with their coverage, how many groups were looked at, and which of them are too low."""

    shown: list[Grouping]
    means: list[Means]
    n_groups: int
    low: list[LowGroup]
    is_chosen: bool


def measure_group_coverage(rows: MeasuredRows, ranked: list[Grouping], names: list[str] | None) -> GroupCoverage:
    """Measure the coverage of every group: by the answer, by time and by each column, or by the named columns.

    Shown are the named columns, or those where coverage is too low or differs most.
    """
    if names is None:
        by_answer, others = _group_by_answer(rows), [*_group_by_time(rows), *ranked]
        by_answer += [
            grouping
            for grouping in _group_by_calibration(rows)
            if not any(_is_same(grouping, other) for other in [*by_answer, *others])
        ]
    else:
        columns = {str(name): rows.frame.iloc[:, place] for place, name in enumerate(rows.frame.columns)}
        by_answer, others = [group_rows(read_feature(name, columns[name])) for name in names], []
    n_groups = sum(len(grouping.labels) for grouping in [*by_answer, *others])
    level = CHANCE_LEVEL / max(n_groups, 1)
    others.sort(key=lambda grouping: (not _find_low(rows, grouping, level).any(), _coverage_p_value(rows, grouping)))
    shown = [*by_answer, *others][: max(MOST_SHOWN, len(names or ()))]
    low = [
        LowGroup(
            grouping.name,
            grouping.labels[place],
            float(np.mean(rows.is_covered[grouping.member == place])),
            int(grouping.n_rows[place]),
        )
        for grouping in [*by_answer, *others]
        for place in np.flatnonzero(_find_low(rows, grouping, level))
    ]
    means = [_average_coverage(rows, grouping, level) for grouping in shown]
    return GroupCoverage(shown, means, n_groups, low, names is None)


def show_group_coverage(rows: MeasuredRows, coverage: GroupCoverage) -> Section:
    """Return the coverage of each group."""
    anchor, title = "groups", "Does the promise hold for every group?"
    if not coverage.shown:
        return Section(anchor, title, ["No column splits these rows into groups."])
    # One axis for all, so that the pictures can be compared.
    start = min([rows.coverage, *(float(each.low.min()) for each in coverage.means)])
    limits = (max(np.floor(10 * start - 0.2) / 10, 0.0), 1.01)
    pictures: list[Picture] = []
    for grouping, each in zip(coverage.shown, coverage.means, strict=True):
        lowest = int(np.argmin(each.mean))
        share = float(each.mean[lowest])
        chance = "not by chance" if each.is_bad[lowest] else "which may be chance"
        chance = "as promised" if share >= rows.coverage else chance
        reading = f"Lowest: {grouping.labels[lowest]}, with {format_percent(share)} covered, {chance}."
        name = f"coverage-{len(pictures) + 1}"
        pictures.append(draw_means(grouping, each, name, reading, line=rows.coverage, limits=limits))
    named = "; ".join(f"{group} ({format_percent(group.share)})" for group in coverage.low[:_MOST_NAMED])
    more = f" and {len(coverage.low) - _MOST_NAMED:,} more" if len(coverage.low) > _MOST_NAMED else ""
    paragraphs = [
        f"Over all rows {format_percent(float(np.mean(rows.is_covered)))} are covered, {format_percent(rows.coverage)} "
        "were promised (the dashed line). A bar is where the share of the group may lie by chance (95\u202f%): if it "
        "reaches the line, the group agrees with the promise.",
        f"Covered too rarely, by more than chance: {named}{more}."
        if coverage.low
        else f"None of {coverage.n_groups:,} groups is covered less often than chance allows.",
    ]
    if coverage.is_chosen:
        paragraphs[1] += (
            " Shown are the columns where coverage differs most, so a few bars that miss the line are to be expected."
        )
    return Section(anchor, title, paragraphs, pictures, _make_calibrated_table(rows))


def _group_by_answer(rows: MeasuredRows) -> list[Grouping]:
    """Return the rows by their true class, or by the number that is predicted for each output."""
    if rows.is_class:
        classes = np.array([str(label) for label in rows.target.tolist()], dtype=object)
        return [group_rows(Feature(TRUE_CLASS, "category", classes))]
    value = np.asarray(rows.assessment.value, dtype=np.float64).reshape(len(rows), -1)
    names = [PREDICTED] if value.shape[1] == 1 else [f"predicted {name}" for name in rows.output_names]
    return [
        group_rows(Feature(name, "number", each)) for name, each in zip(names, value.T, strict=True) if np.ptp(each) > 0
    ]


def _group_by_calibration(rows: MeasuredRows) -> list[Grouping]:
    """Return the rows by the groups that the model was calibrated by; rows of none are one more."""
    if rows.groups is None or rows.group_codes is None:
        return []
    labels = np.array([str(each["group"]) for each in rows.groups] + ["none"], dtype=object)
    return [group_rows(Feature(_CALIBRATED, "category", labels[rows.group_codes]))]


def _is_same(first: Grouping, second: Grouping) -> bool:
    """Return whether two groupings split the rows alike."""
    pairs = {(int(one), int(other)) for one, other in zip(first.member, second.member, strict=True)}
    return len(pairs) == len(first.labels) == len(second.labels)


def _group_by_time(rows: MeasuredRows) -> list[Grouping]:
    """Return the rows by their time, unless that is a column, which is looked at anyway."""
    if rows.times is None or rows.times.name in map(str, rows.frame.columns):
        return []
    grouping = group_rows(rows.times)
    return [grouping] if len(grouping.labels) > 1 else []


def _make_calibrated_table(rows: MeasuredRows) -> list[Table]:
    """Return the coverage of the groups that the model was calibrated by, if there are any."""
    if rows.groups is None or rows.group_codes is None:
        return []
    members = [rows.group_codes == place for place in range(len(rows.groups))]
    shares = [float(np.mean(rows.is_covered[member])) if member.any() else None for member in members]
    columns: list[Any] = [
        ("group", [each["group"] for each in rows.groups], shorten),
        ("calibration rows", [each["calibration rows"] for each in rows.groups], "{:,}".format),
        ("calibrated by", [each["calibrated by"] for each in rows.groups], str),
        ("rows here", [int(member.sum()) for member in members], "{:,}".format),
        ("covered", shares, lambda share: "–" if share is None else format_percent(share)),
    ]
    caption = f"The groups that were calibrated by themselves; {format_percent(rows.coverage)} is promised to each."
    return [make_table("calibrated-groups", caption, columns)]


def _coverage_p_value(rows: MeasuredRows, grouping: Grouping) -> float:
    """Return the p-value of equal coverage in all groups, by the chi-squared test."""
    from scipy.stats import chi2_contingency

    if rows.is_covered.all() or not rows.is_covered.any():
        return 1.0
    n_covered = np.bincount(grouping.member, rows.is_covered)
    found: Any = chi2_contingency([n_covered, grouping.n_rows - n_covered], correction=False)
    return float(found.pvalue)


def _find_low(rows: MeasuredRows, grouping: Grouping, level: float) -> Any:
    """Return which groups are covered less often than chance makes them."""
    n_covered = np.bincount(grouping.member, rows.is_covered)
    is_short = n_covered < rows.coverage * grouping.n_rows
    is_low = [
        make_coverage_distribution(int(n), rows.n_calibration, rows.coverage).cdf(count) < level if short else False
        for n, count, short in zip(grouping.n_rows, n_covered, is_short, strict=True)
    ]
    return np.array(is_low, dtype=bool)


def _average_coverage(rows: MeasuredRows, grouping: Grouping, level: float) -> Means:
    """Return the share covered, its exact 95 % interval (Clopper and Pearson), and whether it is below chance."""
    from scipy.stats import binomtest

    n_covered = np.bincount(grouping.member, rows.is_covered).astype(int)
    counts = list(zip(n_covered.tolist(), grouping.n_rows.tolist(), strict=True))
    ends = [binomtest(count, n).proportion_ci(1 - CHANCE_LEVEL) for count, n in counts]
    low, high = np.array([(end.low, end.high) for end in ends]).T
    is_low = _find_low(rows, grouping, level)
    return Means("share covered", n_covered / grouping.n_rows, low, high, is_bad=is_low)
