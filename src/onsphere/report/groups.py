"""Trust and coverage by feature: where the model is least sure, and whether its promise holds for every group."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.calibration import covered_rows
from onsphere.report.chance import LEVEL, mean_range, share_range
from onsphere.report.features import FEWEST_ROWS, Feature, Grouping, grouped, read_feature
from onsphere.report.judged import Judged
from onsphere.report.parts import Picture, Section, Table, aligned, clean, download, percent
from onsphere.report.summary import error_text
from onsphere.report.svg import WIDTH, draw, ranges

__all__ = ["coverage_by_group", "least_trusted", "ranked_features"]

# Features that are drawn, and places in the table.
MOST_SHOWN, MOST_PLACES = 6, 10
TRUE_CLASS = "true class"


class _Groups(NamedTuple):
    """What is measured in each group of a feature."""

    grouping: Grouping
    n_rows: NDArray[np.intp]
    confidence: Floats
    coverage: Floats


def _measured(rows: Judged, grouping: Grouping) -> _Groups:
    n_rows = np.bincount(grouping.member, minlength=len(grouping.labels))
    confidence, coverage = (
        np.bincount(grouping.member, values) / n_rows
        for values in (rows.confidence, rows.is_covered.astype(np.float64))
    )
    return _Groups(grouping, n_rows, confidence, coverage)


def ranked_features(rows: Judged, features: list[Feature]) -> list[_Groups]:
    """Features of at least two groups, those first whose groups differ most in confidence."""
    found = [_measured(rows, grouped(feature)) for feature in features]
    found = [each for each in found if len(each.n_rows) > 1]
    return sorted(found, key=lambda each: -_explained(rows.confidence, each))


def _explained(values: Floats, groups: _Groups) -> float:
    """The share of the variance that the groups explain, less what as many groups would explain by chance."""
    total = float(np.sum((values - values.mean()) ** 2))
    n, n_groups = len(values), len(groups.n_rows)
    if total == 0 or n <= n_groups:
        return 0.0
    left = float(np.sum((values - groups.confidence[groups.grouping.member]) ** 2))
    return 1 - left / total * (n - 1) / (n - n_groups)


def least_trusted(rows: Judged, ranked: list[_Groups]) -> Section:
    """Where the confidence is low, by feature."""
    places = [
        (float(groups.confidence[place]), groups, int(place))
        for groups in ranked
        for place in np.flatnonzero(groups.n_rows >= FEWEST_ROWS)
    ]
    places.sort(key=lambda each: each[0])
    if not places:
        text = "No column splits these rows into groups of at least ten."
        return Section("least-trusted", "Where it is least trusted", [text], [], [])
    pictures = [_trust_picture(rows, groups, index) for index, groups in enumerate(ranked[:MOST_SHOWN])]
    lead = (
        f"Mean confidence of the rows by the value of a column, for the {len(pictures)} of {len(ranked)} columns where "
        "it differs most. Rows like those of the calibration have 0.5 on average; the further left, the less the model "
        "trusts itself there. A bar is where the mean may lie by chance (95\u202f%)."
    )
    if len(pictures) == len(ranked):
        lead = lead.replace(f", for the {len(pictures)} of {len(ranked)} columns where it differs most", "")
    return Section("least-trusted", "Where it is least trusted", [lead], pictures, [_places(rows, places)])


def _trust_picture(rows: Judged, groups: _Groups, index: int) -> Picture:
    half = np.array(
        [mean_range(rows.confidence[groups.grouping.member == place]) for place in range(len(groups.n_rows))]
    )
    low, high = np.clip(groups.confidence - half, 0, 1), np.clip(groups.confidence + half, 0, 1)
    is_bad = high < 0.5
    lowest = int(np.argmin(groups.confidence))
    return _range_picture(
        groups,
        name=f"trust-{index + 1}",
        reading=f"Least trusted: {groups.grouping.labels[lowest]}, with a mean confidence of "
        f"{groups.confidence[lowest]:.2f}.",
        measured=("mean confidence", groups.confidence, low, high),
        line=0.5,
        limits=(0.0, 1.0),
        is_bad=is_bad,
    )


def _range_picture(
    groups: _Groups,
    *,
    name: str,
    reading: str,
    measured: tuple[str, Floats, Floats, Floats],
    line: float,
    limits: tuple[float, float],
    is_bad: NDArray[np.bool_],
) -> Picture:
    grouping = groups.grouping
    what, middle, low, high = measured
    labels = [f"{label}  ({n:,})" for label, n in zip(grouping.labels, groups.n_rows, strict=True)]

    def paint(ax: Any) -> None:
        ranges(ax, labels, middle, low, high, line=line, is_bad=is_bad, x=what.capitalize(), limits=limits)

    columns: dict[str, Any] = {clean(grouping.name) or "column": grouping.labels, "rows": groups.n_rows}
    columns |= {what: middle, "from": low, "to": high}
    return Picture(
        title=clean(grouping.name),
        reading=reading,
        svg=draw(name, paint, size=(WIDTH, 0.7 + 0.33 * len(labels))),
        download=download(f"{name}-{clean(grouping.name)}", columns),
    )


def _places(rows: Judged, places: list[tuple[float, _Groups, int]]) -> Table:
    accepted, wrong = rows.answer.accepted, "wrong" if rows.is_class else "mean error"
    columns: dict[str, list[Any]] = {"column": [], "value": [], "rows": [], "mean confidence": [], wrong: []}
    if accepted is not None:
        columns["accepted"] = []
    for confidence, groups, place in places[:MOST_PLACES]:
        here = groups.grouping.member == place
        line = [groups.grouping.name, groups.grouping.labels[place], int(groups.n_rows[place]), confidence]
        line.append(float(np.mean(rows.error[here])))
        line += [] if accepted is None else [float(np.mean(accepted[here]))]
        for column, value in zip(columns.values(), line, strict=True):
            column.append(value)
    told = [[clean(name) for name in columns["column"]], columns["value"], [f"{n:,}" for n in columns["rows"]]]
    told.append([f"{confidence:.2f}" for confidence in columns["mean confidence"]])
    told.append([percent(share) for share in columns[wrong]] if rows.is_class else aligned(columns[wrong]))
    told += [[percent(share) for share in columns["accepted"]]] if accepted is not None else []
    return Table(
        caption=f"The least trusted groups of at least {FEWEST_ROWS} rows; over all rows, "
        f"{'wrong are' if rows.is_class else 'the mean error is'} {error_text(rows, rows.error)}.",
        columns=list(columns),
        rows=[list(line) for line in zip(*told, strict=True)],
        is_number=[False, False, *[True] * (len(columns) - 2)],
        download=download("least-trusted", columns),
    )


def coverage_by_group(rows: Judged, ranked: list[_Groups], names: list[str] | None) -> Section:
    """Whether the promise holds for every group: for the columns that were named, or those where it differs most."""
    title = "Does the promise hold for every group?"
    if names is None:
        known = [_measured(rows, grouped(_true_class(rows)))] if rows.is_class else []
        shown = known + sorted(ranked, key=lambda groups: _by_chance(groups))[: MOST_SHOWN - len(known)]
        examined = known + ranked
    else:
        columns = {str(name): rows.frame.iloc[:, place] for place, name in enumerate(rows.frame.columns)}
        shown = [_measured(rows, grouped(read_feature(name, columns[name]))) for name in names]
        examined = shown
    n_groups = sum(len(groups.n_rows) for groups in examined)
    if not shown:
        return Section("groups", title, ["No column splits these rows into groups."], [], [])
    flags = [_is_below(rows, groups, LEVEL / n_groups) for groups in shown]
    bars = [share_range(np.rint(each.coverage * each.n_rows), each.n_rows.astype(np.float64)) for each in shown]
    # One axis for all, so that the pictures can be compared.
    lowest = min([rows.coverage, *(float(low.min()) for low, _ in bars)])
    limits = (max(np.floor(10 * lowest - 0.2) / 10, 0.0), 1.01)
    pictures = [
        _coverage_picture(rows, groups, is_below, bar, limits=limits, name=f"coverage-{index}")
        for index, (groups, is_below, bar) in enumerate(zip(shown, flags, bars, strict=True), start=1)
    ]
    return Section("groups", title, _words(rows, shown, flags, n_groups, chosen=names is None), pictures, [])


def _true_class(rows: Judged) -> Feature:
    return Feature(TRUE_CLASS, "category", np.array([str(label) for label in rows.target.tolist()], dtype=object))


def _by_chance(groups: _Groups) -> float:
    """The p-value of equal coverage in all groups, by the chi-squared test."""
    from scipy.stats import chi2

    overall = float(np.average(groups.coverage, weights=groups.n_rows))
    variance = overall * (1 - overall)
    if variance == 0:
        return 1.0
    statistic = float(np.sum(groups.n_rows * (groups.coverage - overall) ** 2) / variance)
    return float(chi2.sf(statistic, len(groups.n_rows) - 1))


def _is_below(rows: Judged, groups: _Groups, level: float) -> NDArray[np.bool_]:
    """Which groups are covered so rarely that chance does not explain it, however many groups are looked at."""
    n_covered = np.rint(groups.coverage * groups.n_rows).astype(int)
    found = [
        covered_rows(int(n), rows.n_calibration, rows.coverage).cdf(int(count)) < level
        for count, n in zip(n_covered, groups.n_rows, strict=True)
    ]
    return np.array(found)


def _coverage_picture(
    rows: Judged,
    groups: _Groups,
    is_below: NDArray[np.bool_],
    bar: tuple[Floats, Floats],
    *,
    limits: tuple[float, float],
    name: str,
) -> Picture:
    lowest = int(np.argmin(groups.coverage))
    chance = "not by chance" if is_below[lowest] else "which may be chance"
    if groups.coverage[lowest] >= rows.coverage:
        chance = "as promised"
    return _range_picture(
        groups,
        name=name,
        reading=f"Lowest: {groups.grouping.labels[lowest]}, with {percent(float(groups.coverage[lowest]))} covered, "
        f"{chance}.",
        measured=("share covered", groups.coverage, *bar),
        line=rows.coverage,
        limits=limits,
        is_bad=is_below,
    )


def _words(
    rows: Judged, shown: list[_Groups], flags: list[NDArray[np.bool_]], n_groups: int, *, chosen: bool
) -> list[str]:
    overall = percent(float(np.mean(rows.is_covered)))
    first = (
        f"Over all rows {overall} are covered, {percent(rows.coverage)} were promised (the dashed line). A bar is "
        "where the share of the group may lie by chance (95\u202f%): where it reaches the line, nothing speaks against "
        "the promise."
    )
    bad = [
        f"{clean(groups.grouping.name)}: {groups.grouping.labels[place]}"
        for groups, flag in zip(shown, flags, strict=True)
        for place in np.flatnonzero(flag)
    ]
    if bad:
        second = f"Covered too rarely, by more than chance: {'; '.join(bad)}."
    else:
        second = f"No group is covered so rarely that chance would not explain it among the {n_groups:,} looked at."
    if chosen:
        second += (
            " Shown are the columns where the coverage differs most, so some bars beside the line are to be expected."
        )
    return [first, second]
